//! What a node tells of itself: to its program, and to other processes that watch it.
//!
//! A node on a UDP socket answers whoever of its own user asks ([`ask`]), unless
//! [`Builder::status`](crate::Builder::status) says otherwise: that is how `trunkline stat` and
//! `trunkline cm watch` look at it.

mod ask;
mod drops;
mod histogram;
mod peers;
pub(crate) mod recorder;
pub(crate) mod server;
pub(crate) mod source;

pub use crate::service::{ClientStatus, ServiceStatus};
pub use ask::{StatusError, ask, nodes};
pub use histogram::Times;
pub use peers::PeerStatus;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What the names of nodes' sockets begin with.
const PREFIX: &str = "trunkline/";

/// How a node is.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Status {
    /// Its address.
    pub address: IpAddr,
    /// What carries its packets, by the names of [`PortKind`](crate::PortKind), with that which
    /// `auto` has taken; `own`: ports that its program has made.
    #[serde(default = "unknown")]
    pub port: String,
    /// The process that it is in.
    pub pid: u32,
    /// Nanoseconds since it started.
    pub uptime_ns: u64,
    /// What its connection management does.
    pub cm: CmStats,
    /// What its engine counts, by the names of [`Counters`](crate::Counters).
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// What was dropped or refused, by reason, if anything was: counters of the engine, and those
    /// of [`CmCounters`](crate::CmCounters), such as `cm_nodes_bad_hello`.
    #[serde(default)]
    pub drops: BTreeMap<String, u64>,
    /// Of a node that carries other programs, the peers to which shared connections stand: at most
    /// 256, those with most connections first. Other nodes do not write them down.
    #[serde(default)]
    pub peers: Vec<PeerStatus>,
    /// How many such peers there are.
    #[serde(default)]
    pub peer_count: u64,
    /// The service that carries other programs by the node, if one does.
    #[serde(default)]
    pub service: Option<ServiceStatus>,
}

/// What carries the packets of a node that does not say so, as those of earlier versions.
fn unknown() -> String {
    "unknown".to_owned()
}

/// Steps of setting up connections that are timed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Span {
    NodeAnswer,
    NodeDecide,
    NodeConfirm,
    NodeOpen,
    NodeClose,
    Bind,
    IbAnswer,
    IbReady,
    IbDecide,
    IbConfirm,
    IbOpen,
    IbClose,
    RdmaAddress,
    RdmaRoute,
    RdmaConnect,
    RdmaAccept,
}

impl Span {
    pub(crate) const ALL: [Self; 16] = [
        Self::NodeAnswer,
        Self::NodeDecide,
        Self::NodeConfirm,
        Self::NodeOpen,
        Self::NodeClose,
        Self::Bind,
        Self::IbAnswer,
        Self::IbReady,
        Self::IbDecide,
        Self::IbConfirm,
        Self::IbOpen,
        Self::IbClose,
        Self::RdmaAddress,
        Self::RdmaRoute,
        Self::RdmaConnect,
        Self::RdmaAccept,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::NodeAnswer => "node_answer",
            Self::NodeDecide => "node_decide",
            Self::NodeConfirm => "node_confirm",
            Self::NodeOpen => "node_open",
            Self::NodeClose => "node_close",
            Self::Bind => "bind",
            Self::IbAnswer => "ib_answer",
            Self::IbReady => "ib_ready",
            Self::IbDecide => "ib_decide",
            Self::IbConfirm => "ib_confirm",
            Self::IbOpen => "ib_open",
            Self::IbClose => "ib_close",
            Self::RdmaAddress => "rdma_address",
            Self::RdmaRoute => "rdma_route",
            Self::RdmaConnect => "rdma_connect",
            Self::RdmaAccept => "rdma_accept",
        }
    }
}

/// What a node's connection management does: [`Node::cm_stats`](crate::Node::cm_stats). Counts are
/// since the node started, unless they say how many there are.
///
/// Steps by name, each from its first message until it is done:
///
/// | name | from | until |
/// | --- | --- | --- |
/// | `node_answer` | a node is asked (REQ) | it has agreed (REP) |
/// | `node_decide` | a node asks (REQ) | this one agrees (REP) |
/// | `node_confirm` | this node agrees (REP) | the other confirms (RTU, or its first packet) |
/// | `node_open` | the first REQ, of whichever end | the connection stands here |
/// | `node_close`, `ib_close` | DREQ | DREP, or all tries are used up |
/// | `bind` | a QP's BIND is sent, unless in a handshake | the peer's BOUND came |
/// | `ib_answer` | REQ | REP |
/// | `ib_ready` | REP came | RTU, when the program has made its QP ready |
/// | `ib_decide` | REQ came | REP, when the program has decided |
/// | `ib_confirm` | REP | RTU came, or something of the peer's QP |
/// | `ib_open` | REQ | the connection stands at this end |
/// | `rdma_address` | `rdma_resolve_addr(3)` | the address is resolved, or cannot be |
/// | `rdma_route` | `rdma_resolve_route(3)` | the route is resolved |
/// | `rdma_connect` | `rdma_connect(3)` | the connection stands |
/// | `rdma_accept` | a request came | the connection stands |
///
/// What there was no room for, and how it was answered:
///
/// | name | what | answer |
/// | --- | --- | --- |
/// | `node_busy` | a node asks, and no place is free | REJ: it asks again |
/// | `node_share` | a node asks whose address has its share of the places | the same |
/// | `ib_busy` | a host asks, and no place is free | MRA; to questions SIDR_REP |
/// | `ib_share` | a host asks whose address has its share of the places | REJ; SIDR_REP |
/// | `ib_late` | a program has not decided in time | MRA |
/// | `backlog` | a listener has as many requests waiting as it may | REJ, SIDR_REP |
/// | `backlog_share` | an address has its share of a listener's requests | REJ, SIDR_REP |
/// | `ids` | there are as many IDs as may be | REJ, SIDR_REP |
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CmStats {
    /// Handshakes between nodes that there are, by [`Phase`](trunkline_cm::Phase).
    pub handshakes: BTreeMap<String, u64>,
    /// Connections and questions of ordinary hosts that there are, by
    /// [`Phase`](trunkline_cm::Phase).
    pub connections: BTreeMap<String, u64>,
    /// IDs of RDMA-CM that there are, by [`IdPhase`](trunkline_cm::rdma::IdPhase).
    pub ids: BTreeMap<String, u64>,
    /// Connections that came to stand: between nodes, and of ordinary hosts.
    pub established: u64,
    /// QPs on shared connections to which their peer has consented.
    pub qps: u64,
    /// The same once more, after their connection had died.
    pub rebound: u64,
    /// QPs that wait for their peer's consent now.
    pub binding: u64,
    /// Shared connections opened.
    pub opened: u64,
    /// Shared connections gone.
    pub down: u64,
    /// QPs whose connection died and that went on with another.
    pub failovers: u64,
    /// Management datagrams sent.
    pub sent: u64,
    /// Management datagrams received that were whole.
    pub received: u64,
    /// Peers that wait now until they are asked: see
    /// [`Builder::connect_requests`](crate::Builder::connect_requests).
    pub in_line: u64,
    /// Peers that had to wait until they were asked.
    pub queued: u64,
    /// How often there was no room, or no decision in time, by the names above.
    pub overload: BTreeMap<String, u64>,
    /// How long each step took, by the names above.
    pub steps: BTreeMap<String, Times>,
}

impl CmStats {
    /// Connections and questions under way now: between nodes, and of ordinary hosts.
    pub fn in_flight(&self) -> u64 {
        let under_way = |counts: &BTreeMap<String, u64>| -> u64 {
            let phases = trunkline_cm::Phase::ALL.iter();
            let phases = phases.filter(|phase| phase.is_under_way());
            phases.filter_map(|phase| counts.get(phase.name())).sum()
        };
        under_way(&self.handshakes) + under_way(&self.connections)
    }
}
