//! Connections that are gone, and whose flows have not moved on yet.
//!
//! A connection that goes leaves a *tombstone*, which owns its flows until each has moved: some in
//! each round, and one that a packet names at once. Until then they are on the connection that is
//! gone: its index is not given out again, nothing that they have to say is sent, and packets for
//! it come to nothing, as its number is closed.

use super::conn::Conn;
use crate::engine::flows::{ControlDue, Group, List, Turns};
use crate::engine::routes::Member;
use crate::engine::{Cause, ConnId};
use std::collections::{BTreeMap, BTreeSet};
use trunkline_wire::Qpn;

/// What is left of a connection.
#[derive(Debug)]
pub(crate) struct Tombstone {
    pub(crate) id: ConnId,
    pub(crate) peer: u32,
    /// A number of the peer's worker that it led to.
    pub(crate) toward: Qpn,
    pub(crate) cause: Cause,
    pub(crate) runnable: Turns,
    pub(crate) control_due: List<ControlDue>,
    pub(super) members: Group,
    /// Those of them whose QPs are there.
    pub(crate) flows: u32,
    /// A connect request of the peer's worker began since.
    pub(crate) requested: bool,
}

impl Tombstone {
    pub(super) fn of(id: ConnId, cause: Cause, conn: &Conn) -> Self {
        Self {
            id,
            peer: conn.peer,
            toward: conn.toward(),
            cause,
            runnable: conn.runnable.handed_over(),
            control_due: conn.control_due.handed_over(),
            members: conn.members,
            flows: conn.flows,
            requested: false,
        }
    }
}

/// All of them, by the index that the connection had; and by peer, of which there may be as many.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    stones: BTreeMap<u32, Tombstone>,
    by_peer: BTreeSet<(u32, u32)>,
}

impl Tombstones {
    /// A connection leaves one behind.
    pub(super) fn put(&mut self, stone: Tombstone) {
        let index = stone.id.index;
        self.by_peer.insert((stone.peer, index));
        let before = self.stones.insert(index, stone);
        assert!(
            before.is_none(),
            "the index of a tombstone is not given out"
        );
    }

    /// The handle of the connection that had this index.
    pub(super) fn id(&self, conn: u32) -> ConnId {
        let stone = self.stones.get(&conn);
        stone.expect("a connection leaves a tombstone").id
    }

    /// The one at an index that a flow names.
    pub(super) fn of_flow(&mut self, conn: u32) -> &mut Tombstone {
        let stone = self.stones.get_mut(&conn);
        stone.expect("a flow is on a connection, on a tombstone, or on none")
    }

    /// Indices of those of a peer.
    fn indices(&self, peer: u32) -> impl Iterator<Item = u32> {
        let of_peer = self.by_peer.range((peer, 0)..=(peer, u32::MAX));
        of_peer.map(|(_, conn)| *conn)
    }

    /// Does something to each of those of a peer.
    pub(super) fn each_of(&mut self, peer: u32, mut change: impl FnMut(&mut Tombstone)) {
        let of_peer = self.by_peer.range((peer, 0)..=(peer, u32::MAX));
        for (_, conn) in of_peer {
            change(self.stones.get_mut(conn).expect("both tables have it"));
        }
    }

    /// Whether a peer has some.
    pub(super) fn has(&self, peer: u32) -> bool {
        self.indices(peer).next().is_some()
    }

    /// Numbers of the workers of a peer that flows have lost their connection to.
    pub(super) fn lost(&self, peer: u32) -> impl Iterator<Item = Qpn> {
        let of_peer = self.indices(peer).map(|conn| &self.stones[&conn]);
        let lost = of_peer.filter(|stone| stone.flows > 0);
        lost.map(|stone| stone.toward)
    }

    /// Flows on them.
    pub(super) fn flows(&self) -> usize {
        self.stones.values().map(|stone| stone.flows as usize).sum()
    }

    /// Takes away one that has no flows any more. `None`: it has, and this is the first.
    pub(super) fn clear(&mut self, conn: u32) -> Result<Tombstone, Member> {
        if let Some(member) = self.of_flow(conn).members.first() {
            return Err(member);
        }
        let stone = self.stones.remove(&conn).expect("it was just there");
        self.by_peer.remove(&(stone.peer, conn));
        Ok(stone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::flows::Homes;

    fn stone(index: u32, peer: u32, members: Group, flows: u32) -> Tombstone {
        Tombstone {
            id: ConnId { index, serial: 1 },
            peer,
            toward: Qpn::from_wire(index),
            cause: Cause::Dead,
            runnable: Turns::EMPTY,
            control_due: List::EMPTY,
            members,
            flows,
            requested: false,
        }
    }

    #[test]
    fn a_tombstone_stays_until_its_last_flow_has_left() {
        let mut homes = Homes::default();
        let mut members = Group::EMPTY;
        for flow in [4, 2] {
            homes.begin(flow, 7);
            homes.join(&mut members, flow);
        }
        let mut stones = Tombstones::default();
        stones.put(stone(3, 7, members, 2));
        stones.put(stone(5, 8, Group::EMPTY, 0));
        assert!(stones.has(7) && stones.has(8) && !stones.has(9));
        assert_eq!(stones.flows(), 2);
        assert_eq!(stones.lost(7).collect::<Vec<_>>(), [Qpn::from_wire(3)]);
        assert_eq!(stones.lost(8).count(), 0);
        for flow in [4, 2] {
            assert_eq!(stones.clear(3).err(), Some(Member::Awake(flow)));
            homes.leave(&mut stones.of_flow(3).members, flow);
        }
        assert_eq!(stones.clear(3).map(|stone| stone.peer), Ok(7));
        assert!(!stones.has(7));
    }

    #[test]
    fn an_ask_is_marked_on_the_tombstones_of_its_peer() {
        let mut stones = Tombstones::default();
        for index in 0..4 {
            stones.put(stone(index, index % 2, Group::EMPTY, 1));
        }
        stones.each_of(1, |stone| stone.requested = true);
        let requested = [0, 1, 2, 3].map(|index| stones.of_flow(index).requested);
        assert_eq!(requested, [false, true, false, true]);
    }

    #[test]
    fn what_is_left_of_a_peer_is_found_among_any_number_of_others() {
        const ALL: u32 = 200_000;
        let mut stones = Tombstones::default();
        for index in 0..ALL {
            stones.put(stone(index, index, Group::EMPTY, 1));
        }
        // A walk through all for each of them would take minutes.
        for peer in 0..ALL {
            stones.each_of(peer, |stone| stone.flows = 0);
            assert!(stones.has(peer) && stones.lost(peer).count() == 0);
            assert!(stones.clear(peer).is_ok() && !stones.has(peer));
        }
        assert_eq!(stones.flows(), 0);
    }

    #[test]
    #[should_panic(expected = "the index of a tombstone is not given out")]
    fn two_connections_of_one_index_leave_no_two_tombstones() {
        let mut stones = Tombstones::default();
        stones.put(stone(1, 0, Group::EMPTY, 0));
        stones.put(stone(1, 0, Group::EMPTY, 0));
    }
}
