//! What there is to tell of a packet of a shared connection, as the parsers of `wire` find it.

use crate::forged::Forged;
use std::collections::BTreeMap;
use trunkline_wire::{
    AckPayload, Answer, AtomicEth, Bth, Close, Control, Ieth, ImmDt, Opcode, Operation, Packet,
    Record, Records, Reth, SrcExt, WireError, icrc, parse_datagram,
};

/// The values of each field, in their order in the packet, by the names of the dissector without
/// `trunkline.`. Those that are not there are left out.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Told(BTreeMap<&'static str, Vec<u64>>);

impl Told {
    pub(crate) fn add(&mut self, field: &'static str, value: impl Into<u64>) {
        self.0.entry(field).or_default().push(value.into());
    }

    /// Notes what is told once, however often it is so.
    fn note(&mut self, field: &'static str, so: bool) {
        if so {
            self.0.insert(field, vec![1]);
        }
    }

    pub(crate) fn is_malformed(&self) -> bool {
        self.0.contains_key("malformed")
    }

    /// Whether it is malformed, and nothing else.
    pub(crate) fn malformed_alone(&self) -> Self {
        let mut told = Self::default();
        told.note("malformed", self.is_malformed());
        told
    }

    /// What the parsers find: nothing in a packet of an ordinary opcode, and nothing else in one
    /// that is malformed.
    pub(crate) fn of(forged: &Forged) -> Self {
        let mut told = Self::default();
        if Opcode(forged.datagram[0]).is_src() {
            let read = told.read(forged);
            told.note("malformed", read.is_err());
        }
        if told.is_malformed() {
            told.malformed_alone()
        } else {
            told
        }
    }

    fn read(&mut self, forged: &Forged) -> Result<(), WireError> {
        let datagram = &forged.datagram[..];
        let packet = parse_datagram(datagram)?;
        self.base(&packet);
        let ext = packet.ext.expect("the opcode asks for it");
        self.extension(&ext, &packet);
        self.further(packet.opcode(), &datagram[Bth::LEN + SrcExt::LEN..])?;
        let right = packet.header_crc_ok(forged.seed(), forged.identification, datagram);
        if let Some((sum, right)) = packet.header_crc.zip(right) {
            self.sum("hcrc", "hcrc.status", sum, right);
        }
        self.payload(packet.opcode(), packet.payload, ext.ack)?;
        let right = icrc::verify(&forged.path, forged.identification, datagram);
        self.sum("icrc", "icrc.status", packet.icrc, right);
        Ok(())
    }

    fn sum(&mut self, field: &'static str, status: &'static str, sum: [u8; 4], right: bool) {
        self.add(field, u32::from_le_bytes(sum));
        self.add(status, right);
        self.note("wrong_sum", !right);
    }

    fn base(&mut self, packet: &Packet<'_>) {
        let bth = &packet.bth;
        self.add("opcode", bth.opcode.0);
        self.add("solicited", bth.solicited);
        self.add("pkey", bth.pkey);
        self.add("conn", bth.dest_qp.get());
        self.add("ack_req", bth.ack_req);
    }

    fn extension(&mut self, ext: &SrcExt, packet: &Packet<'_>) {
        let (opcode, psn) = (packet.opcode(), packet.bth.psn);
        let numbered = opcode.is_numbered();
        self.add(
            "psn",
            if numbered {
                ext.psn64(psn)
            } else {
                psn.get().into()
            },
        );
        self.add("version", 1_u8);
        self.add("last", ext.last);
        self.add("has_hcrc", ext.header_crc);
        self.add("abort", ext.abort);
        self.add("sealed", ext.sealed);
        self.add("attempt", ext.attempt);
        self.add("generation", ext.generation);
        self.add("token", ext.token);
        self.add("src_qp", ext.src_qp.get());
        self.add("epoch", ext.replay_epoch);
        self.add("dst_qp", ext.dest_qp.get());
        self.add("msn", ext.msn);
        self.add(offset(opcode), ext.offset);
        self.add("timestamp", ext.timestamp);
        self.add("echo", ext.echo);
        self.add("ack", ext.ack);
        self.note("forbidden", ext.last && ext.header_crc || ext.sealed);
        let named = ext.src_qp.get() != 0 || ext.dest_qp.get() != 0;
        let of_a_qp = opcode.0 < Opcode::SRC_ANSWERS.0 || opcode == Opcode::SRC_VOID;
        self.note("forbidden", named && !of_a_qp);
    }

    /// The headers behind the extension header, or behind that of a record.
    fn further(&mut self, opcode: Opcode, bytes: &[u8]) -> Result<(), WireError> {
        let mut rest = bytes;
        if opcode.has_reth() {
            let (reth, after) = Reth::read(rest)?;
            self.add("va", reth.va);
            self.add("rkey", reth.rkey.0);
            self.add("dma_length", reth.length);
            rest = after;
        }
        if opcode.has_atomic_eth() {
            let (atomic, _) = AtomicEth::read(rest)?;
            self.add("va", atomic.va);
            self.add("rkey", atomic.rkey.0);
            self.add("swap_or_add", atomic.swap_or_add);
            self.add("compare", atomic.compare);
        }
        if opcode.has_imm() {
            self.add("imm", ImmDt::read(rest)?.0.0);
        }
        if opcode.has_ieth() {
            self.add("inv_rkey", Ieth::read(rest)?.0.0.0);
        }
        Ok(())
    }

    fn payload(&mut self, opcode: Opcode, payload: &[u8], ack: u32) -> Result<(), WireError> {
        self.add("length", payload.len() as u64);
        match opcode.operation() {
            Some(Operation::AtomicResponse) => {
                if let Ok(original) = payload.try_into() {
                    self.add("original", u64::from_be_bytes(original));
                }
            }
            Some(Operation::Answers) => {
                Answer::entries(payload)?.try_for_each(|answer| answer.map(|it| self.answer(&it)))
            }?,
            Some(Operation::Control) => {
                Control::entries(payload)?.try_for_each(|entry| entry.map(|it| self.control(&it)))
            }?,
            Some(Operation::Acknowledge) => self.acknowledgement(&AckPayload::parse(payload)?, ack),
            Some(Operation::Close) => self.add("reason", Close::read(payload)?.0.0),
            Some(Operation::Packed) => self.records(payload)?,
            _ => {}
        }
        Ok(())
    }

    fn answer(&mut self, answer: &Answer) {
        self.add("dst_qp", answer.requester.get());
        self.add("src_qp", answer.responder.get());
        self.add("syndrome", answer.syndrome.byte());
        self.add("msn", answer.msn);
        self.add("generation", answer.generation);
        self.add("epoch", answer.replay_epoch);
    }

    fn control(&mut self, entry: &Control) {
        self.add("kind", entry.kind as u8);
        self.add("src_qp", entry.src_qp.get());
        self.add("dst_qp", entry.dest_qp.get());
        self.add("epoch", entry.replay_epoch);
        self.add("generation", entry.generation);
        self.add("status", entry.status);
        self.add("msn", entry.msn);
    }

    fn acknowledgement(&mut self, said: &AckPayload<'_>, ack: u32) {
        self.add("ce_count", said.ce_count);
        self.add("delay_ns", said.delay_ns);
        for word in said.words() {
            self.add("sack", word);
            let first = ack
                .wrapping_add(1)
                .wrapping_add((word >> AckPayload::BITS) as u32 * AckPayload::BITS);
            for bit in (0..AckPayload::BITS).filter(|bit| word >> bit & 1 == 1) {
                self.add("received", first.wrapping_add(bit));
            }
        }
    }

    fn records(&mut self, payload: &[u8]) -> Result<(), WireError> {
        for record in Records::of(payload) {
            let record = record?;
            let header = Record::parse(record.header)?;
            let opcode = header.opcode;
            self.add("opcode", opcode.0);
            self.add("solicited", header.solicited);
            self.add("abort", header.abort);
            self.add("generation", header.generation);
            self.add("src_qp", header.src_qp.get());
            self.add("epoch", header.replay_epoch);
            self.add("dst_qp", header.dest_qp.get());
            self.add("msn", header.msn);
            self.add(offset(opcode), header.offset);
            self.further(opcode, record.further)?;
            self.payload(opcode, record.payload, 0)?;
            let length = record.payload.len();
            self.note(
                "forbidden",
                opcode == Opcode::SRC_ATOMIC_RESP && length != 8,
            );
            self.note("forbidden", offset(opcode) == "outstanding" && length != 0);
        }
        Ok(())
    }
}

/// What the field behind the MSN means: of READs and atomics it is a count.
fn offset(opcode: Opcode) -> &'static str {
    if opcode == Opcode::SRC_READ_REQ || opcode.has_atomic_eth() {
        "outstanding"
    } else {
        "offset"
    }
}
