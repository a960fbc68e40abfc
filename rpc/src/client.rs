//! A handle to a server.

use crate::calls::Outcome;
use crate::channel::Channel;
use crate::endpoint::Inner;
use crate::error::RpcError;
use crate::exchange::Exchange;
use crate::frame::Extent;
use crate::hello::Hello;
use crate::request::{Part, Request};
use crate::transfers::{Memory, Then, Transfer};
use bytes::Bytes;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::oneshot;
use tower_service::Service;
use trunkline::{Mr, Remote};

/// A handle to a server: one QP. Clones share it, and any number of tasks may call through them.
///
/// The connection ends with the last clone, and with the last call that was begun through one.
#[derive(Clone)]
pub struct Client(Arc<Handle>);

/// What clones of a client share.
pub(crate) struct Handle {
    pub(crate) channel: Arc<Channel>,
    /// What the server takes, and the longest message to it.
    pub(crate) takes: Hello,
    pub(crate) most: usize,
    _endpoint: Arc<Inner>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.channel.close(RpcError::Closed);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("peer", &self.0.channel.peer)
            .finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(channel: Arc<Channel>, takes: Hello, endpoint: Arc<Inner>) -> Self {
        let most = takes.bytes.min(channel.lane.options.message_bytes) as usize;
        Self(Arc::new(Handle {
            channel,
            takes,
            most,
            _endpoint: endpoint,
        }))
    }

    /// Sends a request, and returns its response. The request is sent when the future is polled
    /// first, and cancelled where it is dropped before its end.
    ///
    /// It waits for a turn where the server has as many requests of this connection as it takes at
    /// a time.
    pub fn call(&self, request: impl Into<Request>) -> Call {
        Call(Exchange::new(&self.0, request.into(), None))
    }

    /// The same where the response is written to `length` bytes of a region that is registered with
    /// [`Endpoint::register`](crate::Endpoint::register), without a copy at this end. Returns how
    /// long it is. The bytes are the server's until then, and, where the caller stops waiting,
    /// until the connection ends.
    ///
    /// # Panics
    /// The range is empty, outside the region, or longer than 2 GiB.
    pub fn call_into(
        &self,
        request: impl Into<Request>,
        mr: &Arc<Mr>,
        offset: usize,
        length: usize,
    ) -> CallInto {
        let place = Part::of(mr, offset, length);
        let place = place.expect("the place of a response lies within its region");
        CallInto(Exchange::new(&self.0, request.into(), Some(place)))
    }

    /// Reads `length` bytes of the server's memory, which its program has told of, into a region
    /// that is registered with [`Endpoint::register`](crate::Endpoint::register): the server's
    /// program does not see it. Bytes that it writes meanwhile may be read in part.
    ///
    /// Where this future is dropped the bytes may still come.
    ///
    /// # Errors
    /// Why there is no connection any more; so it is where there is no such memory.
    ///
    /// # Panics
    /// The range is empty, outside the region, or longer than 2 GiB.
    pub async fn read(
        &self,
        from: Remote,
        mr: &Arc<Mr>,
        offset: usize,
        length: usize,
    ) -> Result<(), RpcError> {
        let part = Part::of(mr, offset, length);
        let part = part.expect("what is read goes to within its region");
        let (told, read) = oneshot::channel();
        let extent = Extent {
            remote: from,
            length: part.length,
        };
        let channel = &self.0.channel;
        channel.transfer(Transfer {
            memory: Memory::Part(part),
            extent,
            then: Then::Tell(told),
            written: None,
        })?;
        let failed = |_| self.failed().unwrap_or(RpcError::Reset);
        read.await.map_err(failed)
    }

    /// Returns the server's address.
    pub fn peer(&self) -> SocketAddr {
        self.0.channel.peer
    }

    /// Returns why no more requests can be sent, if so it is: what a call would end with.
    pub fn failed(&self) -> Option<RpcError> {
        self.0.channel.state().may_call().err()
    }
}

impl Service<Request> for Client {
    type Response = Bytes;
    type Error = RpcError;
    type Future = Call;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), RpcError>> {
        // The call itself waits for its turn.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Call {
        Self::call(self, request)
    }
}

/// A [request](Client::call) under way.
#[must_use = "nothing is sent before it is polled"]
pub struct Call(Exchange);

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Future for Call {
    type Output = Result<Bytes, RpcError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map_ok(|outcome| match outcome {
            Outcome::Bytes(bytes) => bytes,
            Outcome::Written(_) => unreachable!("the request has no place"),
        })
    }
}

/// A [request whose response is written to a place](Client::call_into) under way.
#[must_use = "nothing is sent before it is polled"]
pub struct CallInto(Exchange);

impl fmt::Debug for CallInto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Future for CallInto {
    type Output = Result<usize, RpcError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx).map(|outcome| match outcome? {
            Outcome::Written(length) => Ok(length as usize),
            Outcome::Bytes(_) => Err(RpcError::Violation("a response is not in its place")),
        })
    }
}
