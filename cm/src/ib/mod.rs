//! The InfiniBand communication manager for ordinary hosts (IBTA Vol 1, chapter 12): each
//! connection has a QP of its own at either end.
//!
//! ```text
//!   asking                                               asked
//!     connect --> ReqSent ------- REQ -----------------> ReqReceived --> Event::Incoming
//!                   |     <------ MRA, if it takes time    | accept
//!     Event::Replied <----------- REP ------------------ RepSent
//!       | ready --> Established - RTU -----------------> Established
//!     close --> DreqSent -------- DREQ ----------------> TimeWait
//!     TimeWait <----------------- DREP ------------------'
//!
//!     ask --> SidrSent ---------- SIDR_REQ ------------> SidrReqReceived --> Event::SidrIncoming
//!     Event::SidrAnswered <------ SIDR_REP ------------- answer
//! ```
//!
//! [`IbCm`] is used as [`crate::NodeCm`] is: time, randomness and datagrams are arguments;
//! after any call drain [`IbCm::poll_transmit`], then [`IbCm::poll_event`], then look at
//! [`IbCm::poll_timeout`] again. A node that has both gives each datagram to the one that
//! [`Concerns`](crate::Concerns) names.
//!
//! Whatever a stranger sends has an answer or a counter, and often both. Room for peers' requests
//! is shared fairly: one address never gets more than what is left for all others, so a flood of
//! one leaves half of it free; who finds none is asked for patience (MRA) or refused (REJ).

mod config;
mod event;
mod message;
mod met;
mod receive;
mod request;
mod settle;
mod sidr;
mod state;
mod table;
#[cfg(test)]
mod tests;

pub use crate::handshakes::Load;
pub use config::{Config, Guids};
pub use event::{
    AcceptError, Answer, CloseReason, CmId, Event, PathTerms, QpTerms, RequestError, RequestTerms,
    SidrAnswer, SidrRequest, UnknownConn,
};
pub use met::Met;

use crate::credit::Credit;
use crate::event::{Outgoing, Route};
use crate::message::{Mad, mad};
use crate::outbox::Outbox;
use crate::phase::Step;
use crate::random::Random;
use crate::records::Records;
use crate::retry::Retry;
use crate::setup::{Sent, Setup};
use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use message::Ids;
use state::State;
use table::Table;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{Answered, PrivateData, RejReason, TransportService};
use trunkline_wire::{Qpn, ServiceId};

/// What came in and moved nothing, or was refused, by reason.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Datagrams in all.
    pub received: u64,
    /// Not a message of communication management.
    pub malformed: u64,
    /// A request for a service that nobody offers; refused.
    pub no_service: u64,
    /// A request that holds what it may not; refused.
    pub invalid: u64,
    /// The GIDs inside a REQ are not the addresses outside; refused.
    pub address_mismatch: u64,
    /// It names a connection that is not there, or of another peer; answered where that helps.
    pub unknown: u64,
    /// It does not fit the state, the numbers or the transaction of its connection.
    pub mismatch: u64,
    /// It has come before; answered as the first was.
    pub duplicate: u64,
    /// A request for which there was no room; asked for patience.
    pub busy: u64,
    /// A request of an address that has as much under way as it may; refused.
    pub unfair: u64,
    /// A request of an address that has its share of the connections; refused.
    pub over_share: u64,
    /// Messages that were not sent again, as nothing proves that the address had asked.
    pub unproved: u64,
    /// A request or answer that nobody had decided on in time; asked for patience.
    pub late: u64,
    /// A request or answer of a QP that is still connected; refused, and the old connection ended.
    pub stale: u64,
    /// Proposals for alternate paths; refused.
    pub alternate: u64,
    /// Peers that were given up as they did not answer one of our messages, through all tries.
    pub silent: u64,
    /// Requests that ended because the peer's host said that nobody listens there.
    pub nobody: u64,
    /// Such errors that fit no request of ours, or not its peer.
    pub misquoted: u64,
    /// Datagrams to send that were dropped because too many waited.
    pub transmit_full: u64,
}

/// The connections of one node's QPs, where each has its own: bounded in number, with one owner and
/// without locks.
#[derive(Debug)]
pub struct IbCm<R> {
    config: Config,
    random: R,
    table: Table,
    services: BTreeSet<u64>,
    transmit: Outbox,
    events: VecDeque<Event>,
    /// What other workers of the node have to hear.
    met: VecDeque<Met>,
    counters: Counters,
}

impl<R: Random> IbCm<R> {
    /// A manager without connections.
    ///
    /// # Panics
    /// `config.limits.connections` is over 2^20.
    pub fn new(config: Config, mut random: R) -> Self {
        let connections = config.limits.connections;
        assert!(
            connections <= 1 << 20,
            "{connections} connections are more than 2^20"
        );
        Self {
            table: Table::new(config.worker, &mut random),
            services: BTreeSet::new(),
            random,
            transmit: Outbox::new(config.limits.transmit),
            events: VecDeque::new(),
            met: VecDeque::new(),
            counters: Counters::default(),
            config,
        }
    }

    /// What it was told.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// What it holds.
    pub const fn load(&self) -> &Load {
        self.table.load()
    }

    /// Bytes of its records, and of what waits to be sent or told. Free room, and what maps need
    /// beside their entries, is not counted.
    pub fn state_bytes(&self) -> usize {
        self.table.state_bytes()
            + self.services.len() * size_of::<u64>()
            + self.transmit.state_bytes()
            + self.events.len() * size_of::<Event>()
            + self.met.len() * size_of::<Met>()
    }

    /// What it received and dropped or refused.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// From now on `watch` is told of each change of a connection's or question's state, within the
    /// call that brings it about.
    pub fn observe(&mut self, watch: impl FnMut(&Step) + Send + 'static) {
        self.table.observer.set(watch);
    }

    /// Takes requests for a service from now on. False when it did already.
    pub fn listen(&mut self, service: ServiceId) -> bool {
        self.services.insert(service.0)
    }

    /// Refuses requests for a service from now on. What is under way goes on.
    pub fn unlisten(&mut self, service: ServiceId) -> bool {
        self.services.remove(&service.0)
    }

    /// Asks a peer for a connection.
    ///
    /// # Errors
    /// Too much is under way, the QP is taken, the addresses are of two families, or a field holds
    /// what no peer would take.
    pub fn connect(
        &mut self,
        now: Instant,
        route: Route,
        terms: &RequestTerms,
        retry: Retry,
    ) -> Result<CmId, RequestError> {
        let route = self.room_for_request(route)?;
        check_qp(&terms.qp)?;
        self.check_terms(terms)?;
        self.check_free(terms.qp.qpn)?;
        let index = self.table.insert(route, &mut self.random);
        self.table.set_local_qp(index, terms.qp.qpn);
        let local = self.table.id(index);
        let transaction = self.random.next();
        let request = mad(
            transaction,
            message::req(local, route, self.config.guids.of(route.remote), terms),
        );
        let sent = self.send_first(now, index, transaction, request, retry);
        self.table.set_state(index, State::ReqSent(sent));
        Ok(self.conn(index))
    }

    /// Agrees to a peer's request. The connection stands once the peer has confirmed.
    ///
    /// # Errors
    /// The connection does not wait for a decision, the QP is taken, or a field holds what no peer
    /// would take.
    pub fn accept(&mut self, now: Instant, id: CmId, answer: &Answer) -> Result<(), AcceptError> {
        let (index, transaction) = self.check_accept(id, answer)?;
        self.table.set_local_qp(index, answer.qp.qpn);
        let reply = message::rep(self.ids(index), self.guid(index), answer);
        let retry = self.config.reply;
        let sent = self.send_first(now, index, transaction, mad(transaction, reply), retry);
        self.table.set_state(index, State::RepSent(sent));
        Ok(())
    }

    /// Whether [`accept`](Self::accept) would work: the QP can be made ready in between.
    ///
    /// # Errors
    /// As there.
    pub fn may_accept(&self, id: CmId, answer: &Answer) -> Result<(), AcceptError> {
        self.check_accept(id, answer).map(drop)
    }

    fn check_accept(&self, id: CmId, answer: &Answer) -> Result<(u32, u64), AcceptError> {
        let found = self.undecided(id, |state| match state {
            State::ReqReceived(undecided) => Some(undecided.transaction),
            _ => None,
        })?;
        check_qp(&answer.qp)?;
        at_most("ACK delay", answer.ack_delay.into(), 31)?;
        self.check_free(answer.qp.qpn)?;
        Ok(found)
    }

    /// Whether [`ready`](Self::ready) would work.
    ///
    /// # Errors
    /// As there.
    pub fn may_ready(&self, id: CmId) -> Result<(), UnknownConn> {
        self.undecided(id, |state| matches!(state, State::Replied(_)).then_some(()))
            .map(drop)
    }

    /// Refuses a peer's request, or its agreement to ours.
    ///
    /// # Errors
    /// The connection does not wait for a decision.
    pub fn reject(
        &mut self,
        now: Instant,
        id: CmId,
        reason: RejReason,
        private_data: PrivateData<148>,
    ) -> Result<(), UnknownConn> {
        let (index, (transaction, refused)) = self.undecided(id, |state| match state {
            State::ReqReceived(undecided) => Some((undecided.transaction, Answered::Req)),
            State::Replied(replied) => Some((replied.transaction, Answered::Rep)),
            _ => None,
        })?;
        let mut rej = message::rej(self.ids(index), refused, reason);
        rej.private_data = private_data;
        self.send_last(index, mad(transaction, rej));
        self.end(now, index, CloseReason::Local);
        Ok(())
    }

    /// Ends a connection, the attempt at one, or a question, and tells the peer. An event that
    /// ends it follows: for a connection that stood, or may stand for the peer, when that has
    /// answered or is silent.
    ///
    /// # Errors
    /// It is over or being closed.
    pub fn close(
        &mut self,
        now: Instant,
        id: CmId,
        private_data: PrivateData<220>,
    ) -> Result<(), UnknownConn> {
        let unknown = UnknownConn(id);
        let index = self.table.find(id.0).ok_or(unknown)?;
        match self.table.slot(index).state() {
            State::ReqSent(sent) => {
                // The peer may have agreed: it must not wait.
                let transaction = sent.transaction;
                self.send_timeout(index, transaction);
                self.end(now, index, CloseReason::Local);
            }
            State::RepSent(sent) => {
                let transaction = sent.transaction;
                self.give_up_answer(now, index, transaction, CloseReason::Local);
            }
            State::ReqReceived(_) | State::Replied(_) => {
                let reason = RejReason::ConsumerDefined;
                self.reject(now, id, reason, PrivateData::default())?;
            }
            State::Established(_) => {
                self.disconnect(now, index, CloseReason::Local, private_data);
            }
            State::SidrSent(_) => self.end_question(index),
            State::SidrReqReceived(..) => self.refuse_question(now, index),
            State::Free | State::DreqSent(..) | State::TimeWait { .. } | State::SidrDone { .. } => {
                return Err(unknown);
            }
        }
        Ok(())
    }

    /// The next datagram to send.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.transmit.pop()
    }

    /// Whether there is something to send.
    pub fn has_outgoing(&self) -> bool {
        !self.transmit.is_empty()
    }

    /// The next thing that happened.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next. May change after any other call.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.slots().next_due()
    }

    /// Does what is due. Early or repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.handle_time(now);
    }

    #[cfg(test)]
    fn state_of(&self, id: CmId) -> Option<&State> {
        let index = self.table.find(id.0)?;
        Some(self.table.slot(index).state())
    }

    /// Where it takes randomness from.
    pub(crate) const fn random(&mut self) -> &mut R {
        &mut self.random
    }

    fn conn(&self, index: u32) -> CmId {
        CmId(self.table.id(index))
    }

    fn ids(&self, index: u32) -> Ids {
        Ids {
            local: self.table.id(index),
            remote: self.table.slot(index).remote(),
        }
    }

    /// The record behind an ID, and what `fits` finds in its state.
    fn undecided<T>(
        &self,
        id: CmId,
        fits: impl FnOnce(&State) -> Option<T>,
    ) -> Result<(u32, T), UnknownConn> {
        let unknown = UnknownConn(id);
        let index = self.table.find(id.0).ok_or(unknown)?;
        let found = fits(self.table.slot(index).state()).ok_or(unknown)?;
        Ok((index, found))
    }

    fn room_for_request(&self, route: Route) -> Result<Route, RequestError> {
        let route = route.canonical();
        if route.local.is_ipv4() != route.remote.is_ipv4() {
            return Err(RequestError::Families(route));
        }
        let (load, limits) = (self.table.load(), &self.config.limits);
        let busy = |what, limit| Err(RequestError::Busy { what, limit });
        if load.opening >= limits.opening {
            return busy("connections being opened", limits.opening);
        }
        if load.connections() >= limits.connections {
            return busy("connections", limits.connections);
        }
        Ok(route)
    }

    fn check_terms(&self, terms: &RequestTerms) -> Result<(), RequestError> {
        at_most("retry count", terms.retry_count.into(), 7)?;
        at_most("flow label", terms.path.flow_label, 0x000f_ffff)?;
        at_most("ACK timeout", terms.path.ack_timeout.into(), 31)?;
        let mtus = (1, self.config.mtu.into());
        within("path MTU", terms.path.mtu.into(), mtus)?;
        let services = (TransportService::Rc as u32, TransportService::Uc as u32);
        within("transport service", terms.service as u32, services)
    }

    /// The connection that has this QP of ours, be it over.
    pub fn of_qp(&self, qpn: Qpn) -> Option<CmId> {
        let index = self.table.find_local_qp(qpn)?;
        Some(self.conn(index))
    }

    /// Whether a connection has this QP of ours, or one that has ended may still get packets for
    /// it (IBTA Vol 1, 12.9.8.4: timewait).
    pub fn is_taken(&self, qpn: Qpn) -> bool {
        self.table.has_local_qp(qpn)
    }

    fn check_free(&self, qpn: Qpn) -> Result<(), RequestError> {
        if self.is_taken(qpn) {
            return Err(RequestError::QpInUse(qpn));
        }
        Ok(())
    }

    /// Sends a message that wants an answer; a record of it comes back.
    fn send_first(
        &mut self,
        now: Instant,
        index: u32,
        transaction: u64,
        mad: Mad,
        retry: Retry,
    ) -> Box<Sent> {
        self.send_in(index, mad);
        Box::new(self.begin(now, transaction, mad, retry))
    }

    /// The GUID that the peer of a record is told.
    fn guid(&self, index: u32) -> u64 {
        self.config.guids.of(self.table.slot(index).route.remote)
    }

    /// As [`send_in`](Setup::send_in), of what says that this end gives up.
    fn send_last(&mut self, index: u32, mad: Mad) {
        self.send_if(index, mad, Credit::spend);
    }

    fn send_if(&mut self, index: u32, mad: Mad, spend: fn(&mut Credit) -> bool) {
        if self.table.is_proved(index) || spend(self.table.credit(index)) {
            self.send_to(self.table.slot(index).route, mad);
        } else {
            self.counters.unproved += 1;
        }
    }
}

pub(crate) fn at_most(field: &'static str, value: u32, most: u32) -> Result<(), RequestError> {
    within(field, value, (0, most))
}

const fn within(
    field: &'static str,
    value: u32,
    (least, most): (u32, u32),
) -> Result<(), RequestError> {
    if least <= value && value <= most {
        return Ok(());
    }
    Err(RequestError::Invalid {
        field,
        value,
        least,
        most,
    })
}

fn check_qp(qp: &QpTerms) -> Result<(), RequestError> {
    at_most("RNR retry count", qp.rnr_retry_count.into(), 7)?;
    check_qpn(qp.qpn)
}

fn check_qpn(qpn: Qpn) -> Result<(), RequestError> {
    within("QPN", qpn.get(), (Qpn::GSI.get() + 1, 0x00ff_ffff))
}
