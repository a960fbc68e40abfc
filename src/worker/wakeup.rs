//! How a worker that sleeps hears that there is work for it.

use crate::error::Error;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use trunkline_qpmap::cq::Notify;

/// Wakes the worker that has it, if that sleeps.
#[derive(Default)]
pub(crate) struct Wakeup {
    /// The worker sleeps: whoever has work for it must wake it.
    asleep: AtomicBool,
    /// The node is down: the worker is woken for good.
    ended: AtomicBool,
    /// What a worker with a thread sleeps on; that of an inline node has one when its program waits
    /// or asks for a descriptor.
    eventfd: OnceLock<OwnedFd>,
    /// What is called instead where the program that drives the worker has something quicker.
    notify: OnceLock<Arc<dyn Notify>>,
}

impl fmt::Debug for Wakeup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakeup")
            .field("asleep", &self.asleep)
            .field("ended", &self.ended)
            .field("eventfd", &self.eventfd)
            .finish_non_exhaustive()
    }
}

impl Wakeup {
    /// Wakes the worker by `notify` from now on.
    ///
    /// # Errors
    /// It is woken in some way already.
    pub(crate) fn wake_by(&self, notify: Arc<dyn Notify>) -> Result<(), Error> {
        let taken = self.eventfd.get().is_some() || self.notify.set(notify).is_err();
        if taken {
            let why = "somebody waits for its worker already";
            return Err(Error::NoFd { why });
        }
        self.wake_ended();
        Ok(())
    }

    /// Gives the worker an eventfd to sleep on, if it has nothing to be woken by.
    ///
    /// # Errors
    /// The operating system has no descriptor left.
    pub(crate) fn equip(&self) -> Result<(), Error> {
        if self.eventfd.get().is_some() || self.notify.get().is_some() {
            return Ok(());
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = eventfd(0, flags).map_err(|e| Error::system("eventfd of a worker")(e.into()))?;
        self.eventfd.get_or_init(|| fd);
        self.wake_ended();
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
        if let Some(notify) = self.notify.get() {
            notify.notify();
        } else if let Some(fd) = self.eventfd.get() {
            // It fails only when the counter is full, and then the worker wakes anyway.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// The node is down. Whoever sleeps hears it, and whoever will, whatever others read meanwhile.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake_ended(&self) {
        if self.ended.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Runs `sleep`, which looks for work once more before it really sleeps.
    pub(crate) fn while_asleep<T>(&self, sleep: impl FnOnce() -> T) -> T {
        self.fall_asleep();
        let slept = sleep();
        self.awake();
        slept
    }

    /// From now on whoever has work for the worker wakes it. It looks for work once more before it
    /// really sleeps.
    pub(crate) fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// The worker looks for work: nobody has to wake it, if somebody had. Only who does look may
    /// say so, as it takes the word of all that sleep. Gives whether it slept.
    #[inline]
    pub(crate) fn awake(&self) -> bool {
        let slept = self.asleep.load(Ordering::Relaxed);
        if slept {
            self.asleep.store(false, Ordering::SeqCst);
            self.clear();
        }
        slept
    }

    /// The descriptor that is readable once the worker was woken.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.eventfd.get().map(AsFd::as_fd)
    }

    /// Forgets that the worker was woken, unless its node is down.
    fn clear(&self) {
        if let Some(fd) = self.eventfd.get() {
            // Nothing to read is as good.
            let _ = rustix::io::read(fd, &mut [0; 8]);
            self.wake_ended();
        }
    }
}

#[cfg(test)]
mod tests;
