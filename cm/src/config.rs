//! What a node's connection management is told once.

use crate::identity::Identity;
use crate::retry::Retry;
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_wire::Worker;

/// How a [`NodeCm`](crate::NodeCm) works.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Who this node is.
    pub identity: Identity,
    /// Patience of REPs: how long an accepted peer has to confirm.
    pub reply: Retry,
    /// Patience of DREQs.
    pub close: Retry,
    /// Time in which an [`Event::Incoming`](crate::Event::Incoming) has to be accepted or
    /// rejected, in nanoseconds; after it the peer is told that this node is busy.
    pub decide_ns: u64,
    /// Time for which a closed connection is remembered, in nanoseconds, so that late messages are
    /// not taken for new ones.
    pub time_wait_ns: u64,
    /// Which worker of its node it is for: its communication IDs show it.
    pub worker: Worker,
    /// What may be under way.
    pub limits: Limits,
}

/// Bounds on what a node remembers, whatever strangers send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Connections in any state, at most 2^20.
    pub connections: u32,
    /// Requests without an answer.
    pub opening: u32,
    /// Peers' requests that they have not confirmed.
    pub half_open: u32,
    /// The same, of one peer.
    pub half_open_per_peer: u32,
    /// Closed connections that are remembered; over it the oldest are forgotten.
    pub time_wait: u32,
    /// Datagrams waiting for [`poll_transmit`](crate::NodeCm::poll_transmit); over it they are
    /// dropped, as a network may.
    pub transmit: u32,
}

impl Config {
    /// The defaults for a node of this identity.
    pub const fn new(identity: Identity) -> Self {
        Self {
            identity,
            reply: Retry::KNOWN,
            close: Retry::KNOWN,
            decide_ns: 500 * MILLISECOND,
            time_wait_ns: 2 * SECOND,
            worker: Worker::ONLY,
            limits: Limits {
                connections: 65_536,
                opening: 4_096,
                half_open: 4_096,
                half_open_per_peer: 64,
                time_wait: 4_096,
                transmit: 4_096,
            },
        }
    }
}
