//! `--metrics`, as Prometheus scrapes it.

use crate::complaint;
use crate::serving::{PATIENCE, Server, piped};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// What a server answers to `request`: head and body.
fn ask(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

fn scrape(address: &str) -> BTreeMap<String, f64> {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let (head, body) = ask(address, &request);
    assert!(head.starts_with("http/1.1 200 ok\r\n"), "{head}");
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(kind) && body.ends_with("# EOF\n"), "{head}");
    let length = format!("content-length: {}\r\n", body.len());
    assert!(head.contains(&length), "{head}");
    let samples = body.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    });
    samples.collect()
}

/// Where a process tells its metrics, as it says itself.
fn told_at(line: &str) -> String {
    let at = line.strip_prefix("metrics at http://");
    let at = at.and_then(|at| at.strip_suffix("/metrics"));
    at.unwrap_or_else(|| panic!("{line}")).to_owned()
}

#[test]
fn a_server_tells_what_its_node_counts_while_a_client_measures() {
    let mut server = Server::start(&["--metrics", "127.0.0.1:0"]);
    let line = server.line();
    let at = told_at(&line);
    // Between clients there is no node.
    assert!(scrape(&at).is_empty());
    let mut client = piped(server.client(&["bw", "--op", "send", "--duration", "60"]));
    let began = Instant::now();
    let mut before = 0.0;
    for _ in 0..2 {
        // It counts, and goes on to.
        loop {
            let found = scrape(&at);
            let executed = found.get("trunkline_engine_executed_total");
            if executed.is_some_and(|count| *count > before) {
                before = *executed.unwrap();
                let received = found["trunkline_port_received_bytes_total"];
                assert!(
                    received > found["trunkline_port_received_total"],
                    "{found:?}"
                );
                break;
            }
            assert!(began.elapsed() < PATIENCE, "nothing counts: {found:?}");
        }
    }
    client.kill().unwrap();
    client.wait().unwrap();
    while !scrape(&at).is_empty() {
        assert!(began.elapsed() < PATIENCE, "the node does not end");
    }
    // Its address is free for the next one.
    assert_eq!(
        server.measure(&["lat", "--iterations", "10"])["operations"],
        10
    );
}

#[test]
fn who_asks_for_anything_else_is_told_so_and_the_next_is_answered() {
    let mut server = Server::start(&["--metrics", "127.0.0.1:0"]);
    let line = server.line();
    let at = told_at(&line);
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404 not found"),
        ("GET /metrics/x HTTP/1.1\r\n\r\n", "404 not found"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405 method not allowed"),
        ("\r\n\r\n what?\r\n\r\n", "400 bad request"),
    ] {
        let (head, _) = ask(&at, request);
        let said = head.starts_with(&format!("http/1.1 {status}\r\n"));
        assert!(said, "{request}: {head}");
        let allow = head.contains("\r\nallow: get, head\r\n");
        assert_eq!(allow, status.starts_with("405"), "{request}: {head}");
    }
    assert!(scrape(&at).is_empty());
    // A query changes nothing, and whoever asks for the head gets no body.
    let (head, body) = ask(&at, "GET /metrics?x=1 HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("http/1.1 200 ok\r\n"), "{head}");
    let (of_head, none) = ask(&at, "HEAD /metrics HTTP/1.1\r\n\r\n");
    let length = format!("content-length: {}", body.len());
    for head in [&head, &of_head] {
        assert!(head.lines().any(|line| line == length), "{head}");
    }
    assert_eq!((&*body, &*none), ("# EOF\n", ""));
}

#[test]
fn clients_that_say_nothing_keep_nobody_waiting() {
    let mut server = Server::start(&["--metrics", "127.0.0.1:0"]);
    let line = server.line();
    let at = told_at(&line);
    let silent = [(); 16].map(|()| TcpStream::connect(&at).unwrap());
    let began = Instant::now();
    assert!(scrape(&at).is_empty());
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    // Nor is any of them kept for long.
    for mut silent in silent {
        silent.set_read_timeout(Some(PATIENCE)).unwrap();
        silent.read_to_end(&mut Vec::new()).unwrap();
    }
}

#[test]
fn an_address_for_metrics_that_cannot_be_had_is_told_with_its_option() {
    let server = Server::start(&[]);
    let holds = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holds.local_addr().unwrap().to_string();
    // The second one is nobody's: it is for documentation.
    for at in [&*taken, "192.0.2.1:9100"] {
        let output = server.client(&["lat", "--metrics", at]).output().unwrap();
        let said = complaint(&output, 1);
        assert!(
            said.starts_with(&format!("cannot listen on {at}: ")),
            "{said}"
        );
        assert!(
            said.ends_with("; choose another one with --metrics"),
            "{said}"
        );
    }
}
