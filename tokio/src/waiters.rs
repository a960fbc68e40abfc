//! Tasks that wait until something is worth another look.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use trunkline::Notify;

/// A lock that outlives a panic of its holder: what is behind those of this crate is whole between
/// any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tasks that wait. Each looks once more after it has registered, and before it really waits.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    wakers: Mutex<Vec<(u64, Waker)>>,
    next_key: AtomicU64,
}

impl Waiters {
    /// Wakes the task with this key at the next call of [`wake_all`](Self::wake_all), once. The
    /// task that registered under the key before is forgotten.
    fn register(&self, key: u64, waker: &Waker) {
        let mut wakers = lock(&self.wakers);
        match wakers.iter_mut().find(|(of, _)| *of == key) {
            Some((_, known)) => known.clone_from(waker),
            None => wakers.push((key, waker.clone())),
        }
    }

    /// Forgets the task with this key.
    fn remove(&self, key: u64) {
        lock(&self.wakers).retain(|(of, _)| *of != key);
    }

    /// Wakes all that have registered. Nothing is locked meanwhile.
    pub(crate) fn wake_all(&self) {
        let mut woken = std::mem::take(&mut *lock(&self.wakers));
        woken.drain(..).for_each(|(_, waker)| waker.wake());
        let mut wakers = lock(&self.wakers);
        if wakers.capacity() == 0 {
            // The room is used again.
            *wakers = woken;
        }
    }
}

impl Notify for Waiters {
    fn notify(&self) {
        self.wake_all();
    }
}

/// One task among those that wait. Dropping it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Waiter {
    waiters: Arc<Waiters>,
    key: u64,
    registered: bool,
}

impl Waiter {
    pub(crate) fn new(waiters: &Arc<Waiters>) -> Self {
        Self {
            waiters: Arc::clone(waiters),
            key: waiters.next_key.fetch_add(1, Ordering::Relaxed),
            registered: false,
        }
    }

    /// The task is woken from now on, once.
    pub(crate) fn register(&mut self, waker: &Waker) {
        self.registered = true;
        self.waiters.register(self.key, waker);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.registered {
            self.waiters.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_that_waits_is_woken_once_and_who_left_is_not() {
        let waiters = Arc::new(Waiters::default());
        let counts: [Arc<Count>; 3] = Default::default();
        let mut registered = [(); 3].map(|()| Waiter::new(&waiters));
        for (waiter, count) in registered.iter_mut().zip(&counts) {
            // The same task twice is one that waits.
            waiter.register(&Arc::clone(count).into());
            waiter.register(&Arc::clone(count).into());
        }
        let [first, _second, _third] = registered;
        drop(first);
        waiters.wake_all();
        waiters.wake_all();
        assert_eq!(
            counts.map(|count| count.0.load(Ordering::Relaxed)),
            [0, 1, 1]
        );
    }

    #[test]
    fn one_that_waits_is_woken_where_it_was_polled_last() {
        let waiters = Arc::new(Waiters::default());
        let counts: [Arc<Count>; 2] = Default::default();
        let mut waiter = Waiter::new(&waiters);
        for count in &counts {
            waiter.register(&Arc::clone(count).into());
        }
        waiters.wake_all();
        assert_eq!(counts.map(|count| count.0.load(Ordering::Relaxed)), [0, 1]);
    }

    #[test]
    fn many_that_came_and_went_leave_nothing() {
        let waiters = Arc::new(Waiters::default());
        for _ in 0..100 {
            Waiter::new(&waiters).register(Waker::noop());
        }
        assert!(lock(&waiters.wakers).is_empty());
    }
}
