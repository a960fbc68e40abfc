//! RDMA-CM on top of communication management (IBTA annex A11): service IDs made of IP ports, and
//! a header of 36 bytes at the front of the private data of REQ and SIDR_REQ, big-endian.
//!
//! ```text
//! | 0 | IP version 4, reserved 4 |  source port  |  0..4
//! |             source address (16)              |  4..20
//! |           destination address (16)           |  20..36
//! ```
//!
//! IPv4 addresses stand in the last four of their sixteen bytes, behind zeros.

use crate::WireError;
use crate::bytes::{get, header, put, u16_at};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What a connection is asked for.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ServiceId(pub u64);

/// Bits above which every IP service ID is the same.
const IP_PREFIX: u64 = 0x0000_0000_0100_0000;
const PREFIX_MASK: u64 = !0xff_ffff;
const TCP: u8 = 6;
const UDP: u8 = 17;

impl ServiceId {
    /// The service on `port` of the port space of an IP protocol.
    pub const fn ip(protocol: u8, port: u16) -> Self {
        Self(IP_PREFIX | (protocol as u64) << 16 | port as u64)
    }

    /// TCP port space: connections.
    pub const fn tcp(port: u16) -> Self {
        Self::ip(TCP, port)
    }

    /// UDP port space: datagrams.
    pub const fn udp(port: u16) -> Self {
        Self::ip(UDP, port)
    }

    /// Protocol and port, when it is made of them.
    pub const fn ip_port(self) -> Option<(u8, u16)> {
        if self.0 & PREFIX_MASK == IP_PREFIX {
            Some(((self.0 >> 16) as u8, self.0 as u16))
        } else {
            None
        }
    }
}

/// Who connects from where to where, in terms of IP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RdmaCmHeader {
    /// Port that the asking side bound.
    pub src_port: u16,
    /// Addresses of the asking and of the asked side, of one family.
    pub addresses: Addresses,
}

/// Two addresses of one family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Addresses {
    /// IPv4: source, destination.
    V4(Ipv4Addr, Ipv4Addr),
    /// IPv6: source, destination.
    V6(Ipv6Addr, Ipv6Addr),
}

impl Addresses {
    /// Source and destination.
    pub const fn pair(self) -> (IpAddr, IpAddr) {
        match self {
            Self::V4(src, dst) => (IpAddr::V4(src), IpAddr::V4(dst)),
            Self::V6(src, dst) => (IpAddr::V6(src), IpAddr::V6(dst)),
        }
    }
}

header!(RdmaCmView of RdmaCmHeader, 36 bytes, "RDMA-CM", checked);

impl RdmaCmView<'_> {
    /// Version; 0.
    pub const fn version(self) -> u8 {
        self.0[0]
    }

    /// IP version; 4 or 6.
    pub const fn ip_version(self) -> u8 {
        self.0[1] >> 4
    }
}

impl RdmaCmHeader {
    /// Judges what the view shows.
    ///
    /// # Errors
    /// Another version than 0, or an IP version other than 4 and 6.
    pub const fn parse(view: RdmaCmView<'_>) -> Result<Self, WireError> {
        let bytes = view.0;
        if view.version() != 0 {
            let value = view.version() as u32;
            return Err(WireError::Invalid {
                header: "RDMA-CM",
                field: "version",
                value,
            });
        }
        let addresses = match view.ip_version() {
            4 => Addresses::V4(
                Ipv4Addr::from_octets(get(bytes, 16)),
                Ipv4Addr::from_octets(get(bytes, 32)),
            ),
            6 => Addresses::V6(
                Ipv6Addr::from_octets(get(bytes, 4)),
                Ipv6Addr::from_octets(get(bytes, 20)),
            ),
            version => {
                let value = version as u32;
                return Err(WireError::Invalid {
                    header: "RDMA-CM",
                    field: "IP version",
                    value,
                });
            }
        };
        Ok(Self {
            src_port: u16_at(bytes, 2),
            addresses,
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = [0; Self::LEN];
        put(out, 2, self.src_port.to_be_bytes());
        match self.addresses {
            Addresses::V4(src, dst) => {
                out[1] = 4 << 4;
                put(out, 16, src.octets());
                put(out, 32, dst.octets());
            }
            Addresses::V6(src, dst) => {
                out[1] = 6 << 4;
                put(out, 4, src.octets());
                put(out, 20, dst.octets());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ids_are_prefix_protocol_and_port() {
        // As captured: rping on port 7174 and udaddy on the same.
        assert_eq!(ServiceId::tcp(0x1c06).0, 0x0000_0000_0106_1c06);
        assert_eq!(ServiceId::udp(0x1c06).0, 0x0000_0000_0111_1c06);
        assert_eq!(ServiceId::tcp(7174).ip_port(), Some((6, 7174)));
        assert_eq!(ServiceId(0x0200_0000_0106_1c06).ip_port(), None);
        assert_eq!(ServiceId(0).ip_port(), None);
    }

    #[test]
    fn a_captured_header_reads_as_what_it_was() {
        let mut bytes = [0; 36];
        bytes[..4].copy_from_slice(&[0x00, 0x40, 0xb0, 0x4b]);
        bytes[16..20].copy_from_slice(&[10, 99, 0, 2]);
        bytes[32..].copy_from_slice(&[10, 99, 0, 1]);
        let (header, _) = RdmaCmHeader::read(&bytes).expect("a captured header parses");
        let (src, dst) = (Ipv4Addr::new(10, 99, 0, 2), Ipv4Addr::new(10, 99, 0, 1));
        let captured = RdmaCmHeader {
            src_port: 45_131,
            addresses: Addresses::V4(src, dst),
        };
        assert_eq!(header, captured);
        assert_eq!(header.addresses.pair(), (src.into(), dst.into()));
        assert_eq!(header.to_bytes(), bytes);
    }

    #[test]
    fn other_versions_are_refused() {
        let mut bytes = [0; 36];
        for (first, second, good) in [(0, 0x40, true), (0, 0x60, true), (0, 0x50, false)] {
            (bytes[0], bytes[1]) = (first, second);
            assert_eq!(RdmaCmHeader::read(&bytes).is_ok(), good);
        }
        (bytes[0], bytes[1]) = (1, 0x40);
        assert!(RdmaCmHeader::read(&bytes).is_err());
    }
}
