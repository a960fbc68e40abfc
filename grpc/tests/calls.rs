//! All that calls can be over Trunkline: one message or many in either direction, small and large.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::nodes::{in_time, on_both};
use common::{LARGEST, Server, message};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tonic::Code;
use trunkline_grpc_protos::echo::{Message, Series, Total};

#[test]
fn one_message_comes_back_from_where_it_went() {
    on_both(async || {
        let server = Server::start();
        let (mut client, node) = server.client().await;
        for bytes in [0, 1, 64, 1000, 100_000] {
            let answer = client.once(message(bytes)).await.unwrap();
            let from = answer.metadata().get("from").unwrap().to_str().unwrap();
            let from: SocketAddr = from.parse().unwrap();
            assert_eq!(from.ip(), node.gid().address());
            assert_eq!(answer.into_inner(), message(bytes));
        }
    });
}

#[test]
fn many_messages_come_and_go_in_each_direction() {
    on_both(async || {
        let server = Server::start();
        let (mut client, _node) = server.client().await;
        let series = Series {
            messages: 500,
            bytes: 5000,
        };
        let answers = client.many(series).await.unwrap().into_inner();
        let answers: Vec<Message> = answers.map(Result::unwrap).collect().await;
        assert!(answers.len() == 500 && answers.iter().all(|answer| *answer == message(5000)));

        let all = tokio_stream::iter((0..500).map(message));
        let total = client.gather(all).await.unwrap().into_inner();
        let (messages, bytes) = (500, (0..500).sum());
        assert_eq!(total, Total { messages, bytes });
    });
}

#[test]
fn each_message_of_a_talk_is_answered_before_the_next_is_said() {
    on_both(async || {
        let server = Server::start();
        let (mut client, _node) = server.client().await;
        let (say, said) = mpsc::channel(1);
        let said = tokio_stream::wrappers::ReceiverStream::new(said);
        let mut heard = client.talk(said).await.unwrap().into_inner();
        for bytes in (0..200_000).step_by(997) {
            say.send(message(bytes)).await.unwrap();
            let answer = heard.message().await.unwrap().unwrap();
            assert!(answer == message(bytes), "{bytes} bytes");
        }
        drop(say);
        assert_eq!(heard.message().await.unwrap(), None);
        server.has_under_way(0).await;
    });
}

#[test]
fn messages_of_16_mib_go_both_ways_at_once() {
    on_both(async || {
        let server = Server::start();
        let (client, _node) = server.client().await;
        let large = message(16 << 20);
        let calls = (0..3).map(|_| {
            let (mut client, large) = (client.clone(), large.clone());
            tokio::spawn(async move {
                let answer = client.once(large.clone()).await.unwrap();
                assert!(answer.into_inner() == large);
            })
        });
        for call in calls.collect::<Vec<_>>() {
            in_time(call).await.unwrap();
        }
        // What is larger than the server wishes is refused, and the connection goes on.
        let (mut client, larger) = (client, message(LARGEST + 1));
        let refused = in_time(client.once(larger)).await.unwrap_err();
        assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
        client.once(message(1)).await.unwrap();
    });
}

#[test]
fn a_thousand_calls_at_once_share_a_connection() {
    on_both(async || {
        let server = Server::start();
        let (client, _node) = server.client().await;
        let calls = (0..1000).map(|bytes| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let answer = client.once(message(bytes)).await.unwrap();
                assert!(answer.into_inner() == message(bytes));
            })
        });
        for call in calls.collect::<Vec<_>>() {
            in_time(call).await.unwrap();
        }
    });
}

#[test]
fn who_reads_no_answers_stops_the_server_of_his_call_and_no_other() {
    on_both(async || {
        let server = Server::start();
        let (mut client, _node) = server.client().await;
        let series = Series {
            messages: u64::MAX,
            bytes: 10_000,
        };
        let unread = client.many(series).await.unwrap();
        let given = || server.counts.given.load(Ordering::SeqCst);
        let mut before = 0;
        // It goes on until somewhere between there is no more room.
        while given() == 0 || given() != before {
            before = given();
            assert!(before < 10_000, "somebody keeps {before} messages");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for _ in 0..100 {
            in_time(client.once(message(100))).await.unwrap();
        }
        drop(unread);
        server.has_under_way(0).await;
    });
}
