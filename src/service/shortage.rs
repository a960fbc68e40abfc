//! What a service says of it that it has no descriptor left, or a program all that it may have.

use std::time::{Duration, Instant};

/// How often the log is told of it at most.
const PAUSE: Duration = Duration::from_secs(10);

/// What whoever is turned away hears, and the log says: what is the matter, and what helps.
pub(super) const REMEDY: &str = "the service has no descriptor left: LimitNOFILE= of its systemd \
     unit, or ulimit -n where it is started, allows it more";

/// How often something was refused because of it.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// When the log was told last.
    told: Option<Instant>,
    /// Refusals of which it was not.
    untold: u64,
}

impl Shortage {
    /// Notes one refusal more. Gives how many the log has not heard of where it is to be told now:
    /// of the first one at once, and of others now and then, as it may be any number.
    pub(super) fn note(&mut self, now: Instant) -> Option<u64> {
        self.untold += 1;
        let is_due = |told| now.saturating_duration_since(told) >= PAUSE;
        if !self.told.is_none_or(is_due) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_hears_of_the_first_at_once_and_then_of_all_now_and_then() {
        let (mut shortage, start) = (Shortage::default(), Instant::now());
        assert_eq!(shortage.note(start), Some(1));
        for second in 1..10 {
            assert_eq!(shortage.note(start + Duration::from_secs(second)), None);
        }
        assert_eq!(shortage.note(start + PAUSE), Some(10));
        assert_eq!(shortage.note(start + PAUSE), None);
        assert_eq!(shortage.note(start + 3 * PAUSE), Some(2));
    }
}
