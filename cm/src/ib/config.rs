//! What the communication manager is told once.

use crate::config::Limits;
use crate::retry::{Patience, Retry};
use core::net::IpAddr;
use trunkline_conn::secret::Secret;
use trunkline_conn::time::SECOND;
use trunkline_wire::{Gid, Worker};

/// The GUID that a host is told.
///
/// It tells a peer's QP that has lost its connection from a forged REQ
/// ([`CloseReason::Stale`](super::CloseReason::Stale)): who knows it, the QPN (24 bits) and both
/// addresses can end that connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Guids {
    /// The same to all, as RNICs do it: whoever connects to the node learns it.
    One(u64),
    /// To each address another, which nobody else can compute.
    PerPeer(Secret),
}

impl Guids {
    /// What the host at `peer` is told.
    pub(crate) fn of(&self, peer: IpAddr) -> u64 {
        match self {
            Self::One(guid) => *guid,
            Self::PerPeer(secret) => secret.number_of(u128::from_be_bytes(Gid::from(peer).0)),
        }
    }
}

/// How a [`IbCm`](super::IbCm) works.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// GUID of this node, as REQ and REP tell it.
    pub guids: Guids,
    /// Largest path MTU that the port carries, coded: 1 is 256 bytes, 5 is 4096. Both QPs of a
    /// connection have to use one and the same.
    pub mtu: u8,
    /// Patience of REPs: how long an accepted peer has to confirm. RTUs, which nobody answers, are
    /// said as often, until something came from the peer's QP.
    pub reply: Retry,
    /// Patience of DREQs.
    pub close: Retry,
    /// How far a peer's MRA prolongs waits.
    pub patience: Patience,
    /// A REQ or REP that nobody has decided on for so long is answered by an MRA unasked, in
    /// nanoseconds; half the time that the peer's REQ grants if that is less.
    pub mra_ns: u64,
    /// Time that those MRAs ask for, exponent: 4.096 us times 2 to it. 24 is what the Linux kernel
    /// asks for, 69 s.
    pub mra_timeout: u8,
    /// Time that an MRA asks for instead of a REQ that found no room, exponent.
    pub busy_timeout: u8,
    /// Time in which a REQ, REP or SIDR_REQ has to be decided on, in nanoseconds; after it the peer
    /// is told that this node has no resources for it.
    pub decide_ns: u64,
    /// Time for which a closed connection is remembered and its QP taken, in nanoseconds.
    pub time_wait_ns: u64,
    /// Which worker of its node it is for: its communication IDs show it.
    pub worker: Worker,
    /// What may be under way. Questions for datagram services count like connections.
    pub limits: Limits,
}

impl Config {
    /// The defaults for a node of this GUID.
    pub const fn new(guid: u64) -> Self {
        Self {
            guids: Guids::One(guid),
            mtu: 5,
            reply: Retry::PLAIN,
            close: Retry {
                tries: 6,
                total_ns: 6 * SECOND,
            },
            patience: Patience::LONG,
            mra_ns: SECOND,
            mra_timeout: 24,
            busy_timeout: 17,
            decide_ns: 60 * SECOND,
            time_wait_ns: SECOND,
            worker: Worker::ONLY,
            limits: Limits {
                connections: 65_536,
                opening: 16_384,
                half_open: 8_192,
                half_open_per_peer: 4_096,
                time_wait: 16_384,
                transmit: 16_384,
            },
        }
    }
}
