//! How much an acknowledgement is asked for.

use alloc::vec::Vec;

use super::super::{AckInfo, Config, Delivery, Policy, Pool};
use crate::control::CongestionControl;
use crate::time::{Instant, MILLISECOND, SECOND};

const BYTES: u32 = 1000;
const PACKET: u64 = BYTES as u64;
const RTT_NS: u64 = MILLISECOND;

/// A sender whose peer acknowledges what it sends in a round trip at the end of that.
struct Sender {
    connection: Delivery<u64>,
    pool: Pool<u64>,
    now: Instant,
    sent: u64,
    marked: u32,
    /// Bytes since an acknowledgement was asked for.
    since: u64,
}

impl Sender {
    fn new() -> Self {
        let now = Instant::from_nanos(SECOND);
        let config = Config {
            packet_size: BYTES,
            control: CongestionControl::Delay,
            ..Config::default()
        };
        Self {
            connection: Delivery::new(&config, now),
            pool: Pool::new(Policy::default()),
            now,
            sent: 0,
            marked: 0,
            since: 0,
        }
    }

    /// Sends all it may in a round trip, up to so many packets, all of which is `marked` or
    /// nothing. Gives the window, and how much each acknowledgement is asked for, but for the
    /// first, which is of two windows.
    fn round(&mut self, marked: bool, most: u64) -> (u64, Vec<u64>) {
        let (end, before) = (self.now + RTT_NS, self.sent);
        let (mut gaps, mut last) = (Vec::new(), None);
        while self.now < end {
            while self.sent < before.saturating_add(most)
                && self.connection.ready(self.now, &mut self.pool) > 0
            {
                let stamp = self.connection.record(self.now, self.sent, BYTES);
                self.sent += 1;
                self.since += PACKET;
                if stamp.ack_req {
                    gaps.push(core::mem::take(&mut self.since));
                }
                last = Some((self.now, stamp));
            }
            self.now = self.now + RTT_NS / 256;
        }
        let window = self.connection.stats().window_bytes;
        let (at, stamp) = last.expect("it may send something");
        self.now = at + RTT_NS;
        self.marked += (self.sent - before) as u32 * u32::from(marked);
        let ack = AckInfo {
            cumulative: self.sent as u32,
            sack: &[],
            echo: stamp.timestamp,
            ce: Some(self.marked),
            delay_ns: 0,
            waited_ns: 0,
        };
        let acked = self.connection.handle_ack(self.now, &ack, &mut |_| {});
        acked.expect("only what was sent");
        (window, gaps.split_off(gaps.len().min(1)))
    }

    /// The same: all of `part` of the window, and of the packet that completes it.
    fn asks_for(&mut self, marked: bool, part: impl Fn(u64) -> u64) -> u64 {
        let (window, gaps) = self.round(marked, u64::MAX);
        let part = part(window);
        for gap in &gaps {
            assert!((part..part + PACKET).contains(gap), "{gap}, not {part}");
        }
        window
    }
}

#[test]
fn four_acknowledgements_are_asked_for_per_window_and_sixteen_where_bursts_are_short() {
    let mut sender = Sender::new();
    let mut window = 0;
    while window < 500 * PACKET {
        window = sender.asks_for(false, |window| window / 4);
    }
    // Marks of the bursts of a window that doubles say nothing of others.
    let none = sender.asks_for(true, |window| window / 4);
    assert!(none >= window);
    sender.asks_for(true, |window| window / 4);
    // Not of less than two packets, nor of more than a quarter of a small window.
    let few = |window: u64| (window / 16).max(2 * PACKET).min(window / 4);
    while window > 2 * PACKET {
        window = sender.asks_for(true, few);
    }
}

#[test]
fn an_acknowledgement_is_asked_for_half_of_the_longest_burst_where_that_is_neither_few_nor_many() {
    let mut sender = Sender::new();
    while sender.asks_for(false, |window| window / 4) < 200 * PACKET {}
    // The first mark ends the doubling, the second one makes bursts as short as such a part of a
    // round trip. With each round after it they may be longer.
    (0..2).for_each(|_| drop(sender.round(true, u64::MAX)));
    let mut burst_ns = RTT_NS / 64;
    let window = sender.connection.stats().window_bytes;
    let (few, many) = (window / 16, window / 4);
    let (mut between, mut half) = (0, 0);
    while half < many {
        let rate = sender.connection.stats().rate.expect("it paces");
        half = rate / 1000 * burst_ns / MILLISECOND / 2;
        burst_ns += burst_ns / 512 + 1;
        // Of less than half of a window it does not grow.
        let (same, gaps) = sender.round(false, window / PACKET / 2 - 1);
        assert_eq!(same, window);
        let part = half.clamp(few, many);
        for gap in gaps {
            assert!((part..part + PACKET).contains(&gap), "{gap}, not {part}");
            between += u32::from(part == half);
        }
    }
    assert!(between > 100, "{between}");
}

#[test]
fn no_acknowledgement_is_asked_for_where_all_is_acknowledged_unasked() {
    let mut sender = Sender::new();
    for _ in 0..1000 {
        sender.round(false, 1);
    }
    assert_eq!(sender.since, 1000 * PACKET, "none was asked for");
}
