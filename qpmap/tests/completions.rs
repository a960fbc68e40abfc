//! What becomes of completions when their QP is destroyed or reset, and of its number.

use crate::common::liar::entry;
use crate::common::scene::{LIFE, PEER, Scene};
use crate::common::{Pair, RingMemory};
use std::collections::BTreeSet;
use std::sync::Arc;
use trunkline_conn::host::QpEvent;
use trunkline_conn::mem::Access;
use trunkline_conn::time::{MILLISECOND, SECOND, TICK_BITS};
use trunkline_conn::work::{Remote, SendOp, Status, VendorError};
use trunkline_qpmap::queue::SharedRecvQueue;
use trunkline_qpmap::wqe::RecvWr;
use trunkline_qpmap::{Config, Event, QpInit, QpModify, QpQueues, QpState, QpType, Tenant};
use trunkline_wire::ControlKind;

type Qp = Arc<QpQueues<RingMemory>>;

/// How a QP ends.
#[derive(Clone, Copy, Debug)]
enum How {
    Destroyed,
    Reset,
}

const BOTH: [How; 2] = [How::Destroyed, How::Reset];

fn end(pair: &mut Pair, node: usize, qp: &Qp, how: How) {
    let engine = &mut pair.nodes[node].engine;
    let ended = match how {
        How::Destroyed => engine.destroy_qp(qp.qpn),
        How::Reset => engine.modify_qp(qp.qpn, &QpModify::Reset),
    };
    ended.expect("it is there");
}

fn shared_and_ibta() -> [Pair; 2] {
    let mut ibta = Pair::new(0);
    ibta.ibta = true;
    [Pair::new(1), ibta]
}

fn target(pair: &Pair) -> Remote {
    Remote {
        addr: pair.nodes[1].buffer.addr + 8192,
        rkey: pair.nodes[1].key,
    }
}

fn cookies(pair: &Pair, node: usize) -> Vec<u64> {
    let done = pair.completions(node).into_iter();
    done.map(|done| done.wr_id).collect()
}

#[test]
fn a_completion_says_when_it_was_done() {
    for mut pair in shared_and_ibta() {
        let [a, b] = pair.connected();
        // The last one is beyond what a completion can tell.
        for wait in [MILLISECOND, SECOND, 80 * SECOND] {
            pair.run(wait);
            let before = pair.now;
            pair.receive(&b, 1, &[pair.sge(1, 0, 64)]);
            pair.post(0, &a, 2, SendOp::Send, &[pair.sge(0, 0, 64)]);
            pair.run(MILLISECOND);
            let ticks = |from: u32, to: u32| to.wrapping_sub(from) & ((1 << TICK_BITS) - 1);
            let most = ticks(before.ticks(), pair.now.ticks());
            for node in [0, 1] {
                let done = pair.completions(node);
                assert_eq!(done.len(), 1, "{done:?}");
                let after = ticks(before.ticks(), done[0].ticks);
                assert!(after <= most, "{after} of {most} ticks");
            }
        }
    }
}

#[test]
fn a_completion_that_a_timer_makes_says_when_that_was() {
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    pair.run(10 * MILLISECOND);
    end(&mut pair, 1, &b, How::Destroyed);
    pair.run(10 * MILLISECOND);
    // It waits for another life of the QP that has left.
    pair.post(0, &a, 2, SendOp::Send, &[pair.sge(0, 0, 64)]);
    pair.step(0);
    assert_eq!(pair.completions(0), []);
    pair.now = pair.now + SECOND;
    let engine = &mut pair.nodes[0].engine;
    while engine.poll_timeout().is_some_and(|at| at <= pair.now) {
        engine.handle_timeout(pair.now);
    }
    engine.publish();
    let done = pair.completions(0);
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].ticks, pair.now.ticks());
}

#[test]
fn a_qp_that_is_destroyed_or_reset_leaves_no_completion_and_takes_no_other_one_along() {
    for how in BOTH {
        for mut pair in shared_and_ibta() {
            let (one, other) = (pair.connected(), pair.connected());
            for wr_id in 0..20 {
                let [a, b] = if wr_id % 2 == 0 { &one } else { &other };
                pair.receive(b, wr_id, &[pair.sge(1, wr_id * 64, 64)]);
                pair.post(0, a, wr_id, SendOp::Send, &[pair.sge(0, 0, 64)]);
            }
            pair.run(50 * MILLISECOND);
            // Half of them are polled already.
            let mut some = [trunkline_conn::work::Completion::BLANK; 10];
            for node in [0, 1] {
                assert_eq!(pair.nodes[node].cq.poll(&mut some), Ok(10));
                end(&mut pair, node, &one[node], how);
                let polled: Vec<u64> = some.iter().map(|done| done.wr_id).collect();
                let left: Vec<u64> = (0..20)
                    .filter(|wr_id| wr_id % 2 == 1 && !polled.contains(wr_id))
                    .collect();
                assert!(!left.is_empty());
                assert_eq!(cookies(&pair, node), left, "{how:?}, node {node}");
            }
        }
    }
}

#[test]
fn a_qp_that_was_reset_starts_with_completions_of_its_new_life() {
    for mut pair in shared_and_ibta() {
        let [a, b] = pair.connected();
        for life in 0..5 {
            let write = SendOp::Write(target(&pair));
            for wr_id in 0..3 {
                pair.post(0, &a, life * 100 + wr_id, write, &[pair.sge(0, 0, 64)]);
            }
            pair.run(20 * MILLISECOND);
            if life == 4 {
                break;
            }
            end(&mut pair, 0, &a, How::Reset);
            end(&mut pair, 1, &b, How::Reset);
            pair.connect(0, &a, &b);
            pair.connect(1, &b, &a);
        }
        assert_eq!(cookies(&pair, 0), [400, 401, 402]);
    }
}

#[test]
fn what_a_qp_in_error_flushed_goes_with_it() {
    for how in BOTH {
        for mut pair in shared_and_ibta() {
            let [a, _b] = pair.connected();
            pair.run(10 * MILLISECOND);
            pair.receive(&a, 7, &[pair.sge(0, 0, 64)]);
            pair.post(
                0,
                &a,
                8,
                SendOp::Write(target(&pair)),
                &[pair.sge(0, 0, 64)],
            );
            let engine = &mut pair.nodes[0].engine;
            engine.modify_qp(a.qpn, &QpModify::Error).expect("a step");
            end(&mut pair, 0, &a, how);
            pair.run(10 * MILLISECOND);
            assert_eq!(cookies(&pair, 0), [], "{how:?}");
        }
    }
}

#[test]
fn completions_that_nobody_will_poll_take_no_room_from_others() {
    let mut pair = Pair::new(1);
    let node = &mut pair.nodes[0];
    (node.cq_index, node.cq) = node.engine.create_cq(8, None).expect("a CQ");
    let [other, _] = pair.connected();
    let write = SendOp::Write(target(&pair));
    for round in 0..10 {
        let [a, _b] = pair.connected();
        pair.post(0, &other, round, write, &[pair.sge(0, 0, 64)]);
        pair.run(10 * MILLISECOND);
        for wr_id in 100..107 {
            pair.post(0, &a, wr_id, write, &[pair.sge(0, 0, 64)]);
        }
        pair.run(10 * MILLISECOND);
        end(&mut pair, 0, &a, How::Destroyed);
        assert_eq!(cookies(&pair, 0), [round]);
    }
    // Nor does it, where nobody polls meanwhile.
    for wr_id in 0..4 {
        pair.post(0, &other, wr_id, write, &[pair.sge(0, 0, 64)]);
    }
    pair.run(10 * MILLISECOND);
    for _ in 0..10 {
        let [a, _b] = pair.connected();
        for wr_id in 100..104 {
            pair.post(0, &a, wr_id, write, &[pair.sge(0, 0, 64)]);
        }
        pair.run(10 * MILLISECOND);
        end(&mut pair, 0, &a, How::Destroyed);
    }
    assert_eq!(cookies(&pair, 0), [0, 1, 2, 3]);
}

/// Two QPs, the second on an SRQ with one receive, which a message whose last packet never comes
/// has taken.
fn half_received(pair: &mut Pair) -> ([Qp; 2], Arc<SharedRecvQueue<RingMemory>>) {
    let node = &mut pair.nodes[1];
    let made = node.engine.create_srq(node.pd, 4, 1);
    let (srq, queue) = made.expect("an SRQ");
    pair.srqs[1] = Some(srq);
    let qps = pair.connected();
    pair.run(10 * MILLISECOND);
    let wr = RecvWr {
        wr_id: 77,
        sges: &[pair.sge(1, 0, 16384)],
    };
    queue.post(&[wr]).expect("room");
    let mut data = 0;
    pair.fate = Box::new(move |node, datagram| {
        data += usize::from(node == 0 && datagram.len() > 800);
        usize::from(data < 8)
    });
    pair.post(0, &qps[0], 1, SendOp::Send, &[pair.sge(0, 0, 16384)]);
    pair.run(2 * MILLISECOND);
    assert_eq!(queue.posted(), 0, "it was taken");
    assert_eq!(pair.completions(1), []);
    (qps, queue)
}

#[test]
fn a_receive_that_a_qp_had_taken_from_its_srq_goes_with_it() {
    for how in BOTH {
        for mut pair in shared_and_ibta() {
            let ([_, b], queue) = half_received(&mut pair);
            end(&mut pair, 1, &b, how);
            pair.run(MILLISECOND);
            assert_eq!(pair.completions(1), [], "{how:?}");
            assert_eq!(queue.posted(), 0, "with part of a message in it");
        }
    }
}

#[test]
fn a_program_that_waits_for_the_last_receive_of_its_qp_gets_it_back() {
    for how in BOTH {
        for mut pair in shared_and_ibta() {
            let ([_, b], _queue) = half_received(&mut pair);
            let engine = &mut pair.nodes[1].engine;
            engine.modify_qp(b.qpn, &QpModify::Error).expect("a step");
            let last = Event::Qp {
                qpn: b.qpn,
                event: QpEvent::LastWqeReached,
            };
            assert!(std::iter::from_fn(|| engine.poll_event()).any(|event| event == last));
            engine.publish();
            let done = pair.completions(1);
            let done: Vec<_> = done.iter().map(|done| (done.wr_id, done.status)).collect();
            assert_eq!(done, [(77, Status::Flushed)]);
            end(&mut pair, 1, &b, how);
        }
    }
}

// Numbers.

#[test]
fn the_number_of_a_destroyed_qp_rests() {
    let mut pair = Pair::new(0);
    let mut used = BTreeSet::new();
    for _ in 0..1000 {
        let qp = pair.qp(0, QpType::Rc);
        assert!(
            used.insert(qp.qpn.get()),
            "{:?} was used again at once",
            qp.qpn
        );
        end(&mut pair, 0, &qp, How::Destroyed);
    }
    for _ in 0..9000 {
        let qp = pair.qp(0, QpType::Rc);
        used.insert(qp.qpn.get());
        end(&mut pair, 0, &qp, How::Destroyed);
    }
    assert!(used.len() < 1100, "{} numbers of 10,000 QPs", used.len());
}

#[test]
fn numbers_rest_no_longer_than_there_are_others() {
    let mut pair = Pair::configured(0, 1024 + 80, |config: &mut Config| config.max_qps = 4);
    let mut qps: Vec<Qp> = (0..4).map(|_| pair.qp(0, QpType::Rc)).collect();
    for round in 0..100 {
        let qp = qps.remove(round % 3);
        end(&mut pair, 0, &qp, How::Destroyed);
        qps.push(pair.qp(0, QpType::Rc));
    }
    let numbers: BTreeSet<_> = qps.iter().map(|qp| qp.qpn.get()).collect();
    assert_eq!(numbers.len(), 4);
}

// Why nobody did it.

/// What a request of `a` to `remote` ends with.
fn ends_with(pair: &mut Pair, a: &Qp, remote: &Qp) -> (Status, VendorError) {
    pair.connect(0, a, remote);
    sends_with(pair, a)
}

fn sends_with(pair: &mut Pair, a: &Qp) -> (Status, VendorError) {
    pair.post(0, a, 1, SendOp::Send, &[pair.sge(0, 0, 64)]);
    pair.run(60 * SECOND);
    let done = pair.completions(0);
    assert_eq!(done.len(), 1);
    (done[0].status, done[0].vendor_err)
}

#[test]
fn a_request_that_nobody_will_do_says_why() {
    let mut pair = Pair::new(1);
    let exceeded = Status::RetryExceeded;
    let [a, gone] = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    end(&mut pair, 1, &gone, How::Destroyed);
    assert_eq!(
        ends_with(&mut pair, &a, &gone),
        (exceeded, VendorError::NoQp)
    );

    // One that talks to somebody else.
    let ([_c, taken], a) = (pair.connected(), pair.qp(0, QpType::Rc));
    assert_eq!(
        ends_with(&mut pair, &a, &taken),
        (exceeded, VendorError::OtherPeer)
    );

    // One that is in error.
    let [a, b] = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    pair.connect(1, &b, &a);
    let engine = &mut pair.nodes[1].engine;
    engine.modify_qp(b.qpn, &QpModify::Error).expect("a step");
    assert_eq!(
        ends_with(&mut pair, &a, &b),
        (exceeded, VendorError::QpGone)
    );

    // One that was there when the two met.
    let [a, b] = pair.connected();
    pair.run(10 * MILLISECOND);
    end(&mut pair, 1, &b, How::Destroyed);
    assert_eq!(sends_with(&mut pair, &a), (exceeded, VendorError::QpGone));

    // Nobody says anything.
    let [a, _b] = pair.connected();
    pair.run(10 * MILLISECOND);
    pair.fate = Box::new(|_, _| 0);
    assert_eq!(sends_with(&mut pair, &a), (exceeded, VendorError::None));
}

#[test]
fn requests_under_way_when_their_peer_goes_say_so() {
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    pair.run(10 * MILLISECOND);
    // It has no receive: the requests wait.
    for wr_id in 0..2 {
        pair.post(0, &a, wr_id, SendOp::Send, &[pair.sge(0, 0, 64)]);
    }
    pair.run(MILLISECOND);
    end(&mut pair, 1, &b, How::Destroyed);
    pair.run(SECOND);
    let done = pair.completions(0);
    let done: Vec<_> = done
        .iter()
        .map(|done| (done.status, done.vendor_err))
        .collect();
    let gone = (Status::RetryExceeded, VendorError::QpGone);
    assert_eq!(done, [gone, (Status::Flushed, VendorError::None)]);
}

/// How a peer's QP goes with all that it had under way.
#[derive(Clone, Copy, Debug)]
enum Going {
    /// Another incarnation of its node has introduced itself.
    Restart,
    /// The same, when the connection had died before.
    RestartAfterDeath,
    /// Its next life asks.
    NextLife,
    /// Its next life agrees.
    NextLifeAgrees,
}

#[test]
fn requests_whose_peers_qp_goes_with_its_node_or_its_life_say_so() {
    for going in [
        Going::Restart,
        Going::RestartAfterDeath,
        Going::NextLife,
        Going::NextLifeAgrees,
    ] {
        let mut scene = Scene::new();
        scene.post(1, SendOp::Send, 0);
        scene.pair.sent_by(1);
        let (qpn, life, conn) = (scene.qp.qpn, scene.life, scene.liar.conn);
        let engine = &mut scene.pair.nodes[1].engine;
        let next = match going {
            Going::Restart => {
                engine.drop_peer(scene.liar.address());
                None
            }
            Going::RestartAfterDeath => {
                engine.close_connection(conn);
                scene.pair.sent_by(1);
                let engine = &mut scene.pair.nodes[1].engine;
                engine.drop_peer(scene.liar.address());
                None
            }
            Going::NextLife => Some(entry(ControlKind::Bind, PEER.get(), qpn, LIFE + 1, 0)),
            Going::NextLifeAgrees => {
                Some(entry(ControlKind::Bound, PEER.get(), qpn, life, LIFE + 1))
            }
        };
        if let Some(next) = next {
            scene.liar.control(&mut scene.pair, &[next]);
        }
        scene.pair.sent_by(1);
        let done = scene.pair.completions(1);
        let done: Vec<_> = done
            .iter()
            .map(|done| (done.status, done.vendor_err))
            .collect();
        let gone = (Status::RetryExceeded, VendorError::QpGone);
        assert_eq!(done, [gone], "{going:?}");
    }
}

/// A QP that completes its requests into one CQ, and its receives into another.
#[test]
fn a_qp_with_two_cqs_completes_into_that_of_each_queue_and_leaves_both() {
    for how in BOTH {
        for mut pair in shared_and_ibta() {
            let node = &mut pair.nodes[1];
            let [sent, received] = [(); 2].map(|()| node.engine.create_cq(64, None).expect("a CQ"));
            let init = QpInit {
                pd: node.pd,
                kind: QpType::Rc,
                send_cq: sent.0,
                recv_cq: received.0,
                srq: None,
                max_send_wr: 8,
                max_recv_wr: 8,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
                signal_all: false,
                complete_last_wqe: false,
                tenant: Tenant::OWN,
            };
            let qp = node.engine.create_qp(&init).expect("a QP");
            let peer = pair.qp(0, QpType::Rc);
            pair.connect(0, &peer, &qp);
            pair.connect(1, &qp, &peer);
            let told = || {
                [&sent.1, &received.1].map(|cq| {
                    let mut some = [trunkline_conn::work::Completion::BLANK; 8];
                    let polled = cq.poll(&mut some).expect("it has not overrun");
                    let ids = some[..polled].iter().map(|done| done.wr_id);
                    ids.collect::<Vec<_>>()
                })
            };
            let exchange = |pair: &mut Pair, first: u64| {
                pair.receive(&qp, first, &[pair.sge(1, 0, 64)]);
                pair.receive(&peer, 0, &[pair.sge(0, 0, 64)]);
                pair.post(1, &qp, first + 1, SendOp::Send, &[pair.sge(1, 0, 64)]);
                pair.post(0, &peer, 0, SendOp::Send, &[pair.sge(0, 0, 64)]);
                pair.run(20 * MILLISECOND);
            };
            exchange(&mut pair, 1);
            assert_eq!(told(), [vec![2], vec![1]]);
            exchange(&mut pair, 3);
            end(&mut pair, 1, &qp, how);
            assert_eq!(told(), [vec![], vec![]], "{how:?}: they went with the life");
            let engine = &mut pair.nodes[1].engine;
            if matches!(how, How::Destroyed) {
                for cq in [sent.0, received.0] {
                    engine.destroy_cq(cq).expect("nobody uses it");
                }
                continue;
            }
            for cq in [sent.0, received.0] {
                engine.destroy_cq(cq).expect_err("the QP uses it");
            }
            pair.connect(1, &qp, &peer);
            pair.receive(&qp, 5, &[pair.sge(1, 0, 64)]);
            let engine = &mut pair.nodes[1].engine;
            let ended = engine.modify_qp(qp.qpn, &QpModify::Error);
            ended.expect("it is there");
            pair.run(MILLISECOND);
            assert_eq!(told(), [vec![], vec![5]]);
        }
    }
}

/// What overran is of use to no queue of either kind, and whatever uses it fails.
#[test]
fn a_cq_that_overran_ends_who_sends_or_receives_into_it_and_is_used_by_no_new_life() {
    let mut pair = Pair::new(1);
    let node = &mut pair.nodes[1];
    let (small, _cq) = node.engine.create_cq(2, None).expect("a CQ");
    let large = node.cq_index;
    let [sends, receives, both] =
        [(small, large), (large, small), (small, small)].map(|(send_cq, recv_cq)| {
            let init = QpInit {
                pd: node.pd,
                kind: QpType::Rc,
                send_cq,
                recv_cq,
                srq: None,
                max_send_wr: 64,
                max_recv_wr: 8,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
                signal_all: false,
                complete_last_wqe: false,
                tenant: Tenant::OWN,
            };
            node.engine.create_qp(&init).expect("a QP")
        });
    for qp in [&sends, &receives, &both] {
        let peer = pair.qp(0, QpType::Rc);
        pair.connect(0, &peer, qp);
        pair.connect(1, qp, &peer);
        pair.receive(&peer, 0, &[pair.sge(0, 0, 64)]);
    }
    for wr_id in 0..32 {
        let there = Remote {
            addr: pair.nodes[0].buffer.addr,
            rkey: pair.nodes[0].key,
        };
        let own = [pair.sge(1, 0, 64)];
        pair.post(1, &both, wr_id, SendOp::Write(there), &own);
    }
    pair.run(50 * MILLISECOND);
    for (what, qp) in [("sends", &sends), ("receives", &receives), ("both", &both)] {
        let engine = &mut pair.nodes[1].engine;
        assert_eq!(qp.state(), QpState::Error, "{what}");
        engine.modify_qp(qp.qpn, &QpModify::Reset).expect("always");
        let init = QpModify::Init {
            access: Access::ALL,
        };
        let begun = engine.modify_qp(qp.qpn, &init);
        assert!(begun.is_err(), "{what}: {begun:?}");
    }
}
