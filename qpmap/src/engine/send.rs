//! Packets of one connection, once it is decided which are next.

use super::build::{self, Emitted, Out, PacketTemplate, Route, SentKind, SentPacket};
use super::contents::contents;
use super::coverage::Coverage;
use super::links;
use super::qp::Flags;
use super::schedule::Share;
use super::{Engine, Platform};
use crate::regions::Regions;
use std::cell::OnceCell;
use trunkline_conn::delivery::{Delivery, Stamp};
use trunkline_conn::egress::Egress;
use trunkline_conn::host::QpEvent;
use trunkline_conn::mem::RegionMemory;
use trunkline_conn::time::Instant;
use trunkline_conn::work::Status;
use trunkline_wire::{AckPayload, NakCode, Opcode, Record};

/// Whether a packet is sent for the first time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Attempt {
    First,
    /// Its receiver may have had it.
    Again,
}

/// The way that packets of a connection take out of the node.
pub(super) struct TxContext<'a, E: ?Sized> {
    pub(super) now: Instant,
    pub(super) conn: u32,
    pub(super) route: Route,
    pub(super) egress: &'a mut E,
}

impl<E: Egress + ?Sized> TxContext<'_, E> {
    /// Whether the port has room for a datagram of `length` bytes from one of the source ports.
    pub(super) fn has_room(&mut self, ports: &[u16], port: u8, length: usize) -> bool {
        let other = self.route.over(ports, port);
        let route = other.as_ref().unwrap_or(&self.route);
        self.egress.reserve(&route.path, length).is_some()
    }

    pub(super) const fn out<'a, B>(
        &'a mut self,
        ports: &'a [u16],
        regions: &'a Regions<B>,
    ) -> Out<'a, B, E> {
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
    /// Sends packets of a message: to its end, or as many as flow and connection may send. Gives
    /// whether the last one of them, if one was sent, is the last of the message.
    #[inline(always)]
    fn send<B: RegionMemory, E: Egress + ?Sized>(
        self,
        now: Instant,
        (mut template, mut item, most): (PacketTemplate<'_>, SentPacket, u32),
        delivery: &mut Delivery<SentPacket>,
        mut out: Out<'_, B, E>,
    ) -> (Emitted, bool) {
        let headers = OnceCell::new();
        loop {
            let offset = *self.sent_bytes;
            let length = (template.whole - offset).min(most);
            template.cut(offset, length);
            (item.offset, item.length) = (offset, length);
            let bytes = template.datagram() as u32;
            let port = delivery.next_port();
            let emitted = out.emit(&template, port, || delivery.record(now, item, bytes));
            if emitted == Emitted::NoRoom {
                return (emitted, false);
            }
            *self.packets += 1;
            *self.deficit -= self.share.take(bytes);
            *self.sent_bytes = offset + length;
            let over = template.last || *self.deficit <= 0 || self.share.is_spent();
            if over || emitted == Emitted::Voided {
                return (emitted, template.last);
            }
            template.keep_headers(out.route, &headers);
        }
    }
}

impl<P: Platform> Engine<P> {
    /// Tells peers of connections that were closed. Said once: a peer that misses it finds out when
    /// nobody answers. `false`: the port is full.
    pub(super) fn send_pending_closes(&mut self, egress: &mut (impl Egress + ?Sized)) -> bool {
        let stamp = Stamp {
            number: 0,
            attempt: 0,
            timestamp: 0,
            echo: 0,
            ack: 0,
            port: 0,
            ack_req: false,
        };
        while let Some((route, reason)) = self.tx.pending_close() {
            let reason = reason.to_bytes();
            let template = PacketTemplate::bare(Opcode::SRC_CLOSE, &reason);
            let mut out = Out {
                route,
                ports: &self.config.source_ports,
                regions: &self.regions,
                egress,
            };
            if out.emit(&template, 0, || stamp) == Emitted::NoRoom {
                return false;
            }
            self.counters.sent.add(1);
            self.tx.closed();
        }
        true
    }

    /// Whether peers are still to be told of connections that were closed.
    pub fn has_pending_closes(&self) -> bool {
        self.tx.pending_close().is_some()
    }

    /// Sends packets of a request, as many as its flow may in this turn.
    pub(super) fn send_request(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        flow: u32,
        at: u32,
        share: &mut Share,
    ) -> Emitted {
        if self.flows[flow].flags.has(Flags::ANSWER_DUE) && self.is_told(flow, at) {
            let answered = self.answer_first(tx, flow, share);
            if answered != Emitted::Sent {
                return answered;
            }
        }
        let (item, whole) = self.begin_request(flow, at);
        if let Some(bytes) = whole.filter(|_| self.may_share(tx.conn, item.length)) {
            let joined = self.join(tx, item, bytes, share);
            if joined == Emitted::Sent {
                self.flows[flow].deficit -= bytes as i32;
                self.end_request(flow, at);
            }
            return joined;
        }
        let sent = self.end_pack(tx, false, share);
        if sent != Emitted::Sent {
            return sent;
        }
        let record = &mut self.flows[flow];
        let pending = &self.requests[at];
        let qp = &self.qps[record.qp];
        let conn = &mut self.links[tx.conn];
        let (payload, delivery) = (conn.payload(), &mut conn.delivery);
        let template = PacketTemplate::request(record, qp.queues.qpn, qp.pd, pending);
        let mut packets = 0;
        let progress = Progress {
            sent_bytes: &mut record.sent_bytes,
            deficit: &mut record.deficit,
            share,
            packets: &mut packets,
        };
        let now = tx.now;
        let out = tx.out(&self.config.source_ports, &self.regions);
        let message = (template, item, payload);
        let (emitted, is_last) = progress.send(now, message, delivery, out);
        self.counters.sent.add(packets);
        if emitted == Emitted::NoRoom {
            return emitted;
        }
        if is_last {
            self.end_request(flow, at);
        }
        if emitted == Emitted::Voided {
            self.request_lost(flow, at);
        }
        emitted
    }

    /// Whether the peer's program is told of a request of which nothing has gone yet.
    fn is_told(&self, flow: u32, at: u32) -> bool {
        let begins = self.flows[flow].sent_bytes == 0;
        begins && self.requests[at].request.op.consumes_receive()
    }

    /// Some of a request goes out, for the first time or again. Returns what stands for all of it,
    /// and, where none of it has gone yet, how many bytes it has as a record.
    #[inline(always)]
    fn begin_request(&mut self, flow: u32, at: u32) -> (SentPacket, Option<u32>) {
        let record = &mut self.flows[flow];
        let mut pending = &mut self.requests[at];
        let repeats = pending.begun;
        if !repeats {
            pending = self.requests.begin(record.head, at, record.next_msn);
            record.next_msn = record.next_msn.wrapping_add(1);
        }
        if pending.replay_epoch != record.replay_epoch {
            // Responses to the last replay epoch counted until now, and do not from now on.
            (pending.replay_epoch, pending.returned) = (record.replay_epoch, Coverage::NOTHING);
            pending.repeated = repeats;
        }
        let is_first = record.sent_bytes == 0;
        if is_first {
            pending.ahead = record.reads_out;
        }
        let op = &pending.request.op;
        let length = match op.has_response_data() {
            true => 0,
            false => pending.request.length,
        };
        let item = SentPacket {
            kind: SentKind::Request,
            replay_epoch: record.replay_epoch,
            flow,
            slot: at,
            serial: pending.serial,
            offset: 0,
            length,
        };
        (item, is_first.then(|| build::record_bytes(op, length)))
    }

    /// All of a request has gone out: the one behind it is next.
    fn end_request(&mut self, flow: u32, at: u32) {
        let (record, pending) = (&mut self.flows[flow], &mut self.requests[at]);
        record.sending = pending.flow_next;
        record.sent_bytes = 0;
        if pending.request.op.has_response_data() {
            pending.reading = true;
            record.reads_out += 1;
        }
    }

    /// The data of a request is gone: it fails.
    pub(super) fn request_lost(&mut self, flow: u32, request: u32) {
        self.counters.void_sent.add(1);
        self.fail_message(flow, request, Status::LocalProtection);
    }

    /// Sends packets of a response, as many as its flow may in this turn.
    pub(super) fn send_response(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        flow: u32,
        at: u32,
        share: &mut Share,
    ) -> Emitted {
        let response = &self.responses[at];
        let length = response.length();
        let item = SentPacket {
            kind: SentKind::Response,
            replay_epoch: response.replay_epoch,
            flow,
            slot: at,
            serial: response.serial,
            ..SentPacket::PING
        };
        if response.sent_bytes == 0 && self.may_share(tx.conn, length) {
            let bytes = Record::LEN as u32 + length;
            let joined = self.join(tx, SentPacket { length, ..item }, bytes, share);
            if joined == Emitted::Sent {
                self.flows[flow].deficit -= bytes as i32;
                *self.responses.progress(at) = length;
                self.responses.sent(at, 1, true);
            }
            return joined;
        }
        let sent = self.end_pack(tx, false, share);
        if sent != Emitted::Sent {
            return sent;
        }
        let template = contents!(self).template_of_response(flow, &self.responses[at]);
        let conn = &mut self.links[tx.conn];
        let (payload, delivery) = (conn.payload(), &mut conn.delivery);
        let mut packets = 0;
        let progress = Progress {
            sent_bytes: self.responses.progress(at),
            deficit: &mut self.flows[flow].deficit,
            share,
            packets: &mut packets,
        };
        let now = tx.now;
        let out = tx.out(&self.config.source_ports, &self.regions);
        let message = (template, item, payload);
        let (emitted, is_last) = progress.send(now, message, delivery, out);
        self.responses.sent(at, packets as u32, is_last);
        self.counters.sent.add(packets);
        if emitted == Emitted::Voided {
            self.read_lost(flow, at);
        }
        emitted
    }

    /// The memory of a READ is gone that was to be answered: so is the right to it.
    pub(super) fn read_lost(&mut self, flow: u32, response: u32) {
        self.counters.void_sent.add(1);
        let msn = self.responses[response].msn;
        self.refuse_executed(flow, msn, NakCode::RemoteAccess, QpEvent::AccessError);
    }

    /// Sends a lost packet again, or a VOID in its place when nobody waits for its content. It
    /// stays lost as long as the port has no room for it.
    pub(super) fn send_again(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        item: &SentPacket,
    ) -> Emitted {
        if item.kind == SentKind::Packed {
            return self.send_packed_again(tx, item);
        }
        if item.kind == SentKind::Ping {
            self.links.ping_lost(item);
        }
        let void = || PacketTemplate::bare(Opcode::SRC_VOID, &[]);
        let template = contents!(self).template(item).unwrap_or_else(void);
        let now = tx.now;
        let delivery = &mut self.links[tx.conn].delivery;
        let mut out = tx.out(&self.config.source_ports, &self.regions);
        let (port, bytes) = (delivery.next_port(), template.datagram() as u32);
        let emitted = out.emit(&template, port, || delivery.retransmit(now, bytes));
        self.counters
            .sent
            .add(u64::from(emitted != Emitted::NoRoom));
        if emitted == Emitted::Voided {
            self.data_lost(item, Attempt::Again);
        }
        emitted
    }

    /// Sends a counted packet that belongs to no QP. `false`: the port is full.
    pub(super) fn send_blob(
        &mut self,
        tx: &mut TxContext<'_, impl Egress + ?Sized>,
        item: SentPacket,
        opcode: Opcode,
    ) -> bool {
        let content = match item.kind {
            SentKind::Ping => links::padding(&item),
            _ => self
                .control
                .blobs
                .get(item.slot, item.serial)
                .unwrap_or(&[]),
        };
        let (now, conn) = (tx.now, tx.conn);
        let template = PacketTemplate::bare(opcode, content);
        let bytes = template.datagram() as u32;
        let delivery = &mut self.links[conn].delivery;
        let mut out = tx.out(&self.config.source_ports, &self.regions);
        let port = delivery.next_port();
        let emitted = out.emit(&template, port, || match item.kind {
            SentKind::Ping => delivery.record(now, item, bytes),
            _ => delivery.record_urgent(now, item, bytes),
        });
        self.counters
            .sent
            .add(u64::from(emitted != Emitted::NoRoom));
        emitted != Emitted::NoRoom
    }

    /// Sends a bare acknowledgement if one is due. `false`: the port is full.
    pub(super) fn send_ack(&mut self, tx: &mut TxContext<'_, impl Egress + ?Sized>) -> bool {
        const ROOM: usize = AckPayload::length(AckPayload::MAX_WORDS);
        if !self.links[tx.conn].delivery.is_ack_due(tx.now) {
            return true;
        }
        let most = (build::BASE + ROOM + build::ICRC).min(self.config.datagram as usize);
        if !tx.has_room(&self.config.source_ports, 0, most) {
            return false;
        }
        let Some(ack) = self.links[tx.conn].delivery.poll_ack(tx.now) else {
            return true;
        };
        let mut payload = [0; ROOM];
        let length = AckPayload::emit(ack.ce, ack.delay_ns, ack.sack, &mut payload);
        let template = PacketTemplate::acknowledgement(ack.astray, &payload[..length]);
        let stamp = Stamp {
            number: 0,
            attempt: 0,
            timestamp: ack.timestamp,
            echo: ack.echo,
            ack: ack.cumulative,
            port: 0,
            ack_req: false,
        };
        let mut out = tx.out(&self.config.source_ports, &self.regions);
        out.emit(&template, 0, || stamp);
        self.counters.sent.add(1);
        true
    }
}
