#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use std::net::{IpAddr, Ipv4Addr};
use trunkline_wire::IpFields;

const SMALL: MemoryConfig = MemoryConfig {
    slot_bytes: 256,
    slots: 4,
};

fn path(src_port: u16) -> Path {
    let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    Path {
        src: address(1),
        dst: address(2),
        src_port,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    }
}

fn send(port: &mut MemoryPort, src_port: u16, bytes: &[u8]) -> bool {
    let Some(slot) = port.reserve(&path(src_port), bytes.len()) else {
        return false;
    };
    slot.datagram.copy_from_slice(bytes);
    port.commit();
    true
}

fn receive(port: &mut MemoryPort, limit: usize) -> Vec<(u16, Vec<u8>)> {
    let mut got = Vec::new();
    let count = port
        .receive(limit, &mut |arrival, bytes| {
            got.push((arrival.path.src_port, bytes.to_vec()))
        })
        .unwrap();
    assert_eq!(count, got.len());
    got
}

#[test]
fn datagrams_arrive_in_order_with_their_path_and_only_after_the_flush() {
    let (mut east, mut west) = MemoryPort::pair(SMALL);
    assert!(send(&mut east, 7, b"one"));
    assert!(send(&mut east, 8, b"three"));
    assert_eq!(receive(&mut west, 10), []);
    east.flush().unwrap();
    assert_eq!(receive(&mut west, 1), [(7, b"one".to_vec())]);
    assert_eq!(receive(&mut west, 10), [(8, b"three".to_vec())]);
    assert_eq!(receive(&mut west, 10), []);
    let (sent, received) = (east.counters(), west.counters());
    assert_eq!((sent.sent, sent.sent_bytes, sent.send_calls), (2, 8, 1));
    assert_eq!(
        (
            received.received,
            received.received_bytes,
            received.receive_calls
        ),
        (2, 8, 2)
    );
}

#[test]
fn what_arrives_behind_a_fetch_is_given_out_after_the_next_one() {
    let (mut east, mut west) = MemoryPort::pair(SMALL);
    assert!(!west.fetch().unwrap());
    assert!(send(&mut east, 7, b"one"));
    east.flush().unwrap();
    assert_eq!(receive(&mut west, 10), []);
    assert!(west.fetch().unwrap());
    assert!(send(&mut east, 8, b"two"));
    east.flush().unwrap();
    assert_eq!(receive(&mut west, 10), [(7, b"one".to_vec())]);
    assert!(west.fetch().unwrap());
    assert_eq!(receive(&mut west, 10), [(8, b"two".to_vec())]);
}

#[test]
fn a_full_port_refuses_until_the_other_end_received() {
    let (mut east, mut west) = MemoryPort::pair(SMALL);
    for i in 0..4 {
        assert!(send(&mut east, i, &[0; 256]));
    }
    assert!(!send(&mut east, 4, &[0; 256]));
    east.flush().unwrap();
    assert!(!send(&mut east, 4, &[0; 256]));
    assert_eq!(east.in_flight(), 4);
    assert_eq!(receive(&mut west, 1).len(), 1);
    assert!(send(&mut east, 4, &[0; 256]));
    assert!(!send(&mut east, 5, &[0; 256]));
}

#[test]
fn what_no_slot_holds_is_dropped_and_counted_and_nobody_waits_for_it() {
    let (mut east, mut west) = MemoryPort::pair(SMALL);
    assert!(east.reserve(&path(1), 0).is_none());
    assert!(send(&mut east, 1, &[0; 257]));
    assert!(send(&mut east, 2, &[7; 256]));
    east.flush().unwrap();
    assert_eq!(receive(&mut west, 10), [(2, vec![7; 256])]);
    assert_eq!((east.counters().too_long, east.counters().sent), (1, 1));
}

#[test]
fn a_slot_that_was_not_committed_is_given_out_again() {
    let (mut east, mut west) = MemoryPort::pair(SMALL);
    for i in 0..100 {
        let slot = east.reserve(&path(i), 64).unwrap();
        slot.datagram.fill(1);
    }
    assert!(send(&mut east, 9, b"kept"));
    east.flush().unwrap();
    assert_eq!(receive(&mut west, 10), [(9, b"kept".to_vec())]);
}

#[test]
fn a_short_exchange_uses_one_slot_only() {
    let (mut east, mut west) = MemoryPort::pair(MemoryConfig {
        slot_bytes: 256,
        slots: 64,
    });
    let mut places = std::collections::BTreeSet::new();
    for _ in 0..100 {
        assert!(send(&mut east, 1, b"ping"));
        east.flush().unwrap();
        west.receive(10, &mut |_, bytes| {
            assert!(places.insert(bytes.as_ptr()) || !places.is_empty())
        })
        .unwrap();
        east.flush().unwrap();
    }
    assert_eq!(places.len(), 1);
}

#[test]
fn congestion_marks_travel_in_the_traffic_class() {
    let (mut east, mut west) = MemoryPort::pair(SMALL);
    for traffic_class in [0x02, 0x03, 0xb8, 0xbb] {
        east.reserve(
            &Path {
                traffic_class,
                ..path(1)
            },
            4,
        )
        .unwrap()
        .datagram
        .fill(0);
        east.commit();
    }
    east.flush().unwrap();
    let mut marks = Vec::new();
    west.receive(10, &mut |arrival, _| marks.push(arrival.ce))
        .unwrap();
    assert_eq!(marks, [false, true, false, true]);
}

#[test]
fn what_goes_to_an_end_that_is_gone_is_counted_and_its_room_comes_back() {
    let (mut east, west) = MemoryPort::pair(SMALL);
    for i in 0..3 {
        assert!(send(&mut east, i, b"lost"));
    }
    east.flush().unwrap();
    assert!(send(&mut east, 3, b"lost too"));
    drop(west);
    for round in 1..=10 {
        east.flush().unwrap();
        assert_eq!(east.counters().unreachable, 4 * round);
        assert_eq!(east.in_flight(), 0);
        for i in 0..4 {
            assert!(send(&mut east, i, b"lost"));
        }
    }
}

#[test]
fn what_a_node_sends_to_itself_comes_back_beside_what_the_other_sends() {
    let (mut east, mut west) = MemoryPort::pair(SMALL);
    let own = Path {
        dst: path(0).src,
        ..path(9)
    };
    for round in 0..10_u8 {
        let slot = east.reserve(&own, 1).unwrap();
        slot.datagram.copy_from_slice(&[round]);
        east.commit();
        // Given out for one way and then for the other.
        east.reserve(&own, 3).unwrap();
        assert!(send(&mut east, 7, b"away"));
        assert!(send(&mut west, 8, b"hither"));
        east.flush().unwrap();
        west.flush().unwrap();
        assert_eq!(receive(&mut west, 10), [(7, b"away".to_vec())]);
        let mut got = receive(&mut east, 1);
        got.extend(receive(&mut east, 1));
        got.sort_unstable();
        assert_eq!(got, [(8, b"hither".to_vec()), (9, vec![round])]);
        assert_eq!(receive(&mut east, 10), []);
    }
    assert_eq!(east.counters().sent, 20);
    assert_eq!(east.counters().received, 20);
    drop(west);
    let slot = east.reserve(&own, 1).unwrap();
    slot.datagram.copy_from_slice(b"x");
    east.commit();
    east.flush().unwrap();
    assert_eq!(receive(&mut east, 10).len(), 1);
}

#[test]
fn every_byte_survives_two_threads() {
    const COUNT: u64 = if cfg!(miri) { 80 } else { 100_000 };
    let (mut east, mut west) = MemoryPort::pair(MemoryConfig {
        slot_bytes: 256,
        slots: 8,
    });
    let sender = std::thread::spawn(move || {
        for i in 0..COUNT {
            let length = 8 + (i % 200) as usize;
            loop {
                if let Some(slot) = east.reserve(&path(i as u16), length) {
                    slot.datagram.fill(i as u8);
                    slot.datagram[..8].copy_from_slice(&i.to_le_bytes());
                    break;
                }
                east.flush().unwrap();
                std::thread::yield_now();
            }
            east.commit();
            if i % 3 == 0 {
                east.flush().unwrap();
            }
        }
        while east.in_flight() > 0 {
            east.flush().unwrap();
            std::thread::yield_now();
        }
        east.counters()
    });
    let mut next = 0u64;
    while next < COUNT {
        let got = west
            .receive(5, &mut |arrival, bytes| {
                assert_eq!(bytes.len(), 8 + (next % 200) as usize);
                assert_eq!(bytes[..8], next.to_le_bytes());
                assert!(bytes[8..].iter().all(|byte| *byte == next as u8));
                assert_eq!(arrival.path.src_port, next as u16);
                next += 1;
            })
            .unwrap();
        if got == 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!(sender.join().unwrap().sent, COUNT);
}
