//! Events that wait for the program, and the descriptor that says so.

use crate::error::Error;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Events that the program has not fetched.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    events: Mutex<VecDeque<T>>,
    most: usize,
    /// Counts whether events wait, and the end of the node.
    pub(crate) fd: Arc<OwnedFd>,
}

impl<T> EventQueue<T> {
    /// One in which `most` events wait; those that come when it is full are lost. `what` names its
    /// descriptor in errors.
    ///
    /// # Errors
    /// The operating system has no descriptor left.
    pub(crate) fn new(what: &'static str, most: usize) -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let fd = eventfd(0, flags).map_err(|e| Error::system(what)(e.into()))?;
        Ok(Self {
            events: Mutex::default(),
            most,
            fd: Arc::new(fd),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: T) {
        let mut events = self.lock();
        if events.len() >= self.most {
            return;
        }
        events.push_back(event);
        if events.len() == 1 {
            // It fails only when the counter is full, and then it is readable already.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn pop(&self) -> Option<T> {
        let mut events = self.lock();
        let event = events.pop_front()?;
        self.settle(&events);
        Some(event)
    }

    /// The descriptor is readable while events wait: a system call where they begin and where they
    /// end, none in between. The caller holds the lock, so that neither overtakes the other.
    pub(crate) fn settle(&self, events: &VecDeque<T>) {
        if events.is_empty() {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }
}
