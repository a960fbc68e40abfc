//! Anybody may send anything.

use super::{Stage, drain, messages};
use crate::ib::{CmId, Counters};
use crate::tests::hostile::spoilt;
use crate::tests::matrix::run_out;
use crate::tests::{Rng, address, ms, pcap};
use crate::{Concerns, TRUNKLINE_SERVICE};
use std::format;
use std::vec::Vec;
use trunkline_wire::MAD_LEN;
use trunkline_wire::cm::{Answered, ApStatus, CmMad, CommId, Message, PrivateData};

/// A manager with one record in each state, and good messages for each of them.
fn crowded() -> (Stage, Vec<[u8; MAD_LEN]>) {
    let mut stage = Stage::new();
    let mut good = Vec::new();
    let enters: [fn(&mut Stage); 11] = [
        Stage::req_sent,
        Stage::replied,
        Stage::asked,
        Stage::rep_sent,
        Stage::asking,
        Stage::answering,
        Stage::dreq_sent,
        Stage::time_wait,
        Stage::sidr_sent,
        Stage::sidr_req_received,
        Stage::sidr_done,
    ];
    for (serial, enter) in enters.into_iter().enumerate() {
        let serial = serial as u32;
        stage.theirs = CommId(0x5000 + serial);
        stage.transaction = 0x9000 + u64::from(serial);
        (stage.our_qpn, stage.peer_qpn) = (0x100 + serial, 0x200 + serial);
        enter(&mut stage);
        good.extend([stage.req(), stage.rep(), stage.rtu(), stage.rej()]);
        good.extend([stage.gave_up(), stage.dreq(), stage.drep()]);
        good.extend([Answered::Req, Answered::Rep].map(|received| stage.mra(received)));
        good.extend([stage.lap(), stage.apr(), stage.sidr_req(), stage.sidr_rep()]);
    }
    (stage, good)
}

#[test]
fn damaged_forged_and_truncated_datagrams_leave_memory_bounded() {
    let (mut stage, good) = crowded();
    let mut random = Rng::new(5);
    let limits = stage.manager.config().limits;
    for round in 0..200_000_u64 {
        let (mad, from) = spoilt(&good, &mut random);
        stage.peer_address = from;
        stage.deliver(&mad);
        stage.peer_address = address(2);
        if round % 97 == 0 {
            drain(&mut stage.manager);
            stage.now = stage.now + random.below(50_000_000);
            stage.manager.handle_timeout(stage.now);
        }
        let load = stage.manager.load();
        assert!(load.half_open <= limits.half_open && load.time_wait <= limits.time_wait);
    }
    // What is left ends by itself, but for connections that stand.
    stage.now = stage.now + 1_000_000_000_000;
    stage.manager.handle_timeout(stage.now);
    stage.now = stage.now + 1_000_000_000_000;
    stage.manager.handle_timeout(stage.now);
    let load = stage.manager.load();
    assert_eq!(load.connections(), load.established);
    assert!(load.established <= 2);
}

#[test]
fn who_guesses_numbers_moves_nothing() {
    let (mut stage, good) = crowded();
    let before = *stage.manager.load();
    let heard = stage.manager.counters().received;
    let mut random = Rng::new(6);
    for _ in 0..100_000 {
        let mad = good[random.below(good.len() as u64) as usize];
        let CmMad {
            transaction_id,
            mut message,
        } = CmMad::parse(&mad).expect("it is good");
        let guess = CommId(random.next() as u32);
        match &mut message {
            // They name no number of ours: they are for others to test.
            Message::Req(_) | Message::SidrReq(_) => continue,
            Message::Rej(rej) if rej.remote == CommId(0) => rej.local = guess,
            Message::Mra(mra) => mra.remote = guess,
            Message::Rej(rej) => rej.remote = guess,
            Message::Rep(rep) => rep.remote = guess,
            Message::Rtu(rtu) => rtu.remote = guess,
            Message::Dreq(dreq) => dreq.remote = guess,
            Message::Drep(drep) => drep.remote = guess,
            Message::SidrRep(rep) => rep.request = guess,
            Message::Lap(lap) => lap.remote = guess,
            Message::Apr(apr) => apr.remote = guess,
        }
        stage.deliver(&crate::message::mad(transaction_id, message));
        let (_, events) = drain(&mut stage.manager);
        assert!(events.is_empty(), "{events:?}");
    }
    let counters = stage.manager.counters();
    let counted = counters.unknown + counters.alternate;
    assert_eq!(counted, counters.received - heard, "{counters:?}");
    assert_eq!(*stage.manager.load(), before);
}

#[test]
fn a_replayed_life_of_a_connection_sets_up_nothing() {
    let mut stage = Stage::new();
    stage.answering();
    let life = [stage.req(), stage.rtu(), stage.dreq()];
    stage.deliver(&life[2]);
    drain(&mut stage.manager);
    stage.now = ms(60_000);
    stage.manager.handle_timeout(stage.now);
    drain(&mut stage.manager);
    // Long forgotten: the request is new, as far as anyone can tell, but nobody confirms it.
    for mad in life {
        stage.deliver(&mad);
    }
    assert_eq!(stage.manager.load().half_open, 1);
    assert_eq!(stage.manager.load().established, 0);
    while let Some(due) = stage.manager.poll_timeout() {
        stage.manager.handle_timeout(due);
    }
    assert_eq!(stage.manager.load().connections(), 0);
}

#[test]
fn what_moves_nothing_is_counted_by_reason() {
    type Input = fn(&mut Stage);
    type Count = fn(&Counters) -> u64;
    let forged = |s: &mut Stage| s.ours = CommId(s.ours.0 ^ 0x10);
    let unknown: [(&str, Input); 9] = [
        ("REP", |s| s.deliver(&s.rep())),
        ("RTU", |s| s.deliver(&s.rtu())),
        ("REJ", |s| s.deliver(&s.rej())),
        ("MRA", |s| s.deliver(&s.mra(Answered::Req))),
        ("DREQ", |s| s.deliver(&s.dreq())),
        ("DREP", |s| s.deliver(&s.drep())),
        ("APR", |s| s.deliver(&s.apr())),
        ("SIDR_REP", |s| s.deliver(&s.sidr_rep())),
        ("REJ0", |s| {
            s.theirs = CommId(1);
            s.deliver(&s.gave_up());
        }),
    ];
    for (name, input) in unknown {
        let mut stage = Stage::new();
        stage.answering();
        forged(&mut stage);
        input(&mut stage);
        let counters = *stage.manager.counters();
        assert_eq!((counters.unknown, counters.mismatch), (1, 0), "{name}");
        stage.id = Some(CmId(CommId(stage.ours.0 ^ 0x10)));
        assert_eq!(stage.state(), "Established");
    }
    let others: [(&str, Input, Count); 8] = [
        ("zeros", |s| s.deliver(&[0; MAD_LEN]), |c| c.malformed),
        ("RTU again", |s| s.deliver(&s.rtu()), |c| c.duplicate),
        ("REQ again", |s| s.deliver(&s.req()), |c| c.duplicate),
        (
            "a REP to who was asked",
            |s| s.deliver(&s.rep()),
            |c| c.mismatch,
        ),
        (
            "MRA too late",
            |s| s.deliver(&s.mra(Answered::Rep)),
            |c| c.mismatch,
        ),
        (
            "an answer to no LAP",
            |s| s.deliver(&s.apr()),
            |c| c.mismatch,
        ),
        ("DREP to no DREQ", |s| s.deliver(&s.drep()), |c| c.mismatch),
        ("LAP", |s| s.deliver(&s.lap()), |c| c.alternate),
    ];
    for (name, input, count) in others {
        let mut stage = Stage::new();
        stage.answering();
        let received = stage.manager.counters().received;
        input(&mut stage);
        let counters = stage.manager.counters();
        assert_eq!(
            (count(counters), counters.received),
            (1, received + 1),
            "{name}"
        );
        assert_eq!(stage.state(), "Established");
    }
}

#[test]
fn what_has_come_before_is_told_from_what_does_not_fit() {
    type Step = fn(&mut Stage);
    let states: [(&str, Step); 3] = [
        ("Replied", Stage::replied),
        ("DreqSent", Stage::dreq_sent),
        ("TimeWait", Stage::time_wait),
    ];
    let inputs: [(&str, Step); 3] = [
        ("REP", |s| s.deliver(&s.rep())),
        ("RTU", |s| s.deliver(&s.rtu())),
        ("REJ", |s| s.deliver(&s.rej())),
    ];
    let others: [(&str, Step); 3] = [
        ("", |_| {}),
        ("'", |s| s.transaction ^= 1),
        ("*", |s| s.theirs.0 ^= 1),
    ];
    let mut duplicates = Vec::new();
    for (state, enter) in states {
        for (message, deliver) in inputs {
            for (mark, change) in others {
                let mut stage = Stage::new();
                enter(&mut stage);
                change(&mut stage);
                deliver(&mut stage);
                let counters = stage.manager.counters();
                match (counters.duplicate, counters.mismatch) {
                    (1, 0) => duplicates.push(format!("{state} {message}{mark}")),
                    (0, 1) => {}
                    // It moved the connection.
                    _ => assert_ne!(stage.state(), state, "{message}{mark}"),
                }
            }
        }
    }
    let expected = [
        "Replied REP",
        "DreqSent REP",
        "DreqSent REP'",
        "DreqSent RTU",
        "DreqSent RTU'",
        "TimeWait REP",
        "TimeWait REP'",
        "TimeWait RTU",
        "TimeWait RTU'",
        "TimeWait REJ",
        "TimeWait REJ'",
    ];
    assert_eq!(duplicates, expected);
}

#[test]
fn a_lap_with_another_number_of_the_peer_is_about_no_connection() {
    for (change, expected) in [(0, ApStatus::Unsupported), (1, ApStatus::InvalidCommId)] {
        let mut stage = Stage::new();
        stage.answering();
        stage.theirs.0 ^= change;
        stage.deliver(&stage.lap());
        let (sent, _) = drain(&mut stage.manager);
        let said = messages(&sent).pop().map(|mad| mad.message);
        let Some(Message::Apr(apr)) = said else {
            panic!("an APR, not {said:?}")
        };
        assert_eq!(apr.status, expected);
    }
}

#[test]
fn captured_messages_of_others_move_nothing() {
    let (mut stage, _) = crowded();
    stage.manager.unlisten(super::SERVICE);
    let before = *stage.manager.load();
    for (path, mad) in pcap::management() {
        stage.manager.handle_mad(stage.now, &path, &mad);
    }
    assert_eq!(
        *stage.manager.load(),
        before,
        "nobody offers their services"
    );
}

#[test]
fn every_datagram_finds_its_manager() {
    let (mut stage, good) = crowded();
    for mad in &good {
        let names_none = matches!(
            CmMad::parse(mad).expect("it is good").message,
            Message::Rej(rej) if rej.remote == CommId(0)
        );
        let expected = if names_none {
            Concerns::Both
        } else {
            Concerns::Ibta
        };
        assert_eq!(Concerns::of(mad), expected);
    }
    assert_eq!(
        Concerns::of(&[0; MAD_LEN]),
        Concerns::Nodes,
        "somebody has to count it"
    );
    let mut nodes = crate::tests::Stage::new();
    nodes.established();
    for mad in [
        nodes.req(),
        nodes.rep(),
        nodes.rtu(),
        nodes.dreq(),
        nodes.drep(),
        nodes.mra(),
    ] {
        assert_eq!(Concerns::of(&mad), Concerns::Nodes);
    }
    // And what a manager sends names a number of its own.
    let route = stage.route();
    let mut ask = super::ask(0x999);
    ask.service_id = TRUNKLINE_SERVICE;
    let asked = stage
        .manager
        .connect(stage.now, route, &ask, crate::Retry::UNKNOWN);
    assert!(asked.is_ok());
    let (sent, _) = drain(&mut stage.manager);
    let req = messages(&sent).pop().expect("a REQ goes out");
    let Message::Req(req) = req.message else {
        panic!("a REQ, not {req:?}")
    };
    let reply = crate::ib::message::rtu(
        crate::ib::message::Ids {
            local: CommId(1),
            remote: req.local,
        },
        PrivateData::default(),
    );
    assert_eq!(Concerns::of(&crate::message::mad(1, reply)), Concerns::Ibta);
}

#[test]
fn a_peer_that_stops_answering_at_any_step_is_given_up_and_counted() {
    type Enter = fn(&mut Stage);
    let steps: [(&str, Enter); 4] = [
        ("REQ", Stage::req_sent),
        ("REP", Stage::rep_sent),
        ("DREQ", Stage::dreq_sent),
        ("SIDR_REQ", Stage::sidr_sent),
    ];
    for (what, enter) in steps {
        let mut stage = Stage::new();
        enter(&mut stage);
        // Not even time wait is left of it.
        run_out(&mut stage);
        assert_eq!(stage.manager.counters().silent, 1, "{what}");
        assert_eq!(stage.manager.load().connections(), 0, "{what}");
    }
}
