//! Who is asked, and who is let in, when there are more than there is room for.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::stranger::{Stranger, offer};
use common::{End, address, inline, turn, until};
use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use trunkline::{
    Clock, Connection, ConnectionOptions, ConnectionState, Gid, NoConnection, Node, Qp, QpAddress,
    QpOptions, QpState, Qpn,
};
use trunkline_cm::{Bounds, NodeCm, RefusalCode};
use trunkline_conn::time::{Instant, MILLISECOND};

/// Until an ask that nobody answers is over, jitter included.
const ASK: u64 = 226 * MILLISECOND;

/// A QP of `end` on its way to one at `peer` that is not there yet.
fn connect(end: &End, peer: IpAddr) -> Qp {
    let qp = end.qp(&QpOptions::default());
    let to = QpAddress {
        gid: Gid::from(peer),
        qpn: Qpn::from_wire(77),
        psn: qp.address().psn,
    };
    qp.connect(to).unwrap();
    qp
}

fn is_met(end: &End, peer: IpAddr) -> bool {
    !end.node.connections(peer).is_empty()
}

/// An address where every question is heard and none answered.
fn silent() -> UdpSocket {
    let socket = UdpSocket::bind((address(), 4791)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn at(socket: &UdpSocket) -> IpAddr {
    socket.local_addr().unwrap().ip()
}

fn heard(socket: &UdpSocket) -> usize {
    let mut packet = [0; 2048];
    std::iter::from_fn(|| socket.recv_from(&mut packet).ok()).count()
}

#[test]
fn peers_beyond_the_limit_are_asked_in_order_and_all_are_met() {
    let asking = End::new(inline().connect_requests(1));
    let peers: Vec<Node> = (0..20).map(|_| inline().build().unwrap()).collect();
    let addresses: Vec<IpAddr> = peers.iter().map(|peer| peer.gid().address()).collect();
    let mut qps: Vec<Qp> = addresses.iter().map(|at| connect(&asking, *at)).collect();
    // Who stands in line already does so once.
    qps.extend(addresses.iter().map(|at| connect(&asking, *at)));
    asking.node.poll().unwrap();
    let stats = asking.node.cm_stats();
    assert_eq!((stats.in_line, stats.queued), (19, 19));
    let mut nodes: Vec<&Node> = peers.iter().collect();
    nodes.push(&asking.node);
    let mut order: Vec<IpAddr> = Vec::new();
    until(&nodes, "all peers to be met", || {
        let new = |at: &&IpAddr| !order.contains(at) && is_met(&asking, **at);
        let met: Vec<IpAddr> = addresses.iter().filter(new).copied().collect();
        order.extend(met);
        order.len() == addresses.len()
    });
    assert_eq!(order, addresses);
    assert!(qps.iter().all(|qp| qp.state() == QpState::Rts));
    let stats = asking.node.cm_stats();
    assert_eq!((stats.in_line, stats.queued), (0, 19));
}

#[test]
fn a_silent_peer_keeps_others_waiting_only_for_its_own_handshake() {
    let clock = Clock::manual();
    let asking = End::new(inline().connect_requests(1).clock(clock.clone()));
    let last = inline().clock(clock.clone()).build().unwrap();
    let silent: Vec<UdpSocket> = (0..3).map(|_| silent()).collect();
    let early: Vec<Qp> = silent
        .iter()
        .map(|peer| connect(&asking, at(peer)))
        .collect();
    let late = connect(&asking, last.gid().address());
    let mut met: Option<Instant> = None;
    let (mut questions, mut begun) = ([0; 3], [None; 3]);
    while met.is_none() {
        clock.set(clock.now() + MILLISECOND);
        turn(&[&asking.node, &last]);
        for (peer, (count, since)) in silent.iter().zip(questions.iter_mut().zip(&mut begun)) {
            *count += heard(peer);
            *since = since.or((*count > 0).then(|| clock.now()));
        }
        met = is_met(&asking, last.gid().address()).then(|| clock.now());
        assert!(clock.now() < Instant::from_nanos(10 * ASK), "{questions:?}");
    }
    // Each had its whole patience, from when it was asked.
    assert_eq!(questions, [3; 3]);
    let begun = begun.map(Option::unwrap);
    for (from, to) in begun.iter().zip(begun.iter().skip(1).chain(&met)) {
        let took = to.since(*from);
        assert!((ASK / 2..=ASK + 10 * MILLISECOND).contains(&took), "{took}");
    }
    // Who is silent is an ordinary host. Nobody has failed for having waited.
    let states: BTreeSet<&str> = early
        .iter()
        .chain([&late])
        .map(|qp| {
            if qp.state() == QpState::Rts {
                "ready"
            } else {
                "failed"
            }
        })
        .collect();
    assert_eq!(states, BTreeSet::from(["ready"]));
}

#[test]
fn a_silent_peer_leaves_the_other_places_to_those_that_wait() {
    let clock = Clock::manual();
    let asking = End::new(inline().connect_requests(2).clock(clock.clone()));
    let silent = silent();
    let _early = connect(&asking, at(&silent));
    let peers: Vec<Node> = (0..10)
        .map(|_| inline().clock(clock.clone()).build().unwrap())
        .collect();
    let met = |peer: &Node| is_met(&asking, peer.gid().address());
    let _qps: Vec<Qp> = peers
        .iter()
        .map(|peer| connect(&asking, peer.gid().address()))
        .collect();
    let mut nodes: Vec<&Node> = peers.iter().collect();
    nodes.push(&asking.node);
    // No time passes: the silent one is still being asked when all others are met.
    until(&nodes, "all that answer", || peers.iter().all(met));
    assert_eq!(asking.node.cm_stats().handshakes["req_sent"], 1);
}

#[test]
fn qps_that_go_while_they_wait_are_not_asked_for() {
    let asking = End::new(inline().connect_requests(1));
    let (first, gone, last) = (silent(), silent(), silent());
    let _first = connect(&asking, at(&first));
    let waits = connect(&asking, at(&gone));
    let _last = connect(&asking, at(&last));
    asking.node.poll().unwrap();
    assert_eq!(asking.node.cm_stats().in_line, 2);
    drop(waits);
    until(&[&asking.node], "the last to be asked", || heard(&last) > 0);
    assert_eq!((heard(&first), heard(&gone)), (3, 0));
    assert_eq!(asking.node.cm_stats().in_line, 0);
}

fn open(end: &End, peer: IpAddr) -> Connection {
    let options = ConnectionOptions::default();
    end.node.open_connection(peer, &options).unwrap()
}

#[test]
fn connections_that_a_program_opens_wait_in_line_as_qps_do() {
    let asking = End::new(inline().connect_requests(1));
    let peers: Vec<Node> = (0..5).map(|_| inline().build().unwrap()).collect();
    let addresses: Vec<IpAddr> = peers.iter().map(|peer| peer.gid().address()).collect();
    let silent = silent();
    let nobody = open(&asking, at(&silent));
    // Two to each, as no connection of a program's stands for another; a QP stands among them.
    let twice = || addresses.iter().chain(&addresses);
    let own: Vec<Connection> = twice().map(|peer| open(&asking, *peer)).collect();
    let qp = connect(&asking, at(&silent));
    let stats = asking.node.cm_stats();
    assert_eq!((stats.in_line, stats.queued), (11, 11));
    let opening = |one: &Connection| one.state() == ConnectionState::Opening;
    assert!(own.iter().chain([&nobody]).all(opening));
    let mut nodes: Vec<&Node> = peers.iter().collect();
    nodes.push(&asking.node);
    let mut order: Vec<usize> = Vec::new();
    until(&nodes, "all to be open", || {
        let new = |at: &usize| !order.contains(at) && own[*at].is_open();
        let opened: Vec<usize> = (0..own.len()).filter(new).collect();
        order.extend(opened);
        order.len() == own.len()
    });
    assert_eq!(order, (0..own.len()).collect::<Vec<_>>());
    let why = NoConnection::Silent;
    assert_eq!(nobody.state(), ConnectionState::Failed(why));
    until(&nodes, "the QP to be an ordinary one", || {
        qp.state() == QpState::Rts
    });
    assert_eq!(asking.node.cm_stats().in_line, 0);
}

#[test]
fn a_connection_that_fails_after_its_turn_says_the_same_as_one_that_had_not_to_wait() {
    let asking = End::new(inline().connect_requests(1));
    let plain = inline().sharing(false).build().unwrap();
    let (early, late) = (silent(), silent());
    let own: Vec<Connection> = [at(&early), plain.gid().address(), at(&late)]
        .map(|peer| open(&asking, peer))
        .into();
    let state = || own.iter().map(Connection::state).collect::<Vec<_>>();
    until(&[&asking.node, &plain], "all to fail", || {
        !state().contains(&ConnectionState::Opening)
    });
    let silence = ConnectionState::Failed(NoConnection::Silent);
    let ordinary = ConnectionState::Failed(NoConnection::NoNode);
    assert_eq!(state(), [silence, ordinary, silence]);
    assert_eq!((heard(&early), heard(&late)), (3, 3));
}

#[test]
fn a_connection_that_is_given_up_while_it_waits_is_not_asked_for() {
    let asking = End::new(inline().connect_requests(1));
    let (first, gone, last) = (silent(), silent(), silent());
    let _first = open(&asking, at(&first));
    let waits = open(&asking, at(&gone));
    let _last = open(&asking, at(&last));
    drop(waits);
    until(&[&asking.node], "the last to be asked", || heard(&last) > 0);
    assert_eq!((heard(&first), heard(&gone)), (3, 0));
}

#[test]
fn a_connection_that_is_given_up_while_it_is_opened_closes() {
    let ends = [(); 2].map(|()| End::new(inline()));
    let nodes = [&ends[0].node, &ends[1].node];
    drop(open(&ends[0], nodes[1].gid().address()));
    let gone = |node: &Node| {
        let stats = node.cm_stats();
        (stats.opened, stats.down, node.connection_count()) == (1, 1, 0)
    };
    until(&nodes, "it to close at both", || {
        nodes.iter().all(|node| gone(node))
    });
}

#[test]
fn the_place_of_an_ask_that_the_peers_own_ends_goes_to_the_next_within_the_round() {
    // Of two asks that cross one ends by the other's: which one, the GUIDs say.
    for (near, far) in [(1, 2), (2, 1)] {
        let asking = End::new(inline().connect_requests(1).guid(near));
        let peer = End::new(inline().guid(far));
        let next = silent();
        let (_crossing, _next) = (
            connect(&asking, peer.node.gid().address()),
            connect(&asking, at(&next)),
        );
        let _theirs = connect(&peer, asking.node.gid().address());
        asking.node.poll().unwrap();
        assert_eq!((heard(&next), asking.node.cm_stats().in_line), (0, 1));
        // It had asked before it hears this.
        peer.node.poll().unwrap();
        asking.node.poll().unwrap();
        assert_eq!((heard(&next), asking.node.cm_stats().in_line), (1, 0));
    }
}

#[test]
fn a_node_that_asks_for_everything_leaves_room_for_others() {
    let asked = End::new(inline());
    let mut greedy = Stranger::new(&asked.node);
    // It confirms nothing, so that all it gets stays under way.
    (0..100).for_each(|_| greedy.ask(64));
    greedy.say();
    let refused = |name: &str| asked.node.cm_stats().overload[name];
    until(&[&asked.node], "answers to all", || {
        asked.node.cm_stats().handshakes["rep_sent"] + refused("node_share") == 100
    });
    assert_eq!((refused("node_share"), refused("node_busy")), (36, 0));
    let honest = End::new(inline());
    let _qp = connect(&honest, asked.node.gid().address());
    until(&[&asked.node, &honest.node], "the other to be met", || {
        is_met(&honest, asked.node.gid().address())
    });
    // All that were refused were told so.
    let busy = trunkline_cm::Refused::Trunkline(trunkline_cm::RefusalCode::Busy);
    let mut told = 0;
    until(&[&asked.node], "all refusals", || {
        greedy.turn();
        while let Some(event) = greedy.manager.poll_event() {
            let refused =
                matches!(event, trunkline_cm::Event::Refused { reason, .. } if reason == busy);
            told += u64::from(refused);
        }
        told == 36
    });
}

#[test]
fn nodes_that_are_told_to_come_again_all_get_in() {
    let nodes: Vec<End> = (0..40).map(|_| End::new(inline())).collect();
    let mut asked = Stranger::new(&nodes[0].node);
    let mut crowded = *asked.manager.config();
    crowded.limits.half_open = 4;
    let random: fn() -> u64 = || 0x1234_5678_9abc_def0;
    asked.manager = NodeCm::new(crowded, random);
    let at = asked.route.local;
    let qps: Vec<Qp> = nodes.iter().map(|node| connect(node, at)).collect();
    let all: Vec<&Node> = nodes.iter().map(|end| &end.node).collect();
    until(&all, "all to be in", || {
        // It looks after all of them have asked.
        asked.turn();
        assert!(asked.manager.load().half_open <= 4);
        while let Some(event) = asked.manager.poll_event() {
            if let trunkline_cm::Event::Incoming { id, .. } = event {
                let (now, bounds) = (Instant::ZERO, Bounds::default());
                asked.manager.accept(now, id, offer(64), bounds).unwrap();
            }
        }
        all.iter().all(|node| node.connection_count() == 1)
    });
    assert!(asked.manager.counters().busy >= 36);
    assert!(qps.iter().all(|qp| qp.state() == QpState::Rts));
}

#[test]
fn any_number_of_connections_to_one_peer_open_as_the_peer_admits_them() {
    // Far more than a node lets one address have half-open.
    const COUNT: usize = 1_000;
    let (asking, asked) = (End::new(inline()), End::new(inline()));
    let own: Vec<Connection> = (0..COUNT)
        .map(|_| open(&asking, asked.node.gid().address()))
        .collect();
    until(&[&asking.node, &asked.node], "all to be open", || {
        own.iter().all(|one| match one.state() {
            ConnectionState::Open(_) => true,
            ConnectionState::Opening => false,
            other => panic!("{other:?}"),
        })
    });
    let counters = asked.node.cm_counters()[0].nodes;
    assert_eq!((counters.unfair, counters.busy), (0, 0), "none was refused");
}

#[test]
fn a_peer_that_is_busy_is_asked_until_it_admits_a_connection() {
    let asking = End::new(inline());
    let mut peer = Stranger::new(&asking.node);
    let own: Vec<Connection> = (0..3).map(|_| open(&asking, peer.route.local)).collect();
    let (mut refused, mut accepted) = (0, 0);
    until(&[&asking.node], "all to be open", || {
        peer.turn();
        while let Some(event) = peer.manager.poll_event() {
            let trunkline_cm::Event::Incoming { id, .. } = event else {
                continue;
            };
            // More often than a QP's pool would ask.
            if refused < 12 {
                refused += 1;
                peer.manager.reject(id, RefusalCode::Busy).unwrap();
            } else {
                accepted += 1;
                let now = Instant::ZERO;
                let (manager, offer) = (&mut peer.manager, offer(64 + accepted));
                manager.accept(now, id, offer, Bounds::default()).unwrap();
            }
        }
        own.iter().all(Connection::is_open)
    });
    assert_eq!(refused, 12);
}

#[test]
fn a_connection_beyond_the_share_of_an_address_fails_and_says_so() {
    let asking = End::new(inline());
    let mut peer = Stranger::new(&asking.node);
    let own = open(&asking, peer.route.local);
    until(&[&asking.node], "the refusal", || {
        peer.turn();
        if let Some(trunkline_cm::Event::Incoming { id, .. }) = peer.manager.poll_event() {
            peer.manager.reject(id, RefusalCode::Share).unwrap();
        }
        own.state() != ConnectionState::Opening
    });
    let why = NoConnection::Share;
    assert_eq!(own.state(), ConnectionState::Failed(why));
}
