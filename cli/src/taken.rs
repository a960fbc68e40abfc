//! Addresses that somebody else has, and what to do about it.

use anyhow::{Result, anyhow};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use trunkline::{Builder, Error, Node, PortKind, UdpOpenError};
use trunkline_dataplane::Port;
use trunkline_dataplane::udp::Owner;

/// Builds a node at the address that `option` of the command line names.
///
/// # Errors
/// The node cannot start. Where somebody else has the address: who, and which option to change.
pub(crate) fn build(builder: Builder, address: IpAddr, option: &str) -> Result<Node> {
    let built = builder.address(address).build();
    built.map_err(|error| no_node(error, address, option))
}

/// Opens a port without a node at the address that `option` of the command line names.
///
/// # Errors
/// As [`build`], of the port.
pub(crate) fn open_port(
    kind: &PortKind,
    address: IpAddr,
    option: &str,
) -> Result<Box<dyn Port + Send>> {
    let opened = kind.open_alone(address);
    opened.map_err(|error| why(error, option).context(format!("cannot open a port on {address}")))
}

/// Opens a port for a moment, as a node would at the address that `option` of the command line
/// names.
///
/// # Errors
/// As [`build`], of the port.
pub(crate) fn try_port(kind: &PortKind, address: IpAddr, option: &str) -> Result<()> {
    let tried = kind.try_on(address).map(drop);
    tried.map_err(|error| no_node(error, address, option))
}

fn no_node(error: Error, address: IpAddr, option: &str) -> anyhow::Error {
    why(error, option).context(format!("cannot start a node on {address}"))
}

fn why(error: Error, option: &str) -> anyhow::Error {
    match error {
        Error::Open(taken @ UdpOpenError::InUse { .. }) => {
            anyhow!("{taken}; choose another address with {option}")
        }
        error => error.into(),
    }
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
