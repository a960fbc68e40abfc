//! Calls over Trunkline: an endpoint on a node that the runtime drives, one QP for each client.

use super::load::Caller;
use anyhow::Result;
use bytes::Bytes;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};
use tower_service::Service;
use trunkline_rpc::{Client, Endpoint, Options, Request, Server};
use trunkline_tokio::Node;

/// Where the server listens.
const PORT: u16 = 7471;

impl Caller for Client {
    async fn call(&self, body: Bytes) -> Result<Bytes> {
        Ok(Self::call(self, body).await?)
    }
}

/// Answers each request with its own bytes.
#[derive(Clone, Copy, Debug)]
struct Echo;

impl Service<Request> for Echo {
    type Response = Bytes;
    type Error = Infallible;
    type Future = Ready<Result<Bytes, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        ready(Ok(request.into_body()))
    }
}

fn endpoint(address: IpAddr, connections: usize) -> Result<Endpoint> {
    let node = Node::new(trunkline::Node::builder().address(address))?;
    let mut options = Options::default();
    options.connections = options.connections.max(u32::try_from(connections)?);
    Ok(Endpoint::new(&node, options)?)
}

/// Answers calls, in tasks of this runtime, for as long as what it gives is kept.
///
/// # Errors
/// The address cannot be bound.
pub(super) fn serve(address: IpAddr, connections: usize) -> Result<(Server, SocketAddr)> {
    let at = SocketAddr::new(address, PORT);
    Ok((endpoint(address, connections)?.listen(at, Echo)?, at))
}

/// So many QPs for calls.
///
/// # Errors
/// One does not come about.
pub(super) async fn connect(address: IpAddr, to: SocketAddr, count: usize) -> Result<Vec<Client>> {
    let endpoint = endpoint(address, count)?;
    let mut clients = Vec::with_capacity(count);
    for _ in 0..count {
        clients.push(endpoint.connect(to).await?);
    }
    Ok(clients)
}
