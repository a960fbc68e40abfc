//! Packets of one connection, once it is decided which are next.

use super::build::{self, Draft, Emitted, Item, ItemKind, Label, Out, Payload, Route};
use super::link::Conn;
use super::requests::Pending;
use super::responses::{Outcome, Response};
use super::schedule::Share;
use super::{Engine, Platform, paths};
use crate::regions::Regions;
use trunkline_conn::delivery::{Connection, Stamp};
use trunkline_conn::egress::Egress;
use trunkline_conn::host::QpEvent;
use trunkline_conn::mem::Bytes;
use trunkline_conn::time::Instant;
use trunkline_conn::work::Status;
use trunkline_wire::{AckPayload, NakCode, Opcode};

/// The way that packets of a connection take out of the node.
pub(super) struct Way<'a, E: ?Sized> {
    pub(super) now: Instant,
    pub(super) conn: u32,
    pub(super) route: Route,
    pub(super) egress: &'a mut E,
}

impl<E: Egress + ?Sized> Way<'_, E> {
    /// Whether the port has room for a datagram of `length` bytes from one of the source ports.
    pub(super) fn has_room(&mut self, ports: &[u16], port: u8, length: usize) -> bool {
        let other = self.route.over(ports, port);
        let route = other.as_ref().unwrap_or(&self.route);
        self.egress.reserve(&route.path, length).is_some()
    }

    const fn out<'a, B>(&'a mut self, ports: &'a [u16], regions: &'a Regions<B>) -> Out<'a, B, E> {
        Out {
            route: &self.route,
            ports,
            regions,
            egress: self.egress,
        }
    }
}

/// How far a message has been sent.
struct Progress<'a> {
    /// Its bytes that are on their way.
    sent_bytes: &'a mut u32,
    /// What its flow may still send in this turn, in bytes.
    deficit: &'a mut i32,
    /// And its connection.
    share: &'a mut Share,
    /// Packets sent.
    packets: &'a mut u64,
}

impl Progress<'_> {
    /// Sends packets of a message: to its end, or as many as flow and connection may send.
    #[inline(always)]
    fn send<B: Bytes, E: Egress + ?Sized>(
        self,
        now: Instant,
        (draft, mut item, most): (&mut Draft<'_>, Item, u32),
        delivery: &mut Connection<Item>,
        mut out: Out<'_, B, E>,
    ) -> Emitted {
        loop {
            let offset = *self.sent_bytes;
            let length = (draft.whole - offset).min(most);
            draft.cut(offset, length);
            (item.offset, item.length) = (offset, length);
            let bytes = draft.datagram() as u32;
            let port = delivery.next_port();
            let emitted = out.emit(draft, port, || delivery.record(now, item, bytes));
            if emitted == Emitted::NoRoom {
                return emitted;
            }
            *self.packets += 1;
            *self.deficit -= self.share.take(bytes);
            *self.sent_bytes = offset + length;
            let over = draft.last || *self.deficit <= 0 || self.share.is_spent();
            if over || emitted == Emitted::Voided {
                return emitted;
            }
            draft.keep_picture(out.route);
        }
    }
}

impl<P: Platform> Engine<P> {
    /// Tells peers of connections that were closed. Said once: a peer that misses it finds out when
    /// nobody answers. `false`: the port is full.
    pub(super) fn send_farewells(&mut self, egress: &mut (impl Egress + ?Sized)) -> bool {
        let stamp = Stamp {
            number: 0,
            attempt: 0,
            timestamp: 0,
            echo: 0,
            ack: 0,
            port: 0,
            ack_req: false,
        };
        while let Some((route, reason)) = self.farewells.front() {
            let reason = reason.to_bytes();
            let draft = Draft::bare(Opcode::SRC_CLOSE, &reason);
            let mut out = Out {
                route,
                ports: &self.config.source_ports,
                regions: &self.regions,
                egress,
            };
            if out.emit(&draft, 0, || stamp) == Emitted::NoRoom {
                return false;
            }
            self.counters.sent += 1;
            self.farewells.pop_front();
        }
        true
    }

    /// Whether peers are still to be told of connections that were closed.
    pub fn owes_farewells(&self) -> bool {
        !self.farewells.is_empty()
    }

    /// Sends packets of a request, as many as its flow may in this turn.
    pub(super) fn send_request(
        &mut self,
        way: &mut Way<'_, impl Egress + ?Sized>,
        flow: u32,
        at: u32,
        share: &mut Share,
    ) -> Emitted {
        let record = &mut self.flows[flow];
        let mut pending = &mut self.requests[at];
        if !pending.begun {
            self.requests.begin(record.head, at);
            pending = &mut self.requests[at];
        }
        if pending.round != record.round {
            // Responses to the last round counted until now, and do not from now on.
            (pending.round, pending.returned) = (record.round, 0);
        }
        if record.sent_bytes == 0 {
            pending.ahead = record.reads_out;
        }
        let qp = &self.qps[record.qp];
        let Conn {
            delivery, payload, ..
        } = &mut self.conns[way.conn];
        let mut draft = Draft::request(record, qp.queues.qpn, qp.pd, pending);
        let item = Item {
            kind: ItemKind::Request,
            round: record.round,
            flow,
            slot: at,
            serial: pending.serial,
            ..Item::PING
        };
        let progress = Progress {
            sent_bytes: &mut record.sent_bytes,
            deficit: &mut record.deficit,
            share,
            packets: &mut self.counters.sent,
        };
        let now = way.now;
        let out = way.out(&self.config.source_ports, &self.regions);
        let message = (&mut draft, item, u32::from(*payload));
        let emitted = progress.send(now, message, delivery, out);
        if emitted == Emitted::NoRoom {
            return emitted;
        }
        if draft.last {
            record.sending = pending.flow_next;
            record.sent_bytes = 0;
            if pending.request.op.has_response_data() {
                pending.reading = true;
                record.reads_out += 1;
            }
        }
        if emitted == Emitted::Voided {
            self.request_lost(flow, at);
        }
        emitted
    }

    /// The data of a request is gone: it fails.
    fn request_lost(&mut self, flow: u32, request: u32) {
        self.counters.void_sent += 1;
        self.fail_message(flow, request, Status::LocalProtection);
    }

    /// Sends packets of a response, as many as its flow may in this turn.
    pub(super) fn send_response(
        &mut self,
        way: &mut Way<'_, impl Egress + ?Sized>,
        flow: u32,
        at: u32,
        share: &mut Share,
    ) -> Emitted {
        let response = &self.responses[at];
        let item = Item {
            kind: ItemKind::Response,
            round: response.round,
            flow,
            slot: at,
            serial: response.serial,
            ..Item::PING
        };
        let value = response.value_bytes();
        let mut draft = self.response_draft(flow, response, &value);
        let Conn {
            delivery, payload, ..
        } = &mut self.conns[way.conn];
        let mut packets = 0;
        let progress = Progress {
            sent_bytes: self.responses.progress(at),
            deficit: &mut self.flows[flow].deficit,
            share,
            packets: &mut packets,
        };
        let now = way.now;
        let out = way.out(&self.config.source_ports, &self.regions);
        let message = (&mut draft, item, u32::from(*payload));
        let emitted = progress.send(now, message, delivery, out);
        let sent_all = emitted != Emitted::NoRoom && draft.last;
        self.responses.sent(at, packets as u32, sent_all);
        self.counters.sent += packets;
        if emitted == Emitted::Voided {
            self.read_lost(flow, at);
        }
        emitted
    }

    /// The memory of a READ is gone that was to be answered: so is the right to it.
    fn read_lost(&mut self, flow: u32, response: u32) {
        self.counters.void_sent += 1;
        let msn = self.responses[response].msn;
        self.refuse_executed(flow, msn, NakCode::RemoteAccess, QpEvent::AccessError);
    }

    fn response_draft<'a>(&self, flow: u32, response: &Response, value: &'a [u8; 8]) -> Draft<'a> {
        let record = &self.flows[flow];
        let (opcode, payload) = match response.outcome {
            Outcome::Read { key, addr, .. } => {
                let pd = self.qps[record.qp].pd;
                (Opcode::SRC_READ_RESP, Payload::Read(pd, key, addr))
            }
            Outcome::Value(_) => (Opcode::SRC_ATOMIC_RESP, Payload::Bytes(value)),
        };
        let label = Label::of(record, self.own_number(flow), response.msn, response.round);
        Draft::new(opcode, label, response.length(), payload)
    }

    /// Sends a lost packet again, or a VOID in its place when nobody waits for its content. It
    /// stays lost as long as the port has no room for it.
    pub(super) fn send_again(
        &mut self,
        way: &mut Way<'_, impl Egress + ?Sized>,
        item: &Item,
    ) -> Emitted {
        let value;
        let mut draft = Draft::bare(Opcode::SRC_VOID, &[]);
        match item.kind {
            ItemKind::Request => {
                let pending = self.requests.get(item.slot);
                let is_it = |at: &&Pending| at.serial == item.serial && at.round == item.round;
                // In another round it is sent anew.
                let flow = self
                    .flows
                    .get(item.flow)
                    .filter(|at| at.round == item.round);
                if let (Some(pending), Some(flow)) = (pending.filter(is_it), flow) {
                    let qp = &self.qps[flow.qp];
                    draft = Draft::request(flow, qp.queues.qpn, qp.pd, pending);
                    draft.cut(item.offset, item.length);
                }
            }
            ItemKind::Response => {
                let response = self.responses.get(item.slot, item.serial);
                let wanted = |response: &&Response| self.may_still_answer(item.flow, response);
                if let Some(response) = response.filter(wanted) {
                    value = response.value_bytes();
                    draft = self.response_draft(item.flow, response, &value);
                    draft.cut(item.offset, item.length);
                }
            }
            ItemKind::Answers | ItemKind::Control => {
                if let Some(blob) = self.blobs.get(item.slot, item.serial) {
                    let opcode = match item.kind {
                        ItemKind::Answers => Opcode::SRC_ANSWERS,
                        _ => Opcode::SRC_CONTROL,
                    };
                    draft = Draft::bare(opcode, blob);
                }
            }
            ItemKind::Ping => self.paths.ping_lost(item),
        }
        let now = way.now;
        let delivery = &mut self.conns[way.conn].delivery;
        let mut out = way.out(&self.config.source_ports, &self.regions);
        let (port, bytes) = (delivery.next_port(), draft.datagram() as u32);
        let emitted = out.emit(&draft, port, || delivery.retransmit(now, bytes));
        self.counters.sent += u64::from(emitted != Emitted::NoRoom);
        if emitted == Emitted::Voided {
            match item.kind {
                ItemKind::Response => self.read_lost(item.flow, item.slot),
                _ => self.request_lost(item.flow, item.slot),
            }
        }
        emitted
    }

    /// Sends a counted packet that belongs to no QP. `false`: the port is full.
    pub(super) fn send_blob(
        &mut self,
        way: &mut Way<'_, impl Egress + ?Sized>,
        item: Item,
        opcode: Opcode,
    ) -> bool {
        let content = match item.kind {
            ItemKind::Ping => paths::padding(&item),
            _ => self.blobs.get(item.slot, item.serial).unwrap_or(&[]),
        };
        let (now, conn) = (way.now, way.conn);
        let draft = Draft::bare(opcode, content);
        let bytes = draft.datagram() as u32;
        let delivery = &mut self.conns[conn].delivery;
        let mut out = way.out(&self.config.source_ports, &self.regions);
        let port = delivery.next_port();
        let emitted = out.emit(&draft, port, || match item.kind {
            ItemKind::Ping => delivery.record(now, item, bytes),
            _ => delivery.record_urgent(now, item, bytes),
        });
        self.counters.sent += u64::from(emitted != Emitted::NoRoom);
        emitted != Emitted::NoRoom
    }

    /// Sends a bare acknowledgement if one is due. `false`: the port is full.
    pub(super) fn send_ack(&mut self, way: &mut Way<'_, impl Egress + ?Sized>) -> bool {
        const ROOM: usize = AckPayload::length(AckPayload::MAX_WORDS);
        if !self.conns[way.conn].delivery.is_ack_due(way.now) {
            return true;
        }
        let most = (build::BASE + ROOM + build::ICRC).min(self.config.datagram as usize);
        if !way.has_room(&self.config.source_ports, 0, most) {
            return false;
        }
        let Some(ack) = self.conns[way.conn].delivery.poll_ack(way.now) else {
            return true;
        };
        let mut payload = [0; ROOM];
        let length = AckPayload::emit(ack.ce, ack.delay_ns, ack.sack, &mut payload);
        let draft = Draft::bare(Opcode::SRC_ACK, &payload[..length]);
        let stamp = Stamp {
            number: 0,
            attempt: 0,
            timestamp: ack.timestamp,
            echo: ack.echo,
            ack: ack.cumulative,
            port: 0,
            ack_req: false,
        };
        let mut out = way.out(&self.config.source_ports, &self.regions);
        out.emit(&draft, 0, || stamp);
        self.counters.sent += 1;
        true
    }
}
