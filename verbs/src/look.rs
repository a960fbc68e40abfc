//! How long a thread looks for an event before it sleeps.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// About what it takes to be woken where processors halt: who looks so long in vain loses no more
/// than it would have gained.
const LONGEST: Duration = Duration::from_micros(75);
/// Most waits in a row that sleep at once, where looking was in vain.
const MOST_PASSED: u32 = 254;

/// Whether looking pays at a channel: whether what its threads wait for comes sooner than they
/// could sleep and be woken.
///
/// It often does at every other wait: a program that answers waits for the completion of its
/// send, which comes soon, and then for the next question, which does not. So waits behind one that
/// found something without sleeping have an account of their own. Where a thread that looks keeps
/// the one that it waits for from the processor, looking never pays.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// The last wait found something without sleeping.
    found: AtomicBool,
    /// Of waits behind one that slept, and of the others.
    accounts: [Account; 2],
}

/// Each look in vain doubles the number of waits that sleep at once, and one that finds something
/// ends that. The number is even, so that of waits that are short and long by turns both are tried.
#[derive(Debug, Default)]
struct Account {
    /// Waits that sleep at once, from now on.
    passing: AtomicU32,
    /// How many were to do that after the last look in vain.
    passed: AtomicU32,
}

impl Looks {
    /// Calls `look` until it finds something, for as long as that pays.
    ///
    /// Several threads may do that at once. What one of them counts then may be lost, and no more.
    pub(crate) fn look<T>(&self, look: impl FnMut() -> Option<T>) -> Option<T> {
        let account = &self.accounts[usize::from(self.found.load(Ordering::Relaxed))];
        let found = account.look(look);
        self.found.store(found.is_some(), Ordering::Relaxed);
        found
    }
}

impl Account {
    fn look<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let passing = self.passing.load(Ordering::Relaxed);
        if passing > 0 {
            self.passing.store(passing - 1, Ordering::Relaxed);
            return None;
        }
        let began = Instant::now();
        loop {
            let found = look();
            if found.is_some() || began.elapsed() >= LONGEST {
                self.looked(found.is_some());
                return found;
            }
            std::hint::spin_loop();
        }
    }

    fn looked(&self, found: bool) {
        let passed = match found {
            true => 0,
            false => (2 * self.passed.load(Ordering::Relaxed) + 2).min(MOST_PASSED),
        };
        self.passed.store(passed, Ordering::Relaxed);
        self.passing.store(passed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait for what comes soon, or does not. Whether the thread looked, and found it.
    fn wait(looks: &Looks, soon: bool) -> (bool, bool) {
        let mut looked = false;
        let found = looks.look(|| {
            looked = true;
            soon.then_some(())
        });
        (looked, found.is_some())
    }

    fn looks_in_vain(looks: &Looks, waits: u32) -> usize {
        let looked = (0..waits).filter(|_| wait(looks, false).0);
        looked.count()
    }

    #[test]
    fn who_looks_in_vain_looks_ever_more_rarely() {
        let looks = Looks::default();
        // The waits 0, 3, 10, 25, 56, 119, 246, 501, and each 255th from then on.
        assert_eq!(looks_in_vain(&looks, 502), 8);
        assert_eq!(looks_in_vain(&looks, 25_500), 100);
    }

    #[test]
    fn who_finds_something_goes_on_looking() {
        let looks = Looks::default();
        looks_in_vain(&looks, 1000);
        // It finds that out.
        assert!((0..=MOST_PASSED).any(|_| wait(&looks, true).1));
        for _ in 0..100 {
            assert_eq!(wait(&looks, true), (true, true));
        }
    }

    #[test]
    fn of_short_and_long_waits_by_turns_the_short_ones_are_looked_for_alone() {
        for begins_short in [true, false] {
            let looks = Looks::default();
            let mut counts = [0; 2];
            for n in 0..2000 {
                let soon = (n % 2 == 0) == begins_short;
                let (looked, found) = wait(&looks, soon);
                assert_eq!(found, looked && soon);
                counts[usize::from(soon)] += u32::from(looked);
            }
            assert!(counts[0] <= 20 && counts[1] >= 980, "{counts:?}");
            // One that takes longer for once changes that for a moment.
            for _ in 0..3 {
                wait(&looks, false);
            }
            let turns = (0..200).filter(|n| wait(&looks, n % 2 == 0).1);
            assert!(turns.count() >= 95);
        }
    }

    #[test]
    fn waits_that_become_short_and_long_by_turns_are_found_out_however_long_all_were_long() {
        for begins_short in [true, false] {
            let looks = Looks::default();
            looks_in_vain(&looks, 1000);
            let mut waits = 0..3 * MOST_PASSED;
            let found = waits.any(|n| wait(&looks, (n % 2 == 0) == begins_short).1);
            assert!(found, "{begins_short}");
        }
    }

    #[test]
    fn a_look_ends() {
        let began = Instant::now();
        assert_eq!(wait(&Looks::default(), false), (true, false));
        assert!(began.elapsed() >= LONGEST);
    }
}
