//! The steps alone.

use super::noting::{Noting, ROUTE, THEIRS, TRANSACTION};
use super::*;
use crate::quote::REFUSED_FOR_NS;
use crate::tests::{address, ms, path};
use std::format;
use std::string::String;
use std::vec::Vec;

/// The messages of the steps from `local` to `remote`.
fn messages(local: CommId, remote: CommId) -> [Message; 6] {
    let rep = Rep {
        local,
        remote,
        ..Rep::default()
    };
    let rtu = Rtu {
        local,
        remote,
        ..Rtu::default()
    };
    let mra = Mra {
        local,
        remote,
        received: Answered::Req,
        service_timeout: 12,
        private_data: PrivateData::default(),
    };
    let dreq = Dreq {
        local,
        remote,
        private_data: PrivateData([8; 220]),
        ..Dreq::default()
    };
    let mut drep = message::drep(local, remote);
    drep.private_data = PrivateData([9; 224]);
    let rej = Rej::new(local, remote, Answered::Req, RejReason::NoResources);
    [
        rep.into(),
        rtu.into(),
        rej.into(),
        mra.into(),
        dreq.into(),
        drep.into(),
    ]
}

/// `phase message: what follows`. A plus is a message sent, to no record with an exclamation mark;
/// an apostrophe marks another transaction, a star another number of the peer, a zero that our
/// number is missing. What is not listed is a mismatch.
const TABLE: &str = "
    req_sent REP: answered
    req_sent REJ: refused
    req_sent MRA: proved
    req_sent REP*: answered
    req_sent REJ*: refused
    req_sent MRA*: proved
    req_sent REJ0: (unknown)
    replied REJ: refused
    replied DREQ: ended 8 +DREP!
    replied DREQ': ended 8 +DREP!
    replied REJ0: (unknown)
    req_received REJ: abandoned
    req_received REJ0: abandoned
    rep_sent RTU: confirmed
    rep_sent REJ: abandoned
    rep_sent MRA: proved
    rep_sent DREQ: ended 8 +DREP!
    rep_sent DREQ': ended 8 +DREP!
    rep_sent MRA*: proved
    rep_sent REJ0: abandoned
    established REP: +RTU (duplicate)
    established RTU: (duplicate)
    established REJ: abandoned
    established DREQ: ended 8 +DREP!
    established RTU': (duplicate)
    established REJ': abandoned
    established DREQ': ended 8 +DREP!
    dreq_sent DREQ: ended 8 +DREP!
    dreq_sent DREP: ended 9
    dreq_sent DREQ': ended 8 +DREP!
    dreq_sent DREP': ended 9
    time_wait REP: +REJ (duplicate)
    time_wait DREQ: +DREP! (duplicate)
    time_wait DREP: (duplicate)
    time_wait REP': +REJ (duplicate)
    time_wait DREQ': +DREP! (duplicate)
    time_wait DREP': (duplicate)
";

#[test]
fn a_message_moves_only_what_its_numbers_and_its_transaction_agree_with() {
    let other = (CommId(0x99), TRANSACTION);
    let mut found = Vec::new();
    for phase in Phase::ALL.into_iter().skip(1).take(7) {
        let ours = Noting::new(phase).ours();
        let ways = [
            ("", THEIRS, ours, TRANSACTION),
            ("'", THEIRS, ours, TRANSACTION ^ 1),
            ("*", other.0, ours, other.1),
        ];
        for (mark, local, remote, transaction) in ways {
            for message in messages(local, remote) {
                let name = format!("{} {}{mark}", phase.name(), message.name());
                found.push((name, Noting::new(phase).hear_of(transaction, message)));
            }
        }
        let [_, _, rej, ..] = messages(THEIRS, CommId(0));
        let name = format!("{} REJ0", phase.name());
        found.push((name, Noting::new(phase).hear_of(TRANSACTION, rej)));
    }
    let moved = found.iter().filter(|(_, follows)| follows != "(mismatch)");
    let moved: Vec<String> = moved
        .map(|(cell, follows)| format!("{cell}: {follows}"))
        .collect();
    let written: Vec<&str> = TABLE.trim().lines().map(str::trim).collect();
    assert_eq!(moved, written, "\n{}", moved.join("\n"));
}

#[test]
fn what_comes_for_what_is_not_there_is_answered_where_the_peer_may_take_it_for_standing() {
    let mut noting = Noting::new(Phase::Established);
    noting.slots.remove(noting.index);
    let follows = messages(THEIRS, CommId(1)).map(|message| noting.hear_of(TRANSACTION, message));
    let expected = [
        "+REJ! (unknown)",
        "confirms nothing (unknown)",
        "(unknown)",
        "(unknown)",
        "+DREP! (unknown)",
        "(unknown)",
    ];
    assert_eq!(follows, expected);
}

#[test]
fn an_answer_repeats_the_transaction_and_has_the_numbers_the_other_way_round() {
    let ours = Noting::new(Phase::TimeWait).ours();
    let [rep, _, _, _, dreq, _] = messages(THEIRS, ours);
    let disowned = Rej::new(ours, THEIRS, Answered::Rep, RejReason::InvalidCommId);
    let ended = message::drep(ours, THEIRS);
    let transaction_id = TRANSACTION ^ 1;
    for phase in [Phase::TimeWait, Phase::Gone] {
        for (heard, expected) in [(&rep, disowned.into()), (&dreq, ended.into())] {
            let mut noting = Noting::new(phase);
            noting.hear_of(transaction_id, heard.clone());
            let expected = CmMad {
                transaction_id,
                message: expected,
            };
            assert_eq!(noting.last, Some(expected), "{phase:?}");
        }
    }
}

#[test]
fn an_ipv4_address_is_the_same_peer_in_its_ipv6_form() {
    let mapped = |host| match address(host) {
        IpAddr::V4(address) => IpAddr::V6(address.to_ipv6_mapped()),
        address => address,
    };
    let mut noting = Noting::new(Phase::ReqSent);
    let quote = Quote {
        transaction: TRANSACTION,
        local: noting.ours(),
    };
    let rep = Rep {
        local: THEIRS,
        remote: noting.ours(),
        ..Rep::default()
    };
    noting.handle_datagram(ms(0), &path(mapped(2), mapped(1)), &mad(TRANSACTION, rep));
    assert_eq!(noting.read(), "answered");
    noting.hear_quote(ms(0), mapped(2), &quote);
    noting.hear_quote(ms(0) + REFUSED_FOR_NS, mapped(2), &quote);
    assert_eq!(noting.read(), "nobody (nobody)");
}

#[test]
fn a_message_without_an_answer_goes_out_as_often_as_it_may_and_then_ends() {
    for (phase, expected) in [
        (Phase::ReqSent, "+RTU +RTU timed out (silent)"),
        (Phase::RepSent, "+RTU +RTU timed out (silent)"),
        (Phase::DreqSent, "+RTU +RTU timed out (silent)"),
        // That nobody decides here is no silence of the peer.
        (Phase::ReqReceived, "timed out"),
    ] {
        let mut noting = Noting::new(phase);
        while let Some(due) = noting.slots.next_due() {
            noting.handle_time(due);
        }
        assert_eq!(noting.read(), expected, "{phase:?}");
    }
}

#[test]
fn each_wait_is_twice_as_long_as_the_one_before_with_a_jitter_of_its_own() {
    let mut noting = Noting::new(Phase::ReqSent);
    let (mut now, mut waits) = (ms(0), Vec::new());
    while let Some(deadline) = slots::State::deadline(noting.slots.get(noting.index).state()) {
        waits.push(deadline.since(now));
        now = deadline;
        noting.handle_time(now);
    }
    assert_eq!(waits, [875_001, 1_750_002, 3_500_003], "in nanoseconds");
}

#[test]
fn an_mra_lengthens_the_wait_as_often_as_patience_has_it() {
    let mut noting = Noting::new(Phase::ReqSent);
    let ours = noting.ours();
    let mut wait = |now, service_timeout| {
        let mra = Mra {
            local: THEIRS,
            remote: ours,
            received: Answered::Req,
            service_timeout,
            private_data: PrivateData::default(),
        };
        let mad = CmMad {
            transaction_id: TRANSACTION,
            message: mra.into(),
        };
        noting.hear(now, ROUTE, &mad);
        slots::State::deadline(noting.slots.get(noting.index).state())
    };
    let first = wait(ms(0), 0);
    assert!(
        first < Some(ms(2)),
        "no wait gets shorter or longer by nothing"
    );
    assert_eq!(wait(ms(0), 31), Some(ms(1_000)), "the most");
    assert_eq!(wait(ms(9), 31), Some(ms(1_000)), "too often");
}

#[test]
fn a_request_ends_by_the_second_error_that_quotes_it_from_its_peer() {
    let mut noting = Noting::new(Phase::ReqSent);
    let quote = Quote {
        transaction: TRANSACTION,
        local: noting.ours(),
    };
    let other = Quote {
        transaction: TRANSACTION ^ 1,
        ..quote
    };
    let mut hear = |now, from, quote| {
        noting.hear_quote(now, from, quote);
        noting.read()
    };
    let late = ms(0) + REFUSED_FOR_NS;
    assert_eq!(hear(ms(0), address(2), &quote), "", "once says nothing");
    assert_eq!(hear(late, address(3), &quote), "(misquoted)");
    assert_eq!(hear(late, address(2), &other), "(misquoted)");
    assert_eq!(hear(late, address(2), &quote), "nobody (nobody)");
    let mut answered = Noting::new(Phase::RepSent);
    answered.hear_quote(late, address(2), &quote);
    assert_eq!(answered.read(), "(misquoted)", "it is no request");
}
