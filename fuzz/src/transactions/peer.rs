//! The peer: it knows what both ends agreed on, and speaks in well-formed packets most of the time.

use super::node::{CONNECTIONS, DATAGRAM, Node, QPS, REGION};
use crate::input::Input;
use std::net::{IpAddr, Ipv4Addr};
use trunkline_qpmap::FIRST_MSN;
use trunkline_wire::{
    AckPayload, Answer, AtomicEth, Bth, Control, Gid, Header, IcrcSeed, Ieth, ImmDt, IpFields,
    Opcode, Path, Psn, Qpn, ROCE_PORT, Record, Records, Reth, Rkey, SrcExt, icrc, parse_datagram,
};

/// Address of the node under fuzz, and of its peer.
pub(super) const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Address of another one, which does nothing wrong.
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));
/// Token of the peer's ends.
pub(super) const TOKEN: u32 = 0x0707_0707;
/// Generation of a binding of QPs that are both in their first incarnation.
const BINDING: u32 = 0x0101;
/// What all payload is made of that may end in memory.
const FILL: u8 = 0x11;

pub(super) fn gid() -> Gid {
    PEER.into()
}

pub(super) fn other_gid() -> Gid {
    OTHER.into()
}

/// The peer's QP that talks to QP `index` of the node.
pub(super) const fn qpn(index: usize) -> Qpn {
    Qpn::from_wire(0x100 + index as u32)
}

/// Number of the peer's end of connection `index`.
pub(super) const fn connection(index: usize) -> Qpn {
    Qpn::from_wire(0x200 + index as u32)
}

/// The peer's end of a connection.
#[derive(Clone, Copy)]
struct Link {
    /// Number and token of the node's end.
    id: Qpn,
    token: u32,
    /// Next packet number to send, and to be expected.
    next: u64,
    heard: u64,
}

impl Link {
    /// Number of the next packet.
    fn take(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}

/// What the peer heard of a QP of the node: where its answers have to point.
#[derive(Clone, Copy)]
struct Heard {
    /// Incarnation of its QP, and of the binding as its packets carry it.
    generation: u32,
    binding: u16,
    msn: u32,
    replay_epoch: u8,
}

impl Heard {
    const NONE: Self = Self {
        generation: 0,
        binding: 0,
        msn: FIRST_MSN,
        replay_epoch: 0,
    };
}

pub(super) struct Peer {
    links: Vec<Link>,
    heard: [Heard; QPS],
    /// What the peer has told: its next message number per QP.
    told: [u32; QPS],
    first: u64,
    /// Records that go with the next packet.
    records: Vec<u8>,
}

impl Peer {
    pub(super) fn new(node: &mut Node, shape: u8) -> Self {
        // Some runs start shortly before the low 24 bits wrap.
        let first = (1 << 24) - u64::from(shape & 15);
        let mut peer = Self {
            links: Vec::new(),
            heard: [Heard::NONE; QPS],
            told: [FIRST_MSN; QPS],
            first,
            records: Vec::new(),
        };
        for index in 0..=CONNECTIONS {
            peer.open(node, index);
        }
        for index in 0..QPS {
            node.connect(index);
        }
        node.connect_witness();
        peer.bind_witness(node);
        peer
    }

    pub(super) fn open(&mut self, node: &mut Node, index: usize) {
        let (id, token) = node.open(index, self.first);
        let link = Link {
            id,
            token,
            next: self.first,
            heard: self.first,
        };
        if index < self.links.len() {
            self.links[index] = link;
        } else {
            self.links.push(link);
        }
    }

    /// The other peer binds its QP to the one that is for it.
    fn bind_witness(&mut self, node: &mut Node) {
        let mut entry = [0; Control::LEN];
        entry[0] = 1;
        entry[1..4].copy_from_slice(&qpn(QPS).get().to_be_bytes()[1..]);
        entry[5..8].copy_from_slice(&node.witness.qpn.get().to_be_bytes()[1..]);
        entry[8..12].copy_from_slice(&1_u32.to_be_bytes());
        let ext = SrcExt {
            last: true,
            token: self.links[CONNECTIONS].token,
            ack: self.links[CONNECTIONS].heard as u32,
            ..SrcExt::default()
        };
        let packet = build(Opcode::SRC_CONTROL, &ext, &Headers::default(), &entry);
        let path = Path {
            src: OTHER,
            ..self.path(&mut Input::new(&[]))
        };
        self.send(node, CONNECTIONS, path, packet);
    }

    /// Takes in what the node sent.
    pub(super) fn hear(&mut self, sent: Vec<(Path, Vec<u8>)>) {
        for (path, datagram) in sent {
            let packet = parse_datagram(&datagram).expect("the port has parsed it");
            let ext = packet.ext.expect("all QPs here are shared");
            assert_eq!(ext.token, TOKEN);
            let link = (0..=CONNECTIONS).find(|index| connection(*index) == packet.bth.dest_qp);
            let link = link.expect("sent to a connection of the peer's");
            let peer = if link == CONNECTIONS { OTHER } else { PEER };
            assert_eq!((path.src, path.dst), (NODE, peer), "sent to somebody else");
            if packet.bth.opcode.is_numbered() {
                let number = ext.psn64(packet.bth.psn);
                self.links[link].heard = self.links[link].heard.max(number + 1);
            }
            if packet.bth.opcode != Opcode::SRC_PACKED {
                self.hear_message(packet.bth.opcode, &ext, packet.payload);
                continue;
            }
            for record in Records::of(packet.payload) {
                let record = record.expect("the node packs well-formed records");
                let header = Record::parse(record.header).expect("and known ones");
                let ext = SrcExt {
                    generation: header.generation,
                    dest_qp: header.dest_qp,
                    msn: header.msn,
                    replay_epoch: header.replay_epoch,
                    ..ext
                };
                self.hear_message(header.opcode, &ext, record.payload);
            }
        }
    }

    fn hear_message(&mut self, opcode: Opcode, ext: &SrcExt, payload: &[u8]) {
        if let Some(index) = (0..QPS).find(|index| qpn(*index) == ext.dest_qp) {
            let heard = &mut self.heard[index];
            (heard.binding, heard.msn, heard.replay_epoch) =
                (ext.generation, ext.msn, ext.replay_epoch);
        }
        if opcode == Opcode::SRC_CONTROL
            && let Ok(entries) = Control::entries(payload)
        {
            for entry in entries.flatten() {
                if let Some(index) = (0..QPS).find(|index| qpn(*index) == entry.dest_qp) {
                    self.heard[index].generation = entry.generation;
                }
            }
        }
    }

    /// Says something.
    pub(super) fn step(&mut self, node: &mut Node, op: u8, input: &mut Input<'_>) {
        let index = usize::from(op >> 4) % QPS;
        let link = usize::from(input.byte()) % CONNECTIONS;
        match op & 15 {
            0..=3 => self.request(node, index, link, input),
            4 | 5 => self.stream(node, index, link, input),
            6 | 7 => self.respond(node, index, link, input),
            8 | 9 => self.acknowledge(node, link, input),
            10 | 11 => self.control(node, index, link, input),
            12 | 13 => self.answer(node, index, link, input),
            14 => self.other(node, index, link, input),
            _ => self.raw(node, link, input),
        }
    }

    fn ext(&self, node: &Node, index: usize, link: usize) -> SrcExt {
        SrcExt {
            last: true,
            generation: BINDING as u16,
            token: self.links[link].token,
            src_qp: qpn(index),
            dest_qp: node.qps[index].qpn,
            msn: self.told[index],
            timestamp: (node.now.as_nanos() >> 4) as u32,
            ack: self.links[link].heard as u32,
            ..SrcExt::default()
        }
    }

    fn request(&mut self, node: &mut Node, index: usize, link: usize, input: &mut Input<'_>) {
        let opcode = match input.byte() & 7 {
            0 => Opcode::SRC_SEND,
            1 => Opcode::SRC_SEND_IMM,
            2 => Opcode::SRC_SEND_INV,
            3 => Opcode::SRC_WRITE,
            4 => Opcode::SRC_WRITE_IMM,
            5 => Opcode::SRC_READ_REQ,
            6 => Opcode::SRC_CMP_SWAP,
            _ => Opcode::SRC_FETCH_ADD,
        };
        let shape = input.byte();
        let payload = usize::from(input.u16()) % DATAGRAM as usize;
        let mut ext = self.ext(node, index, link);
        if input.byte() > 240 {
            // Not a QP of this peer's.
            ext.dest_qp = node.witness.qpn;
        }
        ext.last = shape & 1 == 0;
        ext.header_crc = shape & 2 != 0;
        ext.generation = input.near(BINDING) as u16;
        ext.msn = input.near(self.told[index]);
        ext.replay_epoch = input.byte() & 3;
        ext.offset = if shape & 4 == 0 {
            0
        } else {
            input.near(payload as u32)
        };
        if ext.last {
            self.told[index] = ext.msn.wrapping_add(1);
        }
        let rkey = match shape >> 3 & 7 {
            0..=4 => node.open,
            5 => node.hidden[usize::from(input.byte()) % node.hidden.len()],
            6 => Rkey(node.open.0 ^ u32::from(input.byte())),
            _ => Rkey(input.u32()),
        };
        let va = match shape >> 6 {
            0..=2 => 0x1_0000 + u64::from(input.u16()) % (REGION as u64 + 64),
            _ => input.u64(),
        };
        let length = if shape & 0x20 == 0 {
            payload as u32
        } else {
            input.near(2048)
        };
        let headers = Headers {
            reth: Reth { va, rkey, length },
            // Small operands: two of them side by side are not the mark.
            atomic: AtomicEth {
                va: va & !7,
                rkey,
                swap_or_add: u64::from(input.byte()),
                compare: u64::from(input.byte()),
            },
            invalidate: rkey,
        };
        let data = vec![FILL; if opcode.has_payload() { payload } else { 0 }];
        let packet = build(opcode, &ext, &headers, &data);
        self.deliver(node, link, packet, input);
    }

    /// A message of several packets, one right behind the other, as a peer sends it.
    fn stream(&mut self, node: &mut Node, index: usize, link: usize, input: &mut Input<'_>) {
        let shape = input.byte();
        let opcode = match shape & 3 {
            0 => Opcode::SRC_SEND,
            1 => Opcode::SRC_READ_RESP,
            _ => Opcode::SRC_WRITE,
        };
        let each = 64 + u32::from(input.byte());
        let packets = 2 + u32::from(input.byte() & 7);
        let length = each * packets;
        let mut ext = self.ext(node, index, link);
        if opcode == Opcode::SRC_READ_RESP {
            (ext.msn, ext.replay_epoch) = (self.heard[index].msn, self.heard[index].replay_epoch);
        } else {
            ext.msn = input.near(self.told[index]);
            self.told[index] = ext.msn.wrapping_add(1);
        }
        let rkey = match shape >> 2 & 7 {
            0..=5 => node.open,
            _ => node.hidden[usize::from(input.byte()) % node.hidden.len()],
        };
        let va = 0x1_0000 + u64::from(input.u16()) % REGION as u64;
        let headers = Headers {
            reth: Reth { va, rkey, length },
            ..Headers::default()
        };
        let path = self.path(input);
        for at in 0..packets {
            let fate = input.byte();
            (ext.offset, ext.last) = (at * each, at + 1 == packets);
            ext.header_crc = !ext.last;
            let mut data = vec![FILL; each as usize];
            if fate > 250 {
                ext.offset = input.near(ext.offset);
                data.truncate(usize::from(input.byte()));
            }
            let packet = build(opcode, &ext, &headers, &data);
            self.send(node, link, path, packet);
            if fate == 250 {
                node.take_in();
            }
        }
    }

    fn respond(&mut self, node: &mut Node, index: usize, link: usize, input: &mut Input<'_>) {
        let shape = input.byte();
        let atomic = shape & 3 == 0;
        let opcode = if atomic {
            Opcode::SRC_ATOMIC_RESP
        } else {
            Opcode::SRC_READ_RESP
        };
        let mut ext = self.ext(node, index, link);
        ext.last = shape & 4 == 0;
        ext.header_crc = shape & 8 != 0;
        ext.generation = input.near(BINDING) as u16;
        ext.msn = input.near(self.heard[index].msn);
        ext.replay_epoch = input.near(self.heard[index].replay_epoch.into()) as u8;
        ext.offset = if shape & 16 == 0 { 0 } else { input.near(256) };
        let length = if atomic {
            8
        } else {
            usize::from(input.u16()) % DATAGRAM as usize
        };
        let packet = build(opcode, &ext, &Headers::default(), &vec![FILL; length]);
        self.deliver(node, link, packet, input);
    }

    fn acknowledge(&mut self, node: &mut Node, link: usize, input: &mut Input<'_>) {
        let mut ext = self.ext(node, 0, link);
        ext.ack = input.near(ext.ack);
        ext.echo = input.near(ext.timestamp);
        let words: Vec<_> = (0..input.byte() & 3).map(|_| input.u64()).collect();
        let mut payload = vec![0; AckPayload::length(words.len())];
        AckPayload::emit(input.u32(), input.u32(), &words, &mut payload);
        let packet = build(Opcode::SRC_ACK, &ext, &Headers::default(), &payload);
        self.deliver(node, link, packet, input);
    }

    fn control(&mut self, node: &mut Node, index: usize, link: usize, input: &mut Input<'_>) {
        let mut payload = Vec::new();
        for _ in 0..=(input.byte() & 3) {
            let kind = input.byte();
            // To a BIND the generation is the peer's, to its answer the node's.
            let generation = if kind & 3 == 1 || kind & 3 == 2 {
                self.heard[index].generation
            } else {
                1
            };
            let mut entry = [0; Control::LEN];
            entry[0] = 1 + (kind & 3);
            if kind > 250 {
                entry = input.array();
            } else {
                entry[1..4].copy_from_slice(&qpn(index).get().to_be_bytes()[1..]);
                entry[5..8].copy_from_slice(&node.qps[index].qpn.get().to_be_bytes()[1..]);
                let generation = input.near(generation);
                entry[8..12].copy_from_slice(&generation.to_be_bytes());
                if kind & 3 == 1 || kind & 3 == 2 {
                    entry[4] = self.heard[index].replay_epoch;
                }
                if kind & 3 == 1 {
                    entry[12..16].copy_from_slice(&1_u32.to_be_bytes());
                }
                if kind & 3 == 3 {
                    entry[4] = input.byte();
                    entry[12..16].copy_from_slice(&self.heard[index].generation.to_be_bytes());
                    let msn = input.near(FIRST_MSN.wrapping_add(2));
                    entry[16..20].copy_from_slice(&msn.to_be_bytes());
                }
            }
            payload.extend(entry);
        }
        let ext = self.ext(node, index, link);
        let packet = build(Opcode::SRC_CONTROL, &ext, &Headers::default(), &payload);
        self.deliver(node, link, packet, input);
    }

    fn answer(&mut self, node: &mut Node, index: usize, link: usize, input: &mut Input<'_>) {
        let heard = self.heard[index];
        let mut payload = Vec::new();
        for _ in 0..=(input.byte() & 3) {
            let syndrome = match input.byte() {
                0..=127 => 0x1f,
                byte @ 128..=160 => 0x20 | byte & 0x1f,
                byte @ 161..=200 => 0x60 | byte & 7,
                byte => byte,
            };
            let mut entry = [0; Answer::LEN];
            entry[..3].copy_from_slice(&node.qps[index].qpn.get().to_be_bytes()[1..]);
            entry[3] = syndrome;
            entry[4..8].copy_from_slice(&input.near(heard.msn).to_be_bytes());
            let generation = input.near(heard.binding.into()) as u16;
            entry[8..10].copy_from_slice(&generation.to_be_bytes());
            entry[10] = input.near(heard.replay_epoch.into()) as u8;
            entry[12..15].copy_from_slice(&qpn(index).get().to_be_bytes()[1..]);
            payload.extend(entry);
        }
        let ext = self.ext(node, index, link);
        let packet = build(Opcode::SRC_ANSWERS, &ext, &Headers::default(), &payload);
        self.deliver(node, link, packet, input);
    }

    fn other(&mut self, node: &mut Node, index: usize, link: usize, input: &mut Input<'_>) {
        let opcode = match input.byte() {
            0..=100 => Opcode::SRC_PING,
            101..=180 => Opcode::SRC_VOID,
            181..=200 => Opcode::SRC_CLOSE,
            byte => Opcode(byte | 0xc0),
        };
        let mut ext = self.ext(node, index, link);
        ext.abort = input.flag();
        ext.msn = input.near(self.told[index]);
        ext.offset = input.near(0);
        let length = if opcode == Opcode::SRC_CLOSE { 4 } else { 0 };
        let packet = build(opcode, &ext, &Headers::default(), &vec![0; length]);
        self.deliver(node, link, packet, input);
    }

    /// Bytes of the fuzzer's own, now and then with a right ICRC.
    fn raw(&mut self, node: &mut Node, link: usize, input: &mut Input<'_>) {
        let length = usize::from(input.byte());
        let mut datagram = input.bytes(length).to_vec();
        let path = self.path(input);
        if input.flag() && datagram.len() >= Bth::LEN + icrc::LEN {
            datagram[5..8].copy_from_slice(&self.links[link].id.get().to_be_bytes()[1..]);
            icrc::seal(&path, 0, &mut datagram);
        }
        node.receive(path, false, &datagram);
    }

    fn path(&self, input: &mut Input<'_>) -> Path {
        let other = input.byte() > 250;
        let src = if other {
            IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3))
        } else {
            PEER
        };
        Path {
            src,
            dst: NODE,
            src_port: ROCE_PORT,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        }
    }

    /// Numbers a packet, seals it and hands it over, once or more often, whole or not, at once or
    /// together with those that follow.
    fn deliver(
        &mut self,
        node: &mut Node,
        link: usize,
        mut packet: Vec<u8>,
        input: &mut Input<'_>,
    ) {
        let fate = input.byte();
        if fate & 0x87 == 0x87 && packet[0] != Opcode::SRC_ACK.0 {
            // It shares a packet with the next one.
            self.records.extend(record_of(&packet));
            return;
        }
        if !self.records.is_empty() && packet[0] != Opcode::SRC_ACK.0 {
            let mut records = std::mem::take(&mut self.records);
            records.extend(record_of(&packet));
            records.truncate(DATAGRAM as usize);
            let ext = SrcExt {
                header_crc: false,
                last: true,
                ..SrcExt::read(&packet[Bth::LEN..]).expect("it was built").0
            };
            packet = build(Opcode::SRC_PACKED, &ext, &Headers::default(), &records);
        }
        let record = &mut self.links[link];
        let number = match fate & 7 {
            0 => record.next.wrapping_add(u64::from(input.byte())),
            1 => record.next.wrapping_sub(u64::from(input.byte())),
            _ => record.take(),
        };
        let path = self.path(input);
        let mut packet = self.sealed(link, &path, packet, number);
        if fate > 240 {
            let at = usize::from(input.u16()) % packet.len();
            packet[at] ^= 1 + (input.byte() & 0x7f);
        }
        let copies = if fate & 0x18 == 0x18 { 2 } else { 1 };
        for _ in 0..copies {
            node.receive(path, fate & 0x20 != 0, &packet);
        }
        if fate & 0x40 == 0 {
            node.take_in();
        }
    }

    /// Hands over a packet, right behind those before it.
    fn send(&mut self, node: &mut Node, link: usize, path: Path, packet: Vec<u8>) {
        let number = self.links[link].take();
        let packet = self.sealed(link, &path, packet, number);
        node.receive(path, false, &packet);
    }

    /// Gives a packet its destination, its number and its sums.
    fn sealed(&self, link: usize, path: &Path, mut packet: Vec<u8>, number: u64) -> Vec<u8> {
        let [.., a, b, c] = (number as u32).to_be_bytes();
        packet[5..8].copy_from_slice(&self.links[link].id.get().to_be_bytes()[1..]);
        packet[9..12].copy_from_slice(&[a, b, c]);
        let high = number >> 24 & 0xff_ffff_ffff;
        packet[Bth::LEN + 15..Bth::LEN + 20].copy_from_slice(&high.to_be_bytes()[3..]);
        seal_headers(path, &mut packet);
        icrc::seal(path, 0, &mut packet);
        packet
    }
}

/// Headers that some opcodes have.
#[derive(Default)]
struct Headers {
    reth: Reth,
    atomic: AtomicEth,
    invalidate: Rkey,
}

/// A datagram without its number, sums and destination.
fn build(opcode: Opcode, ext: &SrcExt, headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let bth = Bth {
        opcode,
        mig_req: true,
        pkey: 0xffff,
        psn: Psn::default(),
        ..Bth::default()
    };
    let mut out = bth.to_bytes().to_vec();
    out.extend(ext.to_bytes());
    for header in opcode.headers().iter().flat_map(|headers| headers.iter()) {
        match header {
            Header::Reth => out.extend(headers.reth.to_bytes()),
            Header::AtomicEth => out.extend(headers.atomic.to_bytes()),
            Header::ImmDt => out.extend(ImmDt(5).to_bytes()),
            Header::Ieth => out.extend(Ieth(headers.invalidate).to_bytes()),
            _ => {}
        }
    }
    if ext.header_crc {
        out.extend([0; 4]);
    }
    out.extend(payload);
    out.extend([0; icrc::LEN]);
    out
}

/// What a datagram says, as a record; its payload is cut where it is too long.
fn record_of(datagram: &[u8]) -> Vec<u8> {
    let (ext, rest) = SrcExt::read(&datagram[Bth::LEN..]).expect("it was built");
    let opcode = Opcode(datagram[0]);
    let further = opcode.further_length();
    let summed = if ext.header_crc { icrc::LEN } else { 0 };
    let payload = &rest[further + summed..rest.len() - icrc::LEN];
    let payload = &payload[..payload.len().min(Record::MOST)];
    let record = Record {
        opcode,
        solicited: false,
        abort: ext.abort,
        generation: ext.generation,
        src_qp: ext.src_qp,
        replay_epoch: ext.replay_epoch,
        dest_qp: ext.dest_qp,
        msn: ext.msn,
        offset: ext.offset,
        length: payload.len() as u16,
    };
    [&record.to_bytes()[..], &rest[..further], payload].concat()
}

/// Fills in the sum over the headers where there is one.
fn seal_headers(path: &Path, packet: &mut [u8]) {
    let Ok(parsed) = parse_datagram(packet) else {
        return;
    };
    if parsed.header_crc.is_some() {
        let at = parsed.headers_length() - icrc::LEN;
        let mut crc = IcrcSeed::new(path).start(packet.len(), 0);
        icrc::headers(&mut crc, &packet[..at]);
        packet[at..at + icrc::LEN].copy_from_slice(&icrc::trailer(crc));
    }
}
