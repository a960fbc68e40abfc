//! What becomes of READs whose region goes while the responder does not know yet whether their
//! data have come.

use crate::common::scene::Scene;
use crate::common::{Buffer, Pair, RingMemory};
use std::sync::Arc;
use trunkline_conn::host::QpEvent;
use trunkline_conn::mem::{Access, AtomicOp};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Remote, SendOp, Status};
use trunkline_qpmap::{Event, FIRST_MSN, QpQueues, QpState};
use trunkline_wire::{Opcode, SrcExt, icrc};

type Qp = Arc<QpQueues<RingMemory>>;

/// How long the acknowledgements of a requester are lost.
const LATE: u64 = 100 * MILLISECOND;

/// Two pairs of QPs, whose small messages may share packets or not.
fn two_pairs(packs: bool) -> (Pair, [[Qp; 2]; 2]) {
    let mut pair = Pair::new(0);
    pair.packs = packs;
    pair.open();
    let qps = [pair.connected(), pair.connected()];
    pair.run(5 * MILLISECOND);
    (pair, qps)
}

/// A second region of node 1.
fn region(pair: &mut Pair) -> Remote {
    let addr = 1 << 40;
    let node = &mut pair.nodes[1];
    let bytes = Buffer::new(addr, 1 << 16);
    bytes.set(0, &[7; 1 << 16]);
    let made = node.engine.regions().register(node.pd, bytes, Access::ALL);
    let rkey = made.expect("a region like others").rkey;
    Remote { addr, rkey }
}

fn outcomes(pair: &Pair, node: usize) -> Vec<(u64, Status)> {
    let done = pair.completions(node).into_iter();
    let mut done: Vec<_> = done.map(|done| (done.wr_id, done.status)).collect();
    done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    done
}

/// What the program of node 1 heard of its QPs.
fn events(pair: &mut Pair) -> Vec<QpEvent> {
    let engine = &mut pair.nodes[1].engine;
    let polled = std::iter::from_fn(|| engine.poll_event());
    polled
        .filter_map(|event| match event {
            Event::Qp { event, .. } => Some(event),
            _ => None,
        })
        .filter(|event| *event != QpEvent::CommunicationEstablished)
        .collect()
}

/// Each pair of QPs reads from a region of node 1, and `lost` says whether a datagram that answers
/// is. Then the region goes, and for a while nothing of node 0 arrives.
fn read_and_deregister(packs: bool, length: u32, lost: fn(usize) -> bool) -> (Pair, [[Qp; 2]; 2]) {
    let (mut pair, qps) = two_pairs(packs);
    let from = region(&mut pair);
    for (number, [a, _]) in (0..).zip(&qps) {
        let into = pair.sge(0, number * 8192, length);
        pair.post(0, a, number, SendOp::Read(from), &[into]);
    }
    pair.step(0);
    let answers = pair.sent_by(1);
    assert!(answers.len() >= if packs { 1 } else { 2 });
    let arriving = answers.into_iter().enumerate();
    let arriving = arriving.filter(|(at, _)| !lost(*at)).map(|(_, one)| one);
    let arriving: Vec<_> = arriving.collect();
    pair.deliver(0, &arriving);
    pair.nodes[1].deregister(from.rkey);
    pair.fate = Box::new(|from, _| from);
    pair.run(LATE);
    assert!(pair.nodes[1].engine.counters().void_sent > 0, "sent again");
    pair.fate = Box::new(|_, _| 1);
    pair.run(SECOND);
    (pair, qps)
}

#[test]
fn a_region_that_goes_when_its_peer_has_read_it_ends_nothing() {
    for (packs, length) in [(false, 64), (true, 64), (false, 5000)] {
        let (mut pair, qps) = read_and_deregister(packs, length, |_| false);
        let expected = [(0, Status::Success), (1, Status::Success)];
        assert_eq!(outcomes(&pair, 0), expected, "{packs} {length}");
        assert_eq!(events(&mut pair), [], "{packs} {length}");
        for (number, [a, b]) in (2..).zip(&qps) {
            assert_eq!([a.state(), b.state()], [QpState::Rts; 2]);
            pair.receive(a, number, &[pair.sge(0, 0, 64)]);
            pair.post(1, b, number, SendOp::Send, &[pair.sge(1, 0, 64)]);
            pair.receive(b, 10 + number, &[pair.sge(1, 0, 64)]);
            pair.post(0, a, 10 + number, SendOp::Send, &[pair.sge(0, 0, 64)]);
        }
        pair.run(SECOND);
        for node in [0, 1] {
            let expected = [2, 3, 12, 13].map(|wr_id| (wr_id, Status::Success));
            assert_eq!(outcomes(&pair, node), expected, "{packs} {length}");
        }
    }
}

#[test]
fn a_read_whose_data_did_not_come_before_its_region_went_is_refused() {
    for (packs, length) in [(false, 64), (true, 64), (false, 5000)] {
        let (mut pair, qps) = read_and_deregister(packs, length, |at| at == 0);
        let done = outcomes(&pair, 0);
        assert_eq!(done[0], (0, Status::RemoteAccess), "{packs} {length}");
        // What shares a packet is lost with it.
        let other = if packs {
            Status::RemoteAccess
        } else {
            Status::Success
        };
        assert_eq!(done[1..], [(1, other)], "{packs} {length}");
        assert_eq!(qps[0][0].state(), QpState::Error);
        assert_eq!(events(&mut pair), [], "its peer's QP has no part in it");
        assert_eq!(pair.nodes[0].engine.counters().bad_answer, 0);
        assert_eq!(
            pair.nodes[0]
                .engine
                .connection_stats(pair.conns[0][0])
                .map(|at| at.flows > 0),
            Some(true)
        );
    }
}

/// Headers of a word of the peer that the data of its message `number` are gone.
fn refusal(scene: &Scene, number: u32) -> SrcExt {
    SrcExt {
        abort: true,
        msn: FIRST_MSN.wrapping_add(number),
        ..scene.ext()
    }
}

#[test]
fn a_read_that_is_refused_after_its_execution_fails_when_those_before_it_have_ended() {
    let mut scene = Scene::new();
    scene.post_reads(1, &[0, 64]);
    let refused = refusal(&scene, 1);
    scene.say(Opcode::SRC_READ_RESP, refused, &[]);
    assert_eq!(scene.statuses(), []);
    scene.data(0, 0);
    assert_eq!(scene.statuses(), [Status::Success, Status::RemoteAccess]);
}

#[test]
fn a_peer_refuses_no_read_that_has_its_data_and_nothing_but_a_read() {
    let mut scene = Scene::new();
    scene.post(1, SendOp::Send, 0);
    scene.post_reads(2, &[0, 64]);
    scene.data(2, 0);
    assert_eq!(scene.statuses(), [Status::Success], "of the SEND");
    // The second READ has its data, the first message is none, the next was never asked for, and
    // of another epoch is no READ.
    for number in [2, 0, 3] {
        let refused = refusal(&scene, number);
        scene.say(Opcode::SRC_READ_RESP, refused, &[0; 8]);
    }
    let refused = SrcExt {
        replay_epoch: 1,
        ..refusal(&scene, 1)
    };
    scene.say(Opcode::SRC_READ_RESP, refused, &[]);
    let refused = refusal(&scene, 1);
    scene.say(Opcode::SRC_ATOMIC_RESP, refused, &[0; 8]);
    assert_eq!(scene.statuses(), []);
    scene.data(1, 0);
    assert_eq!(scene.statuses(), [Status::Success; 2]);
}

#[test]
fn a_peer_refuses_no_atomic_as_if_it_was_a_read() {
    let mut scene = Scene::new();
    let node = &scene.pair.nodes[1];
    let target = Remote {
        addr: node.buffer.addr,
        rkey: node.key,
    };
    scene.post(1, SendOp::Atomic(target, AtomicOp::FetchAdd { add: 1 }), 0);
    assert_eq!(scene.hears(Opcode::SRC_FETCH_ADD, MILLISECOND), 1);
    let refused = refusal(&scene, 0);
    scene.say(Opcode::SRC_READ_RESP, refused, &[]);
    assert_eq!(scene.statuses(), []);
    assert_eq!(scene.counters().bad_answer, 1);
    scene.say(Opcode::SRC_ATOMIC_RESP, scene.ext(), &[7; 8]);
    assert_eq!(scene.statuses(), [Status::Success]);
}

#[test]
fn a_refusal_whose_payload_was_damaged_refuses_nothing() {
    let mut scene = Scene::new();
    scene.post_reads(1, &[0]);
    let refused = refusal(&scene, 0);
    // The sum over its headers is right.
    let (path, mut datagram) = scene.streamed(Opcode::SRC_READ_RESP, refused, &[7; 8]);
    let whole = datagram.clone();
    datagram[whole.len() - icrc::LEN - 1] ^= 1;
    scene.pair.deliver(1, &[(path, datagram)]);
    assert_eq!(scene.statuses(), []);
    assert_eq!(scene.counters().bad_icrc, 1);
    scene.pair.deliver(1, &[(path, whole)]);
    assert_eq!(scene.statuses(), [Status::RemoteAccess]);
}
