//! Where streams come in.

use super::frame::Hello;
use super::{OWN, Parts, Stream, link, params};
use crate::node::Node;
use crate::rdma_cm::{self, Request};
use std::net::SocketAddr;
use trunkline::Error;

/// Requests that nobody has taken yet, at most.
const BACKLOG: u32 = 128;

/// An address where streams come in.
#[derive(Debug)]
pub struct Listener(rdma_cm::Listener);

impl Listener {
    /// Takes streams at `address`: that of the node and a port, a free one for port 0.
    ///
    /// # Errors
    /// The address is in use, or not the node's.
    pub fn bind(node: &Node, address: SocketAddr) -> Result<Self, Error> {
        rdma_cm::Listener::bind(node, address, BACKLOG).map(Self)
    }

    /// Returns its address and port.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.local_addr()
    }

    /// Waits for the next stream. Who asks for a connection and speaks of no stream is refused. The
    /// peer may not have confirmed its connection yet, so that none can keep others waiting: where
    /// it never does, the stream fails.
    ///
    /// A future that is dropped takes no stream with it.
    ///
    /// # Errors
    /// The node has ended, or has no room for one more.
    pub async fn accept(&self) -> Result<Stream, Error> {
        loop {
            let request = self.0.next().await?;
            match self.answer(request) {
                Ok(Some(stream)) => return Ok(stream),
                // It spoke of something else, or has changed its mind.
                Ok(None) | Err(Error::Cm(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn answer(&self, request: Request) -> Result<Option<Stream>, Error> {
        let Some(hello) = Hello::parse(&request.data) else {
            request.reject(&[])?;
            return Ok(None);
        };
        let parts = Parts::new(self.0.node())?;
        let accepting = request.prepare(&parts.resources())?;
        link::post_receives(accepting.qp(), &parts.mr)?;
        let connection = accepting.accept(&params(&OWN.emit()))?;
        Ok(Some(parts.finish(connection, hello)))
    }
}
