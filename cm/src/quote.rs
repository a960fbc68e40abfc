//! What an ICMP error quotes of a management datagram: nobody listens where it went.
//!
//! Anybody can send such an error, and a node that restarts is gone for a moment. So one alone says
//! nothing: a request ends by the second one, [`REFUSED_FOR_NS`] after the first or later, and only
//! errors count that quote the request's transaction and number, which are drawn at random and told
//! to its peer alone. A host must quote no more than 8 bytes of what it refuses (RFC 792), and some
//! middleboxes quote no more: such a quote names addresses and ports, which everybody knows or
//! guesses. Errors with less than [`Quote::LEN`] bytes say nothing here, once or twice: who can
//! send any packet to this host could keep it from its peers with them. All systems of today quote
//! enough (RFC 1812, 4.3.2.3: as much as 576 bytes hold; RFC 4443, 3: 1280 bytes).

use crate::comm_id::Side;
use crate::concerns::Concerns;
use trunkline_conn::time::MILLISECOND;
use trunkline_wire::cm::CommId;
use trunkline_wire::{Bth, BthView, Deth, MadHeader, Opcode, Qpn, Workers};

/// Least time between two errors that end a request, in ns.
pub(crate) const REFUSED_FOR_NS: u64 = 200 * MILLISECOND;

/// REQ and SIDR_REQ: what begins something. Both have our number first.
const REQUESTS: [u16; 2] = [0x10, 0x17];
/// Management class of communication management.
const CLASS: u8 = 7;

/// The quoted beginning of a request of ours.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quote {
    pub(crate) transaction: u64,
    pub(crate) local: CommId,
}

impl Quote {
    /// Bytes of the datagram, from the BTH on, that have to be quoted.
    pub const LEN: usize = Bth::LEN + Deth::LEN + MadHeader::LEN + 4;

    /// Takes apart what is quoted of the payload of a UDP packet. `None`: too little, or no
    /// request.
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        let (bth, rest) = BthView::split(datagram).ok()?;
        if bth.opcode() != Opcode::UD_SEND_ONLY || bth.dest_qp() != Qpn::GSI {
            return None;
        }
        let mad = rest.get(Deth::LEN..)?;
        let (head, message) = mad.split_first_chunk::<{ MadHeader::LEN }>()?;
        let local = u32::from_be_bytes(*message.first_chunk()?);
        let attribute = u16::from_be_bytes([head[16], head[17]]);
        if head[1] != CLASS || !REQUESTS.contains(&attribute) {
            return None;
        }
        let transaction = head[8..16].try_into().expect("8 bytes");
        Some(Self {
            transaction: u64::from_be_bytes(transaction),
            local: CommId(local),
        })
    }

    /// Which manager sent it.
    pub const fn concerns(&self) -> Concerns {
        match Side::of(self.local) {
            Side::Nodes => Concerns::Nodes,
            Side::Ibta => Concerns::Ibta,
        }
    }

    /// Which of `workers` did.
    pub const fn worker(&self, workers: Workers) -> u8 {
        workers.owner(self.local.0 >> 1)
    }
}
