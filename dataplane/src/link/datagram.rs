//! Which frames are datagrams of RoCEv2 for us: all others have no more in common than that.
//!
//! What every frame goes through is fixed places of its headers, compared with what they must hold.
//! Frames that hold something else need not be understood here: who wants to know what they are
//! takes them apart ([`Frame`](trunkline_wire::Frame)).

use super::headers::{ETHERNET, UDP, V4, V6};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use trunkline_wire::{IpFields, Ipv4View, Mac, Path, ROCE_PORT, Roce, Udp, may_be_one_host};

/// Where the IP header begins, and the UDP header over IPv4 and IPv6.
const IP: usize = ETHERNET;
const UDP4: usize = V4 - UDP;
const UDP6: usize = V6 - UDP;
/// The flag of IPv4 that a frame may have: not to be fragmented.
const DONT_FRAGMENT: u16 = 0x4000;

/// What a frame carries for an address of ours of an interface of ours: from another host, without
/// a VLAN tag, options of IPv4, extension headers of IPv6 and fragments, whole, with the right
/// checksum of IPv4, to the UDP port of RoCEv2, and not empty.
#[inline]
pub(super) fn datagram(frame: &[u8], mac: Mac, address: IpAddr) -> Option<Roce<'_>> {
    let found = match address {
        IpAddr::V4(address) => v4(frame, mac, address),
        IpAddr::V6(address) => v6(frame, mac, address),
    };
    found.filter(|found| may_come_from(found.path.src, address, mac))
}

/// Whether what is for us may come from there: from one host that is not this one. What a node
/// sends to itself never gets to a link, and what is of a loop, which has no MAC address, stays
/// there (RFC 1122, 3.2.1.3).
#[inline]
fn may_come_from(src: IpAddr, ours: IpAddr, mac: Mac) -> bool {
    src != ours && may_be_one_host(src) && (!src.is_loopback() || mac == Mac::default())
}

#[inline]
fn v4(frame: &[u8], mac: Mac, address: Ipv4Addr) -> Option<Roce<'_>> {
    let (head, rest) = frame.split_first_chunk::<V4>()?;
    let ip: &[u8; 20] = head[IP..].first_chunk()?;
    let flags = word(head, IP + 6);
    let udp_length = word(head, UDP4 + 4);
    let is_ours = head.starts_with(&mac.0)
        && head[12..IP + 1] == [8, 0, 0x45]
        && ip[16..] == address.octets()
        && ip[9] == Udp::PROTOCOL
        && word(head, UDP4 + 2) == ROCE_PORT
        && flags & !DONT_FRAGMENT == 0
        && usize::from(word(head, IP + 2)) == ip.len() + usize::from(udp_length)
        && Ipv4View::new(ip).checksum_ok();
    if !is_ours {
        return None;
    }
    let path = Path {
        src: Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]).into(),
        dst: address.into(),
        src_port: word(head, UDP4),
        traffic_class: ip[1],
        ip: IpFields::DEFAULT,
    };
    Some(Roce {
        path,
        identification: word(head, IP + 4),
        flags,
        datagram: of_udp(rest, udp_length)?,
    })
}

#[inline]
fn v6(frame: &[u8], mac: Mac, address: Ipv6Addr) -> Option<Roce<'_>> {
    let (head, rest) = frame.split_first_chunk::<V6>()?;
    let src: &[u8; 16] = head[IP + 8..].first_chunk()?;
    let udp_length = word(head, UDP6 + 4);
    let is_ours = head.starts_with(&mac.0)
        && head[12..IP] == [0x86, 0xdd]
        && head[IP] >> 4 == 6
        && head[IP + 24..UDP6] == address.octets()
        && head[IP + 6] == Udp::PROTOCOL
        && word(head, UDP6 + 2) == ROCE_PORT
        && word(head, IP + 4) == udp_length;
    if !is_ours {
        return None;
    }
    let path = Path {
        src: Ipv6Addr::from(*src).into(),
        dst: address.into(),
        src_port: word(head, UDP6),
        traffic_class: (word(head, IP) >> 4) as u8,
        ip: IpFields::DEFAULT,
    };
    Some(Roce {
        path,
        identification: 0,
        flags: 0,
        datagram: of_udp(rest, udp_length)?,
    })
}

/// The datagram of a UDP packet of so many bytes: none if it is empty or its end is missing.
#[inline]
fn of_udp(rest: &[u8], length: u16) -> Option<&[u8]> {
    let length = usize::from(length).checked_sub(UDP)?;
    rest.get(..length).filter(|datagram| !datagram.is_empty())
}

/// The 16 bits at a fixed place.
#[inline]
const fn word<const N: usize>(head: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}
