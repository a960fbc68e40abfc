//! Both ask at once.

use super::air::Weather;
use super::nodes::Network;
use super::nodes::agree;
use super::{Rng, Stage, ask, drain, messages, ms, offer};
use crate::binds::{Bind, Binds, Bound, Bounds};
use crate::event::{CloseReason, Event, OpenError, Refused, Role};
use crate::hello::{Hello, HelloReply, Purpose};
use crate::identity::Identity;
use crate::refusal::RefusalCode;
use crate::retry::Retry;
use crate::state::RepSent;
use std::vec::Vec;
use trunkline_conn::time::MILLISECOND;
use trunkline_wire::Qpn;
use trunkline_wire::cm::{CmMad, CommId, Message};

/// Lower and higher than that of the manager on the stage.
const LOWER: Identity = Identity { guid: 1, epoch: 8 };

#[test]
fn exactly_one_connection_comes_of_opens_that_cross() {
    let mut none = 0;
    for seed in 0..4_000 {
        let mut random = Rng::new(seed);
        let weather = Weather {
            loss_per_mille: [0, 200, 300, 400][random.below(4) as usize],
            duplicate_per_mille: random.below(300),
            delay_ns: MILLISECOND * (1 + random.below(30)),
        };
        let mut network = Network::new(seed, 2, weather);
        for (from, to) in [(0, 1), (1, 0)] {
            // The other's ask may be here already, and accepted.
            let _ = network.open(from, to, Purpose::Pool(0), Retry::KNOWN);
            let pause = random.below(20) * MILLISECOND;
            network.run(network.now + pause);
        }
        network.run(ms(3_000));
        network.air.weather = Weather::CLEAR;
        for _ in 0..4 {
            network.exchange_packets();
            network.run(network.now + 3_000 * MILLISECOND);
        }
        let standing = [0, 1].map(|node: usize| network.parties[node].standing.len());
        assert!(
            standing == [1, 1] || standing == [0, 0],
            "seed {seed}: {standing:?}"
        );
        if standing == [0, 0] {
            assert!(weather.loss_per_mille > 0, "seed {seed} lost nothing");
            none += 1;
            continue;
        }
        let terms = network.parties[0]
            .standing
            .values()
            .next()
            .expect("it has one");
        assert!(network.mirrored(terms, 1), "seed {seed}");
    }
    assert!(none < 200, "{none} of 4,000 came to nothing");
}

#[test]
fn when_both_ask_before_anything_arrives_the_lower_guid_is_the_opener() {
    for seed in 0..200 {
        let mut network = Network::new(seed, 2, Weather::CLEAR);
        let a = network
            .open(0, 1, Purpose::Pool(0), Retry::UNKNOWN)
            .expect("it is free");
        let b = network
            .open(1, 0, Purpose::Pool(0), Retry::UNKNOWN)
            .expect("it is free");
        network.run(ms(1_000));
        let roles = [(0, a), (1, b)].map(|(node, id): (usize, _)| {
            // The handshake that was asked for is the one that stands, at both ends.
            network.parties[node].standing[&id.0.0].role
        });
        let lower = usize::from(network.parties[1].identity < network.parties[0].identity);
        let mut expected = [Role::Acceptor; 2];
        expected[lower] = Role::Opener;
        assert_eq!(roles, expected, "seed {seed}");
    }
}

#[test]
fn asks_for_different_places_and_private_ones_do_not_cross() {
    for (first, second) in [
        (Purpose::Pool(0), Purpose::Pool(1)),
        (Purpose::Pool(0), Purpose::Private),
        (Purpose::Private, Purpose::Private),
    ] {
        let mut network = Network::new(1, 2, Weather::CLEAR);
        network
            .open(0, 1, first, Retry::UNKNOWN)
            .expect("it is free");
        network
            .open(1, 0, second, Retry::UNKNOWN)
            .expect("it is free");
        network.run(ms(1_000));
        assert_eq!(network.parties[0].standing.len(), 2, "{first:?} {second:?}");
        assert_eq!(network.parties[1].standing.len(), 2, "{first:?} {second:?}");
    }
}

#[test]
fn a_losing_ask_is_answered_with_the_winning_one() {
    let mut stage = Stage::new();
    stage.open();
    let transaction = stage.transaction;
    stage.transaction = 4_711;
    stage.deliver(&stage.req());
    let (sent, events) = drain(&mut stage.manager);
    assert!(events.is_empty());
    assert!(matches!(
        messages(&sent)[..],
        [CmMad { transaction_id, message: Message::Req(_) }] if transaction_id == transaction
    ));
    assert_eq!(
        (stage.state(), stage.manager.counters().crossed),
        ("ReqSent", 1)
    );
}

#[test]
fn a_winning_ask_absorbs_ours_under_its_number_and_with_its_offer() {
    let mut stage = Stage::new();
    stage.peer = LOWER;
    stage.open();
    stage.transaction = 4_711;
    stage.deliver(&stage.req());
    let (sent, events) = drain(&mut stage.manager);
    assert!(events.is_empty());
    let [
        CmMad {
            transaction_id: 4_711,
            message: Message::Rep(rep),
        },
    ] = &messages(&sent)[..]
    else {
        panic!("{sent:?}")
    };
    assert_eq!((rep.local, rep.remote), (stage.ours, stage.theirs));
    assert_eq!(stage.state(), "RepSent");
    stage.deliver(&stage.rtu());
    let (_, events) = drain(&mut stage.manager);
    let [Event::Established(terms)] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((terms.id, terms.role), (stage.id(), Role::Acceptor));
    assert_eq!(terms.local_id, rep.qpn);
}

#[test]
fn a_forged_winning_ask_does_not_end_ours() {
    let mut stage = Stage::new();
    stage.peer = LOWER;
    stage.open();
    for round in 0..=RepSent::RESUMES {
        stage.theirs = CommId(100 + u32::from(round));
        stage.transaction = 4_711;
        stage.deliver(&stage.req());
        assert_eq!(stage.state(), "RepSent");
        drain(&mut stage.manager);
        // The real peer knows nothing of it.
        stage.deliver(&stage.rej(RefusalCode::Cancelled));
        let (sent, events) = drain(&mut stage.manager);
        if round < RepSent::RESUMES {
            assert!(events.is_empty());
            assert!(matches!(
                messages(&sent)[..],
                [CmMad {
                    message: Message::Req(_),
                    ..
                }]
            ));
            assert_eq!(stage.state(), "ReqSent");
        } else {
            let reason = CloseReason::Abandoned(Refused::Trunkline(RefusalCode::Cancelled));
            let (id, route) = (stage.id(), stage.route());
            assert_eq!(events, [Event::Closed { id, route, reason }]);
        }
    }
}

#[test]
fn an_ask_that_begins_anew_after_another_had_absorbed_it_is_not_taken_for_a_repeated_one() {
    for forgotten in [false, true] {
        // The peer's ask was absorbed by ours; our confirmation was lost, the connection closed.
        let mut stage = Stage::new();
        let old = stage.established();
        if forgotten {
            let released = stage.manager.release(stage.now, old.id);
            released.expect("it stands");
            drain(&mut stage.manager);
        }
        stage.transaction = 4_711;
        stage.asked();
        assert_ne!(stage.id(), old.id);
        // This one, however, has been heard.
        stage.deliver(&stage.req());
        let (sent, events) = drain(&mut stage.manager);
        assert!(sent.is_empty() && events.is_empty());
        assert_eq!(stage.manager.counters().duplicate, 1);
    }
}

#[test]
fn opening_a_place_that_the_peer_is_asking_for_accepts_it() {
    let mut stage = Stage::new();
    stage.asked();
    let ask = ask(&mut stage.random, Purpose::Pool(0));
    let id = stage.manager.open(stage.now, stage.route(), ask);
    assert_eq!((id, stage.state()), (Ok(stage.id()), "RepSent"));
    // The question was answered by that.
    let late = offer(&mut stage.random);
    assert!(
        stage
            .manager
            .accept(stage.now, stage.id(), late, Bounds::default())
            .is_err()
    );
    stage.deliver(&stage.rtu());
    let (_, events) = drain(&mut stage.manager);
    let [Event::Established(terms)] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(terms.local_token, ask.offer.token);
}

#[test]
fn a_place_is_opened_once() {
    for enter in [Stage::open, Stage::rep_sent, |s: &mut Stage| {
        s.established();
    }] {
        let mut stage = Stage::new();
        enter(&mut stage);
        let again = ask(&mut stage.random, Purpose::Pool(0));
        let refused = stage.manager.open(stage.now, stage.route(), again);
        assert_eq!(refused, Err(OpenError::Exists(stage.id())));
        for purpose in [Purpose::Pool(1), Purpose::Private, Purpose::Private] {
            let other = ask(&mut stage.random, purpose);
            assert!(stage.manager.open(stage.now, stage.route(), other).is_ok());
        }
    }
}

#[test]
fn a_peer_that_lost_its_end_replaces_the_connection_of_a_place() {
    let mut stage = Stage::new();
    let old = stage.established();
    stage.theirs = CommId(0x1010);
    stage.transaction = 4_711;
    let new = stage.established_again();
    let closed = |event: &Event| match event {
        Event::Closed { id, reason, .. } => Some((*id, *reason)),
        _ => None,
    };
    let ends: Vec<_> = new.iter().filter_map(closed).collect();
    assert_eq!(ends, [(old.id, CloseReason::Replaced)]);
    assert!(matches!(new.last(), Some(Event::Established(_))));
    assert_eq!(stage.manager.load().established, 1);
}

impl Stage {
    /// The peer asks (again), is accepted and confirms; the events of the confirmation.
    pub(super) fn established_again(&mut self) -> Vec<Event> {
        self.rep_sent();
        self.deliver(&self.rtu());
        drain(&mut self.manager).1
    }
}

#[test]
fn binds_ride_in_the_ask_and_consent_in_the_answer() {
    let binds = [1, 2, 3, 4].map(|qp| Bind {
        src_qp: Qpn::from_wire(qp),
        dest_qp: Qpn::from_wire(0x0010_0000 + qp),
        generation: 7,
    });
    let mut network = Network::new(1, 2, Weather::CLEAR);
    let mut ask = ask(&mut Rng::new(1), Purpose::Pool(0));
    ask.binds = binds.into_iter().collect();
    let opened = network.parties[0]
        .manager
        .open(ms(0), Network::route(0, 1), ask);
    opened.expect("it is free");
    network.settle(0);
    network.run(ms(100));
    let [opener, acceptor] = [0, 1].map(|node: usize| {
        *network.parties[node]
            .standing
            .values()
            .next()
            .expect("it stands")
    });
    assert_eq!(acceptor.binds.as_slice(), &binds[..Binds::MOST]);
    assert_eq!(opener.binds, Binds::default());
    let consent: Bounds = binds.iter().map(agree).collect();
    // Who accepts hears again what it has agreed to.
    assert_eq!([opener.bounds, acceptor.bounds], [consent; 2]);
}

/// BINDs of QPs 1 and 2 of a node.
fn two_binds() -> [Bind; 2] {
    [1, 2].map(|qp| Bind {
        src_qp: Qpn::from_wire(qp),
        dest_qp: Qpn::from_wire(0x0010_0000 + qp),
        ..Bind::default()
    })
}

/// What is sent when time has passed without an answer.
fn said_again(stage: &mut Stage) -> Message {
    stage.now = stage.manager.poll_timeout().expect("it waits");
    stage.manager.handle_timeout(stage.now);
    let (sent, _) = drain(&mut stage.manager);
    let mut said = messages(&sent);
    assert_eq!(said.len(), 1);
    said.remove(0).message
}

/// A manager that agreed to two BINDs, one of whose QPs went after that, and what it agreed to for
/// the other one.
fn consented_for_one_of_two() -> (Stage, Bound) {
    let consent: Bounds = two_binds().iter().map(agree).collect();
    let [gone, left] = [0, 1].map(|at: usize| consent.as_slice()[at]);
    let mut stage = Stage::new();
    stage.asked();
    let offer = offer(&mut Rng::new(2));
    let accepted = stage.manager.accept(stage.now, stage.id(), offer, consent);
    accepted.expect("it waits for that");
    drain(&mut stage.manager);
    stage.manager.withdraw(stage.id(), gone.src_qp);
    (stage, left)
}

#[test]
fn an_ask_that_is_said_again_speaks_no_more_for_qps_that_are_gone() {
    let [gone, left] = two_binds();
    let mut stage = Stage::new();
    stage.open_with([gone, left].into_iter().collect());
    stage.manager.withdraw(stage.id(), gone.src_qp);
    let Message::Req(req) = said_again(&mut stage) else {
        panic!("it asks again")
    };
    let hello = Hello::parse(&req.private_data).expect("a hello");
    assert_eq!(hello.binds.as_slice(), [left]);
}

#[test]
fn an_answer_that_is_said_again_consents_no_more_for_qps_that_are_gone() {
    let (mut stage, left) = consented_for_one_of_two();
    let Message::Rep(rep) = said_again(&mut stage) else {
        panic!("it answers again")
    };
    let reply = HelloReply::parse(&rep.private_data).expect("a hello");
    assert_eq!(reply.bounds.as_slice(), [left]);
}

#[test]
fn an_ask_that_another_absorbs_consents_for_no_qps_that_are_gone() {
    let [gone, left] = two_binds();
    let mut stage = Stage::new();
    stage.peer = LOWER;
    stage.open_with([gone, left].into_iter().collect());
    stage.manager.withdraw(stage.id(), gone.src_qp);
    let theirs = [gone, left].map(|bind| Bind {
        src_qp: bind.dest_qp,
        dest_qp: bind.src_qp,
        ..bind
    });
    let req = stage.req_with(theirs.into_iter().collect());
    stage.deliver(&req);
    let (sent, _) = drain(&mut stage.manager);
    let [
        CmMad {
            message: Message::Rep(rep),
            ..
        },
    ] = &messages(&sent)[..]
    else {
        panic!("{sent:?}")
    };
    let reply = HelloReply::parse(&rep.private_data).expect("a hello");
    let agreed = reply.bounds.as_slice().iter().map(|bound| bound.src_qp);
    assert_eq!(agreed.collect::<Vec<_>>(), [left.src_qp]);
}

#[test]
fn who_accepted_hears_of_no_consent_for_qps_that_went_before_the_peer_confirmed() {
    let (mut stage, left) = consented_for_one_of_two();
    stage.deliver(&stage.rtu());
    let (_, events) = drain(&mut stage.manager);
    let Some(Event::Established(terms)) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(terms.bounds.as_slice(), [left]);
}

#[test]
fn an_ask_that_begins_anew_after_another_had_absorbed_it_speaks_for_no_qps_that_are_gone() {
    let [gone, left] = two_binds();
    let mut stage = Stage::new();
    stage.peer = LOWER;
    stage.open_with([gone, left].into_iter().collect());
    let req = stage.req_with(Binds::default());
    stage.deliver(&req);
    drain(&mut stage.manager);
    stage.manager.withdraw(stage.id(), gone.src_qp);
    // The peer never confirms.
    let hello = loop {
        stage.now = stage.manager.poll_timeout().expect("it waits");
        stage.manager.handle_timeout(stage.now);
        let (sent, _) = drain(&mut stage.manager);
        let asks = messages(&sent)
            .into_iter()
            .find_map(|mad| match mad.message {
                Message::Req(req) => Some(req),
                _ => None,
            });
        if let Some(req) = asks {
            break Hello::parse(&req.private_data).expect("a hello");
        }
    };
    assert_eq!(hello.binds.as_slice(), [left]);
}
