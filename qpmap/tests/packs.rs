//! Packets that several messages share: docs/wire-format.md, "Packed".

use crate::common::liar::{LAST, generation_of};
use crate::common::scene::{LIFE, PEER, Scene};
use crate::common::{Buffer, Pair, RingMemory};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use trunkline_conn::mem::{Access, AtomicOp, Sge};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Completion, Remote, SendFlags, SendOp, Status};
use trunkline_qpmap::wqe::SendWr;
use trunkline_qpmap::{FIRST_MSN, QpQueues, QpState};
use trunkline_wire::{Answer, Lkey, NakCode, Opcode, Qpn, Record, Records, Syndrome};

pub(crate) type Qp = Arc<QpQueues<RingMemory>>;

/// Where what follows the extension header begins, and where the sum does.
const BODY: usize = 52;
const SUM: usize = 4;

/// Two nodes whose connection carries packets that several messages share.
pub(crate) fn pair() -> Pair {
    let mut pair = Pair::with(0, 4096 + 80);
    pair.packs = true;
    pair.open();
    pair
}

fn opcode(datagram: &[u8]) -> Opcode {
    Opcode(datagram[0])
}

fn records(datagram: &[u8]) -> Vec<Record> {
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

fn outcomes(pair: &Pair, node: usize) -> Vec<(u64, Status)> {
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
fn send_one_each(pair: &Pair, qps: &[[Qp; 2]]) {
    for (number, [a, b]) in (0..).zip(qps) {
        let (from, to) = (64 * number, 8192 + 64 * number);
        let bytes = [number as u8 + 1; 64];
        pair.nodes[0].buffer.set(from as usize, &bytes);
        pair.receive(b, number, &[pair.sge(1, to, 64)]);
        pair.post(0, a, number, SendOp::Send, &[pair.sge(0, from, 64)]);
    }
}

fn each_arrived(pair: &Pair, qps: &[[Qp; 2]]) {
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
fn a_packet_that_is_sent_again_says_no_more_of_what_nobody_waits_for() {
    let mut pair = pair();
    let qps = connected(&mut pair, 10);
    send_one_each(&pair, &qps);
    let lost = pair.sent_by(0);
    assert_eq!(records(&lost[0].1).len(), 10);
    let (gone, rest) = (qps[0][0].qpn, &qps[1..]);
    pair.nodes[0].engine.destroy_qp(gone).expect("it was there");
    let mut again = Vec::new();
    for _ in 0..100_000 {
        again = pair.sent_by(0);
        again.retain(|(_, at)| opcode(at) == Opcode::SRC_PACKED);
        if !again.is_empty() {
            break;
        }
        pair.now = pair.now + MILLISECOND / 100;
    }
    let said = records(&again[0].1);
    assert_eq!(again[0].1[9..12], lost[0].1[9..12], "the same number");
    assert_eq!(said.len(), 9);
    assert!(said.iter().all(|record| record.src_qp != qps[0][0].qpn));
    pair.deliver(1, &again);
    pair.run(MILLISECOND);
    let done = outcomes(&pair, 0);
    assert_eq!(done.len(), rest.len());
    assert!(done.iter().all(|(_, status)| *status == Status::Success));
}

/// The region of a message goes before its packet, or before that goes again.
#[test]
fn data_that_is_gone_fails_its_request_and_none_that_shares_its_packet() {
    for again in [false, true] {
        let mut pair = pair();
        let qps = connected(&mut pair, 3);
        let addr = 1 << 40;
        let node = &mut pair.nodes[0];
        let made = node
            .engine
            .regions()
            .register(node.pd, Buffer::new(addr, 4096), Access::ALL);
        let key = made.expect("a region like others").rkey;
        let gone = Sge {
            addr,
            length: 100,
            lkey: Lkey(key.0),
        };
        for (number, [a, b]) in (0..).zip(&qps) {
            let sge = if number == 1 {
                gone
            } else {
                pair.sge(0, 0, 100)
            };
            pair.receive(b, number, &[pair.sge(1, 8192, 100)]);
            pair.post(0, a, number, SendOp::Send, &[sge]);
        }
        if again {
            // It is lost.
            assert_eq!(records(&pair.sent_by(0)[0].1).len(), 3);
        }
        pair.nodes[0].deregister(key);
        pair.run(SECOND);
        let mut done = outcomes(&pair, 0);
        done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
        let expected = [
            (0, Status::Success),
            (1, Status::LocalProtection),
            (2, Status::Success),
        ];
        assert_eq!(done, expected, "{again}");
        // A message that never began is nothing to its receiver.
        let middle = if again { QpState::Error } else { QpState::Rts };
        let states = qps.iter().map(|[_, b]| b.state());
        assert!(states.eq([QpState::Rts, middle, QpState::Rts]), "{again}");
    }
}

/// The memory of a READ goes between its execution and its response, which shares a packet: that
/// ends the QP, and with it what it was about to send itself.
#[test]
fn a_response_whose_memory_is_gone_ends_what_its_qp_was_about_to_send() {
    for length in [64, 1000] {
        let mut pair = pair();
        let qps = connected(&mut pair, 2);
        let addr = 1 << 40;
        let node = &mut pair.nodes[1];
        let bytes = Buffer::new(addr, 4096);
        let made = node.engine.regions().register(node.pd, bytes, Access::ALL);
        let rkey = made.expect("a region like others").rkey;
        let [[a, b], [other, its_peer]] = [&qps[0], &qps[1]];
        let read = SendOp::Read(Remote { addr, rkey });
        pair.post(0, a, 1, read, &[pair.sge(0, 0, 64)]);
        let asked = pair.sent_by(0);
        pair.deliver(1, &asked);
        pair.nodes[1].deregister(rkey);
        pair.receive(other, 2, &[pair.sge(0, 8192, 64)]);
        pair.post(1, its_peer, 2, SendOp::Send, &[pair.sge(1, 0, 64)]);
        pair.receive(a, 3, &[pair.sge(0, 8192, 1000)]);
        pair.post(1, b, 3, SendOp::Send, &[pair.sge(1, 0, length)]);
        pair.run(SECOND);
        let at_reader = outcomes(&pair, 0);
        assert!(
            at_reader.contains(&(1, Status::RemoteAccess)),
            "{at_reader:?}"
        );
        assert!(at_reader.contains(&(2, Status::Success)), "{at_reader:?}");
        let mut at_other = outcomes(&pair, 1);
        at_other.sort_unstable_by_key(|(wr_id, _)| *wr_id);
        let expected = [(2, Status::Success), (3, Status::Flushed)];
        assert_eq!(at_other, expected, "{length}");
    }
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
                    [Opcode::SRC_SEND, Opcode::SRC_ANSWERS],
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

/// What was in flight on a path whose MTU has fallen goes in smaller packets.
#[test]
fn a_packet_that_has_become_too_large_is_said_in_smaller_ones() {
    let mut pair = pair();
    let qps = connected(&mut pair, 40);
    pair.fate = Box::new(|_, datagram| usize::from(datagram.len() <= 1472));
    send_one_each(&pair, &qps);
    pair.run(3 * SECOND);
    each_arrived(&pair, &qps);
    assert!(pair.nodes[0].engine.counters().narrowed >= 1);
}

#[test]
fn what_a_connection_carried_goes_over_the_next_one_when_it_dies() {
    let mut pair = pair();
    let qps = connected(&mut pair, 20);
    send_one_each(&pair, &qps);
    // It is lost with its connection.
    assert_eq!(records(&pair.sent_by(0)[0].1).len(), 20);
    for (node, end) in pair.conns.remove(0).into_iter().enumerate() {
        pair.nodes[node].engine.close_connection(end);
    }
    pair.open();
    pair.run(SECOND);
    each_arrived(&pair, &qps);
}

/// The same for what a connection carried of answers.
#[test]
fn nothing_is_kept_of_the_answers_that_a_dead_connection_carried() {
    let mut pair = pair();
    let qps = connected(&mut pair, 20);
    send_one_each(&pair, &qps);
    let sent = pair.sent_by(0);
    pair.deliver(1, &sent);
    let [a, b] = &qps[0];
    pair.receive(a, 1000, &[pair.sge(0, 0, 64)]);
    pair.post(1, b, 1000, SendOp::Send, &[pair.sge(1, 0, 64)]);
    let said = records(&pair.sent_by(1)[0].1);
    assert!(
        said.iter()
            .any(|record| record.opcode == Opcode::SRC_ANSWERS)
    );
    for (node, end) in pair.conns.remove(0).into_iter().enumerate() {
        pair.nodes[node].engine.close_connection(end);
    }
    pair.open();
    pair.run(SECOND);
    assert_eq!(outcomes(&pair, 0).len(), 21);
    assert_eq!(pair.nodes[1].engine.live_objects().control_messages, 0);
}

/// The path to node 0 narrows when many answers leave with one message: what cannot be said in one
/// packet any more is not tried for ever.
#[test]
fn control_messages_that_went_with_data_get_over_a_path_that_has_narrowed() {
    let mut pair = pair();
    let qps = connected(&mut pair, 120);
    send_one_each(&pair, &qps);
    let sent = pair.sent_by(0);
    pair.deliver(1, &sent);
    let [a, b] = &qps[0];
    pair.receive(a, 1000, &[pair.sge(0, 0, 64)]);
    pair.post(1, b, 1000, SendOp::Send, &[pair.sge(1, 0, 64)]);
    pair.fate = Box::new(|_, datagram| usize::from(datagram.len() <= 1232));
    pair.run(10 * SECOND);
    let done = outcomes(&pair, 0);
    assert_eq!(done.len(), 121);
    assert!(done.iter().all(|(_, status)| *status == Status::Success));
    let [conn, _] = pair.conns[0];
    assert!(pair.nodes[0].engine.is_open(conn) && pair.nodes[1].engine.is_open(pair.conns[0][1]));
    assert_eq!(pair.nodes[1].engine.live_objects().control_messages, 0);
}

/// The same where a packet is full of what atomics found, which is kept until it is known.
#[test]
fn results_of_atomics_get_over_a_path_that_has_narrowed() {
    let mut pair = pair();
    let qps = connected(&mut pair, 140);
    for (number, [a, _]) in (0..).zip(&qps) {
        let there = remote(&pair, 1, 8 * number);
        let add = SendOp::Atomic(there, AtomicOp::FetchAdd { add: 1 });
        pair.post(0, a, number, add, &[pair.sge(0, 8 * number, 8)]);
    }
    let sent = pair.sent_by(0);
    pair.deliver(1, &sent);
    pair.fate = Box::new(|_, datagram| usize::from(datagram.len() <= 1232));
    pair.run(10 * SECOND);
    let done = outcomes(&pair, 0);
    assert_eq!(done.len(), 140);
    assert!(done.iter().all(|(_, status)| *status == Status::Success));
    let [conn, _] = pair.conns[0];
    assert!(pair.nodes[0].engine.is_open(conn));
    for number in 0..140 {
        let found = pair.nodes[1].buffer.get(8 * number, 8);
        assert_eq!(found, 1u64.to_ne_bytes(), "it was added once");
    }
    assert_eq!(pair.nodes[1].engine.live_objects().responses, 0);
}

/// The memory of a READ goes before its response does: its requester hears so at once, as nothing
/// that it says is waited for.
#[test]
fn who_reads_memory_that_is_gone_hears_so_without_asking() {
    for length in [64, 1000] {
        let mut pair = pair();
        let qps = connected(&mut pair, 1);
        let addr = 1 << 40;
        let node = &mut pair.nodes[1];
        let bytes = Buffer::new(addr, 4096);
        let made = node.engine.regions().register(node.pd, bytes, Access::ALL);
        let rkey = made.expect("a region like others").rkey;
        let read = SendOp::Read(Remote { addr, rkey });
        pair.post(0, &qps[0][0], 1, read, &[pair.sge(0, 0, length)]);
        let asked = pair.sent_by(0);
        pair.deliver(1, &asked);
        pair.nodes[1].deregister(rkey);
        let rounds: Vec<_> = (0..3).flat_map(|_| pair.sent_by(1)).collect();
        let told = rounds
            .iter()
            .any(|(_, at)| opcode(at) == Opcode::SRC_ANSWERS);
        assert!(told, "{length}");
    }
}

/// A message that is ahead of its turn, and finds no room to wait, is asked for again: the packet
/// that it shared does not come again by itself.
#[test]
fn a_record_that_finds_no_room_to_wait_is_asked_for_again() {
    let mut pair = Pair::with_staging(0, 4096 + 80, 2048);
    pair.packs = true;
    pair.open();
    let qps = connected(&mut pair, 2);
    for wr_id in 0..40 {
        for [a, b] in &qps {
            pair.receive(b, wr_id, &[pair.sge(1, 8192, 400)]);
            pair.post(0, a, wr_id, SendOp::Send, &[pair.sge(0, 0, 400)]);
        }
    }
    let first = Cell::new(true);
    pair.fate = Box::new(move |from, datagram| {
        let lost = from == 0 && opcode(datagram) == Opcode::SRC_PACKED && first.replace(false);
        usize::from(!lost)
    });
    pair.run(SECOND);
    assert!(pair.nodes[1].engine.counters().staging_full > 0);
    let done = outcomes(&pair, 0);
    assert_eq!(done.len(), 80);
    assert!(done.iter().all(|(_, status)| *status == Status::Success));
    assert_eq!(pair.nodes[1].engine.counters().executed, 80);
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

// What a peer that lies may say.

/// A SEND of 8 bytes to the scene's QP.
fn send(scene: &Scene, number: u32) -> Vec<u8> {
    let record = Record {
        opcode: Opcode::SRC_SEND,
        solicited: false,
        abort: false,
        generation: generation_of(LIFE, scene.life),
        src_qp: PEER,
        replay_epoch: 0,
        dest_qp: scene.qp.qpn,
        msn: FIRST_MSN.wrapping_add(number),
        offset: 0,
        length: 8,
    };
    [&record.to_bytes()[..], &[number as u8; 8]].concat()
}

fn scene() -> Scene {
    let scene = Scene::new();
    for wr_id in 0..8 {
        scene
            .pair
            .receive(&scene.qp, wr_id, &[scene.pair.sge(1, 64 * wr_id, 8)]);
    }
    scene
}

fn received(scene: &Scene) -> Vec<u64> {
    let done = scene.pair.completions(1);
    done.iter().map(|done| done.wr_id).collect()
}

#[test]
fn a_packet_cut_short_anywhere_moves_nothing_or_whole_records() {
    let whole = {
        let scene = scene();
        [send(&scene, 0), send(&scene, 1), send(&scene, 2)].concat()
    };
    for length in 0..=whole.len() {
        let mut scene = scene();
        let said = [send(&scene, 0), send(&scene, 1), send(&scene, 2)].concat();
        scene.say(Opcode::SRC_PACKED, LAST, &said[..length]);
        let behind = length % 28;
        let malformed = behind >= 20;
        let counters = scene.counters();
        assert_eq!(counters.malformed, u64::from(malformed), "{length}");
        let whole = if malformed { 0 } else { length / 28 };
        assert_eq!(received(&scene).len(), whole, "{length}");
    }
}

#[test]
fn records_come_in_any_order_twice_and_for_others_and_each_has_its_own_fate() {
    let mut scene = scene();
    let foreign = {
        let mut foreign = send(&scene, 0);
        foreign[4..7].copy_from_slice(&[0xff, 0xff, 0xfe]);
        foreign
    };
    let said = [
        send(&scene, 2),
        send(&scene, 1),
        foreign,
        send(&scene, 0),
        send(&scene, 0),
        send(&scene, 3),
    ];
    scene.say(Opcode::SRC_PACKED, LAST, &said.concat());
    assert_eq!(received(&scene), [0, 1, 2, 3]);
    for number in 0..4 {
        let arrived = scene.pair.nodes[1].buffer.get(64 * number, 8);
        assert_eq!(arrived, [number as u8; 8]);
    }
    let counters = scene.counters();
    assert_eq!((counters.unknown_qp, counters.duplicate), (1, 1));
    let heard = scene.liar.hears(&mut scene.pair);
    let answers: Vec<Answer> = heard
        .iter()
        .filter(|datagram| opcode(datagram) == Opcode::SRC_ANSWERS)
        .flat_map(|datagram| Answer::entries(&datagram[BODY..datagram.len() - SUM]))
        .flat_map(|entries| entries.map(|entry| entry.expect("it is well formed")))
        .collect();
    let nobody = Qpn::from_wire(0x00ff_fffe);
    let of = |qp: Qpn| answers.iter().find(|answer| answer.responder == qp);
    let nak = of(nobody).expect("it is told").syndrome;
    assert_eq!(nak, Syndrome::Nak(NakCode::InvalidRd));
    let done = of(scene.qp.qpn).expect("it is told");
    assert_eq!(done.msn, FIRST_MSN.wrapping_add(4));
}

#[test]
fn packets_of_records_neither_nest_nor_carry_what_has_no_number() {
    for inner in [
        Opcode::SRC_PACKED,
        Opcode::SRC_ACK,
        Opcode::SRC_CLOSE,
        Opcode(0x04),
    ] {
        let mut scene = scene();
        let mut bad = send(&scene, 1);
        bad[7] = inner.0;
        let said = [send(&scene, 0), bad].concat();
        scene.say(Opcode::SRC_PACKED, LAST, &said);
        assert_eq!(scene.counters().malformed, 1, "{inner}");
        assert_eq!(received(&scene), [], "{inner}");
    }
}

#[test]
fn a_packet_that_makes_no_sense_is_not_acknowledged() {
    let mut scene = scene();
    let cut = send(&scene, 0);
    let packet = scene
        .liar
        .packet(Opcode::SRC_PACKED, LAST, &cut[..cut.len() - 1]);
    for times in 1..=2 {
        scene.pair.deliver(1, std::slice::from_ref(&packet));
        let counters = scene.counters();
        assert_eq!((counters.malformed, counters.duplicate), (times, 0));
    }
}

#[test]
fn a_record_that_had_to_wait_asks_for_its_event_as_others_do() {
    let mut scene = scene();
    let said: Vec<_> = [2, 1, 0].map(|number| send(&scene, number)).into();
    let solicited = said.into_iter().map(|mut record| {
        record[8] |= 0x10;
        record
    });
    let solicited: Vec<_> = solicited.collect();
    scene.say(Opcode::SRC_PACKED, LAST, &solicited.concat());
    let done = scene.pair.completions(1);
    assert_eq!(done.len(), 3);
    assert!(done.iter().all(|done| done.solicited));
}

#[test]
fn an_empty_packet_is_accepted_and_says_nothing() {
    let mut scene = scene();
    for padding in [0, 1, 19, 20, 400] {
        scene.say(Opcode::SRC_PACKED, LAST, &vec![0; padding]);
    }
    let counters = scene.counters();
    assert_eq!((counters.malformed, counters.packed_received), (0, 5));
    scene.say(Opcode::SRC_PACKED, LAST, &send(&scene, 0));
    assert_eq!(received(&scene), [0]);
}

/// A full table of what is still to be refused holds up no packet that has nothing of the kind.
#[test]
fn a_packet_that_would_be_refused_too_often_waits_and_others_do_not() {
    let mut scene = scene();
    let unknown = |number: u32| {
        let mut record = send(&scene, number);
        let [_, dest @ ..] = (number + 1).to_be_bytes();
        record[4..7].copy_from_slice(&dest);
        record
    };
    let many: Vec<Vec<u8>> = (0..1200).map(unknown).collect();
    for packet in many.chunks(100) {
        scene.say(Opcode::SRC_PACKED, LAST, &packet.concat());
    }
    let counters = scene.counters();
    assert_eq!(counters.packed_received, 10, "room for 1024");
    assert_eq!(counters.control_overflow, 2);
    scene.say(Opcode::SRC_PACKED, LAST, &many[1000..1024].concat());
    scene.say(Opcode::SRC_PACKED, LAST, &many[1199]);
    assert_eq!(scene.counters().control_overflow, 3, "it is full");
    scene.say(Opcode::SRC_PACKED, LAST, &send(&scene, 0));
    assert_eq!(received(&scene), [0]);
}
