//! What a peer says about a connection that is under way or stands.

use super::IbCm;
use super::event::{Answer, CloseReason, Event};
use super::message;
use super::state::State;
use super::table::{Slot, Subject};
use crate::credit::Credit;
use crate::event::Route;
use crate::message::{Mad, mad};
use crate::quote::Quote;
use crate::random::Random;
use crate::records::{Counts, Records, counts};
use crate::retry::Patience;
use crate::setup::Setup;
use crate::slots::Slots;
use core::net::IpAddr;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{
    Answered, ApStatus, CommId, Dreq, Lap, Message, PrivateData, Rej, RejReason, Rep, Rtu,
};
use trunkline_wire::{MAD_LEN, Path, Qpn};

impl<R: Random> Records for IbCm<R> {
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
        self.table.slot(index).route
    }

    fn remote_of(&self, index: u32) -> CommId {
        self.table.slot(index).remote()
    }

    fn time_wait_limit(&self) -> u32 {
        self.config.limits.time_wait
    }

    fn forget(&mut self, index: u32) {
        self.release(index);
    }
}

impl<R: Random> Setup for IbCm<R> {
    fn draw(&mut self) -> u64 {
        self.random.next()
    }

    fn patience(&self) -> Patience {
        self.config.patience
    }

    fn update<T>(&mut self, index: u32, change: impl FnOnce(&mut State) -> T) -> T {
        self.table.update(index, change)
    }

    fn send_in(&mut self, index: u32, mad: Mad) {
        self.send_if(index, mad, Credit::spend_but_last);
    }

    fn send_to(&mut self, route: Route, mad: Mad) {
        self.transmit.push(route, mad);
        self.counters.transmit_full = self.transmit.dropped();
    }

    fn find_request(&self, route: Route, _transaction: u64, remote: CommId) -> Option<u32> {
        self.find_theirs(route, Subject::Connection, remote)
    }

    fn confirmation(&self, index: u32, transaction: u64) -> Option<Mad> {
        let State::Established(Some(kept)) = self.table.slot(index).state() else {
            return None;
        };
        (kept.transaction == transaction).then_some(kept.mad)
    }

    fn when_answered(&mut self, now: Instant, index: u32, rep: &Rep) {
        self.take_answer(now, index, rep);
    }

    fn when_confirmed(&mut self, _now: Instant, index: u32, rtu: &Rtu) {
        self.confirmed(index, rtu.private_data);
    }

    fn when_refused(&mut self, now: Instant, index: u32, rej: &Rej) {
        self.rejected(now, index, rej.refused, rej.reason, rej.private_data);
    }

    fn when_abandoned(&mut self, now: Instant, index: u32, rej: &Rej) {
        self.end(now, index, CloseReason::Abandoned(rej.reason));
    }

    fn when_ended(&mut self, now: Instant, index: u32, said: PrivateData<224>) {
        let reason = match self.table.slot(index).state() {
            State::DreqSent(_, reason) => *reason,
            _ => CloseReason::Peer,
        };
        self.end_saying(now, index, reason, said);
    }

    fn when_nobody(&mut self, now: Instant, index: u32) {
        let event = Event::Nobody {
            id: self.conn(index),
            route: self.table.slot(index).route,
        };
        self.end_with(now, index, event);
    }

    fn when_timed_out(&mut self, now: Instant, index: u32) {
        self.timed_out(now, index);
    }

    fn when_proved(&mut self, index: u32) {
        *self.table.credit(index) = Credit::Proved;
    }

    /// A peer that confirms what is over must not take it for standing.
    fn when_unknown_confirmed(&mut self, route: Route, transaction: u64, rtu: &Rtu) {
        let reason = RejReason::InvalidCommId;
        let rej = Rej::new(rtu.remote, rtu.local, Answered::Other, reason);
        self.send_to(route, mad(transaction, rej));
    }

    fn is_of(&self, index: u32, dreq: &Dreq) -> bool {
        let slot = self.table.slot(index);
        slot.remote() == dreq.local && slot.local_qpn() == Some(dreq.remote_qpn)
    }

    fn hear_unexpected(&mut self, now: Instant, index: u32, transaction: u64, message: &Message) {
        let slot = self.table.slot(index);
        let same = |remote: CommId| slot.remote() == remote;
        match (slot.state(), message) {
            (State::Replied(replied), Message::Rep(rep))
                if same(rep.local) && replied.transaction == transaction =>
            {
                self.counters.duplicate += 1;
                // Until the first MRA is due, only the network makes copies: they need no answer.
                if replied.mra_at.is_none() {
                    self.send_mra(index, transaction, Answered::Rep);
                }
            }
            // The DREQ under way tells the peer more than an RTU or a REJ would.
            (
                State::DreqSent(..),
                Message::Rep(Rep { local, .. }) | Message::Rtu(Rtu { local, .. }),
            ) if same(*local) => {
                self.counters.duplicate += 1;
            }
            (State::TimeWait { .. }, Message::Rtu(rtu)) if same(rtu.local) => {
                self.counters.duplicate += 1;
                self.when_unknown_confirmed(slot.route, transaction, rtu);
            }
            (State::DreqSent(..), Message::Rej(rej))
                if same(rej.local) && rej.remote != CommId(0) =>
            {
                self.when_ended(now, index, PrivateData::default());
            }
            (State::TimeWait { .. }, Message::Rej(rej))
                if same(rej.local) && rej.remote != CommId(0) =>
            {
                self.counters.duplicate += 1;
            }
            _ => self.counters.mismatch += 1,
        }
    }

    fn hear_other(&mut self, now: Instant, route: Route, transaction: u64, message: &Message) {
        match message {
            Message::Req(req) => self.on_req(now, route, transaction, req),
            Message::SidrReq(req) => self.on_sidr_req(now, route, transaction, req),
            Message::SidrRep(rep) => self.on_sidr_rep(now, route, transaction, rep),
            Message::Lap(lap) => self.on_lap(route, transaction, lap),
            // Nobody here proposes an alternate path.
            Message::Apr(apr) => match self.find(route, apr.remote) {
                Some(_) => self.counters.mismatch += 1,
                None => self.counters.unknown += 1,
            },
            step => unreachable!("a {} is of the steps", step.name()),
        }
    }
}

impl<R: Random> IbCm<R> {
    /// Takes a management datagram that came to QP1; `from` is the path it took. Whatever its bytes
    /// are, it is counted, and moves nothing unless all of it agrees with a connection.
    pub fn handle_mad(&mut self, now: Instant, from: &Path, mad: &[u8; MAD_LEN]) {
        self.handle_datagram(now, from, mad);
    }

    /// An ICMP error came that quotes a request: see
    /// [`NodeCm::handle_refused`](crate::NodeCm::handle_refused).
    pub fn handle_refused(&mut self, now: Instant, remote: IpAddr, quote: &Quote) {
        self.hear_quote(now, remote, quote);
    }

    /// The answer to our request.
    fn take_answer(&mut self, now: Instant, index: u32, rep: &Rep) {
        let State::ReqSent(sent) = self.table.slot(index).state() else {
            unreachable!("only a request has an answer")
        };
        let transaction = sent.transaction;
        let route = self.table.slot(index).route;
        let refusal = if rep.local == CommId(0) {
            self.counters.invalid += 1;
            Some(RejReason::InvalidCommId)
        } else if rep.qpn <= Qpn::GSI {
            self.counters.invalid += 1;
            Some(RejReason::InvalidCommInstance)
        } else {
            let stale = self.is_stale(now, route, rep.qpn, rep.ca_guid);
            stale.then_some(RejReason::StaleConnection)
        };
        self.table.set_remote(index, rep.local);
        if let Some(reason) = refusal {
            let rej = message::rej(self.ids(index), Answered::Rep, reason);
            self.send_in(index, mad(transaction, rej));
            self.rejected(now, index, Answered::Rep, reason, PrivateData::default());
            return;
        }
        let undecided = self.decision(now, transaction, u64::MAX);
        self.table.set_state(index, State::Replied(undecided));
        self.meet(index, rep.qpn, rep.ca_guid);
        self.events.push_back(Event::Replied {
            id: self.conn(index),
            route,
            answer: Answer::of(rep),
        });
    }

    /// Alternate paths are refused: InfiniBand's migration has no counterpart over RoCE here.
    fn on_lap(&mut self, route: Route, transaction: u64, lap: &Lap) {
        self.counters.alternate += 1;
        let known = self.find(route, lap.remote).is_some_and(|index| {
            let slot = self.table.slot(index);
            slot.remote() == lap.local && matches!(slot.state(), State::Established(_))
        });
        let status = if known {
            ApStatus::Unsupported
        } else {
            ApStatus::InvalidCommId
        };
        self.send_to(route, mad(transaction, message::apr(lap, status)));
    }
}
