//! Which connection each flow uses, and how it moves to another.

use super::backlog::{Share, Task};
use super::ending::Ending;
use super::flows::LaneOf;
use super::qp::{Flags, Flow, Wire};
use super::routes::Member;
use super::{ConnId, Engine, Event, Platform, Tenant, Trace};
use crate::error::VerbsError;
use crate::slab::NONE;
use crate::state::QpType;
use trunkline_wire::Qpn;

/// Flows on one connection that call for another.
const CROWD: u32 = 1024;

impl<P: Platform> Engine<P> {
    /// A QP's own flow, on `conn`.
    pub(crate) fn share(&mut self, qp: u32, conn: u32) {
        let remote = self.cold(qp).attributes.dest_qpn;
        let life = self.qps.generation(qp);
        let flow = self.new_flow(qp, (conn, remote), life);
        let record = &mut self.qps[qp];
        record.wire = Wire::Shared(flow);
        self.flows[flow].rung = record.has_posted();
        self.cold_mut(qp).pinned = false;
        self.resume_on(flow, conn);
        self.admit_waiting(qp);
    }

    /// A flow to `remote` at the peer of `conn`, which is to carry it. It begins `life`.
    pub(crate) fn new_flow(&mut self, qp: u32, (conn, remote): (u32, Qpn), life: u32) -> u32 {
        let mut flow = Flow::new(qp, NONE, remote, life);
        flow.ask_anew();
        self.flows.begin(flow, self.links[conn].peer())
    }

    /// The flows of a QP.
    pub(crate) fn members_of(&self, qp: u32) -> Vec<Member> {
        match (self.qps[qp].wire, &self.cold(qp).routes) {
            (Wire::Shared(own), _) => vec![Member::Awake(own)],
            (Wire::Routes, Some(own)) => self.flows.routes().flows(own).collect(),
            _ => Vec::new(),
        }
    }

    /// Those of them that are not dormant.
    pub(crate) fn awake_flows_of(&self, qp: u32) -> impl Iterator<Item = u32> + use<P> {
        let members = self.members_of(qp).into_iter();
        members.filter_map(|member| match member {
            Member::Awake(flow) => Some(flow),
            Member::Dormant(_) => None,
        })
    }

    /// All of them, awake from now on.
    pub(crate) fn flows_of(&mut self, qp: u32) -> Vec<u32> {
        let members = self.members_of(qp).into_iter();
        members.map(|member| self.awake(member)).collect()
    }

    /// The flow of a local QP to `remote` at the peer of `conn`, which carried a packet for it.
    /// What waits for its turn in the backlog has it first: a flow on a connection that is gone,
    /// or without one, and a QP that waits to hear what its peer is.
    #[inline(always)]
    pub(crate) fn flow_from(&mut self, qp: u32, remote: Qpn, conn: u32) -> Option<u32> {
        if let Wire::Shared(own) = self.qps[qp].wire {
            let record = &self.flows[own];
            if record.remote == remote && record.conn == conn {
                return Some(own);
            }
        }
        self.flow_to_settle(qp, remote, conn)
    }

    /// The same for all but a QP's own flow on its own connection.
    #[inline(never)]
    fn flow_to_settle(&mut self, qp: u32, remote: Qpn, conn: u32) -> Option<u32> {
        let Some(flow) = self.find_flow(qp, remote, conn) else {
            return self.share_named(qp, remote, conn);
        };
        if self.flows[flow].conn == conn {
            return Some(flow);
        }
        if self.is_left_behind(flow) {
            self.move_on(flow);
        } else if self.flows[flow].flags.has(Flags::STRANDED) {
            self.rescue_named(flow);
        }
        self.find_flow(qp, remote, conn)
    }

    fn find_flow(&mut self, qp: u32, remote: Qpn, conn: u32) -> Option<u32> {
        match self.qps[qp].wire {
            Wire::Shared(own) => {
                let record = &self.flows[own];
                let fits =
                    record.remote == remote && (record.conn == conn || self.is_of_peer(own, conn));
                fits.then_some(own)
            }
            Wire::Routes => self.find_route(qp, self.links[conn].peer(), remote),
            Wire::None | Wire::Undecided(_) | Wire::Ibta(_) => None,
        }
    }

    /// Whether a flow that is not on `conn` is for its peer.
    fn is_of_peer(&self, flow: u32, conn: u32) -> bool {
        let record = &self.flows[flow];
        // It may be between two connections.
        let lives = record.conn != NONE || record.flags.has(Flags::STRANDED);
        lives && self.flows.peer(flow) == self.links[conn].peer()
    }

    /// Whether the row of the mapping is that of this flow: a QP's own, or its first route.
    pub(crate) fn has_row(&self, flow: u32) -> bool {
        let qp = self.flows[flow].qp;
        match (self.qps[qp].wire, &self.cold(qp).routes) {
            (Wire::Shared(own), _) => own == flow,
            (Wire::Routes, Some(own)) => self.flows.routes().is_first(own, flow),
            _ => false,
        }
    }

    /// Binds a flow to a connection, and the row of the mapping, if it is the flow's.
    pub(crate) fn attach(&mut self, flow: u32, conn: u32) {
        self.flows[flow].conn = conn;
        let record = &mut self.links[conn];
        record.flows += 1;
        self.flows.homes().join(&mut record.members, flow);
        if record.flows.is_multiple_of(CROWD) && !record.flags.is_private() {
            let peer = self.links.address_of(conn);
            let remote = self.flows[flow].remote;
            self.events.push(Event::Crowded { peer, remote });
        }
        let (qp, generation) = (self.flows[flow].qp, self.flows[flow].generation);
        if self.has_row(flow) {
            self.qps.mapping().set(qp, conn, generation as u16);
        }
    }

    /// Takes a flow from its connection, and out of its lists.
    pub(crate) fn detach(&mut self, flow: u32) {
        let conn = self.flows[flow].conn;
        if conn == NONE {
            return;
        }
        self.unlist(conn, flow);
        self.leave_group(conn, flow);
        *self.links.members(conn).1 -= 1;
        self.flows[flow].conn = NONE;
        if self.has_row(flow) {
            self.qps.mapping().clear(self.flows[flow].qp);
        }
    }

    /// Puts a flow to work on `conn`: its BIND if that is due, its unsent messages, its answers.
    pub(crate) fn resume_on(&mut self, flow: u32, conn: u32) {
        self.leave_stranded(flow);
        self.attach(flow, conn);
        let flags = &mut self.flows[flow].flags;
        if flags.has(Flags::PEER_BOUND) {
            // The peer may have missed them on the connection that died.
            flags.set(Flags::BOUND_DUE);
            flags.set(Flags::ANSWER_DUE);
        }
        if self.is_outstanding(flow) {
            self.ask_if_lapsed(flow);
            self.watch(flow);
        } else {
            // It waited for the connection alone.
            self.stop_watch(flow);
        }
        self.queue_control(flow);
        self.wake(flow);
    }

    /// A connection of a pool is new. Where the others of it are crowded it takes over as many
    /// QPs as make it their equal, of those that have nothing under way. Those whose connections
    /// their programs chose stay: QPs that were bound by hand, and routes.
    pub(crate) fn begin_relief(&mut self, fresh: ConnId) {
        let (flows, _) = self.links.load_beside(fresh.index);
        let crowded = self.links.fullest_beside(fresh.index);
        if crowded.is_some_and(|conn| self.links[conn].flows >= CROWD) {
            let left = flows;
            self.backlog.add(Task::Relieve { fresh, left });
        }
    }

    /// Goes on with that, where `left` flows are still to be looked at. Gives how many are then.
    pub(crate) fn relieve_crowded(&mut self, fresh: ConnId, left: u32, share: &mut Share) -> u32 {
        for left in (1..=left).rev() {
            if self.links.live(fresh).is_none() {
                return 0;
            }
            let (flows, count) = self.links.load_beside(fresh.index);
            let fair = flows / count;
            let full = |conn: &u32| self.links[*conn].flows > fair;
            let Some(from) = self.links.fullest_beside(fresh.index).filter(full) else {
                return 0;
            };
            if self.links[fresh.index].flows >= fair {
                return 0;
            }
            if !share.take() {
                return left;
            }
            let members = &mut self.links[from].members;
            let member = members.first().expect("it has more than its share");
            self.flows.homes().rotate(members);
            if let Member::Awake(flow) = member
                && self.may_be_taken_over(flow)
            {
                self.detach(flow);
                self.resume_on(flow, fresh.index);
            }
        }
        0
    }

    fn may_be_taken_over(&self, flow: u32) -> bool {
        let record = &self.flows[flow];
        if record.ending != Ending::No {
            return false;
        }
        let pending = self.requests.get(record.head);
        let cold = self.cold(record.qp);
        self.qps[record.qp].wire == Wire::Shared(flow)
            && cold.kind == QpType::Rc
            && !cold.pinned
            && !record.flags.has(Flags::QUIESCING)
            && pending.is_none_or(|pending| !pending.begun)
    }

    /// Moves a live QP to another connection to the same peer, at a message boundary: requests
    /// already begun finish where they are, later ones go the new way. Invisible to the program;
    /// [`Event::Moved`] tells when it is done.
    ///
    /// # Errors
    /// No such QP or connection, a QP that is not on shared connections, or another peer's
    /// connection.
    pub fn rebind(&mut self, qpn: Qpn, to: ConnId) -> Result<(), VerbsError> {
        let qp = self.known(qpn)?;
        let Wire::Shared(flow) = self.qps[qp].wire else {
            return Err(VerbsError::NotShared { qpn: qpn.get() });
        };
        self.move_flow(flow, to)
    }

    pub(crate) fn move_flow(&mut self, flow: u32, to: ConnId) -> Result<(), VerbsError> {
        if self.is_left_behind(flow) {
            self.move_on(flow);
        }
        let target = self
            .links
            .live(to)
            .ok_or(VerbsError::UnknownConnection { index: to.index })?;
        let record = &self.flows[flow];
        let qp = record.qp;
        if !self.links.leads_to(target, record.remote) {
            return Err(VerbsError::OtherWorker {
                remote: record.remote.get(),
            });
        }
        if record.conn == NONE || target.peer() != self.flows.peer(flow) {
            return Err(VerbsError::OtherPeer {
                qpn: self.qp_number(qp).get(),
            });
        }
        self.flows.begin_move(flow, to);
        self.flows[flow].flags.set(Flags::QUIESCING);
        self.try_move(flow);
        Ok(())
    }

    /// Moves a quiescing flow once nothing of it is in flight. Requests that were taken from the
    /// ring but not begun go with it.
    pub(crate) fn try_move(&mut self, flow: u32) {
        let record = &self.flows[flow];
        if !record.flags.has(Flags::QUIESCING) {
            return;
        }
        let oldest = self.requests.get(record.head);
        if oldest.is_some_and(|pending| pending.begun) {
            return;
        }
        let qp = record.qp;
        self.flows[flow].flags.clear(Flags::QUIESCING);
        let to = self.flows.end_move(flow);
        if let Some(to) = to.filter(|to| self.links.live(*to).is_some())
            && self.flows[flow].conn != NONE
        {
            self.detach(flow);
            self.resume_on(flow, to.index);
            self.cold_mut(qp).pinned = true;
            let qpn = self.qp_number(qp);
            self.emit(|_| Trace::Moved { qpn, conn: to });
            self.events.push(Event::Moved { qpn, conn: to });
        }
        self.wake(flow);
    }

    /// A flow without a connection ends.
    pub(crate) fn retire(&mut self, flow: u32) {
        self.flows.remove(flow);
        self.emit(|_| Trace::Ended { flow });
    }

    /// The flow whose turn to send it is.
    pub(crate) fn first_runnable(&self, conn: u32) -> Option<u32> {
        self.flows.first(&self.links[conn].runnable)
    }

    /// Where a flow waits for its turn on a connection: that of a QP which is gone beside those of
    /// the engine's own program.
    pub(crate) fn lane_of(&self, conn: u32, flow: u32) -> LaneOf {
        let record = &self.flows[flow];
        match record.ending.is_last() {
            true => (conn, Tenant::OWN),
            false => (conn, self.qps[record.qp].tenant),
        }
    }

    /// Takes the next flow with a control message out of the list.
    pub(crate) fn pop_control_due(&mut self, conn: u32) -> Option<u32> {
        let list = &mut self.links[conn].control_due;
        self.flows.pop_control(list)
    }

    /// Takes a flow out of both lists of its connection.
    pub(crate) fn unlist(&mut self, conn: u32, flow: u32) {
        let is_runnable = self.flows[flow].runnable_link != NONE;
        let lane = is_runnable.then(|| self.lane_of(conn, flow));
        let (runnable, control_due) = self.links.lists(conn);
        if let Some(lane) = lane {
            self.flows.take(runnable, lane, flow);
        }
        self.flows.take_control(control_due, flow);
    }

    /// Takes a flow out of the group of its connection, or of what is left of that.
    pub(super) fn leave_group(&mut self, conn: u32, flow: u32) {
        let (group, _) = self.links.members(conn);
        self.flows.homes().leave(group, flow);
    }

    /// Whether a flow is on a connection that is gone, and has to move on.
    pub(crate) fn is_left_behind(&self, flow: u32) -> bool {
        self.links.is_gone(self.flows[flow].conn)
    }
}
