//! Connections that programs opened for themselves, by the handles that they have of them.

use super::ConnectionState;
use crate::error::NoConnection;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use trunkline_qpmap::ConnId;
use trunkline_qpmap::slab::Slab;

/// Bits of a handle that hold the place of its entry.
const PLACE_BITS: u32 = 32;

/// Where such a connection stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
enum State {
    Opening = 1,
    Open,
    /// Why stands elsewhere: few do.
    Failed,
    Closed,
}

/// Bits of a word of an entry that its state takes.
const STATE_BITS: u32 = 3;

/// What is kept of such a connection until its program gives it up.
#[derive(Debug)]
struct Entry {
    /// A serial number, which tells the entries apart that have the same place, and the state.
    word: NonZeroU32,
    /// Where it is open: its index in the engine.
    conn: u32,
}

const _: () = assert!(size_of::<Entry>() <= 8);

impl Entry {
    fn new(serial: u32, state: State) -> Self {
        let word = NonZeroU32::new(serial << STATE_BITS | state as u32);
        Self {
            word: word.expect("no state is 0"),
            conn: 0,
        }
    }

    fn serial(&self) -> u32 {
        self.word.get() >> STATE_BITS
    }

    fn state(&self) -> State {
        match self.word.get() & ((1 << STATE_BITS) - 1) {
            1 => State::Opening,
            2 => State::Open,
            3 => State::Failed,
            _ => State::Closed,
        }
    }

    fn set(&mut self, state: State) {
        *self = Self::new(self.serial(), state);
    }

    fn open(&self) -> Option<u32> {
        (self.state() == State::Open).then_some(self.conn)
    }
}

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
        self.serial = (self.serial + 1) % (1 << (u32::BITS - STATE_BITS));
        let place = self.entries.insert(Entry::new(self.serial, State::Opening));
        u64::from(self.serial) << PLACE_BITS | u64::from(place)
    }

    fn get(&self, handle: u64) -> Option<&Entry> {
        let entry = self.entries.get(place(handle))?;
        (u64::from(entry.serial()) == handle >> PLACE_BITS).then_some(entry)
    }

    /// Whether the program has not given the connection up.
    pub(super) fn has(&self, handle: u64) -> bool {
        self.get(handle).is_some()
    }

    /// Where a connection stands, which `conn` gives by its index in the engine.
    pub(super) fn state(
        &self,
        handle: u64,
        conn: impl FnOnce(u32) -> Option<ConnId>,
    ) -> ConnectionState {
        let Some(entry) = self.get(handle) else {
            return ConnectionState::Closed;
        };
        match entry.state() {
            State::Opening => ConnectionState::Opening,
            State::Open => conn(entry.conn).map_or(ConnectionState::Closed, ConnectionState::Open),
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
        let entry = &mut self.entries[place(handle)];
        match state {
            ConnectionState::Opening => entry.set(State::Opening),
            ConnectionState::Open(conn) => {
                entry.set(State::Open);
                entry.conn = conn.key().0;
            }
            ConnectionState::Failed(why) => {
                entry.set(State::Failed);
                self.failed.insert(handle, why);
            }
            ConnectionState::Closed => entry.set(State::Closed),
        }
    }

    /// A connection is down: so is what stands in this place, if it is that.
    pub(super) fn down(&mut self, place: u32, conn: ConnId) {
        if let Some(entry) = self.entries.get_mut(place)
            && entry.open() == Some(conn.key().0)
        {
            entry.set(State::Closed);
        }
    }

    /// All connections are down.
    pub(super) fn all_down(&mut self) {
        let places = 0..self.entries.slots();
        for place in places {
            if let Some(entry) = self.entries.get_mut(place) {
                entry.set(State::Closed);
            }
        }
    }

    /// The program gives a connection up. Returns its index if it is open.
    pub(super) fn remove(&mut self, handle: u64) -> Option<u32> {
        self.get(handle)?;
        self.failed.remove(&handle);
        self.entries.remove(place(handle)).open()
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
    use crate::platform::NodePlatform;
    use std::net::IpAddr;
    use trunkline_conn::time::Instant;
    use trunkline_qpmap::{Config, ConnectionParams, Engine, PeerIdentity};
    use trunkline_wire::{Qpn, Workers};

    fn state(private: &Private, handle: u64) -> ConnectionState {
        private.state(handle, |_| unreachable!("none is open"))
    }

    #[test]
    fn why_a_connection_failed_is_kept_as_long_as_that_it_did() {
        let mut private = Private::default();
        for goes_on in [false, true] {
            let handle = private.insert();
            private.set(handle, ConnectionState::Failed(NoConnection::Silent));
            assert_eq!(private.failed.len(), 1);
            match goes_on {
                true => private.set(handle, ConnectionState::Closed),
                false => assert_eq!(private.remove(handle), None),
            }
            assert_eq!(private.failed.len(), 0);
        }
    }

    #[test]
    fn a_handle_means_one_connection_whoever_has_its_place_later() {
        let mut private = Private::default();
        let first = private.insert();
        assert_eq!(state(&private, first), ConnectionState::Opening);
        let why = ConnectionState::Failed(NoConnection::Silent);
        private.set(first, why);
        assert_eq!(state(&private, first), why);
        assert_eq!(private.remove(first), None);
        let second = private.insert();
        assert_eq!(place(first), place(second));
        assert_eq!(state(&private, first), ConnectionState::Closed);
        private.set(first, why);
        assert!(private.has(second) && !private.has(first));
        assert_eq!(state(&private, second), ConnectionState::Opening);
        assert_eq!(private.remove(first), None);
        private.all_down();
        assert_eq!(state(&private, second), ConnectionState::Closed);
    }

    /// Two connections of an engine.
    fn connections() -> [ConnId; 2] {
        let address = IpAddr::from([10, 0, 0, 2]).into();
        let mut engine: Engine<NodePlatform> = Engine::new(Config::default());
        [1, 2].map(|number| {
            let (local_id, local_token) = engine.draw_connection().expect("a number");
            let params = ConnectionParams {
                local_id,
                local_token,
                remote_id: Qpn::from_wire(number),
                remote_token: number,
                first_tx: 1,
                first_rx: 1,
                datagram: 1104,
                window: 64,
                control: None,
                traffic_class: 0,
                weight: 1,
                source_ports: 1,
                private: true,
                packs: true,
            };
            let identity = PeerIdentity {
                guid: 2,
                epoch: 1,
                address,
                workers: Workers::ONE,
            };
            let now = Instant::from_nanos(1);
            let conn = engine.add_connection(now, identity, &params);
            conn.expect("a connection")
        })
    }

    #[test]
    fn what_is_down_closes_the_handle_of_that_connection_and_no_other() {
        let [first, second] = connections();
        let mut private = Private::default();
        let handle = private.insert();
        let stands = |private: &Private| private.state(handle, |_| Some(second));
        private.set(handle, ConnectionState::Open(second));
        // One that is gone already may have noted the same place.
        private.down(place(handle), first);
        assert_eq!(stands(&private), ConnectionState::Open(second));
        private.down(place(handle), second);
        assert_eq!(stands(&private), ConnectionState::Closed);
        assert_eq!(private.remove(handle), None);
    }
}
