//! Numbers that must not be confused: each its own type, none converting into another.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const MASK_24: u32 = 0x00ff_ffff;

/// 24-bit packet sequence number. A position on a circle, so deliberately **not** `Ord`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Psn(
    // INVARIANT: the top 8 bits are zero.
    #[cfg_attr(
        feature = "serde",
        serde(deserialize_with = "crate::serde::of_24_bits")
    )]
    u32,
);

impl Psn {
    /// Keeps the low 24 bits.
    pub const fn from_wire(raw: u32) -> Self {
        Self(raw & MASK_24)
    }

    /// The 24 bits, in `0 ..= 0xff_ffff`.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `packets` later.
    #[must_use]
    pub const fn advance(self, packets: u32) -> Self {
        Self::from_wire(self.0.wrapping_add(packets))
    }

    /// Signed distance `self - base` in packets, in `-2^23 ..= 2^23 - 1`; the antipode counts as
    /// behind.
    pub const fn offset_from(self, base: Self) -> i32 {
        (self.0.wrapping_sub(base.0) << 8).cast_signed() >> 8
    }
}

/// 24-bit queue pair number. 0 and 1 are the management QPs.
#[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Qpn(
    // INVARIANT: the top 8 bits are zero.
    #[cfg_attr(
        feature = "serde",
        serde(deserialize_with = "crate::serde::of_24_bits")
    )]
    u32,
);

impl Qpn {
    /// The general services interface, where connection management lives.
    pub const GSI: Self = Self(1);

    /// `None` when `raw` takes more than 24 bits.
    pub const fn new(raw: u32) -> Option<Self> {
        if raw <= MASK_24 {
            Some(Self(raw))
        } else {
            None
        }
    }

    /// Keeps the low 24 bits.
    pub const fn from_wire(raw: u32) -> Self {
        Self(raw & MASK_24)
    }

    /// The 24 bits.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({self})")
    }
}

macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
        #[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#010x}", self.0)
            }
        }
    };
}

key! {
    /// Key with which a remote peer names a memory region.
    Rkey
}
key! {
    /// Key with which a local work request names a memory region.
    Lkey
}

/// 128-bit global identifier of a port: an IPv6 address, or an IPv4 one mapped into
/// `::ffff:0:0/96`.
#[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Gid(
    /// The bytes, as on the wire.
    #[cfg_attr(feature = "serde", serde(with = "crate::serde::address"))]
    pub [u8; 16],
);

impl Gid {
    /// The IP address that RoCEv2 packets to this GID carry.
    pub fn address(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

/// Whether an address may be that of one host: it is not everybody's, a group's or nobody's. The
/// broadcast address of a network looks like a host's: only routes know better.
pub const fn may_be_one_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || broadcast)
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn a_person_reads_a_qpn_and_a_gid_as_tools_print_them() {
        let qpn = Qpn::from_wire(0x71_9f86);
        assert_eq!(format!("{qpn} {qpn:?}"), "0x719f86 Qpn(0x719f86)");
        let gid = Gid::from(Ipv4Addr::LOCALHOST);
        assert_eq!(format!("{gid:?}"), "Gid(::ffff:127.0.0.1)");
    }
}
