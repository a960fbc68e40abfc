//! How often a message is sent again, and when.

use crate::quote::REFUSED_FOR_NS;
use trunkline_conn::time::{Instant, MILLISECOND};

/// How patiently an answer is waited for: each wait is twice as long as the one before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Retry {
    /// Times the message is sent, `1 ..= 16`.
    pub tries: u8,
    /// Time from the first message until the last wait is over, in nanoseconds, before jitter
    /// (an eighth either way).
    pub total_ns: u64,
}

impl Retry {
    /// For a peer of which nothing is known: 3 tries, 200 ms. Its silence means a plain `rc` peer.
    pub const UNKNOWN: Self = Self {
        tries: 3,
        total_ns: 200 * MILLISECOND,
    };
    /// For a peer that is known to be there: 6 tries, 1.2 s. Giving up early would gain nothing.
    pub const KNOWN: Self = Self {
        tries: 6,
        total_ns: 1_200 * MILLISECOND,
    };
    /// For ordinary hosts: 8 tries, 25 s, the first wait a tenth of a second. A host under load
    /// takes seconds, and the first message to it may wait for its address.
    pub const PLAIN: Self = Self {
        tries: 8,
        total_ns: 25_000 * MILLISECOND,
    };

    /// The same tries within less time, where there is less.
    #[must_use]
    pub fn within(self, total_ns: u64) -> Self {
        Self {
            total_ns: self.total_ns.min(total_ns),
            ..self
        }
    }

    /// The wait after try number `sent` (1 is the first), with jitter from `random`.
    fn wait_ns(self, sent: u8, random: u64) -> u64 {
        let units = (1 << self.tries) - 1;
        let wait = (self.total_ns / units) << (sent - 1);
        // Senders that began together drift apart.
        wait - wait / 8 + random % (wait / 4 + 1)
    }
}

/// How far a peer may ask for patience (MRA) within one exchange.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Patience {
    /// Times it may ask.
    pub times: u8,
    /// The most that it gets each time, in nanoseconds.
    pub most_ns: u64,
}

impl Patience {
    /// Of handshakes between nodes: what decides is a program that never sleeps.
    pub const SHORT: Self = Self {
        times: 3,
        most_ns: 2_000 * MILLISECOND,
    };
    /// Of ordinary hosts, where a user's program decides: the 69 s that the Linux kernel asks for.
    pub const LONG: Self = Self {
        times: 8,
        most_ns: 70_000 * MILLISECOND,
    };
}

/// Where the tries of one message stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    retry: Retry,
    sent: u8,
    mras: u8,
    /// When the peer's host said first that nobody is there.
    refused_at: Option<Instant>,
    /// When to send again, or give up.
    pub(crate) deadline: Instant,
}

impl Schedule {
    /// The message goes out for the first time.
    ///
    /// # Panics
    /// `retry.tries` is not in `1 ..= 16`.
    pub(crate) fn start(now: Instant, retry: Retry, random: u64) -> Self {
        assert!(
            (1..=16).contains(&retry.tries),
            "{} tries are not 1 to 16",
            retry.tries
        );
        Self {
            retry,
            sent: 1,
            mras: 0,
            refused_at: None,
            deadline: now + retry.wait_ns(1, random),
        }
    }

    /// After the deadline: the schedule when the message goes out again, `None` when all tries are
    /// used up.
    pub(crate) fn again(mut self, now: Instant, random: u64) -> Option<Self> {
        if self.sent == self.retry.tries {
            return None;
        }
        self.sent += 1;
        self.deadline = now + self.retry.wait_ns(self.sent, random);
        Some(self)
    }

    /// The peer's host says that nobody is there. Whether that is to be believed: it has said so
    /// before, long enough ago. The first time, the message goes out again when a second error
    /// would count, however few tries are left: its sender need not be patient to hear it.
    pub(crate) fn refused(&mut self, now: Instant) -> bool {
        if let Some(first) = self.refused_at {
            return now.since(first) >= REFUSED_FOR_NS;
        }
        self.refused_at = Some(now);
        self.sent = self.sent.min(self.retry.tries - 1);
        self.deadline = now + REFUSED_FOR_NS;
        false
    }

    /// The peer asks for patience (MRA). `None` when it has done so too often. `exponent` as on the
    /// wire: 4.096 us times 2 to it; what exceeds `patience` is cut.
    pub(crate) fn extended(
        mut self,
        now: Instant,
        exponent: u8,
        patience: Patience,
    ) -> Option<Self> {
        if self.mras == patience.times {
            return None;
        }
        self.mras += 1;
        let wait = timeout_ns(exponent).min(patience.most_ns);
        self.deadline = self.deadline.max(now + wait);
        Some(self)
    }
}

/// A time as messages code it (IBTA Vol 1, 12.6.5): 4.096 us times 2 to the exponent of 5 bits.
pub(crate) const fn timeout_ns(exponent: u8) -> u64 {
    4_096 << (exponent & 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(retry: Retry, random: u64) -> alloc::vec::Vec<u64> {
        (1..=retry.tries)
            .map(|sent| retry.wait_ns(sent, random))
            .collect()
    }

    #[test]
    fn three_tries_take_about_200_ms_whatever_the_jitter() {
        for random in [0, 1, 1 << 20, 7_142_857, u64::MAX] {
            let waits = waits(Retry::UNKNOWN, random);
            let total: u64 = waits.iter().sum();
            assert!((174 * MILLISECOND..=226 * MILLISECOND).contains(&total));
            assert!(waits.windows(2).all(|w| w[1] > w[0] * 3 / 2), "{waits:?}");
        }
    }

    #[test]
    fn a_schedule_gives_up_after_its_tries() {
        let mut schedule = Schedule::start(Instant::ZERO, Retry::UNKNOWN, 5);
        for _ in 1..Retry::UNKNOWN.tries {
            schedule = schedule.again(schedule.deadline, 5).expect("a try is left");
        }
        assert!(schedule.again(schedule.deadline, 5).is_none());
    }

    #[test]
    fn the_first_error_that_quotes_a_last_try_makes_one_more_and_a_later_one_is_believed() {
        for tries in [1, Retry::UNKNOWN.tries] {
            let retry = Retry {
                tries,
                ..Retry::UNKNOWN
            };
            let mut schedule = Schedule::start(Instant::ZERO, retry, 5);
            for _ in 1..tries {
                schedule = schedule.again(schedule.deadline, 5).expect("a try is left");
            }
            let first = schedule.deadline;
            assert!(!schedule.refused(first));
            assert_eq!(schedule.deadline, first + REFUSED_FOR_NS);
            let again = schedule.again(schedule.deadline, 5);
            let mut again = again.expect("a second error can only come of another message");
            assert!(again.again(again.deadline, 5).is_none(), "{tries} tries");
            assert!(again.refused(first + REFUSED_FOR_NS));
        }
    }

    #[test]
    fn patience_asked_for_is_granted_three_times_and_never_shortens_a_wait() {
        let start = Schedule::start(Instant::ZERO, Retry::UNKNOWN, 0);
        let short = start
            .extended(Instant::ZERO, 0, Patience::SHORT)
            .expect("the first time");
        assert_eq!(short.deadline, start.deadline);
        let long = short
            .extended(Instant::ZERO, 31, Patience::SHORT)
            .expect("the second time");
        assert_eq!(long.deadline, Instant::ZERO + 2_000 * MILLISECOND);
        let last = long
            .extended(Instant::ZERO, 31, Patience::SHORT)
            .expect("the third time");
        assert!(last.extended(Instant::ZERO, 31, Patience::SHORT).is_none());
    }
}
