//! What a peer says about a connection that is under way or stands.

use super::IbCm;
use super::event::{Answer, CloseReason, Event};
use super::message::{self, Ids};
use super::state::State;
use super::table::{Slot, Subject};
use crate::credit::Credit;
use crate::driver::{Counts, Driver, counts};
use crate::event::Route;
use crate::message::mad;
use crate::quote::Quote;
use crate::random::Random;
use crate::slots::Slots;
use core::net::IpAddr;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{
    Answered, ApStatus, CmMad, CommId, Drep, Dreq, Lap, Message, Mra, PrivateData, Rej, RejReason,
    Rep, Rtu,
};
use trunkline_wire::{MAD_LEN, Path, Qpn};

impl<R: Random> Driver for IbCm<R> {
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

    fn hear(&mut self, now: Instant, route: Route, mad: &CmMad) {
        let transaction = mad.transaction_id;
        match &mad.message {
            Message::Req(req) => self.on_req(now, route, transaction, req),
            Message::Mra(mra) => self.on_mra(now, route, transaction, mra),
            Message::Rej(rej) => self.on_rej(now, route, transaction, rej),
            Message::Rep(rep) => self.on_rep(now, route, transaction, rep),
            Message::Rtu(rtu) => self.on_rtu(route, transaction, rtu),
            Message::Dreq(dreq) => self.on_dreq(now, route, transaction, dreq),
            Message::Drep(drep) => self.on_drep(now, route, drep),
            Message::SidrReq(req) => self.on_sidr_req(now, route, transaction, req),
            Message::SidrRep(rep) => self.on_sidr_rep(now, route, transaction, rep),
            Message::Lap(lap) => self.on_lap(route, transaction, lap),
            // Nobody here proposes an alternate path.
            Message::Apr(apr) => match self.find(route, apr.remote) {
                Some(_) => self.counters.mismatch += 1,
                None => self.counters.unknown += 1,
            },
        }
    }

    fn expire(&mut self, now: Instant, index: u32) {
        self.retry_or_give_up(now, index);
    }

    fn forget(&mut self, index: u32) {
        self.release(index);
    }
}

impl<R: Random> IbCm<R> {
    /// Takes a management datagram that came to QP1; `from` is the path it took. Whatever its bytes
    /// are, it is counted, and moves nothing unless all of it agrees with a connection.
    pub fn handle_mad(&mut self, now: Instant, from: &Path, mad: &[u8; MAD_LEN]) {
        self.handle_datagram(now, from, mad);
    }

    /// An ICMP error came that quotes an ask: see
    /// [`NodeCm::handle_refused`](crate::NodeCm::handle_refused).
    pub fn handle_refused(&mut self, now: Instant, remote: IpAddr, quote: &Quote) {
        let remote = remote.to_canonical();
        let found = self.table.find(quote.local);
        let found = found.filter(|&index| self.table.slot(index).route.remote == remote);
        let is_it = |index: &u32| match self.table.slot(*index).state() {
            State::ReqSent(sent) | State::SidrSent(sent) => sent.transaction == quote.transaction,
            _ => false,
        };
        let Some(index) = found.filter(is_it) else {
            self.counters.misquoted += 1;
            return;
        };
        let over = |state: &mut State| state.sent().is_some_and(|at| at.schedule.refused(now));
        if self.table.update(index, over) {
            self.counters.nobody += 1;
            let event = Event::Nobody {
                id: self.conn(index),
                route: self.table.slot(index).route,
            };
            self.end_with(now, index, event);
        }
    }

    fn on_rep(&mut self, now: Instant, route: Route, transaction: u64, rep: &Rep) {
        let ids = Ids {
            local: rep.remote,
            remote: rep.local,
        };
        let disown = message::rej(ids, Answered::Rep, RejReason::InvalidCommId);
        let Some(index) = self.find(route, rep.remote) else {
            // Whoever agreed to an ask that is over shall not wait for a confirmation.
            self.counters.unknown += 1;
            self.send_to(route, mad(transaction, disown));
            return;
        };
        let slot = self.table.slot(index);
        let same = slot.remote() == rep.local;
        match slot.state() {
            State::ReqSent(sent) if sent.transaction == transaction => {
                self.on_answer(now, index, transaction, rep);
            }
            State::Replied(replied) if same && replied.transaction == transaction => {
                self.counters.duplicate += 1;
                // The network's own copy asks for nothing: who was to be patient was told so.
                if replied.mra_at.is_none() {
                    self.send_mra(index, transaction, Answered::Rep);
                }
            }
            State::Established(Some(kept)) if same && kept.transaction == transaction => {
                self.counters.duplicate += 1;
                let again = kept.mad;
                self.send(index, again);
            }
            // The DREQ under way tells the peer more than an RTU would.
            State::DreqSent(..) if same => self.counters.duplicate += 1,
            State::TimeWait { .. } if same => {
                self.counters.duplicate += 1;
                self.send(index, mad(transaction, disown));
            }
            _ => self.counters.mismatch += 1,
        }
    }

    /// The answer to our ask.
    fn on_answer(&mut self, now: Instant, index: u32, transaction: u64, rep: &Rep) {
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
            self.send(index, mad(transaction, rej));
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

    fn on_rtu(&mut self, route: Route, transaction: u64, rtu: &Rtu) {
        let ids = Ids {
            local: rtu.remote,
            remote: rtu.local,
        };
        let disown = message::rej(ids, Answered::Other, RejReason::InvalidCommId);
        let disown = mad(transaction, disown);
        let Some(index) = self.find(route, rtu.remote) else {
            // Whoever confirms what is over shall not take it for standing.
            self.counters.unknown += 1;
            self.send_to(route, disown);
            return;
        };
        let slot = self.table.slot(index);
        if slot.remote() != rtu.local {
            self.counters.mismatch += 1;
            return;
        }
        match slot.state() {
            State::RepSent(sent) if sent.transaction == transaction => {
                self.confirmed(index, rtu.private_data);
            }
            // The DREQ under way tells the peer more than a REJ would.
            State::Established(_) | State::DreqSent(..) => self.counters.duplicate += 1,
            State::TimeWait { .. } => {
                self.counters.duplicate += 1;
                self.send_to(route, disown);
            }
            _ => self.counters.mismatch += 1,
        }
    }

    fn on_rej(&mut self, now: Instant, route: Route, transaction: u64, rej: &Rej) {
        // Who gave up an ask of its own may not know our number.
        let found = match rej.remote {
            CommId(0) => self.find_asked(route, Subject::Connection, rej.local),
            ours => self.find(route, ours),
        };
        let Some(index) = found else {
            self.counters.unknown += 1;
            return;
        };
        let slot = self.table.slot(index);
        let same = slot.remote() == rej.local;
        // Of a connection that stands the transaction is not kept at both ends: both numbers have
        // to be right.
        let named = same && rej.remote != CommId(0);
        match slot.state() {
            State::ReqSent(sent) if sent.transaction == transaction => {
                self.rejected(now, index, rej.refused, rej.reason, rej.private_data);
            }
            State::Replied(replied) if named && replied.transaction == transaction => {
                self.rejected(now, index, rej.refused, rej.reason, rej.private_data);
            }
            State::ReqReceived(asked) if same && asked.transaction == transaction => {
                self.end(now, index, CloseReason::Abandoned(rej.reason));
            }
            State::RepSent(sent) if same && sent.transaction == transaction => {
                self.end(now, index, CloseReason::Abandoned(rej.reason));
            }
            State::Established(_) if named => {
                self.end(now, index, CloseReason::Abandoned(rej.reason));
            }
            State::DreqSent(_, reason) if named => {
                let reason = *reason;
                self.end(now, index, reason);
            }
            State::TimeWait { .. } if named => self.counters.duplicate += 1,
            _ => self.counters.mismatch += 1,
        }
    }

    fn on_mra(&mut self, now: Instant, route: Route, transaction: u64, mra: &Mra) {
        let Some(index) = self.find(route, mra.remote) else {
            self.counters.unknown += 1;
            return;
        };
        let patience = self.config.patience;
        let fits = self.table.update(index, |state| {
            let sent = match (state, mra.received) {
                (State::ReqSent(sent), Answered::Req) => sent,
                (State::RepSent(sent), Answered::Rep) => sent,
                _ => return false,
            };
            if sent.transaction != transaction {
                return false;
            }
            let extended = sent.schedule.extended(now, mra.service_timeout, patience);
            sent.schedule = extended.unwrap_or(sent.schedule);
            true
        });
        self.counters.mismatch += u64::from(!fits);
        if fits {
            *self.table.credit(index) = Credit::Proved;
        }
    }

    fn on_dreq(&mut self, now: Instant, route: Route, transaction: u64, dreq: &Dreq) {
        let ids = Ids {
            local: dreq.remote,
            remote: dreq.local,
        };
        let drep = mad(transaction, message::drep(ids));
        let Some(index) = self.find(route, dreq.remote) else {
            // Closed and forgotten: the answer was lost.
            self.counters.unknown += 1;
            self.send_to(route, drep);
            return;
        };
        let slot = self.table.slot(index);
        if slot.remote() != dreq.local || slot.local_qpn() != Some(dreq.remote_qpn) {
            self.counters.mismatch += 1;
            return;
        }
        let said = PrivateData::new(dreq.private_data.bytes());
        let said = said.expect("220 bytes fit into 224");
        match slot.state() {
            State::Established(_) | State::RepSent(_) | State::Replied(_) => {
                self.end_saying(now, index, CloseReason::Peer, said);
            }
            State::DreqSent(_, reason) => {
                let reason = *reason;
                self.end_saying(now, index, reason, said);
            }
            State::TimeWait { .. } => self.counters.duplicate += 1,
            _ => {
                self.counters.mismatch += 1;
                return;
            }
        }
        self.send_to(route, drep);
    }

    fn on_drep(&mut self, now: Instant, route: Route, drep: &Drep) {
        let Some(index) = self.find_pair(route, drep.remote, drep.local) else {
            return;
        };
        match self.table.slot(index).state() {
            State::DreqSent(_, reason) => {
                let reason = *reason;
                self.end_saying(now, index, reason, drep.private_data);
            }
            State::TimeWait { .. } => self.counters.duplicate += 1,
            _ => self.counters.mismatch += 1,
        }
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
