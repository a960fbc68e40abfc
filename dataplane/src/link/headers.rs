//! What stands before the datagrams to one destination: written once, by [`Frame`], and copied into
//! each frame, where only the fields are put in that are the frame's own.

use std::net::IpAddr;
use trunkline_wire::{Frame, InternetSum, IpFields, Mac, Path};

/// Bytes of the headers: of Ethernet, IPv4 or IPv6, and UDP.
pub(super) const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
pub(super) const UDP: usize = 8;
pub(super) const V4: usize = ETHERNET + IPV4 + UDP;
pub(super) const V6: usize = ETHERNET + IPV6 + UDP;

/// Headers of all datagrams to one destination, but for what the path and the length of each say.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Headers {
    V4 {
        bytes: [u8; V4],
        /// Over the IPv4 header, without what each frame has of its own.
        sum: InternetSum,
    },
    V6 {
        bytes: [u8; V6],
        /// Over the pseudo header of UDP, without the length.
        sum: InternetSum,
    },
}

impl Headers {
    /// Those of frames to `mac`, of datagrams between two addresses of one family.
    pub(super) fn new([from, mac]: [Mac; 2], [src, dst]: [IpAddr; 2]) -> Self {
        let path = Path {
            src,
            dst,
            src_port: 0,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        let frame = Frame::for_datagram(mac, from, &path, 0, &[]);
        match src {
            IpAddr::V4(_) => {
                let mut bytes = [0; V4];
                frame.emit_headers(&mut bytes);
                let mut ip = bytes;
                for own in [16..18, 22..23, 24..26] {
                    ip[own].fill(0);
                }
                let sum = InternetSum::default().with(&ip[ETHERNET..ETHERNET + IPV4]);
                Self::V4 { bytes, sum }
            }
            IpAddr::V6(_) => {
                let mut bytes = [0; V6];
                frame.emit_headers(&mut bytes);
                let sum = InternetSum::of_pseudo_header(&path, 0);
                Self::V6 { bytes, sum }
            }
        }
    }

    /// Their bytes.
    pub(super) const fn length(&self) -> usize {
        match self {
            Self::V4 { .. } => V4,
            Self::V6 { .. } => V6,
        }
    }

    /// Writes them to the front of a frame, for a datagram on `path` that fills the rest of it.
    /// Gives the room for that; over IPv6, what its checksum begins with, too.
    #[inline]
    pub(super) fn write<'a>(
        &self,
        frame: &'a mut [u8],
        path: &Path,
    ) -> Option<(&'a mut [u8], Option<InternetSum>)> {
        let udp = (frame.len() - self.length() + UDP) as u16;
        match self {
            Self::V4 { bytes, sum } => {
                let (head, datagram) = frame.split_first_chunk_mut::<V4>()?;
                *head = *bytes;
                let total = udp + IPV4 as u16;
                let hops = chosen(path.ip.hop_limit(), bytes[22]);
                head[15] = path.traffic_class;
                head[16..18].copy_from_slice(&total.to_be_bytes());
                head[22] = hops;
                let own = [path.traffic_class.into(), total, u16::from(hops) << 8];
                let sum = own.into_iter().fold(*sum, InternetSum::plus);
                head[24..26].copy_from_slice(&(!sum.folded()).to_be_bytes());
                head[34..36].copy_from_slice(&path.src_port.to_be_bytes());
                head[38..40].copy_from_slice(&udp.to_be_bytes());
                Some((datagram, None))
            }
            Self::V6 { bytes, sum } => {
                let (head, datagram) = frame.split_first_chunk_mut::<V6>()?;
                *head = *bytes;
                let first = 6 << 28 | u32::from(path.traffic_class) << 20 | path.ip.flow_label();
                head[14..18].copy_from_slice(&first.to_be_bytes());
                head[18..20].copy_from_slice(&udp.to_be_bytes());
                head[21] = chosen(path.ip.hop_limit(), bytes[21]);
                head[54..56].copy_from_slice(&path.src_port.to_be_bytes());
                head[58..60].copy_from_slice(&udp.to_be_bytes());
                Some((datagram, Some(sum.plus(udp))))
            }
        }
    }
}

/// Has the headers at the front of a frame, whose UDP header is at `udp`, say how long the rest of
/// it is now. What the checksum of UDP begins with is where that belongs.
pub(super) fn lengthen(frame: &mut [u8], path: &Path, udp: usize) {
    let length = (frame.len() - udp) as u16;
    let sum = InternetSum::of_pseudo_header(path, length).folded();
    frame[udp + 4..udp + 6].copy_from_slice(&length.to_be_bytes());
    frame[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
    let ip = &mut frame[ETHERNET..udp];
    match path.src {
        IpAddr::V4(_) => {
            let total = length + IPV4 as u16;
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[10..12].fill(0);
            let sum = !InternetSum::default().with(ip).folded();
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        IpAddr::V6(_) => ip[4..6].copy_from_slice(&length.to_be_bytes()),
    }
}

/// What the path says, or else what is usual.
const fn chosen(said: u8, usual: u8) -> u8 {
    if said == 0 { usual } else { said }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The headers of a datagram of so many bytes are those of the plain writer, and the rest of
    /// its frame is left alone.
    fn law(macs: [Mac; 2], path: &Path, length: usize) {
        let headers = Headers::new(macs, [path.src, path.dst]);
        let mut frame = vec![0xa5; headers.length() + length];
        let rest = vec![0xa5; length];
        let (datagram, sum) = headers.write(&mut frame, path).expect("there is room");
        assert_eq!(datagram, rest);
        let udp = (UDP + length) as u16;
        let pseudo = InternetSum::of_pseudo_header(path, udp).folded();
        let expected = path.src.is_ipv6().then_some(pseudo);
        assert_eq!(sum.map(InternetSum::folded), expected);
        let plain = Frame::for_datagram(macs[1], macs[0], path, 0, &rest);
        let mut written = vec![0; plain.length()];
        plain.emit(&mut written);
        assert_eq!(frame, written);
    }

    fn path([src, dst]: [IpAddr; 2]) -> Path {
        Path {
            src,
            dst,
            src_port: 49_152,
            traffic_class: 2,
            ip: IpFields::DEFAULT,
        }
    }

    const V4: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
    const V6: [&str; 2] = ["fd09::1", "fd09::2"];

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn frames_are_those_of_the_plain_writer(
            macs in any::<[[u8; 6]; 2]>(),
            v4 in any::<[[u8; 4]; 2]>(),
            v6 in any::<[[u8; 16]; 2]>(),
            (src_port, traffic_class) in any::<(u16, u8)>(),
            (label, hops) in any::<(u32, u8)>(),
            length in 1_usize..=65_507,
        ) {
            for addresses in [v4.map(IpAddr::from), v6.map(IpAddr::from)] {
                for ip in [IpFields::DEFAULT, IpFields::new(label, hops)] {
                    let path = Path { src_port, traffic_class, ip, ..path(addresses) };
                    law(macs.map(Mac), &path, length);
                }
            }
        }
    }

    #[test]
    fn frames_of_all_lengths_and_traffic_classes_are_those_of_the_plain_writer() {
        let macs = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
        for addresses in [V4, V6] {
            let path = path(addresses.map(|address| address.parse().expect("an address")));
            for length in (1..=4200).chain((4200..65_507).step_by(97)).chain([65_507]) {
                law(macs, &path, length);
            }
            for traffic_class in 0..=u8::MAX {
                law(
                    macs,
                    &Path {
                        traffic_class,
                        ..path
                    },
                    1040,
                );
            }
        }
    }
}
