//! Errors that ICMP messages tell a socket of.

use super::*;
use crate::port::Quoted;
use trunkline_testkit::netns::{beside_a_neighbour, ip};

/// What ports have to say within a second.
fn told(port: &mut UdpPort) -> Option<PortEvent> {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(1) {
        port.fetch().unwrap();
        port.receive(0, &mut |_, _| {}).unwrap();
        if let Some(event) = port.poll_event() {
            return Some(event);
        }
    }
    None
}

#[test]
fn a_closed_port_is_told_of_with_what_was_sent_there_and_harms_no_other_datagram() {
    let (mut a, mut b) = pair(|_| {});
    let to_b = path(&a, &b);
    let nobody = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 99));
    let nowhere = Path {
        dst: nobody,
        ..to_b
    };
    commit(&mut a, &nowhere, 7, 280).unwrap();
    a.flush().unwrap();
    let event = told(&mut a).expect("the kernel says that the port is closed");
    let PortEvent::Refused { dst, quote } = event else {
        panic!("{event:?}");
    };
    assert_eq!((dst, quote.bytes()), (nobody, &[7; Quoted::MOST][..]));
    // An error that waits meets the next send, which is about something else.
    for tag in 0..20 {
        for (path, length) in [(&nowhere, 100), (&to_b, 200)] {
            commit(&mut a, path, tag, length).unwrap();
            a.flush().unwrap();
        }
    }
    assert_eq!(receive(&mut b, 20).len(), 20);
    assert_eq!((a.counters().unreachable, a.counters().sent), (0, 41));
}

/// What a sleep on the port's descriptor would return at once.
fn wakes(port: &UdpPort) -> libc::c_short {
    let mut poll = libc::pollfd {
        fd: port.fd().unwrap().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one `pollfd`.
    let woken = unsafe { libc::poll(&raw mut poll, 1, 0) };
    assert!(woken >= 0);
    poll.revents
}

/// The error of the first datagram ends the call that sends both, and is gone with that: the second
/// one, sent by the next call, leaves well. On a busy machine, and where the kernel sends no more
/// errors for a while, the error comes later; a new address of IPv6 may not be known to be local
/// yet, so that another error comes: then it is done again.
fn an_error_within_a_burst_wakes_nobody_for_long(addresses: [IpAddr; 3]) {
    const TRIES: usize = 20;
    let mut tries = (0..TRIES).map(|_| an_error_cuts_a_burst_short(addresses));
    let is_cut = tries.any(|is_cut| {
        std::thread::sleep(Duration::from_millis(if is_cut { 0 } else { 100 }));
        is_cut
    });
    assert!(is_cut, "the error ends the call that sends both");
}

/// Whether the error came within the burst.
fn an_error_cuts_a_burst_short([from, to, nobody]: [IpAddr; 3]) -> bool {
    let (mut a, b) = pair_at([from, to], |_| {});
    let to_b = path(&a, &b);
    let nowhere = Path {
        dst: nobody,
        ..to_b
    };
    commit(&mut a, &nowhere, 7, 100).unwrap();
    commit(&mut a, &to_b, 7, 100).unwrap();
    a.flush().unwrap();
    let counters = a.counters();
    assert_eq!(counters.sent, 2);
    if counters.send_calls == 1 {
        return false;
    }
    assert_eq!(wakes(&a), libc::POLLERR, "the error waits to be read");
    let event = told(&mut a);
    let Some(PortEvent::Refused { dst, .. }) = event else {
        assert_eq!(wakes(&a), 0, "nothing is left to wake for");
        return false;
    };
    assert_eq!((dst, wakes(&a)), (nobody, 0), "nothing is left to wake for");
    true
}

#[test]
fn an_error_within_a_burst_wakes_nobody_for_long_over_ipv4() {
    let nobody = Ipv4Addr::new(127, 0, 0, 99).into();
    an_error_within_a_burst_wakes_nobody_for_long([A, B, nobody]);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn an_error_within_a_burst_wakes_nobody_for_long_over_ipv6() {
    beside_a_neighbour(|_| {
        let addresses = ["fd09::a", "fd09::b", "fd09::c"];
        for address in addresses {
            ip(&format!("address add {address}/128 dev lo"));
        }
        an_error_within_a_burst_wakes_nobody_for_long(addresses.map(|it| it.parse().unwrap()));
    });
}
