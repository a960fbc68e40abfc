//! Inline nodes whose programs wait on their descriptors: nothing that happens is missed, and while
//! nothing happens they sleep.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, Pair, inline, wait_for};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trunkline::{
    Attributes, Builder, Clock, Down, Drive, Error, Node, Notify, Qp, QpOptions, SendOp, Status,
};
use trunkline_dataplane::{MemoryConfig, MemoryPort};

/// Longer than any timer of the tests: who sleeps as long was not woken.
const LONG: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};

/// How a program sleeps until its node has something to do, with what it keeps from one sleep to
/// the next. Returns whether it slept.
type Sleep = fn(&Node, &mut Option<OwnedFd>) -> Result<bool, Error>;

/// Sleeps in poll(2).
fn by_poll(node: &Node, _: &mut Option<OwnedFd>) -> Result<bool, Error> {
    let may_wait = node.try_wait()?;
    if may_wait {
        assert!(is_readable(node, &LONG), "nobody woke the node");
    }
    Ok(may_wait)
}

/// Sleeps as the event loop of a runtime does.
fn by_edges(node: &Node, known: &mut Option<OwnedFd>) -> Result<bool, Error> {
    let may_wait = node.try_wait()?;
    if may_wait {
        let epoll = known.get_or_insert_with(|| {
            let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
            let (fd, flags) = (node.fd().unwrap(), EventFlags::IN | EventFlags::ET);
            epoll::add(&epoll, fd, EventData::new_u64(0), flags).unwrap();
            epoll
        });
        let mut events = Vec::with_capacity(1);
        let room = rustix::buffer::spare_capacity(&mut events);
        let found = epoll::wait(epoll, room, Some(&LONG));
        assert_ne!(found, Ok(0), "nobody woke the node");
    }
    Ok(may_wait)
}

/// Sleeps in a call of the node.
fn by_call(node: &Node, _: &mut Option<OwnedFd>) -> Result<bool, Error> {
    let (began, long) = (Instant::now(), Duration::from_secs(LONG.tv_sec as u64));
    node.wait(long)?;
    assert!(began.elapsed() < long, "nobody woke the node");
    Ok(true)
}

/// Whether the node's descriptor is readable within `longest`.
fn is_readable(node: &Node, longest: &Timespec) -> bool {
    let fd = PollFd::from_borrowed_fd(node.fd().unwrap(), PollFlags::IN);
    poll(&mut [fd], Some(longest)) != Ok(0)
}

/// A thread that drives a node and sleeps in between, until the node is shut down.
struct Driver {
    thread: JoinHandle<Down>,
    /// How often it slept.
    sleeps: Arc<AtomicU64>,
}

impl Driver {
    fn new(node: &Node, sleep: Sleep) -> Self {
        let sleeps = Arc::new(AtomicU64::new(0));
        let (node, counted) = (node.clone(), Arc::clone(&sleeps));
        let thread = std::thread::spawn(move || {
            let mut known = None;
            loop {
                match turn(&node, sleep, &mut known) {
                    Ok(slept) => counted.fetch_add(slept.into(), Ordering::Relaxed),
                    Err(Error::Down(down)) => return down,
                    Err(error) => panic!("{error}"),
                };
            }
        });
        Self { thread, sleeps }
    }
}

/// Drives a node until nothing is left to do, and sleeps once.
fn turn(node: &Node, sleep: Sleep, known: &mut Option<OwnedFd>) -> Result<bool, Error> {
    while node.poll()? {}
    sleep(node, known)
}

/// WRITEs of a program that drives nothing, one after the other, over QPs of all workers.
fn serves_who_drives_nothing(sleep: Sleep, builder: fn() -> Builder) {
    const WRITES: u64 = 200;
    let ends = [End::new(builder()), End::new(builder())];
    let drivers = ends.each_ref().map(|end| Driver::new(&end.node, sleep));
    let [a, b] = &ends;
    let qps: Vec<[Qp; 2]> = (0..4)
        .map(|_| {
            let qps = [a, b].map(|end| end.qp(&QpOptions::default()));
            qps[0].connect(qps[1].address()).unwrap();
            qps[1].connect(qps[0].address()).unwrap();
            qps
        })
        .collect();
    for id in 0..WRITES {
        let [qp, _] = &qps[id as usize % qps.len()];
        a.post(qp, id, SendOp::Write(b.mr.remote(0)), 0, 64);
        let done = wait_for(&a.send_cq);
        assert_eq!((done.wr_id, done.status), (id, Status::Success));
    }
    std::thread::sleep(Duration::from_millis(50));
    let before = drivers
        .each_ref()
        .map(|driver| driver.sleeps.load(Ordering::Relaxed));
    std::thread::sleep(Duration::from_millis(300));
    for (driver, before) in drivers.iter().zip(before) {
        let woken = driver.sleeps.load(Ordering::Relaxed) - before;
        assert!(
            woken < 20,
            "{woken} times in 300 ms in which nothing happened"
        );
    }
    // Who drives a node hears that there is nothing left to drive.
    for (end, driver) in ends.iter().zip(drivers) {
        assert!(driver.sleeps.load(Ordering::Relaxed) > 0, "it slept");
        let _ = end.node.shutdown(Duration::ZERO);
        assert_eq!(driver.thread.join().unwrap(), Down::ShutDown);
    }
}

#[test]
fn a_node_that_is_waited_for_by_poll_serves_who_drives_nothing() {
    serves_who_drives_nothing(by_poll, inline);
}

#[test]
fn a_node_that_is_waited_for_by_edges_serves_who_drives_nothing() {
    serves_who_drives_nothing(by_edges, inline);
}

#[test]
fn a_node_that_is_waited_for_by_a_call_serves_who_drives_nothing() {
    serves_who_drives_nothing(by_call, inline);
    serves_who_drives_nothing(by_call, || inline().workers(2));
}

#[test]
fn the_descriptor_of_a_node_is_that_of_all_its_workers() {
    serves_who_drives_nothing(by_poll, || inline().workers(2));
    serves_who_drives_nothing(by_edges, || inline().workers(3));
}

#[test]
fn who_drives_a_node_hears_that_another_thread_shut_it_down() {
    for sleep in [by_poll, by_edges, by_call] {
        let node = inline().build().unwrap();
        let driver = Driver::new(&node, sleep);
        std::thread::sleep(Duration::from_millis(50));
        node.shutdown(Duration::ZERO).unwrap();
        assert_eq!(driver.thread.join().unwrap(), Down::ShutDown);
    }
}

#[test]
fn who_sleeps_hears_of_the_end_though_others_poll_before_and_after() {
    for after in [false, true] {
        let node = inline().build().unwrap();
        assert!(node.try_wait().unwrap());
        // Another thread polls: nobody has to wake the one that sleeps.
        node.poll().unwrap();
        node.shutdown(Duration::ZERO).unwrap();
        if after {
            assert!(matches!(node.poll(), Err(Error::Down(Down::ShutDown))));
            assert!(matches!(node.try_wait(), Err(Error::Down(Down::ShutDown))));
        }
        assert!(is_readable(&node, &LONG), "nobody woke who sleeps");
    }
}

#[test]
fn timers_make_the_descriptor_readable() {
    let pair = Pair::new();
    let attributes = Attributes {
        timeout: 14,
        retry_count: 2,
        ..Attributes::default()
    };
    let (qa, _qb) = pair.qps_with(&QpOptions::default(), &attributes);
    let target = SendOp::Write(pair.b.mr.remote(0));
    pair.a.post(&qa, 1, target, 0, 64);
    assert_eq!(pair.next(&pair.a.send_cq).status, Status::Success);
    // Its peer does nothing any more.
    pair.a.post(&qa, 2, target, 0, 64);
    let (began, mut sleeps, mut known) = (Instant::now(), 0, None);
    let done = loop {
        sleeps += u32::from(turn(&pair.a.node, by_poll, &mut known).unwrap());
        if let Some(done) = pair.a.send_cq.poll_one().unwrap() {
            break done;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "no timer fired");
    };
    assert_eq!((done.wr_id, done.status), (2, Status::RetryExceeded));
    assert!((1..1000).contains(&sleeps), "{sleeps} sleeps");
}

#[test]
fn who_has_something_to_do_may_not_wait() {
    let pair = Pair::new();
    let (qa, _qb) = pair.qps();
    assert!(!pair.a.node.try_wait().unwrap(), "a peer is to be asked");
    pair.run_for(Duration::from_millis(20));
    let target = SendOp::Write(pair.b.mr.remote(0));
    pair.a.post(&qa, 1, target, 0, 64);
    assert!(!pair.a.node.try_wait().unwrap(), "a request is posted");
    assert_eq!(pair.next(&pair.a.send_cq).status, Status::Success);
    let end = Instant::now() + Duration::from_secs(5);
    while !pair.a.node.try_wait().unwrap() {
        pair.turn();
        assert!(Instant::now() < end, "there is nothing to do");
    }
}

#[test]
fn a_node_that_nobody_can_wait_for_says_why() {
    let threaded = Node::builder().address(common::address()).build().unwrap();
    let (port, _other) = MemoryPort::pair(MemoryConfig::default());
    let builder = Node::builder().address(common::address());
    let polled = builder
        .drive(Drive::Inline)
        .build_on(Box::new(port))
        .unwrap();
    let turned = inline().clock(Clock::manual()).build().unwrap();
    for (node, why) in [
        (threaded, "threads"),
        (polled, "polled"),
        (turned, "by hand"),
    ] {
        for error in [node.fd().err(), node.try_wait().err()] {
            let error = error.unwrap();
            assert!(matches!(error, Error::NoFd { .. }), "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}

/// Counts how often it was called.
#[derive(Default)]
struct Calls(AtomicU64);

impl Notify for Calls {
    fn notify(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_queue_that_notifies_its_program_calls_it_once_for_each_arming() {
    for workers in [1, 2] {
        let end = End::new(inline().workers(workers));
        let calls = Arc::new(Calls::default());
        let cq = end.node.create_cq_notifying(16, Arc::clone(&calls) as _);
        let cq = cq.unwrap();
        let qp = end.pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
        qp.connect(qp.address()).unwrap();
        let write = |id| {
            end.post(&qp, id, SendOp::Write(end.mr.remote(0)), 64, 64);
            let done = common::next(&[&end.node], &cq);
            assert_eq!((done.wr_id, done.status), (id, Status::Success));
            calls.0.swap(0, Ordering::Relaxed)
        };
        assert_eq!(write(1), 0, "nobody armed it");
        cq.arm(false);
        assert_eq!(write(2), 1);
        assert_eq!(write(3), 0, "it was armed for one");
        assert_eq!(cq.take_events(), 0);
        let waited = cq.wait(Duration::ZERO);
        assert!(matches!(waited, Err(Error::NoFd { .. })), "{waited:?}");
    }
}
