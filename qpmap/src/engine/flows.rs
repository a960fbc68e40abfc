//! The owner of flows: their records, where each belongs, whose turn it is, which have ended.

mod clocks;
mod dormant;
mod homes;
mod lanes;
mod left;
mod lists;

pub(crate) use clocks::Seen;
pub(crate) use dormant::Dormant;
pub(crate) use homes::{Group, HOME_BYTES, Homes};
pub(crate) use lanes::{LaneOf, Next, TurnOf, Turns};
pub(crate) use lists::{ControlDue, List};

use super::ConnId;
use super::qp::Flow;
use super::routes::{Member, RouteTable};
use super::tenants::{Pause, Tenant, Tenants};
use crate::chain::Chains;
use crate::hash::{IndexMap, Keyed};
use crate::slab::{NONE, Slab};
use clocks::Clocks;
use lanes::Lanes;
use left::Desertions;

// An idle route takes at most 64 bytes: these, 8 for its group, 4 for its number, and a place in
// the table by pair, of 5 to 11.
const _: () = assert!(RouteTable::<Dormant>::RECORD <= 40);

/// Flows of an engine.
#[derive(Debug)]
pub(crate) struct Flows {
    records: Slab<Flow>,
    homes: Homes,
    /// Routes of app-managed QPs, each of which is a flow.
    routes: RouteTable<Dormant>,
    /// Links of lists of flows that have something to send, or to say.
    links: Chains<u32>,
    lanes: Lanes,
    /// Flows that move to another connection once they are quiet.
    moves: IndexMap<ConnId>,
    clocks: Clocks,
    desertions: Desertions,
    /// Flows that are over, but whose slots somebody may be working with.
    ended: Vec<u32>,
}

impl Flows {
    /// No flows. `hash` is one that nobody can foresee.
    pub(crate) fn new(hash: Keyed) -> Self {
        Self {
            records: Slab::new(),
            homes: Homes::default(),
            routes: RouteTable::new(hash),
            links: Chains::new(),
            lanes: Lanes::new(),
            moves: IndexMap::default(),
            clocks: Clocks::new(),
            desertions: Desertions::default(),
            ended: Vec::new(),
        }
    }

    /// A flow to a QP of `peer` begins.
    pub(crate) fn begin(&mut self, flow: Flow, peer: u32) -> u32 {
        let index = self.records.insert(flow);
        self.homes.begin(index, peer);
        index
    }

    /// Its slot is free.
    pub(crate) fn remove(&mut self, flow: u32) {
        self.desertions.forget(flow);
        self.records.remove(flow);
    }

    /// How many there are, dormant ones included.
    pub(crate) const fn len(&self) -> usize {
        self.awake() + self.routes.dormant()
    }

    /// How many of them are awake.
    pub(crate) const fn awake(&self) -> usize {
        self.records.len()
    }

    /// Bytes of what is known of routes, dormant flows included.
    pub(crate) fn route_bytes(&self) -> usize {
        self.routes.state_bytes() + self.homes.route_bytes()
    }

    /// Bytes of tables that no flows are in.
    pub(crate) fn room_bytes(&self) -> usize {
        self.records.room_bytes()
            + self.homes.room_bytes(self.awake())
            + self.links.state_bytes()
            + self.lanes.state_bytes()
            + self.moves.allocation_size()
            + self.clocks.state_bytes()
            + self.desertions.state_bytes()
            + self.ended.capacity() * size_of::<u32>()
    }

    /// Gives back room that was needed once.
    pub(crate) fn trim(&mut self) {
        self.records.trim();
        self.routes.fit();
        self.homes.trim(self.records.slots());
        self.links.trim();
        self.lanes.trim();
        self.clocks.trim();
        self.desertions.trim();
        if self.ended.is_empty() {
            self.ended = Vec::new();
        }
    }

    #[inline]
    pub(crate) fn get(&self, flow: u32) -> Option<&Flow> {
        self.records.get(flow)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, flow: u32) -> Option<&mut Flow> {
        self.records.get_mut(flow)
    }

    /// The peer of a flow's remote QP.
    #[inline]
    pub(crate) fn peer(&self, flow: u32) -> u32 {
        self.homes.peer(flow)
    }

    /// The groups that flows are in.
    pub(crate) const fn homes(&mut self) -> &mut Homes {
        &mut self.homes
    }

    pub(crate) const fn routes(&self) -> &RouteTable<Dormant> {
        &self.routes
    }

    pub(crate) const fn routes_mut(&mut self) -> &mut RouteTable<Dormant> {
        &mut self.routes
    }
}

/// Whose turn it is.
impl Flows {
    /// Who the flows belong to.
    pub(crate) const fn tenants(&mut self) -> &mut Tenants {
        &mut self.lanes.tenants
    }

    /// The flow whose turn it is.
    #[inline]
    pub(crate) fn first(&self, turns: &Turns) -> Option<u32> {
        self.lanes.first(turns, &self.links)
    }

    /// The flow whose turn it is now, on a connection that may send `all` bytes in its own. Gives
    /// how many of these it may use up, where it is the only one of its tenant; in a turn of
    /// its own a tenant has `quantum` times its weight.
    ///
    /// # Errors
    /// Why no tenant with something to send has a turn; `None`: there is none.
    #[inline]
    pub(crate) fn begin_turn(
        &mut self,
        turns: &mut Turns,
        of: TurnOf,
        bytes: (i32, i32),
    ) -> Result<(u32, Option<i32>), Option<Pause>> {
        self.lanes.begin_turn(turns, &self.links, of, bytes)
    }

    /// The tenant whose turn is next.
    pub(crate) fn first_tenant(&self, turns: &Turns) -> Option<Tenant> {
        self.lanes.first_tenant(turns)
    }

    /// A flow that has no turns has something to send.
    #[inline]
    pub(crate) fn push(&mut self, turns: &mut Turns, of: LaneOf, flow: u32) {
        let lists = (&mut self.links, &mut self.records);
        self.lanes.push(turns, of, lists, flow);
    }

    /// Ends the turn of a flow of `conn`, in which it has sent `bytes`: `next` says what becomes of
    /// it, if it is still the first one.
    #[inline]
    pub(crate) fn end_turn(
        &mut self,
        turns: &mut Turns,
        (conn, flow): (u32, u32),
        (next, bytes): (Next, i32),
    ) {
        let lists = (&mut self.links, &mut self.records);
        let flow = (conn, flow);
        self.lanes.end_turn(turns, flow, lists, (next, bytes));
    }

    /// A flow that has turns has nothing to send any more.
    pub(crate) fn take(&mut self, turns: &mut Turns, of: LaneOf, flow: u32) {
        let lists = (&mut self.links, &mut self.records);
        self.lanes.take(turns, of, lists, flow);
    }
}

/// Who has something to say.
impl Flows {
    /// The last of these flows.
    #[inline]
    pub(crate) fn push_control(&mut self, list: &mut List<ControlDue>, flow: u32) {
        list.push(&mut self.links, &mut self.records, flow);
    }

    /// Takes the first one out.
    #[inline]
    pub(crate) fn pop_control(&mut self, list: &mut List<ControlDue>) -> Option<u32> {
        list.pop(&mut self.links, &mut self.records)
    }

    /// Takes a flow out, if it is in the list.
    pub(crate) fn take_control(&mut self, list: &mut List<ControlDue>, flow: u32) {
        list.take(&mut self.links, &mut self.records, flow);
    }
}

/// Flows of routes that nothing happens on.
impl Flows {
    /// Lets the flow of a route become dormant, if it has nothing under way; `group` is the one
    /// that it is in. Its slot is free then.
    pub(crate) fn let_sleep(&mut self, group: &mut Group, (route, flow): (u32, u32)) -> bool {
        let Some(dormant) = Dormant::of(&self.records[flow]) else {
            return false;
        };
        self.routes.let_sleep(route, dormant);
        let (awake, asleep) = (Member::Awake(flow), Member::Dormant(route));
        self.homes.replace(group, awake, asleep);
        self.remove(flow);
        true
    }

    /// The connection of a dormant flow.
    pub(crate) fn conn_of_sleeper(&self, route: u32) -> u32 {
        let (dormant, _) = self.routes.sleeper(route);
        dormant.conn()
    }

    /// The dormant flow of a route wakes up; `group` is the one that it is in. Gives its index.
    pub(crate) fn wake_up(&mut self, group: &mut Group, route: u32) -> u32 {
        let (dormant, (qp, peer, remote)) = self.routes.sleeper(route);
        let flow = self.begin(dormant.flow(qp, remote), peer);
        let (asleep, awake) = (Member::Dormant(route), Member::Awake(flow));
        self.homes.replace(group, asleep, awake);
        self.routes.wake_up(route, flow);
        flow
    }
}

/// Moves, clocks, and the end.
impl Flows {
    /// A flow moves to another connection once it is quiet.
    pub(crate) fn begin_move(&mut self, flow: u32, to: ConnId) {
        self.moves.insert(flow, to);
    }

    /// It moves now, or not at all.
    pub(crate) fn end_move(&mut self, flow: u32) -> Option<ConnId> {
        self.moves.remove(&flow)
    }

    /// Flows that are to move.
    pub(crate) fn moves(&self) -> usize {
        self.moves.len()
    }

    /// Gives a flow a clock, to be [wound up](Self::next_to_watch) in the next round.
    pub(crate) fn start_clock(&mut self, flow: u32) {
        self.records[flow].watch = self.clocks.start(flow);
    }

    /// Takes the clock of a flow away. Gives whether it had one.
    #[inline]
    pub(crate) fn stop_clock(&mut self, flow: u32) -> bool {
        let clock = std::mem::replace(&mut self.records[flow].watch, NONE);
        if clock == NONE {
            return false;
        }
        self.clocks.stop(clock);
        true
    }

    /// What was seen of a flow that has a clock when that was wound up.
    pub(crate) fn seen(&self, flow: u32) -> Seen {
        self.clocks.get(self.records[flow].watch)
    }

    /// Its clock is wound up.
    pub(crate) fn see(&mut self, flow: u32, seen: Seen) {
        self.clocks.set(self.records[flow].watch, seen);
    }

    /// The peer's QP of a flow has left.
    pub(crate) fn leaves(&mut self, flow: u32) {
        self.desertions.of(flow).left = true;
    }

    /// Another life of it was heard of. Gives whether the last one had left.
    pub(crate) fn returns(&mut self, flow: u32) -> bool {
        self.desertions.return_to(flow)
    }

    /// Whether the peer's QP of a flow has left, and no other life of it was heard of.
    pub(crate) fn is_left(&self, flow: u32) -> bool {
        self.desertions.get(flow).left
    }

    /// The first request that the peer has not executed, `msn`, waits though its QP has left. Gives
    /// whether it has done so before, when an earlier life of that left.
    pub(crate) fn waits_though_left(&mut self, flow: u32, msn: u32) -> bool {
        self.is_left(flow) && self.desertions.of(flow).waits.replace(msn) == Some(msn)
    }

    /// Nothing waits for a QP that has left: the next request has not done so before.
    pub(crate) fn wants_nothing(&mut self, flow: u32) {
        self.desertions.rest(flow);
    }

    /// That the peer's QP of a flow is gone is to be told. Gives `false` where it was.
    pub(crate) fn tell_once(&mut self, flow: u32) -> bool {
        !std::mem::replace(&mut self.desertions.of(flow).told, true)
    }

    /// The next flow whose clock is to be wound up.
    #[inline]
    pub(crate) fn next_to_watch(&mut self) -> Option<u32> {
        while let Some(flow) = self.clocks.next() {
            if self.records.get(flow).is_some_and(|at| at.watch != NONE) {
                return Some(flow);
            }
        }
        None
    }

    /// A flow is over, and its slot free once nobody works with it.
    pub(crate) fn end(&mut self, flow: u32) {
        self.ended.push(flow);
    }

    /// Flows that are over.
    pub(crate) const fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Takes one of those out. Its slot is free.
    pub(crate) fn bury(&mut self) -> Option<u32> {
        let flow = self.ended.pop()?;
        self.remove(flow);
        Some(flow)
    }

    /// Whether nothing is left for the next round.
    pub(crate) fn is_idle(&self) -> bool {
        self.ended.is_empty() && self.clocks.is_idle() && !self.routes.has_looks()
    }
}

impl std::ops::Index<u32> for Flows {
    type Output = Flow;

    #[inline]
    fn index(&self, flow: u32) -> &Flow {
        &self.records[flow]
    }
}

impl std::ops::IndexMut<u32> for Flows {
    #[inline]
    fn index_mut(&mut self, flow: u32) -> &mut Flow {
        &mut self.records[flow]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::routes::OwnRoutes;
    use crate::engine::tenants::Tenant;
    use trunkline_wire::Qpn;

    fn flows(count: u32) -> Flows {
        let mut flows = Flows::new(Keyed::new([1, 2]));
        for qp in 0..count {
            let flow = Flow::new(qp, NONE, Qpn::from_wire(100 + qp), 1);
            assert_eq!(flows.begin(flow, 7), qp);
        }
        flows
    }

    #[test]
    fn a_flow_may_have_something_to_send_and_something_to_say() {
        let mut flows = flows(3);
        let (mut turns, mut control_due) = (Turns::EMPTY, List::EMPTY);
        let lane = (4, Tenant::OWN);
        for flow in 0..3 {
            flows.push(&mut turns, lane, flow);
            flows.push_control(&mut control_due, 2 - flow);
        }
        flows.take(&mut turns, lane, 0);
        assert_eq!(flows.first(&turns), Some(1));
        flows.take_control(&mut control_due, 1);
        flows.take_control(&mut control_due, 1);
        let said = [(); 3].map(|()| flows.pop_control(&mut control_due));
        assert_eq!(said, [Some(2), Some(0), None]);
        flows.take(&mut turns, lane, 1);
        assert!(!turns.is_empty() && control_due.is_empty());
        assert_eq!(flows.first(&turns), Some(2));
    }

    #[test]
    fn a_clock_that_was_stopped_is_not_wound_up() {
        let mut flows = flows(2);
        flows.start_clock(0);
        flows.start_clock(1);
        assert!(!flows.is_idle());
        assert!(flows.stop_clock(1) && !flows.stop_clock(1));
        assert_eq!(flows.next_to_watch(), Some(0));
        assert_eq!(flows.next_to_watch(), None);
        let seen = Seen {
            waited: true,
            ..flows.seen(0)
        };
        flows.see(0, seen);
        assert_eq!(flows.seen(0), seen);
        assert!(flows.is_idle());
    }

    #[test]
    fn a_flow_that_is_over_keeps_its_slot_until_it_is_buried() {
        let mut flows = flows(2);
        flows.end(0);
        assert!(flows.get(0).is_some() && !flows.is_idle());
        assert_eq!(
            (flows.ended(), flows.bury(), flows.bury()),
            (1, Some(0), None)
        );
        assert!(flows.get(0).is_none() && flows.is_idle());
        assert_eq!((flows.len(), flows.peer(1)), (1, 7));
    }

    #[test]
    fn a_dormant_route_is_found_and_listed_and_wakes_up_as_another_flow() {
        let (mut flows, mut own) = (Flows::new(Keyed::new([1, 2])), OwnRoutes::EMPTY);
        let mut group = Group::EMPTY;
        for remote in 0..3 {
            let (qp, peer, to) = (0, 0, Qpn::from_wire(remote));
            let flow = flows.begin(Flow::new(qp, 4, to, 9), peer);
            flows.homes().join(&mut group, flow);
            let routes = flows.routes_mut();
            routes.insert(&mut own, (qp, peer, to), flow, false);
        }
        let routes = flows.routes_mut();
        assert!(routes.needs_timer() && !routes.needs_timer());
        routes.begin_looks();
        while let Some(look) = flows.routes_mut().next_look() {
            assert!(flows.let_sleep(&mut group, look), "{look:?}");
        }
        assert!(!flows.routes().has_looks() && !flows.routes_mut().needs_timer());
        assert_eq!((flows.len(), flows.awake()), (3, 0));
        let asleep = [0, 1, 2].map(Member::Dormant);
        assert!(flows.routes().flows(&own).eq(asleep));
        assert_eq!(flows.homes().members(group), asleep);
        assert_eq!(flows.conn_of_sleeper(1), 4);
        let flow = flows.wake_up(&mut group, 1);
        let (record, peer) = (&flows[flow], flows.peer(flow));
        assert_eq!(
            (record.remote, record.conn, peer),
            (Qpn::from_wire(1), 4, 0)
        );
        let routes = flows.routes_mut();
        assert_eq!(routes.numbered(&own, 2), Some(Some(Member::Awake(flow))));
        assert!(routes.needs_timer(), "it is looked at again");
        assert_eq!(routes.end(&mut own, (0, 0, Qpn::from_wire(1))), 2);
        assert_eq!(routes.dormant(), 2);
    }
}
