//! Anybody may send anything.

use super::matrix::run_out;
use super::{Rng, Stage, US, address, drain, ms, pcap};
use crate::binds::Bounds;
use crate::event::Event;
use crate::identity::Identity;
use crate::refusal::RefusalCode;
use crate::{Config, NodeCm};
use core::net::IpAddr;
use std::vec::Vec;
use trunkline_wire::cm::{CmMad, CommId, Message, RejReason};
use trunkline_wire::{MAD_LEN, Path};

/// A manager with one handshake in each state, and good messages for each of them.
fn crowded() -> (Stage, Vec<[u8; MAD_LEN]>) {
    let mut stage = Stage::new();
    let mut good = Vec::new();
    let enters: [fn(&mut Stage); 7] = [
        |s| s.open(),
        |s| s.asked(),
        |s| s.rep_sent(),
        |s| {
            s.established();
        },
        |s| {
            s.established_as_acceptor();
        },
        |s| s.dreq_sent(),
        |s| s.time_wait(),
    ];
    for (serial, enter) in enters.into_iter().enumerate() {
        stage.purpose = crate::Purpose::Private;
        stage.theirs = CommId(0x5000 + serial as u32);
        stage.transaction = 0x9000 + serial as u64;
        enter(&mut stage);
        good.extend([stage.req(), stage.rep(), stage.rtu(), stage.mra()]);
        good.extend([stage.dreq(), stage.drep(), stage.rej(RefusalCode::Busy)]);
    }
    (stage, good)
}

/// One of the good messages made bad, or from another address than the peer's, which is host 2.
pub(crate) fn spoilt(good: &[[u8; MAD_LEN]], random: &mut Rng) -> ([u8; MAD_LEN], IpAddr) {
    let (mut mad, mut from) = (good[random.below(good.len() as u64) as usize], address(2));
    match random.below(4) {
        0 => mad = core::array::from_fn(|_| random.next() as u8),
        1 => {
            for _ in 0..=random.below(3) {
                mad[random.below(256) as usize] ^= 1 << random.below(8);
            }
        }
        2 => mad[random.below(256) as usize..].fill(0),
        _ => from = address(3 + random.below(200) as u8),
    }
    (mad, from)
}

#[test]
fn damaged_forged_and_truncated_datagrams_move_nothing_but_what_they_may() {
    let (mut stage, good) = crowded();
    let mut random = Rng::new(5);
    let most = stage.manager.config().limits;
    for round in 0..200_000_u64 {
        let (mad, from) = spoilt(&good, &mut random);
        stage.peer_address = from;
        stage.deliver(&mad);
        stage.peer_address = address(2);
        if round % 64 == 0 {
            stage.now = stage.now + random.below(100_000_000);
            stage.manager.handle_timeout(stage.now);
        }
        drain(&mut stage.manager);
        let load = stage.manager.load();
        assert!(load.half_open <= most.half_open && load.peers <= most.half_open + 8);
        assert!(load.connections() <= most.connections);
    }
    stage.now = stage.now + 1_000_000_000_000;
    stage.manager.handle_timeout(stage.now);
    let load = stage.manager.load();
    assert_eq!((load.half_open, load.opening), (0, 0));
}

#[test]
fn who_guesses_numbers_moves_nothing() {
    let mut stage = Stage::new();
    let standing = stage.established();
    let mut random = Rng::new(6);
    for _ in 0..200_000 {
        // The attacker knows the peer's address, not the numbers.
        stage.ours = CommId(random.next() as u32);
        stage.theirs = CommId(random.next() as u32);
        stage.transaction = random.next();
        let forged = match random.below(4) {
            0 => stage.dreq(),
            1 => stage.rej(RefusalCode::Busy),
            2 => stage.rep(),
            _ => stage.drep(),
        };
        stage.deliver(&forged);
        let (_, events) = drain(&mut stage.manager);
        assert!(events.is_empty());
    }
    assert_eq!(stage.manager.counters().unknown, 200_000);
    assert_eq!(stage.manager.load().established, 1);
    assert!(stage.manager.close(stage.now, standing.id).is_ok());
}

#[test]
fn no_datagram_is_answered_with_more_than_one() {
    let (mut stage, good) = crowded();
    drain(&mut stage.manager);
    for mad in good {
        stage.deliver(&mad);
        assert!(drain(&mut stage.manager).0.len() <= 1);
    }
}

#[test]
fn messages_from_another_address_than_the_peers_move_nothing() {
    let (mut stage, good) = crowded();
    drain(&mut stage.manager);
    let before = *stage.manager.load();
    stage.peer_address = address(66);
    for mad in good {
        stage.deliver(&mad);
        assert!(drain(&mut stage.manager).1.is_empty());
    }
    assert_eq!(*stage.manager.load(), before);
    let counters = stage.manager.counters();
    let found = (counters.unknown, counters.address_mismatch);
    assert_eq!(found, (42, 7), "{counters:?}");
}

#[test]
fn a_request_that_comes_again_gets_the_same_answer() {
    let mut stage = Stage::new();
    stage.rep_sent();
    let mut again = || {
        stage.deliver(&stage.req());
        let (sent, events) = drain(&mut stage.manager);
        assert!(events.is_empty(), "{events:?}");
        super::messages(&sent)
    };
    let (first, second) = (again(), again());
    assert!(matches!(
        first[..],
        [CmMad {
            message: Message::Rep(_),
            ..
        }]
    ));
    assert_eq!(first, second);
    assert_eq!(stage.manager.counters().duplicate, 2);
    assert_eq!(stage.manager.load().half_open, 1);
}

#[test]
fn a_flood_of_forged_asks_fills_its_bounds_and_drains_away() {
    let mut config = Config::new(US);
    config.limits.half_open = 256;
    let mut stage = Stage::with(config);
    stage.established();
    stage.purpose = crate::Purpose::Private;
    for serial in 0..100_000_u32 {
        stage.peer_address = address(3 + (serial % 250) as u8);
        stage.peer = Identity {
            guid: 1_000 + u64::from(serial),
            epoch: 1,
        };
        stage.theirs = CommId(serial + 1);
        stage.deliver(&stage.req());
        let (_, events) = drain(&mut stage.manager);
        for event in events {
            if let Event::Incoming { id, .. } = event {
                let offer = stage.peer_offer;
                stage
                    .manager
                    .accept(stage.now, id, offer, Bounds::default())
                    .expect("it waits for that");
            }
        }
        assert!(stage.manager.load().half_open <= 256);
    }
    // Whose connection stands is not touched by any of it.
    assert_eq!(stage.manager.load().established, 1);
    while stage.manager.load().half_open > 0 {
        stage.now = stage.manager.poll_timeout().expect("they have deadlines");
        stage.manager.handle_timeout(stage.now);
        drain(&mut stage.manager);
    }
    assert_eq!(
        (stage.manager.load().established, stage.manager.load().peers),
        (1, 1)
    );
}

/// A manager with a request to each of the two addresses of the captures' hosts.
fn bystander(captured: &[(Path, [u8; MAD_LEN])]) -> NodeCm<Rng> {
    let mut manager = NodeCm::new(Config::new(US), Rng::new(1));
    for (path, _) in captured.iter().take(40) {
        let ask = super::ask(&mut Rng::new(2), crate::Purpose::Pool(0));
        // Each route once.
        let _ = manager.open(ms(0), crate::Route::back(path), ask);
    }
    drain(&mut manager);
    manager
}

#[test]
fn captured_traffic_of_others_confuses_nobody() {
    let captured = pcap::management();
    assert!(
        captured.len() >= 5,
        "{} captured management datagrams",
        captured.len()
    );
    let mut manager = bystander(&captured);
    let (before, mut asked) = (*manager.load(), 0);
    assert!(before.opening >= 1);
    for _ in 0..3 {
        for (path, mad) in &captured {
            manager.handle_mad(ms(1), path, mad);
            let (sent, events) = drain(&mut manager);
            assert!(events.is_empty(), "{events:?}");
            let request = match CmMad::parse(mad) {
                Ok(CmMad {
                    message: Message::Req(req),
                    ..
                }) => req,
                _ => {
                    assert!(sent.len() <= 1);
                    continue;
                }
            };
            asked += 1;
            // As every host does that has no such service.
            let [
                CmMad {
                    message: Message::Rej(rej),
                    ..
                },
            ] = &super::messages(&sent)[..]
            else {
                panic!("{sent:?}")
            };
            assert_eq!(rej.reason, RejReason::InvalidServiceId);
            assert_eq!((rej.remote, rej.local), (request.local, CommId(0)));
        }
    }
    assert_eq!(*manager.load(), before);
    assert_eq!(manager.counters().foreign_service, asked);
    assert!(asked >= 1);
}

#[test]
fn the_captured_refusal_of_an_ordinary_host_means_plain() {
    // Nobody listens: with the numbers of our ask in it, it is the answer to our ask.
    let refusals = pcap::management()
        .into_iter()
        .filter_map(|(_, mad)| match CmMad::parse(&mad) {
            Ok(CmMad {
                message: Message::Rej(rej),
                ..
            }) => Some(rej),
            _ => None,
        });
    let mut seen = 0;
    for mut rej in refusals {
        let mut stage = Stage::new();
        stage.open();
        rej.remote = stage.ours;
        stage.deliver(&crate::message::mad(stage.transaction, rej));
        let (_, events) = drain(&mut stage.manager);
        match rej.reason {
            RejReason::InvalidServiceId => {
                assert!(
                    matches!(events[..], [Event::NotTrunkline { .. }]),
                    "{events:?}"
                );
            }
            _ => assert!(matches!(events[..], [Event::Refused { .. }]), "{events:?}"),
        }
        seen += 1;
    }
    assert!(seen >= 1, "the captures hold refusals");
}

#[test]
fn a_peer_that_stops_answering_at_any_step_is_given_up_and_counted() {
    type Enter = fn(&mut Stage);
    let steps: [(&str, Enter); 3] = [
        ("REQ", Stage::open),
        ("REP", Stage::rep_sent),
        ("DREQ", Stage::dreq_sent),
    ];
    for (what, enter) in steps {
        let mut stage = Stage::new();
        enter(&mut stage);
        // Not even time wait is left of it.
        run_out(&mut stage);
        assert_eq!(stage.manager.counters().silent, 1, "{what}");
        assert_eq!(*stage.manager.load(), Default::default(), "{what}");
    }
}
