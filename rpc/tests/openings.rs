//! Connections that come to nothing while they open: nothing of what all share goes with them.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, at, echo, endpoint, in_time, node, on_both};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use trunkline::rdma_cm::Params;
use trunkline::{Completion, QpOptions, SendWr};
use trunkline_rpc::{Client, Endpoint, OpenError, Options};
use trunkline_tokio::rdma_cm::{Connection, Listener};

/// A hello with 64 receives of 4,096 bytes, 16 requests at a time, and bodies of up to 1 MiB.
const HELLO: &[u8] = b"TLrp\x01\x00\x00\x40\x00\x10\x00\x00\x10\x00\x00\x10\x00\x00";

/// A server of another kind, which accepts whatever comes and says something at once.
struct Stranger {
    end: End,
    listener: Listener,
}

impl Stranger {
    fn new() -> Self {
        let end = End::of(node());
        let listener = Listener::bind(&end.node, end.at(), 8).unwrap();
        Self { end, listener }
    }

    /// Accepts with this hello, and posts messages of so many bytes in the same turn.
    async fn accept(&self, hello: &[u8], messages: &[usize]) -> Connection {
        let request = self.listener.next().await.unwrap();
        let mut done = [Completion::BLANK; 256];
        while self.end.cq.verbs().poll(&mut done).unwrap() > 0 {}
        let options = QpOptions {
            max_send_wr: 256,
            ..QpOptions::default()
        };
        let accepting = self.end.accepting(request, &options).unwrap();
        let params = Params {
            private_data: hello,
            ..Params::default()
        };
        let connection = accepting.accept(&params).unwrap();
        for &bytes in messages {
            let sges = [self.end.mr.sge(0, bytes)];
            let send = SendWr::send_imm(8).wr_id(1).signaled().sges(&sges);
            connection.qp().post_send(&[send]).unwrap();
        }
        connection
    }

    /// The same, with what becomes of a client that connects.
    async fn meets(
        &self,
        near: &Endpoint,
        hello: &[u8],
        messages: &[usize],
    ) -> Result<Client, OpenError> {
        let accepted = self.accept(hello, messages);
        let client = late(near.connect(self.end.at()));
        let (connection, client) = tokio::join!(accepted, client);
        drop(connection);
        client
    }
}

/// What becomes of a future that is polled now and then, whether or not it was woken.
async fn late<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// A client with an honest server, which it can call as long as it has receives.
async fn honest(near: &Endpoint) -> (Client, trunkline_rpc::Server, Endpoint) {
    let far = endpoint(Options::default());
    let server = echo(&far);
    let client = near.connect(at(&far)).await.unwrap();
    (client, server, far)
}

/// The same as soon as there is a place for it.
async fn patiently(near: &Endpoint) -> (Client, trunkline_rpc::Server, Endpoint) {
    let far = endpoint(Options::default());
    let server = echo(&far);
    loop {
        match near.connect(at(&far)).await {
            Ok(client) => return (client, server, far),
            Err(OpenError::TooMany) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn goes_on(client: &Client) {
    let answer = in_time(client.call("hello")).await;
    assert_eq!(answer.unwrap(), "hello");
}

fn with_long_messages() -> Endpoint {
    endpoint(Options {
        message_bytes: 1 << 20,
        ..Options::default()
    })
}

/// A server stops in the middle of a message of 1 MiB, before who connects has looked at its
/// answer, which has this hello. Who connects looks at it then, or leaves. All of that again and
/// again; who is connected goes on.
fn half_a_message_takes_no_receive(hello: &[u8], looks: bool) {
    let near_by = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let far_away = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let near = near_by.block_on(async { with_long_messages() });
    let (client, _server, _far) = near_by.block_on(honest(&near));
    for _ in 0..40 {
        // It is not driven any more after that.
        let stranger = far_away.block_on(async { Stranger::new() });
        let mut connecting = Box::pin(near.connect(stranger.end.at()));
        let mut look = || {
            let _entered = near_by.enter();
            connecting
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
        };
        let accepted = far_away.block_on(async {
            let mut accepted = pin!(stranger.accept(hello, &[1 << 20]));
            in_time(poll_fn(|cx| {
                let accepted = accepted.as_mut().poll(cx);
                if accepted.is_pending() {
                    assert!(look().is_pending());
                    cx.waker().wake_by_ref();
                }
                accepted
            }))
            .await
        });
        let sent = || stranger.end.node.port_counters().sent_bytes;
        let (before, patience) = (sent(), Instant::now());
        while sent() < before + 50_000 {
            far_away.block_on(tokio::task::yield_now());
            assert!(patience.elapsed() < common::PATIENCE);
        }
        std::thread::sleep(Duration::from_millis(5));
        if looks {
            assert!(matches!(look(), Poll::Ready(Err(OpenError::NoServer))));
        }
        drop(connecting);
        // Its peer hears nothing of it.
        std::mem::forget(accepted);
    }
    near_by.block_on(async {
        for _ in 0..10 {
            goes_on(&client).await;
        }
    });
}

#[test]
fn half_a_message_of_a_server_that_is_none_takes_no_receive_of_others() {
    half_a_message_takes_no_receive(b"something else", true);
}

#[test]
fn half_a_message_for_a_connect_that_is_dropped_takes_no_receive_of_others() {
    half_a_message_takes_no_receive(HELLO, false);
}

#[test]
fn messages_that_come_before_a_connection_stands_take_what_was_granted_and_no_more() {
    on_both(async || {
        let near = endpoint(Options::default());
        let (client, _server, _far) = honest(&near).await;
        let stranger = Stranger::new();
        for _ in 0..20 {
            let met = in_time(stranger.meets(&near, HELLO, &[16; 100])).await;
            drop(met);
        }
        for _ in 0..10 {
            goes_on(&client).await;
        }
    });
}

#[test]
fn a_connection_that_breaks_the_rules_at_once_leaves_its_place_to_others() {
    on_both(async || {
        let near = endpoint(Options {
            connections: 4,
            ..Options::default()
        });
        let stranger = Stranger::new();
        for _ in 0..8 {
            // Longer than a receive, and than nobody is told of.
            let client = in_time(stranger.meets(&near, HELLO, &[5000, 16])).await;
            drop(client);
            let ended = async {
                while near.counters().connections_opened > near.counters().connections_closed {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            in_time(ended).await;
        }
        let (client, _server, _far) = in_time(honest(&near)).await;
        goes_on(&client).await;
    });
}

#[test]
fn a_connection_that_breaks_the_rules_after_all_that_it_was_granted_leaves_its_place_to_others() {
    on_both(async || {
        let near = endpoint(Options {
            connections: 4,
            ..Options::default()
        });
        let stranger = Stranger::new();
        for _ in 0..4 {
            let messages = [16, 16, 16, 16, 16, 16, 16, 16, 5000];
            let client = in_time(stranger.meets(&near, HELLO, &messages)).await;
            drop(client);
        }
        let (client, _server, _far) = in_time(patiently(&near)).await;
        goes_on(&client).await;
    });
}

#[test]
fn a_connect_that_outlives_the_runtime_of_its_endpoint_comes_to_nothing() {
    let build = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let stays = build();
    let (far, home) = stays.block_on(async { (endpoint(Options::default()), node()) });
    let _server = stays.block_on(async { echo(&far) });
    // However far it has come.
    let (mut polls, mut is_done) = (1, false);
    while !is_done {
        let ends = build();
        let near = ends.block_on(async { Endpoint::new(&home, Options::default()).unwrap() });
        let mut connecting = Box::pin(near.connect(at(&far)));
        stays.block_on(async {
            let mut cx = Context::from_waker(Waker::noop());
            for _ in 0..polls {
                if let Poll::Ready(connected) = connecting.as_mut().poll(&mut cx) {
                    assert!(connected.is_ok(), "{connected:?}");
                    is_done = true;
                    return;
                }
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
        });
        ends.shutdown_timeout(Duration::from_secs(10));
        if !is_done {
            let connected = stays.block_on(in_time(connecting));
            assert!(connected.is_err(), "{polls} polls: {connected:?}");
        }
        polls += 1;
    }
}

#[test]
fn who_connects_from_a_node_that_has_ended_hears_so() {
    on_both(async || {
        let (far, near) = (endpoint(Options::default()), endpoint(Options::default()));
        let _server = echo(&far);
        let _ = near.node().shutdown(Duration::ZERO).await;
        for _ in 0..3 {
            let connected = in_time(near.connect(at(&far))).await;
            let Err(OpenError::Connect(why)) = connected else {
                panic!("{connected:?}");
            };
            assert_eq!(why.to_string(), "the node was shut down");
        }
    });
}

#[test]
fn what_comes_to_nothing_while_it_opens_was_neither_opened_nor_closed() {
    on_both(async || {
        let near = endpoint(Options::default());
        let stranger = Stranger::new();
        for _ in 0..4 {
            let messages = [16, 16, 16, 16, 16, 16, 16, 16, 5000];
            let client = in_time(stranger.meets(&near, HELLO, &messages)).await;
            drop(client);
        }
        let (client, _server, _far) = in_time(patiently(&near)).await;
        goes_on(&client).await;
        drop(client);
        let same = async {
            loop {
                let counters = near.counters();
                if counters.connections_opened == counters.connections_closed {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        in_time(same).await;
    });
}
