//! Two engines, every operation, in order and exactly once.

use crate::common::liar::{LAST, Liar};
use crate::common::{Node, Pair};
use trunkline_conn::host::QpEvent;
use trunkline_conn::mem::AtomicOp;
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Extra, Remote, SendOp, Status, WorkOpcode};
use trunkline_qpmap::{Attributes, Event, QpModify, QpType};
use trunkline_wire::{Opcode, Psn, Rkey};

fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed))
        .collect()
}

#[test]
fn a_send_arrives_and_both_ends_hear_of_it() {
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    pair.nodes[0].buffer.set(0, &bytes(1, 64));
    pair.receive(&b, 7, &[pair.sge(1, 100, 64)]);
    pair.post(0, &a, 9, SendOp::Send, &[pair.sge(0, 0, 64)]);
    pair.run(MILLISECOND);
    let sent = pair.completions(0);
    let received = pair.completions(1);
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].wr_id, sent[0].status), (9, Status::Success));
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].wr_id, received[0].byte_len), (7, 64));
    assert_eq!(received[0].src_qp, a.qpn);
    assert_eq!(pair.nodes[1].buffer.get(100, 64), bytes(1, 64));
}

#[test]
fn every_operation_does_what_it_says_on_a_shared_connection() {
    for size in [0, 1, 1023, 1024, 1025, 5000] {
        every_operation(Pair::new(1), size);
    }
}

#[test]
fn every_operation_does_what_it_says_as_plain_rc() {
    for size in [0, 1, 1023, 1024, 1025, 5000] {
        let mut pair = Pair::new(0);
        pair.ibta = true;
        every_operation(pair, size);
    }
}

#[test]
fn what_a_qp_gets_for_sending_when_it_goes_to_rts_holds_though_its_peer_was_known_before() {
    let mut pair = Pair::new(0);
    pair.ibta = true;
    for kind in [QpType::Rc, QpType::Rc, QpType::Uc] {
        let qps = [pair.qp(0, kind), pair.qp(1, kind)];
        for node in [0, 1] {
            let to_receive = Attributes {
                remote: std::net::IpAddr::from([10, 0, 0, 2 - node as u8]).into(),
                dest_qpn: qps[1 - node].qpn,
                rq_psn: Psn::from_wire(1000),
                ..Attributes::default()
            };
            let to_send = Attributes {
                sq_psn: Psn::from_wire(1000),
                ..to_receive
            };
            pair.take_to_rts(node, &qps[node], to_receive, to_send);
        }
        pair.receive(&qps[1], 7, &[pair.sge(1, 100, 64)]);
        pair.post(0, &qps[0], 9, SendOp::Send, &[pair.sge(0, 0, 64)]);
        pair.run(MILLISECOND);
        assert_eq!(pair.completions(0).len(), 1, "{kind:?}");
        assert_eq!(pair.completions(1).len(), 1, "{kind:?}");
    }
}

#[test]
fn a_qp_that_took_its_peer_for_an_ordinary_host_shares_once_the_peer_binds_to_it() {
    let mut pair = Pair::new(0);
    let [a, b] = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    pair.ibta = true;
    pair.connect(0, &a, &b);
    pair.nodes[0].buffer.set(0, &bytes(1, 5000));
    for i in 0..40 {
        pair.receive(&b, i, &[pair.sge(1, 5000 * i, 5000)]);
        pair.post(0, &a, i, SendOp::Send, &[pair.sge(0, 0, 5000)]);
    }
    // Nobody answers: the peer's QP is not connected yet.
    pair.run(MILLISECOND);
    assert!(pair.completions(0).is_empty());
    pair.ibta = false;
    pair.open();
    pair.connect(1, &b, &a);
    pair.run(20 * MILLISECOND);
    let (sent, received) = (pair.completions(0), pair.completions(1));
    let order: Vec<u64> = sent.iter().map(|done| done.wr_id).collect();
    assert_eq!(order, (0..40).collect::<Vec<_>>());
    assert!(sent.iter().all(|done| done.status == Status::Success));
    assert_eq!(received.len(), 40);
    assert_eq!(pair.nodes[1].buffer.get(39 * 5000, 5000), bytes(1, 5000));
    // What it posts from now on goes the same way.
    pair.receive(&b, 40, &[pair.sge(1, 0, 8)]);
    pair.post(0, &a, 40, SendOp::Send, &[pair.sge(0, 0, 8)]);
    pair.run(MILLISECOND);
    assert_eq!(pair.completions(0)[0].wr_id, 40);
}

#[test]
fn a_plain_peer_hears_why_its_request_sent_the_qp_to_error() {
    for room in [None, Some(0)] {
        let mut pair = Pair::new(0);
        pair.ibta = true;
        let [a, _] = pair.connected();
        let remote = Remote {
            addr: pair.nodes[1].buffer.addr,
            rkey: Rkey(!pair.nodes[1].key.0),
        };
        pair.post(0, &a, 1, SendOp::Write(remote), &[pair.sge(0, 0, 8)]);
        pair.step(0);
        // The refusal may have to wait for room.
        pair.room = room;
        pair.run(10_000);
        pair.room = None;
        pair.run(MILLISECOND);
        let done = pair.completions(0);
        assert_eq!(done.len(), 1, "{:?}", pair.nodes[1].engine.counters());
        assert_eq!(done[0].status, Status::RemoteAccess);
    }
}

#[test]
fn a_qp_on_an_srq_says_once_that_it_takes_no_more_however_it_fails() {
    for ibta in [false, true] {
        for fails_by_itself in [false, true] {
            let mut pair = Pair::new(usize::from(!ibta));
            pair.ibta = ibta;
            pair.srqs = [0, 1].map(|node| {
                let Node { engine, pd, .. } = &mut pair.nodes[node];
                let (srq, _) = engine.create_srq(*pd, 16, 1).expect("a first SRQ");
                Some(srq)
            });
            let [a, b] = pair.connected();
            let remote = Remote {
                addr: pair.nodes[1].buffer.addr,
                rkey: Rkey(!pair.nodes[1].key.0),
            };
            pair.run(MILLISECOND);
            if fails_by_itself {
                pair.post(0, &a, 1, SendOp::Write(remote), &[pair.sge(0, 0, 8)]);
            } else {
                for (node, qp) in [&a, &b].into_iter().enumerate() {
                    let engine = &mut pair.nodes[node].engine;
                    let failed = engine.modify_qp(qp.qpn, &QpModify::Error);
                    failed.expect("any QP can be failed");
                }
            }
            pair.run(MILLISECOND);
            for node in &mut pair.nodes {
                let events = std::iter::from_fn(|| node.engine.poll_event());
                let last = |event: &Event| {
                    let event = match event {
                        Event::Qp { event, .. } => event,
                        _ => return false,
                    };
                    *event == QpEvent::LastWqeReached
                };
                let case = (ibta, fails_by_itself);
                assert_eq!(events.filter(last).count(), 1, "ibta, by itself: {case:?}");
            }
        }
    }
}

#[test]
fn answers_and_binds_are_not_held_up_by_data_that_fills_the_window() {
    // Packets as large as what pacing lets go at once: hardly ever is there room for two.
    let mut pair = Pair::with(1, 65_507);
    let [_, bulk] = pair.connected();
    let [asking, asked] = pair.connected();
    pair.run(MILLISECOND);
    let length = 512 * 1024;
    let remote = Remote {
        addr: pair.nodes[0].buffer.addr,
        rkey: pair.nodes[0].key,
    };
    for wr_id in 0..32 {
        let sge = pair.sge(1, 0, length);
        pair.post(1, &bulk, wr_id, SendOp::Write(remote), &[sge]);
    }
    pair.run(20_000);
    pair.receive(&asked, 100, &[pair.sge(1, 1 << 19, 64)]);
    pair.post(0, &asking, 7, SendOp::Send, &[pair.sge(0, 1 << 19, 64)]);
    // The window is full of data for as long as there is any, and that is far longer.
    let before = pair.now;
    while pair.completions(0).is_empty() {
        pair.run(1_000);
    }
    let took = pair.now.since(before);
    assert!(took < 100_000, "the answer took {took} ns");
    let written = pair.completions(1);
    let writes = written.iter().filter(|done| done.wr_id < 32).count();
    assert!(writes < 16, "{writes} WRITEs went before it");
}

#[test]
fn plain_connections_go_on_when_a_full_port_has_room_again() {
    let mut pair = Pair::new(0);
    pair.ibta = true;
    pair.room = Some(2);
    let length = 100 * 1024;
    pair.nodes[0].buffer.set(0, &bytes(3, length));
    for i in 0..3u64 {
        let [a, _] = pair.connected();
        let remote = Remote {
            addr: pair.nodes[1].buffer.addr + i * length as u64,
            rkey: pair.nodes[1].key,
        };
        pair.post(
            0,
            &a,
            i,
            SendOp::Write(remote),
            &[pair.sge(0, 0, length as u32)],
        );
    }
    // Far less than the timer of an acknowledgement, after which they would be asked again.
    pair.run(5 * MILLISECOND);
    let done = pair.completions(0);
    assert_eq!(done.len(), 3, "{:?}", pair.nodes[0].engine.counters());
    assert!(done.iter().all(|done| done.status == Status::Success));
}

fn every_operation(mut pair: Pair, size: usize) {
    {
        let [a, b] = pair.connected();
        pair.nodes[0].buffer.set(0, &bytes(3, size));
        pair.nodes[1].buffer.set(20_000, &bytes(5, size));
        pair.nodes[1].buffer.set(40_000, &41u64.to_ne_bytes());
        let remote = |pair: &Pair, offset: u64| Remote {
            addr: pair.nodes[1].buffer.addr + offset,
            rkey: pair.nodes[1].key,
        };
        let local = pair.sge(0, 0, size as u32);
        for wr_id in 0..3 {
            pair.receive(&b, wr_id, &[pair.sge(1, 10_000 * (wr_id + 5), 6000)]);
        }
        pair.post(0, &a, 1, SendOp::Send, &[local]);
        pair.post(0, &a, 2, SendOp::SendImm(0xabcd), &[local]);
        pair.post(0, &a, 3, SendOp::Write(remote(&pair, 30_000)), &[local]);
        pair.post(0, &a, 4, SendOp::WriteImm(remote(&pair, 0), 77), &[local]);
        let back = pair.sge(0, 100_000, size as u32);
        pair.post(0, &a, 5, SendOp::Read(remote(&pair, 20_000)), &[back]);
        let cell = pair.sge(0, 200_000, 8);
        let add = AtomicOp::FetchAdd { add: 1 };
        pair.post(
            0,
            &a,
            6,
            SendOp::Atomic(remote(&pair, 40_000), add),
            &[cell],
        );
        let swap = AtomicOp::CompareSwap {
            compare: 42,
            swap: 1,
        };
        let cell = pair.sge(0, 200_008, 8);
        pair.post(
            0,
            &a,
            7,
            SendOp::Atomic(remote(&pair, 40_000), swap),
            &[cell],
        );
        pair.run(10 * MILLISECOND);
        let done = pair.completions(0);
        assert_eq!(
            done.iter().map(|c| c.wr_id).collect::<Vec<_>>(),
            [1, 2, 3, 4, 5, 6, 7]
        );
        assert!(done.iter().all(|c| c.status == Status::Success), "{done:?}");
        let got = pair.completions(1);
        assert_eq!(got.len(), 3, "{got:?}");
        assert_eq!(got[1].extra, Extra::Immediate(0xabcd));
        assert_eq!(got[2].extra, Extra::Immediate(77));
        assert_eq!(got[2].opcode, WorkOpcode::ReceiveWriteImm);
        let (near, far) = (&pair.nodes[0].buffer, &pair.nodes[1].buffer);
        for offset in [50_000, 60_000, 30_000, 0] {
            assert_eq!(far.get(offset, size), bytes(3, size));
        }
        assert_eq!(near.get(100_000, size), bytes(5, size));
        assert_eq!(near.get(200_000, 8), 41u64.to_ne_bytes());
        assert_eq!(near.get(200_008, 8), 42u64.to_ne_bytes());
        assert_eq!(far.get(40_000, 8), 1u64.to_ne_bytes());
    }
}

#[test]
fn loss_and_duplication_change_nothing() {
    let mut pair = Pair::new(2);
    let mut state = 1u64;
    pair.fate = Box::new(move |_, _| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(11);
        match (state >> 40) % 10 {
            0 | 1 => 0,
            2 => 2,
            _ => 1,
        }
    });
    let [a, b] = pair.connected();
    pair.nodes[0].buffer.set(0, &bytes(9, 100_000));
    for i in 0..20u64 {
        pair.receive(&b, i, &[pair.sge(1, 10_000 * i, 5000)]);
        let sge = pair.sge(0, i * 1000, 3000 + i as u32);
        pair.post(0, &a, i, SendOp::Send, &[sge]);
    }
    pair.run(2 * SECOND);
    let done = pair.completions(0);
    assert_eq!(done.len(), 20, "{:?}", pair.nodes[0].engine.counters());
    assert!(
        done.iter()
            .zip(0..)
            .all(|(c, i)| (c.wr_id, c.status) == (i, Status::Success))
    );
    let got = pair.completions(1);
    assert!(
        got.iter()
            .zip(0..)
            .all(|(c, i)| (c.wr_id, c.byte_len) == (i, 3000 + i as u32))
    );
    for i in 0..20 {
        let want = pair.nodes[0].buffer.get(i * 1000, 3000 + i);
        assert_eq!(pair.nodes[1].buffer.get(10_000 * i, 3000 + i), want);
    }
}

/// What connections need while they are active is taken for as many as are so at once, and not kept
/// for good.
#[test]
fn what_many_connections_needed_at_once_is_freed_once_they_are_idle() {
    let mut pair = Pair::configured(64, 4176, |config| config.keep_alive_ns = 10 * SECOND);
    let spare = |pair: &Pair| pair.nodes[0].engine.state_bytes().spare;
    pair.run(9 * SECOND);
    assert_eq!(spare(&pair), 0, "they have nothing to do");
    // All ask their peers at once now.
    pair.run(SECOND + MILLISECOND);
    assert!(spare(&pair) > 64 * 1024, "{} bytes", spare(&pair));
    pair.run(3 * SECOND);
    assert_eq!(spare(&pair), 0, "nobody has needed it for two seconds");
}

#[test]
fn what_somebody_reads_of_a_connections_counts_never_falls_however_long_it_rests() {
    for kept in [false, true] {
        let mut pair = Pair::new(1);
        let [a, b] = pair.connected();
        let conn = pair.conns[0][0];
        let mut last = 0;
        for round in 0..3 {
            pair.receive(&b, round, &[pair.sge(1, 0, 64)]);
            pair.post(0, &a, round, SendOp::Send, &[pair.sge(0, 0, 64)]);
            pair.run(MILLISECOND);
            if kept {
                pair.nodes[0].engine.keep_counts(conn);
            }
            pair.run(400 * SECOND);
            let stats = pair.nodes[0].engine.connection_stats(conn);
            let bytes = stats.expect("it is idle").delivery.counters.acked_bytes;
            assert_eq!(bytes > last, kept, "round {round}: {bytes} after {last}");
            last = bytes;
        }
        // What the node counted is there in any case.
        let all = pair.nodes[0].engine.delivery_counters().acked_bytes;
        assert!(all >= 3 * 64, "{all}");
    }
}

#[test]
fn what_a_connection_has_counted_is_its_own_and_lasts_for_a_minute() {
    let mut pair = Pair::new(1);
    let sent = |pair: &Pair| {
        let id = pair.conns.last().expect("there is one")[0];
        let stats = pair.nodes[0].engine.connection_stats(id);
        stats.expect("it is open").delivery.counters.sent
    };
    let work = |pair: &mut Pair| {
        let [a, b] = pair.connected();
        pair.run(SECOND);
        for (node, qp) in [(0, a), (1, b)] {
            pair.nodes[node]
                .engine
                .destroy_qp(qp.qpn)
                .expect("it is there");
        }
        pair.run(SECOND);
    };
    work(&mut pair);
    let first = sent(&pair);
    assert!(first > 2);
    pair.run(65 * SECOND);
    assert!(sent(&pair) >= first);
    work(&mut pair);
    assert!(sent(&pair) >= first + 2, "it goes on counting");
    pair.run(65 * SECOND);
    let [near, far] = pair.conns[0];
    pair.nodes[0].engine.close_connection(near);
    pair.nodes[1].engine.close_connection(far);
    pair.run(SECOND);
    pair.open();
    assert_eq!(pair.conns[1][0].key().0, near.key().0, "it has the index");
    assert_eq!(sent(&pair), 0);
}

/// A keep-alive is one packet, sent or taken.
#[test]
fn two_packets_are_work_and_a_keep_alive_is_none() {
    for packets in [1, 2] {
        let mut pair = Pair::new(0);
        let mut liar = Liar::new(&mut pair, 9);
        let said: Vec<_> = (0..packets)
            .map(|_| liar.packet(Opcode::SRC_PING, LAST, &[]))
            .collect();
        pair.deliver(1, &said);
        pair.now = pair.now + SECOND;
        liar.hears(&mut pair);
        let stats = pair.nodes[1].engine.connection_stats(liar.conn);
        let accepted = stats.expect("it stands").delivery.counters.accepted;
        let kept = if packets > 1 { packets } else { 0 };
        assert_eq!(accepted, kept, "of a connection that is idle");
    }
}
