//! Ethernet II header, 14 bytes, and the IEEE 802.1Q tag, 4 bytes, big-endian.
//!
//! ```text
//! |   destination (6)   |    source (6)    | type (2) |
//! | PCP 3, DEI 1, VLAN 12 | type (2) |
//! ```

use crate::bytes::{get, header, put, u16_at};
use core::fmt;

/// Link-layer address.
#[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// EtherType: what follows.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
    /// An IEEE 802.1Q tag.
    pub const VLAN: Self = Self(0x8100);
}

/// Ethernet II header.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Eth {
    /// Receiver.
    pub dst: Mac,
    /// Sender.
    pub src: Mac,
    /// What follows.
    pub ethertype: EtherType,
}

header!(EthView of Eth, 14 bytes, "Ethernet", total);

impl EthView<'_> {
    /// Receiver.
    pub const fn dst(self) -> Mac {
        Mac(get(self.0, 0))
    }

    /// Sender.
    pub const fn src(self) -> Mac {
        Mac(get(self.0, 6))
    }

    /// What follows.
    pub const fn ethertype(self) -> EtherType {
        EtherType(u16_at(self.0, 12))
    }
}

impl Eth {
    /// Reads what the view shows.
    pub const fn parse(view: EthView<'_>) -> Self {
        Self {
            dst: view.dst(),
            src: view.src(),
            ethertype: view.ethertype(),
        }
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put(out, 0, self.dst.0);
        put(out, 6, self.src.0);
        put(out, 12, self.ethertype.0.to_be_bytes());
    }
}

/// IEEE 802.1Q tag, behind an Ethernet header of type [`EtherType::VLAN`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Vlan {
    /// Priority (3 bits), drop eligible (1 bit) and VLAN (12 bits).
    pub tci: u16,
    /// What follows.
    pub ethertype: EtherType,
}

header!(VlanView of Vlan, 4 bytes, "802.1Q", total);

impl VlanView<'_> {
    /// Priority, drop eligible and VLAN.
    pub const fn tci(self) -> u16 {
        u16_at(self.0, 0)
    }

    /// What follows.
    pub const fn ethertype(self) -> EtherType {
        EtherType(u16_at(self.0, 2))
    }
}

impl Vlan {
    /// Reads what the view shows.
    pub const fn parse(view: VlanView<'_>) -> Self {
        Self {
            tci: view.tci(),
            ethertype: view.ethertype(),
        }
    }

    /// Writes the tag.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put(out, 0, self.tci.to_be_bytes());
        put(out, 2, self.ethertype.0.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_captured_header_reads_as_what_it_was() {
        // ib_send_lat -s 64, first frame.
        let bytes = [
            0x52, 0x54, 0x00, 0x49, 0x69, 0x31, 0x52, 0x54, 0x00, 0x82, 0x04, 0x13, 0x08, 0x00,
        ];
        let (eth, _) = Eth::read(&bytes).expect("a captured header parses");
        assert_eq!(eth.dst.to_string(), "52:54:00:49:69:31");
        assert_eq!(eth.src.to_string(), "52:54:00:82:04:13");
        assert_eq!(eth.ethertype, EtherType::IPV4);
        assert_eq!(eth.to_bytes(), bytes);
    }

    #[test]
    fn a_tag_is_priority_and_type() {
        let vlan = Vlan {
            tci: 0x6064,
            ethertype: EtherType::IPV6,
        };
        assert_eq!(vlan.to_bytes(), [0x60, 0x64, 0x86, 0xdd]);
    }
}
