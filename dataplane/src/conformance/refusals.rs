//! What a port does with what cannot be sent.

use super::*;
use crate::errno::Errno;
use crate::port::PortEvent;

fn event(end: &mut End) -> Option<PortEvent> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(event) = end.port.poll_event() {
            return Some(event);
        }
        end.port.flush().unwrap();
        end.receive(1, Duration::from_millis(1));
    }
    None
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_datagram_that_is_too_long_is_told_of_and_others_go_on() {
    each_kind(|_, [near, far]| {
        let path = near.path_to(far.address);
        let length = near.port.capabilities().max_datagram + 1;
        near.send(&path, &pattern(1, length));
        near.send(&path, &pattern(2, 100));
        near.port.flush().unwrap();
        assert!(is_same(&far.receive(1, PATIENCE)[0], &pattern(2, 100)));
        let dst = far.address;
        assert_eq!(event(near), Some(PortEvent::TooLong { dst, length }));
        assert_eq!(near.counters().too_long, 1);
        for length in [0, 65_508] {
            assert!(near.port.reserve(&path, length).is_none(), "{length}");
        }
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_peer_who_is_not_there_is_counted_and_others_do_not_wait() {
    each_kind(|_, [near, far]| {
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
        while start.elapsed() < Duration::from_millis(300) {
            near.send(&lost, &pattern(1, 200));
            near.send(&path, &pattern(number, 300));
            near.port.flush().unwrap();
            let got = far.receive(1, PATIENCE);
            assert!(is_same(&got[0], &pattern(number, 300)));
            number += 1;
            near.receive(1, Duration::from_millis(1));
        }
        if near.kind != Kind::Udp {
            // The kernel tells a socket by its error queue, without the datagram.
            let error = Errno::new(libc::EHOSTUNREACH);
            let told = PortEvent::Unsent { dst: nobody, error };
            assert_eq!(near.port.poll_event(), Some(told));
            assert!(near.counters().unreachable > 0);
        }
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_peer_whose_host_has_no_node_is_told_of_with_what_was_sent() {
    each_kind(|far_host, [near, _]| {
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

#[test]
#[ignore = "needs root and network namespaces"]
fn paths_that_do_not_begin_here_lead_nowhere() {
    each_kind(|_, [near, far]| {
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

#[test]
#[ignore = "needs root and network namespaces"]
fn a_link_that_goes_down_and_comes_up_carries_on() {
    each_kind(|_, [near, far]| {
        let path = near.path_to(far.address);
        let mut changes = near.port.link_changes(near.address).unwrap();
        while changes.next_change().is_some() {}
        ip("link set near down");
        // More than any port has room for: what does not leave does not stay.
        for number in 0..20_000 {
            near.send(&path, &pattern(number, 1000));
            near.port.flush().unwrap();
        }
        assert_eq!(near.port.full(), None);
        assert_eq!(changes.next_change(), Some(false));
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
        near.send(&path, &pattern(7, 1000));
        near.port.flush().unwrap();
        assert!(is_same(&far.receive(1, PATIENCE)[0], &pattern(7, 1000)));
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn an_address_is_that_of_one_node() {
    each_kind(|_, [near, _]| {
        let error = UdpPort::open(&UdpConfig::new(near.address)).unwrap_err();
        assert!(error.to_string().contains("this process"), "{error}");
        let error = LinkAddress::take(near.address, ROCE_PORT).unwrap_err();
        assert!(error.to_string().contains("this process"), "{error}");
    });
}
