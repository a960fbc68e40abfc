//! Packets of every kind with any content, between honest ones: nothing panics, nothing is
//! touched that is not allowed, and every packet is counted.

mod common;

use common::bench::{self, ADDR, Bench, KEY, MTU, PRIVATE, SIZE, config, psn, remote};
use common::{Rng, request, sge};
use trunkline_conn::mem::{Access, AtomicOp};
use trunkline_conn::rc::{Config, ReliableConnection, State};
use trunkline_conn::work::{SendFlags, SendOp};
use trunkline_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Cnp, Header, Ieth, ImmDt, Opcode, Packet, Psn, Reth, Rkey,
    Syndrome, Transport,
};

const SEEDS: u64 = 400;
const PACKETS: u32 = 300;

/// An address or length that is likely to be at an edge.
fn edge(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => rng.next(),
        1 => u64::MAX - rng.below(16),
        2 => ADDR + SIZE as u64 - rng.below(600),
        _ => ADDR + (rng.below(SIZE as u64) & !7),
    }
}

fn length(rng: &mut Rng) -> usize {
    match rng.below(4) {
        0 => 0,
        1 => MTU,
        2 => rng.below(MTU as u64 + 8) as usize,
        _ => MTU - 1 + rng.below(3) as usize,
    }
}

fn syndrome(rng: &mut Rng) -> Syndrome {
    loop {
        if let Ok(syndrome) = Syndrome::from_byte(rng.next() as u8) {
            return syndrome;
        }
    }
}

fn key(rng: &mut Rng) -> Rkey {
    Rkey([KEY, KEY, KEY, PRIVATE, 0][rng.below(5) as usize])
}

/// A packet that parses, with a PSN near `near`.
fn packet<'a>(rng: &mut Rng, opcode: Opcode, near: Psn, bytes: &'a [u8]) -> Packet<'a> {
    const PAD: [u8; 3] = [1; 3];
    let headers = opcode.headers().expect("it is one of the known");
    let size = if opcode.has_payload() { length(rng) } else { 0 };
    let pad = size.wrapping_neg() & 3;
    let near = if rng.percent(90) {
        near
    } else {
        Psn::from_wire(rng.next() as u32)
    };
    let reth = Reth {
        va: edge(rng),
        rkey: key(rng),
        length: [size as u64, edge(rng), rng.below(2000)][rng.below(3) as usize] as u32,
    };
    let atomic = AtomicEth {
        va: edge(rng),
        rkey: key(rng),
        swap_or_add: rng.next(),
        compare: rng.below(3),
    };
    let aeth = Aeth {
        syndrome: syndrome(rng),
        msn: rng.next() as u32 & 0x00ff_ffff,
    };
    Packet {
        bth: Bth {
            opcode,
            solicited: rng.percent(50),
            pad: pad as u8,
            pkey: if rng.percent(98) {
                0xffff
            } else {
                rng.next() as u16
            },
            dest_qp: common::bench::US,
            ack_req: rng.percent(50),
            psn: near.advance(rng.below(5) as u32).advance(0x00ff_fffe),
            ..Bth::default()
        },
        reth: headers.contains(Header::Reth).then_some(reth),
        atomic: headers.contains(Header::AtomicEth).then_some(atomic),
        aeth: headers.contains(Header::Aeth).then_some(aeth),
        atomic_ack: headers
            .contains(Header::AtomicAckEth)
            .then_some(AtomicAckEth(1)),
        imm: headers.contains(Header::ImmDt).then_some(ImmDt(2)),
        ieth: headers.contains(Header::Ieth).then_some(Ieth(key(rng))),
        cnp: headers.contains(Header::Cnp).then_some(Cnp::default()),
        payload: &bytes[..size],
        pad: &PAD[..pad],
        ..Packet::default()
    }
}

fn post(bench: &mut Bench, rng: &mut Rng) {
    let length = rng.below(4 * MTU as u64) as u32;
    let op = match rng.below(6) {
        0 | 1 => SendOp::Send,
        2 => SendOp::Write(remote(0)),
        3 => SendOp::WriteImm(remote(0), 3),
        4 => SendOp::Read(remote(0)),
        _ => SendOp::Atomic(remote(0), AtomicOp::FetchAdd { add: 1 }),
    };
    let size = if matches!(op, SendOp::Atomic(..)) {
        8
    } else {
        length
    };
    let mut request = request(0, op, sge(PRIVATE, ADDR, size));
    if rng.percent(10) {
        request.flags = request.flags.with(SendFlags::FENCE);
    }
    // A full queue or a QP in error gives it back.
    let _ = bench.engine.post_send(request);
}

/// A packet as an honest peer may send it.
fn honest(rng: &mut Rng, theirs: Psn, ours: Psn) -> Packet<'static> {
    let mut packet = match rng.below(6) {
        0 | 1 => bench::ack(0),
        2 => bench::read_request(0, 0, 600),
        3 => bench::fetch_add(0, 0, 1),
        4 => bench::packet(Opcode::RC_SEND_ONLY, 0, b"word"),
        _ => bench::with_reth(bench::packet(Opcode::RC_WRITE_ONLY, 0, b"word"), 0, 4),
    };
    packet.bth.psn = if packet.aeth.is_some() { ours } else { theirs };
    packet
}

/// What is left of a siege.
#[derive(Default)]
struct Toll {
    accepted: u64,
    dropped: u64,
    fallen: u64,
}

/// One QP under fire; when its connection falls it gets another.
fn siege(seed: u64, toll: &mut Toll) {
    let mut rng = Rng::new(seed);
    let access = [Access::ALL, Access::REMOTE_READ, Access::ALL][rng.below(3) as usize];
    let config = Config {
        access,
        max_dest_rd_atomic: rng.below(4) as u8,
        max_rd_atomic: rng.below(4) as u8,
        window: 1 + rng.below(8) as u32,
        ..config()
    };
    let mut bench = Bench::new(config);
    // Receives and own requests write no further than this.
    let open = 4 * MTU;
    let before = bench.qp.ram.bytes(PRIVATE, ADDR, SIZE);
    let shared = bench.qp.ram.bytes(KEY, ADDR, SIZE);
    let bytes = [0x5a; 2 * MTU];
    let (mut theirs, mut ours) = (psn(0), psn(0));
    let rc = |code: &&Opcode| matches!(code.transport(), Transport::Rc | Transport::Cnp);
    let known: Vec<Opcode> = Opcode::KNOWN.iter().filter(rc).copied().collect();
    let mut fed = 0;
    let mut seen = (0, 0);
    for _ in 0..PACKETS {
        if rng.percent(30) {
            bench.receives(1, open as u32);
        }
        if rng.percent(30) {
            post(&mut bench, &mut rng);
        }
        let opcode = known[rng.below(known.len() as u64) as usize];
        let near = if opcode.has_aeth() { ours } else { theirs };
        let packet = match rng.percent(60) {
            true => honest(&mut rng, theirs, ours),
            false => packet(&mut rng, opcode, near, &bytes),
        };
        let (at, is_answer) = (packet.bth.psn, packet.aeth.is_some());
        let psns = packet
            .reth
            .filter(|_| packet.opcode() == Opcode::RC_READ_REQUEST);
        let psns = psns.map_or(1, |reth| reth.length.div_ceil(MTU as u32).max(1));
        fed += 1;
        if bench.feed_marked(packet, rng.percent(10)).is_ok() && !is_answer {
            theirs = at.advance(psns);
        }
        bench.port.room = rng.below(20) as usize;
        let sent = bench.sent();
        if let Some(last) = sent.iter().rfind(|one| !one.is_response()) {
            ours = last.bth.psn;
        }
        if rng.percent(10) {
            bench.next_timer();
        }
        let stats = *bench.engine.stats();
        if bench.engine.state() == State::Error {
            bench.engine = ReliableConnection::new(config);
            (theirs, ours) = (psn(0), psn(0));
            toll.fallen += 1;
            seen.0 += stats.received_packets;
            seen.1 += stats.dropped_total();
        }
    }
    let stats = bench.engine.stats();
    seen.0 += stats.received_packets;
    seen.1 += stats.dropped_total();
    assert_eq!(seen.0 + seen.1, fed, "every packet is counted once");
    let keeps = |key: u32| bench.qp.ram.regions.iter().any(|region| region.key == key);
    if keeps(PRIVATE) {
        let now = bench.qp.ram.bytes(PRIVATE, ADDR, SIZE);
        assert!(now[open..] == before[open..], "private memory was touched");
    }
    if !access.contains(Access::REMOTE_WRITE) && keeps(KEY) {
        let now = bench.qp.ram.bytes(KEY, ADDR, SIZE);
        assert!(now == shared, "written without the right");
    }
    toll.accepted += seen.0;
    toll.dropped += seen.1;
}

#[test]
fn no_packet_does_harm() {
    let mut toll = Toll::default();
    for seed in 0..SEEDS {
        siege(seed, &mut toll);
    }
    let Toll {
        accepted,
        dropped,
        fallen,
    } = toll;
    println!("{accepted} packets accepted, {dropped} dropped, {fallen} connections fell");
    // Otherwise the siege met nothing but closed doors, or open ones.
    assert!(accepted > 20 * SEEDS && dropped > 20 * SEEDS && fallen > SEEDS);
}
