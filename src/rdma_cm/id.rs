//! IDs: listeners, connections, and what may become either.

use super::channel::{Channel, EventChannel};
use crate::error::Error;
use crate::observe::status::Span;
use crate::verbs::cq::Cq;
use crate::verbs::mr::Pd;
use crate::verbs::qp::{Qp, QpOptions};
use crate::worker::core::{self, Core};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trunkline_cm::Route;
use trunkline_cm::rdma::{Error as CmError, Id, Kind, Params, QpAttributes, Setting};
use trunkline_conn::mem::Access;
use trunkline_conn::time::Instant;
use trunkline_qpmap::{Attributes, QpModify, QpType, VerbsError};
use trunkline_wire::{Gid, Qpn, Worker};

/// An ID (`struct rdma_cm_id`). The last clone gives it up (`rdma_destroy_id(3)`): a listener
/// refuses what waits, a connection ends.
#[derive(Clone)]
pub struct CmId(pub(crate) Arc<IdInner>);

pub(crate) struct IdInner {
    channel: Mutex<Arc<Channel>>,
    pub(crate) id: Id,
    pub(crate) kind: Kind,
    qp: Mutex<Option<Qp>>,
    /// The program has heard that the connection stands, with what the peer said.
    pub(crate) told: AtomicBool,
    /// The program has heard that the connection, or the attempt at one, is over.
    over: AtomicBool,
    peer: Mutex<Option<SocketAddr>>,
    /// Of a request: where it came from, and the QP that asks.
    asking: Option<(IpAddr, Qpn)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmId")
            .field("id", &self.0.id.number())
            .field("kind", &self.0.kind)
            .finish_non_exhaustive()
    }
}

impl CmId {
    pub(crate) fn new(channel: &Arc<Channel>, id: Id, kind: Kind) -> Self {
        Self::with(channel, id, kind, None)
    }

    /// That of a request: where it came from, and the QP that asks.
    pub(crate) fn requested(
        channel: &Arc<Channel>,
        id: Id,
        kind: Kind,
        asking: (IpAddr, Qpn),
    ) -> Self {
        Self::with(channel, id, kind, Some(asking))
    }

    fn with(channel: &Arc<Channel>, id: Id, kind: Kind, asking: Option<(IpAddr, Qpn)>) -> Self {
        let new = Self(Arc::new(IdInner {
            channel: Mutex::new(Arc::clone(channel)),
            id,
            kind,
            qp: Mutex::default(),
            told: AtomicBool::new(false),
            over: AtomicBool::new(false),
            peer: Mutex::default(),
            asking,
        }));
        channel.node.here().ids.enter(&new);
        new
    }

    pub(in crate::rdma_cm) fn channel(&self) -> Arc<Channel> {
        Arc::clone(&lock(&self.0.channel))
    }

    /// Returns a number that no other ID of its node has.
    pub fn number(&self) -> u64 {
        self.0.id.number()
    }

    /// Index of the worker of its node that it belongs to, from 0. Requests to a listener are at
    /// any.
    pub fn worker(&self) -> u8 {
        self.0.id.worker(self.channel().node.workers)
    }

    /// Runs `work` on its worker's manager; what it has to send goes out at once.
    fn manage<T>(
        &self,
        work: impl FnOnce(&mut Core, Instant) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.manage_with(self.worker(), |core, _, now| work(core, now))
    }

    /// The same with another worker's core, if `with` is another.
    fn manage_with<T>(
        &self,
        with: u8,
        work: impl FnOnce(&mut Core, Option<&mut Core>, Instant) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let node = Arc::clone(&self.channel().node);
        node.life.check()?;
        node.on_two((self.worker(), with), work)?
    }

    /// Gives it an address and a port, a free one for port 0 (`rdma_bind_addr(3)`).
    ///
    /// # Errors
    /// The address is in use, or the ID has one. Nobody can connect to it: it is neither the node's
    /// own nor an unspecified one.
    pub fn bind(&self, address: SocketAddr) -> Result<SocketAddr, Error> {
        check_local(self.channel().node.gid.address(), address.ip())?;
        let keeper = match address.port() {
            0 => self.worker(),
            port => self.channel().node.keeper(port),
        };
        self.manage_with(keeper, |core, keeper, _| {
            let manager = &mut core.cm.manager;
            let Some(keeper) = keeper else {
                return Ok(manager.bind(self.0.id, address)?);
            };
            let wish = manager.wish(self.0.id, address)?;
            let got = keeper.cm.manager.grant(&wish)?;
            manager.granted(&wish);
            Ok(got)
        })
    }

    /// Takes connections (`rdma_listen(3)`). An address may have `backlog` requests waiting, and
    /// some of others find room then; those over it are refused. Each worker of the node takes its
    /// share of the requests, and has as much room.
    ///
    /// # Errors
    /// Another ID listens there, or the ID is used otherwise.
    pub fn listen(&self, backlog: u32) -> Result<SocketAddr, Error> {
        let node = Arc::clone(&self.channel().node);
        let id = self.0.id;
        let order = node.in_order();
        // One that has no port gets one that its own worker keeps.
        let bound = node.owner_of_id(id).core()?.cm.manager.local(id);
        let keeper = bound.map_or(self.worker(), |at| node.keeper(at.port()));
        let listener = self.manage_with(keeper, |core, keeper, _| {
            let manager = &mut core.cm.manager;
            let listener = manager.listener(id, backlog)?;
            match keeper {
                Some(keeper) => keeper.cm.manager.claim_listening(&listener)?,
                None => manager.claim_listening(&listener)?,
            }
            manager.listen_too(&listener);
            Ok(listener)
        })?;
        let queue = Arc::clone(&self.channel().queue);
        for (worker, handle) in (0..).zip(node.handles()) {
            if worker != self.worker() {
                let mut core = handle.core()?;
                core.cm.manager.listen_too(&listener);
                core.cm.own(id, &queue);
            }
        }
        drop(order);
        Ok(listener.local)
    }

    /// Finds the way to a peer (`rdma_resolve_addr(3)`): `AddressResolved` or `AddressError` comes,
    /// within `timeout`.
    ///
    /// # Errors
    /// The ID is bound to another address, or used otherwise; it is resolved, or about to be. One
    /// that has heard `AddressError` may try again.
    pub fn resolve_addr(&self, peer: SocketAddr, timeout: Duration) -> Result<(), Error> {
        let local = self.channel().node.gid.address();
        let peer = match peer.ip().to_canonical() {
            address if address == peer.ip() => peer,
            mapped => SocketAddr::new(mapped, peer.port()),
        };
        let route = Route {
            local,
            remote: peer.ip(),
        };
        let id = self.0.id;
        self.manage(|core, now| {
            core.cm.manager.may_resolve(id)?;
            if local.is_ipv4() == peer.is_ipv4() {
                core.cm.manager.resolve(id, route, peer.port())?;
            }
            let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX >> 1);
            let Core { cm, recorder, .. } = core;
            cm.resolve_address(now, id, peer, timeout_ns, recorder);
            Ok(())
        })
    }

    /// The way to the peer was found.
    pub(crate) fn is_resolved(&self, peer: SocketAddr) {
        *lock(&self.0.peer) = Some(peer);
    }

    /// Finds the route to a resolved peer (`rdma_resolve_route(3)`): `RouteResolved` or
    /// `RouteError` comes. Over IP that is the path MTU, which is known already. The peer is asked
    /// meanwhile whether it shares connections.
    ///
    /// # Errors
    /// The address is not resolved.
    pub fn resolve_route(&self) -> Result<(), Error> {
        let peer = self.resolved()?;
        self.manage(|core, now| {
            let begun = std::time::Instant::now();
            core.cm.resolve_route(now, self.0.id, peer);
            let took = begun.elapsed().as_nanos() as u64;
            core.recorder.took(Span::RdmaRoute, took);
            if self.0.kind == Kind::Rc {
                core.learn(now, Gid::from(peer.ip()));
            }
            Ok(())
        })
    }

    fn resolved(&self) -> Result<SocketAddr, Error> {
        if let Some(peer) = self.peer_addr() {
            return Ok(peer);
        }
        self.manage(|core, _| Err(core.cm.manager.unresolved(self.0.id).into()))
    }

    /// Sets something (`rdma_set_option(3)`).
    ///
    /// # Errors
    /// The ID is past the state for it, or the value is out of range.
    pub fn set(&self, setting: Setting) -> Result<(), Error> {
        self.manage(|core, _| Ok(core.cm.manager.set(self.0.id, setting)?))
    }

    /// Gives it a QP of its kind, in INIT; one for datagrams in RTS (`rdma_create_qp(3)`). The kind
    /// is that of [`EventChannel::create_id`], or of the listener: `options.kind` is not looked at.
    ///
    /// # Errors
    /// As [`Pd::create_qp`]; it has a QP, or the domain is another node's.
    pub fn create_qp(
        &self,
        pd: &Pd,
        send_cq: &Cq,
        recv_cq: &Cq,
        options: &QpOptions,
    ) -> Result<Qp, Error> {
        pd.0.node.check_same(&self.channel().node, "PD")?;
        let mut own = lock(&self.0.qp);
        if own.is_some() {
            return Err(CmError::HasQp(self.0.id).into());
        }
        let kind = match self.0.kind {
            Kind::Rc => QpType::Rc,
            Kind::Uc => QpType::Uc,
            Kind::Ud => QpType::Ud,
        };
        let options = QpOptions {
            kind,
            worker: options.worker.or_else(|| Some(self.worker_of_qp())),
            ..options.clone()
        };
        let channel = self.channel();
        channel.release(None);
        let taken = |qp: &Qp| {
            let mut workers = channel.node.workers.iter().map(Worker::index);
            workers.any(|worker| channel.is_taken(worker, qp))
        };
        // A number that a connection had not long ago must not be a new one's.
        let mut waiting = Vec::new();
        let qp = loop {
            let qp = pd.create_qp(send_cq, recv_cq, &options)?;
            if !taken(&qp) {
                break qp;
            }
            waiting.push(qp);
        };
        drop(waiting);
        if qp.worker() != self.worker() {
            let mut core = channel.node.handle(qp.worker()).core()?;
            core.cm.serve_elsewhere(qp.qpn(), self.worker());
        }
        let access = Access::ALL;
        qp.modify(&QpModify::Init { access })?;
        if self.0.kind == Kind::Ud {
            let attributes = Attributes {
                qkey: Params::UDP_QKEY,
                sq_psn: qp.address().psn,
                path_mtu: 4096,
                ..Attributes::default()
            };
            qp.modify(&QpModify::Rtr(attributes))?;
            qp.modify(&QpModify::Rts(attributes))?;
        }
        Ok(own.insert(qp).clone())
    }

    /// The worker for its QP, if the program has no wish: that of the ID, so that one worker does
    /// all there is to do for the connection. But where a known node of several workers asks, the
    /// one that faces the worker of its QP: each pair of workers that talk needs connections.
    fn worker_of_qp(&self) -> u8 {
        let asking = self.0.asking.filter(|_| self.0.kind == Kind::Rc);
        let facing = asking.and_then(|(peer, qpn)| self.channel().node.facing(peer, qpn));
        facing.unwrap_or_else(|| self.worker())
    }

    /// The QP it has.
    pub fn qp(&self) -> Option<Qp> {
        lock(&self.0.qp).clone()
    }

    /// Connects (`rdma_connect(3)`). If it has a QP, that one counts, and becomes ready by itself.
    ///
    /// # Errors
    /// The address is not resolved, there is too much private data, or the QP is taken.
    pub fn connect(&self, params: &Params<'_>) -> Result<(), Error> {
        self.resolved()?;
        let params = self.with_qp(params);
        self.manage(|core, now| Ok(core.cm.manager.connect(now, self.0.id, &params)?))
    }

    /// Agrees to a request; without a QP of its own, also to the peer's response
    /// (`rdma_accept(3)`).
    ///
    /// # Errors
    /// The ID waits for no such decision, there is too much private data, or the QP is taken or
    /// cannot be made ready. Nothing was said to the peer then, and the ID waits on.
    pub fn accept(&self, params: &Params<'_>) -> Result<(), Error> {
        let params = self.with_qp(params);
        let qp = self.qp().filter(|_| self.0.kind != Kind::Ud);
        self.accept_with(qp.as_ref(), &params)
    }

    /// Agrees, with a QP that has to be ready before the answer leaves: the peer may send at once
    /// when it has it.
    fn accept_with(&self, qp: Option<&Qp>, params: &Params<'_>) -> Result<(), Error> {
        let with = qp.map_or(self.worker(), Qp::worker);
        self.manage_with(with, |core, other, now| {
            let Core { cm, engine, .. } = core;
            let engine = other.map_or(engine, |other| &mut other.engine);
            let ready = |agreed: &QpAttributes| match qp {
                Some(qp) => Ok(core::ready(engine, qp, &attributes(agreed))?),
                None => Ok(()),
            };
            cm.manager.accept_with(now, self.0.id, params, ready)
        })
    }

    /// Refuses a request or a response (`rdma_reject(3)`).
    ///
    /// # Errors
    /// The ID waits for no such decision, or there is too much private data.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        self.manage(|core, now| Ok(core.cm.manager.reject(now, self.0.id, private_data)?))
    }

    /// Ends a connection (`rdma_disconnect(3)`): `Disconnected` comes at both ends. Its QP goes to
    /// error.
    ///
    /// # Errors
    /// The ID never had a connection. One that the peer has ended is no error.
    pub fn disconnect(&self) -> Result<(), Error> {
        self.manage(|core, now| Ok(core.cm.manager.disconnect(now, self.0.id)?))?;
        self.fail_qp();
        Ok(())
    }

    /// A packet came in on the QP before the peer's confirmation (`rdma_notify(3)`). The node sees
    /// that by itself, and needs not be told.
    ///
    /// # Errors
    /// The ID does not wait for a confirmation.
    pub fn notify(&self) -> Result<(), Error> {
        self.manage(|core, _| Ok(core.cm.manager.notify(self.0.id)?))
    }

    /// What a QP that is not the ID's own has to be set to (`rdma_init_qp_attr(3)`).
    pub fn qp_attributes(&self) -> Option<QpAttributes> {
        let channel = self.channel();
        let core = channel.node.owner_of_id(self.0.id).core().ok()?;
        core.cm.manager.attributes(self.0.id).copied()
    }

    /// Its events come out of another channel of the same node from now on, those that wait too
    /// (`rdma_migrate_id(3)`).
    ///
    /// # Errors
    /// The channel is another node's.
    pub fn migrate(&self, to: &EventChannel) -> Result<(), Error> {
        if !Arc::ptr_eq(&self.channel().node, &to.0.node) {
            return Err(VerbsError::Unsupported {
                what: "a channel of another node",
            }
            .into());
        }
        // In this order: `listen` looks at the channel while it keeps others from all workers.
        let _order = to.0.node.in_order();
        let mut own = lock(&self.0.channel);
        let home = to.0.node.owner_of_id(self.0.id);
        let mut core = home.core()?;
        core.cm.own(self.0.id, &to.0.queue);
        let claim = core.cm.manager.claim_of(self.0.id);
        drop(core);
        if claim.is_some_and(|claim| claim.listens) {
            for handle in to.0.node.handles() {
                let mut core = handle.core()?;
                if core.cm.knows(self.0.id) {
                    core.cm.own(self.0.id, &to.0.queue);
                }
            }
        }
        *own = Arc::clone(&to.0);
        Ok(())
    }

    /// Its address and port, if it has them (`rdma_get_local_addr(3)`).
    pub fn local_addr(&self) -> Option<SocketAddr> {
        let channel = self.channel();
        let core = channel.node.owner_of_id(self.0.id).core().ok()?;
        core.cm.manager.local(self.0.id)
    }

    /// The resolved peer (`rdma_get_peer_addr(3)`).
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        *lock(&self.0.peer)
    }

    /// The peer has accepted: readies the QP, if the ID has one, and confirms.
    pub(crate) fn respond(&self) -> Response {
        let Some(qp) = self.qp() else {
            return Response::Program;
        };
        match self.accept_with(Some(&qp), &Params::new(qp.qpn())) {
            Ok(()) => Response::Confirmed,
            Err(Error::Cm(CmError::State { .. })) => {
                self.fail_qp();
                Response::Late
            }
            Err(_) => {
                // The peer must not wait for a confirmation. It has changed its mind if this fails.
                let _ = self.reject(&[]);
                self.is_over();
                Response::Failed
            }
        }
    }

    /// The program hears that the connection, or the attempt at one, is over.
    pub(crate) fn is_over(&self) {
        self.0.over.store(true, Ordering::Release);
        self.fail_qp();
    }

    /// Whether the program has heard that.
    pub(crate) fn was_over(&self) -> bool {
        self.0.over.load(Ordering::Acquire)
    }

    /// The connection is over: so is what its QP has under way.
    fn fail_qp(&self) {
        if let Some(qp) = self.qp().filter(|_| self.0.kind != Kind::Ud) {
            // One in RESET has nothing under way; that of a node that is down is in error already.
            let _ = qp.modify(&QpModify::Error);
        }
    }

    fn with_qp<'a>(&self, params: &Params<'a>) -> Params<'a> {
        let own = self.qp();
        Params {
            qpn: own.as_ref().map_or(params.qpn, Qp::qpn),
            srq: own.map_or(params.srq, |qp| qp.srq().is_some()),
            ..*params
        }
    }
}

impl Drop for IdInner {
    fn drop(&mut self) {
        let channel = lock(&self.channel);
        if channel.node.life.is_forked() {
            return;
        }
        channel.node.here().ids.leave(self.id);
        channel.give_up(self.id);
        let Some(qp) = lock(&self.qp).take() else {
            return;
        };
        if let Ok(mut core) = channel.node.handle(qp.worker()).core() {
            core.cm.serve_no_longer(qp.qpn());
        }
        if self.kind == Kind::Ud {
            return;
        }
        // Its number rests, but no packet reaches memory through it any more. Where the program has
        // a handle still it is told what was outstanding.
        let change = match qp.is_last_handle() {
            true => QpModify::Reset,
            false => QpModify::Error,
        };
        let _ = qp.modify(&change);
        let worker = self.id.worker(channel.node.workers);
        channel.release(Some((worker, qp)));
    }
}

/// What became of a peer's agreement.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Response {
    /// It was confirmed: the connection stands.
    Confirmed,
    /// The QP could not be made ready; the peer was told.
    Failed,
    /// The connection has ended meanwhile.
    Late,
    /// The program has to confirm, since the ID has no QP.
    Program,
}

/// Whether peers can connect to `address` of a node at `own`.
fn check_local(own: IpAddr, address: IpAddr) -> Result<(), Error> {
    let local = address.to_canonical();
    let why = if local == own.to_canonical() {
        return Ok(());
    } else if local.is_unspecified() {
        // `::` takes connections over IPv4 too.
        if local.is_ipv6() || own.is_ipv4() {
            return Ok(());
        }
        "the node has an IPv6 address"
    } else if local.is_multicast() {
        "it is a multicast address"
    } else if local == IpAddr::V4(Ipv4Addr::BROADCAST) {
        "it is the broadcast address"
    } else {
        "it is not the address of the node"
    };
    Err(Error::BadAddress { address, why })
}

/// What a QP needs to know of a connection, in the words of verbs.
pub(crate) fn attributes(found: &QpAttributes) -> Attributes {
    Attributes {
        remote: found.route.remote.into(),
        dest_qpn: found.remote_qpn,
        rq_psn: found.receive_psn,
        sq_psn: found.send_psn,
        path_mtu: 128 << found.path.mtu.clamp(1, 5),
        timeout: found.path.ack_timeout,
        retry_count: found.retry_count,
        rnr_retry: found.rnr_retry_count,
        max_rd_atomic: found.initiator_depth,
        max_dest_rd_atomic: found.responder_resources,
        traffic_class: found.path.traffic_class,
        ..Attributes::default()
    }
}
