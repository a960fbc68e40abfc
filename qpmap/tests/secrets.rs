//! What a peer sees of an engine's numbers tells it nothing about the others.

use crate::common::Test;
use std::collections::BTreeSet;
use trunkline_conn::secret::{Purpose, Secret};
use trunkline_qpmap::key::Secret24;
use trunkline_qpmap::{Config, Engine};
use trunkline_wire::Worker;

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64, from which all numbers once came.
fn split_mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The state before an output of it.
fn invert(output: u64) -> u64 {
    let z = (output ^ (output >> 31) ^ (output >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
    let z = (z ^ (z >> 27) ^ (z >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
    z ^ (z >> 30) ^ (z >> 60)
}

/// What a REQ shows of the opener: the token of its end, and the number of its first packet.
type Shown = (u32, u64);

/// The token of the connection that is opened after one of which a peer saw this.
fn predict((token, first): Shown) -> Option<u32> {
    let states = (0..1 << 16).map(|low| invert(first << 16 | low));
    let mut fits =
        states.filter(|state| (split_mix(state.wrapping_sub(GAMMA)) >> 32) as u32 == token);
    fits.next()
        .map(|state| (split_mix(state.wrapping_add(GAMMA)) >> 32) as u32)
}

#[test]
fn what_a_req_shows_does_not_tell_the_token_of_the_next_connection() {
    // The attack is a good one: it tells all tokens of an engine that draws from SplitMix64.
    for seed in 0..8_u64 {
        let mut state = seed;
        let mut draw = || {
            state = state.wrapping_add(GAMMA);
            split_mix(state)
        };
        let shown = ((draw() >> 32) as u32, draw() >> 16);
        assert_eq!(predict(shown), Some((draw() >> 32) as u32));
    }
    let mut hits = 0;
    for seed in 0..8 {
        let mut engine: Engine<Test> = Engine::new(Config {
            secret: Secret::from_seed(seed),
            ..Config::default()
        });
        let (_, token) = engine.draw_connection().expect("there are numbers");
        let shown = (token, engine.draw_first());
        let (_, next) = engine.draw_connection().expect("there are numbers");
        hits += usize::from(predict(shown) == Some(next));
    }
    assert_eq!(hits, 0);
}

#[test]
fn numbers_of_connections_say_nothing_of_qpns() {
    let secret = Secret::from_seed(4);
    let numbers = |purpose| {
        let secret = Secret24::new(secret.stream(purpose), Worker::ONLY);
        (0..4096)
            .map(|index| secret.seal(index))
            .collect::<Vec<_>>()
    };
    let (qpns, connections) = (numbers(Purpose::Qpns), numbers(Purpose::Connections));
    let same = qpns.iter().zip(&connections).filter(|(a, b)| a == b);
    assert!(same.count() <= 2);
    // Nor is one the other by a constant.
    let apart: BTreeSet<u32> = qpns.iter().zip(&connections).map(|(a, b)| a ^ b).collect();
    assert!(apart.len() > 4000, "{}", apart.len());
}
