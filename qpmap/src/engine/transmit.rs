//! The scheduler: which packet goes next.
//!
//! Connections with something to send take turns; within one, retransmissions go first, then the
//! flows by deficit round robin over bytes, then notices, then a bare acknowledgement if one is
//! still due. Where there is little room notices go before the flows.

use super::build::{Emitted, Item};
use super::qp::{Flags, Wire};
use super::requester::before;
use super::send::Way;
use super::{Engine, Platform, Ready};
use crate::slab::NONE;
use crate::state::QpState;
use trunkline_conn::egress::Egress;
use trunkline_conn::time::Instant;
use trunkline_conn::work::SendFlags;
use trunkline_wire::{Opcode, Workers};

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
pub(super) struct Share {
    packets: u32,
    bytes: i32,
}

impl Share {
    pub(super) const fn is_spent(&self) -> bool {
        self.packets == 0 || self.bytes <= 0
    }

    /// Counts a packet, and gives its bytes as a deficit counts them.
    pub(super) const fn take(&mut self, bytes: u32) -> i32 {
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

    fn serve(&mut self, now: Instant, conn: u32, egress: &mut (impl Egress + ?Sized)) -> Served {
        if self.peers[self.conns[conn].peer].workers != Workers::ONE {
            egress.part();
        }
        let route = self.route(conn);
        let mut way = Way {
            now,
            conn,
            route,
            egress,
        };
        let before = self.counters.sent;
        let turn = self.serve_turns(&mut way);
        if self.counters.sent != before {
            self.conns[conn].delivery.ack_piggybacked();
        }
        let ack = turn == Turn::Full || self.send_ack(&mut way);
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

    fn serve_turns(&mut self, way: &mut Way<'_, impl Egress + ?Sized>) -> Turn {
        let (now, conn) = (way.now, way.conn);
        while let Some((item, _, stamp)) = self.conns[conn].delivery.poll_retransmit(now) {
            if self.send_again(way, &item, &stamp) == Emitted::NoRoom {
                return Turn::Full;
            }
        }
        let mut room = self.conns[conn].delivery.ready(now, &mut self.windows);
        while let Some(at) = self.pings.iter().position(|c| *c == conn) {
            if room == 0 {
                return Turn::Blocked;
            }
            if !self.send_blob(way, Item::PING, Opcode::SRC_PING) {
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
            match self.send_notices(way) {
                Turn::Idle => {}
                other => return other,
            }
            held = 0;
            room = self.conns[conn].delivery.ready(now, &mut self.windows);
        }
        let before = self.counters.sent;
        let turn = self.serve_flows(way, room - held);
        let data = self.counters.sent != before;
        self.serve_notices(way, data, turn)
    }

    fn serve_flows(&mut self, way: &mut Way<'_, impl Egress + ?Sized>, room: u32) -> Turn {
        let conn = way.conn;
        let weight = self.conns[conn].weight;
        let mut share = Share {
            packets: room.min(u32::from(weight) * BURST),
            bytes: i32::from(weight) * BURST_BYTES,
        };
        loop {
            let Some(flow) = self.first_runnable(conn) else {
                return Turn::Idle;
            };
            match self.serve_flow(way, flow, &mut share) {
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
        way: &mut Way<'_, impl Egress + ?Sized>,
        flow: u32,
        share: &mut Share,
    ) -> Turn {
        let list = &self.conns[way.conn];
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
                Some(job) => self.send_response(way, flow, job, share),
                None => match self.next_chunk(flow) {
                    Some(request) => self.send_request(way, flow, request, share),
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
