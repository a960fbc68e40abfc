//! A lock under which a worker gives way to the calls of programs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LockResult, Mutex, MutexGuard};

/// A value behind a mutex that one thread takes again and again, and others now and then. Those go
/// first: without that a worker that is busy would keep them out for long, as a mutex is not fair.
pub(crate) struct PriorityLock<T> {
    /// Threads that go first.
    waiting: AtomicU32,
    value: Mutex<T>,
}

impl<T> PriorityLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            waiting: AtomicU32::new(0),
            value: Mutex::new(value),
        }
    }

    /// Takes it, before whoever comes [`last`](Self::lock_last).
    ///
    /// # Errors
    /// Whoever had it panicked.
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = self.value.lock();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    /// Takes it when no other waits for it.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    #[inline]
    pub(crate) fn lock_last(&self) -> LockResult<MutexGuard<'_, T>> {
        while self.waiting.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        self.value.lock()
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
    use std::sync::atomic::Ordering;

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
}
