//! Two processes: the example, and a peer that is killed.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::process::{Server, example, said};
use common::{PATIENCE, address, on_both, wary};
use std::net::IpAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use trunkline_tokio::stream::{Stream, StreamError};

fn server(at: IpAddr) -> Server {
    let mut echo = example("echo");
    echo.args(["listen", &at.to_string()]);
    Server::start(echo)
}

#[test]
fn the_example_answers_requests_of_another_process() {
    let at = address();
    let _server = server(at);
    for under_way in ["1", "20"] {
        let mut client = example("echo");
        let (server, own) = (at.to_string(), address().to_string());
        client.args(["ask", &server, "500", under_way, &own]);
        let said = said(client);
        assert!(said.starts_with("500 answers, "), "{said}");
    }
}

#[test]
fn who_waits_for_a_process_that_is_killed_hears_so() {
    on_both(async || {
        let at = address();
        let (server, node) = (server(at), wary());
        let mut stream = Stream::connect(&node, (at, 7471).into()).await.unwrap();
        stream.write_all(b"are you there?").await.unwrap();
        let mut got = [0; 14];
        stream.read_exact(&mut got).await.unwrap();
        drop(server);
        let error = stream.read(&mut got).await.unwrap_err();
        let why = error.get_ref().unwrap().downcast_ref::<StreamError>();
        let gone = matches!(why, Some(StreamError::Reset | StreamError::Silent));
        assert!(gone, "{error}");
        assert!(stream.write_all(&got).await.is_err());
        node.shutdown(PATIENCE).await.unwrap();
    });
}
