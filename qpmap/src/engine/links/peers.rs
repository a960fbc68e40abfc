//! Peers that share connections with us, by index and by address.

use crate::hash::Keyed;
use crate::slab::{NONE, Slab};
use hashbrown::HashTable;
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use trunkline_wire::{Gid, Workers};

/// Stands for the incarnation of a peer whose next one has not introduced itself.
const UNKNOWN: u64 = 0;

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
    /// Keyed hash of GUID and epoch, in two halves: only whether they are the same counts.
    incarnation: [u32; 2],
    /// An IPv4 address, or the index of a `wide` one.
    address: u32,
    /// The newest connections of its pool and of those that programs opened. They are linked.
    pool: u32,
    private: u32,
    workers: Workers,
    wide: bool,
    /// A route to it has ended.
    parted: bool,
}

const _: () = assert!(size_of::<Peer>() <= 24);

impl Peer {
    pub(crate) const fn workers(&self) -> Workers {
        self.workers
    }

    /// Whether its next incarnation has not introduced itself.
    pub(crate) fn is_unknown(&self) -> bool {
        self.incarnation == halves(UNKNOWN)
    }

    /// Whether a route to it has ended since it is known.
    pub(crate) const fn parted(&self) -> bool {
        self.parted
    }

    /// This incarnation is gone.
    pub(super) const fn forget_incarnation(&mut self) {
        self.incarnation = halves(UNKNOWN);
        self.workers = Workers::ONE;
    }

    /// The newest connection of its pool.
    pub(super) const fn pool(&self) -> u32 {
        self.pool
    }

    /// The newest connection that a program opened for itself.
    pub(super) const fn private(&self) -> u32 {
        self.private
    }

    /// The same, to change it.
    pub(super) const fn newest(&mut self, private: bool) -> &mut u32 {
        if private {
            &mut self.private
        } else {
            &mut self.pool
        }
    }
}

const fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

/// All of them. Who asks chooses its address, so that the hash of addresses is keyed.
#[derive(Debug)]
pub(super) struct Peers {
    hash: Keyed,
    records: Slab<Peer>,
    /// Addresses of more than four bytes.
    wide: Slab<Gid>,
    by_address: HashTable<u32>,
    /// The peer that was asked for last: QPs are connected to one peer after the other.
    last: Cell<u32>,
}

impl Peers {
    pub(super) const fn new(hash: Keyed) -> Self {
        Self {
            hash,
            records: Slab::new(),
            wide: Slab::new(),
            by_address: HashTable::new(),
            last: Cell::new(NONE),
        }
    }

    pub(super) fn get(&self, peer: u32) -> Option<&Peer> {
        self.records.get(peer)
    }

    /// The addresses of all.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Gid> {
        self.records
            .iter()
            .map(|(_, peer)| address_of(&self.wide, peer))
    }

    /// A route to a peer that is there ends.
    pub(super) fn part(&mut self, peer: u32) {
        self.records[peer].parted = true;
    }

    /// The address of a peer that is there.
    #[inline]
    pub(super) fn address(&self, peer: u32) -> Gid {
        address_of(&self.wide, &self.records[peer])
    }

    /// The index of the peer at an address.
    pub(super) fn at(&self, address: Gid) -> Option<u32> {
        let last = self.last.get();
        if self.get(last).is_some() && self.address(last) == address {
            return Some(last);
        }
        let hash = hash_of(self.hash, address);
        let is_it = |peer: &u32| self.address(*peer) == address;
        let peer = self.by_address.find(hash, is_it).copied();
        self.last.set(peer.unwrap_or(NONE));
        peer
    }

    /// What stands for an incarnation: another word for each, as far as anybody can bring about
    /// who does not know the key.
    fn word(&self, identity: &PeerIdentity) -> [u32; 2] {
        let word = self.hash.hash([identity.guid, identity.epoch]);
        halves(if word == UNKNOWN { 1 } else { word })
    }

    /// Whether a peer is the incarnation that introduces itself.
    pub(super) fn is_incarnation(&self, peer: u32, identity: &PeerIdentity) -> bool {
        self.records[peer].incarnation == self.word(identity)
    }

    /// The record of a peer, made if there is none. `None`: there is one of another incarnation.
    pub(super) fn admit(&mut self, identity: &PeerIdentity) -> Option<u32> {
        let incarnation = self.word(identity);
        if let Some(peer) = self.at(identity.address) {
            let record = &mut self.records[peer];
            if record.is_unknown() {
                record.incarnation = incarnation;
                record.workers = identity.workers;
            }
            return (record.incarnation == incarnation).then_some(peer);
        }
        let (address, wide) = match identity.address.address() {
            IpAddr::V4(address) => (address.to_bits(), false),
            IpAddr::V6(_) => (self.wide.insert(identity.address), true),
        };
        let peer = self.records.insert(Peer {
            incarnation,
            address,
            pool: NONE,
            private: NONE,
            workers: identity.workers,
            wide,
            parted: false,
        });
        let (keyed, records, wide) = (self.hash, &self.records, &self.wide);
        let rehash = |peer: &u32| hash_of(keyed, address_of(wide, &records[*peer]));
        self.by_address
            .insert_unique(hash_of(keyed, identity.address), peer, rehash);
        Some(peer)
    }

    pub(super) fn remove(&mut self, peer: u32) {
        let hash = hash_of(self.hash, self.address(peer));
        if let Ok(found) = self.by_address.find_entry(hash, |at| *at == peer) {
            found.remove();
        }
        let Peer { address, wide, .. } = self.records.remove(peer);
        if wide {
            self.wide.discard(address);
        }
    }

    pub(super) fn state_bytes(&self) -> usize {
        let tables = self.records.state_bytes() + self.wide.state_bytes();
        tables + self.by_address.allocation_size()
    }
}

fn address_of(wide: &Slab<Gid>, peer: &Peer) -> Gid {
    if peer.wide {
        wide[peer.address]
    } else {
        IpAddr::from(Ipv4Addr::from_bits(peer.address)).into()
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
