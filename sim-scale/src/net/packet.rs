//! What the network looks at in a packet.

use trunkline_cm::Concerns;
use trunkline_wire::cm::CmMad;
use trunkline_wire::{
    Aeth, Bth, BthView, Header, NakCode, Opcode, Operation, Qpn, Records, Syndrome, Workers,
    parse_datagram,
};

/// Bytes of BTH and extension header.
pub(super) const HEADERS: usize = 52;

/// The QP that a datagram tells, in InfiniBand RC, what a peer in error does not tell again: that a
/// request was refused for good, READ data, the result of an atomic.
pub(super) fn answered(datagram: &[u8]) -> Option<Qpn> {
    let operation = Opcode(*datagram.first()?).operation()?;
    let data = match operation {
        Operation::Acknowledge => false,
        Operation::ReadResponse | Operation::AtomicResponse => true,
        _ => return None,
    };
    let packet = parse_datagram(datagram).ok()?;
    let refusal = |aeth: &Aeth| match aeth.syndrome {
        Syndrome::Nak(code) => code != NakCode::PsnSequence,
        _ => false,
    };
    let once = data || packet.aeth.as_ref().is_some_and(refusal);
    once.then_some(packet.bth.dest_qp)
}

/// Bytes of BTH and DETH.
const DATAGRAM_HEADERS: usize = 20;

/// What a datagram to QP 1 says.
pub(super) fn management(datagram: &[u8]) -> Option<CmMad> {
    if !is_management(datagram) {
        return None;
    }
    CmMad::parse(content(datagram)?).ok()
}

/// Whether a datagram is for QP 1.
const fn is_management(datagram: &[u8]) -> bool {
    matches!(datagram, [opcode, _, _, _, _, 0, 0, 1, ..] if *opcode == Opcode::UD_SEND_ONLY.0)
}

/// The worker whose port a datagram comes out at, as the kernel picks it where the port is made of
/// its sockets (`trunkline-dataplane`, `udp/steer.rs`).
pub(super) fn worker_of(datagram: &[u8], workers: Workers) -> u8 {
    let Ok((bth, _)) = BthView::split(datagram) else {
        return 0;
    };
    if bth.dest_qp() != Qpn::GSI {
        return workers.owner(bth.dest_qp().get());
    }
    let mad = content(datagram).and_then(|mad| mad.try_into().ok());
    let worker = mad.and_then(|mad| Concerns::and_worker(mad, workers).1.worker(workers));
    worker.unwrap_or(0)
}

/// What is between the headers and the sum.
pub(super) fn content(datagram: &[u8]) -> Option<&[u8]> {
    let end = datagram.len().checked_sub(4)?;
    let headers = match datagram.first() {
        Some(opcode) if *opcode == Opcode::UD_SEND_ONLY.0 => DATAGRAM_HEADERS,
        _ => HEADERS,
    };
    datagram.get(headers..end)
}

/// Stands for the bytes of a packet, but for what depends on where the machine happened to put
/// memory: addresses, and the sums that cover them.
pub(super) fn content_hash(bytes: &[u8]) -> u64 {
    let end = bytes.len().saturating_sub(4);
    let Some((bth, mut rest)) = bytes[..end].split_at_checked(Bth::LEN) else {
        return hash(0, bytes);
    };
    let opcode = Opcode(bth[0]);
    let summed = opcode.is_src() && rest.first().is_some_and(|flags| flags & 2 != 0);
    let mut sum = hash(0, bth);
    for (header, content) in opcode.headers().unwrap_or_default().walk(rest) {
        let address = match header {
            Header::Reth | Header::AtomicEth => size_of::<u64>(),
            _ => 0,
        };
        sum = hash(sum, &content[address..]);
        rest = &rest[content.len()..];
    }
    if opcode == Opcode::SRC_PACKED {
        for record in Records::of(rest).flatten() {
            let address = address(record.header.opcode());
            sum = hash(sum, record.header.bytes());
            sum = hash(sum, record.further.get(address..).unwrap_or_default());
            sum = hash(sum, record.payload);
        }
        return sum;
    }
    let payload = if summed { 4 } else { 0 };
    hash(sum, rest.get(payload..).unwrap_or_default())
}

/// Bytes of the address that the first header behind the extension header begins with, if it has
/// one. Where the machine has put memory tells which ones are good.
pub(super) fn address(opcode: Opcode) -> usize {
    match opcode.has_reth() || opcode.has_atomic_eth() {
        true => size_of::<u64>(),
        false => 0,
    }
}

fn hash(start: u64, bytes: &[u8]) -> u64 {
    let mut sum = start ^ bytes.len() as u64;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        sum = (sum.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    rest.iter().fold(sum, |sum, byte| {
        (sum.rotate_left(5) ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

/// Whether a packet is a SEND, a WRITE or READ data with at least one byte in it.
pub(super) fn carries_data(bytes: &[u8]) -> bool {
    let headers = match bytes.first() {
        Some(0xc0 | 0xc6) => HEADERS,
        Some(0xc3) => HEADERS + 16,
        _ => return false,
    };
    bytes.len() > headers + 4 + 4
}
