//! Connections as a server takes them.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::nodes::{in_time, node, on_both, polled};
use common::{Server, end, message};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_stream::StreamExt as _;
use tonic::transport::server::Connected;
use trunkline::Error;
use trunkline_tokio::stream::{Listener, Stream};

#[test]
fn connections_wait_until_they_are_taken_and_end_with_the_node() {
    on_both(async || {
        let (server, client) = (node(), node());
        let at = (server.gid().address(), 50051).into();
        let mut incoming = trunkline_grpc::incoming(Listener::bind(&server, at).unwrap());
        assert!(polled(incoming.next(), 1).await.is_none());
        let connects = (0..3).map(|_| {
            let client = client.clone();
            tokio::spawn(async move { Stream::connect(&client, at).await })
        });
        let connects: Vec<_> = connects.collect();
        // None is there before the server takes it.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(connects.iter().all(|connect| !connect.is_finished()));
        let mut taken = Vec::new();
        for _ in 0..3 {
            let accepted = in_time(incoming.next()).await.unwrap().unwrap();
            let told = accepted.connect_info();
            assert_eq!(told.local_addr(), Some(at));
            let from = told.remote_addr().unwrap();
            assert_eq!(from.ip(), client.gid().address());
            taken.push(accepted);
        }
        for connect in connects {
            let mut stream = in_time(connect).await.unwrap().unwrap();
            stream.write_all(b"hello").await.unwrap();
        }
        for accepted in &mut taken {
            let mut got = String::new();
            accepted.read_to_string(&mut got).await.unwrap();
            assert_eq!(got, "hello");
        }
        end(&server).await;
        let last = in_time(incoming.next()).await;
        assert!(matches!(last, Some(Err(Error::Down(_)))), "{last:?}");
        assert!(in_time(incoming.next()).await.is_none());
    });
}

#[test]
fn a_connection_that_is_shut_down_has_said_all_and_can_still_hear() {
    on_both(async || {
        let (server, client) = (node(), node());
        let at = (server.gid().address(), 50051).into();
        let mut incoming = trunkline_grpc::incoming(Listener::bind(&server, at).unwrap());
        let (stream, accepted) = tokio::join!(Stream::connect(&client, at), incoming.next());
        let (mut stream, mut accepted) = (stream.unwrap(), accepted.unwrap().unwrap());
        assert!(
            accepted.is_write_vectored(),
            "what is in pieces goes together"
        );
        accepted.write_all(b"goodbye").await.unwrap();
        accepted.shutdown().await.unwrap();
        let mut got = String::new();
        in_time(stream.read_to_string(&mut got)).await.unwrap();
        assert_eq!(got, "goodbye");
        stream.write_all(b"hello").await.unwrap();
        let mut got = [0; 5];
        in_time(accepted.read_exact(&mut got)).await.unwrap();
        assert_eq!(&got, b"hello");
    });
}

#[test]
fn peers_that_speak_something_else_or_leave_harm_no_other() {
    on_both(async || {
        let server = Server::start();
        let (mut client, node) = server.client().await;
        for words in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"\0\0\0\0\0\0\0\0\0",
            b"PRI * HTTP/2.0",
        ] {
            let mut stream = Stream::connect(&node, server.address).await.unwrap();
            stream.write_all(words).await.unwrap();
            stream.shutdown().await.unwrap();
            // It is told something or nothing, and then it is over.
            let _ = in_time(stream.read_to_end(&mut Vec::new())).await;
        }
        for polls in 1..8 {
            let _ = polled(Stream::connect(&node, server.address), polls).await;
        }
        in_time(client.once(message(10))).await.unwrap();
        let (mut other, _node) = server.client().await;
        in_time(other.once(message(10))).await.unwrap();
    });
}
