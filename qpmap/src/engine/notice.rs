//! Notices: answers to requests and BINDs, batched into few packets.
//!
//! A notice waits one round of the poll loop for company (more answers, or data that goes the same
//! way); then everything a connection owes its peer goes out in as few packets as it takes.

use super::build::{Item, ItemKind, Route};
use super::patience::Patience;
use super::qp::{Answer, Flags, Flow, Wire};
use super::transmit::Turn;
use super::{ConnId, Engine, Platform, Timer, Trace};
use crate::slab::{NONE, Slab};
use crate::state::{QpState, QpType};
use std::collections::BTreeMap;
use trunkline_conn::egress::Egress;
use trunkline_conn::time::Instant;
use trunkline_conn::work::Status;
use trunkline_wire::{
    Answer as AnswerEntry, Control as ControlEntry, ControlKind, Gid, NakCode, Opcode, Qpn,
    Syndrome,
};

/// Most bytes of notices in one packet.
const MAX_BLOB: usize = 4096;
/// Packets that are sent at a time: one of answers, one of the rest.
const NOTICE_PACKETS: u32 = 2;
/// Most answers to packets without a flow that may wait.
const MAX_ORPHANS: usize = 1024;
/// Most BINDs that may wait for their QP to become ready.
const MAX_WAITING: usize = 1 << 20;
/// Most BINDs that may wait for one QP.
const MAX_WAITING_PER_QP: usize = 8;
/// Most flows that peers may open to one app-managed QP.
const MAX_PASSIVE: usize = 1 << 16;

/// Why a BIND was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u16)]
enum Refusal {
    NoSuchQp = 1,
    OtherPeer = 2,
    TooMany = 3,
}

/// Contents of notice packets, kept until they are acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Blobs {
    live: Slab<(u32, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    serial: u32,
}

impl Blobs {
    /// Notices in flight.
    pub(crate) const fn len(&self) -> usize {
        self.live.len()
    }

    fn blank(&mut self) -> Vec<u8> {
        self.spare
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(MAX_BLOB))
    }

    fn insert(&mut self, bytes: Vec<u8>) -> (u32, u32) {
        self.serial = self.serial.wrapping_add(1);
        (self.live.insert((self.serial, bytes)), self.serial)
    }

    fn give_back(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        self.spare.push(bytes);
    }

    pub(crate) fn get(&self, slot: u32, serial: u32) -> Option<&[u8]> {
        let (own, bytes) = self.live.get(slot)?;
        (*own == serial).then_some(bytes)
    }

    pub(crate) fn free(&mut self, slot: u32, serial: u32) {
        if self.get(slot, serial).is_some() {
            let (_, bytes) = self.live.remove(slot);
            self.give_back(bytes);
        }
    }
}

/// Something to tell a peer about a QP pair that has no flow here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orphan {
    pub(crate) conn: u32,
    pub(crate) content: OrphanContent,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum OrphanContent {
    Answer(AnswerEntry),
    Control(ControlEntry),
}

/// A BIND whose QP is not ready for it yet.
#[derive(Clone, Copy, Debug)]
struct WaitingBind {
    peer: u32,
    conn: u32,
    entry: ControlEntry,
}

/// All of them, by the index of the QP they are for.
#[derive(Debug, Default)]
pub(crate) struct WaitingBinds {
    by_qp: BTreeMap<u32, Vec<WaitingBind>>,
    count: usize,
}

impl WaitingBinds {
    /// BINDs in it.
    pub(crate) const fn len(&self) -> usize {
        self.count
    }

    fn insert(&mut self, qp: u32, bind: WaitingBind) -> bool {
        let list = self.by_qp.entry(qp).or_default();
        let same =
            |old: &WaitingBind| old.peer == bind.peer && old.entry.src_qp == bind.entry.src_qp;
        if let Some(old) = list.iter_mut().find(|old| same(old)) {
            // Said again, it may have come over another connection.
            if !is_newer(old.entry.generation, bind.entry.generation) {
                *old = bind;
            }
            return true;
        }
        if list.len() >= MAX_WAITING_PER_QP || self.count >= MAX_WAITING {
            return false;
        }
        list.push(bind);
        self.count += 1;
        true
    }

    /// A connection is gone: what came over it is answered over `heir`.
    pub(crate) fn rehome(&mut self, conn: u32, heir: u32) {
        let binds = self.by_qp.values_mut().flatten();
        for bind in binds.filter(|bind| bind.conn == conn) {
            bind.conn = heir;
        }
    }

    fn take(&mut self, qp: u32) -> Vec<WaitingBind> {
        let list = self.by_qp.remove(&qp).unwrap_or_default();
        self.count -= list.len();
        list
    }
}

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
    pub(crate) fn serve_notices(
        &mut self,
        now: Instant,
        conn: u32,
        route: &Route,
        (data, turn): (bool, Turn),
        egress: &mut (impl Egress + ?Sized),
    ) -> Turn {
        if turn == Turn::Full || !self.has_notices(conn) {
            return turn;
        }
        let patience = &mut self.conns[conn].flags.patience;
        if patience.is_over(data) {
            return match self.send_notices(now, conn, route, egress) {
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
    pub(crate) fn send_notices(
        &mut self,
        now: Instant,
        conn: u32,
        route: &Route,
        egress: &mut (impl Egress + ?Sized),
    ) -> Turn {
        let limit = usize::from(self.conns[conn].payload).min(MAX_BLOB);
        while self.has_notices(conn) {
            let delivery = &mut self.conns[conn].delivery;
            if !delivery.ready_small(now, NOTICE_PACKETS, &mut self.windows) {
                self.conns[conn].flags.patience.block();
                return Turn::Blocked;
            }
            // Room for one is checked before anything is taken off the lists; a second that does
            // not fit counts as lost on the way and is sent again.
            if egress
                .reserve(&route.path, limit + super::build::OVERHEAD as usize)
                .is_none()
            {
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
                if !self.send_blob(now, conn, route, item, opcode, egress) {
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
        let Ok(entries) = AnswerEntry::entries(payload) else {
            self.counters.malformed += 1;
            return;
        };
        for entry in entries {
            let Ok(entry) = entry else {
                self.counters.bad_answer += 1;
                continue;
            };
            let found = self
                .qp_index(entry.requester)
                .and_then(|qp| self.flow_from(qp, entry.responder, conn))
                .filter(|flow| self.flows[*flow].sent_generation() == entry.generation);
            match found {
                Some(flow) => self.answered(now, flow, entry.syndrome, entry.msn, entry.round),
                None => self.counters.bad_answer += 1,
            }
        }
    }

    /// BINDs of the peer and its answers to ours.
    pub(crate) fn handle_controls(&mut self, now: Instant, conn: u32, payload: &[u8]) {
        let Ok(entries) = ControlEntry::entries(payload) else {
            self.counters.malformed += 1;
            return;
        };
        for entry in entries {
            let Ok(entry) = entry else {
                self.counters.bad_answer += 1;
                continue;
            };
            self.handle_entry(now, conn, entry);
        }
    }

    fn handle_entry(&mut self, now: Instant, conn: u32, entry: ControlEntry) {
        match entry.kind {
            ControlKind::Bind => {
                self.tell(|engine| Trace::BindReceived {
                    qpn: entry.dest_qp,
                    remote: entry.src_qp,
                    conn: engine.conn_id(conn),
                    round: entry.round,
                });
                self.handle_bind(conn, entry);
            }
            ControlKind::Bound | ControlKind::Refused => self.handle_bound(now, conn, &entry),
            ControlKind::Unbind => self.handle_unbind(conn, &entry),
        }
    }

    /// A BIND or BOUND that came in the handshake of connection `id`, if that still stands and it
    /// is for a QP of this engine. One for another worker's comes again, where it belongs.
    pub fn handle_early(&mut self, now: Instant, id: ConnId, entry: ControlEntry) {
        if self.live(id).is_some() && self.qp_index(entry.dest_qp).is_some() {
            self.handle_entry(now, id.index, entry);
        }
    }

    /// BINDs of the QPs that wait to hear what `peer` is, to go with the question.
    pub fn early_binds(&self, peer: Gid) -> impl Iterator<Item = ControlEntry> {
        self.undecided_of(peer).map(|qp| ControlEntry {
            kind: ControlKind::Bind,
            src_qp: self.qp_number(qp),
            round: 0,
            dest_qp: self.cold(qp).attributes.dest_qpn,
            generation: self.generations[qp as usize],
            status: 0,
            msn: 0,
        })
    }

    /// The answer to a BIND that came with the question of a peer which is not known yet, if its QP
    /// is ready for it. Nothing changes: who asks has proved nothing so far. The BIND itself is
    /// [taken up](Self::handle_early) once the connection stands.
    pub fn consent(&self, peer: Gid, bind: &ControlEntry) -> Option<ControlEntry> {
        if self.peer_of.contains_key(&peer) {
            return None;
        }
        let qp = self.qp_index(bind.dest_qp)?;
        let (cold, state) = (self.cold(qp), self.qps[qp].state);
        let waits = || {
            let named = (cold.attributes.remote, cold.attributes.dest_qpn);
            self.qps[qp].wire == Wire::Undecided && named == (peer, bind.src_qp)
        };
        let meant = match cold.kind {
            QpType::Src => cold.routes.len() < MAX_PASSIVE,
            QpType::Rc => waits(),
            QpType::Uc | QpType::Ud => false,
        };
        let ready = matches!(state, QpState::Rtr | QpState::Rts);
        (meant && ready).then(|| ControlEntry {
            kind: ControlKind::Bound,
            src_qp: bind.dest_qp,
            dest_qp: bind.src_qp,
            status: self.generations[qp as usize],
            ..*bind
        })
    }

    /// A peer's QP wants to send to one of ours. `conn` carried the BIND.
    pub(crate) fn handle_bind(&mut self, conn: u32, entry: ControlEntry) {
        let Some(qp) = self.qp_index(entry.dest_qp) else {
            self.refuse_bind(conn, &entry, Refusal::NoSuchQp);
            return;
        };
        if entry.status != 0 && entry.status != self.generations[qp as usize] {
            // It goes on with an incarnation of ours that is gone.
            self.refuse_bind(conn, &entry, Refusal::NoSuchQp);
            return;
        }
        self.adopt_shared(qp, conn, entry.src_qp);
        if let Some(flow) = self.flow_from(qp, entry.src_qp, conn) {
            self.accept_bind(flow, &entry);
            return;
        }
        let peer = self.conns[conn].peer;
        let many = self.cold(qp).kind == QpType::Src;
        let early = matches!(self.qps[qp].wire, Wire::None | Wire::Undecided);
        if many && matches!(self.qps[qp].state, QpState::Rtr | QpState::Rts) {
            if self.cold(qp).routes.len() >= MAX_PASSIVE {
                self.refuse_bind(conn, &entry, Refusal::TooMany);
                return;
            }
            let flow = self.open_route(qp, conn, entry.src_qp);
            self.accept_bind(flow, &entry);
        } else if early && self.qps[qp].state != QpState::Error {
            let bind = WaitingBind { peer, conn, entry };
            if !self.waiting_binds.insert(qp, bind) {
                self.counters.control_overflow += 1;
                self.refuse_bind(conn, &entry, Refusal::TooMany);
            }
        } else {
            self.refuse_bind(conn, &entry, Refusal::OtherPeer);
        }
    }

    /// BINDs that came before their QP was ready.
    pub(crate) fn admit_waiting(&mut self, qp: u32) {
        for bind in self.waiting_binds.take(qp) {
            if self
                .conns
                .get(bind.conn)
                .is_some_and(|conn| conn.peer == bind.peer)
            {
                self.handle_bind(bind.conn, bind.entry);
            }
        }
    }

    pub(crate) fn forget_waiting(&mut self, qp: u32) {
        self.waiting_binds.take(qp);
    }

    fn accept_bind(&mut self, flow: u32, entry: &ControlEntry) {
        let record = &self.flows[flow];
        if record.remote_generation != entry.generation || !record.flags.has(Flags::PEER_BOUND) {
            if !self.hear_of(flow, entry.generation) {
                // Of an incarnation that is gone: it was held up on its way.
                self.counters.stale += 1;
                return;
            }
            self.flows[flow].flags.set(Flags::PEER_BOUND);
        } else if !self.enter_round(flow, entry.round) {
            // It was held up on its way. Consent to a later round may have been lost, though.
            self.counters.stale += 1;
        }
        self.flows[flow].flags.set(Flags::BOUND_DUE);
        self.notice(flow);
    }

    /// The peer's QP is in incarnation `generation`, as one of its packets says. `false`: it was,
    /// and no longer is.
    ///
    /// Packets overtake each other, so that this may be heard first from the BIND of that
    /// incarnation, from its consent to ours, or from its end.
    fn hear_of(&mut self, flow: u32, generation: u16) -> bool {
        let record = &mut self.flows[flow];
        let heard = record.flags.has(Flags::HEARD);
        if heard && generation == record.remote_generation {
            return !record.flags.has(Flags::UNBOUND);
        }
        if heard && !is_newer(generation, record.remote_generation) {
            return false;
        }
        record.remote_generation = generation;
        record.flags.set(Flags::HEARD);
        record.flags.clear(Flags::PEER_BOUND);
        record.flags.clear(Flags::UNBOUND);
        self.reset_responder(flow);
        if heard && self.has_begun(flow) {
            // Whoever we talked to is gone, and took what it has executed with it.
            self.fail_begun(flow);
        } else if heard {
            // Whoever agreed to our BIND is gone.
            let flags = &mut self.flows[flow].flags;
            flags.clear(Flags::BOUND);
            flags.set(Flags::BIND_DUE);
        }
        true
    }

    /// Whether anything was sent to the incarnation of the peer's QP that we know of.
    fn has_begun(&self, flow: u32) -> bool {
        let record = &self.flows[flow];
        let head = self.requests.get(record.head);
        record.acked_msn != 0 || head.is_some_and(|pending| pending.begun)
    }

    /// The incarnation of the peer's QP that we talked to is gone.
    fn fail_begun(&mut self, flow: u32) {
        if self.flows[flow].head != NONE {
            self.fail_flow(flow, Status::RetryExceeded);
        } else {
            // That harms nobody who asks for nothing: what is posted later is refused by itself.
            self.flows[flow].flags.set(Flags::BOUND);
            self.wake(flow);
        }
    }

    fn refuse_bind(&mut self, conn: u32, entry: &ControlEntry, why: Refusal) {
        let content = OrphanContent::Control(ControlEntry {
            kind: ControlKind::Refused,
            src_qp: entry.dest_qp,
            dest_qp: entry.src_qp,
            status: why as u16,
            ..*entry
        });
        self.orphan(conn, content);
    }

    fn handle_bound(&mut self, now: Instant, conn: u32, entry: &ControlEntry) {
        let found = self
            .qp_index(entry.dest_qp)
            .and_then(|qp| self.flow_from(qp, entry.src_qp, conn))
            .filter(|flow| self.flows[*flow].generation == entry.generation);
        let Some(flow) = found else {
            self.counters.bad_answer += 1;
            return;
        };
        let (qpn, remote) = (entry.dest_qp, entry.src_qp);
        if entry.kind == ControlKind::Refused {
            self.tell(|engine| Trace::BindRefused {
                flow,
                qpn,
                remote,
                conn: engine.conn_id(conn),
            });
            self.fail_begun(flow);
            return;
        }
        // Consent to an earlier round does not allow this one, which has its own BIND under way.
        if !self.hear_of(flow, entry.status) || entry.round != self.flows[flow].round {
            self.counters.stale += 1;
            return;
        }
        // Said again, it is no news.
        if !self.flows[flow].flags.has(Flags::BOUND) {
            self.flows[flow].flags.set(Flags::BOUND);
            self.counters.bound += 1;
            self.tell(|engine| Trace::Bound {
                now,
                flow,
                qpn,
                remote,
                conn: engine.conn_id(conn),
                round: entry.round,
            });
        }
        // Consent that came in the handshake spares the question.
        self.flows[flow].flags.clear(Flags::BIND_DUE);
        self.wake(flow);
    }

    /// The peer's QP is gone: what we still wanted of it will not be answered.
    fn handle_unbind(&mut self, conn: u32, entry: &ControlEntry) {
        let found = self
            .qp_index(entry.dest_qp)
            .and_then(|qp| self.flow_from(qp, entry.src_qp, conn))
            .filter(|flow| self.hear_of(*flow, entry.generation));
        let Some(flow) = found else { return };
        self.flows[flow].flags.clear(Flags::PEER_BOUND);
        self.flows[flow].flags.set(Flags::UNBOUND);
        self.reset_responder(flow);
        // Before it agreed to our BIND, it may be an earlier incarnation that ended.
        if self.flows[flow].flags.has(Flags::BOUND) || self.has_begun(flow) {
            self.fail_begun(flow);
        }
        self.notice(flow);
    }

    /// Something for the peer went down with its connection, and no flow of ours says it again.
    pub(crate) fn rescue_blob(&mut self, item: &Item, other: u32) {
        let Some(bytes) = self.blobs.get(item.slot, item.serial).map(<[u8]>::to_vec) else {
            return;
        };
        if item.kind == ItemKind::Control {
            let entries = ControlEntry::entries(&bytes)
                .into_iter()
                .flatten()
                .flatten();
            let ends = [ControlKind::Unbind, ControlKind::Refused];
            for entry in entries.filter(|entry| ends.contains(&entry.kind)) {
                self.orphan(other, OrphanContent::Control(entry));
            }
            return;
        }
        for entry in AnswerEntry::entries(&bytes).into_iter().flatten().flatten() {
            let flow = self
                .qp_index(entry.responder)
                .and_then(|qp| self.flow_from(qp, entry.requester, other));
            if flow.is_none() {
                self.orphan(other, OrphanContent::Answer(entry));
            }
        }
    }

    /// Tells the peer that a flow of ours ends.
    pub(crate) fn send_unbind(&mut self, flow: u32) {
        let record = &self.flows[flow];
        if record.conn == NONE {
            return;
        }
        let number = self.qp_number(record.qp);
        let content =
            OrphanContent::Control(control_entry(record, number, ControlKind::Unbind, false));
        self.orphan(record.conn, content);
    }

    /// A packet for a QP pair that has no flow here.
    pub(crate) fn refuse_orphan(&mut self, conn: u32, answer: AnswerEntry) {
        self.orphan(conn, OrphanContent::Answer(answer));
    }

    fn orphan(&mut self, conn: u32, content: OrphanContent) {
        if self.orphans.len() >= MAX_ORPHANS {
            self.counters.control_overflow += 1;
            return;
        }
        self.orphans.push_back(Orphan { conn, content });
        self.conns[conn].flags.patience.owe(true);
        self.touch(conn);
    }

    /// The flow of a local QP to `remote` at the peer of `conn`.
    #[inline]
    pub(crate) fn flow_from(&self, qp: u32, remote: Qpn, conn: u32) -> Option<u32> {
        let fits = |flow: &u32| {
            let record = &self.flows[*flow];
            record.remote == remote && (record.conn == conn || self.is_of_peer(*flow, conn))
        };
        if let Wire::Shared(own) = self.qps[qp].wire
            && fits(&own)
        {
            return Some(own);
        }
        let routes = &self.cold(qp).routes;
        routes
            .iter()
            .copied()
            .filter(|flow| *flow != NONE)
            .find(fits)
    }

    /// Whether a flow that is not on `conn` is for its peer.
    fn is_of_peer(&self, flow: u32, conn: u32) -> bool {
        let peer = self.conns[conn].peer;
        match self.conns.get(self.flows[flow].conn) {
            Some(own) => own.peer == peer,
            // Between two connections.
            None => self.is_stranded(peer, flow),
        }
    }
}

/// Whether circular `generation` comes after `other`.
const fn is_newer(generation: u16, other: u16) -> bool {
    generation.wrapping_sub(other).cast_signed() > 0
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

fn control_entry(flow: &Flow, number: Qpn, kind: ControlKind, begun: bool) -> ControlEntry {
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
