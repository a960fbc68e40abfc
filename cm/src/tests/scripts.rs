//! Single handshakes, step by step.

use super::matrix::Enter;
use super::{Stage, US, drain, messages, ms, offer};
use crate::binds::Bounds;
use crate::event::{CloseReason, Event, Refused, Role};
use crate::hello::HelloError;
use crate::message;
use crate::refusal::{Refusal, RefusalCode};
use crate::{Config, Purpose, TRUNKLINE_SERVICE};
use std::vec::Vec;
use trunkline_conn::time::{Instant, MILLISECOND};
use trunkline_wire::cm::{
    Answered, CmMad, CommId, Lap, Message, Mra, PathRecord, PrivateData, Rej, RejReason, Req,
};
use trunkline_wire::{Gid, ServiceId};

/// Lets time pass until the handshake has an event; the times at which something was sent.
fn until_event(stage: &mut Stage) -> (Vec<Instant>, Vec<Event>) {
    let mut times = Vec::new();
    loop {
        stage.now = stage.manager.poll_timeout().expect("something is due");
        stage.manager.handle_timeout(stage.now);
        let (sent, events) = drain(&mut stage.manager);
        times.extend(sent.iter().map(|_| stage.now));
        if !events.is_empty() {
            return (times, events);
        }
    }
}

#[test]
fn a_silent_peer_is_asked_three_times_in_about_200_ms() {
    let mut stage = Stage::new();
    let start = stage.now;
    stage.open();
    let (again, events) = until_event(&mut stage);
    assert_eq!(again.len(), 2, "and the first");
    let (id, route) = (stage.id(), stage.route());
    assert_eq!(events, [Event::Silent { id, route }]);
    let total = stage.now.since(start);
    assert!(
        (175 * MILLISECOND..=225 * MILLISECOND).contains(&total),
        "{total} ns"
    );
    assert_eq!(*stage.manager.load(), Default::default());
}

#[test]
fn a_refused_service_means_an_ordinary_host() {
    let mut stage = Stage::new();
    stage.open();
    let ids = crate::table::Ids {
        local: CommId(0),
        remote: stage.ours,
    };
    let rej = message::plain_rej(ids, Answered::Req, RejReason::InvalidServiceId);
    stage.deliver(&message::mad(stage.transaction, rej));
    let (id, route) = (stage.id(), stage.route());
    assert_eq!(
        drain(&mut stage.manager).1,
        [Event::NotTrunkline { id, route }]
    );
}

#[test]
fn other_refusals_are_told_in_the_words_of_who_refuses() {
    for code in RefusalCode::ALL
        .iter()
        .copied()
        .filter(|&c| c != RefusalCode::DuplicateGuid)
    {
        let mut stage = Stage::new();
        stage.open();
        stage.deliver(&stage.rej(code));
        let (id, route, reason) = (stage.id(), stage.route(), Refused::Trunkline(code));
        assert_eq!(
            drain(&mut stage.manager).1,
            [Event::Refused { id, route, reason }]
        );
    }
    for reason in [
        RejReason::NoQp,
        RejReason::ConsumerDefined,
        RejReason::Reserved(999),
    ] {
        let mut stage = Stage::new();
        stage.open();
        let rej = Rej::new(stage.theirs, stage.ours, Answered::Req, reason);
        stage.deliver(&message::mad(stage.transaction, rej));
        let (id, route, reason) = (stage.id(), stage.route(), Refused::Ib(reason));
        assert_eq!(
            drain(&mut stage.manager).1,
            [Event::Refused { id, route, reason }]
        );
    }
}

#[test]
fn both_ends_hear_the_same_of_a_connection() {
    let mut stage = Stage::new();
    let terms = stage.established();
    assert_eq!((terms.role, terms.identity), (Role::Opener, stage.peer));
    assert_eq!(terms.remote_id, stage.peer_offer.connection);
    assert_eq!(terms.remote_token, stage.peer_offer.token);
    assert_eq!(terms.first_tx, stage.peer_offer.first_packet);
    let mut stage = Stage::new();
    stage.peer_offer.packet_size = 1_500;
    stage.peer_offer.window = 1;
    let terms = stage.established_as_acceptor();
    assert_eq!((terms.packet_size, terms.window), (1_500, 1));
    assert_eq!(terms.traffic_class, 0x28);
}

#[test]
fn an_accepted_peer_that_does_not_confirm_is_given_up() {
    let mut stage = Stage::new();
    stage.rep_sent();
    let (times, events) = until_event(&mut stage);
    assert_eq!(
        times.len(),
        2,
        "nothing proves that it has asked: two more REPs"
    );
    let (id, route, reason) = (stage.id(), stage.route(), CloseReason::Unconfirmed);
    assert_eq!(events, [Event::Closed { id, route, reason }]);
}

#[test]
fn nobody_waits_for_an_owner_that_does_not_decide() {
    let mut stage = Stage::new();
    stage.asked();
    let (_, events) = until_event(&mut stage);
    let (id, route, reason) = (stage.id(), stage.route(), CloseReason::Undecided);
    assert_eq!(events, [Event::Closed { id, route, reason }]);
    // The refusal invites another ask, which finds no trace of this one.
    stage.transaction += 1;
    stage.asked();
}

#[test]
fn a_silent_peer_does_not_keep_a_connection_from_closing() {
    let mut stage = Stage::new();
    stage.dreq_sent();
    let (times, events) = until_event(&mut stage);
    assert_eq!(times.len(), 5, "and the first");
    let (id, route, reason) = (stage.id(), stage.route(), CloseReason::Local);
    assert_eq!(events, [Event::Closed { id, route, reason }]);
    assert_eq!(stage.state(), "TimeWait");
    stage.now = stage.manager.poll_timeout().expect("time wait ends");
    stage.manager.handle_timeout(stage.now);
    assert_eq!(*stage.manager.load(), Default::default());
    assert_eq!(stage.manager.poll_timeout(), None);
}

#[test]
fn a_changed_mind_reaches_who_does_not_know_our_number() {
    for enter in [Stage::asked, Stage::rep_sent] {
        let mut stage = Stage::new();
        enter(&mut stage);
        stage.ours = CommId(0);
        stage.deliver(&stage.rej(RefusalCode::Cancelled));
        let (_, events) = drain(&mut stage.manager);
        assert!(matches!(events[..], [Event::Closed { .. }]), "{events:?}");
        assert_eq!(*stage.manager.load(), Default::default());
    }
}

#[test]
fn a_first_packet_confirms_as_an_rtu_does() {
    let mut stage = Stage::new();
    stage.rep_sent();
    stage
        .manager
        .confirm(stage.now, stage.id())
        .expect("it waits for that");
    let (_, events) = drain(&mut stage.manager);
    assert!(matches!(events[..], [Event::Established(_)]));
    stage.deliver(&stage.rtu());
    assert!(drain(&mut stage.manager).1.is_empty());
}

#[test]
fn asks_for_other_services_are_refused_as_by_every_host() {
    let mut stage = Stage::new();
    let mut ask = request(&stage);
    for service in [
        ServiceId::tcp(7_471),
        ServiceId(0),
        ServiceId(TRUNKLINE_SERVICE.0 ^ 1),
    ] {
        ask.service_id = service;
        stage.deliver(&message::mad(stage.transaction, ask));
        let (sent, events) = drain(&mut stage.manager);
        let [
            CmMad {
                message: Message::Rej(rej),
                ..
            },
        ] = &messages(&sent)[..]
        else {
            panic!("{sent:?}")
        };
        assert_eq!(
            *rej,
            Rej::new(
                CommId(0),
                stage.theirs,
                Answered::Req,
                RejReason::InvalidServiceId
            )
        );
        assert!(events.is_empty());
    }
}

fn request(stage: &Stage) -> Req {
    match CmMad::parse(&stage.req()) {
        Ok(CmMad {
            message: Message::Req(req),
            ..
        }) => req,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_ask_whose_inside_is_not_its_outside_is_dropped_or_refused() {
    let changes: [fn(&mut Req); 2] = [
        |req| req.primary.local_gid = Gid([9; 16]),
        |req| req.primary.remote_gid = Gid([9; 16]),
    ];
    for change in changes {
        let mut stage = Stage::new();
        let mut ask = request(&stage);
        change(&mut ask);
        stage.deliver(&message::mad(1, ask));
        let (sent, events) = drain(&mut stage.manager);
        assert!(sent.is_empty() && events.is_empty());
        assert_eq!(stage.manager.counters().address_mismatch, 1);
    }
    type Change = fn(&mut Req);
    let changes: [(Change, RefusalCode); 6] = [
        (|req| req.ca_guid ^= 1, RefusalCode::Malformed),
        (
            |req| req.starting_psn = req.starting_psn.advance(1),
            RefusalCode::Malformed,
        ),
        (|req| req.local = CommId(0), RefusalCode::Malformed),
        (
            |req| req.service = trunkline_wire::cm::TransportService::Uc,
            RefusalCode::Malformed,
        ),
        (
            |req| req.private_data = PrivateData::default(),
            RefusalCode::Malformed,
        ),
        (|req| req.private_data.0[4] = 2, RefusalCode::Version),
    ];
    for (change, code) in changes {
        let mut stage = Stage::new();
        let mut ask = request(&stage);
        change(&mut ask);
        stage.deliver(&message::mad(1, ask));
        let (sent, events) = drain(&mut stage.manager);
        let [
            CmMad {
                message: Message::Rej(rej),
                ..
            },
        ] = &messages(&sent)[..]
        else {
            panic!("{sent:?}")
        };
        let refusal = Refusal::parse(&rej.private_data).expect("a Trunkline node refuses");
        assert_eq!((refusal.code, rej.reason), (code, RejReason::Unsupported));
        assert!(events.is_empty());
        assert_eq!(stage.manager.counters().bad_hello, 1);
    }
}

#[test]
fn an_answer_that_makes_no_sense_ends_the_ask_and_is_refused() {
    let mut stage = Stage::new();
    stage.open();
    let Ok(CmMad {
        message: Message::Rep(mut rep),
        ..
    }) = CmMad::parse(&stage.rep())
    else {
        panic!("a REP is a REP")
    };
    rep.private_data = PrivateData::default();
    stage.deliver(&message::mad(stage.transaction, rep));
    let (sent, events) = drain(&mut stage.manager);
    let (id, route, reason) = (
        stage.id(),
        stage.route(),
        Refused::NoSense(HelloError::Magic),
    );
    assert_eq!(events, [Event::Refused { id, route, reason }]);
    let [
        CmMad {
            message: Message::Rej(rej),
            ..
        },
    ] = &messages(&sent)[..]
    else {
        panic!("{sent:?}")
    };
    assert_eq!((rej.local, rej.remote), (stage.ours, stage.theirs));
}

#[test]
fn a_rep_and_a_dreq_wait_as_long_as_the_configuration_says_for_each() {
    let mut config = Config::new(US);
    config.reply.total_ns = 1_000 * MILLISECOND;
    config.close.total_ns = 4_000 * MILLISECOND;
    let cases: [(Enter<Stage>, u64); 2] = [
        (|s| s.rep_sent(), 1_000 * MILLISECOND),
        (|s| s.dreq_sent(), 4_000 * MILLISECOND),
    ];
    for (enter, total) in cases {
        let mut stage = Stage::with(config);
        enter(&mut stage);
        let start = stage.now;
        until_event(&mut stage);
        let waited = stage.now.since(start);
        let jitter = total / 8;
        assert!(waited.abs_diff(total) <= jitter, "{waited} ns, not {total}");
    }
}

#[test]
fn a_peer_that_asks_for_patience_gets_two_seconds_three_times() {
    let mut stage = Stage::new();
    stage.open();
    let mra = Mra {
        local: stage.theirs,
        remote: stage.ours,
        received: Answered::Req,
        service_timeout: 31,
        private_data: PrivateData::default(),
    };
    let start = stage.now;
    for (at, due) in [(0, 2_000), (1_000, 3_000), (2_000, 4_000), (3_000, 4_000)] {
        stage.now = start + at * MILLISECOND;
        stage.deliver(&message::mad(stage.transaction, mra));
        let expected = start + due * MILLISECOND;
        assert_eq!(stage.manager.poll_timeout(), Some(expected), "{at} ms");
    }
    assert_eq!(stage.manager.counters().mismatch, 0);
}

#[test]
fn messages_that_nobody_handles_are_counted() {
    let mut stage = Stage::new();
    let lap = Lap {
        local: CommId(1),
        remote: CommId(2),
        remote_qpn: trunkline_wire::Qpn::from_wire(3),
        remote_response_timeout: 1,
        alternate: PathRecord::default(),
        private_data: PrivateData([0; 168]),
    };
    stage.deliver(&message::mad(1, lap));
    stage.deliver(&[0; 256]);
    let counters = stage.manager.counters();
    assert_eq!(
        (counters.received, counters.unsupported, counters.malformed),
        (2, 1, 1)
    );
}

#[test]
fn a_released_connection_is_forgotten_in_silence() {
    let mut stage = Stage::new();
    stage.established();
    stage
        .manager
        .release(stage.now, stage.id())
        .expect("it stands");
    let (sent, events) = drain(&mut stage.manager);
    assert!(sent.is_empty());
    assert!(matches!(
        events[..],
        [Event::Closed {
            reason: CloseReason::Local,
            ..
        }]
    ));
    stage.deliver(&stage.dreq());
    let (sent, events) = drain(&mut stage.manager);
    assert!(events.is_empty());
    assert!(matches!(
        messages(&sent)[..],
        [CmMad {
            message: Message::Drep(_),
            ..
        }]
    ));
}

#[test]
fn a_call_on_a_handshake_that_is_over_is_an_error_even_when_its_place_is_taken_anew() {
    let mut stage = Stage::new();
    stage.purpose = Purpose::Private;
    stage.open();
    let over = stage.id();
    stage
        .manager
        .close(stage.now, over)
        .expect("it is under way");
    drain(&mut stage.manager);
    stage.open();
    let offer = offer(&mut stage.random);
    assert!(stage.manager.close(stage.now, over).is_err());
    assert!(
        stage
            .manager
            .accept(stage.now, over, offer, Bounds::default())
            .is_err()
    );
    assert_eq!(stage.state(), "ReqSent");
}

#[test]
fn early_and_repeated_timeouts_are_harmless() {
    let mut stage = Stage::new();
    stage.open();
    let due = stage.manager.poll_timeout();
    for _ in 0..10 {
        stage.manager.handle_timeout(stage.now);
    }
    assert!(drain(&mut stage.manager).0.is_empty());
    assert_eq!(stage.manager.poll_timeout(), due);
    // Late by far: one try, not all at once.
    stage.now = ms(1_000_000);
    stage.manager.handle_timeout(stage.now);
    assert_eq!(drain(&mut stage.manager).0.len(), 1);
}
