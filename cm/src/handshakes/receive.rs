//! What a peer says about a handshake that is under way.

use super::NodeCm;
use crate::event::{CloseReason, Event, Refused, Route};
use crate::hello::HelloError;
use crate::identity::IdentityError;
use crate::message::{self, Mad};
use crate::quote::Quote;
use crate::random::Random;
use crate::records::{Counts, Records, counts};
use crate::refusal::{Refusal, RefusalCode};
use crate::retry::Patience;
use crate::setup::Setup;
use crate::slots::Slots;
use crate::state::{Exchange, State, Verdict};
use crate::table::{Ids, Slot};
use core::net::IpAddr;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{Answered, CommId, Message, PrivateData, Rej, RejReason, Rep, Rtu};
use trunkline_wire::{MAD_LEN, Path};

impl<R: Random> Records for NodeCm<R> {
    type Record = Slot;

    fn slots(&self) -> &Slots<Slot> {
        self.table.slots()
    }

    fn slots_mut(&mut self) -> &mut Slots<Slot> {
        self.table.slots_mut()
    }

    fn counts(&mut self) -> Counts<'_> {
        counts!(self.counters)
    }

    fn route_of(&self, index: u32) -> Route {
        self.table.route(index)
    }

    fn remote_of(&self, index: u32) -> CommId {
        self.table.slot(index).remote()
    }

    fn time_wait_limit(&self) -> u32 {
        self.config.limits.time_wait
    }

    fn forget(&mut self, index: u32) {
        self.table.remove(index);
    }
}

impl<R: Random> Setup for NodeCm<R> {
    fn draw(&mut self) -> u64 {
        self.random.next()
    }

    fn patience(&self) -> Patience {
        Patience::SHORT
    }

    fn update<T>(&mut self, index: u32, change: impl FnOnce(&mut State) -> T) -> T {
        self.table.update(index, change)
    }

    fn send_in(&mut self, index: u32, mad: Mad) {
        let may = self.table.update(index, |state| match state {
            State::RepSent(state) => state.credit.spend(),
            _ => true,
        });
        if may {
            self.send_to(self.table.route(index), mad);
        } else {
            self.counters.unproved += 1;
        }
    }

    fn send_to(&mut self, route: Route, mad: Mad) {
        self.transmit.push(route, mad);
        self.counters.transmit_full = self.transmit.dropped();
    }

    fn find_request(&self, route: Route, transaction: u64, remote: CommId) -> Option<u32> {
        let exchange = Exchange::of(transaction);
        let found = self.table.find_theirs(route, remote, exchange);
        found.filter(|&index| {
            self.table.slot(index).state().is_half_open() && self.is_in(index, transaction)
        })
    }

    /// It is said in any transaction: the one that opened the connection is not kept whole.
    fn confirmation(&self, index: u32, transaction: u64) -> Option<Mad> {
        let rtu = message::rtu(self.table.ids(index));
        Some(message::mad(transaction, rtu))
    }

    fn when_answered(&mut self, now: Instant, index: u32, rep: &Rep) {
        self.take_answer(now, index, rep);
    }

    fn when_confirmed(&mut self, now: Instant, index: u32, _rtu: &Rtu) {
        self.confirmed(now, index);
    }

    fn when_refused(&mut self, _now: Instant, index: u32, rej: &Rej) {
        let (id, route) = (self.id(index), self.table.route(index));
        let event = match verdict(rej) {
            Verdict::NotTrunkline => Event::NotTrunkline { id, route },
            Verdict::Refused(reason) => Event::Refused { id, route, reason },
        };
        self.finish_with(index, event);
    }

    fn when_abandoned(&mut self, now: Instant, index: u32, rej: &Rej) {
        let reason = CloseReason::Abandoned(refused(rej));
        match self.table.slot(index).state() {
            State::Established(_) => self.finish_later(now, index, reason),
            _ => self.abandoned(now, index, reason),
        }
    }

    fn when_ended(&mut self, now: Instant, index: u32, _said: PrivateData<224>) {
        let reason = match self.table.slot(index).state() {
            State::DreqSent(_) => CloseReason::Local,
            _ => CloseReason::Peer,
        };
        self.finish_later(now, index, reason);
    }

    fn when_nobody(&mut self, _now: Instant, index: u32) {
        let (id, route) = (self.id(index), self.table.route(index));
        self.finish_with(index, Event::Nobody { id, route });
    }

    fn when_timed_out(&mut self, now: Instant, index: u32) {
        self.timed_out(now, index);
    }

    fn hear_other(&mut self, now: Instant, route: Route, transaction: u64, message: &Message) {
        match message {
            Message::Req(req) => self.on_req(now, route, transaction, req),
            _ => self.counters.unsupported += 1,
        }
    }
}

impl<R: Random> NodeCm<R> {
    /// Takes a management datagram that came to QP1; `from` is the path it took. Whatever its bytes
    /// are, it is counted, and moves nothing unless all of it agrees with a handshake.
    pub fn handle_mad(&mut self, now: Instant, from: &Path, mad: &[u8; MAD_LEN]) {
        self.handle_datagram(now, from, mad);
    }

    /// An ICMP error came that quotes a request of `remote`: nobody listens there. By the second
    /// one, 200 ms or more after the first, the request ends with [`Event::Nobody`]. Errors that
    /// fit no request are counted.
    pub fn handle_refused(&mut self, now: Instant, remote: IpAddr, quote: &Quote) {
        self.hear_quote(now, remote, quote);
    }

    fn disown(&mut self, route: Route, transaction: u64, local: CommId, remote: CommId) {
        let reason = RejReason::InvalidCommId;
        let rej = message::plain_rej(Ids { local, remote }, Answered::Rep, reason);
        self.send_to(route, message::mad(transaction, rej));
    }

    /// The answer to our request.
    fn take_answer(&mut self, now: Instant, index: u32, rep: &Rep) {
        let (id, route) = (self.id(index), self.table.route(index));
        let State::ReqSent(state) = self.table.slot(index).state() else {
            unreachable!("only a request has an answer")
        };
        let transaction = state.sent.transaction;
        let reply = match message::hello_reply(rep) {
            Ok(reply) => reply,
            Err(error) => {
                self.counters.bad_hello += 1;
                let reason = Refused::NoSense(error);
                self.refuse_answer(
                    route,
                    index,
                    transaction,
                    rep,
                    RefusalCode::Malformed,
                    reason,
                );
                return;
            }
        };
        if let Err(error) = self.config.identity.tell_apart(reply.end.identity) {
            self.counters.identity += 1;
            let (code, reason) = (RefusalCode::DuplicateGuid, Refused::Identity(error));
            self.refuse_answer(route, index, transaction, rep, code, reason);
            return;
        }
        let (workers, toward) = (reply.end.workers, state.request.toward);
        if workers.owner(rep.qpn.get()) != workers.owner(toward.into()) {
            self.counters.bad_hello += 1;
            let reason = Refused::NoSense(HelloError::Invalid {
                field: "worker",
                value: rep.qpn.get().into(),
            });
            let code = RefusalCode::Malformed;
            self.refuse_answer(route, index, transaction, rep, code, reason);
            return;
        }
        if self.is_outlived(index, state.knew, reply.end.identity) {
            // Whoever lives answers a new question.
            let (request, resumed) = (state.request, state.resumed);
            self.disown(route, transaction, rep.remote, rep.local);
            self.send_request(now, index, request, resumed);
            return;
        }
        let terms = state.on_rep(id, route, rep.qpn, &reply);
        self.table.set_remote(index, rep.local, rep.qpn);
        self.establish(now, index, terms);
        let rtu = message::rtu(self.table.ids(index));
        self.send_to(route, message::mad(transaction, rtu));
    }

    fn refuse_answer(
        &mut self,
        route: Route,
        index: u32,
        transaction: u64,
        rep: &Rep,
        code: RefusalCode,
        reason: Refused,
    ) {
        let id = self.id(index);
        self.table.set_remote(index, rep.local, rep.qpn);
        self.send_rej(index, transaction, Answered::Rep, code);
        self.finish_with(index, Event::Refused { id, route, reason });
    }
}

fn refused(rej: &Rej) -> Refused {
    match Refusal::parse(&rej.private_data) {
        Some(Refusal {
            code: RefusalCode::DuplicateGuid,
            identity,
        }) => Refused::Identity(IdentityError::Itself {
            guid: identity.guid,
        }),
        Some(refusal) => Refused::Trunkline(refusal.code),
        None => Refused::Ib(rej.reason),
    }
}

fn verdict(rej: &Rej) -> Verdict {
    match refused(rej) {
        Refused::Ib(RejReason::InvalidServiceId) => Verdict::NotTrunkline,
        reason => Verdict::Refused(reason),
    }
}
