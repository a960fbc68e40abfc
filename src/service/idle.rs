//! When a service ends as nobody uses it.

use std::time::{Duration, Instant};

/// How long a service waits for the first that uses it, at least.
const FIRST: Duration = Duration::from_secs(10);

/// Since when nobody uses a service.
#[derive(Debug)]
pub(super) struct Idle {
    /// `None`: somebody did when it was asked last.
    since: Option<Instant>,
    /// What it waits at least.
    least: Duration,
}

impl Idle {
    pub(super) const fn begin(now: Instant) -> Self {
        Self {
            since: Some(now),
            least: FIRST,
        }
    }

    /// How long a service goes on that is to end `after` that time without use; `None` while it is
    /// used.
    pub(super) fn left(
        &mut self,
        after: Duration,
        is_used: bool,
        now: Instant,
    ) -> Option<Duration> {
        if is_used {
            (self.since, self.least) = (None, Duration::ZERO);
            return None;
        }
        let since = *self.since.get_or_insert(now);
        let end = after.max(self.least);
        Some(end.saturating_sub(now.saturating_duration_since(since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_service_ends_some_time_after_its_last_program() {
        let begin = Instant::now();
        let mut idle = Idle::begin(begin);
        assert_eq!(idle.left(SECOND, true, begin + 5 * SECOND), None);
        // Nobody asks while a program is there that does nothing.
        let left = idle.left(SECOND, false, begin + 3600 * SECOND);
        assert_eq!(left, Some(SECOND));
        let left = idle.left(SECOND, false, begin + 3602 * SECOND);
        assert_eq!(left, Some(Duration::ZERO));
    }

    #[test]
    fn the_first_program_has_time_to_come() {
        let begin = Instant::now();
        let mut idle = Idle::begin(begin);
        let left = idle.left(Duration::ZERO, false, begin);
        assert_eq!(left, Some(FIRST));
        let left = idle.left(20 * SECOND, false, begin + 10 * SECOND);
        assert_eq!(left, Some(10 * SECOND), "a longer time counts");
        let left = idle.left(Duration::ZERO, false, begin + FIRST);
        assert_eq!(left, Some(Duration::ZERO));
    }
}
