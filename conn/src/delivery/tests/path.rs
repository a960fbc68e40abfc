//! Laws of congestion control over one bottleneck.

use super::bottleneck::{Bottleneck, Change, Path, Tcp, jain};
use super::std::println;
use crate::control::CongestionControl;
use crate::time::{MICROSECOND, MILLISECOND, SECOND};

const DEFAULT: CongestionControl = CongestionControl::Delay;
const MBPS: u64 = 1_000_000;

fn alone(rate: u64, rtt_ns: u64, queue: u64) -> Bottleneck {
    Bottleneck::new(Path::new(rate, rtt_ns, queue)).ours(DEFAULT, 0)
}

#[test]
fn alone_the_default_fills_the_path() {
    for (mbps, rtt_ns, queue) in [
        (10, 10 * MICROSECOND, 15_000),
        (10, 100 * MILLISECOND, 125_000),
        (100, 2 * MILLISECOND, 15_000),
        (100, 2 * MILLISECOND, 100_000),
        (1_000, 200 * MICROSECOND, 100_000),
        (1_000, 2 * MILLISECOND, 62_500),
        (10_000, 10 * MICROSECOND, 50_000),
    ] {
        let mut world = alone(mbps * MBPS, rtt_ns, queue);
        let long = (SECOND * 400 / mbps).min(10 * SECOND);
        world.run(long / 2);
        let got = world.run(long)[0];
        println!("{mbps} Mb/s, {rtt_ns} ns, {queue} B: {got:.1}");
        assert!(
            got >= 0.95 * mbps as f64,
            "{mbps} Mb/s {rtt_ns} ns: {got} Mb/s"
        );
    }
}

/// A busy host's rounds take longer than a burst does to leave, and longer than the round trip.
#[test]
fn alone_the_default_fills_the_path_in_long_rounds_too() {
    for (rtt_ns, queue, least) in [
        (10 * MICROSECOND, 500_000, 0.85),
        (100 * MICROSECOND, 500_000, 0.9),
        (100 * MICROSECOND, 50_000, 0.4),
        (1_000 * MICROSECOND, 50_000, 0.5),
    ] {
        for round_ns in [0, 20 * MICROSECOND, 50 * MICROSECOND] {
            let path = Path {
                round_ns,
                ..Path::new(10_000 * MBPS, rtt_ns, queue)
            };
            let mut world = Bottleneck::new(path).ours(DEFAULT, 0);
            world.run(SECOND / 10);
            let got = world.run(SECOND / 5)[0];
            let dropped = world.dropped[0];
            println!("{rtt_ns} ns, {queue} B, rounds of {round_ns} ns: {got:.1}, -{dropped}");
            assert!(
                got >= least * 10_000.0,
                "{rtt_ns} {queue} {round_ns}: {got}"
            );
        }
    }
}

/// Runs for two seconds, makes the change, and compares what is sent after a second with `after`.
fn recovers(name: &str, path: Path, change: Change, after: u64) {
    for jitter_ns in [0, 20 * MICROSECOND] {
        let path = Path { jitter_ns, ..path };
        let mut world = Bottleneck::new(path)
            .ours(DEFAULT, 0)
            .at(2 * SECOND, change);
        let before = world.run(2 * SECOND)[0];
        world.run(3 * SECOND);
        let got = world.run(4 * SECOND)[0];
        println!("{name}, jitter {jitter_ns} ns: {before:.1}, then {got:.1} of {after}");
        assert!(got >= after as f64 / 2.0, "{name}: {before}, then {got}");
    }
}

#[test]
fn a_wrong_sample_costs_less_than_a_second() {
    let path = Path::new(100 * MBPS, 5_200 * MICROSECOND, 100_000);
    recovers("5 ms too long", path, Change::AckDelay(5_000_000), 100);
    let path = Path::new(100 * MBPS, 400 * MICROSECOND, 100_000);
    recovers("390 us too long", path, Change::AckDelay(390_000), 100);
    let path = Path::new(100 * MBPS, 2 * MILLISECOND, 100_000);
    recovers("unbelievable", path, Change::AckDelay(50_000_000), 100);
}

#[test]
fn a_path_that_changes_is_filled_again_within_a_second() {
    let path = |mbps, rtt_us| Path::new(mbps * MBPS, rtt_us * MICROSECOND, 250_000);
    let cases = [
        ("0.2 -> 1.2 ms", path(200, 200), Change::Rtt(1_200_000), 200),
        ("2 -> 6 ms", path(200, 2_000), Change::Rtt(6_000_000), 200),
        ("6 -> 2 ms", path(200, 6_000), Change::Rtt(2_000_000), 200),
        ("slower", path(200, 2_000), Change::Rate(20 * MBPS), 20),
        ("faster", path(20, 2_000), Change::Rate(200 * MBPS), 200),
    ];
    for (name, path, change, after) in cases {
        recovers(name, path, change, after);
    }
}

#[test]
fn beside_a_flow_of_tcp_nobody_starves() {
    for tcp in [Tcp::Reno, Tcp::Cubic] {
        for (mbps, rtt_ns, queue) in [
            (10, 20 * MILLISECOND, 15_000),
            (100, 4 * MILLISECOND, 15_000),
            (100, 4 * MILLISECOND, 50_000),
            (100, 4 * MILLISECOND, 200_000),
            (100, 4 * MILLISECOND, 500_000),
            (100, 40 * MILLISECOND, 125_000),
            (1_000, 200 * MICROSECOND, 25_000),
            (1_000, 200 * MICROSECOND, 250_000),
            (1_000, 2 * MILLISECOND, 30_000),
        ] {
            let path = Path::new(mbps * MBPS, rtt_ns, queue);
            let mut world = Bottleneck::new(path).ours(DEFAULT, 0).tcp(tcp, SECOND);
            let long = if mbps >= 1_000 { 5 } else { 25 } * SECOND;
            world.run(long / 5);
            let got = world.run(long);
            println!("{tcp:?} {mbps} Mb/s {rtt_ns} ns {queue} B: {got:.1?}");
            let least = got[0].min(got[1]);
            assert!(
                least >= 0.1 * mbps as f64,
                "{tcp:?} {mbps} Mb/s {rtt_ns} ns {queue} B: {got:?}"
            );
        }
    }
}

#[test]
fn flows_that_begin_one_after_the_other_come_to_share() {
    for flows in [2, 4] {
        for (mbps, rtt_ns, queue) in [
            (100, 2 * MILLISECOND, 100_000),
            (1_000, 200 * MICROSECOND, 100_000),
        ] {
            let mut world = Bottleneck::new(Path::new(mbps * MBPS, rtt_ns, queue));
            for flow in 0..flows {
                world = world.ours(DEFAULT, flow * 500 * MILLISECOND);
            }
            world.run(4 * SECOND);
            let got = world.run(6 * SECOND);
            println!("{flows} flows, {mbps} Mb/s: {got:.1?}");
            assert!(jain(&got) >= 0.9, "{flows} flows: {got:?}");
        }
    }
}

#[test]
fn loss_that_comes_of_sending_too_much_slows_every_controller() {
    for control in [CongestionControl::Dcqcn, CongestionControl::None, DEFAULT] {
        let path = Path::new(100 * MBPS, 2 * MILLISECOND, 50_000);
        let mut world = Bottleneck::new(path).ours(control, 0);
        world.run(2 * SECOND);
        let before = world.dropped[0];
        let got = world.run(5 * SECOND)[0];
        let dropped = world.dropped[0] - before;
        println!("{control:?}: {got:.1} Mb/s, {dropped} dropped");
        assert!(got > 80.0, "{control:?}: {got}");
        // Of 25,000 packets in three seconds.
        assert!(dropped < 5_000, "{control:?}: {dropped} dropped");
    }
}

#[test]
fn loss_that_does_not_need_a_slower_sender_does_not_get_one() {
    for (mbps, rtt_ns, loss_ppm) in [
        (1_000, 200 * MICROSECOND, 10_000),
        (100, 20 * MILLISECOND, 10_000),
        (100, 20 * MILLISECOND, 1_000),
    ] {
        let mut path = Path::new(mbps * MBPS, rtt_ns, 1 << 20);
        path.loss_ppm = loss_ppm;
        let mut world = Bottleneck::new(path).ours(DEFAULT, 0);
        world.run(SECOND);
        let got = world.run(3 * SECOND)[0];
        println!("{mbps} Mb/s, {loss_ppm} ppm: {got:.1}");
        assert!(
            got >= 0.8 * mbps as f64,
            "{mbps} Mb/s {loss_ppm} ppm: {got}"
        );
    }
}

#[test]
fn after_a_rest_the_old_window_does_not_leave_at_once() {
    let path = Path::new(1_000 * MBPS, 2 * MILLISECOND, 100_000);
    let mut world = Bottleneck::new(path)
        .ours(DEFAULT, 0)
        .at(SECOND, Change::Idle(true))
        .at(1_500 * MILLISECOND, Change::Rate(100 * MBPS))
        .at(2 * SECOND, Change::Idle(false));
    world.run(1_900 * MILLISECOND);
    let before = world.dropped[0];
    let got = world.run(2_500 * MILLISECOND)[0];
    let dropped = world.dropped[0] - before;
    println!("{dropped} dropped, {got:.1} Mb/s");
    assert!(dropped < 10, "{dropped} dropped");
    assert!(world.run(3 * SECOND)[0] > 80.0);
    assert!(world.connection(0).stats().min_rtt_ns < 3 * MILLISECOND);
}

#[test]
fn a_path_that_grew_longer_during_a_rest_is_filled_again_within_a_second() {
    for longer in [30, 50] {
        let path = Path::new(1_000 * MBPS, MILLISECOND, 250_000);
        let mut world = Bottleneck::new(path)
            .ours(DEFAULT, 0)
            .at(SECOND, Change::Idle(true))
            .at(1_500 * MILLISECOND, Change::Rtt(longer * MILLISECOND))
            .at(2 * SECOND, Change::Idle(false));
        world.run(2 * SECOND);
        // Twenty round trips are at most a second.
        world.run(3 * SECOND);
        let got = world.run(4 * SECOND)[0];
        assert!(got >= 500.0, "{longer} ms: {got} Mb/s");
    }
}
