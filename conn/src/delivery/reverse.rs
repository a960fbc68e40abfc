//! Queueing on the way back, which is no reason to send less on the way out.
//!
//! A round trip does not tell the two ways apart. Where the peer sends data too, the timestamps of
//! its packets do: they lag by the delay of the way back plus an unknown constant, the difference
//! of the clocks, and the smallest lag of late stands for an empty queue. Clocks drift, so users
//! must bound what they believe of it.

use super::config::{TICK_SHIFT, ticks};
use crate::time::{Instant, SECOND};

/// The smallest lag is that of the last one to two pages: short enough for clocks that drift.
const PAGE_NS: u64 = SECOND;

#[derive(Debug, Default)]
pub(super) struct Reverse {
    /// Smallest lag in ticks, on a circle; of the last page and the present one, and of the latter.
    base: u32,
    page_base: u32,
    page_end: Instant,
    /// Queueing in ticks: falls at once and rises slowly, because a reordered packet is late too.
    queue: u32,
    sampled_at: Instant,
}

impl Reverse {
    /// A packet of the peer's came at `now`, sent at `timestamp` by its clock.
    #[inline]
    pub(super) fn sample(&mut self, now: Instant, timestamp: u32) {
        let lag = ticks(now).wrapping_sub(timestamp);
        if now >= self.page_end {
            self.turn_page(now, lag);
        }
        if is_less(lag, self.base) {
            self.base = lag;
        }
        if is_less(lag, self.page_base) {
            self.page_base = lag;
        }
        let queue = lag.wrapping_sub(self.base);
        self.queue = if queue < self.queue {
            queue
        } else {
            self.queue + (queue - self.queue) / 8
        };
        self.sampled_at = now;
    }

    #[cold]
    fn turn_page(&mut self, now: Instant, lag: u32) {
        let missed = self.page_end == Instant::ZERO || self.page_end + PAGE_NS <= now;
        self.base = if missed { lag } else { self.page_base };
        self.page_base = lag;
        self.page_end = now + PAGE_NS;
    }

    /// Queueing delay of the way back in ns; 0 when the peer has sent nothing for `fresh_ns`.
    pub(super) fn queue_ns(&self, now: Instant, fresh_ns: u64) -> u64 {
        if now.since(self.sampled_at) > fresh_ns {
            return 0;
        }
        u64::from(self.queue) << TICK_SHIFT
    }
}

/// On a circle of 32 bits.
const fn is_less(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MICROSECOND;

    #[test]
    fn a_standing_queue_is_seen_whatever_the_clocks_say() {
        for offset in [0, 1 << 31, u32::MAX - 100] {
            let mut reverse = Reverse::default();
            for step in 0..200 {
                let sent = Instant::from_nanos(MICROSECOND + step * MICROSECOND);
                let queue = if step < 100 { 0 } else { 20 * MICROSECOND };
                let timestamp = ticks(sent).wrapping_add(offset);
                reverse.sample(sent + 5 * MICROSECOND + queue, timestamp);
            }
            let now = Instant::from_nanos(225 * MICROSECOND);
            let queue = reverse.queue_ns(now, 50 * MICROSECOND);
            assert!((15_000..=20_016).contains(&queue), "{queue}");
            assert_eq!(reverse.queue_ns(now + SECOND, 50 * MICROSECOND), 0);
        }
    }
}
