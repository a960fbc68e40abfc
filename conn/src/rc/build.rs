//! Building one packet in place: headers, payload in one copy-and-sum, pad, ICRC.

use super::segment;
use crate::egress::Egress;
use crate::mem::{AtomicOp, Memory, MemoryFault, PdId};
use crate::work::{Local, Remote};
use trunkline_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Cnp, Crc, Deth, IcrcSeed, ImmDt, Path, Reth, icrc,
};

/// Most bytes of headers that go together: BTH, DETH, RETH and immediate; BTH and AtomicETH.
const MAX_HEADERS: usize = 40;
const _: () = assert!(Bth::LEN + Reth::LEN + ImmDt::LEN <= MAX_HEADERS);
const _: () = assert!(Bth::LEN + Deth::LEN + ImmDt::LEN <= MAX_HEADERS);
const _: () = assert!(Bth::LEN + AtomicEth::LEN <= MAX_HEADERS);
const _: () = assert!(Bth::LEN + Aeth::LEN + AtomicAckEth::LEN <= MAX_HEADERS);
const _: () = assert!(Bth::LEN + Cnp::LEN <= MAX_HEADERS);

/// Headers being put together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    bytes: [u8; MAX_HEADERS],
    length: usize,
}

impl Headers {
    /// Begins with `bth`, whose pad is set for `payload` bytes.
    pub(crate) fn new(bth: &Bth, payload: usize) -> Self {
        let mut headers = Self {
            bytes: [0; MAX_HEADERS],
            length: 0,
        };
        let pad = segment::pad(payload);
        headers.put(&Bth { pad, ..*bth }.to_bytes());
        headers
    }

    pub(crate) fn put(&mut self, header: &[u8]) {
        self.bytes[self.length..self.length + header.len()].copy_from_slice(header);
        self.length += header.len();
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Emitted {
    /// Handed over; so many bytes of datagram.
    Sent(usize),
    /// The port has no room at the moment.
    NoRoom,
    /// Its payload cannot be had: nothing was sent.
    Fault(MemoryFault),
}

/// Where packets go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) path: Path,
    pub(crate) seed: IcrcSeed,
}

impl Route {
    pub(crate) fn new(path: Path) -> Self {
        let seed = IcrcSeed::new(&path);
        Self { path, seed }
    }

    /// Builds a packet whose `payload` bytes `fill` writes and sums.
    pub(crate) fn emit(
        &self,
        out: &mut (impl Egress + ?Sized),
        headers: &Headers,
        payload: usize,
        fill: impl FnOnce(&mut [u8], &mut Crc) -> Result<(), MemoryFault>,
    ) -> Emitted {
        let pad = usize::from(segment::pad(payload));
        let length = headers.length + payload + pad + icrc::LEN;
        let Some(slot) = out.reserve(&self.path, length) else {
            return Emitted::NoRoom;
        };
        let mut crc = self.seed.start(length, slot.identification);
        icrc::headers(&mut crc, headers.bytes());
        let (head, rest) = slot.datagram.split_at_mut(headers.length);
        head.copy_from_slice(headers.bytes());
        let (body, rest) = rest.split_at_mut(payload);
        if payload > 0
            && let Err(fault) = fill(body, &mut crc)
        {
            return Emitted::Fault(fault);
        }
        let (padding, trailer) = rest.split_at_mut(pad);
        padding.fill(0);
        crc.update(padding);
        trailer.copy_from_slice(&icrc::trailer(crc));
        out.commit();
        Emitted::Sent(length)
    }

    /// Builds a packet without payload.
    pub(crate) fn emit_bare(&self, out: &mut (impl Egress + ?Sized), headers: &Headers) -> Emitted {
        self.emit(out, headers, 0, |_, _| Ok(()))
    }
}

/// Copies `out.len()` bytes of a request's local buffer, from `offset` on.
pub(crate) fn gather(
    memory: &impl Memory,
    pd: PdId,
    local: &Local,
    offset: u32,
    out: &mut [u8],
    crc: &mut Crc,
) -> Result<(), MemoryFault> {
    match local {
        Local::Sges(sges) => memory.gather(pd, sges, offset, out, Some(crc)),
        Local::Inline(bytes) => {
            let start = offset as usize;
            let range = start..start + out.len();
            let Some(part) = bytes.get(range.clone()) else {
                return Err(MemoryFault::TooShort {
                    have: bytes.len() as u64,
                    need: range.end as u64,
                });
            };
            out.copy_from_slice(part);
            crc.update(part);
            Ok(())
        }
    }
}

/// The header of a WRITE or READ of `length` bytes.
pub(crate) fn reth(remote: &Remote, length: u32) -> [u8; Reth::LEN] {
    Reth {
        va: remote.addr,
        rkey: remote.rkey,
        length,
    }
    .to_bytes()
}

/// The header of an atomic.
pub(crate) fn atomic_eth(remote: &Remote, op: AtomicOp) -> [u8; AtomicEth::LEN] {
    let (swap_or_add, compare) = match op {
        AtomicOp::CompareSwap { compare, swap } => (swap, compare),
        AtomicOp::FetchAdd { add } => (add, 0),
    };
    AtomicEth {
        va: remote.addr,
        rkey: remote.rkey,
        swap_or_add,
        compare,
    }
    .to_bytes()
}
