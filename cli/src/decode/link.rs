//! What is under the IP packet in a captured frame, by link type.

use trunkline_wire::{Eth, EtherType, ROCE_PORT, Udp, Vlan};

/// What a frame holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Network<'a> {
    /// An IP packet, and what follows it.
    Ip(&'a [u8]),
    /// Something else, or less than its link layer.
    Other,
    /// Nobody here knows this kind of link.
    Unsupported,
}

/// Most VLAN tags looked through.
const MAX_TAGS: usize = 4;
/// IEEE 802.1ad: the tag of a provider before that of a customer.
const PROVIDER_VLAN: EtherType = EtherType(0x88a8);

// Link types, as https://www.tcpdump.org/linktypes.html numbers them.
const NULL: u32 = 0;
const ETHERNET: u32 = 1;
const RAW_BSD: u32 = 12;
const RAW_OPENBSD: u32 = 14;
const RAW: u32 = 101;
const LOOP: u32 = 108;
const LINUX_COOKED: u32 = 113;
const IPV4: u32 = 228;
const IPV6: u32 = 229;
const LINUX_COOKED_V2: u32 = 276;

/// Finds the IP packet in a frame of link type `link`.
pub(crate) fn network(link: u32, frame: &[u8]) -> Network<'_> {
    let found = match link {
        ETHERNET => ethernet(frame),
        RAW | RAW_BSD | RAW_OPENBSD | IPV4 | IPV6 => Some(frame),
        // The protocol stands in the last two of 16 bytes, or in the first two of 20.
        LINUX_COOKED => frame.get(14..).and_then(|rest| typed(rest, 2)),
        LINUX_COOKED_V2 => typed(frame, 20),
        // An address family in four bytes, in the byte order of whoever captured.
        NULL | LOOP => frame.get(4..).filter(|rest| version(rest).is_some()),
        _ => return Network::Unsupported,
    };
    found.map_or(Network::Other, Network::Ip)
}

fn ethernet(frame: &[u8]) -> Option<&[u8]> {
    let (eth, mut rest) = Eth::read(frame).ok()?;
    let mut ethertype = eth.ethertype;
    for _ in 0..MAX_TAGS {
        if ethertype != EtherType::VLAN && ethertype != PROVIDER_VLAN {
            break;
        }
        let (tag, after) = Vlan::read(rest).ok()?;
        (ethertype, rest) = (tag.ethertype, after);
    }
    is_ip(ethertype).then_some(rest)
}

/// What stands `length` bytes on, if the EtherType here says IP.
fn typed(bytes: &[u8], length: usize) -> Option<&[u8]> {
    let ethertype = EtherType(u16::from_be_bytes(*bytes.first_chunk()?));
    bytes.get(length..).filter(|_| is_ip(ethertype))
}

fn is_ip(ethertype: EtherType) -> bool {
    ethertype == EtherType::IPV4 || ethertype == EtherType::IPV6
}

fn version(ip: &[u8]) -> Option<u8> {
    ip.first()
        .map(|byte| byte >> 4)
        .filter(|version| [4, 6].contains(version))
}

/// Whether an IP packet that is not as it should be is RoCEv2 all the same: a start of UDP to its
/// port, behind headers that may have options, wrong sums or lengths that do not fit.
pub(crate) fn claims_roce(ip: &[u8]) -> bool {
    let port_behind = |header: usize| {
        let port = ip.get(header + 2..).and_then(|rest| rest.first_chunk());
        port.is_some_and(|port| u16::from_be_bytes(*port) == ROCE_PORT)
    };
    let byte = |at: usize| ip.get(at).copied().unwrap_or(0);
    match version(ip) {
        Some(4) => {
            let first = byte(6) & 0x1f == 0 && byte(7) == 0;
            first && byte(9) == Udp::PROTOCOL && port_behind(usize::from(byte(0) & 0xf) * 4)
        }
        Some(_) => byte(6) == Udp::PROTOCOL && port_behind(40),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: [u8; 24] = [
        0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0xc0, 0, 0x12, 0xb7,
    ];

    #[test]
    fn the_packet_is_found_behind_every_link_layer() {
        let ip = [0x08, 0x00];
        let tag = [0x81, 0x00, 0x00, 0x05];
        let provider = [0x88, 0xa8, 0x00, 0x06];
        let plain = [&[0; 12][..], &ip, &IP].concat();
        let tagged = [&[0; 12][..], &tag, &ip, &IP].concat();
        let twice = [&[0; 12][..], &provider, &tag, &ip, &IP].concat();
        for frame in [&plain, &tagged, &twice] {
            assert_eq!(network(ETHERNET, frame), Network::Ip(&IP));
        }
        let cooked = [&[0; 14][..], &ip, &IP].concat();
        assert_eq!(network(LINUX_COOKED, &cooked), Network::Ip(&IP));
        let cooked = [&ip[..], &[0; 18], &IP].concat();
        assert_eq!(network(LINUX_COOKED_V2, &cooked), Network::Ip(&IP));
        assert_eq!(
            network(NULL, &[&[2, 0, 0, 0][..], &IP].concat()),
            Network::Ip(&IP)
        );
        assert_eq!(network(RAW, &IP), Network::Ip(&IP));
    }

    #[test]
    fn other_protocols_short_frames_and_other_links_are_told_apart() {
        let arp = [&[0; 12][..], &[0x08, 0x06], &IP].concat();
        assert_eq!(network(ETHERNET, &arp), Network::Other);
        for link in [ETHERNET, LINUX_COOKED, LINUX_COOKED_V2, NULL] {
            for length in 0..4 {
                assert_eq!(network(link, &vec![0; length]), Network::Other, "{link}");
            }
        }
        let endless = [&[0; 12][..], &[0x81, 0].repeat(40)].concat();
        assert_eq!(network(ETHERNET, &endless), Network::Other);
        assert_eq!(network(105, &IP), Network::Unsupported);
    }

    #[test]
    fn damaged_packets_to_the_port_claim_to_be_roce() {
        assert!(claims_roce(&IP));
        let mut changed = IP;
        changed[23] = 0xb8;
        assert!(!claims_roce(&changed));
        changed = IP;
        changed[7] = 1;
        assert!(!claims_roce(&changed));
        changed = IP;
        changed[9] = 6;
        assert!(!claims_roce(&changed));
        let options = [&[0x46][..], &IP[1..20], &[0; 4], &IP[20..]].concat();
        assert!(claims_roce(&options));
        let v6 = [&[0x60, 0, 0, 0, 0, 8, 17][..], &[0; 33], &IP[20..]].concat();
        assert!(claims_roce(&v6));
        for length in 0..IP.len() {
            assert!(!claims_roce(&IP[..length]));
        }
    }
}
