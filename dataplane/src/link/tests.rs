//! Ports that have their interface to themselves, joined by a cable.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod cable;
mod frames;
mod joined;
mod silent;

use super::*;
use crate::neighbours::Interface;
use crate::port::{Arrival, Identification, Quoted};
use crate::udp::InterfaceName;
use cable::Cable;
use trunkline_wire::{Frame, IcrcSeed, IpFields, Mac, ROCE_PORT};

const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
const FAMILIES: [[&str; 2]; 2] = [["10.9.0.1", "10.9.0.2"], ["fd09::1", "fd09::2"]];

type Alone = LinkPort<Cable>;

fn interface(mac: Mac, address: IpAddr) -> Interface {
    Interface {
        mac,
        address,
        prefix: if address.is_ipv4() { 24 } else { 64 },
        gateway: None,
        mtu: 4200,
    }
}

fn open(interface: Interface, cable: Cable) -> Alone {
    let at = LinkAddress::alone(interface, InterfaceName::new(b"cable"), 1).unwrap();
    LinkPort::new(&at, cable, &LinkConfig::default()).unwrap()
}

fn pair(addresses: [&str; 2]) -> [Alone; 2] {
    let [east, west] = addresses.map(|address| address.parse().unwrap());
    let cables = Cable::pair();
    let [one, other] = cables;
    [
        open(interface(MACS[0], east), one),
        open(interface(MACS[1], west), other),
    ]
}

fn path(from: &Alone, to: IpAddr) -> Path {
    Path {
        src: from.address,
        dst: to,
        src_port: ROCE_PORT,
        traffic_class: 2,
        ip: IpFields::DEFAULT,
    }
}

/// Sends one datagram, and says whether the port had room.
fn send(port: &mut Alone, to: IpAddr, datagram: &[u8]) -> bool {
    let path = path(port, to);
    let Some(slot) = port.reserve(&path, datagram.len()) else {
        return false;
    };
    slot.datagram.copy_from_slice(datagram);
    port.commit();
    port.flush().unwrap();
    true
}

fn receive(port: &mut Alone) -> Vec<(Arrival, Vec<u8>)> {
    let mut all = Vec::new();
    port.receive(usize::MAX, &mut |arrival, datagram| {
        all.push((*arrival, datagram.to_vec()));
    })
    .unwrap();
    all
}

/// They know each other's addresses of the link.
fn meet([one, other]: &mut [Alone; 2]) {
    let start = Instant::now();
    let (to_other, to_one) = (other.address, one.address);
    let (mut there, mut back) = (false, false);
    while !(there && back) {
        assert!(start.elapsed() < Duration::from_secs(5), "they do not meet");
        send(one, to_other, &[1; 64]);
        send(other, to_one, &[2; 64]);
        there |= !receive(other).is_empty();
        back |= !receive(one).is_empty();
    }
    std::thread::sleep(Duration::from_millis(3));
    receive(one);
    receive(other);
}

#[test]
fn two_ports_find_each_other_and_carry_datagrams_of_all_lengths() {
    for addresses in FAMILIES {
        let mut ends = pair(addresses);
        meet(&mut ends);
        let [one, other] = &mut ends;
        for length in [16, 17, 255, 256, 1040, 4152] {
            let path = path(one, other.address);
            let mut datagram: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
            IcrcSeed::new(&path).seal(0, &mut datagram);
            assert!(send(one, other.address, &datagram));
            let got = receive(other);
            assert_eq!(got.len(), 1, "{length}");
            let (arrival, bytes) = &got[0];
            assert_eq!((bytes, arrival.path), (&datagram, path));
            assert_eq!(arrival.identification, Identification::Seen(0));
        }
        let [here, there] = [one.counters(), other.counters()];
        assert_eq!((here.malformed, there.malformed), (0, 0));
        assert_eq!((here.foreign, there.foreign), (0, 0));
    }
}

#[test]
fn what_is_sent_before_a_neighbour_has_answered_arrives_before_what_is_sent_then() {
    for addresses in FAMILIES {
        let [mut one, mut other] = pair(addresses);
        let numbered = |number: usize| vec![number as u8; 64];
        let (start, mut sent, mut got) = (Instant::now(), 0, Vec::new());
        // It answers a while later.
        while start.elapsed() < Duration::from_millis(5) {
            assert!(sent == 40 || send(&mut one, other.address, &numbered(sent)));
            sent = (sent + 1).min(40);
            receive(&mut one);
        }
        assert_eq!(one.counters().sent_bytes, 0);
        while got.len() < 60 {
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "{} came",
                got.len()
            );
            got.extend(receive(&mut other));
            other.flush().unwrap();
            receive(&mut one);
            if sent < 60 {
                assert!(send(&mut one, other.address, &numbered(sent)));
                sent += 1;
            }
            one.flush().unwrap();
        }
        let in_order =
            |(number, (_, bytes)): (usize, &(Arrival, Vec<u8>))| *bytes == numbered(number);
        assert!(got.iter().enumerate().all(in_order));
        assert_eq!(one.counters().unreachable, 0);
    }
}

#[test]
fn what_is_sent_to_a_silent_neighbour_is_counted_once_and_told_of() {
    let [mut one, other] = pair(FAMILIES[0]);
    for _ in 0..100 {
        assert!(send(&mut one, other.address, &[7; 64]));
    }
    assert_eq!(one.counters().unreachable, 100 - 64, "few are held");
    let start = Instant::now();
    while one.counters().unreachable < 100 {
        assert!(start.elapsed() < Duration::from_secs(10));
        receive(&mut one);
        one.flush().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let told = PortEvent::Unsent {
        dst: other.address,
        error: Errno::new(libc::EHOSTUNREACH),
    };
    assert_eq!((one.poll_event(), one.poll_event()), (Some(told), None));
}

#[test]
fn packets_to_other_networks_go_by_the_gateway_and_without_one_nowhere() {
    let far: IpAddr = "192.0.2.9".parse().unwrap();
    let [east, west]: [IpAddr; 2] = FAMILIES[0].map(|address| address.parse().unwrap());
    for gateway in [Some(west), None] {
        let [one, other] = Cable::pair();
        let east = Interface {
            gateway,
            ..interface(MACS[0], east)
        };
        let mut ends = [open(east, one), open(interface(MACS[1], west), other)];
        meet(&mut ends);
        let [one, other] = &mut ends;
        let dropped = one.counters().unreachable;
        assert!(send(one, far, &[7; 64]));
        let frame = other.device.take();
        match gateway {
            Some(_) => {
                let frame = frame.expect("it goes to the gateway");
                let frame = Frame::parse(&frame).unwrap();
                let roce = frame.roce().unwrap();
                assert_eq!((frame.eth.dst, roce.path.dst), (MACS[1], far));
            }
            None => {
                assert_eq!(frame, None);
                let error = Errno::new(libc::ENETUNREACH);
                let event = PortEvent::Unsent { dst: far, error };
                assert_eq!(one.poll_event(), Some(event));
                assert_eq!(one.counters().unreachable, dropped + 1);
            }
        }
    }
}

/// An ICMP error to the first end, which quotes `quoted`.
fn icmp_error([to, from]: [IpAddr; 2], kind: [u8; 2], mtu: u32, quoted: &[u8]) -> Vec<u8> {
    let v4 = to.is_ipv4();
    let mut message = vec![kind[0], kind[1], 0, 0, 0, 0, 0, 0];
    match v4 {
        true => message[6..8].copy_from_slice(&(mtu as u16).to_be_bytes()),
        false => message[4..8].copy_from_slice(&mtu.to_be_bytes()),
    }
    message.extend_from_slice(quoted);
    // The frame of a datagram has the headers; what is behind UDP's becomes the message.
    let path = Path {
        src: from,
        dst: to,
        src_port: ROCE_PORT,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    };
    let content = vec![0; message.len() - 8];
    let frame = Frame::for_datagram(MACS[0], MACS[1], &path, 0, &content);
    let mut bytes = vec![0; frame.length()];
    frame.emit(&mut bytes);
    let ip = if v4 { 20 } else { 40 };
    let mut sum = InternetSum::default();
    if v4 {
        bytes[14 + 9] = 1;
        bytes[14 + 10..14 + 12].fill(0);
        let header = !InternetSum::default().with(&bytes[14..34]).folded();
        bytes[14 + 10..14 + 12].copy_from_slice(&header.to_be_bytes());
    } else {
        bytes[14 + 6] = 58;
        sum = sum.with(&bytes[14 + 8..14 + 40]);
        sum = sum.with(&(message.len() as u32).to_be_bytes());
        sum = sum.with(&[0, 0, 0, 58]);
    }
    let sum = !sum.with(&message).folded();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    bytes[14 + ip..].copy_from_slice(&message);
    bytes
}

#[test]
fn that_nobody_listens_is_told_if_it_quotes_what_was_sent_and_is_whole() {
    for addresses in FAMILIES {
        let mut ends = pair(addresses);
        meet(&mut ends);
        let [one, other] = &mut ends;
        let (here, there) = (one.address, other.address);
        let (closed, too_long) = match here.is_ipv4() {
            true => ([3, 3], [3, 4]),
            false => ([1, 4], [2, 0]),
        };
        let datagram: Vec<u8> = (0..1000).map(|at| at as u8).collect();
        assert!(send(one, there, &datagram));
        let frame = other.device.take().unwrap();
        let quoted = &frame[14..14 + 100];
        let header = headers(here) - 14;
        let error = |kind, mtu, quoted: &[u8]| icmp_error([here, there], kind, mtu, quoted);
        let mut told = |frame: Vec<u8>| {
            other.device.put(&frame);
            assert!(receive(one).is_empty());
            one.poll_event()
        };
        let quote = Quoted::new(&quoted[header..]);
        let refused = PortEvent::Refused { dst: there, quote };
        assert_eq!(told(error(closed, 0, quoted)), Some(refused));
        // Anybody could make all packets small.
        for mtu in [0, 68, 600, 1000 + header as u32 - 1] {
            assert_eq!(told(error(too_long, mtu, quoted)), None, "not believed");
        }

        let mut broken = error(closed, 0, quoted);
        *broken.last_mut().unwrap() ^= 1;
        assert_eq!(told(broken), None, "its checksum is wrong");
        let mut tagged = error(closed, 0, quoted);
        tagged[5] ^= 1;
        assert_eq!(told(tagged), None, "it is for another host of the link");
        let source = if here.is_ipv4() { 12 } else { 8 };
        for (what, at) in [("source", source), ("port", header - 5), ("version", 0)] {
            let mut quoted = quoted.to_vec();
            quoted[at] ^= 0x10;
            assert_eq!(told(error(closed, 0, &quoted)), None, "another {what}");
        }
        for length in 0..header {
            assert_eq!(told(error(closed, 0, &quoted[..length])), None, "{length}");
        }
        let quote = Quoted::new(&[]);
        let bare = PortEvent::Refused { dst: there, quote };
        assert_eq!(told(error(closed, 0, &quoted[..header])), Some(bare));
    }
}

/// Whoever floods a port with them costs it no memory.
#[test]
fn of_errors_that_nobody_asks_for_the_first_are_kept() {
    let mut ends = pair(FAMILIES[0]);
    meet(&mut ends);
    let [one, other] = &mut ends;
    let (here, there) = (one.address, other.address);
    assert!(send(one, there, &[7; 64]));
    let frame = other.device.take().unwrap();
    let mut number = 0_u32;
    let mut flood = |one: &mut Alone| {
        let numbers = number..number + 2 * EVENTS as u32;
        number = numbers.end;
        for number in numbers.clone() {
            let quoted = [&frame[14..42], &number.to_be_bytes()].concat();
            let error = icmp_error([here, there], [3, 3], 0, &quoted);
            other.device.put(&error);
        }
        assert!(receive(one).is_empty());
        numbers.take(EVENTS).map(|number| PortEvent::Refused {
            dst: there,
            quote: Quoted::new(&number.to_be_bytes()),
        })
    };
    // And there is room again, once they are asked for.
    for _ in 0..2 {
        let first = flood(one);
        assert!(std::iter::from_fn(|| one.poll_event()).eq(first));
    }
}

#[test]
fn frames_for_others_and_broken_ones_are_counted_and_move_nothing() {
    for addresses in FAMILIES {
        let mut ends = pair(addresses);
        meet(&mut ends);
        let [one, other] = &mut ends;
        let there = other.address;
        assert!(send(one, there, &[3; 200]));
        let good = other.device.take().unwrap();
        let changed = |at: usize, by: u8| {
            let mut frame = good.clone();
            frame[at] ^= by;
            frame
        };
        let udp = headers(there) - 8;
        let mut foreign = vec![
            ("of another host of the link", changed(5, 1)),
            ("of another type", changed(12, 0x70)),
            ("for another port", changed(udp + 3, 1)),
            ("a few bytes", vec![1; 9]),
        ];
        let mut malformed = vec![
            ("of another length", changed(udp + 5, 8)),
            ("cut", good[..good.len() - 3].to_vec()),
        ];
        // Only IPv4 sums its header.
        match there.is_ipv4() {
            true => malformed.push(("whose header is damaged", changed(33, 0x40))),
            false => foreign.push(("for another address", changed(53, 0x40))),
        }
        let before = other.counters();
        for (what, frame) in foreign.iter().chain(&malformed) {
            one.device.put(frame);
            assert!(receive(other).is_empty(), "{what}");
        }
        let after = other.counters();
        let count = |of: fn(&PortCounters) -> u64| of(&after) - of(&before);
        assert_eq!(count(|all| all.foreign), foreign.len() as u64);
        assert_eq!(count(|all| all.malformed), malformed.len() as u64);
        one.device.put(&good);
        assert_eq!(receive(other).len(), 1);
    }
}

#[test]
fn a_flood_of_questions_and_claims_holds_up_nothing_and_leads_nobody_astray() {
    let mut ends = pair(FAMILIES[0]);
    meet(&mut ends);
    let [one, other] = &mut ends;
    let (here, there) = (one.address, other.address);
    let [IpAddr::V4(ours), IpAddr::V4(theirs)] = [there, here] else {
        unreachable!()
    };
    let arp = |operation: u8, mac: [u8; 6], from: [u8; 4]| {
        let mut frame = [0xff; 6].to_vec();
        frame.extend_from_slice(&mac);
        frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
        frame.extend_from_slice(&mac);
        frame.extend_from_slice(&from);
        frame.extend_from_slice(&[0; 6]);
        frame.extend_from_slice(&ours.octets());
        frame
    };
    for number in 0..20_000_u32 {
        let [_, _, high, low] = number.to_be_bytes();
        one.device
            .put(&arp(1, [6, 6, 6, 6, high, low], [10, 9, high, low]));
        one.device.put(&arp(2, [6, 6, 6, 6, 6, 6], theirs.octets()));
        if number % 64 == 0 {
            assert!(receive(other).is_empty());
        }
    }
    receive(other);
    // Who answers to none of our questions does not get what is for a neighbour that is known.
    one.device.clear();
    other.device.clear();
    assert!(send(other, here, &[5; 64]));
    let frames: Vec<_> = std::iter::from_fn(|| one.device.take()).collect();
    let to: Vec<_> = frames
        .iter()
        .map(|frame| Frame::parse(frame).unwrap())
        .filter(|frame| frame.roce().is_some())
        .map(|frame| frame.eth.dst)
        .collect();
    assert_eq!(to, [MACS[0]]);
    assert!(frames.len() < 1000, "{} answers", frames.len());
}

#[test]
fn what_a_device_missed_is_counted() {
    let [mut one, _other] = pair(FAMILIES[0]);
    one.device.missed = 7;
    std::thread::sleep(COUNT + Duration::from_millis(5));
    receive(&mut one);
    assert_eq!(one.counters().missed, 7);
}

#[test]
fn an_address_that_is_not_of_one_host_is_refused() {
    for address in [
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "127.0.0.1",
        "::",
        "ff02::1",
    ] {
        let interface = interface(MACS[0], address.parse().unwrap());
        let refused = LinkAddress::alone(interface, InterfaceName::new(b"cable"), 1);
        let error = refused.expect_err(address).to_string();
        assert!(error.contains("one host"), "{error}");
    }
}

/// Hosts drop what has none (RFC 8200, 8.1).
#[test]
fn a_checksum_that_comes_to_nothing_is_sent_as_ones_over_ipv6() {
    let mut ends = pair(FAMILIES[1]);
    meet(&mut ends);
    let [one, other] = &mut ends;
    let (to, at) = (other.address, headers(other.address) - 2);
    let mut datagram = [0; 64];
    let mut sum = |datagram: &[u8]| -> [u8; 2] {
        assert!(send(one, to, datagram));
        let frame = other.device.take().unwrap();
        frame[at..at + 2].try_into().unwrap()
    };
    // What the sum lacks.
    let lacks = sum(&datagram);
    datagram[10..12].copy_from_slice(&lacks);
    assert_eq!(sum(&datagram), [0xff; 2]);
}

#[test]
fn what_does_not_begin_here_leads_nowhere() {
    for (addresses, foreign) in FAMILIES.into_iter().zip(["10.9.0.7", "fd09::7"]) {
        let mut ends = pair(addresses);
        meet(&mut ends);
        let [one, other] = &mut ends;
        let path = Path {
            src: foreign.parse().unwrap(),
            ..path(one, other.address)
        };
        one.reserve(&path, 64).unwrap();
        one.commit();
        one.flush().unwrap();
        assert_eq!((one.counters().misrouted, other.device.take()), (1, None));
    }
}
