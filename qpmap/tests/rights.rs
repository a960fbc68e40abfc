//! Rights of peers, which each step of a QP to RTS may change, and RTS itself.

use crate::common::{Pair, RingMemory};
use std::sync::Arc;
use trunkline_conn::mem::Access;
use trunkline_conn::time::MILLISECOND;
use trunkline_conn::work::{Remote, SendOp, Status};
use trunkline_qpmap::{Attributes, Changes, QpModify, QpQueues, QpType};

type Qp = Arc<QpQueues<RingMemory>>;

const NONE: Access = Access::LOCAL_READ;
const WRITE: Access = Access::REMOTE_WRITE;

fn attributes(node: usize, peer: &Qp, access: Option<Access>) -> Attributes {
    Attributes {
        remote: std::net::IpAddr::from([10, 0, 0, 2 - node as u8]).into(),
        dest_qpn: peer.qpn,
        access,
        ..Attributes::default()
    }
}

/// The steps to RTS, and one there. The one at `at` gives the peer `new` rights, after INIT gave it
/// `old` ones; what comes behind is left out, but for the one to RTR.
fn steps(peer: &Qp, at: usize, [old, new]: [Access; 2]) -> Vec<QpModify> {
    let here = |step| (step == at).then_some(new);
    let change = |access| {
        QpModify::Change(Changes {
            access,
            ..Changes::default()
        })
    };
    let mut steps = vec![
        QpModify::Init { access: old },
        change(here(1)),
        QpModify::Rtr(attributes(1, peer, here(2))),
        QpModify::Rts(attributes(1, peer, here(3))),
        change(here(4)),
    ];
    steps.truncate(at.max(2) + 1);
    steps
}

/// Shared connections and QPs with connections of their own, with the types that have rights.
fn pairs() -> Vec<(Pair, QpType)> {
    let ibta = || {
        let mut pair = Pair::new(0);
        pair.ibta = true;
        pair
    };
    vec![
        (Pair::new(1), QpType::Rc),
        (ibta(), QpType::Rc),
        (ibta(), QpType::Uc),
    ]
}

#[test]
fn a_write_is_judged_by_the_rights_of_the_last_step() {
    for rights in [[NONE, WRITE], [WRITE, NONE]] {
        for at in 1..=4 {
            for (mut pair, kind) in pairs() {
                let case = format!("{kind}, ibta: {}, step {at}, {rights:?}", pair.ibta);
                let [a, b] = [0, 1].map(|node| pair.qp(node, kind));
                pair.connect(0, &a, &b);
                let engine = &mut pair.nodes[1].engine;
                for step in steps(&a, at, rights) {
                    engine.modify_qp(b.qpn, &step).expect("a legal step");
                }
                if pair.ibta {
                    engine.peer_is_ibta(attributes(1, &a, None).remote);
                }
                let (_, found) = engine.query_qp(b.qpn).expect("it is there");
                assert_eq!(found.access, Some(rights[1]), "{case}");
                let [from, to] = [0, 1].map(|node: usize| pair.nodes[node].buffer.clone());
                from.set(0, &[0x5a; 64]);
                let remote = Remote {
                    addr: to.addr,
                    rkey: pair.nodes[1].key,
                };
                pair.post(0, &a, 1, SendOp::Write(remote), &[pair.sge(0, 0, 64)]);
                pair.run(20 * MILLISECOND);
                let may = rights[1] == WRITE;
                let written = to.get(0, 64) == [0x5a; 64];
                assert_eq!(written, may, "{case}");
                let ends: Vec<_> = pair.completions(0).iter().map(|done| done.status).collect();
                // Nobody tells the requester of UC.
                let good = may || kind == QpType::Uc;
                let end = [Status::RemoteInvalidRequest, Status::Success][usize::from(good)];
                assert_eq!(ends, [end], "{case}");
            }
        }
    }
}

#[test]
fn a_step_that_is_refused_changes_no_rights() {
    let mut pair = Pair::new(1);
    let [a, b] = [0, 1].map(|node| pair.qp(node, QpType::Rc));
    let good = attributes(1, &a, Some(WRITE));
    let bad = Attributes {
        retry_count: 8,
        ..good
    };
    let engine = &mut pair.nodes[1].engine;
    let rights = |engine: &trunkline_qpmap::Engine<crate::common::Test>| {
        let (_, found) = engine.query_qp(b.qpn).expect("it is there");
        found.access
    };
    let init = QpModify::Init { access: NONE };
    engine.modify_qp(b.qpn, &init).expect("a legal step");
    assert!(engine.modify_qp(b.qpn, &QpModify::Rtr(bad)).is_err());
    assert_eq!(rights(engine), Some(NONE));
    let kept = attributes(1, &a, None);
    engine
        .modify_qp(b.qpn, &QpModify::Rtr(kept))
        .expect("a legal step");
    assert_eq!(rights(engine), Some(NONE), "none were named");
    // From RTR to RTR no attribute changes.
    let change = Changes {
        access: Some(WRITE),
        ..Changes::default()
    };
    assert!(engine.modify_qp(b.qpn, &QpModify::Change(change)).is_err());
    assert!(engine.modify_qp(b.qpn, &QpModify::Rts(bad)).is_err());
    assert_eq!(rights(engine), Some(NONE));
    engine
        .modify_qp(b.qpn, &QpModify::Rts(good))
        .expect("a legal step");
    assert_eq!(rights(engine), Some(WRITE));
}
