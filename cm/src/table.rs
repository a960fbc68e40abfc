//! The records of a manager: small ones for every connection, boxed ones for what is under way.

use crate::comm_id::Side;
use crate::event::Route;
use crate::hello::Purpose;
use crate::identity::Identity;
use crate::phase::{Phase, Step};
use crate::random::Random;
use crate::slots::{Record, Slots, State as _};
use crate::state::State;
use alloc::vec::Vec;
use core::net::IpAddr;
use trunkline_conn::observer::Observer;
use trunkline_wire::cm::CommId;
use trunkline_wire::{Gid, Qpn, Worker, Workers};

/// End of a chain.
const NONE: u32 = u32::MAX;

/// The communication IDs of the two ends; 0 where there is none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Ids {
    pub(crate) local: CommId,
    pub(crate) remote: CommId,
}

/// One handshake, or the connection that came of it.
#[derive(Debug)]
pub(crate) struct Slot {
    tag: u16,
    peer: u16,
    /// Next slot of the same peer.
    next: u32,
    /// The peer's communication ID; 0 until it has told it.
    pub(crate) remote: CommId,
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

    pub(crate) const fn set_remote(&mut self, remote: CommId, qpn: Qpn) {
        self.remote = remote;
        self.packed = self.packed & 0xff00_0000 | qpn.get();
    }

    pub(crate) const fn peer(&self) -> u16 {
        self.peer
    }
}

impl Record for Slot {
    type State = State;

    fn new(tag: u16) -> Self {
        Self {
            tag,
            peer: 0,
            next: NONE,
            remote: CommId(0),
            packed: 0,
            state: State::FREE,
        }
    }

    fn tag(&self) -> u16 {
        self.tag
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
    head: u32,
}

impl Peer {
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.known.then_some(self.identity)
    }
}

/// What a manager holds, by state.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Load {
    /// Asks without an answer.
    pub opening: u32,
    /// Peers' asks that they have not confirmed.
    pub half_open: u32,
    /// Connections that stand.
    pub established: u32,
    /// Connections whose end the peer has not confirmed.
    pub closing: u32,
    /// Closed connections that are remembered.
    pub time_wait: u32,
    /// Addresses of peers: those with any of the above, or, of ordinary hosts, with half-open ones.
    pub peers: u32,
}

impl Load {
    /// Connections in any state.
    pub const fn connections(&self) -> u32 {
        self.opening + self.half_open + self.established + self.closing + self.time_wait
    }

    fn count(&mut self, state: &State) -> Option<&mut u32> {
        match state {
            State::Free => None,
            State::ReqSent(_) => Some(&mut self.opening),
            State::Asked(_) | State::RepSent(_) => Some(&mut self.half_open),
            State::Established(_) => Some(&mut self.established),
            State::DreqSent(_) => Some(&mut self.closing),
            State::TimeWait { .. } => Some(&mut self.time_wait),
        }
    }
}

/// All records. Slots are named by index; what comes from outside goes through [`Table::find`].
#[derive(Debug)]
pub(crate) struct Table {
    slots: Slots<Slot>,
    peers: Vec<Peer>,
    free_peers: Vec<u16>,
    /// Peers in the order of their routes.
    by_route: Vec<u16>,
    locals: Vec<IpAddr>,
    load: Load,
    pub(crate) observer: Observer<Step>,
}

impl Table {
    pub(crate) fn new(worker: Worker, random: &mut impl Random) -> Self {
        Self {
            slots: Slots::new((Side::Nodes, worker), random),
            peers: Vec::new(),
            free_peers: Vec::new(),
            by_route: Vec::new(),
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
            + size_of_val(self.peers.as_slice())
            + size_of_val(self.free_peers.as_slice())
            + size_of_val(self.by_route.as_slice())
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

    pub(crate) fn slot_mut(&mut self, index: u32) -> &mut Slot {
        self.slots.get_mut(index)
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
        let peer = &self.peers[usize::from(peer)];
        Route {
            local: self.locals[usize::from(peer.local)],
            remote: peer.remote.address(),
        }
    }

    /// The slot that a communication ID of ours names, in whatever state but free.
    pub(crate) fn find(&self, id: CommId) -> Option<u32> {
        self.slots.find(id)
    }

    /// Takes a slot for a handshake with whom `route` leads to; its state is to be set next. `None`
    /// when there are too many peers or addresses of ours.
    pub(crate) fn insert(
        &mut self,
        route: Route,
        purpose: Purpose,
        random: &mut impl Random,
    ) -> Option<u32> {
        let peer = self.peer_or_new(route)?;
        let head = self.peers[usize::from(peer)].head;
        let index = self.slots.insert(random);
        let slot = self.slots.get_mut(index);
        (slot.peer, slot.next) = (peer, head);
        slot.packed = u32::from(purpose.to_byte()) << 24;
        self.peers[usize::from(peer)].head = index;
        Some(index)
    }

    /// Moves a slot to another state; the old one comes back.
    pub(crate) fn set_state(&mut self, index: u32, state: State) -> State {
        if let Some(count) = self.load.count(&state) {
            *count += 1;
        }
        let to = state.phase();
        let set = |slot: &mut Slot| core::mem::replace(&mut slot.state, state);
        let old = self.slots.update(index, set);
        self.tell(index, old.phase(), to);
        if let Some(count) = self.load.count(&old) {
            *count -= 1;
        }
        old
    }

    /// Changes what a state holds, its deadline included.
    pub(crate) fn update<T>(&mut self, index: u32, change: impl FnOnce(&mut State) -> T) -> T {
        self.slots.update(index, |slot| change(&mut slot.state))
    }

    fn tell(&mut self, index: u32, from: Phase, to: Phase) {
        if self.observer.is_watched() {
            let (id, peer) = (self.slots.id(index), self.route(index).remote);
            self.observer.tell(|| Step { id, peer, from, to });
        }
    }

    /// Gives a slot back, and its peer when it was the last.
    pub(crate) fn remove(&mut self, index: u32) {
        self.tell(index, self.slot(index).state.phase(), Phase::Gone);
        let (peer, next) = (self.slot(index).peer, self.slot(index).next);
        let head = self.peers[usize::from(peer)].head;
        if head == index {
            self.peers[usize::from(peer)].head = next;
        } else {
            let mut before = head;
            while self.slot(before).next != index {
                before = self.slot(before).next;
            }
            self.slot_mut(before).next = next;
        }
        if self.peers[usize::from(peer)].head == NONE {
            self.remove_peer(peer);
        }
        let old = self.slots.remove(index);
        if let Some(count) = self.load.count(&old.state) {
            *count -= 1;
        }
    }

    pub(crate) fn peer_at(&self, route: Route) -> Option<u16> {
        self.search(route).ok().map(|at| self.by_route[at])
    }

    pub(crate) fn peer(&self, peer: u16) -> &Peer {
        &self.peers[usize::from(peer)]
    }

    /// Notes who a peer has proved to be.
    pub(crate) fn set_identity(&mut self, peer: u16, identity: Identity, workers: Workers) {
        let peer = &mut self.peers[usize::from(peer)];
        (peer.identity, peer.workers, peer.known) = (identity, workers, true);
    }

    /// Whether the connection in a slot leads to the worker of the peer that has the QP with the
    /// low byte `toward`. As long as nothing is known of the peer's workers, it may.
    pub(crate) fn leads_to(&self, slot: &Slot, toward: u8) -> bool {
        let peer = &self.peers[usize::from(slot.peer)];
        let (workers, number) = match slot.state() {
            State::ReqSent(state) => (peer.workers, state.ask.toward.into()),
            State::Asked(state) => (state.hello.end.workers, slot.packed),
            State::RepSent(state) => (state.hello.end.workers, slot.packed),
            _ => (peer.workers, slot.packed),
        };
        workers.owner(number) == workers.owner(toward.into())
    }

    /// Who a peer was does not count any more.
    pub(crate) fn forget_identity(&mut self, peer: u16) {
        let peer = &mut self.peers[usize::from(peer)];
        (peer.workers, peer.known) = (Workers::ONE, false);
    }

    /// All addresses of peers.
    pub(crate) fn peers(&self) -> impl Iterator<Item = (u16, &Peer)> {
        self.by_route.iter().map(|&peer| (peer, self.peer(peer)))
    }

    /// Slots of one peer.
    pub(crate) fn chain(&self, peer: u16) -> impl Iterator<Item = (u32, &Slot)> {
        let mut next = self.peers[usize::from(peer)].head;
        core::iter::from_fn(move || {
            if next == NONE {
                return None;
            }
            let index = next;
            next = self.slot(index).next;
            Some((index, self.slot(index)))
        })
    }

    fn search(&self, route: Route) -> Result<usize, usize> {
        self.by_route
            .binary_search_by_key(&route, |&peer| self.peer_route(peer))
    }

    fn peer_or_new(&mut self, route: Route) -> Option<u16> {
        let at = match self.search(route) {
            Ok(at) => return Some(self.by_route[at]),
            Err(at) => at,
        };
        let local = match self.locals.iter().position(|&local| local == route.local) {
            Some(local) => local,
            None => {
                self.locals.push(route.local);
                self.locals.len() - 1
            }
        };
        let Ok(local) = u8::try_from(local) else {
            self.locals.pop();
            return None;
        };
        let peer = Peer {
            remote: Gid::from(route.remote),
            local,
            known: false,
            identity: Identity { guid: 0, epoch: 0 },
            workers: Workers::ONE,
            head: NONE,
        };
        let index = match self.free_peers.pop() {
            Some(index) => {
                self.peers[usize::from(index)] = peer;
                index
            }
            None => {
                let index = u16::try_from(self.peers.len()).ok()?;
                self.peers.push(peer);
                index
            }
        };
        self.by_route.insert(at, index);
        self.load.peers += 1;
        Some(index)
    }

    fn remove_peer(&mut self, peer: u16) {
        let at = self.search(self.peer_route(peer));
        let at = at.expect("every peer stands in the order of routes");
        self.by_route.remove(at);
        self.free_peers.push(peer);
        self.load.peers -= 1;
    }
}
