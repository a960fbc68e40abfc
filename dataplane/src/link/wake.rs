//! One descriptor that is readable when any of several things has happened (epoll(7)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Readable when one of its descriptors is, since it was [`set`](Self::set), or some time after
/// that was asked for.
#[derive(Debug)]
pub(super) struct Wake {
    all: OwnedFd,
    own: OwnedFd,
    is_set: bool,
    timer: OwnedFd,
    is_timed: bool,
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
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: as above.
        let timer = owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        let wake = Self {
            all,
            own,
            is_set: false,
            timer,
            is_timed: false,
        };
        for fd in of {
            wake.watch(fd)?;
        }
        wake.watch(wake.own.as_fd())?;
        wake.watch(wake.timer.as_fd())?;
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

    /// It is readable after that time, unless it is [cleared](Self::clear) before, or is to be
    /// readable sooner already.
    pub(super) fn set_in(&mut self, time: Duration) {
        if !std::mem::replace(&mut self.is_timed, true) {
            self.set_timer(time);
        }
    }

    /// Zero stops it.
    fn set_timer(&self, time: Duration) {
        let never = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let once = libc::itimerspec {
            it_interval: never,
            it_value: libc::timespec {
                tv_sec: time.as_secs() as libc::time_t,
                tv_nsec: time.subsec_nanos().into(),
            },
        };
        let (timer, old) = (self.timer.as_raw_fd(), std::ptr::null_mut());
        // SAFETY: an open descriptor, and a time that outlives the call. No such time is invalid.
        unsafe { libc::timerfd_settime(timer, 0, &raw const once, old) };
    }

    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.is_timed) {
            // What it has said so far is gone with that, too.
            self.set_timer(Duration::ZERO);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn is_readable(wake: &Wake, patience: Duration) -> bool {
        let mut poll = libc::pollfd {
            fd: wake.as_fd().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one `pollfd`.
        unsafe { libc::poll(&raw mut poll, 1, patience.as_millis() as i32) == 1 }
    }

    #[test]
    fn a_time_that_was_asked_for_wakes_once_it_is_over_and_not_if_it_was_cleared() {
        let mut wake = Wake::new(std::iter::empty()).expect("there are descriptors");
        assert!(!is_readable(&wake, Duration::ZERO));
        let begin = Instant::now();
        wake.set_in(Duration::from_millis(20));
        wake.set_in(Duration::from_secs(100));
        assert!(is_readable(&wake, Duration::from_secs(10)));
        assert!(begin.elapsed() >= Duration::from_millis(20));
        wake.clear();
        assert!(!is_readable(&wake, Duration::ZERO));
        wake.set_in(Duration::from_millis(1));
        wake.clear();
        assert!(!is_readable(&wake, Duration::from_millis(50)));
    }
}
