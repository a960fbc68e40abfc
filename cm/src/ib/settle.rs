//! How connections come to stand, and how they end.

use super::IbCm;
use super::event::{CloseReason, CmId, Event, UnknownConn};
use super::message;
use super::state::{Confirmation, State};
use crate::credit::Credit;
use crate::message::mad;
use crate::random::Random;
use crate::records::Records;
use crate::retry::Schedule;
use crate::setup::Setup;
use alloc::boxed::Box;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{Answered, PrivateData, RejReason};

impl<R: Random> IbCm<R> {
    /// Confirms what the peer agreed to: the QP of this end is ready. Call
    /// [`confirm`](Self::confirm) when something comes from the peer's QP.
    ///
    /// # Errors
    /// The connection does not wait for that.
    pub fn ready(
        &mut self,
        now: Instant,
        id: CmId,
        private_data: PrivateData<224>,
    ) -> Result<(), UnknownConn> {
        let (index, transaction) = self.undecided(id, |state| match state {
            State::Replied(replied) => Some(replied.transaction),
            _ => None,
        })?;
        let rtu = mad(transaction, message::rtu(self.ids(index), private_data));
        let again = Schedule::start(now, self.config.reply, self.random.next());
        let kept = Box::new(Confirmation {
            transaction,
            mad: rtu,
            again: Some(again),
        });
        self.table.set_state(index, State::Established(Some(kept)));
        self.send_in(index, rtu);
        self.established(index, PrivateData::default());
        Ok(())
    }

    /// A packet came in on the QP of a connection: the peer's QP is connected. If this end accepted
    /// and was not told so yet, the RTU is late or lost; if it asked, it says its RTU no more.
    ///
    /// # Errors
    /// The connection waits for no confirmation, and has sent none.
    pub fn confirm(&mut self, id: CmId) -> Result<(), UnknownConn> {
        let (index, accepted) = self.undecided(id, |state| match state {
            State::RepSent(_) => Some(true),
            State::Established(Some(_)) => Some(false),
            _ => None,
        })?;
        if accepted {
            self.confirmed(index, PrivateData::default());
        } else {
            self.table.update(index, State::stop_repeating);
        }
        Ok(())
    }

    /// The peer confirmed, by RTU or by a packet on the connection.
    pub(super) fn confirmed(&mut self, index: u32, private_data: PrivateData<224>) {
        *self.table.credit(index) = Credit::Proved;
        self.table.set_state(index, State::Established(None));
        self.established(index, private_data);
    }

    pub(super) fn established(&mut self, index: u32, private_data: PrivateData<224>) {
        self.events.push_back(Event::Established {
            id: self.conn(index),
            route: self.table.slot(index).route,
            private_data,
        });
    }

    /// Asks the peer to end a connection that stands.
    pub(super) fn disconnect(
        &mut self,
        now: Instant,
        index: u32,
        reason: CloseReason,
        private_data: PrivateData<220>,
    ) {
        let (qpn, _) = self.table.slot(index).remote_qp().unwrap_or_default();
        let transaction = self.random.next();
        let dreq = message::dreq(self.ids(index), qpn, private_data);
        let retry = self.config.close;
        let sent = self.send_first(now, index, transaction, mad(transaction, dreq), retry);
        self.table.set_state(index, State::DreqSent(sent, reason));
    }

    /// Tells the peer that it was given up.
    pub(super) fn send_timeout(&mut self, index: u32, transaction: u64) {
        let rej = message::timeout_rej(self.ids(index), self.guid(index));
        self.send_last(index, mad(transaction, rej));
    }

    /// Waits for the peer's confirmation no longer. The peer may have confirmed, and take the
    /// connection for standing: if its address is proved, it is told until it has agreed to the
    /// end, as nobody answers a REJ. If not, nothing of it came since its REQ, and one REJ is all
    /// that may still go there.
    pub(super) fn give_up_answer(
        &mut self,
        now: Instant,
        index: u32,
        transaction: u64,
        reason: CloseReason,
    ) {
        self.send_timeout(index, transaction);
        if self.table.is_proved(index) {
            self.disconnect(now, index, reason, PrivateData::default());
        } else {
            self.end(now, index, reason);
        }
    }

    /// Ends a connection, or a peer's attempt at one.
    pub(super) fn end(&mut self, now: Instant, index: u32, reason: CloseReason) {
        self.end_saying(now, index, reason, PrivateData::default());
    }

    pub(super) fn end_saying(
        &mut self,
        now: Instant,
        index: u32,
        reason: CloseReason,
        private_data: PrivateData<224>,
    ) {
        let event = Event::Closed {
            id: self.conn(index),
            route: self.table.slot(index).route,
            reason,
            private_data,
        };
        self.end_with(now, index, event);
    }

    /// The peer, or this end, refused.
    pub(super) fn rejected(
        &mut self,
        now: Instant,
        index: u32,
        refused: Answered,
        reason: RejReason,
        private_data: PrivateData<148>,
    ) {
        let event = Event::Rejected {
            id: self.conn(index),
            route: self.table.slot(index).route,
            refused,
            reason,
            private_data,
        };
        self.end_with(now, index, event);
    }

    /// Ends a record with `event`. Where the peer may have begun to use the QP it is remembered for
    /// a while, so that late packets and messages are known for what they are.
    pub(super) fn end_with(&mut self, now: Instant, index: u32, event: Event) {
        let lingers = match self.table.slot(index).state() {
            State::Replied(_) | State::RepSent(_) | State::Established(_) | State::DreqSent(..) => {
                true
            }
            // The peer takes the QP for connected still.
            State::ReqSent(_) => matches!(
                event,
                Event::Rejected {
                    reason: RejReason::StaleConnection,
                    ..
                }
            ),
            _ => false,
        };
        self.events.push_back(event);
        if lingers {
            let until = now + self.config.time_wait_ns;
            self.remember(index, State::TimeWait { until });
        } else {
            self.table.remove(index);
        }
    }

    /// Moves a record to a state that only time ends.
    pub(super) fn remember(&mut self, index: u32, state: State) {
        self.table.set_state(index, state);
        self.linger(index);
    }

    /// What was over is forgotten: its QP may be used again.
    pub(super) fn release(&mut self, index: u32) {
        if let Some(qpn) = self.table.slot(index).local_qpn() {
            let id = self.conn(index);
            self.events.push_back(Event::TimeWaitExit { id, qpn });
        }
        self.table.remove(index);
    }

    /// Nobody answers, decides or confirms; or the peer is to be asked for patience.
    pub(super) fn timed_out(&mut self, now: Instant, index: u32) {
        match self.table.slot(index).state() {
            State::ReqSent(sent) => {
                let transaction = sent.transaction;
                self.send_timeout(index, transaction);
                self.unreachable(now, index);
            }
            State::SidrSent(_) => self.unreachable(now, index),
            State::RepSent(sent) => {
                let transaction = sent.transaction;
                self.give_up_answer(now, index, transaction, CloseReason::Unconfirmed);
            }
            State::DreqSent(_, reason) => {
                let reason = *reason;
                self.end(now, index, reason);
            }
            State::ReqReceived(undecided) => {
                let (transaction, over) = (undecided.transaction, undecided.decide_by <= now);
                self.late(now, index, transaction, Answered::Req, over);
            }
            State::Replied(undecided) => {
                let (transaction, over) = (undecided.transaction, undecided.decide_by <= now);
                self.late(now, index, transaction, Answered::Rep, over);
            }
            State::SidrReqReceived(..) => self.refuse_question(now, index),
            // It was confirmed as often as may be.
            State::Established(_) => {}
            state => unreachable!("a {state:?} has no deadline"),
        }
    }

    fn unreachable(&mut self, now: Instant, index: u32) {
        let event = Event::Unreachable {
            id: self.conn(index),
            route: self.table.slot(index).route,
        };
        self.end_with(now, index, event);
    }

    /// The node's owner takes its time, or has taken too much of it.
    fn late(&mut self, now: Instant, index: u32, transaction: u64, what: Answered, over: bool) {
        if over {
            let rej = message::rej(self.ids(index), what, RejReason::NoResources);
            self.send_last(index, mad(transaction, rej));
            self.end(now, index, CloseReason::Undecided);
            return;
        }
        self.table.update(index, |state| {
            if let State::ReqReceived(undecided) | State::Replied(undecided) = state {
                undecided.mra_at = None;
            }
        });
        self.counters.late += 1;
        self.send_mra(index, transaction, what);
    }

    pub(super) fn send_mra(&mut self, index: u32, transaction: u64, what: Answered) {
        let mra = message::mra(self.ids(index), what, self.config.mra_timeout);
        self.send_in(index, mad(transaction, mra));
    }
}
