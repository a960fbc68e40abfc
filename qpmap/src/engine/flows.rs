//! Flows: which there are, which connection each uses, and how it moves to another.

use super::qp::{Flags, Flow, Wire};
use super::{ConnId, Engine, Event, Platform, Trace};
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
        let flow = self.new_flow(qp, remote);
        self.qps[qp].wire = Wire::Shared(flow);
        self.cold_mut(qp).pinned = false;
        self.resume_on(flow, conn);
        self.admit_waiting(qp);
    }

    pub(crate) fn new_flow(&mut self, qp: u32, remote: Qpn) -> u32 {
        let mut flow = Flow::new(qp, NONE, remote, self.generations[qp as usize]);
        flow.rnr_left = self.cold(qp).attributes.rnr_retry;
        self.flows.insert(flow)
    }

    /// A flow of an app-managed QP beside its own; it takes the next free route.
    pub(crate) fn open_route(&mut self, qp: u32, conn: u32, remote: Qpn) -> u32 {
        let flow = self.new_flow(qp, remote);
        let first = self.cold(qp).routes.is_empty();
        self.cold_mut(qp).routes.push(flow);
        if first {
            self.qps[qp].wire = Wire::Shared(flow);
        }
        self.resume_on(flow, conn);
        flow
    }

    pub(crate) fn flows_of(&self, qp: u32) -> Vec<u32> {
        let mut flows = self.cold(qp).routes.clone();
        if let Wire::Shared(own) = self.qps[qp].wire
            && !flows.contains(&own)
        {
            flows.push(own);
        }
        flows
    }

    /// The flow of a local QP to `remote` at the peer of `conn`.
    #[inline]
    pub(crate) fn flow_from(&self, qp: u32, remote: Qpn, conn: u32) -> Option<u32> {
        let fits = |flow: &u32| {
            let record = &self.flows[*flow];
            record.remote == remote && (record.conn == conn || self.is_of_peer(*flow, conn))
        };
        if let Wire::Shared(own) = self.qps[qp].wire
            && fits(&own)
        {
            return Some(own);
        }
        let routes = &self.cold(qp).routes;
        routes
            .iter()
            .copied()
            .filter(|flow| *flow != NONE)
            .find(fits)
    }

    /// Whether a flow that is not on `conn` is for its peer.
    fn is_of_peer(&self, flow: u32, conn: u32) -> bool {
        let peer = self.conns[conn].peer;
        match self.conns.get(self.flows[flow].conn) {
            Some(own) => own.peer == peer,
            // Between two connections.
            None => self.is_stranded(peer, flow),
        }
    }

    /// Binds a flow to a connection: the row of the mapping follows for a QP's own flow.
    pub(crate) fn attach(&mut self, flow: u32, conn: u32) {
        self.flows[flow].conn = conn;
        let record = &mut self.conns[conn];
        record.flows += 1;
        if record.flows.is_multiple_of(CROWD) && !record.flags.private {
            let peer = self.peers[record.peer].address;
            let remote = self.flows[flow].remote;
            self.events.push_back(Event::Crowded { peer, remote });
        }
        let (qp, generation) = (self.flows[flow].qp, self.flows[flow].generation);
        if self.qps[qp].wire == Wire::Shared(flow) {
            self.mapping.set(qp, conn, generation);
        }
    }

    /// Takes a flow from its connection, but not out of its lists.
    pub(crate) fn detach(&mut self, flow: u32) {
        let conn = self.flows[flow].conn;
        if conn == NONE {
            return;
        }
        self.conns[conn].flows -= 1;
        self.flows[flow].conn = NONE;
        let qp = self.flows[flow].qp;
        if self.qps[qp].wire == Wire::Shared(flow) {
            self.mapping.clear(qp);
        }
    }

    /// Puts a flow to work on `conn`: its BIND if that is still open, its unsent messages, its
    /// answers.
    pub(crate) fn resume_on(&mut self, flow: u32, conn: u32) {
        self.flows[flow].flags.clear(Flags::STRANDED);
        self.attach(flow, conn);
        let flags = &mut self.flows[flow].flags;
        if !flags.has(Flags::BOUND) {
            flags.set(Flags::BIND_DUE);
        }
        if flags.has(Flags::PEER_BOUND) {
            // The peer may have missed them on the connection that died.
            flags.set(Flags::BOUND_DUE);
            flags.set(Flags::ANSWER_DUE);
        }
        self.notice(flow);
        self.wake(flow);
    }

    /// A connection of a pool is new. Where the others of it are crowded it takes over as many
    /// QPs as make it their equal, of those that have nothing under way. Those whose connections
    /// their programs chose stay: QPs that were bound by hand, and routes.
    pub(crate) fn relieve_crowded(&mut self, fresh: u32) {
        let record = &self.conns[fresh];
        let (peer, remote) = (record.peer, record.delivery.remote_id());
        let (mut flows, mut count, mut crowded) = (0, 0, false);
        let mut next = self.peers[peer].conns;
        while next != NONE {
            let conn = &self.conns[next];
            if !conn.flags.private && self.leads_to(conn, remote) {
                flows += conn.flows;
                count += 1;
                crowded |= conn.flows >= CROWD;
            }
            next = conn.next_of_peer;
        }
        let share: u32 = flows / count;
        if !crowded || self.conns[fresh].flows >= share {
            return;
        }
        let movable = |index: u32, flow: &Flow| {
            let pending = self.requests.get(flow.head);
            let cold = self.cold(flow.qp);
            self.qps[flow.qp].wire == Wire::Shared(index)
                && cold.kind == QpType::Rc
                && !cold.pinned
                && !flow.flags.has(Flags::QUIESCING)
                && pending.is_none_or(|pending| !pending.begun)
        };
        let on_pool = |conn: u32| {
            let own = self.conns.get(conn).filter(|_| conn != fresh);
            own.is_some_and(|own| {
                own.peer == peer && !own.flags.private && self.leads_to(own, remote)
            })
        };
        let moving = self.flows.iter();
        let moving = moving.filter(|(index, flow)| on_pool(flow.conn) && movable(*index, flow));
        let moving: Vec<u32> = moving.map(|(index, _)| index).collect();
        for flow in moving {
            let from = self.flows[flow].conn;
            if self.conns[fresh].flows >= share {
                break;
            }
            if self.conns[from].flows > share {
                self.unlist(from, flow);
                self.detach(flow);
                self.resume_on(flow, fresh);
            }
        }
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
        let target = self
            .live(to)
            .ok_or(VerbsError::UnknownConnection { index: to.index })?;
        let record = &self.flows[flow];
        let qp = record.qp;
        if !self.leads_to(target, record.remote) {
            return Err(VerbsError::OtherWorker {
                remote: record.remote.get(),
            });
        }
        if record.conn == NONE || target.peer != self.conns[record.conn].peer {
            return Err(VerbsError::OtherPeer {
                qpn: self.qp_number(qp).get(),
            });
        }
        self.moves.retain(|(other, _)| *other != flow);
        self.moves.push((flow, to));
        self.flows[flow].flags.set(Flags::QUIESCING);
        self.try_move(flow);
        Ok(())
    }

    /// Moves a quiescing flow once nothing of it is in flight. Requests that were taken from the
    /// ring but not begun go with it.
    pub(crate) fn try_move(&mut self, flow: u32) {
        let record = &self.flows[flow];
        let begun = self
            .requests
            .get(record.head)
            .is_some_and(|pending| pending.begun);
        if !record.flags.has(Flags::QUIESCING) || begun {
            return;
        }
        let qp = record.qp;
        self.flows[flow].flags.clear(Flags::QUIESCING);
        let at = self.moves.iter().position(|(other, _)| *other == flow);
        let to = at.map(|at| self.moves.swap_remove(at).1);
        if let Some(to) = to.filter(|to| self.live(*to).is_some())
            && self.flows[flow].conn != NONE
        {
            self.unlist(self.flows[flow].conn, flow);
            self.detach(flow);
            self.resume_on(flow, to.index);
            self.cold_mut(qp).pinned = true;
            let qpn = self.qp_number(qp);
            self.tell(|_| Trace::Moved { qpn, conn: to });
            self.events.push_back(Event::Moved { qpn, conn: to });
        }
        self.wake(flow);
    }
}
