//! The records of the communication manager, and by what they are found.

use super::state::State;
use crate::comm_id::Side;
use crate::credit::Credit;
use crate::event::Route;
use crate::handshakes::Load;
use crate::phase::{Phase, Step};
use crate::random::Random;
use crate::setup::SetupState as _;
use crate::shares::{Held, Shares};
use crate::slots::{Record, Slots, State as _};
use alloc::collections::BTreeMap;
use core::net::IpAddr;
use trunkline_conn::observer::Observer;
use trunkline_wire::cm::CommId;
use trunkline_wire::{Qpn, Worker};

/// One connection or question.
#[derive(Debug)]
pub(crate) struct Slot {
    id: CommId,
    pub(super) route: Route,
    /// The peer's number for it; 0 until the peer has told it.
    remote: CommId,
    /// The QP of this end; a question has none.
    local_qpn: Option<Qpn>,
    /// The peer's QP and the GUID it goes with, once the peer has told them.
    remote_qp: Option<(Qpn, u64)>,
    /// The peer asked for it.
    theirs: bool,
    credit: Credit,
    // Changed by `Table::set_state` alone, which keeps timers, counts and indices.
    state: State,
}

impl Slot {
    pub(super) const fn state(&self) -> &State {
        &self.state
    }

    pub(super) const fn remote(&self) -> CommId {
        self.remote
    }

    pub(super) const fn local_qpn(&self) -> Option<Qpn> {
        self.local_qpn
    }

    pub(super) const fn remote_qp(&self) -> Option<(Qpn, u64)> {
        self.remote_qp
    }
}

impl Record for Slot {
    type State = State;

    fn new(id: CommId) -> Self {
        const NOWHERE: IpAddr = IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED);
        Self {
            id,
            route: Route {
                local: NOWHERE,
                remote: NOWHERE,
            },
            remote: CommId(0),
            local_qpn: None,
            remote_qp: None,
            theirs: false,
            credit: Credit::Proved,
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

/// What a peer's message is about.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Subject {
    Connection,
    Question,
}

/// All records. They are named by index; what comes from outside goes through the `find` methods.
#[derive(Debug)]
pub(super) struct Table {
    slots: Slots<Slot>,
    /// What peers asked for, by the number that they gave it.
    theirs: BTreeMap<(IpAddr, Subject, u32), u32>,
    /// Connections by the peer's QP, while it may be connected.
    remote_qps: BTreeMap<(IpAddr, Qpn, u64), u32>,
    /// Records by the QP of this end, until they are forgotten.
    local_qps: BTreeMap<Qpn, u32>,
    /// What each address asked for.
    shares: Shares,
    load: Load,
    pub(super) observer: Observer<Step>,
}

impl Table {
    pub(super) fn new(worker: Worker, random: &mut impl Random) -> Self {
        Self {
            slots: Slots::new((Side::Ibta, worker), random),
            theirs: BTreeMap::new(),
            remote_qps: BTreeMap::new(),
            local_qps: BTreeMap::new(),
            shares: Shares::default(),
            load: Load::default(),
            observer: Observer::none(),
        }
    }

    pub(super) const fn load(&self) -> &Load {
        &self.load
    }

    /// Bytes of the records, and of what finds them.
    pub(super) fn state_bytes(&self) -> usize {
        self.slots.state_bytes()
            + self.theirs.len() * size_of::<((IpAddr, Subject, u32), u32)>()
            + self.remote_qps.len() * size_of::<((IpAddr, Qpn, u64), u32)>()
            + self.local_qps.len() * size_of::<(Qpn, u32)>()
            + self.shares.state_bytes()
    }

    pub(super) const fn slots(&self) -> &Slots<Slot> {
        &self.slots
    }

    pub(super) const fn slots_mut(&mut self) -> &mut Slots<Slot> {
        &mut self.slots
    }

    pub(super) fn slot(&self, index: u32) -> &Slot {
        self.slots.get(index)
    }

    pub(super) fn id(&self, index: u32) -> CommId {
        self.slots.id(index)
    }

    /// The record that a communication ID of ours names, in whatever state but free.
    pub(super) fn find(&self, id: CommId) -> Option<u32> {
        self.slots.find(id)
    }

    /// What the peer behind `remote` asked for under its number `id`.
    pub(super) fn find_theirs(&self, remote: IpAddr, subject: Subject, id: CommId) -> Option<u32> {
        self.theirs.get(&(remote, subject, id.0)).copied()
    }

    /// The connection of a peer's QP that told this GUID.
    pub(super) fn find_remote_qp(&self, remote: IpAddr, qpn: Qpn, guid: u64) -> Option<u32> {
        self.remote_qps.get(&(remote, qpn, guid)).copied()
    }

    /// Whether a QP of this end has a connection, or had one that is not forgotten.
    pub(super) fn has_local_qp(&self, qpn: Qpn) -> bool {
        self.local_qps.contains_key(&qpn)
    }

    pub(super) const fn shares(&self) -> &Shares {
        &self.shares
    }

    /// What may be sent to the peer of a record.
    pub(super) fn credit(&mut self, index: u32) -> &mut Credit {
        &mut self.slots.get_mut(index).credit
    }

    /// Whether the address of a record's peer has proved itself, for this record or another one.
    pub(super) fn is_proved(&self, index: u32) -> bool {
        let slot = self.slot(index);
        slot.credit == Credit::Proved || self.shares.of_address(slot.route.remote).proofs > 0
    }

    /// The record that has a QP of this end.
    pub(super) fn find_local_qp(&self, qpn: Qpn) -> Option<u32> {
        self.local_qps.get(&qpn).copied()
    }

    /// Takes a place, in no state yet.
    pub(super) fn insert(&mut self, route: Route, random: &mut impl Random) -> u32 {
        let index = self.slots.insert(random);
        self.slots.get_mut(index).route = route;
        index
    }

    /// Notes the number under which the peer asked.
    pub(super) fn set_theirs(&mut self, index: u32, subject: Subject, remote: CommId) {
        let slot = self.slots.get_mut(index);
        (slot.remote, slot.theirs, slot.credit) = (remote, true, Credit::FIRST);
        let address = slot.route.remote;
        self.theirs.insert((address, subject, remote.0), index);
        let more = |held: &mut Held| held.connections += 1;
        self.shares.update(address, more);
    }

    /// Notes the number that the peer's answer tells.
    pub(super) fn set_remote(&mut self, index: u32, remote: CommId) {
        self.slots.get_mut(index).remote = remote;
    }

    pub(super) fn set_local_qp(&mut self, index: u32, qpn: Qpn) {
        self.slots.get_mut(index).local_qpn = Some(qpn);
        self.local_qps.insert(qpn, index);
    }

    pub(super) fn set_remote_qp(&mut self, index: u32, qpn: Qpn, guid: u64) {
        let slot = self.slots.get_mut(index);
        slot.remote_qp = Some((qpn, guid));
        self.remote_qps
            .insert((slot.route.remote, qpn, guid), index);
    }

    /// Moves a record to another state; the old one comes back.
    pub(super) fn set_state(&mut self, index: u32, state: State) -> State {
        let remote = self.slot(index).route.remote;
        self.count(remote, &state, true);
        let (ended, to) = (!state.is_live(), state.phase());
        let set = |slot: &mut Slot| core::mem::replace(&mut slot.state, state);
        let old = self.slots.update(index, set);
        self.emit(index, old.phase(), to);
        self.count(remote, &old, false);
        if ended {
            self.release_remote_qp(index);
        }
        old
    }

    /// Changes what a state holds, its deadline included.
    pub(super) fn update<T>(&mut self, index: u32, change: impl FnOnce(&mut State) -> T) -> T {
        self.slots.update(index, |slot| change(&mut slot.state))
    }

    fn emit(&mut self, index: u32, from: Phase, to: Phase) {
        if self.observer.is_watched() {
            let (id, peer) = (self.slots.id(index), self.slot(index).route.remote);
            self.observer.emit(|| Step { id, peer, from, to });
        }
    }

    /// Gives a place back.
    pub(super) fn remove(&mut self, index: u32) {
        self.emit(index, self.slot(index).state.phase(), Phase::Gone);
        self.release_remote_qp(index);
        let slot = self.slot(index);
        let (remote, address, local) = (slot.remote.0, slot.route.remote, slot.local_qpn);
        if slot.theirs {
            let less = |held: &mut Held| held.connections -= 1;
            self.shares.update(address, less);
        }
        for subject in [Subject::Connection, Subject::Question] {
            let key = (address, subject, remote);
            if self.theirs.get(&key) == Some(&index) {
                self.theirs.remove(&key);
            }
        }
        if let Some(qpn) = local {
            self.local_qps.remove(&qpn);
        }
        let old = self.slots.remove(index);
        self.count(address, &old.state, false);
    }

    fn release_remote_qp(&mut self, index: u32) {
        let slot = self.slots.get(index);
        if let Some((qpn, guid)) = slot.remote_qp {
            let key = (slot.route.remote, qpn, guid);
            if self.remote_qps.get(&key) == Some(&index) {
                self.remote_qps.remove(&key);
            }
        }
    }

    /// Counts a state in, or out.
    fn count(&mut self, remote: IpAddr, state: &State, enters: bool) {
        let load = &mut self.load;
        let count = match state {
            State::Free => return,
            State::ReqSent(_) | State::Replied(_) | State::SidrSent(_) => &mut load.opening,
            State::ReqReceived(_) | State::RepSent(_) | State::SidrReqReceived(..) => {
                &mut load.half_open
            }
            State::Established(_) => &mut load.established,
            State::DreqSent(..) => &mut load.closing,
            State::TimeWait { .. } | State::SidrDone { .. } => &mut load.time_wait,
        };
        let step = |count: &mut u32| *count = if enters { *count + 1 } else { *count - 1 };
        step(count);
        if state.is_proof() {
            self.shares.update(remote, |held| step(&mut held.proofs));
        }
        if state.is_half_open() {
            let before = self.shares.of_address(remote).half_open;
            self.shares.update(remote, |held| step(&mut held.half_open));
            let after = self.shares.of_address(remote).half_open;
            if (before == 0) != (after == 0) {
                step(&mut load.peers);
            }
        }
    }
}
