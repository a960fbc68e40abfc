//! How long a path takes to give room to a sender that waits for its window.

use super::super::{AckInfo, Config, Delivery, MAX_WINDOW, Policy, Pool};
use crate::control::CongestionControl;
use crate::time::{Instant, MILLISECOND, SECOND};

const RTT_NS: u64 = MILLISECOND;
/// Packets without a loss that make a path count as one that loses none.
const CLEAN: u32 = 1024;

/// A sender, and a path that acknowledges what it sends.
struct Sender {
    connection: Delivery<u64>,
    pool: Pool<u64>,
    now: Instant,
    /// The number of the next packet.
    next: u32,
}

impl Sender {
    fn new(control: CongestionControl, window: u32) -> Self {
        let now = Instant::from_nanos(SECOND);
        let config = Config {
            control,
            window,
            ..Config::default()
        };
        Self {
            connection: Delivery::new(&config, now),
            pool: Pool::new(Policy::default()),
            now,
            next: 0,
        }
    }

    /// Sends so many packets at once. Gives the timestamp of the last one.
    fn send(&mut self, packets: u32) -> u32 {
        let mut timestamp = 0;
        for _ in 0..packets {
            assert!(self.connection.ready(self.now, &mut self.pool) > 0);
            let stamp = self.connection.record(self.now, self.next.into(), 1000);
            (self.next, timestamp) = (self.next + 1, stamp.timestamp);
        }
        timestamp
    }

    /// The same, and a round trip later all of them have arrived.
    fn round(&mut self, packets: u32) {
        let echo = self.send(packets);
        self.now = self.now + RTT_NS;
        self.hear(self.next, &[], echo);
    }

    fn hear(&mut self, cumulative: u32, sack: &[u64], echo: u32) {
        let ack = AckInfo {
            cumulative,
            sack,
            echo,
            ce: None,
            delay_ns: 0,
        };
        let heard = self.connection.handle_ack(self.now, &ack, &mut |_| {});
        heard.expect("only what was sent");
    }
}

#[test]
fn the_turnaround_of_a_window_that_may_grow_is_a_round_trip_once_one_is_known() {
    let mut sender = Sender::new(CongestionControl::Delay, MAX_WINDOW);
    assert_eq!(sender.connection.turnaround_ns(), None, "nothing is known");
    sender.round(4);
    let known = sender.connection.turnaround_ns().expect("it is known");
    assert!(known.abs_diff(RTT_NS) < RTT_NS / 10, "{known} ns");
}

#[test]
fn a_window_that_is_as_large_as_it_gets_has_no_turnaround() {
    // The largest number of packets, or of bytes.
    for window in [64, MAX_WINDOW] {
        let mut sender = Sender::new(CongestionControl::None, window);
        sender.round(4);
        assert!(sender.connection.stats().rtt_ns > 0, "the path is known");
        assert_eq!(sender.connection.turnaround_ns(), None, "{window}");
    }
}

#[test]
fn a_path_that_lost_a_packet_has_no_turnaround_until_many_have_arrived() {
    let mut sender = Sender::new(CongestionControl::Delay, MAX_WINDOW);
    sender.round(4);
    let first = sender.next;
    let echo = sender.send(5);
    sender.now = sender.now + RTT_NS;
    // All but the first one.
    sender.hear(first, &[0b1111], echo);
    assert_eq!(sender.connection.turnaround_ns(), None, "it is lost");
    assert!(sender.connection.peek_retransmit(sender.now).is_some());
    let again = sender.connection.retransmit(sender.now, 1000);
    sender.now = sender.now + RTT_NS;
    sender.hear(sender.next, &[], again.timestamp);
    for _ in 1..CLEAN {
        sender.round(1);
        assert_eq!(sender.connection.turnaround_ns(), None);
    }
    sender.round(1);
    assert!(sender.connection.turnaround_ns().is_some());
}
