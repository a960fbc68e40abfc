//! Completions as futures: none is lost, whatever happens to those who wait.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, PATIENCE, on_both, pair, polled};
use futures_core::Stream;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use trunkline::{Completion, Down, Error, Event, Qp, QpModify, QpOptions, Status, WorkOpcode};

/// SENDs that one end posts to the other, a few at a time, from a task of its own.
fn sends(from: End, qp: Qp, to: &End, peer: &Qp, count: u64) -> tokio::task::JoinHandle<End> {
    const UNDER_WAY: u64 = 16;
    (0..count.min(64)).for_each(|id| to.receive(peer, id));
    tokio::spawn(async move {
        for number in 0..count {
            from.send(&qp, number);
            if number % UNDER_WAY == UNDER_WAY - 1 {
                for _ in 0..UNDER_WAY {
                    let done = from.cq.next().await.unwrap();
                    assert_eq!(done.status, Status::Success);
                }
            }
        }
        from
    })
}

#[test]
fn each_completion_comes_once_and_in_order() {
    on_both(|| async {
        const COUNT: u64 = 64;
        let [(a, qp), (b, peer)] = pair();
        let sender = sends(a, qp, &b, &peer, COUNT);
        for number in 0..COUNT {
            let done = b.cq.next().await.unwrap();
            assert_eq!((done.opcode, done.wr_id), (WorkOpcode::Receive, number));
        }
        sender.await.unwrap();
    });
}

#[test]
fn a_future_that_is_dropped_takes_no_completion_with_it() {
    on_both(|| async {
        const COUNT: u64 = 2000;
        let [(a, qp), (b, peer)] = pair();
        let sender = sends(a, qp, &b, &peer, COUNT);
        let (mut got, mut dropped) = (0, 0);
        while got < COUNT {
            // Each is dropped at its first await, its second, and so on.
            let Some(done) = polled(b.cq.next(), 1 + (got % 3) as usize).await else {
                dropped += 1;
                tokio::task::yield_now().await;
                continue;
            };
            assert_eq!(done.unwrap().wr_id, got % 64, "completion {got}");
            b.receive(&peer, got % 64);
            got += 1;
        }
        assert!(dropped > 0, "some were dropped before they were ready");
        sender.await.unwrap();
    });
}

#[test]
fn who_takes_one_completion_after_another_gives_way_to_others() {
    on_both(async || {
        const ALL: u64 = 1000;
        let end = End::new();
        let options = QpOptions {
            max_recv_wr: ALL as u32,
            ..QpOptions::default()
        };
        let cq = end.cq.verbs();
        let qp = end.pd.create_qp(cq, cq, &options).unwrap();
        qp.connect(qp.address()).unwrap();
        (0..ALL).for_each(|number| end.receive(&qp, number));
        qp.modify(&QpModify::Error).unwrap();
        let mut got = 0;
        let takes = async {
            while got < ALL {
                assert_eq!(end.cq.next().await.unwrap().wr_id, got);
                got += 1;
            }
        };
        assert!(polled(takes, 1).await.is_none(), "all of them at once");
        while got < ALL {
            assert_eq!(end.cq.next().await.unwrap().wr_id, got);
            got += 1;
        }
    });
}

#[test]
fn tasks_that_wait_for_one_queue_share_its_completions() {
    on_both(|| async {
        const TASKS: usize = 4;
        let [(a, qp), (b, peer)] = pair();
        let b = Arc::new(b);
        let tasks = [(); TASKS].map(|()| {
            let b = Arc::clone(&b);
            tokio::spawn(async move {
                let mut got = Vec::new();
                loop {
                    match b.cq.next().await {
                        Ok(done) => got.push(done.wr_id),
                        Err(Error::Down(Down::ShutDown)) => return got,
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        });
        let sender = sends(a, qp, &b, &peer, 64);
        let a = sender.await.unwrap();
        a.node.shutdown(common::PATIENCE).await.unwrap();
        b.node.shutdown(common::PATIENCE).await.unwrap();
        let mut got = Vec::new();
        for task in tasks {
            got.extend(task.await.unwrap());
        }
        got.sort_unstable();
        assert_eq!(got, (0..64).collect::<Vec<_>>());
    });
}

#[test]
fn as_many_are_taken_at_once_as_there_is_room() {
    on_both(|| async {
        let [(a, qp), (b, peer)] = pair();
        let mut out = [Completion::BLANK; 10];
        assert_eq!(b.cq.poll_many(&mut []).await.unwrap(), 0);
        let sender = sends(a, qp, &b, &peer, 64);
        let mut got = 0;
        while got < 64 {
            let count = b.cq.poll_many(&mut out).await.unwrap();
            for done in &out[..count] {
                assert_eq!(done.wr_id, got);
                got += 1;
            }
        }
        sender.await.unwrap();
    });
}

#[test]
fn a_stream_of_completions_ends_behind_what_the_node_flushed() {
    on_both(|| async {
        let b = End::new();
        let qp = b.qp();
        qp.connect(qp.address()).unwrap();
        (0..5).for_each(|id| b.receive(&qp, id));
        let mut stream = pin!(b.cq.completions());
        let mut next = async || poll_fn(|cx| stream.as_mut().poll_next(cx)).await;
        assert!(polled(next(), 1).await.is_none());
        let node = b.node.clone();
        let ending = tokio::spawn(async move { node.shutdown(PATIENCE).await });
        for id in 0..5 {
            let done = next().await.unwrap().unwrap();
            assert_eq!((done.wr_id, done.status), (id, Status::Flushed));
        }
        let error = next().await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Down(Down::ShutDown)), "{error}");
        assert!(next().await.is_none());
        ending.await.unwrap().unwrap();
    });
}

#[test]
fn a_queue_that_overruns_says_so_to_whoever_waits() {
    on_both(|| async {
        let end = End::new();
        let cq = end.node.create_cq(1).unwrap();
        let options = trunkline::QpOptions::default();
        let qp = end.pd.create_qp(cq.verbs(), cq.verbs(), &options).unwrap();
        qp.connect(qp.address()).unwrap();
        let mut events = end.node.events();
        (0..3).for_each(|id| end.write(&qp, id));
        while !matches!(events.next().await, Some(Event::CqError { .. })) {}
        assert_eq!(cq.next().await.unwrap().wr_id, 0);
        let error = cq.next().await.unwrap_err();
        assert!(matches!(error, Error::Cq(_)), "{error}");
    });
}
