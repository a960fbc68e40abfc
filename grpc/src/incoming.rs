//! Where a server takes its connections from.

use futures_core::Stream as Items;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::{Connected, TcpConnectInfo};
use trunkline::Error;
use trunkline_tokio::stream::{Listener, Stream};

/// Takes connections as they come in at `listener`: for `serve_with_incoming` and
/// `serve_with_incoming_shutdown` of tonic's [`Server`](tonic::transport::Server).
pub const fn incoming(listener: Listener) -> Incoming {
    Incoming {
        listener: Some(listener),
    }
}

/// The connections that come in at a listener, which ends with it.
///
/// A connection is accepted when the server asks for it. Up to 128 wait until then, those that come
/// beyond are refused. One that cannot be accepted, for want of memory, say, is an item with an
/// error; the next may be another connection. When the node has ended, an item says why, and no
/// more come. A server of tonic passes over errors and returns at the end, after its connections
/// where it was given a signal; why the node has ended, its `health()` tells.
#[derive(Debug)]
pub struct Incoming {
    /// `None` when its node has ended.
    listener: Option<Listener>,
}

impl Items for Incoming {
    type Item = Result<Accepted, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(listener) = &mut self.listener else {
            return Poll::Ready(None);
        };
        let next = ready!(Pin::new(listener).poll_next(cx));
        if let Some(Err(Error::Down(_))) = next {
            self.listener = None;
        }
        Poll::Ready(next.map(|accepted| accepted.map(Accepted)))
    }
}

/// A connection that a server has accepted.
///
/// Requests that come on it know their peer as they do over TCP:
/// [`Request::remote_addr`](tonic::Request::remote_addr) is its address on the network of the
/// nodes.
#[derive(Debug)]
pub struct Accepted(Stream);

impl Connected for Accepted {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        TcpConnectInfo {
            local_addr: self.0.local_addr(),
            remote_addr: Some(self.0.peer_addr()),
        }
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, out)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
