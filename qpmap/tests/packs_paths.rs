//! Packets that several messages share, and what gets lost: packets, connections, memory, room.

use crate::common::{Buffer, Pair};
use crate::packs::{
    BODY, SUM, connected, each_arrived, opcode, outcomes, pair, records, remote, send_one_each,
};
use std::cell::Cell;
use std::rc::Rc;
use trunkline_conn::mem::{Access, AtomicOp, Sge};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Remote, SendOp, Status};
use trunkline_qpmap::QpState;
use trunkline_wire::{Lkey, Opcode, PackedRecord, Records, Rkey};

/// One more region of a node: where it is, and its key.
fn region(pair: &mut Pair, node: usize) -> (u64, Rkey) {
    let addr = 1 << 40;
    let node = &mut pair.nodes[node];
    let bytes = Buffer::new(addr, 4096);
    let made = node.engine.regions().register(node.pd, bytes, Access::ALL);
    (addr, made.expect("a region like others").rkey)
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
        let (addr, key) = region(&mut pair, 0);
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
        let voids = Rc::new(Cell::new(0));
        let counted = Rc::clone(&voids);
        pair.fate = Box::new(move |from, datagram| {
            if from == 0 && opcode(datagram) == Opcode::SRC_PACKED {
                let body = Records::of(&datagram[BODY..datagram.len() - SUM]).flatten();
                let is_void = |at: &PackedRecord<'_>| at.header.opcode() == Opcode::SRC_VOID;
                for void in body.filter(is_void) {
                    assert_eq!(void.payload, [0; 100], "nothing else's bytes");
                    counted.set(counted.get() + 1);
                }
            }
            1
        });
        pair.run(SECOND);
        assert_eq!(voids.get(), i32::from(again));
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

/// The same where one QP said all of it: its first message fails it, and the others end with that.
#[test]
fn data_that_is_gone_of_several_messages_of_a_qp_fails_the_first_of_them() {
    let mut pair = pair();
    let qps = connected(&mut pair, 2);
    let (addr, key) = region(&mut pair, 0);
    let gone = Sge {
        addr,
        length: 100,
        lkey: Lkey(key.0),
    };
    for wr_id in 0..3 {
        for [a, b] in &qps {
            let of_first = a.qpn == qps[0][0].qpn;
            let sge = if of_first { gone } else { pair.sge(0, 0, 100) };
            pair.receive(b, wr_id, &[pair.sge(1, 8192, 100)]);
            pair.post(
                0,
                a,
                10 * u64::from(!of_first) + wr_id,
                SendOp::Send,
                &[sge],
            );
        }
    }
    // It is lost.
    assert_eq!(records(&pair.sent_by(0)[0].1).len(), 6);
    pair.nodes[0].deregister(key);
    pair.run(SECOND);
    let mut done = outcomes(&pair, 0);
    done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    let expected = [
        (0, Status::LocalProtection),
        (1, Status::Flushed),
        (2, Status::Flushed),
        (10, Status::Success),
        (11, Status::Success),
        (12, Status::Success),
    ];
    assert_eq!(done, expected);
}

/// The memory of a READ goes between its execution and its response, which shares a packet: that
/// ends the QP, and with it what it was about to send itself.
#[test]
fn a_response_whose_memory_is_gone_ends_what_its_qp_was_about_to_send() {
    for length in [64, 1000] {
        let mut pair = pair();
        let qps = connected(&mut pair, 2);
        let (addr, rkey) = region(&mut pair, 1);
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
        let (addr, rkey) = region(&mut pair, 1);
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
