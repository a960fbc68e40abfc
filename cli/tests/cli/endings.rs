//! How a measurement of `trunkline bench` ends before its time, and what is said of it.

use crate::common::address;
use crate::serving::{PATIENCE, Server, finish, piped};
use crate::{complaint, run, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

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
        // Requests may end a moment before the measurement does.
        let silent = format!("{} does not answer", server.address);
        let line = complaint(&output, 1);
        let why = line.strip_prefix("nothing moved for 1s: ").unwrap_or(&line);
        assert_eq!(why, silent, "{mode}");
        server.signal(Signal::CONT);
        // What is left of that client is gone before the next comes.
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_client_that_falls_silent_is_an_error_after_the_timeout() {
    for mode in ["lat", "bw", "rate"] {
        let server = Server::start(&["--once", "--timeout", "1"]);
        let words = [mode, "--duration", "600", "--timeout", "1"];
        let mut child = piped(server.client(&words));
        std::thread::sleep(Duration::from_millis(500));
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        let began = Instant::now();
        let (said, code) = server.end();
        let took = began.elapsed();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(took < Duration::from_secs(3), "{mode}: {took:?}");
        assert!(said.contains("does not answer"), "{mode}: {said}");
        assert_eq!(code, Some(1), "{mode}");
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
fn a_server_whose_words_nobody_hears_serves_on() {
    let mut server = Server::start(&[]);
    server.leave();
    for _ in 0..2 {
        let measured = server.measure(&["lat", "--iterations", "10"]);
        assert_eq!(measured["operations"], 10);
    }
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
    let yardstick = |size: u64, kind: &str, address: &str, payload: u64| {
        let (params, end) = (
            params(size, "delay"),
            format!("\"{address}\",\"payload\":{payload}"),
        );
        format!(
            "{{\"say\":\"yardstick\",\"version\":3,\"yardstick\":\"{kind}\",{params},\
             \"end\":{{\"address\":{end}}}}}\n"
        )
    };
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
        (yardstick(64, "rdma", "127.0.0.1:0", 4096), ""),
        (
            yardstick(1 << 50, "tcp", "127.0.0.1:0", 0),
            "--size: 1125899906842624",
        ),
        (
            yardstick(64, "port", "127.0.0.1:0", 0),
            "datagrams with 0 bytes",
        ),
        (yardstick(64, "port", "[::1]:0", 256), "different families"),
        (
            yardstick(1 << 20, "port", "127.0.0.1:0", 256),
            "at most 49152",
        ),
        // The connection for its messages does not come.
        (yardstick(64, "tcp", "127.0.0.1:0", 0), "yardstick_ready"),
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
    assert_eq!(said.lines().count(), 15, "{said}");
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
    let output = run(&["bench", "lat", "--connect", &nobody, "--tcp-port", "1"]);
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
            "--tcp-port",
            &server.port.to_string(),
        ])
        .args(["--bind", &taken])
        .output()
        .unwrap();
    assert!(complaint(&mine, 1).contains("another address with --bind"));

    let elsewhere = run(&["bench", "lat", "--listen", "192.0.2.1"]);
    assert!(complaint(&elsewhere, 1).contains("cannot start a node on 192.0.2.1"));
}

#[test]
fn who_has_a_port_and_which_option_takes_another_one_is_told() {
    let server = Server::start(&[]);
    let (at, port) = (server.address.to_string(), server.port.to_string());
    let output = run(&["bench", "lat", "--listen", &at, "--tcp-port", &port]);
    let line = complaint(&output, 1);
    let owner = format!("TCP port taken by process {} (trunkline)", server.pid());
    assert!(line.contains(&owner), "{line}");
    assert!(line.ends_with("with --tcp-port, at both ends"), "{line}");

    let (client, other) = (address(), address().to_string());
    let _own = UdpSocket::bind((client, 4791)).unwrap();
    let at = client.to_string();
    let to = server.address.to_string();
    let bench = ["bench", "lat", "--connect", &to, "--tcp-port", &port];
    for (words, option) in [
        (&["bench", "lat", "--listen", &at][..], "--listen"),
        (&[&bench[..], &["--bind", &at]].concat(), "--bind"),
        (
            &["demo", "--json", "--client", &at, "--server", &other],
            "--client",
        ),
        (
            &["demo", "--json", "--client", &other, "--server", &at],
            "--server",
        ),
    ] {
        let line = complaint(&run(words), 1);
        let owner = format!("{at}:4791 is taken by process {}", std::process::id());
        assert!(line.contains(&owner), "{line}");
        let option = format!("choose another address with {option}");
        assert!(line.ends_with(&option), "{line}");
    }
}
