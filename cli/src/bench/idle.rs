//! The idle timeout of a measurement.

use std::time::{Duration, Instant};

/// When something moved last, and how long nothing may.
#[derive(Debug)]
pub(crate) struct IdleTimer {
    limit: Duration,
    moved: Instant,
    /// Packets that had arrived at the last call.
    arrived: u64,
}

impl IdleTimer {
    /// Starts the timer at `now`.
    pub(crate) const fn new(limit: Duration, now: Instant) -> Self {
        Self {
            limit,
            moved: now,
            arrived: 0,
        }
    }

    /// Returns how long nothing may move.
    pub(crate) const fn limit(&self) -> Duration {
        self.limit
    }

    /// Notes that something happened which was waited for.
    pub(crate) const fn moved(&mut self, now: Instant) {
        self.moved = now;
    }

    /// Notes how many packets have arrived by now. Where there are `least` more than when that was
    /// so last something moves, though a large message may take longer than the limit.
    pub(crate) const fn arrived(&mut self, packets: u64, least: u64, now: Instant) {
        if packets.wrapping_sub(self.arrived) >= least {
            self.arrived = packets;
            self.moved(now);
        }
    }

    /// Returns whether nothing has moved for longer than that.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.moved) > self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn a_message_that_goes_on_may_take_longer_than_the_idle_time() {
        let began = Instant::now();
        let mut timer = IdleTimer::new(LIMIT, began);
        for second in 0..100 {
            let now = began + Duration::from_secs(second);
            timer.arrived(second / 5, 1, now);
            assert!(!timer.is_over(now), "after {second} s");
        }
    }

    #[test]
    fn a_peer_that_takes_nothing_more_is_waited_for_as_long_as_was_said() {
        let began = Instant::now();
        let mut timer = IdleTimer::new(LIMIT, began);
        timer.arrived(7, 4, began);
        for second in 0..=10 {
            let now = began + Duration::from_secs(second);
            // A connection is opened again and again, which carries nothing.
            timer.arrived(7 + second / 3, 4, now);
            assert!(!timer.is_over(now), "after {second} s");
        }
        let late = began + Duration::from_secs(11);
        assert!(timer.is_over(late));
        timer.moved(late);
        assert!(!timer.is_over(late), "a completion counts too");
    }
}
