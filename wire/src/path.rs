//! Where a packet goes and comes from: what of the IP and UDP headers the ICRC covers.

use core::net::IpAddr;

/// UDP destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// Flow label and hop limit of packets: fields of the IP header that whoever sends may choose, as
/// FlowLabel and HopLmt of a GRH (IBTA Vol 1, 8.3). The ICRC covers neither. They are 0 where the
/// system chooses, and of packets that were received where the port does not see them.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct IpFields([u8; 4]);

impl IpFields {
    /// The system's choice of both.
    pub const DEFAULT: Self = Self([0; 4]);

    /// The largest flow label: it has 20 bits.
    pub const MAX_FLOW_LABEL: u32 = (1 << 20) - 1;

    /// The lower 20 bits of `flow_label`, and a hop limit; 0 of either is the system's choice.
    pub const fn new(flow_label: u32, hop_limit: u8) -> Self {
        let [_, high, middle, low] = (flow_label & Self::MAX_FLOW_LABEL).to_be_bytes();
        Self([hop_limit, high, middle, low])
    }

    /// Flow label of IPv6, in `0 ..= MAX_FLOW_LABEL`; IPv4 has none.
    pub const fn flow_label(self) -> u32 {
        let [_, high, middle, low] = self.0;
        u32::from_be_bytes([0, high, middle, low])
    }

    /// Hop limit of IPv6 or time to live of IPv4.
    pub const fn hop_limit(self) -> u8 {
        self.0[0]
    }
}

/// Addresses, traffic class, flow label and hop limit of the packets of one direction. The UDP
/// destination port is always [`ROCE_PORT`]; both addresses are of one family.
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
    /// Flow label and hop limit.
    pub ip: IpFields,
}

impl Path {
    /// The same path seen from the other end, to answer with `src_port` as the UDP source port. The
    /// system chooses flow label and hop limit of answers.
    #[must_use]
    pub const fn reversed(self, src_port: u16) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            src_port,
            traffic_class: self.traffic_class,
            ip: IpFields::DEFAULT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_label_and_hop_limit_are_kept_and_bits_beyond_a_label_are_not() {
        for (label, hops) in [(0, 0), (0x1_2345, 1), (IpFields::MAX_FLOW_LABEL, u8::MAX)] {
            let ip = IpFields::new(label, hops);
            assert_eq!((ip.flow_label(), ip.hop_limit()), (label, hops));
            assert_eq!(IpFields::new(label | 1 << 20 | 1 << 31, hops), ip);
        }
        assert_eq!(IpFields::new(0, 0), IpFields::DEFAULT);
    }
}
