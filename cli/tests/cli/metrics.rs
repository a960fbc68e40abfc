//! `--metrics`, as Prometheus scrapes it.

use crate::serving::{PATIENCE, Server, piped};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// What a server answers to `request`: head and body.
fn ask(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let length = format!("Content-Length: {}\r\n", body.len());
    assert!(head.contains(&length), "{head}");
    (head.to_owned(), body.to_owned())
}

fn scrape(address: &str) -> BTreeMap<String, f64> {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let (head, body) = ask(address, &request);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let kind = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(kind) && body.ends_with("# EOF\n"), "{head}");
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
    // One that says nothing is not waited for.
    let _silent = TcpStream::connect(&at).unwrap();
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        ("\r\n\r\n", "400 Bad Request"),
    ] {
        let (head, _) = ask(&at, request);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{request}: {head}"
        );
    }
    assert!(scrape(&at).is_empty());
}
