//! What a port does when its interface changes.

use crate::end::{End, is_same, pattern};
use crate::{Link, PATIENCE, Suite};
use std::time::{Duration, Instant};
use trunkline_dataplane::PortEvent;
use trunkline_testkit::netns::ip;

/// Sends datagrams of which only the first can arrive at once, until the far end has it.
fn until_it_arrives(near: &mut End, far: &mut End, length: usize) {
    let (path, start) = (near.path_to(far.address), Instant::now());
    loop {
        near.send(&path, &pattern(9, length));
        near.port.flush().unwrap();
        let got = far.receive(1, Duration::from_millis(20));
        if got.iter().any(|got| is_same(got, &pattern(9, length))) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{length}: {:?}", far.counters());
        near.receive(1, Duration::from_millis(1));
    }
}

/// An interface that has another address of the link is followed.
pub fn an_interface_that_has_another_address_of_the_link_is_followed(suite: &Suite) {
    suite.each_kind_on(&[Link::Kernels], |_, [near, far]| {
        if near.kind.is_socket {
            return;
        }
        let family = u8::from(near.address.is_ipv6());
        // Where the kernel joins datagrams, some of a super-packet are out, and some are not.
        let path = far.path_to(near.address);
        for number in 0..20 {
            far.send(&path, &pattern(number, 100));
        }
        far.port.flush().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        assert!(!near.receive(1, PATIENCE).is_empty());
        ip(&format!("link set near address 02:00:00:00:09:1{family}"));
        // Who was talked to sends to the right one, though nothing more was sent to it.
        std::thread::sleep(Duration::from_millis(200));
        near.receive(1, Duration::from_millis(1));
        near.port.flush().unwrap();
        until_it_arrives(far, near, 777);
        until_it_arrives(near, far, 777);
    });
}

/// An interface that carries less is told of, and carries more again later.
pub fn an_interface_that_carries_less_is_told_of_and_carries_more_again(suite: &Suite) {
    suite.each_kind_on(&[Link::Kernels], |_, [near, far]| {
        let (path, length) = (near.path_to(far.address), near.large());
        ip("link set near mtu 1400");
        let (start, mut told) = (Instant::now(), None);
        while told.is_none() && start.elapsed() < PATIENCE {
            near.send(&path, &pattern(1, length));
            near.port.flush().unwrap();
            near.receive(1, Duration::from_millis(20));
            told = near.port.poll_event();
        }
        let dst = far.address;
        assert_eq!(told, Some(PortEvent::TooLong { dst, length }));
        until_it_arrives(near, far, 1200);
        ip("link set near mtu 4200");
        until_it_arrives(near, far, length);
    });
}

/// What the other end does not take holds nothing up.
pub fn what_the_other_end_does_not_take_holds_nothing_up(suite: &Suite) {
    suite.each_kind_on(&[Link::Kernels], |far_host, [near, far]| {
        if !near.kind.gives_up {
            return;
        }
        let (path, length) = (near.path_to(far.address), near.large());
        far_host.run("ip link set far mtu 1400");
        // Alone and together: a veth(4) takes some super-packets that are longer than it says.
        for burst in 0..20 {
            for number in 0..=burst % 4 {
                near.send(&path, &pattern(number, length));
            }
            near.port.flush().unwrap();
        }
        let start = Instant::now();
        until_it_arrives(near, far, 1200);
        assert!(start.elapsed() < Duration::from_secs(1));
        far_host.run("ip link set far mtu 4200");
        until_it_arrives(near, far, length);
    });
}

/// An interface that is gone is told of by its name.
pub fn an_interface_that_is_gone_is_told_of_by_its_name(suite: &Suite) {
    suite.each_kind_on(&[Link::Kernels], |_, [near, _]| {
        // The link is there for one family after the other.
        if near.kind.is_socket || near.address.is_ipv4() {
            return;
        }
        ip("link set near name nearer");
        std::thread::sleep(Duration::from_millis(200));
        near.receive(1, Duration::from_millis(1));
        ip("link del nearer");
        let start = Instant::now();
        let error = loop {
            if let Err(error) = near.port.receive(1, &mut |_, _| {}) {
                break error;
            }
            assert!(start.elapsed() < PATIENCE, "nothing is told");
        };
        assert!(!error.is_passing());
        let said = error.to_string();
        // The name that it has, or had.
        assert!(said.starts_with("interface near"), "{said}");
        assert!(said.contains("is gone"), "{said}");
    });
}
