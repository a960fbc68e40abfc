//! App-managed QPs: what happens on one route stays there.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use crate::common::Pair;
use crate::common::liar::{LAST, Liar, entry, generation_of};
use crate::common::managed::{Queues, managed, post, route, told, write};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Remote, SendFlags, SendOp, Status};
use trunkline_qpmap::wqe::SendWr;
use trunkline_qpmap::{Attributes, FIRST_MSN, QpModify, QpState, QpType, VerbsError};
use trunkline_wire::{Control, ControlKind, Gid, Opcode, Qpn, Rkey, SrcExt};

/// One app-managed QP at node 0 with routes to as many at node 1.
fn fan(pair: &mut Pair, count: usize) -> (Queues, Vec<Queues>, Vec<u32>) {
    let hub = managed(pair, 0);
    let leaves: Vec<Queues> = (0..count).map(|_| managed(pair, 1)).collect();
    let routes = leaves.iter().map(|leaf| route(pair, &hub, leaf)).collect();
    (hub, leaves, routes)
}

#[test]
fn a_request_that_one_peer_refuses_ends_its_route_and_no_other() {
    let mut pair = Pair::new(1);
    let (hub, leaves, routes) = fan(&mut pair, 2);
    let wrong = SendOp::Write(Remote {
        addr: 0,
        rkey: Rkey(0x1234),
    });
    post(&pair, &hub, 1, wrong, routes[0]);
    post(&pair, &hub, 2, write(&pair), routes[1]);
    post(&pair, &hub, 3, write(&pair), routes[0]);
    pair.run(10 * MILLISECOND);
    let mut done = told(&pair.completions(0));
    done.sort_unstable_by_key(|done| done.0);
    assert_eq!(
        done,
        [
            (1, Status::RemoteAccess, 1),
            (2, Status::Success, 2),
            (3, Status::Flushed, 1)
        ]
    );
    // Neither end is in error, and the other route goes on.
    let state = |node: usize, qp: &Queues| pair.nodes[node].engine.query_qp(qp.qpn).unwrap().0;
    assert_eq!(state(0, &hub), QpState::Rts);
    assert!(leaves.iter().all(|leaf| state(1, leaf) == QpState::Rts));
    post(&pair, &hub, 4, write(&pair), routes[0]);
    post(&pair, &hub, 5, write(&pair), routes[1]);
    pair.run(10 * MILLISECOND);
    let done = told(&pair.completions(0));
    assert_eq!(done, [(4, Status::Flushed, 1), (5, Status::Success, 2)]);
    // Asked for again, it is another route between the same QPs.
    let again = route(&mut pair, &hub, &leaves[0]);
    assert_eq!(again, 3);
    post(&pair, &hub, 6, write(&pair), again);
    pair.run(10 * MILLISECOND);
    assert_eq!(told(&pair.completions(0)), [(6, Status::Success, 3)]);
}

#[test]
fn a_request_for_a_route_that_was_never_made_fails_alone() {
    let mut pair = Pair::new(1);
    let (hub, _leaves, routes) = fan(&mut pair, 1);
    for (wr_id, route) in [(1, 0), (2, 7), (3, u32::MAX), (4, routes[0])] {
        post(&pair, &hub, wr_id, write(&pair), route);
    }
    pair.run(10 * MILLISECOND);
    let done = told(&pair.completions(0));
    let unknown = Status::LocalQpOperation;
    assert_eq!(
        done,
        [
            (1, unknown, 0),
            (2, unknown, 7),
            (3, unknown, u32::MAX),
            (4, Status::Success, 1)
        ]
    );
}

#[test]
fn local_memory_that_is_gone_ends_the_route_of_its_request_alone() {
    let mut pair = Pair::new(1);
    let (hub, _leaves, routes) = fan(&mut pair, 2);
    let mut sge = pair.sge(0, 0, 100);
    sge.lkey = trunkline_wire::Lkey(0x77);
    for (wr_id, route, sge) in [
        (1, routes[0], pair.sge(0, 0, 100)),
        (2, routes[0], sge),
        (3, routes[0], pair.sge(0, 0, 100)),
        (4, routes[1], pair.sge(0, 0, 100)),
    ] {
        let request = SendWr {
            wr_id,
            op: write(&pair),
            flags: SendFlags::SIGNALED,
            sges: &[sge],
            inline: None,
            route,
        };
        hub.send.post(&[request]).unwrap();
    }
    pair.nodes[0].engine.doorbells().ring(hub.index);
    pair.run(10 * MILLISECOND);
    let mut done = told(&pair.completions(0));
    done.sort_unstable_by_key(|done| done.0);
    assert_eq!(
        done,
        [
            (1, Status::Success, 1),
            (2, Status::LocalProtection, 1),
            (3, Status::Flushed, 1),
            (4, Status::Success, 2)
        ]
    );
}

#[test]
fn a_sender_whose_data_is_gone_harms_only_its_own_route() {
    let mut pair = Pair::new(1);
    let hub = managed(&mut pair, 1);
    let [bad, good] = [0, 1].map(|_| pair.qp(0, QpType::Rc));
    for qp in [&bad, &good] {
        pair.connect(0, qp, &hub);
    }
    for i in 0..3 {
        let sge = pair.sge(1, i * 8192, 8192);
        pair.receive(&hub, i, &[sge]);
    }
    let buffer = crate::common::Buffer::new(1 << 40, 8192);
    let (pd, access) = (pair.nodes[0].pd, trunkline_conn::mem::Access::ALL);
    let region = pair.nodes[0]
        .engine
        .regions()
        .register(pd, buffer, access)
        .unwrap();
    let sge = trunkline_conn::mem::Sge {
        addr: 1 << 40,
        length: 8192,
        lkey: region.lkey,
    };
    // The first packet arrives, the others are lost, and then their data are gone.
    let mut seen = 0;
    pair.fate = Box::new(move |from, datagram| {
        let data = from == 0 && datagram.len() > 1000;
        seen += u32::from(data);
        usize::from(!data || seen == 1)
    });
    pair.post(0, &bad, 1, SendOp::Send, &[sge]);
    pair.run(MILLISECOND);
    pair.nodes[0].deregister(region.rkey);
    pair.fate = Box::new(|_, _| 1);
    pair.run(SECOND);
    assert!(pair.nodes[1].engine.counters().void_received > 0);
    let state = pair.nodes[1].engine.query_qp(hub.qpn).unwrap().0;
    assert_eq!(state, QpState::Rts, "a peer ended its route, not the QP");
    let sge = pair.sge(0, 0, 5000);
    pair.post(0, &good, 2, SendOp::Send, &[sge]);
    pair.run(SECOND);
    let received = pair.completions(1);
    let statuses: Vec<Status> = received.iter().map(|done| done.status).collect();
    assert_eq!(statuses, [Status::RemoteAborted, Status::Success]);
}

#[test]
fn a_route_that_does_not_answer_holds_up_no_completion_of_others() {
    let mut pair = Pair::new(1);
    let (hub, leaves, routes) = fan(&mut pair, 2);
    // Nobody posts a receive: it is asked for again and again, for ever.
    post(&pair, &hub, 1, SendOp::Send, routes[0]);
    for wr_id in 2..200 {
        post(&pair, &hub, wr_id, write(&pair), routes[1]);
        pair.run(MILLISECOND);
        assert_eq!(told(&pair.completions(0)), [(wr_id, Status::Success, 2)]);
    }
    let sge = pair.sge(1, 0, 4096);
    pair.receive(&leaves[0], 1, &[sge]);
    pair.run(SECOND);
    assert_eq!(told(&pair.completions(0)), [(1, Status::Success, 1)]);
}

#[test]
fn routes_that_peers_opened_go_with_the_peers_qps() {
    let mut pair = Pair::new(1);
    let hub = managed(&mut pair, 1);
    for _ in 0..3 {
        let asking: Vec<Queues> = (0..300).map(|_| pair.qp(0, QpType::Rc)).collect();
        for qp in &asking {
            pair.connect(0, qp, &hub);
        }
        pair.run(10 * MILLISECOND);
        assert_eq!(pair.nodes[1].engine.live_objects().flows, 300);
        for qp in asking {
            pair.nodes[0].engine.destroy_qp(qp.qpn).unwrap();
        }
        pair.run(10 * MILLISECOND);
        assert_eq!(pair.nodes[1].engine.live_objects().flows, 0);
    }
    pair.nodes[1].engine.destroy_qp(hub.qpn).unwrap();
    assert_eq!(pair.nodes[1].engine.counters().routes_ended, 900);
}

#[test]
fn a_peer_that_is_gone_ends_its_routes_and_not_the_qp() {
    let mut pair = Pair::new(1);
    let (hub, _leaves, routes) = fan(&mut pair, 2);
    pair.run(MILLISECOND);
    pair.fate = Box::new(|_, _| 0);
    post(&pair, &hub, 1, write(&pair), routes[1]);
    pair.run(MILLISECOND);
    let peer: Gid = std::net::IpAddr::from([10, 0, 0, 2]).into();
    pair.nodes[0].engine.drop_peer(peer);
    post(&pair, &hub, 2, write(&pair), routes[0]);
    pair.run(MILLISECOND);
    assert_eq!(
        told(&pair.completions(0)),
        [
            (1, Status::RetryExceeded, routes[1]),
            (2, Status::Flushed, routes[0])
        ]
    );
    let engine = &mut pair.nodes[0].engine;
    assert_eq!(engine.query_qp(hub.qpn).unwrap().0, QpState::Rts);
    assert_eq!(engine.live_objects().flows, 0);
}

#[test]
fn a_route_asked_for_over_another_connection_moves_there() {
    let mut pair = Pair::new(2);
    let (hub, leaves, routes) = fan(&mut pair, 1);
    post(&pair, &hub, 1, write(&pair), routes[0]);
    pair.run(MILLISECOND);
    let flows = |pair: &Pair| {
        let engine = &pair.nodes[0].engine;
        let ids = [pair.conns[0][0], pair.conns[1][0]];
        ids.map(|id| engine.connection_stats(id).unwrap().flows)
    };
    assert_eq!(flows(&pair), [1, 0]);
    let other = pair.conns[1][0];
    let engine = &mut pair.nodes[0].engine;
    assert_eq!(engine.add_route(hub.qpn, other, leaves[0].qpn), Ok(1));
    post(&pair, &hub, 2, write(&pair), routes[0]);
    pair.run(MILLISECOND);
    assert_eq!(flows(&pair), [0, 1]);
    let done = told(&pair.completions(0));
    assert_eq!(done, [(1, Status::Success, 1), (2, Status::Success, 1)]);
}

/// Requests that the engine has not taken from the ring when their route is closed.
#[test]
fn what_was_posted_for_a_closed_route_is_flushed_and_goes_to_no_other() {
    let mut pair = Pair::new(1);
    let (hub, leaves, routes) = fan(&mut pair, 2);
    pair.run(MILLISECOND);
    let other = managed(&mut pair, 1);
    for wr_id in 0..20 {
        post(&pair, &hub, wr_id, write(&pair), routes[0]);
    }
    pair.nodes[0]
        .engine
        .close_route(hub.qpn, routes[0])
        .unwrap();
    let unknown = pair.nodes[0].engine.close_route(hub.qpn, routes[0]);
    assert!(matches!(unknown, Err(VerbsError::UnknownRoute { .. })));
    let new = route(&mut pair, &hub, &other);
    let again = route(&mut pair, &hub, &leaves[0]);
    assert!(![new, again].contains(&routes[0]), "it is still named");
    post(&pair, &hub, 20, write(&pair), new);
    pair.run(10 * MILLISECOND);
    let flushed = (0..20).map(|wr_id| (wr_id, Status::Flushed, routes[0]));
    let mut done = told(&pair.completions(0));
    done.sort_unstable_by_key(|(wr_id, ..)| *wr_id);
    let expected: Vec<_> = flushed.chain([(20, Status::Success, new)]).collect();
    assert_eq!(done, expected);
    // Nothing names it any more.
    pair.nodes[0].engine.close_route(hub.qpn, again).unwrap();
    let third = managed(&mut pair, 1);
    let numbers = [
        route(&mut pair, &hub, &third),
        route(&mut pair, &hub, &leaves[0]),
    ];
    assert!(numbers.contains(&routes[0]), "{numbers:?}");
}

#[test]
fn a_request_of_a_qp_without_routes_fails_alone() {
    let mut pair = Pair::new(1);
    let hub = managed(&mut pair, 0);
    post(&pair, &hub, 1, write(&pair), 7);
    pair.run(MILLISECOND);
    assert_eq!(
        told(&pair.completions(0)),
        [(1, Status::LocalQpOperation, 7)]
    );
    assert_eq!(hub.state(), QpState::Rts);
}

#[test]
fn a_route_that_is_closed_flushes_and_leaves_nothing() {
    let mut pair = Pair::new(1);
    let (hub, leaves, routes) = fan(&mut pair, 2);
    pair.run(MILLISECOND);
    // Nobody posts a receive.
    post(&pair, &hub, 1, SendOp::Send, routes[0]);
    post(&pair, &hub, 2, SendOp::Send, routes[0]);
    pair.run(MILLISECOND);
    let engine = &mut pair.nodes[0].engine;
    engine.close_route(hub.qpn, routes[0]).unwrap();
    let unknown = engine.close_route(hub.qpn, routes[0]);
    assert!(matches!(unknown, Err(VerbsError::UnknownRoute { .. })));
    pair.run(10 * MILLISECOND);
    assert_eq!(
        told(&pair.completions(0)),
        [(1, Status::Flushed, 1), (2, Status::Flushed, 1)]
    );
    // The peer's end was the program's of node 0 alone, so it went too.
    assert_eq!(pair.nodes[0].engine.live_objects().flows, 1);
    assert_eq!(pair.nodes[1].engine.live_objects().flows, 1);
    assert_eq!(
        route(&mut pair, &hub, &leaves[0]),
        routes[0],
        "a free number"
    );
    post(&pair, &hub, 3, write(&pair), routes[0]);
    pair.run(10 * MILLISECOND);
    assert_eq!(told(&pair.completions(0)), [(3, Status::Success, 1)]);
    let engine = &mut pair.nodes[0].engine;
    engine.modify_qp(hub.qpn, &QpModify::Reset).unwrap();
    pair.run(10 * MILLISECOND);
    assert_eq!(pair.nodes[1].engine.live_objects().flows, 0);
}

#[test]
fn a_peer_that_begins_messages_and_ends_none_leaves_receives_to_others() {
    const RECEIVES: u32 = 64;
    let mut pair = Pair::new(1);
    let (hub, honest) = (managed(&mut pair, 1), managed(&mut pair, 0));
    for wr_id in 0..RECEIVES.into() {
        let place = pair.sge(1, 4096 * wr_id, 4096);
        pair.receive(&hub, wr_id, &[place]);
    }
    let mut liar = Liar::new(&mut pair, 9);
    for src in 1..=RECEIVES {
        let bind = entry(ControlKind::Bind, src, hub.qpn, 1, 0);
        liar.control(&mut pair, &[bind]);
        let generation = liar.hears_control(&mut pair)[0].status;
        let first = SrcExt {
            last: false,
            generation: generation_of(1, generation),
            src_qp: Qpn::from_wire(src),
            dest_qp: hub.qpn,
            msn: FIRST_MSN,
            ..LAST
        };
        liar.say(&mut pair, Opcode::SRC_SEND, first, &[0; 64]);
    }
    let refused = pair.nodes[1].engine.counters().rnr_sent;
    assert_eq!(refused, (RECEIVES / 2).into());
    let hello = route(&mut pair, &honest, &hub);
    post(&pair, &honest, 1, SendOp::Send, hello);
    pair.run(100 * MILLISECOND);
    assert_eq!(told(&pair.completions(0)), [(1, Status::Success, 1)]);
    // What it held is flushed when it goes, and others may take as much.
    let conn = liar.conn;
    pair.nodes[1].engine.close_connection(conn);
    pair.nodes[1].engine.drop_peer(liar.address());
    pair.run(MILLISECOND);
    assert_eq!(pair.nodes[1].engine.live_objects().assemblies, 0);
}

/// A peer that ends and a program that goes on: each next route is another life, and a route that
/// the program has named stays its own.
#[test]
fn a_route_that_follows_another_between_the_same_qps_is_the_next_life_and_stays_the_programs() {
    let mut pair = Pair::new(0);
    let leaf = managed(&mut pair, 1);
    let mut liar = Liar::new(&mut pair, 9);
    let (conn, remote) = (liar.conn, Qpn::from_wire(5));
    let mut lives = Vec::new();
    for _ in 0..3 {
        let engine = &mut pair.nodes[1].engine;
        let number = engine.add_route(leaf.qpn, conn, remote).unwrap();
        let said = liar.hears_control(&mut pair);
        let bind = said.iter().rfind(|said| said.kind == ControlKind::Bind);
        let life = bind.expect("it asks").generation;
        assert!(!lives.contains(&life), "{life} is one of {lives:?}");
        lives.push(life);
        let bound = entry(ControlKind::Bound, 5, leaf.qpn, life, 7);
        liar.control(&mut pair, &[bound]);
        // The peer's QP is gone, and nobody wanted anything of it.
        let unbind = entry(ControlKind::Unbind, 5, leaf.qpn, 7, life);
        let msn = FIRST_MSN;
        liar.control(&mut pair, &[Control { msn, ..unbind }]);
        let engine = &mut pair.nodes[1].engine;
        engine.rebind_route(leaf.qpn, number, conn).unwrap();
        engine.close_route(leaf.qpn, number).unwrap();
        liar.hears(&mut pair);
        liar.say(&mut pair, Opcode::SRC_PING, LAST, &[]);
    }
}

/// Its peer's QP began another life while it wanted nothing, and then it had no connection.
#[test]
fn what_is_posted_on_a_route_between_two_connections_ends() {
    let mut pair = Pair::new(1);
    let patient = Attributes {
        timeout: 0,
        ..Attributes::default()
    };
    let (hub, leaf) = (pair.qp(0, QpType::Src), managed(&mut pair, 1));
    pair.take_to_rts(0, &hub, patient, patient);
    let to = route(&mut pair, &hub, &leaf);
    post(&pair, &hub, 1, write(&pair), to);
    pair.run(10 * MILLISECOND);
    assert_eq!(told(&pair.completions(0)), [(1, Status::Success, 1)]);
    let engine = &mut pair.nodes[1].engine;
    engine.modify_qp(leaf.qpn, &QpModify::Reset).unwrap();
    pair.take_to_rts(1, &leaf, patient, patient);
    pair.run(10 * MILLISECOND);
    for (node, conn) in pair.conns[0].into_iter().enumerate() {
        pair.nodes[node].engine.close_connection(conn);
    }
    pair.run(MILLISECOND);
    post(&pair, &hub, 2, write(&pair), to);
    pair.run(MILLISECOND);
    pair.open();
    pair.run(60 * SECOND);
    assert_eq!(pair.completions(0).len(), 1);
}

/// A round may come late: a BIND has waited for so long that it gets a timer, when its route and
/// connection go.
#[test]
fn a_route_that_goes_with_its_connection_leaves_no_timer_however_late_the_next_round_is() {
    let mut pair = Pair::new(1);
    let hub = managed(&mut pair, 0);
    // It is not ready: the BIND has no answer.
    let leaf = pair.qp(1, QpType::Src);
    let to = route(&mut pair, &hub, &leaf);
    assert!(!pair.sent_by(0).is_empty());
    pair.now = pair.now + 5 * MILLISECOND;
    let conn = pair.conns[0][0];
    let engine = &mut pair.nodes[0].engine;
    engine.close_connection(conn);
    engine.close_route(hub.qpn, to).unwrap();
    pair.run(SECOND);
    assert_eq!(pair.nodes[0].engine.live_objects().flows, 0);
}

/// Completions: what was asked for, what became of it, and the route.
type Told = Vec<(u64, Status, u32)>;

/// What a QP is to a peer, once its program has named the peer, before it is ready.
fn reached_by_a_write(step: Option<&QpModify>) -> (Result<u32, VerbsError>, Told) {
    let mut pair = Pair::new(1);
    let hub = managed(&mut pair, 0);
    let early = pair.qp(1, QpType::Src);
    let conn = pair.conns[0][1];
    let engine = &mut pair.nodes[1].engine;
    if let Some(step) = step {
        engine.modify_qp(early.qpn, step).unwrap();
    }
    let named = engine.add_route(early.qpn, conn, hub.qpn);
    let to = route(&mut pair, &hub, &early);
    post(&pair, &hub, 1, write(&pair), to);
    pair.run(SECOND);
    let done = told(&pair.completions(0));
    (named, done)
}

#[test]
fn an_app_managed_qp_that_is_not_ready_takes_no_routes_and_nothing_that_comes_by_them() {
    let access = trunkline_conn::mem::Access::ALL;
    for step in [None, Some(QpModify::Init { access })] {
        let (named, done) = reached_by_a_write(step.as_ref());
        assert_eq!(done, [], "{step:?}, {named:?}");
        assert!(matches!(named, Err(VerbsError::WrongState { .. })));
    }
}
