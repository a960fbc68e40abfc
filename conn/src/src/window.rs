//! State that only what is in flight needs, and where it comes from.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::config::{Counters, Policy};
use super::receiver::Receiver;
use super::sender::Sender;

/// In-flight state of an active connection.
#[derive(Debug)]
pub(super) struct Window<I> {
    pub(super) sender: Sender<I>,
    pub(super) receiver: Receiver,
    pub(super) counters: Counters,
}

/// Window sizes there are: 2^6 to 2^12 packets.
const SIZES: usize = 7;
const SMALLEST: u8 = 6;

/// What the connections of a node have in common: the [`Policy`] they keep to, and their in-flight
/// state, taken when one becomes active and given back when it is idle. It allocates when it is
/// empty, so it grows to the most connections ever active at once.
#[derive(Debug)]
pub struct Pool<I> {
    #[expect(clippy::vec_box, reason = "boxes move between pool and connection")]
    free: [Vec<Box<Window<I>>>; SIZES],
    taken: usize,
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
            free: [const { Vec::new() }; SIZES],
            taken: 0,
            policy,
        }
    }

    /// Windows in use.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Windows waiting to be used.
    pub fn free(&self) -> usize {
        self.free.iter().map(Vec::len).sum()
    }

    /// Frees the windows that wait to be used.
    pub fn shrink(&mut self) {
        self.free = [const { Vec::new() }; SIZES];
    }

    #[cold]
    pub(super) fn take(&mut self, window_log2: u8) -> Box<Window<I>> {
        self.taken += 1;
        self.free[usize::from(window_log2 - SMALLEST)]
            .pop()
            .unwrap_or_else(|| {
                Box::new(Window {
                    sender: Sender::new(),
                    receiver: Receiver::new(),
                    counters: Counters::default(),
                })
            })
    }

    /// A window is gone with its connection.
    pub(super) fn forget(&mut self) {
        self.taken -= 1;
    }

    pub(super) fn give(&mut self, window_log2: u8, window: Box<Window<I>>) {
        self.taken -= 1;
        self.free[usize::from(window_log2 - SMALLEST)].push(window);
    }
}

impl<I: Copy> Default for Pool<I> {
    fn default() -> Self {
        Self::new(Policy::default())
    }
}
