//! Several processes: the example, and peers that are killed.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::cause;
use common::nodes::process::{Server, example, said};
use common::nodes::{PATIENCE, address, in_time, node, on_both, runtimes};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::pin::pin;
use std::time::{Duration, Instant};
use tonic::Code;
use tonic::transport::Endpoint;
use trunkline_grpc::{ConnectError, Connector};
use trunkline_grpc_protos::greeter::HelloRequest;
use trunkline_grpc_protos::greeter::greeter_client::GreeterClient;

/// The example, and where it listens.
fn server() -> (Server, SocketAddr) {
    let address = SocketAddr::new(address(), 50051);
    let mut greeter = example("greeter");
    greeter.args(["listen", &address.to_string()]);
    (Server::start(greeter), address)
}

fn signal(server: &Server, signal: Signal) {
    kill_process(Pid::from_child(&server.process), signal).unwrap();
}

#[test]
fn the_example_greets_another_process_and_ends_when_it_is_interrupted() {
    let (mut server, at) = server();
    let own = address().to_string();
    let mut client = example("greeter");
    client.args(["ask", &at.to_string(), "Ada", &own]);
    let greeting = format!("Hello Ada at {own}!\n");
    assert_eq!(said(client), greeting.repeat(4));
    signal(&server, Signal::INT);
    let mut said = String::new();
    server.says.read_to_string(&mut said).unwrap();
    assert_eq!(said, "all calls are answered\n");
    assert!(server.process.wait().unwrap().success());
}

fn question() -> HelloRequest {
    HelloRequest {
        name: "Ada".to_owned(),
        greetings: 1,
    }
}

#[test]
fn who_calls_a_process_that_is_killed_hears_so() {
    on_both(async || {
        let ((server, at), node) = (server(), node());
        let channel = trunkline_grpc::connect(&node, at).await;
        let mut client = GreeterClient::new(channel.unwrap());
        client.say_hello(question()).await.unwrap();
        drop(server);
        let gone = client.say_hello(question()).await.unwrap_err();
        assert_eq!(
            cause::<io::Error>(&gone).unwrap().kind(),
            io::ErrorKind::ConnectionReset
        );
        let refused = async {
            loop {
                let gone = client.say_hello(question()).await.unwrap_err();
                // The connection takes another call with it while it ends.
                if gone.code() != Code::Cancelled {
                    break gone;
                }
            }
        };
        let gone = in_time(refused).await;
        assert_eq!(gone.code(), Code::Unavailable, "{gone:?}");
        assert!(cause::<ConnectError>(&gone).is_some(), "{gone:?}");
        node.shutdown(PATIENCE).await.unwrap();
    });
}

#[test]
fn a_server_that_is_silent_is_found_out_by_signs_of_life_that_it_owes() {
    on_both(async || {
        let ((server, at), node) = (server(), node());
        let endpoint = Endpoint::from_static("http://greeter")
            .connect_timeout(Duration::from_secs(1))
            .http2_keep_alive_interval(Duration::from_millis(500))
            .keep_alive_timeout(Duration::from_millis(500));
        let connector = Connector::to(&node, at);
        let channel = endpoint.connect_with_connector(connector).await;
        let mut client = GreeterClient::new(channel.unwrap());
        client.say_hello(question()).await.unwrap();
        // It does not answer, and does not end either.
        signal(&server, Signal::STOP);
        let silent = in_time(client.say_hello(question())).await.unwrap_err();
        assert_eq!(silent.code(), Code::Unavailable, "{silent:?}");
        let silent = in_time(client.say_hello(question())).await.unwrap_err();
        let why = cause::<io::Error>(&silent).map(io::Error::kind);
        assert_eq!(why, Some(io::ErrorKind::TimedOut), "{silent:?}");
        signal(&server, Signal::CONT);
        let answered = async { while client.say_hello(question()).await.is_err() {} };
        in_time(answered).await;
    });
}

#[test]
fn a_server_that_stands_still_is_waited_for_some_seconds_and_then_found_out() {
    let [single, _] = runtimes();
    single.block_on(async {
        let (server, at) = server();
        let node = node();
        let channel = trunkline_grpc::connect(&node, at).await;
        let mut client = GreeterClient::new(channel.unwrap());
        client.say_hello(question()).await.unwrap();
        // Its connection dies after 2 s; what was asked is sent again on another one.
        signal(&server, Signal::STOP);
        let mut asking = client.clone();
        let mut asks = pin!(asking.say_hello(question()));
        let early = tokio::time::timeout(Duration::from_secs(3), &mut asks).await;
        assert!(early.is_err(), "{early:?}");
        signal(&server, Signal::CONT);
        in_time(asks).await.unwrap();
        signal(&server, Signal::STOP);
        let begun = Instant::now();
        let silent = in_time(client.say_hello(question())).await.unwrap_err();
        let took = begun.elapsed();
        assert!(cause::<io::Error>(&silent).is_some(), "{silent:?}");
        // docs/shutdown.md, docs/grpc.md.
        assert!(took > Duration::from_secs(4), "{took:?}");
        assert!(took < Duration::from_secs(12), "{took:?}");
    });
}
