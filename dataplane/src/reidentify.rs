//! Gives a finished datagram another IPv4 identification.

use trunkline_wire::{IcrcSeed, Path};

const ICRC: usize = 4;

/// Makes the ICRC of `datagram`, which holds for the IPv4 identification `from`, hold for `to`.
/// Over IPv6 there is nothing to do. An ICRC that was wrong stays wrong, by the same difference.
pub(crate) fn reidentify(path: &Path, from: u16, to: u16, datagram: &mut [u8]) {
    let ipv4 = path.src.is_ipv4() && path.dst.is_ipv4();
    let length = datagram.len();
    if from == to || !ipv4 {
        return;
    }
    let Some((body, icrc)) = datagram.split_last_chunk_mut::<ICRC>() else {
        return;
    };
    // A CRC is linear: what another identification does to it is the same whatever else is summed.
    let seed = IcrcSeed::new(path);
    let (mut old, mut new) = (seed.start(length, from), seed.start(length, to));
    old.update(body);
    new.update(body);
    let change = old.value() ^ new.value();
    *icrc = (u32::from_le_bytes(*icrc) ^ change).to_le_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use trunkline_wire::IpFields;
    use trunkline_wire::icrc::{seal, verify};

    fn path(v6: bool) -> Path {
        let (src, dst): (IpAddr, IpAddr) = if v6 {
            (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::UNSPECIFIED.into())
        } else {
            (
                Ipv4Addr::new(10, 0, 0, 1).into(),
                Ipv4Addr::new(10, 0, 0, 2).into(),
            )
        };
        Path {
            src,
            dst,
            src_port: 0xc001,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        }
    }

    #[test]
    fn the_icrc_holds_for_the_new_identification_only() {
        for length in [16, 17, 100, 4200] {
            let mut datagram: Vec<u8> = (0..length).map(|i| (i * 5) as u8).collect();
            seal(&path(false), 7, &mut datagram);
            reidentify(&path(false), 7, 0x1234, &mut datagram);
            assert!(verify(&path(false), 0x1234, &datagram));
            assert!(!verify(&path(false), 7, &datagram));
        }
    }

    #[test]
    fn a_wrong_icrc_stays_wrong() {
        let mut datagram = [3; 64];
        seal(&path(false), 7, &mut datagram);
        datagram[20] ^= 1;
        reidentify(&path(false), 7, 0, &mut datagram);
        assert!(!verify(&path(false), 0, &datagram));
        datagram[20] ^= 1;
        assert!(verify(&path(false), 0, &datagram));
    }

    #[test]
    fn datagrams_over_ipv6_stay_as_they_are() {
        let mut datagram = [3; 64];
        seal(&path(true), 0, &mut datagram);
        let before = datagram;
        reidentify(&path(true), 7, 0, &mut datagram);
        assert_eq!(datagram, before);
    }
}
