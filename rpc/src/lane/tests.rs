#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use crate::lock;
use crate::{Client, Endpoint, Options, Request};
use bytes::Bytes;
use std::convert::Infallible;
use std::time::Duration;
use trunkline_tokio::Node;

fn endpoint(last: u8) -> Endpoint {
    let builder = trunkline::Node::builder().address([127, 9, 78, last].into());
    Endpoint::new(&Node::new(builder).unwrap(), Options::default()).unwrap()
}

/// Buffers in use, receives that are posted, and those that connections have granted.
fn in_use(endpoint: &Endpoint) -> (usize, u32, u32) {
    let lane = &endpoint.0.lanes[0];
    let counts = lane.pools.counts();
    let posted = counts.iter().map(|(posted, _)| posted).sum();
    let wanted = counts.iter().map(|(_, wanted)| wanted).sum();
    (lock(&lane.buffers).in_use(), posted, wanted)
}

async fn until_nothing_is_lost(endpoint: &Endpoint, connections: u32) {
    let each = u32::from(Options::default().receives);
    let whole = || {
        let (buffers, posted, wanted) = in_use(endpoint);
        let ended = lock(&endpoint.0.lanes[0].channels).len() == connections as usize;
        ended && wanted == connections * each && buffers == posted as usize && posted >= wanted
    };
    let waits = async {
        while !whole() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), waits).await;
    assert!(waited.is_ok(), "{:?}", in_use(endpoint));
}

/// Calls of all kinds, some of which nobody waits for.
async fn call(clients: &[Client]) {
    for (at, client) in clients.iter().enumerate() {
        let lengths = [0, 64, 3000, 9000];
        let body = Bytes::from(vec![at as u8; lengths[at % lengths.len()]]);
        match at % 3 {
            0 => assert_eq!(client.call(body.clone()).await.unwrap(), body),
            1 => {
                let call = client.call(Request::new(body));
                let _ = tokio::time::timeout(Duration::ZERO, call).await;
            }
            _ => drop(tokio::spawn(client.call(body))),
        }
    }
}

#[test]
fn connections_that_come_and_go_at_any_moment_lose_no_buffer() {
    let single = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let several = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    for runtime in [single.unwrap(), several.unwrap()] {
        runtime.block_on(async {
            let (far, near) = (endpoint(1), endpoint(2));
            let echo = tower::service_fn(|request: Request| async move {
                Ok::<_, Infallible>(request.into_body())
            });
            let at = (far.node().gid().address(), 7471).into();
            let _server = far.listen(at, echo).unwrap();
            for count in [1, 8, 40, 5] {
                let mut clients = Vec::new();
                for _ in 0..count {
                    clients.push(near.connect(at).await.unwrap());
                }
                call(&clients).await;
                until_nothing_is_lost(&far, count).await;
                drop(clients);
                until_nothing_is_lost(&near, 0).await;
                until_nothing_is_lost(&far, 0).await;
            }
            // Those of 40 connections at most were ever posted at a time.
            let most = 40 * u32::from(Options::default().receives);
            assert!(in_use(&near).1 <= most && in_use(&far).1 <= most);
        });
    }
}
