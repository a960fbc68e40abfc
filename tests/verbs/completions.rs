//! CQs: what they keep of QPs that go, and what happens when they are full.

use super::TARGET;
use super::common::{End, PATIENCE, Pair, address, events, inline, next, until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use trunkline::{
    Completion, Cq, CqError, CqOverflow, Error, Event, Node, Qp, QpEvent, QpModify, QpOptions,
    QpState, SendOp, Status, VerbsError,
};

pub(super) fn pair_of_workers(workers: u8) -> Pair {
    Pair {
        a: End::new(inline().workers(workers)),
        b: End::new(inline().workers(workers)),
    }
}

pub(super) fn at(worker: u8) -> QpOptions {
    QpOptions {
        worker: Some(worker),
        ..QpOptions::default()
    }
}

/// A QP of `a` that completes into `cq`, connected to one of `b`.
pub(super) fn connected(pair: &Pair, cq: &Cq, worker: u8) -> (Qp, Qp) {
    let qa = pair.a.pd.create_qp(cq, cq, &at(worker)).unwrap();
    let qb = pair.b.qp(&at(worker));
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    (qa, qb)
}

pub(super) fn write(pair: &Pair, qp: &Qp, wr_id: u64) {
    let op = SendOp::Write(pair.b.mr.remote(TARGET));
    pair.a.post(qp, wr_id, op, 0, 64);
}

/// Lets `post` post so many requests at `a`, and drives both nodes until they have completed.
pub(super) fn completing(pair: &Pair, count: u64, post: impl FnOnce()) {
    let carrier = &pair.a.carrier;
    let before = carrier.counters().completed;
    post();
    pair.until("completions", || {
        carrier.counters().completed >= before + count
    });
    // A worker with a thread of its own publishes before it lets go of what this looks at.
    carrier.live_objects();
}

pub(super) fn drain(cq: &Cq) -> Vec<Completion> {
    std::iter::from_fn(|| cq.poll_one().unwrap()).collect()
}

#[test]
fn a_cq_that_several_workers_share_keeps_nothing_of_a_qp_that_goes() {
    let pair = pair_of_workers(2);
    let cq = pair.a.node.create_cq(64).unwrap();
    for how in ["dropped", "reset"] {
        let qps = [0, 1, 0, 1].map(|worker| connected(&pair, &cq, worker));
        for wr_id in 0..5 {
            completing(&pair, 4, || {
                for (at, (qa, _)) in (0..).zip(&qps) {
                    write(&pair, qa, 100 * at + wr_id);
                }
            });
        }
        let [(gone, _), rest @ ..] = qps;
        let number = gone.qpn();
        if how == "dropped" {
            drop(gone);
        } else {
            gone.modify(&QpModify::Reset).unwrap();
        }
        let done = drain(&cq);
        assert!(done.iter().all(|done| done.qpn != number), "{how}");
        assert_eq!(done.len(), 15, "{how}: the others are all there");
        drop(rest);
    }
}

#[test]
fn a_thread_that_polls_gets_nothing_of_a_qp_once_it_is_gone() {
    let threaded = || End::new(Node::builder().address(address()).workers(2));
    let (a, b) = (threaded(), threaded());
    let cq = a.node.create_cq(4096).unwrap();
    let (stop, polled) = (AtomicBool::new(false), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                // The lock makes the end of a QP come before or behind each poll.
                let mut polled = polled.lock().unwrap();
                polled.extend(cq.poll_one().unwrap().map(|done| done.qpn));
            }
        });
        let lasting = a.pd.create_qp(&cq, &cq, &at(1)).unwrap();
        let peer = b.qp(&at(0));
        lasting.connect(peer.address()).unwrap();
        peer.connect(lasting.address()).unwrap();
        for round in 0..200_u64 {
            let (qa, qb) = (
                a.pd.create_qp(&cq, &cq, &at((round % 2) as u8)).unwrap(),
                b.qp(&at(0)),
            );
            qa.connect(qb.address()).unwrap();
            qb.connect(qa.address()).unwrap();
            let op = SendOp::Write(b.mr.remote(TARGET));
            for wr_id in 0..10 {
                a.post(&qa, wr_id, op, 0, 64);
                a.post(&lasting, wr_id, op, 0, 64);
            }
            let started = Instant::now();
            let gone = qa.qpn();
            while round % 3 > 0 && !polled.lock().unwrap().contains(&gone) {
                assert!(started.elapsed() < PATIENCE, "no completion");
                std::thread::yield_now();
            }
            {
                let mut polled = polled.lock().unwrap();
                drop(qa);
                polled.retain(|qpn| *qpn != gone);
            }
            let of_lasting = || {
                let polled = polled.lock().unwrap();
                assert!(!polled.contains(&gone), "after the end of its QP");
                polled.iter().filter(|qpn| **qpn == lasting.qpn()).count()
            };
            while of_lasting() < 10 * (round as usize + 1) {
                assert!(started.elapsed() < PATIENCE, "the other QP got stuck");
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_cq_that_overruns_is_in_error_with_its_qps_and_each_is_told_once() {
    let pair = Pair::new();
    let small = [
        pair.a.node.create_cq(2).unwrap(),
        pair.a.node.create_cq(4).unwrap(),
    ];
    let (other, _peer) = connected(&pair, &pair.a.send_cq, 0);
    let full = CqOverflow { capacity: 2 };
    let qps = [0, 1].map(|at| [(); 2].map(|()| connected(&pair, &small[at], 0)));
    for (at, cq) in small.iter().enumerate() {
        let [(first, _), (second, _)] = &qps[at];
        let idle = pair.a.pd.create_qp(cq, cq, &QpOptions::default()).unwrap();
        let many = u64::from(if at == 0 { full.capacity } else { 4 }) + 3;
        completing(&pair, many, || {
            (0..many).for_each(|wr_id| write(&pair, first, wr_id));
        });
        pair.until("their end", || {
            [first, second]
                .iter()
                .all(|qp| qp.state() == QpState::Error)
        });
        assert_eq!(idle.state(), QpState::Reset, "it has nothing to complete");
        // Each is told of once, by what the program calls it.
        let mut found = events(&pair.a.node);
        assert_eq!(found.remove(0), Event::CqError { cq: cq.id() });
        for qp in [first, second] {
            let (qpn, event) = (qp.qpn(), QpEvent::Fatal);
            assert_eq!(found.remove(0), Event::Qp { qpn, event });
        }
        assert_eq!(found, [], "nothing else");
        // What it had taken before is there; then it says that it is in error, for good.
        for wr_id in 0..many - 3 {
            assert_eq!(cq.poll_one().unwrap().map(|done| done.wr_id), Some(wr_id));
        }
        let error = cq.poll_one().unwrap_err();
        let capacity = (many - 3) as u32;
        assert_eq!(error, CqError::Overflow(CqOverflow { capacity }));
        // Nothing begins there any more.
        let refused = |done: Result<(), Error>| match done.unwrap_err() {
            Error::Verbs(VerbsError::CqInError { .. }) => {}
            error => panic!("{error}"),
        };
        let access = trunkline::Access::ALL;
        refused(idle.modify(&QpModify::Init { access }));
        let made = pair
            .a
            .pd
            .create_qp(cq, &pair.a.recv_cq, &QpOptions::default());
        refused(made.map(drop));
        write(&pair, second, 9);
        pair.turn();
        assert_eq!(cq.poll_one(), Err(error));
    }
    assert_ne!(small[0].id(), small[1].id());
    write(&pair, &other, 7);
    let done = pair.next(&pair.a.send_cq);
    assert_eq!((done.wr_id, done.status), (7, Status::Success));
    assert_eq!(events(&pair.a.node), [], "of nobody else");
}

#[test]
fn a_cq_that_overruns_at_one_worker_is_in_error_at_all() {
    let pair = pair_of_workers(3);
    let cq = pair.a.node.create_cq(4).unwrap();
    for culprit in [0, 2] {
        let before = pair.a.node.create_cq(4).unwrap();
        let cq = if culprit == 0 { &cq } else { &before };
        let qps = [0, 1, 2].map(|worker| connected(&pair, cq, worker));
        completing(&pair, 1, || write(&pair, &qps[1].0, 50));
        for wr_id in 0..6 {
            write(&pair, &qps[culprit].0, wr_id);
        }
        pair.until("the end of all of them", || {
            qps.iter().all(|(qp, _)| qp.state() == QpState::Error)
        });
        let mut found = Vec::new();
        pair.until("all events", || {
            found.extend(events(&pair.a.node));
            found.len() >= 4
        });
        let named = |event: &&Event| **event == Event::CqError { cq: cq.id() };
        assert_eq!(found.iter().filter(named).count(), 1, "{found:?}");
        for (qp, _) in &qps {
            let (qpn, event) = (qp.qpn(), QpEvent::Fatal);
            assert!(found.contains(&Event::Qp { qpn, event }), "{found:?}");
        }
        assert_eq!(found.len(), 4, "{found:?}");
        let mut taken = Vec::new();
        // Workers with threads of their own may be about to publish.
        pair.until("what completed before", || {
            while let Ok(Some(done)) = cq.poll_one() {
                taken.push(done.wr_id);
            }
            taken.len() >= 5
        });
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2, 3, 50]);
        assert_eq!(
            cq.poll_one(),
            Err(CqError::Overflow(CqOverflow { capacity: 4 }))
        );
    }
}

#[test]
fn a_program_that_sleeps_on_a_cq_hears_of_its_error() {
    let pair = Pair::new();
    let cq = pair.a.node.create_cq(2).unwrap();
    let (qa, _qb) = connected(&pair, &cq, 0);
    completing(&pair, 2, || {
        (0..2).for_each(|wr_id| write(&pair, &qa, wr_id));
    });
    cq.arm(true);
    cq.take_events();
    write(&pair, &qa, 2);
    pair.until("an event of the queue", || cq.take_events() > 0);
    assert_eq!(drain_until_error(&cq), 2);
    // A CQ made anew works.
    let anew = pair.a.node.create_cq(2).unwrap();
    let (qa, _qb) = connected(&pair, &anew, 0);
    write(&pair, &qa, 5);
    let nodes = [&pair.a.node, &pair.b.node];
    assert_eq!(next(&nodes, &anew).status, Status::Success);
    until(&nodes, "quiet", || true);
}

fn drain_until_error(cq: &Cq) -> usize {
    let mut taken = 0;
    while let Ok(done) = cq.poll_one() {
        taken += done.iter().count();
    }
    taken
}
