//! The receiving half: which numbers have arrived, and when to say so.

use super::bits::Bits;
use super::config::{
    AckOut, Arrival, Counters, MAX_SACK_WORDS, Received, SACK_BITS, TICK_SHIFT, non_zero, ticks,
};
use super::reverse::Reverse;
use crate::time::Instant;

/// Packets between acknowledgements while there are holes.
const ACK_EVERY_WITH_HOLES: u16 = 4;
/// Places that are remembered as new since the last acknowledgement. What is beyond is told in its
/// turn.
const MAX_FRESH: usize = 16;
/// Entries of a bitmap that cannot tell all: about what is new, about the latest, and about the
/// rest in turns.
const LATEST: u64 = 8;
const IN_TURN: u64 = 16;

#[derive(Debug)]
pub(super) struct Receiver {
    /// Next number expected: everything below has arrived.
    pub(super) next: u64,
    /// One past the highest number that has arrived, never below `next`.
    high: u64,
    /// Numbers that arrived above `next`; as many as `held`.
    bits: Bits,
    held: u32,
    /// Numbers that arrived out of order since the last acknowledgement, in blocks of
    /// [`SACK_BITS`], and the number that the last bitmap with a part of all ended with.
    fresh_blocks: [u64; MAX_FRESH],
    fresh_count: u8,
    turn: u64,
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
    /// The source port that the next acknowledgement names, or 0.
    astray: u16,
    words: [u64; MAX_SACK_WORDS],
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self {
            next: 0,
            high: 0,
            bits: Bits::default(),
            held: 0,
            fresh_blocks: [0; MAX_FRESH],
            fresh_count: 0,
            turn: 0,
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
            astray: 0,
            words: [0; MAX_SACK_WORDS],
        }
    }

    /// Begins anew. The bitmap is empty: a window is only given back when nothing is held.
    pub(super) fn start(&mut self, next: u64, ce: u32, window: u64, packet: u64, ack_every: u16) {
        assert!(self.held == 0, "a recycled window holds nothing");
        (self.next, self.high, self.told, self.ce) = (next, next, next, ce);
        self.window = window;
        (self.fresh_count, self.turn) = (0, next);
        // Headers of an ACK take 64 bytes with its ICRC; a word of slack for what rides along.
        self.max_words = ((packet as usize).saturating_sub(72) / 8).clamp(1, MAX_SACK_WORDS);
        self.ack_every = ack_every;
        self.reverse = Reverse::default();
        self.astray = 0;
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
        } else if self.held > 0 && number < self.high && self.bits.get(number) {
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
            self.bits.reserve(self.next, number.max(self.high));
            self.bits.set(number);
            self.held += 1;
            self.remember(number);
            // A new hole, or an old one that shrank: the peer decides by it what was lost.
            self.ack_now |= number != self.high;
            self.needs_pure = true;
        }
        self.high = self.high.max(number + 1).max(self.next);
    }

    /// `number` is to be in the next bitmap.
    fn remember(&mut self, number: u64) {
        let (block, count) = (number / u64::from(SACK_BITS), usize::from(self.fresh_count));
        if self.fresh_blocks[..count].contains(&block) {
            return;
        }
        if let Some(place) = self.fresh_blocks.get_mut(count) {
            *place = block;
            self.fresh_count += 1;
        }
    }

    /// Writes the bitmap and gives the number of its entries: all that came out of order, as far as
    /// there is room; else what is new, the latest, and the rest in turns.
    fn fill(&mut self) -> usize {
        const BITS: u64 = SACK_BITS as u64;
        let mut map = Bitmap {
            first: self.next + 1,
            words: &mut self.words[..self.max_words],
            count: 0,
        };
        let blocks = (self.high - map.first).div_ceil(BITS);
        if blocks <= map.words.len() as u64 {
            (0..blocks).for_each(|block| map.add(&self.bits, block));
            return map.count;
        }
        for &fresh in &self.fresh_blocks[..usize::from(self.fresh_count)] {
            // Its blocks begin elsewhere, so it has a part in two of the bitmap's.
            let end = (fresh + 1) * BITS;
            if end > map.first {
                let from = (fresh * BITS).saturating_sub(map.first) / BITS;
                (from..=(end - 1 - map.first) / BITS).for_each(|block| map.add(&self.bits, block));
            }
        }
        (blocks.saturating_sub(LATEST)..blocks).for_each(|block| map.add(&self.bits, block));
        let mut block = self.turn.saturating_sub(map.first) / BITS;
        for _ in 0..IN_TURN {
            block = if block >= blocks { 0 } else { block };
            map.add(&self.bits, block);
            block += 1;
        }
        self.turn = map.first + block * BITS;
        map.count
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

    /// The next acknowledgement names this source port. A packet with one would not say it.
    pub(super) const fn tell_astray(&mut self, from: u16) {
        self.astray = from;
        self.ack_now = true;
        self.needs_pure = true;
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
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
        let words = if self.held == 0 { 0 } else { self.fill() };
        self.fresh_count = 0;
        Some(AckOut {
            cumulative: self.next as u32,
            sack: &self.words[..words],
            ce: self.ce,
            delay_ns: u32::try_from(now.since(self.timestamp_at)).unwrap_or(u32::MAX),
            timestamp: ticks(now),
            echo: self.timestamp,
            astray: core::mem::take(&mut self.astray),
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

    /// Frees what a long flight has taken; nothing is held.
    pub(super) fn shrink(&mut self) {
        self.bits.shrink();
    }

    pub(super) fn is_idle(&self) -> bool {
        self.held == 0 && self.pending == 0 && !self.ack_now
    }
}

/// A bitmap as it is written: entries of [`SACK_BITS`] numbers from `first` on.
struct Bitmap<'a> {
    first: u64,
    words: &'a mut [u64],
    count: usize,
}

impl Bitmap<'_> {
    /// Adds an entry, unless it is empty, there already, or there is no room.
    fn add(&mut self, bits: &Bits, block: u64) {
        let number = self.first + block * u64::from(SACK_BITS);
        let word = bits.gather(number) & ((1 << SACK_BITS) - 1) | block << SACK_BITS;
        if word & ((1 << SACK_BITS) - 1) == 0 || self.words[..self.count].contains(&word) {
            return;
        }
        if let Some(place) = self.words.get_mut(self.count) {
            *place = word;
            self.count += 1;
        }
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
