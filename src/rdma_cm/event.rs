//! Events, as a program gets them.

use super::id::CmId;
use super::resolve::ResolveError;
use super::sync::ConnectError;
use std::net::SocketAddr;
use trunkline_cm::ib::CloseReason;
use trunkline_cm::rdma::{Data, Event, Id, PeerParams, UdPeer};
use trunkline_wire::cm::{RejReason, SidrStatus};

/// What waits in a channel.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "most of what waits is the large one"
)]
pub(crate) enum ChannelEvent {
    Cm(Event),
    /// An address was looked up.
    Address(Id, SocketAddr, Result<(), ResolveError>),
    /// A route was.
    Route(Id, Result<(), ResolveError>),
}

impl ChannelEvent {
    /// Of a request: its listener, and its own ID.
    pub(crate) const fn request(&self) -> Option<(Id, Id)> {
        match self {
            Self::Cm(Event::ConnectRequest { listener, id, .. }) => Some((*listener, *id)),
            _ => None,
        }
    }

    /// Whether it is said of `id`, or of a request to it.
    pub(crate) fn concerns(&self, id: Id) -> bool {
        if let Some((listener, new)) = self.request() {
            return listener == id || new == id;
        }
        match self {
            Self::Cm(event) => event.id() == id,
            Self::Address(of, ..) | Self::Route(of, _) => *of == id,
        }
    }
}

/// Something that happened to an ID (rdma_get_cm_event(3)).
#[derive(Debug)]
pub struct CmEvent {
    /// The ID: of a request the new one.
    pub id: CmId,
    /// What happened.
    pub kind: CmEventKind,
}

/// What happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum CmEventKind {
    /// There is a way to the peer's address.
    AddressResolved,
    /// There is none.
    AddressError(ResolveError),
    /// The route is known, too: connect.
    RouteResolved,
    /// It is not, or not any more.
    RouteError(ResolveError),
    /// A peer connects to a listener: accept or reject the new ID.
    ConnectRequest {
        /// The listener.
        listener: CmId,
        /// Where the peer connects from.
        peer: SocketAddr,
        /// What it connects with; without meaning for datagrams.
        params: PeerParams,
        /// Its private data.
        data: Data,
    },
    /// The peer has accepted an ID that has no QP of its own: make the QP ready, then accept too.
    ConnectResponse {
        /// What the peer accepts with.
        params: PeerParams,
        /// Its private data.
        data: Data,
    },
    /// The connection came to nothing at this end.
    ConnectError,
    /// The peer is silent, or has no QP for datagrams.
    Unreachable {
        /// What it says; `None` when it is silent.
        status: Option<SidrStatus>,
    },
    /// The peer's host says that nobody listens at its RoCE port: no node runs there.
    Nobody,
    /// The peer rejects.
    Rejected {
        /// Why; 8 when nobody listens, 28 when its program says so.
        reason: RejReason,
        /// Its private data.
        data: Data,
    },
    /// The connection stands.
    Established {
        /// Where datagrams go to; datagrams only.
        ud: Option<UdPeer>,
        /// The peer's private data.
        data: Data,
    },
    /// The connection has ended.
    Disconnected {
        /// Why.
        reason: CloseReason,
    },
    /// The QP of a connection that has ended may be used again.
    TimewaitExit,
}

impl CmEventKind {
    /// Returns it, unless it says that a connection did not come about or is over.
    ///
    /// # Errors
    /// What became of the connection.
    pub fn into_result(self) -> Result<Self, ConnectError> {
        match self {
            Self::AddressError(error) | Self::RouteError(error) => {
                Err(ConnectError::Address(error))
            }
            Self::Rejected { reason, data } => Err(ConnectError::Rejected {
                reason,
                data: Box::new(data),
            }),
            Self::Nobody => Err(ConnectError::Nobody),
            Self::Unreachable { .. } | Self::ConnectError | Self::Disconnected { .. } => {
                Err(ConnectError::Unreachable)
            }
            good => Ok(good),
        }
    }
}
