//! The side that is asked.

use super::{ConnectError, Deadline, Endpoint, Events, Resources, next_good};
use crate::error::Error;
use crate::rdma_cm::channel::Awaited;
use crate::rdma_cm::{CmEventKind, Data, Kind, Params, PeerParams, PortSpace};
use crate::verbs::qp::Qp;
use std::net::SocketAddr;

/// An ID that takes connections.
#[derive(Debug)]
pub struct Listener {
    pub(super) awaited: Awaited,
}

/// A request with a QP that takes receives. Nothing was answered yet; dropping it gives the peer no
/// answer but the end.
#[derive(Debug)]
pub struct Accepting {
    endpoint: Endpoint,
    awaited: Awaited,
}

impl Accepting {
    /// Returns its QP.
    pub const fn qp(&self) -> &Qp {
        &self.endpoint.qp
    }

    /// Accepts, and waits until the connection stands.
    ///
    /// # Errors
    /// The peer has changed its mind, or does not confirm.
    pub fn accept(
        self,
        params: &Params<'_>,
        limit: impl Into<Deadline>,
    ) -> Result<Endpoint, ConnectError> {
        let Self { endpoint, awaited } = self;
        endpoint.id.accept(params)?;
        match next_good(&awaited, limit.into())? {
            CmEventKind::Established { .. } => Ok(endpoint),
            _ => Err(ConnectError::Unreachable),
        }
    }
}

/// A peer that wants to connect. Dropping it gives the peer no answer but the end.
#[derive(Debug)]
pub struct Request {
    awaited: Awaited,
    /// Where it connects from.
    pub peer: SocketAddr,
    /// What it connects with.
    pub params: PeerParams,
    /// Its private data.
    pub data: Data,
}

impl Listener {
    /// Takes connections to `address`. The node or a channel is where its events come out.
    ///
    /// # Errors
    /// The address is in use.
    pub fn bind<'a>(
        events: impl Into<Events<'a>>,
        address: SocketAddr,
        backlog: u32,
    ) -> Result<Self, Error> {
        let channel = events.into().channel()?;
        let id = channel.create_id(PortSpace::Tcp, Kind::Rc)?;
        let awaited = Awaited::new(&id);
        id.bind(address)?;
        id.listen(backlog)?;
        Ok(Self { awaited })
    }

    /// Its address and port.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.awaited.id().local_addr()
    }

    /// The next request, waited for until `limit` (`rdma_get_request(3)`). The node or a channel is
    /// where the events of the connection come out: they are nothing to the listener.
    ///
    /// # Errors
    /// None came, the node does nothing any more, or the operating system has no descriptor left.
    pub fn get_request<'a>(
        &self,
        events: impl Into<Events<'a>>,
        limit: impl Into<Deadline>,
    ) -> Result<Request, ConnectError> {
        let end = limit.into();
        loop {
            let event = self.awaited.next(end)?;
            if let CmEventKind::ConnectRequest {
                peer, params, data, ..
            } = event.kind
            {
                event.id.migrate(&events.into().channel()?)?;
                return Ok(Request {
                    awaited: Awaited::new(&event.id),
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
        limit: impl Into<Deadline>,
    ) -> Result<Endpoint, ConnectError> {
        self.prepare(resources)?.accept(params, limit)
    }

    /// Gives it a QP, to post receives on before it is accepted.
    ///
    /// # Errors
    /// As [`Pd::create_qp`](crate::Pd::create_qp).
    pub fn prepare(self, resources: &Resources<'_>) -> Result<Accepting, Error> {
        let qp = resources.create_qp(self.awaited.id())?;
        let Self { awaited, data, .. } = self;
        let id = awaited.id().clone();
        let endpoint = Endpoint { id, qp, data };
        Ok(Accepting { endpoint, awaited })
    }

    /// Refuses it.
    ///
    /// # Errors
    /// Too much private data, or the peer has changed its mind.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.awaited.id().reject(private_data)
    }
}
