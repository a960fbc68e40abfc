//! The QP's own clock: how long requests wait for a peer that says nothing.

use crate::common::watched::{attributes, both, graced};
use crate::common::{Pair, RingMemory};
use std::collections::VecDeque;
use std::sync::Arc;
use trunkline_conn::control::CongestionControl;
use trunkline_conn::mem::Access;
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Remote, SendOp, Status, VendorError};
use trunkline_qpmap::{Attributes, QpModify, QpQueues, QpState, QpType};
use trunkline_wire::{Control, ControlKind, Gid, Qpn};

type Qp = Arc<QpQueues<RingMemory>>;

/// A QP in RTS, towards one that stays in INIT.
fn towards_init(pair: &mut Pair, patience: (u8, u8)) -> [Qp; 2] {
    let qps = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    let access = Access::ALL;
    let engine = &mut pair.nodes[1].engine;
    let init = QpModify::Init { access };
    engine.modify_qp(qps[1].qpn, &init).expect("a legal step");
    let attributes = attributes(0, &qps[1], patience);
    pair.take_to_rts(0, &qps[0], attributes, attributes);
    qps
}

pub(crate) fn write(pair: &Pair, qp: &Qp, wr_id: u64, length: u32) {
    let target = Remote {
        addr: pair.nodes[1].buffer.addr,
        rkey: pair.nodes[1].key,
    };
    pair.post(
        0,
        qp,
        wr_id,
        SendOp::Write(target),
        &[pair.sge(0, 0, length)],
    );
}

fn read(pair: &Pair, qp: &Qp, wr_id: u64, length: u32) {
    let target = Remote {
        addr: pair.nodes[1].buffer.addr,
        rkey: pair.nodes[1].key,
    };
    let sges = [pair.sge(0, 0, length)];
    pair.post(0, qp, wr_id, SendOp::Read(target), &sges);
}

/// When node 0 has its first completion, and how that ended; at most `limit` later.
fn first_end(pair: &mut Pair, limit: u64, step: u64) -> Option<(u64, Status)> {
    let begin = pair.now;
    while pair.now.since(begin) < limit {
        pair.run(step);
        if let Some(done) = pair.completions(0).first() {
            return Some((pair.now.since(begin), done.status));
        }
    }
    None
}

/// Node 1, as node 0 knows it.
fn peer() -> Gid {
    std::net::IpAddr::from([10, 0, 0, 2]).into()
}

/// The newest connection is closed by node 0. Node 1 hears that, but for what is lost.
fn close(pair: &mut Pair) {
    let ends = pair.conns.pop().expect("one is open");
    pair.nodes[0].engine.close_connection(ends[0]);
}

/// Node 0 asks its peer for a connection, for so long, and nobody answers.
fn ask_in_vain(pair: &mut Pair, ns: u64) {
    for remote in pair.nodes[0].engine.waiting_for(peer()) {
        pair.nodes[0]
            .engine
            .connect_request_begins(pair.now, peer(), remote);
        pair.run(ns);
        let now = pair.now;
        let engine = &mut pair.nodes[0].engine;
        engine.peer_silent(now, peer(), remote, VendorError::None);
    }
}

/// How long it takes until node 0 has its first completion, while it asks its peer again and again
/// in vain, `ns` each time, and how that ended; at most `limit`.
fn first_end_of_asks(pair: &mut Pair, limit: u64, ns: u64) -> Option<(u64, Status)> {
    let begin = pair.now;
    while pair.now.since(begin) < limit {
        ask_in_vain(pair, ns);
        pair.run(MILLISECOND);
        if let Some(done) = pair.completions(0).first() {
            return Some((pair.now.since(begin), done.status));
        }
    }
    None
}

/// The peer of node 0 is known to be silent: the next ask that nobody answers ends what waits.
fn ends_with_the_next_ask(pair: &mut Pair, case: &str) {
    let engine = &pair.nodes[0].engine;
    assert!(engine.is_silent(peer(), Qpn::default()), "{case}");
    let end = first_end_of_asks(pair, SECOND, 25 * MILLISECOND);
    let (took, status) = end.expect("an end");
    assert_eq!(status, Status::RetryExceeded, "{case}");
    assert!(took < 50 * MILLISECOND, "{case}: {took}");
}

/// 2^8 times 4.096 us, twice.
pub(crate) const SHORT: (u8, u8) = (8, 1);
const SHORT_NS: u64 = 2 * (4096 << 8);
/// The same, of about 8.6 s.
const LONG: (u8, u8) = (18, 7);
const LONG_NS: u64 = 8 * (4096 << 18);

#[test]
fn a_qp_whose_peer_stays_in_init_fails_when_the_grace_of_failover_is_over() {
    let mut pair = graced(1, 3 * SECOND);
    let [a, _b] = towards_init(&mut pair, SHORT);
    write(&pair, &a, 1, 64);
    let (took, status) = first_end(&mut pair, 60 * SECOND, 10 * MILLISECOND).expect("an end");
    assert_eq!(status, Status::RetryExceeded);
    assert!((3 * SECOND..4 * SECOND).contains(&took), "{took}");
    assert_eq!(a.state(), QpState::Error);
    assert_eq!(pair.nodes[0].engine.counters().timed_out, 1);
}

#[test]
fn a_qp_whose_peer_stays_in_init_fails_after_its_own_time_where_failover_gets_none() {
    for (patience, ns) in [(SHORT, SHORT_NS), (LONG, LONG_NS)] {
        let mut pair = graced(1, 0);
        let [a, _b] = towards_init(&mut pair, patience);
        write(&pair, &a, 1, 64);
        let step = ns / 16;
        let (took, status) = first_end(&mut pair, 20 * ns, step).expect("an end");
        assert_eq!(status, Status::RetryExceeded);
        assert!((ns..=4 * ns).contains(&took), "{took} of {ns}");
    }
}

#[test]
fn a_qp_whose_peer_gets_ready_in_time_goes_on() {
    let mut pair = graced(1, 3 * SECOND);
    let [a, b] = towards_init(&mut pair, SHORT);
    write(&pair, &a, 1, 64);
    pair.run(2900 * MILLISECOND);
    let attributes = attributes(1, &a, SHORT);
    let engine = &mut pair.nodes[1].engine;
    let rtr = QpModify::Rtr(attributes);
    engine.modify_qp(b.qpn, &rtr).expect("a legal step");
    let (_, status) = first_end(&mut pair, SECOND, 10 * MILLISECOND).expect("an end");
    assert_eq!(status, Status::Success);
    // Nothing of it is left to strike later.
    pair.run(20 * SECOND);
    assert_eq!(a.state(), QpState::Rts);
}

#[test]
fn a_silent_peer_ends_a_qp_after_its_own_time_where_failover_gets_none() {
    let mut pair = graced(1, 0);
    let [a, _b] = both(&mut pair, SHORT);
    pair.fate = Box::new(|node, _| usize::from(node == 0));
    write(&pair, &a, 1, 64);
    let (took, status) = first_end(&mut pair, SECOND, SHORT_NS / 16).expect("an end");
    assert_eq!(status, Status::RetryExceeded);
    assert!((SHORT_NS..=4 * SHORT_NS).contains(&took), "{took}");
}

#[test]
fn a_timeout_of_0_waits_for_as_long_as_peer_and_connection_live() {
    let mut pair = graced(1, 0);
    let [a, _b] = towards_init(&mut pair, (0, 0));
    write(&pair, &a, 1, 64);
    assert_eq!(first_end(&mut pair, 100 * SECOND, SECOND), None);
    close(&mut pair);
    ask_in_vain(&mut pair, MILLISECOND);
    let (_, status) = first_end(&mut pair, SECOND, MILLISECOND).expect("an end");
    assert_eq!(status, Status::RetryExceeded);
}

#[test]
fn data_that_waits_for_its_turn_is_not_in_vain() {
    let mut pair = graced(1, 0);
    let [a, _b] = both(&mut pair, SHORT);
    // The port takes nothing for long, then little.
    pair.room = Some(0);
    write(&pair, &a, 1, 64);
    write(&pair, &a, 2, 500_000);
    pair.run(50 * SHORT_NS);
    pair.room = Some(1);
    let mut done = Vec::new();
    for _ in 0..1000 {
        pair.run(SHORT_NS / 4);
        done.extend(pair.completions(0));
    }
    let all: Vec<_> = done.iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(all, [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn data_that_waits_for_the_window_of_its_connection_is_not_in_vain() {
    const WINDOW: usize = 1024;
    const OTHERS: usize = 32;
    /// Time that the path takes for a packet, in ns.
    const EACH_NS: u64 = 50_000;
    // 34 ms: the peer is heard of four times per window, each of 51 ms.
    const PATIENCE: (u8, u8) = (12, 1);
    const PATIENCE_NS: u64 = 2 * (4096 << 12);
    let mut pair = graced(0, 0);
    pair.control = Some(CongestionControl::None);
    pair.open();
    let others: Vec<Qp> = (0..OTHERS)
        .map(|_| both(&mut pair, LONG)[0].clone())
        .collect();
    let [a, _b] = both(&mut pair, PATIENCE);
    for other in &others {
        write(&pair, other, 1, 500_000);
    }
    let mut path: VecDeque<_> = pair.sent_by(0).into();
    loop {
        let sent = pair.sent_by(0);
        if sent.is_empty() {
            break;
        }
        path.extend(sent);
    }
    // A few numbers are kept back for what somebody waits for.
    assert!(path.len() > WINDOW * 9 / 10, "{} packets", path.len());
    write(&pair, &a, 2, 200_000);
    assert_eq!(pair.sent_by(0).len(), 0, "the window is full");
    let begin = pair.now;
    let took = loop {
        pair.now = pair.now + EACH_NS;
        path.extend(pair.sent_by(0));
        let arriving: Vec<_> = path.pop_front().into_iter().collect();
        pair.deliver(1, &arriving);
        pair.step(1);
        let ended = pair.completions(0);
        assert!(ended.iter().all(|done| done.status == Status::Success));
        if ended.iter().any(|done| done.wr_id == 2) {
            break pair.now.since(begin);
        }
    };
    assert!(took > 5 * PATIENCE_NS, "{took}");
    assert_eq!(pair.nodes[0].engine.counters().timed_out, 0);
}

#[test]
fn a_new_round_that_nobody_agreed_to_yet_has_not_waited_since_before_it_began() {
    const LARGE: u32 = 8192 + 80;
    // 268 ms.
    const PATIENCE: (u8, u8) = (13, 7);
    const PATIENCE_NS: u64 = 8 * (4096 << 13);
    let change = |config: &mut trunkline_qpmap::Config| config.failover_grace_ns = 0;
    let mut pair = Pair::configured(1, LARGE, change);
    let [a, _b] = both(&mut pair, PATIENCE);
    // The clock begins, and begins anew while packets are in flight.
    let begin = pair.now;
    write(&pair, &a, 1, 64);
    pair.run(PATIENCE_NS - MILLISECOND);
    assert_eq!(pair.completions(0).len(), 1);
    // The path carries what is small, until it is known to be narrow; then nothing for a while.
    pair.fate = Box::new(|from, datagram| usize::from(from == 1 || datagram.len() <= 1472));
    write(&pair, &a, 2, 20_000);
    while pair.nodes[0].engine.counters().resegmented == 0 {
        pair.run(MILLISECOND);
    }
    let took = pair.now.since(begin);
    assert!(took < 2 * PATIENCE_NS - 30 * MILLISECOND, "{took}");
    pair.fate = Box::new(|from, _| usize::from(from == 1));
    pair.run(2 * PATIENCE_NS - took + 50 * MILLISECOND);
    pair.fate = Box::new(|_, datagram| usize::from(datagram.len() <= 1472));
    let (_, status) = first_end(&mut pair, SECOND, MILLISECOND).expect("an end");
    assert_eq!(status, Status::Success);
    assert_eq!(pair.nodes[0].engine.counters().timed_out, 0);
}

#[test]
fn a_bind_that_waits_for_its_turn_is_not_in_vain() {
    let mut pair = graced(1, 0);
    let qps = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    // The port takes nothing for long.
    pair.room = Some(0);
    for node in [0, 1] {
        let attributes = attributes(node, &qps[1 - node], SHORT);
        pair.take_to_rts(node, &qps[node], attributes, attributes);
    }
    write(&pair, &qps[0], 1, 64);
    pair.run(50 * SHORT_NS);
    pair.room = None;
    let (_, status) = first_end(&mut pair, SECOND, MILLISECOND).expect("an end");
    assert_eq!(status, Status::Success);
    assert_eq!(pair.nodes[0].engine.counters().timed_out, 0);
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for_as_its_own_counter_says() {
    let mut pair = graced(1, 0);
    let qps = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    for node in [0, 1] {
        let attributes = Attributes {
            // 10.24 ms.
            min_rnr_timer: 20,
            ..attributes(node, &qps[1 - node], SHORT)
        };
        pair.take_to_rts(node, &qps[node], attributes, attributes);
    }
    pair.run(5 * MILLISECOND);
    pair.post(0, &qps[0], 1, SendOp::Send, &[pair.sge(0, 0, 64)]);
    pair.run(100 * MILLISECOND);
    assert!(pair.completions(0).is_empty());
    pair.receive(&qps[1], 2, &[pair.sge(1, 0, 64)]);
    let (_, status) = first_end(&mut pair, SECOND, MILLISECOND).expect("an end");
    assert_eq!(status, Status::Success);
}

#[test]
fn a_qp_that_asked_for_longer_than_failover_takes_outlives_asks_that_nobody_answers() {
    let mut pair = graced(1, 3 * SECOND);
    let [long, _] = both(&mut pair, LONG);
    let [short, _] = both(&mut pair, SHORT);
    let [idle, _] = both(&mut pair, LONG);
    pair.fate = Box::new(|_, _| 0);
    write(&pair, &long, 1, 64);
    write(&pair, &short, 2, 64);
    // The connection dies after 2 s.
    pair.run(2500 * MILLISECOND);
    assert!(pair.completions(0).is_empty());
    let begin = pair.now;
    let mut ends = Vec::new();
    while pair.now.since(begin) < 4 * LONG_NS {
        ask_in_vain(&mut pair, 1200 * MILLISECOND);
        pair.run(100 * MILLISECOND);
        let took = pair.now.since(begin);
        let done = pair.completions(0).into_iter();
        ends.extend(done.map(|done| (done.wr_id, done.status, took)));
    }
    let [
        (2, Status::RetryExceeded, first),
        (1, Status::RetryExceeded, second),
    ] = ends[..]
    else {
        panic!("{ends:?}");
    };
    assert!(first < 2 * SECOND, "{first}");
    assert!(
        (LONG_NS - 3 * SECOND..=3 * LONG_NS).contains(&second),
        "{second}"
    );
    assert_eq!(idle.state(), QpState::Error, "it ends, too");
    assert!(pair.nodes[0].engine.waiting_for(peer()).is_empty());
}

#[test]
fn a_request_whose_connection_dies_has_all_its_time_though_the_clock_began_with_another() {
    let mut pair = graced(1, 0);
    let [a, _] = both(&mut pair, LONG);
    let [other, _] = both(&mut pair, LONG);
    // The clock begins while packets are in flight of which nothing is heard.
    pair.fate = Box::new(|node, _| usize::from(node == 0));
    for qp in [&other, &a] {
        write(&pair, qp, 1, 64);
        pair.run(MILLISECOND);
    }
    pair.fate = Box::new(|_, _| 1);
    pair.run(100 * MILLISECOND);
    let done = pair.completions(0);
    assert!(done.iter().all(|done| done.status == Status::Success));
    assert_eq!(done.len(), 2);
    pair.run(LONG_NS / 2);
    pair.fate = Box::new(|_, _| 0);
    write(&pair, &a, 2, 64);
    let (took, status) = first_end(&mut pair, 3 * LONG_NS, SECOND / 8).expect("an end");
    assert_eq!(pair.nodes[0].engine.connections(), [], "it died");
    assert_eq!(status, Status::RetryExceeded);
    assert!((LONG_NS..=2 * LONG_NS).contains(&took), "{took}");
}

pub(crate) const GRACE: u64 = 3 * SECOND;

#[test]
fn a_qp_whose_connection_was_closed_outlives_asks_that_nobody_answers_until_the_grace_is_over() {
    for patience in [SHORT, (0, 0)] {
        let mut pair = graced(1, GRACE);
        let [a, _b] = both(&mut pair, patience);
        close(&mut pair);
        write(&pair, &a, 1, 64);
        let end = first_end_of_asks(&mut pair, 10 * SECOND, 25 * MILLISECOND);
        let (took, status) = end.expect("an end");
        assert_eq!(status, Status::RetryExceeded);
        assert!((GRACE..=2 * GRACE).contains(&took), "{took}");
    }
}

#[test]
fn a_qp_that_was_never_bound_outlives_asks_that_nobody_answers_until_the_grace_is_over() {
    for patience in [SHORT, (0, 0)] {
        let mut pair = graced(0, GRACE);
        let [a, _b] = both(&mut pair, patience);
        write(&pair, &a, 1, 64);
        let end = first_end_of_asks(&mut pair, 10 * SECOND, 25 * MILLISECOND);
        let (took, status) = end.expect("an end");
        assert_eq!(status, Status::RetryExceeded);
        assert!((GRACE..GRACE + SECOND).contains(&took), "{took}");
    }
}

#[test]
fn a_qp_whose_connection_died_of_silence_ends_with_the_next_ask_that_nobody_answers() {
    for patience in [SHORT, (0, 0)] {
        let mut pair = graced(1, GRACE);
        let [a, _b] = both(&mut pair, patience);
        pair.fate = Box::new(|_, _| 0);
        write(&pair, &a, 1, 64);
        pair.run(2500 * MILLISECOND);
        assert_eq!(pair.nodes[0].engine.connections(), []);
        ends_with_the_next_ask(&mut pair, &format!("{patience:?}"));
    }
}

#[test]
fn a_program_that_closes_its_own_connection_does_not_end_the_silence_of_a_peer() {
    for closes in [false, true] {
        let mut pair = graced(1, GRACE);
        let [a, _b] = both(&mut pair, SHORT);
        pair.private = true;
        pair.open();
        let own = pair.conns[1][0];
        pair.fate = Box::new(|_, _| 0);
        write(&pair, &a, 1, 64);
        pair.run(2500 * MILLISECOND);
        // It is idle, and has not found out yet.
        let engine = &mut pair.nodes[0].engine;
        assert_eq!(engine.connections(), [own]);
        if closes {
            engine.close_connection(own);
        }
        ends_with_the_next_ask(&mut pair, &format!("closes: {closes}"));
    }
}

#[test]
fn a_qp_that_loses_connections_now_and_then_has_not_waited_between() {
    for busy in [false, true] {
        let mut pair = graced(1, GRACE);
        let [a, b] = both(&mut pair, SHORT);
        // Without a connection at the beginning of its time, and at the end; in between it had
        // nothing to wait for, or got on.
        for wr_id in 0..4 {
            close(&mut pair);
            if busy {
                write(&pair, &a, wr_id, 64);
            }
            pair.run(2 * MILLISECOND);
            pair.open();
            assert!(!pair.nodes[0].engine.is_silent(peer(), Qpn::default()));
            pair.run(GRACE - 3 * MILLISECOND);
            let status = pair.completions(0).first().map(|done| done.status);
            assert_eq!(status, busy.then_some(Status::Success));
        }
        assert_eq!([a.state(), b.state()], [QpState::Rts; 2]);
    }
}

#[test]
fn a_qp_that_a_connection_came_for_waits_anew_when_that_is_closed_too() {
    let mut pair = graced(1, GRACE);
    let [a, _b] = both(&mut pair, SHORT);
    close(&mut pair);
    write(&pair, &a, 1, 64);
    for _ in 0..5 {
        pair.run(GRACE - MILLISECOND);
        // Nothing gets through before it is closed.
        pair.open();
        pair.nodes[0].engine.handle_doorbells();
        close(&mut pair);
    }
    assert_eq!(pair.completions(0), []);
    let end = first_end_of_asks(&mut pair, 10 * SECOND, 25 * MILLISECOND);
    let (took, status) = end.expect("an end");
    assert_eq!(status, Status::RetryExceeded);
    assert!((GRACE..=2 * GRACE).contains(&took), "{took}");
}

#[test]
fn a_qp_ends_though_connections_come_on_which_its_peer_says_nothing() {
    let mut pair = graced(1, GRACE);
    let [a, b] = both(&mut pair, SHORT);
    // Management packets arrive, and no others: each connection dies after 2 s.
    pair.fate = Box::new(|_, _| 0);
    write(&pair, &a, 1, 64);
    let begin = pair.now;
    while pair.completions(0).is_empty() {
        assert!(pair.now.since(begin) <= 4 * GRACE, "it has no end");
        pair.run(10 * MILLISECOND);
        if pair.nodes[0].engine.connections().is_empty() {
            pair.open();
            // Consent comes in the handshake.
            let ([here, _], now) = (pair.conns[pair.conns.len() - 1], pair.now);
            for round in 0..8 {
                let consent = Control {
                    kind: ControlKind::Bound,
                    src_qp: b.qpn,
                    dest_qp: a.qpn,
                    generation: 1,
                    status: 1,
                    replay_epoch: round,
                    msn: 0,
                };
                pair.nodes[0].engine.handle_early(now, here, consent);
            }
        }
    }
}

#[test]
fn a_qp_whose_peer_stays_in_init_ends_though_its_connections_are_closed() {
    let mut pair = graced(1, GRACE);
    let [a, _b] = towards_init(&mut pair, SHORT);
    write(&pair, &a, 1, 64);
    let begin = pair.now;
    while pair.completions(0).is_empty() {
        assert!(pair.now.since(begin) <= 4 * GRACE, "it has no end");
        pair.run(500 * MILLISECOND);
        close(&mut pair);
        pair.open();
    }
}

/// Where the connection is lost at one end, the other end hears of it, and there is a new one: what
/// connection managers do. Gives whether it was lost.
fn reconnect(pair: &mut Pair) -> bool {
    let gone = |node: usize| pair.nodes[node].engine.connections().is_empty();
    let lost = gone(0) || gone(1);
    if lost {
        for (node, id) in pair.conns.pop().into_iter().flatten().enumerate() {
            pair.nodes[node].engine.close_connection(id);
        }
        pair.open();
    }
    lost
}

/// Runs on a path that carries no datagram of more than 300 bytes until node 0 has its first
/// completion, or `most` connections are lost. Gives how many were, and how it ended.
pub(crate) fn on_tiny_path(pair: &mut Pair, most: u32) -> (u32, Option<Status>) {
    pair.fate = Box::new(|_, datagram| usize::from(datagram.len() <= 300));
    let mut lost = 0;
    while lost < most {
        pair.run(10 * MILLISECOND);
        if let Some(done) = pair.completions(0).first() {
            return (lost, Some(done.status));
        }
        lost += u32::from(reconnect(pair));
    }
    (lost, None)
}

#[test]
fn a_qp_ends_whose_path_carries_handshakes_and_none_of_its_data() {
    for op in ["WRITE", "READ"] {
        let mut pair = graced(1, GRACE);
        let [a, _b] = both(&mut pair, SHORT);
        match op {
            "WRITE" => write(&pair, &a, 1, 1000),
            _ => read(&pair, &a, 1, 1000),
        }
        let (lost, status) = on_tiny_path(&mut pair, 10);
        assert_eq!(
            status,
            Some(Status::RetryExceeded),
            "{op}, {lost} were lost"
        );
        assert!(lost >= 3, "{op}, {lost} were lost");
        assert_eq!(a.state(), QpState::Error);
        assert_eq!(pair.nodes[0].engine.counters().timed_out, 1);
    }
}

#[test]
fn a_qp_lives_whose_small_messages_arrive_beside_one_of_which_no_data_does() {
    let mut pair = graced(1, GRACE);
    let [a, _] = both(&mut pair, SHORT);
    let [small, _] = both(&mut pair, SHORT);
    write(&pair, &a, 1, 1000);
    pair.fate = Box::new(|_, datagram| usize::from(datagram.len() <= 300));
    let begin = pair.now;
    let mut done = Vec::new();
    while !done.contains(&(a.qpn, Status::RetryExceeded)) {
        assert!(pair.now.since(begin) < 60 * SECOND, "it has no end");
        write(&pair, &small, 2, 64);
        pair.run(20 * MILLISECOND);
        reconnect(&mut pair);
        let ended = pair.completions(0);
        done.extend(ended.iter().map(|done| (done.qpn, done.status)));
    }
    assert_eq!(small.state(), QpState::Rts);
    assert!(done.contains(&(small.qpn, Status::Success)));
}

#[test]
fn a_qp_goes_on_whose_path_carries_its_data_again_after_two_connections() {
    let mut pair = graced(1, GRACE);
    let [a, _b] = both(&mut pair, SHORT);
    for wr_id in 0..3 {
        write(&pair, &a, wr_id, 1000);
        assert_eq!(on_tiny_path(&mut pair, 2), (2, None));
        pair.fate = Box::new(|_, _| 1);
        let (_, status) = first_end(&mut pair, GRACE, MILLISECOND).expect("an end");
        assert_eq!(status, Status::Success);
    }
}

#[test]
fn a_qp_of_timeout_0_outlives_any_number_of_connections() {
    let mut pair = graced(1, GRACE);
    let [a, _b] = both(&mut pair, (0, 0));
    write(&pair, &a, 1, 1000);
    assert_eq!(on_tiny_path(&mut pair, 10), (10, None));
    pair.fate = Box::new(|_, _| 1);
    let (_, status) = first_end(&mut pair, GRACE, MILLISECOND).expect("an end");
    assert_eq!(status, Status::Success);
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for_over_any_number_of_connections() {
    let mut pair = graced(1, GRACE);
    let [a, b] = both(&mut pair, SHORT);
    pair.post(0, &a, 1, SendOp::Send, &[pair.sge(0, 0, 64)]);
    for _ in 0..8 {
        pair.fate = Box::new(|_, _| 1);
        pair.run(GRACE);
        pair.fate = Box::new(|_, _| 0);
        while !reconnect(&mut pair) {
            pair.run(10 * MILLISECOND);
        }
    }
    assert_eq!(pair.completions(0), []);
    pair.fate = Box::new(|_, _| 1);
    pair.receive(&b, 2, &[pair.sge(1, 0, 64)]);
    let (_, status) = first_end(&mut pair, GRACE, MILLISECOND).expect("an end");
    assert_eq!(status, Status::Success);
}

/// Lets `rounds` rounds pass, a millisecond each, in which a node sends two packets at most.
fn crawl(pair: &mut Pair, rounds: u32) -> Option<Status> {
    pair.room = Some(2);
    for _ in 0..rounds {
        for node in [0, 1] {
            pair.step(node);
        }
        if let Some(done) = pair.completions(0).first() {
            return Some(done.status);
        }
        pair.now = pair.now + MILLISECOND;
    }
    None
}

#[test]
fn a_qp_lives_whose_long_message_arrives_after_three_connections_were_closed_under_it() {
    for op in ["WRITE", "READ"] {
        for closed in [0, 2, 3] {
            let mut pair = graced(1, 200 * MILLISECOND);
            let [a, _b] = both(&mut pair, SHORT);
            match op {
                "WRITE" => write(&pair, &a, 1, 1 << 20),
                _ => read(&pair, &a, 1, 1 << 20),
            }
            for _ in 0..closed {
                assert_eq!(crawl(&mut pair, 50), None, "{op}, {closed}");
                for (node, id) in pair.conns.pop().into_iter().flatten().enumerate() {
                    pair.nodes[node].engine.close_connection(id);
                }
                pair.open();
            }
            let end = crawl(&mut pair, 20_000);
            assert_eq!(end, Some(Status::Success), "{op}, {closed} were closed");
        }
    }
}

#[test]
fn a_long_message_ends_of_which_connection_after_connection_carries_a_part() {
    for op in ["WRITE", "READ"] {
        let mut pair = graced(1, 200 * MILLISECOND);
        let [a, _b] = both(&mut pair, SHORT);
        match op {
            "WRITE" => write(&pair, &a, 1, 1 << 20),
            _ => read(&pair, &a, 1, 1 << 20),
        }
        let mut closed = 0;
        let end = loop {
            if let Some(end) = crawl(&mut pair, 50) {
                break end;
            }
            for (node, id) in pair.conns.pop().into_iter().flatten().enumerate() {
                pair.nodes[node].engine.close_connection(id);
            }
            pair.open();
            closed += 1;
            assert!(closed < 60, "{op} has no end");
        };
        assert_eq!(end, Status::RetryExceeded, "{op}, {closed} were closed");
        assert!(closed >= 24, "{op}, {closed} were closed");
    }
}

#[test]
fn what_is_over_leaves_no_timer() {
    let mut pair = graced(1, 60 * SECOND);
    let qps = both(&mut pair, (14, 7));
    let timers = |pair: &Pair| pair.nodes[0].engine.timers();
    // Nobody is ready to receive: there are a pause, and the clock of the QP.
    pair.post(0, &qps[0], 1, SendOp::Send, &[pair.sge(0, 0, 64)]);
    pair.run(5 * MILLISECOND);
    assert!(timers(&pair) >= 3, "{} timers", timers(&pair));
    let engine = &mut pair.nodes[0].engine;
    engine.destroy_qp(qps[0].qpn).expect("it is there");
    // Memory of the connection that was active is freed meanwhile, too.
    pair.run(5 * SECOND);
    assert_eq!(
        timers(&pair),
        2,
        "of idle connections, and of what was counted"
    );
    // However often it carries something, and rests.
    let qps = both(&mut pair, (14, 7));
    for wr_id in 0..3 {
        write(&pair, &qps[0], wr_id, 64);
        pair.run(125 * SECOND);
        assert_eq!(timers(&pair), 1, "after {wr_id}");
    }
    let engine = &mut pair.nodes[0].engine;
    engine.destroy_qp(qps[0].qpn).expect("it is there");
    pair.run(MILLISECOND);
    close(&mut pair);
    // Nothing is taken out of the calendar before its time.
    pair.run(125 * SECOND);
    assert_eq!(timers(&pair), 0);
}

/// The same, where it was opened when the peer was silent already: handshakes arrive, packets do
/// not, and nothing was heard on it.
#[test]
fn a_program_that_opens_and_closes_a_connection_of_its_own_does_not_end_the_silence_of_a_peer() {
    for opens in [false, true] {
        let mut pair = graced(1, GRACE);
        let [a, _b] = both(&mut pair, SHORT);
        pair.fate = Box::new(|_, _| 0);
        write(&pair, &a, 1, 64);
        pair.run(2500 * MILLISECOND);
        assert!(pair.nodes[0].engine.connections().is_empty());
        assert!(pair.nodes[0].engine.is_silent(peer(), Qpn::default()));
        if opens {
            pair.private = true;
            pair.open();
            let own = pair.conns[1][0];
            pair.run(100 * MILLISECOND);
            let engine = &mut pair.nodes[0].engine;
            assert_eq!(engine.connections(), [own]);
            engine.close_connection(own);
        }
        ends_with_the_next_ask(&mut pair, &format!("opens: {opens}"));
    }
}

/// What stands again is not silent, and does not begin to be where it is closed.
#[test]
fn the_silence_of_a_peer_is_over_with_the_next_connection_of_a_pool() {
    let mut pair = graced(1, GRACE);
    let [a, _b] = both(&mut pair, SHORT);
    pair.fate = Box::new(|_, _| 0);
    write(&pair, &a, 1, 64);
    pair.run(2500 * MILLISECOND);
    assert!(pair.nodes[0].engine.is_silent(peer(), Qpn::default()));
    pair.fate = Box::new(|_, _| 1);
    pair.open();
    pair.run(MILLISECOND);
    let engine = &mut pair.nodes[0].engine;
    assert!(!engine.is_silent(peer(), Qpn::default()), "it stands");
    let conns = engine.connections();
    conns.iter().for_each(|conn| engine.close_connection(*conn));
    assert!(!engine.is_silent(peer(), Qpn::default()), "it was closed");
}
