//! What ARP and Neighbor Discovery say, in one form for both.

use super::Interface;
use smoltcp::phy::{ChecksumCapabilities, Medium};
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, HardwareAddress, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv6Packet, Ipv6Repr,
    NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use trunkline_wire::Mac;

/// Hop limit of every message: no router has passed it on (RFC 4861, 7.1).
const HOPS: u8 = 255;
/// All nodes of the link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// A message of a neighbour.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Message {
    /// Who has `mac`; `None` for one who has no address yet.
    pub(super) from: Option<IpAddr>,
    pub(super) mac: Option<Mac>,
    /// Where its frame came from.
    pub(super) sender: Mac,
    /// It wants to know who has our address.
    pub(super) asks_for_us: bool,
    /// It replaces what was known.
    pub(super) overrides: bool,
}

/// What a frame is to us.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Said {
    /// Of another protocol, or between others.
    Nothing,
    /// Of this one, and wrong.
    Nonsense,
    Message(Message),
}

const fn ethernet(mac: Mac) -> EthernetAddress {
    EthernetAddress(mac.0)
}

/// A frame with room for `length` bytes behind its header.
fn frame(source: Mac, to: EthernetAddress, ethertype: EthernetProtocol, length: usize) -> Vec<u8> {
    let header = EthernetRepr {
        src_addr: ethernet(source),
        dst_addr: to,
        ethertype,
    };
    let mut bytes = vec![0; header.buffer_len() + length];
    header.emit(&mut EthernetFrame::new_unchecked(&mut bytes));
    bytes
}

/// Asks who has `address`, which is of the family of our own.
pub(super) fn question(interface: &Interface, address: IpAddr) -> Vec<u8> {
    match (interface.address, address) {
        (IpAddr::V4(ours), IpAddr::V4(wanted)) => {
            let target = (EthernetAddress([0; 6]), wanted);
            let to = EthernetAddress::BROADCAST;
            arp(interface, ArpOperation::Request, to, (ours, target))
        }
        (IpAddr::V6(ours), IpAddr::V6(wanted)) => {
            let message = NdiscRepr::NeighborSolicit {
                target_addr: wanted,
                lladdr: Some(ethernet(interface.mac).into()),
            };
            discovery(interface, (ours, solicited_node(wanted)), message)
        }
        (ours, wanted) => panic!("{ours} asks for {wanted}"),
    }
}

/// Says that our address is ours, to who asked.
pub(super) fn answer(interface: &Interface, question: &Message) -> Vec<u8> {
    match (interface.address, question.from) {
        (IpAddr::V4(ours), from) => {
            let to = ethernet(question.mac.unwrap_or_default());
            let asker = match from {
                Some(IpAddr::V4(asker)) => asker,
                _ => Ipv4Addr::UNSPECIFIED,
            };
            arp(interface, ArpOperation::Reply, to, (ours, (to, asker)))
        }
        (IpAddr::V6(ours), from) => {
            let mut flags = NdiscNeighborFlags::OVERRIDE;
            let to = match from {
                Some(IpAddr::V6(asker)) => {
                    flags |= NdiscNeighborFlags::SOLICITED;
                    asker
                }
                _ => ALL_NODES,
            };
            let message = NdiscRepr::NeighborAdvert {
                flags,
                target_addr: ours,
                lladdr: Some(ethernet(interface.mac).into()),
            };
            let mut frame = discovery(interface, (ours, to), message);
            // Who confirms that we are there need not tell its address of the link
            // (RFC 4861, 7.2.2).
            if from.is_some() {
                let mac = question.mac.unwrap_or(question.sender);
                EthernetFrame::new_unchecked(&mut frame).set_dst_addr(ethernet(mac));
            }
            frame
        }
    }
}

fn arp(
    interface: &Interface,
    operation: ArpOperation,
    to: EthernetAddress,
    (ours, target): (Ipv4Addr, (EthernetAddress, Ipv4Addr)),
) -> Vec<u8> {
    let message = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: ethernet(interface.mac),
        source_protocol_addr: ours,
        target_hardware_addr: target.0,
        target_protocol_addr: target.1,
    };
    let length = message.buffer_len();
    let mut bytes = frame(interface.mac, to, EthernetProtocol::Arp, length);
    let payload = EthernetFrame::new_unchecked(&mut bytes[..]);
    message.emit(&mut ArpPacket::new_unchecked(
        payload
            .into_inner()
            .split_at_mut(EthernetFrame::<&[u8]>::header_len())
            .1,
    ));
    bytes
}

/// A frame to `to`: to the group of the link that belongs to it, where that is one.
fn discovery(
    interface: &Interface,
    (ours, to): (Ipv6Addr, Ipv6Addr),
    message: NdiscRepr<'_>,
) -> Vec<u8> {
    let message = Icmpv6Repr::Ndisc(message);
    let header = Ipv6Repr {
        src_addr: ours,
        dst_addr: to,
        next_header: IpProtocol::Icmpv6,
        payload_len: message.buffer_len(),
        hop_limit: HOPS,
    };
    let [.., a, b, c, d] = to.octets();
    let group = EthernetAddress([0x33, 0x33, a, b, c, d]);
    let length = header.buffer_len() + message.buffer_len();
    let mut bytes = frame(interface.mac, group, EthernetProtocol::Ipv6, length);
    let (_, packet) = bytes.split_at_mut(EthernetFrame::<&[u8]>::header_len());
    header.emit(&mut Ipv6Packet::new_unchecked(&mut *packet));
    let (_, payload) = packet.split_at_mut(header.buffer_len());
    let checksums = ChecksumCapabilities::default();
    let mut payload = Icmpv6Packet::new_unchecked(payload);
    message.emit(&ours, &to, &mut payload, &checksums);
    bytes
}

/// The group that whoever has `address` listens to (RFC 4291, 2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    let (a, low) = (u16::from(a), u16::from_be_bytes([b, c]));
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a, low)
}

/// What a frame says.
pub(super) fn parse(interface: &Interface, bytes: &[u8]) -> Said {
    let Ok(frame) = EthernetFrame::new_checked(bytes) else {
        return Said::Nothing;
    };
    // A switch that does not know an address yet floods what is for it.
    let to = frame.dst_addr();
    if to != ethernet(interface.mac) && to.is_unicast() {
        return Said::Nothing;
    }
    let Some(sender) = of_one(frame.src_addr()) else {
        return Said::Nothing;
    };
    let judged = match (frame.ethertype(), interface.address) {
        (EthernetProtocol::Arp, IpAddr::V4(ours)) => parse_arp(ours, sender, frame.payload()),
        (EthernetProtocol::Ipv6, IpAddr::V6(ours)) => {
            parse_discovery(ours, sender, frame.payload())
        }
        _ => Some(Said::Nothing),
    };
    judged.unwrap_or(Said::Nonsense)
}

/// An address of one interface.
fn of_one(mac: EthernetAddress) -> Option<Mac> {
    let nobody = EthernetAddress([0; 6]);
    (mac.is_unicast() && mac != nobody).then_some(Mac(mac.0))
}

fn parse_arp(ours: Ipv4Addr, sender: Mac, payload: &[u8]) -> Option<Said> {
    let packet = ArpPacket::new_checked(payload).ok()?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr: from,
        target_protocol_addr: target,
        ..
    } = ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    let is_one = !(from.is_broadcast() || from.is_multicast());
    let mac = of_one(source_hardware_addr).filter(|_| is_one)?;
    Some(Said::Message(Message {
        from: (!from.is_unspecified()).then_some(from.into()),
        mac: Some(mac),
        sender,
        asks_for_us: operation == ArpOperation::Request && target == ours,
        overrides: true,
    }))
}

fn parse_discovery(ours: Ipv6Addr, sender: Mac, payload: &[u8]) -> Option<Said> {
    let Ok(packet) = Ipv6Packet::new_checked(payload) else {
        return Some(Said::Nothing);
    };
    if packet.next_header() != IpProtocol::Icmpv6 {
        return Some(Said::Nothing);
    }
    let (from, to) = (packet.src_addr(), packet.dst_addr());
    let group = solicited_node(ours);
    if ![ours, group, ALL_NODES].contains(&to) {
        return Some(Said::Nothing);
    }
    let message = Icmpv6Packet::new_checked(packet.payload()).ok()?;
    if !message.msg_type().is_ndisc() {
        return Some(Said::Nothing);
    }
    let checksums = ChecksumCapabilities::default();
    let parsed = Icmpv6Repr::parse(&from, &to, &message, &checksums).ok()?;
    let Icmpv6Repr::Ndisc(message) = parsed else {
        return None;
    };
    if packet.hop_limit() != HOPS || from.is_multicast() {
        return None;
    }
    let link = |address: Option<RawHardwareAddress>| match address?.parse(Medium::Ethernet) {
        Ok(HardwareAddress::Ethernet(mac)) => of_one(mac),
        _ => None,
    };
    match message {
        NdiscRepr::NeighborSolicit { target_addr, .. } if target_addr.is_multicast() => None,
        // Who has no address yet asks the group, and has nothing to say (RFC 4861, 7.1.1).
        NdiscRepr::NeighborSolicit { lladdr, .. }
            if from.is_unspecified() && (to != group || lladdr.is_some()) =>
        {
            None
        }
        NdiscRepr::NeighborSolicit { target_addr, .. } if target_addr != ours => {
            Some(Said::Nothing)
        }
        NdiscRepr::NeighborSolicit { lladdr, .. } => Some(Said::Message(Message {
            from: (!from.is_unspecified()).then_some(from.into()),
            mac: link(lladdr),
            sender,
            asks_for_us: true,
            overrides: true,
        })),
        // What goes to many answers nobody (RFC 4861, 7.1.2).
        NdiscRepr::NeighborAdvert {
            flags, target_addr, ..
        } if target_addr.is_multicast()
            || (to.is_multicast() && flags.contains(NdiscNeighborFlags::SOLICITED)) =>
        {
            None
        }
        NdiscRepr::NeighborAdvert {
            flags,
            target_addr,
            lladdr,
        } => Some(Said::Message(Message {
            from: Some(target_addr.into()),
            mac: Some(link(lladdr)?),
            sender,
            asks_for_us: false,
            overrides: flags.contains(NdiscNeighborFlags::OVERRIDE),
        })),
        _ => Some(Said::Nothing),
    }
}
