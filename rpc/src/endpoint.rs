//! Where connections come from.

use crate::channel::Channel;
use crate::client::Client;
use crate::counters::Counters;
use crate::error::{OpenError, Refusal, RpcError};
use crate::hello::Hello;
use crate::lane::Lane;
use crate::memory::Regions;
use crate::options::Options;
use crate::request::Request;
use crate::server::Server;
use crate::transfers::TRANSFERS;
use bytes::Bytes;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tower_service::Service;
use trunkline::rdma_cm::Params;
use trunkline::{Access, Error, Mr, Pd};
use trunkline_tokio::Node;
use trunkline_tokio::rdma_cm::{ACK_TIMEOUT, Connecting, Connection};

/// Where the connections of a node to servers and from clients come from, with a completion queue,
/// memory and a task for each worker of the node.
///
/// It ends with its last clone, client and server.
#[derive(Clone)]
pub struct Endpoint(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) node: Node,
    pd: Pd,
    pub(crate) lanes: Vec<Arc<Lane>>,
    next: AtomicUsize,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.lanes.iter().for_each(|lane| lane.close());
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("node", &self.0.node)
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// The lane whose turn it is, if it has room.
    pub(crate) fn lane(&self) -> Option<&Arc<Lane>> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut lanes =
            (0..self.lanes.len()).map(|at| &self.lanes[(first + at) % self.lanes.len()]);
        lanes.find(|lane| lane.has_room())
    }

    /// A connection was refused.
    pub(crate) fn refused(&self) {
        self.lanes[0].counters.connections_refused.add(1);
    }
}

/// What both ends agree on beside their hello: credits see to it that receives are there.
pub(crate) fn params(hello: &[u8]) -> Params<'_> {
    Params {
        private_data: hello,
        responder_resources: TRANSFERS as u8,
        initiator_depth: TRANSFERS as u8,
        ..Params::default()
    }
}

impl Endpoint {
    /// Makes one on a node. Its tasks run on the current runtime.
    ///
    /// # Errors
    /// [`Error::Verbs`]: an option is out of its range; the node has no room, or has ended.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn new(node: &Node, options: Options) -> Result<Self, Error> {
        options.check()?;
        let pd = node.alloc_pd();
        let regions = Regions::new(pd.clone(), options.large_bytes);
        let mut inner = Inner {
            node: node.clone(),
            lanes: Vec::new(),
            pd,
            next: AtomicUsize::new(0),
        };
        for worker in 0..node.workers().count() {
            // Where one cannot start, those before it end with `inner`.
            let lane = Lane::start(node, &inner.pd, worker, options, Arc::clone(&regions))?;
            inner.lanes.push(lane);
        }
        Ok(Self(Arc::new(inner)))
    }

    /// Connects to a server: one QP. A host that is silent is asked for some 25 s: who waits for
    /// less drops the future.
    ///
    /// # Errors
    /// There is no way, the server does not want it or breaks the rules at once, there are too many
    /// connections, or the node has ended.
    pub async fn connect(&self, peer: SocketAddr) -> Result<Client, OpenError> {
        if let Some(down) = self.0.node.health().down {
            return Err(Error::Down(down).into());
        }
        let lane = self.0.lane().ok_or(OpenError::TooMany)?;
        let (seat, limit) = (lane.seat()?, lane.options.resolve);
        let resources = lane.resources(&seat);
        let connecting = Connecting::to(&self.0.node, &resources, peer, limit).await?;
        connecting.set(ACK_TIMEOUT)?;
        let channel = Channel::prepare(lane, (connecting.qp(), seat), peer, None)?;
        let opening = Opening::new(channel);
        let hello = lane.hello(0).emit();
        let connection = connecting.connect(&params(&hello)).await?;
        let takes = Hello::parse(connection.data()).filter(|hello| hello.requests > 0);
        let takes = takes.ok_or(OpenError::NoServer)?;
        let channel = opening.open(connection, takes)?;
        Ok(Client::new(channel, takes, Arc::clone(&self.0)))
    }

    /// Takes connections of clients at `address`: that of the node and a port, a free one for port
    /// 0. Each gets a clone of `service`.
    ///
    /// A task that all connections of a worker share polls the service first: one that answers at
    /// once costs no task of its own, and one that computes for long without waiting holds up the
    /// others. Where it has to wait it goes on in a task of its own, which is dropped when the
    /// client does not wait any more.
    ///
    /// # Errors
    /// The address is in use, or not the node's.
    pub fn listen<S>(&self, address: SocketAddr, service: S) -> Result<Server, Error>
    where
        S: Service<Request> + Clone + Send + 'static,
        S::Response: Into<Bytes>,
        S::Error: Into<Refusal>,
        S::Future: Send + 'static,
    {
        Server::start(self, address, service)
    }

    /// Registers memory of the program, for [`Request::from_region`] and
    /// [`Client::call_into`](crate::Client::call_into). Peers of this endpoint that were told of it
    /// may read and write it as long as it is there.
    ///
    /// # Errors
    /// As [`Pd::register`].
    pub fn register(&self, length: usize) -> Result<Arc<Mr>, Error> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        self.0.pd.register(length, access).map(Arc::new)
    }

    /// Registers memory of the program that peers of this endpoint which were told of it may read
    /// ([`Client::read`](crate::Client::read)), and not write.
    ///
    /// # Errors
    /// As [`Pd::register`].
    pub fn register_readable(&self, length: usize) -> Result<Arc<Mr>, Error> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        self.0.pd.register(length, access).map(Arc::new)
    }

    /// Returns its node.
    pub fn node(&self) -> &Node {
        &self.0.node
    }

    /// Returns what it has counted.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        let lanes = self.0.lanes.iter();
        lanes.for_each(|lane| counters.add(&lane.counters));
        counters
    }
}

/// A channel whose connection does not stand yet. Dropping it ends it.
pub(crate) struct Opening(Option<Arc<Channel>>);

impl Opening {
    pub(crate) const fn new(channel: Arc<Channel>) -> Self {
        Self(Some(channel))
    }

    /// The connection stands, and the peer takes so much.
    ///
    /// # Errors
    /// It has ended: what came first broke the rules, or nobody drives its lane any more.
    pub(crate) fn open(
        mut self,
        connection: Connection,
        takes: Hello,
    ) -> Result<Arc<Channel>, OpenError> {
        let channel = self.0.take().expect("it opens once");
        channel.open(connection, takes);
        let ended = channel.state().failed().cloned();
        ended.map_or(Ok(channel), |why| Err(OpenError::Ended(why)))
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(channel) = &self.0 {
            channel.close(RpcError::Closed);
        }
    }
}
