//! The responder: a peer's requests, in order and exactly once.
//!
//! Packets of a flow's head message are placed as they come, its last packet last. Packets of later
//! messages wait in [`Staging`](super::staging::Staging) without touching anything, and run when
//! their turn comes.

use super::coverage::Coverage;
use super::execute::Step;
use super::inbound::Place;
use super::packet::{Message, Packet, Verdict};
use super::qp::{Answer, FIRST_MSN, Flags};
use super::responses::{Outcome, Response};
use super::{Engine, Platform};
use crate::order::before;
use crate::slab::NONE;
use crate::state::QpState;
use trunkline_conn::host::QpEvent;
use trunkline_conn::work::{Receive, Status};
use trunkline_wire::{Answer as AnswerEntry, NakCode, Opcode, Syndrome};

/// Packets of one flow that waited and run at a time, and flows that go on in a round: what a round
/// does stays well below a millisecond.
const RUN: usize = 64;
const RUNS: usize = 4;
/// Most replay epochs that a requester can be ahead of what we have heard.
const MAX_AHEAD: u8 = 3;

impl<P: Platform> Engine<P> {
    /// A request packet for one of our QPs.
    pub(crate) fn handle_request(&mut self, conn: u32, packet: &Packet<'_>) -> Verdict {
        let message = packet.message;
        let Some(flow) = self.bound_flow(conn, packet) else {
            return self.refuse_unbound(conn, packet);
        };
        if message.generation() != self.flows[flow].received_generation() {
            self.counters.stale.add(1);
            return Verdict::Accept;
        }
        if !self.enter_replay_epoch(flow, message.replay_epoch()) {
            self.counters.stale.add(1);
            return Verdict::Accept;
        }
        let record = &self.flows[flow];
        let (qp, expected) = (record.qp, record.expected_msn);
        if before(message.msn(), expected) {
            // Also by a QP in error: what it executed before it may have to be answered again.
            return self.repeat(flow, packet);
        }
        if record.flags.has(Flags::REFUSED) {
            self.counters.stale.add(1);
            return Verdict::Accept;
        }
        if !self.qps[qp].state.receives() {
            self.refuse(flow, Answer::Nak(NakCode::RemoteOperational.code()));
            return Verdict::Accept;
        }
        if message.msn() != expected {
            return self.stage(flow, conn, packet);
        }
        match self.execute(flow, packet) {
            Step::Placed if self.flows[flow].staged == NONE => {
                Verdict::Placed(Message::Request { flow })
            }
            Step::Done | Step::Placed => {
                self.advance(flow);
                Verdict::Accept
            }
            Step::Early => self.stage(flow, conn, packet),
            Step::Refused => Verdict::Accept,
            Step::Corrupt => Verdict::Corrupt,
        }
    }

    /// The flow that a request is for, if the peer's QP is bound to it.
    #[inline(always)]
    pub(super) fn bound_flow(&mut self, conn: u32, packet: &Packet<'_>) -> Option<u32> {
        let message = packet.message;
        let qp = self.qp_index(message.dest_qp())?;
        let flow = self.flow_from(qp, message.src_qp(), conn)?;
        self.flows[flow]
            .flags
            .has(Flags::PEER_BOUND)
            .then_some(flow)
    }

    /// A request for a pair of QPs that is not bound here. The requester hears so, or has heard, or
    /// is about to hear of the end of the QP that it was for.
    fn refuse_unbound(&mut self, conn: u32, packet: &Packet<'_>) -> Verdict {
        let message = packet.message;
        self.counters.unknown_qp.add(1);
        let pair = (message.dest_qp(), message.src_qp());
        if self.is_ending(conn, pair, |flow| {
            flow.received_generation() == message.generation()
        }) {
            return Verdict::Accept;
        }
        let answer = AnswerEntry {
            requester: message.src_qp(),
            responder: message.dest_qp(),
            syndrome: Syndrome::Nak(NakCode::InvalidRd),
            msn: message.msn(),
            generation: message.generation(),
            replay_epoch: message.replay_epoch(),
        };
        let address = self.links.address_of(conn);
        if !self.control.replies.answer((conn, address), answer) {
            // It comes again.
            self.counters.control_overflow.add(1);
            return Verdict::Drop;
        }
        self.owe_reply(conn);
        Verdict::Accept
    }

    /// Takes up a later replay epoch; `false` for an earlier one, of which packets and BINDs may be
    /// held up for long. A requester begins one when we answered in the one before, when we told it
    /// in an earlier one that data were lost, which it asks for anew then, or when its connection
    /// died, and after that none before we agreed: it is never further ahead than this.
    #[inline(always)]
    pub(crate) fn enter_replay_epoch(&mut self, flow: u32, replay_epoch: u8) -> bool {
        replay_epoch == self.flows[flow].remote_replay_epoch
            || self.enter_other_replay_epoch(flow, replay_epoch)
    }

    #[inline(never)]
    fn enter_other_replay_epoch(&mut self, flow: u32, replay_epoch: u8) -> bool {
        let record = &mut self.flows[flow];
        let ahead = replay_epoch.wrapping_sub(record.remote_replay_epoch);
        if (1..=MAX_AHEAD).contains(&ahead) {
            record.remote_replay_epoch = replay_epoch;
            if !record.flags.has(Flags::ANSWER_DUE) {
                // It was told: whatever it asks for again, it does in a replay epoch of its own.
                record.flags.clear(Flags::LOST);
            }
            self.inbound.staging_mut().clear(&mut record.staged);
            if matches!(record.answer, Answer::Nak(_)) {
                // That stands; the peer may have missed it.
                self.answer(flow);
                return true;
            }
            record.flags.clear(Flags::REFUSED);
            if record.answer != Answer::Left {
                record.answer = Answer::Ack;
            }
            if let Some(assembly) = self.inbound.get_mut(record.assembly) {
                assembly.placed = Coverage::NOTHING;
            }
        }
        ahead <= MAX_AHEAD
    }

    /// A message that was executed before comes again: the peer missed the answer.
    fn repeat(&mut self, flow: u32, packet: &Packet<'_>) -> Verdict {
        self.counters.duplicate.add(1);
        match packet.opcode {
            Opcode::SRC_READ_REQ => self.repeat_read(flow, packet),
            Opcode::SRC_CMP_SWAP | Opcode::SRC_FETCH_ADD => {
                let msn = packet.message.msn();
                if let Some(Outcome::Value(_)) =
                    self.responses.outcome(self.flows[flow].responses, msn)
                {
                    self.answer_again(flow, msn, packet.message.replay_epoch());
                }
            }
            _ => self.answer(flow),
        }
        Verdict::Accept
    }

    /// Refuses a READ after all, and with it what came behind it: its data cannot be had any more.
    pub(crate) fn refuse_executed(&mut self, flow: u32, msn: u32, code: NakCode, event: QpEvent) {
        self.drop_responses(flow, |response| !before(response.msn, msn));
        let record = &mut self.flows[flow];
        if before(msn, record.expected_msn) {
            record.expected_msn = msn;
        }
        if self.qps[record.qp].state == QpState::Error {
            self.refuse(flow, Answer::Nak(code.code()));
        } else {
            self.refuse_for_good(flow, code, event, Status::Flushed);
        }
    }

    /// The requester has lost the data of a message before all of it was sent.
    pub(crate) fn handle_abort(&mut self, flow: u32, conn: u32, packet: &Packet<'_>) -> Verdict {
        let message = packet.message;
        let record = &self.flows[flow];
        if !record.flags.has(Flags::PEER_BOUND)
            || record.received_generation() != message.generation()
            || !self.enter_replay_epoch(flow, message.replay_epoch())
            || self.flows[flow].flags.has(Flags::REFUSED)
        {
            self.counters.stale.add(1);
            return Verdict::Accept;
        }
        let record = &self.flows[flow];
        let (qp, expected) = (record.qp, record.expected_msn);
        if before(message.msn(), expected) || !self.qps[qp].state.receives() {
            return Verdict::Accept;
        }
        self.counters.void_received.add(1);
        if message.msn() != expected {
            // What comes before it is still to be executed.
            return self.stage(flow, conn, packet);
        }
        self.abort_responder(flow);
        Verdict::Accept
    }

    fn stage(&mut self, flow: u32, conn: u32, packet: &Packet<'_>) -> Verdict {
        if !packet.is_summed::<P::RegionMemory>() {
            return Verdict::Corrupt;
        }
        let message = packet.message;
        let (offset, last) = match packet.opcode {
            // The offset of these is none.
            Opcode::SRC_READ_REQ | Opcode::SRC_CMP_SWAP | Opcode::SRC_FETCH_ADD => {
                (0, message.last())
            }
            // It stands for some packet of its message, which does not wait for the others.
            Opcode::SRC_VOID => (u32::MAX, false),
            _ => (message.offset(), message.last()),
        };
        let place = Place {
            msn: message.msn(),
            offset,
            last,
        };
        let who = (flow, self.links[conn].peer());
        let shelf = &mut self.flows[flow].staged;
        let alone = packet.is_record().then(|| packet.standalone());
        let datagram = alone.as_deref().unwrap_or(packet.datagram);
        if self.inbound.staging_mut().add(shelf, who, place, datagram) {
            self.counters.staged.add(1);
            return Verdict::Accept;
        }
        self.counters.staging_full.add(1);
        if packet.is_record() {
            self.record_dropped(flow);
        }
        Verdict::Drop
    }

    /// Runs packets that waited for the message that just went on, message after message.
    #[inline(always)]
    pub(crate) fn advance(&mut self, flow: u32) {
        if self.flows[flow].staged != NONE {
            self.run_staged(flow);
        }
    }

    /// Runs packets that waited: [`RUN`] at most, and what is left in later rounds.
    #[inline(never)]
    fn run_staged(&mut self, flow: u32) {
        for _ in 0..RUN {
            let Some(datagram) = self.take_staged(flow) else {
                return;
            };
            let packet = Packet::parse(&datagram).expect("it was parsed before it was staged");
            let step = self.execute(flow, &packet);
            self.inbound.staging_mut().recycle(datagram);
            if !matches!(step, Step::Done | Step::Placed) {
                return;
            }
        }
        self.inbound.staging_mut().defer(self.flows[flow].staged);
    }

    /// The next packet that waits and has its turn.
    fn take_staged(&mut self, flow: u32) -> Option<Vec<u8>> {
        let record = &mut self.flows[flow];
        let placed = self.inbound.get(record.assembly);
        let placed = placed.map_or(0, |begun| begun.placed.bytes());
        let (shelf, expected) = (&mut record.staged, record.expected_msn);
        self.inbound.staging_mut().take(shelf, expected, placed)
    }

    /// Goes on with flows whose packets were too many for one call: some in each round.
    pub(crate) fn resume_staged(&mut self) {
        for _ in 0..RUNS {
            let Some(flow) = self.inbound.staging_mut().next_deferred() else {
                return;
            };
            self.run_staged(flow);
        }
    }

    pub(crate) fn discard_assembly(&mut self, flow: u32) -> Option<Receive> {
        let at = std::mem::replace(&mut self.flows[flow].assembly, NONE);
        if at == NONE {
            return None;
        }
        let (receive, of_srq) = self.inbound.end(at);
        if let Some((srq, peer)) = of_srq {
            self.srqs[srq].give_back(peer);
        }
        receive
    }

    /// Owes the peer an answer about everything up to `expected_msn`.
    pub(crate) fn answer(&mut self, flow: u32) {
        self.flows[flow].flags.set(Flags::ANSWER_DUE);
        self.queue_control(flow);
    }

    /// Refuses the head message. What follows it in this replay epoch is discarded. A QP that has
    /// left refuses nothing: its last word says that it executes no more.
    pub(crate) fn refuse(&mut self, flow: u32, answer: Answer) {
        let record = &mut self.flows[flow];
        if record.answer == Answer::Left {
            return;
        }
        record.answer = answer;
        record.flags.set(Flags::REFUSED);
        self.inbound.staging_mut().clear(&mut record.staged);
        self.answer(flow);
    }

    pub(crate) fn refuse_for_good(
        &mut self,
        flow: u32,
        code: NakCode,
        event: QpEvent,
        status: Status,
    ) {
        self.counters.nak_sent.add(1);
        self.refuse(flow, Answer::Nak(code.code()));
        let qp = self.flows[flow].qp;
        if let Some(receive) = self.discard_assembly(flow) {
            self.report_received(qp, &receive, status);
        }
        if self.is_route(flow) {
            // That ends what this peer asks of the QP, and nothing else.
            return;
        }
        self.qp_event(qp, event);
        self.enter_error(qp);
    }

    /// The requester has lost the data of the message whose turn it is: what is begun cannot end.
    pub(crate) fn abort_responder(&mut self, flow: u32) {
        let (code, event) = (NakCode::RemoteOperational, QpEvent::Fatal);
        self.refuse_for_good(flow, code, event, Status::RemoteAborted);
    }

    /// Forgets everything about the peer's requests: it starts anew.
    pub(crate) fn reset_responder(&mut self, flow: u32) {
        self.forget_peers_requests(flow);
        self.reset_assembly(flow);
    }

    /// The same, but for the receive that a message holds of which some has come.
    pub(crate) fn forget_peers_requests(&mut self, flow: u32) {
        let record = &mut self.flows[flow];
        record.expected_msn = FIRST_MSN;
        record.remote_replay_epoch = 0;
        record.answer = Answer::Ack;
        record.flags.clear(Flags::REFUSED);
        record.flags.clear(Flags::LOST);
        self.inbound.staging_mut().clear(&mut record.staged);
        self.responses.drop_those(&mut record.responses, |_| true);
    }

    /// Gives up the message being put together; its receive is flushed.
    pub(crate) fn reset_assembly(&mut self, flow: u32) {
        self.inbound
            .staging_mut()
            .clear(&mut self.flows[flow].staged);
        if let Some(receive) = self.discard_assembly(flow) {
            let qp = self.flows[flow].qp;
            self.report_received(qp, &receive, Status::Flushed);
        }
    }
}

/// Responses of a flow, and what follows from what becomes of them.
impl<P: Platform> Engine<P> {
    /// Keeps a response of a flow, and sends it when it is its turn.
    pub(crate) fn add_response(&mut self, flow: u32, msn: u32, replay_epoch: u8, outcome: Outcome) {
        let list = &mut self.flows[flow].responses;
        self.responses.add(list, msn, replay_epoch, outcome);
        self.wake(flow);
    }

    /// Whether a READ or atomic may be executed, before which `ahead` are outstanding.
    pub(crate) fn make_room(&mut self, flow: u32, msn: u32, ahead: u32) -> bool {
        let qp = self.flows[flow].qp;
        let limit = u32::from(self.cold(qp).attributes.max_dest_rd_atomic);
        let list = &mut self.flows[flow].responses;
        self.responses.make_room(list, msn, ahead, limit)
    }

    /// Sends the response to message `msn`, if it is kept, from its beginning.
    pub(crate) fn answer_again(&mut self, flow: u32, msn: u32, replay_epoch: u8) {
        let list = self.flows[flow].responses;
        self.responses.repeat(list, msn, replay_epoch);
        self.wake(flow);
    }

    pub(crate) fn drop_responses(&mut self, flow: u32, which: impl Fn(&Response) -> bool) {
        let list = &mut self.flows[flow].responses;
        self.responses.drop_those(list, which);
    }

    /// The response that a flow sends packets of next.
    pub(crate) fn next_response(&self, flow: u32) -> Option<u32> {
        self.responses.next_unsent(self.flows[flow].responses)
    }

    /// A packet of a response was acknowledged: the peer has used it.
    pub(crate) fn response_acked(&mut self, flow: u32, at: u32, serial: u32) {
        let Some(record) = self.flows.get_mut(flow) else {
            return;
        };
        let is_done = self.responses.acked(&mut record.responses, at, serial);
        if is_done && record.ending.is_due() {
            self.queue_control(flow);
        }
    }

    /// A packet of a response went down with its connection. The peer is told, for its own end of
    /// that connection, or the one its requests took, may live on: it asks again. The result of an
    /// atomic is kept until it does.
    pub(crate) fn response_lost(&mut self, flow: u32, at: u32, serial: u32) {
        let Some(response) = self.responses.get_mut(at, serial) else {
            return;
        };
        response.unacked = response.unacked.saturating_sub(1);
        let record = &mut self.flows[flow];
        if record.ending.is_untold() && !response.reads_memory() {
            // The peer has to have it before it hears of the end.
            response.restart();
            self.wake(flow);
            return;
        }
        if response.reads_memory() {
            self.responses.remove(&mut record.responses, at);
        }
        if record.ending.is_last() {
            self.queue_control(flow);
            return;
        }
        record.flags.set(Flags::LOST);
        self.answer(flow);
    }
}
