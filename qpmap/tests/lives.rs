//! What a peer says of lives of its QP, and of those that are over.

use crate::common::Pair;
use crate::common::liar::{LAST, Liar, entry};
use crate::common::scene::{LIFE, PEER, READS, Scene};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Remote, SendOp, Status};
use trunkline_qpmap::{Attributes, Event, FIRST_MSN, QpModify, QpType};
use trunkline_wire::{Control, ControlKind, Opcode};

#[test]
fn the_next_incarnation_of_a_peer_gets_nothing_that_was_sent_to_one_in_life_0() {
    for life in [1, 0] {
        let scene = Scene::asking(Pair::new(0), READS);
        let (mut pair, mut liar, qp) = (scene.pair, scene.liar, scene.qp);
        let own = scene.life;
        let bound = entry(ControlKind::Bound, PEER.get(), qp.qpn, own, life);
        liar.control(&mut pair, &[bound]);
        let from = [pair.sge(1, 0, 8)];
        pair.post(1, &qp, 1, SendOp::Send, &from);
        let sends = |heard: Vec<Vec<u8>>| {
            let sends = heard
                .iter()
                .filter(|one| Opcode(one[0]) == Opcode::SRC_SEND);
            sends.count()
        };
        let before = sends(liar.hears(&mut pair));
        // Another incarnation of the peer has introduced itself.
        pair.nodes[1].engine.drop_peer(liar.address());
        let mut next = Liar::new(&mut pair, 9);
        let mut again = 0;
        for _ in 0..10 {
            pair.now = pair.now + MILLISECOND;
            again += sends(next.hears(&mut pair));
            let bound = entry(ControlKind::Bound, PEER.get(), qp.qpn, own, 7);
            let bounds = [0, 1].map(|replay_epoch| Control {
                replay_epoch,
                ..bound
            });
            next.control(&mut pair, &bounds);
        }
        let done = pair.completions(1);
        let statuses: Vec<_> = done.iter().map(|done| done.status).collect();
        // No QP has a life 0: its consent is none, and the next incarnation is the first to agree.
        let expected: (_, _, &[Status]) = match life {
            0 => (0, 1, &[]),
            _ => (1, 0, &[Status::RetryExceeded]),
        };
        let seen = (before, again, &statuses[..]);
        assert_eq!(
            seen, expected,
            "life {life}: sent, sent to the next, completions"
        );
    }
}

/// BINDs that the node says.
fn binds(scene: &mut Scene) -> Vec<Control> {
    scene.pair.now = scene.pair.now + MILLISECOND;
    let mut said = scene.liar.hears_control(&mut scene.pair);
    said.retain(|entry| entry.kind == ControlKind::Bind);
    said
}

/// How often the node hears that the peer's QP is gone.
fn desertions(scene: &mut Scene) -> usize {
    let engine = &mut scene.pair.nodes[1].engine;
    let told = std::iter::from_fn(|| engine.poll_event());
    told.filter(|event| matches!(event, Event::PeerQpGone { .. }))
        .count()
}

#[test]
fn a_refusal_of_a_bind_that_named_another_life_says_nothing_of_this_one() {
    let mut scene = Scene::new();
    let (qpn, life) = (scene.qp.qpn, scene.life);
    let next = entry(ControlKind::Bind, PEER.get(), qpn, LIFE + 1, 0);
    scene.liar.control(&mut scene.pair, &[next]);
    assert_eq!(desertions(&mut scene), 1);
    scene.post(1, SendOp::Send, 0);
    let bind = binds(&mut scene)[0];
    assert_eq!(bind.msn, 0, "nobody has agreed");
    let late = Control {
        replay_epoch: bind.replay_epoch,
        msn: LIFE,
        ..entry(ControlKind::Refused, PEER.get(), qpn, life, 1)
    };
    scene.liar.control(&mut scene.pair, &[late]);
    assert_eq!((scene.statuses(), desertions(&mut scene)), (vec![], 0));
    scene
        .liar
        .control(&mut scene.pair, &[Control { msn: 0, ..late }]);
    assert_eq!(scene.statuses(), [Status::RetryExceeded]);
}

/// The peer's QP agrees in a life that was not heard of, to a replay epoch that is not this one.
fn agrees_in_a_next_life(scene: &mut Scene) {
    let (qpn, life) = (scene.qp.qpn, scene.life);
    let bound = Control {
        replay_epoch: 9,
        ..entry(ControlKind::Bound, PEER.get(), qpn, life, LIFE + 1)
    };
    scene.liar.control(&mut scene.pair, &[bound]);
}

#[test]
fn consent_of_a_next_life_to_another_round_tells_that_the_last_one_is_over() {
    let mut scene = Scene::new();
    agrees_in_a_next_life(&mut scene);
    assert_eq!(desertions(&mut scene), 1);
}

#[test]
fn a_bind_names_no_life_that_is_known_to_be_over() {
    for refused in [false, true] {
        let mut scene = Scene::new();
        let (qpn, life) = (scene.qp.qpn, scene.life);
        let mut over = entry(ControlKind::Unbind, PEER.get(), qpn, LIFE, life);
        over.msn = FIRST_MSN;
        if refused {
            let engine = &mut scene.pair.nodes[1].engine;
            engine.close_connection(scene.liar.conn);
            scene.pair.sent_by(1);
            scene.liar = Liar::new(&mut scene.pair, 9);
            let bind = binds(&mut scene)[0];
            assert_eq!((bind.status, bind.msn), (0, LIFE));
            over = Control {
                replay_epoch: bind.replay_epoch,
                msn: LIFE,
                ..entry(ControlKind::Refused, PEER.get(), qpn, life, 1)
            };
        }
        scene.liar.control(&mut scene.pair, &[over]);
        assert_eq!(desertions(&mut scene), 1);
        scene.post(1, SendOp::Send, 0);
        assert_eq!(binds(&mut scene)[0].msn, 0, "refused: {refused}");
    }
}

#[test]
fn consent_of_a_next_life_to_another_round_is_asked_for_anew() {
    let mut scene = Scene::new();
    agrees_in_a_next_life(&mut scene);
    scene.post(1, SendOp::Send, 0);
    let mut said = 0;
    for _ in 0..100_000 {
        said += binds(&mut scene).len();
        scene.say(Opcode::SRC_PING, LAST, &[]);
    }
    let statuses = scene.statuses();
    assert!(said > 0, "a BIND is said");
    assert_eq!(statuses, [Status::RetryExceeded], "nobody agreed in 100 s");
}

#[test]
fn who_agreed_and_ends_before_a_bind_reached_it_is_gone_for_whom_it_agreed_to() {
    for posted in [false, true] {
        let mut scene = Scene::new();
        if posted {
            scene.post(1, SendOp::Send, 0);
            scene.pair.sent_by(1);
        }
        // Consent came in the handshake; this life ends, and was never asked since.
        let over = entry(ControlKind::Unbind, PEER.get(), scene.qp.qpn, LIFE, 0);
        scene.liar.control(&mut scene.pair, &[over]);
        let (statuses, told) = (scene.statuses(), desertions(&mut scene));
        match posted {
            true => assert_eq!((statuses, told), (vec![Status::RetryExceeded], 0)),
            false => assert_eq!((statuses, told), (vec![], 1)),
        }
    }
}

/// What a node hears of its QP's peer, beside what its program does.
fn news_of_peers(pair: &mut Pair) -> Vec<Event> {
    let engine = &mut pair.nodes[1].engine;
    let told = std::iter::from_fn(|| engine.poll_event());
    told.filter(|event| matches!(event, Event::QpHeard { .. } | Event::PeerQpGone { .. }))
        .collect()
}

/// A route of many is not what an ID of RDMA-CM stands for.
#[test]
fn a_node_hears_of_the_peer_of_a_qp_with_one_and_of_none_of_an_app_managed_qp() {
    for kind in [QpType::Rc, QpType::Src] {
        let mut pair = Pair::new(0);
        let mut liar = Liar::new(&mut pair, 9);
        let qp = pair.qp(1, kind);
        let attributes = match kind {
            QpType::Rc => Attributes {
                remote: liar.address(),
                dest_qpn: PEER,
                ..Attributes::default()
            },
            _ => Attributes::default(),
        };
        pair.take_to_rts(1, &qp, attributes, attributes);
        if kind == QpType::Src {
            let engine = &mut pair.nodes[1].engine;
            let route = engine.add_route(qp.qpn, liar.conn, PEER);
            route.expect("a route of an app-managed QP");
        }
        let own = liar.hears_control(&mut pair)[0].generation;
        let bound = entry(ControlKind::Bound, PEER.get(), qp.qpn, own, LIFE);
        liar.control(&mut pair, &[bound]);
        let heard = news_of_peers(&mut pair);
        let over = entry(ControlKind::Unbind, PEER.get(), qp.qpn, LIFE, own);
        liar.control(&mut pair, &[over]);
        let gone = news_of_peers(&mut pair);
        match kind {
            QpType::Rc => assert!(
                matches!(heard[..], [Event::QpHeard { .. }])
                    && matches!(gone[..], [Event::PeerQpGone { .. }]),
                "{heard:?} {gone:?}"
            ),
            _ => assert!(heard.is_empty() && gone.is_empty(), "{heard:?} {gone:?}"),
        }
    }
}

#[test]
fn a_bind_that_names_another_life_is_refused_at_once_by_a_qp_of_any_kind_that_is_not_ready() {
    for kind in [QpType::Rc, QpType::Src] {
        let mut pair = Pair::new(0);
        let mut liar = Liar::new(&mut pair, 9);
        let qp = pair.qp(1, kind);
        let said = [0, 999].map(|agreed| {
            let bind = Control {
                msn: agreed,
                ..entry(ControlKind::Bind, PEER.get(), qp.qpn, LIFE, 0)
            };
            liar.control(&mut pair, &[bind]);
            pair.now = pair.now + MILLISECOND;
            let said = liar.hears_control(&mut pair);
            said.iter().map(|entry| entry.kind).collect::<Vec<_>>()
        });
        let expected = [vec![], vec![ControlKind::Refused]];
        assert_eq!(said, expected, "{kind:?}: one that names none waits");
    }
}

#[test]
fn consent_to_a_life_of_ours_that_is_over_says_nothing_of_the_peers() {
    let mut scene = Scene::new();
    let (qpn, life) = (scene.qp.qpn, scene.life);
    scene.post(1, SendOp::Send, 0);
    scene.pair.sent_by(1);
    let before = scene.counters().bad_answer;
    let bound = entry(
        ControlKind::Bound,
        PEER.get(),
        qpn,
        life.wrapping_sub(1),
        LIFE + 1,
    );
    scene.liar.control(&mut scene.pair, &[bound]);
    assert_eq!(scene.counters().bad_answer, before + 1);
    assert_eq!(scene.statuses(), []);
}

#[test]
fn a_qp_that_asks_for_something_between_two_connections_goes_on_with_the_next_life_of_its_peers() {
    for (lapses, timeout) in [(false, 14), (false, 0), (true, 0), (true, 14)] {
        let mut pair = Pair::new(1);
        let qps = [0, 1].map(|node| pair.qp(node, QpType::Rc));
        let attributes = |node: usize| Attributes {
            timeout,
            ..crate::common::watched::attributes(node, &qps[1 - node], (timeout, 7))
        };
        for node in [0, 1] {
            pair.take_to_rts(node, &qps[node], attributes(node), attributes(node));
        }
        let target = Remote {
            addr: pair.nodes[1].buffer.addr,
            rkey: pair.nodes[1].key,
        };
        let write = |pair: &Pair, wr_id| {
            let place = [pair.sge(0, 0, 100)];
            pair.post(0, &qps[0], wr_id, SendOp::Write(target), &place);
        };
        write(&pair, 1);
        pair.run(10 * MILLISECOND);
        assert_eq!(pair.completions(0)[0].status, Status::Success);
        if lapses {
            let engine = &mut pair.nodes[1].engine;
            let reset = engine.modify_qp(qps[1].qpn, &QpModify::Reset);
            reset.expect("any QP may be reset");
            pair.take_to_rts(1, &qps[1], attributes(1), attributes(1));
            pair.run(10 * MILLISECOND);
        }
        for (node, conn) in pair.conns[0].into_iter().enumerate() {
            pair.nodes[node].engine.close_connection(conn);
        }
        pair.run(MILLISECOND);
        write(&pair, 2);
        pair.run(MILLISECOND);
        pair.open();
        let begin = pair.now;
        let mut done = Vec::new();
        while done.is_empty() && pair.now.since(begin) < 60 * SECOND {
            pair.run(10 * MILLISECOND);
            done = pair.completions(0);
        }
        let done: Vec<Status> = done.iter().map(|done| done.status).collect();
        let took = pair.now.since(begin);
        let case = format!("lapses {lapses}, timeout {timeout}: {done:?} after {took} ns");
        assert_eq!(done, [Status::Success], "{case}");
    }
}
