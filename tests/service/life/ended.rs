//! Services that end under their programs, in whatever those do.

use super::peers::Peer;
use super::{Process, alone, new_service, play, within};
use crate::common::address;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use trunkline::service::Service;
use trunkline::{
    Access, AttachOptions, Cq, Down, Event, Node, Promotion, Qp, QpOptions, SendWr, Status,
};

/// Longest that a program may take to hear of the end.
const HEARD: Duration = Duration::from_secs(1);
/// Longer than a test lasts.
const LONG: Duration = Duration::from_secs(80);

/// What a program does when its service ends: it returns when it has heard of that.
type Doing = fn(&Node, &(Qp, Cq));

const ALL: [(&str, Doing); 9] = [
    ("waits for a completion", |_, (_, cq)| {
        assert!(cq.wait(LONG).is_err());
    }),
    ("waits for an event", |node, _| {
        assert!(matches!(
            node.wait_event(LONG),
            Ok(Some(Event::DeviceFatal))
        ));
        assert!(node.wait_event(LONG).is_err());
    }),
    ("polls the descriptor of a CQ", |_, (_, cq)| {
        cq.arm(false);
        wait_readable(cq.fd());
    }),
    ("polls that of a CQ that is not armed", |_, (_, cq)| {
        wait_readable(cq.fd());
    }),
    ("polls the descriptor of events", |node, _| {
        wait_readable(node.event_fd());
        assert!(matches!(node.poll_event(), Some(Event::DeviceFatal)));
        assert!(node.poll_event().is_none());
    }),
    ("spins", |_, (_, cq)| while cq.poll_one().is_ok() {}),
    ("makes QPs", |node, (_, cq)| {
        let pd = node.alloc_pd();
        let options = QpOptions::default();
        while pd.create_qp(cq, cq, &options).is_ok() {}
    }),
    ("makes CQs", |node, _| {
        while node.health().down.is_none() {
            // It is refused while too many that are gone wait to be closed.
            let _ = node.create_cq(16);
        }
        assert!(node.create_cq(16).is_err());
    }),
    ("posts", |node, (qp, cq)| {
        let request = SendWr::send().inline(b"hello").signaled();
        while node.health().down.is_none() {
            // It is full now and then.
            let _ = qp.post_send(&[request]);
            let _ = cq.poll_one();
        }
        assert!(qp.post_send(&[request]).is_err());
    }),
];

fn wait_readable(fd: BorrowedFd<'_>) {
    let timeout = Timespec::try_from(LONG).unwrap();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&timeout)).unwrap(), 1);
}

/// A program that does something until it hears of the end of its service.
fn start(path: &str, doing: Doing) -> Receiver<(Instant, Option<Down>)> {
    let peer = Peer::of(Node::attach(path).unwrap());
    let ((qp, cq), (to, _)) = (peer.qp(), peer.qp());
    qp.connect(to.address()).unwrap();
    to.connect(qp.address()).unwrap();
    let (sender, heard) = channel();
    std::thread::spawn(move || {
        doing(&peer.node, &(qp, cq));
        let (at, down) = (Instant::now(), peer.node.health().down);
        // The test may have given up.
        let _ = sender.send((at, down));
        drop((peer, to));
    });
    heard
}

/// Ends a service under programs that do each of these things.
fn end(path: &str, by: impl FnOnce() -> Instant) {
    let programs = ALL.map(|(what, doing)| (what, start(path, doing)));
    std::thread::sleep(Duration::from_millis(100));
    let at = by();
    let limit = Instant::now() + HEARD;
    let mut bad = Vec::new();
    for (what, heard) in programs {
        let left = limit.saturating_duration_since(Instant::now());
        match heard.recv_timeout(left.max(Duration::from_millis(1))) {
            Ok((heard, Some(Down::Service { why }))) => {
                println!("who {what} heard after {:?}: {why}", heard - at);
            }
            other => bad.push(format!("who {what}: {other:?}")),
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

fn service_process(path: &str) -> Process {
    let mut process = play(&format!("service {}", address()), path);
    let started: Result<(), String> = process.hear();
    started.unwrap();
    process
}

fn path(name: &str) -> String {
    format!("@trunkline-test/{}/{name}", std::process::id())
}

#[test]
fn programs_hear_of_a_service_that_is_killed() {
    let _alone = alone();
    let path = path("killed");
    let mut process = service_process(&path);
    end(&path, || process.kill());
    assert!(Node::attach(&path).is_err(), "nobody serves there");
}

#[test]
fn programs_hear_of_a_service_that_ends_in_its_process() {
    let _alone = alone();
    let path = path("ended");
    let mut process = service_process(&path);
    end(&path, || {
        process.tell(&());
        Instant::now()
    });
    process.finish();
}

#[test]
fn programs_hear_of_a_service_that_is_dropped() {
    let _alone = alone();
    let (service, path) = new_service();
    let node = service.node().clone();
    let mut took = Duration::ZERO;
    end(&path, || {
        let at = Instant::now();
        drop(service);
        took = at.elapsed();
        at
    });
    println!("dropping took {took:?}");
    assert!(took < HEARD);
    assert_eq!(node.live_objects().qps, 0);
}

#[test]
fn a_service_whose_node_was_shut_down_ends() {
    let _alone = alone();
    let (service, path) = new_service();
    let peer = Peer::of(Node::attach(&path).unwrap());
    let (qp, cq) = peer.qp();
    let other = Peer::new();
    let (to, _) = other.qp();
    qp.connect(to.address()).unwrap();
    let request = SendWr::send().inline(b"hello").signaled();
    qp.post_send(&[request]).unwrap();
    let _ = service.node().shutdown(Duration::from_millis(200));
    let event = peer.node.wait_event(HEARD).unwrap();
    assert!(matches!(event, Some(Event::DeviceFatal)), "{event:?}");
    let flushed = cq.wait(HEARD).unwrap().expect("a completion");
    println!("{:?}", flushed.status);
    assert!(peer.node.create_cq(8).is_err());
    let (sender, dropped) = channel();
    std::thread::spawn(move || {
        drop(service);
        sender.send(()).unwrap();
    });
    dropped.recv_timeout(2 * HEARD).expect("the service ends");
    within(HEARD, "the node is down", || {
        peer.node.health().down.is_some()
    });
}

#[test]
fn a_service_whose_node_is_down_rests() {
    let _alone = alone();
    let (service, path) = new_service();
    let _client = Node::attach(&path).unwrap();
    let _ = service.node().shutdown(Duration::from_millis(200));
    std::thread::sleep(Duration::from_millis(100));
    let before = serving_time();
    std::thread::sleep(Duration::from_millis(500));
    let used = serving_time() - before;
    assert!(used < Duration::from_millis(250), "{used:?} of 500 ms");
}

/// What the threads of services have used.
fn serving_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let tasks = tasks.filter_map(|task| Some(task.ok()?.path()));
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let serving = tasks.filter(|task| read(task.join("comm")).trim() == "trunkline-serve");
    let used = serving.map(|task| {
        let times = read(task.join("schedstat"));
        let first = times.split(' ').next();
        first.and_then(|used| used.parse().ok()).unwrap_or(0)
    });
    Duration::from_nanos(used.sum())
}

/// Bytes of it that are not 0.
fn written(memory: &[AtomicU64]) -> usize {
    let words = memory.iter().map(|word| word.load(Ordering::Relaxed));
    words.filter(|word| *word != 0).count()
}

/// Memory of a program that a peer writes to, when the program has let go of it after an `end`.
fn written_after(end: impl FnOnce(&Node, Service) + Send) -> usize {
    /// They are destroyed before the one that the peer writes by.
    const QPS: usize = 3000;
    let (service, path) = new_service();
    let promotion = Promotion::Never;
    let program = Peer::of(Node::attach_with(&path, &AttachOptions { promotion }).unwrap());
    let (peer, (qp, cq)) = (Peer::new(), program.qp());
    let (to, of_peer) = peer.qp();
    qp.connect(to.address()).unwrap();
    to.connect(qp.address()).unwrap();
    let options = QpOptions::default();
    let others = (0..QPS).map(|_| program.pd.create_qp(&cq, &cq, &options).unwrap());
    let _others: Vec<Qp> = others.collect();
    let memory: &[AtomicU64] = Vec::leak((0..512).map(|_| AtomicU64::new(0)).collect());
    let at = NonNull::from(memory).cast();
    // SAFETY: it is leaked, and all look at it as at atomics.
    let mr = unsafe { program.pd.register_foreign(at, 4096, Access::ALL) }.unwrap();
    let remote = mr.remote(0);
    peer.mr.write(0, &[0xff; 4096]).unwrap();
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| {
            let sges = [peer.mr.sge(0, 4096)];
            let request = [SendWr::write(remote).sges(&sges).signaled()];
            (0..8).for_each(|_| to.post_send(&request).unwrap());
            while let Ok(Some(done)) = of_peer.wait(HEARD) {
                if done.status != Status::Success || to.post_send(&request).is_err() {
                    break;
                }
            }
        });
        within(HEARD, "the peer writes", || written(memory) > 0);
        end(&program.node, service);
        drop(mr);
        memory
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        within(5 * HEARD, "the peer hears of it", || writes.is_finished());
        written(memory)
    })
}

#[test]
fn memory_of_a_program_that_heard_of_the_end_is_its_own_again() {
    let _alone = alone();
    let words = written_after(|node, service| {
        let ends = std::thread::spawn(|| drop(service));
        // It asks, and so it hears of the end before anything else tells it.
        while node.device_attributes().is_ok() {}
        drop(ends);
    });
    assert_eq!(words, 0, "words were written behind the end");
}

#[test]
fn memory_of_a_program_that_has_shut_its_node_down_is_its_own_again() {
    let _alone = alone();
    let mut serving = None;
    let words = written_after(|node, service| {
        serving = Some(service);
        let _ = node.shutdown(Duration::from_millis(10));
    });
    assert_eq!(words, 0, "words were written behind the end");
}
