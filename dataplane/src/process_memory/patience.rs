//! How long workers wait for memory that blocks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long workers wait, in all, for pages that block: [`MOST`](Self::MOST) at first. What was
/// waited is gone, and comes back by one part in [`REFILL`](Self::REFILL) of the time. All
/// programs of a user share one, so that a user with many of them has it once.
#[derive(Debug)]
pub struct Patience(Mutex<Left>);

#[derive(Debug)]
struct Left {
    /// The most that is left at any time.
    most: Duration,
    /// How much was left `at` that moment.
    time: Duration,
    at: Instant,
}

impl Patience {
    /// The most that is left at any time.
    pub const MOST: Duration = Duration::from_millis(100);
    /// The time in which one part of it comes back, in such parts.
    pub const REFILL: u32 = 100;

    /// Patience of which nothing is used.
    pub fn new() -> Self {
        Self::of(Self::MOST)
    }

    /// That much of it.
    pub(super) fn of(most: Duration) -> Self {
        Self(Mutex::new(Left {
            most,
            time: most,
            at: Instant::now(),
        }))
    }

    /// How long may be waited from `now` on.
    pub fn left(&self, now: Instant) -> Duration {
        self.lock().left(now)
    }

    /// A worker has waited that long, until `now`.
    pub fn charge(&self, waited: Duration, now: Instant) {
        let mut left = self.lock();
        let time = left.left(now).saturating_sub(waited);
        // Another worker may have come to the lock first, with a later moment.
        let at = now.max(left.at);
        (left.time, left.at) = (time, at);
    }

    fn lock(&self) -> MutexGuard<'_, Left> {
        // Whoever holds it does nothing that panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::new()
    }
}

impl Left {
    fn left(&self, now: Instant) -> Duration {
        let since = now.saturating_duration_since(self.at);
        (self.time + since / Patience::REFILL).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_was_waited_is_gone_and_comes_back_by_a_hundredth_of_the_time() {
        let patience = Patience::new();
        let start = Instant::now();
        assert_eq!(patience.left(start), 100 * MS);
        patience.charge(30 * MS, start);
        assert_eq!(patience.left(start), 70 * MS);
        assert_eq!(patience.left(start + 1000 * MS), 80 * MS);
        patience.charge(79 * MS, start + 1000 * MS);
        assert_eq!(patience.left(start + 1000 * MS), MS);
    }

    #[test]
    fn there_is_never_more_of_it_than_at_first_and_never_less_than_none() {
        let patience = Patience::new();
        let start = Instant::now();
        assert_eq!(patience.left(start + 1_000_000 * MS), Patience::MOST);
        patience.charge(5000 * MS, start);
        assert_eq!(patience.left(start), Duration::ZERO);
        assert_eq!(patience.left(start + 500 * MS), 5 * MS);
        assert_eq!(patience.left(start + 20_000 * MS), Patience::MOST);
    }

    /// Several workers take the time one after the other.
    #[test]
    fn a_charge_of_a_moment_before_the_last_one_gives_nothing_back() {
        let patience = Patience::new();
        let start = Instant::now();
        patience.charge(90 * MS, start + 100 * MS);
        patience.charge(MS, start);
        assert_eq!(patience.left(start + 100 * MS), 9 * MS);
    }
}
