//! The models of TCP do what TCP is known to do, and runs repeat.

use super::run;
use super::scenario::{Change, Rival, Scenario, Step};
use trunkline_conn::control::CongestionControl;
use trunkline_conn::time::{MILLISECOND, SECOND};

fn tcp(rival: Rival) -> Scenario {
    Scenario {
        rate: 100_000_000,
        rtt: 10 * MILLISECOND,
        queue: 125_000,
        flows: 0,
        rival: Some(rival),
        length: 20 * SECOND,
        ..Scenario::default()
    }
}

#[test]
fn tcp_alone_fills_a_path_with_a_whole_product_of_queue() {
    for rival in [Rival::Reno, Rival::Cubic] {
        let outcome = run(&tcp(rival));
        let rate = outcome.flows[0].between(2 * SECOND, 20 * SECOND);
        assert!((95.0..=100.1).contains(&rate), "{rival:?}: {rate}");
        assert_eq!(outcome.max_queue / 1500, 125_000 / 1500, "{rival:?}");
        assert!(outcome.drops > 0, "{rival:?}");
    }
}

#[test]
fn reno_with_little_queue_leaves_part_of_a_path_unused() {
    let scenario = Scenario {
        queue: 15_000,
        ..tcp(Rival::Reno)
    };
    let rate = run(&scenario).flows[0].between(5 * SECOND, 20 * SECOND);
    assert!((60.0..92.0).contains(&rate), "{rate}");
}

#[test]
fn random_loss_holds_reno_to_the_formula_of_mathis() {
    // MSS / RTT * sqrt(3/2) / sqrt(p): 1500 * 8 / 10 ms * 1.22 / 0.1 = 14.7 Mb/s.
    let scenario = Scenario {
        loss: 0.01,
        ..tcp(Rival::Reno)
    };
    let rate = run(&scenario).flows[0].between(2 * SECOND, 20 * SECOND);
    assert!((10.0..18.0).contains(&rate), "{rate}");
}

#[test]
fn tcp_survives_a_path_that_slows_down_a_hundredfold() {
    let at = 5 * SECOND;
    let change = Change::Rate(1_000_000);
    let scenario = Scenario {
        steps: vec![Step { at, change }],
        length: 40 * SECOND,
        ..tcp(Rival::Cubic)
    };
    let rate = run(&scenario).flows[0].between(20 * SECOND, 40 * SECOND);
    assert!((0.9..=1.01).contains(&rate), "{rate}");
}

#[test]
fn equal_scenarios_give_equal_outcomes_and_seeds_other_ones() {
    let scenario = Scenario {
        rate: 50_000_000,
        loss: 0.001,
        jitter: MILLISECOND,
        flows: 2,
        rival: Some(Rival::Cubic),
        length: 2 * SECOND,
        ..Scenario::default()
    };
    let text = |scenario: &Scenario| {
        serde_json::to_string(&run(scenario)).expect("an outcome has a form in JSON")
    };
    assert_eq!(text(&scenario), text(&scenario));
    let other = Scenario {
        seed: 2,
        ..scenario.clone()
    };
    assert_ne!(text(&scenario), text(&other));
}

#[test]
fn what_is_counted_is_what_the_bottleneck_carries() {
    let scenario = Scenario {
        rate: 100_000_000,
        control: CongestionControl::None,
        length: 2 * SECOND,
        ..Scenario::default()
    };
    let outcome = run(&scenario);
    let rate = outcome.flows[0].mbps;
    assert!(rate > 10.0 && rate <= 100.0, "{rate}");
    assert_eq!(outcome.flows[0].name, "trunkline");
}

#[test]
fn an_idle_time_is_silent() {
    let scenario = Scenario {
        idle: vec![(SECOND, 2 * SECOND)],
        length: 3 * SECOND,
        rate: 10_000_000,
        ..Scenario::default()
    };
    let seconds = run(&scenario).flows[0].per_second.clone();
    assert!(seconds[1] < seconds[0] / 4.0, "{seconds:?}");
    assert!(seconds[2] > seconds[1], "{seconds:?}");
}

/// What a path carries once it has become longer while its flow had nothing to send.
fn after_a_rest(rate: u64, rtt: u64, longer: u64) -> f64 {
    let (rest, end) = (2 * SECOND, 4 * SECOND);
    let scenario = Scenario {
        rate,
        rtt,
        idle: vec![(rest, end)],
        steps: vec![Step {
            at: 3 * SECOND,
            change: Change::Rtt(longer),
        }],
        length: end + 5 * SECOND,
        ..Scenario::default()
    };
    let outcome = run(&scenario);
    let deadline = end + (20 * longer).max(SECOND);
    outcome.flows[0].between(deadline, deadline + SECOND) / (rate as f64 / 1e6)
}

#[test]
fn a_path_that_becomes_longer_during_a_rest_is_filled_again_within_twenty_round_trips() {
    let ms = MILLISECOND;
    for (rate, rtt, longer) in [
        (1_000_000_000, ms, 50 * ms),
        (1_000_000_000, ms, 30 * ms),
        (10_000_000, ms, 100 * ms),
    ] {
        let share = after_a_rest(rate, rtt, longer);
        assert!(share >= 0.5, "{rate} bit/s, {rtt} to {longer} ns: {share}");
    }
}
