//! Connections that are gone, and whose flows have not moved on yet.
//!
//! A connection that goes leaves a *tombstone*, which owns its flows until each has moved: some in
//! each round, and one that a packet names at once. Until then they are on the connection that is
//! gone: its index is not given out again, nothing that they have to say is sent, and packets for
//! it come to nothing, as its number is closed.

use super::backlog::{Share, Task};
use super::homes::Group;
use super::link::Conn;
use super::lists::{List, Noticed, Runnable};
use super::qp::{Flags, Flow};
use super::{Cause, ConnId, Engine, Platform, Trace};
use std::collections::BTreeMap;
use trunkline_conn::work::Status;
use trunkline_wire::Qpn;

/// What is left of a connection.
#[derive(Debug)]
pub(super) struct Tombstone {
    pub(super) id: ConnId,
    pub(super) peer: u32,
    /// A number of the peer's worker that it led to.
    pub(super) toward: Qpn,
    pub(super) cause: Cause,
    pub(super) runnable: List<Runnable>,
    pub(super) noticed: List<Noticed>,
    members: Group,
    /// Those of them whose QPs are there.
    pub(super) flows: u32,
    /// An ask of the peer's worker began since.
    pub(super) asked: bool,
}

impl Tombstone {
    pub(super) fn of(id: ConnId, cause: Cause, conn: &Conn) -> Self {
        Self {
            id,
            peer: conn.peer,
            toward: conn.delivery.remote_id(),
            cause,
            runnable: conn.runnable.handed_over(),
            noticed: conn.noticed.handed_over(),
            members: conn.members,
            flows: conn.flows,
            asked: false,
        }
    }
}

/// All of them, by the index that the connection had.
#[derive(Debug, Default)]
pub(crate) struct Tombstones(BTreeMap<u32, Tombstone>);

impl Tombstones {
    /// A connection leaves one behind.
    pub(super) fn put(&mut self, stone: Tombstone) {
        let before = self.0.insert(stone.id.index, stone);
        assert!(
            before.is_none(),
            "the index of a tombstone is not given out"
        );
    }

    /// The one at an index that a flow names.
    pub(super) fn of_flow(&mut self, conn: u32) -> &mut Tombstone {
        let stone = self.0.get_mut(&conn);
        stone.expect("a flow is on a connection, on a tombstone, or on none")
    }

    /// Those of a peer.
    pub(super) fn of_peer(&mut self, peer: u32) -> impl Iterator<Item = &mut Tombstone> {
        let all = self.0.values_mut();
        all.filter(move |stone| stone.peer == peer)
    }

    /// Whether a peer has some.
    pub(super) fn has(&self, peer: u32) -> bool {
        self.0.values().any(|stone| stone.peer == peer)
    }

    /// Numbers of the workers of a peer that flows have lost their connection to.
    pub(super) fn lost(&self, peer: u32) -> impl Iterator<Item = Qpn> {
        let all = self.0.values();
        let of_peer = all.filter(move |stone| stone.peer == peer && stone.flows > 0);
        of_peer.map(|stone| stone.toward)
    }

    /// Flows on them.
    pub(super) fn flows(&self) -> usize {
        self.0.values().map(|stone| stone.flows as usize).sum()
    }

    /// Takes away one that has no flows any more. `None`: it has, and this is the first.
    fn clear(&mut self, conn: u32) -> Result<Tombstone, u32> {
        match self.of_flow(conn).members.first() {
            Some(flow) => Err(flow),
            None => Ok(self.0.remove(&conn).expect("it was just there")),
        }
    }
}

impl<P: Platform> Engine<P> {
    /// Whether a flow is on a connection that is gone, and has to move on.
    pub(crate) fn is_left_behind(&self, flow: u32) -> bool {
        let conn = self.flows[flow].conn;
        conn != crate::slab::NONE && self.conns.get(conn).is_none()
    }

    /// Takes a flow out of the group of its connection, or of what is left of that.
    pub(super) fn leave_group(&mut self, conn: u32, flow: u32) {
        let group = match self.conns.get_mut(conn) {
            Some(record) => &mut record.members,
            None => &mut self.tombstones.of_flow(conn).members,
        };
        self.homes.leave(group, flow);
    }

    /// A connection is gone: its flows move on, from the next round on. Its index is free when all
    /// have.
    pub(super) fn bury_connection(&mut self, stone: Tombstone) {
        let conn = stone.id.index;
        self.tombstones.put(stone);
        self.backlog.add(Task::Evacuate { conn });
    }

    /// Lets flows move on from a connection that is gone. Gives whether all have.
    pub(super) fn evacuate(&mut self, conn: u32, share: &mut Share) -> bool {
        loop {
            match self.tombstones.clear(conn) {
                Err(flow) if share.take() => self.move_on(flow),
                Err(_) => return false,
                Ok(stone) => {
                    self.conns.release(conn);
                    self.ask_for_stranded(stone.peer, stone.toward);
                    self.forget_if_unknown(stone.peer);
                    return true;
                }
            }
        }
    }

    /// A flow whose connection is gone moves on: what it had unacknowledged is sent again, in a new
    /// resend round, over another connection of the pool. If there is none, it waits for one.
    pub(crate) fn move_on(&mut self, flow: u32) {
        if self.flows[flow].ending.is_last() {
            self.part_ended(flow);
            self.move_ended(flow);
            return;
        }
        let stone = self.tombstones.of_flow(self.flows[flow].conn);
        let (id, peer, cause, asked) = (stone.id, stone.peer, stone.cause, stone.asked);
        self.sent_in_vain(flow);
        self.detach(flow);
        self.counters.failovers += 1;
        self.begins_to_wait(flow, cause);
        self.replay(flow);
        let Flow {
            qp, remote, flags, ..
        } = self.flows[flow];
        self.cold_mut(qp).pinned = false;
        let ends = cause == Cause::PeerGone && flags.has(Flags::HEARD);
        let fallback = self.pick(peer, remote).filter(|_| !ends);
        self.emit(|engine| Trace::Failover {
            flow,
            qpn: engine.qp_number(engine.flows[flow].qp),
            from: id,
            to: fallback.map(|other| engine.conn_id(other)),
        });
        match fallback {
            Some(other) => self.resume_on(flow, other),
            None if ends => self.fail_flow(flow, Status::RetryExceeded),
            None => self.strand(flow, asked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::homes::Homes;
    use super::*;

    fn stone(index: u32, peer: u32, members: Group, flows: u32) -> Tombstone {
        Tombstone {
            id: ConnId { index, serial: 1 },
            peer,
            toward: Qpn::from_wire(index),
            cause: Cause::Dead,
            runnable: List::EMPTY,
            noticed: List::EMPTY,
            members,
            flows,
            asked: false,
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
            assert_eq!(stones.clear(3).err(), Some(flow));
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
        stones.of_peer(1).for_each(|stone| stone.asked = true);
        let asked = [0, 1, 2, 3].map(|index| stones.of_flow(index).asked);
        assert_eq!(asked, [false, true, false, true]);
    }

    #[test]
    #[should_panic(expected = "the index of a tombstone is not given out")]
    fn two_connections_of_one_index_leave_no_two_tombstones() {
        let mut stones = Tombstones::default();
        stones.put(stone(1, 0, Group::EMPTY, 0));
        stones.put(stone(1, 0, Group::EMPTY, 0));
    }
}
