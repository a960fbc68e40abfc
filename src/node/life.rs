//! Whether a node lives, as its workers, its handles and its program see it.

use crate::error::Error;
use crate::observe::log;
use crate::worker::event_queue::EventQueue;
use crate::worker::wakeup::Wakeup;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use trunkline_dataplane::process::Birthmark;

/// Values of the mark; a child made by `fork(2)` reads 0.
const UP: u32 = 1;
const DOWN: u32 = 2;
const FORKED: u32 = 0;
/// Added to a counter that is taken from by ones: the descriptor is readable for good.
const FOR_GOOD: u64 = 1 << 48;

/// Why a node does nothing any more.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Down {
    /// The program shut it down.
    #[error("the node was shut down")]
    ShutDown,
    /// One of its workers met an error that does not pass. All QPs are in error.
    #[error("worker {worker} of the node failed: {why}")]
    Failed {
        /// Index of the worker, from 0.
        worker: u8,
        /// What happened.
        why: Arc<str>,
    },
    /// The service that carried it is gone, or has parted with the program.
    #[error("the service that carried the node: {why}")]
    Service {
        /// What happened.
        why: Arc<str>,
    },
    /// It belongs to the process that this one was forked from, and works there.
    #[error("the node belongs to the process that this one was forked from")]
    Forked,
}

/// How a node is.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Health {
    /// Why it does nothing any more; `None` while it works.
    pub down: Option<Down>,
    /// Errors of the operating system that its workers waited out, such as a shortage of
    /// descriptors or of memory.
    pub passing_errors: u64,
}

/// What all handles of a node and its workers know of its life.
#[derive(Debug)]
pub(crate) struct Life {
    mark: Birthmark,
    down: OnceLock<Down>,
    /// The program has not heard yet that the node does nothing any more.
    untold: AtomicBool,
    passing_errors: AtomicU64,
    /// Wake all workers.
    wakeups: Vec<Arc<Wakeup>>,
    /// Who hears of the end.
    listeners: Mutex<Vec<Weak<dyn HearsEnd>>>,
    /// Readable from the end on, for calls that wait for something else.
    end_fd: OnceLock<Arc<OwnedFd>>,
}

impl Life {
    /// That of a node whose workers have these wakeups.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn new(wakeups: Vec<Arc<Wakeup>>) -> Result<Self, Error> {
        Ok(Self {
            mark: Birthmark::new(UP).map_err(Error::system("mmap"))?,
            down: OnceLock::new(),
            untold: AtomicBool::new(false),
            passing_errors: AtomicU64::new(0),
            wakeups,
            listeners: Mutex::default(),
            end_fd: OnceLock::new(),
        })
    }

    /// Whether the node works. One load: the data path asks, too.
    ///
    /// # Errors
    /// Why it does not.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.mark.get() == UP {
            return Ok(());
        }
        Err(self.why().into())
    }

    #[cold]
    fn why(&self) -> Down {
        if self.is_forked() {
            return Down::Forked;
        }
        self.down.get().cloned().unwrap_or(Down::ShutDown)
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Weak<dyn HearsEnd>>> {
        let listeners = self.listeners.lock();
        listeners.unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells `listener` once the node does nothing any more: a program may sleep on it alone.
    pub(crate) fn tell_end_to(&self, listener: &Arc<impl HearsEnd + 'static>) {
        let mut listeners = self.listeners();
        if listeners.len() == listeners.capacity() {
            listeners.retain(|listener| listener.strong_count() > 0);
        }
        let known: Weak<dyn HearsEnd> = Arc::downgrade(listener) as _;
        listeners.push(known);
        if !self.is_up() {
            listener.hear_end();
        }
    }

    /// A descriptor that is readable once the node does nothing any more.
    ///
    /// # Errors
    /// The operating system has no descriptor left.
    pub(crate) fn end_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        if let Some(fd) = self.end_fd.get() {
            return Ok(fd.as_fd());
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = eventfd(0, flags).map_err(|e| Error::system("eventfd of a node")(e.into()))?;
        let fd = Arc::new(fd);
        self.tell_end_to(&fd);
        Ok(self.end_fd.get_or_init(|| fd).as_fd())
    }

    pub(crate) fn is_up(&self) -> bool {
        self.mark.get() == UP
    }

    /// Whether this process is a child of the one that the node belongs to: nothing of the node but
    /// this may be touched, since threads of the parent were in the middle of it.
    pub(crate) fn is_forked(&self) -> bool {
        self.mark.get() == FORKED
    }

    /// Whether the node is this process's, if it works or not.
    ///
    /// # Errors
    /// It is not: [`is_forked`](Self::is_forked).
    pub(crate) fn check_own(&self) -> Result<(), Down> {
        if self.is_forked() {
            return Err(Down::Forked);
        }
        Ok(())
    }

    /// Whether it failed, and did not end in order.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.down.get(), Some(Down::Failed { .. }))
    }

    pub(crate) fn health(&self) -> Health {
        Health {
            down: (!self.is_up()).then(|| self.why()),
            passing_errors: self.passing_errors.load(Ordering::Relaxed),
        }
    }

    /// An error passed, or will.
    pub(crate) fn note_passing(&self) {
        self.passing_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// The node does nothing any more. Its workers hear it; the first reason counts.
    pub(crate) fn end(&self, down: Down) -> bool {
        if self.is_forked() || self.down.set(down).is_err() {
            return false;
        }
        // Who finds the node down finds this, too.
        self.untold.store(true, Ordering::SeqCst);
        self.mark.set(DOWN);
        self.wakeups.iter().for_each(|wakeup| wakeup.end());
        let listeners = self.listeners();
        let listeners = listeners.iter().filter_map(Weak::upgrade);
        listeners.for_each(|listener| listener.hear_end());
        true
    }

    /// A worker met an error that does not pass: said in the log, or on standard error where nobody
    /// reads that, since a program that does not ask would only see requests that do not end.
    pub(crate) fn fail(&self, worker: u8, why: &str) {
        let down = Down::Failed {
            worker,
            why: why.into(),
        };
        if self.end(down.clone()) && !log::failed(&down) {
            // Nobody may read it: its QPs go to error all the same.
            let said = format!("trunkline: {down}; its QPs are in error\n");
            let _ = std::io::stderr().write_all(said.as_bytes());
        }
    }

    /// Whether the node does nothing any more and the program has not been told yet: it is now.
    pub(crate) fn tell_end(&self) -> bool {
        // Programs ask often: what is written is shared with all that ask.
        self.untold.load(Ordering::Relaxed) && self.untold.swap(false, Ordering::SeqCst)
    }
}

/// Who is told that a node does nothing any more.
pub(crate) trait HearsEnd: fmt::Debug + Send + Sync {
    /// It does nothing from now on.
    fn hear_end(&self);
}

/// An eventfd that is read as a semaphore, if it is read: it becomes readable for good.
impl HearsEnd for OwnedFd {
    fn hear_end(&self) {
        // It counts up to 2^64 - 2, and this is written once or twice.
        let _ = rustix::io::write(self, &FOR_GOOD.to_ne_bytes());
    }
}

impl<T: fmt::Debug + Send> HearsEnd for EventQueue<T> {
    fn hear_end(&self) {
        self.fd.hear_end();
        self.rouse();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_counts_and_the_end_is_told_once() {
        let life = Life::new(Vec::new()).unwrap();
        assert!(life.check().is_ok() && life.health().down.is_none());
        life.fail(3, "no more");
        assert!(!life.end(Down::ShutDown));
        let down = life.health().down.unwrap();
        assert_eq!(down.to_string(), "worker 3 of the node failed: no more");
        assert!(life.check().is_err() && !life.is_forked());
        assert!(life.tell_end() && !life.tell_end());
    }

    #[test]
    fn the_end_of_a_node_that_was_shut_down_is_told_once_too() {
        let life = Life::new(Vec::new()).unwrap();
        assert!(!life.tell_end());
        assert!(life.end(Down::ShutDown) && !life.end(Down::ShutDown));
        assert!(life.tell_end() && !life.tell_end());
        assert_eq!(life.health().down, Some(Down::ShutDown));
    }
}
