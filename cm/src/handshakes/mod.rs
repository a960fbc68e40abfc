//! All handshakes of one node.

mod receive;
mod request;
mod settle;
mod withdraw;

use crate::binds::Bounds;
use crate::config::Config;
use crate::credit::Credit;
use crate::event::{CloseReason, Event, HandshakeId, OpenError, Outgoing, Route, UnknownHandshake};
use crate::hello::{ConnectRequest, Hello, HelloError, Offer, Purpose};
use crate::identity::Identity;
use crate::message;
use crate::outbox::Outbox;
use crate::phase::Step;
use crate::random::Random;
use crate::records::Records;
use crate::refusal::RefusalCode;
use crate::setup::Setup;
use crate::state::{DreqSent, RepSent, ReqSent, State};
pub use crate::table::Load;
use crate::table::{Ids, Slot, Table};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::net::IpAddr;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{Answered, CommId};

/// Received datagrams that moved nothing, by reason, and answers that could not be kept.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Datagrams in all.
    pub received: u64,
    /// Not a message of communication management.
    pub malformed: u64,
    /// A message that nobody here handles (LAP, APR, SIDR).
    pub unsupported: u64,
    /// A REQ for another service; refused.
    pub foreign_service: u64,
    /// A hello that makes no sense or is of another version; refused.
    pub bad_hello: u64,
    /// The GIDs inside a REQ are not the addresses outside.
    pub address_mismatch: u64,
    /// It names a handshake that is not there, or of another peer.
    pub unknown: u64,
    /// It does not fit the state, the IDs or the transaction of its handshake.
    pub mismatch: u64,
    /// It has come before.
    pub duplicate: u64,
    /// A request that crossed one of ours and lost to it.
    pub crossed: u64,
    /// A request for which there was no room; refused for now.
    pub busy: u64,
    /// A request of an address that has as much under way as it may; refused for now.
    pub unfair: u64,
    /// A request of an address that has its share of the connections; refused.
    pub over_share: u64,
    /// Messages that were not sent again, as nothing proves that the address had asked.
    pub unproved: u64,
    /// A request of this node itself; refused.
    pub identity: u64,
    /// Peers that proved to have the GUID of this node, or of a peer at another address. Each is
    /// what its own address proves; somebody has set one GUID twice, or claims another's.
    pub duplicate_guid: u64,
    /// Peers that were given up as they did not answer one of our messages, through all tries.
    pub silent: u64,
    /// Requests that ended because the peer's host said that nobody listens there.
    pub nobody: u64,
    /// Such errors that fit no request of ours, or not its peer.
    pub misquoted: u64,
    /// Datagrams to send that were dropped because too many waited.
    pub transmit_full: u64,
}

/// The handshakes of one node: bounded in number, with one owner and without locks.
#[derive(Debug)]
pub struct NodeCm<R> {
    config: Config,
    random: R,
    table: Table,
    transmit: Outbox,
    events: VecDeque<Event>,
    counters: Counters,
}

impl<R: Random> NodeCm<R> {
    /// A manager without handshakes.
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
            config,
            table: Table::new(config.worker, &mut random),
            random,
            transmit: Outbox::new(config.limits.transmit),
            events: VecDeque::new(),
            counters: Counters::default(),
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
            + self.transmit.state_bytes()
            + self.events.len() * size_of::<Event>()
    }

    /// What it received and dropped.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// From now on `watch` is told of each change of a handshake's state, within the call that
    /// brings it about.
    pub fn observe(&mut self, watch: impl FnMut(&Step) + Send + 'static) {
        self.table.observer.set(watch);
    }

    /// Whether there is room for another request of this node's
    /// ([`Limits`](crate::Limits)`::opening`).
    pub const fn may_open(&self) -> bool {
        self.table.load().opening < self.config.limits.opening
    }

    /// Asks a peer for a connection. When the peer's request for the same one waits for a decision,
    /// that is accepted instead: the handshake is then that of its [`Event::Incoming`], and the
    /// BINDs of `request` are not sent.
    ///
    /// # Errors
    /// Too much is under way, the place in the pool is taken, the addresses are of two families, or
    /// the offer holds what it may not.
    pub fn open(
        &mut self,
        now: Instant,
        route: Route,
        request: ConnectRequest,
    ) -> Result<HandshakeId, OpenError> {
        let route = route.canonical();
        if route.local.is_ipv4() != route.remote.is_ipv4() {
            let Route { local, remote } = route;
            return Err(OpenError::Families { local, remote });
        }
        check(&request)?;
        if let Some((index, slot)) = self.in_place(route, &request) {
            let id = self.id(index);
            let State::ReqReceived(received) = slot.state() else {
                return Err(OpenError::Exists(id));
            };
            let bounds = Bounds::mutual(&request.binds, &received.hello.binds);
            self.accept_received(now, index, request.offer, bounds, Some((request, 0)));
            return Ok(id);
        }
        let (load, limits) = (self.table.load(), &self.config.limits);
        let busy = |what, limit| Err(OpenError::Busy { what, limit });
        if !self.may_open() {
            return busy("connections being opened", limits.opening);
        }
        if load.connections() >= limits.connections {
            return busy("connections", limits.connections);
        }
        let Some(index) = self
            .table
            .insert(route, (request.purpose, false), &mut self.random)
        else {
            return busy("peers", u16::MAX.into());
        };
        self.send_request(now, index, request, 0);
        Ok(self.id(index))
    }

    /// Agrees to a peer's request, and to the BINDs that came with it and have their answer in
    /// `bounds`. The connection stands once the peer has confirmed.
    ///
    /// # Errors
    /// The handshake does not wait for a decision.
    ///
    /// # Panics
    /// The offer holds what no peer would take.
    pub fn accept(
        &mut self,
        now: Instant,
        id: HandshakeId,
        offer: Offer,
        bounds: Bounds,
    ) -> Result<(), UnknownHandshake> {
        let valid = offer.end(self.config.identity).check();
        assert!(valid.is_ok(), "{valid:?}");
        let index = self.index(id, |state| matches!(state, State::ReqReceived(_)))?;
        self.accept_received(now, index, offer, bounds, None);
        Ok(())
    }

    /// Refuses a peer's request.
    ///
    /// # Errors
    /// The handshake does not wait for a decision.
    pub fn reject(&mut self, id: HandshakeId, code: RefusalCode) -> Result<(), UnknownHandshake> {
        let index = self.index(id, |state| matches!(state, State::ReqReceived(_)))?;
        self.refuse_received(index, code, CloseReason::Local);
        Ok(())
    }

    /// A packet with the right token came in on a connection whose peer has not confirmed yet: the
    /// RTU is late or lost, the peer is there.
    ///
    /// # Errors
    /// The handshake does not wait for a confirmation.
    pub fn confirm(&mut self, now: Instant, id: HandshakeId) -> Result<(), UnknownHandshake> {
        let index = self.index(id, |state| matches!(state, State::RepSent(_)))?;
        self.confirmed(now, index);
        Ok(())
    }

    /// Ends a connection or the attempt at one, and tells the peer. [`Event::Closed`] follows, for
    /// a connection that stood when the peer has answered or is silent.
    ///
    /// # Errors
    /// The handshake is over or being closed.
    pub fn close(&mut self, now: Instant, id: HandshakeId) -> Result<(), UnknownHandshake> {
        let index = self.index(id, |state| {
            !matches!(state, State::DreqSent(_) | State::TimeWait { .. })
        })?;
        let ids = self.table.ids(index);
        match self.table.slot(index).state() {
            State::ReqSent(state) => {
                // The peer may have accepted: it must not wait for the confirmation.
                let transaction = state.sent.transaction;
                self.send_rej(index, transaction, Answered::Other, RefusalCode::Cancelled);
                self.finish(index, CloseReason::Local);
            }
            State::ReqReceived(_) => {
                self.refuse_received(index, RefusalCode::Policy, CloseReason::Local)
            }
            State::RepSent(state) => {
                let transaction = state.sent.transaction;
                self.send_rej(index, transaction, Answered::Req, RefusalCode::Policy);
                self.finish(index, CloseReason::Local);
            }
            &State::Established(exchange) => {
                let dreq = message::dreq(ids, self.table.slot(index).remote_qpn());
                let transaction = self.random.next();
                let request = message::mad(transaction, dreq);
                let sent = self.begin(now, transaction, request, self.config.close);
                let closing = Box::new(DreqSent { exchange, sent });
                self.table.set_state(index, State::DreqSent(closing));
                self.send_in(index, request);
            }
            State::Free | State::DreqSent(_) | State::TimeWait { .. } => {
                unreachable!("these were told to be unknown")
            }
        }
        Ok(())
    }

    /// Forgets a connection that stands without telling the peer: the two ends close it among
    /// themselves. What the peer still sends about it is answered as for a closed one. Its owner
    /// then has to know the peer's identity by itself, should this have been the last connection.
    ///
    /// # Errors
    /// The handshake is over or has not come that far.
    pub fn release(&mut self, now: Instant, id: HandshakeId) -> Result<(), UnknownHandshake> {
        let index = self.index(id, |state| matches!(state, State::Established(_)))?;
        self.finish_later(now, index, CloseReason::Local);
        Ok(())
    }

    /// Forgets a handshake whose connection has stood for so long that nothing more is said about
    /// how it was set up: from now on its owner knows of it, and says when it has
    /// [ended](Self::ended). It counts for the limits as before. Returns whether the peer had asked
    /// for it. What the peer still sends about it is answered as for one that is not there, and who
    /// the peer is, its owner has to know.
    ///
    /// # Errors
    /// The handshake is over or has not come that far.
    pub fn hand_over(&mut self, id: HandshakeId) -> Result<bool, UnknownHandshake> {
        let index = self.index(id, |state| matches!(state, State::Established(_)))?;
        Ok(self.table.hand_over(index))
    }

    /// A connection to `remote` that was [handed over](Self::hand_over) has ended; `theirs` is what
    /// that call returned.
    ///
    /// # Panics
    /// No such connection was handed over.
    pub fn ended(&mut self, remote: IpAddr, theirs: bool) {
        self.table.ended(remote.to_canonical(), theirs);
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
    pub(crate) fn state_of(&self, id: HandshakeId) -> Option<&State> {
        let index = self.table.find(id.0)?;
        Some(self.table.slot(index).state())
    }

    fn id(&self, index: u32) -> HandshakeId {
        HandshakeId(self.table.ids(index).local)
    }

    fn index(
        &self,
        id: HandshakeId,
        fits: impl FnOnce(&State) -> bool,
    ) -> Result<u32, UnknownHandshake> {
        self.table
            .find(id.0)
            .filter(|&index| fits(self.table.slot(index).state()))
            .ok_or(UnknownHandshake(id))
    }

    /// The handshake for a place of the pool, if there is one under way or standing.
    fn in_place(&self, route: Route, request: &ConnectRequest) -> Option<(u32, &Slot)> {
        let Purpose::Pool(_) = request.purpose else {
            return None;
        };
        self.table
            .in_place(self.table.peer_at(route)?, request.purpose)
            .find(|(_, slot)| {
                self.table.leads_to(slot, request.toward)
                    && !matches!(slot.state(), State::DreqSent(_) | State::TimeWait { .. })
            })
    }

    /// Who the peer of a handshake has proved to be.
    fn known(&self, index: u32) -> Option<Identity> {
        self.table.peer(self.table.slot(index).peer()).identity()
    }

    /// Sends a REQ from a slot that has no state worth keeping.
    fn send_request(&mut self, now: Instant, index: u32, request: ConnectRequest, resumed: u8) {
        self.table.forget_remote(index);
        let route = self.table.route(index);
        let local = self.table.ids(index).local;
        let transaction = self.random.next();
        let req = message::req(local, route, self.config.identity, &request);
        let mad = message::mad(transaction, req);
        let state = ReqSent {
            sent: self.begin(now, transaction, mad, request.retry),
            request,
            resumed,
            knew: self.known(index),
        };
        self.table.set_state(index, State::ReqSent(Box::new(state)));
        self.send_to(route, mad);
    }

    fn accept_received(
        &mut self,
        now: Instant,
        index: u32,
        offer: Offer,
        bounds: Bounds,
        absorbed: Option<(ConnectRequest, u8)>,
    ) {
        let State::ReqReceived(received) = self.table.slot(index).state() else {
            unreachable!("only undecided handshakes come here")
        };
        let received = (received.transaction, received.hello);
        self.answer(now, index, received, offer, bounds, absorbed);
    }

    /// Agrees to a request, and waits for its peer to confirm.
    fn answer(
        &mut self,
        now: Instant,
        index: u32,
        (transaction, hello): (u64, Hello),
        offer: Offer,
        bounds: Bounds,
        absorbed: Option<(ConnectRequest, u8)>,
    ) {
        let rep = message::rep(self.table.ids(index), self.config.identity, &offer, bounds);
        let reply = message::mad(transaction, rep);
        let state = RepSent {
            sent: self.begin(now, transaction, reply, self.config.reply),
            hello,
            offer,
            bounds,
            absorbed,
            knew: self.known(index),
            credit: match self.known(index) {
                Some(_) => Credit::Proved,
                None => Credit::FIRST,
            },
        };
        self.table.set_state(index, State::RepSent(Box::new(state)));
        self.send_in(index, reply);
    }

    fn refuse_received(&mut self, index: u32, code: RefusalCode, reason: CloseReason) {
        let State::ReqReceived(received) = self.table.slot(index).state() else {
            unreachable!("only undecided handshakes come here")
        };
        let transaction = received.transaction;
        // The number of this end stays out of it: the handshake is over, nothing is to be answered.
        let ids = Ids {
            local: CommId(0),
            ..self.table.ids(index)
        };
        let rej = message::rej(ids, Answered::Req, self.config.identity, code);
        self.send_to(self.table.route(index), message::mad(transaction, rej));
        self.finish(index, reason);
    }

    fn send_rej(&mut self, index: u32, transaction: u64, what: Answered, code: RefusalCode) {
        let rej = message::rej(self.table.ids(index), what, self.config.identity, code);
        self.send_in(index, message::mad(transaction, rej));
    }
}

fn check(request: &ConnectRequest) -> Result<(), HelloError> {
    let invalid = |field, value| Err(HelloError::Invalid { field, value });
    if request.purpose == Purpose::Pool(u8::MAX) {
        return invalid("pool index", u8::MAX.into());
    }
    request
        .offer
        .end(crate::Identity { guid: 0, epoch: 0 })
        .check()
}
