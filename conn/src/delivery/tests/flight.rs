//! Long flights: what they take, what they carry, and what they tell.

use alloc::vec::Vec;

use super::super::window::Window;
use super::super::{AckInfo, Config, Delivery, MAX_WINDOW, Policy, Pool, Received};
use super::link::{Item, Link, World};
use crate::control::CongestionControl;
use crate::time::{Instant, MILLISECOND};

/// 10 Gb/s and 50 ms: 62.5 MB are on their way.
const LONG: Link = Link {
    bytes_per_us: 1_250,
    delay_ns: 25 * MILLISECOND,
    queue_bytes: 16 << 20,
    ..Link::CLEAN
};

/// A sender that has its rate from its owner.
fn paced(link: Link, seconds_of_data: u64) -> World {
    let config = Config {
        packet_size: 1500,
        control: CongestionControl::None,
        ..Config::default()
    };
    let policy = Policy {
        link_rate_bps: Some(9_400_000_000),
        ..Policy::default()
    };
    World::new(
        7,
        &config,
        &policy,
        [link; 2],
        [seconds_of_data * 830_000, 0],
    )
}

#[test]
fn the_window_holds_ten_gigabits_over_fifty_milliseconds() {
    let mut world = paced(LONG, 1);
    let start = world.now;
    // The first half round trip brings nothing.
    world.run(start + 225 * MILLISECOND, World::is_done);
    let payload = world.ends[1].got_bytes * 8;
    let rate = payload as f64 / (200 * MILLISECOND) as f64;
    assert!(rate > 9.2, "{rate} Gb/s");
    assert!(world.ends[0].connection.in_flight() > 35_000);
}

#[test]
fn what_was_lost_of_a_long_flight_is_told_within_a_round_trip_and_nothing_else_is_sent_again() {
    let link = Link {
        loss_ppm: 1_000,
        ..LONG
    };
    let mut world = paced(link, 1);
    let start = world.now;
    world.run(start + 400 * MILLISECOND, World::is_done);
    let counters = world.ends[0].connection.stats().counters;
    assert!(counters.lost > 200, "{counters:?}");
    assert!(
        counters.spurious * 20 < counters.lost && counters.probes < 3,
        "{counters:?}"
    );
    assert!(
        counters.retransmitted < counters.lost * 11 / 10,
        "{counters:?}"
    );
}

fn bytes(connection: &Delivery<Item>) -> usize {
    connection.window.as_ref().map_or(0, |window| {
        size_of::<Window<Item>>() + window.sender.flight.bytes()
    })
}

#[test]
fn memory_is_taken_for_what_is_in_flight_and_given_back() {
    let mut world = paced(LONG, 1);
    let start = world.now;
    world.run(start + 1, World::is_done);
    world.run(start + 120 * MILLISECOND, World::is_done);
    let flight = world.ends[0].connection.in_flight() as usize;
    let taken = bytes(&world.ends[0].connection);
    assert!(
        flight > 30_000 && taken < flight * 56 + 16_384,
        "{taken} bytes for {flight} packets"
    );
    let sender = &mut world.ends[0];
    sender.want = sender.connection.stats().counters.sent;
    let end = world.now + 200 * MILLISECOND;
    assert!(!world.run(end, |_| false));
    assert_eq!(world.ends[0].connection.in_flight(), 0);
    let sender = &mut world.ends[0];
    assert!(sender.connection.try_idle(&mut sender.pool).is_some());
    assert_eq!(bytes(&sender.connection), 0);
    assert!(sender.pool.free_segments() > 0, "others may need them");
    (0..2).for_each(|_| sender.pool.trim());
    assert_eq!(sender.pool.spare_bytes(), 0);
}

#[test]
fn the_first_packet_takes_a_segment_and_not_a_window() {
    let now = Instant::from_nanos(1_000);
    let mut pool = Pool::default();
    let mut connection: Delivery<Item> = Delivery::new(&Config::default(), now);
    assert!(connection.ready(now, &mut pool) > 0);
    let item = Item {
        from: 0,
        index: 0,
        bytes: 100,
    };
    let _ = connection.record(now, item, 100);
    assert!(bytes(&connection) < 6_144, "{}", bytes(&connection));
}

#[test]
fn a_bitmap_too_short_for_all_tells_what_is_new_and_all_in_turns() {
    let now = Instant::from_nanos(1_000);
    let config = Config {
        packet_size: 512,
        ..Config::default()
    };
    let mut pool = Pool::default();
    let mut connection: Delivery<Item> = Delivery::new(&config, now);
    let mut held = Vec::new();
    let mut told = alloc::collections::BTreeSet::new();
    for number in 1..u64::from(MAX_WINDOW) {
        // Every third is missing, and 0, which the cumulative part waits for.
        if number % 3 == 0 {
            continue;
        }
        held.push(number);
        connection.accept(now, number, &Received::default(), &mut pool);
        if let Some(ack) = connection.poll_ack(now) {
            assert_eq!(ack.cumulative, 0);
            let before = told.len();
            for entry in ack.sack {
                let base = 1 + (entry >> 48) * 48;
                told.extend(
                    (0..48)
                        .filter(|bit| entry >> bit & 1 == 1)
                        .map(|bit| base + bit),
                );
            }
            assert!(
                told.len() > before && told.contains(&number),
                "{number} is new"
            );
        }
    }
    // One in the middle, long after its neighbours.
    connection.accept(now, 30_000, &Received::default(), &mut pool);
    held.push(30_000);
    let ack = connection.poll_ack(now).expect("a hole less");
    let block = (30_000 - 1) / 48;
    assert!(ack.sack.iter().any(|entry| entry >> 48 == block));
    // What an acknowledgement told may be lost with it: all comes again.
    told.clear();
    let mut rounds = 0;
    while told.len() < held.len() {
        rounds += 1;
        assert!(rounds < 200, "{} of {}", told.len(), held.len());
        connection.duplicate(
            now,
            &Received {
                ack_req: true,
                ..Received::default()
            },
            &mut pool,
        );
        let ack = connection.poll_ack(now).expect("it was asked for");
        for entry in ack.sack {
            let base = 1 + (entry >> 48) * 48;
            told.extend(
                (0..48)
                    .filter(|bit| entry >> bit & 1 == 1)
                    .map(|bit| base + bit),
            );
        }
    }
    assert!(held.iter().all(|number| told.contains(number)));
}

#[test]
fn no_round_trip_is_taken_from_an_echo_that_cannot_be() {
    let at = |ns: u64| Instant::from_nanos(20_000_000_000 + ns);
    let tick = |instant: Instant| (instant.as_nanos() >> 4) as u32;
    let cases = [
        ("held for longer than it took", 1_600, 8_000, None),
        ("held all the time", 1_600, 1_600, None),
        ("of the first packet", 1_600, 600, Some(1_000)),
        (
            "sent after the acknowledgement",
            0u64.wrapping_sub(320),
            0,
            None,
        ),
        ("older than what is in flight", 3_200, 0, None),
        ("older than ten seconds", 10_000_000_016, 0, None),
    ];
    for (name, age, delay, want) in cases {
        let mut pool = Pool::default();
        let mut connection: Delivery<u64> = Delivery::new(&Config::default(), at(0));
        // The oldest packet in flight is 1,600 ns old; 12 s for the last case.
        let old = if age > 1 << 33 && age < 1 << 40 {
            12_000_000_000
        } else {
            1_600
        };
        let now = at(old);
        assert!(connection.ready(at(0), &mut pool) > 0);
        let _ = connection.record(at(0), 0, 100);
        let ack = AckInfo {
            cumulative: 1,
            sack: &[],
            echo: tick(now).wrapping_sub((age as i64 >> 4) as u32),
            ce: None,
            delay_ns: delay,
            waited_ns: 0,
        };
        let summary = connection.handle_ack(now, &ack, &mut |_| {}).expect(name);
        assert_eq!((summary.packets, summary.rtt_ns), (1, want), "{name}");
    }
}
