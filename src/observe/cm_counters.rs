//! What connection management dropped or refused.

/// Management datagrams that moved nothing here or were refused, and attempts that came to
/// nothing, by who noticed and why:
/// [`Node::cm_counters`](crate::Node::cm_counters). All since the node started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct CmCounters {
    /// To QP1, and not a whole management datagram: cut short, damaged, of another partition.
    pub unreadable: u64,
    /// Addresses and routes that RDMA-CM was asked for and could not resolve.
    pub unresolved: u64,
    /// Handshakes between Trunkline nodes.
    pub nodes: trunkline_cm::Counters,
    /// Connections of ordinary hosts, and questions for datagram services.
    pub hosts: trunkline_cm::ib::Counters,
    /// Requests of those that RDMA-CM has no taker for.
    pub rdma: trunkline_cm::rdma::Counters,
}
