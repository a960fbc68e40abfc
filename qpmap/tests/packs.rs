//! Packets that several messages share: docs/wire-format.md, "Records".

use crate::common::{Pair, RingMemory};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::mem::AtomicOp;
use trunkline_conn::time::MILLISECOND;
use trunkline_conn::work::{Completion, Remote, SendFlags, SendOp, Status};
use trunkline_qpmap::QpQueues;
use trunkline_qpmap::wqe::SendWr;
use trunkline_wire::{Opcode, Record, Records};

pub(crate) type Qp = Arc<QpQueues<RingMemory>>;

/// Where what follows the extension header begins, and where the sum does.
pub(crate) const BODY: usize = 52;
pub(crate) const SUM: usize = 4;

/// Two nodes whose connection carries packets that several messages share.
pub(crate) fn pair() -> Pair {
    let mut pair = Pair::with(0, 4096 + 80);
    pair.packs = true;
    pair.open();
    pair
}

pub(crate) fn opcode(datagram: &[u8]) -> Opcode {
    Opcode(datagram[0])
}

pub(crate) fn records(datagram: &[u8]) -> Vec<Record> {
    let body = &datagram[BODY..datagram.len() - SUM];
    let records = Records::of(body).map(|record| record.expect("it is well formed"));
    let parsed = records.map(|record| Record::parse(record.header));
    parsed.map(|record| record.expect("it is known")).collect()
}

pub(crate) fn remote(pair: &Pair, node: usize, offset: u64) -> Remote {
    Remote {
        addr: pair.nodes[node].buffer.addr + offset,
        rkey: pair.nodes[node].key,
    }
}

pub(crate) fn outcomes(pair: &Pair, node: usize) -> Vec<(u64, Status)> {
    let done: Vec<Completion> = pair.completions(node);
    done.iter().map(|done| (done.wr_id, done.status)).collect()
}

/// Pairs of QPs, and none of their handshakes is under way any more.
pub(crate) fn connected(pair: &mut Pair, count: usize) -> Vec<[Qp; 2]> {
    let qps = (0..count).map(|_| pair.connected()).collect();
    pair.run(20 * MILLISECOND);
    qps
}

/// Each QP of node 0 sends a message of 64 bytes, whose receive is there.
pub(crate) fn send_one_each(pair: &Pair, qps: &[[Qp; 2]]) {
    for (number, [a, b]) in (0..).zip(qps) {
        let (from, to) = (64 * number, 8192 + 64 * number);
        let bytes = [number as u8 + 1; 64];
        pair.nodes[0].buffer.set(from as usize, &bytes);
        pair.receive(b, number, &[pair.sge(1, to, 64)]);
        pair.post(0, a, number, SendOp::Send, &[pair.sge(0, from, 64)]);
    }
}

pub(crate) fn each_arrived(pair: &Pair, qps: &[[Qp; 2]]) {
    let all = |node| {
        let mut all = outcomes(pair, node);
        all.sort_unstable_by_key(|(wr_id, _)| *wr_id);
        all
    };
    let each = (0..qps.len() as u64).map(|wr_id| (wr_id, Status::Success));
    let each: Vec<_> = each.collect();
    assert_eq!((all(0), all(1)), (each.clone(), each));
    for number in 0..qps.len() {
        let arrived = pair.nodes[1].buffer.get(8192 + 64 * number, 64);
        assert_eq!(arrived, [number as u8 + 1; 64]);
    }
}

#[test]
fn what_is_posted_in_one_round_shares_a_packet_whichever_qps_it_is_of() {
    let mut pair = pair();
    let qps = connected(&mut pair, 20);
    send_one_each(&pair, &qps);
    let sent = pair.sent_by(0);
    assert_eq!(sent.len(), 1, "one packet for all");
    assert_eq!(opcode(&sent[0].1), Opcode::SRC_PACKED);
    assert_eq!(records(&sent[0].1).len(), 20);
    pair.deliver(1, &sent);
    pair.run(MILLISECOND);
    each_arrived(&pair, &qps);
    let counters = pair.nodes[1].engine.counters();
    assert_eq!(counters.packed_received, 1);
}

#[test]
fn a_message_alone_and_one_for_a_peer_that_does_not_know_packets_of_several_go_as_ever() {
    for (packs, count) in [(true, 1), (false, 20)] {
        let mut pair = Pair::with(0, 4096 + 80);
        pair.packs = packs;
        pair.open();
        let qps = connected(&mut pair, count);
        send_one_each(&pair, &qps);
        let sent = pair.sent_by(0);
        assert!(sent.iter().all(|(_, at)| opcode(at) == Opcode::SRC_SEND));
        assert_eq!(sent.len(), count);
        pair.deliver(1, &sent);
        pair.run(MILLISECOND);
        each_arrived(&pair, &qps);
    }
}

/// All kinds of requests, from both ends, with loss: each is done once, and in order.
#[test]
fn every_kind_of_request_is_done_once_and_in_order_though_packets_get_lost() {
    let mut pair = pair();
    let qps = connected(&mut pair, 8);
    let packets = Rc::new(Cell::new([0u32; 2]));
    let counted = Rc::clone(&packets);
    pair.fate = Box::new(move |from, datagram| {
        let mut all = counted.get();
        all[from] += u32::from(opcode(datagram) == Opcode::SRC_PACKED);
        counted.set(all);
        // Every third packet that several share is lost.
        usize::from(opcode(datagram) != Opcode::SRC_PACKED || all[from] % 3 != 0)
    });
    const EACH: u64 = 60;
    for wr_id in 0..EACH {
        for (number, qp) in (0..).zip(&qps) {
            for node in [0, 1] {
                let slot = 64 * number;
                let sge = [pair.sge(node, slot, 8)];
                let there = remote(&pair, 1 - node, 4096 + slot);
                pair.receive(
                    &qp[1 - node],
                    1 << 32 | wr_id,
                    &[pair.sge(1 - node, 8192, 64)],
                );
                let op = match wr_id % 5 {
                    0 => SendOp::Send,
                    1 => SendOp::Write(there),
                    2 => SendOp::Read(there),
                    3 => SendOp::Atomic(there, AtomicOp::FetchAdd { add: 1 }),
                    _ => SendOp::SendImm(wr_id as u32),
                };
                pair.post(node, &qp[node], wr_id, op, &sge);
            }
        }
        if wr_id % 8 == 7 {
            pair.run(MILLISECOND / 10);
        }
    }
    let mut done: [BTreeMap<u32, Vec<u64>>; 2] = Default::default();
    for _ in 0..200 {
        pair.run(10 * MILLISECOND);
        for node in [0, 1] {
            for done_one in pair.completions(node) {
                assert_eq!(done_one.status, Status::Success);
                if done_one.wr_id < 1 << 32 {
                    let of_qp = done[node].entry(done_one.qpn.get()).or_default();
                    of_qp.push(done_one.wr_id);
                }
            }
        }
    }
    for of_qp in done.iter().flat_map(BTreeMap::values) {
        assert!(of_qp.iter().copied().eq(0..EACH), "{of_qp:?}");
    }
    assert!(done.iter().all(|done| done.len() == qps.len()));
    assert!(packets.get().iter().all(|count| *count > 20), "{packets:?}");
}

#[test]
fn what_one_qp_is_not_ready_for_waits_alone() {
    let mut pair = pair();
    let qps = connected(&mut pair, 10);
    for (number, [a, b]) in (0..).zip(&qps) {
        if number != 4 {
            pair.receive(b, number, &[pair.sge(1, 8192 + 64 * number, 64)]);
        }
        pair.post(0, a, number, SendOp::Send, &[pair.sge(0, 0, 64)]);
    }
    pair.run(MILLISECOND / 10);
    let done: Vec<u64> = outcomes(&pair, 0).iter().map(|(wr_id, _)| *wr_id).collect();
    assert_eq!(done, [0, 1, 2, 3, 5, 6, 7, 8, 9]);
    assert_eq!(pair.nodes[0].engine.counters().rnr_received, 1);
    pair.receive(&qps[4][1], 4, &[pair.sge(1, 8192, 64)]);
    pair.run(50 * MILLISECOND);
    assert_eq!(outcomes(&pair, 0), [(4, Status::Success)]);
}

#[test]
fn the_answer_to_a_request_goes_with_the_reply_in_one_packet() {
    let mut pair = pair();
    let qps = connected(&mut pair, 1);
    let [a, b] = &qps[0];
    for round in 0..10 {
        for (node, from, to) in [(0, a, b), (1, b, a)] {
            pair.receive(to, round, &[pair.sge(1 - node, 8192, 64)]);
            pair.post(node, from, round, SendOp::Send, &[pair.sge(node, 0, 64)]);
            let sent = pair.sent_by(node);
            let data: Vec<_> = sent.iter().filter(|(_, at)| at.len() > 100).collect();
            assert_eq!(data.len(), 1, "round {round}");
            if node == 1 {
                let said: Vec<_> = records(&data[0].1).iter().map(|at| at.opcode).collect();
                assert_eq!(
                    said,
                    [Opcode::SRC_ANSWERS, Opcode::SRC_SEND],
                    "round {round}"
                );
            }
            pair.deliver(1 - node, &sent);
        }
    }
}

/// Packets of one length leave a socket together.
#[test]
fn full_packets_of_mixed_messages_are_equally_long() {
    let mut pair = pair();
    let qps = connected(&mut pair, 60);
    for (number, [a, b]) in (0..).zip(&qps) {
        for wr_id in 0..4 {
            let length = (number * 37 + wr_id * 101) % 400;
            pair.receive(b, wr_id, &[pair.sge(1, 8192, 400)]);
            let bytes = pair.sge(0, 0, length as u32);
            pair.post(0, a, wr_id, SendOp::Send, &[bytes]);
        }
    }
    let mut sent = Vec::new();
    for _ in 0..20 {
        let more = pair.sent_by(0);
        pair.deliver(1, &more);
        let packed = more
            .into_iter()
            .filter(|(_, at)| opcode(at) == Opcode::SRC_PACKED);
        let lengths: Vec<usize> = packed.map(|(_, at)| at.len()).collect();
        assert!(lengths.iter().all(|length| *length <= BODY + 4096 + SUM));
        if let [full @ .., last] = &lengths[..] {
            assert!(
                full.iter().all(|length| *length == lengths[0]),
                "{lengths:?}"
            );
            assert!(full.is_empty() || *last <= lengths[0], "{lengths:?}");
        }
        sent.extend(lengths);
        pair.run(MILLISECOND / 10);
    }
    assert!(sent.len() > 10, "{sent:?}");
    assert_eq!(pair.nodes[1].engine.counters().executed, 240);
}

#[test]
fn messages_that_share_a_packet_ask_for_their_own_events() {
    let mut pair = pair();
    let qps = connected(&mut pair, 4);
    for (number, [a, b]) in (0..).zip(&qps) {
        pair.receive(b, number, &[pair.sge(1, 8192, 64)]);
        let flags = match number % 2 {
            0 => SendFlags::SIGNALED,
            _ => SendFlags::SOLICITED,
        };
        let request = SendWr {
            wr_id: number,
            op: SendOp::Send,
            flags,
            sges: &[pair.sge(0, 0, 64)],
            inline: None,
            route: 0,
        };
        a.send.post(&[request]).expect("room in the queue");
        pair.nodes[0].engine.doorbells().ring(a.index);
    }
    let sent = pair.sent_by(0);
    assert_eq!(records(&sent[0].1).len(), 4);
    pair.deliver(1, &sent);
    let done = pair.completions(1);
    let told: Vec<_> = done
        .iter()
        .map(|done| (done.wr_id, done.solicited))
        .collect();
    assert_eq!(told, [(0, false), (1, true), (2, false), (3, true)]);
}

/// A turn of a connection has a share of the port, however many messages wait.
#[test]
fn a_turn_sends_no_more_than_its_share() {
    // Eight of them fill a packet.
    const LENGTH: u32 = 492;
    let mut pair = Pair::with(0, 4096 + 80);
    (pair.packs, pair.control) = (true, Some(CongestionControl::None));
    pair.open();
    let qps = connected(&mut pair, 120);
    for wr_id in 0..8 {
        for [a, b] in &qps {
            pair.receive(b, wr_id, &[pair.sge(1, 8192, LENGTH)]);
            pair.post(0, a, wr_id, SendOp::Send, &[pair.sge(0, 0, LENGTH)]);
        }
    }
    let sent = pair.sent_by(0);
    assert_eq!(sent.len(), 64, "packets of a share");
    assert!(sent.iter().all(|(_, at)| at.len() <= BODY + 4096 + SUM));
    let bytes: usize = sent.iter().map(|(_, at)| at.len()).sum();
    let share = 256 << 10;
    // Of one message too many at most, and of the header of a record that leaves alone.
    assert!((share - 100..share + 600).contains(&bytes), "{bytes}");
}

/// A port that is full again and again delays packets, and loses none.
#[test]
fn no_packet_is_lost_because_the_port_is_full() {
    for room in 1..5 {
        let mut pair = pair();
        let qps = connected(&mut pair, 60);
        pair.room = Some(room);
        for wr_id in 0..8 {
            for [a, b] in &qps {
                for (node, from, to) in [(0, a, b), (1, b, a)] {
                    let length = if wr_id % 4 == 3 { 1500 } else { 400 };
                    pair.receive(to, 1 << 32, &[pair.sge(1 - node, 8192, length)]);
                    pair.post(
                        node,
                        from,
                        wr_id,
                        SendOp::Send,
                        &[pair.sge(node, 0, length)],
                    );
                }
            }
        }
        let mut count = 0;
        for _ in 0..200 {
            pair.run(MILLISECOND);
            count += [0, 1]
                .map(|node| outcomes(&pair, node).len())
                .iter()
                .sum::<usize>();
        }
        assert_eq!(count, 4 * 8 * qps.len(), "{room}");
        for node in &pair.nodes {
            assert_eq!(node.engine.delivery_counters().lost, 0, "{room}");
        }
    }
}

/// An answer waits a round for company; who asks for an acknowledgement has it in this one.
#[test]
fn an_acknowledgement_that_is_asked_for_does_not_wait_with_an_answer() {
    let mut pair = pair();
    let qps = connected(&mut pair, 1);
    send_one_each(&pair, &qps);
    assert_eq!(pair.sent_by(0).len(), 1, "it is lost");
    // Who sends again asks.
    pair.now = pair.now + 50 * MILLISECOND;
    let again = pair.sent_by(0);
    assert_eq!(again.len(), 1);
    pair.deliver(1, &again);
    for expected in [Opcode::SRC_ACK, Opcode::SRC_ANSWERS] {
        let sent = pair.sent_by(1);
        let opcodes: Vec<_> = sent.iter().map(|(_, at)| opcode(at)).collect();
        assert_eq!(opcodes, [expected]);
        pair.deliver(0, &sent);
    }
    each_arrived(&pair, &qps);
}
