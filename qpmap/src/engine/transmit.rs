//! Which packet goes next.
//!
//! Connections with something to send take turns ([`Schedule`](super::schedule::Schedule)); within
//! one, retransmissions go first, then flows by deficit round robin over bytes, those of a tenant
//! as one. Then control messages go, then a bare acknowledgement if one is still due. Where the
//! connection has little window control messages go before the flows; where the port has little
//! room, before all data. The answers of a flow go before its next message that the peer's program
//! is told of.

use super::build::{Emitted, SentPacket};
use super::flows::{Next, TurnOf};
use super::own_memory::{MOST_OWN, own_op};
use super::qp::{Flags, Wire};
use super::schedule::{First, Owed, Served, Share};
use super::send::TxContext;
use super::tenants::Pause;
use super::{Engine, Platform, Ready};
use crate::order::before;
use crate::slab::NONE;
use trunkline_conn::egress::{Egress, Transmitted};
use trunkline_conn::time::Instant;
use trunkline_conn::work::SendFlags;
use trunkline_wire::{Opcode, Workers};

/// Bytes a flow may send per turn: one full packet, or several small ones.
const QUANTUM: i32 = 4096;

/// Why a turn ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Turn {
    /// Nothing left to send.
    Idle,
    /// Its share is used up.
    Yield,
    /// Its tenants have no turn now.
    Paused(Pause),
    /// The connection may not send now.
    Blocked,
    /// The port is full.
    Full,
}

impl<P: Platform> Engine<P> {
    /// Builds packets until there is nothing to send, the port is full, or every connection has
    /// had its turn. Gives the number of packets.
    pub fn poll_transmit(&mut self, now: Instant, egress: &mut (impl Egress + ?Sized)) -> u64 {
        self.poll_transmit_with(now, egress, &mut |_| Transmitted::Nothing)
    }

    /// The same for a node whose connection managers send through the same port: `manage` builds
    /// one of their datagrams. They go before data. Where the port has less room than all would
    /// take, they share half of it with what connections owe their peers. Gives the number of
    /// packets, theirs included.
    pub fn poll_transmit_with<E: Egress + ?Sized>(
        &mut self,
        now: Instant,
        egress: &mut E,
        manage: &mut impl FnMut(&mut E) -> Transmitted,
    ) -> u64 {
        let before = self.counters.sent.get();
        self.completions.begin(now);
        self.bury();
        self.look_at_routes(now);
        self.resume_staged();
        self.wind_up(now);
        self.tx.schedule_mut().begin();
        let mut managed = self.serve_first(now, egress, manage);
        for _ in 0..self.tx.schedule().len() {
            if self.tx.schedule().is_full() {
                break;
            }
            let Some((ready, rest)) = self.tx.schedule_mut().next() else {
                break;
            };
            let sent = self.counters.sent.get();
            let (served, share) = match ready {
                Ready::Conn(conn) => self.serve(now, conn, rest, egress),
                Ready::Ibta(ibta) => {
                    let share = rest.unwrap_or(Share::of(1));
                    self.serve_ibta(now, ibta, share, egress)
                }
            };
            let sent = self.counters.sent.get() - sent;
            self.tx.schedule_mut().end(ready, served, share, sent);
            if let Some(ready) = self.tx.schedule_mut().end_period() {
                self.flows.tenants().begin_period(ready);
            }
        }
        // In other rounds all that goes first has gone.
        if self.tx.schedule().is_tight() && !self.tx.schedule().is_full() {
            self.tx.schedule_mut().settle();
            managed += self.serve_first(now, egress, manage);
        }
        self.counters.sent.get() - before + managed
    }

    /// Whether there is nothing to send yet: no connection has anything, or one alone has answers
    /// that wait for company. These have waited for a round then.
    pub fn may_wait(&mut self, now: Instant) -> bool {
        if self.has_pending_closes() {
            return false;
        }
        match self.tx.schedule().sole() {
            None => self.tx.schedule().is_empty(),
            Some(Ready::Conn(conn)) => self.waits_for_company(now, conn),
            Some(Ready::Ibta(_)) => false,
        }
    }

    /// Whether the port had less room in the last round than there was to send.
    pub const fn is_out_of_room(&self) -> bool {
        self.tx.schedule().is_full()
    }

    /// Sends what goes before data, as far as it may. Gives the packets of connection managers.
    fn serve_first<E: Egress + ?Sized>(
        &mut self,
        now: Instant,
        egress: &mut E,
        manage: &mut impl FnMut(&mut E) -> Transmitted,
    ) -> u64 {
        let (mut managed, mut managing) = (0, true);
        if !self.tx.schedule().is_full() && !self.send_pending_closes(egress) {
            self.tx.schedule_mut().refuse();
        }
        while let Some(first) = self.tx.schedule_mut().first(managing) {
            match first {
                First::Management => match manage(egress) {
                    Transmitted::Packet => {
                        managed += 1;
                        self.tx.schedule_mut().went_first(first);
                    }
                    Transmitted::Nothing => managing = false,
                    Transmitted::NoRoom => self.tx.schedule_mut().refuse(),
                },
                First::Owed(conn) => {
                    let owed = self.serve_owed(now, conn, egress);
                    if owed == Owed::Sent {
                        self.tx.schedule_mut().went_first(first);
                    }
                    self.tx.schedule_mut().owed(conn, owed);
                }
            }
        }
        managed
    }

    fn tx<'a, E: Egress + ?Sized>(
        &mut self,
        now: Instant,
        conn: u32,
        egress: &'a mut E,
    ) -> TxContext<'a, E> {
        if self.links.peer(self.links[conn].peer()).workers() != Workers::ONE {
            egress.part();
        }
        let route = self.route(conn);
        TxContext {
            now,
            conn,
            route,
            egress,
        }
    }

    /// Sends a packet of what a connection owes its peer, in a round in which that goes before
    /// data.
    fn serve_owed(&mut self, now: Instant, conn: u32, egress: &mut (impl Egress + ?Sized)) -> Owed {
        let mut tx = self.tx(now, conn, egress);
        let control_messages = self.owed_control(&mut tx);
        if matches!(control_messages, Owed::Sent | Owed::Full) {
            self.arm_conn(now, conn, true);
            return control_messages;
        }
        if !self.links[conn].delivery.is_ack_due(now) {
            return control_messages;
        }
        if !self.send_ack(&mut tx) {
            return Owed::Full;
        }
        self.arm_conn(now, conn, false);
        Owed::Sent
    }

    /// A turn of a connection: a new one, or what a full port left of one.
    fn serve(
        &mut self,
        now: Instant,
        conn: u32,
        rest: Option<Share>,
        egress: &mut (impl Egress + ?Sized),
    ) -> (Served, Share) {
        let mut share = rest.unwrap_or(Share::of(self.links[conn].weight));
        if self.waits_for_company(now, conn) {
            return (Served::Again, share);
        }
        let mut tx = self.tx(now, conn, egress);
        let before = self.counters.sent.get();
        self.tx.packs.begin();
        let mut turn = self.serve_turns(&mut tx, &mut share);
        match self.send_pack(&mut tx, false) {
            Emitted::NoRoom => turn = Turn::Full,
            // What follows from that is said in the next round.
            Emitted::Voided => turn = Turn::Yield,
            Emitted::Sent | Emitted::Spent => {}
        }
        let turn = match self.links[conn].flags.owes_ping() {
            true => self.serve_ping(&mut tx, turn),
            false => turn,
        };
        if self.counters.sent.get() != before {
            self.links[conn].delivery.ack_piggybacked();
            self.note_waiting(now, conn, &share);
        }
        // In a tight round acknowledgements go before all data.
        let ack = turn == Turn::Full || self.tx.schedule().is_tight() || self.send_ack(&mut tx);
        self.rest(now, conn);
        let served = match turn {
            Turn::Full => Served::Full,
            _ if !ack => Served::Full,
            Turn::Yield => Served::Again,
            Turn::Paused(pause) => Served::Paused(pause),
            // An acknowledgement or a timer wakes what is blocked.
            Turn::Idle | Turn::Blocked => Served::Done,
        };
        let waits = served == Served::Full || self.tx.schedule().is_owing(conn);
        self.arm_conn(now, conn, waits);
        (served, share)
    }

    /// Tells who waits for the window of a connection, which has sent something in its turn.
    #[inline]
    fn note_waiting(&mut self, now: Instant, conn: u32, share: &Share) {
        if !self.flows.tenants().are_several() || share.is_spent() {
            return;
        }
        let home = &self.links[conn];
        if let Some(tenant) = self.flows.first_tenant(&home.runnable)
            && let Some(turnaround_ns) = home.delivery.turnaround_ns()
        {
            let from = (conn, home.peer(), now);
            self.flows.tenants().wait(tenant, from, turnaround_ns);
        }
    }

    /// Packets of full size that a connection may send now.
    #[inline]
    fn room_of(&mut self, now: Instant, conn: u32) -> u32 {
        let (record, windows) = self.links.with_windows(conn);
        record.delivery.ready(now, windows)
    }

    fn serve_turns(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        share: &mut Share,
    ) -> Turn {
        let (now, conn) = (tx.now, tx.conn);
        while let Some(lost) = self.links[conn].delivery.peek_retransmit(now) {
            if share.is_spent() {
                return Turn::Yield;
            }
            if lost.too_large {
                self.give_up(&lost.item);
            }
            if self.send_again(tx, &lost.item) == Emitted::NoRoom {
                return Turn::Full;
            }
            share.take(lost.bytes);
        }
        let mut room = self.room_of(now, conn);
        if self.links[conn].flags.owes_ping() && self.links.probe(conn).is_some() && room > 0 {
            if !self.send_ping(tx) {
                return Turn::Full;
            }
            room -= 1;
        }
        // Data goes first, it is what somebody waits for; one packet is kept back for control
        // messages.
        // Where that is all there is, or was not enough, they do: data may fill any window for as
        // long as there is some.
        let mut held = u32::from(self.has_control(conn));
        let blocked = self.links[conn].flags.ack_delay.is_blocked();
        if held > 0 && !self.tx.schedule().is_tight() && (room <= held || blocked) {
            match self.send_control(tx) {
                Turn::Idle => {}
                other => return other,
            }
            held = 0;
            room = self.room_of(now, conn);
        }
        let before = self.counters.sent.get();
        let mut turn = self.serve_flows(tx, room.saturating_sub(held), share);
        while turn == Turn::Yield && !share.is_spent() {
            // What was granted was room for packets of full size: smaller ones have left some.
            room = self.room_of(now, conn);
            if room <= held {
                // A round takes about as long as pacing waits for a packet: the next one looks
                // again, before the worker sleeps.
                break;
            }
            turn = self.serve_flows(tx, room.saturating_sub(held), share);
        }
        let data = self.counters.sent.get() != before || self.tx.packs.is_open();
        if self.tx.schedule().is_tight() {
            return turn;
        }
        self.serve_control(tx, data, turn)
    }

    /// The PING that a connection owes its peer at the end of a turn. What is in flight asks the
    /// peer for an answer as well as a PING does.
    #[cold]
    fn serve_ping(&mut self, tx: &mut TxContext<'_, impl Egress + ?Sized>, turn: Turn) -> Turn {
        if self.links[tx.conn].delivery.in_flight() > 0 {
            let owes = self.links.probe(tx.conn).is_some();
            self.links[tx.conn].flags.set_ping(owes);
            return turn;
        }
        let may = turn != Turn::Full && self.room_of(tx.now, tx.conn) > 0;
        if may && !self.send_ping(tx) {
            return Turn::Full;
        }
        turn
    }

    /// Sends the PING that a connection owes its peer, if the port has room.
    fn send_ping(&mut self, tx: &mut TxContext<'_, impl Egress + ?Sized>) -> bool {
        let ping = self.links.probe(tx.conn).unwrap_or(SentPacket::PING);
        let sent = self.send_blob(tx, ping, Opcode::SRC_PING);
        if sent {
            self.links.pinged(&ping);
            self.links[tx.conn].flags.set_ping(false);
        }
        sent
    }

    fn serve_flows(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        room: u32,
        share: &mut Share,
    ) -> Turn {
        let conn = tx.conn;
        let given = share.limited(room);
        let mut left = given;
        let turn = loop {
            let home = &mut self.links[conn];
            let quantum = QUANTUM.max(home.payload() as i32);
            let before = left.bytes();
            let (peer, now) = (home.peer(), tx.now);
            let (of, turns) = (TurnOf { conn, peer, now }, &mut home.runnable);
            let (flow, alone) = match self.flows.begin_turn(turns, of, (quantum, before)) {
                Ok(first) => first,
                Err(None) => break Turn::Idle,
                Err(Some(pause)) => break Turn::Paused(pause),
            };
            self.grant(flow, quantum, alone);
            let turn = self.serve_flow(tx, flow, &mut left);
            self.end_turn(conn, flow, (turn, before - left.bytes()));
            match turn {
                Turn::Idle | Turn::Yield | Turn::Paused(_) => {}
                Turn::Blocked if room == 0 => break Turn::Blocked,
                // Its share of this round is used up; what the connection may still send, it may in
                // the next one.
                Turn::Blocked => break Turn::Yield,
                Turn::Full => break Turn::Full,
            }
        };
        *share = share.without(given, left);
        // Control messages may join what is left where no more data follow.
        if turn != Turn::Idle && self.send_pack(tx, false) == Emitted::NoRoom {
            return Turn::Full;
        }
        turn
    }

    /// What a flow may send in its turn. One that nobody of its tenant waits for may use all that
    /// this one has.
    #[inline]
    fn grant(&mut self, flow: u32, quantum: i32, alone: Option<i32>) {
        let record = &mut self.flows[flow];
        if let Some(all) = alone {
            record.deficit = all;
        } else if record.deficit <= 0 {
            record.deficit += quantum;
        } else {
            record.deficit = record.deficit.min(quantum);
        }
    }

    /// One flow's turn: until its deficit is used up, its work is done, or `share` is.
    fn serve_flow(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        flow: u32,
        share: &mut Share,
    ) -> Turn {
        loop {
            if share.is_spent() && !(self.tx.packs.is_open() && share.bytes() > 0) {
                return Turn::Blocked;
            }
            let sent = match self.next_response(flow) {
                Some(response) => self.send_response(tx, flow, response, share),
                None => match self.next_chunk(flow) {
                    Some(request) => self.send_request(tx, flow, request, share),
                    None => {
                        self.flows[flow].deficit = 0;
                        return Turn::Idle;
                    }
                },
            };
            match sent {
                Emitted::NoRoom => return Turn::Full,
                Emitted::Spent => return Turn::Blocked,
                Emitted::Sent | Emitted::Voided => {}
            }
            if self.flows[flow].deficit <= 0 {
                return Turn::Yield;
            }
        }
    }

    /// The request a flow sends from next, if it may send now.
    fn next_chunk(&mut self, flow: u32) -> Option<u32> {
        let record = &self.flows[flow];
        let stopped = Flags::RNR_WAIT.with(Flags::STRANDED);
        if !record.flags.has(Flags::BOUND) || record.flags.has(stopped) {
            return None;
        }
        self.skip_responded(flow);
        let record = &self.flows[flow];
        if record.sent_bytes == 0 && record.flags.has(Flags::QUIESCING) {
            // A restart during quiescence still has to send what was begun; what was not goes over
            // the next connection.
            let begun = self
                .requests
                .get(record.sending)
                .is_some_and(|pending| pending.begun);
            return begun
                .then_some(record.sending)
                .filter(|at| self.may_begin(flow, *at));
        }
        let mut own_left = MOST_OWN;
        loop {
            let at = self.flows[flow].sending;
            if at != NONE {
                let Some(op) = own_op(&self.requests[at].request) else {
                    break;
                };
                self.execute_own(flow, at, op)?;
                own_left -= 1;
                if own_left == 0 {
                    self.go_on_later(flow);
                    return None;
                }
                continue;
            }
            let qp = self.flows[flow].qp;
            let Wire::Shared(own) = self.qps[qp].wire else {
                return None;
            };
            if self.flows[own].flags.has(Flags::HALTED) {
                return None;
            }
            self.fetch_wqe(qp, own)?;
        }
        let at = self.flows[flow].sending;
        let begun = self.flows[flow].sent_bytes != 0 && self.requests[at].outcome.is_none();
        (begun || self.may_begin(flow, at)).then_some(at)
    }

    /// After a restart, requests whose response has come need not go out again.
    fn skip_responded(&mut self, flow: u32) {
        let record = &mut self.flows[flow];
        while record.sent_bytes == 0
            && let Some(pending) = self.requests.get_mut(record.sending)
            && pending.responded
        {
            pending.reading = true;
            record.reads_out += 1;
            record.sending = pending.flow_next;
        }
    }

    /// READs and fences wait for earlier READs, and all for what the peer was not ready for.
    fn may_begin(&self, flow: u32, at: u32) -> bool {
        let record = &self.flows[flow];
        let pending = &self.requests[at];
        let msn = match pending.begun {
            true => pending.msn,
            false => record.next_msn,
        };
        if record.flags.has(Flags::PROBING) && before(record.acked_msn, msn) {
            return false;
        }
        if pending.outcome.is_some() {
            // It has failed, and ends when those before it have: nothing goes any more.
            return false;
        }
        let request = &pending.request;
        if request.flags.contains(SendFlags::FENCE) && record.reads_out > 0 {
            return false;
        }
        !request.op.has_response_data()
            || record.reads_out < self.cold(record.qp).attributes.max_rd_atomic
    }

    /// Puts a flow with something to send into its connection's turns.
    pub(crate) fn wake(&mut self, flow: u32) {
        let record = &mut self.flows[flow];
        let conn = record.conn;
        if conn == NONE || record.runnable_link != NONE {
            return;
        }
        if !self.has_to_send(flow) {
            return;
        }
        let lane = self.lane_of(conn, flow);
        // One on a connection that is gone wakes when it has moved on.
        if let Some(home) = self.links.get_mut(conn) {
            self.flows.push(&mut home.runnable, lane, flow);
            self.mark_ready(conn);
        }
    }

    /// Whether a flow may have something to send. A QP that has nothing rings when it has. Of one
    /// in error, only responses to what it executed before go out; so of one that is gone, whose
    /// record is not there to look at.
    #[inline]
    fn has_to_send(&self, flow: u32) -> bool {
        self.next_response(flow).is_some() || !self.only_responds(flow) && self.is_outstanding(flow)
    }

    /// Ends the turn of a flow, in which it has sent so many bytes. That may have been its end.
    #[inline]
    fn end_turn(&mut self, conn: u32, flow: u32, (turn, bytes): (Turn, i32)) {
        let is_first = || self.first_runnable(conn) == Some(flow);
        let next = match turn {
            Turn::Blocked | Turn::Paused(_) | Turn::Full => Next::Stay,
            Turn::Yield if is_first() && self.has_to_send(flow) => Next::Behind,
            Turn::Yield | Turn::Idle => Next::Leave,
        };
        let turns = &mut self.links[conn].runnable;
        self.flows.end_turn(turns, (conn, flow), (next, bytes));
    }
}
