//! State that only what is in flight needs, and where it comes from.

use alloc::boxed::Box;

use super::config::{Counters, Policy};
use super::flight::Segment;
use super::receiver::Receiver;
use super::sender::Sender;
use super::spare::Spare;

/// In-flight state of an active connection.
#[derive(Debug)]
pub(super) struct Window<I> {
    pub(super) sender: Sender<I>,
    pub(super) receiver: Receiver,
    pub(super) counters: Counters,
}

/// What the connections of a node have in common: the [`Policy`] they keep to, and their in-flight
/// state, taken when one becomes active and given back when it is idle. It allocates when it is
/// empty, and [`trim`](Self::trim) frees what nobody needs any more.
#[derive(Debug)]
pub struct Pool<I> {
    free: Spare<Window<I>>,
    taken: usize,
    pub(super) segments: Spare<Segment<I>>,
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
            free: Spare::new(),
            taken: 0,
            segments: Spare::new(),
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

    /// Bytes of what waits to be used.
    pub fn spare_bytes(&self) -> usize {
        self.free.bytes() + self.segments.bytes()
    }

    /// Frees what nobody has needed since the last call, at most some thousands at once. To be
    /// called now and then while [`spare_bytes`](Self::spare_bytes) is not 0.
    pub fn trim(&mut self) {
        self.free.trim();
        self.segments.trim();
    }

    #[cold]
    pub(super) fn take(&mut self) -> Box<Window<I>> {
        self.taken += 1;
        self.free.take().unwrap_or_else(|| {
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
        self.free.give(window);
    }
}

impl<I: Copy> Default for Pool<I> {
    fn default() -> Self {
        Self::new(Policy::default())
    }
}
