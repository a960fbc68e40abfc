//! SRQs: their attributes, their limits, their sizes.

use super::common::{End, Pair, address, events, wait_for};
use super::completions::pair_of_workers;
use super::{TARGET, verbs_error};
use trunkline::{
    Allowed, Event, Node, Qp, QpOptions, QpType, RecvWr, SendOp, Srq, SrqAttributes, Status,
};

fn post(end: &End, srq: &Srq, wr_id: u64) -> bool {
    let sges = [end.mr.sge(TARGET, 64)];
    let request = RecvWr::new().wr_id(wr_id).sges(&sges);
    srq.post_recv(&[request]).is_ok()
}

/// A QP of the first node, connected to one of the second with receives of `srq`.
fn sender(pair: &Pair, kind: QpType, srq: &Srq) -> (Qp, Qp) {
    sender_at(pair, kind, srq, 0)
}

/// The same at a worker of each node.
fn sender_at(pair: &Pair, kind: QpType, srq: &Srq, worker: u8) -> (Qp, Qp) {
    let options = QpOptions {
        kind,
        worker: Some(worker),
        ..QpOptions::default()
    };
    let shared = QpOptions {
        srq: Some(srq.clone()),
        ..options.clone()
    };
    let (qa, qb) = (pair.a.qp(&options), pair.b.qp(&shared));
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    (qa, qb)
}

/// Sends a message, which takes a receive.
fn send(pair: &Pair, qa: &Qp) {
    pair.a.post(qa, 1, SendOp::Send, 0, 8);
    assert_eq!(pair.next(&pair.a.send_cq).status, Status::Success);
    assert_eq!(pair.next(&pair.b.recv_cq).status, Status::Success);
}

/// What an end tells of SRQs.
fn told(end: &End) -> Vec<Event> {
    let ours = |event: &Event| {
        matches!(
            event,
            Event::SrqLimitReached { .. } | Event::SrqError { .. }
        )
    };
    events(&end.node).into_iter().filter(ours).collect()
}

#[test]
fn the_limit_of_an_srq_is_told_once_when_messages_leave_fewer_receives() {
    for kind in [QpType::Rc, QpType::Uc] {
        let pair = Pair::new();
        let srqs = [8, 8].map(|max_wr| pair.b.pd.create_srq(max_wr, 1).unwrap());
        assert!(srqs[0].id() != srqs[1].id());
        let (qa, _qb) = sender(&pair, kind, &srqs[1]);
        for srq in &srqs {
            (0..5).for_each(|wr_id| assert!(post(&pair.b, srq, wr_id)));
            srq.set_limit(4).unwrap();
        }
        send(&pair, &qa);
        assert_eq!(told(&pair.b), [], "{kind}: 4 are left");
        send(&pair, &qa);
        let reached = Event::SrqLimitReached { srq: srqs[1].id() };
        assert_eq!(told(&pair.b), [reached], "{kind}");
        let limits = [0, 1].map(|at: usize| srqs[at].query().unwrap().limit);
        assert_eq!(limits, [4, 0], "{kind}: the other one is armed still");
        send(&pair, &qa);
        assert_eq!(told(&pair.b), [], "{kind}: once");
    }
}

#[test]
fn a_limit_that_is_reached_when_it_is_armed_is_told_before_the_call_returns() {
    let pair = Pair::new();
    let srq = pair.b.pd.create_srq(8, 3).unwrap();
    let attributes = |limit| SrqAttributes {
        max_wr: 8,
        max_sge: 3,
        limit,
    };
    assert_eq!(srq.query().unwrap(), attributes(0));
    (0..2).for_each(|wr_id| assert!(post(&pair.b, &srq, wr_id)));
    srq.set_limit(2).unwrap();
    assert_eq!(told(&pair.b), []);
    assert_eq!(srq.query().unwrap(), attributes(2));
    let refused = verbs_error(srq.set_limit(9).unwrap_err());
    assert_eq!(refused, Allowed::Range(0, 8).refuse("srq_limit", 9));
    assert_eq!(srq.query().unwrap(), attributes(2), "as it was");
    srq.set_limit(3).unwrap();
    assert_eq!(told(&pair.b), [Event::SrqLimitReached { srq: srq.id() }]);
    assert_eq!(srq.query().unwrap(), attributes(0));
}

#[test]
fn an_srq_of_another_size_keeps_its_receives_in_their_order() {
    for kind in [QpType::Rc, QpType::Uc] {
        let pair = Pair::new();
        let srq = pair.b.pd.create_srq(4, 1).unwrap();
        let (qa, _qb) = sender(&pair, kind, &srq);
        (0..4).for_each(|wr_id| assert!(post(&pair.b, &srq, wr_id)));
        assert!(!post(&pair.b, &srq, 4), "it is full");
        srq.resize(6).unwrap();
        assert!(post(&pair.b, &srq, 4) && post(&pair.b, &srq, 5));
        assert!(!post(&pair.b, &srq, 6), "it is full");
        let refused = verbs_error(srq.resize(5).unwrap_err());
        let range = Allowed::Range(6, 1 << 15);
        assert_eq!(refused, range.refuse("max_wr", 5), "6 are posted");
        for taken in (0..6).rev() {
            pair.a.post(&qa, 1, SendOp::Send, 0, 8);
            let received = pair.next(&pair.b.recv_cq);
            assert_eq!((received.wr_id, received.status), (taken, Status::Success));
            // Messages take receives between any two sizes.
            srq.resize(6 + taken as u32).unwrap();
        }
        assert_eq!(srq.query().unwrap().max_wr, 6);
    }
}

#[test]
fn no_receive_is_lost_while_sizes_change_and_a_thread_posts() {
    const MESSAGES: u64 = 2_000;
    let pair = Pair::new();
    let srq = pair.b.pd.create_srq(16, 1).unwrap();
    let qps: Vec<_> = (0..4).map(|_| sender(&pair, QpType::Rc, &srq)).collect();
    let mut taken = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for wr_id in 0..MESSAGES {
                while !post(&pair.b, &srq, wr_id) {
                    std::thread::yield_now();
                }
            }
        });
        let (mut sent, mut size) = (0, 0);
        pair.until("all messages", || {
            if sent < MESSAGES && sent - (taken.len() as u64) < 64 {
                let (qa, _) = &qps[sent as usize % qps.len()];
                pair.a.post(qa, sent, SendOp::Send, 0, 8);
                sent += 1;
            }
            while let Some(sent) = pair.a.send_cq.poll_one().unwrap() {
                assert_eq!(sent.status, Status::Success);
            }
            while let Some(received) = pair.b.recv_cq.poll_one().unwrap() {
                taken.push(received.wr_id);
            }
            size = size % 32 + 1;
            // Refused where more are posted.
            let _ = srq.resize(size);
            taken.len() as u64 == MESSAGES
        });
    });
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..MESSAGES));
}

#[test]
fn qps_of_two_workers_get_any_receive_of_an_srq_and_none_waits_while_some_are_there() {
    let pair = pair_of_workers(2);
    let srqs = [(); 2].map(|()| pair.b.pd.create_srq(4, 1).unwrap());
    assert!(srqs[0].id() != srqs[1].id(), "events tell them apart");
    let qps = [0, 1].map(|worker| sender_at(&pair, QpType::Rc, &srqs[1], worker));
    let mut next = 0;
    let mut post_one = || {
        next += 1;
        assert!(post(&pair.b, &srqs[1], next));
        next
    };
    let received = || {
        let received = pair.next(&pair.b.recv_cq);
        assert_eq!(received.status, Status::Success);
        assert_eq!(pair.next(&pair.a.send_cq).status, Status::Success);
        received
    };
    // All of them for one, then for the other: no worker has kept any.
    for (qa, qb) in qps.iter().chain(&qps) {
        let mut posted: Vec<_> = (0..4).map(|_| post_one()).collect();
        while let Some(last) = posted.pop() {
            pair.a.post(qa, 1, SendOp::Send, 0, 8);
            let received = received();
            assert_eq!((received.wr_id, received.qpn), (last, qb.qpn()));
        }
    }
    // Both wait for want of a receive, and go on with the next two.
    for (qa, _) in &qps {
        pair.a.post(qa, 1, SendOp::Send, 0, 8);
    }
    let mut waiting = qps.each_ref().map(|(_, qb)| qb.qpn()).to_vec();
    for _ in 0..2 {
        let posted = post_one();
        let received = received();
        assert_eq!(received.wr_id, posted);
        waiting.retain(|qpn| *qpn != received.qpn);
    }
    assert!(waiting.is_empty(), "each got one");
    assert_eq!(told(&pair.b), []);
}

#[test]
fn the_limit_of_an_srq_is_told_once_whichever_workers_take_the_receives() {
    let pair = pair_of_workers(2);
    let srq = pair.b.pd.create_srq(8, 1).unwrap();
    let qps = [0, 1].map(|worker| sender_at(&pair, QpType::Rc, &srq, worker));
    for (first, second) in [(0, 1), (1, 0)] {
        while post(&pair.b, &srq, 1) {}
        srq.set_limit(7).unwrap();
        send(&pair, &qps[first].0);
        assert_eq!(told(&pair.b), [], "7 are left");
        send(&pair, &qps[second].0);
        let reached = Event::SrqLimitReached { srq: srq.id() };
        assert_eq!(told(&pair.b), [reached]);
        assert_eq!(srq.query().unwrap().limit, 0);
        send(&pair, &qps[first].0);
        send(&pair, &qps[second].0);
        assert_eq!(told(&pair.b), [], "once");
    }
}

#[test]
fn each_message_gets_one_receive_of_an_srq_that_threads_of_workers_share() {
    const MESSAGES: usize = 1_000;
    const RECEIVES: u64 = 3;
    let threaded = || End::new(Node::builder().address(address()).workers(2));
    let pair = Pair {
        a: threaded(),
        b: threaded(),
    };
    let srq = pair.b.pd.create_srq(RECEIVES as u32, 1).unwrap();
    let qps = [0, 1, 0, 1].map(|worker| sender_at(&pair, QpType::Rc, &srq, worker));
    (0..RECEIVES).for_each(|wr_id| assert!(post(&pair.b, &srq, wr_id)));
    let mut counts = [0; 4];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for at in 0..MESSAGES {
                // Four are under way: one more than there are receives.
                if at >= qps.len() {
                    assert_eq!(wait_for(&pair.a.send_cq).status, Status::Success);
                }
                pair.a.post(&qps[at % 4].0, 1, SendOp::Send, 0, 8);
            }
        });
        let mut posted = [true; RECEIVES as usize];
        for _ in 0..MESSAGES {
            let received = wait_for(&pair.b.recv_cq);
            assert_eq!(received.status, Status::Success);
            let whose = qps.iter().position(|(_, qb)| qb.qpn() == received.qpn);
            counts[whose.unwrap()] += 1;
            let is_posted = &mut posted[received.wr_id as usize];
            assert!(std::mem::replace(is_posted, false), "it was taken once");
            assert!(post(&pair.b, &srq, received.wr_id));
            *is_posted = true;
        }
    });
    assert_eq!(counts, [MESSAGES / 4; 4]);
    assert_eq!(told(&pair.b), []);
}
