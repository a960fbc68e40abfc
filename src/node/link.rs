//! The link of a node's port, and how its program hears that it changes.

use crate::error::Error;
use crate::verbs::event::Event;
use crate::worker::event_queue::EventQueue;
use crate::worker::sleep;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use trunkline_conn::time::{Instant, MILLISECOND};
use trunkline_dataplane::LinkChanges;

/// Number of a node's one port (`ibv_port_attr`, `ibv_async_event::element.port_num`): ports count
/// from 1.
pub(crate) const PORT: u8 = 1;
/// Between looks at the link by a worker that does not sleep: each is a system call.
const BETWEEN_LOOKS_NS: u64 = 10 * MILLISECOND;

/// The link of a port that says when it changes.
#[derive(Debug)]
pub(crate) struct Link {
    state: Mutex<State>,
    /// Readable when the link may have changed.
    changed: OwnedFd,
    /// Readable then, and when other events wait.
    any: OwnedFd,
    /// Where the program finds what is told.
    events: Arc<EventQueue<Event>>,
    /// How often it came up.
    ups: AtomicU32,
}

#[derive(Debug)]
struct State {
    changes: Box<dyn LinkChanges + Send>,
    works: bool,
}

impl State {
    /// The oldest change that is one.
    fn next(&mut self) -> Option<bool> {
        loop {
            let works = self.changes.next_change()?;
            if std::mem::replace(&mut self.works, works) != works {
                return Some(works);
            }
        }
    }
}

impl Link {
    /// A link whose changes are told among `events`. What it is now is no change.
    ///
    /// # Errors
    /// The operating system has no descriptor left.
    pub(crate) fn new(
        changes: Box<dyn LinkChanges + Send>,
        events: &Arc<EventQueue<Event>>,
    ) -> Result<Self, Error> {
        let changed = changes.fd().try_clone_to_owned();
        let changed = changed.map_err(Error::system("dup"))?;
        let any = sleep::readable([changed.as_fd(), events.fd.as_fd()])?;
        let works = true;
        let mut state = State { changes, works };
        while state.next().is_some() {}
        Ok(Self {
            state: Mutex::new(state),
            changed,
            any,
            events: Arc::clone(events),
            ups: AtomicU32::new(0),
        })
    }

    /// Takes up what has changed, and tells the program. Gives whether the link works.
    pub(crate) fn look(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(works) = state.next() {
            self.events.push_port(works);
            self.ups.fetch_add(works.into(), Ordering::Relaxed);
        }
        state.works
    }

    /// A descriptor that is readable when the link may have changed, until [`look`](Self::look).
    pub(crate) fn changed(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }

    /// A descriptor that is readable when the link may have changed, or while events wait.
    pub(crate) fn any(&self) -> BorrowedFd<'_> {
        self.any.as_fd()
    }
}

/// What a worker knows of the link.
#[derive(Debug)]
pub(crate) struct LinkView {
    link: Arc<Link>,
    /// How often it had come up when this was taken up last.
    ups: u32,
    look_at: Instant,
}

impl LinkView {
    /// What the link is now is no news.
    pub(crate) fn new(link: Arc<Link>) -> Self {
        let ups = link.ups.load(Ordering::Relaxed);
        Self {
            link,
            ups,
            look_at: Instant::ZERO,
        }
    }

    /// A worker that polls sleeps on no descriptor: it looks at the link from time to time.
    pub(crate) fn look(&mut self, now: Instant) {
        if now >= self.look_at {
            self.look_at = now + BETWEEN_LOOKS_NS;
            self.link.look();
        }
    }

    /// Whether the link has come up since the last time that it was [taken up](Self::take_up).
    pub(crate) fn came_up(&self) -> bool {
        self.link.ups.load(Ordering::Relaxed) != self.ups
    }

    /// Whether the link has come up, asked once.
    pub(crate) fn take_up(&mut self) -> bool {
        let ups = self.link.ups.load(Ordering::Relaxed);
        std::mem::replace(&mut self.ups, ups) != ups
    }
}

impl EventQueue<Event> {
    /// Tells that the port works, or does not. Two such events wait at most, however often that
    /// changes before the program reads them: what a third one makes of them is that one alone. So
    /// the last one is always what the port does now, and none is lost where the queue is full.
    fn push_port(&self, works: bool) {
        let event = match works {
            true => Event::PortActive { port: PORT },
            false => Event::PortError { port: PORT },
        };
        let is_of_port =
            |event: &Event| matches!(event, Event::PortActive { .. } | Event::PortError { .. });
        self.push_last_of(event, 2, is_of_port);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests;
