//! How a worker that sleeps hears that there is work for it.

use crate::error::Error;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes the worker that has it, if that sleeps.
#[derive(Debug, Default)]
pub(crate) struct Wakeup {
    /// The worker sleeps: whoever has work for it must wake it.
    asleep: AtomicBool,
    /// What a worker with a thread sleeps on; an inline node's has none.
    eventfd: OnceLock<OwnedFd>,
}

impl Wakeup {
    /// Gives the worker an eventfd to sleep on.
    ///
    /// # Errors
    /// The operating system has no descriptor left.
    ///
    /// # Panics
    /// It has one.
    pub(crate) fn equip(&self) -> Result<(), Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = eventfd(0, flags).map_err(|e| Error::system("eventfd of a worker")(e.into()))?;
        self.eventfd.set(fd).expect("a worker has one thread");
        Ok(())
    }

    /// Wakes a sleeping worker. What there is to do was said before, in the total order: either the
    /// worker's last look sees it, which comes after its store of `asleep`, or this load sees that.
    pub(crate) fn ring(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Wakes the worker at its next sleep, if it does not sleep now.
    pub(crate) fn wake(&self) {
        if let Some(fd) = self.eventfd.get() {
            // It fails only when the counter is full, and then the worker wakes anyway.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// Runs `sleep`, which looks for work once more before it really sleeps.
    pub(crate) fn while_asleep<T>(&self, sleep: impl FnOnce() -> T) -> T {
        self.asleep.store(true, Ordering::SeqCst);
        let slept = sleep();
        self.asleep.store(false, Ordering::SeqCst);
        slept
    }

    /// The descriptor that is readable once the worker was woken.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.eventfd.get().map(AsFd::as_fd)
    }

    /// Forgets that the worker was woken.
    pub(crate) fn clear(&self) {
        if let Some(fd) = self.eventfd.get() {
            // Nothing to read is as good.
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
    }
}

#[cfg(test)]
mod tests;
