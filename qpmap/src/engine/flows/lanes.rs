//! Whose turn it is on a connection: that of a tenant, by weight, and then of one of its flows.
//!
//! A *lane* is the flows of one tenant that have something to send on one connection. It is there
//! as long as there are any, and takes turns with the lanes of other tenants by deficit round robin
//! over bytes. Once its tenant has sent what it [may](Tenants) in a period, here and elsewhere, it
//! has none until the next one. Where one tenant alone has something to send nothing is counted.

use super::lists::{List, Runnable};
use crate::chain::{Chain, Chains};
use crate::engine::qp::Flow;
use crate::engine::tenants::{Pause, Tenant, Tenants};
use crate::hash::{IndexMap, PairMap};
use crate::slab::Slab;
use trunkline_conn::time::Instant;

/// The lanes of a connection, in the order of their turns.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Some may be [apart](Lanes::apart); where there are any, one of them is here.
    lanes: Chain,
}

impl Turns {
    pub(crate) const EMPTY: Self = Self {
        lanes: Chain::EMPTY,
    };

    pub(crate) const fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// The same turns, for who owns them from now on.
    pub(crate) const fn handed_over(&self) -> Self {
        Self { ..*self }
    }
}

/// The lane of a tenant on a connection: its index, and whose it is.
pub(crate) type LaneOf = (u32, Tenant);

/// The turn of a connection: its index, and to which peer and when it sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnOf {
    pub(crate) conn: u32,
    pub(crate) peer: u32,
    pub(crate) now: Instant,
}

#[derive(Debug)]
struct Lane {
    flows: List<Runnable>,
    /// Bytes that it may still send in its turn, where others wait for theirs.
    deficit: i32,
    owner: Tenant,
}

/// What becomes of a flow at the end of its turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Next {
    /// Its turn goes on.
    Stay,
    /// Others of its lane are before it.
    Behind,
    /// It has nothing to send.
    Leave,
}

/// Lanes of a connection that have no turn now.
#[derive(Clone, Copy, Debug)]
struct Apart {
    lanes: Chain,
    /// What the count of [chances](Tenants::chances) was when they were put there.
    since: u32,
    /// One at least may have something left to send in this period.
    held: bool,
}

/// All lanes.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Chains<Lane>,
    /// Where those are that have been beside others.
    found: PairMap<u32>,
    /// By connection, those that were found to have no turn where others had.
    apart: IndexMap<Apart>,
    pub(super) tenants: Tenants,
}

impl Lanes {
    pub(super) fn new() -> Self {
        Self {
            lanes: Chains::new(),
            found: PairMap::default(),
            apart: IndexMap::default(),
            tenants: Tenants::new(),
        }
    }

    /// Bytes that it has allocated.
    pub(super) fn state_bytes(&self) -> usize {
        self.lanes.state_bytes()
            + self.found.allocation_size()
            + self.apart.allocation_size()
            + self.tenants.state_bytes()
    }

    /// Gives back room that was needed once.
    pub(super) fn trim(&mut self) {
        self.lanes.trim();
        self.tenants.trim();
        if self.found.is_empty() {
            self.found = PairMap::default();
        }
        if self.apart.is_empty() {
            self.apart = IndexMap::default();
        }
    }

    /// The flow whose turn it is.
    #[inline]
    pub(super) fn first(&self, turns: &Turns, links: &Chains<u32>) -> Option<u32> {
        let (lane, _) = self.lanes.front(turns.lanes)?;
        lane.flows.first(links)
    }

    /// The flow whose turn it is now, on a connection that may send `all` bytes in its own. Gives
    /// how many of these it may use up, where it has its lane to itself.
    ///
    /// # Errors
    /// Why no tenant with something to send has a turn; `None`: there is none.
    #[inline]
    pub(super) fn begin_turn(
        &mut self,
        turns: &mut Turns,
        links: &Chains<u32>,
        of: TurnOf,
        (quantum, all): (i32, i32),
    ) -> Result<(u32, Option<i32>), Option<Pause>> {
        let (lane, most) = if self.tenants.are_several() {
            self.next(turns, of, quantum)?
        } else {
            let (lane, _) = self.lanes.front(turns.lanes).ok_or(None)?;
            (lane, i32::MAX)
        };
        let (flow, is_alone) = lane.flows.front(links).ok_or(None)?;
        Ok((flow, is_alone.then_some(all.min(most))))
    }

    /// The first lane whose tenant may send now, and that has not sent more in its last turns than
    /// in as many of `quantum` times its weight. Gives how much it may send.
    fn next(
        &mut self,
        turns: &mut Turns,
        of: TurnOf,
        quantum: i32,
    ) -> Result<(&Lane, i32), Option<Pause>> {
        self.revive(turns, of.conn);
        loop {
            let (lane, is_only) = self.lanes.front_mut(turns.lanes).ok_or(None)?;
            let most = match self.tenants.left(lane.owner, (of.peer, of.now)) {
                Ok(left) if is_only => left,
                Ok(left) => {
                    if lane.deficit <= 0 {
                        lane.deficit += quantum * self.tenants.weight(lane.owner);
                    }
                    if lane.deficit <= 0 {
                        self.lanes.rotate(&mut turns.lanes);
                        continue;
                    }
                    left.min(lane.deficit)
                }
                Err(pause) if is_only => return Err(Some(self.pause(of.conn, pause))),
                Err(pause) => {
                    self.put_apart(turns, of.conn, pause);
                    continue;
                }
            };
            return Ok((self.lanes.at(turns.lanes.first_link()), most));
        }
    }

    /// The tenant whose turn is next.
    pub(super) fn first_tenant(&self, turns: &Turns) -> Option<Tenant> {
        let (lane, _) = self.lanes.front(turns.lanes)?;
        Some(lane.owner)
    }

    /// Lanes that had no turn may have one now.
    fn revive(&mut self, turns: &mut Turns, conn: u32) {
        if self.apart.is_empty() {
            return;
        }
        if let Some(apart) = self.apart.get(&conn)
            && apart.since != self.tenants.chances()
            && let Some(mut apart) = self.apart.remove(&conn)
        {
            self.lanes.append(&mut turns.lanes, &mut apart.lanes);
        }
    }

    /// The first lane has no turn, but others may have one.
    fn put_apart(&mut self, turns: &mut Turns, conn: u32, pause: Pause) {
        let none = Apart {
            lanes: Chain::EMPTY,
            since: self.tenants.chances(),
            held: false,
        };
        let apart = self.apart.entry(conn).or_insert(none);
        self.lanes.shift(&mut turns.lanes, &mut apart.lanes);
        apart.held |= pause == Pause::Held;
    }

    /// Why none of all lanes has a turn, where that is the reason of the last one.
    fn pause(&self, conn: u32, last: Pause) -> Pause {
        match self.apart.get(&conn) {
            Some(apart) if apart.held => Pause::Held,
            _ => last,
        }
    }

    /// Puts a flow that is in no lane at the end of the one of its tenant.
    #[inline]
    pub(super) fn push(
        &mut self,
        turns: &mut Turns,
        of: LaneOf,
        (links, flows): (&mut Chains<u32>, &mut Slab<Flow>),
        flow: u32,
    ) {
        if let Some((lane, _)) = self.lanes.front_mut(turns.lanes)
            && lane.owner == of.1
        {
            lane.flows.push(links, flows, flow);
            return;
        }
        let other = self.found.get(&key(of)).copied();
        let lane = other.unwrap_or_else(|| self.begin(turns, of));
        self.lanes.at(lane).flows.push(links, flows, flow);
    }

    /// Takes a flow that is in a lane out of it.
    pub(super) fn take(
        &mut self,
        turns: &mut Turns,
        of: LaneOf,
        (links, flows): (&mut Chains<u32>, &mut Slab<Flow>),
        flow: u32,
    ) {
        let lane = self
            .find(turns, of)
            .expect("it is in the lane of its tenant");
        let list = &mut self.lanes.at(lane).flows;
        list.take(links, flows, flow);
        if list.is_empty() {
            self.end(turns, of, lane);
        }
    }

    /// The turn of a flow of `conn` ends, in which it has sent `bytes`: `next` says what becomes of
    /// it, if it is still the first one.
    #[inline]
    pub(super) fn end_turn(
        &mut self,
        turns: &mut Turns,
        (conn, flow): (u32, u32),
        (links, flows): (&mut Chains<u32>, &mut Slab<Flow>),
        (next, bytes): (Next, i32),
    ) {
        let Some((lane, is_only)) = self.lanes.front_mut(turns.lanes) else {
            return;
        };
        if !lane.flows.begins_with(flows, flow) {
            return;
        }
        if self.tenants.are_several() {
            self.tenants.spend(lane.owner, bytes);
        }
        match next {
            Next::Stay => {}
            Next::Behind => lane.flows.rotate(links),
            Next::Leave => {
                lane.flows.take(links, flows, flow);
                if lane.flows.is_empty() {
                    let of = (conn, lane.owner);
                    self.end(turns, of, turns.lanes.first_link());
                    return;
                }
            }
        }
        if !is_only {
            lane.deficit -= bytes;
            if lane.deficit <= 0 {
                self.lanes.rotate(&mut turns.lanes);
            }
        }
    }

    /// The lane of a tenant on a connection, which has these.
    #[inline]
    fn find(&self, turns: &Turns, of: LaneOf) -> Option<u32> {
        let (first, _) = self.lanes.front(turns.lanes)?;
        if first.owner == of.1 {
            return Some(turns.lanes.first_link());
        }
        self.found.get(&key(of)).copied()
    }

    /// The first flow of a lane is about to join it.
    fn begin(&mut self, turns: &mut Turns, of: LaneOf) -> u32 {
        let before = self.lanes.front(turns.lanes).map(|(lane, _)| lane.owner);
        let first = turns.lanes.first_link();
        let lane = self.lanes.push(
            &mut turns.lanes,
            Lane {
                flows: List::EMPTY,
                deficit: 0,
                owner: of.1,
            },
        );
        self.tenants.begin_lane(of.1);
        if let Some(before) = before {
            // The first one of all was not found by its tenant until now.
            self.found.insert(key((of.0, before)), first);
            self.found.insert(key(of), lane);
        }
        lane
    }

    /// Its last flow has left a lane.
    #[inline]
    fn end(&mut self, turns: &mut Turns, of: LaneOf, lane: u32) {
        self.tenants.end_lane(of.1);
        if self.apart.is_empty() {
            self.lanes.remove(&mut turns.lanes, lane);
        } else {
            self.end_beside_others(turns, of.0, lane);
        }
        if !self.found.is_empty() {
            self.found.remove(&key(of));
        }
    }

    /// The same, where lanes are apart.
    fn end_beside_others(&mut self, turns: &mut Turns, conn: u32, lane: u32) {
        let Some(apart) = self.apart.get_mut(&conn) else {
            self.lanes.remove(&mut turns.lanes, lane);
            return;
        };
        let chains = [&mut turns.lanes, &mut apart.lanes];
        self.lanes.remove_from(chains, lane);
        if turns.lanes.is_empty() {
            turns.lanes = apart.lanes;
            self.apart.remove(&conn);
        } else if apart.lanes.is_empty() {
            self.apart.remove(&conn);
        }
    }
}

const fn key((conn, tenant): LaneOf) -> u64 {
    (conn as u64) << 16 | tenant.index() as u64
}

#[cfg(test)]
mod tests;
