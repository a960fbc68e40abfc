//! Storms: who gets in, who is told to wait, and what of it shows to the others.

use super::{GUID, Stage, ask, drain, messages, sidr_request};
use crate::ib::{Config, Event, RequestError};
use crate::retry::Retry;
use crate::tests::{address, ms};
use trunkline_conn::time::SECOND;
use trunkline_wire::cm::{Answered, CommId, Message, RejReason, SidrStatus};

fn config(half_open: u32, per_peer: u32) -> Config {
    let mut config = Config::new(GUID);
    (config.limits.half_open, config.limits.half_open_per_peer) = (half_open, per_peer);
    config
}

/// A new request of host `host`.
fn request(stage: &mut Stage, host: u8) {
    stage.peer_address = address(host);
    stage.theirs = CommId(stage.theirs.0 + 1);
    stage.peer_qpn += 1;
    stage.deliver(&stage.req());
}

/// Messages and events of the last request.
fn outcome(stage: &mut Stage) -> (usize, usize, usize) {
    let (sent, events) = drain(&mut stage.manager);
    let said = messages(&sent);
    let count = |fits: fn(&Message) -> bool| said.iter().filter(|mad| fits(&mad.message)).count();
    let asked = events
        .iter()
        .filter(|event| matches!(event, Event::Incoming { .. }));
    (
        asked.count(),
        count(|message| matches!(message, Message::Mra(mra) if mra.received == Answered::Req)),
        count(|message| matches!(message, Message::Rej(_))),
    )
}

#[test]
fn a_storm_of_one_host_leaves_room_for_all_others() {
    let mut stage = Stage::with(config(64, 64));
    for _ in 0..1_000 {
        request(&mut stage, 2);
    }
    assert_eq!(
        outcome(&mut stage),
        (32, 968, 0),
        "the others are told to wait"
    );
    assert_eq!(stage.manager.counters().busy, 968);
    for host in 3..8 {
        request(&mut stage, host);
        assert_eq!(outcome(&mut stage), (1, 0, 0), "host {host}");
    }
    for _ in 0..1_000 {
        request(&mut stage, 9);
    }
    let (second, waiting, _) = outcome(&mut stage);
    assert_eq!(waiting, 1_000 - second);
    assert!(
        (12..=14).contains(&second),
        "{second}: half of what was left"
    );
    assert!(stage.manager.load().half_open < 64);
}

#[test]
fn over_its_own_limit_a_host_is_refused() {
    let mut stage = Stage::with(config(64, 8));
    for _ in 0..10 {
        request(&mut stage, 2);
    }
    let (sent, events) = drain(&mut stage.manager);
    assert_eq!((events.len(), sent.len()), (8, 2));
    for mad in messages(&sent) {
        let Message::Rej(rej) = mad.message else {
            panic!("a refusal, not {mad:?}")
        };
        assert_eq!((rej.reason, rej.local), (RejReason::NoResources, CommId(0)));
    }
    assert_eq!(stage.manager.counters().unfair, 2);
}

#[test]
fn a_storm_of_many_hosts_is_told_to_wait_and_finds_room_later() {
    let mut stage = Stage::with(config(16, 16));
    for host in 2..=250 {
        request(&mut stage, host);
    }
    let (taken, waiting, refused) = outcome(&mut stage);
    assert_eq!((taken, waiting, refused), (16, 249 - 16, 0));
    assert_eq!(stage.manager.counters().busy, 249 - 16);
    // Nobody decides: they are told so, and the next have their turn.
    stage.now = ms(100_000);
    stage.manager.handle_timeout(stage.now);
    assert_eq!(outcome(&mut stage), (0, 0, 16));
    request(&mut stage, 251);
    assert_eq!(outcome(&mut stage), (1, 0, 0));
}

#[test]
fn a_storm_does_not_touch_what_stands() {
    let mut stage = Stage::with(config(16, 16));
    stage.answering();
    let id = stage.id();
    let (ours, theirs, transaction) = (stage.ours, stage.theirs, stage.transaction);
    for host in 2..=250 {
        request(&mut stage, host);
    }
    outcome(&mut stage);
    stage.peer_address = address(2);
    (stage.ours, stage.theirs, stage.transaction) = (ours, theirs, transaction);
    assert_eq!((stage.id(), stage.state()), (id, "Established"));
    stage.deliver(&stage.dreq());
    let (sent, events) = drain(&mut stage.manager);
    assert_eq!(messages(&sent)[0].message.name(), "DREP");
    assert!(matches!(events[..], [Event::Closed { id: closed, .. }] if closed == id));
}

#[test]
fn accepted_strangers_that_never_confirm_fill_their_bounds_and_drain_away() {
    let mut stage = Stage::with(config(256, 64));
    stage.answering();
    for serial in 0..20_000_u32 {
        stage.peer_guid = u64::from(serial);
        request(&mut stage, 3 + (serial % 250) as u8);
        let (_, events) = drain(&mut stage.manager);
        for event in events {
            let accepted = super::answer(0x1000 + serial);
            let accepted = stage.manager.accept(stage.now, event.id(), &accepted);
            accepted.expect("it waits for that");
        }
        assert!(stage.manager.load().half_open <= 256);
    }
    // The last place is for an address that has none.
    assert_eq!(stage.manager.load().half_open, 255);
    request(&mut stage, 254);
    assert_eq!(stage.manager.load().half_open, 256);
    drain(&mut stage.manager);
    while stage.manager.load().connections() > 1 {
        stage.now = stage.manager.poll_timeout().expect("they have deadlines");
        stage.manager.handle_timeout(stage.now);
        drain(&mut stage.manager);
    }
    let load = stage.manager.load();
    assert_eq!((load.established, load.peers), (1, 0));
}

#[test]
fn a_storm_of_questions_is_answered_that_there_is_no_qp() {
    let mut stage = Stage::with(config(8, 8));
    for serial in 0..20 {
        stage.theirs = CommId(0x1000 + serial);
        stage.deliver(&stage.sidr_req());
    }
    let (sent, events) = drain(&mut stage.manager);
    assert_eq!((events.len(), sent.len()), (4, 16));
    assert!(messages(&sent).iter().all(|mad| {
        matches!(&mad.message, Message::SidrRep(rep) if rep.status == SidrStatus::NoQp)
    }));
}

#[test]
fn what_waits_to_be_sent_or_told_is_bounded_too() {
    let mut config = config(64, 64);
    (config.limits.connections, config.limits.transmit) = (128, 100);
    let mut stage = Stage::with(config);
    // Each comes and goes at once, and nobody listens to the manager.
    for _ in 0..10_000 {
        request(&mut stage, 2);
        stage.deliver(&stage.gave_up());
    }
    let (sent, events) = drain(&mut stage.manager);
    assert!(events.len() <= 2 * 128, "{} events", events.len());
    assert_eq!(sent.len(), 100);
    let counters = stage.manager.counters();
    assert_eq!(counters.transmit_full + 100, counters.busy);
    assert_eq!(stage.manager.load().connections(), 0);
}

#[test]
fn own_asks_are_bounded_and_say_which_limit() {
    let mut config = Config::new(GUID);
    (config.limits.opening, config.limits.connections) = (3, 5);
    let mut stage = Stage::with(config);
    let route = stage.route();
    for qpn in 10..13 {
        let asked = stage
            .manager
            .connect(stage.now, route, &ask(qpn), Retry::PLAIN);
        assert!(asked.is_ok());
    }
    let what = "connections being opened";
    let busy = Err(RequestError::Busy { what, limit: 3 });
    let asked = stage
        .manager
        .connect(stage.now, route, &ask(13), Retry::PLAIN);
    assert_eq!(asked, busy);
    let asked = stage
        .manager
        .ask(stage.now, route, &sidr_request(), Retry::PLAIN);
    assert_eq!(asked, busy);
    drain(&mut stage.manager);
    for host in [2, 3] {
        request(&mut stage, host);
    }
    assert_eq!(outcome(&mut stage).0, 2);
    request(&mut stage, 4);
    assert_eq!(
        outcome(&mut stage),
        (0, 1, 0),
        "all connections together are five"
    );
}

#[test]
fn an_address_that_proved_nothing_gets_at_most_three_datagrams_for_each_of_its_own() {
    for (asks, most) in [(1, 3), (2, 6)] {
        let mut stage = Stage::new();
        stage.rep_sent();
        let mut sent = 1;
        for _ in 1..asks {
            stage.deliver(&stage.req());
        }
        for _ in 0..1_000 {
            sent += drain(&mut stage.manager).0.len();
            stage.now = stage.now + SECOND;
            stage.manager.handle_timeout(stage.now);
        }
        assert_eq!(*stage.manager.load(), Default::default(), "it is given up");
        assert!((asks + 1..=most).contains(&sent), "{asks} in, {sent} out");
        assert!(stage.manager.counters().unproved > 0);
    }
    // Nobody decides: an MRA, and a REJ.
    let mut stage = Stage::new();
    stage.asked();
    stage.now = stage.now + 1_000 * SECOND;
    stage.manager.handle_timeout(stage.now);
    assert!(drain(&mut stage.manager).0.len() <= 3);
}

#[test]
fn who_asks_for_patience_with_our_answer_has_seen_it_and_proved_its_address() {
    let mut stage = Stage::new();
    stage.rep_sent();
    stage.deliver(&stage.mra(Answered::Rep));
    let mut sent = 1;
    while let Some(due) = stage.manager.poll_timeout() {
        stage.now = due;
        stage.manager.handle_timeout(stage.now);
        sent += drain(&mut stage.manager).0.len();
    }
    assert!(sent > 3, "it is asked as often as a known peer: {sent}");
    assert_eq!(stage.manager.counters().unproved, 0);
}

#[test]
fn a_host_that_takes_all_it_can_get_leaves_half_of_the_connections() {
    let mut config = Config::new(GUID);
    config.limits.connections = 64;
    let mut stage = Stage::with(config);
    for serial in 0..32 {
        stage.theirs = CommId(serial + 1);
        (stage.our_qpn, stage.peer_qpn) = (0x100 + serial, 0x200 + serial);
        stage.answering();
    }
    request(&mut stage, 2);
    assert_eq!(outcome(&mut stage), (0, 0, 1), "it is refused");
    assert_eq!(stage.manager.counters().over_share, 1);
    request(&mut stage, 3);
    assert_eq!(outcome(&mut stage), (1, 0, 0));
}
