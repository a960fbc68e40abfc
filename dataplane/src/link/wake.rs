//! One descriptor that is readable when any of several things has happened (epoll(7)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Readable when one of its descriptors is, or since it was [`set`](Self::set).
#[derive(Debug)]
pub(super) struct Wake {
    all: OwnedFd,
    own: OwnedFd,
    is_set: bool,
}

impl Wake {
    /// # Errors
    /// The system has no descriptor left.
    pub(super) fn new<'a>(of: impl Iterator<Item = BorrowedFd<'a>>) -> io::Result<Self> {
        // SAFETY: makes a descriptor, and takes nothing.
        let all = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
        // SAFETY: as above.
        let own = owned(unsafe { libc::eventfd(0, flags) })?;
        let wake = Self {
            all,
            own,
            is_set: false,
        };
        for fd in of {
            wake.watch(fd)?;
        }
        wake.watch(wake.own.as_fd())?;
        Ok(wake)
    }

    fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        let (all, fd) = (self.all.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: open descriptors, and an event that outlives the call.
        let added = unsafe { libc::epoll_ctl(all, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if added == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// It is readable until it is [cleared](Self::clear).
    pub(super) fn set(&mut self) {
        if !std::mem::replace(&mut self.is_set, true) {
            let one = 1_u64.to_ne_bytes();
            // SAFETY: an open descriptor, and eight bytes. It cannot be full with a one.
            unsafe { libc::write(self.own.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.is_set) {
            let mut count = [0_u8; 8];
            // SAFETY: an open descriptor, and room for eight bytes.
            unsafe { libc::read(self.own.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        }
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
