//! How much state a node has, counted from the structures themselves.

use crate::verbs::qp::QP_HANDLE_BYTES;

/// Bytes of state of a node: [`Node::state_bytes`](crate::Node::state_bytes). Rings, packets under
/// way and registered memory are not state in this sense.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct StateBytes {
    /// One idle QP: hot and cold part, number, queues without their rings.
    pub per_qp: u64,
    /// One idle flow, between a QP and one of a peer.
    pub per_flow: u64,
    /// One idle connection with its peer record and rows of tables.
    pub per_connection: u64,
    /// QPs there are.
    pub qps: u64,
    /// Flows that have a record of their own: one of each connected QP, and one of each route of
    /// app-managed QPs on which something happens, or did within the last seconds.
    pub flows: u64,
    /// What is known of routes, in bytes: all of those on which nothing happens, and what is beside
    /// their flows of the others.
    pub routes: u64,
    /// Connections there are.
    pub connections: u64,
    /// What connections needed while they were active, kept for a second or two for those that
    /// become so.
    pub spare: u64,
    /// Handles that programs have of QPs.
    pub handles: u64,
    /// Room in tables that nothing takes, the stock that QPs are made from, rows of the mapping and
    /// doorbells, timers, and what connections have counted of late.
    pub room: u64,
    /// All that the management of connections has now: handshakes and connections of ordinary
    /// hosts, IDs and ports of RDMA-CM, what is known of peers, and messages that wait.
    pub management: u64,
}

impl StateBytes {
    /// Of one worker.
    pub(crate) const fn of(engine: &trunkline_qpmap::StateBytes, management: usize) -> Self {
        Self {
            per_qp: engine.per_qp,
            per_flow: engine.per_flow,
            per_connection: engine.per_connection,
            qps: engine.qps,
            flows: engine.flows,
            routes: engine.routes,
            connections: engine.connections,
            spare: engine.spare,
            handles: engine.qps * QP_HANDLE_BYTES,
            room: engine.room,
            management: management as u64,
        }
    }

    /// Adds what another worker has. The sizes of one QP, flow and connection are equal in all.
    pub(crate) fn add(&mut self, other: &Self) {
        self.per_qp = self.per_qp.max(other.per_qp);
        self.per_flow = self.per_flow.max(other.per_flow);
        self.per_connection = self.per_connection.max(other.per_connection);
        self.qps += other.qps;
        self.flows += other.flows;
        self.routes += other.routes;
        self.connections += other.connections;
        self.spare += other.spare;
        self.handles += other.handles;
        self.room += other.room;
        self.management += other.management;
    }

    /// All of it.
    pub const fn total(&self) -> u64 {
        let of_qps = self.per_qp * self.qps + self.per_flow * self.flows + self.routes;
        let of_connections = self.per_connection * self.connections;
        let beside = self.handles + self.spare + self.room;
        of_qps + of_connections + beside + self.management
    }
}
