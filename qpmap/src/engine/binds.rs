//! BINDs: how the QPs of two nodes find each other on the connections between them, and how they
//! hear that the other is gone.

use super::orphans::OrphanContent;
use super::qp::{Flags, Wire};
use super::{ConnId, Engine, Platform, Trace};
use crate::slab::NONE;
use crate::state::{QpState, QpType};
use std::collections::BTreeMap;
use trunkline_conn::time::Instant;
use trunkline_conn::work::Status;
use trunkline_wire::{Control as ControlEntry, ControlKind, Gid};

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
    /// BINDs of the peer and its answers to ours.
    pub(crate) fn handle_controls(&mut self, now: Instant, conn: u32, payload: &[u8]) {
        self.each_entry(ControlEntry::entries(payload), |engine, entry| {
            engine.handle_entry(now, conn, entry);
        });
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
    /// is for a QP of this engine. One for another worker's comes again, where it belongs. So does
    /// one for a plain QP: since it left with the question, the QP that it speaks for may have gone
    /// plain, too.
    pub fn handle_early(&mut self, now: Instant, id: ConnId, entry: ControlEntry) {
        let wire = self.qp_index(entry.dest_qp).map(|qp| self.qps[qp].wire);
        if self.live(id).is_some() && !matches!(wire, None | Some(Wire::Plain(_))) {
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
            // Nothing of that incarnation was executed yet. It may have begun a round before this
            // was heard: where consent came in the handshake and the connection died at once.
            let record = &mut self.flows[flow];
            record.flags.set(Flags::PEER_BOUND);
            record.remote_round = entry.round;
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
    pub(crate) fn has_begun(&self, flow: u32) -> bool {
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
}

/// Whether circular `generation` comes after `other`.
const fn is_newer(generation: u16, other: u16) -> bool {
    generation.wrapping_sub(other).cast_signed() > 0
}
