//! Asynchronous events: waited for in a call and on a descriptor.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, PATIENCE, address, inline};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::process::Command;
use std::time::{Duration, Instant};
use trunkline::{
    Access, Attributes, Builder, ConnectionOptions, Error, Event, NoConnection, Node, PortState,
    QpEvent, QpModify, QpOptions, SendOp,
};

fn threaded() -> Builder {
    Node::builder().address(address())
}

fn next(node: &Node) -> Event {
    node.wait_event(PATIENCE).unwrap().expect("an event")
}

fn is_readable(node: &Node) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::from_borrowed_fd(node.event_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&now)).unwrap() == 1
}

#[test]
fn who_waits_hears_that_a_connection_opens_and_closes() {
    for workers in [1, 3] {
        for builder in [threaded(), inline()] {
            let (a, b) = (
                builder.workers(workers).build().unwrap(),
                threaded().build(),
            );
            let (b, options) = (b.unwrap(), ConnectionOptions::default());
            let peer = b.gid().address();
            let connection = a.open_connection(peer, &options).unwrap();
            let up = next(&a);
            assert!(connection.is_open(), "{up:?}");
            assert!(
                matches!(up, Event::ConnectionUp { peer, .. } if peer == b.gid()),
                "{up:?}"
            );
            connection.close();
            let down = next(&a);
            assert!(matches!(down, Event::ConnectionDown { peer, .. } if peer == b.gid()));
            assert_eq!(a.poll_event(), None);
            // To the node itself, too.
            let own = a.open_connection(a.gid().address(), &options).unwrap();
            let up = next(&a);
            assert!(
                own.is_open() && matches!(up, Event::ConnectionUp { .. }),
                "{up:?}"
            );
        }
    }
}

#[test]
fn who_waits_hears_why_a_connection_does_not_open() {
    let nobody = address();
    for builder in [threaded(), inline()] {
        let node = builder.build().unwrap();
        let _connection = node
            .open_connection(nobody, &ConnectionOptions::default())
            .unwrap();
        let why = NoConnection::Nobody;
        let peer = nobody.into();
        assert_eq!(next(&node), Event::ConnectionFailed { peer, why });
        assert_eq!(node.wait_event(Duration::ZERO).unwrap(), None);
    }
}

#[test]
fn who_waits_hears_that_a_qp_in_rtr_hears_its_peer() {
    let (a, b) = (End::new(threaded()), End::new(threaded()));
    let (qa, qb) = (a.qp(&QpOptions::default()), b.qp(&QpOptions::default()));
    qa.connect(qb.address()).unwrap();
    let access = Access::ALL;
    qb.modify(&QpModify::Init { access }).unwrap();
    qb.modify(&QpModify::Rtr(Attributes {
        remote: qa.address().gid,
        dest_qpn: qa.qpn(),
        rq_psn: qa.address().psn,
        ..Attributes::default()
    }))
    .unwrap();
    b.receive(&qb, 1, 0, 64);
    a.post(&qa, 1, SendOp::Send, 0, 64);
    let (qpn, event) = (qb.qpn(), QpEvent::CommunicationEstablished);
    assert_eq!(next(&b.node), Event::Qp { qpn, event });
}

#[test]
fn the_descriptor_is_readable_while_events_wait_and_for_good_at_the_end() {
    let (a, b) = (threaded().build().unwrap(), threaded().build().unwrap());
    assert!(!is_readable(&a));
    let options = ConnectionOptions::default();
    let opened = [(); 2].map(|()| a.open_connection(b.gid().address(), &options).unwrap());
    let until = Instant::now() + PATIENCE;
    while !opened.iter().all(trunkline::Connection::is_open) {
        assert!(Instant::now() < until, "they do not open");
        std::thread::yield_now();
    }
    for _ in 0..2 {
        assert!(is_readable(&a));
        assert!(matches!(a.poll_event(), Some(Event::ConnectionUp { .. })));
    }
    assert!(!is_readable(&a) && a.poll_event().is_none());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut ends = 0;
            loop {
                match a.wait_event(Duration::MAX) {
                    Ok(Some(Event::DeviceFatal)) => ends += 1,
                    Ok(event) => assert!(matches!(event, Some(Event::ConnectionDown { .. }))),
                    Err(error) => return (error, ends),
                }
            }
        });
        a.shutdown(PATIENCE).unwrap();
        let (error, ends) = waiter.join().unwrap();
        assert!(matches!(error, Error::Down(_)), "{error}");
        assert_eq!(ends, 1, "who is shut down hears it once");
    });
    assert!(is_readable(&a) && is_readable(&a));
}

#[test]
fn a_wait_ends_with_its_time() {
    for builder in [threaded(), inline()] {
        let node = builder.build().unwrap();
        for limit in [Duration::ZERO, Duration::from_millis(20)] {
            let began = Instant::now();
            assert_eq!(node.wait_event(limit).unwrap(), None);
            let waited = began.elapsed();
            assert!(waited >= limit && waited < PATIENCE / 2, "{waited:?}");
        }
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn who_waits_hears_that_the_link_of_the_nodes_interface_goes_down_and_comes_up() {
    let inside = || {
        // SAFETY: concerns this thread only, which began for that.
        let entered = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        let error = std::io::Error::last_os_error();
        assert_eq!(entered, 0, "a network namespace takes privileges: {error}");
        let ip = |words: &str| {
            let status = Command::new("ip").args(words.split(' ')).status();
            assert!(status.unwrap().success(), "ip {words}");
        };
        ip("link add near type veth peer name far");
        ip("address add 10.9.0.1/24 dev near");
        ip("link set near up");
        ip("link set far up");
        let address = [10, 9, 0, 1].into();
        for builder in [Node::builder(), inline()] {
            let builder = builder.address(address).workers(2).status(false);
            let node = builder.build().unwrap();
            let port = node.port_attributes().unwrap();
            assert_eq!(port.state, PortState::Active);
            assert_eq!(node.poll_event(), None);
            // The far end first, then the node's own interface.
            for (end, port) in [("far", 1), ("near", 1)] {
                for (word, event, state) in [
                    ("down", Event::PortError { port }, PortState::Down),
                    ("up", Event::PortActive { port }, PortState::Active),
                ] {
                    ip(&format!("link set {end} {word}"));
                    assert_eq!(next(&node), event, "{end}");
                    assert_eq!(node.port_attributes().unwrap().state, state);
                }
            }
            assert_eq!(node.poll_event(), None);
        }
    };
    std::thread::spawn(inside).join().unwrap();
}
