//! Connections that programs opened for themselves, by the handles that they have of them.

use super::ConnectionState;
use crate::error::NoConnection;
use std::collections::BTreeMap;
use trunkline_qpmap::ConnId;
use trunkline_qpmap::slab::Slab;

/// Bits of a handle that hold the place of its entry.
const PLACE_BITS: u32 = 32;

/// Where such a connection stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Opening,
    Open(ConnId),
    /// Why stands elsewhere: few do.
    Failed,
    Closed,
}

/// What is kept of such a connection until its program gives it up.
#[derive(Debug)]
struct Entry {
    /// Tells the entries apart that have the same place.
    serial: u32,
    state: State,
}

const _: () = assert!(size_of::<Entry>() <= 16);

/// All of them. A handle stands for its place and a serial number.
#[derive(Debug, Default)]
pub(super) struct Private {
    entries: Slab<Entry>,
    serial: u32,
    failed: BTreeMap<u64, NoConnection>,
}

impl Private {
    /// Begins with a connection. Returns its handle.
    pub(super) fn insert(&mut self) -> u64 {
        self.serial = self.serial.wrapping_add(1);
        let place = self.entries.insert(Entry {
            serial: self.serial,
            state: State::Opening,
        });
        u64::from(self.serial) << PLACE_BITS | u64::from(place)
    }

    fn get(&self, handle: u64) -> Option<&Entry> {
        let entry = self.entries.get(place(handle))?;
        (u64::from(entry.serial) == handle >> PLACE_BITS).then_some(entry)
    }

    /// Whether the program has not given the connection up.
    pub(super) fn has(&self, handle: u64) -> bool {
        self.get(handle).is_some()
    }

    pub(super) fn state(&self, handle: u64) -> ConnectionState {
        match self.get(handle).map_or(State::Closed, |entry| entry.state) {
            State::Opening => ConnectionState::Opening,
            State::Open(conn) => ConnectionState::Open(conn),
            State::Failed => ConnectionState::Failed(self.failed[&handle]),
            State::Closed => ConnectionState::Closed,
        }
    }

    /// Notes where a connection stands, unless the program has given it up.
    pub(super) fn set(&mut self, handle: u64, state: ConnectionState) {
        if !self.has(handle) {
            return;
        }
        self.failed.remove(&handle);
        self.entries[place(handle)].state = match state {
            ConnectionState::Opening => State::Opening,
            ConnectionState::Open(conn) => State::Open(conn),
            ConnectionState::Failed(why) => {
                self.failed.insert(handle, why);
                State::Failed
            }
            ConnectionState::Closed => State::Closed,
        };
    }

    /// A connection is down: so is what stands in this place, if it is that.
    pub(super) fn down(&mut self, place: u32, conn: ConnId) {
        if let Some(entry) = self.entries.get_mut(place)
            && entry.state == State::Open(conn)
        {
            entry.state = State::Closed;
        }
    }

    /// All connections are down.
    pub(super) fn all_down(&mut self) {
        let places = 0..self.entries.slots();
        for place in places {
            if let Some(entry) = self.entries.get_mut(place) {
                entry.state = State::Closed;
            }
        }
    }

    /// The program gives a connection up. Returns it if it is open.
    pub(super) fn remove(&mut self, handle: u64) -> Option<ConnId> {
        self.get(handle)?;
        self.failed.remove(&handle);
        match self.entries.remove(place(handle)).state {
            State::Open(conn) => Some(conn),
            _ => None,
        }
    }

    pub(super) fn state_bytes(&self) -> usize {
        self.entries.state_bytes() + self.failed.len() * size_of::<(u64, NoConnection)>()
    }
}

/// The place of a handle's entry.
pub(super) const fn place(handle: u64) -> u32 {
    handle as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_means_one_connection_whoever_has_its_place_later() {
        let mut private = Private::default();
        let first = private.insert();
        assert_eq!(private.state(first), ConnectionState::Opening);
        let why = ConnectionState::Failed(NoConnection::Silent);
        private.set(first, why);
        assert_eq!(private.state(first), why);
        assert_eq!(private.remove(first), None);
        let second = private.insert();
        assert_eq!(place(first), place(second));
        assert_eq!(private.state(first), ConnectionState::Closed);
        private.set(first, why);
        assert!(private.has(second) && !private.has(first));
        assert_eq!(private.state(second), ConnectionState::Opening);
        assert_eq!(private.remove(first), None);
        private.all_down();
        assert_eq!(private.state(second), ConnectionState::Closed);
    }
}
