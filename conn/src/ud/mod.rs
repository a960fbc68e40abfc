//! Unreliable datagrams (IBTA Vol 1, 9.8.3): one SEND, one packet, to any QP.
//!
//! The first 40 bytes of every receive are for the GRH. RoCEv2 has none: over IPv6 the IP header
//! stands there, over IPv4 20 bytes of zeros and the IP header (IBTA annex A17.4.5.1). It is put
//! together from what a port says of a packet; hop limit and flow label are not known and stand
//! there as 64 and 0.

use crate::egress::{Egress, Transmitted};
use crate::host::{Host, QpEvent};
use crate::ingress::Arrival;
use crate::mem::{Memory, PdId};
use crate::rc::build::{self, Emitted, Headers, Route};
use crate::rc::{Dropped, Mtu, State, Stats, pkeys_match};
use crate::work::{
    Completion, Extra, Receive, Request, SendFlags, SendOp, Status, VendorError, WorkOpcode,
};
use alloc::collections::VecDeque;
use core::net::IpAddr;
use trunkline_wire::{
    Bth, Deth, ImmDt, Ipv4, Ipv6, Opcode, Packet, Path, Psn, Qpn, Transport, Udp,
};

/// Bytes at the front of every receive that are for the GRH.
pub const GRH_LEN: usize = 40;
/// Hop limit put into GRHs, where the real one is not known.
const HOPS: u8 = 64;
/// A send request with this bit in its Q_Key uses the key of its QP.
const CONTROLLED_QKEY: u32 = 1 << 31;

/// Attributes of a UD QP that is ready to receive and to send.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The local QP.
    pub qpn: Qpn,
    /// Most bytes of a datagram.
    pub mtu: Mtu,
    /// PSN of the first packet sent.
    pub sq_psn: Psn,
    /// Partition key.
    pub pkey: u16,
    /// Key that datagrams to this QP must carry.
    pub qkey: u32,
    /// Protection domain of the QP.
    pub pd: PdId,
    /// Send requests that fit.
    pub send_capacity: usize,
}

/// Where a datagram goes: address handle, QP and Q_Key.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// From here to there.
    pub path: Path,
    /// The QP there.
    pub qpn: Qpn,
    /// Its key; with the highest bit set, that of the sending QP goes instead.
    pub qkey: u32,
}

/// The protocol half of a UD QP. See the [module](self).
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    state: State,
    /// With how those end that cannot be sent, once they are the oldest.
    queue: VecDeque<(Request, Result<Address, Status>)>,
    next_psn: Psn,
    /// Taken for a datagram that did not fit.
    in_hand: Option<Receive>,
    stats: Stats,
}

const _: () = assert!(size_of::<Endpoint>() <= 640);

impl Endpoint {
    /// A QP that is ready to receive and to send.
    pub fn new(config: Config) -> Self {
        Self {
            state: State::Ready,
            queue: VecDeque::with_capacity(config.send_capacity),
            next_psn: config.sq_psn,
            in_hand: None,
            stats: Stats::default(),
            config,
        }
    }

    /// The QP goes to RTS: its packets begin with this PSN.
    pub const fn start_sending(&mut self, sq_psn: Psn) {
        self.next_psn = sq_psn;
    }

    /// The program takes the QP from SQE to RTS.
    pub fn resume(&mut self) {
        if self.state == State::SendError {
            self.state = State::Ready;
        }
    }

    /// The QP's Q_Key changes.
    pub const fn set_qkey(&mut self, qkey: u32) {
        self.config.qkey = qkey;
    }

    /// Queues a SEND, with or without immediate, of at most one packet; `None`: it names nobody. A
    /// request that cannot be sent fails in its turn: one that UD does not know, one to nobody, and
    /// one that is longer than a packet.
    ///
    /// # Errors
    /// The queue is full, or the QP is in error: it comes back.
    #[expect(
        clippy::result_large_err,
        reason = "what does not fit comes back whole, as it was given"
    )]
    pub fn post_send(&mut self, request: Request, to: Option<Address>) -> Result<(), Request> {
        let known = matches!(request.op, SendOp::Send | SendOp::SendImm(_));
        let full = self.queue.len() >= self.config.send_capacity;
        if full || self.state != State::Ready {
            return Err(request);
        }
        let to = match to {
            Some(_) if known && request.length > self.config.mtu.bytes() => {
                Err(Status::LocalLength)
            }
            Some(to) if known => Ok(to),
            _ => Err(Status::LocalQpOperation),
        };
        self.queue.push_back((request, to));
        Ok(())
    }

    /// Acts on a packet whose ICRC is right.
    ///
    /// # Errors
    /// Why it was dropped; counted already.
    pub fn handle_packet(
        &mut self,
        packet: &Packet<'_>,
        arrival: &Arrival,
        host: &mut impl Host,
    ) -> Result<(), Dropped> {
        let verdict = self.receive(packet, arrival, host);
        if verdict.is_err_and(Dropped::ends_qp) {
            self.end(host, Status::Flushed, Status::LocalProtection);
            host.event(QpEvent::Fatal);
        }
        self.stats.judged(verdict)
    }

    fn receive(
        &mut self,
        packet: &Packet<'_>,
        arrival: &Arrival,
        host: &mut impl Host,
    ) -> Result<(), Dropped> {
        let config = &self.config;
        if packet.bth.dest_qp != config.qpn {
            return Err(Dropped::WrongQp);
        }
        if self.state == State::Error {
            return Err(Dropped::QpInError);
        }
        if !pkeys_match(packet.bth.pkey, config.pkey) {
            return Err(Dropped::WrongPartition);
        }
        let (Transport::Ud, Some(deth)) = (packet.opcode().transport(), packet.deth) else {
            return Err(Dropped::WrongTransport);
        };
        if deth.qkey != config.qkey {
            return Err(Dropped::WrongQkey);
        }
        if self.in_hand.is_none() {
            self.in_hand = host.take_receive()?;
        }
        let receive = self.in_hand.as_ref().ok_or(Dropped::ReceiverNotReady)?;
        let length = GRH_LEN + packet.payload.len();
        if length as u64 > receive.capacity() {
            return Err(Dropped::TooLong);
        }
        let (pd, sges) = (config.pd, &receive.sges);
        let memory = host.memory();
        let grh = grh(arrival, packet);
        memory
            .scatter(pd, sges, 0, &grh, None)
            .and_then(|()| memory.scatter(pd, sges, GRH_LEN as u32, packet.payload, None))
            .map_err(|_| Dropped::LocalMemory)?;
        let completion = Completion {
            wr_id: receive.wr_id,
            status: Status::Success,
            opcode: WorkOpcode::Receive,
            qpn: config.qpn,
            byte_len: length as u32,
            extra: packet
                .imm
                .map_or(Extra::None, |imm| Extra::Immediate(imm.0)),
            src_qp: deth.src_qp,
            route: 0,
            solicited: packet.bth.solicited,
            vendor_err: VendorError::None,
            ticks: 0,
        };
        self.in_hand = None;
        host.received(completion);
        Ok(())
    }

    /// Builds one datagram. A request is done when its packet has been handed over.
    pub fn poll_transmit(
        &mut self,
        host: &mut impl Host,
        out: &mut (impl Egress + ?Sized),
    ) -> Transmitted {
        let (request, to) = match self.queue.front() {
            None => return Transmitted::Nothing,
            Some((_, Err(status))) => {
                let status = *status;
                self.fail(host, status);
                return Transmitted::Nothing;
            }
            Some((request, Ok(to))) => (request, to),
        };
        let config = &self.config;
        let imm = match request.op {
            SendOp::SendImm(value) => Some(ImmDt(value)),
            _ => None,
        };
        let bth = Bth {
            opcode: match imm {
                Some(_) => Opcode::UD_SEND_ONLY_IMM,
                None => Opcode::UD_SEND_ONLY,
            },
            solicited: request.flags.contains(SendFlags::SOLICITED),
            mig_req: true,
            pkey: config.pkey,
            dest_qp: to.qpn,
            psn: self.next_psn,
            ..Bth::default()
        };
        let own_key = to.qkey & CONTROLLED_QKEY != 0;
        let deth = Deth {
            qkey: if own_key { config.qkey } else { to.qkey },
            src_qp: config.qpn,
        };
        let length = request.length as usize;
        let mut headers = Headers::new(&bth, length);
        headers.put(&deth.to_bytes());
        if let Some(imm) = imm {
            headers.put(&imm.to_bytes());
        }
        let memory = host.memory();
        let emitted = Route::new(to.path).emit(out, &headers, length, |payload, crc| {
            build::gather(memory, config.pd, &request.local, 0, payload, crc)
        });
        match emitted {
            Emitted::NoRoom => Transmitted::NoRoom,
            Emitted::Fault(_) => {
                self.fail(host, Status::LocalProtection);
                Transmitted::Nothing
            }
            Emitted::Sent(bytes) => {
                self.stats.sent(bytes);
                self.next_psn = self.next_psn.advance(1);
                if let Some((request, _)) = self.queue.pop_front() {
                    let length = request.length;
                    host.sent(request, Status::Success, length);
                }
                Transmitted::Packet
            }
        }
    }

    /// Takes the QP to error: the oldest request ends with `status`, all others are flushed, and
    /// so is a receive in hand.
    pub fn abort(&mut self, host: &mut impl Host, status: Status) {
        self.end(host, status, Status::Flushed);
    }

    /// The same, with what becomes of a receive in hand.
    fn end(&mut self, host: &mut impl Host, status: Status, of_receive: Status) {
        self.end_requests(host, status);
        self.state = State::Error;
        if let Some(receive) = self.in_hand.take() {
            host.received(Completion {
                wr_id: receive.wr_id,
                status: of_receive,
                opcode: WorkOpcode::Receive,
                qpn: self.config.qpn,
                byte_len: 0,
                extra: Extra::None,
                src_qp: Qpn::default(),
                route: 0,
                solicited: false,
                vendor_err: VendorError::None,
                ticks: 0,
            });
        }
    }

    /// The oldest request failed here: it ends with `status`, all others are flushed, and receiving
    /// goes on (IBTA Vol 1, 10.3.1.6).
    fn fail(&mut self, host: &mut impl Host, status: Status) {
        self.end_requests(host, status);
        self.state = State::SendError;
    }

    fn end_requests(&mut self, host: &mut impl Host, status: Status) {
        let mut status = status;
        while let Some((request, _)) = self.queue.pop_front() {
            host.sent(request, status, 0);
            status = Status::Flushed;
        }
    }

    /// Whether it still works.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Counters.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// What it was set up with.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Requests posted that have not ended.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }
}

/// What stands in the first 40 bytes of a receive.
fn grh(arrival: &Arrival, packet: &Packet<'_>) -> [u8; GRH_LEN] {
    let mut grh = [0; GRH_LEN];
    let path = &arrival.path;
    let udp = Udp::LEN + packet.length();
    let hop_limit = match path.ip.hop_limit() {
        0 => HOPS,
        seen => seen,
    };
    match (path.src, path.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = Ipv4 {
                traffic_class: path.traffic_class,
                total_length: (Ipv4::LEN + udp) as u16,
                identification: arrival.identification.guess(),
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                ttl: hop_limit,
                protocol: Udp::PROTOCOL,
                src,
                dst,
            };
            grh[GRH_LEN - Ipv4::LEN..].copy_from_slice(&ip.to_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let ip = Ipv6 {
                traffic_class: path.traffic_class,
                flow_label: path.ip.flow_label(),
                payload_length: udp as u16,
                next_header: Udp::PROTOCOL,
                hop_limit,
                src,
                dst,
            };
            grh.copy_from_slice(&ip.to_bytes());
        }
        // No port says so; there is nothing to put there.
        _ => {}
    }
    grh
}
