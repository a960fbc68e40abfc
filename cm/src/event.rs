//! What comes out of a manager.

use crate::binds::{Binds, Bounds};
use crate::hello::{Hello, HelloError, Purpose};
use crate::identity::{Identity, IdentityError};
use crate::refusal::RefusalCode;
use core::net::IpAddr;
use trunkline_wire::cm::{CommId, RejReason};
use trunkline_wire::{MAD_LEN, Path, Qpn, Workers};

/// One handshake and the connection that comes of it. Each yields exactly one of the events that
/// end it: [`Event::NotTrunkline`], [`Event::Silent`], [`Event::Nobody`], [`Event::Refused`] or
/// [`Event::Closed`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct HandshakeId(pub(crate) CommId);

/// Where a peer is reached, and from where: one family.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Route {
    /// This node's address.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
}

impl Route {
    /// The way back to the sender of a datagram.
    pub const fn back(from: &Path) -> Self {
        Self {
            local: from.dst,
            remote: from.src,
        }
    }

    /// An IPv4 address is the same whether it is mapped into IPv6 or not.
    pub(crate) const fn canonical(self) -> Self {
        Self {
            local: self.local.to_canonical(),
            remote: self.remote.to_canonical(),
        }
    }
}

/// A datagram to send from QP1 to QP1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Outgoing {
    /// From where to where.
    pub route: Route,
    /// Management datagram: payload of a UD SEND.
    pub mad: [u8; MAD_LEN],
}

/// Which side of a handshake this node is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Role {
    /// It asked.
    Opener,
    /// It was asked. A request of its own may have been absorbed, its BINDs with it: they did not
    /// reach the peer.
    Acceptor,
}

/// Everything the two ends of a new connection know of each other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Established {
    /// The handshake.
    pub id: HandshakeId,
    /// This node's side of it.
    pub role: Role,
    /// Where the peer is.
    pub route: Route,
    /// Who the peer is.
    pub identity: Identity,
    /// The workers of its node.
    pub workers: Workers,
    /// What the connection is for.
    pub purpose: Purpose,
    /// Number of this end.
    pub local_id: Qpn,
    /// Number of the peer's end.
    pub remote_id: Qpn,
    /// Token that packets to this node carry.
    pub local_token: u32,
    /// Token that packets to the peer carry.
    pub remote_token: u32,
    /// Number of the first packet to the peer.
    pub first_tx: u64,
    /// Number of the first packet from the peer.
    pub first_rx: u64,
    /// Largest datagram (BTH to ICRC) that both paths carry, in bytes.
    pub packet_size: u32,
    /// Packets that both ends have room for at once, in units of 64: `1 ..= 1024`.
    pub window: u16,
    /// Both ends know packets that several messages share.
    pub packs: bool,
    /// DSCP that the opener asked for.
    pub traffic_class: u8,
    /// BINDs that the peer sent along; none from an acceptor.
    pub binds: Binds,
    /// Consent to BINDs that were sent along: the peer's where this node opened, and what is left
    /// of its own where it accepted.
    pub bounds: Bounds,
}

/// Why a peer refused.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Refused {
    /// A Trunkline node, in its own words.
    Trunkline(RefusalCode),
    /// Anybody, in those of the InfiniBand specification.
    Ib(RejReason),
    /// Its answer is not what a Trunkline node says, or not in a version spoken here.
    NoSense(HelloError),
    /// It is this node.
    Identity(IdentityError),
}

impl Refused {
    /// Whether the peer is a Trunkline node that this node could work with another time.
    pub const fn by_trunkline(self) -> bool {
        !matches!(
            self,
            Self::Trunkline(RefusalCode::Version) | Self::Ib(_) | Self::NoSense(_)
        )
    }
}

/// Why a connection, or the attempt at one, has ended.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum CloseReason {
    /// This node closed, rejected or released it.
    Local,
    /// The peer closed it.
    Peer,
    /// The peer gave it up or does not know it any more.
    Abandoned(Refused),
    /// The peer asked and did not confirm.
    Unconfirmed,
    /// Nobody decided in time whether to accept it.
    Undecided,
    /// The peer is another incarnation of itself.
    PeerRestarted,
    /// The peer opened its place in the pool anew: it had lost this one.
    Replaced,
}

/// What happened.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// A peer asks for a connection: [`accept`](crate::NodeCm::accept) or
    /// [`reject`](crate::NodeCm::reject) it.
    Incoming {
        /// The handshake.
        id: HandshakeId,
        /// Where the peer is.
        route: Route,
        /// Number of its end.
        remote_id: Qpn,
        /// What it says.
        hello: Hello,
    },
    /// A connection stands.
    Established(Established),
    /// The peer refused as every host does that has no such service: plain `rc`.
    NotTrunkline {
        /// The handshake.
        id: HandshakeId,
        /// Where the peer is.
        route: Route,
    },
    /// The peer did not answer at all.
    Silent {
        /// The handshake.
        id: HandshakeId,
        /// Where the peer is.
        route: Route,
    },
    /// The peer's host says that nobody listens there: twice, and not in one moment.
    Nobody {
        /// The handshake.
        id: HandshakeId,
        /// Where the peer would be.
        route: Route,
    },
    /// The peer refused for a reason, or what it said was refused here.
    Refused {
        /// The handshake.
        id: HandshakeId,
        /// Where the peer is.
        route: Route,
        /// Why.
        reason: Refused,
    },
    /// Another incarnation has proved to be behind an address. Its old connections end with
    /// [`CloseReason::PeerRestarted`] behind this event and before the new one is established.
    PeerRestarted {
        /// Where.
        route: Route,
        /// Who it was.
        old: Identity,
        /// Who it is.
        new: Identity,
    },
    /// A connection has ended, or the attempt at one.
    Closed {
        /// The handshake.
        id: HandshakeId,
        /// Where the peer is.
        route: Route,
        /// Why.
        reason: CloseReason,
    },
}

impl Event {
    /// Where the peer is that it concerns.
    pub const fn route(&self) -> Route {
        match self {
            Self::Established(terms) => terms.route,
            Self::Incoming { route, .. }
            | Self::NotTrunkline { route, .. }
            | Self::Silent { route, .. }
            | Self::Nobody { route, .. }
            | Self::Refused { route, .. }
            | Self::PeerRestarted { route, .. }
            | Self::Closed { route, .. } => *route,
        }
    }

    /// The handshake that it ends, if it ends one.
    pub const fn ends(&self) -> Option<HandshakeId> {
        match self {
            Self::NotTrunkline { id, .. }
            | Self::Silent { id, .. }
            | Self::Nobody { id, .. }
            | Self::Refused { id, .. }
            | Self::Closed { id, .. } => Some(*id),
            Self::Incoming { .. } | Self::Established(_) | Self::PeerRestarted { .. } => None,
        }
    }
}

/// Why a peer cannot be asked now.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OpenError {
    /// As much is under way as may be.
    #[error("{what}: {limit} are the most")]
    Busy {
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: u32,
    },
    /// This place in the pool to the peer is taken, or being opened.
    #[error("the connection is there, or being opened, already")]
    Exists(HandshakeId),
    /// The two addresses are of different families.
    #[error("{local} cannot reach {remote}")]
    Families {
        /// This node's.
        local: IpAddr,
        /// The peer's.
        remote: IpAddr,
    },
    /// The offer holds what no peer would take.
    #[error(transparent)]
    Offer(#[from] HelloError),
}

/// The handshake is over, or not where the call needs it to be.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("handshake {:#010x} is over, or not in a state for this", .0.0.0)]
pub struct UnknownHandshake(pub HandshakeId);
