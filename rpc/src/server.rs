//! Where clients come in.

use crate::channel::Channel;
use crate::endpoint::{Endpoint, Inner, Opening, params};
use crate::error::{Refusal, RpcError};
use crate::hello::Hello;
use crate::lock;
use crate::request::Request;
use crate::service::Door;
use bytes::Bytes;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::task::AbortHandle;
use tower_service::Service;
use trunkline::Error;
use trunkline_tokio::rdma_cm::{Listener, Request as CmRequest};

/// Connections that nobody has taken yet, at most.
const BACKLOG: u32 = 1024;
/// Pause between two looks at whether clients have all that they are owed.
const DRAIN_PAUSE: Duration = Duration::from_millis(1);

/// A server. Dropping it ends its connections at once: [`shutdown`](Self::shutdown) lets requests
/// end first.
pub struct Server {
    address: Option<SocketAddr>,
    channels: Arc<Channels>,
    accepting: AbortHandle,
    _endpoint: Arc<Inner>,
}

/// Connections of a server.
#[derive(Default)]
struct Channels(Mutex<Known>);

#[derive(Default)]
struct Known {
    channels: Vec<Weak<Channel>>,
    /// No more are taken.
    ended: bool,
}

impl Channels {
    /// Adds one, if there may still be more.
    fn add(&self, channel: &Arc<Channel>) -> bool {
        let mut known = lock(&self.0);
        if known.channels.len() == known.channels.capacity() {
            known.channels.retain(|channel| channel.strong_count() > 0);
        }
        if !known.ended {
            known.channels.push(Arc::downgrade(channel));
        }
        !known.ended
    }

    fn end(&self) -> Vec<Arc<Channel>> {
        let mut known = lock(&self.0);
        known.ended = true;
        known.channels.iter().filter_map(Weak::upgrade).collect()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Server {
    pub(crate) fn start<S>(
        endpoint: &Endpoint,
        address: SocketAddr,
        service: S,
    ) -> Result<Self, Error>
    where
        S: Service<Request> + Clone + Send + 'static,
        S::Response: Into<Bytes>,
        S::Error: Into<Refusal>,
        S::Future: Send + 'static,
    {
        let inner = Arc::clone(&endpoint.0);
        let listener = Listener::bind(&inner.node, address, BACKLOG)?;
        let address = listener.local_addr();
        let channels = Arc::new(Channels::default());
        let (known, of) = (Arc::clone(&channels), Arc::downgrade(&inner));
        let accepting = tokio::spawn(async move {
            let mut service = service;
            while let Ok(request) = listener.next().await {
                let Some(inner) = of.upgrade() else { return };
                let next = service.clone();
                let door = Door::new(std::mem::replace(&mut service, next));
                accept(&inner, request, door, &known);
            }
        });
        Ok(Self {
            address,
            channels,
            accepting: accepting.abort_handle(),
            _endpoint: inner,
        })
    }

    /// Returns its address and port.
    pub const fn local_addr(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Ends it: no more connections and requests are taken, those under way are answered, or
    /// `timeout` is over; then its connections end. Returns whether all were answered.
    ///
    /// Clients hear at once that no more requests are taken, and end further calls with
    /// [`RpcError::Draining`].
    pub async fn shutdown(self, timeout: Duration) -> bool {
        self.accepting.abort();
        let channels = self.channels.end();
        channels.iter().for_each(|channel| channel.drain());
        let idle = async {
            for channel in &channels {
                while !channel.is_idle() {
                    tokio::time::sleep(DRAIN_PAUSE).await;
                }
            }
        };
        let answered = tokio::time::timeout(timeout, idle).await.is_ok();
        let close = |channel: &Arc<Channel>| channel.close(RpcError::Closed);
        channels.iter().for_each(close);
        answered
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
        let channels = self.channels.end();
        let close = |channel: &Arc<Channel>| channel.close(RpcError::Closed);
        channels.iter().for_each(close);
    }
}

/// Takes a connection, if there is room for it and its client speaks of requests.
fn accept(inner: &Inner, request: CmRequest, door: Door, known: &Channels) {
    let hello = Hello::parse(&request.data);
    let (Some(lane), Some(hello)) = (inner.lane(), hello) else {
        inner.refused();
        tracing::debug!(peer = %request.peer, "connection refused");
        // The client may have changed its mind.
        let _ = request.reject(&[]);
        return;
    };
    let peer = request.peer;
    let opened = lane.seat().and_then(|seat| {
        let accepting = request.prepare(&lane.resources(&seat))?;
        let channel = Channel::prepare(lane, (accepting.qp(), seat), peer, Some(door))?;
        let opening = Opening::new(channel);
        let own = lane.hello(lane.options.requests).emit();
        let connection = accepting.accept(&params(&own))?;
        opening.open(connection, hello)
    });
    match opened {
        Ok(channel) if known.add(&channel) => {}
        Ok(channel) => channel.close(RpcError::Closed),
        Err(error) => tracing::debug!(%peer, "connection failed: {error}"),
    }
}
