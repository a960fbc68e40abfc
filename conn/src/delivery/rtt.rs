//! Round-trip times.

use crate::time::{Instant, SECOND};

/// A smallest round trip older than once to twice this is forgotten: routes change.
const MIN_LIFE_NS: u64 = 10 * SECOND;

/// Estimates of the round trip (RFC 6298 smoothing), in ns. 0 means not known.
#[derive(Clone, Debug, Default)]
pub(super) struct Rtt {
    pub(super) smoothed: u64,
    pub(super) variation: u64,
    pub(super) min: u64,
    pub(super) latest: u64,
    /// Smallest since the last turn of the page, and when it turns.
    page_min: u64,
    page_end: Instant,
}

impl Rtt {
    pub(super) fn restore(now: Instant, [smoothed, variation, min]: [u64; 3]) -> Self {
        Self {
            smoothed,
            variation,
            min,
            latest: 0,
            page_min: 0,
            page_end: now + MIN_LIFE_NS,
        }
    }

    pub(super) fn sample(&mut self, now: Instant, rtt_ns: u64) {
        let rtt = rtt_ns.max(1);
        self.latest = rtt;
        if now >= self.page_end {
            self.min = if self.page_min == 0 {
                rtt
            } else {
                self.page_min
            };
            self.page_min = 0;
            self.page_end = now + MIN_LIFE_NS;
        }
        if self.min == 0 || rtt < self.min {
            self.min = rtt;
        }
        if self.page_min == 0 || rtt < self.page_min {
            self.page_min = rtt;
        }
        if self.smoothed == 0 {
            (self.smoothed, self.variation) = (rtt, rtt / 2);
        } else {
            self.variation = (self.variation * 3 + self.smoothed.abs_diff(rtt)) / 4;
            self.smoothed = (self.smoothed * 7 + rtt) / 8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_path_is_noticed_at_once_and_a_longer_one_within_two_pages() {
        let mut rtt = Rtt::restore(Instant::ZERO, [0; 3]);
        rtt.sample(Instant::from_nanos(1), 10_000);
        rtt.sample(Instant::from_nanos(2), 8_000);
        assert_eq!(rtt.min, 8_000);
        for second in 1..21 {
            rtt.sample(Instant::from_nanos(second * SECOND), 50_000);
        }
        assert_eq!(rtt.min, 50_000);
        assert!(rtt.smoothed > 45_000 && rtt.smoothed <= 50_000);
    }
}
