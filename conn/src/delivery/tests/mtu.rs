//! Paths that stop carrying large packets.

use super::std::println;
use alloc::collections::BTreeSet;
use alloc::vec;

use super::super::config::SACK_BITS;
use super::super::{
    AckInfo, Config, Delivery, EVERY_PATH, Event, MAX_SACK_WORDS, Policy, Pool, Stamp,
};
use super::link::{Link, World};
use crate::control::CongestionControl;
use crate::time::{Instant, MICROSECOND, MILLISECOND, SECOND};

const LARGE: u32 = 8192 + 80;

fn world(seed: u64, link: Link, want: u64) -> World {
    let config = Config {
        packet_size: LARGE,
        ..Config::default()
    };
    World::new(seed, &config, &Policy::default(), [link; 2], [want, want])
}

/// A path of 1 Gb/s.
fn path(rtt_ns: u64) -> Link {
    Link {
        bytes_per_us: 125,
        delay_ns: rtt_ns / 2,
        ..Link::CLEAN
    }
}

#[test]
fn a_path_that_carries_no_large_packets_any_more_is_known_within_a_second() {
    for rtt_ns in [
        20 * MICROSECOND,
        MILLISECOND,
        10 * MILLISECOND,
        40 * MILLISECOND,
    ] {
        for mixed in [false, true] {
            let narrow_at = SECOND;
            let link = Link {
                mtu: 1_472,
                narrow_at,
                ..path(rtt_ns)
            };
            let mut world = world(1, link, 100_000);
            world.ends.iter_mut().for_each(|end| end.mixed = mixed);
            world.run(3 * SECOND, World::is_done);
            for end in &world.ends {
                let took = end.narrowed_at.expect("it is noticed") - narrow_at;
                println!("rtt {rtt_ns}, mixed {mixed}: {took}");
                assert!(took < SECOND, "rtt {rtt_ns}, mixed {mixed}: {took}");
                assert!(end.events.iter().all(|event| *event == Event::Narrow));
            }
            world.run(20 * SECOND, World::is_done);
            assert!(world.is_done(), "it goes on");
        }
    }
}

#[test]
fn a_path_is_known_to_be_narrow_before_a_connection_that_dies_early_does() {
    for dead_after_ms in [50, 100, 300] {
        let narrow_at = SECOND;
        let link = Link {
            mtu: 1_472,
            narrow_at,
            ..path(10 * MILLISECOND)
        };
        let config = Config {
            packet_size: LARGE,
            ..Config::default()
        };
        let policy = Policy {
            dead_after_ns: dead_after_ms * MILLISECOND,
            ..Policy::default()
        };
        let mut world = World::new(1, &config, &policy, [link; 2], [100_000; 2]);
        world.run(3 * SECOND, World::is_done);
        for end in &world.ends {
            assert_eq!(end.events, [Event::Narrow], "{dead_after_ms} ms");
        }
    }
}

/// What the far end of a path that carries small packets only says at once.
#[derive(Default)]
struct Small {
    arrived: BTreeSet<u32>,
    latest: u32,
}

impl Small {
    /// A packet was sent first under number 100.
    fn send(&mut self, stamp: &Stamp, bytes: u32) {
        if bytes <= EVERY_PATH {
            self.arrived.insert(stamp.number as u32);
            self.latest = stamp.timestamp;
        }
    }

    fn answer(&self, now: Instant, connection: &mut Delivery<u32>) {
        let bits = u64::from(SACK_BITS);
        let cumulative = (100..).find(|number| !self.arrived.contains(number));
        let cumulative = cumulative.expect("a window has an end");
        let behind = self.arrived.range(cumulative + 1..);
        let mut sack = vec![0; MAX_SACK_WORDS];
        for place in behind.map(|number| u64::from(number - cumulative - 1)) {
            sack[(place / bits) as usize] |= 1 << (place % bits);
        }
        (0..)
            .zip(&mut sack)
            .for_each(|(i, word)| *word |= i << bits);
        let ack = AckInfo {
            cumulative,
            sack: &sack,
            echo: self.latest,
            ce: None,
            delay_ns: 0,
            waited_ns: 0,
        };
        connection
            .handle_ack(now, &ack, &mut |_| {})
            .expect("only what was sent");
    }
}

/// Small packets that come and go at once prove large ones lost each time, while a silence before
/// them makes the receiver look slow.
#[test]
fn a_path_is_known_to_be_narrow_before_a_packet_is_worn_out() {
    for silent_ms in [0, 50, 150, 300, 1_000] {
        let config = Config {
            packet_size: LARGE,
            first_tx: 100,
            ..Config::default()
        };
        let mut now = Instant::from_nanos(SECOND);
        let silence_ends = now + silent_ms * MILLISECOND;
        let mut pool = Pool::new(Policy::default());
        let mut connection = Delivery::new(&config, now);
        let mut far = Small::default();
        assert!(connection.ready(now, &mut pool) >= 2);
        (0..2).for_each(|_| _ = connection.record(now, 0, LARGE));
        let event = loop {
            now = now + 200 * MICROSECOND;
            connection.handle_timeout(now, &pool);
            if let Some(event) = connection.poll_event() {
                break event;
            }
            let silent = now < silence_ends;
            while let Some(lost) = connection.peek_retransmit(now) {
                let bytes = if lost.too_large { 80 } else { lost.bytes };
                let stamp = connection.retransmit(now, bytes);
                if !silent {
                    far.send(&stamp, bytes);
                }
            }
            if !silent && connection.ready_urgent(now, &mut pool) {
                far.send(&connection.record_urgent(now, 0, 72), 72);
            }
            far.answer(now + 20 * MICROSECOND, &mut connection);
        };
        assert_eq!(event, Event::Narrow, "after {silent_ms} ms of silence");
    }
}

#[test]
fn losses_of_packets_of_any_size_are_none_of_the_path() {
    for (seed, loss_ppm) in [(1, 10_000), (2, 100_000), (3, 200_000)] {
        for mixed in [false, true] {
            let link = Link {
                loss_ppm,
                ..path(MILLISECOND)
            };
            let mut world = world(seed, link, 20_000);
            world.ends.iter_mut().for_each(|end| end.mixed = mixed);
            world.run(20 * SECOND, World::is_done);
            for end in &world.ends {
                assert_eq!(end.narrowed_at, None, "{loss_ppm} ppm, mixed {mixed}");
            }
        }
    }
}

#[test]
fn a_path_that_carries_nothing_for_a_while_is_none_that_carries_little() {
    for out_ns in [50, 150, 500, 1_500].map(|ms| ms * MILLISECOND) {
        for rtt_ns in [20 * MICROSECOND, 10 * MILLISECOND] {
            let mut world = world(1, path(rtt_ns), 100_000);
            for second in 1..4 {
                world.run(second * 2 * SECOND, World::is_done);
                world.cut = true;
                world.run(second * 2 * SECOND + out_ns, World::is_done);
                world.cut = false;
            }
            world.run(9 * SECOND, World::is_done);
            for end in &world.ends {
                assert_eq!(end.narrowed_at, None, "{out_ns} ns at {rtt_ns} ns");
            }
        }
    }
}

#[test]
fn losses_of_what_was_too_large_slow_down_nobody() {
    for control in [
        CongestionControl::None,
        CongestionControl::Dcqcn,
        CongestionControl::Delay,
    ] {
        let narrow_at = SECOND;
        let link = Link {
            bytes_per_us: 12,
            queue_bytes: 100_000,
            mtu: 1_472,
            narrow_at,
            ..path(MILLISECOND)
        };
        let config = Config {
            packet_size: LARGE,
            control,
            ..Config::default()
        };
        let mut world = World::new(1, &config, &Policy::default(), [link; 2], [100_000, 0]);
        world.run(narrow_at, World::is_done);
        let before = world.ends[1].got_bytes;
        world.run(2 * SECOND, World::is_done);
        assert!(world.ends[0].narrowed_at.is_some(), "{control:?}");
        let then = world.ends[1].got_bytes;
        world.run(2_500 * MILLISECOND, World::is_done);
        // With headers that are larger now, in half of the time.
        let after = world.ends[1].got_bytes - then;
        println!("{control:?}: {before} bytes in a second, {after} in half of one");
        assert!(after > before / 4, "{control:?}: {before} and {after}");
    }
}

#[test]
fn a_receiver_that_looks_rarely_and_has_no_room_meanwhile_is_no_narrow_path() {
    for looks_ms in [20, 60, 110, 150, 170, 200, 230, 300] {
        for room_bytes in [140_000, 420_000, 4_000_000, u64::MAX] {
            for (packet_size, mixed) in [(LARGE, false), (65_507, false), (65_507, true)] {
                let link = Link {
                    looks_ns: looks_ms * MILLISECOND,
                    room_bytes,
                    ..path(20 * MICROSECOND)
                };
                let config = Config {
                    packet_size,
                    ..Config::default()
                };
                let links = [link, path(20 * MICROSECOND)];
                let mut world = World::new(1, &config, &Policy::default(), links, [100_000, 0]);
                world.ends[0].mixed = mixed;
                world.run(5 * SECOND, World::is_done);
                assert_eq!(
                    world.ends[0].narrowed_at, None,
                    "{looks_ms} ms, {room_bytes} bytes, packets of {packet_size}, mixed {mixed}"
                );
            }
        }
    }
}
