//! Clients of `net_memif`: the driver calls the server once, when it is started. Whoever comes
//! before the server, or outlives it, has to start again.

use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};
use trunkline_dpdk_sys::{self as sys, Link};

/// How often it calls where nobody answers.
const PAUSE: Duration = Duration::from_millis(10);
/// How long both ends may take to agree on what they share: a server that was called before it was
/// ready says nothing. At first so long, then twice as long each time, up to the other.
const AGREE: Duration = Duration::from_millis(20);
const AGREE_AT_MOST: Duration = Duration::from_secs(1);

/// Calls the server of a port again and again, until it answers.
#[derive(Debug)]
pub(crate) struct Caller {
    /// Whether the port is started: queues of others are not used. Held while they are.
    is_started: RwLock<bool>,
    next: Mutex<Next>,
}

#[derive(Clone, Copy, Debug)]
struct Next {
    /// When it is looked whether the link works.
    due: Instant,
    /// How long both ends get to agree then.
    agree: Duration,
}

/// A started port: it stays so as long as this lives.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    _held: Option<RwLockReadGuard<'a, bool>>,
}

impl Pass<'_> {
    /// Of a port that is never stopped.
    pub(crate) const ALWAYS: Self = Self { _held: None };
}

impl Caller {
    /// For a port that was started, or was not.
    pub(crate) fn new(is_started: bool) -> Self {
        let pause = if is_started { AGREE } else { PAUSE };
        Self {
            is_started: RwLock::new(is_started),
            next: Mutex::new(Next {
                due: Instant::now() + pause,
                agree: AGREE,
            }),
        }
    }

    /// `None`: the port is not started.
    pub(crate) fn pass(&self) -> Option<Pass<'_>> {
        let is_started = self.is_started.read();
        let is_started = is_started.unwrap_or_else(PoisonError::into_inner);
        is_started.then_some(())?;
        Some(Pass {
            _held: Some(is_started),
        })
    }

    /// Calls, if it is time. Nobody here may have a pass.
    pub(crate) fn tend(&self, port: u16) {
        let now = Instant::now();
        // Another thread does it.
        let Ok(mut next) = self.next.try_lock() else {
            return;
        };
        if now < next.due {
            return;
        }
        next.due = now + PAUSE;
        let is_started = self.is_started.read();
        let is_started = *is_started.unwrap_or_else(PoisonError::into_inner);
        if is_started && is_up(port) {
            next.agree = AGREE;
            return;
        }
        let is_started = self.is_started.write();
        let mut is_started = is_started.unwrap_or_else(PoisonError::into_inner);
        // SAFETY: whoever uses a queue has a pass, and nobody has one now.
        *is_started = unsafe { sys::trunkline_restart(port) } == 0;
        if *is_started {
            tracing::debug!(port, "the other end of a memif was called");
            next.due = now + next.agree;
            next.agree = (2 * next.agree).min(AGREE_AT_MOST);
        }
    }
}

fn is_up(port: u16) -> bool {
    let mut link = Link::default();
    // SAFETY: room for one.
    let code = unsafe { sys::trunkline_link(port, &raw mut link) };
    code == 0 && link.is_up != 0
}
