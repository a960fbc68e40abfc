//! Whatever ends at whatever moment while it shares packets: nothing of it is left.

use crate::common::Pair;
use crate::packs::{Qp, connected, pair, remote};
use trunkline_conn::mem::AtomicOp;
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{SendFlags, SendOp};
use trunkline_qpmap::wqe::{RecvWr, SendWr};
use trunkline_qpmap::{LiveObjects, QpModify};

/// Numbers by chance, the same for a seed.
#[derive(Clone, Copy)]
struct Chance(u64);

impl Chance {
    const fn below(&mut self, limit: u64) -> u64 {
        let next = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d);
        self.0 = next.wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % limit
    }

    const fn node(&mut self) -> usize {
        self.below(2) as usize
    }

    fn of<T>(&mut self, some: &[T]) -> usize {
        self.below(some.len() as u64) as usize
    }
}

/// A request of any kind and length; now and then of memory that there is not.
fn post(pair: &Pair, [from, to]: [&Qp; 2], node: usize, chance: &mut Chance) {
    let length = [8, 64, 400, 513, 3000, 9000][chance.below(6) as usize];
    let there = remote(pair, 1 - node, 8 * chance.below(100));
    let (op, length) = match chance.below(6) {
        0 => (SendOp::Read(there), length),
        1 => (SendOp::Write(there), length),
        2 => (SendOp::Atomic(there, AtomicOp::FetchAdd { add: 1 }), 8),
        _ => (SendOp::Send, length),
    };
    if op == SendOp::Send && chance.below(20) > 0 {
        let sges = [pair.sge(1 - node, 16384, 9000)];
        let queue = to.receive.as_ref().expect("no SRQ here");
        let _ = queue.post(&[RecvWr {
            wr_id: 1,
            sges: &sges,
        }]);
    }
    let mut place = pair.sge(node, 32768, length);
    place.lkey.0 ^= u32::from(chance.below(60) == 0) << 20;
    let request = SendWr {
        wr_id: 2,
        op,
        flags: SendFlags::SIGNALED,
        sges: &[place],
        inline: None,
        route: 0,
    };
    // There may be no room for it.
    let _ = from.send.post(&[request]);
    pair.nodes[node].engine.doorbells().ring(from.index);
}

/// A connection closes, at one end before the other, and there is another one.
fn replace_connection(pair: &mut Pair, chance: &mut Chance) {
    let (ends, node) = (pair.conns.remove(0), chance.node());
    pair.nodes[node].engine.close_connection(ends[node]);
    if chance.below(2) == 0 {
        pair.run(MILLISECOND);
    }
    let other = 1 - node;
    pair.nodes[other].engine.close_connection(ends[other]);
    pair.open();
}

/// Two QPs go, one after the other, and two others come.
fn replace_qps(pair: &mut Pair, qps: &mut Vec<[Qp; 2]>, chance: &mut Chance) {
    let (gone, first) = (qps.remove(chance.of(qps)), chance.node());
    for node in [first, 1 - first] {
        let engine = &mut pair.nodes[node].engine;
        engine.destroy_qp(gone[node].qpn).expect("it was there");
        for _ in 0..chance.below(3) {
            pair.step(chance.node());
        }
    }
    qps.push(pair.connected());
}

fn something_happens(pair: &mut Pair, qps: &mut Vec<[Qp; 2]>, chance: &mut Chance) {
    match chance.below(24) {
        0 => replace_connection(pair, chance),
        1 | 2 => replace_qps(pair, qps, chance),
        3 => {
            let (at, node) = (chance.of(qps), chance.node());
            let steps = [QpModify::Error, QpModify::Drain];
            let step = &steps[chance.of(&steps)];
            // It may be in error.
            let _ = pair.nodes[node].engine.modify_qp(qps[at][node].qpn, step);
        }
        4 => pair.room = Some(1 + chance.below(4) as usize),
        5 | 6 => pair.room = None,
        _ => {}
    }
    match chance.below(3) {
        0 => drop(pair.step(chance.node())),
        1 => pair.run(chance.below(MILLISECOND)),
        _ => {}
    }
}

#[test]
fn nothing_is_left_of_what_ended_while_it_shared_packets() {
    for seed in 1..=40 {
        let mut chance = Chance(seed);
        let mut pair = pair();
        let mut qps = connected(&mut pair, 12);
        let mut fates = chance;
        pair.fate = Box::new(move |_, _| [0, 1, 1, 1, 1, 1, 1, 2][fates.below(8) as usize]);
        for _ in 0..60 {
            for _ in 0..chance.below(30) {
                let (at, node) = (chance.of(&qps), chance.node());
                let of = [&qps[at][node], &qps[at][1 - node]];
                post(&pair, of, node, &mut chance);
            }
            something_happens(&mut pair, &mut qps, &mut chance);
            for node in [0, 1] {
                pair.completions(node);
            }
        }
        pair.room = None;
        pair.fate = Box::new(|_, _| 1);
        for (node, qp) in qps.iter().flat_map(|[a, b]| [(0, a), (1, b)]) {
            let engine = &mut pair.nodes[node].engine;
            engine.destroy_qp(qp.qpn).expect("it was there");
        }
        pair.run(5 * SECOND);
        for node in &pair.nodes {
            let left = node.engine.live_objects();
            assert_eq!(left, LiveObjects::default(), "{seed}");
            assert!(node.engine.counters().packed_sent > 20, "{seed}");
        }
    }
}
