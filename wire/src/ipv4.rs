//! IPv4 header without options (RFC 791), big-endian, 20 bytes.
//!
//! ```text
//! | 4 |IHL5| DSCP ECN |     total length     |  0..4
//! |   identification  | 0 DF MF | fragment   |  4..8
//! |   TTL   | protocol |      checksum       |  8..12
//! |                 source                   |  12..16
//! |              destination                 |  16..20
//! ```

use crate::WireError;
use crate::bytes::{get, header, put, u16_at};
use crate::sum::InternetSum;
use core::net::Ipv4Addr;

const VERSION_AND_LENGTH: u8 = 0x45;
const RESERVED: u16 = 0x8000;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// IPv4 header without options. Its checksum is right by construction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ipv4 {
    /// Type of service: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// Bytes of header and payload, at least 20.
    pub total_length: u16,
    /// Identification.
    pub identification: u16,
    /// Routers must not fragment it.
    pub dont_fragment: bool,
    /// Not the last fragment.
    pub more_fragments: bool,
    /// Place in the whole packet, in units of 8 bytes, below 2^13.
    pub fragment_offset: u16,
    /// Time to live, in hops.
    pub ttl: u8,
    /// What follows.
    pub protocol: u8,
    /// Sender.
    pub src: Ipv4Addr,
    /// Receiver.
    pub dst: Ipv4Addr,
}

header!(Ipv4View of Ipv4, 20 bytes, "IPv4", checked);

impl Ipv4View<'_> {
    /// Version (upper four bits) and header length in words (lower four).
    pub const fn version_and_length(self) -> u8 {
        self.0[0]
    }

    /// Three flags and the fragment offset.
    pub const fn flags_and_offset(self) -> u16 {
        u16_at(self.0, 6)
    }

    /// Header checksum as it stands there.
    pub const fn checksum(self) -> u16 {
        u16_at(self.0, 10)
    }

    /// Whether the checksum is right.
    #[inline]
    pub fn checksum_ok(self) -> bool {
        InternetSum::default().with(self.0).is_whole()
    }
}

impl Ipv4 {
    /// Judges what the view shows.
    ///
    /// # Errors
    /// Another version, options, the reserved flag, a total length below 20, a wrong checksum.
    pub fn parse(view: Ipv4View<'_>) -> Result<Self, WireError> {
        let refused = |field, value: u32| {
            let header = "IPv4";
            Err(WireError::Invalid {
                header,
                field,
                value,
            })
        };
        let bytes = view.0;
        let flags = view.flags_and_offset();
        let total_length = u16_at(bytes, 2);
        if view.version_and_length() != VERSION_AND_LENGTH {
            return refused("version and length", view.version_and_length().into());
        }
        if flags & RESERVED != 0 {
            return refused("reserved flag", 1);
        }
        if usize::from(total_length) < Self::LEN {
            return refused("total length", total_length.into());
        }
        if !view.checksum_ok() {
            return refused("checksum", view.checksum().into());
        }
        Ok(Self {
            traffic_class: bytes[1],
            total_length,
            identification: u16_at(bytes, 4),
            dont_fragment: flags & DONT_FRAGMENT != 0,
            more_fragments: flags & MORE_FRAGMENTS != 0,
            fragment_offset: flags & OFFSET,
            ttl: bytes[8],
            protocol: bytes[9],
            src: Ipv4Addr::from_octets(get(bytes, 12)),
            dst: Ipv4Addr::from_octets(get(bytes, 16)),
        })
    }

    /// Writes the header, checksum included.
    ///
    /// # Panics
    /// `fragment_offset` takes more than 13 bits.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        put(out, 0, [VERSION_AND_LENGTH, self.traffic_class]);
        put(out, 2, self.total_length.to_be_bytes());
        put(out, 4, self.identification.to_be_bytes());
        put(out, 6, self.flags_and_offset().to_be_bytes());
        put(out, 8, [self.ttl, self.protocol, 0, 0]);
        put(out, 12, self.src.octets());
        put(out, 16, self.dst.octets());
        let sum = !InternetSum::default().with(out).folded();
        put(out, 10, sum.to_be_bytes());
    }

    /// The word with flags and fragment offset.
    ///
    /// # Panics
    /// `fragment_offset` takes more than 13 bits.
    pub fn flags_and_offset(&self) -> u16 {
        assert!(
            self.fragment_offset <= OFFSET,
            "a fragment offset has 13 bits"
        );
        let flag = |set: bool, bit: u16| if set { bit } else { 0 };
        flag(self.dont_fragment, DONT_FRAGMENT)
            | flag(self.more_fragments, MORE_FRAGMENTS)
            | self.fragment_offset
    }

    /// Whether it carries a part of a packet only.
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ib_send_lat -s 64, first frame.
    const CAPTURED: [u8; 20] = [
        0x45, 0x00, 0x00, 0x6c, 0x60, 0x3f, 0x40, 0x00, 0x40, 0x11, 0xc5, 0x77, 10, 99, 0, 2, 10,
        99, 0, 3,
    ];

    #[test]
    fn a_captured_header_reads_as_what_it_was() {
        let (ip, _) = Ipv4::read(&CAPTURED).expect("a captured header parses");
        assert_eq!((ip.total_length, ip.identification), (108, 0x603f));
        assert!(ip.dont_fragment && !ip.is_fragment());
        assert_eq!((ip.ttl, ip.protocol), (64, 17));
        assert_eq!(ip.dst, Ipv4Addr::new(10, 99, 0, 3));
        assert_eq!(ip.to_bytes(), CAPTURED);
    }

    #[test]
    fn any_flipped_bit_is_refused() {
        for bit in 0..160 {
            let mut bytes = CAPTURED;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Ipv4::read(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn fragments_know_that_they_are() {
        let (whole, _) = Ipv4::read(&CAPTURED).expect("a captured header parses");
        let first = Ipv4 {
            more_fragments: true,
            ..whole
        };
        let last = Ipv4 {
            fragment_offset: 0x1fff,
            ..whole
        };
        for fragment in [first, last] {
            assert!(fragment.is_fragment());
            let bytes = fragment.to_bytes();
            assert_eq!(Ipv4::read(&bytes), Ok((fragment, &[][..])));
        }
    }
}
