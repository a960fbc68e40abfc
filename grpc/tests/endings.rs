//! Calls that end early: deadlines, callers that go, servers and nodes that end.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::nodes::{address, in_time, node, on_both};
use common::{Server, cause, client, end, message, slow};
use std::io;
use std::time::{Duration, Instant};
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use trunkline_grpc::{ConnectError, Connector};
use trunkline_grpc_protos::echo::Series;
use trunkline_tokio::Node;

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(100);

#[test]
fn a_call_ends_at_its_deadline_at_both_ends() {
    on_both(async || {
        let server = Server::start();
        let (mut client, _node) = server.client().await;
        let mut request = Request::new(slow(LONG));
        request.set_timeout(Duration::from_millis(100));
        let begun = Instant::now();
        let late = in_time(client.once(request)).await.unwrap_err();
        // So tonic says it, over TCP as well.
        assert_eq!(late.code(), Code::Cancelled, "{late}");
        assert_eq!(late.message(), "Timeout expired");
        assert!(begun.elapsed() >= Duration::from_millis(100));
        server.has_under_way(0).await;
        client.once(message(1)).await.unwrap();
    });
}

#[test]
fn a_call_that_is_dropped_ends_at_the_server() {
    on_both(async || {
        let server = Server::start();
        let (mut client, _node) = server.client().await;
        let mut other = client.clone();
        let call = tokio::spawn(async move { other.once(slow(LONG)).await });
        server.has_under_way(1).await;
        call.abort();
        server.has_under_way(0).await;

        let series = Series {
            messages: u64::MAX,
            bytes: 100_000,
        };
        let mut answers = client.many(series).await.unwrap().into_inner();
        assert!(answers.message().await.unwrap().is_some());
        server.has_under_way(1).await;
        drop(answers);
        server.has_under_way(0).await;
        client.once(message(1)).await.unwrap();
    });
}

#[test]
fn a_server_that_stops_answers_what_it_was_asked_and_the_next_is_found_by_the_same_channel() {
    on_both(async || {
        let server = Server::start();
        let at = server.address;
        let (mut client, _node) = server.client().await;
        let mut other = client.clone();
        let asked = tokio::spawn(async move { other.once(slow(Duration::from_millis(300))).await });
        server.has_under_way(1).await;
        let server_node = server.node.clone();
        let stopped = server.stop();
        in_time(asked).await.unwrap().unwrap();
        in_time(stopped).await.unwrap().unwrap();
        let refused = async {
            loop {
                let refused = client.once(message(1)).await.unwrap_err();
                // The end may not have been seen before.
                if cause::<ConnectError>(&refused).is_some() {
                    break refused;
                }
            }
        };
        let refused = in_time(refused).await;
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");

        server_node.shutdown(Duration::from_secs(1)).await.unwrap();
        drop(server_node);
        let next = async {
            let next = || Node::new(trunkline::Node::builder().address(at.ip()));
            loop {
                match next() {
                    Ok(next) => break next,
                    // Its tasks still hold what is left of the last one.
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        };
        let _next = Server::on(in_time(next).await);
        let answers = async {
            while client.once(message(1)).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        in_time(answers).await;
    });
}

/// What becomes of a call when one of the two nodes ends under it.
async fn ends_with(server_ends: bool) -> Status {
    let server = Server::start();
    let (client, node) = server.client().await;
    let mut other = client.clone();
    let call = tokio::spawn(async move { other.once(slow(LONG)).await });
    server.has_under_way(1).await;
    end(if server_ends { &server.node } else { &node }).await;
    let ended = in_time(call).await.unwrap().unwrap_err();
    server.has_under_way(0).await;
    match server_ends {
        // Its server returns, though nobody has stopped it.
        true => server.ended().await.unwrap(),
        false => in_time(server.stop()).await.unwrap().unwrap(),
    }
    ended
}

#[test]
fn a_node_that_ends_ends_calls_at_both_ends_and_its_server() {
    on_both(async || {
        let of_server = ends_with(true).await;
        let of_client = ends_with(false).await;
        let kind = |ended| cause::<io::Error>(ended).unwrap().kind();
        assert_eq!(
            kind(&of_server),
            io::ErrorKind::ConnectionReset,
            "{of_server:?}"
        );
        assert_eq!(
            kind(&of_client),
            io::ErrorKind::NotConnected,
            "{of_client:?}"
        );
    });
}

#[test]
fn who_connects_to_nobody_hears_why() {
    on_both(async || {
        let (node, nobody) = (node(), address());
        let refused = trunkline_grpc::connect(&node, (nobody, 50051).into()).await;
        let refused = refused.unwrap_err();
        let why = cause::<ConnectError>(&refused);
        assert!(matches!(why, Some(ConnectError::Open(_))), "{refused:?}");

        let without_port = Endpoint::from_static("http://localhost");
        let connector = Connector::new(&node);
        let refused = without_port.connect_with_connector(connector).await;
        let refused = refused.unwrap_err();
        let why = cause::<ConnectError>(&refused);
        assert!(matches!(why, Some(ConnectError::NoPort)), "{refused:?}");

        // The node has an address of IPv4.
        let of_ipv6 = Endpoint::from_static("http://[::1]:50051");
        let connector = Connector::new(&node);
        let refused = of_ipv6.connect_with_connector(connector).await;
        let refused = refused.unwrap_err();
        let why = cause::<ConnectError>(&refused);
        assert!(matches!(why, Some(ConnectError::NoAddress)), "{refused:?}");
    });
}

#[test]
fn a_connector_goes_where_the_uri_says_or_where_it_was_told() {
    on_both(async || {
        let server = Server::start();
        let node = node();
        client(&node, server.address).await;
        let by_uri = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
        let by_uri = by_uri.connect_with_connector(Connector::new(&node)).await;
        let named = Endpoint::from_static("http://echo.example");
        let connector = Connector::to(&node, server.address);
        let named = named.connect_with_connector_lazy(connector);
        for channel in [by_uri.unwrap(), named] {
            let mut client = common::Client::new(channel);
            client.once(message(10)).await.unwrap();
        }
    });
}
