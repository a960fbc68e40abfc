//! Several processes: the example, and peers that are killed.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::cause;
use common::nodes::{PATIENCE, address, in_time, node, on_both};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use tonic::Code;
use tonic::transport::Endpoint;
use trunkline_grpc::{ConnectError, Connector};
use trunkline_grpc_protos::greeter::HelloRequest;
use trunkline_grpc_protos::greeter::greeter_client::GreeterClient;

/// The example, which cargo builds beside the tests.
fn greeter() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let greeter = profile.join("examples").join("greeter");
    let how = "cargo build -p trunkline-grpc --example greeter";
    assert!(greeter.exists(), "not built: {how}");
    greeter
}

/// A server in a process of its own, which is killed with this.
struct Server {
    process: Child,
    says: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Server {
    fn start() -> Self {
        let address = SocketAddr::new(address(), 50051);
        let mut server = Command::new(greeter());
        let server = server.args(["listen", &address.to_string()]);
        let mut process = server.stdout(Stdio::piped()).spawn().unwrap();
        let mut says = BufReader::new(process.stdout.take().unwrap());
        let mut said = String::new();
        says.read_line(&mut said).unwrap();
        assert_eq!(said, "listening\n");
        Self {
            process,
            says,
            address,
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_example_greets_another_process_and_ends_when_it_is_interrupted() {
    let mut server = Server::start();
    let own = address().to_string();
    let mut client = Command::new(greeter());
    let client = client.args(["ask", &server.address.to_string(), "Ada", &own]);
    let output = client.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let greeting = format!("Hello Ada at {own}!\n");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        greeting.repeat(4)
    );
    server.signal(Signal::INT);
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
        let server = Server::start();
        let node = node();
        let channel = trunkline_grpc::connect(&node, server.address).await;
        let mut client = GreeterClient::new(channel.unwrap());
        client.say_hello(question()).await.unwrap();
        drop(server);
        let gone = client.say_hello(question()).await.unwrap_err();
        assert_eq!(
            cause::<io::Error>(&gone).unwrap().kind(),
            io::ErrorKind::ConnectionReset
        );
        let gone = client.say_hello(question()).await.unwrap_err();
        assert_eq!(gone.code(), Code::Unavailable, "{gone:?}");
        assert!(cause::<ConnectError>(&gone).is_some(), "{gone:?}");
        node.shutdown(PATIENCE).await.unwrap();
    });
}

#[test]
fn a_server_that_is_silent_is_found_out_by_signs_of_life_that_it_owes() {
    on_both(async || {
        let server = Server::start();
        let node = node();
        let endpoint = Endpoint::from_static("http://greeter")
            .connect_timeout(Duration::from_secs(1))
            .http2_keep_alive_interval(Duration::from_millis(500))
            .keep_alive_timeout(Duration::from_millis(500));
        let connector = Connector::to(&node, server.address);
        let channel = endpoint.connect_with_connector(connector).await;
        let mut client = GreeterClient::new(channel.unwrap());
        client.say_hello(question()).await.unwrap();
        // It does not answer, and does not end either.
        server.signal(Signal::STOP);
        let silent = in_time(client.say_hello(question())).await.unwrap_err();
        assert_eq!(silent.code(), Code::Unavailable, "{silent:?}");
        let silent = in_time(client.say_hello(question())).await.unwrap_err();
        let why = cause::<io::Error>(&silent).map(io::Error::kind);
        assert_eq!(why, Some(io::ErrorKind::TimedOut), "{silent:?}");
        server.signal(Signal::CONT);
        let answered = async { while client.say_hello(question()).await.is_err() {} };
        in_time(answered).await;
    });
}
