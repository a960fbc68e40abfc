//! The records of a manager: small ones for every connection, boxed ones for what is under way.

use crate::comm_id::Side;
use crate::event::Route;
use crate::hello::Purpose;
use crate::identity::Identity;
use crate::phase::{Phase, Step};
use crate::places::{Occupied, Places};
use crate::random::Random;
use crate::setup::SetupState as _;
use crate::shares::{Held, Shares};
use crate::slots::{Record, Slots, State as _};
use crate::state::{Exchange, State};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::IpAddr;
use trunkline_conn::observer::Observer;
use trunkline_wire::cm::CommId;
use trunkline_wire::{Gid, Qpn, Worker, Workers};

/// The communication IDs of the two ends; 0 where there is none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Ids {
    pub(crate) local: CommId,
    pub(crate) remote: CommId,
}

/// One handshake, or the connection that came of it.
#[derive(Debug)]
pub(crate) struct Slot {
    id: CommId,
    peer: u16,
    /// The peer asked for it.
    theirs: bool,
    /// The peer's communication ID; 0 until it has told it. Changed by the table alone, which finds
    /// slots by it.
    remote: CommId,
    /// Purpose in the upper 8 bits, number of the peer's end in the lower 24.
    packed: u32,
    // Changed by `Table::set_state` alone, which keeps timers and counts.
    state: State,
}

// DESIGN 4.2, invariant 6: a connection with its records stays within 176 bytes when idle.
const _: () = assert!(size_of::<Slot>() == 32 && size_of::<Peer>() <= 40);

impl Slot {
    pub(crate) const fn state(&self) -> &State {
        &self.state
    }

    /// Number of the peer's end, once it has told it.
    pub(crate) const fn remote_qpn(&self) -> Qpn {
        Qpn::from_wire(self.packed)
    }

    pub(crate) const fn purpose(&self) -> Purpose {
        Purpose::from_byte((self.packed >> 24) as u8)
    }

    pub(crate) const fn remote(&self) -> CommId {
        self.remote
    }

    pub(crate) const fn peer(&self) -> u16 {
        self.peer
    }
}

impl Record for Slot {
    type State = State;

    fn new(id: CommId) -> Self {
        Self {
            id,
            peer: 0,
            theirs: false,
            remote: CommId(0),
            packed: 0,
            state: State::FREE,
        }
    }

    fn id(&self) -> CommId {
        self.id
    }

    fn state(&self) -> &State {
        &self.state
    }
}

/// One address of a peer, seen from one of ours; there while it has slots.
#[derive(Debug)]
pub(crate) struct Peer {
    remote: Gid,
    /// Index of our address.
    local: u8,
    known: bool,
    /// Counts only if `known`: proved by a completed handshake.
    identity: Identity,
    /// The same.
    workers: Workers,
    /// Slots of it.
    slots: u32,
}

impl Occupied for Peer {
    fn is_free(&self) -> bool {
        self.slots == 0
    }
}

impl Peer {
    const FREE: Self = Self {
        remote: Gid([0; 16]),
        local: 0,
        known: false,
        identity: Identity { guid: 0, epoch: 0 },
        workers: Workers::ONE,
        slots: 0,
    };

    pub(crate) fn identity(&self) -> Option<Identity> {
        self.known.then_some(self.identity)
    }
}

/// What a manager holds, by state.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Load {
    /// Requests without an answer.
    pub opening: u32,
    /// Peers' requests that they have not confirmed.
    pub half_open: u32,
    /// Connections that stand.
    pub established: u32,
    /// Connections whose end the peer has not confirmed.
    pub closing: u32,
    /// Closed connections that are remembered.
    pub time_wait: u32,
    /// Connections that stand and that their owner keeps account of
    /// ([`NodeCm::hand_over`](crate::NodeCm::hand_over)).
    pub handed_over: u32,
    /// Addresses of peers: those with any of the above but what was handed over, or, of ordinary
    /// hosts, with half-open ones.
    pub peers: u32,
}

impl Load {
    /// Connections in any state.
    pub const fn connections(&self) -> u32 {
        let here = self.opening + self.half_open + self.established + self.closing;
        here + self.time_wait + self.handed_over
    }

    fn count(&mut self, state: &State) -> Option<&mut u32> {
        match state {
            State::Free => None,
            State::ReqSent(_) => Some(&mut self.opening),
            State::ReqReceived(_) | State::RepSent(_) => Some(&mut self.half_open),
            State::Established(_) => Some(&mut self.established),
            State::DreqSent(_) => Some(&mut self.closing),
            State::TimeWait { .. } => Some(&mut self.time_wait),
        }
    }
}

/// What finds a slot: its peer, the peer's number for it, the exchange that opened it.
type Place = (u16, u32, Exchange, u32);

/// All records. Slots are named by index; what comes from outside goes through [`Table::find`].
#[derive(Debug)]
pub(crate) struct Table {
    slots: Slots<Slot>,
    peers: Places<Peer>,
    /// Peers by their address and the index of ours.
    by_route: BTreeMap<(Gid, u8), u16>,
    /// Peers by the GUID that each has proved to have.
    by_guid: BTreeSet<(u64, u16)>,
    /// Slots whose peers have told their numbers.
    by_exchange: BTreeSet<Place>,
    /// Slots of pools that are not over, by peer and place.
    by_purpose: BTreeSet<(u16, u8, u32)>,
    shares: Shares,
    locals: Vec<IpAddr>,
    load: Load,
    pub(crate) observer: Observer<Step>,
}

impl Table {
    pub(crate) fn new(worker: Worker, random: &mut impl Random) -> Self {
        Self {
            slots: Slots::new((Side::Nodes, worker), random),
            peers: Places::new(),
            by_route: BTreeMap::new(),
            by_guid: BTreeSet::new(),
            by_exchange: BTreeSet::new(),
            by_purpose: BTreeSet::new(),
            shares: Shares::default(),
            locals: Vec::new(),
            load: Load::default(),
            observer: Observer::none(),
        }
    }

    pub(crate) const fn load(&self) -> &Load {
        &self.load
    }

    /// Bytes of the records, of peers and handshakes.
    pub(crate) fn state_bytes(&self) -> usize {
        self.slots.state_bytes()
            + self.peers.state_bytes()
            + self.by_route.len() * size_of::<((Gid, u8), u16)>()
            + self.by_guid.len() * size_of::<(u64, u16)>()
            + self.by_exchange.len() * size_of::<Place>()
            + self.by_purpose.len() * size_of::<(u16, u8, u32)>()
            + self.shares.state_bytes()
            + size_of_val(self.locals.as_slice())
    }

    pub(crate) const fn slots(&self) -> &Slots<Slot> {
        &self.slots
    }

    pub(crate) const fn slots_mut(&mut self) -> &mut Slots<Slot> {
        &mut self.slots
    }

    pub(crate) fn slot(&self, index: u32) -> &Slot {
        self.slots.get(index)
    }

    pub(crate) const fn shares(&self) -> &Shares {
        &self.shares
    }

    /// Notes the numbers that the peer has told: that of the handshake, and that of its end.
    pub(crate) fn set_remote(&mut self, index: u32, remote: CommId, qpn: Qpn) {
        self.set_comm_id(index, remote);
        let slot = self.slots.get_mut(index);
        slot.packed = slot.packed & 0xff00_0000 | qpn.get();
    }

    /// The peer's number is not known any more.
    pub(crate) fn forget_remote(&mut self, index: u32) {
        self.set_comm_id(index, CommId(0));
    }

    fn set_comm_id(&mut self, index: u32, remote: CommId) {
        let old = self.place(index);
        self.slots.get_mut(index).remote = remote;
        self.move_place(old, self.place(index));
    }

    /// Where a slot is found, if its peer has told its number.
    fn place(&self, index: u32) -> Option<Place> {
        let slot = self.slot(index);
        let exchange = slot.state.exchange().unwrap_or_default();
        (slot.remote != CommId(0)).then_some((slot.peer, slot.remote.0, exchange, index))
    }

    fn move_place(&mut self, old: Option<Place>, new: Option<Place>) {
        if old == new {
            return;
        }
        if let Some(place) = old {
            self.by_exchange.remove(&place);
        }
        self.by_exchange.extend(new);
    }

    /// The slot of what a peer calls `remote`, and opened in an exchange.
    pub(crate) fn find_theirs(
        &self,
        route: Route,
        remote: CommId,
        exchange: Exchange,
    ) -> Option<u32> {
        let at = (self.peer_at(route)?, remote.0, exchange);
        let mut found = self.by_exchange.range((at.0, at.1, at.2, 0)..);
        let &(peer, id, opened, index) = found.next()?;
        ((peer, id, opened) == at).then_some(index)
    }

    /// The slots for one place of a peer's pools: of each of its workers one that stands at most,
    /// and what is under way.
    pub(crate) fn in_place(
        &self,
        peer: u16,
        purpose: Purpose,
    ) -> impl Iterator<Item = (u32, &Slot)> {
        let place = purpose.to_byte();
        let all = self
            .by_purpose
            .range((peer, place, 0)..=(peer, place, u32::MAX));
        all.map(|&(_, _, index)| (index, self.slot(index)))
    }

    pub(crate) fn ids(&self, index: u32) -> Ids {
        let slot = self.slot(index);
        Ids {
            local: self.slots.id(index),
            remote: slot.remote,
        }
    }

    pub(crate) fn route(&self, index: u32) -> Route {
        self.peer_route(self.slot(index).peer)
    }

    pub(crate) fn peer_route(&self, peer: u16) -> Route {
        let peer = &self.peers[peer.into()];
        Route {
            local: self.locals[usize::from(peer.local)],
            remote: peer.remote.address(),
        }
    }

    /// The slot that a communication ID of ours names, in whatever state but free.
    pub(crate) fn find(&self, id: CommId) -> Option<u32> {
        self.slots.find(id)
    }

    /// Takes a slot for a handshake with whom `route` leads to, asked for by the peer if it is
    /// `theirs`; its state is to be set next. `None` when there are too many peers or addresses of
    /// ours.
    pub(crate) fn insert(
        &mut self,
        route: Route,
        (purpose, theirs): (Purpose, bool),
        random: &mut impl Random,
    ) -> Option<u32> {
        let peer = self.peer_or_new(route)?;
        let index = self.slots.insert(random);
        let slot = self.slots.get_mut(index);
        (slot.peer, slot.theirs) = (peer, theirs);
        slot.packed = u32::from(purpose.to_byte()) << 24;
        self.peers[peer.into()].slots += 1;
        if let Purpose::Pool(place) = purpose {
            self.by_purpose.insert((peer, place, index));
        }
        if theirs {
            let more = |held: &mut Held| held.connections += 1;
            self.shares.update(route.remote, more);
        }
        Some(index)
    }

    /// Moves a slot to another state; the old one comes back.
    pub(crate) fn set_state(&mut self, index: u32, state: State) -> State {
        if let Some(count) = self.load.count(&state) {
            *count += 1;
        }
        let (to, opens) = (state.phase(), state.is_half_open());
        if matches!(state, State::TimeWait { .. }) {
            let slot = self.slot(index);
            let place = (slot.peer, slot.purpose().to_byte(), index);
            self.by_purpose.remove(&place);
        }
        let place = self.place(index);
        let set = |slot: &mut Slot| core::mem::replace(&mut slot.state, state);
        let old = self.slots.update(index, set);
        self.move_place(place, self.place(index));
        self.emit(index, old.phase(), to);
        self.share_half_open(index, old.is_half_open(), opens);
        if let Some(count) = self.load.count(&old) {
            *count -= 1;
        }
        old
    }

    /// What is half-open counts for the peer's address.
    fn share_half_open(&mut self, index: u32, was: bool, is: bool) {
        if was != is {
            let (less, more) = (u32::from(was), u32::from(is));
            let change = |held: &mut Held| held.half_open = held.half_open + more - less;
            self.shares.update(self.route(index).remote, change);
        }
    }

    /// Changes what a state holds, its deadline included.
    pub(crate) fn update<T>(&mut self, index: u32, change: impl FnOnce(&mut State) -> T) -> T {
        self.slots.update(index, |slot| change(&mut slot.state))
    }

    fn emit(&mut self, index: u32, from: Phase, to: Phase) {
        if self.observer.is_watched() {
            let (id, peer) = (self.slots.id(index), self.route(index).remote);
            self.observer.emit(|| Step { id, peer, from, to });
        }
    }

    /// Gives a slot back, and its peer when it was the last.
    pub(crate) fn remove(&mut self, index: u32) {
        self.emit(index, self.slot(index).state.phase(), Phase::Gone);
        let slot = self.slot(index);
        let (peer, theirs) = (slot.peer, slot.theirs);
        self.share_half_open(index, slot.state.is_half_open(), false);
        if theirs {
            self.give_share_back(self.peer_route(peer).remote);
        }
        self.vacate(index);
    }

    /// Gives the slot of a connection that stands back, and goes on to count the connection and
    /// the share that it takes. Returns whether its peer asked for it.
    pub(crate) fn hand_over(&mut self, index: u32) -> bool {
        let theirs = self.slot(index).theirs;
        self.vacate(index);
        self.load.handed_over += 1;
        theirs
    }

    /// A connection with the address `remote` that was handed over has ended; its peer had asked
    /// for it if it was `theirs`.
    pub(crate) fn ended(&mut self, remote: IpAddr, theirs: bool) {
        self.load.handed_over -= 1;
        if theirs {
            self.give_share_back(remote);
        }
        self.observer.emit(|| Step {
            id: CommId(0),
            peer: remote,
            from: Phase::Established,
            to: Phase::Gone,
        });
    }

    fn give_share_back(&mut self, remote: IpAddr) {
        let less = |held: &mut Held| held.connections -= 1;
        self.shares.update(remote, less);
    }

    /// Empties a slot, and forgets its peer when it was the last.
    fn vacate(&mut self, index: u32) {
        let slot = self.slot(index);
        let (peer, purpose) = (slot.peer, slot.purpose());
        self.move_place(self.place(index), None);
        self.by_purpose.remove(&(peer, purpose.to_byte(), index));
        let slots = &mut self.peers[peer.into()].slots;
        *slots -= 1;
        if *slots == 0 {
            self.remove_peer(peer);
        }
        let old = self.slots.remove(index);
        if let Some(count) = self.load.count(&old.state) {
            *count -= 1;
        }
    }

    pub(crate) fn peer_at(&self, route: Route) -> Option<u16> {
        let local = self.local_at(route)?;
        self.by_route.get(&(route.remote.into(), local)).copied()
    }

    fn local_at(&self, route: Route) -> Option<u8> {
        let local = self.locals.iter().position(|&local| local == route.local)?;
        u8::try_from(local).ok()
    }

    pub(crate) fn peer(&self, peer: u16) -> &Peer {
        &self.peers[peer.into()]
    }

    /// Notes who a peer has proved to be.
    pub(crate) fn set_identity(&mut self, peer: u16, identity: Identity, workers: Workers) {
        self.forget_identity(peer);
        self.by_guid.insert((identity.guid, peer));
        let peer = &mut self.peers[peer.into()];
        (peer.identity, peer.workers, peer.known) = (identity, workers, true);
    }

    /// Whether another peer has proved to have this GUID.
    pub(crate) fn has_twin(&self, peer: u16, guid: u64) -> bool {
        let with = self.by_guid.range((guid, 0)..=(guid, u16::MAX));
        with.take(2).any(|&(_, other)| other != peer)
    }

    /// Whether the connection in a slot leads to the worker of the peer that has the QP with the
    /// low byte `toward`. As long as nothing is known of the peer's workers, it may.
    pub(crate) fn leads_to(&self, slot: &Slot, toward: u8) -> bool {
        let peer = &self.peers[slot.peer.into()];
        let (workers, number) = match slot.state() {
            State::ReqSent(state) => (peer.workers, state.request.toward.into()),
            State::ReqReceived(state) => (state.hello.end.workers, slot.packed),
            State::RepSent(state) => (state.hello.end.workers, slot.packed),
            _ => (peer.workers, slot.packed),
        };
        workers.owner(number) == workers.owner(toward.into())
    }

    /// Who a peer was does not count any more.
    pub(crate) fn forget_identity(&mut self, peer: u16) {
        let record = &mut self.peers[peer.into()];
        if record.known {
            self.by_guid.remove(&(record.identity.guid, peer));
        }
        (record.workers, record.known) = (Workers::ONE, false);
    }

    /// Slots of one peer that has told its numbers for them.
    pub(crate) fn slots_of(&self, peer: u16) -> impl Iterator<Item = (u32, &Slot)> {
        let last = Exchange::LAST;
        let all = (peer, 0, Exchange::default(), 0)..=(peer, u32::MAX, last, u32::MAX);
        let all = self.by_exchange.range(all);
        all.map(|&(.., index)| (index, self.slot(index)))
    }

    fn peer_or_new(&mut self, route: Route) -> Option<u16> {
        if let Some(peer) = self.peer_at(route) {
            return Some(peer);
        }
        let local = match self.local_at(route) {
            Some(local) => local,
            None => {
                let local = u8::try_from(self.locals.len()).ok()?;
                self.locals.push(route.local);
                local
            }
        };
        let peer = Peer {
            remote: Gid::from(route.remote),
            local,
            ..Peer::FREE
        };
        let index = self.peers.take(1 << u16::BITS, || Peer::FREE)?;
        self.peers[index] = peer;
        let index = index as u16;
        self.by_route.insert((route.remote.into(), local), index);
        self.load.peers += 1;
        Some(index)
    }

    fn remove_peer(&mut self, peer: u16) {
        self.forget_identity(peer);
        let record = self.peer(peer);
        let key = (record.remote, record.local);
        self.by_route.remove(&key);
        self.peers.give_back(peer.into(), drop);
        self.load.peers -= 1;
    }
}
