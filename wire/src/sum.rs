//! The checksum of the Internet (RFC 1071): IPv4 headers and UDP over IPv6 need it.

use crate::path::Path;
use core::net::IpAddr;

/// A sum of 16-bit words that is not folded yet.
///
/// Words are added as they lie in memory: the sum of words with their bytes swapped is the sum with
/// its bytes swapped (RFC 1071, 2), which is put right once at the end.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InternetSum(u64);

impl InternetSum {
    /// Adds bytes that begin at an even place; an odd one at the end counts as the first of two.
    #[inline]
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        // Two words at once: carries gather above them, and the sum of a packet has room for all.
        let (words, rest) = bytes.as_chunks::<4>();
        let sum: u64 = words
            .iter()
            .map(|word| u64::from(u32::from_ne_bytes(*word)))
            .sum();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        Self(self.0 + sum + u64::from(u32::from_ne_bytes(last)))
    }

    /// Adds a word.
    #[inline]
    #[must_use]
    pub const fn plus(self, word: u16) -> Self {
        Self(self.0 + word.to_be() as u64)
    }

    /// The sum over what UDP sums beside its own bytes (RFC 768; RFC 8200, 8.1).
    #[must_use]
    pub fn of_pseudo_header(path: &Path, length: u16) -> Self {
        let of = |sum: Self, address: IpAddr| match address {
            IpAddr::V4(address) => sum.with(&address.octets()),
            IpAddr::V6(address) => sum.with(&address.octets()),
        };
        of(of(Self::default(), path.src), path.dst)
            .plus(crate::udp::Udp::PROTOCOL.into())
            .plus(length)
    }

    /// The sum in 16 bits.
    #[inline]
    pub const fn folded(self) -> u16 {
        // Each half is added to the other one, and the carry of the lower to the upper.
        let sum = self.0.wrapping_add(self.0.rotate_right(32));
        let sum = (sum >> 32) as u32;
        let sum = sum.wrapping_add(sum.rotate_right(16));
        u16::from_be((sum >> 16) as u16)
    }

    /// Whether this is the sum of something that has its checksum in it: all ones when it is
    /// folded, so a multiple of that before.
    #[inline]
    pub const fn is_whole(self) -> bool {
        self.0 != 0 && self.0.is_multiple_of(0xffff)
    }

    /// What belongs in the checksum field of UDP, which was summed as 0.
    #[inline]
    pub const fn of_udp(self) -> u16 {
        match !self.folded() {
            // That would say that there is none.
            0 => 0xffff,
            sum => sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::IpFields;

    #[test]
    fn sums_are_those_of_the_standard() {
        // RFC 1071, 3.
        let sum = InternetSum::default().with(&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.folded(), 0xddf2);
        // In pieces, and one byte at a time at the end.
        let bytes: [u8; 15] = core::array::from_fn(|at| (at * 77) as u8);
        let words = bytes.chunks(2).map(|word| {
            let [high, low] = [word[0], word.get(1).copied().unwrap_or(0)];
            u32::from(u16::from_be_bytes([high, low]))
        });
        let sum: u32 = words.sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let pieces = InternetSum::default().with(&bytes[..6]).with(&bytes[6..]);
        assert_eq!(u32::from(pieces.folded()), folded);
        assert_eq!(
            pieces.folded(),
            InternetSum::default().with(&bytes).folded()
        );
        let word = u16::from_be_bytes([bytes[0], bytes[1]]);
        let pieces = InternetSum::default().with(&bytes[2..]).plus(word);
        assert_eq!(u32::from(pieces.folded()), folded);
    }

    #[test]
    fn a_sum_is_whole_when_it_folds_to_all_ones() {
        for sum in (0..70_000)
            .chain((0..70_000).map(|sum| u64::MAX - sum))
            .chain((1..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit, 0xffff << (bit - 1)]))
        {
            let mut folded = sum;
            while folded > 0xffff {
                folded = (folded & 0xffff) + (folded >> 16);
            }
            let sum = InternetSum(sum);
            assert_eq!(sum.folded(), u16::from_be(folded as u16), "{sum:?}");
            assert_eq!(sum.is_whole(), folded == 0xffff, "{sum:?}");
        }
        assert!(InternetSum(0xffff).is_whole() && !InternetSum(0).is_whole());
    }

    #[test]
    fn a_udp_packet_has_the_checksum_that_was_reckoned_by_hand() {
        let path = Path {
            src: "fe80::1".parse().expect("an address"),
            dst: "fe80::2".parse().expect("an address"),
            src_port: 0x3039,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        // From port 12345 to 53, "abc".
        let packet = [0x30, 0x39, 0, 53, 0, 11, 0, 0, b'a', b'b', b'c'];
        let sum = InternetSum::of_pseudo_header(&path, 11).with(&packet);
        let summed_by_hand = {
            let words = [
                0xfe80_u32, 1, 0xfe80, 2, 17, 11, 0x3039, 53, 11, 0, 0x6162, 0x6300,
            ];
            let sum: u32 = words.iter().sum();
            !((sum & 0xffff) + (sum >> 16)) as u16
        };
        assert_eq!(sum.of_udp(), summed_by_hand);
    }
}
