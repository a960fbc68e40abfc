//! What has to be done for as many QPs as there are: some in each call, nothing of it twice, and
//! other peers go on meanwhile.

use crate::common::{Node, Pair, RingMemory, params};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_conn::time::MILLISECOND;
use trunkline_conn::work::{Completion, SendOp, Status, VendorError};
use trunkline_qpmap::{
    Attributes, Config, ConnId, Event, PeerIdentity, QpModify, QpQueues, QpType, Trace,
};
use trunkline_wire::{Gid, Opcode, Qpn, Workers};

/// Flows that a call may take up: `PER_ROUND` in qpmap/src/engine/backlog.rs.
const PER_CALL: u64 = 256;

type Queues = Arc<QpQueues<RingMemory>>;

fn address(n: u8) -> Gid {
    IpAddr::from([10, 0, 0, n]).into()
}

/// QPs of node 0 towards one of node 1, which need never answer.
fn many(pair: &mut Pair, count: usize) -> Vec<Queues> {
    let peer = pair.qp(1, QpType::Rc);
    let one = |_| {
        let qp = pair.qp(0, QpType::Rc);
        pair.connect(0, &qp, &peer);
        qp
    };
    (0..count).map(one).collect()
}

/// Counts what an engine does for flows one by one.
fn watched(node: &mut Node) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    node.engine.observe(move |trace| {
        if matches!(trace, Trace::Failover { .. }) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    count
}

/// Gives node 0 rounds until `done` has grown to `all`, by a bounded number in each. Gives how many
/// rounds it took.
fn in_steps(pair: &mut Pair, all: u64, done: impl Fn(&mut Pair) -> u64) -> u64 {
    let (mut before, mut rounds) = (done(pair), 0);
    assert!(before <= PER_CALL, "{before} at once");
    while before < all {
        pair.now = pair.now + 1_000;
        pair.sent_by(0);
        let now = done(pair);
        assert!(now - before <= PER_CALL, "{} at once", now - before);
        before = now;
        rounds += 1;
        assert!(rounds < all, "nothing moves: {before} of {all}");
    }
    assert_eq!(before, all);
    rounds
}

fn flows(pair: &Pair, conn: ConnId) -> u64 {
    let stats = pair.nodes[0].engine.connection_stats(conn);
    stats.map_or(0, |stats| stats.flows.into())
}

fn failed(pair: &mut Pair) -> u64 {
    let engine = &mut pair.nodes[0].engine;
    let events = std::iter::from_fn(|| engine.poll_event());
    events
        .filter(|event| matches!(event, Event::QpFailed { .. }))
        .count() as u64
}

#[test]
fn no_call_moves_more_flows_the_more_there_are() {
    const QPS: usize = 100_000;
    let mut pair = Pair::new(1);
    let qps = many(&mut pair, QPS);
    let moved = watched(&mut pair.nodes[0]);
    // To another connection of the pool.
    pair.open();
    let [gone, heir] = [pair.conns[0][0], pair.conns[1][0]];
    in_steps(&mut pair, QPS as u64 / 2, |pair| flows(pair, heir));
    pair.nodes[0].engine.close_connection(gone);
    assert_eq!(
        moved.load(Ordering::Relaxed),
        0,
        "the call that ends it moves none"
    );
    let rounds = in_steps(&mut pair, QPS as u64 / 2, |_| moved.load(Ordering::Relaxed));
    assert!(rounds >= QPS as u64 / 2 / PER_CALL);
    assert_eq!(flows(&pair, heir), QPS as u64);
    // To none, and from there to a new one.
    pair.nodes[0].engine.close_connection(heir);
    let before = QPS as u64 / 2;
    in_steps(&mut pair, QPS as u64, |_| {
        moved.load(Ordering::Relaxed) - before
    });
    pair.open();
    let fresh = pair.conns[2][0];
    in_steps(&mut pair, QPS as u64, |pair| flows(pair, fresh));
    // They wait for a peer to which there is no way.
    pair.nodes[0].engine.close_connection(fresh);
    while flows(&pair, fresh) > 0 || pair.nodes[0].engine.is_busy() {
        pair.sent_by(0);
    }
    failed(&mut pair);
    let (now, remote) = (pair.now, Qpn::default());
    let engine = &mut pair.nodes[0].engine;
    assert_eq!(engine.waiting_for(address(2)).len(), 1);
    engine.connect_request_begins(now, address(2), remote);
    engine.peer_unreachable(address(2), remote, VendorError::NoNode);
    let ended = std::cell::Cell::new(0);
    in_steps(&mut pair, QPS as u64, |pair| {
        ended.set(ended.get() + failed(pair));
        ended.get()
    });
    assert!(pair.nodes[0].engine.waiting_for(address(2)).is_empty());
    drop(qps);
}

#[test]
fn no_call_decides_for_more_qps_the_more_wait_to_hear_what_their_peer_is() {
    const QPS: usize = 20_000;
    let mut pair = Pair::new(0);
    let qps = many(&mut pair, QPS);
    pair.open();
    let conn = pair.conns[0][0];
    in_steps(&mut pair, QPS as u64, |pair| flows(pair, conn));
    drop(qps);
}

#[test]
fn a_packet_takes_up_the_qp_that_it_names_before_its_turn() {
    const QPS: usize = 3 * PER_CALL as usize;
    let mut pair = Pair::new(0);
    let qps: Vec<_> = (0..QPS).map(|_| pair.connected()).collect();
    pair.open();
    let conn = pair.conns[0][0];
    let mut binds = Vec::new();
    for _ in 0..4 {
        pair.now = pair.now + 100_000;
        binds.extend(pair.sent_by(1));
    }
    assert_eq!(flows(&pair, conn), 0, "node 0 has had no round");
    pair.deliver(0, &binds);
    assert_eq!(flows(&pair, conn), QPS as u64, "each BIND is heard");
    for [ours, theirs] in &qps {
        pair.receive(theirs, 0, &[pair.sge(1, 0, 64)]);
        pair.post(0, ours, 0, SendOp::Send, &[pair.sge(0, 0, 64)]);
    }
    let [done, _] = run(&mut pair, 300);
    assert_eq!(done.len(), QPS);
    assert!(done.iter().all(|(.., status)| *status == Status::Success));
}

/// Where flows stand when their peer is gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stand {
    Bound,
    /// Bound before; their connection is gone.
    Waiting,
    /// The same, and the peer has not heard of them.
    Unheard,
}

/// The peer of many QPs is another one now, with QPs of the same numbers for the same QPs, and asks
/// for them before what waits for its turn was done. Gives the pair, and how many have failed.
fn restarted(stand: Stand, count: usize) -> (Pair, u64) {
    let mut pair = Pair::new(0);
    let mut first = node(2);
    let conns = join(&mut pair, &mut first, 2, 1);
    pair.nodes[1] = first;
    let qps: Vec<_> = (0..count).map(|_| pair.connected()).collect();
    if stand != Stand::Unheard {
        pair.run(20 * MILLISECOND);
        assert_eq!(flows(&pair, conns[0]), count as u64);
    }
    if stand != Stand::Bound {
        pair.nodes[0].engine.close_connection(conns[0]);
        while pair.nodes[0].engine.is_busy() {
            pair.sent_by(0);
        }
    }
    failed(&mut pair);
    pair.nodes[1] = node(2);
    for [ours, old] in &qps {
        let new = pair.qp(1, QpType::Rc);
        assert_eq!(new.qpn, old.qpn);
        pair.connect(1, &new, ours);
    }
    pair.nodes[0].engine.drop_peer(address(2));
    let mut next = std::mem::replace(&mut pair.nodes[1], node(9));
    join(&mut pair, &mut next, 2, 2);
    pair.nodes[1] = next;
    let mut binds = Vec::new();
    for _ in 0..4 {
        pair.now = pair.now + 100_000;
        binds.extend(pair.sent_by(1));
    }
    assert!(binds.len() > 1, "they ask for what they know");
    pair.deliver(0, &binds);
    pair.run(100 * MILLISECOND);
    let failed = failed(&mut pair);
    (pair, failed)
}

#[test]
fn the_next_incarnation_of_a_peer_gets_what_the_one_before_never_heard_of_and_nothing_else() {
    let count = 3 * PER_CALL;
    for (stand, binds) in [
        (Stand::Bound, 0),
        (Stand::Waiting, 0),
        (Stand::Unheard, count),
    ] {
        let (pair, failed) = restarted(stand, count as usize);
        let bound = pair.nodes.each_ref().map(|node| {
            let engine = &node.engine;
            let conns = engine.connections();
            let stats = conns.iter().filter_map(|id| engine.connection_stats(*id));
            stats.map(|stats| u64::from(stats.flows)).sum::<u64>()
        });
        assert_eq!((bound[0], failed), (binds, count - binds), "{stand:?}");
        let consents = pair.nodes[1].engine.counters().bound;
        assert_eq!(consents, binds, "{stand:?}");
    }
}

#[test]
fn no_call_fails_more_qps_the_more_use_a_cq_in_error() {
    const QPS: usize = 20_000;
    let mut pair = Pair::new(1);
    let qps = many(&mut pair, QPS);
    failed(&mut pair);
    let cq = pair.nodes[0].engine.cq_id(pair.nodes[0].cq_index);
    assert!(pair.nodes[0].engine.fail_cq(cq));
    let ended = std::cell::Cell::new(0);
    in_steps(&mut pair, QPS as u64, |pair| {
        ended.set(ended.get() + failed(pair));
        ended.get()
    });
    assert!(qps.iter().all(|qp| qp.is_flushing()));
}

/// Another node, at 10.0.0.`n`, without connections.
fn node(n: u8) -> Node {
    let of_pair = |config: &mut Config| config.address = [10, 0, 0, n].into();
    let [_, node] = Pair::configured(0, 1024 + 80, of_pair).nodes;
    node
}

/// Connects a node at 10.0.0.`n`, in the incarnation `epoch`, to node 0. Gives both ends.
fn join(pair: &mut Pair, node: &mut Node, n: u8, epoch: u64) -> [ConnId; 2] {
    let now = pair.now;
    let mut engines = [&mut pair.nodes[0].engine, &mut node.engine];
    let numbers = [0, 1].map(|at| engines[at].draw_connection().expect("a number"));
    [0, 1].map(|at| {
        let params = params(numbers[at], numbers[1 - at]);
        let (n, epoch) = [(n, epoch), (1, 1)][at];
        let identity = PeerIdentity {
            guid: n.into(),
            epoch,
            address: address(n),
            workers: Workers::ONE,
        };
        let added = engines[at].add_connection(now, identity, &params);
        added.expect("a connection")
    })
}

#[test]
fn another_peer_is_served_while_the_flows_of_a_dead_connection_move() {
    const QPS: usize = 20_000;
    const SENDS: usize = 20;
    let mut pair = Pair::new(1);
    let _qps = many(&mut pair, QPS);
    pair.open();
    while pair.nodes[0].engine.is_busy() {
        pair.now = pair.now + 1_000;
        pair.sent_by(0);
    }
    let moved = watched(&mut pair.nodes[0]);
    let mut other = node(3);
    join(&mut pair, &mut other, 3, 1);
    // Node 1 of the pair stands aside: the third one takes its place.
    std::mem::swap(&mut pair.nodes[1], &mut other);
    let [a, b] = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    for (node, qp, remote, peer) in [(0, &a, &b, 3), (1, &b, &a, 1)] {
        let attributes = Attributes {
            remote: address(peer),
            dest_qpn: remote.qpn,
            ..Attributes::default()
        };
        pair.take_to_rts(node, qp, attributes, attributes);
    }
    let exchange = |pair: &mut Pair| {
        pair.receive(&b, 1, &[pair.sge(1, 0, 64)]);
        pair.post(0, &a, 1, SendOp::Send, &[pair.sge(0, 0, 64)]);
        let mut rounds = 0;
        while pair.completions(0).is_empty() {
            pair.now = pair.now + 1_000;
            let sent = pair.sent_by(0);
            let to_it =
                |(path, _): &(trunkline_wire::Path, Vec<u8>)| Gid::from(path.dst) == address(3);
            let sent: Vec<_> = sent.into_iter().filter(to_it).collect();
            pair.deliver(1, &sent);
            let answers = pair.sent_by(1);
            pair.deliver(0, &answers);
            rounds += 1;
        }
        rounds
    };
    let calm: u64 = (0..SENDS).map(|_| exchange(&mut pair)).max().expect("some");
    let gone = pair.conns[0][0];
    pair.nodes[0].engine.close_connection(gone);
    for _ in 0..SENDS {
        let before = moved.load(Ordering::Relaxed);
        let took = exchange(&mut pair);
        let meanwhile = moved.load(Ordering::Relaxed) - before;
        assert!(
            (1..QPS as u64 / 4).contains(&meanwhile),
            "{meanwhile} moved"
        );
        assert!(took <= calm + 1, "{took} rounds, {calm} when nothing moves");
    }
}

/// SENDs of each QP in the tests below.
const SENDS: u64 = 6;

/// Pairs of QPs with receives for all their SENDs.
fn pairs(pair: &mut Pair, count: usize) -> Vec<[Queues; 2]> {
    let one = |_| {
        let qps = pair.connected();
        for wr_id in 0..SENDS {
            pair.receive(&qps[1], wr_id, &[pair.sge(1, 0, 64)]);
        }
        qps
    };
    let qps = (0..count).map(one).collect();
    pair.run(20 * MILLISECOND);
    qps
}

/// Runs both nodes, and gives what completed at each: QP, request, status.
fn run(pair: &mut Pair, rounds: usize) -> [Vec<(Qpn, u64, Status)>; 2] {
    let mut done = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        pair.now = pair.now + 20_000;
        for (node, done) in done.iter_mut().enumerate() {
            pair.step(node);
            let new = pair.completions(node);
            done.extend(new.iter().map(|done| (done.qpn, done.wr_id, done.status)));
        }
    }
    done
}

/// Pairs of QPs on two connections, each with a SEND that has just been posted.
fn posted(count: usize) -> (Pair, Vec<[Queues; 2]>) {
    let mut pair = Pair::new(1);
    let qps = pairs(&mut pair, count);
    pair.open();
    run(&mut pair, 100);
    for [qp, _] in &qps {
        pair.post(0, qp, 0, SendOp::Send, &[pair.sge(0, 0, 64)]);
    }
    (pair, qps)
}

#[test]
fn what_is_posted_before_during_and_after_a_move_is_done_once_and_in_order() {
    const QPS: usize = 1500;
    let mut pair = Pair::new(1);
    let qps = pairs(&mut pair, QPS);
    pair.open();
    run(&mut pair, 100);
    let post = |pair: &Pair, wr_id: u64| {
        for [qp, _] in &qps {
            pair.post(0, qp, wr_id, SendOp::Send, &[pair.sge(0, 0, 64)]);
        }
    };
    let mut done = [Vec::new(), Vec::new()];
    let mut go_on = |pair: &mut Pair, rounds: usize| {
        for (all, new) in done.iter_mut().zip(run(pair, rounds)) {
            all.extend(new);
        }
    };
    // Every seventh packet is lost.
    let mut count = 0;
    pair.fate = Box::new(move |_, _| {
        count += 1;
        usize::from(count % 7 != 0)
    });
    post(&pair, 0);
    go_on(&mut pair, 1);
    post(&pair, 1);
    // One end knows first; the other hears it, or not, from a packet that may be lost.
    let [ours, theirs] = pair.conns[0];
    pair.nodes[0].engine.close_connection(ours);
    post(&pair, 2);
    go_on(&mut pair, 1);
    post(&pair, 3);
    pair.nodes[1].engine.close_connection(theirs);
    go_on(&mut pair, 2);
    post(&pair, 4);
    go_on(&mut pair, 20);
    post(&pair, 5);
    go_on(&mut pair, 3000);
    for (node, done) in done.iter().enumerate() {
        let mut next = std::collections::BTreeMap::new();
        for (qpn, wr_id, status) in done {
            assert_eq!(*status, Status::Success);
            let next = next.entry(qpn.get()).or_insert(0);
            assert_eq!(wr_id, next, "node {node}: once, and in order");
            *next += 1;
        }
        assert_eq!(next.len(), QPS);
        assert!(next.values().all(|done| *done == SENDS));
    }
}

#[test]
fn qps_that_end_while_they_move_end_once_and_leave_nothing() {
    let (mut pair, qps) = posted(1500);
    for (node, conn) in pair.conns[0].into_iter().enumerate() {
        pair.nodes[node].engine.close_connection(conn);
    }
    let mut done = run(&mut pair, 1);
    for (at, [ours, theirs]) in qps.iter().enumerate() {
        let [one, other] = &mut pair.nodes;
        match at % 5 {
            0 => one.engine.destroy_qp(ours.qpn),
            1 => one.engine.modify_qp(ours.qpn, &QpModify::Error),
            2 => other.engine.destroy_qp(theirs.qpn),
            3 => other.engine.modify_qp(theirs.qpn, &QpModify::Reset),
            _ => Ok(()),
        }
        .expect("it is there");
    }
    // Requests to those that left in order wait for a while.
    for (all, new) in done.iter_mut().zip(run(&mut pair, 10_000)) {
        all.extend(new);
    }
    for (at, [ours, _]) in qps.iter().enumerate() {
        let ended = done[0].iter().filter(|(qpn, ..)| *qpn == ours.qpn).count();
        let wanted = if at % 5 == 0 { 0..=1 } else { 1..=1 };
        assert!(wanted.contains(&ended), "QP {at}: {ended} completions");
    }
    for (node, qps) in [0, 1].map(|node| (node, qps.iter().map(move |qps| &qps[node]))) {
        for qp in qps {
            // Some are gone.
            let _ = pair.nodes[node].engine.destroy_qp(qp.qpn);
        }
    }
    run(&mut pair, 3000);
    for node in &pair.nodes {
        let left = node.engine.live_objects();
        assert!(left.named().all(|(_, count)| count == 0), "{left:?}");
    }
}

#[test]
fn a_node_that_ends_while_flows_move_says_so_and_its_peers_flows_fail() {
    const QPS: usize = 600;
    let (mut pair, _qps) = posted(QPS);
    let gone = pair.conns[0][0];
    pair.nodes[0].engine.close_connection(gone);
    let mut done = Vec::new();
    done.extend(run(&mut pair, 1)[0].iter().copied());
    pair.nodes[1].engine.say_goodbye(false);
    let said = pair.sent_by(1);
    assert!(
        said.iter()
            .any(|(_, datagram)| Opcode(datagram[0]) == Opcode::SRC_CLOSE)
    );
    pair.deliver(0, &said);
    // What is posted to those that left in order waits for a while.
    done.extend(run(&mut pair, 10_000)[0].iter().copied());
    let mut ended: Vec<u32> = done.iter().map(|(qpn, ..)| qpn.get()).collect();
    ended.sort_unstable();
    ended.dedup();
    assert_eq!((ended.len(), done.len()), (QPS, QPS), "each ends, and once");
    let failed = done
        .iter()
        .filter(|(.., status)| *status == Status::RetryExceeded);
    assert!(failed.count() > QPS / 4);
    assert!(
        pair.nodes[0].engine.peer(address(2)).is_none(),
        "it is forgotten"
    );
}

#[test]
fn no_call_ends_more_routes_the_more_the_peer_of_many_connections_takes_down_with_it() {
    const CONNECTIONS: usize = 250;
    const HUBS: usize = 30;
    const LEAVES: usize = 100;
    const ROUTES: u64 = (HUBS * LEAVES) as u64;
    let mut pair = Pair::new(CONNECTIONS);
    let managed = |pair: &mut Pair, node: usize| {
        let qp = pair.qp(node, QpType::Src);
        pair.take_to_rts(node, &qp, Attributes::default(), Attributes::default());
        qp
    };
    let hubs: Vec<Queues> = (0..HUBS).map(|_| managed(&mut pair, 0)).collect();
    let leaves: Vec<Queues> = (0..LEAVES).map(|_| managed(&mut pair, 1)).collect();
    for (number, hub) in hubs.iter().enumerate() {
        for (at, leaf) in leaves.iter().enumerate() {
            let conn = pair.conns[(number * LEAVES + at) % CONNECTIONS][0];
            let route = pair.nodes[0].engine.add_route(hub.qpn, conn, leaf.qpn);
            route.expect("a route of an app-managed QP");
        }
    }
    pair.run(20 * MILLISECOND);
    assert_eq!(pair.nodes[0].engine.counters().bound, ROUTES);
    let moved = watched(&mut pair.nodes[0]);
    pair.nodes[1].engine.say_goodbye(false);
    let goodbyes = pair.sent_by(1);
    pair.deliver(0, &goodbyes[..1]);
    assert_eq!(pair.nodes[0].engine.connections(), []);
    assert_eq!(moved.load(Ordering::Relaxed), 0, "the call that hears it");
    let ended = |pair: &mut Pair| pair.nodes[0].engine.counters().routes_ended;
    let rounds = in_steps(&mut pair, ROUTES, ended);
    assert!(rounds >= ROUTES / PER_CALL);
    assert_eq!(moved.load(Ordering::Relaxed), ROUTES);
}

/// Bells, and requests of app-managed QPs, that a call may hear: `MOST_BELLS` in
/// qpmap/src/engine/mod.rs.
const HEARD: u64 = 1024;

/// What node 0 completes when it hears its doorbells.
fn heard(pair: &mut Pair) -> Vec<Completion> {
    pair.nodes[0].engine.handle_doorbells();
    pair.nodes[0].engine.publish();
    let some = std::iter::from_fn(|| Some(pair.completions(0)).filter(|some| !some.is_empty()));
    some.flatten().collect()
}

/// Gives node 0 doorbells to handle until `all` requests have ended; gives in how many calls.
fn heard_in_steps(pair: &mut Pair, all: u64) -> u64 {
    let (mut ended, mut calls) = (0, 0);
    while ended < all {
        let done = heard(pair).len() as u64;
        assert!((1..=HEARD).contains(&done), "{done} in a call");
        ended += done;
        calls += 1;
        assert!(ended == all || pair.nodes[0].engine.has_work());
    }
    assert_eq!(ended, all);
    calls
}

#[test]
fn no_call_hears_more_bells_the_more_ring() {
    const QPS: usize = 20_000;
    let mut pair = Pair::new(1);
    let qps = many(&mut pair, QPS);
    for qp in &qps {
        let failed = pair.nodes[0].engine.modify_qp(qp.qpn, &QpModify::Error);
        failed.expect("any state may be left this way");
    }
    for _ in 0..2 {
        for qp in &qps {
            pair.post(0, qp, 1, SendOp::Send, &[pair.sge(0, 0, 64)]);
        }
        let calls = heard_in_steps(&mut pair, QPS as u64);
        assert!(calls >= QPS as u64 / HEARD);
    }
    assert!(!pair.nodes[0].engine.has_work());
}

#[test]
fn no_call_takes_more_requests_of_app_managed_qps_the_more_are_posted() {
    const EACH: u32 = 10_000;
    let mut pair = Pair::new(1);
    pair.depth = EACH;
    let qps = [0; 2].map(|_| {
        let qp = pair.qp(0, QpType::Src);
        pair.take_to_rts(0, &qp, Attributes::default(), Attributes::default());
        qp
    });
    for qp in &qps {
        for wr_id in 0..EACH.into() {
            // On no route: it fails as soon as it is taken up.
            pair.post(0, qp, wr_id, SendOp::Send, &[pair.sge(0, 0, 64)]);
        }
    }
    // They take turns.
    let first = heard(&mut pair);
    for qp in &qps {
        let its = first.iter().filter(|done| done.qpn == qp.qpn).count();
        assert!(its >= 256, "{its}");
    }
    let rest = 2 * u64::from(EACH) - first.len() as u64;
    assert!(heard_in_steps(&mut pair, rest) >= rest / HEARD);
}

#[test]
fn no_call_looks_at_more_qps_for_what_is_left_the_more_there_are() {
    const QPS: usize = 20_000;
    /// `LOOKS` in qpmap/src/engine/link.rs.
    const LOOKS: usize = 4096;
    let mut pair = Pair::new(1);
    let ends = pair.connected();
    let qps = many(&mut pair, QPS);
    pair.run(20 * MILLISECOND);
    let calls = |pair: &mut Pair| {
        let mut calls = 1;
        while !pair.nodes[0].engine.is_drained() {
            calls += 1;
            assert!(calls < 100, "it is never found");
        }
        calls
    };
    let idle = calls(&mut pair);
    assert!((QPS / LOOKS..QPS / LOOKS + 3).contains(&idle), "{idle}");
    // What is posted then is waited for, wherever it was.
    pair.receive(&ends[1], 1, &[pair.sge(1, 0, 64)]);
    pair.post(0, &ends[0], 1, SendOp::Send, &[pair.sge(0, 0, 64)]);
    for _ in 0..100 {
        assert!(!pair.nodes[0].engine.is_drained());
    }
    pair.sent_by(0);
    for _ in 0..100 {
        assert!(!pair.nodes[0].engine.is_drained(), "it is not acknowledged");
    }
    pair.run(20 * MILLISECOND);
    assert_eq!(pair.completions(0).len(), 1);
    assert!(calls(&mut pair) <= idle);
    drop(qps);
}
