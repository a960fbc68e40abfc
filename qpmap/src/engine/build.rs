//! Building one packet of a shared connection: headers, payload in one copy-and-sum, ICRC.

mod record;

pub(crate) use record::{packed_datagram, record_bytes};

use super::qp::Flow;
use super::requests::Pending;
use crate::regions::Regions;
use std::cell::OnceCell;
use trunkline_conn::delivery::Stamp;
use trunkline_conn::egress::Egress;
use trunkline_conn::mem::{AtomicOp, Memory, MemoryFault, PdId, RegionMemory, Responder, Sge};
use trunkline_conn::work::{Local, SendFlags, SendOp};
use trunkline_wire::{
    AtomicEth, Bth, Crc, IcrcSeed, Ieth, ImmDt, Opcode, Path, Psn, Qpn, Reth, SrcExt, SrcExtPart,
    icrc,
};

/// Bytes of the ICRC, and of the HCRC.
pub(crate) const ICRC: usize = 4;
/// Bytes of BTH and extension header.
pub(crate) const BASE: usize = Bth::LEN + SrcExt::LEN;
/// Most bytes of a datagram beside its payload: base headers, the largest further header that goes
/// with payload (RETH and immediate), HCRC, ICRC; rounded up to a multiple of 16.
pub(crate) const OVERHEAD: u32 = 80;

/// Up to so many bytes of payload, one sum over the whole packet is quicker than two.
const SHORT: usize = 256;

/// Payload bytes of a full packet on a path that carries datagrams of `datagram` bytes: whole pages
/// where there is room, else a multiple of 64.
pub(crate) const fn full_payload(datagram: u32) -> u32 {
    let room = datagram.saturating_sub(OVERHEAD);
    if room >= 4096 {
        room & !4095
    } else {
        room & !63
    }
}

/// What a packet in flight carries, so that it can be built again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentPacket {
    pub(crate) kind: SentKind,
    /// Replay epoch of the flow when it was sent.
    pub(crate) replay_epoch: u8,
    pub(crate) flow: u32,
    /// Slab index of the request, response or blob.
    pub(crate) slot: u32,
    /// Tells a reused slot from the one meant.
    pub(crate) serial: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// What kind of content that is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum SentKind {
    Request,
    Response,
    Answers,
    Control,
    Ping,
    /// Several of the others but PINGs: the list is kept apart.
    Packed,
}

impl SentPacket {
    pub(crate) const PING: Self = Self {
        kind: SentKind::Ping,
        replay_epoch: 0,
        flow: 0,
        slot: 0,
        serial: 0,
        offset: 0,
        length: 0,
    };
}

/// Where packets of a connection go: made once per burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) path: Path,
    pub(crate) seed: IcrcSeed,
    pub(crate) remote_id: Qpn,
    pub(crate) token: u32,
}

impl Route {
    /// The same route from another source port; `None` for the first one, which it has already.
    pub(crate) fn over(&self, ports: &[u16], port: u8) -> Option<Self> {
        if port == 0 {
            return None;
        }
        let path = Path {
            src_port: ports[usize::from(port) % ports.len()],
            ..self.path
        };
        Some(Self {
            path,
            seed: IcrcSeed::new(&path),
            ..*self
        })
    }
}

/// The payload of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    None,
    /// Registered memory of the QP's program.
    Gather(PdId, &'a [Sge]),
    /// Registered memory that a peer reads.
    Read(Responder, trunkline_wire::Rkey, u64),
    /// Bytes at hand.
    Bytes(&'a [u8]),
    /// What an atomic found.
    Value([u8; 8]),
}

/// The longest headers: those of an atomic.
pub(crate) type Headers = [u8; BASE + AtomicEth::LEN];

/// Everything of a packet but its number. All packets of a message are cut from one template.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketTemplate<'a> {
    opcode: Opcode,
    id: MessageId,
    abort: bool,
    op: Option<&'a SendOp>,
    /// Of a READ or atomic: how many of its flow before it are outstanding.
    ahead: u32,
    /// Bytes of the headers behind the extension header, without the HCRC.
    further: u8,
    /// What RETH says of the whole message.
    message: u32,
    /// Payload bytes of all its packets.
    pub(crate) whole: u32,
    /// The last of them asks for an event.
    solicited: bool,
    /// The packet: its bytes of the payload, and whether it is the last.
    offset: u32,
    length: u32,
    pub(crate) last: bool,
    /// Of all its packets.
    payload: Payload<'a>,
    /// Their headers, but for what each has of its own: worth keeping when there are several.
    kept_headers: Option<&'a Headers>,
}

/// Between which QPs a message goes, and which one of theirs it is. Nothing for packets without.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MessageId {
    source: Qpn,
    dest: Qpn,
    generation: u16,
    replay_epoch: u8,
    msn: u32,
}

impl MessageId {
    /// A message of a flow whose QP is `source`.
    pub(crate) fn of(flow: &Flow, source: Qpn, msn: u32, replay_epoch: u8) -> Self {
        Self {
            source,
            dest: flow.remote,
            generation: flow.sent_generation(),
            replay_epoch,
            msn,
        }
    }
}

impl<'a> PacketTemplate<'a> {
    /// A packet without a QP: answers, control, keep-alive, acknowledgements.
    pub(crate) fn bare(opcode: Opcode, payload: &'a [u8]) -> Self {
        Self::of_bytes(opcode, MessageId::default(), payload)
    }

    /// A pure acknowledgement, with the source port whose packets came out at the wrong worker, or
    /// 0.
    pub(crate) fn acknowledgement(astray: u16, payload: &'a [u8]) -> Self {
        let id = MessageId {
            generation: astray,
            ..MessageId::default()
        };
        Self::of_bytes(Opcode::SRC_ACK, id, payload)
    }

    fn of_bytes(opcode: Opcode, id: MessageId, payload: &'a [u8]) -> Self {
        let length = payload.len() as u32;
        Self::new(opcode, id, length, Payload::Bytes(payload))
    }

    /// A request, to be [`cut`](Self::cut) into packets.
    #[inline(always)]
    pub(crate) fn request(flow: &Flow, source: Qpn, pd: PdId, pending: &'a Pending) -> Self {
        let request = &pending.request;
        let payload = match (&request.op, &request.local) {
            (SendOp::Read(_) | SendOp::Atomic(..), _) => Payload::None,
            (_, Local::Sges(sges)) => Payload::Gather(pd, sges),
            (_, Local::Inline(bytes)) => Payload::Bytes(bytes),
        };
        let whole = match payload {
            Payload::None => 0,
            _ => request.length,
        };
        let id = MessageId::of(flow, source, pending.msn, pending.replay_epoch);
        let answered = request.op.has_response_data();
        Self {
            op: Some(&request.op),
            ahead: if answered { pending.ahead.into() } else { 0 },
            further: further_length(&request.op) as u8,
            message: request.length,
            solicited: request.flags.contains(SendFlags::SOLICITED),
            ..Self::new(opcode_of(&request.op), id, whole, payload)
        }
    }

    /// A message of `whole` bytes, at first in one packet.
    pub(crate) const fn new(
        opcode: Opcode,
        id: MessageId,
        whole: u32,
        payload: Payload<'a>,
    ) -> Self {
        Self {
            opcode,
            id,
            abort: false,
            op: None,
            ahead: 0,
            further: 0,
            message: whole,
            whole,
            solicited: false,
            offset: 0,
            length: whole,
            last: true,
            payload,
            kept_headers: None,
        }
    }

    /// More packets follow this one: their headers are kept in `place`.
    pub(super) fn keep_headers(&mut self, route: &Route, place: &'a OnceCell<Headers>) {
        let headers = place.get_or_init(|| {
            let mut headers = [0; size_of::<Headers>()];
            self.write_common(route, &mut headers);
            headers
        });
        self.kept_headers = Some(headers);
    }

    /// The packet with `length` bytes of the payload, from `offset` on.
    pub(crate) const fn cut(&mut self, offset: u32, length: u32) {
        (self.offset, self.length) = (offset, length);
        self.last = offset + length == self.whole;
    }

    /// The same place in the stream, with nothing in it. In place of a request it aborts the
    /// message, in place of data of a READ it refuses that.
    fn voided(&self) -> Self {
        let opcode = match self.opcode {
            Opcode::SRC_READ_RESP => Opcode::SRC_READ_RESP,
            _ => Opcode::SRC_VOID,
        };
        Self {
            abort: true,
            ..Self::new(opcode, self.id, 0, Payload::None)
        }
    }

    const fn has_header_crc(&self) -> bool {
        !self.last && self.length > 0
    }

    fn headers(&self) -> usize {
        BASE + usize::from(self.further) + if self.has_header_crc() { ICRC } else { 0 }
    }

    /// Bytes of the datagram.
    pub(crate) fn datagram(&self) -> usize {
        self.headers() + self.length as usize + ICRC
    }

    /// Writes the packet into `datagram`, which has exactly [`datagram`](Self::datagram) bytes.
    ///
    /// # Errors
    /// The payload cannot be had; the packet is then one that nobody should get.
    pub(crate) fn build<B: RegionMemory>(
        &self,
        route: &Route,
        stamp: &Stamp,
        identification: u16,
        regions: &Regions<B>,
        datagram: &mut [u8],
    ) -> Result<(), MemoryFault> {
        let start = route.seed.start(datagram.len(), identification);
        let (sealed, trailer) = datagram
            .split_last_chunk_mut()
            .expect("a datagram ends in its ICRC");
        self.write_headers(route, stamp, sealed);
        let (head, payload) = sealed.split_at_mut(self.headers());
        let mut crc = start;
        if self.has_header_crc() {
            // The payload's sum does not depend on the headers'. These come second, so that their
            // bytes are read long after they were written one by one.
            crc = icrc::SUMMED_ITSELF;
            self.write_payload(regions, payload, Some(&mut crc))?;
            let (head, sum) = head.split_last_chunk_mut().expect("they end in the HCRC");
            let mut header_crc = start.masking(head);
            B::sum(head, &mut header_crc);
            *sum = icrc::trailer(header_crc);
        } else if payload.len() > SHORT {
            crc = crc.masking(head);
            B::sum(head, &mut crc);
            self.write_payload(regions, payload, Some(&mut crc))?;
        } else {
            self.write_payload(regions, payload, None)?;
            crc = crc.masking(sealed);
            B::sum(sealed, &mut crc);
        }
        *trailer = icrc::trailer(crc);
        Ok(())
    }

    #[inline(always)]
    fn write_payload<B: RegionMemory>(
        &self,
        regions: &Regions<B>,
        payload: &mut [u8],
        sum: Option<&mut Crc>,
    ) -> Result<(), MemoryFault> {
        match self.payload {
            Payload::None => Ok(()),
            Payload::Gather(pd, sges) => regions.gather(pd, sges, self.offset, payload, sum),
            Payload::Read(by, key, addr) => {
                let addr = addr.wrapping_add(u64::from(self.offset));
                regions.read(by, key, addr, payload, sum)
            }
            Payload::Bytes(bytes) => {
                payload.copy_from_slice(&bytes[self.offset as usize..][..payload.len()]);
                if let Some(crc) = sum {
                    B::sum(payload, crc);
                }
                Ok(())
            }
            Payload::Value(value) => {
                payload.copy_from_slice(&value);
                if let Some(crc) = sum {
                    B::sum(payload, crc);
                }
                Ok(())
            }
        }
    }

    /// The headers of this one packet, but for the HCRC.
    #[inline(always)]
    fn write_headers(&self, route: &Route, stamp: &Stamp, out: &mut [u8]) {
        match (self.kept_headers, out.first_chunk_mut()) {
            // What is too much is written over later.
            (Some(headers), Some(all)) => *all = *headers,
            _ => self.write_common(route, out),
        }
        let (bth, rest) = out.split_first_chunk_mut().expect("they begin with a BTH");
        let solicited = self.solicited && self.last;
        Bth::emit_part(
            bth,
            solicited,
            stamp.ack_req,
            Psn::from_wire(stamp.number as u32),
        );
        SrcExtPart {
            last: self.last,
            header_crc: self.has_header_crc(),
            attempt: stamp.attempt,
            psn_high: stamp.number >> 24,
            offset: self.offset + self.ahead,
            timestamp: stamp.timestamp,
            echo: stamp.echo,
            ack: stamp.ack,
        }
        .emit(
            rest.first_chunk_mut()
                .expect("the extension header follows"),
        );
    }

    /// What the headers are in all packets.
    fn write_common(&self, route: &Route, out: &mut [u8]) {
        let bth = Bth {
            opcode: self.opcode,
            mig_req: true,
            pkey: 0xffff,
            dest_qp: route.remote_id,
            ..Bth::default()
        };
        let ext = SrcExt {
            abort: self.abort,
            generation: self.id.generation,
            token: route.token,
            src_qp: self.id.source,
            replay_epoch: self.id.replay_epoch,
            dest_qp: self.id.dest,
            msn: self.id.msn,
            ..SrcExt::default()
        };
        let (head, rest) = out.split_first_chunk_mut().expect("a BTH");
        bth.emit(head);
        let (head, further) = rest.split_first_chunk_mut().expect("an extension header");
        ext.emit(head);
        if let Some(op) = self.op {
            self.write_further(op, further);
        }
    }

    fn write_further(&self, op: &SendOp, out: &mut [u8]) {
        let reth = |remote: &trunkline_conn::work::Remote| Reth {
            va: remote.addr,
            rkey: remote.rkey,
            length: self.message,
        };
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        match op {
            SendOp::Send | SendOp::SendTo(_) | SendOp::Own(_) => {}
            SendOp::SendImm(value) => put(&ImmDt(*value).to_bytes()),
            SendOp::SendInvalidate(key) => put(&Ieth(*key).to_bytes()),
            SendOp::Write(remote) | SendOp::Read(remote) => put(&reth(remote).to_bytes()),
            SendOp::WriteImm(remote, value) => {
                put(&reth(remote).to_bytes());
                put(&ImmDt(*value).to_bytes());
            }
            SendOp::Atomic(remote, op) => {
                let (swap_or_add, compare) = match *op {
                    AtomicOp::CompareSwap { compare, swap } => (swap, compare),
                    AtomicOp::FetchAdd { add } => (add, 0),
                };
                let header = AtomicEth {
                    va: remote.addr,
                    rkey: remote.rkey,
                    swap_or_add,
                    compare,
                };
                put(&header.to_bytes());
            }
        }
    }
}

const fn further_length(op: &SendOp) -> usize {
    match op {
        SendOp::Send | SendOp::SendTo(_) | SendOp::Own(_) => 0,
        SendOp::SendImm(_) => ImmDt::LEN,
        SendOp::SendInvalidate(_) => Ieth::LEN,
        SendOp::Write(_) | SendOp::Read(_) => Reth::LEN,
        SendOp::WriteImm(..) => Reth::LEN + ImmDt::LEN,
        SendOp::Atomic(..) => AtomicEth::LEN,
    }
}

const fn opcode_of(op: &SendOp) -> Opcode {
    match op {
        // Datagrams are refused when they are taken from the ring, and changes of rights to memory
        // are not sent.
        SendOp::Send | SendOp::SendTo(_) | SendOp::Own(_) => Opcode::SRC_SEND,
        SendOp::SendImm(_) => Opcode::SRC_SEND_IMM,
        SendOp::SendInvalidate(_) => Opcode::SRC_SEND_INV,
        SendOp::Write(_) => Opcode::SRC_WRITE,
        SendOp::WriteImm(..) => Opcode::SRC_WRITE_IMM,
        SendOp::Read(_) => Opcode::SRC_READ_REQ,
        SendOp::Atomic(_, AtomicOp::CompareSwap { .. }) => Opcode::SRC_CMP_SWAP,
        SendOp::Atomic(_, AtomicOp::FetchAdd { .. }) => Opcode::SRC_FETCH_ADD,
    }
}

/// Where packets are built.
pub(super) struct Out<'a, B, E: ?Sized> {
    pub(super) route: &'a Route,
    /// UDP source ports; all but the first are for connections that use several.
    pub(super) ports: &'a [u16],
    pub(super) regions: &'a Regions<B>,
    pub(super) egress: &'a mut E,
}

impl<B: RegionMemory, E: Egress + ?Sized> Out<'_, B, E> {
    /// Reserves room for `template`, stamps it, builds it there and hands it over. `port` is the
    /// source port that it leaves from.
    ///
    /// `stamp` gives the packet its number once there is room: until then nothing was sent. A
    /// payload that cannot be had any more goes out as a word of the same number that says so, so
    /// that the stream has no hole.
    #[inline(always)]
    pub(super) fn emit(
        &mut self,
        template: &PacketTemplate<'_>,
        port: u8,
        stamp: impl FnOnce() -> Stamp,
    ) -> Emitted {
        let (other, regions) = (self.route.over(self.ports, port), self.regions);
        let route = other.as_ref().unwrap_or(self.route);
        let Some(slot) = self.egress.reserve(&route.path, template.datagram()) else {
            return Emitted::NoRoom;
        };
        let stamp = stamp();
        let built = template.build(route, &stamp, slot.identification, regions, slot.datagram);
        if built.is_ok() {
            self.egress.commit();
            return Emitted::Sent;
        }
        let void = template.voided();
        let Some(slot) = self.egress.reserve(&route.path, void.datagram()) else {
            return Emitted::Voided;
        };
        void.build(route, &stamp, slot.identification, regions, slot.datagram)
            .expect("a packet without payload reads no memory");
        self.egress.commit();
        Emitted::Voided
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Emitted {
    Sent,
    /// Its data is gone.
    Voided,
    /// The port is full.
    NoRoom,
    /// The share of its connection is used up.
    Spent,
}
