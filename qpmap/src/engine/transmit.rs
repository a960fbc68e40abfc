//! The scheduler: which packet goes next.
//!
//! Connections with something to send take turns; within one, retransmissions go first, then the
//! flows by deficit round robin over bytes, then notices, then a bare acknowledgement if one is
//! still due. Where there is little room notices go before the flows.

use super::build::{self, Draft, Emitted, Item, ItemKind, Payload, Route, emit};
use super::jobs::Outcome;
use super::link::Conn;
use super::qp::{Flags, Wire};
use super::requester::before;
use super::{Engine, Platform, Ready};
use crate::slab::NONE;
use crate::state::QpState;
use trunkline_conn::egress::Egress;
use trunkline_conn::src::Stamp;
use trunkline_conn::time::Instant;
use trunkline_conn::work::{SendFlags, Status};
use trunkline_wire::{AckPayload, Close, Opcode, Workers};

/// Bytes a flow may send per turn: one full packet, or several small ones.
const QUANTUM: i32 = 4096;
/// What a connection of weight 1 may send before the next one's turn: packets, and bytes, so that
/// what waits in the port still fits the second-level cache.
const BURST: u32 = 64;
const BURST_BYTES: i32 = 256 << 10;

/// Why a turn ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Turn {
    /// Nothing left to send.
    Idle,
    /// Its share is used up.
    Yield,
    /// The connection may not send now.
    Blocked,
    /// The port is full.
    Full,
}

/// What a connection may still send in this round.
#[derive(Clone, Copy, Debug)]
struct Share {
    packets: u32,
    bytes: i32,
}

impl Share {
    const fn is_spent(&self) -> bool {
        self.packets == 0 || self.bytes <= 0
    }

    /// Counts a packet, and gives its bytes as a deficit counts them.
    const fn take(&mut self, bytes: u32) -> i32 {
        self.packets -= 1;
        self.bytes -= bytes as i32;
        bytes as i32
    }
}

impl<P: Platform> Engine<P> {
    /// Builds packets until there is nothing to send, the port is full, or every connection has
    /// had `rounds` turns. Gives the number of packets.
    pub fn poll_transmit(&mut self, now: Instant, egress: &mut (impl Egress + ?Sized)) -> u64 {
        let before = self.counters.sent;
        self.send_farewells(egress);
        for _ in 0..self.ready.len() {
            let Some(ready) = self.ready.pop_front() else {
                break;
            };
            let turn = match ready {
                Ready::Conn(conn) => self.serve(now, conn, egress),
                Ready::Plain(plain) => self.serve_plain(now, plain, egress),
            };
            if turn == Served::Again {
                self.ready.push_back(ready);
            } else if turn == Served::Full {
                // A port that refuses the first packet of all may have no room for one as large as
                // this path MTU, ever: others must not wait for it.
                let first = self.counters.sent == before;
                if first && matches!(ready, Ready::Plain(_)) {
                    self.ready.push_back(ready);
                    continue;
                }
                self.ready.push_front(ready);
                break;
            }
        }
        self.counters.sent - before
    }

    /// Tells peers of connections that were closed. Said once: a peer that misses it finds out when
    /// nobody answers.
    fn send_farewells(&mut self, egress: &mut (impl Egress + ?Sized)) {
        let stamp = Stamp {
            number: 0,
            attempt: 0,
            timestamp: 0,
            echo: 0,
            ack: 0,
            port: 0,
            ack_req: false,
        };
        let reason = Close(0).to_bytes();
        let ports = &self.config.source_ports;
        for route in std::mem::take(&mut self.farewells) {
            let draft = Draft::bare(Opcode::SRC_CLOSE, &reason);
            let sent = emit(&draft, &route, ports, &self.regions, egress, || stamp);
            if sent == Emitted::Sent {
                self.counters.sent += 1;
            }
        }
    }

    fn serve(&mut self, now: Instant, conn: u32, egress: &mut (impl Egress + ?Sized)) -> Served {
        let route = self.route(conn);
        if self.peers[self.conns[conn].peer].workers != Workers::ONE {
            egress.part();
        }
        let before = self.counters.sent;
        let turn = self.serve_turns(now, conn, &route, egress);
        if self.counters.sent != before {
            self.conns[conn].delivery.ack_piggybacked();
        }
        let ack = turn == Turn::Full || self.send_ack(now, conn, &route, egress);
        self.rest(conn);
        let record = &mut self.conns[conn];
        let served = match turn {
            Turn::Full => Served::Full,
            _ if !ack => Served::Full,
            Turn::Yield => Served::Again,
            // An acknowledgement or a timer wakes what is blocked.
            Turn::Idle | Turn::Blocked => {
                record.flags.ready = false;
                Served::Done
            }
        };
        self.arm_conn(conn);
        served
    }

    fn serve_turns(
        &mut self,
        now: Instant,
        conn: u32,
        route: &Route,
        egress: &mut (impl Egress + ?Sized),
    ) -> Turn {
        while let Some((item, _, stamp)) = self.conns[conn].delivery.poll_retransmit(now) {
            if self.send_again(route, &item, &stamp, egress) == Emitted::NoRoom {
                return Turn::Full;
            }
        }
        let mut room = self.conns[conn].delivery.ready(now, &mut self.windows);
        while let Some(at) = self.pings.iter().position(|c| *c == conn) {
            if room == 0 {
                return Turn::Blocked;
            }
            if !self.send_blob(now, conn, route, Item::PING, Opcode::SRC_PING, egress) {
                return Turn::Full;
            }
            self.pings.swap_remove(at);
            room -= 1;
        }
        // Data goes first, it is what somebody waits for; one packet is kept back for notices.
        // Where that is all there is, or was not enough, they do: data may fill any window for as
        // long as there is some.
        let mut held = u32::from(self.has_notices(conn));
        if held > 0 && (room <= held || self.conns[conn].flags.patience.is_blocked()) {
            match self.send_notices(now, conn, route, egress) {
                Turn::Idle => {}
                other => return other,
            }
            held = 0;
            room = self.conns[conn].delivery.ready(now, &mut self.windows);
        }
        let before = self.counters.sent;
        let turn = self.serve_flows(now, conn, route, room - held, egress);
        let data = self.counters.sent != before;
        self.serve_notices(now, conn, route, (data, turn), egress)
    }

    fn serve_flows(
        &mut self,
        now: Instant,
        conn: u32,
        route: &Route,
        room: u32,
        egress: &mut (impl Egress + ?Sized),
    ) -> Turn {
        let weight = self.conns[conn].weight;
        let mut share = Share {
            packets: room.min(u32::from(weight) * BURST),
            bytes: i32::from(weight) * BURST_BYTES,
        };
        loop {
            let Some(flow) = self.first_runnable(conn) else {
                return Turn::Idle;
            };
            match self.serve_flow(now, conn, flow, route, &mut share, egress) {
                Turn::Idle => self.rotate(conn, flow, false),
                Turn::Yield => self.rotate(conn, flow, true),
                Turn::Blocked if room == 0 => return Turn::Blocked,
                // Its share of this round is used up; what the connection may still send, it may in
                // the next one.
                Turn::Blocked => return Turn::Yield,
                Turn::Full => return Turn::Full,
            }
        }
    }

    /// One flow's turn: until its deficit is used up, its work is done, or `share` is. A flow that
    /// has the connection to itself may use all of that.
    fn serve_flow(
        &mut self,
        now: Instant,
        conn: u32,
        flow: u32,
        route: &Route,
        share: &mut Share,
        egress: &mut (impl Egress + ?Sized),
    ) -> Turn {
        let list = &self.conns[conn];
        let quantum = QUANTUM.max(i32::from(list.payload));
        let alone = list.runnable.last() == flow;
        let record = &mut self.flows[flow];
        if alone {
            record.deficit = share.bytes;
        } else if record.deficit <= 0 {
            record.deficit += quantum;
        } else {
            record.deficit = record.deficit.min(quantum);
        }
        loop {
            if share.is_spent() {
                return Turn::Blocked;
            }
            let sent = match self.next_response(flow) {
                Some(job) => self.send_response(now, conn, flow, job, route, share, egress),
                None => match self.next_chunk(flow) {
                    Some(request) => {
                        self.send_request(now, conn, flow, request, route, share, egress)
                    }
                    None => {
                        self.flows[flow].deficit = 0;
                        return Turn::Idle;
                    }
                },
            };
            if sent == Emitted::NoRoom {
                return Turn::Full;
            }
            if self.flows[flow].deficit <= 0 {
                return Turn::Yield;
            }
        }
    }

    /// The request a flow sends from next, if it may send now.
    fn next_chunk(&mut self, flow: u32) -> Option<u32> {
        let record = &self.flows[flow];
        let stopped = [Flags::RNR_WAIT, Flags::HALTED, Flags::STRANDED];
        if !record.flags.has(Flags::BOUND) || stopped.iter().any(|flag| record.flags.has(*flag)) {
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
        while self.flows[flow].sending == NONE {
            let qp = self.flows[flow].qp;
            let Wire::Shared(own) = self.qps[qp].wire else {
                return None;
            };
            if self.flows[own].flags.has(Flags::HALTED) {
                return None;
            }
            self.ingest(qp, own)?;
        }
        let at = self.flows[flow].sending;
        if self.flows[flow].sent_bytes == 0 && !self.may_begin(flow, at) {
            return None;
        }
        Some(at)
    }

    /// After a restart, requests whose response has come need not go out again.
    fn skip_responded(&mut self, flow: u32) {
        let record = &mut self.flows[flow];
        while record.sent_bytes == 0
            && let Some(pending) = self.requests.get(record.sending)
            && pending.responded
        {
            record.sending = pending.flow_next;
        }
    }

    /// READs and fences wait for earlier READs, and all for what the peer was not ready for.
    fn may_begin(&self, flow: u32, at: u32) -> bool {
        let record = &self.flows[flow];
        let pending = &self.requests[at];
        if record.probing && before(record.acked_msn, pending.msn) {
            return false;
        }
        let request = &pending.request;
        if request.flags.contains(SendFlags::FENCE) && record.reads_out > 0 {
            return false;
        }
        !request.op.has_response_data()
            || record.reads_out < self.cold(record.qp).attributes.max_rd_atomic.max(1)
    }

    /// Sends packets of a request: to its end, while the flow's deficit lasts, and `share`.
    #[expect(
        clippy::too_many_arguments,
        reason = "all of it is what a turn goes with"
    )]
    fn send_request(
        &mut self,
        now: Instant,
        conn: u32,
        flow: u32,
        at: u32,
        route: &Route,
        share: &mut Share,
        egress: &mut (impl Egress + ?Sized),
    ) -> Emitted {
        let record = &mut self.flows[flow];
        let pending = &mut self.requests[at];
        if pending.round != record.round {
            // Responses to the last round counted until now, and do not from now on.
            (pending.round, pending.returned) = (record.round, 0);
        }
        pending.begun = true;
        let qp = &self.qps[record.qp];
        let Conn {
            delivery, payload, ..
        } = &mut self.conns[conn];
        let (most, ports) = (u32::from(*payload), &self.config.source_ports);
        let mut draft = Draft::request(record, qp.queues.qpn, qp.pd, pending);
        let emitted = loop {
            let offset = record.sent_bytes;
            let length = (draft.whole - offset).min(most);
            draft.cut(offset, length);
            let item = Item {
                kind: ItemKind::Request,
                round: record.round,
                flow,
                slot: at,
                serial: pending.serial,
                offset,
                length,
            };
            let bytes = draft.datagram() as u32;
            let emitted = emit(&draft, route, ports, &self.regions, egress, || {
                delivery.record(now, item, bytes)
            });
            if emitted == Emitted::NoRoom {
                return emitted;
            }
            self.counters.sent += 1;
            record.deficit -= share.take(bytes);
            record.sent_bytes = offset + length;
            let over = draft.last || record.deficit <= 0 || share.is_spent();
            if over || emitted == Emitted::Voided {
                break emitted;
            }
        };
        if draft.last {
            record.sending = pending.flow_next;
            record.sent_bytes = 0;
            if pending.request.op.has_response_data() {
                pending.reading = true;
                record.reads_out += 1;
            }
        }
        if emitted == Emitted::Voided {
            self.counters.void_sent += 1;
            self.fail_flow(flow, Status::LocalProtection);
        }
        emitted
    }

    /// Sends the next packet of a response.
    #[expect(
        clippy::too_many_arguments,
        reason = "all of it is what a turn goes with"
    )]
    fn send_response(
        &mut self,
        now: Instant,
        conn: u32,
        flow: u32,
        job: u32,
        route: &Route,
        share: &mut Share,
        egress: &mut (impl Egress + ?Sized),
    ) -> Emitted {
        let record = &self.jobs[job];
        let offset = record.sent_bytes;
        let length = (record.length() - offset).min(self.conns[conn].payload.into());
        let item = Item {
            kind: ItemKind::Response,
            round: record.round,
            flow,
            slot: job,
            serial: record.serial,
            offset,
            length,
        };
        let value = record.value_bytes();
        let draft = self.response_draft(flow, job, (offset, length), &value);
        let bytes = draft.datagram() as u32;
        let delivery = &mut self.conns[conn].delivery;
        let ports = &self.config.source_ports;
        let emitted = emit(&draft, route, ports, &self.regions, egress, || {
            delivery.record(now, item, bytes)
        });
        if emitted == Emitted::NoRoom {
            return emitted;
        }
        self.counters.sent += 1;
        self.counters.void_sent += u64::from(emitted == Emitted::Voided);
        self.flows[flow].deficit -= share.take(bytes);
        let record = &mut self.jobs[job];
        record.sent_bytes = offset + length;
        record.sent_all = record.sent_bytes == record.length();
        record.unacked += 1;
        emitted
    }

    fn response_draft<'a>(
        &self,
        flow: u32,
        job: u32,
        (offset, length): (u32, u32),
        value: &'a [u8; 8],
    ) -> Draft<'a> {
        let (record, response) = (&self.flows[flow], &self.jobs[job]);
        let (opcode, payload) = match response.outcome {
            Outcome::Read { key, addr, .. } if length > 0 => (
                Opcode::SRC_READ_RESP,
                Payload::Read(self.qps[record.qp].pd, key, addr),
            ),
            Outcome::Read { .. } => (Opcode::SRC_READ_RESP, Payload::None),
            Outcome::Value(_) => (Opcode::SRC_ATOMIC_RESP, Payload::Bytes(value)),
        };
        let message = (response.length(), response.msn, response.round);
        let source = self.qp_number(record.qp);
        let mut draft = Draft::response(opcode, record, source, message, payload);
        draft.cut(offset, length);
        draft
    }

    /// Sends a lost packet again, or a VOID in its place when nobody waits for its content.
    fn send_again(
        &mut self,
        route: &Route,
        item: &Item,
        stamp: &Stamp,
        egress: &mut (impl Egress + ?Sized),
    ) -> Emitted {
        let ports = &self.config.source_ports;
        let stamped = || *stamp;
        self.counters.sent += 1;
        match item.kind {
            ItemKind::Request => {
                let current = self
                    .requests
                    .get(item.slot)
                    .filter(|pending| pending.serial == item.serial && pending.round == item.round);
                if let Some(pending) = current {
                    let flow = &self.flows[item.flow];
                    let qp = &self.qps[flow.qp];
                    let mut draft = Draft::request(flow, qp.queues.qpn, qp.pd, pending);
                    draft.cut(item.offset, item.length);
                    return emit(&draft, route, ports, &self.regions, egress, stamped);
                }
            }
            ItemKind::Response => {
                let current = self
                    .jobs
                    .get(item.slot)
                    .filter(|job| job.serial == item.serial);
                if let Some(job) = current {
                    let value = job.value_bytes();
                    let draft = self.response_draft(
                        item.flow,
                        item.slot,
                        (item.offset, item.length),
                        &value,
                    );
                    return emit(&draft, route, ports, &self.regions, egress, stamped);
                }
            }
            ItemKind::Answers | ItemKind::Control => {
                if let Some(blob) = self.blobs.get(item.slot, item.serial) {
                    let opcode = if item.kind == ItemKind::Answers {
                        Opcode::SRC_ANSWERS
                    } else {
                        Opcode::SRC_CONTROL
                    };
                    let draft = Draft::bare(opcode, blob);
                    return emit(&draft, route, ports, &self.regions, egress, stamped);
                }
            }
            ItemKind::Ping => {}
        }
        let draft = Draft::bare(Opcode::SRC_VOID, &[]);
        emit(&draft, route, ports, &self.regions, egress, stamped)
    }

    /// Sends a counted packet that belongs to no QP. `false`: the port is full.
    pub(crate) fn send_blob(
        &mut self,
        now: Instant,
        conn: u32,
        route: &Route,
        item: Item,
        opcode: Opcode,
        egress: &mut (impl Egress + ?Sized),
    ) -> bool {
        let content = self.blobs.get(item.slot, item.serial).unwrap_or(&[]);
        let draft = Draft::bare(opcode, content);
        let bytes = draft.datagram() as u32;
        let delivery = &mut self.conns[conn].delivery;
        let ports = &self.config.source_ports;
        let emitted = emit(&draft, route, ports, &self.regions, egress, || {
            delivery.record(now, item, bytes)
        });
        self.counters.sent += u64::from(emitted != Emitted::NoRoom);
        emitted != Emitted::NoRoom
    }

    /// Sends a bare acknowledgement if one is due. `false`: the port is full.
    fn send_ack(
        &mut self,
        now: Instant,
        conn: u32,
        route: &Route,
        egress: &mut (impl Egress + ?Sized),
    ) -> bool {
        const ROOM: usize = AckPayload::length(AckPayload::MAX_WORDS);
        let most = (build::BASE + ROOM + build::ICRC).min(self.config.datagram as usize);
        if egress.reserve(&route.path, most).is_none() {
            return false;
        }
        let Some(out) = self.conns[conn].delivery.poll_ack(now) else {
            return true;
        };
        let mut payload = [0; ROOM];
        let length = AckPayload::emit(out.ce, out.delay_ns, out.sack, &mut payload);
        let draft = Draft::bare(Opcode::SRC_ACK, &payload[..length]);
        let stamp = Stamp {
            number: 0,
            attempt: 0,
            timestamp: out.timestamp,
            echo: out.echo,
            ack: out.cumulative,
            port: 0,
            ack_req: false,
        };
        let ports = &self.config.source_ports;
        emit(&draft, route, ports, &self.regions, egress, || stamp);
        self.counters.sent += 1;
        true
    }

    /// Puts a flow with something to send into its connection's turns.
    pub(crate) fn wake(&mut self, flow: u32) {
        let record = &mut self.flows[flow];
        let conn = record.conn;
        if conn == NONE || record.flags.has(Flags::RUNNABLE) {
            return;
        }
        // Of a QP in error, only responses to what it executed before.
        let qp = record.qp;
        if self.qps[qp].state == QpState::Error && self.next_response(flow).is_none() {
            return;
        }
        self.conns[conn].runnable.push(&mut self.flows, flow);
        self.touch(conn);
    }

    /// Ends the turn of the first flow: to the end of the list, or out of it.
    fn rotate(&mut self, conn: u32, flow: u32, again: bool) {
        if self.conns[conn].runnable.first() != flow {
            return;
        }
        self.pop_runnable(conn);
        if again {
            self.wake(flow);
        }
    }
}

/// What is left to do for a connection after its turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Served {
    Done,
    Again,
    Full,
}
