//! How much may leave at once.

use super::delay::grown;
use crate::time::MILLISECOND;

/// A burst takes at most such a part of what we may have of a queue that has overflowed.
const OF_CAP: u64 = 4;
/// Marks make bursts as short as such a part of a round trip, and shorter each time by half.
const OF_ROUND: u64 = 64;

/// The longest burst, in ns at the rate at which it leaves.
///
/// A burst fills a queue that is shorter than it whatever the window is: the path is idle between
/// bursts, and a window that would fill it overflows the queue, or is marked.
#[derive(Clone, Debug)]
pub(super) struct Bursts {
    /// What switches did not mark.
    unmarked: u64,
}

impl Bursts {
    pub(super) const ANY: Self = Self { unmarked: u64::MAX };

    /// A burst was marked where no queue stands.
    pub(super) fn marked(&mut self, srtt_ns: u64) {
        self.unmarked = (self.unmarked / 2).min(srtt_ns / OF_ROUND).max(1);
    }

    /// A round has ended: the path may have changed.
    pub(super) fn end_round(&mut self) {
        self.unmarked = grown(self.unmarked);
    }

    /// Bytes of the longest at so many bytes per second, where queues may be as long as `cap`.
    pub(super) fn bytes(&self, rate: u64, cap: u64) -> u64 {
        let longest = self.unmarked.min(cap / OF_CAP);
        (rate / 1_000).saturating_mul(longest) / MILLISECOND
    }
}

#[cfg(test)]
mod tests {
    use super::super::delay::CAP_ROUNDS;
    use super::*;
    use crate::time::MICROSECOND;

    /// Bytes per second.
    const RATE: u64 = 1_000_000_000;
    const SRTT_NS: u64 = 64 * MICROSECOND;

    #[test]
    fn bursts_are_short_where_queues_are() {
        assert!(Bursts::ANY.bytes(RATE, u64::MAX) > 1 << 32);
        assert_eq!(Bursts::ANY.bytes(RATE, 40 * MICROSECOND), 10_000);
    }

    #[test]
    fn marks_shorten_bursts_until_there_are_none() {
        let mut bursts = Bursts::ANY;
        bursts.marked(SRTT_NS);
        assert_eq!(bursts.bytes(RATE, u64::MAX), 1_000);
        bursts.marked(SRTT_NS);
        assert_eq!(bursts.bytes(RATE, u64::MAX), 500);
        for _ in 0..CAP_ROUNDS {
            bursts.end_round();
        }
        assert!(bursts.bytes(RATE, u64::MAX) >= 1_000);
    }
}
