//! Where streams come in.

use super::frame::Hello;
use super::{OWN, Parts, Stream, link, params};
use crate::node::Node;
use crate::rdma_cm::{self, Request};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
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
            if let Some(answered) = self.answer(request) {
                return answered;
            }
        }
    }

    /// The stream that a request has become; `None`: it spoke of something else, or has changed its
    /// mind.
    fn answer(&self, request: Request) -> Option<Result<Stream, Error>> {
        let Some(hello) = Hello::parse(&request.data) else {
            // Who has changed its mind needs no refusal.
            let _ = request.reject(&[]);
            return None;
        };
        match self.let_in(request, hello) {
            Err(Error::Cm(_)) => None,
            answered => Some(answered),
        }
    }

    fn let_in(&self, request: Request, hello: Hello) -> Result<Stream, Error> {
        let parts = Parts::new(self.0.node())?;
        let accepting = request.prepare(&parts.resources())?;
        link::post_receives(accepting.qp(), &parts.mr)?;
        let connection = accepting.accept(&params(&OWN.emit()))?;
        Ok(parts.finish(connection, hello))
    }
}

/// The streams that come in, each as [`accept`](Listener::accept) gives it. It has no end: once the
/// node has ended, each item says so.
impl futures_core::Stream for Listener {
    type Item = Result<Stream, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let next = ready!(Pin::new(&mut self.0).poll_next(cx));
            let answered = match next {
                Some(Ok(request)) => self.answer(request),
                Some(Err(error)) => Some(Err(error)),
                None => return Poll::Ready(None),
            };
            if let Some(answered) = answered {
                return Poll::Ready(Some(answered));
            }
        }
    }
}
