//! The responder: a peer's requests, in order and exactly once.
//!
//! Packets of a flow's head message are placed as they come, its last packet last. Packets of later
//! messages wait in [`Staging`](super::staging::Staging) without touching anything, and run when
//! their turn comes.

use super::jobs::Outcome;
use super::packet::{Packet, Verdict};
use super::qp::{Answer, Flags};
use super::requester::before;
use super::{Engine, Platform};
use crate::slab::NONE;
use crate::state::QpState;
use trunkline_conn::host::QpEvent;
use trunkline_conn::mem::{Access, AtomicOp, Memory, MemoryFault, PdId};
use trunkline_conn::work::{Completion, Extra, MAX_MESSAGE, Receive, Status, WorkOpcode};
use trunkline_wire::{Answer as AnswerEntry, NakCode, Opcode, Syndrome};

/// Most resend rounds that a requester can be ahead of what we have heard.
const MAX_AHEAD: u8 = 2;

/// A message being put together.
#[derive(Debug)]
pub(crate) struct Assembly {
    /// Of all its packets.
    opcode: Opcode,
    receive: Option<Receive>,
    /// Bytes placed so far.
    placed: u32,
}

/// Why a message was not executed.
enum Refusal {
    /// No receive request: again later.
    NotReady,
    /// The peer is at fault.
    Peer(NakCode, QpEvent),
    /// We are: the receive request ends with this status.
    Own(Status, NakCode),
    /// The payload's sum is wrong: as if the packet had never come.
    Corrupt,
    /// Too many responses are on their way: as if the packet had not come yet.
    Busy,
}

impl From<MemoryFault> for Refusal {
    fn from(_: MemoryFault) -> Self {
        Self::Peer(NakCode::RemoteAccess, QpEvent::AccessError)
    }
}

impl Packet<'_> {
    fn check_end(&self, sum: Option<trunkline_wire::Crc>) -> Result<(), Refusal> {
        if self.ends_in(sum) {
            Ok(())
        } else {
            Err(Refusal::Corrupt)
        }
    }
}

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
    /// held up for long. A requester begins one when we answered in the one before, or when its
    /// connection died, and after that none before we agreed: it is never further ahead than this.
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
            record.flags.clear(Flags::LOST);
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

    /// Runs a packet of the head message.
    #[inline(always)]
    fn execute(&mut self, flow: u32, packet: &Packet<'_>) -> Step {
        let begun = self.assemblies.get(self.flows[flow].assembly);
        let done = match packet.opcode {
            // One message is of one kind.
            opcode if begun.is_some_and(|begun| begun.opcode != opcode) => Err(Refusal::Peer(
                NakCode::InvalidRequest,
                QpEvent::RequestError,
            )),
            Opcode::SRC_SEND | Opcode::SRC_SEND_IMM | Opcode::SRC_SEND_INV => {
                self.execute_send(flow, packet)
            }
            Opcode::SRC_WRITE | Opcode::SRC_WRITE_IMM => self.execute_write(flow, packet),
            Opcode::SRC_READ_REQ => self.execute_read(flow, packet),
            _ => self.execute_atomic(flow, packet),
        };
        match done {
            Ok(Step::Done) => {
                self.counters.executed += 1;
                self.discard_assembly(flow);
                let record = &mut self.flows[flow];
                record.expected_msn = record.expected_msn.wrapping_add(1);
                self.answer(flow);
                Step::Done
            }
            Ok(step) => step,
            Err(Refusal::Corrupt) => Step::Corrupt,
            Err(Refusal::Busy) => Step::Busy,
            Err(Refusal::NotReady) => {
                let qp = self.flows[flow].qp;
                let timer = self.cold(qp).attributes.min_rnr_timer;
                self.counters.rnr_sent += 1;
                self.refuse(flow, Answer::Rnr(timer));
                Step::Refused
            }
            Err(Refusal::Peer(code, event)) => {
                self.refuse_for_good(flow, code, event, Status::RemoteInvalidRequest);
                Step::Refused
            }
            Err(Refusal::Own(status, code)) => {
                self.refuse_for_good(flow, code, QpEvent::Fatal, status);
                Step::Refused
            }
        }
    }

    fn execute_send(&mut self, flow: u32, packet: &Packet<'_>) -> Result<Step, Refusal> {
        let ext = packet.ext;
        let qp = self.flows[flow].qp;
        let pd = self.qps[qp].pd;
        if ext.last() && ext.offset() == 0 && self.flows[flow].assembly == NONE {
            // All of it in one packet: nothing to put together.
            let receive = self.take_receive(qp).ok_or(Refusal::NotReady)?;
            if let Err(refusal) = self.place(pd, &receive, packet) {
                self.keep_receive(flow, packet, receive);
                return Err(refusal);
            }
            return self.end_send(flow, packet, &receive);
        }
        let at = self.assembly(flow, packet.opcode);
        if ext.last() && self.assemblies[at].placed != ext.offset() {
            return Ok(Step::Early);
        }
        let held = self.assemblies[at].receive.take();
        let receive = held
            .or_else(|| self.take_receive(qp))
            .ok_or(Refusal::NotReady)?;
        let placed = self.place(pd, &receive, packet);
        if placed.is_err() || !ext.last() {
            self.assemblies[at].receive = Some(receive);
            placed?;
            let placed = &mut self.assemblies[at].placed;
            *placed = placed.saturating_add(packet.payload.len() as u32);
            return Ok(Step::Placed);
        }
        self.end_send(flow, packet, &receive)
    }

    /// Puts a packet of a SEND where it belongs in its receive request.
    fn place(&mut self, pd: PdId, receive: &Receive, packet: &Packet<'_>) -> Result<(), Refusal> {
        let end = u64::from(packet.ext.offset()) + packet.payload.len() as u64;
        if end > receive.capacity() || end > u64::from(MAX_MESSAGE) {
            return Err(Refusal::Own(Status::LocalLength, NakCode::InvalidRequest));
        }
        let (offset, mut sum) = (packet.ext.offset(), packet.sum);
        self.regions
            .scatter(pd, &receive.sges, offset, packet.payload, sum.as_mut())
            .map_err(|_| Refusal::Own(Status::LocalProtection, NakCode::RemoteOperational))?;
        packet.check_end(sum)
    }

    /// A receive request that was taken and not used up stays with the message.
    fn keep_receive(&mut self, flow: u32, packet: &Packet<'_>, receive: Receive) {
        let at = self.assembly(flow, packet.opcode);
        self.assemblies[at].receive = Some(receive);
    }

    /// All of a SEND is there.
    fn end_send(
        &mut self,
        flow: u32,
        packet: &Packet<'_>,
        receive: &Receive,
    ) -> Result<Step, Refusal> {
        let end = packet.ext.offset() + packet.payload.len() as u32;
        let pd = self.qps[self.flows[flow].qp].pd;
        let mut extra = packet.imm().map_or(Extra::None, Extra::Immediate);
        if let Some(key) = packet.invalidate() {
            if self.regions.invalidate(pd, key).is_err() {
                self.keep_receive(flow, packet, receive.clone());
                return Err(Refusal::Own(Status::LocalAccess, NakCode::RemoteAccess));
            }
            extra = Extra::Invalidated(key);
        }
        self.deliver(flow, packet, receive, WorkOpcode::Receive, end, extra);
        Ok(Step::Done)
    }

    fn execute_write(&mut self, flow: u32, packet: &Packet<'_>) -> Result<Step, Refusal> {
        let ext = packet.ext;
        let qp = self.flows[flow].qp;
        let invalid = Refusal::Peer(NakCode::InvalidRequest, QpEvent::RequestError);
        let Some(reth) = packet.reth() else {
            return Err(invalid);
        };
        let length = packet.payload.len() as u32;
        let end = u64::from(ext.offset()) + u64::from(length);
        if end > u64::from(reth.length) || (ext.last() && end != u64::from(reth.length)) {
            return Err(invalid);
        }
        let pd = self.qps[qp].pd;
        if !self.cold(qp).access.contains(Access::REMOTE_WRITE) {
            return Err(Refusal::Peer(NakCode::RemoteAccess, QpEvent::AccessError));
        }
        let whole = ext.offset() == 0 && ext.last();
        if !whole {
            let at = self.assembly(flow, packet.opcode);
            let placed = self.assemblies[at].placed;
            if ext.last() && placed != ext.offset() {
                return Ok(Step::Early);
            }
            if placed == 0 {
                // Nothing is written when any of it would be out of range.
                let access = Access::REMOTE_WRITE;
                self.regions
                    .check_remote(pd, reth.rkey, reth.va, reth.length, access)?;
            }
        }
        let takes = packet.opcode == Opcode::SRC_WRITE_IMM && ext.last();
        if takes && !self.has_receive(qp) {
            return Err(Refusal::NotReady);
        }
        let mut sum = packet.sum;
        let addr = reth.va.wrapping_add(u64::from(ext.offset()));
        self.regions
            .write(pd, reth.rkey, addr, packet.payload, sum.as_mut())?;
        packet.check_end(sum)?;
        if !ext.last() {
            let begun = &mut self.assemblies[self.flows[flow].assembly];
            begun.placed = begun.placed.saturating_add(length);
            return Ok(Step::Placed);
        }
        if let Some(imm) = packet.imm() {
            let receive = self.take_receive(qp).ok_or(Refusal::NotReady)?;
            let extra = Extra::Immediate(imm);
            self.deliver(
                flow,
                packet,
                &receive,
                WorkOpcode::ReceiveWriteImm,
                reth.length,
                extra,
            );
        }
        Ok(Step::Done)
    }

    fn execute_read(&mut self, flow: u32, packet: &Packet<'_>) -> Result<Step, Refusal> {
        let qp = self.flows[flow].qp;
        let invalid = Refusal::Peer(NakCode::InvalidRequest, QpEvent::RequestError);
        let Some(reth) = packet.reth() else {
            return Err(invalid);
        };
        if reth.length > MAX_MESSAGE {
            return Err(invalid);
        }
        if !self.cold(qp).access.contains(Access::REMOTE_READ) {
            return Err(Refusal::Peer(NakCode::RemoteAccess, QpEvent::AccessError));
        }
        let pd = self.qps[qp].pd;
        self.regions
            .check_remote(pd, reth.rkey, reth.va, reth.length, Access::REMOTE_READ)?;
        if !self.make_room(flow) {
            return Err(Refusal::Busy);
        }
        let read = Outcome::Read {
            key: reth.rkey,
            addr: reth.va,
            length: reth.length,
        };
        self.add_job(flow, packet.ext.msn(), packet.ext.round(), read);
        Ok(Step::Done)
    }

    fn execute_atomic(&mut self, flow: u32, packet: &Packet<'_>) -> Result<Step, Refusal> {
        let qp = self.flows[flow].qp;
        let invalid = Refusal::Peer(NakCode::InvalidRequest, QpEvent::RequestError);
        let Some(atomic) = packet.atomic() else {
            return Err(invalid);
        };
        if !self.make_room(flow) {
            return Err(Refusal::Busy);
        }
        if !self.cold(qp).access.contains(Access::REMOTE_ATOMIC) {
            return Err(Refusal::Peer(NakCode::RemoteAccess, QpEvent::AccessError));
        }
        let op = if packet.opcode == Opcode::SRC_CMP_SWAP {
            AtomicOp::CompareSwap {
                compare: atomic.compare,
                swap: atomic.swap_or_add,
            }
        } else {
            AtomicOp::FetchAdd {
                add: atomic.swap_or_add,
            }
        };
        let pd = self.qps[qp].pd;
        let before = match self.regions.atomic(pd, atomic.rkey, atomic.va, op) {
            Err(MemoryFault::Misaligned { .. }) => return Err(invalid),
            other => other?,
        };
        self.add_job(
            flow,
            packet.ext.msn(),
            packet.ext.round(),
            Outcome::Value(before),
        );
        Ok(Step::Done)
    }

    fn deliver(
        &mut self,
        flow: u32,
        packet: &Packet<'_>,
        receive: &Receive,
        opcode: WorkOpcode,
        byte_len: u32,
        extra: Extra,
    ) {
        let record = &mut self.flows[flow];
        let (qp, src_qp) = (record.qp, record.remote);
        if !record.flags.has(Flags::ESTABLISHED) {
            record.flags.set(Flags::ESTABLISHED);
            if self.qps[qp].state == QpState::Rtr {
                self.qp_event(qp, QpEvent::CommunicationEstablished);
            }
        }
        let completion = Completion {
            wr_id: receive.wr_id,
            status: Status::Success,
            opcode,
            qpn: self.qp_number(qp),
            byte_len,
            extra,
            src_qp,
            solicited: packet.solicited,
        };
        let cq = self.cold(qp).recv_cq;
        self.complete(cq, &completion);
    }

    fn take_receive(&mut self, qp: u32) -> Option<Receive> {
        if let Some(own) = &self.qps[qp].queues.receive {
            return own.fetch().ok().flatten();
        }
        let srq = self.cold(qp).srq;
        self.srqs
            .get(srq)
            .and_then(|slot| slot.queue.fetch().ok().flatten())
    }

    fn has_receive(&self, qp: u32) -> bool {
        if let Some(own) = &self.qps[qp].queues.receive {
            return own.has_entry();
        }
        self.srqs
            .get(self.cold(qp).srq)
            .is_some_and(|slot| slot.queue.has_entry())
    }

    #[inline(always)]
    fn assembly(&mut self, flow: u32, opcode: Opcode) -> u32 {
        match self.flows[flow].assembly {
            NONE => self.begin_assembly(flow, opcode),
            begun => begun,
        }
    }

    #[inline(never)]
    fn begin_assembly(&mut self, flow: u32, opcode: Opcode) -> u32 {
        let at = self.assemblies.insert(Assembly {
            opcode,
            receive: None,
            placed: 0,
        });
        self.flows[flow].assembly = at;
        at
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
    fn refuse(&mut self, flow: u32, answer: Answer) {
        let record = &mut self.flows[flow];
        record.answer = answer;
        record.flags.set(Flags::REFUSED);
        self.staging.clear(&mut record.staged);
        self.answer(flow);
    }

    fn refuse_for_good(&mut self, flow: u32, code: NakCode, event: QpEvent, status: Status) {
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

/// How far a packet brought its message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    /// To its end.
    Done,
    /// Not to its end.
    Placed,
    /// Nowhere: it is the last packet, and others are missing.
    Early,
    /// Nowhere: the message was refused.
    Refused,
    /// Nowhere for now: too many responses are on their way.
    Busy,
    /// Nowhere: its sum is wrong.
    Corrupt,
}
