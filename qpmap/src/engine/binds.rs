//! BINDs: how the QPs of two nodes find each other on the connections between them, and how they
//! hear that the other is gone. What an entry means to a flow is in `binding`.

use super::binding::{Effects, FIRST_PAUSE_NS};
use super::pairing::Unready;
use super::qp::{FIRST_MSN, Flags, Wire};
use super::timer::Timer;
use super::{Engine, Event, Platform, Trace};
use crate::order::before;
use crate::slab::NONE;
use crate::state::{QpState, QpType};
use trunkline_conn::time::Instant;
use trunkline_conn::work::{Status, VendorError};
use trunkline_wire::{Control as ControlEntry, ControlKind, NakCode, Syndrome};

/// BINDs that get timers at a time.
const MOST_TIMED: usize = 256;

/// Why a BIND was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
enum Refusal {
    NoSuchQp = 1,
    OtherPeer = 2,
    TooMany = 3,
    Ended = 4,
}

impl Refusal {
    /// What a program hears of a refusal, by the number that the packet carries.
    const fn of(status: u32) -> VendorError {
        match status {
            2 => VendorError::OtherPeer,
            3 => VendorError::NoRoom,
            4 => VendorError::QpGone,
            _ => VendorError::NoQp,
        }
    }
}

impl<P: Platform> Engine<P> {
    /// BINDs of the peer and its answers to ours.
    pub(crate) fn handle_controls(&mut self, now: Instant, conn: u32, payload: &[u8]) {
        self.each_entry(ControlEntry::entries(payload), |engine, entry| {
            engine.handle_entry(now, conn, entry);
        });
    }

    pub(super) fn handle_entry(&mut self, now: Instant, conn: u32, entry: ControlEntry) {
        if entry.sender_life() == Some(0) {
            // No QP has such a life: 0 stands for one that was not heard of.
            self.counters.malformed.add(1);
            return;
        }
        match entry.kind {
            ControlKind::Bind => {
                self.emit(|engine| Trace::BindReceived {
                    qpn: entry.dest_qp,
                    remote: entry.src_qp,
                    conn: engine.links.id(conn),
                    replay_epoch: entry.replay_epoch,
                });
                self.handle_bind(now, conn, &entry);
            }
            ControlKind::Bound => self.handle_bound(now, conn, &entry),
            ControlKind::Refused => self.handle_refused(conn, &entry),
            ControlKind::Unbind => self.handle_unbind(conn, &entry),
        }
    }

    /// A peer's QP wants to send to one of ours. `conn` carried the BIND.
    fn handle_bind(&mut self, now: Instant, conn: u32, entry: &ControlEntry) {
        let Some(qp) = self.qp_index(entry.dest_qp) else {
            self.refuse_bind(now, conn, entry, Refusal::NoSuchQp);
            return;
        };
        let found = self.flow_from(qp, entry.src_qp, conn);
        // Each route has an incarnation of its own.
        let own = match found {
            Some(flow) => self.flows[flow].generation,
            None => self.qps.generation(qp),
        };
        if entry.status != 0 && entry.status != own {
            // It goes on with an incarnation of ours that is gone.
            self.refuse_bind(now, conn, entry, Refusal::NoSuchQp);
            return;
        }
        self.adopt_shared(qp, conn, entry.src_qp);
        if let Some(flow) = self.flow_from(qp, entry.src_qp, conn) {
            self.ask_flow(now, conn, flow, entry);
            return;
        }
        let kind = self.cold(qp).kind;
        let early = matches!(
            self.qps[qp].wire,
            Wire::None | Wire::Undecided(_) | Wire::Routes
        );
        let ready = matches!(self.qps[qp].state, QpState::Rtr | QpState::Rts);
        if kind == QpType::Src && ready {
            let address = self.links.address_of(conn);
            if !self.may_open_route(conn) {
                self.counters.routes_refused.add(1);
                self.refuse_bind(now, conn, entry, Refusal::TooMany);
            } else if self.control.refusals.may_ask(now, address) {
                let life = self.qps.generation(qp);
                let flow = self.open_route(qp, (conn, entry.src_qp), life, true);
                self.accept_bind(flow, entry);
            } else {
                // It searches for numbers of QPs, and is not to know those of this kind either.
                self.counters.control_overflow.add(1);
            }
        } else if early
            && matches!(kind, QpType::Src | QpType::Rc)
            && self.qps[qp].state != QpState::Error
        {
            if entry.msn != 0 && entry.msn != own {
                // It may go on with this incarnation, but who knows whether that will be ready.
                self.refuse_bind(now, conn, entry, Refusal::NoSuchQp);
            } else {
                self.keep_bind(qp, conn, entry);
            }
        } else if self.qps[qp].state == QpState::Error {
            self.refuse_bind(now, conn, entry, Refusal::Ended);
        } else {
            self.refuse_bind(now, conn, entry, Refusal::OtherPeer);
        }
    }

    /// A BIND waits until its QP is ready.
    fn keep_bind(&mut self, qp: u32, conn: u32, entry: &ControlEntry) {
        let bind = Unready {
            conn: self.links.id(conn),
            entry: *entry,
        };
        // Without a place the asker asks again, and hears when the QP is ready, which asks it.
        let waits = self.pairing.binds.insert(self.links[conn].peer(), qp, bind);
        self.counters.control_overflow.add(u64::from(!waits));
    }

    /// A BIND for a flow that there is.
    fn ask_flow(&mut self, now: Instant, conn: u32, flow: u32, entry: &ControlEntry) {
        let record = &self.flows[flow];
        if self.qps[record.qp].state != QpState::Error {
            self.accept_bind(flow, entry);
        } else if record.ending.is_untold() && entry.generation == record.remote_generation {
            // It hears so, and what was executed, from what is under way.
            self.counters.stale.add(1);
        } else {
            self.refuse_bind(now, conn, entry, Refusal::Ended);
        }
    }

    /// A QP is ready for BINDs, or never will be: those that came before are taken up.
    pub(crate) fn admit_waiting(&mut self, qp: u32) {
        for (peer, bind) in self.pairing.binds.take(qp) {
            let carried = self.links.live(bind.conn).map(|_| bind.conn.index);
            let conn = carried.unwrap_or_else(|| self.links.fallback(peer, bind.entry.src_qp));
            if conn != NONE {
                // Its peer's share of refusals grows with the next BIND.
                self.handle_bind(Instant::from_nanos(0), conn, &bind.entry);
            }
        }
    }

    fn accept_bind(&mut self, flow: u32, entry: &ControlEntry) {
        let begun = self.has_begun(flow);
        let effects = self.flows[flow].hear_bind(entry, begun);
        self.because(VendorError::QpGone, |engine| engine.apply(flow, effects));
        if effects.stale {
            self.counters.stale.add(1);
        } else if let Some(replay_epoch) = effects.enter
            && !self.enter_replay_epoch(flow, replay_epoch)
        {
            // It was held up on its way. Consent to a later epoch may have been lost, though.
            self.counters.stale.add(1);
        }
        self.queue_control(flow);
    }

    /// Whether anything was sent to the incarnation of the peer's QP that we know of.
    pub(crate) fn has_begun(&self, flow: u32) -> bool {
        let record = &self.flows[flow];
        let head = self.requests.get(record.head);
        record.acked_msn != FIRST_MSN || head.is_some_and(|pending| pending.begun)
    }

    /// Does what follows from an entry.
    fn apply(&mut self, flow: u32, effects: Effects) {
        if effects.stale {
            return;
        }
        if !self.flows[flow].is_asking() {
            self.timers.cancel(Timer::Ask(flow).key());
        }
        let in_order = effects.left && self.may_be_left(flow);
        let leaves = in_order && effects.fail;
        let returns = effects.forget && self.flows.returns(flow);
        match effects.forget {
            true if in_order => self.forget_peers_requests(flow),
            true => self.reset_responder(flow),
            false => {}
        }
        if let Some(replay_epoch) = effects.first {
            self.flows[flow].remote_replay_epoch = replay_epoch;
        }
        if effects.over && self.fail_wanted(flow) {
            self.flows[flow].count_anew();
        }
        if let Some((msn, verdict)) = effects.verdict {
            self.hear_verdict(flow, msn, verdict);
        }
        if leaves {
            self.is_left_alone(flow);
        } else if effects.fail && !self.flows.is_left(flow) && self.fail_wanted(flow)
            || effects.replaced
        {
            self.tell_deserted(flow);
        } else if returns && self.is_outstanding(flow) {
            self.ask_if_lapsed(flow);
        }
    }

    /// The last word of a peer's QP: all before `msn` was executed, and nothing else will be.
    fn hear_verdict(&mut self, flow: u32, msn: u32, verdict: Syndrome) {
        if before(self.flows[flow].next_msn, msn) {
            self.counters.bad_answer.add(1);
            return;
        }
        self.acknowledged(flow, msn);
        if let Syndrome::Nak(code) = verdict
            && !matches!(code, NakCode::PsnSequence | NakCode::InvalidRd)
            && self.qps[self.flows[flow].qp].state != QpState::Error
        {
            self.counters.nak_received.add(1);
            self.refused(flow, msn, code);
        }
    }

    /// Nobody will do what a flow wants. A flow that wants nothing is not harmed: it asks again
    /// when it does. Gives whether it can.
    fn fail_wanted(&mut self, flow: u32) -> bool {
        let record = &self.flows[flow];
        let (qp, head) = (record.qp, record.head);
        let qp_record = &self.qps[qp];
        if qp_record.state == QpState::Error {
            return false;
        }
        let own = qp_record.wire == Wire::Shared(flow) && self.cold(qp).kind == QpType::Rc;
        let posted = own && qp_record.has_posted();
        let wanted = head != NONE || posted;
        if wanted {
            self.fail_flow(flow, Status::RetryExceeded);
        }
        !wanted
    }

    /// A flow that may not send, and does not ask whether it may, does so.
    pub(crate) fn ask_if_lapsed(&mut self, flow: u32) {
        let record = &mut self.flows[flow];
        if record.has_lapsed() && record.conn != NONE {
            record.ask_anew();
            self.queue_control(flow);
        }
    }

    /// BINDs that are not recent any more get timers of their own, where nobody has answered them:
    /// many of them, at most, and then the next ones.
    pub(super) fn time_binds(&mut self, now: Instant) {
        for _ in 0..MOST_TIMED {
            let Some((flow, sent)) = self.pairing.recent.next(now) else {
                break;
            };
            let record = self.flows.get(flow);
            // A flow that was bound, or is over, may have been followed by another at its index.
            if record.is_some_and(|record| record.asks == 1 && record.is_asking()) {
                self.timers
                    .arm(sent + FIRST_PAUSE_NS, Timer::Ask(flow).key());
            }
        }
        if let Some(due) = self.pairing.recent.due() {
            self.timers.arm(due, Timer::RecentBinds.key());
        }
    }

    /// Nobody has answered a BIND for so long that it is said again.
    pub(crate) fn ask_again(&mut self, flow: u32) {
        let record = &mut self.flows[flow];
        if record.is_asking() {
            record.flags.set(Flags::BIND_DUE);
            self.queue_control(flow);
        }
    }

    fn refuse_bind(&mut self, now: Instant, conn: u32, entry: &ControlEntry, why: Refusal) {
        let pair = (entry.dest_qp, entry.src_qp);
        if self.is_ending(conn, pair, |flow| {
            flow.remote_generation == entry.generation
        }) {
            // It hears of the end of the QP, and what that has executed before.
            self.counters.stale.add(1);
            return;
        }
        let refusal = ControlEntry {
            kind: ControlKind::Refused,
            src_qp: entry.dest_qp,
            dest_qp: entry.src_qp,
            status: why as u32,
            ..*entry
        };
        let address = self.links.address_of(conn);
        if self.control.refuse(now, (conn, address), refusal) {
            self.owe_reply(conn);
        } else {
            // Whoever asks hears nothing, and asks again.
            self.counters.control_overflow.add(1);
        }
    }

    /// There is a stateless reply for the peer of `conn`.
    pub(crate) fn owe_reply(&mut self, conn: u32) {
        self.links[conn].flags.ack_delay.owe(true);
        self.mark_ready(conn);
    }

    /// The flow that an answer to a BIND is for.
    fn asker(&mut self, conn: u32, entry: &ControlEntry) -> Option<u32> {
        let found = self
            .qp_index(entry.dest_qp)
            .and_then(|qp| self.flow_from(qp, entry.src_qp, conn))
            .filter(|flow| self.flows[*flow].generation == entry.generation);
        self.counters.bad_answer.add(u64::from(found.is_none()));
        found
    }

    fn handle_refused(&mut self, conn: u32, entry: &ControlEntry) {
        let Some(flow) = self.asker(conn, entry) else {
            return;
        };
        let effects = self.flows[flow].hear_refused(entry);
        if effects.stale {
            self.counters.stale.add(1);
            return;
        }
        self.emit(|engine| Trace::BindRefused {
            flow,
            qpn: entry.dest_qp,
            remote: entry.src_qp,
            conn: engine.links.id(conn),
        });
        let why = Refusal::of(entry.status);
        self.because(why, |engine| engine.apply(flow, effects));
    }

    fn handle_bound(&mut self, now: Instant, conn: u32, entry: &ControlEntry) {
        let Some(flow) = self.asker(conn, entry) else {
            return;
        };
        if self.flows[flow].ending.is_untold() {
            self.counters.stale.add(1);
            return;
        }
        let begun = self.has_begun(flow);
        let effects = self.flows[flow].hear_bound(entry, begun);
        self.because(VendorError::QpGone, |engine| engine.apply(flow, effects));
        if effects.stale {
            self.counters.stale.add(1);
            return;
        }
        if effects.bound {
            self.counters.bound.add(1);
            if self.qps[self.flows[flow].qp].wire == Wire::Shared(flow) {
                let qpn = entry.dest_qp;
                self.events.push(Event::QpHeard { qpn });
            }
            self.emit(|engine| Trace::Bound {
                now,
                flow,
                qpn: entry.dest_qp,
                remote: entry.src_qp,
                conn: engine.links.id(conn),
                replay_epoch: entry.replay_epoch,
            });
        }
        // A life that was not heard of before may have to be asked anew.
        self.queue_control(flow);
        self.wake(flow);
    }

    /// The peer's QP is gone: what we still wanted of it will not be answered.
    fn handle_unbind(&mut self, conn: u32, entry: &ControlEntry) {
        let Some(qp) = self.qp_index(entry.dest_qp) else {
            return;
        };
        let peer = self.links[conn].peer();
        self.pairing
            .binds
            .forget(peer, qp, entry.src_qp, entry.generation);
        let Some(flow) = self.flow_from(qp, entry.src_qp, conn) else {
            return;
        };
        let begun = self.has_begun(flow);
        let effects = self.flows[flow].hear_unbind(entry, begun);
        self.because(VendorError::QpGone, |engine| {
            engine.apply(flow, effects);
            if !effects.stale && engine.is_route(flow) && engine.route_number(flow) == 0 {
                // A route that our program does not know was the peer's wish alone.
                engine.end_route(flow, Status::RetryExceeded);
            }
        });
        self.queue_control(flow);
    }
}
