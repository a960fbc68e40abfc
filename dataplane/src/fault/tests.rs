#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::{MemoryConfig, MemoryPort, UdpConfig, UdpPort};
use std::net::{IpAddr, Ipv4Addr};
use trunkline_wire::{IpFields, icrc};

fn path() -> Path {
    let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    Path {
        src: address(1),
        dst: address(2),
        src_port: 4791,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    }
}

/// A faulty port and a sound one behind it.
fn pair(seed: u64, direction: Direction, faults: Faults) -> (Fault<MemoryPort>, MemoryPort) {
    let (a, b) = MemoryPort::pair(MemoryConfig {
        slot_bytes: 256,
        slots: 4096,
    });
    let mut a = Fault::new(a, seed);
    a.set(direction, faults);
    (a, b)
}

fn send(port: &mut impl Port, number: u32) {
    let slot = port.reserve(&path(), 64).unwrap();
    slot.datagram.fill(0);
    slot.datagram[8..12].copy_from_slice(&number.to_be_bytes());
    icrc::seal(&path(), slot.identification, slot.datagram);
    port.commit();
}

/// Numbers of the datagrams received, with whether each ICRC is right.
fn receive(port: &mut impl Port) -> Vec<(u32, bool)> {
    let mut got = Vec::new();
    let count = port
        .receive(10_000, &mut |arrival, bytes| {
            let number = u32::from_be_bytes(*bytes[8..].first_chunk().unwrap());
            let identification = arrival.identification.guess();
            got.push((number, icrc::verify(&arrival.path, identification, bytes)));
        })
        .unwrap();
    assert_eq!(count, got.len());
    got
}

fn numbers(port: &mut impl Port) -> Vec<u32> {
    receive(port)
        .into_iter()
        .map(|(number, _)| number)
        .collect()
}

/// Sends 2,000 datagrams through a port with outbound faults.
fn outbound(seed: u64, faults: Faults) -> (Fault<MemoryPort>, MemoryPort, Vec<(u32, bool)>) {
    let (mut a, mut b) = pair(seed, Direction::Outbound, faults);
    for i in 0..2000 {
        send(&mut a, i);
    }
    a.flush().unwrap();
    let got = receive(&mut b);
    (a, b, got)
}

/// Receives 2,000 datagrams through a port with inbound faults.
fn inbound(seed: u64, faults: Faults) -> Vec<(u32, bool)> {
    let (mut a, mut b) = pair(seed, Direction::Inbound, faults);
    for i in 0..2000 {
        send(&mut b, i);
    }
    b.flush().unwrap();
    receive(&mut a)
}

const WILD: Faults = Faults {
    loss_ppm: 100_000,
    duplicate_ppm: 100_000,
    corrupt_ppm: 100_000,
    reorder_ppm: 100_000,
    reorder_packets: 5,
    reorder_hold_ns: 1000,
    delay_ns: 0,
    jitter_ns: 0,
};

#[test]
fn without_faults_everything_passes_in_order() {
    let expected: Vec<_> = (0..2000).map(|i| (i, true)).collect();
    assert_eq!(outbound(1, Faults::default()).2, expected);
    assert_eq!(inbound(1, Faults::default()), expected);
}

#[test]
fn equal_seeds_give_equal_faults_and_others_do_not() {
    assert_eq!(outbound(7, WILD).2, outbound(7, WILD).2);
    assert_eq!(inbound(7, WILD), inbound(7, WILD));
    assert_ne!(outbound(7, WILD).2, outbound(8, WILD).2);
    assert_ne!(
        outbound(7, WILD).2,
        inbound(7, WILD),
        "the directions are independent"
    );
}

#[test]
fn losses_come_about_as_often_as_told() {
    let (a, _, got) = outbound(
        1,
        Faults {
            loss_ppm: 100_000,
            ..Faults::default()
        },
    );
    let counters = a.fault_counters(Direction::Outbound);
    assert_eq!((counters.seen, counters.passed), (2000, got.len() as u64));
    assert_eq!(counters.lost, 2000 - counters.passed);
    assert!((150..250).contains(&counters.lost), "{counters:?}");
    assert!(got.is_sorted() && got.iter().all(|(_, right)| *right));
}

#[test]
fn duplicates_are_whole_and_side_by_side() {
    let (a, _, got) = outbound(
        1,
        Faults {
            duplicate_ppm: 100_000,
            ..Faults::default()
        },
    );
    let doubled = a.fault_counters(Direction::Outbound).duplicated as usize;
    assert!((150..250).contains(&doubled), "{doubled}");
    assert_eq!(got.len(), 2000 + doubled);
    assert!(got.is_sorted() && got.iter().all(|(_, right)| *right));
}

#[test]
fn damage_breaks_the_icrc() {
    for got in [
        outbound(
            1,
            Faults {
                corrupt_ppm: 100_000,
                ..Faults::default()
            },
        )
        .2,
        inbound(
            1,
            Faults {
                corrupt_ppm: 100_000,
                ..Faults::default()
            },
        ),
    ] {
        let wrong = got.iter().filter(|(_, right)| !right).count();
        // A few hit bits that the ICRC does not cover.
        assert!((140..250).contains(&wrong), "{wrong}");
        assert_eq!(got.len(), 2000);
    }
}

#[test]
fn reordered_datagrams_are_overtaken_by_as_many_as_told() {
    let faults = Faults {
        reorder_ppm: 50_000,
        reorder_packets: 3,
        ..Faults::default()
    };
    let (a, _, got) = outbound(1, faults);
    let reordered = a.fault_counters(Direction::Outbound).reordered;
    assert!((60..140).contains(&reordered), "{reordered}");
    assert!(!got.is_sorted());
    for (place, (number, right)) in (0_u32..).zip(&got) {
        // Several late ones may be under way together.
        assert!(
            number.abs_diff(place) <= 10 && *right,
            "{number} at {place}"
        );
    }
    let mut all: Vec<_> = got.iter().map(|(number, _)| *number).collect();
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..2000));
}

#[test]
fn a_reordered_datagram_that_nobody_overtakes_leaves_after_its_hold() {
    let faults = Faults {
        reorder_ppm: 1_000_000,
        reorder_packets: 1,
        reorder_hold_ns: 500,
        ..Faults::default()
    };
    let (mut a, mut b) = pair(1, Direction::Outbound, faults);
    send(&mut a, 1);
    a.flush().unwrap();
    assert_eq!(numbers(&mut b), []);
    assert_eq!(a.next_release(), Some(Instant::from_nanos(500)));
    a.advance(Instant::from_nanos(499));
    a.flush().unwrap();
    assert_eq!(numbers(&mut b), []);
    a.advance(Instant::from_nanos(500));
    a.flush().unwrap();
    assert_eq!(numbers(&mut b), [1]);
    assert_eq!(a.next_release(), None);
}

#[test]
fn delays_pass_in_both_directions() {
    let faults = Faults {
        delay_ns: 1000,
        ..Faults::default()
    };
    let (mut a, mut b) = pair(1, Direction::Outbound, faults);
    a.set(Direction::Inbound, faults);
    send(&mut a, 1);
    send(&mut a, 2);
    a.flush().unwrap();
    send(&mut b, 3);
    b.flush().unwrap();
    assert_eq!((numbers(&mut a), numbers(&mut b)), (vec![], vec![]));
    a.advance(Instant::from_nanos(400));
    send(&mut a, 4);
    a.advance(Instant::from_nanos(1000));
    a.advance(Instant::from_nanos(5));
    a.flush().unwrap();
    assert_eq!((numbers(&mut a), numbers(&mut b)), (vec![3], vec![1, 2]));
    assert_eq!(a.next_release(), Some(Instant::from_nanos(1400)));
    a.advance(Instant::from_nanos(1400));
    a.flush().unwrap();
    assert_eq!(numbers(&mut b), [4]);
}

#[test]
fn jitter_reorders_and_loses_nothing() {
    let faults = Faults {
        delay_ns: 100,
        jitter_ns: 1000,
        ..Faults::default()
    };
    let (mut a, mut b, got) = outbound(1, faults);
    assert_eq!(got, []);
    a.advance(Instant::from_nanos(99));
    a.flush().unwrap();
    assert_eq!(numbers(&mut b), []);
    a.advance(Instant::from_nanos(1100));
    a.flush().unwrap();
    let mut all = numbers(&mut b);
    assert!(!all.is_sorted());
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..2000));
}

#[test]
fn a_cut_loses_everything_even_what_is_under_way_until_it_is_mended() {
    let faults = Faults {
        delay_ns: 1000,
        ..Faults::default()
    };
    let (mut a, mut b) = pair(1, Direction::Outbound, faults);
    send(&mut a, 1);
    a.cut(Direction::Outbound, true);
    send(&mut a, 2);
    a.advance(Instant::from_nanos(1000));
    a.flush().unwrap();
    assert_eq!(numbers(&mut b), []);
    assert_eq!(a.fault_counters(Direction::Outbound).cut, 2);
    send(&mut b, 3);
    b.flush().unwrap();
    assert_eq!(numbers(&mut a), [3], "the other direction works");
    a.cut(Direction::Outbound, false);
    send(&mut a, 4);
    a.advance(Instant::from_nanos(2000));
    a.flush().unwrap();
    assert_eq!(numbers(&mut b), [4]);
}

#[test]
fn a_limit_holds_and_loses_nothing() {
    let (mut a, mut b) = pair(3, Direction::Inbound, WILD);
    for i in 0..500 {
        send(&mut b, i);
    }
    b.flush().unwrap();
    let mut given = 0;
    for round in 0.. {
        a.advance(Instant::from_nanos(10_000 * round));
        let got = a.receive(3, &mut |_, _| given += 1).unwrap();
        assert!(got <= 3);
        if got < 3 && a.next_release().is_none() {
            break;
        }
    }
    let counters = a.fault_counters(Direction::Inbound);
    assert_eq!(counters.passed, given);
    assert_eq!(
        counters.passed,
        counters.seen + counters.duplicated - counters.lost
    );
    assert_eq!(counters.seen, 500);
}

#[test]
fn what_leaves_late_waits_for_room() {
    let (a, mut b) = MemoryPort::pair(MemoryConfig {
        slot_bytes: 256,
        slots: 4,
    });
    let mut a = Fault::new(a, 1);
    a.set(
        Direction::Outbound,
        Faults {
            delay_ns: 10,
            ..Faults::default()
        },
    );
    for i in 0..10 {
        send(&mut a, i);
    }
    a.advance(Instant::from_nanos(10));
    let mut got = Vec::new();
    for _ in 0..5 {
        a.flush().unwrap();
        got.extend(numbers(&mut b));
    }
    assert!(got.iter().copied().eq(0..10), "{got:?}");
}

#[test]
fn over_udp_late_datagrams_keep_a_right_icrc_for_their_new_identification() {
    let address = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
    let open = |last, port| {
        UdpPort::open(&UdpConfig {
            port,
            ..UdpConfig::new(address(last))
        })
    };
    let a = open(21, 0).unwrap();
    let port = a.local().port();
    let mut b = open(22, port).unwrap();
    let mut a = Fault::new(a, 1);
    let faults = Faults {
        reorder_ppm: 300_000,
        reorder_packets: 4,
        duplicate_ppm: 200_000,
        loss_ppm: 100_000,
        ..Faults::default()
    };
    a.set(Direction::Outbound, faults);
    let path = Path {
        src: address(21),
        dst: address(22),
        src_port: port,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    };
    for i in 0..60 {
        let slot = a.reserve(&path, 500).unwrap();
        slot.datagram.fill(i);
        icrc::seal(&path, slot.identification, slot.datagram);
        a.commit();
    }
    a.advance(Instant::from_nanos(1));
    a.flush().unwrap();
    let passed = a.fault_counters(Direction::Outbound).passed;
    let mut got = 0;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(1);
    while got < passed && std::time::Instant::now() < end {
        b.receive(100, &mut |arrival, bytes| {
            assert!(icrc::verify(
                &arrival.path,
                arrival.identification.guess(),
                bytes
            ));
            got += 1;
        })
        .unwrap();
    }
    assert_eq!(got, passed);
    assert!(a.fault_counters(Direction::Outbound).reordered > 5);
}
