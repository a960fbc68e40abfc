//! QPs that do not know yet what their peer is, or took it for something else: which mode they take
//! up, and what leaves them as they are.

use crate::common::{Pair, RingMemory};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use trunkline_conn::ingress::{Arrival, Identification};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Completion, SendOp, Status};
use trunkline_qpmap::{QpModify, QpQueues, QpType};
use trunkline_wire::{Control, ControlKind, IpFields, Opcode, Path, ROCE_PORT, icrc};

/// Address of the first node.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const LENGTH: u64 = 3000;
/// Where what arrives is placed.
const INBOX: u64 = 1 << 18;

type Ends = [Arc<QpQueues<RingMemory>>; 2];

/// The first node takes the second one for an ordinary host; that one does not know yet.
fn one_sided() -> (Pair, Ends) {
    let mut pair = Pair::new(0);
    let ends = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    pair.connect(1, &ends[1], &ends[0]);
    pair.ibta = true;
    pair.connect(0, &ends[0], &ends[1]);
    pair.ibta = false;
    (pair, ends)
}

/// Posts `count` SENDs from `node`, and receives for them.
fn exchange(pair: &Pair, ends: &Ends, node: usize, count: u64) {
    for i in 0..count {
        let inbox = pair.sge(1 - node, INBOX + i * LENGTH, LENGTH as u32);
        pair.receive(&ends[1 - node], 100 + i, &[inbox]);
        let data = pair.sge(node, i, LENGTH as u32);
        pair.post(node, &ends[node], i, SendOp::Send, &[data]);
    }
}

fn fill(pair: &Pair) {
    for node in 0..2 {
        let data: Vec<u8> = (0..2 * LENGTH)
            .map(|i| ((i * 7) as u8).wrapping_add(node))
            .collect();
        pair.nodes[usize::from(node)].buffer.set(0, &data);
    }
}

/// Each of `count` messages in either direction came once and in order.
fn check(pair: &Pair, count: u64) {
    let done = [pair.completions(0), pair.completions(1)];
    for (node, done) in done.iter().enumerate() {
        assert!(done.iter().all(|one| one.status == Status::Success));
        let ids = |mine: fn(&&Completion) -> bool| -> Vec<u64> {
            done.iter().filter(mine).map(|one| one.wr_id).collect()
        };
        assert_eq!(ids(|one| one.wr_id < 100), Vec::from_iter(0..count));
        assert_eq!(
            ids(|one| one.wr_id >= 100),
            Vec::from_iter(100..100 + count)
        );
        for i in 0..count {
            let inbox = &pair.nodes[1 - node].buffer;
            let came = inbox.get((INBOX + i * LENGTH) as usize, LENGTH as usize);
            let sent = pair.nodes[node].buffer.get(i as usize, LENGTH as usize);
            assert!(came == sent, "message {i} of node {node}");
        }
    }
}

#[test]
fn a_qp_that_waits_to_hear_what_its_peer_is_takes_up_plain_rc_with_what_was_posted_meanwhile() {
    let (mut pair, ends) = one_sided();
    fill(&pair);
    exchange(&pair, &ends, 1, 20);
    pair.run(MILLISECOND);
    assert!(pair.completions(0).is_empty(), "it has to wait");
    exchange(&pair, &ends, 0, 20);
    pair.run(SECOND);
    check(&pair, 20);
}

#[test]
fn first_packets_that_are_lost_do_not_keep_a_qp_from_plain_rc() {
    let (mut pair, ends) = one_sided();
    fill(&pair);
    let mut left = 3;
    pair.fate = Box::new(move |from, _| {
        let lost = from == 0 && left > 0;
        left -= i32::from(lost);
        usize::from(!lost)
    });
    exchange(&pair, &ends, 1, 5);
    exchange(&pair, &ends, 0, 5);
    pair.run(SECOND);
    check(&pair, 5);
}

#[test]
fn forged_requests_leave_a_qp_that_waits_as_it_was() {
    type Forge = fn(&mut [u8], &mut Path);
    let forgeries: [(&str, Forge); 8] = [
        ("another address", |_, path| path.src = [10, 0, 0, 9].into()),
        ("a PSN behind", |p, _| p[9..12].fill(0xff)),
        ("a PSN ahead", |p, _| p[11] ^= 1),
        ("another partition", |p, _| p[2] ^= 1),
        ("another QP", |p, _| p[7] ^= 1),
        ("an acknowledgement", |p, _| p[0] = Opcode::RC_ACKNOWLEDGE.0),
        ("not the first of a message", |p, _| {
            p[0] = Opcode::RC_SEND_LAST.0;
        }),
        ("another transport", |p, _| p[0] |= 0x20),
    ];
    for (what, forge) in forgeries {
        let (mut pair, ends) = one_sided();
        fill(&pair);
        let held = Arc::new(Mutex::new(Vec::new()));
        let copies = Arc::clone(&held);
        pair.fate = Box::new(move |_, datagram| {
            let mut copies = copies.lock().expect("no test panics while it holds it");
            copies.push(datagram.to_vec());
            0
        });
        exchange(&pair, &ends, 0, 1);
        exchange(&pair, &ends, 1, 1);
        pair.step(0);
        let mut datagram = held.lock().expect("no test panics while it holds it")[0].clone();
        let mut path = Path {
            src: FIRST.into(),
            dst: [10, 0, 0, 2].into(),
            src_port: ROCE_PORT,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        forge(&mut datagram, &mut path);
        icrc::seal(&path, 0, &mut datagram);
        let arrival = Arrival {
            path,
            identification: Identification::Predicted(0),
            ce: false,
            waited_ns: 0,
        };
        let engine = &mut pair.nodes[1].engine;
        engine.handle_datagram(pair.now, &arrival, &datagram);
        pair.step(1);
        let left = held.lock().expect("no test panics while it holds it").len();
        // Nothing but the first node's own packets.
        assert_eq!(left, 3, "{what}");
        // It is as free as before: the connection that comes now decides.
        pair.fate = Box::new(|_, _| 1);
        pair.open();
        pair.run(SECOND);
        check(&pair, 1);
        assert!(pair.nodes[1].engine.counters().bound > 0, "{what}");
    }
}

#[test]
fn a_bind_that_left_with_a_question_counts_no_more_once_its_qp_went_plain() {
    let (mut pair, ends) = one_sided();
    fill(&pair);
    let early = pair.nodes[1].engine.early_binds(FIRST.into());
    let early: Vec<Control> = early.collect();
    assert_eq!(early[0].kind, ControlKind::Bind);
    // A request is executed, and the first node does not hear of it: it has no credit for others.
    pair.fate = Box::new(|from, _| usize::from(from == 0));
    exchange(&pair, &ends, 0, 4);
    pair.run(MILLISECOND);
    assert_eq!(pair.completions(1).len(), 1);
    // Now the second node has its answer, and confirms its question.
    pair.open();
    let conn = pair.conns[0][0];
    let now = pair.now;
    pair.nodes[0].engine.handle_early(now, conn, early[0]);
    pair.fate = Box::new(|_, _| 1);
    exchange(&pair, &ends, 1, 4);
    pair.run(SECOND);
    let done = [pair.completions(0), pair.completions(1)];
    assert_eq!(done.each_ref().map(Vec::len), [8, 7], "{done:?}");
    assert!(
        done.iter()
            .flatten()
            .all(|one| one.status == Status::Success)
    );
    assert_eq!(pair.nodes[1].engine.counters().bound, 0);
}

#[test]
fn a_bind_for_a_qp_that_has_heard_its_peer_as_plain_rc_is_refused() {
    let (mut pair, ends) = one_sided();
    fill(&pair);
    exchange(&pair, &ends, 0, 2);
    exchange(&pair, &ends, 1, 2);
    pair.run(SECOND);
    check(&pair, 2);
    // The second QP begins anew, without the first one, which cannot know.
    let qpn = ends[1].qpn;
    let reset = pair.nodes[1].engine.modify_qp(qpn, &QpModify::Reset);
    reset.expect("any state may be reset");
    pair.open();
    pair.connect(1, &ends[1], &ends[0]);
    exchange(&pair, &ends, 1, 1);
    pair.run(SECOND);
    let [first, second] = [pair.completions(0), pair.completions(1)];
    assert!(first.is_empty(), "nothing was executed: {first:?}");
    assert_eq!(second[0].wr_id, 0);
    assert_eq!(second[0].status, Status::RetryExceeded);
}
