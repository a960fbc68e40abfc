//! The handshakes of a worker, and by what they are found: none is walked to.

use super::Handshake;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use trunkline_cm::{HandshakeId, Purpose};
use trunkline_qpmap::ConnId;

/// All handshakes, those included whose connections stand.
#[derive(Debug, Default)]
pub(super) struct Book {
    all: BTreeMap<HandshakeId, Handshake>,
    /// Those for pools, by peer.
    pools: BTreeMap<IpAddr, BTreeSet<HandshakeId>>,
    /// Those whose connections stand.
    standing: BTreeMap<(u32, u32), HandshakeId>,
}

impl Book {
    pub(super) fn insert(&mut self, id: HandshakeId, handshake: Handshake) {
        if let Purpose::Pool(_) = handshake.purpose {
            self.pools.entry(handshake.peer).or_default().insert(id);
        }
        self.all.insert(id, handshake);
    }

    pub(super) fn get(&self, id: HandshakeId) -> Option<&Handshake> {
        self.all.get(&id)
    }

    /// The connection of a handshake stands.
    pub(super) fn stands(&mut self, id: HandshakeId, conn: ConnId) {
        if let Some(handshake) = self.all.get_mut(&id) {
            handshake.conn = Some(conn);
            self.standing.insert(conn.key(), id);
        }
    }

    /// The handshake of a connection that stands.
    pub(super) fn of_connection(&self, conn: ConnId) -> Option<HandshakeId> {
        self.standing.get(&conn.key()).copied()
    }

    pub(super) fn remove(&mut self, id: HandshakeId) -> Option<Handshake> {
        let handshake = self.all.remove(&id)?;
        if let Some(of_peer) = self.pools.get_mut(&handshake.peer) {
            of_peer.remove(&id);
            if of_peer.is_empty() {
                self.pools.remove(&handshake.peer);
            }
        }
        if let Some(conn) = handshake.conn {
            self.standing.remove(&conn.key());
        }
        Some(handshake)
    }

    /// The handshakes for pools of a peer.
    pub(super) fn pools_of(&self, peer: IpAddr) -> impl Iterator<Item = &Handshake> {
        let of_peer = self.pools.get(&peer).into_iter().flatten();
        of_peer.filter_map(|id| self.all.get(id))
    }

    pub(super) fn state_bytes(&self) -> usize {
        self.all.len() * size_of::<(HandshakeId, Handshake)>()
            + self.pools.len() * size_of::<(IpAddr, BTreeSet<HandshakeId>)>()
            + self.pools.values().map(BTreeSet::len).sum::<usize>() * size_of::<HandshakeId>()
            + self.standing.len() * size_of::<((u32, u32), HandshakeId)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::ids::ids;
    use crate::verbs::connection::ConnectionOptions;
    use trunkline_wire::Qpn;

    fn handshake(peer: u8, purpose: Purpose) -> Handshake {
        Handshake {
            number: Qpn::from_wire(peer.into()),
            peer: [10, 0, 0, peer].into(),
            purpose,
            toward: 0,
            options: ConnectionOptions::default(),
            handle: None,
            stranger: false,
            conn: None,
        }
    }

    #[test]
    fn handshakes_are_found_by_peer_and_gone_from_everywhere_once_removed() {
        let mut book = Book::default();
        let ids = ids(6);
        let purposes = [Purpose::Pool(0), Purpose::Pool(1), Purpose::Private];
        for (at, id) in ids.iter().enumerate() {
            book.insert(*id, handshake(1 + at as u8 % 2, purposes[at / 2]));
        }
        let pools = |book: &Book, peer: u8| book.pools_of([10, 0, 0, peer].into()).count();
        assert_eq!([1, 2, 3].map(|peer| pools(&book, peer)), [2, 2, 0]);
        assert!(book.remove(ids[0]).is_some());
        assert!(book.remove(ids[0]).is_none());
        assert_eq!([1, 2].map(|peer| pools(&book, peer)), [1, 2]);
        for id in &ids {
            let _ = book.remove(*id);
        }
        assert_eq!(book.state_bytes(), 0);
    }
}
