//! Two processes: the example, and a server that is killed.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::process::{Server, example, said};
use common::{PATIENCE, address, on_both, wary};
use std::net::IpAddr;
use trunkline_rpc::{Endpoint, Options, RpcError};

fn server(name: &str, how: &str, at: IpAddr) -> Server {
    let mut server = example(name);
    server.args([how, &at.to_string()]);
    Server::start(server)
}

#[test]
fn the_example_answers_requests_of_another_process() {
    let at = address();
    let _server = server("rpc_echo", "listen", at);
    for under_way in ["1", "20"] {
        let mut client = example("rpc_echo");
        let (server, own) = (at.to_string(), address().to_string());
        client.args(["ask", &server, "500", under_way, &own]);
        let said = said(client);
        assert!(said.starts_with("500 answers in "), "{said}");
    }
}

#[test]
fn a_store_is_read_behind_its_program_and_never_in_part() {
    let (at, own) = (address(), address().to_string());
    let _server = server("kv", "serve", at);
    let run = |what: &str, key: &str, value: &str| {
        let mut client = example("kv");
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
        let (server, node) = (server("rpc_echo", "listen", at), wary());
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
