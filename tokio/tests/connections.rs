//! RDMA-CM as futures: both ends hear what becomes of a connection, whatever is dropped when.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, PATIENCE, in_time, node, on_both, polled};
use std::net::SocketAddr;
use std::time::Duration;
use trunkline::rdma_cm::Params;
use trunkline::rdma_cm::sync::ConnectError;
use trunkline::{Error, QpOptions, Status};
use trunkline_tokio::rdma_cm::{Connection, Listener, Request};

async fn connect(end: &End, peer: SocketAddr, data: &[u8]) -> Result<Connection, ConnectError> {
    let connecting = end.connecting(peer, &QpOptions::default()).await?;
    let private_data = data;
    let params = Params {
        private_data,
        ..Params::default()
    };
    connecting.connect(&params).await
}

fn accept(end: &End, request: Request, data: &[u8]) -> Result<Connection, Error> {
    let accepting = end.accepting(request, &QpOptions::default())?;
    end.receive(accepting.qp(), 0);
    let private_data = data;
    accepting.accept(&Params {
        private_data,
        ..Params::default()
    })
}

/// A client, a server, and a listener there.
fn both() -> (End, End, Listener) {
    let (client, server) = (End::new(), End::new());
    let listener = Listener::bind(&server.node, server.at(), 16).unwrap();
    (client, server, listener)
}

#[test]
fn both_ends_hear_the_others_private_data_and_the_end() {
    on_both(|| async {
        let (client, server, listener) = both();
        let peer = server.at();
        let asks = tokio::spawn(async move {
            let connection = connect(&client, peer, b"question").await.unwrap();
            (client, connection)
        });
        let request = listener.next().await.unwrap();
        assert_eq!(&request.data[..8], b"question");
        let accepted = accept(&server, request, b"answer").unwrap();
        let (client, connection) = asks.await.unwrap();
        assert_eq!(&connection.data()[..6], b"answer");
        connection.established().await.unwrap();
        client.send(connection.qp(), 1);
        assert_eq!(client.cq.next().await.unwrap().status, Status::Success);
        assert_eq!(server.cq.next().await.unwrap().status, Status::Success);
        accepted.established().await.unwrap();
        assert!(!connection.has_ended() && !accepted.has_ended());
        server.receive(accepted.qp(), 5);
        connection.disconnect().await.unwrap();
        accepted.ended().await;
        let flushed = server.cq.next().await.unwrap();
        assert_eq!((flushed.wr_id, flushed.status), (5, Status::Flushed));
    });
}

#[test]
fn who_is_refused_hears_why() {
    on_both(|| async {
        let (client, server, listener) = both();
        let peer = server.at();
        let asks = tokio::spawn(async move {
            let refused = connect(&client, peer, b"").await.unwrap_err();
            (client, refused)
        });
        listener.next().await.unwrap().reject(b"no").unwrap();
        let (client, refused) = asks.await.unwrap();
        let ConnectError::Rejected { data, .. } = refused else {
            panic!("{refused}");
        };
        assert_eq!(&data[..2], b"no");
        drop(listener);
        let refused = connect(&client, server.at(), b"").await.unwrap_err();
        assert!(
            matches!(refused, ConnectError::Rejected { .. }),
            "{refused}"
        );
        let nobody = SocketAddr::new(common::address(), 7471);
        let refused = connect(&client, nobody, b"").await.unwrap_err();
        assert!(matches!(refused, ConnectError::Nobody), "{refused}");
    });
}

#[test]
fn an_attempt_that_is_dropped_at_any_await_ends_at_both_ends() {
    on_both(|| async {
        let (client, server, listener) = both();
        let mut established = false;
        let mut accepted = Vec::new();
        for polls in 1.. {
            let attempt = connect(&client, server.at(), b"");
            let attempt = polled(attempt, polls);
            let answers = async {
                loop {
                    let request = listener.next().await.unwrap();
                    // The peer may have changed its mind.
                    accepted.extend(accept(&server, request, b""));
                }
            };
            let connection = tokio::select! {
                biased;
                connection = attempt => connection,
                () = answers => unreachable!(),
            };
            if let Some(connection) = connection {
                drop(connection.unwrap());
                established = true;
                break;
            }
        }
        assert!(established);
        // What the peers said last may not have been taken yet.
        let late = tokio::time::timeout(Duration::from_millis(300), listener.next()).await;
        if let Ok(request) = late {
            accepted.extend(accept(&server, request.unwrap(), b""));
        }
        assert!(!accepted.is_empty());
        for connection in &accepted {
            in_time(connection.ended()).await;
        }
    });
}

#[test]
fn a_request_waits_for_a_listener_that_looks_later_and_is_refused_with_it() {
    on_both(|| async {
        let (client, server, listener) = both();
        let peer = server.at();
        let asks = tokio::spawn(async move {
            let first = connect(&client, peer, b"1").await;
            (first, client)
        });
        // Each of these futures is dropped before a request came, or takes it.
        let request = loop {
            match polled(listener.next(), 1).await {
                Some(request) => break request.unwrap(),
                None => tokio::task::yield_now().await,
            }
        };
        drop(request);
        let (refused, client) = asks.await.unwrap();
        assert!(refused.is_err());
        let asks = tokio::spawn(async move { connect(&client, peer, b"2").await });
        // It waits in the mailbox, which goes with the listener.
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(listener);
        assert!(asks.await.unwrap().is_err());
    });
}

#[test]
fn a_node_that_ends_wakes_who_connects_and_who_listens() {
    on_both(|| async {
        let (client, server, listener) = both();
        let (peer, asking) = (server.at(), client.node.clone());
        let asks = tokio::spawn(async move { connect(&client, peer, b"").await.map(drop) });
        let _unanswered = listener.next().await.unwrap();
        let _ = asking.shutdown(Duration::ZERO).await;
        let ended = asks.await.unwrap();
        let down = matches!(ended, Err(ConnectError::Call(Error::Down(_))));
        assert!(down, "{ended:?}");
        assert!(polled(listener.next(), 1).await.is_none());
        let listens = tokio::spawn(async move { listener.next().await.map(drop) });
        tokio::task::yield_now().await;
        let _ = server.node.shutdown(PATIENCE).await;
        let ended = listens.await.unwrap();
        assert!(matches!(ended, Err(Error::Down(_))), "{ended:?}");
        assert!(
            Listener::bind(&node(), server.at(), 1).is_err(),
            "not its address"
        );
    });
}
