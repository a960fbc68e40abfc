//! From a datagram to the flow it is for.
//!
//! Nothing moves before a packet has proved itself: headers that parse, a connection that exists,
//! its token, its peer's address, the ICRC. A packet in the middle of a message carries a sum over
//! its headers, so that these can be trusted before the payload was summed; the payload is then
//! summed while it is placed.

use super::build::{BASE, SentKind, SentPacket};
use super::links::NotFound;
use super::packet::{Message, Packet, Verdict};
use super::{Cause, ConnId, Engine, Event, Platform};
use trunkline_conn::delivery::{AckInfo, Arrival as Place, Received};
use trunkline_conn::ingress::{Arrival, Identification};
use trunkline_conn::mem::{Memory, RegionMemory};
use trunkline_conn::time::Instant;
use trunkline_conn::work::{Local, SendOp, Status};
use trunkline_wire::{AckPayload, Close, CloseView, Opcode, SrcExtView, icrc};

/// Highest IP identification a Trunkline sender on a plain UDP socket produces: the index of a
/// segment within one send.
const MAX_SEGMENT: u16 = 127;

/// Unit of timestamps in the extension header.
const TICK_NS: u32 = 16;

impl<P: Platform> Engine<P> {
    /// Takes in one datagram, whatever it is; gives the packet that was placed and did not complete
    /// its message, with that and its connection.
    #[inline(never)]
    pub(super) fn take_in<'a>(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        datagram: &'a [u8],
    ) -> Option<(u32, Message, Packet<'a>)> {
        self.counters.received.add(1);
        match datagram.first().map(|byte| Opcode(*byte)) {
            Some(opcode) if opcode.is_src() => return self.handle_shared(now, arrival, datagram),
            Some(_) => self.handle_ibta(now, arrival, datagram),
            None => self.counters.malformed.add(1),
        }
        None
    }

    fn handle_shared<'a>(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        datagram: &'a [u8],
    ) -> Option<(u32, Message, Packet<'a>)> {
        let Ok(mut packet) = Packet::parse(datagram) else {
            self.counters.malformed.add(1);
            return None;
        };
        if self.rx.turn_to(&arrival.path) {
            self.links.other_source();
        }
        let conn = self.connection_for(&packet)?;
        if !self.check_icrc(&mut packet, arrival) {
            self.counters.bad_icrc.add(1);
            return None;
        }
        let placed = self.take_in_proved(now, conn, arrival, packet);
        let (is_astray, from) = (self.rx.is_handed_over(), arrival.path.src_port);
        if let Some(record) = self.links.get_mut(conn) {
            if !is_astray {
                record.flags.came_right();
            } else if record.flags.came_astray(from) {
                record.delivery.tell_astray(from);
                self.mark_ready(conn);
            }
        }
        placed
    }

    /// Takes in a packet of a connection that has proved itself.
    fn take_in_proved<'a>(
        &mut self,
        now: Instant,
        conn: u32,
        arrival: &Arrival,
        packet: Packet<'a>,
    ) -> Option<(u32, Message, Packet<'a>)> {
        match packet.opcode {
            Opcode::SRC_ACK => {
                self.handle_ack(now, conn, &packet, arrival.waited_ns);
                return None;
            }
            Opcode::SRC_CLOSE => {
                let peer = self.links.address_of(conn);
                self.remove_connection(conn, Cause::Peer);
                let reason = CloseView::split(packet.payload).map(|(view, _)| Close::parse(view));
                match reason {
                    Ok(Close::NODE) => self.end_peer(peer, Cause::PeerLeft),
                    Ok(Close::FAILED_NODE) => self.drop_peer(peer),
                    _ => {}
                }
                return None;
            }
            _ => {}
        }
        self.piggybacked(now, conn, &packet, arrival.waited_ns);
        let number = packet.number;
        let received = Received {
            timestamp: Self::sent_at(packet.ext, arrival.waited_ns),
            ce: arrival.ce,
            ack_req: packet.ack_req,
        };
        match self.links[conn].delivery.arrival(number) {
            Place::New => {}
            Place::Duplicate => {
                self.counters.duplicate.add(1);
                let (record, windows) = self.links.with_windows(conn);
                record.delivery.duplicate(now, &received, windows);
                self.mark_ready(conn);
                return None;
            }
            Place::Beyond => {
                self.counters.outside_window.add(1);
                return None;
            }
        }
        let verdict = self.dispatch(now, conn, &packet);
        // Whatever the packet did, it may have taken its connection down with it.
        self.links.get(conn)?;
        match verdict {
            Verdict::Accept | Verdict::Placed(_) => {
                let (record, windows) = self.links.with_windows(conn);
                record.delivery.accept(now, number, &received, windows);
                self.mark_ready(conn);
            }
            Verdict::Drop => {}
            Verdict::Corrupt => self.counters.bad_icrc.add(1),
        }
        match verdict {
            Verdict::Placed(message) => Some((conn, message, packet)),
            _ => None,
        }
    }

    /// When the peer sent a packet, by its clock: as if it had been later by what the packet waited
    /// here.
    #[inline(always)]
    pub(super) fn sent_at(ext: SrcExtView<'_>, waited_ns: u32) -> u32 {
        let waited = waited_ns / TICK_NS;
        ext.timestamp().wrapping_add(waited).max(1)
    }

    /// The connection that a packet names, if it has its token and comes from its peer.
    fn connection_for(&mut self, packet: &Packet<'_>) -> Option<u32> {
        let (number, token) = (packet.conn, packet.ext.token());
        match self.links.find(number, token, self.rx.arrived().source()) {
            Ok(conn) => Some(conn),
            Err(why) => {
                self.not_found(packet, why);
                None
            }
        }
    }

    #[cold]
    fn not_found(&mut self, packet: &Packet<'_>, why: NotFound) {
        match why {
            NotFound::Token => self.counters.bad_token.add(1),
            NotFound::Source => self.counters.bad_source.add(1),
            NotFound::Unknown => self.counters.unknown_connection.add(1),
            NotFound::Early => {
                self.counters.unknown_connection.add(1);
                self.events.push(Event::Early {
                    connection: packet.conn,
                    token: packet.ext.token(),
                    source: self.rx.arrived().source(),
                });
            }
        }
    }

    /// Checks the whole ICRC, or the sum over the headers where the payload is summed later.
    fn check_icrc(&mut self, packet: &mut Packet<'_>, arrival: &Arrival) -> bool {
        let datagram = packet.datagram;
        let tried = arrival.identification.guess();
        let (summed, found) = packet.first_sum();
        if packet.ext.header_crc() {
            packet.sum = Some(icrc::SUMMED_ITSELF);
        }
        let first = &datagram[..summed];
        let mut crc = self
            .rx
            .arrived()
            .seed()
            .start(datagram.len(), tried)
            .masking(first);
        P::RegionMemory::sum(first, &mut crc);
        if icrc::trailer(crc) == found {
            return true;
        }
        // Right with another identification than predicted, one that a Trunkline sender could have
        // used?
        let predicted = matches!(arrival.identification, Identification::Predicted(_));
        let solved = || {
            self.rx
                .arrived()
                .seed()
                .solve_from(summed, tried, crc, found)
        };
        let right = predicted && solved().is_some_and(|id| id <= MAX_SEGMENT);
        self.counters.identification_solved.add(u64::from(right));
        right
    }

    /// An acknowledgement says that packets from a source port come out at the peer's wrong worker.
    #[cold]
    fn sent_astray(&mut self, conn: u32, told: u16) {
        let Some(record) = self.links.get_mut(conn) else {
            return;
        };
        // One that spreads its packets over several ports has paths of its own in mind.
        if record.delivery.source_ports() == 1
            && record.flags.leave(told, &self.config.source_ports)
        {
            self.counters.source_port_changed.add(1);
        }
    }

    fn handle_ack(&mut self, now: Instant, conn: u32, packet: &Packet<'_>, waited_ns: u32) {
        let Ok(payload) = AckPayload::parse(packet.payload) else {
            self.counters.malformed.add(1);
            return;
        };
        let mut words = [0; AckPayload::MAX_WORDS];
        let count = payload.words().len();
        for (place, word) in words.iter_mut().zip(payload.words()) {
            *place = word;
        }
        let info = AckInfo {
            cumulative: packet.ext.ack(),
            sack: &words[..count],
            echo: packet.ext.echo(),
            ce: Some(payload.ce_count),
            delay_ns: payload.delay_ns.saturating_add(waited_ns),
            waited_ns,
        };
        self.apply_ack(now, conn, &info);
        let told = packet.ext.generation();
        if told != 0 {
            self.sent_astray(conn, told);
        }
    }

    fn piggybacked(&mut self, now: Instant, conn: u32, packet: &Packet<'_>, waited_ns: u32) {
        let known = std::mem::replace(&mut self.links[conn].acked, packet.ext.ack());
        if known == packet.ext.ack() && packet.ext.echo() == 0 {
            // Says nothing new: most packets of a stream in one direction.
            return;
        }
        let info = AckInfo {
            cumulative: packet.ext.ack(),
            sack: &[],
            echo: packet.ext.echo(),
            ce: None,
            delay_ns: waited_ns,
            waited_ns,
        };
        self.apply_ack(now, conn, &info);
    }

    fn apply_ack(&mut self, now: Instant, conn: u32, info: &AckInfo<'_>) {
        let mut freed = self.rx.take_room();
        let delivery = &mut self.links[conn].delivery;
        let result = delivery.handle_ack(now, info, &mut |item: SentPacket| {
            if item.kind != SentKind::Request {
                freed.push(item);
            }
        });
        if result.is_err() {
            self.counters.bad_acknowledgement.add(1);
        }
        for item in freed.drain(..) {
            self.item_arrived(now, &item);
        }
        self.rx.give_back_room(freed);
        if self.heed(now, conn) {
            self.mark_ready(conn);
        }
    }

    /// What a packet carried, or a record of one, has arrived.
    pub(super) fn item_arrived(&mut self, now: Instant, item: &SentPacket) {
        match item.kind {
            SentKind::Request => {}
            SentKind::Response => self.response_acked(item.flow, item.slot, item.serial),
            SentKind::Ping => self.ping_arrived(now, item),
            SentKind::Answers | SentKind::Control => {
                let ends = self.control.blobs.free(item.slot, item.serial);
                ends.iter().for_each(|flow| self.end_told(*flow));
                self.control.blobs.give_back_ends(ends);
            }
            SentKind::Packed => {
                let records = self.tx.packs.free(item);
                let others = records.iter().filter(|at| at.kind != SentKind::Request);
                others.for_each(|item| self.item_arrived(now, item));
                self.tx.packs.give_back(records);
            }
        }
    }

    /// Packets in flight that go down with their connection.
    pub(crate) fn forget_item(&mut self, item: &SentPacket) {
        match item.kind {
            SentKind::Response => self.response_lost(item.flow, item.slot, item.serial),
            SentKind::Answers | SentKind::Control => {
                let ends = self.control.blobs.free(item.slot, item.serial);
                ends.iter().for_each(|flow| self.end_lost(*flow));
                self.control.blobs.give_back_ends(ends);
            }
            SentKind::Request => self.missed_request(item),
            SentKind::Ping => {}
            SentKind::Packed => {
                let records = self.tx.packs.free(item);
                records.iter().for_each(|item| self.forget_item(item));
                self.tx.packs.give_back(records);
            }
        }
    }

    pub(super) fn dispatch(&mut self, now: Instant, conn: u32, packet: &Packet<'_>) -> Verdict {
        match packet.opcode {
            Opcode::SRC_SEND
            | Opcode::SRC_SEND_IMM
            | Opcode::SRC_SEND_INV
            | Opcode::SRC_WRITE
            | Opcode::SRC_WRITE_IMM
            | Opcode::SRC_READ_REQ
            | Opcode::SRC_CMP_SWAP
            | Opcode::SRC_FETCH_ADD => self.handle_request(conn, packet),
            Opcode::SRC_READ_RESP | Opcode::SRC_ATOMIC_RESP => self.handle_response(conn, packet),
            Opcode::SRC_VOID => self.handle_void(conn, packet),
            _ if !packet.is_summed::<P::RegionMemory>() => Verdict::Corrupt,
            Opcode::SRC_ANSWERS => {
                self.handle_answers(now, conn, packet.payload);
                Verdict::Accept
            }
            Opcode::SRC_CONTROL => {
                self.handle_controls(now, conn, packet.payload);
                Verdict::Accept
            }
            Opcode::SRC_PACKED => self.handle_packed(now, conn, packet),
            Opcode::SRC_PING => Verdict::Accept,
            _ => {
                // The peer counts it in its stream, so the stream goes on.
                self.counters.unknown_opcode.add(1);
                Verdict::Accept
            }
        }
    }

    fn flow_of(&mut self, conn: u32, packet: &Packet<'_>) -> Option<u32> {
        let message = packet.message;
        let qp = self.qp_index(message.dest_qp())?;
        self.flow_from(qp, message.src_qp(), conn)
    }

    /// Data of a READ or the result of an atomic.
    fn handle_response(&mut self, conn: u32, packet: &Packet<'_>) -> Verdict {
        let message = packet.message;
        let found = self
            .flow_of(conn, packet)
            .and_then(|flow| Some((flow, self.find_read(flow, message.msn())?)))
            .filter(|(_, at)| {
                // Data of one READ does not mix; what an atomic found is the same whenever it is
                // told.
                let once = packet.opcode == Opcode::SRC_ATOMIC_RESP;
                once || self.requests[*at].replay_epoch == message.replay_epoch()
            });
        let current = |flow: u32| self.flows[flow].received_generation() == message.generation();
        let Some((flow, at)) = found.filter(|(flow, _)| current(*flow)) else {
            self.counters.stale.add(1);
            return Verdict::Accept;
        };
        if message.abort() {
            return self.handle_refusal(flow, at, packet);
        }
        let pending = &self.requests[at];
        let begins = message.offset().max(pending.returned.bytes());
        let end = u64::from(begins) + packet.payload.len() as u64;
        let fits = end <= u64::from(pending.request.length);
        let kind = match pending.request.op {
            SendOp::Read(_) => packet.opcode == Opcode::SRC_READ_RESP,
            SendOp::Atomic(..) => packet.opcode == Opcode::SRC_ATOMIC_RESP && message.offset() == 0,
            _ => false,
        };
        let whole = packet.opcode != Opcode::SRC_ATOMIC_RESP || packet.payload.len() == 8;
        if !fits || !kind || !whole || pending.responded {
            self.counters.bad_answer.add(1);
            return Verdict::Accept;
        }
        let mut value = [0; 8];
        let mut sum = packet.sum;
        let (payload, crc) = if packet.opcode == Opcode::SRC_ATOMIC_RESP {
            value.copy_from_slice(packet.payload);
            value = u64::from_be_bytes(value).to_ne_bytes();
            (&value[..], None)
        } else {
            (packet.payload, sum.as_mut())
        };
        let pd = self.qps[self.flows[flow].qp].pd;
        let placed = match &pending.request.local {
            Local::Sges(sges) => self
                .regions
                .scatter(pd, sges, message.offset(), payload, crc),
            Local::Inline(_) => Ok(()),
        };
        if placed.is_err() {
            self.fail_message(flow, at, Status::LocalProtection);
            return Verdict::Accept;
        }
        if !packet.ends_in(sum) {
            return Verdict::Corrupt;
        }
        self.requests
            .add_response(at, message.offset(), payload.len() as u32);
        let pending = &self.requests[at];
        if pending.returned.bytes() < pending.request.length {
            return Verdict::Placed(Message::Response { flow, request: at });
        }
        if !pending.returned.is_whole(pending.request.length) {
            // It said some bytes twice, and the others never.
            self.counters.bad_answer.add(1);
            self.fail_message(flow, at, Status::BadResponse);
            return Verdict::Accept;
        }
        let pending = &mut self.requests[at];
        pending.responded = true;
        let msn = pending.msn;
        self.acknowledged(flow, msn.wrapping_add(1));
        Verdict::Accept
    }

    /// In place of data of a READ: they are gone at the peer, which had executed it.
    fn handle_refusal(&mut self, flow: u32, at: u32, packet: &Packet<'_>) -> Verdict {
        if !packet.is_summed::<P::RegionMemory>() {
            return Verdict::Corrupt;
        }
        let pending = &self.requests[at];
        let is_read = matches!(pending.request.op, SendOp::Read(_));
        if !is_read || packet.opcode != Opcode::SRC_READ_RESP || pending.responded {
            self.counters.bad_answer.add(1);
            return Verdict::Accept;
        }
        self.counters.nak_received.add(1);
        self.fail_message(flow, at, Status::RemoteAccess);
        Verdict::Accept
    }

    /// A packet whose data is gone at the sender, or that nobody waits for.
    fn handle_void(&mut self, conn: u32, packet: &Packet<'_>) -> Verdict {
        let flow = self
            .flow_of(conn, packet)
            .filter(|_| packet.message.abort());
        match flow {
            Some(flow) => self.handle_abort(flow, conn, packet),
            None => Verdict::Accept,
        }
    }

    /// Whether a connection handle still names the same connection.
    pub fn is_open(&self, id: ConnId) -> bool {
        self.links.live(id).is_some()
    }
}

const _: () = assert!(BASE == 52);
