//! The responder: a peer's requests, in order and exactly once.
//!
//! Packets of a flow's head message are placed as they come, its last packet last. Packets of later
//! messages wait in [`Staging`](super::staging::Staging) without touching anything, and run when
//! their turn comes.

use super::burst::Message;
use super::execute::Step;
use super::jobs::Outcome;
use super::packet::{Packet, Verdict};
use super::qp::{Answer, Flags};
use super::requester::before;
use super::{Engine, Platform};
use crate::slab::NONE;
use trunkline_conn::host::QpEvent;
use trunkline_conn::mem::{Access, Memory};
use trunkline_conn::work::{Receive, Status};
use trunkline_wire::{Answer as AnswerEntry, NakCode, Opcode, Syndrome};

/// Most resend rounds that a requester can be ahead of what we have heard.
const MAX_AHEAD: u8 = 3;

impl<P: Platform> Engine<P> {
    /// A request packet for one of our QPs.
    pub(crate) fn handle_request(&mut self, conn: u32, packet: &Packet<'_>) -> Verdict {
        let ext = packet.ext;
        let flow = self
            .qp_index(ext.dest_qp())
            .and_then(|qp| self.flow_from(qp, ext.src_qp(), conn));
        let bound = flow.filter(|flow| self.flows[*flow].flags.has(Flags::PEER_BOUND));
        let Some(flow) = bound else {
            self.counters.unknown_qp += 1;
            self.refuse_orphan(
                conn,
                AnswerEntry {
                    requester: ext.src_qp(),
                    responder: ext.dest_qp(),
                    syndrome: Syndrome::Nak(NakCode::InvalidRd),
                    msn: ext.msn(),
                    generation: ext.generation(),
                    round: ext.round(),
                },
            );
            return Verdict::Accept;
        };
        if ext.generation() != self.flows[flow].received_generation() {
            self.counters.stale += 1;
            return Verdict::Accept;
        }
        if !self.enter_round(flow, ext.round()) {
            self.counters.stale += 1;
            return Verdict::Accept;
        }
        let record = &self.flows[flow];
        let (qp, expected) = (record.qp, record.expected_msn);
        if before(ext.msn(), expected) {
            // Also by a QP in error: what it executed before it may have to be answered again.
            return self.repeat(flow, packet);
        }
        if record.flags.has(Flags::REFUSED) {
            self.counters.stale += 1;
            return Verdict::Accept;
        }
        if !self.qps[qp].state.receives() {
            self.refuse(flow, Answer::Nak(NakCode::RemoteOperational.code()));
            return Verdict::Accept;
        }
        if ext.msn() != expected {
            return self.stage(flow, packet);
        }
        match self.execute(flow, packet) {
            Step::Placed if self.flows[flow].staged == NONE => {
                Verdict::Placed(Message::Request { flow })
            }
            Step::Done | Step::Placed => {
                self.advance(flow);
                Verdict::Accept
            }
            Step::Early => self.stage(flow, packet),
            Step::Refused => Verdict::Accept,
            Step::Busy => Verdict::Drop,
            Step::Corrupt => Verdict::Corrupt,
        }
    }

    /// Takes up a later resend round; `false` for an earlier one, of which packets and BINDs may be
    /// held up for long. A requester begins one when we answered in the one before, when we told it
    /// in an earlier one that data were lost, which it asks for anew then, or when its connection
    /// died, and after that none before we agreed: it is never further ahead than this.
    #[inline(always)]
    pub(crate) fn enter_round(&mut self, flow: u32, round: u8) -> bool {
        round == self.flows[flow].remote_round || self.enter_other_round(flow, round)
    }

    #[inline(never)]
    fn enter_other_round(&mut self, flow: u32, round: u8) -> bool {
        let record = &mut self.flows[flow];
        let ahead = round.wrapping_sub(record.remote_round);
        if (1..=MAX_AHEAD).contains(&ahead) {
            record.remote_round = round;
            if !record.flags.has(Flags::ANSWER_DUE) {
                // It was told: whatever it asks for again, it does in a round of its own.
                record.flags.clear(Flags::LOST);
            }
            self.staging.clear(&mut record.staged);
            if matches!(record.answer, Answer::Nak(_)) {
                // That stands; the peer may have missed it.
                self.answer(flow);
                return true;
            }
            record.flags.clear(Flags::REFUSED);
            record.answer = Answer::Ack;
            if let Some(assembly) = self.assemblies.get_mut(record.assembly) {
                assembly.placed = 0;
            }
        }
        ahead <= MAX_AHEAD
    }

    /// A message that was executed before comes again: the peer missed the answer.
    fn repeat(&mut self, flow: u32, packet: &Packet<'_>) -> Verdict {
        self.counters.duplicate += 1;
        let ext = packet.ext;
        match packet.opcode {
            Opcode::SRC_READ_REQ => {
                if let Some(reth) = packet.reth() {
                    let read = Outcome::Read {
                        key: reth.rkey,
                        addr: reth.va,
                        length: reth.length,
                    };
                    let pd = self.qps[self.flows[flow].qp].pd;
                    let access = Access::REMOTE_READ;
                    let allowed =
                        self.regions
                            .check_remote(pd, reth.rkey, reth.va, reth.length, access);
                    if allowed.is_err() {
                        // The memory has gone since: so has the chance to answer.
                        self.refuse_repeat(flow);
                    } else if !self.answer_again(flow, ext.msn(), ext.round(), Some(read)) {
                        if !self.make_room(flow) {
                            return Verdict::Drop;
                        }
                        self.add_job(flow, ext.msn(), ext.round(), read);
                    }
                }
            }
            Opcode::SRC_CMP_SWAP | Opcode::SRC_FETCH_ADD => {
                self.answer_again(flow, ext.msn(), ext.round(), None);
            }
            _ => self.answer(flow),
        }
        Verdict::Accept
    }

    /// Sends the response to message `msn` from its beginning. `false`: it is not kept any more.
    fn answer_again(&mut self, flow: u32, msn: u32, round: u8, outcome: Option<Outcome>) -> bool {
        let mut at = self.flows[flow].jobs;
        while let Some(job) = self.jobs.get_mut(at) {
            if job.msn == msn {
                // What is still in flight of it counts no more.
                self.job_serial = self.job_serial.wrapping_add(1);
                (job.serial, job.round) = (self.job_serial, round);
                (job.sent_all, job.sent_bytes, job.unacked) = (false, 0, 0);
                job.outcome = outcome.unwrap_or(job.outcome);
                self.wake(flow);
                return true;
            }
            at = job.next;
        }
        false
    }

    /// A READ that was executed before cannot be answered any more.
    fn refuse_repeat(&mut self, flow: u32) {
        let qp = self.flows[flow].qp;
        self.send_unbind(flow);
        self.qp_event(qp, QpEvent::AccessError);
        self.enter_error(qp);
    }

    fn stage(&mut self, flow: u32, packet: &Packet<'_>) -> Verdict {
        if !packet.is_summed::<P::Bytes>() {
            return Verdict::Corrupt;
        }
        let record = &mut self.flows[flow];
        if self.staging.add(
            &mut record.staged,
            packet.ext.msn(),
            packet.ext.last(),
            packet.datagram,
        ) {
            self.counters.staged += 1;
            Verdict::Accept
        } else {
            self.counters.staging_full += 1;
            Verdict::Drop
        }
    }

    /// Runs packets that waited for the message that just went on, message after message.
    #[inline(always)]
    pub(crate) fn advance(&mut self, flow: u32) {
        if self.flows[flow].staged != NONE {
            self.run_staged(flow);
        }
    }

    #[inline(never)]
    fn run_staged(&mut self, flow: u32) {
        while self.flows[flow].staged != NONE {
            let expected = self.flows[flow].expected_msn;
            let list = &mut self.flows[flow].staged;
            let waiting = self.staging.take(list, expected, false);
            let Some(datagram) = waiting.or_else(|| self.staging.take(list, expected, true)) else {
                return;
            };
            let packet = Packet::parse(&datagram).expect("it was parsed before it was staged");
            let step = self.execute(flow, &packet);
            if matches!(step, Step::Early | Step::Busy) {
                // Others of its message are still on their way, or too many responses are. There
                // was room for it before.
                let list = &mut self.flows[flow].staged;
                self.staging.add(list, expected, true, &datagram);
                self.staging.recycle(datagram);
                return;
            }
            self.staging.recycle(datagram);
            if step == Step::Refused {
                return;
            }
        }
    }

    pub(crate) fn discard_assembly(&mut self, flow: u32) -> Option<Receive> {
        let at = std::mem::replace(&mut self.flows[flow].assembly, NONE);
        if at == NONE {
            None
        } else {
            self.assemblies.remove(at).receive
        }
    }

    /// Owes the peer an answer about everything up to `expected_msn`.
    pub(crate) fn answer(&mut self, flow: u32) {
        self.flows[flow].flags.set(Flags::ANSWER_DUE);
        self.notice(flow);
    }

    /// Refuses the head message. What follows it in this round is discarded.
    pub(crate) fn refuse(&mut self, flow: u32, answer: Answer) {
        let record = &mut self.flows[flow];
        record.answer = answer;
        record.flags.set(Flags::REFUSED);
        self.staging.clear(&mut record.staged);
        self.answer(flow);
    }

    pub(crate) fn refuse_for_good(
        &mut self,
        flow: u32,
        code: NakCode,
        event: QpEvent,
        status: Status,
    ) {
        self.counters.nak_sent += 1;
        self.refuse(flow, Answer::Nak(code.code()));
        let qp = self.flows[flow].qp;
        if let Some(receive) = self.discard_assembly(flow) {
            self.report_received(qp, &receive, status);
        }
        self.qp_event(qp, event);
        self.enter_error(qp);
    }

    /// The requester has lost the data of message `msn`: what is begun cannot end.
    pub(crate) fn abort_responder(&mut self, flow: u32, msn: u32) {
        let record = &self.flows[flow];
        if before(msn, record.expected_msn) {
            return;
        }
        let qp = record.qp;
        if let Some(receive) = self.discard_assembly(flow) {
            self.report_received(qp, &receive, Status::RemoteAborted);
        }
        self.qp_event(qp, QpEvent::Fatal);
        self.enter_error(qp);
    }

    /// Forgets everything about the peer's requests: it starts anew.
    pub(crate) fn reset_responder(&mut self, flow: u32) {
        let record = &mut self.flows[flow];
        record.expected_msn = 0;
        record.remote_round = 0;
        record.answer = Answer::Ack;
        record.flags.clear(Flags::REFUSED);
        record.flags.clear(Flags::LOST);
        self.staging.clear(&mut record.staged);
        let mut job = std::mem::replace(&mut record.jobs, NONE);
        record.jobs_len = 0;
        while job != NONE {
            job = self.jobs.remove(job).next;
        }
        self.reset_assembly(flow);
    }

    /// Gives up the message being put together; its receive is flushed.
    pub(crate) fn reset_assembly(&mut self, flow: u32) {
        self.staging.clear(&mut self.flows[flow].staged);
        if let Some(receive) = self.discard_assembly(flow) {
            let qp = self.flows[flow].qp;
            self.report_received(qp, &receive, Status::Flushed);
        }
    }
}
