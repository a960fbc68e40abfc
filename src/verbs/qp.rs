//! Queue pairs.

use crate::attached::{Client, QpObjects, ServedQp, is_offered};
use crate::error::Error;
use crate::node::shared::Shared;
use crate::verbs::connection::Connection;
use crate::verbs::cq::Cq;
use crate::verbs::mr::Pd;
use crate::verbs::srq::Srq;
use crate::worker::core::Core;
use crate::worker::handle::WorkerHandle;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline_conn::mem::{Access, PdId};
use trunkline_conn::work::SendOp;
use trunkline_host::Words;
use trunkline_qpmap::queue::{RecvQueue, Size};
use trunkline_qpmap::wqe::{RecvWr, SendWr};
use trunkline_qpmap::{
    Attributes, PostError, QpInit, QpModify, QpQueues, QpState, QpType, Tenant, VerbsError,
};
use trunkline_wire::{Gid, Psn, Qpn, may_be_one_host};

/// What a QP is made with.
#[derive(Clone, Debug)]
pub struct QpOptions {
    /// Its kind.
    pub kind: QpType,
    /// Receives come from here instead of from a queue of its own.
    pub srq: Option<Srq>,
    /// Most send requests outstanding; 64 by default.
    ///
    /// A request is outstanding until it is done, not until its completion is polled as on most
    /// RNICs: a program that posts until the queue is full, and polls late, has more completions
    /// under way than this. See [`Node::create_cq`](crate::Node::create_cq).
    pub max_send_wr: u32,
    /// Most receive requests outstanding; 64 by default.
    ///
    /// A receive is outstanding until a message takes it; the same holds.
    pub max_recv_wr: u32,
    /// Most scatter-gather elements of a send request, up to 16; 4 by default.
    pub max_send_sge: u32,
    /// Most scatter-gather elements of a receive request, up to 16; 4 by default.
    pub max_recv_sge: u32,
    /// Most inline bytes, up to 256, which is the default.
    pub max_inline: u32,
    /// Every send request gets a completion, signalled or not.
    pub signal_all: bool,
    /// With an SRQ: a completion on the CQ of its receives, with [`LAST_WQE`](crate::LAST_WQE) as
    /// its cookie and the status FLUSHED, tells that the QP has entered ERROR, for whatever reason,
    /// as the event [`LastWqeReached`](crate::QpEvent::LastWqeReached) does beside completions: a
    /// QP without receives of its own has none that would be flushed. It takes no receive any more,
    /// and all that was posted before has completed; what is posted behind is flushed behind.
    pub complete_last_wqe: bool,
    /// The worker of the node that it belongs to, from 0; if not set, the one whose turn it is.
    pub worker: Option<u8>,
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
            complete_last_wqe: false,
            worker: None,
        }
    }
}

impl QpOptions {
    /// What an engine makes the QP with, in a domain and with queues that it calls so.
    pub(crate) const fn init(
        &self,
        pd: PdId,
        [send_cq, recv_cq]: [u32; 2],
        srq: Option<u32>,
        tenant: Tenant,
    ) -> QpInit {
        QpInit {
            pd,
            kind: self.kind,
            send_cq,
            recv_cq,
            srq,
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline: self.max_inline,
            signal_all: self.signal_all,
            complete_last_wqe: self.complete_last_wqe,
            tenant,
        }
    }
}

/// How a peer finds a QP: what programs exchange out of band.
///
/// With the feature `serde` it is `Serialize` and `Deserialize`, as is
/// [`Remote`](crate::Remote): the GID is its IP address, the others are numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct QpAddress {
    /// The node.
    pub gid: Gid,
    /// The QP there.
    pub qpn: Qpn,
    /// The PSN it sends first.
    pub psn: Psn,
}

/// A queue pair. Dropping its last handle destroys it (`ibv_destroy_qp(3)`).
///
/// When it is destroyed or reset its CQs give no completion of it any more, polled by whatever
/// thread, and what it had taken from its SRQ is gone with them. A program that wants all of them
/// puts it in ERROR first ([`QpModify::Error`]) and polls its CQs; with an SRQ, when
/// [`QpEvent::LastWqeReached`](crate::QpEvent::LastWqeReached) has come. Its number is not used
/// again at once.
#[derive(Clone)]
pub struct Qp(Arc<QpInner>);

struct QpInner {
    pd: Pd,
    kind: QpType,
    queues: Arc<QpQueues<Words>>,
    psn: Psn,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    /// What its service has of it, if one carries the node.
    served: Option<ServedQp>,
    /// Its program failed, which is what its peer is to hear.
    abandoned: AtomicBool,
}

/// Brings into the processor's cache what posting to a QP touches: for programs that post to
/// thousands of QPs in turn, none of which is in the cache any more.
///
/// It keeps the memory of the QP's queues, and not the QP: that ends with its last [`Qp`].
#[derive(Clone)]
pub struct LookAhead(Arc<QpQueues<Words>>);

/// Bytes of the handle of a QP, with the counts of who holds it.
pub(crate) const QP_HANDLE_BYTES: u64 = (size_of::<QpInner>() + 2 * size_of::<usize>()) as u64;

impl Pd {
    /// Creates a QP in the RESET state (`ibv_create_qp(3)`).
    ///
    /// # Errors
    /// Sizes out of range, too many QPs, or no such worker; a CQ or SRQ of another node, or in
    /// error.
    pub fn create_qp(&self, send_cq: &Cq, recv_cq: &Cq, options: &QpOptions) -> Result<Qp, Error> {
        self.create_qp_of(Tenant::OWN, send_cq, recv_cq, options)
    }

    /// The same for a tenant of the node.
    ///
    /// # Errors
    /// As [`create_qp`](Self::create_qp).
    pub(crate) fn create_qp_of(
        &self,
        tenant: Tenant,
        send_cq: &Cq,
        recv_cq: &Cq,
        options: &QpOptions,
    ) -> Result<Qp, Error> {
        let node = &self.0.node;
        send_cq.0.node.check_same(node, "CQ")?;
        recv_cq.0.node.check_same(node, "CQ")?;
        if let Some(srq) = &options.srq {
            srq.node().check_same(node, "SRQ")?;
        }
        if let Some(client) = node.client() {
            return self.create_served_qp(client, send_cq, recv_cq, options);
        }
        let cqs = [send_cq, recv_cq].map(|cq| cq.0.id.index());
        let srq = options.srq.as_ref().map(|srq| srq.id().index());
        let init = options.init(self.0.id()?, cqs, srq, tenant);
        let worker = node.chosen(options.worker)?;
        for cq in [send_cq, recv_cq] {
            cq.check()?;
        }
        if let Some(srq) = &options.srq {
            srq.check()?;
        }
        let regions = node.regions()?;
        regions.pd_ref(init.pd)?;
        let made = node.handle(worker).create_qp(&init);
        let (queues, psn) = made.inspect_err(|_| regions.pd_unref(init.pd))?;
        Ok(Qp(Arc::new(QpInner {
            pd: self.clone(),
            kind: options.kind,
            queues,
            psn,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: options.srq.clone(),
            served: None,
            abandoned: AtomicBool::new(false),
        })))
    }

    fn create_served_qp(
        &self,
        client: &Client,
        send_cq: &Cq,
        recv_cq: &Cq,
        options: &QpOptions,
    ) -> Result<Qp, Error> {
        if !is_offered(options.kind) {
            let what = "QPs that manage their connections";
            return Err(Error::NotOffered { what });
        }
        let name = |cq: &Cq| cq.served().expect("a CQ of the same node");
        let objects = QpObjects {
            pd: self.0.served()?,
            send_cq: name(send_cq),
            recv_cq: name(recv_cq),
            srq: options.srq.as_ref().and_then(Srq::served),
        };
        let (served, queues, psn) = client.create_qp(&objects, options)?;
        Ok(Qp(Arc::new(QpInner {
            pd: self.clone(),
            kind: options.kind,
            queues,
            psn,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: options.srq.clone(),
            served: Some(served),
            abandoned: AtomicBool::new(false),
        })))
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("qpn", &format_args!("{}", self.qpn()))
            .field("kind", &self.0.kind)
            .field("state", &self.state())
            .finish()
    }
}

impl LookAhead {
    /// Reads what [`Qp::post_send`] reads and writes first. Called for some ten QPs, one right
    /// after the other, before the first of them is posted to, their loads take together little
    /// longer than those of one.
    #[inline]
    pub fn post_send(&self) {
        std::hint::black_box(self.0.send.look_ahead());
    }
}

impl fmt::Debug for LookAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookAhead")
            .field("qpn", &format_args!("{}", self.0.qpn))
            .finish()
    }
}

impl Qp {
    /// What reads ahead for posting to it.
    pub fn look_ahead(&self) -> LookAhead {
        LookAhead(Arc::clone(&self.0.queues))
    }

    pub(crate) fn node(&self) -> &Arc<Shared> {
        &self.0.pd.0.node
    }

    /// Whether what is posted is flushed.
    #[inline]
    fn is_flushing(&self) -> bool {
        match self.0.served {
            Some(_) => self.0.queues.shows_error(),
            None => self.0.queues.is_flushing(),
        }
    }

    /// The worker that it belongs to.
    fn handle(&self) -> &WorkerHandle {
        self.node().owner(self.qpn())
    }

    /// Index of the worker of its node that it belongs to, from 0.
    pub fn worker(&self) -> u8 {
        self.node().workers.owner(self.qpn().get())
    }

    /// Its program failed: when it is destroyed, with its last handle, its peer hears of an error
    /// and not that it left.
    pub(crate) fn abandon(&self) {
        self.0.abandoned.store(true, Ordering::Relaxed);
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
        let Some((client, served)) = self.service() else {
            return self.0.queues.state();
        };
        // A ring shows it. Where the service is gone there is nothing that it could be but this.
        let shown = self.0.queues.shown_state();
        shown.unwrap_or_else(|| {
            let asked = client.query_qp(served);
            asked.map_or(QpState::Error, |(state, _)| state)
        })
    }

    /// Returns its state, its attributes and what it was made with (`ibv_query_qp(3)`). The sizes
    /// are those that its queues have; those of receives are 0 where they come from an SRQ.
    ///
    /// # Errors
    /// Its node failed, or belongs to another process.
    pub fn query(&self) -> Result<(QpState, Attributes, QpOptions), Error> {
        if let Some((client, served)) = self.service() {
            let (state, attributes) = client.query_qp(served)?;
            return Ok((state, attributes, self.served_options(served)));
        }
        let core = self.handle().core()?;
        let (state, attributes) = core.engine.query_qp(self.qpn())?;
        let init = core.engine.query_qp_init(self.qpn())?;
        let options = QpOptions {
            kind: init.kind,
            srq: self.0.srq.clone(),
            max_send_wr: init.max_send_wr,
            max_recv_wr: init.max_recv_wr,
            max_send_sge: init.max_send_sge,
            max_recv_sge: init.max_recv_sge,
            max_inline: init.max_inline,
            signal_all: init.signal_all,
            complete_last_wqe: init.complete_last_wqe,
            worker: Some(self.worker()),
        };
        Ok((state, attributes, options))
    }

    /// Changes its state (`ibv_modify_qp(3)`).
    ///
    /// # Errors
    /// A step that the state diagram does not have, attributes out of range, or a peer whose
    /// address is not that of one host.
    pub fn modify(&self, change: &QpModify) -> Result<(), Error> {
        self.modify_all(std::slice::from_ref(change))
    }

    /// One change after the other, up to the first that is refused, under one lock.
    fn modify_all(&self, changes: &[QpModify]) -> Result<(), Error> {
        self.node().life.check()?;
        if let Some((client, served)) = self.service() {
            let mut changes = changes.iter();
            return changes.try_for_each(|change| self.modify_served(client, served, change));
        }
        let has_peer = matches!(self.0.kind, QpType::Rc | QpType::Uc);
        let modified = self.handle().act(|core, now| {
            changes.iter().try_for_each(|change| {
                // The engine sees to what an address alone says, in its turn.
                if let QpModify::Rtr(attributes) = change
                    && has_peer
                    && may_be_one_host(attributes.remote.address())
                {
                    core.check_peer(now, attributes.remote)?;
                }
                core.modify_qp(self.qpn(), change)
            })
        })?;
        Ok(modified?)
    }

    fn modify_served(
        &self,
        client: &Client,
        served: &ServedQp,
        change: &QpModify,
    ) -> Result<(), Error> {
        client.modify_qp(served, &self.0.queues, change)?;
        if matches!(change, QpModify::Reset) {
            self.forget_completions();
        }
        Ok(())
    }

    /// Nobody polls what it completed, as it is reset or gone.
    fn forget_completions(&self) {
        for cq in [&self.0.send_cq, &self.0.recv_cq] {
            cq.forget(self.qpn());
        }
    }

    /// The service that carries its node, if one does, and what that has of it.
    #[inline]
    fn service(&self) -> Option<(&Client, &ServedQp)> {
        Some((self.node().client()?, self.0.served.as_ref()?))
    }

    /// What it was made with, as its queues have it.
    fn served_options(&self, served: &ServedQp) -> QpOptions {
        let send = self.0.queues.send.size();
        let receive = self.0.queues.receive.as_ref().map(RecvQueue::size);
        QpOptions {
            kind: self.0.kind,
            srq: self.0.srq.clone(),
            max_send_wr: send.max_wr(),
            max_recv_wr: receive.map_or(0, Size::max_wr),
            max_send_sge: send.max_sge(),
            max_recv_sge: receive.map_or(0, Size::max_sge),
            max_inline: send.max_inline(),
            signal_all: served.signal_all,
            complete_last_wqe: served.complete_last_wqe,
            worker: Some(served.worker),
        }
    }

    /// Its queues, of which a program in another process has the other halves.
    pub(crate) fn queues(&self) -> &Arc<QpQueues<Words>> {
        &self.0.queues
    }

    /// Gives its send queue the memory of its ring, for a program in another process.
    ///
    /// # Errors
    /// The node is down.
    pub(crate) fn begin_send(&self, memory: Words) -> Result<(), Error> {
        // Its state stays the same meanwhile.
        let _core = self.handle().core()?;
        self.0.queues.begin_send(memory);
        Ok(())
    }

    /// The same for its receive queue.
    ///
    /// # Errors
    /// The node is down.
    pub(crate) fn begin_receive(&self, memory: Words) -> Result<(), Error> {
        let _core = self.handle().core()?;
        self.0.queues.begin_receive(memory);
        Ok(())
    }

    /// Connects to a peer: RESET to INIT to RTR to RTS with default attributes. Both ends have to
    /// do it; which goes first does not matter. Receives can be posted from INIT on: a program that
    /// wants some to be there before the first message takes the QP to INIT ([`QpModify::Init`]),
    /// posts them, and connects then.
    ///
    /// As in verbs, whether the peer is there shows in the first request, which ends with
    /// [`Status::RetryExceeded`](crate::Status::RetryExceeded) if not.
    /// [`VendorError`](crate::VendorError) in its completion tells a node without that QP from one
    /// whose QP talks to somebody else, and from silence. Whether there is a way to the address, a
    /// host and a node say [`Node::open_connection`](crate::Node::open_connection)
    /// ([`NoConnection`](crate::NoConnection)) and RDMA-CM, which resolves addresses first.
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
        self.modify_all(&[
            QpModify::Init { access },
            QpModify::Rtr(attributes),
            QpModify::Rts(attributes),
        ])
    }

    /// Makes the rings of its queues now. Those of a program's QP at a service are else made at the
    /// first post, which asks the service for them, and waits while that is stopped: no post does
    /// once they are there. QPs of other nodes ask nobody, and have theirs from the first post on.
    ///
    /// # Errors
    /// The node is down, or the service has no memory left for this program.
    pub fn make_rings(&self) -> Result<(), Error> {
        self.node().life.check()?;
        if let Some((client, served)) = self.service() {
            client.ready_to_send(served, &self.0.queues)?;
            client.ready_to_receive(served, &self.0.queues)?;
        }
        Ok(())
    }

    /// Posts send requests (`ibv_post_send(3)`) in order, up to the first that is refused.
    ///
    /// # Errors
    /// A QP that is not ready to send: none was posted. [`Error::Post`] for a request out of range
    /// or without room in the queue: it says how many were posted before it.
    pub fn post_send(&self, requests: &[SendWr<'_>]) -> Result<(), Error> {
        let (queues, life) = (&self.0.queues, &self.node().life);
        life.check()?;
        queues.check_send_state()?;
        if let Some((client, served)) = self.service() {
            client.ready_to_send(served, queues)?;
        }
        let posted = match self.foreign(requests) {
            None => queues.send.post(requests),
            // As any other bad request: what precedes it is posted.
            Some(posted) => queues.send.post(&requests[..posted]).and(Err(PostError {
                posted,
                error: VerbsError::InvalidArgument {
                    what: "address handle",
                },
            })),
        };
        self.ring();
        Ok(posted?)
    }

    /// Tells its worker that something was posted.
    #[inline]
    fn ring(&self) {
        let index = self.0.queues.index;
        if let Some((client, served)) = self.service() {
            return client.ring_bell(served.worker, index);
        }
        self.handle().ring(index);
        if !self.node().life.is_up() {
            self.handle().flush_late();
        }
    }

    /// The first request with an address handle of another node.
    fn foreign(&self, requests: &[SendWr<'_>]) -> Option<usize> {
        if self.0.kind != QpType::Ud {
            return None;
        }
        let own = self.node().tag;
        let foreign =
            |request: &SendWr<'_>| matches!(request.op, SendOp::SendTo(to) if to.node != own);
        requests.iter().position(foreign)
    }

    /// Posts receive requests (`ibv_post_recv(3)`) in order, up to the first that is refused.
    ///
    /// # Errors
    /// A QP in RESET or with an SRQ: none was posted. [`Error::Post`] for a request out of range or
    /// without room in the queue: it says how many were posted before it.
    pub fn post_recv(&self, requests: &[RecvWr<'_>]) -> Result<(), Error> {
        let (queues, life) = (&self.0.queues, &self.node().life);
        life.check()?;
        let queue = queues.check_recv_state()?;
        if let Some((client, served)) = self.service() {
            client.ready_to_receive(served, queues)?;
        }
        let posted = queue.post(requests);
        if self.is_flushing() {
            self.ring();
        }
        Ok(posted?)
    }

    /// Moves it to another connection to the same peer, at a message boundary; requests in flight
    /// finish where they are. It stays there as long as that connection stands.
    ///
    /// # Errors
    /// Not on shared connections, or another peer's or node's connection.
    pub fn bind(&self, connection: &Connection) -> Result<(), Error> {
        // The handle asks the core, too.
        let id = connection.id_at(self.node(), self.worker())?;
        self.handle().core()?.engine.rebind(self.qpn(), id)?;
        self.handle().wake();
        Ok(())
    }

    /// Lets an app-managed QP address `remote` over `connection`; gives the number to put into
    /// [`SendWr::route`], and that completions carry. It stays the program's until
    /// [`close_route`](Self::close_route).
    ///
    /// A route to `remote` that is there already, opened by either end, is the same one; where it
    /// uses another connection it moves to this one, as by [`bind_route`](Self::bind_route). What
    /// goes wrong on a route (a request that the peer refuses, a peer that ends or is gone, local
    /// memory that is gone) ends that route: the request completes with the error, those behind it
    /// are flushed, and so is what is posted to it later. The QP and its other routes go on. To
    /// talk to that QP again, ask for a route again.
    ///
    /// # Errors
    /// A QP of another kind, not yet in RTR or in error, or a connection that is gone.
    pub fn route(&self, connection: &Connection, remote: Qpn) -> Result<u32, Error> {
        let id = connection.id_at(self.node(), self.worker())?;
        let route = self
            .handle()
            .core()?
            .engine
            .add_route(self.qpn(), id, remote)?;
        self.handle().wake();
        Ok(route)
    }

    /// Ends a route: what is outstanding on it, and all that was posted for it before, is flushed;
    /// the peer is told. The number may be given to another route once that is done.
    ///
    /// # Errors
    /// No such route.
    pub fn close_route(&self, route: u32) -> Result<(), Error> {
        self.node().inside("routes")?;
        let close = |core: &mut Core, _| core.engine.close_route(self.qpn(), route);
        Ok(self.handle().act(close)??)
    }

    /// Moves one route of an app-managed QP to another connection to the same peer.
    ///
    /// # Errors
    /// No such route, or another peer's connection.
    pub fn bind_route(&self, route: u32, connection: &Connection) -> Result<(), Error> {
        let id = connection.id_at(self.node(), self.worker())?;
        self.handle()
            .core()?
            .engine
            .rebind_route(self.qpn(), route, id)?;
        self.handle().wake();
        Ok(())
    }

    /// Whether nobody else has a handle to it.
    pub(crate) fn is_last_handle(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// All there is to know of its state, as text for people who look for a fault.
    pub fn describe(&self) -> String {
        if self.service().is_some() {
            return format!("{self:?}, of a service");
        }
        match self.handle().core() {
            Ok(core) => core.engine.describe_qp(self.qpn()),
            Err(down) => down.to_string(),
        }
    }

    /// Index, among those of its worker, of the connection it is bound to at the moment, read from
    /// the mapping without locks.
    pub fn connection(&self) -> Option<u32> {
        self.node().inside("mapping").ok()?;
        self.handle()
            .mapping
            .get(self.0.queues.index)
            .map(|row| row.connection)
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        if let (Some(client), Some(served)) = (self.pd.0.node.client(), &self.served) {
            client.destroy_qp(served);
            for cq in [&self.send_cq, &self.recv_cq] {
                cq.forget(self.queues.qpn);
            }
            return;
        }
        let handle = self.pd.0.node.owner(self.queues.qpn);
        let Ok(mut core) = handle.core() else { return };
        let abandoned = self.abandoned.load(Ordering::Relaxed);
        let destroyed = core.destroy_qp(self.queues.qpn, abandoned);
        debug_assert!(destroyed.is_ok(), "a QP exists as long as its handle");
        drop(core);
        handle.wake();
    }
}
