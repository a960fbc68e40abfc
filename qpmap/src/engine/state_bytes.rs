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
