//! The yardstick: the same calls over TCP, and bytes alone over TCP.

mod client;
mod frame;
mod raw;
mod server;
#[cfg(test)]
mod tests;
mod wire;

use anyhow::Result;
use std::net::{IpAddr, SocketAddr};

pub(super) use client::Client;
pub(super) use raw::Raw;

/// Answers calls with their own bytes, in tasks of this runtime. Gives where.
///
/// # Errors
/// The address cannot be bound.
pub(super) fn serve(address: IpAddr) -> Result<SocketAddr> {
    server::listen(address, server::echo)
}

/// Gives all bytes back as they came, in tasks of this runtime. Gives where.
///
/// # Errors
/// The address cannot be bound.
pub(super) fn reflect(address: IpAddr) -> Result<SocketAddr> {
    server::listen(address, server::reflect)
}

/// So many connections for calls.
///
/// # Errors
/// One does not come about.
pub(super) async fn connect(to: SocketAddr, count: usize) -> Result<Vec<Client>> {
    let mut clients = Vec::with_capacity(count);
    for _ in 0..count {
        clients.push(Client::connect(to).await?);
    }
    Ok(clients)
}
