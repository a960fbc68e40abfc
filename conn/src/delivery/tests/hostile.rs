//! Acknowledgements and packet numbers that no honest peer would send.

use alloc::vec::Vec;

use super::super::{AckInfo, Arrival, Config, Delivery, Event, Policy, Pool, Received, Violation};
use crate::control::CongestionControl;
use crate::time::{Instant, MILLISECOND};
use trunkline_testkit::Rng;

#[test]
fn random_acknowledgements_never_settle_what_was_not_sent_and_never_twice() {
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let first = [0, (1 << 32) - 20, (1 << 24) - 9, rng.next() >> 2][rng.below(4) as usize];
        let config = Config {
            first_tx: first,
            window: 64,
            ..Config::default()
        };
        let mut now = Instant::from_nanos(rng.below(1 << 40));
        let mut connection: Delivery<u64> = Delivery::new(&config, now);
        let mut pool = Pool::default();
        let mut sent = first;
        let mut acked = Vec::new();
        for _ in 0..200 {
            now = now + rng.below(200_000);
            let ready = connection.ready(now, &mut pool);
            for _ in 0..rng.below(u64::from(ready) + 1) {
                assert_eq!(
                    connection
                        .record(now, sent, 64 + rng.below(4000) as u32)
                        .number,
                    sent
                );
                sent += 1;
            }
            let words: Vec<u64> = (0..rng.below(70))
                .map(|_| [0, rng.next(), rng.next() & rng.next(), 1][rng.below(4) as usize])
                .collect();
            let near = (sent.wrapping_sub(rng.below(90)) as u32).wrapping_add(rng.below(10) as u32);
            let ack = AckInfo {
                cumulative: if rng.below(4) == 0 {
                    rng.next() as u32
                } else {
                    near
                },
                sack: if rng.below(2) == 0 {
                    &words
                } else {
                    &words[..words.len().min(1)]
                },
                echo: if rng.below(2) == 0 {
                    rng.next() as u32
                } else {
                    0
                },
                ce: (rng.below(2) == 0).then(|| rng.next() as u32),
                waited_ns: rng.next() as u32,
                delay_ns: rng.next() as u32,
            };
            let (in_flight, before) = (connection.in_flight(), acked.len());
            let result = connection.handle_ack(now, &ack, &mut |number| acked.push(number));
            let settled = (acked.len() - before) as u32;
            match result {
                Ok(summary) => assert_eq!(summary.packets, settled),
                Err(_) => assert_eq!(settled, 0, "a violation moves nothing"),
            }
            assert_eq!(connection.in_flight(), in_flight - settled);
            while let Some(lost) = connection.peek_retransmit(now) {
                let _ = connection.retransmit(now, lost.bytes);
            }
            connection.handle_timeout(now, &pool);
            let _ = connection.poll_event();
        }
        let mut rest: Vec<u64> = connection.unacked().chain(acked).collect();
        rest.sort_unstable();
        assert!(
            rest.into_iter().eq(first..sent),
            "seed {seed}: each once, sent ones only"
        );
    }
}

#[test]
fn an_acknowledgement_of_the_next_packet_to_be_sent_is_a_violation() {
    let config = Config {
        first_tx: u64::from(u32::MAX) - 1,
        ..Config::default()
    };
    let now = Instant::from_nanos(1);
    let mut pool = Pool::default();
    let mut connection: Delivery<u8> = Delivery::new(&config, now);
    let ack = |cumulative, sack| AckInfo {
        cumulative,
        sack,
        echo: 0,
        ce: None,
        delay_ns: 0,
        waited_ns: 0,
    };
    let mut none = |_| panic!("nothing was sent");
    let next = u64::from(u32::MAX) - 1;
    let unsent = Err(Violation::Unsent { number: next, next });
    assert_eq!(
        connection.handle_ack(now, &ack(u32::MAX, &[]), &mut none),
        unsent
    );
    assert!(
        connection
            .handle_ack(now, &ack(u32::MAX - 1, &[]), &mut none)
            .is_ok()
    );
    assert!(connection.ready(now, &mut pool) >= 3);
    for item in 0..3 {
        connection.record(now, item, 100);
    }
    let (number, next) = (next + 3, next + 3);
    let unsent = Err(Violation::Unsent { number, next });
    assert_eq!(connection.handle_ack(now, &ack(2, &[]), &mut none), unsent);
    assert_eq!(
        connection.handle_ack(now, &ack(u32::MAX - 1, &[0b100]), &mut none),
        unsent
    );
    let oversized = Err(Violation::Oversized { words: 65 });
    assert_eq!(
        connection.handle_ack(now, &ack(u32::MAX - 1, &[0; 65]), &mut none),
        oversized
    );
    let mut got = Vec::new();
    let summary = connection.handle_ack(now, &ack(u32::MAX - 1, &[0b10]), &mut |i| got.push(i));
    assert_eq!(
        (summary.map(|summary| summary.packets), got),
        (Ok(1), alloc::vec![2])
    );
}

#[test]
fn any_packet_number_is_judged_and_only_new_ones_may_be_accepted() {
    let mut rng = Rng::new(9);
    for first in [0, (1 << 24) - 30, (1 << 32) - 30, 1 << 62] {
        let config = Config {
            first_rx: first,
            window: 64,
            ..Config::default()
        };
        let now = Instant::from_nanos(1);
        let mut pool = Pool::default();
        let mut connection: Delivery<u8> = Delivery::new(&config, now);
        let mut seen = alloc::collections::BTreeSet::new();
        let mut next = first;
        for _ in 0..5_000 {
            let number = match rng.below(8) {
                0 => rng.next(),
                1..4 => next,
                _ => next.wrapping_add(rng.below(140)).wrapping_sub(70),
            };
            let want = if number.wrapping_sub(next) < 64 {
                if seen.contains(&number) {
                    Arrival::Duplicate
                } else {
                    Arrival::New
                }
            } else if (number.wrapping_sub(next) as i64) < 0 {
                Arrival::Duplicate
            } else {
                Arrival::Beyond
            };
            assert_eq!(
                connection.arrival(number),
                want,
                "{number} with {next} expected"
            );
            if want == Arrival::New {
                connection.accept(now, number, &Received::default(), &mut pool);
                seen.insert(number);
                while seen.remove(&next) {
                    next += 1;
                }
            }
            if rng.below(50) == 0 {
                let _ = connection.poll_ack(now);
                let _ = connection.try_idle(&mut pool);
            }
        }
        assert!(next > first + 1_000);
    }
}

/// A peer that acknowledges all but the first packet, for ever.
#[test]
fn a_packet_that_alone_never_arrives_is_the_end_of_its_connection() {
    let config = Config {
        control: CongestionControl::None,
        ..Config::default()
    };
    for dead_after_ns in [0, Policy::default().dead_after_ns] {
        let policy = Policy {
            dead_after_ns,
            ..Policy::default()
        };
        let mut now = Instant::from_nanos(MILLISECOND);
        let mut connection: Delivery<u64> = Delivery::new(&config, now);
        let mut pool = Pool::new(policy);
        let (mut sent, mut transmissions) = (0_u64, 1);
        let died = (0..2_000).any(|_| {
            now = now + 20_000;
            while let Some(lost) = connection.peek_retransmit(now) {
                let stamp = connection.retransmit(now, lost.bytes);
                assert_eq!(stamp.number, 0, "all others arrive");
                assert_eq!(u64::from(stamp.attempt), transmissions);
                transmissions += 1;
            }
            for _ in 0..4 {
                if connection.ready(now, &mut pool) > 0 {
                    connection.record(now, sent, 1000);
                    sent += 1;
                }
            }
            now = now + 20_000;
            let arrived = |block: u64| (sent - 1 - 48 * block).min(48);
            let word = |block: u64| block << 48 | ((1 << arrived(block)) - 1);
            let sack: Vec<u64> = (0..=(sent - 2) / 48).map(word).collect();
            let ack = AckInfo {
                cumulative: 0,
                sack: &sack,
                echo: 0,
                ce: None,
                delay_ns: 0,
                waited_ns: 0,
            };
            let known = connection.handle_ack(now, &ack, &mut |_| {});
            assert!(known.is_ok() || connection.is_dead());
            connection.handle_timeout(now, &pool);
            connection.poll_event() == Some(Event::Dead)
        });
        assert!(died && connection.is_dead());
        assert_eq!(transmissions, 256, "as many as the header can tell apart");
        assert!(connection.peek_retransmit(now).is_none());
    }
}

#[test]
fn no_more_packets_were_marked_than_arrived() {
    let now = Instant::from_nanos(MILLISECOND);
    let mut connection: Delivery<u8> = Delivery::new(&Config::default(), now);
    let mut pool = Pool::default();
    assert!(connection.ready(now, &mut pool) >= 4);
    (0..4).for_each(|item| {
        connection.record(now, item, 1000);
    });
    let ack = AckInfo {
        cumulative: 4,
        sack: &[],
        echo: 0,
        ce: Some(1_000_000),
        delay_ns: 0,
        waited_ns: 0,
    };
    assert!(connection.handle_ack(now, &ack, &mut |_| {}).is_ok());
    assert_eq!(connection.stats().counters.marked, 4);
}

/// The peer says which number comes first, and an old acknowledgement speaks of numbers before it.
#[test]
fn nothing_arrives_twice_however_close_to_0_the_numbers_begin() {
    for first in [0, 1, 30, 62, 63, 64, 100, u64::from(u32::MAX) - 1] {
        for behind in 0..100 {
            let config = Config {
                first_tx: first,
                ..Config::default()
            };
            let now = Instant::from_nanos(MILLISECOND);
            let mut connection = Delivery::new(&config, now);
            let mut pool = Pool::default();
            for number in first..first + 4 {
                assert!(connection.ready(now, &mut pool) > 0);
                connection.record(now, number, 1000);
            }
            // The third one has arrived.
            let (block, bit) = ((behind + 1) / 48, (behind + 1) % 48);
            let ack = AckInfo {
                cumulative: (first as u32).wrapping_sub(behind as u32),
                sack: &[block << 48 | 1 << bit],
                echo: 0,
                ce: None,
                delay_ns: 0,
                waited_ns: 0,
            };
            let mut acked = Vec::new();
            for _ in 0..3 {
                let known = connection.handle_ack(now, &ack, &mut |number| acked.push(number));
                assert!(known.is_ok());
            }
            assert_eq!(acked, [first + 2], "{first}, {behind} behind");
            assert_eq!(connection.in_flight(), 3);
        }
    }
}
