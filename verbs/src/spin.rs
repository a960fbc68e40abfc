//! A lock that is taken in one call of a program and given back in another.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;

/// A value that one thread at a time has, from [`lock`](Self::lock) to [`unlock`](Self::unlock):
/// the program makes both calls, so no guard can hold the lock meanwhile.
pub(crate) struct SpinLock<T> {
    locked: AtomicBool,
    /// The program promises that there is one thread.
    single: bool,
    value: UnsafeCell<T>,
}

// SAFETY: the value goes from thread to thread, and is with one at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// `single`: the program promises that one thread at a time uses it.
    pub(crate) const fn new(value: T, single: bool) -> Self {
        Self {
            locked: AtomicBool::new(false),
            single,
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until nobody else has it.
    pub(crate) fn lock(&self) {
        while !self.single && self.locked.swap(true, Ordering::Acquire) {
            yield_now();
        }
    }

    /// Gives it up.
    pub(crate) fn unlock(&self) {
        self.locked.store(false, Ordering::Release);
    }

    /// The value.
    ///
    /// # Safety
    /// The calling thread has locked it, and no other reference to the value is in use.
    #[expect(clippy::mut_from_ref, reason = "the lock makes it the only one")]
    pub(crate) unsafe fn get(&self) -> &mut T {
        // SAFETY: as the caller promises.
        unsafe { &mut *self.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_the_value_in_turn() {
        const TURNS: u32 = 10_000;
        let sum = SpinLock::new(0, false);
        let add = || {
            for _ in 0..TURNS {
                sum.lock();
                // SAFETY: it was locked just now, and this is the only reference.
                *unsafe { sum.get() } += 1;
                sum.unlock();
            }
        };
        std::thread::scope(|threads| {
            threads.spawn(add);
            threads.spawn(add);
        });
        sum.lock();
        // SAFETY: it was locked just now.
        assert_eq!(*unsafe { sum.get() }, 2 * TURNS);
    }
}
