//! How long a call may take.

use std::time::{Duration, Instant};

/// The end of the time for a call, or for several together. A [`Duration`] becomes one that much
/// later, an [`Instant`] one at that time. Any is valid: one beyond what the clock can tell never
/// ends, and one that is over gives a call no time to wait.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// The longest that is waited for at once: the operating system takes no more than its types
    /// hold, and whoever waits looks again anyway.
    const LONGEST: Duration = Duration::from_secs(3600);

    /// `limit` from now.
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now().checked_add(limit))
    }

    /// What is left of it; `None` when it is over.
    pub(crate) fn left(self) -> Option<Duration> {
        match self.0 {
            Some(end) => end
                .checked_duration_since(Instant::now())
                .filter(|left| !left.is_zero()),
            None => Some(Duration::MAX),
        }
    }

    /// What is left of it, zero when it is over, to hand to another call.
    pub fn rest(self) -> Duration {
        self.left().unwrap_or_default()
    }

    /// How long to wait before the next look; `None` when it is over.
    pub(crate) fn wait(self) -> Option<Duration> {
        self.left().map(|left| left.min(Self::LONGEST))
    }
}

impl From<Duration> for Deadline {
    fn from(limit: Duration) -> Self {
        Self::after(limit)
    }
}

impl From<Instant> for Deadline {
    fn from(end: Instant) -> Self {
        Self(Some(end))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn any_limit_is_valid() {
        let never = Deadline::after(Duration::MAX);
        assert_eq!(never.rest(), Duration::MAX);
        assert_eq!(never.wait(), Some(Deadline::LONGEST));
        let now = Deadline::after(Duration::ZERO);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!((now.left(), now.wait()), (None, None));
        assert_eq!(now.rest(), Duration::ZERO);
    }
}
