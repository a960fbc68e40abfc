//! Nodes on a runtime: driven while a handle lives, asleep while nothing happens, and their end.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;
#[path = "../../tests/common/faulty.rs"]
#[allow(dead_code, reason = "some of its faults are enough")]
#[allow(
    unreachable_pub,
    reason = "a module that several test programs include"
)]
mod faulty;

use common::{End, PATIENCE, address, in_time, node, on_both, pair, polled};
use faulty::Fault;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use trunkline::{
    Completion, Down, Drive, Error, Event, Notify, QpOptions, QpState, RecvWr, SendWr, Status,
};
use trunkline_tokio::Node;

#[test]
fn questions_and_answers_of_tasks_go_to_and_fro() {
    on_both(|| async {
        const ROUNDS: u64 = 500;
        let [(a, qp), (b, peer)] = pair();
        a.receive(&qp, 0);
        b.receive(&peer, 0);
        let answers = tokio::spawn(async move {
            for round in 0..ROUNDS {
                while b.cq.next().await.unwrap().wr_id != 0 {}
                b.receive(&peer, 0);
                b.send(&peer, round + 1);
            }
            (b, peer)
        });
        for round in 0..ROUNDS {
            a.send(&qp, round + 1);
            while a.cq.next().await.unwrap().wr_id != 0 {}
            let mut bytes = [0; 8];
            a.mr.read(0, &mut bytes).unwrap();
            assert_eq!(u64::from_ne_bytes(bytes), round + 1);
            a.receive(&qp, 0);
        }
        answers.await.unwrap();
    });
}

/// Calls of read(2) and write(2) that this thread has made: those of eventfds are among them, and
/// those of sockets are not.
fn reads_and_writes() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let calls = io.lines().filter(|line| line.starts_with("sysc"));
    let counts = calls.filter_map(|line| line.split(' ').nth(1)?.parse::<u64>().ok());
    counts.sum()
}

#[test]
fn posting_and_completing_wake_tasks_without_a_system_call() {
    let [runtime, _] = common::runtimes();
    // The runtime wakes the future that it was entered with by an eventfd, and tasks without.
    let task = runtime.spawn(async {
        const ROUNDS: u64 = 500;
        let [(a, qp), (b, peer)] = pair();
        let mut before = 0;
        for round in 0..=ROUNDS {
            b.receive(&peer, 0);
            a.send(&qp, round);
            assert_eq!(a.cq.next().await.unwrap().wr_id, round);
            b.cq.next().await.unwrap();
            // The nodes go to sleep meanwhile, and are woken by the next request.
            let until = Instant::now() + Duration::from_millis(1);
            while Instant::now() < until {
                tokio::task::yield_now().await;
            }
            if round == 0 {
                before = reads_and_writes();
            }
        }
        // Looking makes some itself.
        let made = reads_and_writes() - before;
        assert!(made < ROUNDS / 10, "{made} in {ROUNDS} rounds");
    });
    runtime.block_on(in_time(task)).unwrap();
}

#[test]
fn other_tasks_have_their_turn_while_a_node_is_busy() {
    on_both(|| async {
        let [(a, qp), (_b, _peer)] = pair();
        let busy = tokio::spawn(async move {
            for number in 0..3000 {
                a.send(&qp, number); // nobody receives: asked for again and again
                if a.cq.next().await.unwrap().status != Status::Success {
                    break;
                }
            }
        });
        for _ in 0..100 {
            let before = Instant::now();
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(before.elapsed() < Duration::from_secs(5));
        }
        busy.abort();
    });
}

/// Processor time of this thread, in clock ticks of 10 ms.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
    fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap()
}

#[test]
fn a_node_sleeps_while_nothing_happens() {
    let [runtime, _] = common::runtimes();
    runtime.block_on(async {
        let [(a, qp), (b, peer)] = pair();
        b.receive(&peer, 0);
        a.send(&qp, 1);
        in_time(a.cq.next()).await.unwrap();
        let before = ticks();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(ticks() - before < 10, "less than 100 ms of work in 500 ms");
        // And it wakes.
        a.send(&qp, 2);
        b.receive(&peer, 1);
        in_time(a.cq.next()).await.unwrap();
    });
}

#[test]
fn a_node_that_is_shut_down_has_done_what_was_posted() {
    on_both(|| async {
        let [(a, qp), (b, peer)] = pair();
        (0..10).for_each(|id| b.receive(&peer, id));
        (0..10).for_each(|number| a.send(&qp, number));
        a.node.shutdown(PATIENCE).await.unwrap();
        for _ in 0..10 {
            assert_eq!(a.cq.next().await.unwrap().status, Status::Success);
            assert_eq!(b.cq.next().await.unwrap().status, Status::Success);
        }
        let error = a.cq.next().await.unwrap_err();
        assert!(matches!(error, Error::Down(Down::ShutDown)), "{error}");
        a.node.shutdown(PATIENCE).await.unwrap();
    });
}

#[test]
fn a_shutdown_that_is_dropped_ends_nothing_and_one_out_of_time_says_so() {
    on_both(|| async {
        let [(a, qp), (b, peer)] = pair();
        a.send(&qp, 1); // there is no receive
        assert!(polled(a.node.shutdown(PATIENCE), 3).await.is_none());
        assert!(a.node.health().down.is_none());
        b.receive(&peer, 0);
        assert_eq!(a.cq.next().await.unwrap().status, Status::Success);
        a.send(&qp, 2);
        let ended = a.node.shutdown(Duration::from_millis(20)).await;
        assert!(matches!(ended, Err(Error::Unfinished)), "{ended:?}");
        assert_eq!(a.cq.next().await.unwrap().status, Status::Flushed);
    });
}

/// It finds nothing under way, and then something is posted.
#[test]
fn a_shutdown_that_has_found_all_done_is_not_unfinished() {
    const SENDS: u64 = 60;
    on_both(|| async {
        let b = End::new();
        for _ in 0..60 {
            let a = End::new();
            let [qp, peer] = [&a, &b].map(End::qp);
            qp.connect(peer.address()).unwrap();
            peer.connect(qp.address()).unwrap();
            (0..SENDS).for_each(|id| b.receive(&peer, id));
            a.send(&qp, 0);
            in_time(a.cq.next()).await.unwrap();
            let qp = Arc::new(qp);
            let poster = Arc::clone(&qp);
            let posting = std::thread::spawn(move || {
                let inline = 0u64.to_ne_bytes();
                let posted = || poster.post_send(&[SendWr::send().inline(&inline)]);
                let mut left = 1..SENDS;
                while left.next().is_some() && posted().is_ok() {
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
            a.node.shutdown(PATIENCE).await.unwrap();
            posting.join().unwrap();
        }
    });
}

#[test]
fn with_the_last_handle_goes_the_node_and_its_peers_hear_it() {
    on_both(|| async {
        let [(a, qp), (b, peer)] = pair();
        b.receive(&peer, 0);
        a.send(&qp, 1);
        a.cq.next().await.unwrap();
        let other = a.node.clone();
        drop(a);
        assert!(other.health().down.is_none(), "a handle is left");
        let raw = other.verbs().clone();
        drop(other);
        while qp.state() != QpState::Error {
            tokio::task::yield_now().await;
        }
        assert_eq!(raw.health().down, Some(Down::ShutDown));
        b.send(&peer, 2);
        loop {
            let done = b.cq.next().await.unwrap();
            if done.wr_id == 2 {
                assert_ne!(done.status, Status::Success);
                break;
            }
        }
    });
}

#[test]
fn a_runtime_that_ends_takes_its_nodes_with_it() {
    for runtime in common::runtimes() {
        let end = runtime.block_on(async { End::new() });
        drop(runtime);
        assert_eq!(end.node.health().down, Some(Down::ShutDown));
        let [other, _] = common::runtimes();
        let error = other.block_on(end.cq.next()).unwrap_err();
        assert!(matches!(error, Error::Down(Down::ShutDown)), "{error}");
    }
}

#[test]
fn a_node_that_fails_tells_all_that_wait() {
    on_both(|| async {
        let builder = trunkline::Node::builder().drive(Drive::Inline);
        let (inner, fault) = faulty::node(address(), builder);
        let end = End::of(Node::drive(inner).unwrap());
        let qp = end.qp();
        qp.connect(qp.address()).unwrap();
        end.receive(&qp, 9);
        let mut events = end.node.events();
        let waits = tokio::spawn(async move {
            let flushed = end.cq.next().await.unwrap();
            (flushed, end.cq.next().await.unwrap_err(), end)
        });
        assert!(polled(events.next(), 1).await.is_none());
        fault.set(Fault::LacksBuffers);
        tokio::time::sleep(Duration::from_millis(5)).await;
        fault.set(Fault::IsGone);
        qp.post_send(&[]).unwrap(); // wakes it
        let (flushed, error, end) = waits.await.unwrap();
        assert_eq!((flushed.wr_id, flushed.status), (9, Status::Flushed));
        assert!(matches!(error, Error::Down(Down::Failed { .. })), "{error}");
        let mut told = Vec::new();
        while let Some(event) = events.next().await {
            told.push(event);
        }
        assert!(told.contains(&Event::DeviceFatal), "{told:?}");
        let ended = end.node.shutdown(PATIENCE).await;
        assert!(matches!(ended, Err(Error::Down(_))), "{ended:?}");
    });
}

/// Keeps whoever ends a node from going on: it is down, and nothing was flushed yet.
struct Halt {
    met: Barrier,
    halted: AtomicBool,
}

impl Notify for Halt {
    fn notify(&self) {
        if !self.halted.swap(true, Ordering::SeqCst) {
            self.met.wait();
            self.met.wait();
        }
    }
}

#[test]
fn who_finds_a_node_down_goes_on_when_all_is_flushed_whoever_ended_it() {
    let builder = trunkline::Node::builder().address(address());
    let node = builder.drive(Drive::Inline).build().unwrap();
    let (pd, cq) = (node.alloc_pd(), node.create_cq(4).unwrap());
    let qp = pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
    qp.connect(qp.address()).unwrap();
    let (wr_id, sges) = (7, &[][..]);
    qp.post_recv(&[RecvWr { wr_id, sges }]).unwrap();
    while node.poll().unwrap() || !node.is_drained().unwrap() {}
    let (met, halted) = (Barrier::new(2), AtomicBool::new(false));
    let halt = Arc::new(Halt { met, halted });
    node.wake_by(0, Arc::clone(&halt) as _).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| node.shutdown(PATIENCE));
        halt.met.wait();
        let down = node.try_wait();
        let ended = node.shutdown(PATIENCE);
        let mut flushed = [Completion::BLANK];
        let count = cq.poll(&mut flushed);
        halt.met.wait();
        assert!(matches!(down, Err(Error::Down(Down::ShutDown))), "{down:?}");
        ended.unwrap();
        assert_eq!(count.unwrap(), 1);
        assert_eq!((flushed[0].wr_id, flushed[0].status), (7, Status::Flushed));
    });
}

#[test]
fn events_come_to_whoever_waits_for_them() {
    on_both(|| async {
        let [(a, qp), (b, peer)] = pair();
        let mut events = b.node.events();
        assert!(polled(events.next(), 1).await.is_none());
        b.receive(&peer, 0);
        a.send(&qp, 1);
        a.cq.next().await.unwrap();
        a.node.shutdown(PATIENCE).await.unwrap();
        loop {
            // The connection that the two shared.
            let event = events.next().await.unwrap();
            if matches!(event, Event::ConnectionDown { peer, .. } if peer == a.node.gid()) {
                break;
            }
        }
        b.node.shutdown(PATIENCE).await.unwrap();
        while events.next().await.is_some() {}
    });
}

#[test]
fn who_waits_for_events_hears_the_end_of_a_node_that_had_none() {
    on_both(|| async {
        let node = common::node();
        let mut events = node.events();
        let waits = tokio::spawn(async move { [events.next().await, events.next().await] });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!waits.is_finished());
        node.shutdown(PATIENCE).await.unwrap();
        assert_eq!(waits.await.unwrap(), [Some(Event::DeviceFatal), None]);
    });
}

#[test]
fn a_node_of_several_workers_has_a_task_for_each() {
    on_both(|| async {
        let builder = trunkline::Node::builder().address(address()).workers(3);
        let (a, b) = (End::of(Node::new(builder).unwrap()), End::new());
        for number in 0..6 {
            let (qp, peer) = (a.qp(), b.qp());
            qp.connect(peer.address()).unwrap();
            peer.connect(qp.address()).unwrap();
            b.receive(&peer, number);
            a.send(&qp, number);
            assert_eq!(a.cq.next().await.unwrap().status, Status::Success);
            assert_eq!(b.cq.next().await.unwrap().wr_id, number);
        }
        a.node.shutdown(PATIENCE).await.unwrap();
    });
}

#[test]
fn a_node_that_is_driven_otherwise_is_refused() {
    on_both(|| async {
        let threaded = trunkline::Node::builder().address(address()).build();
        let refused = Node::drive(threaded.unwrap()).unwrap_err();
        assert!(matches!(refused, Error::NoFd { .. }), "{refused}");
        let node = node();
        let refused = Node::drive(node.verbs().clone()).unwrap_err();
        assert!(matches!(refused, Error::NoFd { .. }), "{refused}");
        assert!(node.health().down.is_none(), "it goes on");
    });
}

#[test]
#[should_panic(expected = "timer")]
fn a_runtime_without_time_is_told_of_at_once() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    runtime.block_on(async { drop(node()) });
}

#[test]
fn a_node_that_fails_while_it_ends_says_so_when_all_is_flushed() {
    on_both(|| async {
        let builder = trunkline::Node::builder().drive(Drive::Inline);
        let (inner, fault) = faulty::node(address(), builder);
        let end = End::of(Node::drive(inner).unwrap());
        let qp = end.qp();
        qp.connect(qp.address()).unwrap();
        end.send(&qp, 1); // there is no receive
        let node = end.node.clone();
        let ending = tokio::spawn(async move { node.shutdown(PATIENCE).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        fault.set(Fault::IsGone);
        let before = std::time::Instant::now();
        let ended = ending.await.unwrap();
        assert!(before.elapsed() < PATIENCE / 2);
        assert!(
            matches!(ended, Err(Error::Down(Down::Failed { .. }))),
            "{ended:?}"
        );
        let mut flushed = [Completion::BLANK];
        assert_eq!(end.cq.verbs().poll(&mut flushed).unwrap(), 1);
        assert_eq!((flushed[0].wr_id, flushed[0].status), (1, Status::Flushed));
    });
}

#[test]
fn a_node_that_ends_outlasts_an_error_that_passes() {
    on_both(|| async {
        let builder = trunkline::Node::builder().drive(Drive::Inline);
        let (inner, fault) = faulty::node(address(), builder);
        let end = End::of(Node::drive(inner).unwrap());
        let qp = end.qp();
        qp.connect(qp.address()).unwrap();
        fault.set(Fault::LacksBuffers);
        end.receive(&qp, 9);
        end.send(&qp, 1);
        let node = end.node.clone();
        let ending = tokio::spawn(async move { node.shutdown(PATIENCE).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        fault.set(Fault::None);
        ending.await.unwrap().unwrap();
    });
}

#[test]
fn a_childs_shutdown_of_a_node_says_whose_it_is() {
    let [one_thread, _] = common::runtimes();
    one_thread.block_on(async {
        let end = End::new();
        // SAFETY: the child does nothing but that and ends.
        match unsafe { libc::fork() } {
            0 => {
                let ended =
                    tokio::time::timeout(Duration::from_secs(5), end.node.shutdown(PATIENCE));
                let waker = std::task::Waker::noop();
                let mut cx = std::task::Context::from_waker(waker);
                let mut ended = std::pin::pin!(ended);
                let mut code = 7;
                for _ in 0..200 {
                    if let std::task::Poll::Ready(ended) = ended.as_mut().poll(&mut cx) {
                        code = i32::from(!matches!(ended, Ok(Err(Error::Down(Down::Forked)))));
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                // SAFETY: it ends the child.
                unsafe { libc::_exit(code) }
            }
            child => {
                let mut status = 0;
                // SAFETY: a child of ours, and room for its status.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert!(libc::WIFEXITED(status));
                assert_eq!(libc::WEXITSTATUS(status), 0);
            }
        }
        end.node.shutdown(PATIENCE).await.unwrap();
    });
}

#[test]
fn a_node_whose_runtime_is_gone_is_shut_down_at_once() {
    let [one, other] = common::runtimes();
    let end = one.block_on(async { End::new() });
    drop(one);
    other.block_on(in_time(async {
        let _ = end.node.shutdown(PATIENCE).await;
    }));
}
