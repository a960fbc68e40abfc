//! Events that wait for the program, the descriptor that says so, and calls that wait for them.

use crate::error::Error;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Events that the program has not fetched.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    events: Mutex<VecDeque<T>>,
    most: usize,
    /// Counts whether events wait, and the end of the node.
    pub(crate) fd: OwnedFd,
    /// How often calls that wait had a reason to look again; it changes under the lock.
    reasons: AtomicU64,
    /// Calls that wait; the number changes under the lock.
    waiting: AtomicUsize,
    reason: Condvar,
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
            fd,
            reasons: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            reason: Condvar::new(),
        })
    }

    /// Its descriptor; the events are gone.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: T) {
        let events = self.lock();
        if events.len() < self.most {
            self.append(events, event);
        }
    }

    /// Adds an event, whether the queue is full or not. Where `most` of its `kind` wait already, it
    /// takes their place.
    pub(crate) fn push_last_of(&self, event: T, most: usize, kind: impl Fn(&T) -> bool) {
        let mut events = self.lock();
        if events.iter().filter(|event| kind(event)).count() >= most {
            events.retain(|event| !kind(event));
            self.settle(&events);
        }
        self.append(events, event);
    }

    fn append(&self, mut events: MutexGuard<'_, VecDeque<T>>, event: T) {
        events.push_back(event);
        if events.len() == 1 {
            // It fails only when the counter is full, and then it is readable already.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
        self.tell_waiting(&events);
    }

    pub(crate) fn pop(&self) -> Option<T> {
        self.pop_where(|_| true)
    }

    /// The first event that is `wanted`.
    pub(crate) fn pop_where(&self, wanted: impl FnMut(&T) -> bool) -> Option<T> {
        let mut events = self.lock();
        let at = events.iter().position(wanted)?;
        let event = events.remove(at);
        self.settle(&events);
        event
    }

    /// The descriptor is readable while events wait: a system call where they begin and where they
    /// end, none in between. The caller holds the lock, so that neither overtakes the other.
    pub(crate) fn settle(&self, events: &VecDeque<T>) {
        if events.is_empty() {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
    }

    /// Lets calls that wait look again.
    pub(crate) fn rouse(&self) {
        self.tell_waiting(&self.lock());
    }

    fn tell_waiting(&self, _locked: &VecDeque<T>) {
        self.reasons.fetch_add(1, Ordering::Relaxed);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.reason.notify_all();
        }
    }

    /// What [`wait`](Self::wait) has to be told: asked for before the caller looks.
    pub(crate) fn reasons(&self) -> u64 {
        let _locked = self.lock();
        self.reasons.load(Ordering::Relaxed)
    }

    /// Waits for a reason to look again that came after `seen`, for `time` at most.
    pub(crate) fn wait(&self, seen: u64, time: Duration) {
        let events = self.lock();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let none = |_: &mut VecDeque<T>| self.reasons.load(Ordering::Relaxed) == seen;
        let waited = self.reason.wait_timeout_while(events, time, none);
        let _locked = waited.unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
