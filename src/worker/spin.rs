//! How long who drives a worker goes on looking for work before it sleeps.

use std::time::{Duration, Instant};

/// The longest time for which it looks: about what it takes to be woken where processors halt.
const LONGEST_NS: i64 = 100_000;
/// Most that is on the account: so many looks in vain are paid for when work ends.
const MOST_NS: i64 = 4 * LONGEST_NS;
/// Where looking does not pay, this part of the time goes for trying it again.
const SHARE: i64 = 32;
/// Whoever keeps the processor for longer, when it is offered, needs it.
const NEEDED_NS: i64 = 30_000;
/// How many times such a time is charged, and the longest that is.
const NEEDED_WEIGHT: i64 = 8;
const NEEDED_MOST_NS: i64 = 4_000_000;

/// Decides how long whoever drives a node looks for work before it sleeps.
///
/// Two ends that sleep between messages wait for each other to wake, twice in each round trip; two
/// that look wait for nothing. But whoever has slept does not know how short its wait would have
/// been if its peer had not slept, either. So there is an account: looking that finds work early
/// pays into it, looking in vain is charged to it, and a thirty-second part of all time is paid in
/// for trying again. Where it does not cover a look in vain, its owner sleeps at once. A look takes
/// 100 us at most.
///
/// In between others have the processor. Where they need it, there is no looking for some time.
///
/// ```
/// use std::time::Duration;
/// use trunkline::{Error, Node, Spin};
///
/// /// Drives an inline node.
/// fn drive(node: &Node, is_over: impl Fn() -> bool) -> Result<(), Error> {
///     let mut spin = Spin::new();
///     while !is_over() {
///         if node.poll()? {
///             spin.worked();
///         } else if !spin.looks_again() {
///             node.wait(Duration::from_millis(100))?;
///         }
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug, Default)]
pub struct Spin(Account);

impl Spin {
    /// That of a driver which begins.
    pub const fn new() -> Self {
        Self(Account {
            balance_ns: 0,
            state: State::Working,
            given_at: None,
        })
    }

    /// There was something to do.
    #[inline]
    pub fn worked(&mut self) {
        if self.0.is_idle() {
            self.0.worked(Instant::now());
        }
    }

    /// There was nothing to do. Returns whether to look again at once, and not to sleep; if so, it
    /// has offered the processor to others.
    pub fn looks_again(&mut self) -> bool {
        let now = Instant::now();
        let looks = self.0.looks_again(now);
        if looks {
            std::thread::yield_now();
            self.0.offered(now.elapsed());
        }
        looks
    }
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Working,
    /// It looks for work, since then.
    Looking(Instant),
    /// The same, and others needed the processor for so long.
    Outdone(Instant, i64),
    Sleeping,
}

/// What looking has brought, in ns.
#[derive(Debug, Default)]
struct Account {
    balance_ns: i64,
    state: State,
    /// When it was given its share of all time last.
    given_at: Option<Instant>,
}

impl Account {
    const fn is_idle(&self) -> bool {
        !matches!(self.state, State::Working)
    }

    /// There was something to do at `now`. What looking has saved is paid in: the time of being
    /// woken, less that of looking.
    fn worked(&mut self, now: Instant) {
        let saved_ns = |since| LONGEST_NS - ns(now.saturating_duration_since(since));
        match self.state {
            State::Outdone(since, needed_ns) if saved_ns(since) < 0 => self.outdone(needed_ns),
            State::Looking(since) | State::Outdone(since, _) => {
                let saved_ns = saved_ns(since).max(-LONGEST_NS);
                self.balance_ns = (self.balance_ns + saved_ns).min(MOST_NS);
            }
            State::Working | State::Sleeping => {}
        }
        self.state = State::Working;
    }

    /// There was nothing to do at `now`: returns whether to look again.
    fn looks_again(&mut self, now: Instant) -> bool {
        match self.state {
            State::Working => {
                self.give_share(now);
                self.state = match self.balance_ns >= LONGEST_NS {
                    true => State::Looking(now),
                    false => State::Sleeping,
                };
            }
            State::Looking(since) if ns(now.saturating_duration_since(since)) >= LONGEST_NS => {
                self.charge(LONGEST_NS);
            }
            State::Outdone(_, needed_ns) => self.outdone(needed_ns),
            State::Looking(_) | State::Sleeping => {}
        }
        matches!(self.state, State::Looking(_))
    }

    /// Others were offered the processor, and it came back after `took`.
    fn offered(&mut self, took: Duration) {
        if let State::Looking(since) = self.state
            && ns(took) > NEEDED_NS
        {
            self.state = State::Outdone(since, ns(took));
        }
    }

    /// It has looked while others needed the processor for so long.
    fn outdone(&mut self, needed_ns: i64) {
        self.charge(NEEDED_WEIGHT * needed_ns.min(NEEDED_MOST_NS));
    }

    /// It has looked in vain.
    const fn charge(&mut self, cost_ns: i64) {
        self.balance_ns -= cost_ns;
        self.state = State::Sleeping;
    }

    /// Adds the share of the time since this was done last, up to what one look in vain takes.
    fn give_share(&mut self, now: Instant) {
        let before = self.given_at.replace(now).unwrap_or(now);
        let share = ns(now.saturating_duration_since(before)) / SHARE;
        if self.balance_ns < LONGEST_NS {
            self.balance_ns = (self.balance_ns + share).min(LONGEST_NS);
        }
    }
}

fn ns(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
