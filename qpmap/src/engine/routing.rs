//! App-managed QPs: their programs name a route for each request.
//!
//! Whatever goes wrong between such a QP and one peer ends that route: its requests, in the order
//! in which they were posted, and nothing of other routes. Requests complete in order per route, so
//! that a peer which does not answer holds up nobody else's. The QP as a whole goes to error only
//! where the program asks for it, or wrote nonsense into its ring.

use super::ending::Ending;
use super::flows::{Dormant, Flows};
use super::own_memory::own_op;
use super::qp::{Flags, Wire};
use super::qps::Qps;
use super::requests::Pending;
use super::routes::{OwnRoutes, RouteTable};
use super::{ConnId, Engine, Platform, Trace};
use crate::error::VerbsError;
use crate::slab::NONE;
use crate::state::{QpState, QpType};
use trunkline_conn::host::QpEvent;
use trunkline_conn::work::{Request, Status};
use trunkline_wire::Qpn;

/// Flows that are over, of which the slots are freed in a round.
const ENDED_PER_ROUND: usize = 1024;

/// The table, and what a QP has of it.
fn parts<'a, W>(
    flows: &'a mut Flows,
    qps: &'a mut Qps<W>,
    qp: u32,
) -> (&'a mut RouteTable<Dormant>, &'a mut OwnRoutes) {
    let own = &mut qps.cold_mut(qp).routes;
    (
        flows.routes_mut(),
        own.get_or_insert_with(|| Box::new(OwnRoutes::EMPTY)),
    )
}

impl<P: Platform> Engine<P> {
    /// Lets an app-managed QP ([`QpType::Src`]) address `remote` at the peer of `conn`. Gives the
    /// number to name in [`SendWr::route`](crate::wqe::SendWr), from 1 on, which stays the
    /// program's until it [closes](Self::close_route) it. A route that is there already, opened by
    /// the program or by the peer, is the same one; if it is on another connection it
    /// [moves](Self::rebind_route) to `conn`. One that has ended is not: another one begins.
    ///
    /// # Errors
    /// No such QP or connection, a QP of another kind or that is not ready, or a connection to
    /// another worker of the peer.
    pub fn add_route(&mut self, qpn: Qpn, conn: ConnId, remote: Qpn) -> Result<u32, VerbsError> {
        let qp = self.known(qpn)?;
        if self.cold(qp).kind != QpType::Src {
            return Err(VerbsError::NotShared { qpn: qpn.get() });
        }
        let state = self.qps[qp].state;
        if !matches!(
            state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        ) {
            return Err(VerbsError::WrongState {
                qpn: qpn.get(),
                state,
            });
        }
        let target = self
            .links
            .live(conn)
            .ok_or(VerbsError::UnknownConnection { index: conn.index })?;
        if !self.links.leads_to(target, remote) {
            return Err(VerbsError::OtherWorker {
                remote: remote.get(),
            });
        }
        let peer = target.peer();
        let mut found = self.find_route(qp, peer, remote);
        if let Some(flow) = found
            && self.is_left_behind(flow)
        {
            self.move_on(flow);
            found = self.find_route(qp, peer, remote);
        }
        match found {
            Some(flow) if self.flows[flow].conn == conn.index => {}
            // It waits for a connection to that peer: here is one.
            Some(flow) if self.flows[flow].conn == NONE => self.resume_on(flow, conn.index),
            Some(flow) => self.move_flow(flow, conn)?,
            None => {
                let life = self.qps.generation(qp);
                self.open_route(qp, (conn.index, remote), life, false);
            }
        }
        let number = self.flows.routes_mut().name((qp, peer, remote));
        Ok(number.expect("the route was found or made above"))
    }

    /// Binds a route of an app-managed QP to another connection to the same peer, at a message
    /// boundary.
    ///
    /// # Errors
    /// As [`rebind`](Self::rebind), and for a route that is not there or has ended.
    pub fn rebind_route(&mut self, qpn: Qpn, route: u32, to: ConnId) -> Result<(), VerbsError> {
        let qp = self.known(qpn)?;
        let flow = self.flow_of_route(qp, route).filter(|flow| *flow != NONE);
        let flow = flow.ok_or(VerbsError::UnknownRoute {
            qpn: qpn.get(),
            route,
        })?;
        self.move_flow(flow, to)
    }

    /// The program has no use for a route any more: what is outstanding on it is flushed, the peer
    /// hears that it ends, and its number is free once the requests were taken that were posted
    /// before: they may name it.
    ///
    /// # Errors
    /// No such QP or route.
    pub fn close_route(&mut self, qpn: Qpn, route: u32) -> Result<(), VerbsError> {
        let qp = self.known(qpn)?;
        let own = self.cold(qp).routes.as_deref();
        let closing = own.is_some_and(|own| own.is_closing(route));
        let flow = match closing {
            true => None,
            false => self.flow_of_route(qp, route),
        };
        let flow = flow.ok_or(VerbsError::UnknownRoute {
            qpn: qpn.get(),
            route,
        })?;
        if flow != NONE {
            self.end_route(flow, Status::Flushed);
        }
        let record = &self.qps[qp];
        let behind = record.queues.send.posted_behind(&record.cursor);
        let (_, own) = parts(&mut self.flows, &mut self.qps, qp);
        match behind {
            Some(slot) => own.close_behind(route, slot),
            None => own.close(route),
        }
        Ok(())
    }

    /// A flow of an app-managed QP to the QP `remote` at the peer of `conn`, which begins `life`;
    /// `opened` by the peer, or by the program.
    pub(crate) fn open_route(
        &mut self,
        qp: u32,
        (conn, remote): (u32, Qpn),
        life: u32,
        opened: bool,
    ) -> u32 {
        let flow = self.new_flow(qp, (conn, remote), life);
        let peer = self.links[conn].peer();
        let (routes, own) = parts(&mut self.flows, &mut self.qps, qp);
        routes.insert(own, (qp, peer, remote), flow, opened);
        self.qps[qp].wire = Wire::Routes;
        self.resume_on(flow, conn);
        flow
    }

    /// Whether the peer of `conn` may open another route.
    pub(crate) fn may_open_route(&self, conn: u32) -> bool {
        self.flows
            .routes()
            .may_be_opened_by(Some(self.links[conn].peer()))
    }

    /// The flow of a route; [`NONE`] when it has ended, `None` when there is no such route.
    fn flow_of_route(&mut self, qp: u32, route: u32) -> Option<u32> {
        let own = self.cold(qp).routes.as_ref()?;
        let member = self.flows.routes().numbered(own, route)?;
        Some(member.map_or(NONE, |member| self.awake(member)))
    }

    /// The flow of the route between a QP and `remote` at `peer`.
    #[inline]
    pub(crate) fn find_route(&mut self, qp: u32, peer: u32, remote: Qpn) -> Option<u32> {
        let member = self.flows.routes().find(qp, peer, remote)?;
        Some(self.awake(member))
    }

    /// Whether a flow is one of the many of an app-managed QP.
    #[inline]
    pub(crate) fn is_route(&self, flow: u32) -> bool {
        let qp = self.qps.get(self.flows[flow].qp);
        qp.is_some_and(|qp| qp.wire == Wire::Routes) && !self.flows[flow].flags.has(Flags::ENDED)
    }

    /// What the program calls the route of a flow: 0 for a QP's own, and where it never asked.
    pub(crate) fn route_number(&self, flow: u32) -> u32 {
        let record = &self.flows[flow];
        if !self.is_route(flow) {
            return 0;
        }
        self.flows
            .routes()
            .number(record.qp, self.flows.peer(flow), record.remote)
    }

    /// Takes work requests of an app-managed QP from its ring, `most` at most: each goes to its
    /// route. Its bell rings for the rest. Gives how many it took.
    pub(crate) fn fetch_routed_wqes(&mut self, qp: u32, most: u32) -> u32 {
        let mut taken = 0;
        while self.qps[qp].state == QpState::Rts {
            if taken == most {
                self.posted.doorbells().ring(qp);
                break;
            }
            let record = &mut self.qps[qp];
            match record.queues.send.fetch(&mut record.cursor) {
                Ok(Some((request, route, slots))) => {
                    self.take_routed(qp, request, route, slots);
                    taken += 1;
                }
                Ok(None) => break,
                Err(_) => {
                    self.qp_event(qp, QpEvent::Fatal);
                    self.fail_qp(qp, Status::LocalQpOperation);
                }
            }
        }
        self.routes_taken(qp);
        taken
    }

    /// Requests were taken from the ring of an app-managed QP.
    pub(crate) fn routes_taken(&mut self, qp: u32) {
        let slot = self.qps[qp].cursor.slot();
        if let Some(own) = &mut self.qps.cold_mut(qp).routes {
            own.taken(slot);
        }
    }

    fn take_routed(&mut self, qp: u32, request: Request, route: u32, slots: u16) {
        let flow = self.flow_of_route(qp, route);
        let refused = match flow {
            _ if self.is_impossible(qp, &request) || own_op(&request).is_some() => {
                Some(Status::LocalQpOperation)
            }
            None => Some(Status::LocalQpOperation),
            Some(NONE) => Some(Status::Flushed),
            Some(_) => None,
        };
        if let Some(status) = refused {
            // There is nothing before it that it would have to wait for.
            self.qps[qp].queues.send.release(slots);
            self.report_sent(qp, &request, route, status, request.length);
            return;
        }
        let flow = flow.expect("a request without a route was refused above");
        let fault = self.local_fault(qp, &request);
        let mut pending = Pending::new(qp, request, route, slots);
        // It fails in its turn, and with it whatever follows on its route.
        pending.outcome = fault.map(|_| Status::LocalProtection);
        let index = self.hang(flow, pending);
        if self.flows[flow].sending == NONE {
            self.flows[flow].sending = index;
            self.flows[flow].sent_bytes = 0;
        }
        match fault {
            None => {
                self.ask_if_lapsed(flow);
                self.watch(flow);
                self.wake(flow);
            }
            Some(_) => self.complete_flow(flow),
        }
    }

    /// A route ends: its first unfinished request with `status`, the others flushed. The peer
    /// hears of it, where there is a way. The QP goes on.
    pub(crate) fn end_route(&mut self, flow: u32, status: Status) {
        let record = &mut self.flows[flow];
        if record.flags.has(Flags::ENDED) {
            return;
        }
        if record.flags.has(Flags::UNBOUND) {
            // The peer knows: its own end came first.
            record.ending = Ending::Told;
        }
        let qp = record.qp;
        // Another route between the same QPs is another life for the peer.
        self.qps.begin_life(qp);
        self.links.part(self.flows.peer(flow));
        self.counters.routes_ended.add(1);
        // The first may have failed before, for a reason of its own.
        let head = self.requests.get(self.flows[flow].head);
        let mut status = head.and_then(|head| head.outcome).unwrap_or(status);
        while self.flows[flow].head != NONE {
            let head = self.flows[flow].head;
            self.flows[flow].head = self.requests[head].flow_next;
            self.report(head, std::mem::replace(&mut status, Status::Flushed));
        }
        self.reset_assembly(flow);
        self.leave_table(flow);
        self.close_flow(flow);
        self.flows[flow].flags.set(Flags::ENDED);
        self.check_drained(qp);
    }

    fn leave_table(&mut self, flow: u32) {
        if self.has_row(flow) {
            self.qps.mapping().clear(self.flows[flow].qp);
        }
        let (qp, remote) = (self.flows[flow].qp, self.flows[flow].remote);
        let peer = self.flows.peer(flow);
        let (routes, own) = parts(&mut self.flows, &mut self.qps, qp);
        routes.end(own, (qp, peer, remote));
    }

    /// Frees the slots of flows that are over, while nobody works with any: some in each round.
    pub(crate) fn bury(&mut self) {
        for _ in 0..self.flows.ended().min(ENDED_PER_ROUND) {
            if let Some(flow) = self.flows.bury() {
                self.emit(|_| Trace::Ended { flow });
            }
        }
    }

    /// Forgets the routes of a QP that is reset or destroyed. Their flows are closed by it.
    pub(crate) fn forget_routes(&mut self, qp: u32, flows: &[u32]) {
        for &flow in flows {
            if self.is_route(flow) {
                self.leave_table(flow);
            }
        }
        self.cold_mut(qp).routes = None;
    }
}
