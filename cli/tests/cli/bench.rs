//! `trunkline bench`: two processes on loopback addresses of their own.

use crate::serving::Server;
use crate::{complaint, text};
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
#[ignore = "needs root and network namespaces"]
fn a_link_that_is_down_is_named() {
    for bind in ["", "--bind 10.9.0.1"] {
        let script = format!(
            "ip link add near type veth && ip address add 10.9.0.1/24 dev near && exec {} \
             bench lat --connect 10.9.0.2 {bind}",
            env!("CARGO_BIN_EXE_trunkline")
        );
        let output = Command::new("unshare")
            .args(["--net", "sh", "-c", &script])
            .output()
            .unwrap();
        let said = complaint(&output, 1);
        let why = "interface near, which leads to 10.9.0.2, is down";
        assert!(said.ends_with(why), "{said}");
    }
}

#[test]
fn every_mode_measures_every_operation_and_verifies_it() {
    let server = Server::start(&[]);
    for op in ["send", "write", "read", "atomic"] {
        for mode in ["lat", "bw", "rate"] {
            let mut words = vec![mode, "--op", op, "--verify", "--warmup", "0.01"];
            let size = match (op, mode) {
                ("atomic", _) => 8,
                (_, "lat") => 100,
                (_, "bw") => 200_000,
                _ => 64,
            };
            let bytes = size.to_string();
            words.extend(["--size", &bytes, "--qps", "5", "--connections", "2"]);
            let limit = if mode == "lat" {
                ["--iterations", "200"]
            } else {
                ["--duration", "0.2"]
            };
            words.extend(limit);
            let found = server.measure(&words);
            let place = format!("{mode} {op}: {found}");
            assert_eq!(found["mode"], mode, "{place}");
            assert_eq!(found["op"], op, "{place}");
            assert_eq!(found["size"], size, "{place}");
            assert_eq!(found["qps"], 5, "{place}");
            assert_eq!(found["complete"], true, "{place}");
            assert!(found["duration_s"].as_f64().unwrap() > 0.0, "{place}");
            let operations = found["operations"].as_u64().unwrap();
            let verified = found["verified_bytes"].as_u64().unwrap();
            assert!(operations > 0, "{place}");
            // A bandwidth or rate of WRITEs is verified at its end only.
            let least = if op == "write" && mode != "lat" {
                5 * size
            } else {
                operations * size
            };
            assert!(verified >= least, "{place}");
            assert!(found["counters"]["retransmitted"].is_u64(), "{place}");
            assert!(
                found["server_counters"]["executed"].as_u64().unwrap() >= operations,
                "{place}"
            );
            if mode == "lat" {
                assert_eq!(operations, 200, "{place}");
                let us = ["min", "p50", "p90", "p99", "p999", "max"]
                    .map(|name| found[format!("{name}_us")].as_f64().unwrap());
                assert!(us[0] > 0.0 && us.is_sorted(), "{place}");
                let mean = found["mean_us"].as_f64().unwrap();
                assert!((us[0]..=us[5]).contains(&mean), "{place}");
            } else {
                let [bytes, gbit, ops] = ["bytes_per_s", "gbit_per_s", "ops_per_s"]
                    .map(|name| found[name].as_f64().unwrap());
                assert!((bytes / (ops * size as f64) - 1.0).abs() < 1e-6, "{place}");
                assert!((gbit / (bytes * 8e-9) - 1.0).abs() < 1e-6, "{place}");
            }
        }
    }
    server.signal(Signal::INT);
    let (said, code) = server.end();
    assert_eq!(said.lines().count(), 12, "{said}");
    assert!(said.lines().all(|line| line.ends_with(": done")), "{said}");
    assert_eq!(code, Some(130));
}

#[test]
fn yardsticks_measure_the_same_without_the_transport() {
    let server = Server::start(&[]);
    for yardstick in ["port", "tcp"] {
        for (mode, size) in [("lat", 1), ("lat", 10_000), ("bw", 200_000), ("rate", 64)] {
            let bytes = size.to_string();
            let mut words = vec![mode, "--yardstick", yardstick, "--size", &bytes];
            words.extend(["--warmup", "0.01", "--duration", "0.2"]);
            let found = server.measure(&words);
            let place = format!("{yardstick} {mode}: {found}");
            assert_eq!(found["mode"], mode, "{place}");
            assert_eq!(found["yardstick"], yardstick, "{place}");
            assert_eq!(found["size"], size, "{place}");
            assert_eq!(found["complete"], true, "{place}");
            assert!(found.get("qps").is_none(), "{place}");
            let operations = found["operations"].as_u64().unwrap();
            assert!(operations > 0, "{place}");
            let figure = if mode == "lat" { "p50_us" } else { "ops_per_s" };
            assert!(found[figure].as_f64().unwrap() > 0.0, "{place}");
            if yardstick == "port" {
                let count = |end: &str, name: &str| found[end][name].as_u64().unwrap();
                assert!(count("counters", "datagrams_sent") >= operations, "{place}");
                assert!(found["counters"]["lost_datagrams"].is_u64(), "{place}");
                let received = count("server_counters", "datagrams_received");
                assert!(received >= operations, "{place}");
                for end in ["counters", "server_counters"] {
                    assert_eq!(count(end, "damaged_datagrams"), 0, "{place}");
                }
            }
        }
    }
    let words = ["lat", "--yardstick", "port", "--size", "1G"];
    let line = complaint(&server.client(&words).output().unwrap(), 1);
    assert!(line.contains("at most"), "{line}");
    server.signal(Signal::INT);
    let (said, code) = server.end();
    let done = said.lines().filter(|line| line.ends_with(": done"));
    assert_eq!(done.count(), 8, "{said}");
    assert_eq!(code, Some(130));
}

#[test]
fn messages_of_one_byte_and_of_many_packets_are_measured_too() {
    let server = Server::start(&[]);
    for op in ["send", "write", "read"] {
        for size in ["1", "300K"] {
            let words = [
                "lat",
                "--op",
                op,
                "--size",
                size,
                "--iterations",
                "20",
                "--warmup",
                "0",
            ];
            let found = server.measure(&[&words[..], &["--verify"]].concat());
            assert_eq!(found["operations"], 20, "{op} {size}");
        }
    }
    let found = server.measure(&["lat", "--duration", "0.1", "--warmup", "0"]);
    assert!(found["duration_s"].as_f64().unwrap() >= 0.1, "{found}");
}

#[test]
fn people_get_a_table_and_progress_every_second() {
    let server = Server::start(&["--once"]);
    let output = server
        .client(&["rate", "--duration", "2.5"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    for row in [
        "rate send of 64 bytes",
        "operations per second",
        "packets sent again",
    ] {
        assert!(stdout.contains(row), "{stdout}");
    }
    let laps = stderr
        .lines()
        .filter(|line| line.ends_with(" operations/s"))
        .count();
    assert!((1..=2).contains(&laps), "{stderr}");
    assert_eq!(server.end().1, Some(0));
}

#[test]
fn messages_that_take_longer_than_the_measurement_are_counted_all_the_same() {
    let server = Server::start(&[]);
    let mut client = server.client(&["bw", "--size", "512M", "--depth", "6"]);
    client.args(["--warmup", "0", "--duration", "0.05"]);
    let output = client.output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    let row = |name: &str| -> f64 {
        let row = stdout
            .lines()
            .find_map(|line| line.trim().strip_prefix(name));
        row.unwrap().trim().parse().unwrap()
    };
    assert_eq!(row("operations  "), 6.0, "{stdout}");
    let rate = 6.0 * f64::from(1 << 29) / row("seconds");
    assert!(
        (row("bytes per second") / rate - 1.0).abs() < 0.01,
        "{stdout}"
    );
    assert!(stderr.contains("requests still under way"), "{stderr}");
}

/// The processors that this thread may use.
fn processors() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap();
    let all = 0..CpuSet::MAX_CPU;
    all.filter(|processor| set.is_set(*processor)).collect()
}

/// Calls `act`, and runs all that it starts, on one processor.
fn on<T>(processor: usize, act: impl FnOnce() -> T) -> T {
    let before = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set(processor);
    sched_setaffinity(None, &one).unwrap();
    let result = act();
    sched_setaffinity(None, &before).unwrap();
    result
}

/// Both ends poll, each on a processor of its own: on one that they share each would wait for the
/// other's turn to end. Others may be busy there too, and a host may have both: one of several
/// runs has to show what the path takes.
#[test]
fn the_smallest_round_trip_of_connections_is_within_a_factor_of_two_of_a_ping_pong() {
    const TRIES: usize = 10;
    let all = processors();
    let &[first, .., last] = &all[..] else {
        println!("the factor is not judged: there is one processor for both ends");
        return;
    };
    let server = on(first, || Server::start(&[]));
    let mut factors = Vec::new();
    for _ in 0..TRIES {
        let found = on(last, || server.measure(&["rate", "--duration", "0.5"]));
        let [ping, factor] = ["ping_min_us", "ping_factor"].map(|name| {
            let value = found[name].as_f64();
            value.unwrap_or_else(|| panic!("no {name}: {found}"))
        });
        assert!(ping > 0.0 && factor >= 1.0, "{found}");
        factors.push(factor);
        if factor <= 2.0 {
            println!("factors {factors:.2?}");
            return;
        }
    }
    panic!("none of {factors:.2?} is within 2");
}

/// Where the ends wait for each other's turns on one processor, no number of round trips is had in
/// a short time: that must not make the measurement long.
#[test]
fn rate_takes_little_longer_than_it_is_asked_to() {
    let &[only, ..] = &processors()[..] else {
        panic!("a program runs on a processor")
    };
    let server = on(only, || Server::start(&[]));
    let began = Instant::now();
    let words = ["rate", "--duration", "1", "--warmup", "0", "--qps", "1"];
    on(only, || server.measure(&words));
    let took = began.elapsed();
    let most = Duration::from_secs(1) + Duration::from_millis(1500);
    assert!(took < most, "{took:?}");
}

#[test]
fn nodes_that_threads_drive_may_be_measured_for_longer_than_the_patience() {
    let server = Server::start(&["--timeout", "1"]);
    let words = [
        "bw",
        "--workers",
        "2",
        "--duration",
        "2.5",
        "--timeout",
        "1",
    ];
    let found = server.measure(&words);
    assert_eq!(found["complete"], true, "{found}");
    assert!(found["operations"].as_u64() > Some(0), "{found}");
    assert!(found["connections"].as_u64() > Some(0), "{found}");
}
