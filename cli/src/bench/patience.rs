//! How long nothing may move.

use std::time::{Duration, Instant};

/// When something moved last, and how long nothing may.
#[derive(Debug)]
pub(crate) struct Patience {
    limit: Duration,
    moved: Instant,
    /// Packets that had arrived when it was told last.
    arrived: u64,
}

impl Patience {
    /// It begins now.
    pub(crate) const fn new(limit: Duration, now: Instant) -> Self {
        Self {
            limit,
            moved: now,
            arrived: 0,
        }
    }

    /// How long nothing may move.
    pub(crate) const fn limit(&self) -> Duration {
        self.limit
    }

    /// Something that was waited for has happened.
    pub(crate) const fn moved(&mut self, now: Instant) {
        self.moved = now;
    }

    /// So many packets have arrived by now. Where there are more than before
    /// something moves, though a large message may take longer than anybody has patience with
    /// silence.
    pub(crate) const fn arrived(&mut self, packets: u64, now: Instant) {
        if self.arrived != packets {
            self.arrived = packets;
            self.moved(now);
        }
    }

    /// Whether it is over.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.moved) > self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn a_message_that_goes_on_may_take_longer_than_the_patience() {
        let began = Instant::now();
        let mut patience = Patience::new(LIMIT, began);
        for second in 0..100 {
            let now = began + Duration::from_secs(second);
            patience.arrived(second / 5, now);
            assert!(!patience.is_over(now), "after {second} s");
        }
    }

    #[test]
    fn a_peer_that_takes_nothing_more_is_waited_for_as_long_as_was_said() {
        let began = Instant::now();
        let mut patience = Patience::new(LIMIT, began);
        patience.arrived(7, began);
        for second in 0..=10 {
            let now = began + Duration::from_secs(second);
            patience.arrived(7, now);
            assert!(!patience.is_over(now), "after {second} s");
        }
        let late = began + Duration::from_secs(11);
        assert!(patience.is_over(late));
        patience.moved(late);
        assert!(!patience.is_over(late), "a completion counts too");
    }
}
