//! Events of CQs, behind one descriptor that the program may poll.
//!
//! The descriptor is an epoll instance over those that the node raises, one of each CQ. It watches
//! them edge-triggered (epoll(7)): each raising is told to one waiting thread, whatever else was
//! raised, and told once. So nothing is read from them, and nobody stands between who raises and
//! who waits. What is raised again before it was told is told once.

use crate::answer::Errno;
use crate::cancellation::epoll_wait;
use crate::event_queue::{is_nonblocking, sleep_until_readable};
use crate::look::Looks;
use crate::unacked::Unacked;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What an event calls its CQ. None is given out twice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Token(u64);

/// The CQs of a channel. `F` is what the node raises.
pub(crate) struct CqEvents<F> {
    epoll: OwnedFd,
    pub(crate) looks: Looks,
    sources: Mutex<Sources<F>>,
}

struct Sources<F> {
    next: u64,
    all: HashMap<u64, Source<F>>,
}

/// A CQ whose events are told.
struct Source<F> {
    raised: F,
    /// The pointer that the program has of it, which is only handed out.
    cq: usize,
    /// Counts events that the program got.
    unacked: Arc<Unacked>,
}

impl<F: AsFd> CqEvents<F> {
    /// # Errors
    /// The operating system has no descriptor left.
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            looks: Looks::default(),
            sources: Mutex::new(Sources {
                next: 0,
                all: HashMap::new(),
            }),
        })
    }

    /// The descriptor for the program.
    pub(crate) fn fd(&self) -> c_int {
        self.epoll.as_raw_fd()
    }

    fn sources(&self) -> MutexGuard<'_, Sources<F>> {
        // It is whole at any time.
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token for a CQ that is about to be made.
    pub(crate) fn token(&self) -> Token {
        let mut sources = self.sources();
        sources.next += 1;
        Token(sources.next)
    }

    /// Tells when `raised` is raised, from now on, until [`forget`](Self::forget).
    ///
    /// # Errors
    /// The operating system has no room for it.
    pub(crate) fn watch(
        &self,
        token: Token,
        raised: F,
        cq: usize,
        unacked: &Arc<Unacked>,
    ) -> Result<(), Errno> {
        // Who is told of it at once waits for this lock.
        let mut sources = self.sources();
        let (data, flags) = (EventData::new_u64(token.0), EventFlags::IN | EventFlags::ET);
        epoll::add(&self.epoll, &raised, data, flags)?;
        let unacked = Arc::clone(unacked);
        let source = Source {
            raised,
            cq,
            unacked,
        };
        sources.all.insert(token.0, source);
        Ok(())
    }

    /// Drops events of a CQ that were not told, or not [taken](Self::take) yet.
    pub(crate) fn forget(&self, token: Token) {
        if let Some(source) = self.sources().all.remove(&token.0) {
            // To close it would not be enough: a child of this process has it, too.
            let deleted = epoll::delete(&self.epoll, &source.raised);
            debug_assert!(deleted.is_ok(), "it was added: {deleted:?}");
        }
    }

    /// Takes an event that was told, which the program has to acknowledge then. Gives its CQ;
    /// `None`: that was forgotten meanwhile.
    pub(crate) fn take(&self, token: Token) -> Option<usize> {
        let sources = self.sources();
        let source = sources.all.get(&token.0)?;
        source.unacked.add();
        Some(source.cq)
    }

    /// Tells of a CQ for as long as it is raised from now on: over and over, to each thread that
    /// waits.
    pub(crate) fn insist(&self, token: Token) {
        let sources = self.sources();
        if let Some(source) = sources.all.get(&token.0) {
            let data = EventData::new_u64(token.0);
            let modified = epoll::modify(&self.epoll, &source.raised, data, EventFlags::IN);
            debug_assert!(modified.is_ok(), "it was added: {modified:?}");
        }
    }
}

/// Waits until `fd`, that of [`CqEvents`], tells of a CQ, unless the program has set it to
/// O_NONBLOCK. It is a point of [cancellation](crate::cancellation).
///
/// # Errors
/// EAGAIN, or what poll(2) and epoll_wait(2) say: EINTR when a signal came behind which read(2)
/// would not [go on](crate::interruption::goes_on).
pub(crate) fn next(fd: c_int, looks: &Looks) -> Result<Token, Errno> {
    if is_nonblocking(fd)? {
        return told_now(fd)?.ok_or(Errno(libc::EAGAIN));
    }
    looks
        .look(|| told_now(fd).transpose())
        .unwrap_or_else(|| told(fd))
}

/// The CQ that is told of, whenever that is.
fn told(fd: c_int) -> Result<Token, Errno> {
    loop {
        sleep_until_readable(fd)?;
        // Another thread may have been faster.
        if let Some(token) = told_now(fd)? {
            return Ok(token);
        }
    }
}

/// The CQ that is told of at the moment, if one is.
fn told_now(fd: c_int) -> Result<Option<Token>, Errno> {
    let mut told = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: there is room for one event, and that is what is asked for.
    match unsafe { epoll_wait(fd, &raw mut told, 1, 0) } {
        1 => Ok(Some(Token(told.u64))),
        0 => Ok(None),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

#[cfg(test)]
mod tests;
