//! Peers that say what they like of QPs that leave, and how a QP's own end is said.

use crate::common::Pair;
use crate::common::liar::{LAST, Liar, entry, generation_of};
use crate::common::scene::{LIFE, PEER, READS, Scene};
use crate::leaving::GRACE;
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{SendOp, Status};
use trunkline_qpmap::{Event, FIRST_MSN, QpModify, QpState};
use trunkline_wire::{Answer, Close, Control, ControlKind, NakCode, Opcode, SrcExt, Syndrome};

/// The liar's QP leaves in this life.
fn left(scene: &mut Scene, life: u32) {
    let over = Control {
        replay_epoch: Control::LEFT,
        msn: FIRST_MSN,
        ..entry(
            ControlKind::Unbind,
            PEER.get(),
            scene.qp.qpn,
            life,
            scene.life,
        )
    };
    scene.liar.control(&mut scene.pair, &[over]);
}

/// It says that it is in this life, and agrees to what is asked; it takes what is sent then, or
/// does not.
fn comes_back(scene: &mut Scene, life: u32, takes: bool) {
    let (qpn, own) = (scene.qp.qpn, scene.life);
    let bind = entry(ControlKind::Bind, PEER.get(), qpn, life, 0);
    scene.liar.control(&mut scene.pair, &[bind]);
    scene.pair.now = scene.pair.now + MILLISECOND;
    let asked = scene.liar.hears_control(&mut scene.pair);
    let asked = asked.iter().find(|said| said.kind == ControlKind::Bind);
    let replay_epoch = asked.map_or(0, |bind| bind.replay_epoch);
    let bound = Control {
        replay_epoch,
        ..entry(ControlKind::Bound, PEER.get(), qpn, own, life)
    };
    scene.liar.control(&mut scene.pair, &[bound]);
    if takes {
        scene.liar.hears(&mut scene.pair);
    }
}

#[test]
fn a_peer_that_leaves_over_and_over_keeps_no_request_waiting_and_floods_no_events() {
    let pauses = [1, 40, 99, 101, 150];
    let cases = pauses.map(|pause| [(pause, false), (pause, true)]);
    for (pause, takes) in cases.into_iter().flatten() {
        let mut scene = Scene::new();
        let mut told = 0;
        let mut life = LIFE;
        let mut waited = 0;
        left(&mut scene, life);
        for round in 0..200 {
            if round == 20 {
                scene.post(1, SendOp::Send, 0);
            }
            for _ in 0..pause {
                scene.pair.now = scene.pair.now + MILLISECOND;
                scene.liar.hears(&mut scene.pair);
                waited += u64::from(round >= 20) * MILLISECOND;
            }
            life += 1;
            comes_back(&mut scene, life, takes);
            left(&mut scene, life);
            let engine = &mut scene.pair.nodes[1].engine;
            let events = std::iter::from_fn(|| engine.poll_event());
            let gone = |event: &Event| matches!(event, Event::PeerQpGone { .. });
            told += events.filter(gone).count();
            if scene.qp.state() == QpState::Error {
                break;
            }
        }
        assert_eq!(told, 1, "{pause}");
        assert_eq!(scene.statuses(), [Status::RetryExceeded], "{pause}");
        let most = 2 * GRACE + 2 * pause * MILLISECOND;
        assert!(waited <= most, "{pause}: {waited} ns");
    }
}

#[test]
fn connections_that_come_and_go_prolong_no_wait_for_a_qp_that_has_left() {
    let mut scene = Scene::new();
    left(&mut scene, LIFE);
    scene.post(1, SendOp::Send, 0);
    scene.pair.sent_by(1);
    let since = scene.pair.now;
    while scene.qp.state() != QpState::Error && scene.pair.now.since(since) < SECOND {
        let engine = &mut scene.pair.nodes[1].engine;
        engine.close_connection(scene.liar.conn);
        scene.pair.sent_by(1);
        scene.liar = Liar::new(&mut scene.pair, 9);
        scene.pair.now = scene.pair.now + 10 * MILLISECOND;
        scene.pair.sent_by(1);
    }
    let took = scene.pair.now.since(since);
    assert!((GRACE..3 * GRACE).contains(&took), "{took} ns");
}

/// Whether the node's QP, that waits for a liar's that has left, still does.
fn still_waits(scene: &mut Scene) -> bool {
    scene.pair.sent_by(1);
    scene.statuses().is_empty() && scene.qp.state() == QpState::Rts
}

#[test]
fn no_refusal_shortens_the_wait_for_a_qp_that_has_left_and_none_prolongs_it() {
    let mut scene = Scene::new();
    scene.post(1, SendOp::Send, 0);
    scene.pair.sent_by(1);
    left(&mut scene, LIFE);
    let since = scene.pair.now;
    // What was under way when the QP went finds nobody.
    let answer = Answer {
        requester: scene.qp.qpn,
        syndrome: Syndrome::Nak(NakCode::InvalidRd),
        msn: FIRST_MSN,
        generation: generation_of(scene.life, LIFE),
        replay_epoch: 0,
        responder: PEER,
    };
    let refused = |replay_epoch| Control {
        replay_epoch,
        ..entry(
            ControlKind::Refused,
            PEER.get(),
            scene.qp.qpn,
            scene.life,
            1,
        )
    };
    let refusals = [0, 1].map(refused);
    while scene.qp.state() == QpState::Rts && scene.pair.now.since(since) < SECOND {
        scene.liar.answers(&mut scene.pair, &[answer]);
        scene.liar.control(&mut scene.pair, &refusals);
        left(&mut scene, LIFE);
        if scene.pair.now.since(since) < GRACE {
            assert!(still_waits(&mut scene), "{:?}", scene.pair.now);
        }
        scene.pair.now = scene.pair.now + MILLISECOND;
        scene.liar.hears(&mut scene.pair);
    }
    let took = scene.pair.now.since(since);
    assert!((GRACE..2 * GRACE).contains(&took), "{took} ns");
    assert_eq!(scene.statuses(), [Status::RetryExceeded]);
}

#[test]
fn a_verdict_that_says_no_more_than_that_the_qp_is_over_is_an_error_at_once() {
    let mut scene = Scene::new();
    scene.post(1, SendOp::Send, 0);
    scene.pair.sent_by(1);
    let over = Control {
        replay_epoch: Syndrome::ACK_WITHOUT_CREDITS.byte(),
        msn: FIRST_MSN,
        ..entry(
            ControlKind::Unbind,
            PEER.get(),
            scene.qp.qpn,
            LIFE,
            scene.life,
        )
    };
    scene.liar.control(&mut scene.pair, &[over]);
    assert!(!still_waits(&mut scene));
}

/// The verdicts of the UNBINDs that the node says within `ns`, each of which is acknowledged.
fn verdicts(scene: &mut Scene, ns: u64) -> Vec<u8> {
    let end = scene.pair.now + ns;
    let mut said = Vec::new();
    while scene.pair.now < end {
        scene.pair.now = scene.pair.now + MILLISECOND;
        let heard = scene.liar.hears_control(&mut scene.pair);
        let unbinds = heard.iter().filter(|said| said.kind == ControlKind::Unbind);
        said.extend(unbinds.map(|unbind| unbind.replay_epoch));
        scene.say(Opcode::SRC_PING, LAST, &[]);
    }
    said
}

#[test]
fn a_qp_says_once_how_it_ended_and_no_more_when_it_is_destroyed_after_that() {
    const ERROR: u8 = 0x1f;
    let verdict_of = |end: fn(&mut Scene), then: fn(&mut Scene)| {
        let mut scene = Scene::new();
        end(&mut scene);
        let first = verdicts(&mut scene, SECOND);
        then(&mut scene);
        let more = verdicts(&mut scene, SECOND);
        let left = scene.pair.nodes[1].engine.live_objects();
        (first, more, left.flows)
    };
    let destroy = |scene: &mut Scene| {
        let engine = &mut scene.pair.nodes[1].engine;
        engine.destroy_qp(scene.qp.qpn).expect("it is there");
    };
    let error = |scene: &mut Scene| {
        let engine = &mut scene.pair.nodes[1].engine;
        let error = engine.modify_qp(scene.qp.qpn, &QpModify::Error);
        error.expect("any state");
    };
    let both = |scene: &mut Scene| {
        let engine = &mut scene.pair.nodes[1].engine;
        let error = engine.modify_qp(scene.qp.qpn, &QpModify::Error);
        error.expect("any state");
        engine.destroy_qp(scene.qp.qpn).expect("it is there");
    };
    let nothing = |_: &mut Scene| {};
    let left = (vec![Control::LEFT], vec![], 0);
    assert_eq!(verdict_of(destroy, nothing), left);
    let failed = (vec![ERROR], vec![], 0);
    assert_eq!(verdict_of(error, destroy), failed);
    assert_eq!(verdict_of(both, nothing), failed);
}

#[test]
fn what_was_not_sent_when_a_qp_left_is_asked_for_when_another_life_of_it_is_heard() {
    let mut scene = Scene::new();
    scene.post(1, SendOp::Send, 0);
    // Its turn has not come.
    scene.pair.nodes[1].engine.handle_doorbells();
    left(&mut scene, LIFE);
    let next = entry(ControlKind::Bind, PEER.get(), scene.qp.qpn, LIFE + 1, 0);
    scene.liar.control(&mut scene.pair, &[next]);
    scene.pair.now = scene.pair.now + MILLISECOND;
    let said = scene.liar.hears_control(&mut scene.pair);
    let asks = |said: &Control| said.kind == ControlKind::Bind;
    assert!(said.iter().any(asks), "{said:?}");
}

#[test]
fn a_request_that_comes_after_the_end_of_a_qp_does_not_change_how_it_ended() {
    let end: fn(&mut Scene) = |scene| scene.pair.nodes[1].engine.end_qp(scene.qp.qpn, false);
    let destroy: fn(&mut Scene) = |scene| {
        let destroyed = scene.pair.nodes[1].engine.destroy_qp(scene.qp.qpn);
        destroyed.expect("it is there");
    };
    for leaves in [end, destroy] {
        for replay_epoch in [0, 1] {
            let mut scene = Scene::new();
            leaves(&mut scene);
            let late = SrcExt {
                replay_epoch,
                ..scene.ext()
            };
            scene.say(Opcode::SRC_SEND, late, &[7; 8]);
            let said = verdicts(&mut scene, SECOND);
            assert_eq!(said, [Control::LEFT], "{replay_epoch}");
        }
    }
}

#[test]
fn a_life_that_left_with_its_node_is_heard_no_more() {
    let mut scene = Scene::new();
    scene.say(Opcode::SRC_CLOSE, LAST, &Close::NODE.to_bytes());
    scene.liar = Liar::new(&mut scene.pair, 9);
    let bind = entry(ControlKind::Bind, PEER.get(), scene.qp.qpn, LIFE, 0);
    scene.liar.control(&mut scene.pair, &[bind]);
    let said = scene.liar.hears_control(&mut scene.pair);
    let agrees = |said: &Control| said.kind == ControlKind::Bound;
    assert!(!said.iter().any(agrees), "{said:?}");
    let into = scene.pair.sge(1, 512, 64);
    scene.pair.receive(&scene.qp, 2, &[into]);
    scene.say(Opcode::SRC_SEND, scene.ext(), &[7; 8]);
    assert_eq!(scene.statuses(), [], "nor does it send");
    scene.post(1, SendOp::Send, 0);
    let since = scene.pair.now;
    while scene.qp.state() == QpState::Rts && scene.pair.now.since(since) < SECOND {
        scene.pair.now = scene.pair.now + MILLISECOND;
        scene.liar.hears(&mut scene.pair);
    }
    let took = scene.pair.now.since(since);
    assert!((GRACE..2 * GRACE).contains(&took), "{took} ns");
    let ended = [Status::RetryExceeded, Status::Flushed];
    assert_eq!(scene.statuses(), ended);
}

/// It has asked the QP here, and was not reached by the question of that.
#[test]
fn a_peer_that_leaves_before_it_was_asked_flushes_no_receive() {
    let mut scene = Scene::asking(Pair::new(0), READS);
    let qpn = scene.qp.qpn;
    let place = scene.pair.sge(1, 512, 4096);
    scene.pair.receive(&scene.qp, 1, &[place]);
    let bind = entry(ControlKind::Bind, PEER.get(), qpn, LIFE, 0);
    scene.liar.control(&mut scene.pair, &[bind]);
    let part = SrcExt {
        last: false,
        ..scene.ext()
    };
    scene.say(Opcode::SRC_SEND, part, &[7; 1024]);
    assert_eq!(scene.pair.nodes[1].engine.live_objects().assemblies, 1);
    let over = Control {
        replay_epoch: Control::LEFT,
        msn: FIRST_MSN,
        ..entry(ControlKind::Unbind, PEER.get(), qpn, LIFE, 0)
    };
    scene.liar.control(&mut scene.pair, &[over]);
    assert_eq!(scene.statuses(), [], "the receive stays posted");
    assert_eq!(scene.qp.state(), QpState::Rts);
}
