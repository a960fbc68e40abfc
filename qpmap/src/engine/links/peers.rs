//! Peers that share connections with us, by index and by address.

use crate::hash::Keyed;
use crate::slab::{NONE, Slab};
use hashbrown::HashTable;
use std::cell::Cell;
use trunkline_wire::{Gid, Workers};

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
    guid: u64,
    epoch: u64,
    address: Gid,
    /// The newest connection of its pool. They are linked.
    pub(super) pool: u32,
    workers: Workers,
}

impl Peer {
    pub(crate) const fn address(&self) -> Gid {
        self.address
    }

    pub(crate) const fn workers(&self) -> Workers {
        self.workers
    }

    pub(crate) const fn identity(&self) -> PeerIdentity {
        PeerIdentity {
            guid: self.guid,
            epoch: self.epoch,
            address: self.address,
            workers: self.workers,
        }
    }

    /// Whether its next incarnation has not introduced itself.
    pub(crate) fn is_unknown(&self) -> bool {
        self.incarnation() == UNKNOWN
    }

    /// GUID and epoch.
    pub(crate) const fn incarnation(&self) -> (u64, u64) {
        (self.guid, self.epoch)
    }

    /// This incarnation is gone.
    pub(super) const fn forget_incarnation(&mut self) {
        (self.guid, self.epoch) = UNKNOWN;
        self.workers = Workers::ONE;
    }
}

/// All of them. Who asks chooses its address, so that the hash of addresses is keyed.
#[derive(Debug)]
pub(super) struct Peers {
    hash: Keyed,
    records: Slab<Peer>,
    by_address: HashTable<(Gid, u32)>,
    /// The peer that was asked for last: QPs are connected to one peer after the other.
    last: Cell<u32>,
}

impl Peers {
    pub(super) const fn new(hash: Keyed) -> Self {
        Self {
            hash,
            records: Slab::new(),
            by_address: HashTable::new(),
            last: Cell::new(NONE),
        }
    }

    pub(super) fn get(&self, peer: u32) -> Option<&Peer> {
        self.records.get(peer)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.records.iter().map(|(_, peer)| peer)
    }

    /// The index of the peer at an address.
    pub(super) fn at(&self, address: Gid) -> Option<u32> {
        let last = self.last.get();
        if self.get(last).is_some_and(|peer| peer.address == address) {
            return Some(last);
        }
        let hash = hash_of(self.hash, address);
        let found = self.by_address.find(hash, |(at, _)| *at == address);
        let peer = found.map(|(_, peer)| *peer);
        self.last.set(peer.unwrap_or(NONE));
        peer
    }

    /// The record of a peer, made if there is none. `None`: there is one of another incarnation.
    pub(super) fn admit(&mut self, identity: &PeerIdentity) -> Option<u32> {
        if let Some(peer) = self.at(identity.address) {
            let record = &mut self.records[peer];
            if record.is_unknown() {
                (record.guid, record.epoch) = (identity.guid, identity.epoch);
                record.workers = identity.workers;
            }
            let same = record.incarnation() == (identity.guid, identity.epoch);
            return same.then_some(peer);
        }
        let peer = self.records.insert(Peer {
            guid: identity.guid,
            epoch: identity.epoch,
            address: identity.address,
            pool: NONE,
            workers: identity.workers,
        });
        let keyed = self.hash;
        let rehash = |(at, _): &(Gid, u32)| hash_of(keyed, *at);
        let entry = (identity.address, peer);
        self.by_address
            .insert_unique(hash_of(keyed, identity.address), entry, rehash);
        Some(peer)
    }

    pub(super) fn remove(&mut self, peer: u32) {
        let Peer { address, .. } = self.records.remove(peer);
        let hash = hash_of(self.hash, address);
        let found = self.by_address.find_entry(hash, |(at, _)| *at == address);
        if let Ok(found) = found {
            found.remove();
        }
    }
}

impl std::ops::Index<u32> for Peers {
    type Output = Peer;

    #[inline]
    fn index(&self, peer: u32) -> &Peer {
        &self.records[peer]
    }
}

impl std::ops::IndexMut<u32> for Peers {
    fn index_mut(&mut self, peer: u32) -> &mut Peer {
        &mut self.records[peer]
    }
}

fn hash_of(keyed: Keyed, Gid(bytes): Gid) -> u64 {
    let whole = u128::from_be_bytes(bytes);
    keyed.hash([(whole >> 64) as u64, whole as u64])
}
