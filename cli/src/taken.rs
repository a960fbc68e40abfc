//! Addresses that somebody else has, and what to do about it.

use anyhow::{Result, anyhow};
use std::net::IpAddr;
use trunkline::{Builder, Error, Node, UdpOpenError};

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
