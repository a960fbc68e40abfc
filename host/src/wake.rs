//! How a service and its clients wake each other without trusting each other.
//!
//! Who has a descriptor of an eventfd can fill its counter and set the file to blocking mode, so
//! that the next write waits; or read it over and over. So neither side reads or writes what the
//! other side may write or read:
//!
//! ```text
//! service                                         client
//! Signal::notify --> eventfd --> epoll instance --> take, wait
//! WakeSet::take <-- epoll instance <-- eventfd <-- ring
//! ```
//!
//! The eventfd of a [`Signal`] stays with the service. The client gets the epoll instance that
//! watches it, at which it can do nothing but wait. The eventfd that a client [`ring`]s is never
//! read: the [`WakeSet`] of the service watches it edge-triggered (epoll(7)), so each write counts
//! once, and what else the client does to it harms nobody but itself.
//!
//! # Closing
//!
//! To close a file takes the locks of all epoll instances that watch it, and a client can hold
//! those of its own instances for as long as it likes. So both kinds give their descriptors back
//! when they end, for the [`Closer`](crate::Closer) of the client. To watch a file that is watched
//! elsewhere can wait for such locks, too: so what is watched here is made here, and watched before
//! the client has it.

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Most tokens that [`WakeSet::take`] takes in a call.
pub const TAKEN_AT_ONCE: usize = 64;

/// Longest that [`wait`] waits in a call.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// An epoll instance that watches nothing yet.
fn instance() -> io::Result<OwnedFd> {
    Ok(epoll::create(CreateFlags::CLOEXEC)?)
}

/// A new eventfd that an instance watches: each write to it is told once, as `token`.
fn watched_by(instance: &OwnedFd, token: u64) -> io::Result<OwnedFd> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let (data, flags) = (EventData::new_u64(token), EventFlags::IN | EventFlags::ET);
    epoll::add(instance, &event, data, flags)?;
    Ok(event)
}

/// Wakes a client: the service's end.
#[derive(Debug)]
pub struct Signal {
    event: OwnedFd,
    instance: OwnedFd,
}

impl Signal {
    /// A new one, with which nobody was woken.
    ///
    /// # Errors
    /// The system has no descriptors for it.
    pub fn new() -> io::Result<Self> {
        let instance = instance()?;
        let event = watched_by(&instance, 0)?;
        Ok(Self { event, instance })
    }

    /// Wakes the client: [`take`] or [`wait`] is true once, and sees what was written before. The
    /// system wakes each thread that waits, so a service does this when a client has asked for it.
    ///
    /// # Panics
    /// After 2^64 calls.
    pub fn notify(&self) {
        ring(self.event.as_fd()).expect("nobody else has the eventfd, and 64 bits last");
    }

    /// What the client is sent.
    pub fn fd_for_client(&self) -> BorrowedFd<'_> {
        self.instance.as_fd()
    }

    /// What the [`Closer`](crate::Closer) of the client is to close.
    pub fn into_fds(self) -> [OwnedFd; 2] {
        [self.instance, self.event]
    }
}

/// Whether the client was woken since this was last asked.
///
/// # Errors
/// The descriptor is not that of a [`Signal`].
pub fn take(signal: BorrowedFd<'_>) -> io::Result<bool> {
    wait(signal, Some(Duration::ZERO))
}

/// Waits until the client is woken, unless it was since this was last asked. False after the
/// timeout, and where a signal handler ran or a day has passed: who has to know looks at the clock.
///
/// # Errors
/// The descriptor is not that of a [`Signal`].
pub fn wait(signal: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    let timeout = timeout.map_or(LONGEST_WAIT, |timeout| timeout.min(LONGEST_WAIT));
    let timeout = Timespec::try_from(timeout).expect("a day is no long time");
    let mut event = [MaybeUninit::uninit()];
    match epoll::wait(signal, &mut event, Some(&timeout)) {
        Ok((events, _)) => Ok(!events.is_empty()),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Wakes the service: the client's end of what [`WakeSet::add`] made.
///
/// # Errors
/// The descriptor is no such one, or the client has filled the counter itself.
pub fn ring(event: BorrowedFd<'_>) -> io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::io::write(event, &1_u64.to_ne_bytes()))?;
    Ok(())
}

/// What wakes a service: an eventfd for each client, by a token of the service's choice.
#[derive(Debug)]
pub struct WakeSet {
    instance: OwnedFd,
    events: BTreeMap<u64, OwnedFd>,
}

impl WakeSet {
    /// Nobody to be woken by.
    ///
    /// # Errors
    /// The system has no descriptor for it.
    pub fn new() -> io::Result<Self> {
        let instance = instance()?;
        let events = BTreeMap::new();
        Ok(Self { instance, events })
    }

    /// Makes what a client rings.
    ///
    /// # Errors
    /// The system has no descriptor for it.
    ///
    /// # Panics
    /// The token is in use.
    pub fn add(&mut self, token: u64) -> io::Result<()> {
        assert!(!self.events.contains_key(&token), "token {token} is in use");
        let event = watched_by(&self.instance, token)?;
        self.events.insert(token, event);
        Ok(())
    }

    /// What the client of that token is sent.
    pub fn fd_for_client(&self, token: u64) -> Option<BorrowedFd<'_>> {
        self.events.get(&token).map(AsFd::as_fd)
    }

    /// Forgets a token, which is not taken any more. Gives what the [`Closer`](crate::Closer) of
    /// the client is to close.
    pub fn remove(&mut self, token: u64) -> Option<OwnedFd> {
        let event = self.events.remove(&token)?;
        let removed = epoll::delete(&self.instance, &event);
        removed.expect("the instance watches what is in the table");
        Some(event)
    }

    /// Takes tokens of clients that have rung since theirs was last taken: as many as there is
    /// room for, and [`TAKEN_AT_ONCE`] at most. Those that are left come first in the next call.
    /// Waits for nobody.
    ///
    /// # Errors
    /// The system has no memory for it.
    pub fn take(&self, tokens: &mut [u64]) -> io::Result<usize> {
        let mut events = [const { MaybeUninit::<Event>::uninit() }; TAKEN_AT_ONCE];
        let most = tokens.len().min(TAKEN_AT_ONCE);
        if most == 0 {
            return Ok(0);
        }
        let now = Timespec::default();
        let (events, _) = epoll::wait(&self.instance, &mut events[..most], Some(&now))?;
        for (token, event) in tokens.iter_mut().zip(&*events) {
            *token = event.data.u64();
        }
        Ok(events.len())
    }
}

/// Readable (poll(2)) while there is a token to take.
impl AsFd for WakeSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.instance.as_fd()
    }
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests;
