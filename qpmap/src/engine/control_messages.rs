//! Control messages: answers to requests and BINDs, batched into few packets.
//!
//! A control message waits one round of the poll loop for company (more answers, or data that goes
//! the same way); then everything a connection owes its peer goes out in as few packets as it
//! takes.

use super::ack_delay::AckDelay;
use super::build::{self, Emitted, SentKind, SentPacket};
use super::control::{MAX_BLOB, Reply};
use super::links::Conn;
use super::qp::{Answer, Flags, Flow};
use super::schedule::{Owed, Share};
use super::send::TxContext;
use super::timer::Timer;
use super::transmit::Turn;
use super::{Engine, Platform, Trace};
use crate::slab::NONE;
use trunkline_conn::egress::Egress;
use trunkline_conn::time::Instant;
use trunkline_wire::{
    Answer as AnswerEntry, Control as ControlEntry, ControlKind, NakCode, Opcode, Qpn, Record,
    Syndrome, WireError,
};

/// Bytes of control messages for which a packet is worth while.
const LEAST_BLOB: usize = 4 * ControlEntry::LEN;
/// Flows that a packet of answers passes over because they owe BINDs or consent, or the other way
/// round.
const MOST_OTHERS: usize = 64;

impl<P: Platform> Engine<P> {
    /// Puts a flow that owes its peer something into its connection's list.
    pub(crate) fn queue_control(&mut self, flow: u32) {
        let record = &self.flows[flow];
        let conn = record.conn;
        let mut binding = record.flags.has(Flags::BIND_DUE.with(Flags::BOUND_DUE));
        let answers = record.flags.has(Flags::ANSWER_DUE);
        if record.ending.is_due() && conn != NONE {
            binding |= self.may_tell_end(flow);
        }
        if conn == NONE || !(binding || answers) {
            return;
        }
        let record = &self.flows[flow];
        let urgent = binding || record.flags.has(Flags::LOST) || record.answer != Answer::Ack;
        let listed = record.control_link != NONE;
        let Some(home) = self.links.get_mut(conn) else {
            // It is said when the flow has moved on.
            return;
        };
        home.flags.ack_delay.owe(urgent);
        // One that is in the list was touched then, but may have waited since.
        if !listed {
            let list = &mut home.control_due;
            self.flows.push_control(list, flow);
        }
        self.mark_ready(conn);
    }

    pub(crate) fn has_control(&self, conn: u32) -> bool {
        !self.links[conn].control_due.is_empty() || self.control.replies.has(conn)
    }

    /// Sends control messages, unless they had better wait; `data` says whether other packets
    /// were sent in this round, whose turn ended as `turn`.
    pub(super) fn serve_control(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        data: bool,
        turn: Turn,
    ) -> Turn {
        let (now, conn) = (tx.now, tx.conn);
        if turn == Turn::Full || !self.has_control(conn) {
            return turn;
        }
        let joins = self.room_to_join(conn) >= LEAST_BLOB;
        let ack_delay = &mut self.links[conn].flags.ack_delay;
        if joins || ack_delay.is_over(data) {
            return match self.send_control(tx) {
                Turn::Idle => turn,
                other => other,
            };
        }
        if !self.defer(now, conn) && turn == Turn::Idle {
            // The next round asks again.
            return Turn::Yield;
        }
        turn
    }

    /// Whether a connection has nothing to say but control messages, and these wait for company
    /// until the next round; from now on they have.
    #[inline]
    pub(super) fn waits_for_company(&mut self, now: Instant, conn: u32) -> bool {
        let Conn {
            delivery,
            runnable,
            flags,
            ..
        } = &mut self.links[conn];
        let quiet = runnable.is_empty() && !flags.owes_ping() && !self.tx.schedule().is_tight();
        quiet
            && flags.ack_delay.is_new()
            && !delivery.is_ack_due(now)
            && !delivery.has_lost()
            && !flags.ack_delay.is_over(false)
    }

    /// Control messages have waited long enough.
    pub(crate) fn control_timeout(&mut self, conn: u32) {
        self.links[conn].flags.ack_delay.end();
        self.mark_ready(conn);
    }

    /// The same where they go before data: sends one packet.
    pub(super) fn owed_control(&mut self, tx: &mut TxContext<'_, impl Egress + ?Sized>) -> Owed {
        let (now, conn) = (tx.now, tx.conn);
        if !self.has_control(conn) {
            return Owed::Nothing;
        }
        let record = &mut self.links[conn];
        let data = !record.runnable.is_empty();
        let ack_delay = &mut record.flags.ack_delay;
        if !ack_delay.is_blocked() && !ack_delay.is_over(data) {
            return if self.defer(now, conn) {
                Owed::Nothing
            } else {
                Owed::Later
            };
        }
        match self.send_control_packet(tx) {
            Turn::Yield => Owed::Sent,
            Turn::Full => Owed::Full,
            // An acknowledgement wakes what is blocked.
            Turn::Idle | Turn::Blocked | Turn::Paused(_) => Owed::Nothing,
        }
    }

    /// Whether a timer ends the wait of a connection's control messages. From now on it is armed.
    fn defer(&mut self, now: Instant, conn: u32) -> bool {
        let ack_delay = &mut self.links[conn].flags.ack_delay;
        if ack_delay.arm() {
            let timer = Timer::Control(conn);
            self.timers.arm(now + AckDelay::MOST_NS, timer.key());
        }
        self.links[conn].flags.ack_delay.is_deferred()
    }

    /// Sends all control messages, whether they had better wait or not.
    pub(super) fn send_control(&mut self, tx: &mut TxContext<'_, impl Egress + ?Sized>) -> Turn {
        loop {
            match self.send_control_packet(tx) {
                Turn::Yield => {}
                other => return other,
            }
        }
    }

    /// Sends one packet of control messages, if there are any: then `Yield`.
    fn send_control_packet(&mut self, tx: &mut TxContext<'_, impl Egress + ?Sized>) -> Turn {
        let (now, conn) = (tx.now, tx.conn);
        if !self.has_control(conn) {
            self.links[conn].flags.ack_delay.start_anew();
            return Turn::Idle;
        }
        let joins = self.room_to_join(conn);
        if joins >= LEAST_BLOB {
            self.join_control(now, conn, joins);
            return Turn::Yield;
        }
        if self.send_pack(tx, true) == Emitted::NoRoom {
            return Turn::Full;
        }
        let (record, windows) = self.links.with_windows(conn);
        if !record.delivery.ready_urgent(now, windows) {
            self.links[conn].flags.ack_delay.block();
            return Turn::Blocked;
        }
        // There is room before anything is taken off the lists.
        let most = (self.links[conn].payload() as usize).min(MAX_BLOB);
        let mut sizes = [most, most / 4, LEAST_BLOB].into_iter();
        let overhead = build::OVERHEAD as usize;
        let port = self.links[conn].delivery.next_port();
        let ports = &self.config.source_ports;
        let Some(limit) = sizes.find(|size| tx.has_room(ports, port, size + overhead)) else {
            return Turn::Full;
        };
        let Some(item) = self.collect_blob(now, conn, limit) else {
            return Turn::Yield;
        };
        let opcode = match item.kind {
            SentKind::Control => Opcode::SRC_CONTROL,
            _ => Opcode::SRC_ANSWERS,
        };
        if !self.send_blob(tx, item, opcode) {
            // The port breaks its word, but no control message is lost for that: it is sent again.
            let delivery = &mut self.links[conn].delivery;
            delivery.record_urgent(now, item, build::packed_datagram(item.length) as u32);
        }
        Turn::Yield
    }

    /// Lets control messages, `limit` bytes at most, join the packet that is being put together.
    /// Returns their bytes.
    fn join_control(&mut self, now: Instant, conn: u32, limit: usize) -> u32 {
        let Some(item) = self.collect_blob(now, conn, limit) else {
            return 0;
        };
        let bytes = Record::LEN as u32 + item.length;
        self.tx.packs.join_control(item, bytes);
        bytes
    }

    /// Lets what a flow owes its peer, and others do with it, go in front of its next message,
    /// which is one that the peer's program is told of: it has posted that after it has got what
    /// the peer sent, and the peer's program hears first that this is done. [`Emitted::Sent`]: the
    /// message may follow.
    #[inline(never)]
    pub(super) fn answer_first(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        flow: u32,
        share: &mut Share,
    ) -> Emitted {
        while self.flows[flow].flags.has(Flags::ANSWER_DUE) {
            let joins = self.room_to_join(tx.conn) >= LEAST_BLOB && self.may_share(tx.conn, 0);
            if !joins {
                let sent = self.end_pack(tx, true, share);
                if sent != Emitted::Sent {
                    return sent;
                }
            }
            if !self.begin_pack(tx, (Record::LEN + LEAST_BLOB) as u32, share) {
                return Emitted::NoRoom;
            }
            let room = self.room_for_control(tx.conn).max(LEAST_BLOB);
            match self.join_control(tx.now, tx.conn, room) {
                0 => break,
                bytes => share.add(bytes),
            }
        }
        if !self.has_control(tx.conn) {
            self.links[tx.conn].flags.ack_delay.start_anew();
        }
        Emitted::Sent
    }

    /// Gathers control messages of one kind. `None`: what the flows owed has to wait for something
    /// else.
    fn collect_blob(&mut self, now: Instant, conn: u32, limit: usize) -> Option<SentPacket> {
        let (mut bytes, mut ends) = (self.control.blobs.blank(), self.control.blobs.blank_ends());
        let kind = self.collect(now, conn, limit, (&mut bytes, &mut ends));
        if bytes.is_empty() {
            self.control.blobs.give_back(bytes);
            self.control.blobs.give_back_ends(ends);
            return None;
        }
        let length = bytes.len() as u32;
        let (slot, serial) = self.control.blobs.insert(bytes, ends);
        Some(SentPacket {
            kind,
            slot,
            serial,
            length,
            ..SentPacket::PING
        })
    }

    /// Gathers control messages of one kind. Flows that owe something of the other kind,
    /// too, go to the end of the list, a few at most.
    fn collect(
        &mut self,
        now: Instant,
        conn: u32,
        limit: usize,
        (bytes, ends): (&mut Vec<u8>, &mut Vec<u32>),
    ) -> SentKind {
        let mut kind = None;
        let fits = |bytes: &Vec<u8>| bytes.len() + 2 * ControlEntry::LEN <= limit;
        while fits(bytes)
            && let Some(reply) = self.control.replies.next(conn)
        {
            let of = match reply {
                Reply::Answer(_) => SentKind::Answers,
                Reply::Refused(_) => SentKind::Control,
            };
            if *kind.get_or_insert(of) != of {
                break;
            }
            match reply {
                Reply::Answer(entry) => bytes.extend(entry.to_bytes()),
                Reply::Refused(entry) => bytes.extend(entry.to_bytes()),
            }
            self.control.replies.pop(conn);
        }
        let mut others = [NONE; MOST_OTHERS];
        let mut skipped = 0;
        while skipped < MOST_OTHERS && fits(bytes) {
            let Some(flow) = self.pop_control_due(conn) else {
                break;
            };
            let [answer, control] = self.owes(flow);
            if !answer && !control {
                // It waits for something else, which puts it into the list again.
                continue;
            }
            // An end is told after the answers.
            let ends_first = answer && self.flows[flow].ending.is_due();
            let of = match control && !ends_first {
                true => SentKind::Control,
                false => SentKind::Answers,
            };
            let same = *kind.get_or_insert(of) == of;
            if same && of == SentKind::Control {
                self.write_controls(now, flow, (&mut *bytes, &mut *ends));
            } else if same {
                let number = self.own_number(flow);
                let record = &mut self.flows[flow];
                bytes.extend(answer_entry(record, number).to_bytes());
                record.flags.clear(Flags::ANSWER_DUE);
            }
            if !same || answer && control {
                others[skipped] = flow;
                skipped += 1;
            }
        }
        for &flow in &others[..skipped] {
            let list = &mut self.links[conn].control_due;
            self.flows.push_control(list, flow);
        }
        kind.unwrap_or(SentKind::Answers)
    }

    /// Whether a flow owes its peer an answer, and whether a control entry. What is said of this
    /// life does not overtake the end of the last one, which says this again.
    fn owes(&self, flow: u32) -> [bool; 2] {
        let record = &self.flows[flow];
        let binds = [Flags::BIND_DUE, Flags::BOUND_DUE];
        let control = if record.ending.is_due() {
            self.may_tell_end(flow)
        } else {
            binds.iter().any(|flag| record.flags.has(*flag)) && !self.waits_for_end(flow)
        };
        [record.flags.has(Flags::ANSWER_DUE), control]
    }

    /// Writes the control entries that a flow owes.
    fn write_controls(
        &mut self,
        now: Instant,
        flow: u32,
        (bytes, ends): (&mut Vec<u8>, &mut Vec<u32>),
    ) {
        let (number, begun) = (self.own_number(flow), self.has_begun(flow));
        let record = &mut self.flows[flow];
        let mut say = |record: &Flow, kind, begun| {
            bytes.extend(record.control_entry(number, kind, begun).to_bytes());
        };
        if record.ending.is_due() {
            say(record, ControlKind::Unbind, false);
            record.ending = record.ending.said();
            ends.push(flow);
            return;
        }
        let dues = [Flags::BIND_DUE, Flags::BOUND_DUE];
        let binding = dues.map(|flag| record.flags.has(flag));
        dues.into_iter().for_each(|flag| record.flags.clear(flag));
        if binding[1] {
            say(record, ControlKind::Bound, begun);
        }
        if binding[0] {
            say(record, ControlKind::Bind, begun);
            self.say_bind(now, flow);
        }
    }

    /// A BIND goes out, and will again if nobody answers.
    fn say_bind(&mut self, now: Instant, flow: u32) {
        let record = &mut self.flows[flow];
        let first = record.asks == 0;
        let pause = record.asked();
        if !first {
            self.timers.arm(now + pause, Timer::Ask(flow).key());
        } else if let Some(due) = self.pairing.recent.push(now, flow) {
            self.timers.arm(due, Timer::RecentBinds.key());
        }
        self.watch_if_outstanding(flow);
        self.emit(|engine| {
            let record = &engine.flows[flow];
            Trace::BindSent {
                now,
                flow,
                qpn: engine.own_number(flow),
                remote: record.remote,
                conn: engine.links.id(record.conn),
                replay_epoch: record.replay_epoch,
            }
        });
    }

    /// The number of the QP that a flow belongs, or did belong, to.
    pub(crate) fn own_number(&self, flow: u32) -> Qpn {
        self.qps.number_at(self.flows[flow].qp)
    }

    /// Answers of the peer to requests of ours.
    pub(crate) fn handle_answers(&mut self, now: Instant, conn: u32, payload: &[u8]) {
        self.look_at_answered(payload);
        self.each_entry(AnswerEntry::entries(payload), |engine, entry| {
            let found = engine
                .qp_index(entry.requester)
                .and_then(|qp| engine.flow_from(qp, entry.responder, conn))
                .filter(|flow| engine.flows[*flow].sent_generation() == entry.generation);
            match found {
                Some(flow) => {
                    engine.answered(now, flow, entry.syndrome, entry.msn, entry.replay_epoch)
                }
                None => engine.counters.bad_answer.add(1),
            }
        });
    }

    /// Takes up the entries of a payload, each judged by itself; what makes no sense is counted.
    pub(super) fn each_entry<T>(
        &mut self,
        entries: Result<impl Iterator<Item = Result<T, WireError>>, WireError>,
        mut take_up: impl FnMut(&mut Self, T),
    ) {
        let Ok(entries) = entries else {
            self.counters.malformed.add(1);
            return;
        };
        for entry in entries {
            match entry {
                Ok(entry) => take_up(self, entry),
                Err(_) => self.counters.bad_answer.add(1),
            }
        }
    }
}

fn answer_entry(flow: &Flow, number: Qpn) -> AnswerEntry {
    let syndrome = match flow.answer {
        // Go back: what was executed and not answered in full has to be asked for again.
        _ if flow.flags.has(Flags::LOST) => Syndrome::Nak(NakCode::PsnSequence),
        Answer::Ack | Answer::Left => Syndrome::ACK_WITHOUT_CREDITS,
        Answer::Rnr(timer) => Syndrome::RnrNak { timer },
        Answer::Nak(code) => Syndrome::Nak(NakCode::from_code(code)),
    };
    AnswerEntry {
        requester: flow.remote,
        responder: number,
        syndrome,
        msn: flow.expected_msn,
        generation: flow.received_generation(),
        replay_epoch: flow.remote_replay_epoch,
    }
}
