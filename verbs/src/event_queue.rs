//! Events that wait for a program, behind a descriptor that it may poll.

use crate::answer::Errno;
use crate::cancellation::poll;
use crate::interruption::goes_on;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A queue with a descriptor that is readable exactly as long as something is in it.
pub(crate) struct EventQueue<T> {
    waiting: Mutex<VecDeque<T>>,
    /// Its counter is 1 while something waits and 0 otherwise, and changes under the lock alone: so
    /// neither reading nor writing it ever blocks, whatever flags the program sets.
    fd: OwnedFd,
}

impl<T> EventQueue<T> {
    /// # Errors
    /// The operating system has no descriptor left.
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self {
            waiting: Mutex::default(),
            fd: eventfd(0, EventfdFlags::CLOEXEC)?,
        })
    }

    /// The descriptor for the program.
    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts one more behind the others.
    pub(crate) fn push(&self, event: T) {
        let mut waiting = self.waiting();
        waiting.push_back(event);
        if waiting.len() == 1 {
            self.raise();
        }
    }

    /// Takes the first one, and runs `on_taken` before anybody can remove it.
    pub(crate) fn pop(&self, on_taken: impl FnOnce(&T)) -> Option<T> {
        let mut waiting = self.waiting();
        let event = waiting.pop_front()?;
        on_taken(&event);
        if waiting.is_empty() {
            self.lower();
        }
        Some(event)
    }

    /// Drops those that `unwanted` names.
    pub(crate) fn remove(&self, unwanted: impl Fn(&T) -> bool) {
        let mut waiting = self.waiting();
        let before = waiting.len();
        waiting.retain(|event| !unwanted(event));
        if before > 0 && waiting.is_empty() {
            self.lower();
        }
    }

    fn raise(&self) {
        let written = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        debug_assert_eq!(written, Ok(8), "the counter was 0");
    }

    fn lower(&self) {
        let read = rustix::io::read(&self.fd, &mut [0; 8]);
        debug_assert_eq!(read, Ok(8), "the counter was 1");
    }
}

/// Whether the program has set a descriptor to O_NONBLOCK.
///
/// # Errors
/// EBADF
pub(crate) fn is_nonblocking(fd: c_int) -> Result<bool, Errno> {
    // SAFETY: it reads flags of a descriptor, and fails if there is none.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(flags & libc::O_NONBLOCK != 0)
}

/// Waits until `fd` is readable, unless the program has set it to O_NONBLOCK. It is a point of
/// [cancellation](crate::cancellation), as the read(2) of the library that this one is in place of.
///
/// # Errors
/// EAGAIN, or what poll(2) says: EINTR when a signal came behind which read(2) would not
/// [go on](goes_on).
pub(crate) fn wait_readable(fd: c_int) -> Result<(), Errno> {
    match is_nonblocking(fd)? {
        true => Err(Errno(libc::EAGAIN)),
        false => sleep_until_readable(fd),
    }
}

/// Waits until `fd` is readable, whatever its mode. A process that is stopped and continued goes on
/// waiting, which it would not in epoll_wait(2) (signal(7)).
///
/// # Errors
/// As [`wait_readable`].
pub(crate) fn sleep_until_readable(fd: c_int) -> Result<(), Errno> {
    let mut polled = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: there is one entry, and it is this one.
    while unsafe { poll(&raw mut polled, 1, -1) } < 0 {
        let errno = Errno::from(std::io::Error::last_os_error());
        if errno != Errno(libc::EINTR) || !goes_on() {
            return Err(errno);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_readable(queue: &EventQueue<u32>) -> bool {
        let mut fds = [PollFd::new(&queue.fd, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now)).expect("poll of one descriptor") == 1
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_something_waits() {
        let queue = EventQueue::new().expect("a descriptor");
        assert!(!is_readable(&queue));
        queue.push(1);
        queue.push(2);
        assert!(is_readable(&queue));
        assert_eq!(queue.pop(|_| {}), Some(1));
        assert!(is_readable(&queue));
        assert_eq!(queue.pop(|_| {}), Some(2));
        assert!(!is_readable(&queue));
        assert_eq!(queue.pop(|_| {}), None);
        queue.push(3);
        queue.push(4);
        queue.remove(|event| *event == 3);
        assert!(is_readable(&queue));
        queue.remove(|event| *event == 4);
        assert!(!is_readable(&queue));
    }

    #[test]
    fn a_descriptor_that_the_program_set_to_nonblocking_is_not_waited_for() {
        let queue = EventQueue::<u32>::new().expect("a descriptor");
        rustix::fs::fcntl_setfl(&queue.fd, rustix::fs::OFlags::NONBLOCK).expect("a flag");
        assert_eq!(wait_readable(queue.fd()), Err(Errno(libc::EAGAIN)));
        assert_eq!(wait_readable(-1), Err(Errno(libc::EBADF)));
    }
}
