//! What a port does with what cannot be sent.

use crate::end::{is_same, meet, pattern};
use crate::{Link, PATIENCE, Suite};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use trunkline_dataplane::{Errno, LinkAddress, PortEvent, UdpConfig, UdpPort};
use trunkline_testkit::netns::ip;
use trunkline_wire::{Path, ROCE_PORT};

/// A datagram that is too long is told of and others go on.
pub fn a_datagram_that_is_too_long_is_told_of_and_others_go_on(suite: &Suite) {
    suite.each_kind(|_, [near, far]| {
        let path = near.path_to(far.address);
        let length = near.port.capabilities().max_datagram + 1;
        near.send(&path, &pattern(1, length));
        near.send(&path, &pattern(2, 100));
        near.port.flush().unwrap();
        assert!(is_same(&far.receive(1, PATIENCE)[0], &pattern(2, 100)));
        let dst = far.address;
        assert_eq!(near.event(), Some(PortEvent::TooLong { dst, length }));
        assert_eq!(near.counters().too_long, 1);
        for length in [0, 65_508] {
            assert!(near.port.reserve(&path, length).is_none(), "{length}");
        }
    });
}

/// A peer who is not there is counted and others do not wait.
pub fn a_peer_who_is_not_there_is_counted_and_others_do_not_wait(suite: &Suite) {
    suite.each_kind(|_, [near, far]| {
        for file in [
            "ipv4/neigh/near/retrans_time_ms",
            "ipv6/neigh/near/retrans_time_ms",
        ] {
            std::fs::write(format!("/proc/sys/net/{file}"), "20").unwrap();
        }
        let nobody: IpAddr = if near.address.is_ipv4() {
            "10.9.0.77".parse().unwrap()
        } else {
            "fd09::77".parse().unwrap()
        };
        let (lost, path) = (near.path_to(nobody), near.path_to(far.address));
        let start = Instant::now();
        let mut number = 0;
        let mut told = None;
        // The kernel tells a socket by its error queue, without the datagram.
        let longest = match near.kind.is_socket {
            true => Duration::from_millis(300),
            false => PATIENCE,
        };
        while told.is_none() && start.elapsed() < longest {
            near.send(&lost, &pattern(1, 200));
            near.send(&path, &pattern(number, 300));
            near.port.flush().unwrap();
            let got = far.receive(1, PATIENCE);
            assert!(is_same(&got[0], &pattern(number, 300)));
            number += 1;
            near.receive(1, Duration::from_millis(1));
            told = near.port.poll_event();
        }
        if !near.kind.is_socket {
            let error = Errno::new(libc::EHOSTUNREACH);
            assert_eq!(told, Some(PortEvent::Unsent { dst: nobody, error }));
            assert!(near.counters().unreachable > 0);
        }
    });
}

/// A peer whose host has no node is told of with what was sent.
pub fn a_peer_whose_host_has_no_node_is_told_of_with_what_was_sent(suite: &Suite) {
    suite.each_kind_beside_a_kernel(|far_host, [near, _]| {
        let address = if near.address.is_ipv4() {
            "10.9.0.3"
        } else {
            "fd09::3"
        };
        let words = if near.address.is_ipv4() {
            "ip addr add 10.9.0.3/24 dev far"
        } else {
            "ip addr add fd09::3/64 dev far nodad"
        };
        far_host.run(words);
        let dst: IpAddr = address.parse().unwrap();
        let path = near.path_to(dst);
        let sent = pattern(5, 100);
        let start = Instant::now();
        let mut told = None;
        while told.is_none() && start.elapsed() < PATIENCE {
            near.send(&path, &sent);
            near.port.flush().unwrap();
            near.receive(1, Duration::from_millis(20));
            told = near.port.poll_event();
        }
        let Some(PortEvent::Refused { dst: at, quote }) = told else {
            panic!("{told:?}");
        };
        assert_eq!(at, dst);
        assert_eq!(quote.bytes()[..60], sent[..60]);
    });
}

/// Paths that do not begin here lead nowhere.
pub fn paths_that_do_not_begin_here_lead_nowhere(suite: &Suite) {
    suite.each_kind(|_, [near, far]| {
        let path = near.path_to(far.address);
        let other: IpAddr = if near.address.is_ipv4() {
            "10.9.0.99".parse().unwrap()
        } else {
            "fd09::99".parse().unwrap()
        };
        near.send(&Path { src: other, ..path }, &pattern(1, 64));
        near.send(&path, &pattern(2, 64));
        near.port.flush().unwrap();
        let got = far.receive(2, Duration::from_millis(50));
        assert!(got.len() == 1 && is_same(&got[0], &pattern(2, 64)));
        assert_eq!(near.counters().misrouted, 1);
    });
}

/// A link that goes down and comes up carries on.
pub fn a_link_that_goes_down_and_comes_up_carries_on(suite: &Suite) {
    suite.each_kind_on(&[Link::Kernels, Link::Taken], |_, [near, far]| {
        let path = near.path_to(far.address);
        let mut changes = near.port.link_changes(near.address);
        assert_eq!(changes.is_some(), near.kind.link == Link::Kernels);
        while let Some(changes) = &mut changes
            && changes.next_change().is_some()
        {}
        ip("link set near down");
        // More than any port has room for: what does not leave does not stay.
        for number in 0..20_000 {
            near.send(&path, &pattern(number, 1000));
            near.port.flush().unwrap();
        }
        assert_eq!(near.port.full(), None);
        if let Some(changes) = &mut changes {
            assert_eq!(changes.next_change(), Some(false));
        }
        assert!(
            !near
                .port
                .link_state(near.address)
                .is_some_and(|link| link.works)
        );
        ip("link set near up");
        // The kernel forgets an IPv6 address with its link.
        ip("addr replace fd09::1/64 dev near nodad");
        meet([near, far]);
        near.send(&path, &pattern(7, 999));
        near.port.flush().unwrap();
        // What waited for the link may come before.
        let got = far.receive(usize::MAX, Duration::from_millis(100));
        assert!(is_same(got.last().unwrap(), &pattern(7, 999)));
    });
}

/// An address is that of one node.
pub fn an_address_is_that_of_one_node(suite: &Suite) {
    suite.each_kind_on(&[Link::Kernels], |_, [near, _]| {
        let error = UdpPort::open(&UdpConfig::new(near.address)).unwrap_err();
        assert!(error.to_string().contains("this process"), "{error}");
        let error = LinkAddress::take(near.address, ROCE_PORT).unwrap_err();
        assert!(error.to_string().contains("this process"), "{error}");
    });
}
