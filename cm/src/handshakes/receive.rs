//! What a peer says about a handshake that is under way.

use super::NodeCm;
use crate::driver::{Counts, Driver, counts};
use crate::event::{CloseReason, Event, Refused, Route};
use crate::hello::HelloError;
use crate::identity::IdentityError;
use crate::message;
use crate::quote::Quote;
use crate::random::Random;
use crate::refusal::{Refusal, RefusalCode};
use crate::retry::Patience;
use crate::slots::Slots;
use crate::state::{Exchange, State, Verdict};
use crate::table::{Ids, Slot};
use core::net::IpAddr;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{
    Answered, CmMad, CommId, Drep, Dreq, Message, Mra, Rej, RejReason, Rep, Rtu,
};
use trunkline_wire::{MAD_LEN, Path};

impl<R: Random> Driver for NodeCm<R> {
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

    fn hear(&mut self, now: Instant, route: Route, mad: &CmMad) {
        let transaction = mad.transaction_id;
        match &mad.message {
            Message::Req(req) => self.on_req(now, route, transaction, req),
            Message::Rep(rep) => self.on_rep(now, route, transaction, rep),
            Message::Rtu(rtu) => self.on_rtu(now, route, transaction, rtu),
            Message::Rej(rej) => self.on_rej(now, route, transaction, rej),
            Message::Mra(mra) => self.on_mra(now, route, transaction, mra),
            Message::Dreq(dreq) => self.on_dreq(now, route, transaction, dreq),
            Message::Drep(drep) => self.on_drep(now, route, drep),
            Message::SidrReq(_) | Message::SidrRep(_) | Message::Lap(_) | Message::Apr(_) => {
                self.counters.unsupported += 1;
            }
        }
    }

    fn expire(&mut self, now: Instant, index: u32) {
        self.retry_or_give_up(now, index);
    }

    fn forget(&mut self, index: u32) {
        self.table.remove(index);
    }
}

impl<R: Random> NodeCm<R> {
    /// Takes a management datagram that came to QP1; `from` is the path it took. Whatever its bytes
    /// are, it is counted, and moves nothing unless all of it agrees with a handshake.
    pub fn handle_mad(&mut self, now: Instant, from: &Path, mad: &[u8; MAD_LEN]) {
        self.handle_datagram(now, from, mad);
    }

    /// An ICMP error came that quotes an ask of `remote`: nobody listens there. By the second one,
    /// 200 ms or more after the first, the ask ends with [`Event::Nobody`]. Errors that fit no ask
    /// are counted.
    pub fn handle_refused(&mut self, now: Instant, remote: IpAddr, quote: &Quote) {
        let remote = remote.to_canonical();
        let found = self.table.find(quote.local);
        let found = found.filter(|&index| self.table.route(index).remote == remote);
        let is_it = |index: &u32| match self.table.slot(*index).state() {
            State::ReqSent(state) => state.transaction == quote.transaction,
            _ => false,
        };
        let Some(index) = found.filter(is_it) else {
            self.counters.misquoted += 1;
            return;
        };
        let over = self.table.update(index, |state| match state {
            State::ReqSent(state) => state.schedule.refused(now),
            _ => false,
        });
        if over {
            self.counters.nobody += 1;
            let (id, route) = (self.id(index), self.table.route(index));
            self.finish_with(index, Event::Nobody { id, route });
        }
    }

    fn on_rep(&mut self, now: Instant, route: Route, transaction: u64, rep: &Rep) {
        let Some(index) = self.find(route, rep.remote) else {
            // Whoever agreed to an ask that is over shall not wait for a confirmation.
            self.counters.unknown += 1;
            self.disown(route, transaction, rep.remote, rep.local);
            return;
        };
        let slot = self.table.slot(index);
        match slot.state() {
            State::ReqSent(state) if state.transaction == transaction => {
                self.on_answer(now, route, index, transaction, rep);
            }
            State::Established(_) if slot.remote() == rep.local => {
                self.counters.duplicate += 1;
                let rtu = message::rtu(self.table.ids(index));
                self.send(route, message::mad(transaction, rtu));
            }
            State::TimeWait { .. } if slot.remote() == rep.local => {
                self.counters.duplicate += 1;
                self.disown(route, transaction, rep.remote, rep.local);
            }
            _ => self.counters.mismatch += 1,
        }
    }

    fn disown(&mut self, route: Route, transaction: u64, local: CommId, remote: CommId) {
        let reason = RejReason::InvalidCommId;
        let rej = message::plain_rej(Ids { local, remote }, Answered::Rep, reason);
        self.send(route, message::mad(transaction, rej));
    }

    /// The answer to our ask.
    fn on_answer(&mut self, now: Instant, route: Route, index: u32, transaction: u64, rep: &Rep) {
        let id = self.id(index);
        let State::ReqSent(state) = self.table.slot(index).state() else {
            unreachable!("only an ask has an answer")
        };
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
        let (workers, toward) = (reply.end.workers, state.ask.toward);
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
            let (ask, resumed) = (state.ask, state.resumed);
            self.disown(route, transaction, rep.remote, rep.local);
            self.ask(now, index, ask, resumed);
            return;
        }
        let terms = state.on_rep(id, route, rep.qpn, &reply);
        self.table.set_remote(index, rep.local, rep.qpn);
        self.establish(now, index, terms);
        let rtu = message::rtu(self.table.ids(index));
        self.send(route, message::mad(transaction, rtu));
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

    fn on_rtu(&mut self, now: Instant, route: Route, transaction: u64, rtu: &Rtu) {
        let Some(index) = self.find_pair(route, rtu.remote, rtu.local) else {
            return;
        };
        match self.table.slot(index).state() {
            State::RepSent(state) if state.transaction == transaction => {
                self.confirmed(now, index);
            }
            State::Established(_) => self.counters.duplicate += 1,
            _ => self.counters.mismatch += 1,
        }
    }

    fn on_rej(&mut self, now: Instant, route: Route, transaction: u64, rej: &Rej) {
        // Who changed its mind about an ask does not know our number yet.
        let by_theirs = || {
            let exchange = Exchange::of(transaction);
            let index = self.table.find_theirs(route, rej.local, exchange)?;
            let fits = match self.table.slot(index).state() {
                State::ReqReceived(state) => state.transaction == transaction,
                State::RepSent(state) => state.transaction == transaction,
                _ => false,
            };
            fits.then_some(index)
        };
        let found = match rej.remote {
            CommId(0) => by_theirs(),
            ours => self.find(route, ours),
        };
        let Some(index) = found else {
            self.counters.unknown += 1;
            return;
        };
        let id = self.id(index);
        let slot = self.table.slot(index);
        match slot.state() {
            State::ReqSent(state) if state.transaction == transaction => {
                let event = match verdict(rej) {
                    Verdict::NotTrunkline => Event::NotTrunkline { id, route },
                    Verdict::Refused(reason) => Event::Refused { id, route, reason },
                };
                self.finish_with(index, event);
            }
            State::ReqReceived(state)
                if state.transaction == transaction && slot.remote() == rej.local =>
            {
                self.finish(index, abandonment(rej));
            }
            State::RepSent(state)
                if state.transaction == transaction && slot.remote() == rej.local =>
            {
                self.abandoned(now, index, abandonment(rej));
            }
            // The acceptor gave up waiting for a confirmation that was lost. Its transaction is
            // not kept; both numbers have to be right.
            State::Established(_) if slot.remote() == rej.local => {
                self.finish_later(now, index, abandonment(rej));
            }
            _ => self.counters.mismatch += 1,
        }
    }

    fn on_mra(&mut self, now: Instant, route: Route, transaction: u64, mra: &Mra) {
        let Some(index) = self.find(route, mra.remote) else {
            self.counters.unknown += 1;
            return;
        };
        let extended = self.table.update(index, |state| match state.waiting() {
            Some((expected, schedule)) if expected == transaction => {
                let extended = schedule.extended(now, mra.service_timeout, Patience::SHORT);
                *schedule = extended.unwrap_or(*schedule);
                true
            }
            _ => false,
        });
        self.counters.mismatch += u64::from(!extended);
    }

    fn on_dreq(&mut self, now: Instant, route: Route, transaction: u64, dreq: &Dreq) {
        let ids = Ids {
            local: dreq.remote,
            remote: dreq.local,
        };
        let drep = message::mad(transaction, message::drep(ids));
        let Some(index) = self.find(route, dreq.remote) else {
            // Closed and forgotten: the answer was lost.
            self.counters.unknown += 1;
            self.send(route, drep);
            return;
        };
        let slot = self.table.slot(index);
        if slot.remote() != dreq.local {
            self.counters.mismatch += 1;
            return;
        }
        match slot.state() {
            State::Established(_) | State::RepSent(_) => {
                self.finish_later(now, index, CloseReason::Peer);
            }
            State::DreqSent(_) => self.finish_later(now, index, CloseReason::Local),
            State::TimeWait { .. } => self.counters.duplicate += 1,
            _ => {
                self.counters.mismatch += 1;
                return;
            }
        }
        self.send(route, drep);
    }

    fn on_drep(&mut self, now: Instant, route: Route, drep: &Drep) {
        let Some(index) = self.find_pair(route, drep.remote, drep.local) else {
            return;
        };
        match self.table.slot(index).state() {
            State::DreqSent(_) => self.finish_later(now, index, CloseReason::Local),
            State::TimeWait { .. } => self.counters.duplicate += 1,
            _ => self.counters.mismatch += 1,
        }
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

fn abandonment(rej: &Rej) -> CloseReason {
    CloseReason::Abandoned(refused(rej))
}
