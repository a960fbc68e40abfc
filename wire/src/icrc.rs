//! The invariant CRC of RoCEv2 (IBTA annex A17.3.3): CRC-32 over a pseudo header and the UDP
//! payload up to the ICRC itself, which is the sum in little-endian order.
//!
//! ```text
//! | 8 x 0xff | IP header | UDP header | BTH | further headers | payload | pad | ICRC |
//! ```
//!
//! What routers may change is taken as all ones: IPv4 type of service, time to live and header
//! checksum; IPv6 traffic class, flow label and hop limit; the UDP checksum; byte 4 of the BTH.
//!
//! The sum is linear, so everything of the pseudo header that packets of one path share is summed
//! once, in an [`IcrcSeed`]; length and identification add what tables say; and from a wrong sum
//! the identification that would make it right can be computed.

use crate::bth::Bth;
use crate::crc::{Crc, contributions, preimages};
use crate::path::{Path, ROCE_PORT};
use core::net::IpAddr;

/// Bytes of the ICRC.
pub const LEN: usize = 4;

/// "Don't fragment": set by every RoCEv2 sender known.
const DONT_FRAGMENT: u16 = 0x4000;
const UDP: u8 = 17;
const UDP_HEADER: u16 = 8;
const IPV4_HEADER: u16 = 20;
/// Byte of the BTH that is taken as all ones.
const MASKED: usize = 4;
/// Bytes of the pseudo header behind the IPv4 identification.
const BEHIND_IDENTIFICATION: u64 = 22;

/// Whether the sum depends on byte `at` of a datagram, counted from the first byte of the BTH.
pub const fn covers(at: usize) -> bool {
    at != MASKED
}

/// What a 16-bit field adds to the sum over the pseudo header.
struct Field {
    high: [u32; 256],
    low: [u32; 256],
}

impl Field {
    /// A field followed by `after` bytes of the pseudo header.
    const fn new(after: usize) -> Self {
        Self {
            high: contributions(after + 1),
            low: contributions(after),
        }
    }

    #[inline]
    const fn of(&self, value: u16) -> u32 {
        let [high, low] = value.to_be_bytes();
        self.high[high as usize] ^ self.low[low as usize]
    }
}

static IPV4_LENGTH: Field = Field::new(24);
static IDENTIFICATION: Field = Field::new(BEHIND_IDENTIFICATION as usize);
static IPV6_LENGTH: Field = Field::new(42);
static UDP_LENGTH: Field = Field::new(2);
/// For byte 4 of a BTH with all bits flipped, the change of the sum before the BTH that has the
/// same effect as taking the byte as all ones.
static UNMASKED: [u32; 256] = preimages(MASKED);

/// What the packets of one path have in common: the sum over their pseudo header, but for lengths
/// and identification. Eight bytes, worth keeping.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IcrcSeed {
    base: u32,
    ipv6: bool,
}

impl IcrcSeed {
    /// Sums what is fixed by `path`; IPv4 headers are taken to have DF set.
    ///
    /// # Panics
    /// The addresses of `path` are of different families.
    pub fn new(path: &Path) -> Self {
        Self::with_flags(path, DONT_FRAGMENT, ROCE_PORT)
    }

    /// As [`new`](Self::new), for an IPv4 header with other flags, or another destination port.
    ///
    /// # Panics
    /// The addresses of `path` are of different families.
    pub fn with_flags(path: &Path, ipv4_flags: u16, dst_port: u16) -> Self {
        let mut pseudo = [0xff; 56];
        let (length, ipv6) = match (path.src, path.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                pseudo[8..16].copy_from_slice(&[0x45, 0xff, 0, 0, 0, 0, 0, 0]);
                pseudo[14..16].copy_from_slice(&ipv4_flags.to_be_bytes());
                pseudo[17] = UDP;
                pseudo[20..24].copy_from_slice(&src.octets());
                pseudo[24..28].copy_from_slice(&dst.octets());
                (36, false)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                pseudo[8..16].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, 0, 0, UDP, 0xff]);
                pseudo[16..32].copy_from_slice(&src.octets());
                pseudo[32..48].copy_from_slice(&dst.octets());
                (56, true)
            }
            (src, dst) => panic!("a path goes from {src} to {dst}"),
        };
        pseudo[length - 8..length - 6].copy_from_slice(&path.src_port.to_be_bytes());
        pseudo[length - 6..length - 4].copy_from_slice(&dst_port.to_be_bytes());
        pseudo[length - 4..length - 2].fill(0);
        let mut crc = Crc::new();
        crc.update(&pseudo[..length]);
        Self {
            base: crc.value(),
            ipv6,
        }
    }

    /// The sum over the pseudo header of a datagram (BTH up to and including the ICRC) of
    /// `datagram_len` bytes, at most 65,507. `identification` is that of the IPv4 header; over IPv6
    /// it does not count.
    #[inline]
    pub fn start(self, datagram_len: usize, identification: u16) -> Crc {
        let udp = (datagram_len as u16).wrapping_add(UDP_HEADER);
        let ip = if self.ipv6 {
            IPV6_LENGTH.of(udp)
        } else {
            IPV4_LENGTH.of(udp.wrapping_add(IPV4_HEADER)) ^ IDENTIFICATION.of(identification)
        };
        Crc::resume(self.base ^ ip ^ UDP_LENGTH.of(udp))
    }

    /// Writes the ICRC into the last four bytes of `datagram`.
    ///
    /// # Panics
    /// `datagram` is shorter than a BTH and an ICRC.
    pub fn seal(self, identification: u16, datagram: &mut [u8]) {
        let length = datagram.len();
        assert!(length >= Bth::LEN + LEN, "{length} bytes are no datagram");
        let (body, place) = datagram.split_at_mut(length - LEN);
        place.copy_from_slice(&trailer(self.sum(length, identification, body)));
    }

    /// Whether the ICRC in the last four bytes of `datagram` is right. `false` for datagrams
    /// shorter than a BTH and an ICRC.
    pub fn verify(self, identification: u16, datagram: &[u8]) -> bool {
        match split(datagram) {
            Some((body, found)) => {
                trailer(self.sum(datagram.len(), identification, body)) == *found
            }
            None => false,
        }
    }

    /// Whether the ICRC in the last four bytes of `datagram` is right with whatever identification.
    /// Where that is the `likely` one it takes no longer than [`verify`](Self::verify), and else
    /// about as long again.
    pub fn verify_any(self, likely: u16, datagram: &[u8]) -> bool {
        let Some((body, found)) = split(datagram) else {
            return false;
        };
        let computed = self.sum(datagram.len(), likely, body);
        trailer(computed) == *found
            || self
                .solve_from(body.len(), likely, computed, *found)
                .is_some()
    }

    /// See [`solve_identification`].
    pub fn solve_identification(self, datagram: &[u8]) -> Option<u16> {
        let (body, found) = split(datagram)?;
        let computed = self.sum(datagram.len(), 0, body);
        self.solve_from(body.len(), 0, computed, *found)
    }

    /// The identification for which the sum `found` over the first `summed` bytes of a datagram is
    /// right, when `tried` gave `computed`: takes no second look at the bytes. `None` over IPv6,
    /// and when no identification does. Of damaged packets one in 65,536 passes.
    pub fn solve_from(
        self,
        summed: usize,
        tried: u16,
        computed: Crc,
        found: [u8; LEN],
    ) -> Option<u16> {
        if self.ipv6 {
            return None;
        }
        let found = Crc::resume(u32::from_le_bytes(found));
        // Two bytes further back the state differs by just the two bytes, the first one lowest.
        let behind = summed as u64 + BEHIND_IDENTIFICATION + 2;
        let difference = found.difference_before(computed, behind);
        let difference = u16::try_from(difference).ok()?;
        Some(tried ^ difference.swap_bytes())
    }

    fn sum(self, length: usize, identification: u16, body: &[u8]) -> Crc {
        let mut crc = self.start(length, identification);
        headers(&mut crc, body);
        crc
    }
}

fn split(datagram: &[u8]) -> Option<(&[u8], &[u8; LEN])> {
    datagram
        .split_last_chunk()
        .filter(|(body, _)| body.len() >= Bth::LEN)
}

/// Feeds `bytes`, which begin with the BTH, after what [`IcrcSeed::start`] gave: byte 4 is taken as
/// all ones. Any number of bytes behind the BTH may come along.
///
/// # Panics
/// `bytes` are shorter than a BTH.
#[inline]
pub fn headers(crc: &mut Crc, bytes: &[u8]) {
    *crc = crc.masking(bytes);
    crc.update(bytes);
}

impl Crc {
    /// What to begin with instead of what [`IcrcSeed::start`] gave, so that byte 4 of `bytes`,
    /// which begin with the BTH, counts as all ones though it is fed as it is. For those who sum by
    /// other means than [`headers`]; it spares a copy with the byte masked.
    ///
    /// # Panics
    /// `bytes` are shorter than a BTH.
    #[inline]
    #[must_use]
    pub fn masking(self, bytes: &[u8]) -> Self {
        assert!(bytes.len() >= Bth::LEN, "{} bytes are no BTH", bytes.len());
        Self::resume(self.value() ^ UNMASKED[usize::from(!bytes[MASKED])])
    }
}

/// The sum over any bytes and, behind them, their own sum as [`trailer`] gives it: where the
/// payload of a packet with a header checksum begins.
pub const SUMMED_ITSELF: Crc = Crc::resume(0x2144_df1c);

/// A sum as it stands on the wire: the ICRC, or the header checksum of shared connections, which is
/// what the ICRC would be if it stood there.
#[inline]
pub const fn trailer(crc: Crc) -> [u8; LEN] {
    crc.value().to_le_bytes()
}

/// Writes the ICRC into the last four bytes of `datagram`. See [`IcrcSeed::seal`].
///
/// # Panics
/// `datagram` is shorter than a BTH and an ICRC.
pub fn seal(path: &Path, identification: u16, datagram: &mut [u8]) {
    IcrcSeed::new(path).seal(identification, datagram);
}

/// Whether the ICRC of `datagram` is right. See [`IcrcSeed::verify`].
pub fn verify(path: &Path, identification: u16, datagram: &[u8]) -> bool {
    IcrcSeed::new(path).verify(identification, datagram)
}

/// The IPv4 identification for which the ICRC of `datagram` is right, if there is one; for ports
/// that do not see the IP header. `None` over IPv6.
pub fn solve_identification(path: &Path, datagram: &[u8]) -> Option<u16> {
    IcrcSeed::new(path).solve_identification(datagram)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::IpFields;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use proptest::prelude::*;

    /// The definition, byte by byte.
    fn plain(path: &Path, identification: u16, body: &[u8]) -> [u8; 4] {
        let mut bytes = std::vec![0xff; 8];
        let udp = (body.len() + LEN + 8) as u16;
        match (path.src, path.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes.extend([0x45, 0xff]);
                bytes.extend((udp + 20).to_be_bytes());
                bytes.extend(identification.to_be_bytes());
                bytes.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
                bytes.extend(src.octets());
                bytes.extend(dst.octets());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                bytes.extend([0x6f, 0xff, 0xff, 0xff]);
                bytes.extend(udp.to_be_bytes());
                bytes.extend([17, 0xff]);
                bytes.extend(src.octets());
                bytes.extend(dst.octets());
            }
            _ => unreachable!("tests mix no families"),
        }
        bytes.extend(path.src_port.to_be_bytes());
        bytes.extend(ROCE_PORT.to_be_bytes());
        bytes.extend(udp.to_be_bytes());
        bytes.extend([0xff, 0xff]);
        let bth = bytes.len();
        bytes.extend(body);
        bytes[bth + 4] = 0xff;
        crc32fast::hash(&bytes).to_le_bytes()
    }

    fn paths() -> impl Strategy<Value = Path> {
        let v4 = any::<[Ipv4Addr; 2]>().prop_map(|[a, b]| (a.into(), b.into()));
        let v6 = any::<[Ipv6Addr; 2]>().prop_map(|[a, b]| (a.into(), b.into()));
        let addresses = prop_oneof![v4, v6];
        (addresses, any::<u16>(), any::<u8>()).prop_map(|((src, dst), src_port, traffic_class)| {
            Path {
                src,
                dst,
                src_port,
                traffic_class,
                ip: IpFields::DEFAULT,
            }
        })
    }

    proptest! {
        #[test]
        fn tables_give_what_the_definition_gives(
            path in paths(),
            identification: u16,
            body in proptest::collection::vec(any::<u8>(), 12..200),
        ) {
            let mut datagram = body.clone();
            datagram.extend([0; LEN]);
            seal(&path, identification, &mut datagram);
            prop_assert_eq!(&datagram[body.len()..], plain(&path, identification, &body));
            prop_assert!(verify(&path, identification, &datagram));
            let solved = solve_identification(&path, &datagram);
            prop_assert_eq!(solved, path.src.is_ipv4().then_some(identification));
            let seed = IcrcSeed::new(&path);
            for likely in [identification, identification ^ 1, 0] {
                prop_assert!(seed.verify_any(likely, &datagram));
            }
            datagram[0] ^= 1;
            for likely in [identification, 0] {
                let solved = seed.solve_identification(&datagram).is_some();
                prop_assert_eq!(seed.verify_any(likely, &datagram), solved);
            }
        }

        #[test]
        fn any_flipped_bit_is_seen_but_in_the_masked_byte(
            path in paths(),
            body in proptest::collection::vec(any::<u8>(), 12..80),
            bit: proptest::sample::Index,
        ) {
            let mut datagram = body;
            datagram.extend([0; LEN]);
            seal(&path, 7, &mut datagram);
            let bit = bit.index(datagram.len() * 8);
            datagram[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(verify(&path, 7, &datagram), !covers(bit / 8));
        }

        #[test]
        fn a_sum_with_another_identification_is_enough_to_solve(
            path in paths().prop_filter("IPv4", |path| path.src.is_ipv4()),
            ids: [u16; 2],
            body in proptest::collection::vec(any::<u8>(), 12..5000),
        ) {
            let mut datagram = body.clone();
            datagram.extend([0; LEN]);
            let seed = IcrcSeed::new(&path);
            seed.seal(ids[0], &mut datagram);
            let mut crc = seed.start(datagram.len(), ids[1]);
            headers(&mut crc, &body);
            let found = *datagram.last_chunk().expect("it has an ICRC");
            prop_assert_eq!(seed.solve_from(body.len(), ids[1], crc, found), Some(ids[0]));
        }
    }

    #[test]
    fn what_is_too_short_is_never_right() {
        let localhost = Ipv4Addr::LOCALHOST.into();
        let path = Path {
            src: localhost,
            dst: localhost,
            src_port: 1,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        for length in 0..16 {
            let datagram = &[0; 16][..length];
            assert!(!verify(&path, 0, datagram));
            assert_eq!(solve_identification(&path, datagram), None);
        }
    }

    #[test]
    fn the_longest_datagram_has_its_length_summed_right() {
        let localhost = Ipv4Addr::LOCALHOST.into();
        let path = Path {
            src: localhost,
            dst: localhost,
            src_port: 1,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        let mut datagram = std::vec![1; 65_507];
        seal(&path, 2, &mut datagram);
        let (body, found) = datagram.split_at(65_503);
        assert_eq!(found, plain(&path, 2, body));
    }

    #[test]
    fn a_sum_that_includes_itself_is_the_same_over_all_bytes() {
        for bytes in [&[][..], b"abc", &[3; 72]] {
            let mut crc = Crc::new();
            crc.update(bytes);
            crc.update(&trailer(crc));
            assert_eq!(crc, SUMMED_ITSELF);
        }
    }
}
