//! Routes on which nothing happens: what they cost, and that they go on where they were.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use crate::common::{Pair, RingMemory};
use std::sync::Arc;
use trunkline_conn::mem::AtomicOp;
use trunkline_conn::secret::{Purpose, Secret};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Completion, Remote, SendFlags, SendOp, Status};
use trunkline_qpmap::wqe::SendWr;
use trunkline_qpmap::{Attributes, QpModify, QpQueues, QpState, QpType};
use trunkline_wire::Gid;

type Queues = Arc<QpQueues<RingMemory>>;

/// By then whatever was under way is over, and all routes are dormant.
const PAUSE: u64 = 20 * SECOND;

fn managed(pair: &mut Pair, node: usize) -> Queues {
    let qp = pair.qp(node, QpType::Src);
    let attributes = Attributes {
        // A fifth of a second: who waits for a receive does not ask in vain all the time.
        min_rnr_timer: 26,
        ..Attributes::default()
    };
    pair.take_to_rts(node, &qp, attributes, attributes);
    qp
}

/// Routes from either QP to the other, over the newest connection.
fn routes(pair: &mut Pair, ends: [&Queues; 2]) -> [u32; 2] {
    let conns = *pair.conns.last().unwrap();
    [0, 1].map(|node| {
        let engine = &mut pair.nodes[node].engine;
        let route = engine.add_route(ends[node].qpn, conns[node], ends[1 - node].qpn);
        route.expect("a route of an app-managed QP")
    })
}

/// A QP at each node, and routes between them that are dormant.
fn sleepers(connections: usize) -> (Pair, [Queues; 2], [u32; 2]) {
    let mut pair = Pair::new(connections);
    let ends = [0, 1].map(|node| managed(&mut pair, node));
    let routes = routes(&mut pair, ends.each_ref());
    pair.run(PAUSE);
    assert_eq!(awake(&pair), [0, 0]);
    (pair, ends, routes)
}

/// Flows of each node that have records of their own.
fn awake(pair: &Pair) -> [u64; 2] {
    [0, 1].map(|node| pair.nodes[node].engine.state_bytes().flows)
}

/// Flows of each node.
fn flows(pair: &Pair) -> [usize; 2] {
    [0, 1].map(|node| pair.nodes[node].engine.live_objects().flows)
}

fn post(pair: &Pair, (node, qp, route): (usize, &Queues, u32), wr_id: u64, op: SendOp) {
    let length = if op.has_response_data() { 8 } else { 3000 };
    let request = SendWr {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        sges: &[pair.sge(node, 1 << 16, length)],
        inline: None,
        route,
    };
    qp.send.post(&[request]).expect("room in the queue");
    pair.nodes[node].engine.doorbells().ring(qp.index);
}

fn told(done: &[Completion]) -> Vec<(u64, Status, u32)> {
    let told = done.iter();
    told.map(|done| (done.wr_id, done.status, done.route))
        .collect()
}

fn target(pair: &Pair, node: usize) -> Remote {
    Remote {
        addr: pair.nodes[node].buffer.addr,
        rkey: pair.nodes[node].key,
    }
}

/// 511 peers of 20 QPs each, as one node sees them: to the engine it is the same whose they are.
#[test]
fn an_idle_route_takes_at_most_64_bytes_with_all_that_is_allocated_for_it() {
    const QPS: usize = 20;
    const PEERS: usize = 511;
    let mut pair = Pair::new(1);
    let hubs: Vec<Queues> = (0..QPS).map(|_| managed(&mut pair, 0)).collect();
    let peers: Vec<Queues> = (0..PEERS).map(|_| managed(&mut pair, 1)).collect();
    let state = |pair: &Pair| {
        let state = pair.nodes[0].engine.state_bytes();
        state.flows * state.per_flow + state.routes + state.spare + state.room
    };
    pair.run(PAUSE);
    let before = state(&pair);
    for peer in &peers {
        for hub in &hubs {
            routes(&mut pair, [hub, peer]);
        }
        pair.run(MILLISECOND);
    }
    pair.run(PAUSE);
    assert_eq!((awake(&pair), flows(&pair)), ([0; 2], [QPS * PEERS; 2]));
    let each = (state(&pair) - before) as f64 / (QPS * PEERS) as f64;
    assert!(each <= 64.0, "{each} bytes");
}

#[test]
fn a_dormant_route_goes_on_where_it_was_whatever_comes_next_and_from_either_end() {
    let (mut pair, ends, routes) = sleepers(1);
    // More messages than it takes for their numbers to wrap.
    for round in 0..40_u64 {
        let from = (round % 2) as usize;
        let remote = target(&pair, 1 - from);
        let op = match round % 5 {
            0 => SendOp::Send,
            1 => SendOp::Write(remote),
            2 => SendOp::Read(remote),
            3 => SendOp::Atomic(remote, AtomicOp::FetchAdd { add: 1 }),
            _ => SendOp::WriteImm(remote, 7),
        };
        pair.receive(&ends[1 - from], round, &[pair.sge(1 - from, 0, 4096)]);
        post(&pair, (from, &ends[from], routes[from]), round, op);
        pair.run(MILLISECOND);
        let done = told(&pair.completions(from));
        assert_eq!(done, [(round, Status::Success, routes[from])], "{op:?}");
        assert_eq!(awake(&pair), [1, 1], "both have something under way");
        let received = pair.completions(1 - from);
        let takes_one = matches!(round % 5, 0 | 4);
        assert_eq!(received.len(), usize::from(takes_one), "{op:?}");
        let route = routes[1 - from];
        assert!(received.iter().all(|done| done.route == route));
        pair.run(PAUSE);
        assert_eq!((awake(&pair), flows(&pair)), ([0, 0], [1, 1]));
    }
}

#[test]
fn dormant_routes_move_on_when_their_connection_is_gone() {
    for open_before in [true, false] {
        let (mut pair, ends, routes) = sleepers(1);
        for wr_id in 0..3 {
            if open_before {
                pair.open();
            }
            for node in [0, 1] {
                let gone = pair.conns[0][node];
                pair.nodes[node].engine.close_connection(gone);
            }
            pair.conns.remove(0);
            if !open_before {
                pair.run(MILLISECOND);
                assert_eq!(pair.nodes[0].engine.live_objects().waiting_flows, 1);
                pair.open();
            }
            if wr_id > 0 {
                pair.run(PAUSE);
                assert_eq!(awake(&pair), [0, 0]);
            }
            let write = SendOp::Write(target(&pair, 1));
            post(&pair, (0, &ends[0], routes[0]), wr_id, write);
            pair.run(SECOND);
            let done = told(&pair.completions(0));
            assert_eq!(done, [(wr_id, Status::Success, routes[0])]);
        }
    }
}

#[test]
fn a_dormant_route_moves_when_its_program_wants_that() {
    let (mut pair, ends, routes) = sleepers(2);
    let to = pair.conns[0][0];
    let engine = &mut pair.nodes[0].engine;
    engine.rebind_route(ends[0].qpn, routes[0], to).unwrap();
    assert_eq!(engine.connection_stats(to).unwrap().flows, 1);
    pair.run(PAUSE);
    let engine = &mut pair.nodes[0].engine;
    let (back, remote) = (pair.conns[1][0], ends[1].qpn);
    let again = engine.add_route(ends[0].qpn, back, remote);
    assert_eq!(again, Ok(routes[0]));
    assert_eq!(engine.connection_stats(back).unwrap().flows, 1);
    pair.run(PAUSE);
    assert_eq!(awake(&pair), [0, 0]);
    post(
        &pair,
        (0, &ends[0], routes[0]),
        1,
        SendOp::Write(target(&pair, 1)),
    );
    pair.run(MILLISECOND);
    let done = told(&pair.completions(0));
    assert_eq!(done, [(1, Status::Success, routes[0])]);
}

#[test]
fn a_dormant_route_ends_with_its_qp_and_when_its_program_closes_it() {
    let ends: [fn(&mut Pair, &Queues, u32); 4] = [
        |pair, qp, route| {
            let engine = &mut pair.nodes[0].engine;
            engine.close_route(qp.qpn, route).unwrap();
        },
        |pair, qp, _| pair.nodes[0].engine.destroy_qp(qp.qpn).unwrap(),
        |pair, qp, _| {
            let engine = &mut pair.nodes[0].engine;
            engine.modify_qp(qp.qpn, &QpModify::Reset).unwrap();
        },
        |pair, qp, _| {
            let engine = &mut pair.nodes[0].engine;
            engine.modify_qp(qp.qpn, &QpModify::Error).unwrap();
            engine.destroy_qp(qp.qpn).unwrap();
        },
    ];
    for (at, end) in ends.into_iter().enumerate() {
        let (mut pair, [a, b], [from, to]) = sleepers(1);
        end(&mut pair, &a, from);
        pair.run(SECOND);
        assert_eq!(flows(&pair)[0], 0, "end {at}");
        // The other end hears of it when it sends.
        post(&pair, (1, &b, to), 1, SendOp::Write(target(&pair, 0)));
        pair.run(PAUSE);
        let done = told(&pair.completions(1));
        if at > 0 {
            assert_eq!(done, [(1, Status::RetryExceeded, to)], "end {at}");
        }
        let engine = &mut pair.nodes[1].engine;
        engine.close_route(b.qpn, to).unwrap();
        pair.run(PAUSE);
        let numbers = pair.nodes[1].engine.qp_numbers();
        assert_eq!(numbers, [b.qpn]);
    }
}

#[test]
fn dormant_routes_end_with_their_peer_and_not_the_qp() {
    let (mut pair, ends, routes) = sleepers(1);
    let peer: Gid = std::net::IpAddr::from([10, 0, 0, 2]).into();
    pair.fate = Box::new(|_, _| 0);
    pair.nodes[0].engine.drop_peer(peer);
    pair.run(SECOND);
    let engine = &pair.nodes[0].engine;
    assert_eq!(engine.live_objects().flows, 0);
    assert_eq!(engine.query_qp(ends[0].qpn).unwrap().0, QpState::Rts);
    post(&pair, (0, &ends[0], routes[0]), 1, SendOp::Send);
    pair.run(SECOND);
    let done = told(&pair.completions(0));
    assert_eq!(done, [(1, Status::Flushed, routes[0])]);
}

/// It was asked for so often that it would be asked for again only after it became dormant.
#[test]
fn a_route_that_was_agreed_to_late_leaves_no_timer_when_it_becomes_dormant() {
    let mut pair = Pair::new(1);
    let hub = managed(&mut pair, 0);
    let leaf = pair.qp(1, QpType::Src);
    let conn = pair.conns[0][0];
    let engine = &mut pair.nodes[0].engine;
    let to = engine.add_route(hub.qpn, conn, leaf.qpn).unwrap();
    // After 9.55 s it asks for the ninth time, and would again after 3.2 s.
    pair.run(9600 * MILLISECOND);
    let attributes = Attributes::default();
    pair.take_to_rts(1, &leaf, attributes, attributes);
    pair.run(2500 * MILLISECOND);
    assert_eq!(awake(&pair), [0, 0]);
    pair.run(PAUSE);
    post(&pair, (0, &hub, to), 1, SendOp::Write(target(&pair, 1)));
    pair.run(MILLISECOND);
    let done = told(&pair.completions(0));
    assert_eq!(done, [(1, Status::Success, to)]);
}

/// Losses, receivers that are not ready, connections that come and go, and pauses of any length.
#[test]
fn whenever_routes_become_dormant_each_message_is_executed_once_and_in_order() {
    const ROUTES: usize = 3;
    for seed in 0..40 {
        let mut random = Secret::from_seed(seed).stream(Purpose::Routes);
        let mut below = move |bound: u64| random.next_u64() % bound;
        let mut pair = Pair::new(2);
        let hub = managed(&mut pair, 0);
        let leaves: Vec<Queues> = (0..ROUTES).map(|_| managed(&mut pair, 1)).collect();
        let to: Vec<u32> = leaves
            .iter()
            .map(|leaf| routes(&mut pair, [&hub, leaf])[0])
            .collect();
        let mut lost = Secret::from_seed(seed + 100).stream(Purpose::Routes);
        pair.fate = Box::new(move |_, _| usize::from(!lost.next_u64().is_multiple_of(10)));
        let (mut sent, mut received) = ([0_u64; ROUTES], [0_u64; ROUTES]);
        let mut ended = [0_u64; ROUTES];
        let mut slept = 0;
        for step in 0..100 {
            let at = below(ROUTES as u64) as usize;
            match below(8) {
                0..4 if sent[at] < ended[at] + 20 => {
                    post(&pair, (0, &hub, to[at]), sent[at], SendOp::Send);
                    sent[at] += 1;
                }
                4..7 => {
                    let place = pair.sge(1, 0, 4096);
                    pair.receive(&leaves[at], received[at], &[place]);
                    received[at] += 1;
                }
                _ if step % 3 == 0 => {
                    pair.open();
                    let gone = pair.conns.remove(0);
                    for node in [0, 1] {
                        pair.nodes[node].engine.close_connection(gone[node]);
                    }
                }
                _ => {}
            }
            pair.run([MILLISECOND, 20 * MILLISECOND, 6 * SECOND][below(3) as usize]);
            slept += usize::from(awake(&pair)[0] < ROUTES as u64);
            for done in pair.completions(0) {
                let at = to.iter().position(|route| *route == done.route).unwrap();
                let expected = (ended[at], Status::Success);
                assert_eq!((done.wr_id, done.status), expected, "seed {seed}");
                ended[at] += 1;
            }
        }
        for at in 0..ROUTES {
            for wr_id in received[at]..sent[at] {
                let place = pair.sge(1, 0, 4096);
                pair.receive(&leaves[at], wr_id, &[place]);
            }
        }
        pair.run(60 * SECOND);
        let left: u64 = (0..ROUTES).map(|at| sent[at] - ended[at]).sum();
        assert_eq!(pair.completions(0).len() as u64, left, "seed {seed}");
        assert_eq!(awake(&pair), [0, 0], "seed {seed}");
        assert!(slept > 0, "seed {seed}");
    }
}
