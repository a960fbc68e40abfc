//! One packet of a shared connection, taken apart.

use super::build::{BASE, ICRC};
use trunkline_conn::mem::RegionMemory;
use trunkline_wire::{
    AtomicEth, Bth, Crc, Ieth, MessageView, Opcode, PackedRecord, Qpn, Reth, Rkey, SrcExt,
    SrcExtView, WireError, icrc,
};

/// A parsed packet of a shared connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) opcode: Opcode,
    pub(crate) solicited: bool,
    pub(crate) ack_req: bool,
    /// The connection, and the packet's number in it.
    pub(crate) conn: Qpn,
    pub(crate) number: u64,
    pub(crate) ext: SrcExtView<'a>,
    /// Which message it belongs to.
    pub(crate) message: MessageView<'a>,
    /// The headers behind the extension header, as many bytes as the opcode asks for.
    further: &'a [u8],
    pub(crate) payload: &'a [u8],
    pub(crate) datagram: &'a [u8],
    /// The sum so far, when the payload still has to be fed into it.
    pub(crate) sum: Option<Crc>,
}

impl<'a> Packet<'a> {
    /// Takes a datagram apart. What stands in the headers is not judged yet.
    ///
    /// # Errors
    /// It is shorter than its headers, or of another version.
    #[inline(always)]
    pub(crate) fn parse(datagram: &'a [u8]) -> Result<Self, WireError> {
        let (bth, rest) = Bth::read(datagram)?;
        let (ext, rest) = SrcExtView::split(rest)?;
        let ext = ext.known()?;
        if ext.header_crc() && ext.last() {
            // It has no sum of its own over its headers, and is summed before it acts.
            return Err(WireError::Invalid {
                header: "SrcExt",
                field: "flags",
                value: ext.flags().into(),
            });
        }
        let further = bth.opcode.further_length();
        let hcrc = if ext.header_crc() { ICRC } else { 0 };
        let need = further + hcrc + ICRC;
        if rest.len() < need {
            return Err(WireError::Truncated {
                header: "packet of a shared connection",
                need: BASE + need,
                got: datagram.len(),
            });
        }
        Ok(Self {
            opcode: bth.opcode,
            solicited: bth.solicited,
            ack_req: bth.ack_req,
            conn: bth.dest_qp,
            number: ext.psn64(bth.psn),
            ext,
            message: ext.message(),
            further: &rest[..further],
            payload: &rest[further + hcrc..rest.len() - ICRC],
            datagram,
            sum: None,
        })
    }

    /// What all records of this packet have of it, to be [turned to](Self::turn_to) each of them.
    pub(crate) const fn blank(&self) -> Self {
        Self {
            datagram: &[],
            sum: None,
            ..*self
        }
    }

    /// Makes of a [blank](Self::blank) the packet that could stand for a record.
    #[inline(always)]
    pub(crate) const fn turn_to(&mut self, record: &PackedRecord<'a>) {
        self.opcode = record.header.opcode();
        self.solicited = record.header.solicited();
        self.message = record.header.message();
        self.further = record.further;
        self.payload = record.payload;
    }

    /// Whether it is a record of another packet.
    pub(crate) const fn is_record(&self) -> bool {
        self.datagram.is_empty()
    }

    /// Whether a QP asks for something.
    pub(crate) const fn is_request(&self) -> bool {
        is_request(self.opcode)
    }

    /// The packet that could stand for a record, without its sum, which is checked.
    pub(crate) fn standalone(&self) -> Vec<u8> {
        let bth = Bth {
            opcode: self.opcode,
            solicited: self.solicited,
            dest_qp: self.conn,
            ..Bth::default()
        };
        let message = self.message;
        let ext = SrcExt {
            last: true,
            abort: message.abort(),
            generation: message.generation(),
            src_qp: message.src_qp(),
            replay_epoch: message.replay_epoch(),
            dest_qp: message.dest_qp(),
            msn: message.msn(),
            offset: message.offset(),
            ..SrcExt::default()
        };
        let (bth, ext) = (bth.to_bytes(), ext.to_bytes());
        [&bth[..], &ext, self.further, self.payload, &[0; ICRC]].concat()
    }

    /// Of a WRITE or READ.
    pub(crate) fn reth(&self) -> Option<Reth> {
        Reth::read(self.further).ok().map(|(header, _)| header)
    }

    /// Of an atomic.
    pub(crate) fn atomic(&self) -> Option<AtomicEth> {
        AtomicEth::read(self.further).ok().map(|(header, _)| header)
    }

    /// Immediate data, if it carries any.
    pub(crate) fn imm(&self) -> Option<u32> {
        let carries = matches!(self.opcode, Opcode::SRC_SEND_IMM | Opcode::SRC_WRITE_IMM);
        let bytes = self.further.last_chunk().filter(|_| carries)?;
        Some(u32::from_be_bytes(*bytes))
    }

    /// The key to invalidate, if it names one.
    pub(crate) fn invalidate(&self) -> Option<Rkey> {
        let header = Ieth::read(self.further).ok();
        let carries = self.opcode == Opcode::SRC_SEND_INV;
        header.filter(|_| carries).map(|(Ieth(key), _)| key)
    }

    /// What a sum over the headers is compared with, and how many bytes it is over: up to the HCRC
    /// where there is one, else up to the ICRC.
    #[inline(always)]
    pub(crate) fn first_sum(&self) -> (usize, [u8; ICRC]) {
        let headers = BASE + self.further.len();
        match self.datagram[headers..].first_chunk() {
            Some(sum) if self.ext.header_crc() => (headers, *sum),
            _ => (self.datagram.len() - ICRC, self.trailer()),
        }
    }

    fn trailer(&self) -> [u8; ICRC] {
        *self.datagram.last_chunk().expect("parsing found an ICRC")
    }

    /// Whether `sum`, after a payload that was placed while it was summed, is the one that was
    /// sent.
    pub(crate) fn ends_in(&self, sum: Option<Crc>) -> bool {
        sum.is_none_or(|crc| icrc::trailer(crc) == self.trailer())
    }

    /// Whether the payload's sum is right: where it has not been computed, computes it.
    pub(crate) fn is_summed<B: RegionMemory>(&self) -> bool {
        let mut sum = self.sum;
        if let Some(crc) = &mut sum {
            B::sum(self.payload, crc);
        }
        self.ends_in(sum)
    }
}

/// Whether a QP asks for something with this opcode.
pub(crate) const fn is_request(opcode: Opcode) -> bool {
    opcode.0 <= Opcode::SRC_FETCH_ADD.0 && opcode.0 != Opcode::SRC_READ_RESP.0
}

/// Whose message a packet belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Message {
    /// A request to this flow.
    Request { flow: u32 },
    /// The answer to a request of this flow.
    Response { flow: u32, request: u32 },
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// Acknowledge it.
    Accept,
    /// The same; more of its message is to come.
    Placed(Message),
    /// Not now: it will come again.
    Drop,
    /// Its bytes are wrong: it will come again.
    Corrupt,
}
