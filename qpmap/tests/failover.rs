//! Connections that die, packets that are late, QPs that are there anew.

use crate::common::{Pair, RingMemory};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Remote, SendFlags, SendOp, Status, VendorError};
use trunkline_qpmap::wqe::SendWr;
use trunkline_qpmap::{Event, FIRST_MSN, PeerIdentity, QpModify, QpQueues, QpState, QpType};
use trunkline_wire::{Control, ControlKind, Gid, IpFields, Opcode, Path, Qpn, ROCE_PORT, Workers};

/// Datagrams that were held up on their way.
type Held = Arc<Mutex<Vec<Vec<u8>>>>;

fn opcode(datagram: &[u8]) -> Opcode {
    Opcode(datagram[0])
}

/// Holds up what `which` picks; everything else arrives.
fn hold(pair: &mut Pair, which: impl Fn(usize, Opcode) -> bool + 'static) -> Held {
    let held = Held::default();
    let copies = Arc::clone(&held);
    pair.fate = Box::new(move |from, datagram| {
        let wanted = which(from, opcode(datagram));
        if wanted {
            let mut copies = copies.lock().expect("no test panics while it holds it");
            copies.push(datagram.to_vec());
        }
        usize::from(!wanted)
    });
    held
}

/// Lets datagrams that node `from` sent arrive now.
fn release(pair: &mut Pair, from: usize, datagrams: &[Vec<u8>]) {
    let address = |node: usize| IpAddr::from([10, 0, 0, 1 + node as u8]);
    let path = Path {
        src: address(from),
        dst: address(1 - from),
        src_port: ROCE_PORT,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    };
    let datagrams: Vec<_> = datagrams
        .iter()
        .map(|bytes| (path, bytes.clone()))
        .collect();
    pair.deliver(1 - from, &datagrams);
}

fn taken(held: &Held) -> Vec<Vec<u8>> {
    std::mem::take(&mut *held.lock().expect("no test panics while it holds it"))
}

/// The newest connection ends at both ends, and another begins.
fn replace_connection(pair: &mut Pair) {
    let ends = pair.conns.pop().expect("one is open");
    for (node, end) in pair.nodes.iter_mut().zip(ends) {
        node.engine.close_connection(end);
    }
    pair.open();
}

#[test]
fn the_end_of_a_node_is_heard_on_all_connections_though_one_goodbye_alone_arrives() {
    let mut pair = Pair::new(3);
    pair.run(5 * MILLISECOND);
    let down = |pair: &mut Pair| -> usize {
        let events = std::iter::from_fn(|| pair.nodes[1].engine.poll_event());
        let down = events.filter(|event| matches!(event, Event::ConnectionDown { .. }));
        down.count()
    };
    assert_eq!(down(&mut pair), 0);
    pair.nodes[0].engine.say_goodbye(false);
    let said = pair.sent_by(0);
    let goodbyes: Vec<_> = said
        .into_iter()
        .filter(|(_, datagram)| Opcode(datagram[0]) == Opcode::SRC_CLOSE)
        .collect();
    assert_eq!(goodbyes.len(), 3);
    pair.deliver(1, &goodbyes[1..2]);
    assert_eq!(down(&mut pair), 3);
}

#[test]
fn a_qp_outlives_any_number_of_connections_that_carry_nothing() {
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    let [to, from] = [pair.sge(1, 0, 100), pair.sge(0, 0, 100)];
    for i in 0..2 {
        pair.receive(&b, i, &[to]);
    }
    pair.post(0, &a, 0, SendOp::Send, &[from]);
    pair.run(5 * MILLISECOND);
    assert_eq!(pair.completions(0).len(), 1);
    pair.fate = Box::new(|_, _| 0);
    pair.post(0, &a, 1, SendOp::Send, &[from]);
    // A replay epoch has 8 bits: so many look like earlier ones.
    for _ in 0..200 {
        pair.run(MILLISECOND);
        replace_connection(&mut pair);
    }
    pair.fate = Box::new(|_, _| 1);
    pair.run(50 * MILLISECOND);
    let done = pair.completions(0);
    assert!(
        done.len() == 1 && done[0].status == Status::Success,
        "{done:?}"
    );
    assert_eq!(pair.completions(1).len(), 2, "received once each");
}

#[test]
fn a_peer_that_hears_of_a_qp_in_its_second_round_first_agrees_to_that() {
    let mut pair = Pair::new(1);
    pair.fate = Box::new(|_, _| 0);
    let [a, b] = pair.connected();
    // Consent that came in the handshake: what is sent then may get lost with all that follows.
    let consent = Control {
        kind: ControlKind::Bound,
        src_qp: b.qpn,
        dest_qp: a.qpn,
        generation: 1,
        status: 1,
        replay_epoch: 0,
        msn: 0,
    };
    let (now, [here, _]) = (pair.now, pair.conns[0]);
    pair.nodes[0].engine.handle_early(now, here, consent);
    pair.receive(&b, 1, &[pair.sge(1, 0, 100)]);
    pair.post(0, &a, 1, SendOp::Send, &[pair.sge(0, 0, 100)]);
    pair.run(MILLISECOND);
    replace_connection(&mut pair);
    pair.fate = Box::new(|_, _| 1);
    pair.run(50 * MILLISECOND);
    assert_eq!(pair.completions(0).len(), 1);
    assert_eq!(pair.completions(1).len(), 1);
}

#[test]
fn a_qp_that_wants_nothing_goes_on_with_the_next_life_of_its_peers() {
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    for life in 0..3 {
        for node in [0, 1] {
            let (from, to) = if node == 0 { (&a, &b) } else { (&b, &a) };
            for wr_id in 0..3 {
                pair.receive(to, wr_id, &[pair.sge(1 - node, 0, 100)]);
                pair.post(node, from, wr_id, SendOp::Send, &[pair.sge(node, 0, 100)]);
            }
        }
        pair.run(200 * MILLISECOND);
        for node in [0, 1] {
            let done = pair.completions(node);
            assert_eq!(done.len(), 6, "node {node}, life {life}: {done:?}");
            assert!(done.iter().all(|done| done.status == Status::Success));
        }
        // Only one of them begins anew; the other one has heard of the end, or has not yet.
        let engine = &mut pair.nodes[1].engine;
        engine
            .modify_qp(b.qpn, &QpModify::Reset)
            .expect("any state");
        if life == 1 {
            pair.run(10 * MILLISECOND);
        }
        pair.connect(1, &b, &a);
        pair.run(200 * MILLISECOND);
    }
}

#[test]
fn what_was_sent_to_a_qp_does_not_reach_the_next_one_of_its_number() {
    let mut pair = Pair::new(1);
    let [a, b] = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    // A BIND arrives before its QP is ready, and waits.
    pair.connect(0, &a, &b);
    pair.run(MILLISECOND);
    // Another one is held up, with what follows it.
    let held = hold(&mut pair, |from, opcode| {
        from == 0 && opcode != Opcode::SRC_ACK
    });
    let conn = pair.conns[0][0];
    let engine = &mut pair.nodes[0].engine;
    engine.rebind(a.qpn, conn).expect("it is open");
    pair.connect(1, &b, &a);
    pair.receive(&b, 1, &[pair.sge(1, 0, 100)]);
    pair.post(0, &a, 1, SendOp::Send, &[pair.sge(0, 0, 100)]);
    pair.run(MILLISECOND);
    let late = taken(&held);
    for wanted in [Opcode::SRC_CONTROL, Opcode::SRC_SEND] {
        assert!(late.iter().any(|datagram| opcode(datagram) == wanted));
    }
    pair.fate = Box::new(|_, _| 0);
    start_again(&mut pair, &b, &a);
    pair.receive(&b, 2, &[pair.sge(1, 0, 100)]);
    release(&mut pair, 0, &late);
    assert_eq!(pair.completions(1), []);
    // The sender hears that whom it talked to is gone.
    pair.fate = Box::new(|_, _| 1);
    pair.run(50 * MILLISECOND);
    let done = pair.completions(0);
    assert!(
        done.len() == 1 && done[0].status == Status::RetryExceeded,
        "{done:?}"
    );
    assert_eq!(pair.completions(1), []);
}

fn start_again(pair: &mut Pair, qp: &QpQueues<RingMemory>, peer: &QpQueues<RingMemory>) {
    let engine = &mut pair.nodes[1].engine;
    let done = engine.modify_qp(qp.qpn, &QpModify::Reset);
    done.expect("from any state");
    pair.connect(1, qp, peer);
}

/// QPs whose requests go over one connection and responses over the other.
fn connected_apart(pair: &mut Pair) -> [Arc<QpQueues<RingMemory>>; 2] {
    let qps = pair.connected();
    for (node, qp) in qps.iter().enumerate() {
        let conn = pair.conns[node][node];
        let engine = &mut pair.nodes[node].engine;
        engine.rebind(qp.qpn, conn).expect("it is open");
    }
    pair.run(5 * MILLISECOND);
    qps
}

#[test]
fn an_end_is_told_over_a_connection_of_a_programs_where_there_is_no_other() {
    for early in [None, Some(QpModify::Error), Some(QpModify::Reset)] {
        let mut pair = Pair::new(1);
        pair.private = true;
        pair.open();
        let [a, b] = pair.connected();
        let private = pair.conns[1][0];
        let engine = &mut pair.nodes[0].engine;
        engine.rebind(a.qpn, private).expect("it is open");
        pair.run(5 * MILLISECOND);
        // The other end answers over the pool: what it has to say of the second message is lost.
        pair.receive(&b, 1, &[pair.sge(1, 0, 100)]);
        pair.receive(&b, 2, &[pair.sge(1, 0, 100)]);
        hold(&mut pair, |from, opcode| {
            from == 1 && opcode == Opcode::SRC_ANSWERS
        });
        let from = pair.sge(0, 0, 100);
        pair.post(0, &a, 1, SendOp::Send, &[from]);
        pair.run(MILLISECOND / 10);
        assert_eq!(pair.completions(1).len(), 1, "it was executed");
        let pooled = pair.conns[0];
        for (node, end) in pair.nodes.iter_mut().zip(pooled) {
            node.engine.close_connection(end);
        }
        pair.fate = Box::new(|_, _| 1);
        if let Some(change) = &early {
            let engine = &mut pair.nodes[1].engine;
            engine.modify_qp(b.qpn, change).expect("any state");
        }
        // Its flow moves on in the next round; no other connection is found.
        pair.run(MILLISECOND / 10);
        let (now, peer) = (pair.now, IpAddr::from([10, 0, 0, 1]).into());
        let engine = &mut pair.nodes[1].engine;
        engine.connect_request_begins(now, peer, a.qpn);
        engine.peer_unreachable(peer, a.qpn, VendorError::None);
        let outcome = |pair: &mut Pair| {
            pair.run(200 * MILLISECOND);
            let done = pair.completions(0);
            let done: Vec<_> = done.iter().map(|done| (done.wr_id, done.status)).collect();
            done
        };
        assert_eq!(outcome(&mut pair), [(1, Status::Success)], "{early:?}");
        pair.post(0, &a, 2, SendOp::Send, &[from]);
        let failed = [(2, Status::RetryExceeded)];
        assert_eq!(outcome(&mut pair), failed, "{early:?}");
    }
}

#[test]
fn data_of_a_read_that_comes_after_its_round_does_not_count() {
    const LENGTH: usize = 8 << 10;
    let mut pair = Pair::new(2);
    let [a, _] = connected_apart(&mut pair);
    let data: Vec<u8> = (0..LENGTH).map(|i| (i / 7) as u8).collect();
    pair.nodes[1].buffer.set(0, &data);
    let remote = Remote {
        addr: pair.nodes[1].buffer.addr,
        rkey: pair.nodes[1].key,
    };
    let held = hold(&mut pair, |from, opcode| {
        from == 1 && opcode == Opcode::SRC_READ_RESP
    });
    let into = pair.sge(0, 0, LENGTH as u32);
    pair.post(0, &a, 1, SendOp::Read(remote), &[into]);
    pair.run(MILLISECOND / 10);
    let mut late = taken(&held);
    late.truncate(LENGTH / 1024 - 1);
    // No acknowledgement tells the peer what to send again, in which no data are any more.
    hold(&mut pair, |from, opcode| match from {
        0 => opcode == Opcode::SRC_ACK,
        _ => opcode == Opcode::SRC_READ_RESP,
    });
    // The requests' connection closes; the READ is not asked for again yet.
    let gone = pair.conns[0][0];
    pair.nodes[0].engine.close_connection(gone);
    let (soon, too_late) = late.split_at(3);
    release(&mut pair, 1, soon);
    // Now it is, and what was lost has not been sent again yet.
    pair.run(MILLISECOND / 20);
    release(&mut pair, 1, too_late);
    let stale = pair.nodes[0].engine.counters().stale;
    assert_eq!(stale, too_late.len() as u64);
    pair.fate = Box::new(|_, _| 1);
    pair.run(50 * MILLISECOND);
    assert_eq!(pair.completions(0).len(), 1);
    assert_eq!(pair.nodes[0].buffer.get(0, LENGTH), data);
}

/// Bytes of a READ, and an offset behind them.
const READ: usize = 4 << 10;
const BEHIND: u64 = 8 << 10;

/// QPs on connections apart, the first of which has sent a READ, whose data do not arrive, and a
/// SEND for which there is no receive: its RNR pause runs.
fn read_without_data_before_a_send(pair: &mut Pair) -> [Arc<QpQueues<RingMemory>>; 2] {
    let [a, b] = connected_apart(pair);
    let remote = Remote {
        addr: pair.nodes[1].buffer.addr,
        rkey: pair.nodes[1].key,
    };
    pair.nodes[1].buffer.set(0, &[7; READ]);
    hold(pair, |from, opcode| {
        from == 1 && opcode == Opcode::SRC_READ_RESP
    });
    let [into, from] = [pair.sge(0, 0, READ as u32), pair.sge(0, BEHIND, 100)];
    pair.post(0, &a, 1, SendOp::Read(remote), &[into]);
    pair.post(0, &a, 2, SendOp::Send, &[from]);
    pair.run(MILLISECOND / 10);
    assert_eq!(pair.nodes[0].engine.counters().rnr_received, 1);
    [a, b]
}

fn read_and_send_are_done(mut pair: Pair) {
    pair.fate = Box::new(|_, _| 1);
    pair.run(50 * MILLISECOND);
    let done = pair.completions(0);
    assert_eq!(done.len(), 2, "{done:?}");
    assert!(done.iter().all(|done| done.status == Status::Success));
    assert_eq!(pair.nodes[0].buffer.get(0, READ), [7; READ]);
}

#[test]
fn a_read_whose_data_are_lost_comes_again_though_another_round_has_begun_since() {
    let mut pair = Pair::new(2);
    let [_a, b] = read_without_data_before_a_send(&mut pair);
    hold(&mut pair, |from, opcode| {
        from == 1 && [Opcode::SRC_READ_RESP, Opcode::SRC_ANSWERS].contains(&opcode)
    });
    // What says that the data went down with their connection is late itself.
    let gone = pair.conns[1][1];
    pair.nodes[1].engine.close_connection(gone);
    pair.run(5 * MILLISECOND);
    pair.receive(&b, 1, &[pair.sge(1, BEHIND, 100)]);
    read_and_send_are_done(pair);
}

#[test]
fn a_read_whose_data_are_lost_comes_again_though_a_new_round_came_before_that_was_said() {
    let mut pair = Pair::new(2);
    let [_a, b] = read_without_data_before_a_send(&mut pair);
    let held = hold(&mut pair, |from, opcode| {
        from == 0 && opcode == Opcode::SRC_SEND || opcode == Opcode::SRC_READ_RESP
    });
    pair.run(5 * MILLISECOND);
    pair.receive(&b, 1, &[pair.sge(1, BEHIND, 100)]);
    let gone = pair.conns[1][1];
    pair.nodes[1].engine.close_connection(gone);
    let late = taken(&held);
    let sends: Vec<_> = late
        .into_iter()
        .filter(|datagram| opcode(datagram) == Opcode::SRC_SEND)
        .collect();
    assert!(!sends.is_empty(), "the pause is over");
    release(&mut pair, 0, &sends);
    read_and_send_are_done(pair);
}

/// What is asked for again may be lost or late itself. A refusal of a message behind it says that
/// it was executed, which it was before: not that the peer has heard that its data are wanted.
#[test]
fn a_read_that_comes_again_comes_once_more_where_a_refusal_overtakes_it() {
    for late in [false, true] {
        let mut pair = Pair::new(2);
        let [_a, b] = read_without_data_before_a_send(&mut pair);
        let held = hold(&mut pair, |from, opcode| {
            from == 0 && opcode == Opcode::SRC_READ_REQ || opcode == Opcode::SRC_READ_RESP
        });
        let gone = pair.conns[1][1];
        pair.nodes[1].engine.close_connection(gone);
        let refused = |pair: &Pair| pair.nodes[0].engine.counters().rnr_received;
        for _ in 0..1000 {
            if refused(&pair) == 2 {
                break;
            }
            pair.run(MILLISECOND / 100);
        }
        assert_eq!(refused(&pair), 2, "the SEND came again without the READ");
        let asked = taken(&held);
        let asked: Vec<_> = asked
            .into_iter()
            .filter(|datagram| opcode(datagram) == Opcode::SRC_READ_REQ)
            .collect();
        assert!(!asked.is_empty(), "the READ comes again");
        hold(&mut pair, |from, opcode| {
            from == 0 && opcode == Opcode::SRC_READ_REQ
        });
        pair.receive(&b, 1, &[pair.sge(1, BEHIND, 100)]);
        if late {
            // The next replay epoch has begun.
            pair.run(5 * MILLISECOND);
            release(&mut pair, 0, &asked);
        }
        read_and_send_are_done(pair);
    }
}

/// Where a packet's message number stands: docs/wire-format.md.
const MSN: usize = 32;

#[test]
fn a_fence_that_is_sent_again_does_not_wait_for_reads_behind_it() {
    let mut pair = Pair::new(1);
    let [a, _b] = pair.connected();
    pair.run(5 * MILLISECOND);
    let remote = Remote {
        addr: pair.nodes[1].buffer.addr,
        rkey: pair.nodes[1].key,
    };
    pair.nodes[1].buffer.set(0, &[7; 3 * READ]);
    // The data of the first READ are lost, those of the two behind it arrive.
    pair.fate = Box::new(|from, datagram| {
        let first = datagram[MSN..MSN + 4] == FIRST_MSN.to_be_bytes();
        usize::from(!(from == 1 && first && opcode(datagram) == Opcode::SRC_READ_RESP))
    });
    let fenced = SendFlags::SIGNALED.with(SendFlags::FENCE);
    let all = [(0, fenced), (1, SendFlags::SIGNALED), (2, fenced)];
    let sges = all.map(|(wr_id, _)| [pair.sge(0, wr_id * READ as u64, READ as u32)]);
    let post = |at: usize| SendWr {
        wr_id: all[at].0,
        op: SendOp::Read(remote),
        flags: all[at].1,
        sges: &sges[at],
        inline: None,
        route: 0,
    };
    let posted = a.send.post(&[post(0), post(1), post(2)]);
    posted.expect("room in the queue");
    pair.nodes[0].engine.doorbells().ring(a.index);
    pair.run(MILLISECOND);
    assert_eq!(pair.completions(0), []);
    assert_eq!(pair.nodes[0].buffer.get(READ, READ), [7; READ]);
    // The last one waits for those before it, as its fence says.
    assert_eq!(pair.nodes[0].buffer.get(2 * READ, READ), [0; READ]);
    replace_connection(&mut pair);
    pair.fate = Box::new(|_, _| 1);
    pair.run(50 * MILLISECOND);
    let done: Vec<_> = pair.completions(0);
    let done: Vec<_> = done.iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(done, [0, 1, 2].map(|wr_id| (wr_id, Status::Success)));
    assert_eq!(pair.nodes[0].buffer.get(0, 3 * READ), [7; 3 * READ]);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "real work is what it measures")]
fn destroying_many_qps_that_wait_for_their_turn_takes_no_search() {
    const QPS: usize = 200_000;
    let mut pair = Pair::new(1);
    let peer = pair.qp(1, QpType::Rc);
    let qps: Vec<_> = (0..QPS)
        .map(|_| {
            let qp = pair.qp(0, QpType::Rc);
            pair.connect(0, &qp, &peer);
            pair.post(0, &qp, 1, SendOp::Send, &[]);
            qp
        })
        .collect();
    let engine = &mut pair.nodes[0].engine;
    engine.handle_all_doorbells();
    let start = std::time::Instant::now();
    for qp in qps.iter().rev() {
        engine.destroy_qp(qp.qpn).expect("it is there");
    }
    // A fraction of a second; walks of the lists would take minutes.
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    pair.run(50 * MILLISECOND);
    let left = pair.nodes[0].engine.live_objects();
    assert!(left.named().all(|(_, count)| count == 0), "{left:?}");
}

#[test]
fn a_connection_is_told_to_be_gone_before_what_follows_from_it() {
    let mut pair = Pair::new(2);
    for _ in 0..1400 {
        pair.connected();
    }
    let engine = &mut pair.nodes[0].engine;
    while engine.poll_event().is_some() {}
    // Its 700 flows crowd the other one.
    engine.close_connection(pair.conns[0][0]);
    while engine.is_busy() && engine.live_objects().waiting_flows > 0 {
        engine.handle_doorbells();
    }
    let news: Vec<_> = std::iter::from_fn(|| engine.poll_event()).collect();
    let [Event::ConnectionDown { conn, .. }, Event::Crowded { .. }] = news[..] else {
        panic!("{news:?}");
    };
    assert_eq!(conn, pair.conns[0][0]);
}

/// Node 1 as node 0 knows it, which met it in epoch 1.
fn incarnation(epoch: u64) -> PeerIdentity {
    PeerIdentity {
        guid: 10,
        epoch,
        address: std::net::IpAddr::from([10, 0, 0, 2]).into(),
        workers: Workers::ONE,
    }
}

/// Another worker's word of a new incarnation may be older than the connection that it would end.
#[test]
fn a_peer_that_was_heard_since_another_worker_met_an_incarnation_of_it_stays() {
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    pair.receive(&b, 0, &[pair.sge(1, 0, 64)]);
    pair.post(0, &a, 0, SendOp::Send, &[pair.sge(0, 0, 64)]);
    let before = pair.now;
    pair.run(10 * MILLISECOND);
    let (known, other) = (incarnation(1), incarnation(0));
    let peer = known.address;
    assert!(pair.nodes[0].engine.is_peer(&known));
    let now = pair.now;
    let engine = &mut pair.nodes[0].engine;
    engine.heed_incarnation(&other, before);
    engine.heed_incarnation(&known, now + SECOND);
    assert_eq!(engine.connections_to(peer).len(), 1);
    assert_eq!(a.state(), QpState::Rts);
    engine.heed_incarnation(&other, now + SECOND);
    assert!(engine.connections_to(peer).is_empty());
    pair.run(MILLISECOND);
    assert_eq!(a.state(), QpState::Error);
}

/// Which of the two came first nobody knows, and what was ended does not come back: one that is
/// gone is found out by its silence.
#[test]
fn a_peer_that_was_heard_when_another_worker_met_an_incarnation_of_it_stays() {
    let mut pair = Pair::new(1);
    let other = incarnation(2);
    let peer = other.address;
    // It was heard when the connection came, and not since.
    let (heard, engine) = (pair.now, &mut pair.nodes[0].engine);
    engine.heed_incarnation(&other, heard);
    assert_eq!(engine.connections_to(peer).len(), 1);
    engine.heed_incarnation(&other, heard + 1);
    assert!(engine.connections_to(peer).is_empty());
}

/// QPs of the first node whose peers are gone.
fn deserted(pair: &mut Pair) -> Vec<Qpn> {
    let engine = &mut pair.nodes[0].engine;
    let events = std::iter::from_fn(|| engine.poll_event());
    let qpn = |event| match event {
        Event::PeerQpGone { qpn } => Some(qpn),
        _ => None,
    };
    events.filter_map(qpn).collect()
}

#[test]
fn a_node_hears_of_an_idle_qps_peer_that_went_whether_its_goodbye_arrives_or_not() {
    for lost in [false, true] {
        let mut pair = Pair::new(1);
        let [idle, goes] = pair.connected();
        pair.run(100 * MILLISECOND);
        assert_eq!(deserted(&mut pair), []);
        if lost {
            pair.fate = Box::new(|_, _| 0);
        }
        pair.nodes[1]
            .engine
            .destroy_qp(goes.qpn)
            .expect("it is there");
        pair.run(100 * MILLISECOND);
        if lost {
            assert_eq!(deserted(&mut pair), []);
            replace_connection(&mut pair);
            pair.fate = Box::new(|_, _| 1);
            pair.run(100 * MILLISECOND);
        }
        assert_eq!(deserted(&mut pair), [idle.qpn], "lost: {lost}");
        let state = pair.nodes[0].engine.query_qp(idle.qpn);
        assert_eq!(state.expect("it stays").0, QpState::Rts);
    }
}

/// Two idle QPs, of which the one of the second node is reset while nothing gets through. Their
/// connection has died since, and there is no other: nobody says any more that a life ended.
fn reset_in_a_cut(pair: &mut Pair) -> [Arc<QpQueues<RingMemory>>; 2] {
    let ends = pair.connected();
    pair.run(100 * MILLISECOND);
    pair.fate = Box::new(|_, _| 0);
    let engine = &mut pair.nodes[1].engine;
    engine
        .modify_qp(ends[1].qpn, &QpModify::Reset)
        .expect("any state");
    let conn = pair.conns.pop().expect("one is open");
    for (node, end) in pair.nodes.iter_mut().zip(conn) {
        node.engine.close_connection(end);
    }
    pair.run(100 * MILLISECOND);
    pair.fate = Box::new(|_, _| 1);
    assert_eq!(deserted(pair), []);
    ends
}

#[test]
fn a_node_hears_of_an_idle_qps_peer_that_was_reset_and_kept_though_its_goodbye_is_lost() {
    for posted in [false, true] {
        let mut pair = Pair::new(1);
        let [idle, _kept] = reset_in_a_cut(&mut pair);
        if posted {
            // As if the goodbye had come, what is wanted of the life that has agreed fails.
            pair.post(0, &idle, 1, SendOp::Send, &[pair.sge(0, 0, 100)]);
        }
        pair.open();
        pair.run(100 * MILLISECOND);
        let done: Vec<_> = pair.completions(0).iter().map(|done| done.status).collect();
        let state = pair.nodes[0].engine.query_qp(idle.qpn).expect("it stays").0;
        if posted {
            assert_eq!(
                (state, &done[..]),
                (QpState::Error, &[Status::RetryExceeded][..])
            );
        } else {
            assert_eq!((state, deserted(&mut pair)), (QpState::Rts, vec![idle.qpn]));
        }
    }
}

#[test]
fn a_node_hears_of_an_idle_qps_peer_that_is_in_another_life_and_the_qp_goes_on_with_that() {
    let mut pair = Pair::new(1);
    let [idle, again] = reset_in_a_cut(&mut pair);
    pair.open();
    pair.connect(1, &again, &idle);
    pair.receive(&again, 1, &[pair.sge(1, 0, 100)]);
    pair.post(0, &idle, 2, SendOp::Send, &[pair.sge(0, 0, 100)]);
    pair.run(100 * MILLISECOND);
    assert_eq!(deserted(&mut pair), [idle.qpn]);
    for node in [0, 1] {
        let done = pair.completions(node);
        let ended = done.iter().map(|done| done.status);
        assert!(ended.eq([Status::Success]), "node {node}: {done:?}");
    }
}

#[test]
fn flows_that_wait_for_a_peer_that_turns_out_to_be_ordinary_fail_and_ask_no_more() {
    let mut pair = Pair::new(1);
    let [waits, _] = pair.connected();
    pair.run(100 * MILLISECOND);
    let ends = pair.conns.pop().expect("one is open");
    pair.nodes[0].engine.close_connection(ends[0]);
    pair.fate = Box::new(|_, _| 0);
    pair.run(10 * MILLISECOND);
    let peer = peer_of(&pair, &waits);
    let engine = &mut pair.nodes[0].engine;
    let asks = |event: &Event| matches!(event, Event::NeedsConnection { .. });
    assert!(std::iter::from_fn(|| engine.poll_event()).any(|event| asks(&event)));
    engine.peer_is_ibta(peer);
    pair.run(10 * MILLISECOND);
    let engine = &mut pair.nodes[0].engine;
    let events: Vec<_> = std::iter::from_fn(|| engine.poll_event()).collect();
    assert!(!events.iter().any(asks), "{events:?}");
    assert!(engine.waiting_for(peer).is_empty());
    let state = engine.query_qp(waits.qpn).expect("it stays").0;
    assert_eq!(state, QpState::Error);
}

/// Address of the peer of a QP of the first node.
fn peer_of(pair: &Pair, qp: &QpQueues<RingMemory>) -> Gid {
    let (_, attributes) = pair.nodes[0].engine.query_qp(qp.qpn).expect("it is there");
    attributes.remote
}
