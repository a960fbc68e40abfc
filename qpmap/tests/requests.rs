//! What becomes of requests: how many may be outstanding, which of them fails, and who may be
//! answered.

use crate::common::{Pair, RingMemory};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use trunkline_conn::host::QpEvent;
use trunkline_conn::mem::{Access, AtomicOp};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Remote, SendFlags, SendOp, Status};
use trunkline_qpmap::wqe::SendWr;
use trunkline_qpmap::{Attributes, Event, QpModify, QpQueues, QpState, QpType};
use trunkline_wire::{Opcode, Path, Rkey, icrc};

type Qp = Arc<QpQueues<RingMemory>>;

/// Where the extension header's MSN, offset and RETH stand in a packet: docs/wire-format.md.
const MSN: usize = 32;
const OFFSET: usize = 36;
const RETH: usize = 52;

fn attributes(node: usize, peer: &Qp) -> Attributes {
    Attributes {
        remote: std::net::IpAddr::from([10, 0, 0, 2 - node as u8]).into(),
        dest_qpn: peer.qpn,
        ..Attributes::default()
    }
}

/// Two QPs that are connected, with attributes as `change` makes them for either node.
fn connected(pair: &mut Pair, change: impl Fn(usize, &mut Attributes)) -> [Qp; 2] {
    let qps = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    for node in [0, 1] {
        let mut attributes = attributes(node, &qps[1 - node]);
        change(node, &mut attributes);
        pair.take_to_rts(node, &qps[node], attributes, attributes);
    }
    pair.run(5 * MILLISECOND);
    qps
}

fn shared_and_ibta() -> [Pair; 2] {
    let mut ibta = Pair::new(0);
    ibta.ibta = true;
    [Pair::new(1), ibta]
}

fn remote(pair: &Pair, node: usize, offset: u64) -> Remote {
    Remote {
        addr: pair.nodes[node].buffer.addr + offset,
        rkey: pair.nodes[node].key,
    }
}

fn read(pair: &Pair, qp: &Qp, wr_id: u64, length: u32) {
    let from = remote(pair, 1, 4096);
    let into = pair.sge(0, wr_id * 4096, length);
    pair.post(0, qp, wr_id, SendOp::Read(from), &[into]);
}

fn outcomes(pair: &Pair, node: usize) -> Vec<(u64, Status)> {
    let done = pair.completions(node).into_iter();
    done.map(|done| (done.wr_id, done.status)).collect()
}

fn events(pair: &mut Pair, node: usize, qp: &Qp) -> Vec<QpEvent> {
    let engine = &mut pair.nodes[node].engine;
    let mut found = Vec::new();
    while let Some(event) = engine.poll_event() {
        if let Event::Qp { qpn, event } = event
            && qpn == qp.qpn
            && event != QpEvent::CommunicationEstablished
        {
            found.push(event);
        }
    }
    found
}

/// A second region of a node, with its own key.
fn region(pair: &mut Pair, node: usize, access: Access) -> (u64, Rkey) {
    let addr = (node as u64 + 1) << 40;
    let node = &mut pair.nodes[node];
    let bytes = crate::common::Buffer::new(addr, 1 << 16);
    let made = node.engine.regions().register(node.pd, bytes, access);
    (addr, made.expect("a region like others").rkey)
}

/// Loses the first datagram of `opcode` that node `from` sends.
fn lose_first(pair: &mut Pair, from: usize, opcode: Opcode) {
    let lost = Cell::new(false);
    pair.fate = Box::new(move |node, datagram| {
        let hit = node == from && Opcode(datagram[0]) == opcode && !lost.replace(true);
        usize::from(!hit)
    });
}

// How many may be outstanding.

#[test]
fn a_qp_that_sends_more_reads_than_its_peer_allows_fails_alone() {
    for mut pair in shared_and_ibta() {
        let [a, b] = connected(&mut pair, |_, attributes| attributes.max_dest_rd_atomic = 2);
        let [other, _] = pair.connected();
        for wr_id in 0..8 {
            read(&pair, &a, wr_id, 256);
        }
        read(&pair, &other, 100, 4096);
        pair.run(8 * SECOND);
        let done = outcomes(&pair, 0);
        assert!(done.contains(&(100, Status::Success)), "{done:?}");
        let own: Vec<_> = done.into_iter().filter(|(id, _)| *id < 8).collect();
        assert_eq!(own.len(), 8, "{own:?}");
        let failed: Vec<_> = own.iter().filter(|(_, s)| *s != Status::Flushed).collect();
        let last = failed.last().expect("one says why");
        assert_eq!(last.1, Status::RemoteInvalidRequest, "{own:?}");
        assert_eq!(failed.len(), 3, "two are answered: {own:?}");
        assert_eq!(b.state(), QpState::Error);
        assert_eq!(pair.nodes[0].engine.counters().failovers, 0);
        let shared = pair
            .conns
            .iter()
            .all(|ids| pair.nodes[0].engine.is_open(ids[0]));
        assert!(shared, "the connection lives");
    }
}

#[test]
fn reads_up_to_the_agreed_number_are_answered_however_small_it_is() {
    for mut pair in shared_and_ibta() {
        let [a, _b] = connected(&mut pair, |_, attributes| {
            (attributes.max_rd_atomic, attributes.max_dest_rd_atomic) = (1, 1);
        });
        for wr_id in 0..20 {
            read(&pair, &a, wr_id, 4096);
        }
        pair.run(SECOND);
        let expected = (0..20).map(|wr_id| (wr_id, Status::Success));
        assert!(outcomes(&pair, 0).into_iter().eq(expected));
    }
}

#[test]
fn a_peer_without_room_for_reads_refuses_the_first_one() {
    for mut pair in shared_and_ibta() {
        let [a, b] = connected(&mut pair, |_, attributes| attributes.max_dest_rd_atomic = 0);
        read(&pair, &a, 1, 64);
        pair.run(SECOND);
        assert_eq!(outcomes(&pair, 0), [(1, Status::RemoteInvalidRequest)]);
        assert_eq!(b.state(), QpState::Error);
    }
}

#[test]
fn a_qp_that_may_have_no_reads_outstanding_fails_one_that_is_posted() {
    for mut pair in shared_and_ibta() {
        let [a, b] = connected(&mut pair, |_, attributes| attributes.max_rd_atomic = 0);
        let target = SendOp::Write(remote(&pair, 1, 0));
        pair.post(0, &a, 1, target, &[pair.sge(0, 0, 64)]);
        let add = SendOp::Atomic(remote(&pair, 1, 0), AtomicOp::FetchAdd { add: 1 });
        pair.post(0, &a, 2, add, &[pair.sge(0, 0, 8)]);
        pair.run(SECOND);
        let expected = [(1, Status::Success), (2, Status::LocalQpOperation)];
        assert_eq!(outcomes(&pair, 0), expected);
        assert_ne!(b.state(), QpState::Error);
    }
}

#[test]
fn no_read_begins_that_could_push_out_a_result_that_is_still_needed() {
    let mut pair = Pair::new(2);
    let [a, _b] = connected(&mut pair, |_, attributes| {
        (attributes.max_rd_atomic, attributes.max_dest_rd_atomic) = (2, 2);
    });
    // The result of the atomic is lost for as long as its connection lives.
    let (held, reads) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(0)));
    let (lossy, counted) = (Rc::clone(&held), Rc::clone(&reads));
    pair.fate = Box::new(move |node, datagram| {
        let opcode = Opcode(datagram[0]);
        if node == 0 && opcode == Opcode::SRC_READ_REQ {
            counted.set(counted.get() + 1);
        }
        usize::from(!(lossy.get() && node == 1 && opcode == Opcode::SRC_ATOMIC_RESP))
    });
    let add = SendOp::Atomic(remote(&pair, 1, 0), AtomicOp::FetchAdd { add: 1 });
    pair.post(0, &a, 0, add, &[pair.sge(0, 0, 8)]);
    for wr_id in 1..12 {
        read(&pair, &a, wr_id, 64);
    }
    pair.run(20 * MILLISECOND);
    assert_eq!(reads.get(), 1, "one beside the atomic");
    // The connection goes down with it: the result is told again over the other one.
    let conn = pair.conns.iter().position(|ids| {
        let stats = pair.nodes[0].engine.connection_stats(ids[0]);
        stats.is_some_and(|stats| stats.flows > 0)
    });
    let ids = pair.conns[conn.expect("the flow is on one of them")];
    held.set(false);
    for node in [0, 1] {
        pair.nodes[node].engine.close_connection(ids[node]);
    }
    pair.run(SECOND);
    let expected = (0..12).map(|wr_id| (wr_id, Status::Success));
    assert!(outcomes(&pair, 0).into_iter().eq(expected));
    assert_eq!(pair.nodes[1].buffer.get(0, 8), 1u64.to_ne_bytes(), "once");
}

// Which of them fails.

#[test]
fn only_the_read_whose_landing_place_is_gone_fails() {
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    pair.run(5 * MILLISECOND);
    let (addr, key) = region(&mut pair, 0, Access::ALL);
    lose_first(&mut pair, 1, Opcode::SRC_READ_RESP);
    read(&pair, &a, 1, 3000);
    let gone = trunkline_conn::mem::Sge {
        addr,
        length: 3000,
        lkey: trunkline_wire::Lkey(key.0),
    };
    let from = SendOp::Read(remote(&pair, 1, 0));
    pair.post(0, &a, 2, from, &[gone]);
    pair.step(0);
    pair.nodes[0].deregister(key);
    pair.run(SECOND);
    let expected = [(1, Status::Success), (2, Status::LocalProtection)];
    assert_eq!(outcomes(&pair, 0), expected);
    assert_eq!(a.state(), QpState::Error);
    assert_ne!(b.state(), QpState::Error);
}

#[test]
fn a_read_whose_memory_the_peer_takes_away_is_refused_and_earlier_ones_succeed() {
    for mut pair in shared_and_ibta() {
        let ibta = pair.ibta;
        let [a, b] = pair.connected();
        pair.run(5 * MILLISECOND);
        let (addr, rkey) = region(&mut pair, 1, Access::ALL);
        let response = match ibta {
            true => Opcode::RC_READ_RESPONSE_FIRST,
            false => Opcode::SRC_READ_RESP,
        };
        lose_first(&mut pair, 1, response);
        read(&pair, &a, 1, 3000);
        // The port carries few at once, so that the second is not answered when the memory goes,
        // but the first window of plain RC has room to ask for all of it.
        pair.room = Some(1);
        let from = SendOp::Read(Remote { addr, rkey });
        pair.post(0, &a, 2, from, &[pair.sge(0, 8192, 6500)]);
        read(&pair, &a, 3, 100);
        for _ in 0..6 {
            pair.step(0);
            pair.step(1);
            pair.now = pair.now + 1000;
        }
        events(&mut pair, 1, &b);
        pair.nodes[1].deregister(rkey);
        pair.room = None;
        pair.run(SECOND);
        let expected = [
            (1, Status::Success),
            (2, Status::RemoteAccess),
            (3, Status::Flushed),
        ];
        assert_eq!(outcomes(&pair, 0), expected, "ibta: {ibta}");
        // Over plain RC it was asked for again with the first: the responder does not know that
        // its requester never had the data.
        let heard = events(&mut pair, 1, &b);
        match ibta {
            true => assert_eq!((b.state(), heard), (QpState::Rts, Vec::new())),
            false => assert_eq!(
                (b.state(), heard),
                (QpState::Error, vec![QpEvent::AccessError])
            ),
        }
    }
}

#[test]
fn only_the_write_whose_data_is_gone_fails() {
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    pair.run(5 * MILLISECOND);
    let (addr, key) = region(&mut pair, 0, Access::ALL);
    lose_first(&mut pair, 0, Opcode::SRC_WRITE);
    pair.nodes[0].buffer.set(0, &[9; 100]);
    let target = SendOp::Write(remote(&pair, 1, 0));
    pair.post(0, &a, 1, target, &[pair.sge(0, 0, 100)]);
    let gone = trunkline_conn::mem::Sge {
        addr,
        length: 30_000,
        lkey: trunkline_wire::Lkey(key.0),
    };
    let target = SendOp::Write(remote(&pair, 1, 4096));
    pair.post(0, &a, 2, target, &[gone]);
    pair.room = Some(3);
    pair.step(0);
    pair.nodes[0].deregister(key);
    pair.room = None;
    pair.run(SECOND);
    let expected = [(1, Status::Success), (2, Status::LocalProtection)];
    assert_eq!(outcomes(&pair, 0), expected);
    assert_eq!(pair.nodes[1].buffer.get(0, 100), [9; 100]);
    assert_eq!(b.state(), QpState::Error, "half of a message came");
    assert_eq!(events(&mut pair, 1, &b), [QpEvent::Fatal]);
}

#[test]
fn data_that_is_gone_when_its_packet_is_sent_again_fails_its_request_alone() {
    let mut pair = Pair::new(1);
    let [a, _b] = pair.connected();
    pair.run(5 * MILLISECOND);
    let (addr, key) = region(&mut pair, 0, Access::ALL);
    let gone = trunkline_conn::mem::Sge {
        addr,
        length: 100,
        lkey: trunkline_wire::Lkey(key.0),
    };
    let write = |offset| SendOp::Write(remote(&pair, 1, offset));
    pair.post(0, &a, 1, write(0), &[pair.sge(0, 0, 100)]);
    pair.post(0, &a, 2, write(4096), &[gone]);
    pair.post(0, &a, 3, write(8192), &[pair.sge(0, 0, 100)]);
    // All three are lost.
    let sent = pair.sent_by(0);
    assert!(sent.len() >= 3);
    pair.nodes[0].deregister(key);
    pair.run(SECOND);
    let expected = [
        (1, Status::Success),
        (2, Status::LocalProtection),
        (3, Status::Flushed),
    ];
    assert_eq!(outcomes(&pair, 0), expected);
}

#[test]
fn a_request_that_fails_here_waits_for_those_before_it_that_have_to_go_again() {
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    pair.run(5 * MILLISECOND);
    pair.post(0, &a, 1, SendOp::Send, &[pair.sge(0, 0, 64)]);
    let mut nowhere = pair.sge(0, 0, 64);
    nowhere.lkey.0 ^= 1;
    pair.post(0, &a, 2, SendOp::Send, &[nowhere]);
    // No receive yet.
    pair.run(2 * MILLISECOND);
    assert!(outcomes(&pair, 0).is_empty());
    pair.receive(&b, 7, &[pair.sge(1, 0, 64)]);
    pair.run(2 * SECOND);
    let expected = [(1, Status::Success), (2, Status::LocalProtection)];
    assert_eq!(outcomes(&pair, 0), expected);
}

// Who may be answered.

/// What a READ request becomes on its way, and its sum made right again.
fn altered(sent: Vec<(Path, Vec<u8>)>, change: impl Fn(&mut Vec<u8>)) -> Vec<(Path, Vec<u8>)> {
    let mut sent = sent;
    for (path, datagram) in &mut sent {
        if Opcode(datagram[0]) == Opcode::SRC_READ_REQ {
            change(datagram);
            icrc::seal(path, 0, datagram);
        }
    }
    sent
}

/// Packets with READ data that node 1 sends until it is quiet.
fn read_data(pair: &mut Pair) -> usize {
    let mut found = 0;
    for _ in 0..50 {
        let sent = pair.sent_by(1);
        let data = |sent: &&(Path, Vec<u8>)| Opcode(sent.1[0]) == Opcode::SRC_READ_RESP;
        found += sent.iter().filter(data).count();
        pair.now = pair.now + 10_000;
    }
    found
}

/// A QP towards one with the rights `access`; a WRITE without bytes was executed as message 0.
fn one_write_done(access: Access) -> (Pair, [Qp; 2]) {
    let mut pair = Pair::new(1);
    let qps = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    pair.connect(0, &qps[0], &qps[1]);
    let attributes = attributes(1, &qps[0]);
    for step in [
        QpModify::Init { access },
        QpModify::Rtr(attributes),
        QpModify::Rts(attributes),
    ] {
        let engine = &mut pair.nodes[1].engine;
        engine.modify_qp(qps[1].qpn, &step).expect("a legal step");
    }
    let target = SendOp::Write(remote(&pair, 1, 0));
    pair.post(0, &qps[0], 1, target, &[]);
    pair.run(5 * MILLISECOND);
    assert_eq!(outcomes(&pair, 0), [(1, Status::Success)]);
    (pair, qps)
}

/// The same with all rights, and then the QP of node 1 goes to error: its peer has not heard so.
fn one_write_done_and_an_end() -> (Pair, Qp) {
    let (mut pair, [a, b]) = one_write_done(Access::ALL);
    let engine = &mut pair.nodes[1].engine;
    engine
        .modify_qp(b.qpn, &QpModify::Error)
        .expect("a legal step");
    pair.sent_by(1);
    (pair, a)
}

/// Makes the READ that `a` posts next one of the message before it.
fn ask_as_if_again(pair: &mut Pair, a: &Qp) {
    read(pair, a, 2, 64);
    let sent = altered(pair.sent_by(0), |datagram| {
        let msn = u32::from_be_bytes(datagram[MSN..MSN + 4].try_into().expect("4 bytes"));
        datagram[MSN..MSN + 4].copy_from_slice(&msn.wrapping_sub(1).to_be_bytes());
    });
    assert!(!sent.is_empty());
    pair.deliver(1, &sent);
}

#[test]
fn a_read_that_comes_as_if_again_needs_the_rights_of_a_first_one() {
    for access in [
        Access::LOCAL_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
    ] {
        // The message before it wrote nothing, for which no right to the region is needed, but one
        // of the QP.
        let (mut pair, [a, b]) = one_write_done(access | Access::REMOTE_WRITE);
        ask_as_if_again(&mut pair, &a);
        assert_eq!(read_data(&mut pair), 0, "{access:?}");
        assert_eq!(b.state(), QpState::Error);
    }
    // With that right it may be asked for in any way.
    let (mut pair, [a, _b]) = one_write_done(Access::ALL);
    ask_as_if_again(&mut pair, &a);
    assert_ne!(read_data(&mut pair), 0);
}

#[test]
fn a_qp_in_error_gives_no_data_away() {
    let (mut pair, a) = one_write_done_and_an_end();
    ask_as_if_again(&mut pair, &a);
    assert_eq!(read_data(&mut pair), 0);
}

#[test]
fn a_qp_in_error_executes_nothing() {
    let (mut pair, a) = one_write_done_and_an_end();
    pair.nodes[1].buffer.set(0, &[0; 64]);
    pair.nodes[0].buffer.set(0, &[7; 64]);
    let target = Remote {
        addr: pair.nodes[1].buffer.addr,
        rkey: pair.nodes[1].key,
    };
    pair.post(0, &a, 2, SendOp::Write(target), &[pair.sge(0, 0, 64)]);
    let asked = pair.sent_by(0);
    assert!(!asked.is_empty());
    pair.deliver(1, &asked);
    assert_eq!(pair.nodes[1].buffer.get(0, 64), [0; 64]);
    pair.run(SECOND);
    assert_eq!(pair.nodes[1].buffer.get(0, 64), [0; 64]);
    assert_ne!(outcomes(&pair, 0)[0].1, Status::Success);
}

#[test]
fn data_of_a_read_stops_when_its_qp_goes_to_error_and_the_requester_hears_why() {
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    pair.run(5 * MILLISECOND);
    pair.room = Some(1);
    read(&pair, &a, 1, 50_000);
    for _ in 0..4 {
        pair.step(0);
        pair.step(1);
        pair.now = pair.now + 1000;
    }
    let engine = &mut pair.nodes[1].engine;
    engine
        .modify_qp(b.qpn, &QpModify::Error)
        .expect("a legal step");
    pair.room = None;
    let after = Rc::new(Cell::new(0));
    let counted = Rc::clone(&after);
    pair.fate = Box::new(move |node, datagram| {
        let data = node == 1 && Opcode(datagram[0]) == Opcode::SRC_READ_RESP;
        counted.set(counted.get() + usize::from(data));
        1
    });
    pair.run(SECOND);
    assert_eq!(after.get(), 0);
    let done = outcomes(&pair, 0);
    assert_eq!(done.len(), 1);
    assert_ne!(done[0].1, Status::Success);
}

#[test]
fn the_result_of_an_atomic_leaves_a_qp_in_error_before_its_end() {
    for lost in [false, true] {
        let mut pair = Pair::new(1);
        let [a, b] = pair.connected();
        pair.run(5 * MILLISECOND);
        let add = SendOp::Atomic(remote(&pair, 1, 0), AtomicOp::FetchAdd { add: 1 });
        pair.post(0, &a, 1, add, &[pair.sge(0, 0, 8)]);
        pair.step(0);
        assert_eq!(pair.nodes[1].buffer.get(0, 8), 1_u64.to_ne_bytes());
        let engine = &mut pair.nodes[1].engine;
        engine
            .modify_qp(b.qpn, &QpModify::Error)
            .expect("a legal step");
        // What arrives of node 1, but for acknowledgements of packets.
        let said = Rc::new(RefCell::new(Vec::new()));
        let heard = Rc::clone(&said);
        let mut loses = lost;
        pair.fate = Box::new(move |node, datagram| {
            let opcode = Opcode(datagram[0]);
            if node == 1 && std::mem::take(&mut loses) {
                assert_eq!(opcode, Opcode::SRC_ATOMIC_RESP);
                return 0;
            }
            if node == 1 && opcode != Opcode::SRC_ACK {
                heard.borrow_mut().push(opcode);
            }
            1
        });
        pair.run(SECOND);
        assert_eq!(outcomes(&pair, 0), [(1, Status::Success)], "{lost}");
        let said = said.borrow();
        let result = said.iter().position(|at| *at == Opcode::SRC_ATOMIC_RESP);
        let end = said.iter().position(|at| *at == Opcode::SRC_CONTROL);
        let end = end.expect("its end is told");
        assert!(result.is_some_and(|at| at < end), "{said:?}");
    }
}

#[test]
fn a_read_that_comes_again_with_another_range_is_refused() {
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    pair.run(5 * MILLISECOND);
    // Its data never gets through, so that it is kept.
    pair.fate = Box::new(|node, datagram| {
        usize::from(node != 1 || Opcode(datagram[0]) != Opcode::SRC_READ_RESP)
    });
    read(&pair, &a, 1, 64);
    pair.run(MILLISECOND);
    read(&pair, &a, 2, 64);
    let sent = altered(pair.sent_by(0), |datagram| {
        let msn = u32::from_be_bytes(datagram[MSN..MSN + 4].try_into().expect("4 bytes"));
        datagram[MSN..MSN + 4].copy_from_slice(&msn.wrapping_sub(1).to_be_bytes());
        datagram[OFFSET..OFFSET + 4].fill(0);
        datagram[RETH + 7] ^= 64;
    });
    pair.deliver(1, &sent);
    assert_eq!(b.state(), QpState::Error);
    assert_eq!(events(&mut pair, 1, &b), [QpEvent::RequestError]);
}

#[test]
fn a_peer_takes_away_no_key_of_a_region_that_was_not_registered_for_it() {
    for mut pair in shared_and_ibta() {
        let ibta = pair.ibta;
        let [a, b] = pair.connected();
        let [neighbour, at_neighbour] = pair.connected();
        pair.run(5 * MILLISECOND);
        pair.receive(&b, 1, &[pair.sge(1, 0, 64)]);
        pair.receive(&at_neighbour, 2, &[pair.sge(1, 64, 64)]);
        let key = pair.nodes[1].key;
        pair.post(0, &a, 3, SendOp::SendInvalidate(key), &[pair.sge(0, 0, 8)]);
        pair.run(SECOND);
        assert_eq!(
            outcomes(&pair, 0),
            [(3, Status::RemoteAccess)],
            "ibta: {ibta}"
        );
        assert_eq!(outcomes(&pair, 1), [(1, Status::LocalAccess)]);
        assert_eq!(b.state(), QpState::Error);
        // The region lives on, its lkey included.
        pair.post(0, &neighbour, 4, SendOp::Send, &[pair.sge(0, 0, 8)]);
        pair.run(SECOND);
        assert_eq!(outcomes(&pair, 0), [(4, Status::Success)]);
        assert_eq!(outcomes(&pair, 1), [(2, Status::Success)]);
    }
}

#[test]
fn a_peer_takes_away_the_key_of_a_region_that_was_registered_for_it() {
    for mut pair in shared_and_ibta() {
        let [a, b] = pair.connected();
        pair.run(5 * MILLISECOND);
        let access = Access::ALL | Access::REMOTE_INVALIDATE;
        let (addr, rkey) = region(&mut pair, 1, access);
        pair.receive(&b, 1, &[pair.sge(1, 0, 64)]);
        pair.post(0, &a, 2, SendOp::SendInvalidate(rkey), &[pair.sge(0, 0, 8)]);
        let gone = SendOp::Write(Remote { addr, rkey });
        pair.post(0, &a, 3, gone, &[pair.sge(0, 0, 8)]);
        pair.run(SECOND);
        let expected = [(2, Status::Success), (3, Status::RemoteAccess)];
        assert_eq!(outcomes(&pair, 0), expected);
    }
}

#[test]
fn each_right_of_a_qp_is_needed_for_what_it_allows() {
    const REGION: usize = 64 << 10;
    let add = AtomicOp::FetchAdd { add: 1 };
    let swap = AtomicOp::CompareSwap {
        compare: 0,
        swap: 1,
    };
    type Op = fn(Remote, AtomicOp) -> SendOp;
    let write: Op = |remote, _| SendOp::Write(remote);
    let write_imm: Op = |remote, _| SendOp::WriteImm(remote, 7);
    let read: Op = |remote, _| SendOp::Read(remote);
    let atomic: Op = SendOp::Atomic;
    let cases = [
        (Access::REMOTE_WRITE, write, add, 8),
        // All of it is refused before a byte is written.
        (Access::REMOTE_WRITE, write, add, 5000),
        (Access::REMOTE_WRITE, write_imm, add, 8),
        (Access::REMOTE_READ, read, add, 8),
        (Access::REMOTE_ATOMIC, atomic, add, 8),
        (Access::REMOTE_ATOMIC, atomic, swap, 8),
    ];
    for ibta in [false, true] {
        for (right, op, what, length) in cases {
            let mut pair = Pair::new(usize::from(!ibta));
            pair.ibta = ibta;
            let qps = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
            pair.connect(0, &qps[0], &qps[1]);
            let access = Access::from_bits(Access::ALL.bits() & !right.bits());
            let attributes = attributes(1, &qps[0]);
            for step in [
                QpModify::Init { access },
                QpModify::Rtr(attributes),
                QpModify::Rts(attributes),
            ] {
                let engine = &mut pair.nodes[1].engine;
                engine.modify_qp(qps[1].qpn, &step).expect("a legal step");
            }
            if ibta {
                pair.nodes[1].engine.peer_is_ibta(attributes.remote);
            }
            pair.receive(&qps[1], 9, &[pair.sge(1, 512 << 10, 64)]);
            pair.nodes[0].buffer.set(0, &[5; 5000]);
            let op = op(remote(&pair, 1, 0), what);
            pair.post(0, &qps[0], 1, op, &[pair.sge(0, 0, length)]);
            pair.run(SECOND);
            let expected = [(1, Status::RemoteInvalidRequest)];
            assert_eq!(outcomes(&pair, 0), expected, "{op:?}, ibta: {ibta}");
            assert_eq!(pair.nodes[1].buffer.get(0, REGION), [0; REGION], "{op:?}");
            assert_eq!(qps[1].state(), QpState::Error);
            assert_eq!(events(&mut pair, 1, &qps[1]), [QpEvent::RequestError]);
        }
    }
}

// What comes with them.

/// Posts a SEND with these flags.
fn send_with(pair: &Pair, qp: &Qp, wr_id: u64, length: u32, flags: SendFlags) {
    let request = SendWr {
        wr_id,
        op: SendOp::Send,
        flags,
        sges: &[pair.sge(0, 0, length)],
        inline: None,
        route: 0,
    };
    qp.send.post(&[request]).expect("room in the queue");
    pair.nodes[0].engine.doorbells().ring(qp.index);
}

#[test]
fn a_message_asks_for_an_event_however_many_packets_it_takes() {
    for mut pair in shared_and_ibta() {
        let [a, b] = pair.connected();
        pair.run(5 * MILLISECOND);
        let lengths = [0, 1, 1024, 1025, 5000, 20_000];
        for (wr_id, length) in (0..).zip(lengths) {
            for (flag, wr_id) in [
                (SendFlags::SOLICITED, 2 * wr_id),
                (SendFlags(0), 2 * wr_id + 1),
            ] {
                pair.receive(&b, wr_id, &[pair.sge(1, 0, 20_000)]);
                send_with(&pair, &a, wr_id, length, flag.with(SendFlags::SIGNALED));
            }
        }
        pair.run(SECOND);
        let received = pair.completions(1);
        assert_eq!(received.len(), 2 * lengths.len());
        for done in received {
            assert_eq!(
                done.solicited,
                done.wr_id % 2 == 0,
                "message {}",
                done.wr_id
            );
        }
    }
}

#[test]
fn a_request_that_nobody_asked_to_hear_of_completes_in_silence() {
    for mut pair in shared_and_ibta() {
        let [a, b] = pair.connected();
        pair.run(5 * MILLISECOND);
        for wr_id in 0..6 {
            pair.receive(&b, wr_id, &[pair.sge(1, 0, 64)]);
            let signaled = [SendFlags(0), SendFlags::SIGNALED][usize::from(wr_id % 3 == 2)];
            send_with(&pair, &a, wr_id, 64, signaled);
        }
        pair.run(SECOND);
        assert_eq!(
            outcomes(&pair, 0),
            [(2, Status::Success), (5, Status::Success)]
        );
        assert_eq!(pair.completions(1).len(), 6);
    }
}

#[test]
fn every_message_has_the_rnr_retries_to_itself() {
    let mut pair = Pair::new(1);
    let [a, b] = connected(&mut pair, |_, attributes| {
        // A pause of 10 us.
        (attributes.rnr_retry, attributes.min_rnr_timer) = (2, 1);
    });
    for wr_id in 0..6 {
        send_with(&pair, &a, wr_id, 64, SendFlags::SIGNALED);
    }
    for wr_id in 0..6 {
        // Each is refused before its receive is there.
        let refused = |pair: &Pair| pair.nodes[0].engine.counters().rnr_received;
        let before = refused(&pair);
        for _ in 0..200 {
            if refused(&pair) == before {
                pair.run(2_000);
            }
        }
        assert_eq!(refused(&pair), before + 1, "message {wr_id}");
        pair.receive(&b, wr_id, &[pair.sge(1, 0, 64)]);
    }
    pair.run(10 * MILLISECOND);
    let expected = (0..6).map(|wr_id| (wr_id, Status::Success));
    assert!(outcomes(&pair, 0).into_iter().eq(expected));
}

#[test]
fn a_receiver_that_is_not_ready_is_asked_again_when_it_said_and_not_before() {
    // Code 20: 10.24 ms.
    const PAUSE: u64 = 10_240_000;
    for mut pair in shared_and_ibta() {
        let [a, b] = connected(&mut pair, |_, attributes| attributes.min_rnr_timer = 20);
        let sends = Rc::new(Cell::new(0));
        let counted = Rc::clone(&sends);
        pair.fate = Box::new(move |node, datagram| {
            let send = [Opcode::SRC_SEND, Opcode::RC_SEND_ONLY].contains(&Opcode(datagram[0]));
            counted.set(counted.get() + usize::from(node == 0 && send));
            1
        });
        send_with(&pair, &a, 1, 64, SendFlags::SIGNALED);
        pair.run(MILLISECOND);
        assert_eq!(sends.get(), 1, "ibta: {}", pair.ibta);
        pair.run(PAUSE - 2 * MILLISECOND);
        assert_eq!(sends.get(), 1, "ibta: {}", pair.ibta);
        pair.receive(&b, 2, &[pair.sge(1, 0, 64)]);
        pair.run(2 * MILLISECOND);
        assert_eq!(sends.get(), 2, "ibta: {}", pair.ibta);
        assert_eq!(outcomes(&pair, 0), [(1, Status::Success)]);
    }
}

#[test]
fn a_message_is_sent_again_as_often_as_its_rnr_retries_say() {
    for retries in [0, 1, 6] {
        let mut pair = Pair::new(1);
        let [a, _b] = connected(&mut pair, |_, attributes| {
            // A pause of 10 us.
            (attributes.rnr_retry, attributes.min_rnr_timer) = (retries, 1);
        });
        send_with(&pair, &a, 1, 64, SendFlags::SIGNALED);
        pair.run(10 * MILLISECOND);
        assert_eq!(outcomes(&pair, 0), [(1, Status::RnrRetryExceeded)]);
        let refused = pair.nodes[0].engine.counters().rnr_received;
        assert_eq!(refused, u64::from(retries) + 1);
    }
}
