//! Peers that are asked when a place for a handshake is free: as many as may are being asked.
//!
//! Who stands in line for a pool is only named. What is asked for is gathered when its turn comes,
//! and the patience of the QPs that wait for it begins with that, as does a program's that opens a
//! connection of its own.

use super::{ConnectionState, Floor, NO_QP, Peers, workers_of};
use crate::connection::ConnectionOptions;
use crate::error::NoConnection;
use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use trunkline_cm::Purpose;
use trunkline_wire::{Gid, Qpn};

/// What waits until fewer are being asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiting {
    /// A connection of the pool to the worker of that peer with such a QP, as in an ask: each once.
    Pool(IpAddr, u8),
    Private(Wanted),
}

/// A connection that a program opens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) handle: u64,
    pub(super) peer: IpAddr,
    pub(super) options: ConnectionOptions,
}

/// Who waits, in order.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: VecDeque<Waiting>,
    /// Those of pools: each is in the line once.
    pools: BTreeSet<(IpAddr, u8)>,
}

impl Line {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn push(&mut self, waiting: Waiting) {
        if let Waiting::Pool(peer, toward) = waiting {
            self.pools.insert((peer, toward));
        }
        self.waiting.push_back(waiting);
    }

    fn pop(&mut self) -> Option<Waiting> {
        let next = self.waiting.pop_front()?;
        if let Waiting::Pool(peer, toward) = next {
            self.pools.remove(&(peer, toward));
        }
        Some(next)
    }

    pub(super) fn state_bytes(&self) -> usize {
        self.waiting.len() * size_of::<Waiting>() + self.pools.len() * size_of::<(IpAddr, u8)>()
    }
}

impl Peers {
    /// Asks the worker of `peer` that has the QP `remote` for a connection of the pool, now or in
    /// its turn.
    pub(super) fn open_pool(&mut self, floor: &mut Floor<'_>, peer: Gid, remote: Qpn) {
        if self.line.is_empty() && floor.manager.may_ask() {
            self.ask_pool(floor, peer, remote);
        } else if !self.is_in_line(floor, peer.address(), remote) {
            self.stand_in_line(Waiting::Pool(peer.address(), remote.get() as u8));
        }
    }

    /// The same for a connection that a program opens. Gives whether it may come to be: not if
    /// there are too many already.
    pub(super) fn open_wanted(&mut self, floor: &mut Floor<'_>, wanted: Wanted) -> bool {
        let has_to_wait = self.turns.has_to_wait(wanted.peer);
        if !has_to_wait && self.is_nobody_in_line(floor) {
            return self.ask_wanted(floor, &wanted);
        }
        // Programs bring entries of their own: no more than could ever be connections.
        let most = floor.manager.config().limits.connections;
        let room = self.line.len() + self.turns.len() < most as usize;
        if room && has_to_wait {
            self.turns.wait(wanted);
        } else if room {
            self.stand_in_line(Waiting::Private(wanted));
        }
        room
    }

    fn ask_wanted(&mut self, floor: &mut Floor<'_>, wanted: &Wanted) -> bool {
        let end = (wanted.peer, wanted.options.remote.unwrap_or(NO_QP));
        let handle = Some(wanted.handle);
        let opened = self.open(floor, end, Purpose::Private, &wanted.options, handle);
        if opened {
            self.turns.begin(wanted.peer);
        }
        opened
    }

    pub(super) fn stand_in_line(&mut self, waiting: Waiting) {
        self.line.push(waiting);
        self.recorder.queued(self.line.len() as u64);
    }

    /// Whether a peer may be asked now without overtaking another.
    pub(super) fn is_nobody_in_line(&self, floor: &Floor<'_>) -> bool {
        self.line.is_empty() && floor.manager.may_ask()
    }

    pub(super) fn is_in_line(&self, floor: &Floor<'_>, peer: IpAddr, remote: Qpn) -> bool {
        let workers = workers_of(floor.engine, peer);
        let owner = workers.owner(remote.get());
        let mut of_peer = self.line.pools.range((peer, 0)..=(peer, u8::MAX));
        of_peer.any(|(_, toward)| workers.owner((*toward).into()) == owner)
    }

    /// Asks the next in line, as many as there are places free. Gives whether there was one.
    pub(crate) fn ask_next(&mut self, floor: &mut Floor<'_>) -> bool {
        let before = self.line.len();
        while floor.manager.may_ask()
            && let Some(next) = self.line.pop()
        {
            self.recorder.in_line(self.line.len() as u64);
            match next {
                Waiting::Pool(peer, toward) => self.pool_has_turn(floor, (peer, toward)),
                Waiting::Private(wanted) => self.program_has_turn(floor, &wanted),
            }
        }
        self.line.len() != before
    }

    fn program_has_turn(&mut self, floor: &mut Floor<'_>, wanted: &Wanted) {
        if !self.private.contains_key(&wanted.handle) {
            // The program has given it up meanwhile.
            self.turn_is_free(wanted.peer);
        } else if !self.turns.is_free(wanted.peer) {
            self.turns.wait(*wanted);
        } else if !self.ask_wanted(floor, wanted) {
            let why = NoConnection::TooMany;
            self.tell(wanted.handle, ConnectionState::Failed(why));
            self.turn_is_free(wanted.peer);
        }
    }

    fn pool_has_turn(&mut self, floor: &mut Floor<'_>, at: (IpAddr, u8)) {
        let (peer, remote) = (Gid::from(at.0), Qpn::from_wire(at.1.into()));
        if !self.is_waited_for(floor, at.0, remote) {
            // The peer has asked itself meanwhile, or the QPs are gone.
            self.busy.remove(&at);
        } else if self.is_ordinary(floor, at.0) {
            self.busy.remove(&at);
            floor.engine.peer_is_plain(peer);
        } else if !self.is_pool_opening(floor, at.0, remote) {
            self.ask_pool(floor, peer, remote);
        }
    }

    /// Whether QPs wait for a connection to that worker of `peer`.
    pub(super) fn is_waited_for(&self, floor: &Floor<'_>, peer: IpAddr, remote: Qpn) -> bool {
        let workers = workers_of(floor.engine, peer);
        let owner = workers.owner(remote.get());
        let waiting = floor.engine.waiting_for(peer.into());
        let mut owners = waiting.iter().map(|other| workers.owner(other.get()));
        owners.any(|other| other == owner)
    }
}
