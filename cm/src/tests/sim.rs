//! Nodes that open, close and restart at random on a bad network: in the end they agree.

use super::air::Weather;
use super::network::run_seeds;
use super::nodes::Network;
use super::{Rng, ms};
use crate::event::{Event, Role};
use crate::hello::Purpose;
use crate::retry::Retry;
use crate::state::State;
use std::collections::BTreeMap;
use std::vec::Vec;
use trunkline_conn::time::MILLISECOND;

/// Safety: what the two ends say of a standing connection agrees, and of each place in a pool there
/// is at most one connection at either end that is not being closed.
fn check_standing(network: &Network) {
    for node in &network.parties {
        node.check_phases();
        let mut places = BTreeMap::new();
        for terms in node.standing.values() {
            let state = node.manager.state_of(terms.id);
            if let (Purpose::Pool(place), Some(State::Established(_))) = (terms.purpose, state) {
                let before = places.insert((terms.route.remote, place), terms.id);
                assert_eq!(before, None, "two connections for place {place}");
            }
        }
        let load = node.manager.load();
        let standing = load.established + load.closing;
        assert_eq!(standing as usize, node.standing.len());
    }
}

fn random_step(network: &mut Network) {
    let nodes = network.parties.len() as u64;
    let from = network.random.below(nodes) as usize;
    let to = (from + 1 + network.random.below(nodes - 1) as usize) % nodes as usize;
    match network.random.below(20) {
        0..=9 => {
            let purpose = match network.random.below(4) {
                0 => Purpose::Private,
                place => Purpose::Pool(place.min(2) as u8 - 1),
            };
            let retry = [Retry::UNKNOWN, Retry::KNOWN][network.random.below(2) as usize];
            // The place may be taken.
            let _ = network.open(from, to, purpose, retry);
        }
        10..=12 => {
            let ids: Vec<_> = network.parties[from]
                .standing
                .values()
                .map(|t| t.id)
                .collect();
            if !ids.is_empty() {
                let id = ids[network.random.below(ids.len() as u64) as usize];
                network.close(from, id);
            }
        }
        13 => {
            let ids: Vec<_> = network.parties[from]
                .lives
                .iter()
                .map(|life| life.0)
                .collect();
            if !ids.is_empty() {
                // In whatever state it is, or none.
                let id = ids[network.random.below(ids.len() as u64) as usize];
                network.close(from, id);
            }
        }
        14 if network.random.chance(300_000) => network.restart(from),
        15..=17 => network.exchange_packets(),
        _ => {}
    }
}

/// The network heals and engines do their part: then every standing end has its other end.
fn heal(network: &mut Network) {
    network.air.weather = Weather::CLEAR;
    for _ in 0..8 {
        network.run(network.now + 1_000 * MILLISECOND);
        network.exchange_packets();
    }
    network.run(network.now + 5_000 * MILLISECOND);
    check_standing(network);
    for node in &network.parties {
        let load = node.manager.load();
        assert_eq!((load.opening, load.half_open, load.closing), (0, 0, 0));
        for terms in node.standing.values() {
            let others = 0..network.parties.len();
            let mirrors = others
                .filter(|&other| network.mirrored(terms, other))
                .count();
            assert_eq!(mirrors, 1, "{terms:?} has no other end");
        }
    }
}

/// After everything is closed nothing is left.
fn close_all(network: &mut Network) {
    for index in 0..network.parties.len() {
        let ids: Vec<_> = network.parties[index]
            .standing
            .values()
            .map(|t| t.id)
            .collect();
        ids.into_iter().for_each(|id| network.close(index, id));
    }
    network.run(network.now + 10_000 * MILLISECOND);
    for node in &network.parties {
        assert_eq!(
            *node.manager.load(),
            Default::default(),
            "something is left"
        );
        assert!(node.standing.is_empty());
        let open = node
            .lives
            .iter()
            .filter(|(_, life)| life.ended.is_none())
            .count();
        assert_eq!(open, 0, "a handshake has not ended");
        assert_eq!(node.manager.poll_timeout(), None);
    }
}

fn run(seed: u64) {
    let mut random = Rng::new(seed ^ 0x5eed);
    let nodes = 2 + random.below(2) as u8;
    let weather = Weather::bad(&mut random);
    let mut network = Network::new(seed, nodes, weather);
    for _ in 0..60 {
        random_step(&mut network);
        let pause = MILLISECOND * network.random.below(150);
        network.run(network.now + pause);
        check_standing(&network);
    }
    heal(&mut network);
    // Whatever happened before, two nodes can meet now.
    if network.parties[0]
        .standing
        .values()
        .all(|terms| terms.purpose != Purpose::Pool(7))
    {
        let id = network
            .open(0, 1, Purpose::Pool(7), Retry::UNKNOWN)
            .expect("the place is free");
        network.run(network.now + 100 * MILLISECOND);
        let terms = network.parties[0]
            .standing
            .get(&id.0.0)
            .expect("nothing is lost");
        assert!(network.mirrored(terms, 1) && terms.role == Role::Opener);
    }
    close_all(&mut network);
}

#[test]
fn nodes_agree_in_the_end_whatever_the_network_did() {
    run_seeds(2_000, run);
}

#[test]
fn with_a_fifth_of_the_messages_lost_every_connection_stands_and_none_twice() {
    const LOSSY: Weather = Weather {
        loss_per_mille: 200,
        ..Weather::CLEAR
    };
    run_seeds(20, |seed| {
        let mut network = Network::new(seed, 5, LOSSY);
        for place in 0..16 {
            for from in 1..5 {
                let opened = network.open(from, 0, Purpose::Pool(place), Retry::KNOWN);
                opened.expect("the place is free");
            }
        }
        for step in 1..=60 {
            network.run(ms(50 * step));
            // The first packet that gets through confirms, whatever became of the RTU.
            network.exchange_packets();
        }
        check_standing(&network);
        for (index, node) in network.parties.iter().enumerate().skip(1) {
            assert_eq!(node.standing.len(), 16, "of node {index}");
            let terms = node.standing.values();
            assert!(terms.into_iter().all(|terms| network.mirrored(terms, 0)));
        }
        assert_eq!(network.parties[0].standing.len(), 64);
    });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let trace = |seed| {
        let mut network = Network::new(seed, 3, Weather::bad(&mut Rng::new(seed)));
        for _ in 0..60 {
            random_step(&mut network);
            network.run(network.now + 50 * MILLISECOND);
        }
        let of_node = |node: &super::nodes::Node| (*node.manager.counters(), node.lives.clone());
        network.parties.iter().map(of_node).collect::<Vec<_>>()
    };
    assert_eq!(trace(11), trace(11));
    assert_ne!(trace(11), trace(12));
}

#[test]
fn a_restarted_node_is_met_anew_and_its_old_connections_end() {
    for seed in 0..500 {
        let weather = Weather::bad(&mut Rng::new(seed));
        let mut network = Network::new(seed, 2, Weather::CLEAR);
        network
            .open(0, 1, Purpose::Pool(0), Retry::UNKNOWN)
            .expect("the place is free");
        network.run(ms(100));
        assert_eq!(network.parties[0].standing.len(), 1);
        network.restart(1);
        network.air.weather = weather;
        // The restarted one asks until it is known.
        let reborn = network.parties[1].identity;
        let met = |network: &Network| {
            let mut standing = network.parties[0].standing.values();
            standing.any(|terms| terms.identity == reborn)
        };
        while !met(&network) {
            // Or is still asking.
            let _ = network.open(1, 0, Purpose::Pool(0), Retry::KNOWN);
            network.run(network.now + 500 * MILLISECOND);
            let dead = network.confirm_by_packets();
            dead.into_iter()
                .filter(|dead| dead.0 == 1)
                .for_each(|(node, id)| network.close(node, id));
        }
        heal(&mut network);
        let (ours, theirs) = (&network.parties[0], &network.parties[1]);
        assert!(ours.restarts_seen >= 1, "seed {seed}");
        assert!(
            ours.standing
                .values()
                .all(|terms| terms.identity == theirs.identity)
        );
        let restarted = |event: &Event| {
            matches!(
                event,
                Event::Closed {
                    reason: crate::CloseReason::PeerRestarted,
                    ..
                }
            )
        };
        let ends = ours.lives.iter().filter_map(|(_, life)| life.ended);
        assert_eq!(ends.filter(restarted).count(), 1, "seed {seed}");
    }
}
