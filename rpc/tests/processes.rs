//! Two processes: the example, and a server that is killed.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{PATIENCE, address, on_both};
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use trunkline_rpc::{Endpoint, Options, RpcError};
use trunkline_tokio::Node;

/// An example, which cargo builds beside the tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let example = profile.join("examples").join(name);
    let how = format!("cargo build -p trunkline-rpc --example {name}");
    assert!(example.exists(), "not built: {how}");
    example
}

/// A server in a process of its own, which is killed with this.
struct Server(Child);

impl Server {
    fn start(name: &str, how: &str, at: IpAddr) -> Self {
        let mut server = Command::new(example(name));
        let server = server.args([how, &at.to_string()]);
        let mut server = server.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let out = server.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut said).unwrap();
        assert_eq!(said, "listening\n");
        Self(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_example_answers_requests_of_another_process() {
    let at = address();
    let _server = Server::start("rpc_echo", "listen", at);
    for under_way in ["1", "20"] {
        let mut client = Command::new(example("rpc_echo"));
        let (server, own) = (at.to_string(), address().to_string());
        let client = client.args(["ask", &server, "500", under_way, &own]);
        let output = client.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stdout.starts_with(b"500 answers in "), "{output:?}");
    }
}

#[test]
fn a_store_is_read_behind_its_program_and_never_in_part() {
    let (at, own) = (address(), address().to_string());
    let _server = Server::start("kv", "serve", at);
    let run = |what: &str, key: &str, value: &str| {
        let mut client = Command::new(example("kv"));
        let client = client.args([what, &at.to_string(), key, value, &own]);
        let output = client.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), said)
    };
    assert_eq!(run("put", "one", "1"), (true, String::new()));
    assert_eq!(run("put", "two", "2"), (true, String::new()));
    assert_eq!(run("put", "one", "3"), (true, String::new()));
    assert_eq!(run("get", "one", ""), (true, "3\n".into()));
    assert_eq!(run("get", "two", ""), (true, "2\n".into()));
    assert!(!run("get", "three", "").0);
    assert!(!run("put", "", "x").0);
    assert!(!run("put", "k", &"v".repeat(256)).0);
    let (fine, said) = run("check", "", "");
    assert!(fine && said.ends_with("each of them whole\n"), "{said}");
}

#[test]
fn callers_of_a_process_that_is_killed_hear_so() {
    on_both(async || {
        let at = address();
        let server = Server::start("rpc_echo", "listen", at);
        // A silent peer is found out within two seconds, as it is asked after one.
        let builder = trunkline::Node::builder().address(address());
        let builder = builder.keep_alive(Duration::from_secs(1));
        let node = Node::new(builder.peer_timeout(Duration::from_secs(1))).unwrap();
        let endpoint = Endpoint::new(&node, Options::default()).unwrap();
        let client = endpoint.connect((at, 7471).into()).await.unwrap();
        assert_eq!(
            client.call("are you there?").await.unwrap(),
            "are you there?"
        );
        drop(server);
        let why = client.call("and now?").await.unwrap_err();
        let gone = [RpcError::Closed, RpcError::Silent, RpcError::Reset];
        assert!(gone.contains(&why), "{why:?}");
        assert!(client.failed().is_some());
        node.shutdown(PATIENCE).await.unwrap();
    });
}
