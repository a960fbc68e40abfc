//! What both managers have: counters, and records, which tell whose a message is.

use crate::event::Route;
use crate::slots::{Record, Slots};
use trunkline_wire::cm::CommId;

/// The counters that every manager has.
#[derive(Debug)]
pub(crate) struct Counts<'a> {
    pub(crate) received: &'a mut u64,
    pub(crate) malformed: &'a mut u64,
    pub(crate) unknown: &'a mut u64,
    pub(crate) mismatch: &'a mut u64,
    pub(crate) duplicate: &'a mut u64,
    pub(crate) silent: &'a mut u64,
    pub(crate) nobody: &'a mut u64,
    pub(crate) misquoted: &'a mut u64,
}

/// [`Counts`] among the counters of a manager.
macro_rules! counts {
    ($counters:expr) => {{
        let counters = &mut $counters;
        $crate::records::Counts {
            received: &mut counters.received,
            malformed: &mut counters.malformed,
            unknown: &mut counters.unknown,
            mismatch: &mut counters.mismatch,
            duplicate: &mut counters.duplicate,
            silent: &mut counters.silent,
            nobody: &mut counters.nobody,
            misquoted: &mut counters.misquoted,
        }
    }};
}
pub(crate) use counts;

/// A manager, as the owner of records.
pub(crate) trait Records {
    type Record: Record;

    fn slots(&self) -> &Slots<Self::Record>;
    fn slots_mut(&mut self) -> &mut Slots<Self::Record>;
    fn counts(&mut self) -> Counts<'_>;
    /// Returns the route to the peer of a record.
    fn route_of(&self, index: u32) -> Route;
    /// Returns the peer's number for a record; 0 until the peer has told it.
    fn remote_of(&self, index: u32) -> CommId;
    /// Returns how many closed connections are remembered at most.
    fn time_wait_limit(&self) -> u32;

    /// Gives back the place of a record that is over and has been remembered long enough.
    fn forget(&mut self, index: u32);

    /// A record is over and waits to be forgotten. Where too many wait, the oldest is forgotten
    /// now.
    fn linger(&mut self, index: u32) {
        let limit = self.time_wait_limit();
        if let Some(oldest) = self.slots_mut().linger(index, limit) {
            self.forget(oldest);
        }
    }

    /// Returns the record with our number `local`, if it belongs to this peer.
    fn find(&self, route: Route, local: CommId) -> Option<u32> {
        let index = self.slots().find(local)?;
        (self.route_of(index) == route).then_some(index)
    }

    /// As [`find`](Self::find), where the peer's number has to agree too. What is not found is
    /// counted.
    fn find_pair(&mut self, route: Route, local: CommId, remote: CommId) -> Option<u32> {
        let found = self.find(route, local);
        let Some(index) = found else {
            *self.counts().unknown += 1;
            return None;
        };
        if self.remote_of(index) != remote {
            *self.counts().mismatch += 1;
            return None;
        }
        Some(index)
    }
}
