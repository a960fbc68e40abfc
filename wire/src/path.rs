//! Where a packet goes and comes from: what of the IP and UDP headers the ICRC covers.

use core::net::IpAddr;

/// UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// Addresses and traffic class of the packets of one direction. The UDP destination port is always
/// [`ROCE_PORT`]; both addresses are of one family.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Path {
    /// Sender's address.
    pub src: IpAddr,
    /// Receiver's address.
    pub dst: IpAddr,
    /// Sender's UDP port: entropy for switches and receive queues.
    pub src_port: u16,
    /// IPv4 type of service or IPv6 traffic class: DSCP in the upper six bits, ECN in the lower
    /// two.
    /// The ICRC does not cover it.
    pub traffic_class: u8,
}

impl Path {
    /// The same path seen from the other end, to answer with `src_port` as the UDP source port.
    #[must_use]
    pub const fn reversed(self, src_port: u16) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            src_port,
            traffic_class: self.traffic_class,
        }
    }
}
