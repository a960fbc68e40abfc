//! How long a path takes to give room to a sender that waits for its window.

use super::super::{AckInfo, Config, Delivery, MAX_WINDOW, Policy, Pool};
use crate::control::CongestionControl;
use crate::time::{Instant, MILLISECOND, SECOND};

const RTT_NS: u64 = MILLISECOND;
/// Packets that the losses of one window count for, and how often that makes no sick path.
const LOSS: u32 = 256;
const SICK: u32 = 3;

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
        let config = Config {
            control,
            window,
            ..Config::default()
        };
        Self::with(&config, Pool::new(Policy::default()))
    }

    /// Its window comes from `pool`.
    fn with(config: &Config, pool: Pool<u64>) -> Self {
        let now = Instant::from_nanos(SECOND);
        Self {
            connection: Delivery::new(config, now),
            pool,
            now,
            next: config.first_tx as u32,
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
            waited_ns: 0,
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

impl Sender {
    /// A window of which two packets are lost, until all of it has arrived.
    fn lossy_round(&mut self) {
        let first = self.next;
        let echo = self.send(5);
        self.now = self.now + RTT_NS;
        // All but the first two: the lowest bit is that of the second one.
        self.hear(first, &[0b1110], echo);
        assert_eq!(self.connection.turnaround_ns(), None, "it recovers");
        let mut again = 0;
        while self.connection.peek_retransmit(self.now).is_some() {
            again = self.connection.retransmit(self.now, 1000).timestamp;
        }
        self.now = self.now + RTT_NS;
        self.hear(self.next, &[], again);
    }

    fn is_sick(&self) -> bool {
        self.connection.turnaround_ns().is_none()
    }
}

#[test]
fn a_path_that_loses_some_of_each_window_has_no_turnaround_until_many_have_arrived() {
    let mut sender = Sender::new(CongestionControl::Delay, MAX_WINDOW);
    sender.round(4);
    for _ in 0..SICK {
        sender.lossy_round();
        assert!(!sender.is_sick(), "a queue may overflow at times");
    }
    sender.lossy_round();
    assert!(sender.is_sick());
    for _ in 0..10 {
        sender.lossy_round();
    }
    let mut arrived = 0;
    while sender.is_sick() {
        sender.round(1);
        arrived += 1;
    }
    // As the last windows count, too.
    assert!((LOSS - 20..=LOSS).contains(&arrived), "{arrived}");
}

#[test]
fn a_path_that_loses_seldom_has_a_turnaround() {
    let mut sender = Sender::new(CongestionControl::Delay, MAX_WINDOW);
    sender.round(4);
    for _ in 0..20 {
        sender.lossy_round();
        for _ in 0..LOSS {
            assert!(!sender.is_sick());
            sender.round(1);
        }
    }
}

#[test]
fn a_path_that_was_well_for_long_may_be_sick_later() {
    let mut sender = Sender::new(CongestionControl::Delay, MAX_WINDOW);
    for _ in 0..3 {
        sender.round(4);
        sender.lossy_round();
        for _ in 0..2 * LOSS {
            sender.round(4);
        }
    }
    for _ in 0..SICK {
        sender.lossy_round();
        assert!(!sender.is_sick());
    }
    sender.lossy_round();
    assert!(sender.is_sick());
}

/// Connections begin at numbers of their own, and take windows that others gave back.
#[test]
fn a_window_that_another_connection_had_tells_nothing_of_its_losses() {
    let config = |first_tx| Config {
        first_tx,
        window: MAX_WINDOW,
        ..Config::default()
    };
    let mut other = Sender::with(&config(1 << 40), Pool::new(Policy::default()));
    other.round(4);
    for _ in 0..=SICK {
        other.lossy_round();
    }
    assert!(other.is_sick());
    assert!(other.connection.try_idle(&mut other.pool).is_some());
    for first_tx in [0, 1 << 20, 1 << 40, 1 << 41] {
        let mut sender = Sender::with(&config(first_tx), other.pool);
        assert_eq!(sender.pool.free(), 1);
        sender.round(4);
        assert!(!sender.is_sick(), "{first_tx}: nothing was lost on it");
        for _ in 0..SICK {
            sender.lossy_round();
            assert!(!sender.is_sick(), "{first_tx}");
        }
        sender.lossy_round();
        assert!(sender.is_sick(), "{first_tx}");
        assert!(sender.connection.try_idle(&mut sender.pool).is_some());
        other.pool = sender.pool;
    }
}

/// Nothing behind it tells of the last packet: a probe takes its place.
#[test]
fn a_path_that_loses_the_last_packet_of_each_window_has_no_turnaround() {
    let mut sender = Sender::new(CongestionControl::Delay, MAX_WINDOW);
    sender.round(4);
    for lost in 0..=SICK {
        assert!(!sender.is_sick(), "after {lost}");
        let echo = sender.send(5);
        sender.now = sender.now + RTT_NS;
        sender.hear(sender.next - 1, &[], echo);
        sender.now = sender
            .connection
            .poll_timeout(&sender.pool)
            .expect("a probe");
        sender.connection.handle_timeout(sender.now, &sender.pool);
        assert!(sender.connection.peek_retransmit(sender.now).is_some());
        assert!(sender.is_sick(), "it recovers");
        let again = sender.connection.retransmit(sender.now, 1000).timestamp;
        sender.now = sender.now + RTT_NS;
        sender.hear(sender.next, &[], again);
    }
    assert!(sender.is_sick());
}
