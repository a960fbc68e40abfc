//! Peers that are asked when a place for a handshake is free: as many as may are being asked.
//!
//! Who stands in line is only named. What is asked for is gathered when its turn comes, and the
//! patience of the QPs that wait for it begins with that.

use super::{Floor, Peers, workers_of};
use std::net::IpAddr;
use trunkline_cm::PeerMode;
use trunkline_wire::{Gid, Qpn};

impl Peers {
    /// Asks the worker of `peer` that has the QP `remote` for a connection of the pool, now or in
    /// its turn.
    pub(super) fn open_pool(&mut self, floor: &mut Floor<'_>, peer: Gid, remote: Qpn) {
        if self.line.is_empty() && floor.manager.may_ask() {
            self.ask_pool(floor, peer, remote);
        } else if !self.is_in_line(floor, peer.address(), remote) {
            self.line.push_back((peer.address(), remote.get() as u8));
            self.recorder.queued(self.line.len() as u64);
        }
    }

    /// Whether a peer may be asked now without overtaking another.
    pub(super) fn is_nobody_in_line(&self, floor: &Floor<'_>) -> bool {
        self.line.is_empty() && floor.manager.may_ask()
    }

    pub(super) fn is_in_line(&self, floor: &Floor<'_>, peer: IpAddr, remote: Qpn) -> bool {
        let workers = workers_of(floor.engine, peer);
        let owner = workers.owner(remote.get());
        let same = |at: &(IpAddr, u8)| at.0 == peer && workers.owner(at.1.into()) == owner;
        self.line.iter().any(same)
    }

    /// Asks the next in line, as many as there are places free.
    pub(crate) fn ask_next(&mut self, floor: &mut Floor<'_>) {
        while floor.manager.may_ask()
            && let Some((peer, toward)) = self.line.pop_front()
        {
            self.recorder.in_line(self.line.len() as u64);
            self.have_turn(floor, (peer, toward));
        }
    }

    fn have_turn(&mut self, floor: &mut Floor<'_>, at: (IpAddr, u8)) {
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
    fn is_waited_for(&self, floor: &Floor<'_>, peer: IpAddr, remote: Qpn) -> bool {
        let workers = workers_of(floor.engine, peer);
        let owner = workers.owner(remote.get());
        let waiting = floor.engine.waiting_for(peer.into());
        let mut owners = waiting.iter().map(|other| workers.owner(other.get()));
        owners.any(|other| other == owner)
    }
}
