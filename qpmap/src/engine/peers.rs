//! Peers that share connections with us, and which connection of its pool a QP gets.

use super::backlog::Task;
use super::link::Conn;
use super::{Cause, ConnId, Engine, Platform};
use crate::error::VerbsError;
use crate::hash::Keyed;
use crate::slab::NONE;
use hashbrown::HashTable;
use trunkline_conn::time::Instant;
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
    /// The newest connection of its pool. They are linked.
    pub(crate) pool: u32,
    pub(crate) workers: Workers,
}

/// Peers by address. Who asks chooses its address, so that the hash is keyed.
#[derive(Debug)]
pub(crate) struct Addresses {
    hash: Keyed,
    table: HashTable<(Gid, u32)>,
}

impl Addresses {
    pub(crate) const fn new(hash: Keyed) -> Self {
        Self {
            hash,
            table: HashTable::new(),
        }
    }

    /// The index of the peer at an address.
    pub(crate) fn get(&self, address: Gid) -> Option<u32> {
        let found = self
            .table
            .find(hash_of(self.hash, address), |(at, _)| *at == address);
        found.map(|(_, peer)| *peer)
    }

    /// Takes up the peer at an address that none had.
    fn insert(&mut self, address: Gid, peer: u32) {
        let keyed = self.hash;
        let rehash = |(at, _): &(Gid, u32)| hash_of(keyed, *at);
        let entry = (address, peer);
        self.table
            .insert_unique(hash_of(keyed, address), entry, rehash);
    }

    fn remove(&mut self, address: Gid) {
        let hash = hash_of(self.hash, address);
        if let Ok(found) = self.table.find_entry(hash, |(at, _)| *at == address) {
            found.remove();
        }
    }
}

fn hash_of(keyed: Keyed, Gid(bytes): Gid) -> u64 {
    let whole = u128::from_be_bytes(bytes);
    keyed.hash([(whole >> 64) as u64, whole as u64])
}

impl<P: Platform> Engine<P> {
    pub(crate) fn peer_record(&mut self, identity: PeerIdentity) -> Result<u32, VerbsError> {
        if let Some(peer) = self.peer_of.get(identity.address) {
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
            pool: NONE,
            workers: identity.workers,
        });
        self.peer_of.insert(identity.address, peer);
        Ok(peer)
    }

    /// The identity of the peer at `address`, if it shares connections with us.
    pub fn peer(&self, address: Gid) -> Option<PeerIdentity> {
        let record = &self.peers[self.peer_of.get(address)?];
        Some(PeerIdentity {
            guid: record.guid,
            epoch: record.epoch,
            address,
            workers: record.workers,
        })
    }

    /// Connections to `address`: those of the pool, newest first, and then private ones.
    pub fn connections_to(&self, address: Gid) -> Vec<ConnId> {
        let peer = self.peer_of.get(address);
        let all = peer.into_iter().flat_map(|peer| self.conns_of(peer));
        all.map(|conn| self.conn_id(conn)).collect()
    }

    /// Connections of the pool to `address`.
    pub fn pool_size(&self, address: Gid) -> u32 {
        let peer = self.peer_of.get(address);
        peer.map_or(0, |peer| self.pool_of(peer).count() as u32)
    }

    /// Connections of the pool to a peer, newest first.
    pub(crate) fn pool_of(&self, peer: u32) -> impl Iterator<Item = u32> {
        let some = |conn: u32| (conn != NONE).then_some(conn);
        let next = move |conn: &u32| some(self.conns[*conn].next_of_pool);
        std::iter::successors(some(self.peers[peer].pool), next)
    }

    /// Connections to a peer that programs opened for themselves.
    fn private_of(&self, peer: u32) -> impl Iterator<Item = u32> {
        let of_peer = (peer, 0)..=(peer, NONE);
        self.private.range(of_peer).map(|(_, conn)| *conn)
    }

    /// All connections to a peer.
    pub(crate) fn conns_of(&self, peer: u32) -> impl Iterator<Item = u32> {
        self.pool_of(peer).chain(self.private_of(peer))
    }

    /// Takes up a new connection to a peer.
    pub(crate) fn link_to_peer(&mut self, conn: u32) {
        let record = &mut self.conns[conn];
        if record.flags.private {
            self.private.insert((record.peer, conn));
        } else {
            let newest = &mut self.peers[record.peer].pool;
            record.next_of_pool = std::mem::replace(newest, conn);
        }
    }

    /// The peer at `address` is gone or another incarnation of itself: its connections are dropped
    /// and the QPs that talked to it go to error. Those that never heard of it wait for the next
    /// incarnation: it is the one that their programs know.
    pub fn drop_peer(&mut self, address: Gid) {
        let Some(peer) = self.peer_of.get(address) else {
            return;
        };
        loop {
            let next = self.conns_of(peer).next();
            let Some(conn) = next else { break };
            self.remove_connection(conn, Cause::PeerGone);
        }
        self.forget_silence(peer);
        self.fail_heard(peer);
        let record = &mut self.peers[peer];
        (record.guid, record.epoch) = UNKNOWN;
        record.workers = Workers::ONE;
        self.forget_if_unknown(peer);
    }

    /// Another worker has a connection to `identity` since `at`. Where that is another incarnation
    /// of a peer of ours, which was not heard since, ours is gone.
    pub fn heed_incarnation(&mut self, identity: &PeerIdentity, at: Instant) {
        let Some(peer) = self.peer_of.get(identity.address) else {
            return;
        };
        let record = &self.peers[peer];
        let ours = (record.guid, record.epoch);
        let heard = |conn: u32| self.conns[conn].delivery.heard_at() >= at;
        if ours != (identity.guid, identity.epoch)
            && ours != UNKNOWN
            && !self.conns_of(peer).any(heard)
        {
            self.drop_peer(identity.address);
        }
    }

    /// Whether the next incarnation of a peer has not introduced itself.
    pub(super) fn is_unknown(&self, peer: u32) -> bool {
        let record = self.peers.get(peer);
        record.is_some_and(|record| (record.guid, record.epoch) == UNKNOWN)
    }

    pub(super) fn forget_peer(&mut self, peer: u32) {
        self.forget_path(peer);
        let record = self.peers.remove(peer);
        self.peer_of.remove(record.address);
    }

    /// Picks a connection of the pool to the worker of `peer` that has the QP `remote`: the one
    /// with the fewest flows.
    pub(crate) fn pick(&self, peer: u32, remote: Qpn) -> Option<u32> {
        let leads = self
            .pool_of(peer)
            .filter(|conn| self.leads_to(&self.conns[*conn], remote));
        leads.min_by_key(|conn| self.conns[*conn].flows)
    }

    /// Whether a program has named the QP `remote` at `peer` as that which its QP talks to.
    pub(crate) fn is_for(&self, qp: u32, peer: u32, remote: Qpn) -> bool {
        let attributes = &self.cold(qp).attributes;
        (attributes.remote, attributes.dest_qpn) == (self.peers[peer].address, remote)
    }

    /// Whether a connection leads to the worker of its peer that has the QP `remote`.
    pub(crate) fn leads_to(&self, conn: &Conn, remote: Qpn) -> bool {
        let workers = self.peers[conn.peer].workers;
        workers.owner(conn.delivery.remote_id().get()) == workers.owner(remote.get())
    }

    /// Where that goes which is owed to the worker of `peer` that `remote` is a number of.
    pub(crate) fn fallback(&self, peer: u32, remote: Qpn) -> u32 {
        let leads = |conn: &u32| self.leads_to(&self.conns[*conn], remote);
        let pooled = self.pick(peer, remote);
        pooled
            .or_else(|| self.private_of(peer).find(leads))
            .unwrap_or(NONE)
    }

    pub(crate) fn unlink_from_peer(&mut self, conn: u32) {
        self.cut_from_peer(conn);
        let peer = self.conns[conn].peer;
        if self.conns_of(peer).next().is_none() {
            // Its QPs ask again over the next connection.
            self.backlog.add(Task::ForgetBinds { peer });
        }
    }

    fn cut_from_peer(&mut self, conn: u32) {
        let record = &self.conns[conn];
        let (peer, after) = (record.peer, record.next_of_pool);
        if record.flags.private {
            self.private.remove(&(peer, conn));
            return;
        }
        let before = self.pool_of(peer).take_while(|at| *at != conn).last();
        match before {
            None => self.peers[peer].pool = after,
            Some(before) => self.conns[before].next_of_pool = after,
        }
    }
}
