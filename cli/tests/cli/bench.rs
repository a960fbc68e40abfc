//! `trunkline bench`: two processes on loopback addresses of their own.

use crate::common::address;
use crate::{complaint, run, text, trunkline};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// More than anything here should take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server process.
struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: IpAddr,
    port: u16,
}

impl Server {
    fn start(words: &[&str]) -> Self {
        let address = address();
        let listen = address.to_string();
        let mut command = trunkline(&["bench", "lat", "--listen", &listen, "--port", "0"]);
        let mut child = command.args(words).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let port = line.trim().rsplit(' ').next().unwrap();
        let port = port.parse().unwrap_or_else(|_| panic!("{line}"));
        Self {
            child,
            stderr,
            address,
            port,
        }
    }

    /// A client of it.
    fn client(&self, words: &[&str]) -> Command {
        let (to, port, bind) = (self.address, self.port, address());
        let mut command = trunkline(&["bench"]);
        command.args(words);
        command.args(["--connect", &to.to_string(), "--port", &port.to_string()]);
        command.args(["--bind", &bind.to_string()]);
        command
    }

    /// What a client measured.
    #[track_caller]
    fn measure(&self, words: &[&str]) -> Value {
        let output = self.client(words).arg("--json").output().unwrap();
        assert!(
            output.status.success(),
            "{words:?}: {}",
            text(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The rest of what it says, and its exit code.
    fn end(mut self) -> (String, Option<i32>) {
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).unwrap();
        let code = wait(&mut self.child);
        (said, code)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait(child: &mut Child) -> Option<i32> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The end of a process with its output piped.
fn finish(mut child: Child) -> Output {
    wait(&mut child);
    child.wait_with_output().unwrap()
}

fn piped(mut command: Command) -> Child {
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
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

/// Whether so many processes had something to do that none can be timed: why.
fn is_noisy() -> Option<String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = load.split(' ').next()?.parse().ok()?;
    let noisy = cores < 4 || load > cores as f64 / 4.0;
    noisy.then(|| format!("{load} processes run on {cores} cores"))
}

#[test]
fn the_smallest_round_trip_of_connections_is_within_a_factor_of_two_of_a_ping_pong() {
    const TRIES: usize = 3;
    let server = Server::start(&[]);
    for attempt in 1..=TRIES {
        let noisy = is_noisy();
        let found = server.measure(&["rate", "--duration", "0.5"]);
        let [ping, factor] = ["ping_min_us", "ping_factor"].map(|name| {
            let value = found[name].as_f64();
            value.unwrap_or_else(|| panic!("no {name}: {found}"))
        });
        assert!(ping > 0.0 && factor >= 1.0, "{found}");
        if let Some(why) = noisy {
            println!("the factor, {factor:.2}, is not judged: {why}");
        } else if factor <= 2.0 {
            return;
        } else {
            assert!(attempt < TRIES, "factor {factor:.2}: {found}");
        }
    }
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

#[test]
fn ctrl_c_prints_what_there_is() {
    let server = Server::start(&[]);
    let child = piped(server.client(&["bw", "--duration", "600", "--json"]));
    std::thread::sleep(Duration::from_millis(700));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = finish(child);
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(text(&output.stderr), "");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["complete"], false);
    // The server goes on.
    assert_eq!(
        server.measure(&["lat", "--iterations", "10"])["operations"],
        10
    );
}

#[test]
fn a_server_that_is_killed_is_an_error_at_once() {
    let server = Server::start(&[]);
    let child = piped(server.client(&["bw", "--duration", "600", "--json"]));
    std::thread::sleep(Duration::from_millis(500));
    server.signal(Signal::KILL);
    let began = Instant::now();
    let output = finish(child);
    assert!(
        began.elapsed() < Duration::from_secs(9),
        "{:?}",
        began.elapsed()
    );
    let (address, port) = (server.address, server.port);
    assert_eq!(
        complaint(&output, 1),
        format!("the server at {address}:{port} went away")
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn ctrl_c_of_a_server_is_told_by_its_client() {
    for mode in ["lat", "bw", "rate"] {
        let server = Server::start(&[]);
        let child = piped(server.client(&[mode, "--duration", "600", "--json"]));
        std::thread::sleep(Duration::from_millis(700));
        server.signal(Signal::INT);
        let (address, port) = (server.address, server.port);
        assert_eq!(
            complaint(&finish(child), 1),
            format!("the server at {address}:{port} says: interrupted"),
            "{mode}"
        );
        assert_eq!(server.end(), (String::new(), Some(130)), "{mode}");
    }
}

#[test]
fn ctrl_c_of_a_client_is_told_by_its_server() {
    let server = Server::start(&["--once"]);
    let child = piped(server.client(&["bw", "--op", "send", "--duration", "600", "--json"]));
    std::thread::sleep(Duration::from_millis(700));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    finish(child);
    let (said, code) = server.end();
    assert_eq!(code, Some(1), "{said}");
    let line = said.strip_prefix("trunkline: ").unwrap();
    let (client, why) = line.trim_end().rsplit_once(": ").unwrap();
    assert_eq!(why, "the client went away", "{said}");
    client.parse::<std::net::SocketAddr>().unwrap();
}

#[test]
fn a_server_that_is_silent_for_less_than_the_timeout_is_waited_for() {
    let server = Server::start(&[]);
    for mode in ["lat", "bw"] {
        let words = [mode, "--duration", "7", "--timeout", "30", "--json"];
        let child = piped(server.client(&words));
        std::thread::sleep(Duration::from_secs(1));
        server.signal(Signal::STOP);
        std::thread::sleep(Duration::from_secs(5));
        server.signal(Signal::CONT);
        let output = finish(child);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found["complete"], true, "{found}");
    }
}

#[test]
fn a_server_that_falls_silent_is_an_error_after_the_timeout() {
    let server = Server::start(&[]);
    for mode in ["lat", "bw"] {
        let child = piped(server.client(&[mode, "--duration", "600", "--timeout", "1", "--json"]));
        std::thread::sleep(Duration::from_millis(500));
        server.signal(Signal::STOP);
        let began = Instant::now();
        let output = finish(child);
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            began.elapsed()
        );
        let silent = format!("nothing moved for 1s: {} does not answer", server.address);
        assert_eq!(complaint(&output, 1), silent, "{mode}");
        server.signal(Signal::CONT);
        // What is left of that client is gone before the next comes.
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_client_that_vanishes_makes_room_for_the_next() {
    let server = Server::start(&[]);
    let mut child = piped(server.client(&["rate", "--duration", "600"]));
    std::thread::sleep(Duration::from_millis(300));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(
        server.measure(&["lat", "--iterations", "10"])["operations"],
        10
    );
    server.signal(Signal::INT);
    let (said, code) = server.end();
    assert!(said.contains("went away"), "{said}");
    assert_eq!((said.lines().count(), code), (2, Some(130)), "{said}");
}

#[test]
fn clients_that_talk_nonsense_are_refused_and_the_next_is_served() {
    let server = Server::start(&["--timeout", "1"]);
    let end = "\"end\":{\"node\":\"127.0.0.1\",\"qps\":[[17,0]],\"addr\":0,\"rkey\":0}";
    let params = |size: u64, control: &str| {
        format!(
            "\"params\":{{\"mode\":\"lat\",\"op\":\"send\",\"size\":{size},\"qps\":1,\
             \"connections\":1,\"depth\":1,\"control\":\"{control}\",\"verify\":false,\
             \"timeout\":{{\"secs\":1,\"nanos\":0}}}}"
        )
    };
    let hello = |params: String| format!("{{\"say\":\"hello\",\"version\":3,{params},{end}}}\n");
    let newer = "{\"say\":\"hello\",\"version\":4}\n".to_owned();
    for (says, answer) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), ""),
        (newer, ""),
        (hello(params(1 << 50, "delay")), "--size: 1125899906842624"),
        (hello(params(64, "magic")), ""),
        (
            hello(params(64, "delay")).replace("[17,0]", "[99999999,0]"),
            "more than 24 bits",
        ),
        (
            hello(params(64, "delay")).replace("[17,0]", "[1,0],[2,0]"),
            "2 QPs, not 1",
        ),
        ("{\"say\":\"stop\",\"counts\":[]}\n".to_owned(), ""),
        (String::new(), ""),
    ] {
        let mut stream = TcpStream::connect((server.address, server.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(says.as_bytes()).unwrap();
        let mut answered = Vec::new();
        // A connection that is cut has been answered as well.
        let _ = stream.read_to_end(&mut answered);
        assert!(
            text(&answered).contains(answer),
            "{says}: {}",
            text(&answered)
        );
    }
    assert_eq!(
        server.measure(&["lat", "--iterations", "10"])["operations"],
        10
    );
    server.signal(Signal::INT);
    let (said, _) = server.end();
    assert_eq!(said.lines().count(), 9, "{said}");
    for why in [
        "is no 'trunkline bench'",
        "speaks version 4",
        "does not say hello",
        "says nothing",
    ] {
        assert!(said.contains(why), "{why}: {said}");
    }
}

#[test]
fn what_cannot_be_reached_or_bound_is_one_line() {
    let nobody = address().to_string();
    let output = run(&["bench", "lat", "--connect", &nobody, "--port", "1"]);
    let line = complaint(&output, 1);
    assert!(
        line.starts_with(&format!("no server at {nobody}:1")),
        "{line}"
    );
    assert!(line.contains("trunkline bench lat --listen"), "{line}");

    let server = Server::start(&[]);
    let taken = server.address.to_string();
    let mine = Command::new(env!("CARGO_BIN_EXE_trunkline"))
        .args([
            "bench",
            "lat",
            "--connect",
            &taken,
            "--port",
            &server.port.to_string(),
        ])
        .args(["--bind", &taken])
        .output()
        .unwrap();
    assert!(complaint(&mine, 1).contains("another address with --bind"));

    let elsewhere = run(&["bench", "lat", "--listen", "192.0.2.1"]);
    assert!(complaint(&elsewhere, 1).contains("cannot start a node on 192.0.2.1"));
}
