//! Whether the path still carries large packets (black hole detection, RFC 8899, section 4.3).
//!
//! A path whose MTU falls drops what is larger without a word that could be believed. Large packets
//! get lost on other paths, too, so several things must come together: one packet was lost again
//! and again, or nothing at all was heard for a while and then a packet was tried with nothing in
//! it; no large one has arrived since; small ones have; a large one was lost after that again; and
//! all that took long for a receiver that is slow, of which small ones tell how slow, or a packet
//! has used half of its transmissions.

use super::super::config::{EVERY_PATH, TICK_SHIFT};
use super::{MAX_ATTEMPT, Sender, Sent};
use crate::control::Control;
use crate::time::{Instant, MILLISECOND};

/// For so long none of several large packets may have arrived, or a quarter of the silence that is
/// death.
const PATIENCE_NS: u64 = 100 * MILLISECOND;
/// Probes without an answer after which one is tried with less.
const PROBES: u32 = 3;
/// Losses of one packet that are no chance.
const LOSSES: u8 = 8;
/// Losses of one packet after which time does not matter: a connection dies that has no
/// transmission of a packet left.
const MOST_LOSSES: u8 = MAX_ATTEMPT / 2;
/// Large packets have so many times as long to arrive as it took until a small one had: a receiver
/// that looks at its port now and then only, and has no room for large ones meanwhile, has looked
/// again. It is not waited for longer.
const LOOKS: u64 = 3;
const MOST_LOOKS_NS: u64 = 600 * MILLISECOND;

/// What became of large packets since one of them was lost and none arrived that was sent later.
/// Small are those which every path carries.
#[derive(Debug, Default)]
pub(super) struct Large {
    /// When the first of them was found lost, and the place among all transmissions of the next one
    /// then.
    lost_at: Option<Instant>,
    order: u32,
    /// Ticks of our clock when it was sent, and from then until the first small one had arrived.
    sent: u32,
    slow: u32,
    /// Most transmissions of one of them.
    losses: u8,
    /// Nothing was heard for a while: the next one to be sent again tries with less.
    tries: bool,
    /// One did.
    tried: bool,
    /// Place of the small one that was sent after that and was the first to arrive.
    small: Option<u32>,
    /// A large one that was sent later still was lost.
    confirmed: bool,
    /// All that is from before the connection rested: one loss more might be chance.
    remembered: bool,
}

impl Large {
    /// What a connection that rested knows of its path; `order` is the place of the next
    /// transmission.
    fn remembered(order: u32) -> Self {
        Self {
            lost_at: Some(Instant::ZERO),
            order,
            tried: true,
            small: Some(order.wrapping_sub(1)),
            remembered: true,
            ..Self::default()
        }
    }

    /// Whether some were lost and none has arrived since.
    pub(super) const fn is_suspected(&self) -> bool {
        self.lost_at.is_some()
    }

    /// A transmission was found lost; `order` is the place of the next one.
    pub(super) fn lost<I>(&mut self, now: Instant, sent: &Sent<I>, order: u32) {
        if sent.bytes <= EVERY_PATH {
            return;
        }
        if self.lost_at.is_none() {
            (self.lost_at, self.order, self.sent) = (Some(now), order, sent.at);
        }
        self.losses = self.losses.max(sent.attempt.saturating_add(1));
        let later = self
            .small
            .is_some_and(|small| !is_before(sent.order, small));
        self.confirmed |= later && (!self.remembered || sent.attempt > 0);
    }

    /// A packet has arrived; `delivered`: as it was sent last, and not before. `echo`: of the
    /// acknowledgement, which came at `now`, in ticks.
    pub(super) fn arrived<I>(&mut self, sent: &Sent<I>, delivered: bool, (now, echo): (u32, u32)) {
        if self.lost_at.is_none() {
            return;
        }
        let late = is_before(sent.order, self.order);
        if sent.bytes > EVERY_PATH {
            if !late {
                *self = Self::default();
            }
        } else if !delivered || (sent.attempt > 0 && echo == 0) {
            // What arrived may be what was in it before: that is to be tried again.
            (self.tries, self.tried) = (self.tries || self.tried, false);
        } else if !late && self.small.is_none() {
            self.slow = now.wrapping_sub(self.sent);
            self.small = Some(sent.order);
        }
    }

    /// A probe is sent, after so many and `silence_ns` without an acknowledgement.
    pub(super) fn silent(&mut self, probes: u32, silence_ns: u64, dead_after_ns: u64) {
        let long = silence_ns >= patience_ns(dead_after_ns);
        self.tries |= !self.tried && probes >= PROBES && long;
    }

    /// Whether a packet of `bytes` bytes that is sent again tries with less.
    pub(super) const fn tries_less(&self, bytes: u32) -> bool {
        self.tries && bytes > EVERY_PATH
    }

    /// A lost packet is sent again.
    pub(super) const fn sent_again(&mut self) {
        self.tried |= self.tries;
        self.tries = false;
    }

    /// Whether large packets get lost because they are large.
    #[cold]
    fn is_certain(&self, now: Instant, dead_after_ns: u64) -> bool {
        let looks_ns = LOOKS * (u64::from(self.slow) << TICK_SHIFT);
        // A connection that is to die early has no time for that.
        let most_ns = match dead_after_ns {
            0 => MOST_LOOKS_NS,
            _ => MOST_LOOKS_NS.min(dead_after_ns / 2),
        };
        let patience = patience_ns(dead_after_ns).max(looks_ns.min(most_ns));
        let long = self.lost_at.is_some_and(|at| now.since(at) >= patience);
        (long || self.losses >= MOST_LOSSES)
            && self.confirmed
            && (self.tried || self.losses >= LOSSES)
    }
}

const fn patience_ns(dead_after_ns: u64) -> u64 {
    match dead_after_ns / 4 {
        1..PATIENCE_NS => dead_after_ns / 4,
        _ => PATIENCE_NS,
    }
}

/// Whether place `a` comes before `b`.
const fn is_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

impl<I: Copy> Sender<I> {
    /// Whether it is certain that the path does not carry packets of this size any more.
    #[inline]
    pub(in super::super) fn takes_no_large(&self, now: Instant) -> bool {
        self.large.is_suspected() && self.large.is_certain(now, self.limits.dead_after_ns)
    }

    /// Whether it would be certain with the next large packets that get lost: what a connection
    /// that rests remembers.
    pub(in super::super) fn is_suspicious(&self) -> bool {
        self.large.tried && self.large.small.is_some()
    }

    /// It was so when the connection rested.
    pub(in super::super) fn suspect(&mut self) {
        self.large = Large::remembered(self.order);
    }

    /// Packets have at most `bytes` bytes from now on.
    pub(in super::super) fn set_packet_size(&mut self, bytes: u32) {
        if u64::from(bytes) < self.limits.packet {
            // The silence was none of congestion.
            self.control.on_spurious_timeout();
        }
        self.limits.packet = bytes.into();
        self.large = Large::default();
        self.refresh_control();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path that drops large packets. Times are in milliseconds.
    #[derive(Default)]
    struct Path {
        large: Large,
        order: u32,
    }

    impl Path {
        fn at(ms: u64) -> Instant {
            Instant::from_nanos(ms * MILLISECOND)
        }

        fn ticks(ms: u64) -> u32 {
            ((ms * MILLISECOND) >> TICK_SHIFT) as u32
        }

        fn sent(&mut self, ms: u64, bytes: u32, attempt: u8) -> Sent<()> {
            self.order += 1;
            Sent {
                item: (),
                bytes,
                at: Self::ticks(ms),
                order: self.order,
                older: 0,
                newer: 0,
                attempt,
                probe: false,
                urgent: false,
            }
        }

        fn loses(&mut self, sent_at: u64, ms: u64, attempt: u8) {
            let sent = self.sent(sent_at, EVERY_PATH + 1, attempt);
            self.large.lost(Self::at(ms), &sent, self.order + 1);
        }

        fn carries_small(&mut self, sent_at: u64, ms: u64) {
            let sent = self.sent(sent_at, EVERY_PATH, 0);
            self.large.arrived(&sent, true, (Self::ticks(ms), 1));
        }

        /// When it becomes certain, in milliseconds after the first loss was found at 0.
        fn certain_after(&self, dead_after_ms: u64) -> Option<u64> {
            let dead_after_ns = dead_after_ms * MILLISECOND;
            (0..10_000).find(|ms| self.large.is_certain(Self::at(*ms), dead_after_ns))
        }
    }

    /// A large packet sent at 0 is lost, small ones arrive `slow` later, a large one is lost again.
    fn black_hole(slow: u64) -> Path {
        let mut path = Path::default();
        path.loses(0, 0, 0);
        path.carries_small(0, slow);
        path.loses(0, slow, LOSSES - 1);
        path
    }

    #[test]
    fn it_takes_three_looks_of_a_slow_receiver_within_bounds() {
        // Milliseconds: how slow, when a connection is dead, after which time it is certain.
        for (slow, dead_after, certain) in [
            (0, 0, 100),
            (33, 0, 100),
            (50, 0, 150),
            (150, 0, 450),
            (200, 0, 600),
            (2000, 0, 600),
            (150, 10_000, 450),
            (2000, 800, 400),
            (10, 200, 50),
            (60, 200, 100),
        ] {
            let found = black_hole(slow).certain_after(dead_after);
            assert_eq!(
                found,
                Some(certain),
                "{slow} ms, dead after {dead_after} ms"
            );
        }
    }

    #[test]
    fn how_slow_a_receiver_is_the_first_small_packet_tells_from_the_first_loss_on() {
        let mut path = Path::default();
        path.loses(10, 0, 0);
        // Sent much later, lost as well: the look that took in the small one is still 60 ms away.
        path.loses(60, 0, 0);
        path.carries_small(10, 70);
        // Later ones come as quickly or as slowly as they like.
        path.carries_small(70, 71);
        path.carries_small(71, 900);
        path.loses(71, 72, LOSSES - 1);
        assert_eq!(path.certain_after(0), Some(3 * 60));
    }

    #[test]
    fn half_of_the_transmissions_of_a_packet_take_no_time() {
        for (attempt, certain) in [(MOST_LOSSES - 2, 600), (MOST_LOSSES - 1, 0)] {
            let mut path = black_hole(2000);
            path.loses(2000, 2000, attempt);
            assert_eq!(path.certain_after(0), Some(certain), "attempt {attempt}");
        }
        // Whether small ones arrive is to be known all the same.
        let mut path = Path::default();
        path.loses(0, 0, MAX_ATTEMPT - 1);
        assert_eq!(path.certain_after(0), None);
    }

    #[test]
    fn what_a_connection_remembers_is_certain_with_one_loss_that_is_no_chance() {
        let mut path = black_hole(0);
        path.large = Large::remembered(path.order + 1);
        path.loses(500, 510, 0);
        assert_eq!(path.certain_after(0), None, "one loss may be chance");
        path.loses(520, 530, 1);
        assert_eq!(path.certain_after(0), Some(100));
    }

    #[test]
    fn a_loss_of_before_the_small_packet_takes_no_certainty_back() {
        let mut path = Path::default();
        path.loses(0, 0, 0);
        let early = path.sent(0, EVERY_PATH + 1, 0);
        path.carries_small(0, 0);
        path.loses(0, 0, LOSSES - 1);
        assert_eq!(path.certain_after(0), Some(100));
        path.large.lost(Path::at(1), &early, path.order + 1);
        assert_eq!(path.certain_after(0), Some(100));
    }

    #[test]
    fn a_small_packet_that_arrives_out_of_order_does_not_move_the_mark_back() {
        let mut path = Path::default();
        path.loses(0, 0, LOSSES - 1);
        let earlier = path.sent(0, EVERY_PATH, 0);
        let large = path.sent(0, EVERY_PATH + 1, 0);
        path.carries_small(0, 0);
        path.large.arrived(&earlier, true, (0, 1));
        // It was sent before the small one that arrived first: that says nothing of its size.
        path.large.lost(Path::at(0), &large, path.order + 1);
        assert_eq!(path.certain_after(0), None);
        path.loses(0, 0, 0);
        assert_eq!(path.certain_after(0), Some(100));
    }

    #[test]
    fn a_large_packet_that_arrives_ends_the_suspicion() {
        let mut path = black_hole(0);
        let sent = path.sent(0, EVERY_PATH + 1, 0);
        path.large.arrived(&sent, true, (1, 1));
        assert!(!path.large.is_suspected());
        assert_eq!(path.certain_after(0), None);
    }
}
