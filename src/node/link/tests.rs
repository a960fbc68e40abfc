use super::*;
use crate::{Drive, Node, PortState, QpEvent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use trunkline_conn::egress::{Egress, Slot};
use trunkline_conn::ingress::Arrival;
use trunkline_dataplane::{Capabilities, MemoryConfig, MemoryPort, Port, PortCounters, PortError};
use trunkline_wire::{Path, Qpn};

const PATIENCE: Duration = Duration::from_secs(10);
const UP: Event = Event::PortActive { port: 1 };
const DOWN: Event = Event::PortError { port: 1 };

/// A link that is what the bytes say that come: 1 works, 0 does not.
#[derive(Debug)]
struct Told(UnixStream);

impl LinkChanges for Told {
    fn next_change(&mut self) -> Option<bool> {
        let mut byte = [0];
        let read = self.0.read(&mut byte).ok()?;
        (read > 0).then_some(byte[0] == 1)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A port with such a link, and a descriptor that never has anything to receive.
struct Linked {
    port: MemoryPort,
    quiet: (UnixStream, UnixStream),
    link: UnixStream,
}

impl Egress for Linked {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        self.port.reserve(path, length)
    }

    fn commit(&mut self) {
        self.port.commit();
    }
}

impl Port for Linked {
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
        Some(self.quiet.0.as_fd())
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }

    fn link_changes(&self, _local: IpAddr) -> Option<Box<dyn LinkChanges + Send>> {
        Some(Box::new(Told(self.link.try_clone().unwrap())))
    }
}

/// A node on such ports, and what its link hears: `first` before it is built.
fn node(drive: Drive, workers: u8, first: &[u8]) -> (Node, UnixStream) {
    let (mut say, link) = UnixStream::pair().unwrap();
    link.set_nonblocking(true).unwrap();
    say.write_all(first).unwrap();
    let port = || Linked {
        port: MemoryPort::pair(MemoryConfig::default()).0,
        quiet: UnixStream::pair().unwrap(),
        link: link.try_clone().unwrap(),
    };
    let ports = (0..workers).map(|_| Box::new(port()) as Box<dyn Port + Send>);
    let builder = Node::builder().drive(drive).workers(workers);
    (builder.build_on_all(ports.collect()).unwrap(), say)
}

fn state(node: &Node) -> PortState {
    node.port_attributes().unwrap().state
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(
        &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
        Some(&now),
    )
    .unwrap()
        == 1
}

/// Everything that waits for the program.
fn all(node: &Node) -> Vec<Event> {
    std::iter::from_fn(|| node.poll_event()).collect()
}

#[test]
fn who_waits_hears_that_the_link_goes_down_and_comes_up() {
    for (drive, workers) in [(Drive::Threaded, 1), (Drive::Inline, 1), (Drive::Inline, 2)] {
        let (node, mut say) = node(drive, workers, &[1]);
        assert_eq!(state(&node), PortState::Active);
        assert!(!is_readable(node.event_fd()));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| [(); 2].map(|()| node.wait_event(PATIENCE).unwrap()));
            for byte in [0, 1] {
                std::thread::sleep(Duration::from_millis(20));
                say.write_all(&[byte]).unwrap();
            }
            assert_eq!(waiter.join().unwrap(), [Some(DOWN), Some(UP)]);
        });
        assert!(!is_readable(node.event_fd()));
        say.write_all(&[0]).unwrap();
        assert!(is_readable(node.event_fd()), "nobody else has looked");
        assert_eq!(state(&node), PortState::Down);
        assert!(is_readable(node.event_fd()), "the event waits");
        assert_eq!(all(&node), [DOWN]);
        assert!(!is_readable(node.event_fd()));
    }
}

#[test]
fn what_the_link_was_from_the_beginning_is_no_event() {
    for (first, begins) in [(0, PortState::Down), (1, PortState::Active)] {
        let (node, mut say) = node(Drive::Threaded, 1, &[first]);
        assert_eq!(state(&node), begins);
        // Nor is what changes nothing.
        say.write_all(&[first]).unwrap();
        assert_eq!(all(&node), []);
        say.write_all(&[1 - first]).unwrap();
        assert_eq!(all(&node).len(), 1);
    }
}

#[test]
fn a_link_that_flaps_leaves_two_events_at_most_and_the_last_is_its_state() {
    let (node, mut say) = node(Drive::Threaded, 1, &[1]);
    for flaps in 0..2000 {
        say.write_all(&[(flaps % 2) as u8]).unwrap();
        // Whether the link is looked at in between or not.
        if flaps % 3 == 0 {
            state(&node);
        }
        let waiting = node.shared.here().events.lock().len();
        assert!(waiting <= 2, "{waiting} events wait");
    }
    assert_eq!(all(&node), [DOWN, UP]);
    assert!(!is_readable(node.event_fd()));
    say.write_all(&[0, 1, 0]).unwrap();
    assert_eq!(all(&node), [DOWN]);
    assert_eq!(state(&node), PortState::Down);
}

#[test]
fn a_full_queue_loses_no_event_of_the_port() {
    let (node, mut say) = node(Drive::Threaded, 1, &[1]);
    let events = &node.shared.here().events;
    let most = crate::node::MAX_EVENTS;
    for _ in 0..=most {
        let (qpn, event) = (Qpn::GSI, QpEvent::SendQueueDrained);
        events.push(Event::Qp { qpn, event });
    }
    say.write_all(&[0]).unwrap();
    let told = all(&node);
    assert_eq!((told.len(), told.last()), (most + 1, Some(&DOWN)));
}

#[test]
fn the_descriptor_of_an_inline_node_tells_until_the_node_has_looked() {
    for workers in [1, 2] {
        let (node, mut say) = node(Drive::Inline, workers, &[1]);
        while node.poll().unwrap() {}
        assert!(node.try_wait().unwrap());
        assert!(!is_readable(node.fd().unwrap()));
        say.write_all(&[0]).unwrap();
        assert!(is_readable(node.fd().unwrap()));
        while node.poll().unwrap() {}
        assert!(node.try_wait().unwrap());
        // A program that does not ask for events sleeps on.
        assert!(!is_readable(node.fd().unwrap()));
        assert!(is_readable(node.event_fd()));
        assert_eq!(all(&node), [DOWN]);
        say.write_all(&[1]).unwrap();
        node.wait(PATIENCE).unwrap();
        assert_eq!(all(&node), [UP]);
    }
}
