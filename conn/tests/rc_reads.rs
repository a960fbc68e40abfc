//! Large READs of the RC requester, which are asked for in pieces: a READ request each, with PSNs
//! that follow one another as if it were one.

mod common;

use common::bench::{
    ADDR, Bench, KEY, MTU, PRIVATE, ack, atomic_response, config, numbers, read_response, remote,
};
use common::capture::Seen;
use common::{Region, Rng, pattern, request, sge};
use std::collections::VecDeque;
use trunkline_conn::mem::AtomicOp;
use trunkline_conn::rc::{Config, Dropped, State};
use trunkline_conn::work::{SendFlags, SendOp, Status};
use trunkline_wire::{Opcode, Reth};

/// Pieces of two packets, four of them outstanding.
fn bench() -> Bench {
    Bench::new(Config {
        window: 8,
        ..config()
    })
}

fn read(offset: u64) -> SendOp {
    SendOp::Read(remote(offset))
}

/// What each READ request asks for: packet number, offset and length.
fn asked(sent: &[Seen]) -> Vec<(u32, u64, u32)> {
    let reths = sent
        .iter()
        .map(|one| one.reth.expect("it is a READ request"));
    let parts = reths.map(|reth| (reth.va - ADDR, reth.length));
    let both = numbers(sent).into_iter().zip(parts);
    both.map(|(number, (offset, length))| (number, offset, length))
        .collect()
}

/// Answers packets of READs in full, from packet `number` of the connection on.
fn answer(bench: &mut Bench, number: u32, opcodes: &[Opcode]) {
    for (number, &opcode) in (number..).zip(opcodes) {
        let data = [number as u8; MTU];
        assert_eq!(bench.feed(read_response(opcode, number, &data)), Ok(()));
    }
}

const PIECE: [Opcode; 2] = [
    Opcode::RC_READ_RESPONSE_FIRST,
    Opcode::RC_READ_RESPONSE_LAST,
];

#[test]
fn a_large_read_is_asked_for_in_pieces_that_fill_the_window() {
    let mut bench = bench();
    bench.post(0, read(16), 10 * MTU + 7);
    let packet = MTU as u32;
    let piece = |number: u32| (number, 16 + u64::from(number * packet), 2 * packet);
    let expected = [piece(0), piece(2), piece(4), piece(6)];
    assert_eq!(asked(&bench.sent()), expected);
    answer(&mut bench, 0, &PIECE[..1]);
    assert!(bench.sent().is_empty(), "there is no room for a piece yet");
    answer(&mut bench, 1, &PIECE[1..]);
    assert_eq!(asked(&bench.sent()), [piece(8)]);
    answer(&mut bench, 2, &[PIECE, PIECE].concat());
    let last = (10, 16 + 10 * u64::from(packet), 7);
    assert_eq!(asked(&bench.sent()), [last]);
    answer(&mut bench, 6, &[PIECE, PIECE].concat());
    assert!(bench.ends().is_empty());
    let rest = read_response(Opcode::RC_READ_RESPONSE_ONLY, 10, &[10; 7]);
    assert_eq!(bench.feed(rest), Ok(()));
    assert_eq!(bench.ends(), [(0, Status::Success)]);
    assert_eq!(bench.qp.sent[0].byte_len, 10 * packet + 7);
    for number in 0..10 {
        let at = ADDR + (number * MTU) as u64;
        assert_eq!(bench.qp.ram.bytes(PRIVATE, at, MTU), [number as u8; MTU]);
    }
}

#[test]
fn the_fewer_may_be_outstanding_the_longer_are_pieces() {
    for (max_rd_atomic, length) in [(1, 8), (2, 4), (3, 2), (4, 2), (16, 2)] {
        let config = Config {
            window: 8,
            max_rd_atomic,
            ..config()
        };
        assert_eq!(config.read_piece(8), length);
        let mut bench = Bench::new(config);
        bench.post(0, read(0), 20 * MTU);
        let most = (8 / length).min(max_rd_atomic.into());
        let firsts: Vec<u32> = (0..most).map(|piece| piece * length).collect();
        assert_eq!(numbers(&bench.sent()), firsts);
    }
    let narrow = Config {
        window: 0,
        ..config()
    };
    assert_eq!(narrow.read_piece(0), 1);
}

#[test]
fn pieces_are_as_much_shorter_as_less_may_be_in_flight_but_no_less_than_four_packets() {
    let config = config();
    let lengths = [256, 100, 16, 10, 1].map(|window| config.read_piece(window));
    assert_eq!(lengths, [64, 25, 4, 4, 4]);
    let one = Config {
        max_rd_atomic: 1,
        ..config
    };
    assert_eq!(
        [256, 10, 1].map(|window| one.read_piece(window)),
        [256, 10, 4]
    );
}

#[test]
fn pieces_of_all_reads_and_atomics_count_as_outstanding() {
    let mut bench = Bench::new(Config {
        window: 8,
        max_rd_atomic: 2,
        ..config()
    });
    let fetch_add = AtomicOp::FetchAdd { add: 1 };
    bench.post(0, read(0), 5 * MTU);
    bench.post(1, SendOp::Atomic(remote(0), fetch_add), 8);
    bench.post(2, SendOp::Send, 4);
    assert_eq!(numbers(&bench.sent()), [0, 4]);
    let middle = Opcode::RC_READ_RESPONSE_MIDDLE;
    answer(&mut bench, 0, &[PIECE[0], middle, middle]);
    assert!(bench.sent().is_empty());
    answer(&mut bench, 3, &PIECE[1..]);
    assert_eq!(numbers(&bench.sent()), [5, 6]);
    answer(&mut bench, 4, &[Opcode::RC_READ_RESPONSE_ONLY]);
    assert_eq!(bench.ends(), [(0, Status::Success)]);
}

#[test]
fn small_reads_fill_the_window_and_no_more() {
    let mut bench = bench();
    for wr_id in 0..5 {
        bench.post(wr_id, read(0), 2 * MTU);
    }
    assert_eq!(numbers(&bench.sent()), [0, 2, 4, 6]);
    answer(&mut bench, 0, &PIECE);
    assert_eq!(numbers(&bench.sent()), [8]);
}

#[test]
fn what_was_lost_is_asked_for_up_to_the_end_of_its_piece() {
    let mut bench = Bench::new(Config {
        window: 16,
        ..config()
    });
    bench.post(0, read(0), 10 * MTU);
    assert_eq!(numbers(&bench.sent()), [0, 4, 8]);
    answer(&mut bench, 0, &PIECE[..1]);
    let later = read_response(Opcode::RC_READ_RESPONSE_MIDDLE, 2, &[2; MTU]);
    assert_eq!(bench.feed(later), Ok(()));
    assert!(bench.sent().is_empty(), "it may be late");
    assert!(bench.next_timer());
    let packet = MTU as u32;
    let expected = [(1, 3 * packet), (4, 4 * packet), (8, 2 * packet)];
    let expected = expected.map(|(number, length)| (number, u64::from(number * packet), length));
    assert_eq!(asked(&bench.sent()), expected);
    let middle = Opcode::RC_READ_RESPONSE_MIDDLE;
    let (first, last) = (PIECE[0], PIECE[1]);
    answer(&mut bench, 1, &[first]);
    let again = read_response(middle, 2, &[2; MTU]);
    assert_eq!(bench.feed(again), Err(Dropped::StaleResponse), "it came");
    answer(&mut bench, 3, &[last]);
    answer(&mut bench, 4, &[first, middle, middle, last, first, last]);
    assert_eq!(bench.ends(), [(0, Status::Success)]);
    assert_eq!(bench.engine.poll_timeout(), None);
}

#[test]
fn a_piece_that_was_lost_itself_is_asked_for_again() {
    let mut bench = bench();
    bench.post(0, read(0), 6 * MTU);
    bench.post(1, SendOp::Send, 4);
    assert_eq!(numbers(&bench.sent()), [0, 2, 4, 6]);
    answer(&mut bench, 0, &PIECE);
    assert_eq!(bench.feed(ack(6)), Err(Dropped::MissingResponse));
    assert!(bench.next_timer());
    assert_eq!(numbers(&bench.sent()), [2, 4, 6]);
    answer(&mut bench, 2, &[PIECE, PIECE].concat());
    assert_eq!(bench.feed(ack(6)), Ok(()));
    assert_eq!(bench.ends(), [(0, Status::Success), (1, Status::Success)]);
}

/// Answers of three READs of four packets, two pieces each, and of an atomic and a SEND among them.
fn answers() -> Vec<(Opcode, u32, Vec<u8>)> {
    let [first, last] = PIECE;
    let data = |opcode, number: u32| (opcode, number, vec![number as u8; MTU]);
    let mut answers: Vec<_> = (0..6)
        .flat_map(|piece| [data(first, 2 * piece), data(last, 2 * piece + 1)])
        .collect();
    answers.push((Opcode::RC_ATOMIC_ACKNOWLEDGE, 12, Vec::new()));
    answers.push((Opcode::RC_ACKNOWLEDGE, 13, Vec::new()));
    answers
}

#[test]
fn answers_that_paths_reorder_are_placed_and_nothing_is_asked_for_twice() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut bench = bench();
        for wr_id in 0..3 {
            bench.post(wr_id, read(wr_id * 64), 4 * MTU);
        }
        let fetch_add = AtomicOp::FetchAdd { add: 1 };
        bench.post(3, SendOp::Atomic(remote(0), fetch_add), 8);
        bench.post(4, SendOp::Send, 4);
        let (mut left, mut asked, mut refused) = (answers(), numbers(&bench.sent()), false);
        let mut overtaken = 0;
        while bench.ends().len() < 5 {
            // One of the next few that were asked for, so that none is overtaken by many.
            let may_come = |number: u32| match number {
                0..12 => asked.contains(&(number & !1)),
                _ => asked.contains(&number) && (number == 12 || !refused || left.len() == 1),
            };
            let next: Vec<_> = (0..left.len()).filter(|at| may_come(left[*at].1)).collect();
            let at = match overtaken {
                0..2 => next[rng.below(next.len().min(4) as u64) as usize],
                _ => next[0],
            };
            overtaken = if at == next[0] { 0 } else { overtaken + 1 };
            let (opcode, number, data) = left[at].clone();
            let packet = match opcode {
                Opcode::RC_ACKNOWLEDGE => ack(number),
                Opcode::RC_ATOMIC_ACKNOWLEDGE => atomic_response(number, 77),
                _ => read_response(opcode, number, &data),
            };
            match bench.feed(packet) {
                Ok(()) => drop(left.remove(at)),
                verdict => {
                    assert_eq!((verdict, number), (Err(Dropped::MissingResponse), 13));
                    refused = true;
                }
            }
            asked.extend(numbers(&bench.sent()));
        }
        assert_eq!(bench.engine.stats().implied_naks, 0, "seed {seed}");
        assert_eq!(bench.engine.stats().retransmitted, 0, "seed {seed}");
        for wr_id in 0..3 {
            for packet in 0..4 {
                let at = ADDR + wr_id * 4096 + packet * MTU as u64;
                let expected = (wr_id * 4 + packet) as u8;
                assert_eq!(bench.qp.ram.bytes(PRIVATE, at, MTU), [expected; MTU]);
            }
        }
        let result = bench.qp.ram.bytes(PRIVATE, ADDR + 3 * 4096, 8);
        assert_eq!(result, 77_u64.to_ne_bytes());
        assert_eq!(bench.engine.poll_timeout(), None, "seed {seed}");
    }
}

#[test]
fn an_answer_that_several_have_overtaken_counts_as_lost_at_once() {
    let mut bench = Bench::new(Config {
        window: 64,
        ..config()
    });
    bench.post(0, read(0), 16 * MTU);
    assert_eq!(numbers(&bench.sent()), [0]);
    for number in 1..3 {
        let late = read_response(Opcode::RC_READ_RESPONSE_MIDDLE, number, &[1; MTU]);
        assert_eq!(bench.feed(late), Ok(()));
        assert!(bench.sent().is_empty());
    }
    let third = read_response(Opcode::RC_READ_RESPONSE_MIDDLE, 3, &[1; MTU]);
    assert_eq!(bench.feed(third), Ok(()));
    assert_eq!(numbers(&bench.sent()), [0]);
    assert_eq!(bench.engine.stats().implied_naks, 1);
    let first = read_response(PIECE[0], 0, &[1; MTU]);
    assert_eq!(bench.feed(first), Ok(()));
    assert!(bench.sent().is_empty(), "it is not asked for twice");
}

#[test]
fn every_piece_has_the_shape_of_a_response_of_its_own() {
    let shapes = [
        Opcode::RC_READ_RESPONSE_MIDDLE,
        Opcode::RC_READ_RESPONSE_LAST,
        Opcode::RC_READ_RESPONSE_ONLY,
    ];
    for opcode in shapes {
        let mut bench = bench();
        bench.post(0, read(0), 4 * MTU);
        bench.sent();
        answer(&mut bench, 0, &PIECE);
        let data = [2; MTU];
        let verdict = bench.feed(read_response(opcode, 2, &data));
        assert_eq!(verdict, Err(Dropped::BadResponse), "{opcode:?}");
        assert_eq!(bench.ends(), [(0, Status::BadResponse)]);
    }
    for opcode in [PIECE[0], Opcode::RC_READ_RESPONSE_MIDDLE] {
        let mut bench = bench();
        bench.post(0, read(0), 4 * MTU);
        bench.sent();
        answer(&mut bench, 0, &PIECE[..1]);
        let data = [1; MTU];
        let verdict = bench.feed(read_response(opcode, 1, &data));
        assert_eq!(verdict, Err(Dropped::BadResponse), "{opcode:?}");
    }
}

#[test]
fn a_fence_waits_for_the_last_piece_and_does_not_hold_up_its_own() {
    let mut bench = bench();
    let mut fenced = request(0, read(0), sge(PRIVATE, ADDR, 4 * MTU as u32));
    fenced.flags = fenced.flags.with(SendFlags::FENCE);
    assert!(bench.engine.post_send(fenced).is_ok());
    fenced = request(1, SendOp::Write(remote(0)), sge(PRIVATE, ADDR, 4));
    fenced.flags = fenced.flags.with(SendFlags::FENCE);
    assert!(bench.engine.post_send(fenced).is_ok());
    assert_eq!(numbers(&bench.sent()), [0, 2]);
    answer(&mut bench, 0, &[PIECE[0], PIECE[1], PIECE[0]]);
    assert!(bench.sent().is_empty());
    answer(&mut bench, 3, &PIECE[1..]);
    assert_eq!(numbers(&bench.sent()), [4]);
}

#[test]
fn a_read_that_fails_halfway_flushes_what_follows_and_frees_what_it_held() {
    let mut bench = bench();
    bench.post(0, read(0), 20 * MTU);
    bench.post(1, read(0), 4);
    bench.sent();
    answer(&mut bench, 0, &PIECE);
    bench.engine.abort(&mut bench.qp, Status::General);
    assert_eq!(bench.ends(), [(0, Status::General), (1, Status::Flushed)]);
    assert_eq!(bench.engine.state(), State::Error);
    assert!(bench.sent().is_empty());
}

/// A responder in software: it takes one request after the other, and sends all that each asks for,
/// whatever its requester has missed meanwhile.
struct SoftPeer {
    asked: VecDeque<(u32, Reth)>,
    sent: u32,
}

impl SoftPeer {
    /// Its next packet: opcode, number, payload.
    fn next(&mut self, memory: &[u8]) -> Option<(Opcode, u32, Vec<u8>)> {
        let (number, reth) = *self.asked.front()?;
        let (at, packet) = (self.sent, MTU as u32);
        let packets = reth.length.div_ceil(packet);
        let opcode = match (at == 0, at + 1 == packets) {
            (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
            (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
            (false, true) => Opcode::RC_READ_RESPONSE_LAST,
            (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
        };
        let start = (reth.va - ADDR) as usize + at as usize * MTU;
        let end = start + (reth.length - at * packet).min(packet) as usize;
        self.sent += 1;
        if self.sent == packets {
            (self.sent, _) = (0, self.asked.pop_front());
        }
        Some((opcode, number + at, memory[start..end].to_vec()))
    }
}

/// Packets lost, and those that came in vain, while `reads` READs of `packets` packets are served
/// at once and one packet in a hundred is lost.
fn in_vain(window: u32, reads: u64, packets: usize) -> (u64, u64) {
    const RTT: usize = 8;
    let mut bench = Bench::new(Config { window, ..config() });
    let length = packets * MTU;
    let memory = pattern(3, length);
    bench.qp.ram.regions = vec![
        Region::new(KEY, ADDR, memory.clone()),
        Region::new(PRIVATE, ADDR, vec![0; length]),
    ];
    for wr_id in 0..reads {
        let element = sge(PRIVATE, ADDR, length as u32);
        assert!(
            bench
                .engine
                .post_send(request(wr_id, read(0), element))
                .is_ok()
        );
    }
    let mut rng = Rng::new(7);
    let mut peer = SoftPeer {
        asked: VecDeque::new(),
        sent: 0,
    };
    let (mut lost, mut vain) = (0, 0);
    // What the peer sends in this step reaches us so many later.
    let mut air: VecDeque<Option<(Opcode, u32, Vec<u8>)>> = vec![None; RTT].into();
    while bench.ends().len() < reads as usize {
        assert_eq!(bench.engine.state(), State::Ready, "{:?}", bench.ends());
        let sent = bench.sent();
        let reths = sent.iter().map(|one| one.reth.expect("it is a READ"));
        peer.asked.extend(numbers(&sent).into_iter().zip(reths));
        let next = peer.next(&memory);
        let quiet = next.is_none() && air.iter().all(Option::is_none);
        let gone = next.is_some() && rng.percent(1);
        lost += u64::from(gone);
        air.push_back(next.filter(|_| !gone));
        if let Some((opcode, number, data)) = air.pop_front().flatten() {
            let before = bench.engine.stats().received_packets;
            let _ = bench.feed(read_response(opcode, number, &data));
            vain += u64::from(bench.engine.stats().received_packets == before);
        } else if quiet {
            assert!(bench.next_timer(), "nothing is under way");
        }
    }
    assert!(bench.ends().iter().all(|end| end.1 == Status::Success));
    assert_eq!(bench.qp.ram.bytes(PRIVATE, ADDR, length), memory);
    (lost, vain)
}

#[test]
fn a_lost_packet_costs_no_more_than_a_window_in_vain() {
    const WINDOW: u32 = 64;
    let (lost, vain) = in_vain(WINDOW, 4, 2048);
    assert!(lost > 40, "{lost} lost");
    assert!(vain <= lost * u64::from(WINDOW), "{vain} for {lost} lost");
}
