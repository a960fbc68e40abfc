//! The owner of what stays from one packet to the next that goes out: whose turn it is, which way
//! the last one went, and whom to tell that a connection is closed.

use super::build::Route;
use super::packs::Packs;
use super::schedule::Schedule;
use super::seeded::Seeded;
use std::collections::VecDeque;
use trunkline_wire::{Close, IcrcSeed, Path};

/// State of sending, beside that of connections.
#[derive(Debug)]
pub(crate) struct Tx {
    schedule: Schedule,
    /// What packets carry that several messages share.
    pub(crate) packs: Packs,
    /// Path of the last packet that went.
    departed: Seeded,
    /// Connections whose peer has to hear that they are closed, oldest first, and why.
    closes: VecDeque<(Route, Close)>,
}

impl Tx {
    pub(crate) fn new(path: Path) -> Self {
        Self {
            schedule: Schedule::default(),
            packs: Packs::default(),
            departed: Seeded::new(path),
            closes: VecDeque::new(),
        }
    }

    /// Who sends next.
    #[inline]
    pub(crate) const fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    #[inline]
    pub(crate) const fn schedule_mut(&mut self) -> &mut Schedule {
        &mut self.schedule
    }

    /// What the ICRC of packets of a path begins with.
    #[inline]
    pub(crate) fn seed(&mut self, path: &Path) -> IcrcSeed {
        self.departed.turn_to(path);
        self.departed.seed()
    }

    /// A peer is to hear that a connection is closed.
    pub(crate) fn close(&mut self, route: Route, reason: Close) {
        self.closes.push_back((route, reason));
    }

    /// The oldest of these.
    pub(crate) fn pending_close(&self) -> Option<&(Route, Close)> {
        self.closes.front()
    }

    /// It was said.
    pub(crate) fn closed(&mut self) {
        self.closes.pop_front();
    }
}
