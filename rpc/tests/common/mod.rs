//! Endpoints on loopback addresses of their own.
#![allow(
    dead_code,
    unused_imports,
    reason = "each test file uses its part of it"
)]
#![allow(
    unreachable_pub,
    reason = "a module that several test programs include"
)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

// What tests of nodes on a runtime share.
#[path = "../../../tokio/tests/common/mod.rs"]
mod nodes;

pub use nodes::{End, PATIENCE, address, in_time, node, on_both, process, wary};

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use trunkline_rpc::{Client, Endpoint, Options, Request, Server};

pub fn endpoint(options: Options) -> Endpoint {
    Endpoint::new(&node(), options).unwrap()
}

pub fn at(endpoint: &Endpoint) -> SocketAddr {
    (endpoint.node().gid().address(), 7471).into()
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
