//! RDMA-CM (IBTA annex A11, rdma_cm(7)): IDs, IP addresses and ports on top of the communication
//! manager of [`ib`].
//!
//! ```text
//!   active                                        passive
//!     create, [bind,] resolve                       create, bind, listen
//!     connect ------------ REQ ------------------->   Event::ConnectRequest (a new ID)
//!     Event::ConnectResponse <--- REP -------------   accept
//!     accept ------------- RTU ------------------->   Event::Established
//!     Event::Established
//!     disconnect --------- DREQ ------------------>   Event::Disconnected
//!     Event::Disconnected <------ DREP ------------
//!     Event::TimewaitExit                             Event::TimewaitExit
//! ```
//!
//! An [`Id`] is what an `rdma_cm_id` is, and each call of [`RdmaCm`] one command of the Linux
//! kernel's RDMA-CM for user space, but for the resolution of addresses, which is I/O: the owner
//! finds the [`Route`] and hands it in. A datagram ID asks by SIDR; its [`Event::Established`]
//! comes with the peer's QP and Q_Key.
//!
//! The manager draws starting PSNs itself. Each says what its sender expects to *receive*:
//! [`QpAttributes`] has them the right way round.

mod convert;
mod deserted;
mod event;
mod handle;
mod id;
mod phase;
mod ports;
#[cfg(test)]
mod tests;
mod workers;

pub use event::{
    Data, Error, Event, Kind, Params, PeerParams, PortSpace, QpAttributes, Setting, UdPeer,
};
pub use phase::{IdPhase, IdStep};
pub use workers::{Claim, Listener, Wish, keeper};

use crate::event::{Outgoing, Route};
use crate::ib;
use crate::phase::Step;
use crate::quote::Quote;
use crate::random::Random;
use crate::retry::Retry;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use convert::{addresses, behind, canonical, fit, service, terms};
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use deserted::Deserted;
use handle::over;
use id::{Offered, Record, State, wanted};
use ports::Ports;
use trunkline_conn::observer::Observer;
use trunkline_conn::time::{Instant, SECOND};
use trunkline_wire::cm::{PrivateData, RejReason, SidrStatus, TransportService};
use trunkline_wire::{MAD_LEN, Path, Psn, Qpn, RdmaCmHeader, Workers};

/// A listener, a connection, or what may become either. Numbers are never used again; their low
/// bits are the worker's.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Id(u64);

impl Id {
    /// The number.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Index of the worker that it belongs to, out of `workers`.
    pub const fn worker(self, workers: Workers) -> u8 {
        workers.owner(self.0 as u32)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a [`RdmaCm`] works.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// The communication manager below.
    pub ib: ib::Config,
    /// Patience of REQs and SIDR_REQs.
    pub connect: Retry,
    /// IDs that may be there, those of peers' requests included.
    pub ids: u32,
    /// What connections ask for where the program sets nothing else.
    pub path: ib::PathTerms,
}

impl Config {
    /// The most that a listener's backlog may be, and what it is when 0 is asked for.
    pub const BACKLOG: u32 = 1_024;

    /// The defaults for a node of this GUID.
    pub fn new(guid: u64) -> Self {
        Self {
            ib: ib::Config::new(guid),
            connect: Retry::PLAIN,
            ids: 65_536,
            path: ib::PathTerms::default(),
        }
    }
}

/// Peers' requests that were refused here, by reason.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Private data does not begin with a header of RDMA-CM.
    pub bad_header: u64,
    /// The addresses in the header are not those that the packet took.
    pub address_mismatch: u64,
    /// Nobody listens on that address, though somebody does on the port.
    pub no_listener: u64,
    /// The listener wants another kind of QP.
    pub wrong_kind: u64,
    /// The listener has as many requests waiting as it may.
    pub backlog: u64,
    /// The address has as many requests waiting at the listener as it may.
    pub unfair: u64,
    /// There are as many IDs as may be.
    pub ids: u64,
    /// Calls of our own program with more private data than the message has room for.
    pub too_long: u64,
}

/// The IDs of one worker of a node.
#[derive(Debug)]
pub struct RdmaCm<R> {
    config: Config,
    ib: ib::IbCm<R>,
    ids: BTreeMap<Id, Record>,
    /// Number of the next ID, without the worker's bits.
    next: u64,
    /// IDs by the number of the connection below.
    conns: BTreeMap<u32, Id>,
    ports: Ports,
    /// Requests that wait for a decision, by listener and the peer's address.
    waiting: BTreeMap<(Id, IpAddr), u32>,
    deserted: Deserted,
    events: VecDeque<Event>,
    counters: Counters,
    observer: Observer<IdStep>,
}

impl<R: Random> RdmaCm<R> {
    /// A manager without IDs.
    ///
    /// # Panics
    /// `config.ib.limits.connections` is over 2^20.
    pub fn new(config: Config, random: R) -> Self {
        Self {
            ib: ib::IbCm::new(config.ib, random),
            ids: BTreeMap::new(),
            next: 0,
            conns: BTreeMap::new(),
            ports: Ports::new(config.ib.worker),
            waiting: BTreeMap::new(),
            deserted: Deserted::default(),
            events: VecDeque::new(),
            counters: Counters::default(),
            observer: Observer::none(),
            config,
        }
    }

    /// What it was told.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The communication manager below: its load and its counters.
    pub const fn ib(&self) -> &ib::IbCm<R> {
        &self.ib
    }

    /// Bytes of its IDs and ports, of what waits to be told, and of what is below. Free room, and
    /// what maps need beside their entries, is not counted.
    pub fn state_bytes(&self) -> usize {
        self.ib.state_bytes()
            + self.ids.len() * size_of::<(Id, Record)>()
            + self.conns.len() * size_of::<(u32, Id)>()
            + self.ports.state_bytes()
            + self.waiting.len() * size_of::<((Id, IpAddr), u32)>()
            + self.deserted.state_bytes()
            + self.events.len() * size_of::<Event>()
    }

    /// What it refused.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// From now on `watch` is told of each change of an ID's state, within the call that brings it
    /// about.
    pub fn observe(&mut self, watch: impl FnMut(&IdStep) + Send + 'static) {
        self.observer.set(watch);
    }

    /// As [`observe`](Self::observe), of the connections and questions below.
    pub fn observe_ib(&mut self, watch: impl FnMut(&Step) + Send + 'static) {
        self.ib.observe(watch);
    }

    /// IDs that are there.
    pub fn ids(&self) -> usize {
        self.ids.len()
    }

    /// Makes an ID (`rdma_create_id(3)`).
    ///
    /// # Errors
    /// There are too many, or the kind of QP does not go with the port space.
    pub fn create(&mut self, space: PortSpace, kind: Kind) -> Result<Id, Error> {
        if !space.takes(kind) {
            return Err(Error::Kind(space, kind));
        }
        if self.is_full() {
            return Err(Error::TooManyIds(self.config.ids));
        }
        Ok(self.insert(space, kind, State::Idle))
    }

    /// Sets something (`rdma_set_option(3)`).
    ///
    /// # Errors
    /// The ID is past the state for it, or the value is out of range.
    pub fn set(&mut self, id: Id, setting: Setting) -> Result<(), Error> {
        let record = self.record(id)?;
        let (bound, unasked) = (record.bound, record.state.conn().is_none());
        let fits = match setting {
            Setting::ReuseAddress(_) | Setting::V6Only(_) => !bound,
            Setting::TypeOfService(_) | Setting::AckTimeout(_) => unasked,
        };
        if !fits {
            let wanted = match bound && unasked {
                true => wanted::UNBOUND,
                false => wanted::UNASKED,
            };
            return Err(record.refusal(id, wanted));
        }
        match setting {
            Setting::TypeOfService(class) => record.path.traffic_class = class,
            Setting::ReuseAddress(reuse) => record.reuse = reuse,
            Setting::V6Only(only) => record.v6_only = only,
            Setting::AckTimeout(exponent) => {
                ib::at_most("ACK timeout", exponent.into(), 31)?;
                record.path.ack_timeout = exponent;
            }
        }
        Ok(())
    }

    /// Gives an ID an address and a port, a free one for port 0 (`rdma_bind_addr(3)`). What it got
    /// comes back. Ports that another worker keeps take [`wish`](Self::wish) and what follows it.
    ///
    /// # Errors
    /// The address is in use, no port is free, or the ID has one.
    pub fn bind(&mut self, id: Id, address: SocketAddr) -> Result<SocketAddr, Error> {
        let record = self.record(id)?;
        if !matches!(record.state, State::Idle) || record.bound {
            return Err(record.refusal(id, wanted::UNBOUND));
        }
        self.claim(id, canonical(address))
    }

    /// Takes connections to the ID's address from now on (`rdma_listen(3)`), one of every address
    /// on a free port if it has none. A peer's address may have `backlog` requests waiting, and 0
    /// stands for [`Config::BACKLOG`], which is also the most. There is room for twice as many in
    /// all, of which no address gets more than what is left for all others: who floods leaves some.
    /// Those over it are refused.
    ///
    /// # Errors
    /// Another ID listens there, no port is free, or the ID is used otherwise.
    pub fn listen(&mut self, id: Id, backlog: u32) -> Result<SocketAddr, Error> {
        let listener = self.listener(id, backlog)?;
        self.claim_listening(&listener)?;
        self.listen_too(&listener);
        Ok(listener.local)
    }

    /// Says where the peer is (`rdma_resolve_addr(3)` and `rdma_resolve_route(3)`, once the owner
    /// has found out): from which address of ours, and its own address and port. An ID without a
    /// port gets one.
    ///
    /// # Errors
    /// The ID is bound to another address, no port is free, the addresses are of two families, or
    /// the ID is resolved or used otherwise.
    pub fn resolve(&mut self, id: Id, route: Route, port: u16) -> Result<SocketAddr, Error> {
        let route = route.canonical();
        if route.local.is_ipv4() != route.remote.is_ipv4() {
            return Err(ib::RequestError::Families(route).into());
        }
        self.may_resolve(id)?;
        let record = self.record(id)?;
        let bound = match record.local {
            Some(bound) => bound,
            None => self.claim(id, SocketAddr::new(route.local, 0))?,
        };
        if bound.ip() != route.local && !bound.ip().is_unspecified() {
            return Err(Error::BoundElsewhere(bound));
        }
        let local = match bound.ip().is_unspecified() {
            true => SocketAddr::new(route.local, bound.port()),
            false => bound,
        };
        let record = self.record(id)?;
        record.local = Some(local);
        self.set_state(id, State::Resolved { route, port });
        Ok(local)
    }

    /// Whether an ID may be resolved.
    ///
    /// # Errors
    /// It is resolved already, or used otherwise.
    pub fn may_resolve(&self, id: Id) -> Result<(), Error> {
        let record = self.ids.get(&id).ok_or(Error::UnknownId(id))?;
        match record.state {
            State::Idle => Ok(()),
            _ => Err(record.refusal(id, wanted::IDLE)),
        }
    }

    /// There is no way to the peer that an ID was [resolved](Self::resolve) to: another one may do.
    pub fn unresolve(&mut self, id: Id) {
        let state = self.ids.get(&id).map(|record| record.state);
        if let Some(State::Resolved { .. }) = state {
            self.set_state(id, State::Idle);
        }
    }

    /// The refusal of a call that takes an ID of which its program has heard that it is resolved.
    pub fn unresolved(&self, id: Id) -> Error {
        let record = self.ids.get(&id);
        record.map_or(Error::UnknownId(id), |record| {
            record.refusal(id, "one whose AddressResolved was fetched")
        })
    }

    /// What its connection asks for, or will.
    pub fn path(&self, id: Id) -> Option<ib::PathTerms> {
        Some(self.ids.get(&id)?.path)
    }

    /// Says what path the connection takes, where it is not to be that of the configuration. Call
    /// it before settings that are part of it.
    ///
    /// # Errors
    /// The ID is past that.
    pub fn set_path(&mut self, id: Id, path: ib::PathTerms) -> Result<(), Error> {
        let record = self.record(id)?;
        if record.state.conn().is_some() {
            return Err(record.refusal(id, wanted::UNASKED));
        }
        record.path = path;
        Ok(())
    }

    /// Connects a resolved ID (`rdma_connect(3)`): [`Event::ConnectResponse`] comes, for datagrams
    /// [`Event::Established`], or one that says why not.
    ///
    /// # Errors
    /// The ID is not resolved, there is too much private data, the QP is taken, or too much is
    /// under way.
    pub fn connect(&mut self, now: Instant, id: Id, params: &Params<'_>) -> Result<(), Error> {
        let random = self.ib.random().next();
        let record = self.record(id)?;
        let State::Resolved { route, port } = record.state else {
            return Err(record.refusal(id, wanted::RESOLVED));
        };
        if params.qpn == Qpn::default() && record.kind != Kind::Ud {
            return Err(Error::NoQp(id));
        }
        let (space, kind, path) = (record.space, record.kind, record.path);
        let local = record.local.expect("a resolved ID has an address");
        let header = RdmaCmHeader {
            src_port: local.port(),
            addresses: addresses(route),
        };
        let service_id = service(space, port);
        let starting_psn = Psn::from_wire(random as u32);
        let retry = self.config.connect;
        let conn = if let Kind::Ud = kind {
            let question = ib::SidrRequest {
                service_id,
                pkey: path.pkey,
                private_data: self.noted(behind(
                    &header,
                    params.private_data,
                    Params::CONNECT_UD,
                ))?,
            };
            self.ib.ask(now, route, &question, retry)?
        } else {
            let terms = ib::RequestTerms {
                service_id,
                service: match kind {
                    Kind::Uc => TransportService::Uc,
                    _ => TransportService::Rc,
                },
                qp: terms(params, starting_psn),
                retry_count: params.retry_count.min(7),
                path,
                private_data: self.noted(behind(&header, params.private_data, Params::CONNECT))?,
            };
            self.ib.connect(now, route, &terms, retry)?
        };
        self.conns.insert(conn.number(), id);
        let offered = Offered {
            conn,
            route,
            starting_psn,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            retry_count: params.retry_count.min(7),
        };
        self.set_state(id, State::Connecting(offered));
        Ok(())
    }

    /// Agrees to a peer's request, or confirms its response (`rdma_accept(3)`): of a response only
    /// the private data counts, and the QP has to be ready to receive.
    ///
    /// # Errors
    /// The ID waits for no such decision, there is too much private data, or the QP is taken.
    pub fn accept(&mut self, now: Instant, id: Id, params: &Params<'_>) -> Result<(), Error> {
        self.accept_with(now, id, params, |_| Ok(()))
    }

    /// As [`accept`](Self::accept), where `ready` readies the QP for what both ends have agreed on,
    /// before the peer hears of it: the peer may send at once then. Datagrams agree on nothing.
    ///
    /// # Errors
    /// As there, and those of `ready`. Nothing was sent then, and the ID waits for a decision
    /// still.
    pub fn accept_with<E: From<Error>>(
        &mut self,
        now: Instant,
        id: Id,
        params: &Params<'_>,
        ready: impl FnOnce(&QpAttributes) -> Result<(), E>,
    ) -> Result<(), E> {
        let record = self.record(id)?;
        match record.state {
            State::Responded { conn } => {
                let agreed = record.attributes.expect("both ends have spoken");
                let data = self.noted(fit(params.private_data, Params::READY))?;
                let over = |_| over(id, wanted::UNDECIDED);
                self.ib.may_ready(conn).map_err(over)?;
                ready(&agreed)?;
                let confirmed = self.ib.ready(now, conn, data);
                confirmed.map_err(over)?;
                self.set_state(id, State::Established { conn });
                Ok(())
            }
            State::Requested(request) => match request.wanted {
                Some(_) => self.accept_connection(now, id, &request, params, ready),
                None => Ok(self.accept_question(now, id, &request, params)?),
            },
            _ => Err(record.refusal(id, wanted::UNDECIDED).into()),
        }
    }

    /// Refuses a peer's request, or its response (`rdma_reject(3)`).
    ///
    /// # Errors
    /// The ID waits for no such decision, or there is too much private data.
    pub fn reject(&mut self, now: Instant, id: Id, private_data: &[u8]) -> Result<(), Error> {
        let record = self.record(id)?;
        let conn = match record.state {
            State::Responded { conn } => conn,
            State::Requested(request) if request.wanted.is_none() => {
                let answer = ib::SidrAnswer {
                    status: SidrStatus::Refused,
                    qpn: Qpn::from_wire(0),
                    qkey: 0,
                    private_data: self.noted(fit(private_data, Params::ACCEPT_UD))?,
                };
                return self.answer(now, id, &request, &answer);
            }
            State::Requested(request) => request.conn,
            _ => return Err(record.refusal(id, wanted::UNDECIDED)),
        };
        let data = self.noted(fit(private_data, Params::REJECT))?;
        let reason = RejReason::ConsumerDefined;
        let rejected = self.ib.reject(now, conn, reason, data);
        rejected.map_err(|_| over(id, wanted::UNDECIDED))?;
        let stood = false;
        self.set_state(id, State::Over { conn, stood });
        Ok(())
    }

    /// Ends a connection (`rdma_disconnect(3)`): [`Event::Disconnected`] comes once the peer has
    /// answered or is silent, and [`Event::TimewaitExit`] later. One that is being ended, or that
    /// the peer has ended meanwhile, needs nothing more.
    ///
    /// # Errors
    /// The ID never had a connection that stood, or that its peer could take for standing.
    pub fn disconnect(&mut self, now: Instant, id: Id) -> Result<(), Error> {
        let record = self.record(id)?;
        let conn = match record.state {
            State::Established { conn } | State::Accepted { conn } => conn,
            State::Disconnecting { .. } | State::Over { stood: true, .. } => return Ok(()),
            _ => return Err(record.refusal(id, wanted::CONNECTED)),
        };
        self.set_state(id, State::Disconnecting { conn });
        // What is being closed already needs no closing.
        let _ = self.ib.close(now, conn, PrivateData::default());
        Ok(())
    }

    /// A QP of ours is in error, though its program did not ask for that: its connection, if it has
    /// one, is over. [`Event::Disconnected`] comes at once, or [`Event::Unreachable`] where it did
    /// not stand yet; the peer, if it is there, is told.
    pub fn qp_failed(&mut self, now: Instant, qpn: Qpn) {
        if let Some(id) = self.standing_of(qpn) {
            self.end(now, id, ib::CloseReason::Failed);
        }
    }

    /// The QP that one of ours is connected to is gone, which its node has said. Its program ends
    /// the connection then, and says so for a while; if nothing is heard of that by the end of it,
    /// [`Event::Disconnected`] comes all the same.
    pub fn peer_qp_gone(&mut self, now: Instant, qpn: Qpn) {
        if let Some(id) = self.standing_of(qpn) {
            self.deserted.add(now + self.goodbye_ns(), id);
        }
    }

    /// For how long a peer says that it ends a connection, in ns, and a second for the way.
    const fn goodbye_ns(&self) -> u64 {
        self.config.ib.close.total_ns + SECOND
    }

    /// The ID whose connection uses a QP of ours, if that stands or its peer may take it for
    /// standing.
    fn standing_of(&self, qpn: Qpn) -> Option<Id> {
        let id = *self.conns.get(&self.ib.of_qp(qpn)?.number())?;
        self.ids.get(&id)?.state.may_stand().then_some(id)
    }

    /// Ends connections whose peers' QPs were gone for long enough.
    fn end_deserted(&mut self, now: Instant) {
        while let Some(id) = self.deserted.first(now) {
            self.deserted.remove(id);
            self.end(now, id, ib::CloseReason::Failed);
        }
    }

    /// Something came from the QP that one of ours is connected to: its connection stands, if its
    /// peer was to confirm that. [`Event::Established`] comes then.
    pub fn qp_heard(&mut self, qpn: Qpn) {
        if let Some(conn) = self.ib.of_qp(qpn) {
            // It stands already, or ends, if this fails.
            let _ = self.ib.confirm(conn);
        }
    }

    /// Ends what `most` IDs have under way, for a node that ends: their peers are told, and they
    /// hear of it themselves. Gives whether there may be more; send what there is to send before.
    pub fn end_some(&mut self, now: Instant, most: usize) -> bool {
        let under_way = |record: &Record| match record.state {
            State::Over { .. } => false,
            state => state.conn().is_some(),
        };
        let ids = self.ids.iter().filter(|(_, record)| under_way(record));
        let ids: Vec<Id> = ids.map(|(id, _)| *id).take(most).collect();
        for id in &ids {
            self.end(now, *id, ib::CloseReason::Local);
        }
        ids.len() == most
    }

    /// Ends what an ID has under way: it hears of it now, and of nothing behind it but the end of
    /// time wait.
    fn end(&mut self, now: Instant, id: Id, reason: ib::CloseReason) {
        let Some(state) = self.ids.get(&id).map(|record| record.state) else {
            return;
        };
        let Some(conn) = state.conn() else { return };
        let stood = matches!(
            state,
            State::Established { .. } | State::Accepted { .. } | State::Disconnecting { .. }
        );
        self.set_state(id, State::Over { conn, stood });
        let event = match (state, reason) {
            // Its peer has not confirmed, and the QP is what found out that it will not.
            (State::Accepted { .. }, ib::CloseReason::Failed) => {
                Event::Unreachable { id, status: None }
            }
            _ if stood => {
                let data = Data::new(&[]);
                Event::Disconnected { id, reason, data }
            }
            _ => Event::ConnectError { id },
        };
        self.events.push_back(event);
        // What is being closed already needs no closing.
        let _ = self.ib.close(now, conn, PrivateData::default());
    }

    /// A packet came in on the QP of a connection that its peer has not confirmed yet
    /// (`rdma_notify(3)`): [`Event::Established`] comes.
    ///
    /// # Errors
    /// The ID does not wait for a confirmation.
    pub fn notify(&mut self, id: Id) -> Result<(), Error> {
        let record = self.record(id)?;
        let State::Accepted { conn } = record.state else {
            return Err(record.refusal(id, wanted::UNCONFIRMED));
        };
        let confirmed = self.ib.confirm(conn);
        confirmed.map_err(|_| over(id, wanted::UNCONFIRMED))
    }

    /// Gives an ID up (`rdma_destroy_id(3)`), with what is under way or stands; the peer is told.
    /// No event comes of it any more, not even one that waits to be fetched; of a listener, no
    /// request.
    ///
    /// # Errors
    /// It is not there.
    pub fn destroy(&mut self, now: Instant, id: Id) -> Result<(), Error> {
        self.record(id)?;
        self.leave_backlog(id);
        self.deserted.remove(id);
        let record = self.ids.remove(&id).ok_or(Error::UnknownId(id))?;
        let (from, to) = (record.state.phase(), IdPhase::Gone);
        if self.is_own(id) {
            self.observer.emit(|| IdStep { id, from, to });
        }
        if record.bound
            && let Some(local) = record.local
            && self.ports.release(id, record.space, local.port())
        {
            self.ib.unlisten(service(record.space, local.port()));
        }
        if let Some(conn) = record.state.conn() {
            self.forget_conn(conn, id);
            if !matches!(record.state, State::Over { .. }) {
                // What is being closed already needs no closing.
                let _ = self.ib.close(now, conn, PrivateData::default());
            }
        }
        Ok(())
    }

    /// Its address and port, if it has them (`rdma_get_local_addr(3)`).
    pub fn local(&self, id: Id) -> Option<SocketAddr> {
        self.ids.get(&id)?.local
    }

    /// What its QP has to be set to (`rdma_init_qp_attr(3)`): of an active ID after
    /// [`Event::ConnectResponse`], of a passive one after [`accept`](Self::accept).
    pub fn attributes(&self, id: Id) -> Option<&QpAttributes> {
        self.ids.get(&id)?.attributes.as_ref()
    }

    /// Takes a management datagram that came to QP1: see [`ib::IbCm::handle_mad`].
    pub fn handle_mad(&mut self, now: Instant, from: &Path, mad: &[u8; MAD_LEN]) {
        self.ib.handle_mad(now, from, mad);
        self.handle_events(now);
    }

    /// An ICMP error came that quotes a request: see [`ib::IbCm::handle_refused`].
    pub fn handle_refused(&mut self, now: Instant, remote: IpAddr, quote: &Quote) {
        self.ib.handle_refused(now, remote, quote);
        self.handle_events(now);
    }

    /// The next datagram to send.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.ib.poll_transmit()
    }

    /// Whether there is something to send.
    pub fn has_outgoing(&self) -> bool {
        self.ib.has_outgoing()
    }

    /// The next thing that happened. Ask at `now` for all there is after each call.
    #[must_use]
    pub fn poll_event(&mut self, now: Instant) -> Option<Event> {
        loop {
            self.handle_events(now);
            let event = self.events.pop_front()?;
            let there = |id| self.ids.contains_key(&id);
            match event {
                // Who listened has gone before it heard of the request: nobody will decide.
                Event::ConnectRequest { listener, id, .. } if !there(listener) => {
                    let _ = self.destroy(now, id);
                }
                event if there(event.id()) => return Some(event),
                _ => {}
            }
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next. May change after any other call.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        Instant::earliest([self.ib.poll_timeout(), self.deserted.due()])
    }

    /// Does what is due. Early or repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.ib.handle_timeout(now);
        self.handle_events(now);
        self.end_deserted(now);
    }

    /// Counts private data that is too long.
    fn noted<T>(&mut self, fitted: Result<T, Error>) -> Result<T, Error> {
        self.counters.too_long += u64::from(fitted.is_err());
        fitted
    }

    fn record(&mut self, id: Id) -> Result<&mut Record, Error> {
        self.ids.get_mut(&id).ok_or(Error::UnknownId(id))
    }

    /// The connection below says no more to `id`. Of one that was over its number may belong to
    /// another by now.
    fn forget_conn(&mut self, conn: ib::CmId, id: Id) {
        if self.conns.get(&conn.number()) == Some(&id) {
            self.conns.remove(&conn.number());
        }
    }

    fn is_full(&self) -> bool {
        self.ids.len() >= self.config.ids as usize
    }

    fn insert(&mut self, space: PortSpace, kind: Kind, state: State) -> Id {
        let worker = self.config.ib.worker;
        let id = Id(self.next << worker.of().bits() | u64::from(worker.index()));
        self.next += 1;
        let (from, to) = (IdPhase::Gone, state.phase());
        self.observer.emit(|| IdStep { id, from, to });
        let path = self.config.path;
        self.ids.insert(id, Record::new(space, kind, path, state));
        id
    }

    fn claim(&mut self, id: Id, address: SocketAddr) -> Result<SocketAddr, Error> {
        let record = self.ids.get_mut(&id).ok_or(Error::UnknownId(id))?;
        let shares = (record.reuse, record.v6_only);
        let random = self.ib.random();
        let got = self.ports.bind(id, record.space, address, shares, random)?;
        (record.local, record.bound) = (Some(got), true);
        Ok(got)
    }
}
