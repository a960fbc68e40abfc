//! Requests and their responses.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use bytes::Bytes;
use common::{at, endpoint, on_both, pair, until};
use std::time::Duration;
use tokio::task::JoinSet;
use trunkline_rpc::{Options, Refusal, Request, RpcError};

/// Bytes that tell a request apart from others.
fn bytes(of: u32, length: usize) -> Bytes {
    let byte = |at: usize| (of as usize + at * 7) as u8;
    (0..length).map(byte).collect::<Vec<_>>().into()
}

/// Whether a request has come back as it was. It would be long to print.
fn is_echo(response: &Result<Bytes, RpcError>, body: &Bytes) {
    match response {
        Ok(bytes) => assert!(bytes == body, "{} bytes, not as they were", bytes.len()),
        Err(error) => panic!("{} bytes: {error:?}", body.len()),
    }
}

#[test]
fn each_request_has_its_own_response() {
    on_both(async || {
        let (_far, _server, _near, client) = pair(Options::default()).await;
        for length in [0, 1, 64, 200, 255, 256, 257, 4000, 4080] {
            let body = bytes(length as u32, length);
            is_echo(&client.call(body.clone()).await, &body);
        }
    });
}

#[test]
fn thousands_under_way_on_one_connection_are_answered() {
    on_both(async || {
        let (far, _server, near, client) = pair(Options::default()).await;
        let mut calls = JoinSet::new();
        for of in 0..10_000 {
            let client = client.clone();
            calls.spawn(async move {
                let body = bytes(of, 64);
                is_echo(&client.call(body.clone()).await, &body);
            });
        }
        while let Some(ended) = calls.join_next().await {
            ended.unwrap();
        }
        let (asked, answered) = (near.counters(), far.counters());
        assert_eq!(asked.requests_sent, 10_000);
        assert_eq!(asked.responses_received, 10_000);
        assert_eq!(answered.requests_received, 10_000);
        assert!(
            asked.messages_sent < 1_000,
            "they share messages: {asked:?}"
        );
    });
}

#[test]
fn what_is_longer_than_a_message_goes_either_way() {
    on_both(async || {
        let (far, _server, near, client) = pair(Options::default()).await;
        for length in [4081, 5000, 65_536, 1_000_001, 16 << 20] {
            let body = bytes(length as u32, length);
            is_echo(&client.call(body.clone()).await, &body);
        }
        // Nothing is kept once the client has said that it has read the last one.
        until(|| far.counters().messages_received == near.counters().messages_sent).await;
    });
}

#[test]
fn many_long_ones_at_a_time_are_told_apart() {
    on_both(async || {
        let (_far, _server, _near, client) = pair(Options::default()).await;
        let mut calls = JoinSet::new();
        for of in 0..100 {
            let client = client.clone();
            calls.spawn(async move {
                let body = bytes(of, 20_000 + of as usize);
                is_echo(&client.call(body.clone()).await, &body);
            });
        }
        while let Some(ended) = calls.join_next().await {
            ended.unwrap();
        }
    });
}

#[test]
fn regions_of_the_caller_are_read_and_written_in_place() {
    on_both(async || {
        let (_far, _server, near, client) = pair(Options::default()).await;
        let (from, to) = (
            near.register(100_000).unwrap(),
            near.register(100_000).unwrap(),
        );
        for (offset, length) in [(0, 1), (3, 64), (7, 4096), (0, 100_000)] {
            let body = bytes(offset as u32, length);
            from.write(offset, &body).unwrap();
            let request = Request::from_region(&from, offset, length);
            let response = client.call_into(request, &to, offset, length).await;
            assert_eq!(response, Ok(length));
            let mut read = vec![0; length];
            to.read(offset, &mut read).unwrap();
            assert!(read == body);
        }
        // Of no bytes, and one that is longer than its place.
        assert_eq!(client.call_into("", &to, 0, 10).await, Ok(0));
        let long = client.call_into("12345678901", &to, 0, 10).await;
        assert_eq!(long, Err(RpcError::TooLong));
        let region = Request::from_region(&from, 0, 50_000);
        assert_eq!(client.call(region).await.unwrap().len(), 50_000);
    });
}

#[test]
fn a_request_of_any_length_with_a_place_for_its_response_is_answered() {
    on_both(async || {
        let (_far, _server, near, client) = pair(Options::default()).await;
        let to = near.register(5000).unwrap();
        // It goes in a message with the name of its place, beside it, or by itself.
        for length in 4040..4100 {
            let body = bytes(length as u32, length);
            let response = client.call_into(body.clone(), &to, 0, length).await;
            assert_eq!(response, Ok(length));
            let mut read = vec![0; length];
            to.read(0, &mut read).unwrap();
            assert!(read == body, "{length} bytes");
        }
    });
}

#[test]
fn messages_wait_for_those_under_way_however_many_the_peer_has_room_for() {
    on_both(async || {
        let options = Options {
            receives: 500,
            ..Options::default()
        };
        let (_far, _server, _near, client) = pair(options).await;
        // Each fills a message, and all have their turn at once.
        let calls: JoinSet<_> = (0..400)
            .map(|of| {
                let (client, body) = (client.clone(), bytes(of, 4000));
                async move { is_echo(&client.call(body.clone()).await, &body) }
            })
            .collect();
        calls.join_all().await;
    });
}

#[test]
fn memory_that_a_server_tells_of_is_read_behind_its_back() {
    on_both(async || {
        let (far, _server, near, client) = pair(Options::default()).await;
        let (theirs, ours) = (
            far.register_readable(100_000).unwrap(),
            near.register(100_000).unwrap(),
        );
        for (offset, length) in [(0, 1), (9, 4097), (0, 100_000)] {
            let body = bytes(length as u32, length);
            theirs.write(offset, &body).unwrap();
            let read = client.read(theirs.remote(offset), &ours, 0, length);
            assert_eq!(read.await, Ok(()));
            let mut got = vec![0; length];
            ours.read(0, &mut got).unwrap();
            assert!(got == body, "{length} bytes");
        }
        assert_eq!(far.counters().requests_received, 0);
        // More at a time than go at once.
        let many = (0..50).map(|at| {
            let (client, theirs, ours) = (client.clone(), theirs.remote(at), ours.clone());
            async move { client.read(theirs, &ours, at, 1).await }
        });
        let many: JoinSet<_> = many.collect();
        assert!(many.join_all().await.iter().all(Result::is_ok));
        // What was told and is gone ends the connection, with a reason.
        let gone = theirs.remote(0);
        drop(theirs);
        let why = client.read(gone, &ours, 0, 1).await.unwrap_err();
        let ended = matches!(why, RpcError::Violation(_) | RpcError::Closed);
        assert!(ended, "{why:?}");
        assert_eq!(client.read(gone, &ours, 0, 1).await, Err(why));
    });
}

#[test]
fn refusals_say_what_the_service_said() {
    on_both(async || {
        let far = endpoint(Options::default());
        let service = tower::service_fn(|request: Request| async move {
            let text = String::from_utf8_lossy(request.body()).repeat(1000);
            Err::<Bytes, _>(Refusal::new(404, text))
        });
        let _server = far.listen(at(&far), service).unwrap();
        let near = endpoint(Options::default());
        let client = near.connect(at(&far)).await.unwrap();
        match client.call("ä").await {
            Err(RpcError::Refused(refusal)) => {
                assert_eq!(refusal.code, 404);
                // What does not fit is cut off between characters.
                assert_eq!(refusal.message, "ä".repeat(1000));
            }
            other => panic!("{other:?}"),
        }
        match client.call("long ").await {
            Err(RpcError::Refused(refusal)) => assert_eq!(refusal.message.len(), 4096 - 16),
            other => panic!("{other:?}"),
        }
        // 4,080 bytes would end in the middle of the last character of a word.
        match client.call("xäää").await {
            Err(RpcError::Refused(refusal)) => {
                let whole = "xäää".repeat(582) + "xää";
                assert_eq!(refusal.message, whole);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(far.counters().requests_refused, 3);
    });
}

#[test]
fn a_service_that_panics_refuses_and_the_others_go_on() {
    on_both(async || {
        let far = endpoint(Options::default());
        let service = tower::service_fn(|request: Request| async move {
            match &request.body()[..] {
                b"now" => panic!("on purpose, at once"),
                b"later" => {
                    tokio::task::yield_now().await;
                    panic!("on purpose, later");
                }
                _ => Ok::<_, Refusal>(request.into_body()),
            }
        });
        let _server = far.listen(at(&far), service).unwrap();
        let near = endpoint(Options::default());
        let client = near.connect(at(&far)).await.unwrap();
        for word in ["now", "later"] {
            let why = client.call(word).await.unwrap_err();
            assert!(matches!(why, RpcError::Refused(_)), "{why:?}");
            assert_eq!(client.call("fine").await.unwrap(), "fine");
        }
    });
}

#[test]
fn services_that_wait_run_side_by_side() {
    on_both(async || {
        let far = endpoint(Options::default());
        let service = tower::service_fn(|request: Request| async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok::<_, Refusal>(request.into_body())
        });
        let _server = far.listen(at(&far), service).unwrap();
        let near = endpoint(Options::default());
        let client = near.connect(at(&far)).await.unwrap();
        let began = std::time::Instant::now();
        let mut calls = JoinSet::new();
        for of in 0..100 {
            let client = client.clone();
            calls.spawn(async move { client.call(bytes(of, 10)).await.unwrap() });
        }
        calls.join_all().await;
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "one after the other takes 5 s"
        );
    });
}
