//! The receiving half: which numbers have arrived, and when to say so.

use super::bits::Bits;
use super::config::{
    AckOut, Arrival, Counters, MAX_SACK_WORDS, Received, TICK_SHIFT, non_zero, ticks,
};
use super::reverse::Reverse;
use crate::time::Instant;

/// Packets between acknowledgements while there are holes.
const ACK_EVERY_WITH_HOLES: u16 = 4;

#[derive(Debug)]
pub(super) struct Receiver {
    /// Next number expected: everything below has arrived.
    pub(super) next: u64,
    /// One past the highest number that has arrived, never below `next`.
    high: u64,
    /// Numbers that arrived above `next`; as many as `held`.
    bits: Bits,
    held: u32,
    /// The last number told that was the whole truth, or came with its bitmap.
    told: u64,
    window: u64,
    max_words: usize,
    ack_every: u16,
    /// Packets accepted since the last acknowledgement.
    pending: u16,
    ack_now: bool,
    /// A piggybacked acknowledgement would not tell all there is to tell.
    needs_pure: bool,
    last_ce: bool,
    /// When a delayed acknowledgement is due.
    ack_at: Instant,
    /// Timestamp received last, 0 for none, when it came, and whether it was echoed.
    timestamp: u32,
    timestamp_at: Instant,
    fresh: bool,
    pub(super) ce: u32,
    pub(super) reverse: Reverse,
    words: [u64; MAX_SACK_WORDS],
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self {
            next: 0,
            high: 0,
            bits: Bits::new(),
            held: 0,
            told: 0,
            window: 0,
            max_words: 0,
            ack_every: 1,
            pending: 0,
            ack_now: false,
            needs_pure: false,
            last_ce: false,
            ack_at: Instant::FAR,
            timestamp: 0,
            timestamp_at: Instant::ZERO,
            fresh: false,
            ce: 0,
            reverse: Reverse::default(),
            words: [0; MAX_SACK_WORDS],
        }
    }

    /// Begins anew. The bitmap is empty: a window is only given back when nothing is held.
    pub(super) fn start(&mut self, next: u64, ce: u32, window: u64, packet: u64, ack_every: u16) {
        assert!(self.held == 0, "a recycled window holds nothing");
        (self.next, self.high, self.told, self.ce) = (next, next, next, ce);
        self.window = window;
        // Headers of an ACK take 64 bytes with its ICRC; a word of slack for what rides along.
        self.max_words = ((packet as usize).saturating_sub(72) / 8).clamp(1, MAX_SACK_WORDS);
        self.ack_every = ack_every;
        self.reverse = Reverse::default();
        self.acknowledged();
        (self.timestamp, self.fresh, self.last_ce) = (0, false, false);
    }

    fn acknowledged(&mut self) {
        self.pending = 0;
        self.ack_now = false;
        self.needs_pure = false;
        self.ack_at = Instant::FAR;
    }

    #[inline]
    pub(super) fn arrival(&self, number: u64) -> Arrival {
        let ahead = number.wrapping_sub(self.next);
        if ahead >= self.window {
            outside(ahead)
        } else if self.held > 0 && self.bits.get(number) {
            Arrival::Duplicate
        } else {
            Arrival::New
        }
    }

    #[inline(always)]
    pub(super) const fn is_next(&self, number: u64) -> bool {
        number == self.next && self.held == 0
    }

    #[inline(always)]
    pub(super) fn accept(
        &mut self,
        now: Instant,
        number: u64,
        packet: &Received,
        delay_ns: u64,
        counters: &mut Counters,
    ) {
        assert!(
            self.arrival(number) == Arrival::New,
            "only new packets are accepted"
        );
        if self.is_next(number) {
            self.next += 1;
            self.high = self.next;
        } else {
            self.accept_out_of_order(number);
        }
        counters.accepted += 1;
        self.reverse.sample(now, packet.timestamp);
        self.note(now, packet, delay_ns, counters);
    }

    #[cold]
    fn accept_out_of_order(&mut self, number: u64) {
        if number == self.next {
            self.next += 1;
            while self.held > 0 {
                let run = u64::from((!self.bits.gather(self.next)).trailing_zeros());
                for number in self.next..self.next + run {
                    self.bits.clear(number);
                }
                self.held -= run as u32;
                self.next += run;
                if run < 64 {
                    break;
                }
            }
            self.ack_now = true;
            // A piggybacked number would not tell of what is held behind the next hole.
            self.needs_pure |= self.held > 0;
        } else {
            self.bits.set(number);
            self.held += 1;
            // A new hole, or an old one that shrank: the peer decides by it what was lost.
            self.ack_now |= number != self.high;
            self.needs_pure = true;
        }
        self.high = self.high.max(number + 1).max(self.next);
    }

    #[inline]
    fn note(&mut self, now: Instant, packet: &Received, delay_ns: u64, counters: &mut Counters) {
        self.timestamp = packet.timestamp;
        self.timestamp_at = now;
        self.fresh = true;
        if self.pending == 0 {
            self.ack_at = now + delay_ns;
        }
        self.pending = self.pending.saturating_add(1);
        self.ack_now |= packet.ack_req;
        if packet.ce {
            self.ce = self.ce.wrapping_add(1);
            counters.ce += 1;
            self.needs_pure = true;
        }
        if packet.ce != self.last_ce {
            // As DCTCP does (RFC 8257, 3.2): the sender learns of a change at once.
            self.last_ce = packet.ce;
            self.ack_now = true;
        }
    }

    /// A packet came again: its sender does not know that it arrived.
    pub(super) fn duplicate(
        &mut self,
        now: Instant,
        packet: &Received,
        delay_ns: u64,
        counters: &mut Counters,
    ) {
        counters.duplicates += 1;
        self.needs_pure |= self.held > 0;
        self.note(now, packet, delay_ns, counters);
    }

    fn is_due(&self, now: Instant) -> bool {
        let every = if self.held > 0 {
            self.ack_every.min(ACK_EVERY_WITH_HOLES)
        } else {
            self.ack_every
        };
        self.ack_now || self.pending >= every || now >= self.ack_at
    }

    pub(super) fn poll_ack(&mut self, now: Instant, counters: &mut Counters) -> Option<AckOut<'_>> {
        if !self.is_due(now) {
            return None;
        }
        self.acknowledged();
        self.fresh = false;
        self.told = self.next;
        counters.acks += 1;
        let words = if self.held == 0 {
            0
        } else {
            let span = self.high - (self.next + 1);
            (span.div_ceil(64) as usize).min(self.max_words)
        };
        let mut number = self.next + 1;
        for word in &mut self.words[..words] {
            // The last word may reach the bit that `next + 4096` shares with `next`: it is clear.
            *word = self.bits.gather(number);
            number += 64;
        }
        Some(AckOut {
            cumulative: self.next as u32,
            sack: &self.words[..words],
            ce: self.ce,
            delay_ns: u32::try_from(now.since(self.timestamp_at)).unwrap_or(u32::MAX),
            timestamp: ticks(now),
            echo: self.timestamp,
        })
    }

    /// What a data packet says about the reverse direction: acknowledgement and echo.
    #[inline]
    pub(super) fn piggyback(&mut self, now: Instant) -> (u32, u32) {
        let mut echo = 0;
        if self.fresh && self.timestamp != 0 {
            // There is no field for the holding time, so it is added to the echo.
            let held = (now.since(self.timestamp_at) >> TICK_SHIFT) as u32;
            echo = non_zero(self.timestamp.wrapping_add(held));
            self.fresh = false;
        }
        if self.held == 0 {
            self.told = self.next;
        }
        // Without its bitmap a newer number would hide what else has arrived, and the peer would
        // take that for lost.
        (self.told as u32, echo)
    }

    pub(super) fn piggybacked(&mut self) {
        if !self.needs_pure {
            self.acknowledged();
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.ack_now |= now >= self.ack_at;
    }

    /// When `poll_ack` must be asked, or [`Instant::FAR`]; `ZERO` for at once.
    pub(super) fn timeout(&self) -> Instant {
        if self.is_due(Instant::ZERO) {
            Instant::ZERO
        } else {
            self.ack_at
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.held == 0 && self.pending == 0 && !self.ack_now
    }
}

/// Where a number lies that is not in the window, `ahead` of the next one expected.
pub(super) const fn outside(ahead: u64) -> Arrival {
    if (ahead as i64) < 0 {
        Arrival::Duplicate
    } else {
        Arrival::Beyond
    }
}
