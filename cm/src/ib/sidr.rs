//! Questions for datagram services (SIDR).

use super::event::{CmId, Event, RequestError, SidrAnswer, SidrRequest};
use super::state::{Answered as Kept, State};
use super::table::Subject;
use super::{IbCm, check_qpn, message};
use crate::event::Route;
use crate::message::mad;
use crate::random::Random;
use crate::records::Records;
use crate::retry::Retry;
use crate::room::Room;
use crate::setup::Setup;
use alloc::boxed::Box;
use trunkline_conn::time::Instant;
use trunkline_wire::cm::{CommId, PrivateData, SidrRep, SidrReq, SidrStatus};
use trunkline_wire::{Qpn, ServiceId};

impl<R: Random> IbCm<R> {
    /// Asks a peer which QP serves a datagram service.
    ///
    /// # Errors
    /// Too much is under way, or the addresses are of two families.
    pub fn ask(
        &mut self,
        now: Instant,
        route: Route,
        question: &SidrRequest,
        retry: Retry,
    ) -> Result<CmId, RequestError> {
        let route = self.room_for_request(route)?;
        let index = self.table.insert(route, &mut self.random);
        let transaction = self.random.next();
        let request = mad(
            transaction,
            message::sidr_req(self.table.id(index), question),
        );
        let sent = self.send_first(now, index, transaction, request, retry);
        self.table.set_state(index, State::SidrSent(sent));
        Ok(self.conn(index))
    }

    /// Answers a peer's question. [`Event::SidrClosed`] follows.
    ///
    /// # Errors
    /// It does not wait for an answer, or the answer names a QP that cannot be.
    pub fn answer(
        &mut self,
        now: Instant,
        id: CmId,
        answer: &SidrAnswer,
    ) -> Result<(), super::AcceptError> {
        let (index, (transaction, service_id)) = self.undecided(id, |state| match state {
            State::SidrReqReceived(undecided, service) => Some((undecided.transaction, *service)),
            _ => None,
        })?;
        if answer.status == SidrStatus::Success {
            check_qpn(answer.qpn)?;
        }
        self.answer_question(now, index, transaction, service_id, answer);
        Ok(())
    }

    pub(super) fn on_sidr_req(
        &mut self,
        now: Instant,
        route: Route,
        transaction: u64,
        req: &SidrReq,
    ) {
        if let Some(index) = self.find_theirs(route, Subject::Question, req.request) {
            self.counters.duplicate += 1;
            self.table.credit(index).earn();
            if let State::SidrDone { answer, .. } = self.table.slot(index).state()
                && answer.transaction == transaction
            {
                let again = answer.mad;
                self.send_in(index, again);
            }
            return;
        }
        let status = if !self.services.contains(&req.service_id.0) {
            self.counters.no_service += 1;
            SidrStatus::Unsupported
        } else if req.request == CommId(0) {
            self.counters.invalid += 1;
            SidrStatus::Refused
        } else {
            match self.room(route) {
                Room::Enough => return self.take_question(now, route, transaction, req),
                Room::PeerHasItsShare => self.counters.unfair += 1,
                Room::Share => self.counters.over_share += 1,
                Room::None => self.counters.busy += 1,
            }
            SidrStatus::NoQp
        };
        let rep = message::sidr_rep(req.request, req.service_id, &no(status));
        self.send_to(route, mad(transaction, rep));
    }

    fn take_question(&mut self, now: Instant, route: Route, transaction: u64, req: &SidrReq) {
        let index = self.table.insert(route, &mut self.random);
        self.table.set_theirs(index, Subject::Question, req.request);
        let mut undecided = self.decision(now, transaction, 0);
        // There is no MRA to a question.
        undecided.mra_at = None;
        let state = State::SidrReqReceived(undecided, req.service_id);
        self.table.set_state(index, state);
        self.events.push_back(Event::SidrIncoming {
            id: self.conn(index),
            route,
            question: SidrRequest {
                service_id: req.service_id,
                pkey: req.pkey,
                private_data: req.private_data,
            },
        });
    }

    /// Nobody decided, or it was decided against.
    pub(super) fn refuse_question(&mut self, now: Instant, index: u32) {
        let State::SidrReqReceived(undecided, service) = self.table.slot(index).state() else {
            unreachable!("only undecided questions come here")
        };
        let (transaction, service_id) = (undecided.transaction, *service);
        self.answer_question(now, index, transaction, service_id, &no(SidrStatus::NoQp));
    }

    fn answer_question(
        &mut self,
        now: Instant,
        index: u32,
        transaction: u64,
        service_id: ServiceId,
        answer: &SidrAnswer,
    ) {
        let request = self.table.slot(index).remote();
        let rep = mad(transaction, message::sidr_rep(request, service_id, answer));
        self.send_in(index, rep);
        let id = self.conn(index);
        self.events.push_back(Event::SidrClosed { id });
        let until = now + self.config.time_wait_ns;
        let answer = Box::new(Kept {
            transaction,
            mad: rep,
        });
        self.remember(index, State::SidrDone { until, answer });
    }

    /// The node's owner does not want to know any more.
    pub(super) fn end_question(&mut self, index: u32) {
        let id = self.conn(index);
        self.events.push_back(Event::SidrClosed { id });
        self.table.remove(index);
    }

    pub(super) fn on_sidr_rep(
        &mut self,
        now: Instant,
        route: Route,
        transaction: u64,
        rep: &SidrRep,
    ) {
        let Some(index) = self.find(route, rep.request) else {
            self.counters.unknown += 1;
            return;
        };
        match self.table.slot(index).state() {
            State::SidrSent(sent) if sent.transaction == transaction => {
                let event = Event::SidrAnswered {
                    id: self.conn(index),
                    route,
                    answer: SidrAnswer {
                        status: rep.status,
                        qpn: rep.qpn,
                        qkey: rep.qkey,
                        private_data: rep.private_data,
                    },
                };
                self.end_with(now, index, event);
            }
            _ => self.counters.mismatch += 1,
        }
    }
}

fn no(status: SidrStatus) -> SidrAnswer {
    SidrAnswer {
        status,
        qpn: Qpn::from_wire(0),
        qkey: 0,
        private_data: PrivateData::default(),
    }
}
