//! Hosts that connect, ask, close and restart at random on a bad network: in the end they agree.

use super::hosts::Network;
use crate::tests::Rng;
use crate::tests::air::Weather;
use crate::tests::network::run_seeds;
use std::collections::BTreeSet;
use std::vec::Vec;
use trunkline_conn::time::{MILLISECOND, SECOND};

/// Safety: no QP, of this host or of a peer, is in two connections, and the manager counts what its
/// program knows.
fn check_standing(network: &Network) {
    for host in &network.parties {
        let mut qps = BTreeSet::new();
        for conn in host.conns.values() {
            let qpn = conn.ours.qpn.get();
            assert!(
                qpn == 0 || qps.insert((0, qpn)),
                "QP {qpn} is in two connections"
            );
            let qpn = conn.theirs.qpn.get();
            let peers = qpn == 0 || qps.insert((conn.peer, qpn));
            assert!(
                peers,
                "QP {qpn} of host {} is in two connections",
                conn.peer
            );
        }
        let load = host.manager.load();
        let live = load.opening + load.half_open + load.established + load.closing;
        assert_eq!(live as usize, host.conns.len() + host.questions);
    }
}

fn any_conn(network: &mut Network, host: usize) -> Option<u32> {
    let ids: Vec<u32> = network.parties[host].conns.keys().copied().collect();
    let place = network.random.below(ids.len().max(1) as u64) as usize;
    ids.get(place).copied()
}

fn random_step(network: &mut Network) {
    let hosts = network.parties.len() as u64;
    let from = network.random.below(hosts) as usize;
    let to = (from + 1 + network.random.below(hosts - 1) as usize) % hosts as usize;
    match network.random.below(20) {
        0..=9 => network.connect(from, to),
        10..=11 => network.ask(from, to),
        12..=14 => {
            if let Some(id) = any_conn(network, from) {
                network.close(from, id);
            }
        }
        15 if network.random.chance(300_000) => network.restart(from),
        16..=18 => network.exchange_packets(),
        _ => {}
    }
}

/// The network heals and QPs do their part: then every connection has two ends.
fn heal(network: &mut Network) {
    network.air.weather = Weather::CLEAR;
    for _ in 0..10 {
        network.run(network.now + 30 * SECOND);
        network.exchange_packets();
    }
    network.run(network.now + 30 * SECOND);
    check_standing(network);
    for (index, host) in network.parties.iter().enumerate() {
        let load = host.manager.load();
        assert_eq!((load.opening, load.half_open, load.closing), (0, 0, 0));
        assert_eq!(load.time_wait, 0);
        for (_, conn) in host.standing() {
            let mirror = network.mirror(index, conn);
            assert!(mirror.is_some_and(|(_, _, other)| other.stands), "{conn:?}");
        }
    }
}

/// After everything is closed nothing is left.
fn close_all(network: &mut Network) {
    for index in 0..network.parties.len() {
        let ids: Vec<u32> = network.parties[index].conns.keys().copied().collect();
        ids.into_iter().for_each(|id| network.close(index, id));
    }
    network.run(network.now + 30 * SECOND);
    for host in &network.parties {
        assert_eq!(*host.manager.load(), Default::default());
        assert!(host.conns.is_empty() && host.questions == 0);
        assert_eq!(host.manager.poll_timeout(), None);
    }
}

fn run(seed: u64) {
    let mut random = Rng::new(seed ^ 0x5eed);
    let hosts = 2 + random.below(2) as u8;
    let weather = Weather::bad(&mut random);
    let mut network = Network::new(seed, hosts, weather);
    for _ in 0..60 {
        random_step(&mut network);
        let pause = MILLISECOND * network.random.below(600);
        network.run(network.now + pause);
        check_standing(&network);
    }
    heal(&mut network);
    // Whatever happened before, two hosts can connect now.
    let before = network.parties[0].established;
    for _ in 0..20 {
        network.connect(0, 1);
        network.run(network.now + SECOND);
    }
    assert!(network.parties[0].established > before);
    close_all(&mut network);
}

#[test]
fn hosts_agree_in_the_end_whatever_the_network_did() {
    run_seeds(2_000, run);
}

#[test]
fn nearly_all_connections_come_to_stand_in_spite_of_40_per_cent_loss() {
    let weather = Weather {
        loss_per_mille: 400,
        duplicate_per_mille: 100,
        delay_ns: 20 * MILLISECOND,
    };
    let mut network = Network::new(9, 2, weather);
    for serial in 0..1_000 {
        network.connect(serial % 2, 1 - serial % 2);
        network.run(network.now + MILLISECOND);
    }
    for _ in 0..20 {
        network.run(network.now + SECOND);
        network.exchange_packets();
    }
    network.run(network.now + 300 * SECOND);
    // One program in ten rejects, one in twenty never decides, at either end.
    let both = network.parties.iter().map(|host| host.standing().count());
    let standing: usize = both.sum();
    assert!(standing >= 2 * 780, "{standing} ends of 2,000 stand");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let trace = |seed| {
        let mut network = Network::new(seed, 3, Weather::bad(&mut Rng::new(seed)));
        for _ in 0..60 {
            random_step(&mut network);
            network.run(network.now + 50 * MILLISECOND);
        }
        let of_host = |host: &super::hosts::Host| (*host.manager.counters(), host.conns.clone());
        network.parties.iter().map(of_host).collect::<Vec<_>>()
    };
    assert_eq!(trace(11), trace(11));
    assert_ne!(trace(11), trace(12));
}
