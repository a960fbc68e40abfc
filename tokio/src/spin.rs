//! How long a driver goes on looking for work before it sleeps.

use std::time::{Duration, Instant};

/// The longest time for which it looks in vain.
const LONGEST: Duration = Duration::from_micros(100);
/// The shortest, unless it does not look at all.
const SHORTEST: Duration = Duration::from_micros(5);
/// A wait that counts as much as any longer one.
const LONG_WAIT: Duration = Duration::from_micros(400);
/// Part of a new wait in the average.
const WEIGHT: u32 = 8;

/// Looks for work go on as long as most waits of late would have been over; not at all where most
/// were too long. Time counts and not looks, so that tasks that keep the runtime busy leave a
/// driver one look and no more.
#[derive(Debug)]
pub(crate) struct Spin {
    average: Duration,
    idle_since: Option<Instant>,
}

impl Spin {
    pub(crate) const fn new() -> Self {
        Self {
            average: LONGEST,
            idle_since: None,
        }
    }

    /// There was something to do at `now`.
    pub(crate) fn worked(&mut self, now: impl FnOnce() -> Instant) {
        if let Some(since) = self.idle_since.take() {
            let wait = now().saturating_duration_since(since).min(LONG_WAIT);
            self.average = (self.average * (WEIGHT - 1) + wait) / WEIGHT;
        }
    }

    /// There was nothing to do at `now`: returns whether to look again at once.
    pub(crate) fn goes_on(&mut self, now: Instant) -> bool {
        let since = *self.idle_since.get_or_insert(now);
        if self.average > LONGEST {
            return false;
        }
        let limit = (self.average * 2).clamp(SHORTEST, LONGEST);
        now.saturating_duration_since(since) < limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits of one length, until the average is that: whether looking goes on at their half.
    fn looks_after(waits: Duration) -> bool {
        let mut spin = Spin::new();
        let start = Instant::now();
        for _ in 0..100 {
            spin.goes_on(start);
            spin.worked(|| start + waits);
        }
        spin.goes_on(start);
        spin.goes_on(start + waits / 2)
    }

    #[test]
    fn short_waits_are_looked_through_and_long_ones_slept_through() {
        assert!(looks_after(Duration::from_micros(10)));
        assert!(looks_after(Duration::from_micros(40)));
        assert!(!looks_after(Duration::from_micros(200)));
        assert!(!looks_after(Duration::from_secs(1)));
    }

    #[test]
    fn it_looks_for_a_bounded_time() {
        let (mut spin, start) = (Spin::new(), Instant::now());
        assert!(spin.goes_on(start));
        assert!(!spin.goes_on(start + LONGEST));
    }

    #[test]
    fn short_waits_after_a_long_one_are_looked_through_again() {
        let (mut spin, start) = (Spin::new(), Instant::now());
        for _ in 0..100 {
            spin.goes_on(start);
            spin.worked(|| start + Duration::from_secs(1));
        }
        let mut waits = 0;
        while !spin.goes_on(start) {
            spin.worked(|| start + Duration::from_micros(10));
            waits += 1;
        }
        assert!((5..50).contains(&waits), "{waits}");
    }
}
