//! Acknowledgements that wait at this end.
//!
//! A window bounds what the network holds. What is acknowledged has left it, but counts as in
//! flight until somebody here looks: a worker may be building packets, or another program have its
//! processor. A round trip is measured without that time, so a window that follows from it is too
//! small by what was sent in it.

use crate::time::MICROSECOND;

/// Where acknowledgements wait for longer on average, this end has too much to do, and more under
/// way would not help.
const MOST_NS: u64 = 100 * MICROSECOND;
/// Most bytes that are held for acknowledged.
const MOST: u64 = 128 << 10;

/// Averages over the last few acknowledgements, in ns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    waited_ns: u64,
    elapsed_ns: u64,
}

impl Waits {
    /// An acknowledgement waited for so long, `elapsed_ns` after what it acknowledges was sent.
    pub(super) fn sample(&mut self, waited_ns: u64, elapsed_ns: u64) {
        self.waited_ns = (self.waited_ns * 7 + waited_ns.min(elapsed_ns)) / 8;
        self.elapsed_ns = (self.elapsed_ns * 7 + elapsed_ns) / 8;
    }

    /// How much of a window in flight is acknowledged by what waits here.
    pub(super) fn part_of(&self, window: u64) -> u64 {
        if self.waited_ns > MOST_NS {
            return 0;
        }
        let part = window.saturating_mul(self.waited_ns) / self.elapsed_ns.max(1);
        part.min(window).min(MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 100_000;

    fn after(waited_us: u64, elapsed_us: u64) -> Waits {
        let mut waits = Waits::default();
        for _ in 0..100 {
            waits.sample(waited_us * MICROSECOND, elapsed_us * MICROSECOND);
        }
        waits
    }

    #[test]
    fn as_much_of_a_window_is_acknowledged_as_acknowledgements_wait_of_their_time() {
        assert_eq!(Waits::default().part_of(WINDOW), 0);
        assert_eq!(after(0, 40).part_of(WINDOW), 0);
        let quarter = after(10, 40).part_of(WINDOW);
        assert!(quarter.abs_diff(WINDOW / 4) < WINDOW / 100, "{quarter}");
    }

    #[test]
    fn it_is_no_more_than_the_window_and_nothing_where_this_end_has_too_much_to_do() {
        assert!(after(90, 10).part_of(WINDOW) <= WINDOW);
        assert_eq!(after(50, 100).part_of(u64::MAX), MOST);
        assert_eq!(after(200, 400).part_of(WINDOW), 0);
    }
}
