//! Who waits for one worker of a peer, and who for another: what comes of an ask is for those that
//! it was about.

use crate::common::watched::{both, graced};
use crate::common::{Pair, RingMemory, params};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Remote, SendOp, VendorError};
use trunkline_qpmap::{Attributes, ConnId, Event, PeerIdentity, QpQueues, QpType};
use trunkline_wire::{Gid, Qpn, Workers};

type Qp = Arc<QpQueues<RingMemory>>;

/// Workers of the peer. To the first of them a connection leads in each test.
const WORKERS: u8 = 3;
const OTHERS: [u32; 2] = [1, 2];

fn peer() -> Gid {
    IpAddr::from([10, 0, 0, 2]).into()
}

/// A number of a worker of the peer, the more bits of which say nothing.
fn number(worker: u32) -> Qpn {
    Qpn::from_wire(0x70_1230 | worker)
}

/// Opens a connection of node 0 to a worker of the peer.
fn open(pair: &mut Pair, worker: u32) -> ConnId {
    let engine = &mut pair.nodes[0].engine;
    let end = engine.draw_connection().expect("a number");
    let identity = PeerIdentity {
        guid: 2,
        epoch: 1,
        address: peer(),
        workers: Workers::new(WORKERS).expect("so many there may be"),
    };
    let params = params(end, (number(worker), 0x5555));
    let added = engine.add_connection(pair.now, identity, &params);
    added.expect("a connection")
}

/// A QP of node 0 in RTS towards one of a worker of the peer.
fn towards(pair: &mut Pair, worker: u32) -> Qp {
    let qp = pair.qp(0, QpType::Rc);
    let attributes = Attributes {
        remote: peer(),
        dest_qpn: number(worker),
        ..Attributes::default()
    };
    pair.take_to_rts(0, &qp, attributes, attributes);
    qp
}

/// A QP for each of the other workers, which waits for a connection there: one that has lost its
/// own, or has had none. To the first worker there is one.
fn waiting(lost: bool) -> (Pair, [Qp; 2]) {
    let mut pair = Pair::new(0);
    open(&mut pair, 0);
    let conns = OTHERS.map(|worker| lost.then(|| open(&mut pair, worker)));
    let qps = OTHERS.map(|worker| towards(&mut pair, worker));
    settle(&mut pair);
    for conn in conns.into_iter().flatten() {
        pair.nodes[0].engine.close_connection(conn);
    }
    settle(&mut pair);
    assert_eq!(waited_for(&pair), OTHERS);
    (pair, qps)
}

/// Gives node 0 rounds until it has nothing to do. What it sends reaches nobody.
fn settle(pair: &mut Pair) {
    loop {
        pair.now = pair.now + 1_000;
        pair.sent_by(0);
        if !pair.nodes[0].engine.is_busy() {
            return;
        }
    }
}

/// Workers that QPs wait for.
fn waited_for(pair: &Pair) -> Vec<u32> {
    let numbers = pair.nodes[0].engine.waiting_for(peer());
    let workers: BTreeSet<u32> = numbers.iter().map(|number| number.get() & 3).collect();
    workers.into_iter().collect()
}

fn ask(pair: &mut Pair, worker: u32) {
    let now = pair.now;
    pair.nodes[0]
        .engine
        .connect_request_begins(now, peer(), number(worker));
}

/// There is no way to a worker.
fn refuse(pair: &mut Pair, worker: u32) {
    let engine = &mut pair.nodes[0].engine;
    engine.peer_unreachable(peer(), number(worker), VendorError::NoNode);
    settle(pair);
}

/// Which of some QPs have ended.
fn ended(qps: &[Qp; 2]) -> [bool; 2] {
    [0, 1].map(|at| qps[at].is_flushing())
}

#[test]
fn what_came_of_the_ask_of_one_worker_is_not_for_who_waits_for_another() {
    for lost in [false, true] {
        let (mut pair, qps) = waiting(lost);
        OTHERS.into_iter().for_each(|worker| ask(&mut pair, worker));
        refuse(&mut pair, OTHERS[1]);
        assert_eq!(ended(&qps), [false, true]);
        assert_eq!(waited_for(&pair), OTHERS[..1]);
        refuse(&mut pair, OTHERS[0]);
        assert_eq!(ended(&qps), [true; 2]);
        assert_eq!(waited_for(&pair), []);
    }
}

#[test]
fn who_waits_for_another_worker_than_the_one_that_is_asked_is_not_asked_for() {
    for lost in [false, true] {
        let (mut pair, qps) = waiting(lost);
        ask(&mut pair, OTHERS[0]);
        OTHERS
            .into_iter()
            .for_each(|worker| refuse(&mut pair, worker));
        assert_eq!(ended(&qps), [true, false]);
    }
}

#[test]
fn a_connection_to_one_worker_says_nothing_of_another() {
    for lost in [false, true] {
        let (mut pair, qps) = waiting(lost);
        OTHERS.into_iter().for_each(|worker| ask(&mut pair, worker));
        let conn = open(&mut pair, OTHERS[0]);
        settle(&mut pair);
        let stats = pair.nodes[0].engine.connection_stats(conn);
        assert_eq!(stats.map(|stats| stats.flows), Some(1));
        assert_eq!(waited_for(&pair), OTHERS[1..]);
        refuse(&mut pair, OTHERS[0]);
        assert_eq!(ended(&qps), [false; 2]);
    }
}

#[test]
fn a_connection_comes_before_what_was_said_of_its_worker_and_of_no_other() {
    for lost in [false, true] {
        let (mut pair, qps) = waiting(lost);
        OTHERS.into_iter().for_each(|worker| ask(&mut pair, worker));
        for worker in OTHERS {
            let engine = &mut pair.nodes[0].engine;
            engine.peer_unreachable(peer(), number(worker), VendorError::NoNode);
        }
        open(&mut pair, OTHERS[0]);
        settle(&mut pair);
        assert_eq!(ended(&qps), [false, true]);
    }
}

#[test]
fn an_ask_that_began_when_less_was_known_of_a_peer_ends_no_flow() {
    let (mut pair, qps) = waiting(true);
    ask(&mut pair, OTHERS[1]);
    while pair.nodes[0].engine.poll_event().is_some() {}
    open(&mut pair, OTHERS[0]);
    settle(&mut pair);
    refuse(&mut pair, OTHERS[1]);
    assert_eq!(ended(&qps), [false; 2]);
    let engine = &mut pair.nodes[0].engine;
    let other = |event: &Event| match event {
        Event::NeedsConnection { remote, .. } => remote.get() & 3 == OTHERS[1],
        _ => false,
    };
    let asks = std::iter::from_fn(|| engine.poll_event()).filter(other);
    assert!(asks.count() > 0, "it is asked again");
}

/// Whoever is met at the address of a peer that is gone was never silent.
#[test]
fn a_peer_that_was_dropped_leaves_its_silence_to_nobody() {
    let mut pair = graced(1, 3 * SECOND);
    let [a, _b] = both(&mut pair, (8, 1));
    pair.fate = Box::new(|_, _| 0);
    let target = Remote {
        addr: pair.nodes[1].buffer.addr,
        rkey: pair.nodes[1].key,
    };
    pair.post(0, &a, 1, SendOp::Write(target), &[pair.sge(0, 0, 64)]);
    pair.run(2500 * MILLISECOND);
    let engine = &mut pair.nodes[0].engine;
    assert!(engine.is_silent(peer(), Qpn::default()));
    engine.drop_peer(peer());
    // A connection of a program ends no silence.
    pair.private = true;
    pair.open();
    assert!(!pair.nodes[0].engine.is_silent(peer(), Qpn::default()));
}
