//! RDMA-CM call by call: each waits for its event (`rdma_create_ep(3)`, and IDs without a channel).
//! The node has to be driven by its own thread or another one.
//!
//! A peer may send as soon as the connection stands. What it sends first needs a receive that was
//! posted before: on the QP of a [`Connecting`] or an [`Accepting`], which have one and no
//! connection yet. [`Endpoint::connect`] and [`Request::accept`] are for programs that do without.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use trunkline::{Node, RecvWr, rdma_cm::{Params, sync::{Endpoint, Resources}}};
//! # fn connect(node: &Node, resources: &Resources<'_>, request: &RecvWr<'_>)
//! # -> Result<Endpoint, Box<dyn std::error::Error>> {
//! let limit = Duration::from_secs(5);
//! let connecting = Endpoint::prepare(node, resources, "192.0.2.7:7471".parse()?, limit)?;
//! connecting.qp().post_recv(&[*request])?;
//! Ok(connecting.connect(&Params::default(), limit)?)
//! # }
//! ```
//!
//! A limit bounds the whole call, whatever happens in it: [`Endpoint::connect`] finds the way and
//! connects within one. Calls that share one take a [`Deadline`] instead of a duration each: what
//! the first leaves of it is what the next has.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use trunkline::{Node, rdma_cm::{Params, sync::{Deadline, Endpoint, Resources}}};
//! # fn connect(node: &Node, resources: &Resources<'_>)
//! # -> Result<Endpoint, Box<dyn std::error::Error>> {
//! let end = Deadline::after(Duration::from_secs(5));
//! let connecting = Endpoint::prepare(node, resources, "192.0.2.7:7471".parse()?, end)?;
//! Ok(connecting.connect(&Params::default(), end)?)
//! # }
//! ```
//!
//! Each ID has an event channel of its own, with a descriptor, or shares one with others if it is
//! given one instead of the node ([`Events`]). What happens to an ID before its connection stands,
//! and requests to a [`Listener`], are told to calls alone: each takes its own. How connections end
//! comes out of [`EventChannel::get_event`], unless a call waits for the end of that very one.
//!
//! ```no_run
//! # use std::{net::SocketAddr, time::Duration};
//! # use trunkline::{Node, rdma_cm::{CmEventKind, Params, sync::{Endpoint, Resources}}};
//! # fn connect(node: &Node, resources: &Resources<'_>, peers: &[SocketAddr])
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let (limit, params) = (Duration::from_secs(5), Params::default());
//! let channel = node.create_event_channel()?;
//! let connect = |peer: &SocketAddr| Endpoint::connect(&channel, resources, *peer, &params, limit);
//! let mut connected = peers.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
//! while !connected.is_empty() {
//!     let Some(event) = channel.get_event(Duration::MAX) else {
//!         break; // the node does nothing any more
//!     };
//!     if let CmEventKind::Disconnected { .. } = event.kind {
//!         connected.retain(|connected| connected.id().number() != event.id.number());
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The passive side reads what a connection is for in the private data that
//! the other side gave ([`Params`]), before it decides:
//!
//! ```no_run
//! # use std::time::Duration;
//! # use trunkline::{Node, RecvWr, rdma_cm::{Params, sync::{Endpoint, Listener, Resources}}};
//! # fn serve(node: &Node, resources: &Resources<'_>, receive: &RecvWr<'_>)
//! # -> Result<Option<Endpoint>, Box<dyn std::error::Error>> {
//! let limit = Duration::from_secs(5);
//! let listener = Listener::bind(node, "192.0.2.7:7471".parse()?, 16)?;
//! let request = listener.get_request(node, limit)?;
//! // The rest of the message is zeros: its length is not told.
//! if !request.data.starts_with(b"log") {
//!     request.reject(b"unknown")?;
//!     return Ok(None);
//! }
//! let accepting = request.prepare(resources)?;
//! accepting.qp().post_recv(&[*receive])?;
//! Ok(Some(accepting.accept(&Params::default(), limit)?))
//! # }
//! ```

use super::channel::Awaited;
use super::{CmEventKind, CmId, Data, EventChannel, Kind, Params, PortSpace, ResolveError};
use crate::error::Error;
use crate::node::Node;
use crate::verbs::cq::Cq;
use crate::verbs::mr::Pd;
use crate::verbs::qp::{Qp, QpOptions};
use std::net::SocketAddr;
use trunkline_wire::cm::RejReason;

pub use crate::worker::deadline::Deadline;
pub use passive::{Accepting, Listener, Request};

/// Why a connection did not come about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A call was refused.
    #[error(transparent)]
    Call(#[from] Error),
    /// There is no way to the address.
    #[error("no hop there: {0}")]
    Address(ResolveError),
    /// The peer rejects: 8 when nobody listens, 28 when its program says so.
    #[error("the peer rejects: {}, reason {}", words(*reason), reason.code())]
    Rejected {
        /// Why.
        reason: RejReason,
        /// Its private data.
        data: Box<Data>,
    },
    /// The peer is silent, or gave up on the way.
    #[error("the peer does not answer")]
    Unreachable,
    /// The peer's host says that nobody listens there: no node runs on it.
    #[error("no node runs there")]
    Nobody,
    /// Time is up.
    #[error("no answer in time")]
    Timeout,
}

/// What most rejections mean to a program.
const fn words(reason: RejReason) -> &'static str {
    match reason {
        RejReason::InvalidServiceId => "nobody listens at that port",
        RejReason::ConsumerDefined => "its program does not want the connection",
        RejReason::Timeout => "it had no answer in time",
        RejReason::NoQp | RejReason::NoEec | RejReason::NoResources => "it has no room",
        RejReason::StaleConnection => "it still has a connection of that QP",
        _ => "it does not agree to the terms",
    }
}

/// Where completions of an end go, and what its QP is made with.
#[derive(Clone, Copy, Debug)]
pub struct Resources<'a> {
    /// The domain.
    pub pd: &'a Pd,
    /// CQ of sends.
    pub send_cq: &'a Cq,
    /// CQ of receives.
    pub recv_cq: &'a Cq,
    /// The QP.
    pub options: &'a QpOptions,
}

impl Resources<'_> {
    fn create_qp(&self, id: &CmId) -> Result<Qp, Error> {
        id.create_qp(self.pd, self.send_cq, self.recv_cq, self.options)
    }
}

/// Where what happens to an ID comes out, but for what calls wait for. A node or a channel becomes
/// one.
#[derive(Clone, Copy, Debug)]
pub enum Events<'a> {
    /// Out of nothing: the ID has a channel of its own, with a descriptor.
    Own(&'a Node),
    /// Out of this channel, which other IDs may have, too.
    Shared(&'a EventChannel),
}

impl<'a> From<&'a Node> for Events<'a> {
    fn from(node: &'a Node) -> Self {
        Self::Own(node)
    }
}

impl<'a> From<&'a EventChannel> for Events<'a> {
    fn from(channel: &'a EventChannel) -> Self {
        Self::Shared(channel)
    }
}

impl Events<'_> {
    fn channel(self) -> Result<EventChannel, Error> {
        match self {
            Self::Own(node) => node.create_event_channel(),
            Self::Shared(channel) => Ok(channel.clone()),
        }
    }
}

/// A connected ID with its QP.
#[derive(Debug)]
pub struct Endpoint {
    id: CmId,
    qp: Qp,
    /// The peer's private data.
    data: Data,
}

/// An ID that knows the way to its peer, with a QP that takes receives. Nothing was said to the
/// peer yet.
#[derive(Debug)]
pub struct Connecting {
    awaited: Awaited,
    qp: Qp,
}

impl Connecting {
    /// Returns its QP.
    pub const fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Connects within `limit`, which may be what is left of that of [`Endpoint::prepare`].
    ///
    /// # Errors
    /// What became of it.
    pub fn connect(
        self,
        params: &Params<'_>,
        limit: impl Into<Deadline>,
    ) -> Result<Endpoint, ConnectError> {
        let Self { awaited, qp } = self;
        let id = awaited.id().clone();
        id.connect(params)?;
        match next_good(&awaited, limit.into())? {
            CmEventKind::Established { data, .. } => Ok(Endpoint { id, qp, data }),
            _ => Err(ConnectError::Unreachable),
        }
    }
}

impl Endpoint {
    /// Connects to `peer` within `limit`. The node or a channel is where its events come out.
    ///
    /// # Errors
    /// What became of it.
    pub fn connect<'a>(
        events: impl Into<Events<'a>>,
        resources: &Resources<'_>,
        peer: SocketAddr,
        params: &Params<'_>,
        limit: impl Into<Deadline>,
    ) -> Result<Self, ConnectError> {
        let end = limit.into();
        let prepared = Self::prepare(events, resources, peer, end)?;
        prepared.connect(params, end)
    }

    /// Finds the way to `peer` within `limit`, and creates a QP to post receives on before it
    /// connects.
    ///
    /// # Errors
    /// There is no way, or a call was refused.
    pub fn prepare<'a>(
        events: impl Into<Events<'a>>,
        resources: &Resources<'_>,
        peer: SocketAddr,
        limit: impl Into<Deadline>,
    ) -> Result<Connecting, ConnectError> {
        let end = limit.into();
        let channel = events.into().channel()?;
        let id = channel.create_id(PortSpace::Tcp, Kind::Rc)?;
        let awaited = Awaited::new(&id);
        id.resolve_addr(peer, end.rest())?;
        next_good(&awaited, end)?;
        id.resolve_route()?;
        next_good(&awaited, end)?;
        let qp = resources.create_qp(&id)?;
        Ok(Connecting { awaited, qp })
    }

    /// Its ID.
    pub const fn id(&self) -> &CmId {
        &self.id
    }

    /// Its QP.
    pub const fn qp(&self) -> &Qp {
        &self.qp
    }

    /// What the peer said when it connected or accepted.
    pub const fn data(&self) -> &Data {
        &self.data
    }

    /// Ends the connection, and waits for the peer to agree. Where the ID shares a channel, its end
    /// is told to this call and does not come out of there.
    ///
    /// # Errors
    /// There is no connection, or the peer is silent.
    pub fn disconnect(&self, limit: impl Into<Deadline>) -> Result<(), ConnectError> {
        let awaited = Awaited::new(&self.id);
        self.id.disconnect()?;
        self.until_over(&awaited, limit.into())
    }

    /// Waits until the connection has ended, at whichever end. Where the ID shares a channel, its
    /// end is told to this call, or was told there before.
    ///
    /// # Errors
    /// It did not in time, or the node does nothing any more.
    pub fn wait_for_end(&self, limit: impl Into<Deadline>) -> Result<(), ConnectError> {
        self.until_over(&Awaited::new(&self.id), limit.into())
    }

    fn until_over(&self, awaited: &Awaited, end: Deadline) -> Result<(), ConnectError> {
        while !self.id.was_over() {
            match awaited.next(end) {
                Err(_) if self.id.was_over() => {}
                other => drop(other?),
            }
        }
        Ok(())
    }
}

/// What happens next, if it is nothing bad.
fn next_good(awaited: &Awaited, end: Deadline) -> Result<CmEventKind, ConnectError> {
    awaited.next(end)?.kind.into_result()
}

mod passive;
#[cfg(test)]
mod tests;
