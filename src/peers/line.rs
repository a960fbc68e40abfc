//! Peers that are asked when a place for a handshake is free: as many as may are being asked.
//!
//! Who stands in line for a pool is only named. What is asked for is gathered when its turn comes,
//! and the patience of the QPs that wait for it begins with that, as does a program's that opens a
//! connection of its own.

use super::{ConnectionState, Floor, NO_QP, Peers, workers_of};
use crate::connection::ConnectionOptions;
use std::net::IpAddr;
use trunkline_cm::{PeerMode, Purpose};
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
        if self.is_nobody_in_line(floor) {
            return self.ask_wanted(floor, &wanted);
        }
        // Programs bring entries of their own: no more than could ever be connections.
        let most = floor.manager.config().limits.connections;
        let room = self.line.len() < most as usize;
        if room {
            self.stand_in_line(Waiting::Private(wanted));
        }
        room
    }

    fn ask_wanted(&mut self, floor: &mut Floor<'_>, wanted: &Wanted) -> bool {
        let end = (wanted.peer, wanted.options.remote.unwrap_or(NO_QP));
        let handle = Some(wanted.handle);
        self.open(floor, end, Purpose::Private, &wanted.options, handle)
    }

    fn stand_in_line(&mut self, waiting: Waiting) {
        self.line.push_back(waiting);
        self.recorder.queued(self.line.len() as u64);
    }

    /// Whether a peer may be asked now without overtaking another.
    pub(super) fn is_nobody_in_line(&self, floor: &Floor<'_>) -> bool {
        self.line.is_empty() && floor.manager.may_ask()
    }

    pub(super) fn is_in_line(&self, floor: &Floor<'_>, peer: IpAddr, remote: Qpn) -> bool {
        let workers = workers_of(floor.engine, peer);
        let owner = workers.owner(remote.get());
        self.line.iter().any(|waiting| match *waiting {
            Waiting::Pool(at, toward) => at == peer && workers.owner(toward.into()) == owner,
            Waiting::Private(_) => false,
        })
    }

    /// Asks the next in line, as many as there are places free. Gives whether there was one.
    pub(crate) fn ask_next(&mut self, floor: &mut Floor<'_>) -> bool {
        let before = self.line.len();
        while floor.manager.may_ask()
            && let Some(next) = self.line.pop_front()
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
        // The program may have given it up meanwhile.
        if self.private.contains_key(&wanted.handle) && !self.ask_wanted(floor, wanted) {
            let why = "too many connections are being opened";
            self.tell(wanted.handle, ConnectionState::Failed(why));
        }
    }

    fn pool_has_turn(&mut self, floor: &mut Floor<'_>, at: (IpAddr, u8)) {
        let (peer, remote) = (Gid::from(at.0), Qpn::from_wire(at.1.into()));
        if !self.is_waited_for(floor, at.0, remote) {
            // The peer has asked itself meanwhile, or the QPs are gone.
            self.busy.remove(&at);
        } else if let PeerMode::Plain { .. } = self.directory.mode(floor.now, at.0) {
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
