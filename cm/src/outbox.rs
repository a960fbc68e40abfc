//! Datagrams that wait to be sent: as many as may.

use crate::event::{Outgoing, Route};
use crate::message::Mad;
use alloc::collections::VecDeque;

/// The queue.
#[derive(Debug)]
pub(crate) struct Outbox {
    queue: VecDeque<Outgoing>,
    limit: u32,
    /// Datagrams dropped because too many waited.
    dropped: u64,
}

impl Outbox {
    pub(crate) const fn new(limit: u32) -> Self {
        Self {
            queue: VecDeque::new(),
            limit,
            dropped: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Over the limit it is dropped, as a network may.
    pub(crate) fn push(&mut self, route: Route, mad: Mad) {
        if self.queue.len() >= self.limit as usize {
            self.dropped += 1;
            return;
        }
        self.queue.push_back(Outgoing { route, mad });
    }

    /// Bytes of what waits.
    pub(crate) fn state_bytes(&self) -> usize {
        self.queue.len() * size_of::<Outgoing>()
    }

    pub(crate) fn pop(&mut self) -> Option<Outgoing> {
        self.queue.pop_front()
    }

    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }
}
