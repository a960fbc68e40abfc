//! RDMA-CM as futures: connections by IP address and port, with the program's own QPs.
//!
//! What a peer sends first needs a receive that was posted before: on the QP of a [`Connecting`] or
//! an [`Accepting`], which have one and no connection yet. A future that is dropped ends what it
//! was about: the peer hears that the attempt, or the connection, is over.
//!
//! ```
//! use trunkline::rdma_cm::{Params, sync::{ConnectError, Resources}};
//! use trunkline::{QpOptions, RecvWr, SendFlags, SendOp, SendWr};
//! use trunkline_tokio::Node;
//! use trunkline_tokio::rdma_cm::{Connecting, Listener};
//! # use std::time::Duration;
//!
//! async fn server(node: Node) -> Result<(), ConnectError> {
//!     let (pd, cq, options) = (node.alloc_pd(), node.create_cq(8)?, QpOptions::default());
//!     let [send_cq, recv_cq] = [cq.verbs(); 2];
//!     let resources = Resources { pd: &pd, send_cq, recv_cq, options: &options };
//!     let mr = pd.register(16, trunkline::Access::LOCAL_WRITE)?;
//!     let listener = Listener::bind(&node, "127.9.1.2:7471".parse().unwrap(), 16)?;
//!     let request = listener.next().await?;
//!     assert_eq!(&request.data[..2], b"hi");
//!     let accepting = request.prepare(&resources)?;
//!     accepting.qp().post_recv(&[RecvWr { wr_id: 1, sges: &[mr.sge(0, 16)] }])?;
//!     let connection = accepting.accept(&Params::default())?;
//!     assert_eq!(cq.next().await?.byte_len, 5);
//!     connection.ended().await;
//!     Ok(())
//! }
//!
//! async fn client(node: Node) -> Result<(), ConnectError> {
//!     let (pd, cq, options) = (node.alloc_pd(), node.create_cq(8)?, QpOptions::default());
//!     let [send_cq, recv_cq] = [cq.verbs(); 2];
//!     let resources = Resources { pd: &pd, send_cq, recv_cq, options: &options };
//!     let peer = "127.9.1.2:7471".parse().unwrap();
//!     let connecting = Connecting::to(&node, &resources, peer, Duration::from_secs(5)).await?;
//!     let params = Params { private_data: b"hi", ..Params::default() };
//!     let connection = connecting.connect(&params).await?;
//!     let (op, flags, inline) = (SendOp::Send, SendFlags::SIGNALED, Some(&b"hello"[..]));
//!     connection.qp().post_send(&[SendWr { wr_id: 2, op, flags, sges: &[], inline, route: 0 }])?;
//!     cq.next().await?;
//!     connection.disconnect().await?;
//!     Ok(())
//! }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! #     let node = |last| Node::new(trunkline::Node::builder().address([127, 9, 1, last].into()));
//! #     let server = tokio::spawn(server(node(2).unwrap()));
//! #     tokio::task::yield_now().await; // it listens
//! #     client(node(1).unwrap()).await.unwrap();
//! #     server.await.unwrap().unwrap();
//! # });
//! ```

use crate::mailbox::{Id, Incoming};
use crate::node::Node;
use crate::waiters::{Waiter, Waiters};
use futures_core::Stream;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline::rdma_cm::sync::{ConnectError, Resources};
use trunkline::rdma_cm::{CmEventKind, Data, Params, Setting};
use trunkline::{Error, Qp, QpModify};

/// What streams and RPC set of their connections: how long either end waits for a packet of the
/// other, while some are under way to it. 4.096 us times 2 to this, eight times, makes 4.3 s. A
/// peer that is silent is found out after at most twice as long; one that stands still for less is
/// waited for.
pub const ACK_TIMEOUT: Setting = Setting::AckTimeout(17);

/// A way to a peer, with a QP that takes receives. Nothing was said to the peer yet.
#[derive(Debug)]
pub struct Connecting {
    id: Id,
    peer: SocketAddr,
    qp: Qp,
}

impl Connecting {
    /// Finds the way to `peer` within `limit`, and creates a QP.
    ///
    /// # Errors
    /// There is no way, or a call was refused.
    pub async fn to(
        node: &Node,
        resources: &Resources<'_>,
        peer: SocketAddr,
        limit: Duration,
    ) -> Result<Self, ConnectError> {
        let id = Id::new(node)?;
        id.id.resolve_addr(peer, limit)?;
        id.news().await?;
        id.id.resolve_route()?;
        id.news().await?;
        let qp = create_qp(&id, resources)?;
        Ok(Self { id, peer, qp })
    }

    /// Returns its QP.
    pub const fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Sets something of the connection, at both ends of it.
    ///
    /// # Errors
    /// The value is out of range.
    pub fn set(&self, setting: Setting) -> Result<(), Error> {
        self.id.id.set(setting)
    }

    /// Connects. A silent peer is asked some times, for seconds all in all.
    ///
    /// # Errors
    /// What became of it.
    pub async fn connect(self, params: &Params<'_>) -> Result<Connection, ConnectError> {
        self.id.id.connect(params)?;
        loop {
            if let CmEventKind::Established { data, .. } = self.id.news().await? {
                let Self { id, peer, qp } = self;
                return Ok(Connection { id, peer, qp, data });
            }
        }
    }
}

fn create_qp(id: &Id, resources: &Resources<'_>) -> Result<Qp, Error> {
    let Resources {
        pd,
        send_cq,
        recv_cq,
        options,
    } = resources;
    id.id.create_qp(pd, send_cq, recv_cq, options)
}

/// A connection with its QP. Dropping it ends it, and its peer hears so.
#[derive(Debug)]
pub struct Connection {
    id: Id,
    peer: SocketAddr,
    qp: Qp,
    data: Data,
}

impl Connection {
    /// Returns its QP.
    pub const fn qp(&self) -> &Qp {
        &self.qp
    }

    /// Returns what the peer said when it connected or accepted.
    pub const fn data(&self) -> &Data {
        &self.data
    }

    /// Returns the node that it is of.
    pub const fn node(&self) -> &Node {
        &self.id.node
    }

    /// Returns the address and port of this end, unless the node has ended.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.id.local_addr()
    }

    /// Returns the address and port of the peer.
    pub const fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Waits until the peer has confirmed a connection that this end accepted. One that this end
    /// asked for stands from the beginning.
    ///
    /// # Errors
    /// It came to nothing, or the node has ended.
    pub async fn established(&self) -> Result<(), ConnectError> {
        self.id.established().await
    }

    /// Ends it, and waits until the peer has heard so.
    ///
    /// # Errors
    /// The node has ended.
    pub async fn disconnect(&self) -> Result<(), Error> {
        self.id.id.disconnect()?;
        self.ended().await;
        Ok(())
    }

    /// Ends it, and waits for nobody. One that has ended already stays so.
    pub fn end(&self) {
        let _ = self.id.id.disconnect();
        // One that the peer has not confirmed yet is not ended so.
        let _ = self.qp.modify(&QpModify::Error);
    }

    /// Whether it has ended, at whichever end.
    pub fn has_ended(&self) -> bool {
        self.id.has_ended()
    }

    /// Wakes these, too, when it has ended.
    pub(crate) fn tell_end_to(&self, waiters: &Arc<Waiters>) {
        self.id.tell_end_to(waiters);
    }

    /// Waits until it has ended, at whichever end: its QP is in error then.
    pub async fn ended(&self) {
        self.id.ended().await;
    }
}

/// An address where peers connect.
#[derive(Debug)]
pub struct Listener {
    id: Id,
    waiter: Waiter,
}

impl Listener {
    /// Takes connections to `address`, and keeps `backlog` requests at most that nobody has taken.
    ///
    /// # Errors
    /// The address is in use, or not the node's.
    pub fn bind(node: &Node, address: SocketAddr, backlog: u32) -> Result<Self, Error> {
        let id = Id::new(node)?;
        id.id.bind(address)?;
        id.id.listen(backlog)?;
        let waiter = id.waiter();
        Ok(Self { id, waiter })
    }

    /// Returns its address and port.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.id.local_addr()
    }

    /// Returns its node.
    pub const fn node(&self) -> &Node {
        &self.id.node
    }

    /// Waits for the next request. A future that is dropped takes none with it.
    ///
    /// # Errors
    /// The node has ended.
    pub async fn next(&self) -> Result<Request, Error> {
        let mut waiter = self.id.waiter();
        let request = poll_fn(|cx| self.id.poll_request(cx, &mut waiter)).await;
        request.map(Request::from)
    }
}

impl Stream for Listener {
    type Item = Result<Request, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { id, waiter } = &mut *self;
        let request = id.poll_request(cx, waiter);
        request.map(|request| Some(request.map(Request::from)))
    }
}

/// A peer that wants to connect. Dropping it gives the peer no answer but the end.
#[derive(Debug)]
pub struct Request {
    id: Id,
    /// Where it connects from.
    pub peer: SocketAddr,
    /// Its private data.
    pub data: Data,
}

impl From<Incoming> for Request {
    fn from(incoming: Incoming) -> Self {
        let Incoming { id, peer, data } = incoming;
        let data = *data;
        Self { id, peer, data }
    }
}

impl Request {
    /// Gives it a QP, to post receives on before it is accepted.
    ///
    /// # Errors
    /// As [`Pd::create_qp`](trunkline::Pd::create_qp).
    pub fn prepare(self, resources: &Resources<'_>) -> Result<Accepting, Error> {
        let qp = create_qp(&self.id, resources)?;
        let Self { id, peer, data } = self;
        Ok(Accepting(Connection { id, peer, qp, data }))
    }

    /// Refuses it.
    ///
    /// # Errors
    /// Too much private data, or the peer has changed its mind.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.id.id.reject(private_data)
    }
}

/// A request with a QP that takes receives. Nothing was answered yet; dropping it gives the peer no
/// answer but the end.
#[derive(Debug)]
pub struct Accepting(Connection);

impl Accepting {
    /// Returns its QP.
    pub const fn qp(&self) -> &Qp {
        &self.0.qp
    }

    /// Accepts. It waits for nobody: what is posted from now on is done when the peer has
    /// confirmed, or flushed where it does not. [`Connection::established`] waits for that.
    ///
    /// # Errors
    /// The peer has changed its mind, or there is too much private data.
    pub fn accept(self, params: &Params<'_>) -> Result<Connection, Error> {
        self.0.id.id.accept(params)?;
        Ok(self.0)
    }
}
