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
//! connects within one. The passive side reads what a connection is for in the private data that
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

use super::{
    CmEvent, CmEventKind, CmId, Data, EventChannel, Kind, Params, PeerParams, PortSpace,
    ResolveError,
};
use crate::error::Error;
use crate::node::Node;
use crate::verbs::cq::Cq;
use crate::verbs::mr::Pd;
use crate::verbs::qp::{Qp, QpOptions};
use crate::worker::deadline::Deadline;
use std::net::SocketAddr;
use std::time::Duration;
use trunkline_wire::cm::RejReason;

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

/// A connected ID with its QP.
#[derive(Debug)]
pub struct Endpoint {
    channel: EventChannel,
    id: CmId,
    qp: Qp,
    /// The peer's private data.
    data: Data,
}

/// An ID that knows the way to its peer, with a QP that takes receives. Nothing was said to the
/// peer yet.
#[derive(Debug)]
pub struct Connecting {
    channel: EventChannel,
    id: CmId,
    qp: Qp,
}

impl Connecting {
    /// Returns its QP.
    pub const fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Connects within `limit`.
    ///
    /// # Errors
    /// What became of it.
    pub fn connect(self, params: &Params<'_>, limit: Duration) -> Result<Endpoint, ConnectError> {
        self.connect_until(params, Deadline::after(limit))
    }

    fn connect_until(self, params: &Params<'_>, end: Deadline) -> Result<Endpoint, ConnectError> {
        self.id.connect(params)?;
        match wait(&self.channel, end)?.kind {
            CmEventKind::Established { data, .. } => Ok(Endpoint {
                channel: self.channel,
                id: self.id,
                qp: self.qp,
                data,
            }),
            _ => Err(ConnectError::Unreachable),
        }
    }
}

impl Endpoint {
    /// Connects to `peer` within `limit`.
    ///
    /// # Errors
    /// What became of it.
    pub fn connect(
        node: &Node,
        resources: &Resources<'_>,
        peer: SocketAddr,
        params: &Params<'_>,
        limit: Duration,
    ) -> Result<Self, ConnectError> {
        let end = Deadline::after(limit);
        let prepared = Self::prepare(node, resources, peer, limit)?;
        prepared.connect_until(params, end)
    }

    /// Finds the way to `peer` within `limit`, and creates a QP to post receives on before it
    /// connects.
    ///
    /// # Errors
    /// There is no way, or a call was refused.
    pub fn prepare(
        node: &Node,
        resources: &Resources<'_>,
        peer: SocketAddr,
        limit: Duration,
    ) -> Result<Connecting, ConnectError> {
        let end = Deadline::after(limit);
        let channel = node.create_event_channel()?;
        let id = channel.create_id(PortSpace::Tcp, Kind::Rc)?;
        id.resolve_addr(peer, limit)?;
        wait(&channel, end)?;
        id.resolve_route()?;
        wait(&channel, end)?;
        let qp = resources.create_qp(&id)?;
        Ok(Connecting { channel, id, qp })
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

    /// Ends the connection, and waits for the peer to agree.
    ///
    /// # Errors
    /// There is no connection, or the peer is silent.
    pub fn disconnect(&self, limit: Duration) -> Result<(), ConnectError> {
        let end = Deadline::after(limit);
        self.id.disconnect()?;
        self.wait_until(end)
    }

    /// Waits until the connection has ended, at whichever end.
    ///
    /// # Errors
    /// It did not in time, or the node does nothing any more.
    pub fn wait_for_end(&self, limit: Duration) -> Result<(), ConnectError> {
        self.wait_until(Deadline::after(limit))
    }

    fn wait_until(&self, end: Deadline) -> Result<(), ConnectError> {
        while !self.id.was_over() {
            next(&self.channel, end)?;
        }
        Ok(())
    }
}

/// An ID that takes connections.
#[derive(Debug)]
pub struct Listener {
    channel: EventChannel,
    id: CmId,
}

/// A request with a QP that takes receives. Nothing was answered yet; dropping it gives the peer no
/// answer but the end.
#[derive(Debug)]
pub struct Accepting(Endpoint);

impl Accepting {
    /// Returns its QP.
    pub const fn qp(&self) -> &Qp {
        &self.0.qp
    }

    /// Accepts, and waits until the connection stands.
    ///
    /// # Errors
    /// The peer has changed its mind, or does not confirm.
    pub fn accept(self, params: &Params<'_>, limit: Duration) -> Result<Endpoint, ConnectError> {
        let Self(prepared) = self;
        prepared.id.accept(params)?;
        match wait(&prepared.channel, Deadline::after(limit))?.kind {
            CmEventKind::Established { .. } => Ok(prepared),
            _ => Err(ConnectError::Unreachable),
        }
    }
}

/// A peer that wants to connect. Dropping it gives the peer no answer but the end.
#[derive(Debug)]
pub struct Request {
    channel: EventChannel,
    id: CmId,
    /// Where it connects from.
    pub peer: SocketAddr,
    /// What it connects with.
    pub params: PeerParams,
    /// Its private data.
    pub data: Data,
}

impl Listener {
    /// Takes connections to `address`.
    ///
    /// # Errors
    /// The address is in use.
    pub fn bind(node: &Node, address: SocketAddr, backlog: u32) -> Result<Self, Error> {
        let channel = node.create_event_channel()?;
        let id = channel.create_id(PortSpace::Tcp, Kind::Rc)?;
        id.bind(address)?;
        id.listen(backlog)?;
        Ok(Self { channel, id })
    }

    /// Its address and port.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }

    /// The next request, waited for until `limit` (`rdma_get_request(3)`).
    ///
    /// # Errors
    /// None came, the node does nothing any more, or the operating system has no descriptor left.
    pub fn get_request(&self, node: &Node, limit: Duration) -> Result<Request, ConnectError> {
        let end = Deadline::after(limit);
        loop {
            let event = next(&self.channel, end)?;
            if let CmEventKind::ConnectRequest {
                peer, params, data, ..
            } = event.kind
            {
                // Events of this connection are nothing to the listener.
                let channel = node.create_event_channel()?;
                event.id.migrate(&channel)?;
                return Ok(Request {
                    channel,
                    id: event.id,
                    peer,
                    params,
                    data,
                });
            }
        }
    }
}

impl Request {
    /// Accepts, and waits until the connection stands.
    ///
    /// # Errors
    /// The peer has changed its mind, or does not confirm.
    pub fn accept(
        self,
        resources: &Resources<'_>,
        params: &Params<'_>,
        limit: Duration,
    ) -> Result<Endpoint, ConnectError> {
        self.prepare(resources)?.accept(params, limit)
    }

    /// Gives it a QP, to post receives on before it is accepted.
    ///
    /// # Errors
    /// As [`Pd::create_qp`].
    pub fn prepare(self, resources: &Resources<'_>) -> Result<Accepting, Error> {
        let qp = resources.create_qp(&self.id)?;
        Ok(Accepting(Endpoint {
            channel: self.channel,
            id: self.id,
            qp,
            data: self.data,
        }))
    }

    /// Refuses it.
    ///
    /// # Errors
    /// Too much private data, or the peer has changed its mind.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.id.reject(private_data)
    }
}

/// The next event.
fn next(channel: &EventChannel, end: Deadline) -> Result<CmEvent, ConnectError> {
    match channel.get_event(end.rest()) {
        Some(event) => Ok(event),
        None => {
            channel.check()?;
            Err(ConnectError::Timeout)
        }
    }
}

/// The next event, if it is no bad one.
fn wait(channel: &EventChannel, end: Deadline) -> Result<CmEvent, ConnectError> {
    let CmEvent { id, kind } = next(channel, end)?;
    let kind = kind.into_result()?;
    Ok(CmEvent { id, kind })
}

#[cfg(test)]
mod tests;
