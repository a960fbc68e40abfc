//! BINDs that come in handshakes, and what was agreed to there.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use crate::common::liar::{LAST, Liar, entry};
use crate::common::managed::{Queues, managed, post, told, write};
use crate::common::{Pair, Test};
use std::net::IpAddr;
use trunkline_conn::time::SECOND;
use trunkline_conn::work::Status;
use trunkline_qpmap::{ConnId, Engine, QpModify, QpType};
use trunkline_wire::{Control, ControlKind, Gid, Opcode, Path, Qpn};

/// An address that nobody has heard of.
fn stranger() -> Gid {
    IpAddr::from([10, 0, 0, 8]).into()
}

/// A handshake between the nodes of a pair that carried a BIND, as far as its opener knows.
struct Agreed {
    asker: Queues,
    /// The app-managed QP that consented, at node 1.
    leaf: Queues,
    /// The connection, at node 1.
    conn: ConnId,
    bind: Control,
    life: u32,
    /// The packets of the asker's first request, which leave before node 1 has heard that the
    /// connection stands.
    first: Vec<(Path, Vec<u8>)>,
}

/// Has an app-managed QP consent in a handshake; another route of it ends while the answer is under
/// way.
fn agreed_in_a_handshake(pair: &mut Pair) -> Agreed {
    let leaf = managed(pair, 1);
    let liar = Liar::new(pair, 9);
    let engine = &mut pair.nodes[1].engine;
    let other = engine.add_route(leaf.qpn, liar.conn, Qpn::from_wire(5));
    let other = other.unwrap();
    let asker = pair.qp(0, QpType::Rc);
    pair.connect(0, &asker, &leaf);
    let [near, far]: [Gid; 2] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]).into());
    let bind = pair.nodes[0].engine.early_binds(far).next().unwrap();
    let now = pair.now;
    let engine = &mut pair.nodes[1].engine;
    let bound = engine.consent(now, near, &bind).expect("it is ready");
    engine.close_route(leaf.qpn, other).unwrap();
    pair.open();
    let [here, conn] = pair.conns[0];
    let bind_of_bound = Control {
        kind: ControlKind::Bind,
        generation: bound.status,
        status: 0,
        ..bound
    };
    for entry in [bind_of_bound, bound] {
        pair.nodes[0].engine.handle_early(now, here, entry);
    }
    post(pair, &asker, 1, write(pair), 0);
    let first = pair.sent_by(0);
    let life = bound.status;
    Agreed {
        asker,
        leaf,
        conn,
        bind,
        life,
        first,
    }
}

/// The connection stands at the QP that consented, too, and serves the asker's first request.
fn is_served(pair: &mut Pair, agreed: &Agreed) {
    let now = pair.now;
    let engine = &mut pair.nodes[1].engine;
    engine.handle_agreed(now, agreed.conn, agreed.bind, agreed.life);
    pair.deliver(1, &agreed.first);
    pair.run(SECOND);
    assert_eq!(told(&pair.completions(0)), [(1, Status::Success, 0)]);
}

/// Consent in a handshake names the life that the QP was in then.
#[test]
fn a_route_that_a_handshake_agreed_to_goes_on_though_another_one_ended_meanwhile() {
    let mut pair = Pair::new(0);
    let agreed = agreed_in_a_handshake(&mut pair);
    is_served(&mut pair, &agreed);
    // The next route between the two is another life.
    let Agreed { asker, leaf, .. } = agreed;
    pair.nodes[1].engine.destroy_qp(leaf.qpn).unwrap();
    pair.run(SECOND);
    post(&pair, &asker, 2, write(&pair), 0);
    pair.run(SECOND);
    assert_eq!(told(&pair.completions(0)), [(2, Status::RetryExceeded, 0)]);
}

/// A life 0 is none, in a handshake as on a connection.
#[test]
fn a_bind_in_life_0_that_came_in_a_handshake_opens_no_route() {
    let mut pair = Pair::new(0);
    let leaf = managed(&mut pair, 1);
    let peer: Gid = IpAddr::from([10, 0, 0, 9]).into();
    let bind = entry(ControlKind::Bind, 5, leaf.qpn, 0, 0);
    let now = pair.now;
    let engine = &mut pair.nodes[1].engine;
    let agreed = engine.consent(now, peer, &bind);
    let mut liar = Liar::new(&mut pair, 9);
    let engine = &mut pair.nodes[1].engine;
    match agreed {
        Some(bound) => engine.handle_agreed(now, liar.conn, bind, bound.status),
        None => engine.handle_early(now, liar.conn, bind),
    }
    assert_eq!(engine.counters().malformed, 1);
    assert_eq!(engine.live_objects().flows, 0, "nothing else moves");
    assert_eq!(liar.hears_control(&mut pair), [], "and nobody is asked");
}

/// Two handshakes with a new peer may stand in another order than they were agreed to in.
#[test]
fn a_route_that_a_handshake_agreed_to_goes_on_though_another_connection_stood_first() {
    let mut pair = Pair::new(0);
    let agreed = agreed_in_a_handshake(&mut pair);
    // Another one, of its program, is confirmed first.
    pair.private = true;
    pair.open();
    is_served(&mut pair, &agreed);
}

/// What was agreed to is begun once, and by a QP that is ready still.
#[test]
fn what_a_handshake_agreed_to_begins_once_and_not_with_a_qp_that_went_to_error() {
    for fails in [false, true] {
        let mut pair = Pair::new(0);
        let leaf = managed(&mut pair, 1);
        let peer: Gid = IpAddr::from([10, 0, 0, 9]).into();
        let bind = entry(ControlKind::Bind, 5, leaf.qpn, 7, 0);
        let now = pair.now;
        let engine = &mut pair.nodes[1].engine;
        let bound = engine.consent(now, peer, &bind).expect("it is ready");
        if fails {
            engine.modify_qp(leaf.qpn, &QpModify::Error).unwrap();
        }
        let mut liar = Liar::new(&mut pair, 9);
        let engine = &mut pair.nodes[1].engine;
        for _ in 0..2 {
            engine.handle_agreed(now, liar.conn, bind, bound.status);
        }
        let flows = engine.live_objects().flows;
        let said = liar.hears_control(&mut pair);
        let refused = said.iter().any(|said| said.kind == ControlKind::Refused);
        assert_eq!((flows, refused), (usize::from(!fails), fails), "{said:?}");
    }
}

#[test]
fn who_searches_with_forged_questions_finds_no_app_managed_qp_and_delays_others_by_a_round_trip() {
    let mut pair = Pair::new(1);
    let number = managed(&mut pair, 1).qpn;
    let mut now = pair.now + SECOND;
    let engine = &mut pair.nodes[1].engine;
    let asks = |engine: &mut Engine<Test>, now, host: u16, dest_qp| {
        let [high, low] = host.to_be_bytes();
        let address = IpAddr::from([198, 18, high, low]);
        let bind = Control {
            kind: ControlKind::Bind,
            src_qp: Qpn::from_wire(77),
            replay_epoch: 0,
            dest_qp,
            generation: 1,
            status: 0,
            msn: 0,
        };
        engine.consent(now, address.into(), &bind)
    };
    assert!(asks(engine, now, 0, number).is_some());
    // Every guess comes from another address, 10,000 a second.
    for guess in 0..60_000_u32 {
        now = now + SECOND / 10_000;
        let missed = Qpn::from_wire(number.get() ^ (1 + guess));
        assert_eq!(asks(engine, now, guess as u16, missed), None);
    }
    assert_eq!(asks(engine, now, 1, number), None);
    // It is over with the search.
    now = now + SECOND / 100;
    assert!(asks(engine, now, 2, number).is_some());
}

/// The peer's share of routes bounds those of handshakes, too.
#[test]
fn a_peer_that_has_its_share_of_routes_opens_no_more_in_handshakes() {
    const SHARE: u32 = 1 << 16;
    let mut pair = Pair::new(0);
    let leaf = managed(&mut pair, 1);
    let liar = Liar::new(&mut pair, 9);
    let now = pair.now;
    let engine = &mut pair.nodes[1].engine;
    for src in 1..=SHARE + 10 {
        let bind = entry(ControlKind::Bind, src, leaf.qpn, 7, 0);
        engine.handle_agreed(now, liar.conn, bind, 1);
    }
    assert_eq!(engine.live_objects().flows, SHARE as usize);
    assert_eq!(engine.counters().routes_refused, 10);
}

/// It is the peer's, and no program has a number for it.
#[test]
fn a_route_that_a_handshake_opened_goes_with_the_peers_qp() {
    let mut pair = Pair::new(0);
    let leaf = managed(&mut pair, 1);
    let mut liar = Liar::new(&mut pair, 9);
    let bind = entry(ControlKind::Bind, 5, leaf.qpn, 7, 0);
    let now = pair.now;
    let engine = &mut pair.nodes[1].engine;
    let bound = engine.consent(now, stranger(), &bind).expect("ready");
    engine.handle_agreed(now, liar.conn, bind, bound.status);
    assert_eq!(engine.live_objects().flows, 1);
    let unbind = entry(ControlKind::Unbind, 5, leaf.qpn, 7, bound.status);
    liar.control(&mut pair, &[unbind]);
    liar.hears(&mut pair);
    liar.say(&mut pair, Opcode::SRC_PING, LAST, &[]);
    assert_eq!(pair.nodes[1].engine.live_objects().flows, 0);
}

/// Whoever is known already asks on a connection.
#[test]
fn only_who_is_not_known_yet_is_consented_to_in_a_handshake() {
    let mut pair = Pair::new(0);
    let leaf = managed(&mut pair, 1);
    let known = Liar::new(&mut pair, 9).address();
    let bind = entry(ControlKind::Bind, 5, leaf.qpn, 7, 0);
    let now = pair.now;
    let engine = &mut pair.nodes[1].engine;
    assert_eq!(engine.consent(now, known, &bind), None);
    assert!(engine.consent(now, stranger(), &bind).is_some());
}
