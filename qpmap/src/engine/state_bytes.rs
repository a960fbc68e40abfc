//! How much state there is, counted from the structures themselves.

use super::link::{Conn, Peer};
use super::qp::{Cold, Flow, Qp, QpQueues};
use super::{Engine, Platform};

/// Bytes of state of an engine.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StateBytes {
    /// One idle QP: hot and cold part, flow, rows of tables, queues without their rings.
    pub per_qp: u64,
    /// One idle connection with its peer record and table slots.
    pub per_connection: u64,
    /// QPs there are.
    pub qps: u64,
    /// Connections there are.
    pub connections: u64,
}

impl StateBytes {
    /// All of it.
    pub const fn total(&self) -> u64 {
        self.per_qp * self.qps + self.per_connection * self.connections
    }
}

impl<P: Platform> Engine<P> {
    /// State of the QPs and connections that exist now.
    pub fn state_bytes(&self) -> StateBytes {
        // Rows: mapping, generation, doorbell bit (rounded up), pointer to the queues.
        let rows = 8 + 2 + 1 + 8;
        let arc = 16;
        let per_qp = size_of::<Qp<P::Words>>()
            + size_of::<Flow>()
            + size_of::<Option<Cold>>()
            + size_of::<QpQueues<P::Words>>()
            + arc
            + rows;
        // Rows: number, serial, deadline.
        let per_connection = size_of::<Conn>() + size_of::<Peer>() + 4 + 4 + 8;
        StateBytes {
            per_qp: per_qp as u64,
            per_connection: per_connection as u64,
            qps: self.qps.len() as u64,
            connections: self.conns.len() as u64,
        }
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
    /// Notices that were not acknowledged or not sent yet.
    pub notices: usize,
    /// BINDs that wait for their QP.
    pub waiting_binds: usize,
    /// Flows and QPs that wait for a connection, or for a move to one.
    pub waiting_flows: usize,
}

impl LiveObjects {
    /// Every number with its name, in the order of the fields.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, usize)> + use<> {
        [
            ("QPs", self.qps),
            ("flows", self.flows),
            ("requests", self.requests),
            ("responses", self.responses),
            ("assemblies", self.assemblies),
            ("staged packets", self.staged),
            ("notices", self.notices),
            ("waiting BINDs", self.waiting_binds),
            ("waiting flows", self.waiting_flows),
        ]
        .into_iter()
    }
}

impl<P: Platform> Engine<P> {
    /// What is held now.
    pub fn live_objects(&self) -> LiveObjects {
        let undecided: usize = self.undecided.values().map(Vec::len).sum();
        LiveObjects {
            qps: self.qps.len(),
            flows: self.flows.len(),
            requests: self.requests.len(),
            responses: self.jobs.len(),
            assemblies: self.assemblies.len(),
            staged: self.staging.len(),
            notices: self.blobs.len() + self.orphans.len(),
            waiting_binds: self.waiting_binds.len(),
            waiting_flows: undecided + self.stranded.len() + self.moves.len(),
        }
    }
}
