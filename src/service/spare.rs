//! A descriptor that a service keeps for the moment when it has no other one.

use rustix::fs::{Mode, OFlags};
use rustix::io::{DupFlags, dup3, fcntl_dupfd_cloexec};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The spare descriptor of a service. It is [given up](Self::give_up) so that a program can be told
/// that none is left, and the socket of that program [becomes](Self::replace) the next one: its
/// number is never free meanwhile, when a program that is attached would get it.
#[derive(Debug)]
pub(super) struct Spare {
    /// What the spare one is a copy of: it stands for nothing, and is there for as long as this is.
    plain: OwnedFd,
    held: Mutex<Option<OwnedFd>>,
}

impl Spare {
    /// # Errors
    /// Of open(2).
    pub(super) fn new() -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let plain = rustix::fs::open("/dev/null", flags, Mode::empty())?;
        let spare = Self {
            plain,
            held: Mutex::default(),
        };
        spare.refill();
        Ok(spare)
    }

    /// Gets another one where it was given up. Returns whether there is one.
    pub(super) fn refill(&self) -> bool {
        let mut held = self.held();
        if held.is_none() {
            *held = fcntl_dupfd_cloexec(&self.plain, 0).ok();
        }
        held.is_some()
    }

    /// Makes its number free.
    pub(super) fn give_up(&self) {
        self.held().take();
    }

    /// Closes a descriptor, which may take long, and is the spare one from then on where there is
    /// none.
    pub(super) fn replace(&self, mut descriptor: OwnedFd) {
        // What was open there is closed in the same step. Should that fail, it is closed below.
        let replaced = dup3(&self.plain, &mut descriptor, DupFlags::CLOEXEC);
        let mut held = self.held();
        if replaced.is_ok() && held.is_none() {
            *held = Some(descriptor);
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_is_closed_in_place_of_a_spare_one_keeps_its_number_and_is_closed() {
        let spare = Spare::new().unwrap();
        spare.give_up();
        for is_wanted in [true, false] {
            let (mut reader, writer) = std::io::pipe().unwrap();
            let writer = OwnedFd::from(writer);
            let number = writer.as_raw_fd();
            spare.replace(writer);
            assert_eq!(reader.read(&mut [0]).unwrap(), 0, "nobody writes any more");
            let held = spare.held().as_ref().map(AsRawFd::as_raw_fd);
            assert_eq!(held == Some(number), is_wanted);
        }
    }
}
