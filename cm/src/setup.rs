//! The steps by which connections are set up and ended, the same for both managers.
//!
//! ```text
//!   this end asks    ReqSent --REP--> answered (Replied) ---> Established
//!   the peer asks    ReqReceived --accept--> RepSent --RTU--> Established
//!   either ends      DreqSent --DREP, DREQ--> TimeWait --time--> forgotten
//! ```
//!
//! A message without an answer goes out again until its tries are used up, and an MRA lengthens the
//! wait. A message moves a record only where its numbers and transaction agree with the record; a
//! message about a connection that is over is answered where the peer may take the connection for
//! standing.
//!
//! Where the managers differ, they decide: in the functions of [`Setup`] that have no body, and in
//! those that one of them overrides. Each manager alone decides what a REQ means, above all one
//! that crosses its own.

use crate::event::Route;
use crate::message::{self, Mad, mad};
use crate::phase::Phase;
use crate::quote::Quote;
use crate::records::Records;
use crate::retry::{Patience, Retry, Schedule};
use crate::slots::{self, Due, Record};
use core::net::IpAddr;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{
    Answered, CmMad, CommId, Drep, Dreq, Message, Mra, PrivateData, Rej, RejReason, Rep, Rtu,
};
use trunkline_wire::{MAD_LEN, Path};

#[cfg(test)]
mod noting;
#[cfg(test)]
mod tests;

/// A message that the peer has to answer.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) transaction: u64,
    pub(crate) schedule: Schedule,
    pub(crate) mad: Mad,
}

impl Sent {
    /// Its deadline has passed. Returns the message, to go out again, unless all tries are used up.
    pub(crate) fn again(&mut self, now: Instant, random: u64) -> Option<Mad> {
        self.schedule = self.schedule.again(now, random)?;
        Some(self.mad)
    }
}

/// Where a record stands, as far as the steps go by it.
pub(crate) trait SetupState: slots::State {
    /// How it looks from outside.
    fn phase(&self) -> Phase;
    /// The transaction that is under way.
    fn transaction(&self) -> Option<u64>;
    /// The message that the peer has to answer.
    fn sent(&mut self) -> Option<&mut Sent>;

    /// Whether an MRA to our message `what` may lengthen the wait. Nodes do not look at `what`: no
    /// handshake of theirs has two messages under way.
    fn may_wait_longer(&self, _what: Answered) -> bool {
        matches!(self.phase(), Phase::ReqSent | Phase::RepSent)
    }

    /// A deadline has passed. Returns the message that goes out again; `None` if there is none, or
    /// if all its tries are used up.
    fn repeat(&mut self, now: Instant, random: u64) -> Option<Mad> {
        self.sent()?.again(now, random)
    }
}

/// The state of a record of a manager.
type StateOf<M> = <<M as Records>::Record as Record>::State;

/// A manager, as the steps see it.
pub(crate) trait Setup: Records<Record: Record<State: SetupState>> {
    /// Returns a random number.
    fn draw(&mut self) -> u64;
    /// How far a peer may ask for more time.
    fn patience(&self) -> Patience;
    /// Changes what a state holds, its deadline included.
    fn update<T>(&mut self, index: u32, change: impl FnOnce(&mut StateOf<Self>) -> T) -> T;
    /// Sends what belongs to a record, if that much may go to its peer's address.
    fn send_in(&mut self, index: u32, mad: Mad);
    /// Sends what belongs to no record.
    fn send_to(&mut self, route: Route, mad: Mad);

    /// Returns the record of the peer's request, by the peer's number `remote`: a peer that gives
    /// up its request may not know our number.
    fn find_request(&self, route: Route, transaction: u64, remote: CommId) -> Option<u32>;
    /// Returns the RTU of a connection that stands, for a peer that says its REP again; `None`
    /// where this end has not confirmed that REP.
    fn confirmation(&self, index: u32, transaction: u64) -> Option<Mad>;

    /// The peer agreed to our REQ.
    fn when_answered(&mut self, now: Instant, index: u32, rep: &Rep);
    /// The peer confirmed that it has our REP.
    fn when_confirmed(&mut self, now: Instant, index: u32, rtu: &Rtu);
    /// The peer refused our REQ, or takes its REP back.
    fn when_refused(&mut self, now: Instant, index: u32, rej: &Rej);
    /// The peer gave up its REQ, or the connection that came of it.
    fn when_abandoned(&mut self, now: Instant, index: u32, rej: &Rej);
    /// The peer ended the connection, or agreed to its end.
    fn when_ended(&mut self, now: Instant, index: u32, said: PrivateData<224>);
    /// The peer's host said for long enough that nobody listens there.
    fn when_nobody(&mut self, now: Instant, index: u32);
    /// All tries are used up, or it is time for something else that the state waits for.
    fn when_timed_out(&mut self, now: Instant, index: u32);

    /// The peer has shown that it reads what is sent to its address.
    fn when_proved(&mut self, _index: u32) {}
    /// The peer confirms what is not there.
    fn when_unknown_confirmed(&mut self, _route: Route, _transaction: u64, _rtu: &Rtu) {}
    /// Whether a DREQ is about the connection of a record.
    fn is_of(&self, index: u32, dreq: &Dreq) -> bool {
        self.remote_of(index) == dreq.local
    }
    /// A message names a record, and none of the steps takes it in that record's state.
    fn hear_unexpected(
        &mut self,
        _now: Instant,
        _index: u32,
        _transaction: u64,
        _message: &Message,
    ) {
        *self.counts().mismatch += 1;
    }
    /// A message that none of the steps is for: a REQ, or one that is not of set-up.
    fn hear_other(&mut self, now: Instant, route: Route, transaction: u64, message: &Message);

    /// Returns a message that the peer has to answer, with its first try counted; the caller sends
    /// it.
    fn begin(&mut self, now: Instant, transaction: u64, mad: Mad, retry: Retry) -> Sent {
        Sent {
            transaction,
            schedule: Schedule::start(now, retry, self.draw()),
            mad,
        }
    }

    /// A management datagram that took `from`.
    fn handle_datagram(&mut self, now: Instant, from: &Path, bytes: &[u8; MAD_LEN]) {
        let parsed = CmMad::parse(bytes);
        let counts = self.counts();
        *counts.received += 1;
        match parsed {
            Ok(mad) => self.hear(now, Route::back(from).canonical(), &mad),
            Err(_) => *counts.malformed += 1,
        }
    }

    /// Does what is due.
    fn handle_time(&mut self, now: Instant) {
        while let Some(due) = self.slots_mut().due(now) {
            match due {
                Due::Deadline(index) => self.repeat_or_give_up(now, index),
                Due::Forget(index) => self.forget(index),
            }
        }
    }

    /// A message came from the peer at the other end of `route`.
    fn hear(&mut self, now: Instant, route: Route, mad: &CmMad) {
        let transaction = mad.transaction_id;
        let unexpected = match &mad.message {
            Message::Rep(rep) => self.on_rep(now, route, transaction, rep),
            Message::Rtu(rtu) => self.on_rtu(now, route, transaction, rtu),
            Message::Rej(rej) => self.on_rej(now, route, transaction, rej),
            Message::Mra(mra) => self.on_mra(now, route, transaction, mra),
            Message::Dreq(dreq) => self.on_dreq(now, route, transaction, dreq),
            Message::Drep(drep) => self.on_drep(now, route, drep),
            other => {
                self.hear_other(now, route, transaction, other);
                None
            }
        };
        if let Some(index) = unexpected {
            self.hear_unexpected(now, index, transaction, &mad.message);
        }
    }

    /// A deadline has passed: sends again, or gives up.
    fn repeat_or_give_up(&mut self, now: Instant, index: u32) {
        let random = self.draw();
        let (again, waited) = self.update(index, |state| {
            (state.repeat(now, random), state.sent().is_some())
        });
        match again {
            Some(mad) => self.send_in(index, mad),
            None => {
                *self.counts().silent += u64::from(waited);
                self.when_timed_out(now, index);
            }
        }
    }

    /// An ICMP error came that quotes a request to `remote`: nobody listens there.
    fn hear_quote(&mut self, now: Instant, remote: IpAddr, quote: &Quote) {
        let remote = remote.to_canonical();
        let found = self.slots().find(quote.local);
        let is_it = |index: &u32| {
            self.route_of(*index).remote == remote
                && matches!(self.phase(*index), Phase::ReqSent | Phase::SidrSent)
                && self.is_in(*index, quote.transaction)
        };
        let Some(index) = found.filter(is_it) else {
            *self.counts().misquoted += 1;
            return;
        };
        let refused = |sent: &mut Sent| sent.schedule.refused(now);
        if self.update(index, |state| state.sent().is_some_and(refused)) {
            *self.counts().nobody += 1;
            self.when_nobody(now, index);
        }
    }

    /// Where a record stands.
    fn phase(&self, index: u32) -> Phase {
        self.slots().get(index).state().phase()
    }

    /// Whether a transaction is the one that is under way.
    fn is_in(&self, index: u32, transaction: u64) -> bool {
        self.slots().get(index).state().transaction() == Some(transaction)
    }

    /// A REP came. Where the message names a record and this step does not take it in that record's
    /// state, this function returns the record; so do the functions below.
    fn on_rep(&mut self, now: Instant, route: Route, transaction: u64, rep: &Rep) -> Option<u32> {
        let disown = || {
            let reason = RejReason::InvalidCommId;
            let rej = Rej::new(rep.remote, rep.local, Answered::Rep, reason);
            mad(transaction, rej)
        };
        let Some(index) = self.find(route, rep.remote) else {
            // A peer that agreed to a request that is over must not wait for a confirmation.
            *self.counts().unknown += 1;
            self.send_to(route, disown());
            return None;
        };
        let same = self.remote_of(index) == rep.local;
        let again = match self.phase(index) {
            Phase::ReqSent if self.is_in(index, transaction) => {
                self.when_answered(now, index, rep);
                return None;
            }
            Phase::Established if same => self.confirmation(index, transaction),
            Phase::TimeWait if same => Some(disown()),
            _ => None,
        };
        let Some(again) = again else {
            return Some(index);
        };
        *self.counts().duplicate += 1;
        self.send_in(index, again);
        None
    }

    fn on_rtu(&mut self, now: Instant, route: Route, transaction: u64, rtu: &Rtu) -> Option<u32> {
        let Some(index) = self.find(route, rtu.remote) else {
            *self.counts().unknown += 1;
            self.when_unknown_confirmed(route, transaction, rtu);
            return None;
        };
        let same = self.remote_of(index) == rtu.local;
        match self.phase(index) {
            Phase::RepSent if same && self.is_in(index, transaction) => {
                self.when_confirmed(now, index, rtu);
            }
            Phase::Established if same => *self.counts().duplicate += 1,
            _ => return Some(index),
        }
        None
    }

    fn on_rej(&mut self, now: Instant, route: Route, transaction: u64, rej: &Rej) -> Option<u32> {
        // A peer that gave up its own request may not know our number.
        let found = match rej.remote {
            CommId(0) => self.find_request(route, transaction, rej.local),
            ours => self.find(route, ours),
        };
        let Some(index) = found else {
            *self.counts().unknown += 1;
            return None;
        };
        let same = self.remote_of(index) == rej.local;
        // An end may not keep the transaction of a connection that stands, so for such a connection
        // both numbers have to be right.
        let named = same && rej.remote != CommId(0);
        let fits = self.is_in(index, transaction);
        match self.phase(index) {
            Phase::ReqSent if fits => self.when_refused(now, index, rej),
            Phase::Replied if named && fits => self.when_refused(now, index, rej),
            Phase::ReqReceived | Phase::RepSent if same && fits => {
                self.when_abandoned(now, index, rej);
            }
            // The peer gave up waiting for a confirmation that was lost.
            Phase::Established if named => self.when_abandoned(now, index, rej),
            _ => return Some(index),
        }
        None
    }

    fn on_mra(&mut self, now: Instant, route: Route, transaction: u64, mra: &Mra) -> Option<u32> {
        let Some(index) = self.find(route, mra.remote) else {
            *self.counts().unknown += 1;
            return None;
        };
        let patience = self.patience();
        let fits = self.update(index, |state| {
            let may = state.may_wait_longer(mra.received);
            let sent = state
                .sent()
                .filter(|sent| may && sent.transaction == transaction);
            sent.is_some_and(|sent| {
                let extended = sent.schedule.extended(now, mra.service_timeout, patience);
                sent.schedule = extended.unwrap_or(sent.schedule);
                true
            })
        });
        if !fits {
            return Some(index);
        }
        self.when_proved(index);
        None
    }

    fn on_dreq(
        &mut self,
        now: Instant,
        route: Route,
        transaction: u64,
        dreq: &Dreq,
    ) -> Option<u32> {
        let drep = mad(transaction, message::drep(dreq.remote, dreq.local));
        match self.find(route, dreq.remote) {
            // The connection is closed and forgotten here: our answer was lost.
            None => *self.counts().unknown += 1,
            Some(index) if !self.is_of(index, dreq) => return Some(index),
            Some(index) => match self.phase(index) {
                Phase::Established | Phase::RepSent | Phase::Replied | Phase::DreqSent => {
                    let said = PrivateData::new(dreq.private_data.bytes());
                    self.when_ended(now, index, said.expect("220 bytes fit into 224"));
                }
                Phase::TimeWait => *self.counts().duplicate += 1,
                _ => return Some(index),
            },
        }
        self.send_to(route, drep);
        None
    }

    fn on_drep(&mut self, now: Instant, route: Route, drep: &Drep) -> Option<u32> {
        let index = self.find_pair(route, drep.remote, drep.local)?;
        match self.phase(index) {
            Phase::DreqSent => self.when_ended(now, index, drep.private_data),
            Phase::TimeWait => *self.counts().duplicate += 1,
            _ => return Some(index),
        }
        None
    }
}
