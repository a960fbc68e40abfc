//! Executing what a peer asks for: one packet of the head message of a flow at a time.

use super::inbound::Holder;
use super::packet::Packet;
use super::qp::{Answer, Flags};
use super::responses::Outcome;
use super::srq::Srq;
use super::{Engine, Platform};
use crate::slab::NONE;
use crate::state::QpState;
use trunkline_conn::host::{QpEvent, ReceivesInError};
use trunkline_conn::mem::{Access, AtomicOp, Memory, MemoryFault, Order, PdId, Responder};
use trunkline_conn::work::{
    Completion, Extra, MAX_MESSAGE, Receive, Status, VendorError, WorkOpcode,
};
use trunkline_wire::{NakCode, Opcode, Reth};

/// Why a message was not executed.
enum Refusal {
    /// No receive request: again later.
    NotReady,
    /// No receive request, now or later: the QP goes to ERROR.
    ReceivesInError,
    /// The peer is at fault.
    Peer(NakCode, QpEvent),
    /// We are: the receive request ends with this status.
    Own(Status, NakCode),
    /// The payload's sum is wrong: as if the packet had never come.
    Corrupt,
}

impl Refusal {
    /// The request makes no sense, or is not what this QP is for.
    const INVALID: Self = Self::Peer(NakCode::InvalidRequest, QpEvent::RequestError);
}

impl From<MemoryFault> for Refusal {
    fn from(_: MemoryFault) -> Self {
        Self::Peer(NakCode::RemoteAccess, QpEvent::AccessError)
    }
}

impl From<ReceivesInError> for Refusal {
    fn from(_: ReceivesInError) -> Self {
        Self::ReceivesInError
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

/// How far a packet brought its message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// To its end.
    Done,
    /// Not to its end.
    Placed,
    /// Nowhere: it is the last packet, and others are missing.
    Early,
    /// Nowhere: the message was refused.
    Refused,
    /// Nowhere: its sum is wrong.
    Corrupt,
}

impl<P: Platform> Engine<P> {
    /// Runs a packet of the head message.
    #[inline(always)]
    pub(super) fn execute(&mut self, flow: u32, packet: &Packet<'_>) -> Step {
        if packet.opcode == Opcode::SRC_VOID {
            self.abort_responder(flow);
            return Step::Refused;
        }
        let begun = self.inbound.get(self.flows[flow].assembly);
        let done = match packet.opcode {
            // One message is of one kind.
            opcode if begun.is_some_and(|begun| begun.opcode != opcode) => Err(Refusal::INVALID),
            Opcode::SRC_SEND | Opcode::SRC_SEND_IMM | Opcode::SRC_SEND_INV => {
                self.execute_send(flow, packet)
            }
            Opcode::SRC_WRITE | Opcode::SRC_WRITE_IMM => self.execute_write(flow, packet),
            Opcode::SRC_READ_REQ => self.execute_read(flow, packet),
            _ => self.execute_atomic(flow, packet),
        };
        match done {
            Ok(Step::Done) => {
                self.counters.executed.add(1);
                let record = &mut self.flows[flow];
                record.expected_msn = record.expected_msn.wrapping_add(1);
                if record.assembly != NONE {
                    self.discard_assembly(flow);
                }
                self.answer(flow);
                Step::Done
            }
            Ok(step) => step,
            Err(Refusal::Corrupt) => Step::Corrupt,
            Err(Refusal::NotReady) => {
                let qp = self.flows[flow].qp;
                let timer = self.cold(qp).attributes.min_rnr_timer;
                self.counters.rnr_sent.add(1);
                self.refuse(flow, Answer::Rnr(timer));
                Step::Refused
            }
            Err(Refusal::ReceivesInError) => {
                self.fail_receiving(flow);
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

    #[inline(always)]
    fn execute_send(&mut self, flow: u32, packet: &Packet<'_>) -> Result<Step, Refusal> {
        let message = packet.message;
        let record = &self.flows[flow];
        if !(message.last() && message.offset() == 0 && record.assembly == NONE) {
            return self.execute_part_of_send(flow, packet);
        }
        // All of it in one packet: nothing to put together.
        let qp = record.qp;
        let receive = self.take_receive(qp)?;
        if let Err(refusal) = self.place(self.qps[qp].pd, &receive, packet) {
            self.keep_receive(flow, packet, receive);
            return Err(refusal);
        }
        self.end_send(flow, packet, &receive)
    }

    #[inline(never)]
    fn execute_part_of_send(&mut self, flow: u32, packet: &Packet<'_>) -> Result<Step, Refusal> {
        let message = packet.message;
        let qp = self.flows[flow].qp;
        let pd = self.qps[qp].pd;
        let at = self.assembly(flow, packet.opcode);
        if message.last() && !self.has_rest(at, message.offset())? {
            return Ok(Step::Early);
        }
        let receive = match self.inbound[at].receive.take() {
            Some(held) => held,
            None => self.hold_receive(flow, at)?,
        };
        let placed = self.place(pd, &receive, packet);
        if placed.is_err() || !message.last() {
            self.inbound[at].receive = Some(receive);
            placed?;
            let length = packet.payload.len() as u32;
            self.inbound.add_piece(at, message.offset(), length);
            return Ok(Step::Placed);
        }
        self.end_send(flow, packet, &receive)
    }

    /// Whether all of a message that comes before its last packet is there.
    ///
    /// # Errors
    /// There are as many bytes or more, but not these: the peer said some of them twice, or some
    /// that come behind its last packet.
    fn has_rest(&self, at: u32, length: u32) -> Result<bool, Refusal> {
        let placed = &self.inbound[at].placed;
        if placed.bytes() < length {
            return Ok(false);
        }
        if placed.is_whole(length) {
            return Ok(true);
        }
        Err(Refusal::INVALID)
    }

    /// Puts a packet of a SEND where it belongs in its receive request.
    #[inline(always)]
    fn place(&self, pd: PdId, receive: &Receive, packet: &Packet<'_>) -> Result<(), Refusal> {
        let end = u64::from(packet.message.offset()) + packet.payload.len() as u64;
        if end > receive.capacity() {
            return Err(Refusal::Own(Status::LocalLength, NakCode::InvalidRequest));
        }
        let (offset, mut sum) = (packet.message.offset(), packet.sum);
        self.regions
            .scatter(pd, &receive.sges, offset, packet.payload, sum.as_mut())
            .map_err(|_| Refusal::Own(Status::LocalProtection, NakCode::RemoteOperational))?;
        packet.check_end(sum)
    }

    /// A receive request that was taken and not used up stays with the message.
    fn keep_receive(&mut self, flow: u32, packet: &Packet<'_>, receive: Receive) {
        let at = self.assembly(flow, packet.opcode);
        self.inbound[at].receive = Some(receive);
    }

    /// All of a SEND is there.
    #[inline(always)]
    fn end_send(
        &mut self,
        flow: u32,
        packet: &Packet<'_>,
        receive: &Receive,
    ) -> Result<Step, Refusal> {
        let end = packet.message.offset() + packet.payload.len() as u32;
        let mut extra = packet.imm().map_or(Extra::None, Extra::Immediate);
        if let Some(key) = packet.invalidate() {
            let by = self.responder(self.flows[flow].qp);
            if self.regions.invalidate(by, key).is_err() {
                self.keep_receive(flow, packet, receive.clone());
                return Err(Refusal::Own(Status::LocalAccess, NakCode::RemoteAccess));
            }
            extra = Extra::Invalidated(key);
        }
        self.deliver(flow, packet, receive, WorkOpcode::Receive, end, extra);
        Ok(Step::Done)
    }

    fn execute_write(&mut self, flow: u32, packet: &Packet<'_>) -> Result<Step, Refusal> {
        let message = packet.message;
        let Some(reth) = packet.reth().filter(|reth| reth.length <= MAX_MESSAGE) else {
            return Err(Refusal::INVALID);
        };
        let (offset, last) = (message.offset(), message.last());
        let length = packet.payload.len() as u32;
        let end = u64::from(offset) + u64::from(length);
        if end > u64::from(reth.length) || (last && end != u64::from(reth.length)) {
            return Err(Refusal::INVALID);
        }
        let qp = self.flows[flow].qp;
        let by = self.responder(qp);
        let whole = offset == 0 && last && self.flows[flow].assembly == NONE;
        let at = if whole {
            NONE
        } else {
            self.assembly(flow, packet.opcode)
        };
        if last && !whole && !self.has_rest(at, offset)? {
            return Ok(Step::Early);
        }
        let begun = self.inbound.get(at);
        if begun.is_none_or(|begun| begun.placed.bytes() == 0) {
            // Nothing is written when any of it would be out of range.
            self.check_write(qp, by, &reth)?;
        }
        let takes = packet.opcode == Opcode::SRC_WRITE_IMM && last;
        // Where another worker takes it first, the message comes again, and is written again.
        if takes && !self.has_receive(qp) {
            return Err(Refusal::NotReady);
        }
        let mut sum = packet.sum;
        let addr = reth.va.wrapping_add(u64::from(offset));
        let order = Order::of_write(last);
        self.regions
            .write(by, reth.rkey, addr, packet.payload, order, sum.as_mut())?;
        packet.check_end(sum)?;
        if !last {
            self.inbound.add_piece(at, offset, length);
            return Ok(Step::Placed);
        }
        if let Some(imm) = packet.imm() {
            let receive = self.take_receive(qp)?;
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

    /// Whether the QP, and the region, let a peer write all of a message.
    fn check_write(&self, qp: u32, by: Responder, reth: &Reth) -> Result<(), Refusal> {
        if !self.cold(qp).access().contains(Access::REMOTE_WRITE) {
            // Not what this QP is for (IBTA Vol 1, 9.7.4.1.5), whatever the region allows.
            return Err(Refusal::INVALID);
        }
        let access = Access::REMOTE_WRITE;
        self.regions
            .check_remote(by, reth.rkey, reth.va, reth.length, access)?;
        Ok(())
    }

    #[inline(never)]
    fn execute_read(&mut self, flow: u32, packet: &Packet<'_>) -> Result<Step, Refusal> {
        self.begin_read(flow, packet)?;
        Ok(Step::Done)
    }

    /// Begins to answer a READ, for the first time or again: checks all there is to check.
    fn begin_read(&mut self, flow: u32, packet: &Packet<'_>) -> Result<(), Refusal> {
        let qp = self.flows[flow].qp;
        let Some(reth) = packet.reth().filter(|reth| reth.length <= MAX_MESSAGE) else {
            return Err(Refusal::INVALID);
        };
        if !self.cold(qp).access().contains(Access::REMOTE_READ) {
            // Not what this QP is for (IBTA Vol 1, 9.7.4.1.5), whatever the region allows.
            return Err(Refusal::INVALID);
        }
        let by = self.responder(qp);
        self.regions
            .check_remote(by, reth.rkey, reth.va, reth.length, Access::REMOTE_READ)?;
        let message = packet.message;
        if !self.make_room(flow, message.msn(), message.offset()) {
            return Err(Refusal::INVALID);
        }
        self.add_response(
            flow,
            message.msn(),
            message.replay_epoch(),
            read_outcome(&reth),
        );
        Ok(())
    }

    /// A READ that was executed before comes again. Its data is sent anew if it may still be had,
    /// and if it is the same READ as the first time where that is known.
    pub(super) fn repeat_read(&mut self, flow: u32, packet: &Packet<'_>) {
        let qp = self.flows[flow].qp;
        let msn = packet.message.msn();
        let refusal = if !self.qps[qp].state.receives() {
            Refusal::Peer(NakCode::RemoteOperational, QpEvent::Fatal)
        } else if let Some(first) = self.responses.outcome(self.flows[flow].responses, msn) {
            if packet.reth().map(|reth| read_outcome(&reth)) == Some(first) {
                self.answer_again(flow, msn, packet.message.replay_epoch());
                return;
            }
            Refusal::INVALID
        } else {
            match self.begin_read(flow, packet) {
                Ok(()) => return,
                Err(refusal) => refusal,
            }
        };
        if let Refusal::Peer(code, event) = refusal {
            self.refuse_executed(flow, msn, code, event);
        }
    }

    fn execute_atomic(&mut self, flow: u32, packet: &Packet<'_>) -> Result<Step, Refusal> {
        let qp = self.flows[flow].qp;
        let Some(atomic) = packet.atomic() else {
            return Err(Refusal::INVALID);
        };
        if !self.cold(qp).access().contains(Access::REMOTE_ATOMIC) {
            // Not what this QP is for (IBTA Vol 1, 9.7.4.1.5), whatever the region allows.
            return Err(Refusal::INVALID);
        }
        if !self.make_room(flow, packet.message.msn(), packet.message.offset()) {
            return Err(Refusal::INVALID);
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
        let by = self.responder(qp);
        let before = match self.regions.atomic(by, atomic.rkey, atomic.va, op) {
            Err(MemoryFault::Misaligned { .. }) => return Err(Refusal::INVALID),
            other => other?,
        };
        self.add_response(
            flow,
            packet.message.msn(),
            packet.message.replay_epoch(),
            Outcome::Value(before),
        );
        Ok(Step::Done)
    }

    #[inline(always)]
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
            route: self.route_number(flow),
            solicited: packet.solicited,
            vendor_err: VendorError::None,
            ticks: 0,
        };
        let [_, cq] = self.qps[qp].queues.cqs;
        self.complete(cq, &completion);
    }

    /// Takes a receive for a message of several packets, which keeps it for as long as its sender
    /// likes.
    fn hold_receive(&mut self, flow: u32, at: u32) -> Result<Receive, Refusal> {
        let qp = self.flows[flow].qp;
        if !self.is_route(flow) {
            return self.take_receive(qp);
        }
        let peer = self.flows.peer(flow);
        let queues = &self.qps[qp].queues;
        let (receive, holder) = match &queues.receive {
            Some(own) => {
                let (found, left) = (own.has_entry(), own.posted());
                // A ring that has an entry, and none by its own count, is broken.
                let broken = found && left == 0;
                if !broken && !self.inbound.may_hold((qp, peer), left) {
                    return Err(Refusal::NotReady);
                }
                (self.take_receive(qp)?, Holder::Own((qp, peer)))
            }
            None => {
                let (srq, peer) = (queues.srq, self.links.peer_address(peer));
                let record = self.srqs.get(srq).ok_or(Refusal::NotReady)?;
                let held = record.hold(peer, &mut self.events)?;
                let holder = Holder::Shared { srq, peer };
                (held.ok_or(Refusal::NotReady)?, holder)
            }
        };
        self.inbound.hold(at, holder);
        Ok(receive)
    }

    #[inline(always)]
    fn take_receive(&mut self, qp: u32) -> Result<Receive, Refusal> {
        let queues = &self.qps[qp].queues;
        let Some(own) = &queues.receive else {
            let srq = queues.srq;
            return self.take_shared_receive(srq);
        };
        match own.fetch() {
            Ok(Some(receive)) => Ok(receive),
            Ok(None) => Err(Refusal::NotReady),
            Err(_) => Err(Refusal::ReceivesInError),
        }
    }

    fn take_shared_receive(&mut self, srq: u32) -> Result<Receive, Refusal> {
        let srq = self.srqs.get(srq).ok_or(Refusal::NotReady)?;
        srq.take(&mut self.events)?.ok_or(Refusal::NotReady)
    }

    /// The receives of a QP are in error: the peer that needed one hears of it, and the QP goes to
    /// ERROR, whichever of its peers that was.
    #[cold]
    fn fail_receiving(&mut self, flow: u32) {
        let qp = self.flows[flow].qp;
        let (code, event) = (NakCode::RemoteOperational, QpEvent::Fatal);
        self.refuse_for_good(flow, code, event, Status::Flushed);
        // A refusal ends no QP with routes.
        self.qp_event(qp, event);
        self.enter_error(qp);
    }

    fn has_receive(&self, qp: u32) -> bool {
        if let Some(own) = &self.qps[qp].queues.receive {
            return own.has_entry();
        }
        self.srqs
            .get(self.qps[qp].queues.srq)
            .is_some_and(Srq::has_receive)
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
        let at = self.inbound.begin(opcode);
        self.flows[flow].assembly = at;
        at
    }
}

const fn read_outcome(reth: &Reth) -> Outcome {
    Outcome::Read {
        key: reth.rkey,
        addr: reth.va,
        length: reth.length,
    }
}
