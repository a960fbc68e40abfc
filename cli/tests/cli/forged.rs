//! Packets of shared connections as no node has sent them: of every kind, with fields drawn from a
//! seed, and damaged ones.

use std::net::IpAddr;
use trunkline_testkit::Rng;
use trunkline_wire::{Bth, Frame, IcrcSeed, IpFields, Mac, Opcode, Path, SrcExt, icrc};

/// The flag of the extension header that says that there is an HCRC.
const HAS_HCRC: u8 = 2;
/// Opcodes of packets, and of records, which are the first of them.
const KINDS: u64 = 17;
const KINDS_OF_RECORDS: u64 = 13;
/// Bytes of a record before its further headers.
const RECORD: usize = 20;

/// A datagram and what is around it.
pub(crate) struct Forged {
    pub(crate) path: Path,
    pub(crate) identification: u16,
    pub(crate) datagram: Vec<u8>,
}

impl Forged {
    /// A packet that is well formed.
    pub(crate) fn sound(rng: &mut Rng) -> Self {
        let opcode = Opcode(0xc0 + rng.below(KINDS) as u8);
        let mut datagram = bytes(rng, Bth::LEN + SrcExt::LEN + opcode.further_length());
        datagram[0] = opcode.0;
        // No pad, and version 0 of the transport.
        datagram[1] &= 0xc0;
        let has_hcrc = rng.percent(40);
        let flags = datagram[Bth::LEN] & !HAS_HCRC & 0xf;
        datagram[Bth::LEN] = 0x10 | flags | if has_hcrc { HAS_HCRC } else { 0 };
        let payload = contents(rng, opcode);
        let mut forged = Self {
            path: path(rng),
            identification: rng.next() as u16,
            datagram,
        };
        if has_hcrc {
            let length = forged.datagram.len() + payload.len() + 2 * icrc::LEN;
            let mut crc = forged.seed().start(length, forged.identification);
            icrc::headers(&mut crc, &forged.datagram);
            let right = icrc::trailer(crc);
            let sum = if rng.percent(80) {
                right
            } else {
                [1; icrc::LEN]
            };
            forged.datagram.extend(sum);
        }
        forged.datagram.extend(payload);
        forged.datagram.extend([0; icrc::LEN]);
        forged.seal();
        forged
    }

    /// What is in a frame that somebody captured.
    pub(crate) fn captured(frame: &[u8]) -> Self {
        let frame = Frame::parse(frame).unwrap();
        let roce = frame.roce().unwrap();
        Self {
            path: roce.path,
            identification: roce.identification,
            datagram: roce.datagram.to_vec(),
        }
    }

    /// A packet some bits of which were changed, or that lost its end. Its ICRC is right where
    /// there is one, but for some.
    pub(crate) fn damaged(rng: &mut Rng) -> Self {
        let mut forged = Self::sound(rng);
        for _ in 0..rng.below(4) {
            let at = rng.below(forged.datagram.len() as u64) as usize;
            forged.datagram[at] ^= 1 << rng.below(8);
        }
        if rng.percent(40) {
            let length = rng.within(1..forged.datagram.len() as u64);
            forged.datagram.truncate(length as usize);
        }
        if rng.percent(90) {
            forged.seal();
        }
        forged
    }

    pub(crate) fn seed(&self) -> IcrcSeed {
        IcrcSeed::new(&self.path)
    }

    fn seal(&mut self) {
        if self.datagram.len() >= Bth::LEN + icrc::LEN {
            self.seed().seal(self.identification, &mut self.datagram);
        }
    }

    /// The Ethernet frame.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let mac = Mac::default();
        let frame = Frame::for_datagram(mac, mac, &self.path, self.identification, &self.datagram);
        let mut bytes = vec![0; frame.length()];
        frame.emit(&mut bytes);
        bytes
    }
}

fn bytes(rng: &mut Rng, count: usize) -> Vec<u8> {
    (0..count).map(|_| rng.next() as u8).collect()
}

fn path(rng: &mut Rng) -> Path {
    let (v4, v6) = (rng.next() as u32 | 1, u128::from(rng.next()) | 1 << 125);
    let address = if rng.percent(50) {
        IpAddr::from(v4.to_be_bytes())
    } else {
        IpAddr::from(v6.to_be_bytes())
    };
    Path {
        src: address,
        dst: address,
        src_port: rng.next() as u16 | 0xc000,
        traffic_class: rng.next() as u8,
        ip: IpFields::DEFAULT,
    }
}

/// A payload that the opcode may have.
fn contents(rng: &mut Rng, opcode: Opcode) -> Vec<u8> {
    match opcode {
        Opcode::SRC_ATOMIC_RESP => bytes(rng, 8),
        Opcode::SRC_CLOSE => bytes(rng, 4),
        Opcode::SRC_ACK => {
            let length = 8 + 8 * rng.below(6) as usize;
            bytes(rng, length)
        }
        Opcode::SRC_ANSWERS => many(rng, |rng| {
            let mut answer = bytes(rng, 16);
            answer[3] = [0, 0x20, 0x60][rng.below(3) as usize] | answer[3] & 0x1f;
            answer
        }),
        Opcode::SRC_CONTROL => many(rng, |rng| {
            let mut entry = bytes(rng, 20);
            entry[0] = 1 + entry[0] % 4;
            entry
        }),
        Opcode::SRC_PACKED => {
            let mut records = many(rng, record);
            records.resize(records.len() + rng.below(60) as usize, 0);
            records
        }
        _ if !opcode.has_payload() => Vec::new(),
        _ => {
            let length = rng.below(100) as usize;
            bytes(rng, length)
        }
    }
}

fn many(rng: &mut Rng, one: impl Fn(&mut Rng) -> Vec<u8>) -> Vec<u8> {
    (0..rng.below(5)).flat_map(|_| one(rng)).collect()
}

fn record(rng: &mut Rng) -> Vec<u8> {
    let opcode = Opcode(0xc0 + rng.below(KINDS_OF_RECORDS) as u8);
    let payload = contents(rng, opcode);
    let mut record = bytes(rng, RECORD + opcode.further_length());
    record[7] = opcode.0;
    let flags = u16::from(record[8]) << 8 & 0xf000;
    record[8..10].copy_from_slice(&(flags | payload.len() as u16).to_be_bytes());
    record.extend(payload);
    record
}
