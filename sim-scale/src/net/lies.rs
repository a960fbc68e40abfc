//! A peer that lies: the packets of a real node, so that all that lets them in is right, with one
//! thing in them that is not true.

use super::packet::address;
use std::collections::VecDeque;
use trunkline_dataplane::port::Arrival;
use trunkline_dataplane::prng::Prng;
use trunkline_wire::{
    Answer, Control, ControlKind, Opcode, Qpn, Record, Records, Reth, Rkey, SrcExt, Syndrome, icrc,
};

/// Where the extension header of shared connections stands, and what is behind it.
const EXT: usize = 12;
const BODY: usize = EXT + SrcExt::LEN;
/// Bytes of the ICRC, and of the sum over the headers.
const SUM: usize = 4;
/// What a liar remembers of the talk of others.
const MEMORY: usize = 64;
/// Opcodes of shared connections.
const OPCODES: u64 = 17;

/// Who lies, and how.
#[derive(Debug)]
pub(super) struct Lies {
    /// The node that does.
    pub(super) who: usize,
    random: Prng,
    /// Packets of its that are no longer what it sent, per million.
    ppm: u32,
    /// QPs and memory of others, as they speak of them.
    qps: VecDeque<Qpn>,
    memory: VecDeque<(u64, Rkey)>,
}

impl Lies {
    pub(super) fn new(who: usize, seed: u64, ppm: u32) -> Self {
        Self {
            who,
            random: Prng::new(seed),
            ppm,
            qps: VecDeque::new(),
            memory: VecDeque::new(),
        }
    }

    /// Hears what honest nodes say to each other.
    pub(super) fn overhear(&mut self, bytes: &[u8]) {
        if !bytes.first().is_some_and(|code| Opcode(*code).is_src()) {
            return;
        }
        let Some(Ok((ext, rest))) = bytes.get(EXT..).map(SrcExt::read) else {
            return;
        };
        if Opcode(bytes[0]) == Opcode::SRC_PACKED {
            for record in Records::of(&rest[..rest.len().saturating_sub(SUM)]).flatten() {
                let message = record.header.message();
                let qps = [message.src_qp(), message.dest_qp()];
                self.learn(record.header.opcode(), qps, record.further);
            }
            return;
        }
        self.learn(Opcode(bytes[0]), [ext.src_qp, ext.dest_qp], rest);
    }

    fn learn(&mut self, opcode: Opcode, qps: [Qpn; 2], headers: &[u8]) {
        qps.into_iter().for_each(|qp| keep(&mut self.qps, qp));
        if opcode.has_reth()
            && let Ok((reth, _)) = Reth::read(headers)
        {
            keep(&mut self.memory, (reth.va, reth.rkey));
        }
    }

    /// Changes a packet of the liar, or not; gives whether it did.
    pub(super) fn tell(&mut self, arrival: &Arrival, bytes: &mut Vec<u8>) -> bool {
        if !self.random.chance(self.ppm) || bytes.len() < BODY + SUM {
            return false;
        }
        match bytes[0] {
            code if Opcode(code).is_src() => self.lie(bytes),
            code => self.spoil(bytes, EXT + address(Opcode(code))),
        }
        icrc::seal(&arrival.path, arrival.identification.guess(), bytes);
        true
    }

    /// Some byte behind `from` is another.
    fn spoil(&mut self, bytes: &mut [u8], from: usize) {
        let end = bytes.len() - SUM;
        if from < end {
            let at = from + self.random.below((end - from) as u64) as usize;
            bytes[at] ^= 1 + self.random.below(255) as u8;
        }
    }

    fn lie(&mut self, bytes: &mut Vec<u8>) {
        let Ok((mut ext, _)) = SrcExt::read(&bytes[EXT..]) else {
            return;
        };
        self.unsum(bytes, &mut ext);
        match self.random.below(8) {
            0..3 => self.lie_of_the_packet(&mut ext),
            3 if address(Opcode(bytes[0])) == 0 && bytes[0] != Opcode::SRC_PACKED.0 => {
                bytes[0] = 0xc0 + self.random.below(OPCODES) as u8;
            }
            4 => {
                let end = bytes.len() - SUM;
                let length = self.random.below((end - BODY) as u64 + 1) as usize;
                bytes.drain(end - length..end);
            }
            _ => self.lie_of_the_content(bytes),
        }
        let room = bytes[EXT..].first_chunk_mut().expect("it was read");
        ext.emit(room);
    }

    /// Takes the sum over the headers away, which the ICRC stands in for.
    fn unsum(&self, bytes: &mut Vec<u8>, ext: &mut SrcExt) {
        let headers = Opcode(bytes[0]).headers().unwrap_or_default().length();
        let at = EXT + headers;
        if ext.header_crc && bytes.len() >= at + 2 * SUM {
            bytes.drain(at..at + SUM);
            ext.header_crc = false;
        }
    }

    fn qp(&mut self) -> Qpn {
        match self.qps.len() as u64 {
            count if count > 0 && self.random.below(3) > 0 => {
                self.qps[self.random.below(count) as usize]
            }
            _ => Qpn::from_wire(self.word() & 0xff_ffff),
        }
    }

    fn word(&mut self) -> u32 {
        self.random.next_u64() as u32
    }

    /// A number near this one, or any.
    fn near(&mut self, number: u32) -> u32 {
        match self.random.below(4) {
            0 => self.word(),
            _ => number
                .wrapping_add(self.random.below(9) as u32)
                .wrapping_sub(4),
        }
    }

    fn lie_of_the_packet(&mut self, ext: &mut SrcExt) {
        match self.random.below(12) {
            0 => ext.generation = self.near(ext.generation.into()) as u16,
            1 => ext.src_qp = self.qp(),
            2 => ext.dest_qp = self.qp(),
            3 => ext.replay_epoch = self.near(ext.replay_epoch.into()) as u8,
            4 | 5 => ext.msn = self.near(ext.msn),
            6 => ext.offset = self.near(ext.offset),
            7 => ext.abort ^= true,
            8 => ext.last ^= true,
            9 => ext.ack = self.near(ext.ack),
            10 => ext.psn_high = self.near(ext.psn_high as u32).into(),
            _ => (ext.timestamp, ext.echo) = (self.word(), self.word()),
        }
    }

    fn lie_of_the_content(&mut self, bytes: &mut Vec<u8>) {
        let end = bytes.len() - SUM;
        let content = &bytes[BODY..end];
        let said = match Opcode(bytes[0]) {
            Opcode::SRC_CONTROL => {
                let entries = Control::entries(content).into_iter().flatten().flatten();
                let entries: Vec<_> = entries.collect();
                self.controls(entries)
            }
            Opcode::SRC_ANSWERS => {
                let entries = Answer::entries(content).into_iter().flatten().flatten();
                let entries: Vec<_> = entries.collect();
                self.answers(entries)
            }
            Opcode::SRC_PACKED => self.records(content),
            code if code.has_reth() => return self.lie_of_memory(&mut bytes[BODY..end]),
            code => return self.spoil(bytes, BODY + address(code)),
        };
        bytes.splice(BODY..end, said);
    }

    /// The same records, of which one is not what it was, or not there, or there twice, and
    /// sometimes all in another order.
    fn records(&mut self, content: &[u8]) -> Vec<u8> {
        let records = Records::of(content).flatten();
        let parsed = records.filter_map(|at| {
            let parts = (at.further.to_vec(), at.payload.to_vec());
            Some((Record::parse(at.header).ok()?, parts))
        });
        let mut all: Vec<_> = parsed.collect();
        if all.is_empty() {
            return content.to_vec();
        }
        let at = self.random.below(all.len() as u64) as usize;
        match self.random.below(8) {
            0 => drop(all.remove(at)),
            1 => all.push(all[at].clone()),
            2 => all.reverse(),
            3 => all[at].0.length = self.near(all[at].0.length.into()) as u16 & 0xfff,
            4 if !all[at].1.0.is_empty() => self.lie_of_memory(&mut all[at].1.0),
            5 if address(all[at].0.opcode) == 0 => {
                all[at].0.opcode = Opcode(0xc0 + self.random.below(OPCODES) as u8);
            }
            _ => self.lie_of_a_record(&mut all[at].0),
        }
        let bytes = all.into_iter().flat_map(|(header, (further, payload))| {
            [header.to_bytes().to_vec(), further, payload].concat()
        });
        bytes.collect()
    }

    fn lie_of_a_record(&mut self, record: &mut Record) {
        match self.random.below(7) {
            0 => record.generation = self.near(record.generation.into()) as u16,
            1 => record.src_qp = self.qp(),
            2 => record.dest_qp = self.qp(),
            3 => record.replay_epoch = self.near(record.replay_epoch.into()) as u8,
            4 => record.msn = self.near(record.msn),
            5 => record.offset = self.near(record.offset),
            _ => record.abort ^= true,
        }
    }

    fn controls(&mut self, entries: Vec<Control>) -> Vec<u8> {
        let kinds = [
            ControlKind::Bind,
            ControlKind::Bound,
            ControlKind::Refused,
            ControlKind::Unbind,
        ];
        let mut said = Vec::new();
        for mut entry in entries {
            // Sometimes what is true is said, too.
            if self.random.below(2) == 0 {
                said.extend(entry.to_bytes());
            }
            for _ in 0..=self.random.below(3) {
                match self.random.below(8) {
                    0..2 => entry.kind = kinds[self.random.below(4) as usize],
                    2 => entry.src_qp = self.qp(),
                    3 => entry.dest_qp = self.qp(),
                    4 => entry.generation = self.near(entry.generation),
                    5 => entry.status = self.near(entry.status),
                    6 => entry.msn = self.near(entry.msn),
                    _ => entry.replay_epoch = self.near(entry.replay_epoch.into()) as u8,
                }
            }
            said.extend(entry.to_bytes());
        }
        said
    }

    fn answers(&mut self, entries: Vec<Answer>) -> Vec<u8> {
        let mut said = Vec::new();
        for mut entry in entries {
            if self.random.below(2) == 0 {
                said.extend(entry.to_bytes());
            }
            match self.random.below(6) {
                0 => entry.requester = self.qp(),
                1 => entry.responder = self.qp(),
                2 => {
                    let any = Syndrome::from_byte(self.random.below(256) as u8);
                    entry.syndrome = any.unwrap_or(entry.syndrome);
                }
                3 => entry.generation = self.near(entry.generation.into()) as u16,
                4 => entry.msn = self.near(entry.msn),
                _ => entry.replay_epoch = self.near(entry.replay_epoch.into()) as u8,
            }
            said.extend(entry.to_bytes());
        }
        said
    }

    /// Another key, range or length than its program has posted; or memory of others.
    fn lie_of_memory(&mut self, headers: &mut [u8]) {
        let Some(room) = headers.first_chunk_mut() else {
            return;
        };
        let Ok((mut reth, _)) = Reth::read(&room[..]) else {
            return;
        };
        let others = self.memory.len() as u64;
        match self.random.below(5) {
            0 => reth.rkey = Rkey(self.word()),
            1 => reth.va = self.random.next_u64(),
            2 => reth.length = self.near(reth.length),
            _ if others > 0 => {
                (reth.va, reth.rkey) = self.memory[self.random.below(others) as usize];
            }
            _ => reth.va = reth.va.wrapping_sub(1),
        }
        reth.emit(room);
    }
}

fn keep<T>(list: &mut VecDeque<T>, entry: T) {
    if list.len() == MEMORY {
        list.pop_front();
    }
    list.push_back(entry);
}
