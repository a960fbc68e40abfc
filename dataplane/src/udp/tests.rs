#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::port::Identification;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use trunkline_wire::{IpFields, Workers, icrc};

mod errors;
mod group;
mod ip_fields;

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));

fn config(address: IpAddr, port: u16) -> UdpConfig {
    UdpConfig {
        port,
        burst_bytes: 256 << 10,
        ..UdpConfig::new(address)
    }
}

/// Two ports that share a port number nobody else has.
fn pair(change: impl Fn(&mut UdpConfig)) -> (UdpPort, UdpPort) {
    pair_at([A, B], change)
}

/// The same at these addresses.
fn pair_at(addresses: [IpAddr; 2], change: impl Fn(&mut UdpConfig)) -> (UdpPort, UdpPort) {
    let [at_a, at_b] = addresses;
    let open = |address, port| {
        let mut config = config(address, port);
        change(&mut config);
        UdpPort::open(&config)
    };
    for _ in 0..10 {
        let a = open(at_a, 0).unwrap();
        if let Ok(b) = open(at_b, a.local().port()) {
            return (a, b);
        }
    }
    panic!("no port number is free on both addresses");
}

#[test]
fn a_port_has_the_address_of_one_host() {
    for address in ["127.255.255.255", "255.255.255.255", "224.0.0.1", "ff02::1"] {
        let address = address.parse().unwrap();
        for workers in [1, 2] {
            let workers = Workers::new(workers).unwrap();
            let error = UdpPort::open_group(&config(address, 0), workers).unwrap_err();
            let refused =
                matches!(error, UdpOpenError::NotOneHost { address: it } if it == address);
            assert!(refused, "{error}");
        }
        let error = UdpPort::open(&config(address, 0)).unwrap_err();
        assert!(
            error.to_string().starts_with(&address.to_string()),
            "{error}"
        );
    }
}

fn path(from: &UdpPort, to: &UdpPort) -> Path {
    let (src, dst) = (from.local().ip(), to.local().ip());
    Path {
        src,
        dst,
        src_port: from.local().port(),
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    }
}

/// Commits a datagram whose bytes begin with `tag`, with the right ICRC.
fn commit(port: &mut UdpPort, path: &Path, tag: u8, length: usize) -> Option<u16> {
    let slot = port.reserve(path, length)?;
    slot.datagram.fill(tag);
    icrc::seal(path, slot.identification, slot.datagram);
    let identification = slot.identification;
    port.commit();
    Some(identification)
}

/// Receives until `count` datagrams came or a second passed; every ICRC must hold for the
/// identification the port predicts.
fn receive(port: &mut UdpPort, count: usize) -> Vec<(Arrival, Vec<u8>)> {
    let mut got = Vec::new();
    let end = Instant::now() + Duration::from_secs(1);
    while got.len() < count && Instant::now() < end {
        port.receive(count - got.len(), &mut |arrival, bytes| {
            got.push((*arrival, bytes.to_vec()));
        })
        .unwrap();
    }
    for (arrival, bytes) in &got {
        let identification = arrival.identification.guess();
        assert!(
            icrc::verify(&arrival.path, identification, bytes),
            "{arrival:?}"
        );
    }
    got
}

fn shape(got: &[(Arrival, Vec<u8>)]) -> Vec<(u8, usize)> {
    got.iter()
        .map(|(_, bytes)| (bytes[0], bytes.len()))
        .collect()
}

#[test]
fn datagrams_of_one_length_travel_as_one_super_packet_with_rising_identifications() {
    let (mut a, mut b) = pair(|_| {});
    assert!(a.capabilities().super_packets && b.capabilities().coalesced_receive);
    let path = path(&a, &b);
    for i in 0..10 {
        assert_eq!(commit(&mut a, &path, i, 1000), Some(u16::from(i)));
    }
    assert_eq!(
        commit(&mut a, &path, 10, 600),
        Some(10),
        "the last one may be shorter"
    );
    assert_eq!(
        commit(&mut a, &path, 11, 600),
        Some(0),
        "nothing goes behind a shorter one"
    );
    a.flush().unwrap();
    let got = receive(&mut b, 12);
    let expected: Vec<_> = (0..12)
        .map(|i| (i, if i < 10 { 1000 } else { 600 }))
        .collect();
    assert_eq!(shape(&got), expected);
    let identifications: Vec<_> = got
        .iter()
        .map(|(arrival, _)| arrival.identification)
        .collect();
    let predicted = |i: u16| Identification::Predicted(i % 11);
    assert_eq!(identifications, (0..12).map(predicted).collect::<Vec<_>>());
    assert!(
        got.iter()
            .all(|(arrival, _)| arrival.path == path && !arrival.ce)
    );
    let (sent, received) = (a.counters(), b.counters());
    assert_eq!(
        (sent.sent, sent.super_packets_sent, sent.send_calls),
        (12, 1, 1)
    );
    assert_eq!(
        (received.received, received.super_packets_received),
        (12, 1)
    );
    assert_eq!(sent.sent_bytes, 11_200);
    assert_eq!(received.received_bytes, 11_200);
}

#[test]
fn super_packets_end_at_64_datagrams_and_at_65507_bytes() {
    let (mut a, mut b) = pair(|_| {});
    let path = path(&a, &b);
    for i in 0..65 {
        assert_eq!(commit(&mut a, &path, i, 64), Some(u16::from(i) % 64));
    }
    a.flush().unwrap();
    assert_eq!(receive(&mut b, 65).len(), 65);
    for i in 0..9 {
        assert_eq!(
            commit(&mut a, &path, i, 9000),
            Some(u16::from(i) % 7),
            "7 x 9000 < 65507"
        );
    }
    a.flush().unwrap();
    assert_eq!(receive(&mut b, 9).len(), 9);
    assert_eq!(a.counters().super_packets_sent, 1 + 2);
}

#[test]
fn another_path_begins_another_message() {
    let (mut a, mut b) = pair(|config| config.extra_source_ports = 2);
    let ports = a.source_ports().to_vec();
    assert_eq!(ports.len(), 3);
    let path = path(&a, &b);
    assert_eq!(ports[0], path.src_port);
    for (i, src_port) in (0..).zip(ports.iter().cycle().take(9)) {
        assert_eq!(
            commit(
                &mut a,
                &Path {
                    src_port: *src_port,
                    ..path
                },
                i,
                100
            ),
            Some(0)
        );
    }
    a.flush().unwrap();
    let mut got = receive(&mut b, 9);
    assert_eq!(got.len(), 9);
    got.sort_by_key(|(_, bytes)| bytes[0]);
    for (i, (arrival, bytes)) in got.iter().enumerate() {
        assert_eq!(
            (bytes[0] as usize, arrival.path.src_port),
            (i, ports[i % 3])
        );
    }
}

#[test]
fn traffic_class_and_congestion_mark_arrive() {
    let (mut a, mut b) = pair(|_| {});
    let path = path(&a, &b);
    for (i, traffic_class) in (0..).zip([0, 0x02, 0xb8, 0xbb]) {
        commit(
            &mut a,
            &Path {
                traffic_class,
                ..path
            },
            i,
            100,
        )
        .unwrap();
    }
    a.flush().unwrap();
    let got = receive(&mut b, 4);
    let seen = got
        .iter()
        .map(|(arrival, _)| (arrival.path.traffic_class, arrival.ce));
    assert_eq!(
        seen.collect::<Vec<_>>(),
        [(0, false), (2, false), (0xb8, false), (0xbb, true)]
    );
}

#[test]
fn without_offloads_datagrams_travel_one_by_one() {
    let (mut a, mut b) = pair(|config| (config.segmentation, config.coalescing) = (false, false));
    let capabilities = a.capabilities();
    assert!(!capabilities.super_packets && !capabilities.coalesced_receive);
    let path = path(&a, &b);
    for i in 0..100 {
        assert_eq!(commit(&mut a, &path, i, 500), Some(0));
    }
    a.flush().unwrap();
    let got = receive(&mut b, 100);
    assert_eq!(shape(&got), (0..100).map(|i| (i, 500)).collect::<Vec<_>>());
    assert_eq!(a.counters().send_calls, 4, "32 messages per call");
    assert_eq!(b.counters().super_packets_received, 0);
}

#[test]
fn a_super_packet_is_cut_up_by_a_receiver_that_does_not_coalesce() {
    let (mut a, mut b) = pair(|config| config.coalescing = false);
    let path = path(&a, &b);
    for i in 0..5 {
        assert_eq!(commit(&mut a, &path, i, 500), Some(u16::from(i)));
    }
    a.flush().unwrap();
    let mut got = Vec::new();
    let end = Instant::now() + Duration::from_secs(1);
    while got.len() < 5 && Instant::now() < end {
        b.receive(5, &mut |arrival, bytes| {
            got.push((*arrival, bytes.to_vec()))
        })
        .unwrap();
    }
    let solved = got
        .iter()
        .map(|(arrival, bytes)| icrc::solve_identification(&arrival.path, bytes));
    assert_eq!(
        solved.collect::<Vec<_>>(),
        [Some(0), Some(1), Some(2), Some(3), Some(4)]
    );
}

#[test]
fn a_ping_pong_takes_one_call_per_direction() {
    let (mut a, mut b) = pair(|_| {});
    let (there, back) = (path(&a, &b), path(&b, &a));
    for i in 0..10 {
        commit(&mut a, &there, i, 64).unwrap();
        a.flush().unwrap();
        assert_eq!(receive(&mut b, 1).len(), 1);
        commit(&mut b, &back, i, 64).unwrap();
        b.flush().unwrap();
        assert_eq!(receive(&mut a, 1).len(), 1);
    }
    for port in [&a, &b] {
        let counters = port.counters();
        assert_eq!((counters.send_calls, counters.receive_calls), (10, 10));
    }
}

#[test]
fn a_limit_splits_a_super_packet_without_loss() {
    let (mut a, mut b) = pair(|_| {});
    let path = path(&a, &b);
    for i in 0..50 {
        commit(&mut a, &path, i, 300).unwrap();
    }
    a.flush().unwrap();
    let mut got = Vec::new();
    while got.len() < 50 {
        let piece = receive(&mut b, 7.min(50 - got.len()));
        assert!(!piece.is_empty(), "{} of 50 arrived", got.len());
        got.extend(piece);
    }
    assert_eq!(shape(&got), (0..50).map(|i| (i, 300)).collect::<Vec<_>>());
    assert_eq!(b.counters().super_packets_received, 1);
}

#[test]
fn a_burst_that_fills_the_queue_is_refused_until_it_is_flushed() {
    let (mut a, b) = pair(|_| {});
    let path = path(&a, &b);
    let mut count = 0u64;
    while commit(&mut a, &path, 1, 9000).is_some() {
        count += 1;
    }
    assert!(
        (20..=29).contains(&count),
        "{count} datagrams of 9000 bytes in 256 KiB"
    );
    a.flush().unwrap();
    assert_eq!(a.counters().sent, count);
    assert!(commit(&mut a, &path, 1, 9000).is_some());
}

#[test]
fn a_refused_super_packet_is_sent_as_single_datagrams_with_right_icrcs() {
    let (mut a, mut b) = pair(|_| {});
    let path = path(&a, &b);
    for i in 0..8 {
        assert_eq!(commit(&mut a, &path, i, 700), Some(u16::from(i)));
    }
    assert!(a.refused(io::Error::from_raw_os_error(libc::EIO)).unwrap());
    a.flush().unwrap();
    let got = receive(&mut b, 8);
    assert_eq!(shape(&got), (0..8).map(|i| (i, 700)).collect::<Vec<_>>());
    assert!(
        got.iter()
            .all(|(arrival, _)| arrival.identification == Identification::Predicted(0))
    );
    assert_eq!(a.counters().split, 1);
    assert!(
        !a.capabilities().super_packets,
        "the pieces went, so it was the super-packet"
    );
    assert_eq!(commit(&mut a, &path, 0, 700), Some(0));
    assert_eq!(commit(&mut a, &path, 0, 700), Some(0));
}

#[test]
fn a_short_datagram_behind_those_that_became_too_long_says_nothing_of_super_packets() {
    let (mut a, b) = pair(|_| {});
    let path = path(&a, &b);
    let too_long = || io::Error::from_raw_os_error(libc::EMSGSIZE);
    for length in [700, 700, 300] {
        commit(&mut a, &path, 0, length).unwrap();
    }
    for _ in 0..3 {
        // The unit, and then both long ones.
        assert!(a.refused(too_long()).unwrap());
    }
    a.flush().unwrap();
    let counters = a.counters();
    assert_eq!((counters.sent, counters.too_long), (1, 2));
    assert!(a.capabilities().super_packets);
}

#[test]
fn what_the_machine_refuses_to_send_is_told_once_until_somebody_has_read_it() {
    let (mut a, b) = pair(|_| {});
    let path = path(&a, &b);
    let dst = path.dst;
    let unsent = |code| PortEvent::Unsent {
        dst,
        error: Errno::new(code),
    };
    for _ in 0..2 {
        for _ in 0..2 * EVENTS {
            for code in [libc::EPERM, libc::ENETUNREACH, libc::ECONNREFUSED] {
                commit(&mut a, &path, 0, 100).unwrap();
                assert!(a.refused(io::Error::from_raw_os_error(code)).unwrap());
            }
        }
        let told: Vec<_> = std::iter::from_fn(|| a.poll_event()).collect();
        assert_eq!(told, [unsent(libc::EPERM), unsent(libc::ENETUNREACH)]);
    }
    let text = Errno::new(libc::EPERM).to_string();
    assert!(text.starts_with("Operation not permitted"), "{text}");
}

#[test]
fn refusals_of_single_datagrams_are_counted_by_reason_and_never_fatal() {
    let (mut a, b) = pair(|_| {});
    let path = path(&a, &b);
    let mut refuse = |errno| {
        commit(&mut a, &path, 0, 100).unwrap();
        let going_on = a.refused(io::Error::from_raw_os_error(errno)).unwrap();
        let counters = a.counters();
        a.queue.advance(a.queue.waiting().len());
        (going_on, counters)
    };
    assert_eq!(refuse(libc::EMSGSIZE).1.too_long, 1);
    for _ in 0..2 * EVENTS {
        refuse(libc::EMSGSIZE);
    }
    assert_eq!(refuse(libc::ENOBUFS).1.no_buffers, 1);
    assert_eq!(refuse(libc::ECONNREFUSED).1.unreachable, 1);
    assert_eq!(refuse(libc::EHOSTUNREACH).1.unreachable, 2);
    assert_eq!(refuse(libc::EPERM).1.refused, 1);
    let (going_on, counters) = refuse(libc::EAGAIN);
    assert!(!going_on);
    assert_eq!((counters.full, counters.sent, counters.split), (1, 0, 0));
    let (dst, length) = (path.dst, 100);
    let told: Vec<_> = std::iter::from_fn(|| a.poll_event()).collect();
    assert_eq!(told, [PortEvent::TooLong { dst, length }; EVENTS]);
    commit(&mut a, &path, 0, 100).unwrap();
    assert!(
        a.refused(io::Error::from_raw_os_error(libc::EBADF))
            .is_err()
    );
}

#[test]
fn paths_that_do_not_start_here_are_dropped_and_counted() {
    let (mut a, mut b) = pair(|_| {});
    let path = path(&a, &b);
    let foreign = [
        Path {
            src: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9)),
            ..path
        },
        Path {
            src_port: 1,
            ..path
        },
        Path {
            dst: IpAddr::V6(Ipv6Addr::LOCALHOST),
            ..path
        },
    ];
    for path in foreign {
        let slot = a.reserve(&path, 100).unwrap();
        slot.datagram.fill(0);
        a.commit();
    }
    commit(&mut a, &path, 7, 100).unwrap();
    a.flush().unwrap();
    assert_eq!(shape(&receive(&mut b, 1)), [(7, 100)]);
    let counters = a.counters();
    assert_eq!((counters.misrouted, counters.sent), (3, 1));
}

#[test]
fn no_datagram_is_longer_than_an_ip_packet() {
    let (mut a, b) = pair(|_| {});
    let path = path(&a, &b);
    assert_eq!(
        a.capabilities().max_datagram,
        MAX_SEND,
        "loopback has an MTU of 64 KiB"
    );
    assert!(a.reserve(&path, MAX_SEND + 1).is_none());
    assert!(a.reserve(&path, 0).is_none());
    assert!(a.reserve(&path, MAX_SEND).is_some());
}

#[test]
fn the_longest_datagram_arrives() {
    let (mut a, mut b) = pair(|_| {});
    let path = path(&a, &b);
    commit(&mut a, &path, 3, MAX_SEND).unwrap();
    a.flush().unwrap();
    assert_eq!(shape(&receive(&mut b, 1)), [(3, MAX_SEND)]);
}

#[test]
fn an_empty_datagram_is_dropped_and_counted() {
    let (mut a, mut b) = pair(|_| ());
    let stranger = std::net::UdpSocket::bind((A, 0)).unwrap();
    stranger.send_to(&[], b.local()).unwrap();
    let path = path(&a, &b);
    commit(&mut a, &path, 7, 100);
    a.flush().unwrap();
    assert_eq!(shape(&receive(&mut b, 1)), [(7, 100)]);
    assert_eq!((b.counters().malformed, b.counters().received), (1, 1));
}

#[test]
fn a_port_on_all_addresses_answers_from_the_one_it_was_asked_on() {
    let config = config(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let mut port = UdpPort::open(&config).unwrap();
    let out = Path {
        src: A,
        dst: B,
        src_port: port.local().port(),
        traffic_class: 0x20,
        ip: IpFields::DEFAULT,
    };
    commit(&mut port, &out, 1, 64).unwrap();
    port.flush().unwrap();
    let got = receive(&mut port, 1);
    assert_eq!(got.len(), 1);
    assert_eq!(
        got[0].0.path, out,
        "source and destination are those of the packet"
    );
}

#[test]
fn ipv6_works_the_same() {
    let Ok(mut port) = UdpPort::open(&config(IpAddr::V6(Ipv6Addr::LOCALHOST), 0)) else {
        assert!(
            !std::path::Path::new("/proc/net/if_inet6").exists(),
            "IPv6 is there"
        );
        return;
    };
    let path = Path {
        traffic_class: 0xbb,
        ..path(&port, &port)
    };
    for i in 0..5 {
        assert_eq!(
            commit(&mut port, &path, i, 1000),
            Some(0),
            "IPv6 has no identification"
        );
    }
    port.flush().unwrap();
    let got = receive(&mut port, 5);
    assert_eq!(shape(&got), (0..5).map(|i| (i, 1000)).collect::<Vec<_>>());
    assert!(
        got.iter()
            .all(|(arrival, _)| arrival.path == path && arrival.ce)
    );
}

#[test]
fn a_taken_port_names_its_owner() {
    let a = UdpPort::open(&config(A, 0)).unwrap();
    let error = UdpPort::open(&config(A, a.local().port())).unwrap_err();
    let UdpOpenError::InUse { address, owner } = &error else {
        panic!("{error}")
    };
    assert_eq!(*address, a.local());
    assert_eq!(owner.pid, Some(std::process::id()));
    assert!(owner.name.is_some());
    let text = format!("{} is taken by this process", a.local());
    assert_eq!(error.to_string(), text);
    let name = owner.name.as_deref().unwrap_or_default();
    let another = Owner {
        pid: Some(1),
        ..owner.clone()
    };
    assert_eq!(another.to_string(), format!("process 1 ({name})"));
}

#[test]
fn an_address_of_another_machine_is_refused() {
    let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let error = UdpPort::open(&config(address, 0)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "192.0.2.1 is not an address of this machine"
    );
}

#[test]
fn configurations_out_of_range_name_the_field() {
    let error = UdpPort::open(&UdpConfig {
        burst_bytes: 1000,
        ..config(A, 0)
    })
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "burst_bytes is 1000, not in 131072 ..= 16777216"
    );
    let error = UdpPort::open(&UdpConfig {
        extra_source_ports: 65,
        ..config(A, 0)
    })
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "extra_source_ports is 65, not in 0 ..= 64"
    );
}

#[test]
fn the_descriptor_turns_readable_when_something_came() {
    let (mut a, b) = pair(|_| {});
    let path = path(&a, &b);
    let readable = |port: &UdpPort| {
        let fd = port.fd().unwrap().as_raw_fd();
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one `pollfd`.
        unsafe { libc::poll(&raw mut poll, 1, 100) == 1 }
    };
    assert!(!readable(&b));
    commit(&mut a, &path, 1, 64).unwrap();
    a.flush().unwrap();
    assert!(readable(&b));
}

#[test]
fn ports_may_move_to_another_thread() {
    fn moves<T: Send>() {}
    moves::<UdpPort>();
}

#[test]
fn datagrams_over_ipv6_need_no_udp_checksum() {
    let mut port = UdpPort::open(&config(Ipv6Addr::LOCALHOST.into(), 0)).unwrap();
    let sender = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::DGRAM, None).unwrap();
    let (level, option, value) = (libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_TX, 1i32);
    // SAFETY: the value is an `int`, and its size is given.
    let result = unsafe {
        let length = size_of::<i32>() as libc::socklen_t;
        libc::setsockopt(
            sender.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            length,
        )
    };
    assert_eq!(result, 0);
    let local = (Ipv6Addr::LOCALHOST, 0);
    sender
        .bind(&std::net::SocketAddr::from(local).into())
        .unwrap();
    let source = sender.local_addr().unwrap().as_socket().unwrap();
    let path = Path {
        src: source.ip(),
        dst: port.local().ip(),
        src_port: source.port(),
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    };
    let mut datagram = [7; 64];
    icrc::seal(&path, 0, &mut datagram);
    sender.send_to(&datagram, &port.local().into()).unwrap();
    assert_eq!(shape(&receive(&mut port, 1)), [(7, 64)]);
}
