//! Peers that share connections with us, and which connection of its pool a QP gets.

use super::link::Conn;
use super::{Cause, ConnId, Engine, Platform};
use crate::error::VerbsError;
use crate::slab::NONE;
use trunkline_wire::{Gid, Qpn, Workers};

/// GUID and epoch of a peer whose next incarnation has not introduced itself.
const UNKNOWN: (u64, u64) = (0, 0);

/// Who a peer is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerIdentity {
    /// Its node GUID.
    pub guid: u64,
    /// When this incarnation of it started: another one means it restarted.
    pub epoch: u64,
    /// Where it is reached.
    pub address: Gid,
    /// Its workers: which of them a QP there belongs to shows in its number.
    pub workers: Workers,
}

/// A peer that shares connections with us.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) guid: u64,
    pub(crate) epoch: u64,
    pub(crate) address: Gid,
    /// Its connections, linked.
    pub(crate) conns: u32,
    pub(crate) workers: Workers,
}

impl<P: Platform> Engine<P> {
    pub(crate) fn peer_record(&mut self, identity: PeerIdentity) -> Result<u32, VerbsError> {
        if let Some(&peer) = self.peer_of.get(&identity.address) {
            let record = &self.peers[peer];
            if (record.guid, record.epoch) == (identity.guid, identity.epoch) {
                return Ok(peer);
            }
            if (record.guid, record.epoch) == UNKNOWN {
                let record = &mut self.peers[peer];
                (record.guid, record.epoch) = (identity.guid, identity.epoch);
                record.workers = identity.workers;
                return Ok(peer);
            }
            return Err(VerbsError::Busy {
                what: "peer",
                users: self.connections_to(identity.address).len() as u32,
            });
        }
        let peer = self.peers.insert(Peer {
            guid: identity.guid,
            epoch: identity.epoch,
            address: identity.address,
            conns: NONE,
            workers: identity.workers,
        });
        self.peer_of.insert(identity.address, peer);
        Ok(peer)
    }

    /// The identity of the peer at `address`, if it shares connections with us.
    pub fn peer(&self, address: Gid) -> Option<PeerIdentity> {
        let record = &self.peers[*self.peer_of.get(&address)?];
        Some(PeerIdentity {
            guid: record.guid,
            epoch: record.epoch,
            address,
            workers: record.workers,
        })
    }

    /// Connections to `address`, newest first, private ones included.
    pub fn connections_to(&self, address: Gid) -> Vec<ConnId> {
        let mut found = Vec::new();
        let Some(&peer) = self.peer_of.get(&address) else {
            return found;
        };
        let mut next = self.peers[peer].conns;
        while next != NONE {
            found.push(self.conn_id(next));
            next = self.conns[next].next_of_peer;
        }
        found
    }

    /// Connections of the pool to `address`.
    pub fn pool_size(&self, address: Gid) -> u32 {
        let private = |id: &ConnId| self.conns[id.index].flags.private;
        self.connections_to(address)
            .iter()
            .filter(|id| !private(id))
            .count() as u32
    }

    /// The peer at `address` is gone or another incarnation of itself: its connections are dropped
    /// and the QPs that talked to it go to error. Those that never heard of it wait for the next
    /// incarnation: it is the one that their programs know.
    pub fn drop_peer(&mut self, address: Gid) {
        let Some(&peer) = self.peer_of.get(&address) else {
            return;
        };
        while self.peers[peer].conns != NONE {
            let conn = self.peers[peer].conns;
            self.remove_connection(conn, Cause::PeerGone);
        }
        self.forget_silence(peer);
        if self.fail_heard(peer) {
            let record = &mut self.peers[peer];
            (record.guid, record.epoch) = UNKNOWN;
            record.workers = Workers::ONE;
        } else {
            self.paths.forget(peer);
            self.peers.remove(peer);
            self.peer_of.remove(&address);
        }
    }

    /// Picks a connection of the pool to the worker of `peer` that has the QP `remote`: the one
    /// with the fewest flows.
    pub(crate) fn pick(&self, peer: u32, remote: Qpn) -> Option<u32> {
        let mut best: Option<u32> = None;
        let mut next = self.peers[peer].conns;
        while next != NONE {
            let conn = &self.conns[next];
            if !conn.flags.private
                && self.leads_to(conn, remote)
                && best.is_none_or(|b| conn.flows < self.conns[b].flows)
            {
                best = Some(next);
            }
            next = conn.next_of_peer;
        }
        best
    }

    /// Whether a connection leads to the worker of its peer that has the QP `remote`.
    pub(crate) fn leads_to(&self, conn: &Conn, remote: Qpn) -> bool {
        let workers = self.peers[conn.peer].workers;
        workers.owner(conn.delivery.remote_id().get()) == workers.owner(remote.get())
    }

    /// Where that goes which is owed to the worker of `peer` that `remote` is a number of.
    pub(crate) fn heir(&self, peer: u32, remote: Qpn) -> u32 {
        let pooled = self.pick(peer, remote);
        let mut next = self.peers[peer].conns;
        while pooled.is_none() && next != NONE && !self.leads_to(&self.conns[next], remote) {
            next = self.conns[next].next_of_peer;
        }
        pooled.unwrap_or(next)
    }

    pub(crate) fn unlink_from_peer(&mut self, conn: u32) {
        self.cut_from_peer(conn);
        let peer = self.conns[conn].peer;
        if self.peers[peer].conns == NONE {
            // Its QPs ask again over the next connection.
            self.waiting_binds.forget_peer(peer);
        }
    }

    fn cut_from_peer(&mut self, conn: u32) {
        let (peer, after) = (self.conns[conn].peer, self.conns[conn].next_of_peer);
        let mut at = self.peers[peer].conns;
        if at == conn {
            self.peers[peer].conns = after;
            return;
        }
        while self.conns[at].next_of_peer != conn {
            at = self.conns[at].next_of_peer;
        }
        self.conns[at].next_of_peer = after;
    }
}
