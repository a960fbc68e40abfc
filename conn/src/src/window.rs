//! State that only what is in flight needs, and where it comes from.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::config::{Counters, Policy};
use super::flight::Segments;
use super::receiver::Receiver;
use super::sender::Sender;

/// In-flight state of an active connection.
#[derive(Debug)]
pub(super) struct Window<I> {
    pub(super) sender: Sender<I>,
    pub(super) receiver: Receiver,
    pub(super) counters: Counters,
}

/// What the connections of a node have in common: the [`Policy`] they keep to, and their in-flight
/// state, taken when one becomes active and given back when it is idle. It allocates when it is
/// empty, so it grows to the most connections ever active at once.
#[derive(Debug)]
pub struct Pool<I> {
    #[expect(clippy::vec_box, reason = "boxes move between pool and connection")]
    free: Vec<Box<Window<I>>>,
    taken: usize,
    pub(super) segments: Segments<I>,
    pub(super) policy: Policy,
}

impl<I: Copy> Pool<I> {
    /// An empty pool for connections that keep to `policy`.
    ///
    /// # Panics
    /// If `policy` is outside the ranges it documents.
    pub fn new(policy: Policy) -> Self {
        assert!(policy.ack_every > 0, "counts start at 1");
        Self {
            free: Vec::new(),
            taken: 0,
            segments: Segments::default(),
            policy,
        }
    }

    /// Windows in use.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Windows waiting to be used.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Segments of 64 packets in flight that wait to be used.
    pub fn free_segments(&self) -> usize {
        self.segments.len()
    }

    /// Frees the windows that wait to be used.
    pub fn shrink(&mut self) {
        self.free = Vec::new();
        self.segments.shrink();
    }

    #[cold]
    pub(super) fn take(&mut self) -> Box<Window<I>> {
        self.taken += 1;
        self.free.pop().unwrap_or_else(|| {
            Box::new(Window {
                sender: Sender::new(),
                receiver: Receiver::new(),
                counters: Counters::default(),
            })
        })
    }

    /// A window ends with its connection; what was in flight is given up.
    pub(super) fn forget(&mut self, mut window: Box<Window<I>>) {
        self.taken -= 1;
        window.sender.flight.clear(&mut self.segments);
    }

    pub(super) fn give(&mut self, window: Box<Window<I>>) {
        self.taken -= 1;
        self.free.push(window);
    }
}

impl<I: Copy> Default for Pool<I> {
    fn default() -> Self {
        Self::new(Policy::default())
    }
}
