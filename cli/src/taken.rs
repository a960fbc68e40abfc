//! Addresses that somebody else has, and what to do about it.

use anyhow::{Result, anyhow};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use trunkline::{Builder, Error, Node, UdpOpenError};
use trunkline_dataplane::udp::Owner;

/// Builds a node at the address that `option` of the command line names.
///
/// # Errors
/// The node cannot start. Where somebody else has the address: who, and which option to change.
pub(crate) fn build(builder: Builder, address: IpAddr, option: &str) -> Result<Node> {
    builder.address(address).build().map_err(|error| {
        let error = match error {
            Error::Open(taken @ UdpOpenError::InUse { .. }) => {
                anyhow!("{taken}; choose another address with {option}")
            }
            error => error.into(),
        };
        error.context(format!("cannot start a node on {address}"))
    })
}

/// Why nobody can listen on `asked`, a TCP port that `option` of the command line names, and what
/// to do.
pub(crate) fn refused(asked: SocketAddr, error: io::Error, option: &str) -> anyhow::Error {
    let error = match error.kind() {
        ErrorKind::AddrInUse => {
            let owner = Owner::of_tcp_listener(asked);
            anyhow!("TCP port taken by {owner}; choose another one with {option}")
        }
        _ => anyhow!("{error}; choose another one with {option}"),
    };
    error.context(format!("cannot listen on {asked}"))
}
