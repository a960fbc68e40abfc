//! Endpoints on loopback addresses of their own.
#![allow(dead_code, reason = "each test file uses its part of it")]
#![allow(
    unreachable_pub,
    reason = "a module that several test programs include"
)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::runtime::Builder;
use trunkline_rpc::{Client, Endpoint, Options, Request, Server};
use trunkline_tokio::Node;

/// How long anything may take before the test gives up on it: far more than it should.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A loopback address that no other test uses, of this process or of one that runs beside it.
pub fn address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(last < 255, "254 addresses are enough for one test binary");
    Ipv4Addr::new(127, 64 + (pid >> 8) as u8 % 128, pid as u8, last).into()
}

/// A node on an address of its own, driven by the current runtime.
pub fn node() -> Node {
    Node::new(trunkline::Node::builder().address(address())).unwrap()
}

pub fn endpoint(options: Options) -> Endpoint {
    Endpoint::new(&node(), options).unwrap()
}

pub fn at(endpoint: &Endpoint) -> SocketAddr {
    (endpoint.node().gid().address(), 7471).into()
}

/// Runs a test on both kinds of runtime, each within the test's patience.
pub fn on_both(test: impl AsyncFn()) {
    let runtimes = [
        Builder::new_current_thread().enable_all().build().unwrap(),
        Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap(),
    ];
    for runtime in runtimes {
        runtime.block_on(async { in_time(test()).await });
    }
}

/// What a future gives, in time.
pub async fn in_time<F: Future>(future: F) -> F::Output {
    let ended = tokio::time::timeout(PATIENCE, future).await;
    ended.expect("it ends in time")
}

/// Waits until something is so.
pub async fn until(mut so: impl FnMut() -> bool) {
    in_time(async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// A service that answers with what it was asked.
pub fn echo(endpoint: &Endpoint) -> Server {
    let echo =
        tower::service_fn(|request: Request| async { Ok::<_, Infallible>(request.into_body()) });
    endpoint.listen(at(endpoint), echo).unwrap()
}

/// A server that echoes, and a client of it.
pub async fn pair(options: Options) -> (Endpoint, Server, Endpoint, Client) {
    let (far, near) = (endpoint(options), endpoint(options));
    let server = echo(&far);
    let client = near.connect(at(&far)).await.unwrap();
    (far, server, near, client)
}
