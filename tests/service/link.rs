//! The link of a service's port, as its programs hear of it.

use crate::common::{PATIENCE, service};
use std::process::Command;
use std::time::Duration;
use trunkline::{Event, Node, PortState};

/// Until a program has been handed what another one has taken by now.
const MOMENT: Duration = Duration::from_millis(200);

/// The next event, which comes.
fn next(node: &Node) -> Event {
    let event = node.wait_event(PATIENCE).unwrap();
    event.expect("an event")
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.unwrap().success(), "ip {words}");
}

/// Runs it in a network namespace of its own, where `near` and `far` are the ends of one link, and
/// `near` has the address 10.9.0.1.
fn with_a_link(runs: fn()) {
    let inside = move || {
        // SAFETY: concerns this thread only, which began for that.
        let entered = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        let error = std::io::Error::last_os_error();
        assert_eq!(entered, 0, "a network namespace takes privileges: {error}");
        ip("link add near type veth peer name far");
        ip("address add 10.9.0.1/24 dev near");
        ip("link set near up");
        ip("link set far up");
        runs();
    };
    std::thread::spawn(inside).join().unwrap();
}

#[test]
#[ignore = "needs root and network namespaces"]
fn programs_hear_that_the_link_of_their_service_goes_down_and_comes_up() {
    with_a_link(|| {
        let builder = Node::builder().address([10, 9, 0, 1].into());
        let (_service, path) = service(builder.workers(2).status(false));
        let programs = [(); 2].map(|()| Node::attach(&path).unwrap());
        for node in &programs {
            let port = node.port_attributes().unwrap();
            assert_eq!(port.state, PortState::Active);
            assert_eq!(node.poll_event(), None);
        }
        // The far end first, then the service's own interface.
        for (end, port) in [("far", 1), ("near", 1)] {
            for (word, event, state) in [
                ("down", Event::PortError { port }, PortState::Down),
                ("up", Event::PortActive { port }, PortState::Active),
            ] {
                ip(&format!("link set {end} {word}"));
                for node in &programs {
                    assert_eq!(next(node), event, "{end}");
                    assert_eq!(node.port_attributes().unwrap().state, state);
                }
            }
        }
        std::thread::sleep(MOMENT);
        assert!(programs.iter().all(|node| node.poll_event().is_none()));
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_program_that_takes_no_events_has_the_last_two_of_the_port() {
    const FLAPS: usize = 5;
    with_a_link(|| {
        let builder = Node::builder().address([10, 9, 0, 1].into());
        let (_service, path) = service(builder.status(false));
        let [takes, rests] = [(); 2].map(|()| Node::attach(&path).unwrap());
        let changes = [Event::PortError { port: 1 }, Event::PortActive { port: 1 }];
        for _ in 0..FLAPS {
            for (word, event) in ["down", "up"].into_iter().zip(&changes) {
                ip(&format!("link set far {word}"));
                assert_eq!(next(&takes), *event);
            }
        }
        std::thread::sleep(MOMENT);
        let waiting: Vec<_> = std::iter::from_fn(|| rests.poll_event()).collect();
        assert_eq!(waiting, changes);
    });
}
