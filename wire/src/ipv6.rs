//! IPv6 header (RFC 8200), big-endian, 40 bytes.
//!
//! ```text
//! | 6 | traffic class |      flow label      |  0..4
//! |   payload length  | next hdr | hop limit |  4..8
//! |                source (16)               |  8..24
//! |              destination (16)            |  24..40
//! ```

use crate::WireError;
use crate::bytes::{get, header, put, u16_at, u32_at};
use core::net::Ipv6Addr;

const FLOW_LABEL: u32 = 0xf_ffff;

/// IPv6 header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ipv6 {
    /// DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes behind this header.
    pub payload_length: u16,
    /// What follows.
    pub next_header: u8,
    /// Hops it may still go.
    pub hop_limit: u8,
    /// Sender.
    pub src: Ipv6Addr,
    /// Receiver.
    pub dst: Ipv6Addr,
}

header!(Ipv6View of Ipv6, 40 bytes, "IPv6", checked);

impl Ipv6View<'_> {
    /// Version; 6.
    pub const fn version(self) -> u8 {
        self.0[0] >> 4
    }
}

impl Ipv6 {
    /// Judges what the view shows.
    ///
    /// # Errors
    /// Another version.
    pub const fn parse(view: Ipv6View<'_>) -> Result<Self, WireError> {
        if view.version() != 6 {
            let value = view.version() as u32;
            return Err(WireError::Invalid {
                header: "IPv6",
                field: "version",
                value,
            });
        }
        let bytes = view.0;
        let first = u32_at(bytes, 0);
        Ok(Self {
            traffic_class: (first >> 20) as u8,
            flow_label: first & FLOW_LABEL,
            payload_length: u16_at(bytes, 4),
            next_header: bytes[6],
            hop_limit: bytes[7],
            src: Ipv6Addr::from_octets(get(bytes, 8)),
            dst: Ipv6Addr::from_octets(get(bytes, 24)),
        })
    }

    /// Writes the header.
    ///
    /// # Panics
    /// `flow_label` takes more than 20 bits.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        assert!(self.flow_label <= FLOW_LABEL, "a flow label has 20 bits");
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label;
        put(out, 0, first.to_be_bytes());
        put(out, 4, self.payload_length.to_be_bytes());
        put(out, 6, [self.next_header, self.hop_limit]);
        put(out, 8, self.src.octets());
        put(out, 24, self.dst.octets());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_the_map_says() {
        let ip = Ipv6 {
            traffic_class: 0x12,
            flow_label: 0x3_4567,
            payload_length: 0x0809,
            next_header: 17,
            hop_limit: 64,
            src: Ipv6Addr::LOCALHOST,
            dst: Ipv6Addr::UNSPECIFIED,
        };
        let bytes = ip.to_bytes();
        assert_eq!(bytes[..8], [0x61, 0x23, 0x45, 0x67, 0x08, 0x09, 0x11, 0x40]);
        assert_eq!((bytes[23], bytes[24]), (1, 0));
        assert_eq!(Ipv6::read(&bytes), Ok((ip, &[][..])));
    }

    #[test]
    fn another_version_is_refused() {
        let mut bytes = [0; 40];
        bytes[0] = 0x45;
        let refused = WireError::Invalid {
            header: "IPv6",
            field: "version",
            value: 4,
        };
        assert_eq!(Ipv6::read(&bytes), Err(refused));
    }
}
