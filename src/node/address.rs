//! Which addresses a node can have.

use crate::error::Error;
use crate::node::Node;
use std::net::{IpAddr, Ipv4Addr};

impl Node {
    /// Whether packets can come to a node at `address`, as far as the address itself tells.
    ///
    /// # Errors
    /// [`Error::BadAddress`]: the address is of no or of many hosts, or does not say of which link
    /// it is.
    pub fn check_address(address: IpAddr) -> Result<(), Error> {
        let address = address.to_canonical();
        let why = if address.is_unspecified() {
            "a node has one address, which its peers know it by"
        } else if address.is_multicast() {
            "it is a multicast address"
        } else if address == IpAddr::V4(Ipv4Addr::BROADCAST) {
            "it is the broadcast address"
        } else if matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            "it is of one link, and an address alone does not say of which"
        } else {
            return Ok(());
        };
        Err(Error::BadAddress { address, why })
    }
}
