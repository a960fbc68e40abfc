#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::Watched;
use crate::{Drive, Node, QpOptions};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use trunkline_conn::egress::{Egress, Slot};
use trunkline_conn::ingress::Arrival;
use trunkline_dataplane::{Capabilities, MemoryConfig, MemoryPort, Port, PortCounters, PortError};
use trunkline_wire::Path;

/// Stands for a port that is not full.
const ROOM: usize = usize::MAX;

/// A port of several descriptors, one of which is full when the test says so.
struct Full {
    port: MemoryPort,
    sockets: Vec<UnixStream>,
    full: Arc<AtomicUsize>,
}

impl Egress for Full {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        self.port.reserve(path, length)
    }

    fn commit(&mut self) {
        self.port.commit();
    }
}

impl Port for Full {
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.port.flush()
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        self.port.receive(limit, sink)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.sockets.first().map(AsFd::as_fd)
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd).collect()
    }

    fn full(&self) -> Option<usize> {
        Some(self.full.load(Ordering::Relaxed)).filter(|at| *at != ROOM)
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

/// An inline node on a port of these descriptors, and which of them is full.
fn node_on(sockets: Vec<UnixStream>) -> (Node, Arc<AtomicUsize>) {
    let full = Arc::new(AtomicUsize::new(ROOM));
    let (port, _peer) = MemoryPort::pair(MemoryConfig::default());
    let port = Full {
        port,
        sockets,
        full: Arc::clone(&full),
    };
    let builder = Node::builder().address(IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)));
    let node = builder.drive(Drive::Inline).build_on(Box::new(port));
    (node.unwrap(), full)
}

/// Fills a socket until it takes no more.
fn fill(socket: &mut UnixStream) {
    loop {
        match socket.write(&[0; 4096]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Takes what is in a socket.
fn empty(socket: &mut UnixStream) {
    while socket.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {}
}

fn is_readable(node: &Node) -> bool {
    let fd = node.fd().unwrap();
    let at_once = rustix::event::Timespec::default();
    poll(
        &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
        Some(&at_once),
    )
    .unwrap()
        > 0
}

#[test]
fn a_full_port_makes_the_descriptor_readable_when_it_takes_more_and_only_then() {
    for at in 0..3 {
        let pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        let (mut ours, mut theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        for socket in ours.iter().chain(&theirs) {
            socket.set_nonblocking(true).unwrap();
        }
        fill(&mut ours[at]);
        let (node, full) = node_on(ours);
        let sleep = || {
            while node.poll().unwrap() {}
            assert!(node.try_wait().unwrap(), "there is nothing to do");
        };
        sleep();
        assert!(!is_readable(&node), "nothing is waited for");
        full.store(at, Ordering::Relaxed);
        sleep();
        assert!(!is_readable(&node), "descriptor {at} is full");
        let began = Instant::now();
        node.wait(Duration::from_millis(20)).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(20), "it is full");
        empty(&mut theirs[at]);
        assert!(is_readable(&node), "descriptor {at} takes more");
        full.store((at + 1) % 3, Ordering::Relaxed);
        sleep();
        assert!(is_readable(&node), "descriptor {} takes more", (at + 1) % 3);
        full.store(ROOM, Ordering::Relaxed);
        sleep();
        assert!(!is_readable(&node), "nothing is waited for any more");
        theirs[0].write_all(b"a packet").unwrap();
        assert!(is_readable(&node), "something came");
    }
}

#[test]
fn who_sleeps_on_the_descriptor_misses_no_word_that_another_thread_meets_in_a_call() {
    let (_theirs, port) = UnixStream::pair().unwrap();
    let (node, _full) = node_on(vec![port]);
    let others: [fn(&Node); 2] = [
        |node| node.wait(Duration::from_secs(20)).unwrap(),
        |node| {
            let pd = node.alloc_pd();
            let cq = node.create_cq(64).unwrap();
            let qp = pd.create_qp(&cq, &cq, &QpOptions::default()).unwrap();
            qp.connect(qp.address()).unwrap();
            assert!(!node.try_wait().unwrap(), "a QP is connected");
        },
    ];
    for other in others {
        while node.poll().unwrap() {}
        assert!(node.try_wait().unwrap() && !is_readable(&node));
        node.shared.handle(0).wake();
        other(&node);
        assert!(is_readable(&node), "the word is gone");
    }
}

#[test]
fn the_timer_is_set_only_where_it_would_fire_too_late_or_has_fired() {
    let (now, ms) = (Instant::now(), Duration::from_millis);
    let watched = |alarm: Option<u64>| Watched {
        alarm: alarm.map(|alarm| now + ms(alarm)),
        ..Watched::default()
    };
    let at = now + ms(10);
    let needs = |alarm, left: Option<u64>| watched(alarm).needs_alarm(at, left.map(ms));
    assert!(needs(None, Some(5)), "it never was");
    assert!(!needs(None, None), "nobody wants it");
    assert!(needs(Some(20), Some(5)), "it would fire too late");
    assert!(!needs(Some(20), Some(10)), "it fires in time");
    assert!(!needs(Some(20), Some(1000)), "it fires too early, once");
    assert!(!needs(Some(20), None), "the same");
    for fired in [9, 10] {
        assert!(
            needs(Some(fired), Some(1000)),
            "it stays readable until it is set"
        );
        assert!(needs(Some(fired), None), "the same");
    }
}
