//! Calls that are dropped, deadlines that pass, and ends that go away.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use bytes::Bytes;
use common::{at, echo, endpoint, in_time, on_both, pair, until};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, yield_now};
use trunkline_rpc::{Client, Endpoint, Options, Refusal, Request, RpcError, Server};

/// Counts services that have begun, and those that were dropped or have ended.
#[derive(Default)]
struct Counts {
    begun: AtomicUsize,
    over: AtomicUsize,
}

struct Running(Arc<Counts>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.over.fetch_add(1, Ordering::SeqCst);
    }
}

/// A server whose requests wait until the gate lets them through.
struct Gated {
    far: Endpoint,
    server: Server,
    near: Endpoint,
    client: Client,
    gate: Arc<Semaphore>,
    counts: Arc<Counts>,
}

async fn gated(options: Options) -> Gated {
    let (gate, counts) = (Arc::new(Semaphore::new(0)), Arc::<Counts>::default());
    let (of, by) = (Arc::clone(&counts), Arc::clone(&gate));
    let service = tower::service_fn(move |request: Request| {
        let (counts, gate) = (Arc::clone(&of), Arc::clone(&by));
        async move {
            counts.begun.fetch_add(1, Ordering::SeqCst);
            let _running = Running(counts);
            gate.acquire().await.unwrap().forget();
            Ok::<_, Refusal>(request.into_body())
        }
    });
    let (far, near) = (endpoint(options), endpoint(options));
    let server = far.listen(at(&far), service).unwrap();
    let client = near.connect(at(&far)).await.unwrap();
    Gated {
        far,
        server,
        near,
        client,
        gate,
        counts,
    }
}

impl Gated {
    fn begun(&self) -> usize {
        self.counts.begun.load(Ordering::SeqCst)
    }

    fn over(&self) -> usize {
        self.counts.over.load(Ordering::SeqCst)
    }
}

/// Polls a future once.
fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_deadline_ends_the_call_and_the_service() {
    on_both(async || {
        let gated = gated(Options::default()).await;
        let (began, limit) = (Instant::now(), Duration::from_millis(30));
        let call = gated.client.call(Request::new("late").deadline(limit));
        assert_eq!(call.await, Err(RpcError::Deadline));
        assert!((limit..Duration::from_secs(5)).contains(&began.elapsed()));
        until(|| gated.over() == 1).await;
        assert_eq!(gated.far.counters().requests_cancelled, 1);
        // One that is in time has its response.
        gated.gate.add_permits(1);
        let call = Request::new("in time").deadline(Duration::from_secs(20));
        assert_eq!(gated.client.call(call).await.unwrap(), "in time");
    });
}

#[test]
fn the_server_drops_what_is_late_though_its_client_is_silent() {
    on_both(async || {
        let gated = gated(Options::default()).await;
        let limit = Duration::from_millis(20);
        let mut call = pin!(gated.client.call(Request::new("late").deadline(limit)));
        assert!(poll_once(call.as_mut()).is_pending());
        // This end does not look at its own clock meanwhile: its future is not polled.
        until(|| gated.over() == 1).await;
        assert_eq!(call.await, Err(RpcError::Deadline));
    });
}

#[test]
fn a_call_that_is_dropped_cancels_its_service() {
    on_both(async || {
        let gated = gated(Options::default()).await;
        for cancelled in 1..=10 {
            {
                let mut call = pin!(gated.client.call("never"));
                assert!(poll_once(call.as_mut()).is_pending());
                until(|| gated.begun() == cancelled).await;
            }
            until(|| gated.over() == cancelled).await;
        }
        // Each was answered, though nobody heard it.
        until(|| gated.near.counters().responses_received == 10).await;
        assert_eq!(gated.near.counters().requests_abandoned, 10);
        assert_eq!(gated.far.counters().requests_cancelled, 10);
    });
}

#[test]
fn a_call_dropped_after_any_number_of_polls_harms_no_other() {
    on_both(async || {
        let options = Options {
            requests: 4,
            receives: 4,
            message_bytes: 512,
            ..Options::default()
        };
        let (far, _server, near, client) = pair(options).await;
        let mr = near.register(10_000).unwrap();
        for polls in 0..12 {
            let mut dropped = Vec::new();
            for length in [1, 400, 9_000] {
                let body = Bytes::from(vec![polls as u8; length]);
                dropped.push(Box::pin(client.call(body)));
            }
            let mut written = Box::pin(client.call_into("in place", &mr, 0, 100));
            for _ in 0..polls {
                dropped.retain_mut(|call| poll_once(call.as_mut()).is_pending());
                if poll_once(written.as_mut()).is_ready() {
                    written = Box::pin(client.call_into("in place", &mr, 0, 100));
                }
                yield_now().await;
            }
            drop((dropped, written));
            let body = Bytes::from(vec![polls as u8; 3000]);
            assert!(client.call(body.clone()).await.unwrap() == body);
        }
        // All slots are free again: as many as the server takes go at once.
        until(|| near.counters().responses_received == near.counters().requests_sent).await;
        let calls: Vec<_> = (0..4).map(|_| client.call("last")).collect();
        for call in calls {
            assert_eq!(call.await.unwrap(), "last");
        }
        assert_eq!(far.counters().violations + near.counters().violations, 0);
    });
}

#[test]
fn requests_beyond_what_the_server_takes_wait_in_order() {
    on_both(async || {
        let options = Options {
            requests: 2,
            ..Options::default()
        };
        let gated = gated(options).await;
        let mut calls = JoinSet::new();
        for of in 0..6_u8 {
            let client = gated.client.clone();
            calls.spawn(async move { client.call(vec![of]).await.unwrap()[0] });
        }
        until(|| gated.begun() == 2).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(gated.begun(), 2, "two are under way, and no more");
        gated.gate.add_permits(6);
        let mut all = calls.join_all().await;
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5]);
    });
}

#[test]
fn one_that_waits_for_its_turn_and_leaves_takes_no_turn_with_it() {
    on_both(async || {
        let options = Options {
            requests: 1,
            ..Options::default()
        };
        let gated = gated(options).await;
        let mut first = pin!(gated.client.call("first"));
        assert!(poll_once(first.as_mut()).is_pending());
        let mut waiting = [(); 3].map(|()| Box::pin(gated.client.call("waits")));
        for call in &mut waiting {
            assert!(poll_once(call.as_mut()).is_pending());
        }
        let [second, third, fourth] = waiting;
        drop(third);
        gated.gate.add_permits(3);
        assert_eq!(first.await.unwrap(), "first");
        // Its turn has come, and nobody polls it.
        drop(second);
        assert_eq!(fourth.await.unwrap(), "waits");
    });
}

#[test]
fn who_leaves_with_a_turn_wakes_the_next_that_waits_for_one() {
    on_both(async || {
        let options = Options {
            requests: 1,
            ..Options::default()
        };
        // The turn is that of a call which has its response, or of one that was about to begin.
        for leaves_before_it_begins in [false, true] {
            let gated = gated(options).await;
            let mut first = Box::pin(gated.client.call("first"));
            assert!(poll_once(first.as_mut()).is_pending());
            let mut second = Box::pin(gated.client.call("second"));
            if leaves_before_it_begins {
                assert!(poll_once(second.as_mut()).is_pending());
            }
            let client = gated.client.clone();
            let last = tokio::spawn(async move { client.call("last").await });
            gated.gate.add_permits(2);
            // Nobody looks at what comes: the last one waits.
            until(|| gated.near.counters().responses_received == 1).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!last.is_finished());
            drop(first);
            if leaves_before_it_begins {
                tokio::time::sleep(Duration::from_millis(20)).await;
                assert!(!last.is_finished(), "it is the turn of the second");
            }
            drop(second);
            assert_eq!(last.await.unwrap().unwrap(), "last");
        }
    });
}

#[test]
fn a_server_that_is_shut_down_answers_what_it_has_begun() {
    on_both(async || {
        let gated = gated(Options::default()).await;
        let mut calls = JoinSet::new();
        for _ in 0..5 {
            let client = gated.client.clone();
            calls.spawn(async move { client.call("under way").await });
        }
        until(|| gated.begun() == 5).await;
        let shutdown = tokio::spawn(gated.server.shutdown(Duration::from_secs(20)));
        until(|| gated.client.failed() == Some(RpcError::Draining)).await;
        let refused = gated.client.call("too late").await.unwrap_err();
        assert_eq!(refused, RpcError::Draining);
        assert!(refused.was_not_run());
        gated.gate.add_permits(5);
        for answer in calls.join_all().await {
            assert_eq!(answer.unwrap(), "under way");
        }
        assert!(shutdown.await.unwrap(), "all were answered");
        assert_eq!(gated.counts.begun.load(Ordering::SeqCst), 5);
        until(|| gated.client.failed() == Some(RpcError::Closed)).await;
    });
}

#[test]
fn a_shutdown_that_runs_out_of_time_drops_what_is_left() {
    on_both(async || {
        let gated = gated(Options::default()).await;
        let client = gated.client.clone();
        let call = tokio::spawn(async move { client.call("never").await });
        until(|| gated.counts.begun.load(Ordering::SeqCst) == 1).await;
        let answered = gated.server.shutdown(Duration::from_millis(20)).await;
        assert!(!answered);
        assert_eq!(call.await.unwrap(), Err(RpcError::Closed));
        until(|| gated.counts.over.load(Ordering::SeqCst) == 1).await;
    });
}

#[test]
fn a_server_that_is_dropped_closes_its_connections_and_its_port() {
    on_both(async || {
        let (far, server, near, client) = pair(Options::default()).await;
        assert_eq!(client.call("hello").await.unwrap(), "hello");
        drop(server);
        until(|| client.failed().is_some()).await;
        assert_eq!(client.call("hello").await, Err(RpcError::Closed));
        assert!(near.connect(at(&far)).await.is_err());
        let _again = echo(&far);
        let client = near.connect(at(&far)).await.unwrap();
        assert_eq!(client.call("hello").await.unwrap(), "hello");
    });
}

#[test]
fn a_client_that_is_dropped_drops_its_services() {
    on_both(async || {
        let gated = gated(Options::default()).await;
        let client = gated.near.connect(at(&gated.far)).await.unwrap();
        let mut call = Box::pin(client.call("never"));
        assert!(poll_once(call.as_mut()).is_pending());
        until(|| gated.begun() == 1).await;
        drop(client);
        // The call keeps the connection.
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(gated.over(), 0);
        drop(call);
        until(|| gated.over() == 1).await;
        until(|| gated.far.counters().connections_closed == 1).await;
        // The other one goes on.
        gated.gate.add_permits(1);
        assert_eq!(gated.client.call("on").await.unwrap(), "on");
    });
}

#[test]
fn a_node_that_ends_ends_its_calls_and_its_peers() {
    on_both(async || {
        let gated = gated(Options::default()).await;
        let client = gated.client.clone();
        let call = tokio::spawn(async move { client.call("never").await });
        until(|| gated.begun() == 1).await;
        let near = gated.near.node().clone();
        near.shutdown(Duration::ZERO).await.ok();
        let why = call.await.unwrap().unwrap_err();
        assert!(matches!(why, RpcError::Node(_)), "{why:?}");
        until(|| gated.over() == 1).await;
        until(|| gated.far.counters().connections_closed == 1).await;
        assert!(gated.near.connect(at(&gated.far)).await.is_err());
    });
}

#[test]
fn the_end_of_a_server_s_node_is_heard() {
    on_both(async || {
        let gated = gated(Options::default()).await;
        let client = gated.client.clone();
        let call = tokio::spawn(async move { client.call("never").await });
        until(|| gated.begun() == 1).await;
        gated.far.node().shutdown(Duration::ZERO).await.ok();
        let why = call.await.unwrap().unwrap_err();
        assert!(matches!(why, RpcError::Closed | RpcError::Reset), "{why:?}");
    });
}

#[test]
fn more_connections_than_allowed_are_refused_at_either_end() {
    on_both(async || {
        let few = Options {
            connections: 2,
            ..Options::default()
        };
        let (far, near) = (endpoint(few), endpoint(Options::default()));
        let _server = echo(&far);
        let first = near.connect(at(&far)).await.unwrap();
        let second = near.connect(at(&far)).await.unwrap();
        assert!(near.connect(at(&far)).await.is_err());
        assert_eq!(far.counters().connections_refused, 1);
        drop(first);
        until(|| far.counters().connections_closed == 1).await;
        let third = near.connect(at(&far)).await.unwrap();
        for client in [second, third] {
            assert_eq!(client.call("hello").await.unwrap(), "hello");
        }
    });
}

#[test]
fn what_is_too_long_or_too_much_is_refused_and_nothing_else() {
    on_both(async || {
        let small = Options {
            max_body: 10_000,
            large_bytes: 32 << 10,
            ..Options::default()
        };
        let (far, near) = (endpoint(small), endpoint(Options::default()));
        let _server = echo(&far);
        let client = near.connect(at(&far)).await.unwrap();
        let call = |length: usize| client.call(vec![1; length]);
        assert_eq!(call(10_001).await, Err(RpcError::TooLong));
        assert_eq!(call(10_000).await.unwrap().len(), 10_000);
        // Two of them at the same time are more than the server keeps.
        let refused = in_time(async {
            loop {
                let (one, other) = tokio::join!(call(10_000), call(10_000));
                match [one.is_ok(), other.is_ok()] {
                    [true, true] => {}
                    [true, false] => return other,
                    _ => return one,
                }
            }
        });
        assert_eq!(refused.await, Err(RpcError::Overloaded));
        assert_eq!(far.counters().requests_overloaded, 1);
        assert_eq!(call(10_000).await.unwrap().len(), 10_000);
    });
}

#[test]
fn responses_that_are_written_to_their_place_count_until_they_are_there() {
    on_both(async || {
        let options = Options {
            large_bytes: 32 << 10,
            ..Options::default()
        };
        let far = endpoint(options);
        let service = tower::service_fn(|_| async { Ok::<_, Refusal>(vec![9; 10_000]) });
        let _server = far.listen(at(&far), service).unwrap();
        let near = endpoint(Options::default());
        let client = near.connect(at(&far)).await.unwrap();
        let mr = near.register(20_000).unwrap();
        let call = |from| client.call_into("hello", &mr, from, 10_000);
        let refused = in_time(async {
            loop {
                let (one, other) = tokio::join!(call(0), call(10_000));
                if let Some(why) = one.err().or(other.err()) {
                    return why;
                }
            }
        })
        .await;
        assert!(matches!(refused, RpcError::Refused(_)), "{refused:?}");
        // The server hears a little later than the client that they are there.
        in_time(async {
            while call(0).await.is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    });
}

#[test]
fn a_response_longer_than_the_client_takes_is_none() {
    on_both(async || {
        let small = Options {
            max_body: 5_000,
            ..Options::default()
        };
        let far = endpoint(Options::default());
        let service = tower::service_fn(|request: Request| async move {
            let length = usize::from_be_bytes(request.body()[..8].try_into().unwrap());
            Ok::<_, Refusal>(Bytes::from(vec![9; length]))
        });
        let _server = far.listen(at(&far), service).unwrap();
        let near = endpoint(small);
        let client = near.connect(at(&far)).await.unwrap();
        let call = |length: usize| client.call(length.to_be_bytes().to_vec());
        assert_eq!(call(5_001).await, Err(RpcError::TooLong));
        assert_eq!(call(5_000).await.unwrap().len(), 5_000);
    });
}

#[test]
fn ends_with_nothing_to_say_say_nothing() {
    on_both(async || {
        let few = Options {
            receives: 4,
            ..Options::default()
        };
        let (far, _server, near, client) = pair(few).await;
        for _ in 0..20 {
            assert_eq!(client.call("hello").await.unwrap(), "hello");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        let said = || {
            let received = |endpoint: &Endpoint| endpoint.counters().messages_received;
            (received(&far), received(&near))
        };
        let before = said();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(said(), before);
    });
}

#[test]
fn a_client_at_its_limit_whose_responses_are_read_breaks_no_rule() {
    on_both(async || {
        let options = Options {
            requests: 2,
            ..Options::default()
        };
        let far = endpoint(options);
        let service = tower::service_fn(|request: Request| async move {
            yield_now().await;
            Ok::<_, Refusal>(Bytes::from(vec![request.body()[0]; 10_000]))
        });
        let _server = far.listen(at(&far), service).unwrap();
        let near = endpoint(options);
        let client = near.connect(at(&far)).await.unwrap();
        let calls = (0..200).map(|of| {
            let client = client.clone();
            async move { client.call(vec![of]).await.unwrap().len() }
        });
        let calls: JoinSet<_> = calls.collect();
        assert!(
            calls
                .join_all()
                .await
                .iter()
                .all(|length| *length == 10_000)
        );
        assert_eq!(far.counters().violations, 0);
    });
}

#[test]
fn connects_at_a_time_are_no_more_than_allowed() {
    on_both(async || {
        let few = Options {
            connections: 3,
            ..Options::default()
        };
        let (far, near) = (endpoint(Options::default()), endpoint(few));
        let _server = echo(&far);
        let connects = (0..20).map(|_| {
            let (near, to) = (near.clone(), at(&far));
            async move { near.connect(to).await.ok() }
        });
        let connects: JoinSet<_> = connects.collect();
        let clients: Vec<_> = connects.join_all().await.into_iter().flatten().collect();
        assert_eq!(clients.len(), 3);
        for client in clients {
            assert_eq!(client.call("hello").await.unwrap(), "hello");
        }
    });
}

#[test]
fn an_endpoint_whose_runtime_ends_fails_its_calls_and_takes_no_more() {
    let build = || {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (stays, ends) = (build(), build());
    let (far, node) = stays.block_on(async { (endpoint(Options::default()), common::node()) });
    let never = tower::service_fn(|_| std::future::pending::<Result<Bytes, Refusal>>());
    let _server = stays.block_on(async { far.listen(at(&far), never).unwrap() });
    let near = ends.block_on(async { Endpoint::new(&node, Options::default()).unwrap() });
    let client = stays.block_on(near.connect(at(&far))).unwrap();
    let call = stays.spawn(async move { client.call("never").await });
    ends.shutdown_timeout(Duration::from_secs(10));
    let why = stays.block_on(in_time(call)).unwrap();
    assert_eq!(why, Err(RpcError::Closed));
    assert!(stays.block_on(near.connect(at(&far))).is_err());
}

#[test]
fn what_a_service_works_on_counts_until_it_has_answered() {
    on_both(async || {
        let options = Options {
            large_bytes: 32 << 10,
            ..Options::default()
        };
        let gated = gated(options).await;
        let mut first = pin!(gated.client.call(vec![1; 10_000]));
        assert!(poll_once(first.as_mut()).is_pending());
        until(|| gated.begun() == 1).await;
        let second = gated.client.call(vec![2; 10_000]).await;
        assert_eq!(second, Err(RpcError::Overloaded));
        drop(gated.server);
    });
}
