//! A lock under which a worker gives way to the calls of programs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LockResult, Mutex, MutexGuard, TryLockError};

/// A value behind a mutex that one thread takes again and again, and others now and then. Those go
/// first: without that a worker that is busy would keep them out for long, as a mutex is not fair.
/// But however many come, and however often, the worker has its turn behind those that wait.
pub(crate) struct PriorityLock<T> {
    /// Threads that go first.
    waiting: AtomicU32,
    /// Workers that wait for those: nobody goes before them any more.
    turns: AtomicU32,
    /// Turns that they have had.
    had: AtomicU32,
    value: Mutex<T>,
}

impl<T> PriorityLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            waiting: AtomicU32::new(0),
            turns: AtomicU32::new(0),
            had: AtomicU32::new(0),
            value: Mutex::new(value),
        }
    }

    /// Takes it, before whoever comes [`last`](Self::lock_last), unless that waits already.
    ///
    /// # Errors
    /// Whoever had it panicked.
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        // For one turn: where several threads drive a worker, the next one waits already.
        let had = self.had.load(Ordering::SeqCst);
        while self.turns.load(Ordering::SeqCst) > 0 && self.had.load(Ordering::SeqCst) == had {
            std::thread::yield_now();
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = self.value.lock();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    /// Takes it when none that came before waits for it.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    #[inline]
    pub(crate) fn lock_last(&self) -> LockResult<MutexGuard<'_, T>> {
        let others = || self.turns.load(Ordering::SeqCst) > 0;
        if self.waiting.load(Ordering::SeqCst) == 0 && !others() {
            match self.value.try_lock() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Err(poisoned),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        self.lock_behind_others()
    }

    #[cold]
    fn lock_behind_others(&self) -> LockResult<MutexGuard<'_, T>> {
        self.turns.fetch_add(1, Ordering::SeqCst);
        while self.waiting.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        let guard = self.value.lock();
        self.turns.fetch_sub(1, Ordering::SeqCst);
        self.had.fetch_add(1, Ordering::SeqCst);
        guard
    }
}

impl<T> std::fmt::Debug for PriorityLock<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PriorityLock").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::PriorityLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    #[test]
    fn who_comes_last_gives_way_to_all_that_wait() {
        for _ in 0..50 {
            let lock = PriorityLock::new(Vec::new());
            std::thread::scope(|scope| {
                let held = lock.lock().expect("nobody panics");
                for name in ["a program", "another program"] {
                    let lock = &lock;
                    scope.spawn(move || lock.lock().expect("nobody panics").push(name));
                }
                while lock.waiting.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                scope.spawn(|| lock.lock_last().expect("nobody panics").push("the worker"));
                std::thread::yield_now();
                drop(held);
            });
            let order = lock.lock().expect("nobody panics");
            assert_eq!((order.len(), order[2]), (3, "the worker"));
        }
    }

    #[test]
    fn who_comes_last_has_its_turn_however_often_others_come() {
        let (lock, over) = (PriorityLock::new(0_u64), AtomicBool::new(false));
        let began = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        *lock.lock().expect("nobody panics") += 1;
                    }
                });
            }
            let turns = (0..300).take_while(|_| began.elapsed() < Duration::from_secs(20));
            let turns = turns.map(|_| drop(lock.lock_last().expect("nobody panics")));
            let had = turns.count();
            over.store(true, Ordering::Relaxed);
            assert_eq!(had, 300, "in 20 s");
        });
    }

    #[test]
    fn a_call_waits_for_few_turns_however_many_threads_drive_the_worker() {
        let (lock, over) = (PriorityLock::new(0_u64), AtomicBool::new(false));
        let mut longest = Duration::ZERO;
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let mut turns = lock.lock_last().expect("nobody panics");
                        *turns += 1;
                        let began = Instant::now();
                        while began.elapsed() < Duration::from_micros(20) {}
                    }
                });
            }
            for _ in 0..20 {
                std::thread::sleep(Duration::from_micros(200));
                let came = Instant::now();
                drop(lock.lock().expect("nobody panics"));
                longest = longest.max(came.elapsed());
            }
            over.store(true, Ordering::Relaxed);
        });
        assert!(longest < Duration::from_secs(5), "{longest:?}");
    }
}
