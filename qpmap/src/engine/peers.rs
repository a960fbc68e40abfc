//! Peers that share connections with us: what is known of them, and what ends with them.

use super::links::PeerIdentity;
use super::timer::Timer;
use super::{Cause, ConnId, Engine, Platform};
use trunkline_conn::time::Instant;
use trunkline_wire::{Gid, Qpn, Workers};

impl<P: Platform> Engine<P> {
    /// The workers of the peer at `address`, if it shares connections with us.
    pub fn peer(&self, address: Gid) -> Option<Workers> {
        let peer = self.links.peer_at(address)?;
        Some(self.links.peer(peer).workers())
    }

    /// Whether the peer at the address of `identity` is who that says.
    pub fn is_peer(&self, identity: &PeerIdentity) -> bool {
        let peer = self.links.peer_at(identity.address);
        peer.is_some_and(|peer| {
            let workers = self.links.peer(peer).workers();
            workers == identity.workers && self.links.is_incarnation(peer, identity)
        })
    }

    /// Connections to `address`: those of the pool, newest first, and then private ones.
    pub fn connections_to(&self, address: Gid) -> Vec<ConnId> {
        let peer = self.links.peer_at(address);
        let all = peer.into_iter().flat_map(|peer| self.links.conns_of(peer));
        all.map(|conn| self.links.id(conn)).collect()
    }

    /// Whether any connection leads to `address`.
    pub fn reaches(&self, address: Gid) -> bool {
        let peer = self.links.peer_at(address);
        peer.is_some_and(|peer| self.links.reaches(peer))
    }

    /// Connections of the pool to `address`.
    pub fn pool_size(&self, address: Gid) -> u32 {
        let peer = self.links.peer_at(address);
        peer.map_or(0, |peer| self.links.pool_of(peer).count() as u32)
    }

    /// Connections of the pool to that worker of `address` which has the QP `remote`, newest first,
    /// with what the owner has [noted](Self::set_mark) of each.
    pub fn pool_to(&self, address: Gid, remote: Qpn) -> impl Iterator<Item = (ConnId, u32)> {
        let peer = self.links.peer_at(address);
        let pool = peer.into_iter().flat_map(|peer| self.links.pool_of(peer));
        let leads = pool.filter(move |conn| self.links.leads_to(&self.links[*conn], remote));
        leads.map(|conn| (self.links.id(conn), self.links[conn].mark))
    }

    /// The peer at `address` failed or is another incarnation of itself: its connections are
    /// dropped and the QPs that talked to it go to error. Those that never heard of it wait for the
    /// next incarnation: it is the one that their programs know.
    pub fn drop_peer(&mut self, address: Gid) {
        self.end_peer(address, Cause::PeerGone);
    }

    /// The same where the peer may have ended in order ([`Cause::PeerLeft`]): QPs that talked to it
    /// are left then.
    pub(crate) fn end_peer(&mut self, address: Gid, cause: Cause) {
        let Some(peer) = self.links.peer_at(address) else {
            return;
        };
        loop {
            let next = self.links.conns_of(peer).next();
            let Some(conn) = next else { break };
            self.remove_connection(conn, cause);
        }
        self.forget_silence(peer);
        self.fail_heard(peer, cause);
        self.links.forget_incarnation(peer);
        self.forget_if_unknown(peer);
    }

    /// Another worker has a connection to `identity` since `at`. Where that is another incarnation
    /// of a peer of ours, which was not heard since, ours is gone.
    pub fn heed_incarnation(&mut self, identity: &PeerIdentity, at: Instant) {
        let Some(peer) = self.links.peer_at(identity.address) else {
            return;
        };
        let record = self.links.peer(peer);
        let same = self.links.is_incarnation(peer, identity);
        let heard = |conn: u32| self.links[conn].delivery.heard_at() >= at;
        if !same && !record.is_unknown() && !self.links.conns_of(peer).any(heard) {
            self.drop_peer(identity.address);
        }
    }

    /// Forgets a peer to which nothing leads and for which nobody waits.
    pub(super) fn forget_peer(&mut self, peer: u32) {
        if self.links.forget_peer(peer) {
            self.timers.cancel(Timer::Widen(peer).key());
        }
    }

    /// Whether a program has named the QP `remote` at `peer` as that which its QP talks to.
    pub(crate) fn is_for(&self, qp: u32, peer: u32, remote: Qpn) -> bool {
        let attributes = &self.cold(qp).attributes;
        (attributes.remote, attributes.dest_qpn) == (self.links.peer_address(peer), remote)
    }
}
