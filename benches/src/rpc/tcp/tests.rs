//! Calls over TCP within one process.

use super::{Raw, connect, reflect, serve};
use crate::rpc::load::{Caller, round};
use bytes::Bytes;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::net::TcpListener;

const SHORT: Duration = Duration::from_millis(20);

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(test)
}

#[test]
fn many_callers_over_few_connections_get_their_own_answers() {
    run(async {
        let at = serve(Ipv4Addr::LOCALHOST.into()).expect("it listens");
        let clients = connect(at, 3).await.expect("they connect");
        for under_way in [1, 3, 100] {
            let found = round(clients.clone().into(), under_way, SHORT).await;
            let found = found.expect("all are answered");
            assert!(found.answers >= under_way as u64 && found.rate > 0.0);
            let [median, most] = found.latency_ns.expect("there are callers");
            assert!(0.0 < median && median <= most);
        }
    });
}

#[test]
fn bodies_of_any_length_come_back() {
    run(async {
        let at = serve(Ipv4Addr::LOCALHOST.into()).expect("it listens");
        let clients = connect(at, 1).await.expect("they connect");
        for length in [0, 1, 64, 65_520, 65_536, 1 << 20] {
            let body = Bytes::from(vec![3; length]);
            let answer = clients[0].call(body.clone()).await.expect("an answer");
            assert!(answer == body, "{length} bytes");
        }
    });
}

#[test]
fn a_call_that_was_given_up_does_no_harm_to_the_next() {
    run(async {
        let at = serve(Ipv4Addr::LOCALHOST.into()).expect("it listens");
        let clients = connect(at, 1).await.expect("they connect");
        for number in 0..100_u8 {
            let given_up = clients[0].call(Bytes::from(vec![200; 8]));
            let _ = tokio::time::timeout(Duration::ZERO, given_up).await;
            let body = Bytes::from(vec![number; 8]);
            let answer = clients[0].call(body.clone()).await.expect("an answer");
            assert_eq!(answer, body);
        }
    });
}

#[test]
fn callers_hear_that_the_server_is_gone() {
    run(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("it listens");
        let at = listener.local_addr().expect("it has an address");
        let clients = connect(at, 1).await.expect("they connect");
        let (call, gone) = (clients[0].call(Bytes::new()), async {
            let _ = listener.accept().await;
        });
        let called = tokio::spawn({
            let client = clients[0].clone();
            async move { client.call(Bytes::from_static(b"anybody?")).await }
        });
        gone.await;
        assert!(called.await.expect("no panic").is_err());
        assert!(call.await.is_err());
    });
}

#[test]
fn bytes_alone_come_back_too() {
    run(async {
        let at = reflect(Ipv4Addr::LOCALHOST.into()).expect("it listens");
        for (connections, under_way) in [(3, 1), (3, 10)] {
            let raw = Raw::connect(at, connections, under_way).await;
            let raw = raw.expect("they connect");
            for _ in 0..2 {
                let found = raw.round(SHORT).await.expect("they come back");
                assert!(found.rate > 0.0 && found.latency_ns.is_none());
            }
        }
    });
}
