//! What peers hear of QPs that they have nothing to do with, however many addresses they have.

use crate::common::Pair;
use crate::common::liar::{Liar, NODE_V6, entry};
use std::net::{IpAddr, Ipv6Addr};
use trunkline_conn::time::SECOND;
use trunkline_wire::{ControlKind, Qpn};

/// Entries of a CONTROL packet.
const ENTRIES: usize = 40;
/// What an address hears at once.
const AT_ONCE: usize = 4096;

fn host(network: u128, host: u128) -> IpAddr {
    Ipv6Addr::from_bits(0x2001_0db8 << 96 | network << 64 | host).into()
}

/// Two nodes, node 1 at its IPv6 address.
fn pair() -> Pair {
    Pair::configured(0, 1104, |config| config.address = NODE_V6)
}

/// It searches for numbers of QPs: as many BINDs for other numbers each.
fn search(pair: &mut Pair, liar: &mut Liar, from: u32) {
    let guess = |n: u32| {
        entry(
            ControlKind::Bind,
            5,
            Qpn::from_wire(0x10_0000 + from + n),
            1,
            0,
        )
    };
    let guesses: Vec<_> = (0..ENTRIES as u32).map(guess).collect();
    liar.control(pair, &guesses);
}

/// Refusals that these hear in one round.
fn hear(pair: &mut Pair, liars: &mut [Liar]) -> usize {
    let sent = pair.sent_by(1);
    let said = liars.iter_mut().flat_map(|liar| liar.takes_control(&sent));
    said.filter(|said| said.kind == ControlKind::Refused)
        .count()
}

/// Refusals that these hear of what they ask in so many rounds.
fn refused(pair: &mut Pair, liars: &mut [Liar], rounds: u32) -> usize {
    let mut heard = 0;
    for round in 0..rounds {
        for liar in &mut *liars {
            search(pair, liar, round * ENTRIES as u32);
        }
        heard += hear(pair, liars);
    }
    heard + hear(pair, liars)
}

#[test]
fn a_host_with_all_addresses_of_a_network_learns_as_much_as_two_hosts_and_others_theirs() {
    let mut pair = pair();
    let mut liars: Vec<_> = (1..=32)
        .map(|n| Liar::at(&mut pair, host(1, n), n as u64))
        .collect();
    let heard = refused(&mut pair, &mut liars, 20);
    assert!((2 * AT_ONCE..2 * AT_ONCE + 100).contains(&heard), "{heard}");
    let mut others = [Liar::at(&mut pair, host(2, 1), 100)];
    assert_eq!(
        refused(&mut pair, &mut others, 1),
        ENTRIES,
        "another network"
    );
    pair.now = pair.now + SECOND;
    let heard = refused(&mut pair, &mut liars, 3);
    assert!((2000..2100).contains(&heard), "{heard}");
}

#[test]
fn peers_that_take_no_refusals_hold_few_and_leave_room_to_another() {
    let mut pair = pair();
    let mut liars: Vec<_> = (1..=100)
        .map(|n| Liar::at(&mut pair, host(n, 1), n as u64))
        .collect();
    for round in 0..40 {
        for liar in &mut liars {
            search(&mut pair, liar, round * ENTRIES as u32);
        }
    }
    let waiting = |pair: &Pair| pair.nodes[1].engine.live_objects().control_messages;
    let most = waiting(&pair);
    assert!(most <= (1 << 16) + 100, "{most}");
    let mut other = [Liar::at(&mut pair, host(200, 1), 200)];
    let heard = refused(&mut pair, &mut other, 5);
    assert!(heard > 0);
    // The port takes nothing either, and in the end their connections die with what waits.
    pair.room = Some(0);
    assert!(waiting(&pair) > 1000);
    pair.run(60 * SECOND);
    assert_eq!(waiting(&pair), 0);
}
