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

/// The example, which cargo builds beside the tests.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let example = profile.join("examples").join("rpc_echo");
    let how = "cargo build -p trunkline-rpc --example rpc_echo";
    assert!(example.exists(), "not built: {how}");
    example
}

/// A server in a process of its own, which is killed with this.
struct Server(Child);

impl Server {
    fn start(at: IpAddr) -> Self {
        let mut server = Command::new(example());
        let server = server.args(["listen", &at.to_string()]);
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
    let _server = Server::start(at);
    for under_way in ["1", "20"] {
        let mut client = Command::new(example());
        let (server, own) = (at.to_string(), address().to_string());
        let client = client.args(["ask", &server, "500", under_way, &own]);
        let output = client.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stdout.starts_with(b"500 answers in "), "{output:?}");
    }
}

#[test]
fn callers_of_a_process_that_is_killed_hear_so() {
    on_both(async || {
        let at = address();
        let server = Server::start(at);
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
