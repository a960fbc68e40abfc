//! Confirmations that get lost: no connection stands at one end alone.

use super::hosts::Network;
use super::{Stage, drain, messages};
use crate::ib::{CloseReason, Config, Event};
use crate::tests::air::Weather;
use crate::tests::network::run_seeds;
use std::vec;
use std::vec::Vec;
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_wire::cm::{Answered, CmMad, CommId, Message, PrivateData, RejReason};

/// Weather in which three datagrams in ten are lost.
const LOSSY: Weather = Weather {
    loss_per_mille: 300,
    duplicate_per_mille: 0,
    delay_ns: 20 * MILLISECOND,
};

/// Longer than all tries of both ends take, with all the patience that programs ask for.
const ALL_TRIES: u64 = 1_000 * SECOND;

/// Lets time pass up to the next thing that is due; what the manager says then.
fn step(stage: &mut Stage) -> (Vec<CmMad>, Vec<Event>) {
    stage.now = stage.manager.poll_timeout().expect("something is to come");
    stage.manager.handle_timeout(stage.now);
    let (sent, events) = drain(&mut stage.manager);
    (messages(&sent), events)
}

/// Names of all messages, and all events, until nothing is to come any more.
fn to_the_end(stage: &mut Stage) -> (Vec<&'static str>, Vec<Event>) {
    let (mut said, mut heard) = (Vec::new(), Vec::new());
    while stage.manager.poll_timeout().is_some() {
        let (sent, events) = step(stage);
        said.extend(sent.iter().map(|mad| mad.message.name()));
        heard.extend(events);
    }
    (said, heard)
}

/// The peer asks for another connection, which the manager accepts and the peer does not confirm.
fn accept_another(stage: &mut Stage) {
    stage.theirs = CommId(stage.theirs.0 + 1);
    stage.transaction += 1;
    (stage.our_qpn, stage.peer_qpn) = (stage.our_qpn + 1, stage.peer_qpn + 1);
    stage.rep_sent();
}

/// How many connections stand, after a check that each of them stands at both ends.
fn count_standing(network: &Network) -> usize {
    for (index, host) in network.parties.iter().enumerate() {
        let load = host.manager.load();
        assert_eq!((load.opening, load.half_open, load.closing), (0, 0, 0));
        for (_, conn) in host.standing() {
            let mirror = network.mirror(index, conn);
            let stands = mirror.is_some_and(|(_, _, other)| other.stands);
            assert!(stands, "it stands at host {index} alone: {conn:?}");
        }
    }
    network.parties[0].standing().count()
}

#[test]
fn connections_of_two_hosts_stand_at_both_ends_or_at_none_in_spite_of_30_per_cent_loss() {
    let run = |seed| {
        let mut network = Network::new(seed, 2, LOSSY);
        for serial in 0..1_000 {
            network.connect(serial % 2, 1 - serial % 2);
            network.run(network.now + MILLISECOND);
        }
        network.run(network.now + ALL_TRIES);
        count_standing(&network)
    };
    for standing in run_seeds(5, run) {
        // One program in ten rejects, one in twenty never decides, at either end.
        assert!(standing >= 780, "{standing} of 1,000 connections stand");
    }
}

#[test]
fn the_first_connection_of_two_hosts_stands_at_both_ends_or_at_none() {
    let run = |seed| {
        let mut network = Network::new(seed, 2, LOSSY);
        network.connect(0, 1);
        network.run(network.now + ALL_TRIES);
        count_standing(&network)
    };
    let standing = run_seeds(3_000, run);
    let (all, runs) = (standing.iter().sum::<usize>(), standing.len());
    assert!(100 * all >= 78 * runs, "{all} of {runs} connections stand");
}

#[test]
fn a_confirmation_is_said_as_often_as_an_answer_until_the_peers_qp_was_heard() {
    let mut stage = Stage::new();
    stage.asking();
    let begun = stage.now;
    let (said, events) = to_the_end(&mut stage);
    let tries = Config::new(0).reply.tries;
    assert_eq!(said, vec!["RTU"; usize::from(tries) - 1]);
    assert!(stage.now.since(begun) >= 10 * SECOND);
    assert_eq!(events, [], "it stands all the time");
    assert_eq!(stage.state(), "Established");
    // An answer that comes late all the same is confirmed again.
    stage.deliver(&stage.rep());
    assert_eq!(
        messages(&drain(&mut stage.manager).0)[0].message.name(),
        "RTU"
    );

    let mut stage = Stage::new();
    stage.asking();
    assert_eq!(step(&mut stage).0[0].message.name(), "RTU");
    let heard = stage.manager.confirm(stage.id());
    heard.expect("its peer may not have heard the confirmation");
    assert_eq!(stage.manager.poll_timeout(), None);
    assert_eq!(drain(&mut stage.manager), (Vec::new(), Vec::new()));
}

#[test]
fn who_has_proved_its_address_gets_all_tries_and_is_told_the_end_until_it_agrees() {
    let mut stage = Stage::new();
    // What was asked for first is confirmed while the second already waits.
    stage.rep_sent();
    let (first, rtu) = (stage.id(), stage.rtu());
    accept_another(&mut stage);
    stage.deliver(&rtu);
    let (_, events) = drain(&mut stage.manager);
    assert!(matches!(events[..], [Event::Established { id, .. }] if id == first));

    let mut sent = Vec::new();
    while stage.state() == "RepSent" {
        sent.extend(step(&mut stage).0);
    }
    let names: Vec<_> = sent.iter().map(|mad| mad.message.name()).collect();
    let tries = usize::from(Config::new(0).reply.tries);
    assert_eq!(names[..tries - 1], vec!["REP"; tries - 1]);
    assert_eq!(names[tries - 1..], ["REJ", "DREQ"]);
    assert_eq!(stage.state(), "DreqSent");
    let id = stage.id();
    let over = |event: &Event| {
        let why = CloseReason::Unconfirmed;
        matches!(event, Event::Closed { id: ended, reason, .. } if (*ended, *reason) == (id, why))
    };
    let (said, events) = to_the_end(&mut stage);
    assert_eq!(said, ["DREQ"; 5], "nobody answers");
    assert!(over(&events[0]), "{events:?}");
    assert_eq!(stage.manager.load().established, 1);
    assert_eq!(stage.manager.counters().unproved, 0);

    // The peer has ended it and says so.
    accept_another(&mut stage);
    while stage.state() == "RepSent" {
        step(&mut stage);
    }
    stage.deliver(&stage.drep());
    assert_eq!(stage.state(), "TimeWait");
}

#[test]
fn the_last_of_three_datagrams_tells_an_address_that_proved_nothing_that_it_was_given_up() {
    let mut stage = Stage::new();
    stage.rep_sent();
    let (said, events) = to_the_end(&mut stage);
    assert_eq!(said, ["REP", "REJ"], "the first answer is not among them");
    let why = CloseReason::Unconfirmed;
    assert!(matches!(events[0], Event::Closed { reason, .. } if reason == why));
    // So it is where the program gives up.
    let mut stage = Stage::new();
    stage.rep_sent();
    for _ in 0..4 {
        step(&mut stage);
    }
    let closed = stage
        .manager
        .close(stage.now, stage.id(), PrivateData::default());
    closed.expect("it waits for a confirmation");
    let (sent, _) = drain(&mut stage.manager);
    assert_eq!(messages(&sent)[0].message.name(), "REJ");
    // And where it did not decide after it had asked for patience.
    let mut stage = Stage::new();
    stage.asked();
    assert_eq!(to_the_end(&mut stage).0, ["MRA", "REJ"]);
}

#[test]
fn an_address_is_proved_only_while_a_connection_to_it_stands() {
    let mut stage = Stage::new();
    stage.time_wait();
    to_the_end(&mut stage);
    accept_another(&mut stage);
    assert_eq!(to_the_end(&mut stage).0, ["REP", "REJ"]);
    // What ends without a confirmation is no proof for the next.
    stage.answering();
    let standing = (stage.id(), stage.ours, stage.theirs, stage.transaction);
    accept_another(&mut stage);
    while stage.state() == "RepSent" {
        step(&mut stage);
    }
    assert_eq!(stage.state(), "DreqSent");
    let second = (stage.our_qpn, stage.theirs, stage.peer_qpn);
    (stage.ours, stage.theirs, stage.transaction) = (standing.1, standing.2, standing.3);
    stage.deliver(&stage.rej());
    (stage.our_qpn, stage.theirs, stage.peer_qpn) = second;
    drain(&mut stage.manager);
    accept_another(&mut stage);
    let (mut said, _) = to_the_end(&mut stage);
    let all = said.len();
    said.retain(|name| *name != "DREQ");
    assert_eq!(said, ["REP", "REJ"]);
    assert!(all - said.len() < 3, "the second asked once, too");
}

#[test]
fn who_asks_for_patience_or_has_answered_an_ask_has_proved_its_address() {
    let is_told = |stage: &mut Stage| {
        let mut said = Vec::new();
        while stage.state() != "TimeWait" {
            said.extend(step(stage).0.iter().map(|mad| mad.message.name()));
        }
        said.contains(&"DREQ")
    };
    let mut stage = Stage::new();
    stage.rep_sent();
    stage.deliver(&stage.mra(Answered::Rep));
    assert!(is_told(&mut stage), "it reads what is sent to it");
    // Our program has not decided yet what it makes of the peer's answer to its own request.
    let mut stage = Stage::new();
    stage.replied();
    accept_another(&mut stage);
    assert!(is_told(&mut stage), "it answered what was sent to it");
}

#[test]
fn what_its_program_ends_unconfirmed_is_told_as_what_is_given_up() {
    for proved in [false, true] {
        let mut stage = Stage::new();
        match proved {
            false => stage.rep_sent(),
            true => {
                stage.answering();
                accept_another(&mut stage);
            }
        }
        let (now, id) = (stage.now, stage.id());
        let closed = stage.manager.close(now, id, PrivateData::default());
        closed.expect("it waits for a confirmation");
        let (said, _) = drain(&mut stage.manager);
        let said: Vec<_> = messages(&said)
            .iter()
            .map(|mad| mad.message.name())
            .collect();
        let (words, state): (&[_], _) = match proved {
            false => (&["REJ"], "TimeWait"),
            true => (&["REJ", "DREQ"], "DreqSent"),
        };
        assert_eq!((&said[..], stage.state()), (words, state));
    }
}

#[test]
fn who_confirms_what_is_over_is_told_so() {
    for forgotten in [false, true] {
        let mut stage = Stage::new();
        stage.rep_sent();
        while stage.state() != if forgotten { "-" } else { "TimeWait" } {
            step(&mut stage);
        }
        stage.deliver(&stage.rtu());
        let (sent, events) = drain(&mut stage.manager);
        let [
            CmMad {
                transaction_id,
                message: Message::Rej(rej),
                ..
            },
        ] = &messages(&sent)[..]
        else {
            panic!("a refusal, not {sent:?}")
        };
        assert_eq!(*transaction_id, stage.transaction);
        assert_eq!((rej.local, rej.remote), (stage.ours, stage.theirs));
        let said = (rej.refused, rej.reason);
        assert_eq!(said, (Answered::Other, RejReason::InvalidCommId));
        assert_eq!(events, []);
    }
}
