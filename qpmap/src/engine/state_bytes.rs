//! How much state there is, counted from the structures themselves.

use super::flows::HOME_BYTES;
use super::links::{CONNECTION_ROWS, Conn, Peer};
use super::qp::{Cold, Flow, Qp, QpQueues};
use super::qps::Name;
use super::{Engine, Platform};
use crate::doorbell::Doorbells;
use crate::mapping::Mapping;

/// Bytes of state of an engine.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StateBytes {
    /// One idle QP: hot and cold part, number, queues without their rings.
    pub per_qp: u64,
    /// One idle flow, between a QP and one of a peer, with its place among others.
    pub per_flow: u64,
    /// One idle connection with its peer record and rows of tables. It has no timer.
    pub per_connection: u64,
    /// QPs there are.
    pub qps: u64,
    /// Flows that have a record of their own: those of dormant routes have none.
    pub flows: u64,
    /// What is known of routes, in bytes: all of dormant ones, of others what is beside their
    /// flows.
    pub routes: u64,
    /// Connections there are.
    pub connections: u64,
    /// What connections needed while they were active, kept for those that become so.
    pub spare: u64,
    /// Room in tables that nothing takes, rows of the mapping and doorbells, timers, and what
    /// connections have counted of late.
    pub room: u64,
}

impl<P: Platform> Engine<P> {
    /// State of the QPs and connections that exist now.
    pub fn state_bytes(&self) -> StateBytes {
        let arc = 16;
        let per_qp = size_of::<Qp<P::RingMemory>>()
            + size_of::<Option<Cold>>()
            + size_of::<QpQueues<P::RingMemory>>()
            + arc
            + size_of::<Name>();
        let per_connection = size_of::<Conn>() + size_of::<Peer>() + CONNECTION_ROWS;
        StateBytes {
            per_qp: per_qp as u64,
            per_flow: (size_of::<Flow>() + HOME_BYTES) as u64,
            per_connection: per_connection as u64,
            qps: self.qps.len() as u64,
            flows: self.flows.awake() as u64,
            routes: self.route_bytes() as u64,
            connections: self.links.len() as u64,
            spare: self.links.spare_bytes() as u64,
            room: self.room_bytes(per_connection) as u64,
        }
    }
}

impl<P: Platform> Engine<P> {
    /// All of routes, with what their QPs have of them.
    fn route_bytes(&self) -> usize {
        let own = (0..self.qps.slots())
            .filter_map(|qp| self.qps.get_cold(qp)?.routes.as_ref())
            .map(|own| own.state_bytes());
        self.flows.route_bytes() + own.sum::<usize>()
    }

    /// Rows of the mapping and doorbells, of which there are as many as QPs needed at a time.
    fn rows_bytes(&self) -> usize {
        let (mapping, doorbells) = (self.qps.mapping(), self.posted.doorbells());
        let mapped = mapping.state_bytes().saturating_sub(size_of::<Mapping>());
        let bells = doorbells.state_bytes();
        mapped + bells.saturating_sub(size_of::<Doorbells>())
    }

    /// What is allocated beside records.
    fn room_bytes(&self, per_connection: usize) -> usize {
        let of_connections = per_connection * self.links.len();
        let of_links = self.links.state_bytes() + self.tx.schedule().state_bytes();
        of_links.saturating_sub(of_connections)
            + self.qps.room_bytes()
            + self.rows_bytes()
            + self.flows.room_bytes()
            + self.timers.state_bytes()
            + self.tx.packs.state_bytes()
    }
}

/// What an engine holds on behalf of QPs: all of it goes with them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LiveObjects {
    /// QPs.
    pub qps: usize,
    /// Flows between local QPs and remote ones.
    pub flows: usize,
    /// Work requests under way.
    pub requests: usize,
    /// Responses being sent or waiting for their acknowledgement.
    pub responses: usize,
    /// Messages being put together.
    pub assemblies: usize,
    /// Packets that wait for an earlier one.
    pub staged: usize,
    /// Control messages that were not acknowledged or not sent yet.
    pub control_messages: usize,
    /// BINDs that wait for their QP.
    pub waiting_binds: usize,
    /// Flows and QPs that wait for a connection, or for a move to one.
    pub waiting_flows: usize,
}

impl LiveObjects {
    /// Adds what another engine holds.
    pub const fn add(&mut self, other: &Self) {
        self.qps += other.qps;
        self.flows += other.flows;
        self.requests += other.requests;
        self.responses += other.responses;
        self.assemblies += other.assemblies;
        self.staged += other.staged;
        self.control_messages += other.control_messages;
        self.waiting_binds += other.waiting_binds;
        self.waiting_flows += other.waiting_flows;
    }

    /// Every number with its name, in the order of the fields.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, usize)> + use<> {
        [
            ("QPs", self.qps),
            ("flows", self.flows),
            ("requests", self.requests),
            ("responses", self.responses),
            ("assemblies", self.assemblies),
            ("staged packets", self.staged),
            ("control_messages", self.control_messages),
            ("waiting BINDs", self.waiting_binds),
            ("waiting flows", self.waiting_flows),
        ]
        .into_iter()
    }
}

impl<P: Platform> Engine<P> {
    /// All there is to know of a QP's flows and requests, as text for people who look for a fault.
    pub fn describe_qp(&self, qpn: trunkline_wire::Qpn) -> String {
        use std::fmt::Write;
        let Some(qp) = self.qp_index(qpn) else {
            return "no such QP".to_owned();
        };
        let mut text = format!("{:?} {:?}", self.qps[qp].state, self.qps[qp].wire);
        for index in self.awake_flows_of(qp) {
            let flow = &self.flows[index];
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  flow {index}: {flow:?}");
            let mut next = flow.head;
            while let Some(pending) = self.requests.get(next) {
                let _ = write!(
                    text,
                    "\n    request {next}: #{:#x} msn {} epoch {} returned {} of {} responded {} \
                     reading {} begun {} outcome {:?}",
                    pending.request.wr_id,
                    pending.msn,
                    pending.replay_epoch,
                    pending.returned.bytes(),
                    pending.request.length,
                    pending.responded,
                    pending.reading,
                    pending.begun,
                    pending.outcome
                );
                next = pending.flow_next;
            }
            for (at, response) in self.responses.of(flow.responses) {
                let _ = write!(text, "\n    response {at}: {response:?}");
            }
        }
        text
    }

    /// Timers that are armed: one of each connection, and those of what is under way.
    pub const fn timers(&self) -> usize {
        self.timers.len()
    }

    /// What is held now.
    pub fn live_objects(&self) -> LiveObjects {
        LiveObjects {
            qps: self.qps.len(),
            flows: self.flows.len(),
            requests: self.requests.len(),
            responses: self.responses.len(),
            assemblies: self.inbound.len(),
            staged: self.inbound.staging().len(),
            control_messages: self.control.len(),
            waiting_binds: self.pairing.binds.len(),
            waiting_flows: self.pairing.waiting.len()
                + self.links.flows_left()
                + self.flows.moves(),
        }
    }
}
