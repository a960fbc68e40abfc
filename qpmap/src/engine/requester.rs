//! The requester: work requests become messages, answers become completions.

use super::qp::{Flags, LAST_WQE, Wire};
use super::requests::{Pending, Reads};
use super::timer::Timer;
use super::{Engine, Platform};
use crate::order::before;
use crate::slab::NONE;
use crate::state::QpState;
use trunkline_conn::host::QpEvent;
use trunkline_conn::mem::{Access, Memory, MemoryFault};
use trunkline_conn::time::Instant;
use trunkline_conn::work::{
    Completion, Extra, Local, Receive, Request, SendOp, Status, VendorError, WorkOpcode,
};
use trunkline_wire::{NakCode, Qpn, Syndrome, rnr_timer_ns};

impl<P: Platform> Engine<P> {
    /// A program posted to this QP. Gives how many requests were taken up at once, `most` at most.
    pub(crate) fn on_doorbell(&mut self, qp: u32, most: u32) -> u32 {
        if let Some(record) = self.qps.get(qp)
            && let Wire::Shared(flow) = record.wire
        {
            self.flows[flow].rung = true;
        }
        self.take_posted(qp, most)
    }

    /// Takes up what a program has posted to this QP, if it has. Gives how many requests were taken
    /// up at once, `most` at most: those of an app-managed QP, and of one that flushes them. Others
    /// are in their turn to send.
    pub(crate) fn take_posted(&mut self, qp: u32, most: u32) -> u32 {
        self.posted.heard();
        let Some(record) = self.qps.get(qp) else {
            return 0;
        };
        if matches!(record.state, QpState::Error | QpState::Sqe) {
            let flushed = match record.state {
                QpState::Error => self.flush(qp, most),
                _ => self.flush_sends(qp, most),
            };
            if flushed == most {
                // There may be more.
                self.posted.doorbells().ring(qp);
            }
            return flushed;
        }
        match record.wire {
            Wire::Shared(flow) => {
                self.ask_if_lapsed(flow);
                self.watch(flow);
                self.wake(flow);
            }
            // Each request names its route: none of them waits for another's.
            Wire::Routes => return self.fetch_routed_wqes(qp, most),
            Wire::Ibta(ibta) => self.feed_ibta(qp, ibta),
            Wire::None | Wire::Undecided(_) => {}
        }
        0
    }

    /// Whether a flow has no connection and waits for none: its peer is gone.
    fn is_dead(&self, flow: u32) -> bool {
        let record = &self.flows[flow];
        record.conn == NONE && !record.flags.has(Flags::STRANDED)
    }

    /// Takes the next work request of a QP from its ring and hangs it into the QP's own flow.
    /// `None`: there is none, or the QP went to error over it.
    pub(crate) fn fetch_wqe(&mut self, qp: u32, own: u32) -> Option<u32> {
        let record = &mut self.qps[qp];
        if record.state != QpState::Rts {
            return None;
        }
        let fetched = record.queues.send.fetch(&mut record.cursor);
        let (request, route, slots) = match fetched {
            Ok(Some(found)) => found,
            Ok(None) => {
                self.flows[own].rung = false;
                return None;
            }
            Err(_) => {
                self.qp_event(qp, QpEvent::Fatal);
                self.fail_qp(qp, Status::LocalQpOperation);
                return None;
            }
        };
        // It is looked at where it is kept: to do so before would copy it.
        let pending = Pending::new(qp, request, route, slots);
        let index = self.requests.post(&mut record.order, pending);
        if let Some(status) = self.fault_of(own, index) {
            self.halt(own, index, status);
            return None;
        }
        let record = &mut self.flows[own];
        self.requests
            .join((&mut record.head, &mut record.tail), index);
        if record.sending == NONE {
            record.sending = index;
            record.sent_bytes = 0;
        }
        Some(own)
    }

    /// Why a request that was taken up from the ring of a QP cannot go over the QP's own flow.
    #[inline(always)]
    fn fault_of(&self, own: u32, index: u32) -> Option<Status> {
        let Pending {
            qp, request, route, ..
        } = &self.requests[index];
        if *route != 0 || self.is_impossible(*qp, request) {
            return Some(Status::LocalQpOperation);
        }
        if self.is_dead(own) {
            return Some(Status::RetryExceeded);
        }
        let fault = self.local_fault(*qp, request);
        fault.map(|_| Status::LocalProtection)
    }

    /// A request that was taken up completes in its turn with `status`; nothing after it is sent.
    #[cold]
    fn halt(&mut self, own: u32, index: u32, status: Status) {
        let pending = &mut self.requests[index];
        pending.outcome = Some(status);
        let qp = pending.qp;
        self.flows[own].flags.set(Flags::HALTED);
        self.complete_in_order(qp);
    }

    /// Hangs a request into a flow, and into the order of its QP.
    #[inline(always)]
    pub(crate) fn hang(&mut self, flow: u32, pending: Pending) -> u32 {
        let qp = pending.qp;
        let record = &mut self.flows[flow];
        let index = self.requests.post(&mut self.qps[qp].order, pending);
        self.requests
            .join((&mut record.head, &mut record.tail), index);
        index
    }

    /// Whether no QP of this kind and with these attributes can do that.
    pub(crate) fn is_impossible(&self, qp: u32, request: &Request) -> bool {
        let reads = request.op.has_response_data();
        matches!(request.op, SendOp::SendTo(_))
            || reads && self.cold(qp).attributes.max_rd_atomic == 0
    }

    #[inline]
    pub(crate) fn local_fault(&self, qp: u32, request: &Request) -> Option<MemoryFault> {
        let Local::Sges(sges) = &request.local else {
            return None;
        };
        let access = if request.op.has_response_data() {
            Access::LOCAL_WRITE
        } else {
            Access::LOCAL_READ
        };
        self.regions
            .check_local(self.qps[qp].pd, sges, access)
            .err()
    }

    /// The peer has executed everything before `msn`.
    pub(crate) fn acknowledged(&mut self, flow: u32, msn: u32) {
        let record = &mut self.flows[flow];
        if before(record.acked_msn, msn) {
            record.acked_msn = msn;
            record.flags.clear(Flags::PROBING);
            // Patience with a receiver that is not ready is for each message anew.
            record.rnr_tries = 0;
        }
        self.complete_flow(flow);
    }

    /// Completes what can be completed, in order: acknowledged, and with its data back.
    pub(crate) fn complete_flow(&mut self, flow: u32) {
        let record = &self.flows[flow];
        // Only a request that was taken from the ring and not sent can have waited for this: what
        // is still in the ring follows it, or its doorbell rings.
        let (qp, waits) = (record.qp, record.sending != NONE);
        let routed = self.is_route(flow);
        loop {
            let record = &mut self.flows[flow];
            let head = record.head;
            if head == NONE {
                break;
            }
            let pending = &mut self.requests[head];
            if let Some(status) = pending.outcome {
                // It was refused while an earlier READ waited for its data.
                self.complete_in_order(qp);
                self.fail_flow(flow, status);
                return;
            }
            let data = pending.request.op.has_response_data();
            let executed = pending.begun && before(pending.msn, record.acked_msn);
            if !(executed && (!data || pending.responded)) {
                break;
            }
            pending.outcome = Some(Status::Success);
            record.in_vain.end();
            if pending.reading {
                pending.reading = false;
                record.reads_out -= 1;
            }
            record.head = pending.flow_next;
            if record.tail == head {
                record.tail = NONE;
            }
            if record.sending == head {
                record.sending = record.head;
                record.sent_bytes = 0;
            }
            self.requests.hand_on(head, record.head);
            if routed {
                // It waits for no other route's.
                self.report(head, Status::Success);
            }
        }
        self.complete_in_order(qp);
        if self.flows.get(flow).is_some() {
            self.try_move(flow);
            if waits {
                self.wake(flow);
            }
        }
    }

    /// Reports finished requests of a QP in posting order.
    pub(crate) fn complete_in_order(&mut self, qp: u32) {
        loop {
            let record = &self.qps[qp];
            let first = record.order.first().filter(|_| record.wire != Wire::Routes);
            let outcome = |at: u32| Some((at, self.requests[at].outcome?));
            let Some((head, outcome)) = first.and_then(outcome) else {
                self.check_drained(qp);
                return;
            };
            self.report(head, outcome);
            if outcome != Status::Success {
                self.enter_error(qp);
                return;
            }
        }
    }

    /// Tells the program once that a draining QP has nothing under way any more.
    pub(crate) fn check_drained(&mut self, qp: u32) {
        let record = &self.qps[qp];
        if record.state == QpState::Sqd && self.cold(qp).draining && self.is_quiet(qp) {
            self.cold_mut(qp).draining = false;
            self.qp_event(qp, QpEvent::SendQueueDrained);
        }
    }

    /// Takes a request off the list of its QP and reports it.
    pub(crate) fn report(&mut self, index: u32, status: Status) {
        let pending = &self.requests[index];
        let (slots, request) = (pending.slots, &pending.request);
        let record = &mut self.qps[pending.qp];
        let [cq, _] = record.queues.cqs;
        let asked = record.asked_for(request, status);
        let qpn = record.queues.qpn;
        let completion =
            self.completions
                .of_request(qpn, request, pending.route, (status, request.length));
        self.requests.end(&mut record.order, index);
        record.queues.send.release(slots);
        self.counters.completed.add(1);
        if asked {
            self.complete(cq, &completion);
        }
    }

    /// A completion for a send request that is in no list any more, unless it succeeded and nobody
    /// asked for one.
    pub(crate) fn report_sent(
        &mut self,
        qp: u32,
        request: &Request,
        route: u32,
        status: Status,
        bytes: u32,
    ) {
        self.counters.completed.add(1);
        let record = &self.qps[qp];
        if record.asked_for(request, status) {
            let (qpn, [cq, _]) = (record.queues.qpn, record.queues.cqs);
            let ended = (status, bytes);
            let completion = self.completions.of_request(qpn, request, route, ended);
            self.complete(cq, &completion);
        }
    }

    /// The peer answered a message of this flow.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        flow: u32,
        syndrome: Syndrome,
        msn: u32,
        replay_epoch: u8,
    ) {
        let record = &self.flows[flow];
        if before(record.next_msn, msn) {
            self.counters.bad_answer.add(1);
            return;
        }
        match syndrome {
            Syndrome::Ack { .. } => self.acknowledged(flow, msn),
            Syndrome::RnrNak { timer } if replay_epoch == record.replay_epoch => {
                self.acknowledged(flow, msn);
                self.not_ready(now, flow, msn, timer);
            }
            Syndrome::Nak(NakCode::PsnSequence)
                if replay_epoch == record.replay_epoch
                    || self.misses_data_of(flow, replay_epoch) =>
            {
                self.acknowledged(flow, msn);
                self.restart(flow, true);
                self.wake(flow);
            }
            Syndrome::Nak(NakCode::InvalidRd) if replay_epoch == record.replay_epoch => {
                // Nobody is there. That says nothing of earlier messages: theirs may come yet.
                self.counters.nak_received.add(1);
                if self.flows[flow].head != NONE && !self.flows.is_left(flow) {
                    self.because(VendorError::QpGone, |engine| {
                        engine.fail_flow(flow, Status::RetryExceeded);
                    });
                }
            }
            Syndrome::Nak(code) if replay_epoch == record.replay_epoch => {
                self.acknowledged(flow, msn);
                self.counters.nak_received.add(1);
                self.refused(flow, msn, code);
            }
            // About an earlier replay epoch: its messages were sent again since.
            _ => self.counters.stale.add(1),
        }
    }

    /// Whether data are outstanding that the peer sent in `replay_epoch`, or before. An epoch that
    /// follows a refusal does not ask for them again.
    fn misses_data_of(&self, flow: u32, replay_epoch: u8) -> bool {
        self.reads(flow).any(|at| {
            let pending = &self.requests[at];
            let sent = pending.reading && !pending.responded;
            sent && replay_epoch
                .wrapping_sub(pending.replay_epoch)
                .cast_signed()
                >= 0
        })
    }

    /// Whether some of message `msn`, which the peer has not executed, was sent in this epoch: else
    /// the peer can say nothing of it.
    fn has_sent(&self, flow: u32, msn: u32) -> bool {
        let record = &self.flows[flow];
        let sending = self.requests.get(record.sending).filter(|at| at.begun);
        sending.is_none_or(|next| before(msn, next.msn) || next.msn == msn && record.sent_bytes > 0)
    }

    /// Whether `msn` is the first message that the peer has not executed, and it is outstanding.
    /// READs before it may still wait for their data.
    pub(crate) fn is_next_executed(&self, flow: u32, msn: u32) -> bool {
        let record = &self.flows[flow];
        record.acked_msn == msn && before(msn, record.next_msn) && record.head != NONE
    }

    fn not_ready(&mut self, now: Instant, flow: u32, msn: u32, timer: u8) {
        let record = &self.flows[flow];
        let refused = self.is_next_executed(flow, msn) && self.has_sent(flow, msn);
        if !refused || record.flags.has(Flags::RNR_WAIT) {
            self.counters.stale.add(1);
            return;
        }
        self.counters.rnr_received.add(1);
        let retry = self.cold(record.qp).attributes.rnr_retry;
        let record = &mut self.flows[flow];
        if retry < 7 {
            if record.rnr_tries >= retry {
                let refused = self.first_unexecuted(flow);
                self.fail_message(flow, refused, Status::RnrRetryExceeded);
                return;
            }
            record.rnr_tries += 1;
        }
        record.flags.set(Flags::RNR_WAIT);
        record.in_vain.end();
        let key = Timer::Rnr(flow).key();
        self.timers.arm(now + rnr_timer_ns(timer), key);
    }

    pub(crate) fn rnr_over(&mut self, flow: u32) {
        self.restart(flow, false);
        self.flows[flow].flags.set(Flags::PROBING);
        self.wake(flow);
    }

    /// Sends again, in a new epoch, what the peer has not executed; after the death of a connection
    /// (`lost`) also what it has executed but not answered in full. What was asked for again in
    /// this epoch, and may not have been heard, is asked for once more: what the peer says of
    /// messages behind it does not tell. It takes a step for each request that was sent since the
    /// last restart.
    pub(crate) fn restart(&mut self, flow: u32, lost: bool) {
        let record = &mut self.flows[flow];
        if record.flags.has(Flags::RNR_WAIT) {
            record.flags.clear(Flags::RNR_WAIT);
            self.timers.cancel(Timer::Rnr(flow).key());
        }
        record.flags.clear(Flags::PROBING);
        if lost && record.sending == record.head && record.sent_bytes == 0 {
            // Nothing was sent since it was to be sent again, however often the peer says so.
            return;
        }
        let sending = self.requests.get(record.sending).filter(|at| at.begun);
        let unsent = sending.map(|at| at.msn);
        let partly = u32::from(record.sent_bytes > 0);
        let end = unsent.map_or(record.next_msn, |msn| msn.wrapping_add(partly));
        let first = match lost {
            true => record.head,
            false => self.requests.first_to_repeat(record.head, record.acked_msn),
        };
        record.sending = first;
        record.sent_bytes = 0;
        let (mut next, mut begun) = (first, false);
        let was_begun = |at: &&mut Pending| at.begun && before(at.msn, end);
        while let Some(pending) = self.requests.get_mut(next).filter(was_begun) {
            begun |= pending.replay_epoch == record.replay_epoch;
            // It counts again when its turn has come: nothing before it waits for it.
            record.reads_out -= u8::from(std::mem::take(&mut pending.reading));
            next = pending.flow_next;
        }
        // Of a replay epoch in which nothing was sent, nothing can come late.
        record.replay_epoch = record.replay_epoch.wrapping_add(u8::from(begun));
    }

    pub(crate) fn refused(&mut self, flow: u32, msn: u32, code: NakCode) {
        // A READ may be refused after its execution, when its data cannot be had any more.
        let is_unanswered = |at: &u32| !self.requests[*at].responded;
        let after_all = || self.find_read(flow, msn).filter(is_unanswered);
        let refused = match self.is_next_executed(flow, msn) {
            true => Some(self.first_unexecuted(flow)),
            false => after_all(),
        };
        let Some(refused) = refused else {
            self.counters.bad_answer.add(1);
            return;
        };
        let status = match code {
            NakCode::RemoteAccess => Status::RemoteAccess,
            NakCode::RemoteOperational => Status::RemoteOperation,
            NakCode::InvalidRequest => Status::RemoteInvalidRequest,
            _ => Status::RetryExceeded,
        };
        self.fail_message(flow, refused, status);
    }

    /// A request failed for good: at once, or when those before it have ended.
    pub(crate) fn fail_message(&mut self, flow: u32, request: u32, status: Status) {
        self.requests[request].outcome.get_or_insert(status);
        let own = match self.qps[self.flows[flow].qp].wire {
            Wire::Shared(own) => own,
            _ => flow,
        };
        for flow in [flow, own] {
            self.flows[flow].flags.set(Flags::HALTED);
        }
        self.complete_flow(flow);
    }

    /// Requests that end meanwhile with [`Status::RetryExceeded`] say why.
    pub(crate) fn because(&mut self, why: VendorError, end: impl FnOnce(&mut Self)) {
        self.completions.say_why(why);
        end(self);
        self.completions.say_why(VendorError::None);
    }

    /// The first unfinished request of a flow failed for good: so does its route or QP.
    pub(crate) fn fail_flow(&mut self, flow: u32, status: Status) {
        if self.is_route(flow) {
            self.end_route(flow, status);
            return;
        }
        let record = &self.flows[flow];
        let (qp, head) = (record.qp, record.head);
        if head == NONE {
            self.fail_qp(qp, status);
            return;
        }
        // It may have failed before, for a reason of its own.
        self.requests[head].outcome.get_or_insert(status);
        // Where another flow of the QP is behind, what was posted before it is flushed, it is not.
        while let Some(first) = self.qps[qp].order.first().filter(|first| *first != head) {
            self.report(first, Status::Flushed);
        }
        self.complete_in_order(qp);
    }

    /// The QP goes to error; its first unfinished request, if any, ends with `status`.
    pub(crate) fn fail_qp(&mut self, qp: u32, status: Status) {
        if let Some(first) = self.qps[qp].order.first() {
            self.report(first, status);
        } else {
            let record = &mut self.qps[qp];
            if let Ok(Some((request, route, slots))) = record.queues.send.fetch(&mut record.cursor)
            {
                record.queues.send.release(slots);
                self.report_sent(qp, &request, route, status, 0);
            }
        }
        self.enter_error(qp);
    }

    /// Flushes what the QP holds, as [`flush_sends`](Self::flush_sends). Gives how many requests
    /// were.
    pub(crate) fn flush(&mut self, qp: u32, most: u32) -> u32 {
        let mut flushed = self.flush_sends(qp, most);
        let receive = self.qps[qp].queues.receive.as_ref();
        let full = receive.map_or(0, |queue| queue.size().max_wr());
        let end = most.min(flushed.saturating_add(full));
        while flushed < end
            && let Some(receive) = self.own_receive(qp)
        {
            self.report_received(qp, &receive, Status::Flushed);
            flushed += 1;
        }
        flushed
    }

    /// Flushes what the QP still has to send: all that was taken up, and of what lies in its ring
    /// as much as makes `most` requests. Those are no more than the queue was made for, as a
    /// program could post for ever: what is posted meanwhile has a bell of its own. Gives how many
    /// requests were flushed.
    pub(crate) fn flush_sends(&mut self, qp: u32, most: u32) -> u32 {
        let mut flushed = 0;
        while let Some(first) = self.qps[qp].order.first() {
            self.report(first, Status::Flushed);
            flushed += 1;
        }
        let full = self.qps[qp].queues.send.size().max_wr();
        let end = most.min(full.max(flushed));
        while flushed < end {
            let record = &mut self.qps[qp];
            let Ok(Some((request, route, slots))) = record.queues.send.fetch(&mut record.cursor)
            else {
                break;
            };
            record.queues.send.release(slots);
            self.report_sent(qp, &request, route, Status::Flushed, 0);
            flushed += 1;
        }
        self.routes_taken(qp);
        flushed.min(most)
    }

    /// The last completion of a QP with an SRQ, where its program wants one that says so.
    pub(crate) fn complete_last_wqe(&mut self, qp: u32) {
        if self.cold(qp).complete_last_wqe {
            let last = Receive {
                wr_id: LAST_WQE,
                ..Receive::default()
            };
            self.report_received(qp, &last, Status::Flushed);
        }
    }

    fn own_receive(&mut self, qp: u32) -> Option<Receive> {
        let queues = &self.qps[qp].queues;
        queues
            .receive
            .as_ref()
            .and_then(|queue| queue.fetch().ok().flatten())
    }

    /// A receive that ended badly.
    pub(crate) fn report_received(&mut self, qp: u32, receive: &Receive, status: Status) {
        let completion = Completion {
            wr_id: receive.wr_id,
            status,
            opcode: WorkOpcode::Receive,
            qpn: self.qp_number(qp),
            byte_len: 0,
            extra: Extra::None,
            src_qp: Qpn::default(),
            route: 0,
            solicited: false,
            vendor_err: VendorError::None,
            ticks: 0,
        };
        let [_, cq] = self.qps[qp].queues.cqs;
        self.complete(cq, &completion);
    }

    fn reads(&self, flow: u32) -> Reads<'_> {
        self.requests.reads(self.flows[flow].head)
    }

    /// The READ or atomic with this number, if it was sent and is not completed.
    pub(crate) fn find_read(&self, flow: u32, msn: u32) -> Option<u32> {
        self.reads(flow).find(|at| self.requests[*at].msn == msn)
    }

    /// The first request of a flow that the peer has not executed; [`NONE`]: there is none.
    fn first_unexecuted(&mut self, flow: u32) -> u32 {
        let record = &self.flows[flow];
        self.requests
            .first_unexecuted(record.head, record.acked_msn)
    }
}
