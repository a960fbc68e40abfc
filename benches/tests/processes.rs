//! Benchmarks of several processes measure something in a few milliseconds, too.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use serde_json::Value;
use std::process::Command;

/// Runs a benchmark; gives what it found, and its notes.
fn run(name: &str) -> (Value, String) {
    let record = std::env::temp_dir().join(format!("{name}-{}.json", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_trunkline-benches"))
        .args(["--only", name, "--duration", "0.02", "--rounds", "1"])
        .arg("--record")
        .arg(&record)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read(&record).unwrap();
    std::fs::remove_file(&record).unwrap();
    let found: Value = serde_json::from_slice(&text).unwrap();
    let result = &found["results"][0];
    for figure in ["value", "yardstick_value", "ratio"] {
        assert!(result[figure].as_f64().unwrap() > 0.0, "{name}: {found}");
    }
    let notes = found["notes"].as_array().unwrap().iter();
    let notes: Vec<_> = notes.map(|note| note.as_str().unwrap()).collect();
    (result.clone(), notes.join("\n"))
}

#[test]
fn sends_between_processes_are_measured() {
    let (result, notes) = run("udp_send64");
    let ucx = result["yardstick"].as_str().unwrap().contains("ucx");
    assert!(ucx || notes.contains("ucx-utils"), "{notes}");
}

#[test]
fn calls_between_processes_are_measured_however_many_are_under_way() {
    for name in [
        "rpc_echo_1",
        "rpc_echo_100",
        "rpc_echo_10000",
        "grpc_echo",
        "grpc_stream64k",
    ] {
        let (_, notes) = run(name);
        let lines = notes.lines().filter(|line| line.contains("of CPU each"));
        assert!(lines.count() >= 2, "{notes}");
    }
}
