//! Building one packet of a shared connection: headers, payload in one copy-and-sum, ICRC.

use super::qp::Flow;
use super::requester::Pending;
use crate::regions::Regions;
use trunkline_conn::egress::Egress;
use trunkline_conn::mem::{AtomicOp, Bytes, Memory, MemoryFault, PdId, Sge};
use trunkline_conn::src::Stamp;
use trunkline_conn::work::{Local, SendFlags, SendOp};
use trunkline_wire::{
    AtomicEth, Bth, Crc, IcrcSeed, Ieth, ImmDt, Opcode, Path, Psn, Qpn, Reth, SrcExt, icrc,
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
pub(crate) struct Item {
    pub(crate) kind: ItemKind,
    /// Resend round of the flow when it was sent.
    pub(crate) round: u8,
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
pub(crate) enum ItemKind {
    Request,
    Response,
    Answers,
    Control,
    Ping,
}

impl Item {
    pub(crate) const PING: Self = Self {
        kind: ItemKind::Ping,
        round: 0,
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
    Read(PdId, trunkline_wire::Rkey, u64),
    /// Bytes at hand.
    Bytes(&'a [u8]),
}

/// Everything of a packet but its number. All packets of a message are cut from one draft.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) opcode: Opcode,
    op: Option<&'a SendOp>,
    /// Bytes of the headers behind the extension header, without the HCRC.
    further: u8,
    /// What RETH says of the whole message.
    message: u32,
    /// Payload bytes of all its packets.
    pub(crate) whole: u32,
    /// The last of them asks for an event.
    solicited: bool,
    abort: bool,
    source: Qpn,
    dest: Qpn,
    generation: u16,
    round: u8,
    msn: u32,
    /// The packet: its bytes of the payload, and whether it is the last.
    offset: u32,
    length: u32,
    pub(crate) last: bool,
    /// Of all its packets.
    payload: Payload<'a>,
}

impl<'a> Draft<'a> {
    /// A packet without a QP: answers, control, keep-alive, acknowledgements.
    pub(crate) fn bare(opcode: Opcode, payload: &'a [u8]) -> Self {
        let length = payload.len() as u32;
        Self {
            opcode,
            op: None,
            further: 0,
            message: length,
            whole: length,
            solicited: false,
            abort: false,
            source: Qpn::default(),
            dest: Qpn::default(),
            generation: 0,
            round: 0,
            msn: 0,
            offset: 0,
            length,
            last: true,
            payload: Payload::Bytes(payload),
        }
    }

    /// A request, to be [`cut`](Self::cut) into packets.
    pub(crate) fn request(flow: &Flow, source: Qpn, pd: PdId, pending: &'a Pending) -> Self {
        let request = &pending.request;
        let payload = match (&request.op, &request.local) {
            (SendOp::Read(_) | SendOp::Atomic(..), _) => Payload::None,
            (_, Local::Sges(sges)) => Payload::Gather(pd, sges),
            (_, Local::Inline(bytes)) => Payload::Bytes(bytes),
        };
        Self {
            opcode: opcode_of(&request.op),
            op: Some(&request.op),
            further: further_length(&request.op) as u8,
            whole: match payload {
                Payload::None => 0,
                _ => request.length,
            },
            solicited: request.flags.contains(SendFlags::SOLICITED),
            payload,
            ..Self::of(flow, source, (request.length, pending.msn, pending.round))
        }
    }

    /// A response: the opposite direction of its flow. To be [`cut`](Self::cut) into packets.
    pub(crate) fn response(
        opcode: Opcode,
        flow: &Flow,
        source: Qpn,
        (message, msn, round): (u32, u32, u8),
        payload: Payload<'a>,
    ) -> Self {
        Self {
            opcode,
            payload,
            ..Self::of(flow, source, (message, msn, round))
        }
    }

    fn of(flow: &Flow, source: Qpn, (message, msn, round): (u32, u32, u8)) -> Self {
        Self {
            source,
            dest: flow.remote,
            generation: flow.sent_generation(),
            message,
            whole: message,
            msn,
            round,
            ..Self::bare(Opcode::SRC_VOID, &[])
        }
    }

    /// The packet with `length` bytes of the payload, from `offset` on.
    pub(crate) const fn cut(&mut self, offset: u32, length: u32) {
        (self.offset, self.length) = (offset, length);
        self.last = offset + length == self.whole;
    }

    /// The same place in the stream, with nothing in it. Its offset says whose data is gone: the
    /// requester's (0) or the responder's (1).
    pub(crate) fn voided(self, abort: bool) -> Self {
        Self {
            offset: u32::from(self.opcode == Opcode::SRC_READ_RESP),
            opcode: Opcode::SRC_VOID,
            op: None,
            further: 0,
            last: true,
            abort,
            solicited: false,
            length: 0,
            payload: Payload::None,
            ..self
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
    pub(crate) fn build<B: Bytes>(
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
        let (head, payload) = sealed.split_at_mut(self.headers());
        self.write_headers(route, stamp, head);
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
    fn write_payload<B: Bytes>(
        &self,
        regions: &Regions<B>,
        payload: &mut [u8],
        sum: Option<&mut Crc>,
    ) -> Result<(), MemoryFault> {
        match self.payload {
            Payload::None => Ok(()),
            Payload::Gather(pd, sges) => regions.gather(pd, sges, self.offset, payload, sum),
            Payload::Read(pd, key, addr) => {
                let addr = addr.wrapping_add(u64::from(self.offset));
                regions.read(pd, key, addr, payload, sum)
            }
            Payload::Bytes(bytes) => {
                payload.copy_from_slice(&bytes[self.offset as usize..][..payload.len()]);
                if let Some(crc) = sum {
                    B::sum(payload, crc);
                }
                Ok(())
            }
        }
    }

    /// All headers but the HCRC, for which room is left behind them.
    #[inline(always)]
    fn write_headers(&self, route: &Route, stamp: &Stamp, head: &mut [u8]) {
        let (base, further) = head
            .split_first_chunk_mut()
            .expect("every packet has a BTH and an extension header");
        self.write_base(route, stamp, base);
        self.write_further(further);
    }

    fn write_base(&self, route: &Route, stamp: &Stamp, out: &mut [u8; BASE]) {
        let bth = Bth {
            opcode: self.opcode,
            solicited: self.solicited && self.last,
            mig_req: true,
            pad: 0,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            dest_qp: route.remote_id,
            ack_req: stamp.ack_req,
            psn: Psn::from_wire(stamp.number as u32),
        };
        let ext = SrcExt {
            last: self.last,
            header_crc: self.has_header_crc(),
            abort: self.abort,
            sealed: false,
            attempt: stamp.attempt,
            generation: self.generation,
            token: route.token,
            src_qp: self.source,
            round: self.round,
            dest_qp: self.dest,
            psn_high: stamp.number >> 24,
            msn: self.msn,
            offset: self.offset,
            timestamp: stamp.timestamp,
            echo: stamp.echo,
            ack: stamp.ack,
        };
        let (head, rest) = out.split_first_chunk_mut().expect("BASE holds a BTH");
        bth.emit(head);
        ext.emit(
            rest.first_chunk_mut()
                .expect("BASE holds the extension header"),
        );
    }

    fn write_further(&self, out: &mut [u8]) {
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
        match self.op {
            None | Some(SendOp::Send | SendOp::SendTo(_)) => {}
            Some(SendOp::SendImm(value)) => put(&ImmDt(*value).to_bytes()),
            Some(SendOp::SendInvalidate(key)) => put(&Ieth(*key).to_bytes()),
            Some(SendOp::Write(remote) | SendOp::Read(remote)) => put(&reth(remote).to_bytes()),
            Some(SendOp::WriteImm(remote, value)) => {
                put(&reth(remote).to_bytes());
                put(&ImmDt(*value).to_bytes());
            }
            Some(SendOp::Atomic(remote, op)) => {
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
        SendOp::Send | SendOp::SendTo(_) => 0,
        SendOp::SendImm(_) => ImmDt::LEN,
        SendOp::SendInvalidate(_) => Ieth::LEN,
        SendOp::Write(_) | SendOp::Read(_) => Reth::LEN,
        SendOp::WriteImm(..) => Reth::LEN + ImmDt::LEN,
        SendOp::Atomic(..) => AtomicEth::LEN,
    }
}

const fn opcode_of(op: &SendOp) -> Opcode {
    match op {
        // Datagrams are refused when they are taken from the ring.
        SendOp::Send | SendOp::SendTo(_) => Opcode::SRC_SEND,
        SendOp::SendImm(_) => Opcode::SRC_SEND_IMM,
        SendOp::SendInvalidate(_) => Opcode::SRC_SEND_INV,
        SendOp::Write(_) => Opcode::SRC_WRITE,
        SendOp::WriteImm(..) => Opcode::SRC_WRITE_IMM,
        SendOp::Read(_) => Opcode::SRC_READ_REQ,
        SendOp::Atomic(_, AtomicOp::CompareSwap { .. }) => Opcode::SRC_CMP_SWAP,
        SendOp::Atomic(_, AtomicOp::FetchAdd { .. }) => Opcode::SRC_FETCH_ADD,
    }
}

/// Reserves room for `draft`, stamps it, builds it there and hands it over.
///
/// `stamp` gives the packet its number once there is room, and one of the source `ports`. A payload
/// that cannot be had any more goes out as a VOID of the same number, so that the stream has no
/// hole; it aborts the QP it was for.
pub(crate) fn emit<B: Bytes>(
    draft: &Draft<'_>,
    route: &Route,
    ports: &[u16],
    regions: &Regions<B>,
    egress: &mut (impl Egress + ?Sized),
    stamp: impl FnOnce() -> Stamp,
) -> Emitted {
    let Some(slot) = egress.reserve(&route.path, draft.datagram()) else {
        return Emitted::NoRoom;
    };
    let stamp = stamp();
    let other = route.over(ports, stamp.port);
    let built = match &other {
        None => draft.build(route, &stamp, slot.identification, regions, slot.datagram),
        Some(route) => match egress.reserve(&route.path, draft.datagram()) {
            Some(slot) => draft.build(route, &stamp, slot.identification, regions, slot.datagram),
            // It counts as sent and lost.
            None => return Emitted::Sent,
        },
    };
    if built.is_ok() {
        egress.commit();
        return Emitted::Sent;
    }
    let (void, route) = (draft.voided(true), other.as_ref().unwrap_or(route));
    let Some(slot) = egress.reserve(&route.path, void.datagram()) else {
        return Emitted::Voided;
    };
    void.build(route, &stamp, slot.identification, regions, slot.datagram)
        .expect("a packet without payload reads no memory");
    egress.commit();
    Emitted::Voided
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Emitted {
    Sent,
    /// Its data is gone.
    Voided,
    /// The port is full.
    NoRoom,
}
