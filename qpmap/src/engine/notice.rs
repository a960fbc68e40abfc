//! Notices: answers to requests and BINDs, batched into few packets.
//!
//! A notice waits one round of the poll loop for company (more answers, or data that goes the same
//! way); then everything a connection owes its peer goes out in as few packets as it takes.

use super::blobs::MAX_BLOB;
use super::build::{Item, ItemKind};
use super::orphans::OrphanContent;
use super::patience::Patience;
use super::qp::{Answer, Flags, Flow};
use super::send::Way;
use super::transmit::Turn;
use super::{Engine, Platform, Timer, Trace};
use crate::slab::NONE;
use trunkline_conn::egress::Egress;
use trunkline_conn::time::Instant;
use trunkline_wire::{
    Answer as AnswerEntry, Control as ControlEntry, ControlKind, NakCode, Opcode, Qpn, Syndrome,
    WireError,
};

/// Packets that are sent at a time: one of answers, one of the rest.
const NOTICE_PACKETS: u32 = 2;
impl<P: Platform> Engine<P> {
    /// Puts a flow that owes its peer something into its connection's list.
    pub(crate) fn notice(&mut self, flow: u32) {
        let record = &mut self.flows[flow];
        let conn = record.conn;
        let binds = [Flags::BIND_DUE, Flags::BOUND_DUE];
        let binding = binds.iter().any(|flag| record.flags.has(*flag));
        if conn == NONE || !(binding || record.flags.has(Flags::ANSWER_DUE)) {
            return;
        }
        let urgent = binding || record.flags.has(Flags::LOST) || record.answer != Answer::Ack;
        self.conns[conn].flags.patience.owe(urgent);
        if record.flags.has(Flags::NOTICED) {
            // It was touched then, but may have waited since.
            self.touch(conn);
            return;
        }
        self.conns[conn].noticed.push(&mut self.flows, flow);
        self.touch(conn);
    }

    pub(crate) fn has_notices(&self, conn: u32) -> bool {
        !self.conns[conn].noticed.is_empty()
            || self.orphans.iter().any(|orphan| orphan.conn == conn)
    }

    /// Sends notices, unless they had better wait; `data` says whether other packets were sent in
    /// this round, whose turn ended as `turn`.
    pub(super) fn serve_notices(
        &mut self,
        way: &mut Way<'_, impl Egress + ?Sized>,
        data: bool,
        turn: Turn,
    ) -> Turn {
        let (now, conn) = (way.now, way.conn);
        if turn == Turn::Full || !self.has_notices(conn) {
            return turn;
        }
        let patience = &mut self.conns[conn].flags.patience;
        if patience.is_over(data) {
            return match self.send_notices(way) {
                Turn::Idle => turn,
                other => other,
            };
        }
        if patience.arm() {
            let serial = self.conn_serials[conn as usize];
            let timer = Timer::Notices { conn, serial };
            self.timers.arm(now + Patience::MOST_NS, timer);
        }
        if turn == Turn::Idle && !patience.is_deferred() {
            // The next round asks again.
            return Turn::Yield;
        }
        turn
    }

    /// Notices have waited long enough.
    pub(crate) fn notices_timeout(&mut self, conn: u32, serial: u32) {
        if self.conns.get(conn).is_some() && self.conn_serials[conn as usize] == serial {
            self.conns[conn].flags.patience.end();
            self.touch(conn);
        }
    }

    /// Sends all notices, whether they had better wait or not.
    pub(super) fn send_notices(&mut self, way: &mut Way<'_, impl Egress + ?Sized>) -> Turn {
        let (now, conn) = (way.now, way.conn);
        let limit = usize::from(self.conns[conn].payload).min(MAX_BLOB);
        while self.has_notices(conn) {
            let delivery = &mut self.conns[conn].delivery;
            if !delivery.ready_small(now, NOTICE_PACKETS, &mut self.windows) {
                self.conns[conn].flags.patience.block();
                return Turn::Blocked;
            }
            // Room for one is checked before anything is taken off the lists; a second that does
            // not fit counts as lost on the way and is sent again.
            if !way.has_room(limit + super::build::OVERHEAD as usize) {
                return Turn::Full;
            }
            let mut answers = self.blobs.blank();
            let mut controls = self.blobs.blank();
            self.collect(now, conn, limit, (&mut answers, &mut controls));
            for (kind, opcode, bytes) in [
                (ItemKind::Control, Opcode::SRC_CONTROL, controls),
                (ItemKind::Answers, Opcode::SRC_ANSWERS, answers),
            ] {
                if bytes.is_empty() {
                    self.blobs.give_back(bytes);
                    continue;
                }
                let datagram = (super::build::BASE + bytes.len() + super::build::ICRC) as u32;
                let (slot, serial) = self.blobs.insert(bytes);
                let item = Item {
                    kind,
                    slot,
                    serial,
                    ..Item::PING
                };
                if !self.send_blob(way, item, opcode) {
                    self.conns[conn].delivery.record(now, item, datagram);
                }
            }
        }
        self.conns[conn].flags.patience.start_anew();
        Turn::Idle
    }

    fn collect(
        &mut self,
        now: Instant,
        conn: u32,
        limit: usize,
        (answers, controls): (&mut Vec<u8>, &mut Vec<u8>),
    ) {
        let full = |answers: &Vec<u8>, controls: &Vec<u8>| {
            answers.len() + AnswerEntry::LEN > limit
                || controls.len() + 2 * ControlEntry::LEN > limit
        };
        self.orphans.retain(|orphan| {
            if orphan.conn != conn || full(answers, controls) {
                return true;
            }
            match orphan.content {
                OrphanContent::Answer(entry) => answers.extend(entry.to_bytes()),
                OrphanContent::Control(entry) => controls.extend(entry.to_bytes()),
            }
            false
        });
        while !full(answers, controls) {
            let Some(flow) = self.pop_noticed(conn) else {
                break;
            };
            let number = self.qp_number(self.flows[flow].qp);
            let begun = self.has_begun(flow);
            let record = &mut self.flows[flow];
            if record.flags.has(Flags::ANSWER_DUE) {
                answers.extend(answer_entry(record, number).to_bytes());
            }
            for (flag, kind) in [
                (Flags::BIND_DUE, ControlKind::Bind),
                (Flags::BOUND_DUE, ControlKind::Bound),
            ] {
                if record.flags.has(flag) {
                    controls.extend(control_entry(record, number, kind, begun).to_bytes());
                }
            }
            let binding = record.flags.has(Flags::BIND_DUE);
            for flag in [Flags::ANSWER_DUE, Flags::BIND_DUE, Flags::BOUND_DUE] {
                record.flags.clear(flag);
            }
            if binding {
                self.tell(|engine| {
                    let record = &engine.flows[flow];
                    Trace::BindSent {
                        now,
                        flow,
                        qpn: number,
                        remote: record.remote,
                        conn: engine.conn_id(conn),
                        round: record.round,
                    }
                });
            }
        }
    }

    /// Answers of the peer to requests of ours.
    pub(crate) fn handle_answers(&mut self, now: Instant, conn: u32, payload: &[u8]) {
        self.each_entry(AnswerEntry::entries(payload), |engine, entry| {
            let found = engine
                .qp_index(entry.requester)
                .and_then(|qp| engine.flow_from(qp, entry.responder, conn))
                .filter(|flow| engine.flows[*flow].sent_generation() == entry.generation);
            match found {
                Some(flow) => engine.answered(now, flow, entry.syndrome, entry.msn, entry.round),
                None => engine.counters.bad_answer += 1,
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
            self.counters.malformed += 1;
            return;
        };
        for entry in entries {
            match entry {
                Ok(entry) => take_up(self, entry),
                Err(_) => self.counters.bad_answer += 1,
            }
        }
    }
}

fn answer_entry(flow: &Flow, number: Qpn) -> AnswerEntry {
    let syndrome = match flow.answer {
        // Go back: what was executed and not answered in full has to be asked for again.
        _ if flow.flags.has(Flags::LOST) => Syndrome::Nak(NakCode::PsnSequence),
        Answer::Ack => Syndrome::ACK_WITHOUT_CREDITS,
        Answer::Rnr(timer) => Syndrome::RnrNak { timer },
        Answer::Nak(code) => Syndrome::Nak(NakCode::from_code(code)),
    };
    AnswerEntry {
        requester: flow.remote,
        responder: number,
        syndrome,
        msn: flow.expected_msn,
        generation: flow.received_generation(),
        round: flow.remote_round,
    }
}

pub(crate) fn control_entry(
    flow: &Flow,
    number: Qpn,
    kind: ControlKind,
    begun: bool,
) -> ControlEntry {
    let (generation, status, round) = match kind {
        // Consent names the incarnation it is given to, and the one that gives it.
        ControlKind::Bound => (flow.remote_generation, flow.generation, flow.remote_round),
        // What has begun can only go on with the incarnation that has its beginning.
        ControlKind::Bind if begun => (flow.generation, flow.remote_generation, flow.round),
        ControlKind::Bind => (flow.generation, 0, flow.round),
        _ => (flow.generation, 0, 0),
    };
    ControlEntry {
        kind,
        src_qp: number,
        round,
        dest_qp: flow.remote,
        generation,
        status,
        msn: 0,
    }
}
