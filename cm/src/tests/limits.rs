//! What is bounded stays so.

use super::{Rng, Stage, US, address, ask, drain, messages, ms};
use crate::Config;
use crate::event::{OpenError, Route};
use crate::hello::{HelloError, Purpose};
use crate::refusal::{Refusal, RefusalCode};
use trunkline_conn::time::MILLISECOND;
use trunkline_wire::cm::{CmMad, CommId, Message, RejReason};
use trunkline_wire::{Qpn, Workers};

fn tight() -> Config {
    let mut config = Config::new(US);
    config.limits.connections = 12;
    config.limits.opening = 3;
    config.limits.half_open = 4;
    config.limits.half_open_per_peer = 2;
    config.limits.time_wait = 2;
    config.limits.transmit = 5;
    config
}

fn deliver_asks(stage: &mut Stage, hosts: core::ops::Range<u8>, each: u32) {
    for host in hosts {
        stage.peer_address = address(host);
        stage.peer.guid = 1_000 + u64::from(host);
        for serial in 0..each {
            stage.theirs = CommId((u32::from(host) << 16) + serial + 1);
            stage.purpose = Purpose::Private;
            stage.deliver(&stage.req());
        }
    }
}

#[test]
fn asks_of_ours_are_bounded() {
    let mut stage = Stage::with(tight());
    for _ in 0..3 {
        stage.purpose = Purpose::Private;
        stage.open();
    }
    let refused = stage.manager.open(
        stage.now,
        stage.route(),
        ask(&mut Rng::new(1), Purpose::Private),
    );
    let what = "connections being opened";
    assert_eq!(refused, Err(OpenError::Busy { what, limit: 3 }));
}

#[test]
fn half_open_asks_are_bounded_by_peer_and_in_all_and_the_rest_is_told() {
    let mut stage = Stage::with(tight());
    deliver_asks(&mut stage, 2..3, 4);
    assert_eq!(stage.manager.load().half_open, 2);
    let (sent, events) = drain(&mut stage.manager);
    assert_eq!(events.len(), 2);
    for mad in messages(&sent) {
        let CmMad {
            message: Message::Rej(rej),
            ..
        } = mad
        else {
            panic!("{mad:?}")
        };
        let refusal = Refusal::parse(&rej.private_data).expect("a Trunkline node refuses");
        assert_eq!(
            (refusal.code, rej.reason),
            (RefusalCode::Busy, RejReason::NoResources)
        );
    }
    deliver_asks(&mut stage, 3..9, 1);
    assert_eq!(
        (stage.manager.load().half_open, stage.manager.load().peers),
        (4, 3)
    );
    let counters = stage.manager.counters();
    assert_eq!((counters.busy, counters.unfair), (4, 2));
    // Nobody decides: they are gone, and their peers with them.
    stage.now = stage.now + stage.manager.config().decide_ns;
    stage.manager.handle_timeout(stage.now);
    assert_eq!(*stage.manager.load(), Default::default());
}

#[test]
fn a_node_that_asks_for_everything_leaves_room_for_all_others() {
    let mut config = Config::new(US);
    (config.limits.half_open, config.limits.half_open_per_peer) = (64, 48);
    let mut stage = Stage::with(config);
    deliver_asks(&mut stage, 2..3, 1_000);
    assert_eq!(stage.manager.load().half_open, 32, "half of the room");
    // Those that come later are served as they come, the last place to one that has none.
    deliver_asks(&mut stage, 3..35, 1);
    assert_eq!(
        (stage.manager.load().half_open, stage.manager.load().peers),
        (64, 33)
    );
    let counters = stage.manager.counters();
    assert_eq!((counters.busy, counters.unfair), (968, 0));
    deliver_asks(&mut stage, 35..36, 1);
    assert_eq!(stage.manager.counters().busy, 969);
    let (sent, events) = drain(&mut stage.manager);
    assert_eq!((sent.len(), events.len()), (969, 64), "nobody is ignored");
    let asked = events.iter().map(|event| event.route().remote);
    let expected = core::iter::repeat_n(2, 32).chain(3..35).map(address);
    assert!(asked.eq(expected), "in the order in which they came");
}

#[test]
fn an_owner_that_does_not_look_costs_a_bounded_amount() {
    let mut stage = Stage::with(tight());
    for round in 0..50 {
        deliver_asks(&mut stage, 2..200, 3);
        stage.now = ms(2_000 + 1_000 * round);
        stage.manager.handle_timeout(stage.now);
    }
    let (sent, events) = drain(&mut stage.manager);
    assert!(
        sent.len() <= 5 && events.len() <= 24,
        "{} {}",
        sent.len(),
        events.len()
    );
    assert!(stage.manager.counters().transmit_full > 0);
}

#[test]
fn an_address_that_proved_nothing_gets_at_most_three_datagrams_for_each_of_its_own() {
    for (asks, most) in [(1, 3), (2, 6), (5, 15)] {
        let mut stage = Stage::new();
        stage.rep_sent();
        let mut sent = 1;
        for _ in 1..asks {
            stage.deliver(&stage.req());
        }
        for _ in 0..1_000 {
            sent += drain(&mut stage.manager).0.len();
            stage.now = stage.now + 10 * MILLISECOND;
            stage.manager.handle_timeout(stage.now);
        }
        assert_eq!(stage.state(), "-", "it is given up");
        assert!(sent <= most, "{asks} in, {sent} out");
        assert!(sent > asks, "the answer is sent again");
        assert_eq!(stage.manager.counters().unproved > 0, asks < 3);
    }
}

#[test]
fn a_peer_that_has_proved_to_be_there_is_answered_as_often_as_it_takes() {
    let mut stage = Stage::new();
    stage.established();
    stage.theirs = CommId(1);
    stage.transaction += 1;
    stage.purpose = Purpose::Private;
    stage.rep_sent();
    let mut sent = 1;
    for _ in 0..1_000 {
        sent += drain(&mut stage.manager).0.len();
        stage.now = stage.now + 10 * MILLISECOND;
        stage.manager.handle_timeout(stage.now);
    }
    assert_eq!(sent, 7, "six REPs and a REJ");
}

#[test]
fn an_address_that_takes_all_it_can_get_leaves_half_of_the_connections() {
    let mut config = Config::new(US);
    config.limits.connections = 64;
    let mut stage = Stage::with(config);
    stage.purpose = Purpose::Private;
    for serial in 0..32 {
        stage.theirs = CommId(serial + 1);
        stage.transaction += 1;
        stage.established_as_acceptor();
    }
    stage.theirs = CommId(100);
    stage.transaction += 1;
    stage.deliver(&stage.req());
    let (sent, events) = drain(&mut stage.manager);
    assert!(events.is_empty());
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
    assert_eq!(refusal.code, RefusalCode::Share);
    assert_eq!(stage.manager.counters().over_share, 1);
    // What this node itself opens to that address is its own business, and the next address has
    // its share.
    stage.open();
    (stage.peer_address, stage.theirs) = (address(3), CommId(101));
    stage.transaction += 1;
    stage.established_as_acceptor();
    assert_eq!(stage.manager.load().established, 33);
}

/// The shortest time that `act` takes of those with these numbers.
#[expect(
    clippy::disallowed_methods,
    reason = "what a call costs is measured by the machine's clock"
)]
fn shortest(numbers: core::ops::Range<u32>, mut act: impl FnMut(u32)) -> std::time::Duration {
    let time = |number| {
        let before = std::time::Instant::now();
        act(number);
        before.elapsed()
    };
    numbers.map(time).min().expect("there are some")
}

/// A handshake costs the same with 60,000 others as with few, all of one peer or each of another.
#[test]
fn the_cost_of_a_handshake_does_not_grow_with_what_there_is() {
    const MANY: u32 = if cfg!(miri) { 600 } else { 60_000 };
    for one_peer in [false, true] {
        let mut config = Config::new(US);
        config.limits.connections = 1 << 20;
        let mut stage = Stage::with(config);
        let mut connect = |number: u32| {
            let host = if one_peer { 0 } else { number };
            stage.peer_address = core::net::Ipv4Addr::from_bits(0x0a01_0000 + host).into();
            stage.peer.guid = 1_000 + u64::from(host);
            stage.purpose = if one_peer {
                Purpose::Private
            } else {
                Purpose::Pool(0)
            };
            stage.theirs = CommId(number + 1);
            stage.transaction += 1;
            stage.established_as_acceptor();
            // A refused request, a copy of the REQ, and a REJ that does not know our number.
            stage.deliver(&stage.req());
            let mut nobody = stage.rej(RefusalCode::Cancelled);
            nobody[28..32].fill(0);
            stage.deliver(&nobody);
            drain(&mut stage.manager);
        };
        let early = shortest(0..64, &mut connect);
        (64..MANY - 64).for_each(&mut connect);
        let late = shortest(MANY - 64..MANY, &mut connect);
        // A walk over all would cost hundreds of times as much.
        assert!(late < early * 20, "{early:?} at first, {late:?} at the end");
        assert_eq!(stage.manager.load().established, MANY);
        let peers = stage.manager.load().peers;
        assert_eq!(peers, if one_peer { 1 } else { MANY });
    }
}

/// A peer opens one place of its pool again and again: what it had there is over each time, and is
/// remembered.
#[test]
fn the_cost_of_a_handshake_does_not_grow_with_what_was_in_its_place() {
    const MANY: u32 = if cfg!(miri) { 300 } else { 20_000 };
    let mut config = Config::new(US);
    config.limits.connections = 1 << 20;
    config.limits.time_wait = 1 << 20;
    let mut stage = Stage::with(config);
    let mut connect = |number: u32| {
        stage.theirs = CommId(number + 1);
        stage.transaction += 1;
        stage.rep_sent();
        stage.deliver(&stage.rtu());
        drain(&mut stage.manager);
    };
    let early = shortest(0..64, &mut connect);
    (64..MANY - 64).for_each(&mut connect);
    let late = shortest(MANY - 64..MANY, &mut connect);
    assert!(late < early * 10, "{early:?} at first, {late:?} at the end");
    let load = *stage.manager.load();
    assert_eq!((load.established, load.time_wait), (1, MANY - 1));
}

/// What was handed over takes no room of the manager's, and of the limits what it took before.
#[test]
fn a_connection_that_was_handed_over_counts_until_it_ends_and_is_not_kept() {
    let mut config = tight();
    config.limits.connections = 8;
    let mut stage = Stage::with(config);
    stage.purpose = Purpose::Private;
    let mut handed_over = std::vec::Vec::new();
    let mut one_more = |stage: &mut Stage, ours: bool| {
        stage.theirs = CommId(stage.theirs.0 + 1);
        stage.transaction += 1;
        let terms = match ours {
            true => stage.established(),
            false => stage.established_as_acceptor(),
        };
        let theirs = stage.manager.hand_over(terms.id);
        assert_eq!(theirs, Ok(!ours), "who asked for it");
        assert_eq!(stage.state(), "-");
        assert!(
            stage.manager.hand_over(terms.id).is_err(),
            "that is done once"
        );
        handed_over.push(!ours);
    };
    // Of eight one address gets four, whether the manager keeps them or not.
    one_more(&mut stage, false);
    let with_one = stage.manager.state_bytes();
    (1..4).for_each(|_| one_more(&mut stage, false));
    stage.theirs = CommId(stage.theirs.0 + 1);
    stage.transaction += 1;
    stage.deliver(&stage.req());
    assert_eq!(stage.refusal().code, RefusalCode::Share);
    (0..4).for_each(|_| one_more(&mut stage, true));
    let load = *stage.manager.load();
    assert_eq!(
        (load.connections(), load.handed_over, load.peers),
        (8, 8, 0)
    );
    let ask = ask(&mut Rng::new(1), Purpose::Private);
    let route = stage.route();
    let full = stage.manager.open(stage.now, route, ask);
    assert!(matches!(full, Err(OpenError::Busy { .. })), "{full:?}");
    for theirs in handed_over {
        stage.manager.ended(stage.peer_address, theirs);
    }
    assert_eq!(*stage.manager.load(), Default::default());
    // Each took the place of the one before.
    assert!(stage.manager.state_bytes() <= with_one);
    stage.established();
    // And the address has its share again.
    for _ in 0..3 {
        stage.theirs = CommId(stage.theirs.0 + 1);
        stage.transaction += 1;
        stage.established_as_acceptor();
    }
}

/// A pool has a connection for each of its places to each worker of the peer.
#[test]
fn a_connection_takes_the_place_of_one_to_the_same_worker_alone() {
    let mut stage = Stage::new();
    stage.peer_offer.workers = Workers::new(2).expect("two workers may be");
    for (end, standing) in [(0x10, 1), (0x11, 2), (0x12, 2), (0x13, 2)] {
        stage.theirs = CommId(end);
        stage.transaction += 1;
        stage.peer_offer.connection = Qpn::from_wire(end);
        stage.rep_sent();
        stage.deliver(&stage.rtu());
        drain(&mut stage.manager);
        assert_eq!(stage.manager.load().established, standing);
    }
}

#[test]
fn closed_connections_are_remembered_only_so_many_at_a_time() {
    let mut stage = Stage::with(tight());
    stage.purpose = Purpose::Private;
    for serial in 0..10 {
        stage.theirs = CommId(serial + 1);
        stage.time_wait();
        assert!(stage.manager.load().time_wait <= 2);
    }
    assert_eq!(stage.manager.load().connections(), 2);
    stage.now = ms(60_000);
    stage.manager.handle_timeout(stage.now);
    assert_eq!(*stage.manager.load(), Default::default());
}

#[test]
fn what_no_peer_would_take_cannot_be_offered() {
    let mut stage = Stage::new();
    let good = ask(&mut Rng::new(1), Purpose::Pool(0));
    let cases = [
        ("pool index", {
            let mut a = good;
            a.purpose = Purpose::Pool(255);
            a
        }),
        ("packet size", {
            let mut a = good;
            a.offer.packet_size = 255;
            a
        }),
        ("packet size", {
            let mut a = good;
            a.offer.packet_size = 65_536;
            a
        }),
        ("window", {
            let mut a = good;
            a.offer.window = 0;
            a
        }),
        ("first packet", {
            let mut a = good;
            a.offer.first_packet = 1 << 63;
            a
        }),
    ];
    for (expected, ask) in cases {
        let refused = stage.manager.open(stage.now, stage.route(), ask);
        let Err(OpenError::Offer(HelloError::Invalid { field, .. })) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(field, expected);
    }
    let v6 = Route {
        local: address(1),
        remote: "fe80::1".parse().expect("an address"),
    };
    assert!(matches!(
        stage.manager.open(stage.now, v6, good),
        Err(OpenError::Families { .. })
    ));
}
