//! What is known of an ID.

use super::Id;
use super::event::{Error, Kind, PortSpace, QpAttributes};
use super::phase::IdPhase;
use crate::event::Route;
use crate::ib;
use core::net::SocketAddr;
use trunkline_wire::Psn;

/// What an end has offered to a peer and waits to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offered {
    pub(super) conn: ib::CmId,
    pub(super) route: Route,
    /// PSN that this end expects first.
    pub(super) starting_psn: Psn,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
}

/// A peer's request that waits for a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) conn: ib::CmId,
    pub(super) listener: Id,
    pub(super) route: Route,
    /// What a connection asks for; a question for datagrams does not.
    pub(super) wanted: Option<Wanted>,
}

/// What of a REQ the answer depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) qp: ib::QpTerms,
    pub(super) retry_count: u8,
    pub(super) path: ib::PathTerms,
}

/// Where an ID stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// Not used yet; bound, if it has an address.
    Idle,
    /// Peers' requests that wait for a decision, and how many may.
    Listening { waiting: u32, backlog: u32 },
    /// The peer is known.
    Resolved { route: Route, port: u16 },
    /// REQ or SIDR_REQ is under way.
    Connecting(Offered),
    /// The peer has accepted.
    Responded { conn: ib::CmId },
    /// A peer's request.
    Requested(Request),
    /// A peer's request was accepted; its confirmation is to come.
    Accepted { conn: ib::CmId },
    /// Up.
    Established { conn: ib::CmId },
    /// Datagrams: the question was answered.
    Answered,
    /// DREQ is under way.
    Disconnecting { conn: ib::CmId },
    /// Over; the QP may be in time wait. Its program was told that a connection that `stood` has
    /// ended, or that it came to nothing.
    Over { conn: ib::CmId, stood: bool },
}

impl State {
    /// How it looks from outside.
    pub(super) const fn phase(&self) -> IdPhase {
        match self {
            Self::Idle => IdPhase::Idle,
            Self::Listening { .. } => IdPhase::Listening,
            Self::Resolved { .. } => IdPhase::Resolved,
            Self::Connecting(_) => IdPhase::Connecting,
            Self::Responded { .. } => IdPhase::Responded,
            Self::Requested(_) => IdPhase::Requested,
            Self::Accepted { .. } => IdPhase::Accepted,
            Self::Established { .. } => IdPhase::Established,
            Self::Answered => IdPhase::Answered,
            Self::Disconnecting { .. } => IdPhase::Disconnecting,
            Self::Over { .. } => IdPhase::Over,
        }
    }

    /// Whether a connection stands, or the peer may take it for standing.
    pub(super) const fn may_stand(&self) -> bool {
        matches!(self, Self::Accepted { .. } | Self::Established { .. })
    }

    /// The connection below.
    pub(super) const fn conn(&self) -> Option<ib::CmId> {
        match self {
            Self::Connecting(Offered { conn, .. })
            | Self::Requested(Request { conn, .. })
            | Self::Responded { conn }
            | Self::Accepted { conn }
            | Self::Established { conn }
            | Self::Disconnecting { conn }
            | Self::Over { conn, .. } => Some(*conn),
            Self::Idle | Self::Listening { .. } | Self::Resolved { .. } | Self::Answered => None,
        }
    }
}

/// What calls take, as their refusals say it.
pub(super) mod wanted {
    pub(in crate::rdma) const IDLE: &str = "an idle one";
    pub(in crate::rdma) const UNBOUND: &str = "an idle one without an address";
    pub(in crate::rdma) const UNASKED: &str = "one that has not asked its peer";
    pub(in crate::rdma) const RESOLVED: &str = "a resolved one";
    pub(in crate::rdma) const UNDECIDED: &str =
        "a peer's request, or one that its peer has responded to";
    pub(in crate::rdma) const CONNECTED: &str = "one that has, or had, a connection";
    pub(in crate::rdma) const UNCONFIRMED: &str = "one that waits for its peer's confirmation";
}

/// An ID.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) space: PortSpace,
    pub(super) kind: Kind,
    /// Its address; of a peer's request the one that the peer connected to.
    pub(super) local: Option<SocketAddr>,
    /// It has a claim on the port: a peer's request has none.
    pub(super) bound: bool,
    pub(super) reuse: bool,
    pub(super) v6_only: bool,
    pub(super) path: ib::PathTerms,
    pub(super) state: State,
    /// Once both ends have spoken.
    pub(super) attributes: Option<QpAttributes>,
}

impl Record {
    /// The refusal of a call that takes an ID in another state.
    pub(super) const fn refusal(&self, id: Id, wanted: &'static str) -> Error {
        let is = match self.state {
            State::Idle if self.bound => "bound",
            State::Resolved { .. } => "resolved, or about to be",
            state => state.phase().name(),
        };
        Error::State { id, is, wanted }
    }

    /// One that was just made.
    pub(super) const fn new(
        space: PortSpace,
        kind: Kind,
        path: ib::PathTerms,
        state: State,
    ) -> Self {
        Self {
            space,
            kind,
            local: None,
            bound: false,
            reuse: false,
            v6_only: false,
            path,
            state,
            attributes: None,
        }
    }
}
