//! Receives that QPs share, and what tells that a QP takes no more of them.

use crate::common::managed::{Queues, managed, post as post_on, route, told};
use crate::common::rings::break_last;
use crate::common::{Pair, RingMemory};
use std::sync::Arc;
use trunkline_conn::host::QpEvent;
use trunkline_conn::mem::Access;
use trunkline_conn::time::MILLISECOND;
use trunkline_conn::work::{Remote, SendOp, Status};
use trunkline_qpmap::queue::SharedRecvQueue;
use trunkline_qpmap::wqe::RecvWr;
use trunkline_qpmap::{Event, LAST_WQE, QpInit, QpModify, QpState, QpType, Tenant, VerbsError};
use trunkline_wire::Qpn;

fn shared_and_ibta() -> [Pair; 2] {
    let mut ibta = Pair::new(0);
    ibta.ibta = true;
    [Pair::new(1), ibta]
}

/// What makes a QP of the second node on an SRQ.
fn init(pair: &Pair, srq: u32) -> QpInit {
    let node = &pair.nodes[1];
    QpInit {
        pd: node.pd,
        kind: QpType::Rc,
        send_cq: node.cq_index,
        recv_cq: node.cq_index,
        srq: Some(srq),
        max_send_wr: 8,
        max_recv_wr: 0,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        signal_all: false,
        complete_last_wqe: false,
        tenant: Tenant::OWN,
    }
}

/// A QP of the first node, and one of the second on an SRQ, which may want a last completion.
fn on_an_srq(
    pair: &mut Pair,
    complete_last_wqe: bool,
) -> ([Queues; 2], Arc<SharedRecvQueue<RingMemory>>) {
    let pd = pair.nodes[1].pd;
    let engine = &mut pair.nodes[1].engine;
    let (srq, queue) = engine.create_srq(pd, 4, 1).expect("an SRQ");
    let init = QpInit {
        complete_last_wqe,
        ..init(pair, srq)
    };
    let b = pair.nodes[1].engine.create_qp(&init).expect("a QP");
    let a = pair.qp(0, QpType::Rc);
    pair.connect(0, &a, &b);
    pair.connect(1, &b, &a);
    pair.run(10 * MILLISECOND);
    ([a, b], queue)
}

fn post(pair: &Pair, queue: &SharedRecvQueue<RingMemory>, wr_id: u64) {
    let sges = &[pair.sge(1, 0, 16384)];
    queue.post(&[RecvWr { wr_id, sges }]).expect("room");
}

fn completions(pair: &Pair) -> Vec<(u64, Status)> {
    let done = pair.completions(1);
    done.iter().map(|done| (done.wr_id, done.status)).collect()
}

#[test]
fn each_receive_of_an_srq_serves_any_message_that_needs_one() {
    for mut pair in shared_and_ibta() {
        let ([a, _b], queue) = on_an_srq(&mut pair, false);
        (1..=3).for_each(|wr_id| post(&pair, &queue, wr_id));
        let write = SendOp::WriteImm(
            Remote {
                addr: pair.nodes[1].buffer.addr,
                rkey: pair.nodes[1].key,
            },
            7,
        );
        let sges = [pair.sge(0, 0, 64)];
        for (op, taken) in [(SendOp::Send, 3), (write, 2), (SendOp::Send, 1)] {
            pair.post(0, &a, taken, op, &sges);
            pair.run(20 * MILLISECOND);
            assert_eq!(completions(&pair), [(taken, Status::Success)]);
        }
        // The next one waits.
        pair.post(0, &a, 4, write, &sges);
        pair.run(20 * MILLISECOND);
        assert_eq!(completions(&pair), []);
        post(&pair, &queue, 4);
        pair.run(20 * MILLISECOND);
        assert_eq!(completions(&pair), [(4, Status::Success)]);
    }
}

#[test]
fn the_last_completion_of_a_qp_is_behind_all_others_and_comes_where_it_is_wanted() {
    for wanted in [true, false] {
        for mut pair in shared_and_ibta() {
            let ([a, b], queue) = on_an_srq(&mut pair, wanted);
            post(&pair, &queue, 77);
            // A message whose last packet never comes takes the receive.
            let mut data = 0;
            pair.fate = Box::new(move |node, datagram| {
                data += usize::from(node == 0 && datagram.len() > 800);
                usize::from(data < 8)
            });
            pair.post(0, &a, 1, SendOp::Send, &[pair.sge(0, 0, 16384)]);
            pair.run(2 * MILLISECOND);
            assert_eq!(queue.posted(), 0, "it was taken");
            // The peer has no receives for these.
            for wr_id in 1..=3 {
                pair.post(1, &b, wr_id, SendOp::Send, &[pair.sge(1, 0, 64)]);
            }
            pair.run(MILLISECOND);
            let engine = &mut pair.nodes[1].engine;
            engine.modify_qp(b.qpn, &QpModify::Error).expect("a step");
            engine.publish();
            let mut done = completions(&pair);
            if wanted {
                assert_eq!(done.pop(), Some((LAST_WQE, Status::Flushed)));
            }
            done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
            assert_eq!(done, [1, 2, 3, 77].map(|wr_id| (wr_id, Status::Flushed)));
        }
    }
}

/// What the second node tells of its QPs and SRQs, but for the first packet of a QP.
fn events(pair: &mut Pair) -> Vec<Event> {
    let engine = &mut pair.nodes[1].engine;
    let events = std::iter::from_fn(|| engine.poll_event());
    let ours = |event: &Event| match event {
        Event::Qp { event, .. } => *event != QpEvent::CommunicationEstablished,
        Event::QpFailed { .. } | Event::SrqError { .. } => true,
        _ => false,
    };
    events.filter(ours).collect()
}

/// What is told of a QP without receives, which has an SRQ or does not.
fn fatal(qpn: Qpn, shares: bool) -> Vec<Event> {
    let of = |event| Event::Qp { qpn, event };
    let mut events = vec![of(QpEvent::Fatal)];
    events.extend(shares.then(|| of(QpEvent::LastWqeReached)));
    events.push(Event::QpFailed { qpn, cq: None });
    events
}

fn state(pair: &Pair, qp: &Queues) -> QpState {
    let queried = pair.nodes[1].engine.query_qp(qp.qpn);
    queried.expect("it is there").0
}

/// Requests that need a receive.
fn needy(pair: &Pair) -> [SendOp; 2] {
    let remote = Remote {
        addr: pair.nodes[1].buffer.addr,
        rkey: pair.nodes[1].key,
    };
    [SendOp::Send, SendOp::WriteImm(remote, 7)]
}

#[test]
fn a_qp_that_needs_a_receive_of_an_srq_in_error_goes_to_error_and_its_peer_hears_of_it() {
    for (length, which) in [(64, 0), (64, 1), (3000, 0), (3000, 1)] {
        for mut pair in shared_and_ibta() {
            let ([a, b], queue) = on_an_srq(&mut pair, true);
            post(&pair, &queue, 1);
            break_last();
            pair.post(1, &b, 5, SendOp::Send, &[pair.sge(1, 0, 64)]);
            let op = needy(&pair)[which];
            pair.post(0, &a, 1, op, &[pair.sge(0, 0, length)]);
            pair.run(20 * MILLISECOND);
            let told = told(&pair.completions(0));
            assert_eq!(told, [(1, Status::RemoteOperation, 0)]);
            let flushed = [5, LAST_WQE].map(|wr_id| (wr_id, Status::Flushed));
            assert_eq!(completions(&pair), flushed);
            assert_eq!(state(&pair, &b), QpState::Error);
            let events = events(&mut pair);
            assert!(matches!(events[0], Event::SrqError { .. }));
            assert_eq!(events[1..], fatal(b.qpn, true));
        }
    }
}

#[test]
fn a_qp_whose_own_receives_are_broken_goes_to_error_and_its_peer_hears_of_it() {
    for which in [0, 1] {
        for mut pair in shared_and_ibta() {
            let [a, b] = pair.connected();
            pair.run(10 * MILLISECOND);
            pair.receive(&b, 1, &[pair.sge(1, 0, 64)]);
            break_last();
            let op = needy(&pair)[which];
            pair.post(0, &a, 1, op, &[pair.sge(0, 0, 64)]);
            pair.run(20 * MILLISECOND);
            let done = told(&pair.completions(0));
            assert_eq!(done, [(1, Status::RemoteOperation, 0)]);
            assert_eq!(completions(&pair), []);
            assert_eq!(state(&pair, &b), QpState::Error);
            assert_eq!(events(&mut pair), fatal(b.qpn, false));
            // Its ring is whole again after a reset.
            let access = Access::ALL;
            let mut step = |step| pair.nodes[1].engine.modify_qp(b.qpn, &step);
            assert_eq!(step(QpModify::Reset), Ok(()));
            assert_eq!(step(QpModify::Init { access }), Ok(()));
            pair.receive(&b, 2, &[pair.sge(1, 0, 64)]);
            let engine = &mut pair.nodes[1].engine;
            assert_eq!(engine.modify_qp(b.qpn, &QpModify::Error), Ok(()));
            engine.publish();
            assert_eq!(completions(&pair), [(2, Status::Flushed)]);
        }
    }
}

#[test]
fn an_unreliable_qp_without_receives_goes_to_error() {
    for shares in [true, false] {
        let mut pair = Pair::new(0);
        let pd = pair.nodes[1].pd;
        let engine = &mut pair.nodes[1].engine;
        let (srq, queue) = engine.create_srq(pd, 4, 1).expect("an SRQ");
        pair.srqs[1] = shares.then_some(srq);
        let [a, b] = [pair.qp(0, QpType::Uc), pair.qp(1, QpType::Uc)];
        pair.connect(0, &a, &b);
        pair.connect(1, &b, &a);
        if shares {
            post(&pair, &queue, 1);
        } else {
            pair.receive(&b, 1, &[]);
        }
        break_last();
        pair.post(0, &a, 1, SendOp::Send, &[pair.sge(0, 0, 64)]);
        pair.run(10 * MILLISECOND);
        assert_eq!(told(&pair.completions(0)), [(1, Status::Success, 0)]);
        assert_eq!(state(&pair, &b), QpState::Error);
        let events = events(&mut pair);
        assert_eq!(events[usize::from(shares)..], fatal(b.qpn, shares));
    }
}

#[test]
fn an_app_managed_qp_without_receives_goes_to_error_whichever_peer_needed_one() {
    for own in [true, false] {
        let mut pair = Pair::new(1);
        let pd = pair.nodes[1].pd;
        let engine = &mut pair.nodes[1].engine;
        let (srq, queue) = engine.create_srq(pd, 4, 1).expect("an SRQ");
        pair.srqs[1] = (!own).then_some(srq);
        let [a, b] = [0, 1].map(|node| managed(&mut pair, node));
        if own {
            pair.receive(&b, 1, &[]);
        } else {
            post(&pair, &queue, 1);
        }
        break_last();
        let route = route(&mut pair, &a, &b);
        post_on(&pair, &a, 1, SendOp::Send, route);
        pair.run(10 * MILLISECOND);
        let done = told(&pair.completions(0));
        assert_eq!(done, [(1, Status::RemoteOperation, route)]);
        assert_eq!(state(&pair, &b), QpState::Error);
        let events = events(&mut pair);
        assert_eq!(events[usize::from(!own)..], fatal(b.qpn, !own));
    }
}

#[test]
fn qps_are_neither_made_nor_readied_on_an_srq_in_error() {
    let mut pair = Pair::new(1);
    let ([a, b], queue) = on_an_srq(&mut pair, false);
    // No QP needed a receive of it yet.
    post(&pair, &queue, 1);
    break_last();
    let init = init(&pair, 0);
    let engine = &mut pair.nodes[1].engine;
    let early = engine.create_qp(&init).expect("a QP");
    pair.post(0, &a, 1, SendOp::Send, &[pair.sge(0, 0, 64)]);
    pair.run(10 * MILLISECOND);
    assert!(queue.is_in_error());
    let engine = &mut pair.nodes[1].engine;
    let refused = VerbsError::SrqInError { srq: 0 };
    assert_eq!(engine.create_qp(&init).err(), Some(refused));
    let access = Access::ALL;
    let step = engine.modify_qp(early.qpn, &QpModify::Init { access });
    assert_eq!(step, Err(refused));
    for qp in [early, b] {
        engine.destroy_qp(qp.qpn).expect("it is there");
    }
    assert_eq!(engine.destroy_srq(0), Ok(()), "no QP uses it");
}

#[test]
fn a_qp_on_an_srq_in_error_does_what_needs_no_receive() {
    let mut pair = Pair::new(1);
    let ([a, b], queue) = on_an_srq(&mut pair, false);
    let other = pair.qp(0, QpType::Rc);
    let init = init(&pair, 0);
    let b_other = pair.nodes[1].engine.create_qp(&init).expect("a QP");
    pair.connect(0, &other, &b_other);
    pair.connect(1, &b_other, &other);
    post(&pair, &queue, 1);
    break_last();
    pair.post(0, &a, 1, SendOp::Send, &[pair.sge(0, 0, 64)]);
    pair.run(10 * MILLISECOND);
    let done = told(&pair.completions(0));
    assert_eq!(done, [(1, Status::RemoteOperation, 0)]);
    let [_, SendOp::WriteImm(to, _)] = needy(&pair) else {
        unreachable!("it is one");
    };
    for (op, status) in [
        (SendOp::Write(to), Status::Success),
        (SendOp::Read(to), Status::Success),
        (SendOp::Send, Status::RemoteOperation),
    ] {
        assert_eq!(state(&pair, &b_other), QpState::Rts);
        pair.post(0, &other, 2, op, &[pair.sge(0, 0, 64)]);
        pair.run(10 * MILLISECOND);
        assert_eq!(told(&pair.completions(0)), [(2, status, 0)]);
    }
    assert_eq!(state(&pair, &b), QpState::Error);
    assert_eq!(state(&pair, &b_other), QpState::Error);
}
