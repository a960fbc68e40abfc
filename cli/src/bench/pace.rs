//! The rounds of a loop that polls: when others get the processor, and when to look around.

use std::time::{Duration, Instant};

/// Empty rounds before another process gets the processor.
const SPINS: u32 = 1000;
/// Rounds between looks at the clock.
const ROUNDS: u32 = 64;
/// Time between looks around.
const LOOK: Duration = Duration::from_millis(10);
/// Time between them after which this process is not sure what it missed.
const ABSENCE: Duration = Duration::from_secs(1);

/// Counts the rounds of a loop.
#[derive(Debug)]
pub(super) struct Pace {
    idle: u32,
    rounds: u32,
    looked: Instant,
}

/// It is time to look around.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// What time it is.
    pub(super) now: Instant,
    /// This process was busy, or stopped: nobody can say what moved meanwhile.
    pub(super) was_absent: bool,
}

impl Pace {
    /// Begins.
    pub(super) fn new() -> Self {
        Self {
            idle: 0,
            rounds: 0,
            looked: Instant::now(),
        }
    }

    /// A round is over, in which there was something to do if it was `busy`. Gives whether it is
    /// time to look around.
    #[inline]
    pub(super) fn round(&mut self, busy: bool) -> Option<Look> {
        self.idle = if busy { 0 } else { self.idle.saturating_add(1) };
        let spinning = self.idle < SPINS;
        if !spinning {
            std::thread::yield_now();
        }
        self.rounds = self.rounds.wrapping_add(1);
        let due = !spinning || self.rounds.is_multiple_of(ROUNDS);
        if due && self.looked.elapsed() > LOOK {
            let now = Instant::now();
            let before = std::mem::replace(&mut self.looked, now);
            return Some(Look {
                now,
                was_absent: now - before > ABSENCE,
            });
        }
        None
    }
}
