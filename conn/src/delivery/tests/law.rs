//! Thousands of seeded links: each packet accepted once, each item acknowledged once, and always
//! an end.

use super::std::println;

use super::super::{Config, Policy};
use super::link::{Link, World};
use crate::control::CongestionControl;
use crate::time::SECOND;
use trunkline_testkit::Rng;

/// Seeds per control and test run.
const SEEDS: u64 = 3_000;

fn draw_link(rng: &mut Rng) -> Link {
    let harsh = rng.below(4) == 0;
    let ppm = |rng: &mut Rng| match rng.below(3) {
        0 => 0,
        1 => rng.below(20_000),
        _ => rng.below(if harsh { 400_000 } else { 100_000 }),
    };
    Link {
        bytes_per_us: 1 << (6 + rng.below(8)),
        delay_ns: 500 << rng.below(8),
        queue_bytes: 20_000 << rng.below(6),
        mark_bytes: if rng.below(2) == 0 {
            u64::MAX
        } else {
            5_000 << rng.below(5)
        },
        loss_ppm: ppm(rng),
        dup_ppm: ppm(rng),
        reorder_ppm: ppm(rng),
        late_ns: 1_000 << rng.below(8),
        port_skew_ns: if rng.below(3) == 0 {
            rng.below(20_000)
        } else {
            0
        },
        faults_end: u64::MAX,
        ..Link::CLEAN
    }
}

fn draw_start(rng: &mut Rng) -> u64 {
    let around: u64 = match rng.below(5) {
        0 => 0,
        1 => 1 << 24,
        2 => 1 << 32,
        3 => (1 << 40) + (1 << 32),
        _ => rng.next() >> 2,
    };
    around.saturating_sub(rng.below(300))
}

fn law(seed: u64, control: CongestionControl) {
    let mut rng = Rng::new(seed);
    let window = 64 << rng.below(11);
    let config = Config {
        first_tx: draw_start(&mut rng),
        first_rx: draw_start(&mut rng),
        packet_size: 256 << rng.below(6),
        control,
        window,
        source_ports: 1 + rng.below(4) as u8,
        ..Config::default()
    };
    let policy = Policy {
        link_rate_bps: (rng.below(2) == 0).then(|| 1_000_000_000 << rng.below(7)),
        ack_every: 1 + rng.below(64) as u16,
        max_ack_delay_ns: 1_000 << rng.below(7),
        dead_after_ns: 3_600 * SECOND,
        ..Policy::default()
    };
    let links = [draw_link(&mut rng), draw_link(&mut rng)];
    let both = rng.below(2) == 0;
    let want = [
        1 + rng.below(600),
        if both { 1 + rng.below(600) } else { 0 },
    ];
    let mut world = World::new(rng.next(), &config, &policy, links, want);
    world.idle_often = rng.below(2) == 0;
    for end in &mut world.ends {
        end.mixed = rng.below(2) == 0;
        end.refuse_ppm = if rng.below(3) == 0 {
            rng.below(200_000)
        } else {
            0
        };
    }
    let deadline = world.now + 600 * SECOND;
    let done = world.run(deadline, World::is_done);
    assert!(
        done,
        "seed {seed} {control:?} does not end: {config:?} {links:?} {world:#?}"
    );
    let settle = world.now + SECOND;
    world.run(settle, |_| false);
    for end in &mut world.ends {
        assert_eq!(end.connection.in_flight(), 0, "seed {seed}");
        assert_eq!(end.connection.unacked().count(), 0, "seed {seed}");
        assert_eq!(end.events, [], "seed {seed}");
        let _ = end.connection.try_idle(&mut end.pool);
        assert!(
            end.connection.is_idle(),
            "seed {seed}: an end at rest can be idle"
        );
        assert_eq!(end.pool.taken(), 0);
    }
}

/// `TRUNKLINE_SEED` replays one seed, `TRUNKLINE_SEEDS` runs as many as wanted.
fn seeds() -> core::ops::Range<u64> {
    let number = |name| {
        super::std::env::var(name)
            .ok()
            .and_then(|text| text.parse().ok())
    };
    match number("TRUNKLINE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TRUNKLINE_SEEDS").unwrap_or(SEEDS),
    }
}

#[test]
fn every_packet_is_accepted_once_and_every_item_acknowledged_once_under_delay_control() {
    seeds().for_each(|seed| law(seed, CongestionControl::Delay));
}

#[test]
fn every_packet_is_accepted_once_and_every_item_acknowledged_once_under_dcqcn() {
    seeds().for_each(|seed| law(seed, CongestionControl::Dcqcn));
}

#[test]
fn every_packet_is_accepted_once_and_every_item_acknowledged_once_without_control() {
    seeds().for_each(|seed| law(seed, CongestionControl::None));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let link = Link {
            loss_ppm: 20_000,
            reorder_ppm: 50_000,
            late_ns: 9_000,
            ..Link::CLEAN
        };
        let config = Config::default();
        let mut world = World::new(77, &config, &Policy::default(), [link; 2], [2_000, 1_500]);
        assert!(world.run(10 * SECOND, World::is_done));
        (
            world.now,
            world.ends[0].connection.stats(),
            world.ends[1].connection.stats(),
        )
    };
    assert_eq!(run(), run());
}

#[test]
fn a_link_that_is_cut_for_a_second_recovers_within_another() {
    let policy = Policy {
        dead_after_ns: 100 * SECOND,
        ..Policy::default()
    };
    let mut world = World::new(
        5,
        &Config::default(),
        &policy,
        [Link::CLEAN; 2],
        [200_000, 10],
    );
    let half = world.now + 2_000_000;
    assert!(!world.run(half, World::is_done));
    world.cut = true;
    let healed = half + SECOND;
    assert!(!world.run(healed, World::is_done));
    world.cut = false;
    assert!(world.run(healed + 2 * SECOND, World::is_done));
    let stats = world.ends[0].connection.stats().counters;
    println!(
        "cut for a second: {stats:?}, healed after {} us",
        (world.now - healed) / 1000
    );
    assert!(stats.probes > 3 && stats.probes < 100, "{stats:?}");
}
