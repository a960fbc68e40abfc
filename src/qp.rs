//! Queue pairs and shared receive queues.

use crate::connection::Connection;
use crate::cq::Cq;
use crate::error::Error;
use crate::mr::Pd;
use crate::node::Shared;
use crate::platform::Heap;
use std::sync::Arc;
use trunkline_conn::mem::Access;
use trunkline_qpmap::queue::RecvQueue;
use trunkline_qpmap::wqe::{RecvWr, SendWr};
use trunkline_qpmap::{Attributes, QpInit, QpModify, QpQueues, QpState, QpType};
use trunkline_wire::{Gid, Psn, Qpn};

/// What a QP is made with.
#[derive(Clone, Debug)]
pub struct QpOptions {
    /// Its kind.
    pub kind: QpType,
    /// Receives come from here instead of from a queue of its own.
    pub srq: Option<Srq>,
    /// Most send requests outstanding.
    pub max_send_wr: u32,
    /// Most receive requests outstanding.
    pub max_recv_wr: u32,
    /// Most scatter-gather elements of a send request, up to 16.
    pub max_send_sge: u32,
    /// Most scatter-gather elements of a receive request, up to 16.
    pub max_recv_sge: u32,
    /// Most inline bytes, up to 256.
    pub max_inline: u32,
    /// Every send request gets a completion, signalled or not.
    pub signal_all: bool,
}

impl Default for QpOptions {
    fn default() -> Self {
        Self {
            kind: QpType::Rc,
            srq: None,
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 256,
            signal_all: false,
        }
    }
}

/// How a peer finds a QP: what programs exchange out of band.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QpAddress {
    /// The node.
    pub gid: Gid,
    /// The QP there.
    pub qpn: Qpn,
    /// The PSN it sends first.
    pub psn: Psn,
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct Qp(Arc<QpInner>);

#[derive(Debug)]
struct QpInner {
    pd: Pd,
    queues: Arc<QpQueues<Heap>>,
    psn: Psn,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
}

impl Pd {
    /// Creates a QP in the RESET state (`ibv_create_qp(3)`).
    ///
    /// # Errors
    /// Sizes out of range, or too many QPs.
    pub fn create_qp(&self, send_cq: &Cq, recv_cq: &Cq, options: &QpOptions) -> Result<Qp, Error> {
        let init = QpInit {
            pd: self.0.id,
            kind: options.kind,
            send_cq: send_cq.0.index,
            recv_cq: recv_cq.0.index,
            srq: options.srq.as_ref().map(|srq| srq.0.index),
            max_send_wr: options.max_send_wr,
            max_recv_wr: options.max_recv_wr,
            max_send_sge: options.max_send_sge,
            max_recv_sge: options.max_recv_sge,
            max_inline: options.max_inline,
            signal_all: options.signal_all,
        };
        let mut core = self.0.node.core();
        let queues = core.engine.create_qp(&init)?;
        let psn = Psn::from_wire(core.draw() as u32);
        drop(core);
        Ok(Qp(Arc::new(QpInner {
            pd: self.clone(),
            queues,
            psn,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: options.srq.clone(),
        })))
    }

    /// Creates a shared receive queue (`ibv_create_srq(3)`).
    ///
    /// # Errors
    /// Sizes out of range.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq, Error> {
        let (index, queue) = self
            .0
            .node
            .core()
            .engine
            .create_srq(self.0.id, max_wr, max_sge)?;
        Ok(Srq(Arc::new(SrqInner {
            pd: self.clone(),
            index,
            queue,
        })))
    }
}

impl Qp {
    fn node(&self) -> &Arc<Shared> {
        &self.0.pd.0.node
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.0.queues.qpn
    }

    /// CQ of its send requests.
    pub fn send_cq(&self) -> &Cq {
        &self.0.send_cq
    }

    /// CQ of its receives.
    pub fn recv_cq(&self) -> &Cq {
        &self.0.recv_cq
    }

    /// The SRQ it receives from.
    pub fn srq(&self) -> Option<&Srq> {
        self.0.srq.as_ref()
    }

    /// What a peer needs to connect to it.
    pub fn address(&self) -> QpAddress {
        QpAddress {
            gid: self.node().gid,
            qpn: self.qpn(),
            psn: self.0.psn,
        }
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.0.queues.state()
    }

    /// State and attributes (`ibv_query_qp(3)`).
    ///
    /// # Errors
    /// Never for a QP that exists.
    pub fn query(&self) -> Result<(QpState, Attributes), Error> {
        Ok(self.node().core().engine.query_qp(self.qpn())?)
    }

    /// Changes its state (`ibv_modify_qp(3)`).
    ///
    /// # Errors
    /// A step that the state diagram does not have, or attributes out of range.
    pub fn modify(&self, change: &QpModify) -> Result<(), Error> {
        let node = self.node();
        let mut core = node.core();
        let now = core.clock.now();
        core.engine.modify_qp(self.qpn(), change)?;
        core.pump(now);
        drop(core);
        node.wake();
        Ok(())
    }

    /// Connects to a peer: RESET to INIT to RTR to RTS with default attributes. Both ends have to
    /// do it; which goes first does not matter.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn connect(&self, peer: QpAddress) -> Result<(), Error> {
        self.connect_with(peer, Access::ALL, &Attributes::default())
    }

    /// Connects with rights and attributes of choice; `remote`, `dest_qpn` and the PSNs are filled
    /// in.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn connect_with(
        &self,
        peer: QpAddress,
        access: Access,
        attributes: &Attributes,
    ) -> Result<(), Error> {
        let attributes = Attributes {
            remote: peer.gid,
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            sq_psn: self.0.psn,
            ..*attributes
        };
        self.modify(&QpModify::Init { access })?;
        self.modify(&QpModify::Rtr(attributes))?;
        self.modify(&QpModify::Rts(attributes))
    }

    /// Posts send requests (`ibv_post_send(3)`): all of them, in order, or none.
    ///
    /// # Errors
    /// A QP that is not ready to send, a request out of range, a queue without room for all.
    pub fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), Error> {
        let queues = &self.0.queues;
        queues.check_send_state()?;
        let posted = queues.send.post(requests);
        self.node().ring(queues.index);
        Ok(posted?)
    }

    /// Posts receive requests (`ibv_post_recv(3)`): all of them, in order, or none.
    ///
    /// # Errors
    /// A QP in RESET or with an SRQ, a request out of range, a queue without room for all.
    pub fn post_recv(&self, requests: &[RecvWr<'_>]) -> Result<(), Error> {
        let queues = &self.0.queues;
        let queue = queues.check_recv_state()?;
        let posted = queue.post(requests);
        if queues.is_flushing() {
            self.node().ring(queues.index);
        }
        Ok(posted?)
    }

    /// Moves it to another connection to the same peer, at a message boundary; requests in flight
    /// finish where they are.
    ///
    /// # Errors
    /// Not on shared connections, or another peer's connection.
    pub fn bind(&self, connection: &Connection) -> Result<(), Error> {
        let node = self.node();
        // The handle asks the core, too.
        let id = connection.id()?;
        node.core().engine.rebind(self.qpn(), id)?;
        node.wake();
        Ok(())
    }

    /// Lets an app-managed QP address `remote` over `connection`; gives the number to put into
    /// [`SendWr::route`].
    ///
    /// # Errors
    /// A QP of another kind, or a connection that is gone.
    pub fn route(&self, connection: &Connection, remote: Qpn) -> Result<u32, Error> {
        let node = self.node();
        let id = connection.id()?;
        let route = node.core().engine.add_route(self.qpn(), id, remote)?;
        node.wake();
        Ok(route)
    }

    /// Moves one route of an app-managed QP to another connection to the same peer.
    ///
    /// # Errors
    /// No such route, or another peer's connection.
    pub fn bind_route(&self, route: u32, connection: &Connection) -> Result<(), Error> {
        let node = self.node();
        let id = connection.id()?;
        node.core().engine.rebind_route(self.qpn(), route, id)?;
        node.wake();
        Ok(())
    }

    /// All there is to know of its state, as text for people who look for a fault.
    pub fn describe(&self) -> String {
        self.node().core().engine.describe_qp(self.qpn())
    }

    /// Index of the connection it is bound to at the moment, read from the mapping without locks.
    pub fn connection(&self) -> Option<u32> {
        self.node()
            .mapping
            .get(self.0.queues.index)
            .map(|row| row.connection)
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        let node = &self.pd.0.node;
        let destroyed = node.core().engine.destroy_qp(self.queues.qpn);
        debug_assert!(destroyed.is_ok(), "a QP exists as long as its handle");
        node.wake();
    }
}

/// A shared receive queue.
#[derive(Clone, Debug)]
pub struct Srq(Arc<SrqInner>);

#[derive(Debug)]
struct SrqInner {
    pd: Pd,
    index: u32,
    queue: Arc<RecvQueue<Heap>>,
}

impl Srq {
    /// Posts receive requests (`ibv_post_srq_recv(3)`): all of them, in order, or none.
    ///
    /// # Errors
    /// A request out of range, a queue without room for all.
    pub fn post_recv(&self, requests: &[RecvWr<'_>]) -> Result<(), Error> {
        Ok(self.0.queue.post(requests)?)
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let freed = self.pd.0.node.core().engine.destroy_srq(self.index);
        debug_assert!(freed.is_ok(), "QPs keep their SRQ alive");
    }
}
