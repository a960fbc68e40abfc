//! The owner of connections: which there are and to which peers, what is left of those that are
//! gone, and which of a pool a QP gets.

mod calendar;
mod conn;
mod numbers;
mod paths;
mod peers;
mod tombstones;
mod windows;

pub(crate) use calendar::Listed;
pub(crate) use conn::{CONNECTION_ROWS, Conn, ECT0, Terms};
pub(crate) use paths::{PAUSE_NS, padding};
pub(crate) use peers::Peer;
pub use peers::PeerIdentity;
pub(crate) use tombstones::Tombstone;
pub(crate) use windows::Rested;

use super::build::SentPacket;
use super::flows::{ControlDue, Group, List, Turns};
use super::routes::Member;
use super::{Cause, ConnId};
use crate::hash::Keyed;
use crate::slab::{NONE, Slab};
use calendar::Calendar;
use numbers::{Numbered, Numbers};
use paths::Paths;
use peers::Peers;
use tombstones::Tombstones;
use trunkline_conn::delivery::{self, EVERY_PATH, Policy, Pool};
use trunkline_conn::secret::Secret;
use trunkline_conn::time::Instant;
use trunkline_wire::{Gid, Qpn, Worker};
use windows::Windows;

/// Connections and peers of an engine.
pub(crate) struct Links {
    conns: Slab<Conn>,
    /// The serial number of the last connection. Tells a handle of one that is gone.
    serial: u32,
    numbers: Numbers,
    /// The number that a packet named last, and its connection.
    found: Option<(Qpn, u32)>,
    peers: Peers,
    /// Connections that are idle.
    calendar: Calendar,
    paths: Paths,
    windows: Windows,
    tombstones: Tombstones,
}

/// Why a packet is for no connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NotFound {
    /// None has this number.
    Unknown,
    /// The one with this number is being opened.
    Early,
    /// It carries another token.
    Token,
    /// It comes from somewhere else.
    Source,
}

impl Links {
    /// No connections. `hash` is one that nobody can foresee.
    pub(crate) fn new(secret: &Secret, worker: Worker, hash: Keyed, policy: Policy) -> Self {
        Self {
            conns: Slab::new(),
            serial: 0,
            numbers: Numbers::new(secret, worker),
            found: None,
            peers: Peers::new(hash),
            calendar: Calendar::new(policy.keep_alive_ns),
            paths: Paths::default(),
            windows: Windows::new(policy),
            tombstones: Tombstones::default(),
        }
    }

    /// What is drawn for connections.
    pub(crate) const fn numbers(&mut self) -> &mut Numbers {
        &mut self.numbers
    }

    /// How many connections there are.
    pub(crate) const fn len(&self) -> usize {
        self.conns.len()
    }

    /// Indices from here on were never given out.
    pub(crate) const fn slots(&self) -> u32 {
        self.conns.slots()
    }

    /// All connections with their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Conn)> {
        self.conns.iter()
    }

    #[inline]
    pub(crate) fn get(&self, conn: u32) -> Option<&Conn> {
        self.conns.get(conn)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, conn: u32) -> Option<&mut Conn> {
        self.conns.get_mut(conn)
    }

    /// The handle of a connection, or of one that has left a tombstone.
    pub(crate) fn id(&self, conn: u32) -> ConnId {
        match self.conns.get(conn) {
            Some(record) => ConnId {
                index: conn,
                serial: record.serial,
            },
            None => self.tombstones.id(conn),
        }
    }

    /// The connection that a handle names, if it is still there.
    pub(crate) fn live(&self, id: ConnId) -> Option<&Conn> {
        let conn = self.conns.get(id.index)?;
        (conn.serial == id.serial).then_some(conn)
    }

    /// The connection for a packet from `source` that names `number` and carries `token`.
    #[inline]
    pub(crate) fn find(&mut self, number: Qpn, token: u32, source: Gid) -> Result<u32, NotFound> {
        let known = self.found.filter(|(last, _)| *last == number);
        let conn = match known {
            Some((_, conn)) => conn,
            None => match self.numbers.find(number) {
                Numbered::Conn(conn) => conn,
                Numbered::Drawn => return Err(NotFound::Early),
                Numbered::Unknown => return Err(NotFound::Unknown),
            },
        };
        let record = &self.conns[conn];
        if token != record.delivery.local_token() {
            return Err(NotFound::Token);
        }
        if known.is_none() {
            if self.peers.address(record.peer) != source {
                return Err(NotFound::Source);
            }
            self.found = Some((number, conn));
        }
        Ok(conn)
    }

    /// Packets come from another source from now on.
    #[inline]
    pub(crate) const fn other_source(&mut self) {
        self.found = None;
    }

    /// Takes up a connection under the number that was drawn for it.
    pub(crate) fn insert(&mut self, conn: Conn) -> u32 {
        let number = conn.delivery.local_id();
        let index = self.conns.insert(conn);
        self.serial = self.serial.wrapping_add(1);
        self.numbers.open(number, index);
        let record = &mut self.conns[index];
        record.serial = self.serial;
        let newest = self.peers[record.peer].newest(record.flags.is_private());
        let before = std::mem::replace(newest, index);
        record.next = before;
        if let Some(before) = self.conns.get_mut(before) {
            before.prev = index;
        }
        index
    }

    /// Takes a connection out of those to its peer.
    pub(crate) fn unlink(&mut self, conn: u32) {
        let record = &self.conns[conn];
        let (peer, next, prev) = (record.peer, record.next, record.prev);
        let private = record.flags.is_private();
        match self.conns.get_mut(prev) {
            Some(prev) => prev.next = next,
            None => *self.peers[peer].newest(private) = next,
        }
        if let Some(next) = self.conns.get_mut(next) {
            next.prev = prev;
        }
    }

    /// Takes out a connection that was [unlinked](Self::unlink), and leaves a tombstone with its
    /// flows in its place. Gives the packets that it had in flight, and the number of its flows.
    pub(crate) fn remove(&mut self, conn: u32, cause: Cause) -> (Vec<SentPacket>, u32) {
        let id = self.id(conn);
        let record = self.conns.take(conn);
        let stone = Tombstone::of(id, cause, &record);
        let flows = stone.flows;
        self.tombstones.put(stone);
        self.numbers.close(record.delivery.local_id());
        self.calendar.leave(conn);
        self.found = None;
        let unacked = record.delivery.unacked().collect();
        self.windows.close(conn, record.delivery);
        (unacked, flows)
    }

    /// A connection with the windows of all.
    #[inline]
    pub(crate) fn with_windows(&mut self, conn: u32) -> (&mut Conn, &mut Pool<SentPacket>) {
        (&mut self.conns[conn], &mut self.windows.pool)
    }

    /// Gives back the window of a connection that has no use for it. Gives what is to be done
    /// later.
    #[inline]
    pub(crate) fn rest(&mut self, conn: u32) -> Rested {
        self.windows.rest(conn, &mut self.conns[conn].delivery)
    }

    /// Notes a connection that is idle and whose deadline is far off.
    pub(crate) fn list(&mut self, now: Instant, conn: u32, deadline: Instant) -> Listed {
        if !self.conns[conn].delivery.is_idle() {
            return Listed::No;
        }
        self.calendar.list(now, conn, deadline)
    }

    /// Takes the index of a connection out of the calendar whose deadline is near; the connection
    /// may be another one, or none.
    pub(crate) fn next_listed(&mut self, now: Instant) -> Option<u32> {
        self.calendar.pop(now)
    }

    /// When to look at the calendar.
    pub(crate) fn listed_until(&self) -> Option<Instant> {
        self.calendar.next()
    }

    /// Counts of connections that have done nothing for long are forgotten. Gives whether there
    /// are others.
    pub(crate) fn forget_counts(&mut self) -> bool {
        self.windows.forget_counts()
    }

    /// Bytes of all tables, without what is spare.
    pub(crate) fn state_bytes(&self) -> usize {
        self.conns.state_bytes()
            + self.numbers.state_bytes()
            + self.peers.state_bytes()
            + self.calendar.state_bytes()
            + self.windows.state_bytes()
    }

    /// Frees what connections that were active some time ago have left. Gives whether there is
    /// more for later.
    pub(crate) fn trim(&mut self) -> bool {
        self.windows.trim()
    }

    /// Bytes of what connections needed while they were active, kept for others.
    pub(crate) fn spare_bytes(&self) -> usize {
        self.windows.pool.spare_bytes()
    }

    /// When a connection is due.
    #[inline]
    pub(crate) fn deadline(&self, conn: u32) -> Option<Instant> {
        self.conns[conn].delivery.poll_timeout(&self.windows.pool)
    }

    /// What the delivery of a connection counts and measures, since it was opened.
    pub(crate) fn delivery_stats(&self, conn: u32) -> delivery::Stats {
        let mut stats = self.conns[conn].delivery.stats();
        if let Some(past) = self.windows.past(conn) {
            stats.counters.add(past);
        }
        stats
    }

    /// Somebody reads what a connection counts, and must not see it fall.
    pub(crate) fn keep_counts(&mut self, conn: u32) {
        self.windows.keep_counts(conn);
    }

    /// What all connections counted, those that are gone included.
    pub(crate) fn counters(&self) -> delivery::Counters {
        let mut counters = self.windows.total();
        for (_, conn) in self.conns.iter() {
            counters.add(&conn.delivery.stats().counters);
        }
        counters
    }
}

/// Peers, and the connections to each.
impl Links {
    /// The peer at an address.
    pub(crate) fn peer_at(&self, address: Gid) -> Option<u32> {
        self.peers.at(address)
    }

    /// A peer that is there.
    pub(crate) fn peer(&self, peer: u32) -> &Peer {
        &self.peers[peer]
    }

    /// A route to it ends.
    pub(crate) fn part(&mut self, peer: u32) {
        self.peers.part(peer);
    }

    /// A peer that may be gone.
    pub(crate) fn known_peer(&self, peer: u32) -> Option<&Peer> {
        self.peers.get(peer)
    }

    /// The addresses of all peers.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Gid> {
        self.peers.addresses()
    }

    /// The address of the peer of a connection.
    pub(crate) fn address_of(&self, conn: u32) -> Gid {
        self.peers.address(self.conns[conn].peer)
    }

    /// The address of a peer that is there.
    pub(crate) fn peer_address(&self, peer: u32) -> Gid {
        self.peers.address(peer)
    }

    /// Whether a peer is the incarnation that introduces itself.
    pub(crate) fn is_incarnation(&self, peer: u32, identity: &PeerIdentity) -> bool {
        self.peers.is_incarnation(peer, identity)
    }

    /// The record of a peer, made if there is none. `None`: there is one of another incarnation.
    pub(crate) fn admit(&mut self, identity: &PeerIdentity) -> Option<u32> {
        self.peers.admit(identity)
    }

    /// The next incarnation of a peer has not introduced itself.
    pub(crate) fn forget_incarnation(&mut self, peer: u32) {
        self.peers[peer].forget_incarnation();
    }

    /// Forgets a peer to which nothing leads. Gives whether its path was narrow.
    pub(crate) fn forget_peer(&mut self, peer: u32) -> bool {
        self.peers.remove(peer);
        self.paths.forget(peer)
    }

    /// Connections of the pool to a peer, newest first.
    pub(crate) fn pool_of(&self, peer: u32) -> impl Iterator<Item = u32> {
        self.linked(self.peers[peer].pool())
    }

    /// A connection and those behind it in its list.
    fn linked(&self, first: u32) -> impl Iterator<Item = u32> {
        let some = |conn: u32| (conn != NONE).then_some(conn);
        let next = move |conn: &u32| some(self.conns[*conn].next);
        std::iter::successors(some(first), next)
    }

    /// Connections to a peer that programs opened for themselves, newest first.
    fn private_of(&self, peer: u32) -> impl Iterator<Item = u32> {
        self.linked(self.peers[peer].private())
    }

    /// All connections to a peer: those of the pool, newest first, and then private ones.
    pub(crate) fn conns_of(&self, peer: u32) -> impl Iterator<Item = u32> {
        self.pool_of(peer).chain(self.private_of(peer))
    }

    /// Whether any connection leads to a peer.
    pub(crate) fn reaches(&self, peer: u32) -> bool {
        self.conns_of(peer).next().is_some()
    }

    /// Whether a connection is one without flows, of a pool that has others.
    pub(crate) fn is_spare(&self, conn: u32) -> bool {
        let record = &self.conns[conn];
        let others = || self.conns_of(record.peer).any(|other| other != conn);
        record.flows == 0 && !record.flags.is_private() && record.delivery.is_idle() && others()
    }

    /// Whether a connection leads to the worker of its peer that has the QP `remote`.
    pub(crate) fn leads_to(&self, conn: &Conn, remote: Qpn) -> bool {
        let workers = self.peers[conn.peer].workers();
        workers.owner(conn.toward().get()) == workers.owner(remote.get())
    }

    /// Picks a connection of the pool to the worker of `peer` that has the QP `remote`: the one
    /// with the fewest flows.
    pub(crate) fn pick(&self, peer: u32, remote: Qpn) -> Option<u32> {
        let leads = self
            .pool_of(peer)
            .filter(|conn| self.leads_to(&self.conns[*conn], remote));
        leads.min_by_key(|conn| self.conns[*conn].flows)
    }

    /// Where that goes which is owed to the worker of `peer` that `remote` is a number of.
    pub(crate) fn fallback(&self, peer: u32, remote: Qpn) -> u32 {
        let leads = |conn: &u32| self.leads_to(&self.conns[*conn], remote);
        let pooled = self.pick(peer, remote);
        pooled
            .or_else(|| self.private_of(peer).find(leads))
            .unwrap_or(NONE)
    }

    /// Connections of a pool to the worker that `conn` leads to.
    fn pool_beside(&self, conn: u32) -> impl Iterator<Item = u32> {
        let record = &self.conns[conn];
        let remote = record.toward();
        let pool = self.pool_of(record.peer);
        pool.filter(move |conn| self.leads_to(&self.conns[*conn], remote))
    }

    /// Flows on the connections of a pool to the worker that `fresh` leads to, and how many these
    /// are.
    pub(crate) fn load_beside(&self, fresh: u32) -> (u32, u32) {
        let pool = self.pool_beside(fresh);
        pool.fold((0, 0), |(flows, count), conn| {
            (flows + self.conns[conn].flows, count + 1)
        })
    }

    /// The one of the others that has most of them.
    pub(crate) fn fullest_beside(&self, fresh: u32) -> Option<u32> {
        let others = self.pool_beside(fresh).filter(|conn| *conn != fresh);
        others.max_by_key(|conn| self.conns[*conn].flows)
    }
}

/// How large packets may be on the way to a peer.
impl Links {
    /// Largest datagram on the way to a peer, where both ends carry `most`.
    pub(crate) fn size_to(&self, peer: u32, most: u32) -> u32 {
        self.paths.size(peer).map_or(most, |size| size.min(most))
    }

    /// Largest datagram that connections to a peer use now.
    pub(crate) fn largest_to(&self, peer: u32) -> Option<u32> {
        let used = |conn: u32| self.conns[conn].delivery.packet_size();
        self.conns_of(peer).map(used).max()
    }

    /// The path to a peer does not carry datagrams any more of the size that is used.
    pub(crate) fn narrow(&mut self, now: Instant, peer: u32) {
        let failed = self.largest_to(peer).unwrap_or(EVERY_PATH);
        self.paths.fail(now, peer, failed);
        self.resize(peer);
    }

    /// Takes over what is known of the path into all connections to a peer.
    fn resize(&mut self, peer: u32) {
        let all: Vec<u32> = self.conns_of(peer).collect();
        for conn in all {
            let size = self.size_to(peer, self.conns[conn].most.into());
            self.conns[conn].resize(size);
        }
    }

    /// It is time to try a larger size. Gives the connection that owes a PING for it, if there is
    /// such a size, and when it is time again, in ns; `None`: there is no connection, and the next
    /// one finds out for itself.
    pub(crate) fn widen(&mut self, now: Instant, peer: u32) -> Option<(Option<u32>, u64)> {
        let most_of = |conn: u32| u32::from(self.conns[conn].most);
        let Some(widest) = self.conns_of(peer).max_by_key(|conn| most_of(*conn)) else {
            self.paths.forget(peer);
            return None;
        };
        let by = (most_of(widest), self.id(widest));
        let (tries, again) = self.paths.widen(now, peer, by);
        if tries {
            self.conns[widest].flags.set_ping(true);
        }
        Some((tries.then_some(widest), again))
    }

    /// The PING that a connection owes, where it is to try a size.
    pub(crate) fn probe(&self, conn: u32) -> Option<SentPacket> {
        self.paths.probe(self.conns[conn].peer, self.id(conn))
    }

    /// A PING is on its way.
    pub(crate) fn pinged(&mut self, item: &SentPacket) {
        self.paths.pinged(item);
    }

    /// It was lost.
    pub(crate) fn ping_lost(&mut self, item: &SentPacket) {
        self.paths.ping_lost(item);
    }

    /// It was acknowledged. Gives the peer whose path carries more than was known, and whether that
    /// is as much as both ends do.
    pub(crate) fn ping_arrived(&mut self, item: &SentPacket) -> Option<(u32, bool)> {
        let peer = self.paths.ping_arrived(item)?;
        self.resize(peer);
        let whole = self.conns_of(peer).all(|conn| self.conns[conn].is_whole());
        if whole {
            self.paths.forget(peer);
        }
        Some((peer, whole))
    }
}

/// Connections that are gone, and whose flows have not moved on yet.
impl Links {
    /// Whether the index that a flow names is of a connection that is gone.
    #[inline]
    pub(crate) fn is_gone(&self, conn: u32) -> bool {
        conn != NONE && self.conns.get(conn).is_none()
    }

    /// What is left of the connection that a flow names.
    pub(crate) fn tombstone(&mut self, conn: u32) -> &mut Tombstone {
        self.tombstones.of_flow(conn)
    }

    /// Does something to what is left of each connection to a peer.
    pub(crate) fn each_tombstone(&mut self, peer: u32, change: impl FnMut(&mut Tombstone)) {
        self.tombstones.each_of(peer, change);
    }

    /// Whether a peer has some.
    pub(crate) fn has_tombstones(&self, peer: u32) -> bool {
        self.tombstones.has(peer)
    }

    /// Numbers of the workers of a peer that flows have lost their connection to.
    pub(crate) fn lost(&self, peer: u32) -> impl Iterator<Item = Qpn> {
        self.tombstones.lost(peer)
    }

    /// Flows that have not moved on yet.
    pub(crate) fn flows_left(&self) -> usize {
        self.tombstones.flows()
    }

    /// Frees the index of a connection that is gone, and gives what it left. The first of its flows
    /// instead, where it has some.
    pub(crate) fn clear(&mut self, conn: u32) -> Result<Tombstone, Member> {
        let stone = self.tombstones.clear(conn)?;
        self.conns.release(conn);
        Ok(stone)
    }

    /// The lists of the connection that a flow names, or of what is left of it.
    pub(crate) fn lists(&mut self, conn: u32) -> (&mut Turns, &mut List<ControlDue>) {
        match self.conns.get_mut(conn) {
            Some(record) => (&mut record.runnable, &mut record.control_due),
            None => {
                let stone = self.tombstones.of_flow(conn);
                (&mut stone.runnable, &mut stone.control_due)
            }
        }
    }

    /// The flows of the connection that a flow names, or of what is left of it; and how many of
    /// them have their QPs.
    pub(crate) fn members(&mut self, conn: u32) -> (&mut Group, &mut u32) {
        match self.conns.get_mut(conn) {
            Some(record) => (&mut record.members, &mut record.flows),
            None => {
                let stone = self.tombstones.of_flow(conn);
                (&mut stone.members, &mut stone.flows)
            }
        }
    }
}

impl std::ops::Index<u32> for Links {
    type Output = Conn;

    #[inline]
    fn index(&self, conn: u32) -> &Conn {
        &self.conns[conn]
    }
}

impl std::ops::IndexMut<u32> for Links {
    #[inline]
    fn index_mut(&mut self, conn: u32) -> &mut Conn {
        &mut self.conns[conn]
    }
}

#[cfg(test)]
mod tests;
