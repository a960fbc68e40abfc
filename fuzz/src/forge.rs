//! Datagrams as a peer builds them that knows all numbers, and what becomes of them on the way.

use crate::input::Input;
use trunkline_wire::{
    AtomicAckEth, AtomicEth, Bth, Deth, Header, Ieth, ImmDt, Opcode, Psn, Qpn, Reth, Rkey, icrc,
};

/// What all payload is made of that may end in memory.
const FILL: u8 = 0x11;

/// Headers that some opcodes have.
#[derive(Debug, Default)]
pub(crate) struct Headers {
    pub(crate) reth: Reth,
    pub(crate) atomic: AtomicEth,
    pub(crate) deth: Deth,
    pub(crate) invalidate: Rkey,
    /// Syndrome, valid or not, and MSN.
    pub(crate) aeth: [u8; 4],
}

/// A datagram as it arrives.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) datagram: Vec<u8>,
    /// How often it does.
    pub(crate) copies: usize,
    /// A switch marked it.
    pub(crate) ce: bool,
}

/// A packet for `to`, which mostly arrives once and whole; seldom it is for `other`.
pub(crate) fn packet(
    opcode: Opcode,
    psn: u32,
    headers: &Headers,
    payload: usize,
    (to, other): (Qpn, Qpn),
    input: &mut Input<'_>,
) -> Arriving {
    let fate = input.byte();
    let payload = if opcode.has_payload() { payload } else { 0 };
    let bth = Bth {
        opcode,
        solicited: fate & 1 != 0,
        mig_req: true,
        pad: (payload.wrapping_neg() & 3) as u8,
        pkey: if fate > 250 { 1 } else { 0xffff },
        dest_qp: if fate == 250 { other } else { to },
        ack_req: fate & 2 != 0,
        psn: Psn::from_wire(psn),
        ..Bth::default()
    };
    let mut datagram = build(&bth, headers, payload);
    if fate & 0x78 == 0x78 {
        let at = usize::from(input.u16()) % datagram.len();
        datagram[at] ^= 1 + (input.byte() & 0x7f);
    }
    Arriving {
        datagram,
        copies: if fate & 0x18 == 0x10 { 2 } else { 1 },
        ce: fate & 4 != 0,
    }
}

/// Bytes of the fuzzer's own behind a BTH for `to`.
pub(crate) fn raw(to: Qpn, input: &mut Input<'_>) -> Vec<u8> {
    let length = usize::from(input.byte());
    let mut datagram = input.bytes(length).to_vec();
    if datagram.len() >= Bth::LEN {
        datagram[5..8].copy_from_slice(&to.get().to_be_bytes()[1..]);
        // Payload is the harness's to choose: it must not contain the mark.
        let known = Opcode(datagram[0])
            .headers()
            .map_or(0, |headers| headers.length());
        let end = datagram.len().min(Bth::LEN + known);
        datagram[end..].fill(FILL);
    }
    datagram
}

/// Its ICRC is for whoever looks at it: zeros.
fn build(bth: &Bth, headers: &Headers, payload: usize) -> Vec<u8> {
    let mut out = bth.to_bytes().to_vec();
    for header in bth
        .opcode
        .headers()
        .iter()
        .flat_map(|headers| headers.iter())
    {
        match header {
            Header::Reth => out.extend(headers.reth.to_bytes()),
            Header::AtomicEth => out.extend(headers.atomic.to_bytes()),
            Header::Deth => out.extend(headers.deth.to_bytes()),
            Header::Aeth => out.extend(headers.aeth),
            Header::AtomicAckEth => out.extend(AtomicAckEth(7).to_bytes()),
            Header::ImmDt => out.extend(ImmDt(5).to_bytes()),
            Header::Ieth => out.extend(Ieth(headers.invalidate).to_bytes()),
            other => out.extend(vec![0; other.length()]),
        }
    }
    out.extend(vec![FILL; payload]);
    out.extend(vec![0; usize::from(bth.pad) + icrc::LEN]);
    out
}
