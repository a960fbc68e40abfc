//! Law: datagrams that come in a burst do what they do one by one.

use crate::common::{Pair, RingMemory};
use proptest::prelude::*;
use std::sync::Arc;
use trunkline_conn::mem::Sge;
use trunkline_conn::work::{Completion, Remote, SendOp};
use trunkline_qpmap::QpQueues;
use trunkline_wire::{Path, Rkey};

/// Bytes of each node's memory that requests take from, or read.
const SOURCE: u64 = 512 << 10;
/// Room of each request's target.
const SLOT: u32 = 16 << 10;
const MICROSECOND: u64 = 1_000;

/// What a QP is asked for.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    Write,
    Read,
}

/// What happens to a datagram on its way.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    Lost,
    Doubled,
    /// Overtaken by the next one.
    Late,
    /// One bit of it is another, at so many thousandths of its length.
    Damaged(usize, u8),
    Cut(usize),
}

fn requests() -> impl Strategy<Value = Vec<(usize, Kind, u32)>> {
    let kind = prop_oneof![Just(Kind::Send), Just(Kind::Write), Just(Kind::Read)];
    proptest::collection::vec((0..2usize, kind, 1..SLOT), 1..12)
}

/// Of which datagrams, counted over the whole run.
fn mishaps() -> impl Strategy<Value = Vec<(usize, Mishap)>> {
    let mishap = prop_oneof![
        Just(Mishap::Lost),
        Just(Mishap::Doubled),
        Just(Mishap::Late),
        (0..1000usize, 0..8u8).prop_map(|(at, bit)| Mishap::Damaged(at, bit)),
        (0..1000usize).prop_map(Mishap::Cut),
    ];
    proptest::collection::vec((0..150usize, mishap), 0..12)
}

/// Two nodes, two pairs of QPs between them, requests of the first one.
struct Run {
    pair: Pair,
    mishaps: Vec<(usize, Mishap)>,
    /// Datagrams sent so far.
    sent: usize,
    bursts: bool,
}

/// What can be seen of a run.
#[derive(Debug, Eq, PartialEq)]
struct Outcome {
    memory: [Vec<u8>; 2],
    completions: [Vec<Completion>; 2],
    counters: [Vec<(&'static str, u64)>; 2],
    sent: usize,
    ended_ns: u64,
}

impl Run {
    fn new(bursts: bool, mishaps: &[(usize, Mishap)]) -> Self {
        let mut pair = Pair::new(1);
        let pattern: Vec<u8> = (0..SOURCE).map(|at| (at % 251) as u8).collect();
        for node in &pair.nodes {
            node.buffer.set(SOURCE as usize, &pattern);
        }
        pair.run(MICROSECOND);
        Self {
            pair,
            mishaps: mishaps.to_vec(),
            sent: 0,
            bursts,
        }
    }

    fn post(&self, qps: &[[Arc<QpQueues<RingMemory>>; 2]], requests: &[(usize, Kind, u32)]) {
        let pair = &self.pair;
        for (id, &(qp, kind, length)) in requests.iter().enumerate() {
            let [a, b] = &qps[qp];
            let (slot, from) = (id as u64 * u64::from(SLOT), SOURCE + id as u64);
            let there = |offset: u64| {
                let node = &pair.nodes[1];
                let rkey: Rkey = node.key;
                let addr = node.buffer.addr + offset;
                Remote { addr, rkey }
            };
            let local = |node: usize, offset: u64| -> [Sge; 1] { [pair.sge(node, offset, length)] };
            let (op, here) = match kind {
                Kind::Send => {
                    pair.receive(b, id as u64, &local(1, slot));
                    (SendOp::Send, from)
                }
                Kind::Write => (SendOp::Write(there(slot)), from),
                Kind::Read => (SendOp::Read(there(from)), slot),
            };
            pair.post(0, a, id as u64, op, &local(0, here));
        }
    }

    /// One round of node `i`.
    fn step(&mut self, i: usize) -> bool {
        let mut datagrams: Vec<(Path, Vec<u8>)> = Vec::new();
        let mut late = None;
        let sent = self.pair.sent_by(i);
        let moved = !sent.is_empty() || self.pair.nodes[i].engine.is_busy();
        for (path, mut bytes) in sent {
            let number = self.sent;
            self.sent += 1;
            let mishap = self.mishaps.iter().find(|(which, _)| *which == number);
            let overtaken = late.take();
            match mishap.map(|(_, mishap)| *mishap) {
                Some(Mishap::Lost) => {}
                Some(Mishap::Late) => late = Some((path, bytes)),
                Some(Mishap::Doubled) => datagrams.extend([(path, bytes.clone()), (path, bytes)]),
                Some(Mishap::Damaged(at, bit)) => {
                    let at = at * bytes.len() / 1000;
                    bytes[at] ^= 1 << bit;
                    datagrams.push((path, bytes));
                }
                Some(Mishap::Cut(at)) => {
                    bytes.truncate(at * bytes.len() / 1000);
                    datagrams.push((path, bytes));
                }
                None => datagrams.push((path, bytes)),
            }
            datagrams.extend(overtaken);
        }
        datagrams.extend(late);
        if self.bursts {
            self.pair.deliver(1 - i, &datagrams);
        } else {
            for datagram in datagrams.chunks(1) {
                self.pair.deliver(1 - i, datagram);
            }
        }
        moved
    }

    fn outcome(mut self, requests: &[(usize, Kind, u32)]) -> (Outcome, u64) {
        let qps = [self.pair.connected(), self.pair.connected()];
        self.post(&qps, requests);
        let start = self.pair.now;
        let end = start + 50_000 * MICROSECOND;
        while self.pair.now < end {
            let moved = [0, 1].map(|i| self.step(i));
            let engines = self.pair.nodes.iter().map(|node| &node.engine);
            let next = engines.filter_map(|engine| engine.poll_timeout()).min();
            let soon = self.pair.now + MICROSECOND;
            self.pair.now = match next {
                Some(next) if moved == [false; 2] => next.max(soon).min(end),
                _ => soon,
            };
        }
        let node = |i: usize| &self.pair.nodes[i];
        let counters = [0, 1].map(|i| node(i).engine.counters());
        let streamed = counters.iter().map(|counters| counters.streamed).sum();
        let outcome = Outcome {
            memory: [0, 1].map(|i| node(i).buffer.get(0, SOURCE as usize)),
            completions: [0, 1].map(|i| self.pair.completions(i)),
            counters: counters.map(|counters| {
                let named = counters.named();
                named.filter(|(name, _)| *name != "streamed").collect()
            }),
            sent: self.sent,
            ended_ns: self.pair.now.since(start),
        };
        (outcome, streamed)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_burst_does_what_its_datagrams_do_one_by_one(
        requests in requests(),
        mishaps in mishaps(),
    ) {
        let (alone, streamed) = Run::new(false, &mishaps).outcome(&requests);
        prop_assert_eq!(streamed, 0);
        let (burst, _) = Run::new(true, &mishaps).outcome(&requests);
        prop_assert_eq!(burst, alone);
    }
}

#[test]
fn large_messages_are_streams() {
    for kind in [Kind::Send, Kind::Write, Kind::Read] {
        let requests = [(0, kind, SLOT - 1)];
        let (outcome, streamed) = Run::new(true, &[]).outcome(&requests);
        assert_eq!(outcome.completions[0].len(), 1, "{kind:?}");
        // 16 packets: the first one is looked at, the last one completes the message.
        assert!(streamed >= 10, "{kind:?}: {streamed}");
    }
}

#[test]
fn a_header_that_is_damaged_in_the_middle_of_a_stream_moves_nothing() {
    // Number, offset and timestamp: what packets of a stream differ in. Only the sum over the
    // headers tells that a bit of these is wrong.
    let free = (9..12).chain(27..32).chain(36..44);
    for bit in free.flat_map(|byte| (0..8).map(move |bit| (byte, 1 << bit))) {
        let mut pair = Pair::new(1);
        let [a, _b] = pair.connected();
        pair.run(5_000 * MICROSECOND);
        let pattern: Vec<u8> = (0..SLOT).map(|at| (at % 251) as u8).collect();
        pair.nodes[0].buffer.set(0, &pattern);
        let target = Remote {
            addr: pair.nodes[1].buffer.addr,
            rkey: pair.nodes[1].key,
        };
        let from = [pair.sge(0, 0, SLOT)];
        pair.post(0, &a, 1, SendOp::Write(target), &from);
        let mut sent = pair.sent_by(0);
        assert!(sent.len() > 4, "{} packets", sent.len());
        sent.truncate(4);
        sent[3].1[bit.0] ^= bit.1;
        pair.deliver(1, &sent);
        let after = pair.nodes[1].engine.counters();
        assert_eq!(after.streamed, 2, "{bit:?}");
        assert_eq!(after.bad_icrc, 1, "{bit:?}");
        let placed = pair.nodes[1].buffer.get(0, SLOT as usize);
        let end = placed.iter().rposition(|byte| *byte != 0).unwrap_or(0);
        assert!(end < 3 * 1024, "{bit:?}: a byte at {end}");
        assert_eq!(placed[..end], pattern[..end], "{bit:?}");
    }
}
