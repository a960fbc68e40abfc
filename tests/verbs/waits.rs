//! Calls that wait for completions.

use super::TARGET;
use super::common::{End, PATIENCE, address, inline, pattern};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};
use trunkline::{Builder, Completion, Cq, Error, Node, QpOptions, SendOp, SendWr, Status};

fn threaded() -> Builder {
    Node::builder().address(address())
}

fn next(cq: &Cq) -> Completion {
    let done = cq.wait(PATIENCE).unwrap().expect("a completion");
    assert_eq!(done.status, Status::Success);
    done
}

/// A question and its answer many times over, each end in a thread that waits.
fn questions(a: Builder, b: Builder) {
    const ROUNDS: u64 = 200;
    let (a, b) = (End::new(a), End::new(b));
    let (qa, qb) = (a.qp(&QpOptions::default()), b.qp(&QpOptions::default()));
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    b.receive(&qb, 0, TARGET, 64);
    // The last acknowledgements of an inline node leave when it is driven.
    let done = AtomicU8::new(0);
    let drive_on = |cq: &Cq| {
        done.fetch_add(1, Ordering::Relaxed);
        while done.load(Ordering::Relaxed) < 2 {
            assert!(cq.wait(Duration::from_millis(1)).unwrap().is_none());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                assert_eq!(next(&b.recv_cq).wr_id, round);
                assert_eq!(b.bytes(TARGET, 64), pattern(round, 64));
                b.receive(&qb, round + 1, TARGET, 64);
                b.post(&qb, round, SendOp::Send, TARGET, 64);
                assert_eq!(next(&b.send_cq).wr_id, round);
            }
            drive_on(&b.send_cq);
        });
        for round in 0..ROUNDS {
            a.receive(&qa, round, TARGET, 64);
            a.mr.write(0, &pattern(round, 64)).unwrap();
            a.post(&qa, round, SendOp::Send, 0, 64);
            assert_eq!(next(&a.send_cq).wr_id, round);
            assert_eq!(next(&a.recv_cq).wr_id, round);
        }
        drive_on(&a.send_cq);
    });
}

#[test]
fn threads_wait_for_what_threaded_nodes_complete() {
    questions(threaded(), threaded());
    questions(threaded().workers(3), threaded().workers(2));
}

#[test]
fn inline_nodes_are_driven_by_those_who_wait() {
    questions(inline(), inline());
    questions(inline().workers(2), threaded());
}

#[test]
fn of_many_threads_that_wait_each_gets_one_completion() {
    const THREADS: usize = 4;
    const ROUNDS: u64 = 300;
    for builder in [threaded(), inline()] {
        let end = End::new(builder);
        let qp = end.qp(&QpOptions::default());
        qp.connect(qp.address()).unwrap();
        let barrier = Barrier::new(THREADS + 1);
        let take = || {
            for _ in 0..ROUNDS {
                barrier.wait();
                next(&end.send_cq);
                barrier.wait();
            }
        };
        std::thread::scope(|scope| {
            (0..THREADS).for_each(|_| drop(scope.spawn(take)));
            // All complete at once, with one event.
            let write = SendWr::write(end.mr.remote(TARGET)).signaled();
            for _ in 0..ROUNDS {
                barrier.wait();
                qp.post_send(&[write; THREADS]).unwrap();
                barrier.wait();
            }
        });
        assert_eq!(end.send_cq.poll_one(), Ok(None));
    }
}

#[test]
fn a_wait_ends_with_its_time() {
    for builder in [threaded(), inline()] {
        let end = End::new(builder);
        for limit in [Duration::ZERO, Duration::from_millis(20)] {
            let began = Instant::now();
            assert!(end.send_cq.wait(limit).unwrap().is_none());
            let waited = began.elapsed();
            assert!(waited >= limit && waited < PATIENCE / 2, "{waited:?}");
        }
    }
}

#[test]
fn who_waits_hears_that_the_node_ended() {
    for builder in [threaded(), inline()] {
        let (end, (begins, begun)) = (End::new(builder), mpsc::channel());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                begins.send(()).unwrap();
                end.send_cq.wait(Duration::MAX).unwrap_err()
            });
            begun.recv().unwrap();
            end.node.shutdown(PATIENCE).unwrap();
            let error = waiter.join().unwrap();
            assert!(matches!(error, Error::Down(_)), "{error}");
        });
    }
}

#[test]
fn a_queue_can_be_waited_for_as_a_descriptor() {
    let end = End::new(threaded());
    let qp = end.qp(&QpOptions::default());
    qp.connect(qp.address()).unwrap();
    end.send_cq.arm(false);
    let write = SendWr::write(end.mr.remote(TARGET)).signaled();
    qp.post_send(&[write]).unwrap();
    let mut fds = [PollFd::new(&end.send_cq, PollFlags::IN)];
    let long = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    assert_eq!(poll(&mut fds, Some(&long)).unwrap(), 1);
    assert_eq!(next(&end.send_cq).wr_id, 0);
}
