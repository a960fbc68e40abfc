//! Clocks of flows that wait for their peers: one for each that has something outstanding.

use crate::engine::ConnId;
use crate::slab::Slab;

/// What was seen of a flow when its clock was wound up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Seen {
    /// It waited for its peer.
    pub(crate) waited: bool,
    /// On this connection, where it has one: for the peer to say anything at all, or to agree to
    /// this replay epoch.
    pub(crate) conn: Option<ConnId>,
    pub(crate) bound: bool,
    pub(crate) replay_epoch: u8,
    /// The peer had executed all before this message.
    pub(crate) acked_msn: u32,
}

impl Seen {
    /// Before the clock is wound up.
    const NOTHING: Self = Self {
        waited: false,
        conn: None,
        bound: false,
        replay_epoch: 0,
        acked_msn: 0,
    };
}

/// The clocks, and flows whose clock is to be wound up in the next round.
#[derive(Debug)]
pub(super) struct Clocks {
    seen: Slab<Seen>,
    to_wind_up: Vec<u32>,
}

impl Clocks {
    pub(super) const fn new() -> Self {
        Self {
            seen: Slab::new(),
            to_wind_up: Vec::new(),
        }
    }

    /// A clock for `flow`, to be wound up in the next round.
    pub(super) fn start(&mut self, flow: u32) -> u32 {
        self.to_wind_up.push(flow);
        self.seen.insert(Seen::NOTHING)
    }

    /// Bytes that it has allocated.
    pub(super) const fn state_bytes(&self) -> usize {
        self.seen.state_bytes() + self.to_wind_up.capacity() * size_of::<u32>()
    }

    /// Gives back room that was needed once.
    pub(super) fn trim(&mut self) {
        self.seen.trim();
        self.to_wind_up.shrink_to(2 * self.to_wind_up.len());
    }

    pub(super) fn stop(&mut self, clock: u32) {
        self.seen.discard(clock);
    }

    pub(super) fn get(&self, clock: u32) -> Seen {
        self.seen[clock]
    }

    pub(super) fn set(&mut self, clock: u32, seen: Seen) {
        self.seen[clock] = seen;
    }

    /// The next flow whose clock is to be wound up, which may have stopped it since.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.to_wind_up.pop()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.to_wind_up.is_empty()
    }
}
