//! ICMP errors in frames, where no kernel takes them in (RFC 792; RFC 4443).

use crate::port::{PortEvent, Quoted};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use trunkline_wire::{Content, Frame, InternetSum, Ip, ROCE_PORT, Udp};

/// Protocol numbers of ICMP, over IPv4 and over IPv6.
const V4: u8 = 1;
const V6: u8 = 58;
/// Bytes before what an error quotes.
const HEADER: usize = 8;

/// Whether a frame carries ICMP.
pub(super) fn is_icmp(frame: &Frame<'_>) -> bool {
    matches!(frame.content, Content::Ip { ip, .. } if protocol(&ip).is_some())
}

/// The protocol number of ICMP, where `ip` carries that.
fn protocol(ip: &Ip) -> Option<u8> {
    let of_its_family = if ip.src().is_ipv4() { V4 } else { V6 };
    ip.protocol().filter(|protocol| *protocol == of_its_family)
}

/// What became of a datagram that was sent from `address`, if a frame is an error that quotes one:
/// nobody listens where it went. That it was too long for the path is not believed (ADR 18), as
/// anybody can say so, and needs no packet of ours for it.
pub(super) fn error(frame: &Frame<'_>, address: IpAddr) -> Option<PortEvent> {
    let Content::Ip { ip, payload } = frame.content else {
        return None;
    };
    let protocol = protocol(&ip)?;
    if ip.dst() != address || !is_whole(&ip, protocol, payload) {
        return None;
    }
    let (header, quoted) = payload.split_first_chunk::<HEADER>()?;
    let quoted = Sent::read(quoted).filter(|sent| sent.src == address)?;
    matches!((protocol, header[0], header[1]), (V4, 3, 3) | (V6, 1, 4)).then(|| quoted.refused())
}

/// Whether its checksum is right.
fn is_whole(ip: &Ip, protocol: u8, message: &[u8]) -> bool {
    let mut sum = InternetSum::default();
    if let (IpAddr::V6(src), IpAddr::V6(dst)) = (ip.src(), ip.dst()) {
        let (src, dst) = (src.octets(), dst.octets());
        sum = sum.with(&src).with(&dst);
        sum = sum.with(&(message.len() as u32).to_be_bytes());
        sum = sum.with(&[0, 0, 0, protocol]);
    }
    sum.with(message).is_whole()
}

/// The beginning of a packet of ours, as it is quoted.
struct Sent<'a> {
    src: IpAddr,
    dst: IpAddr,
    /// Bytes of its datagram.
    length: usize,
    /// As much of the datagram as is quoted.
    datagram: &'a [u8],
}

impl<'a> Sent<'a> {
    /// Reads a RoCEv2 packet, whose end is missing.
    fn read(quoted: &'a [u8]) -> Option<Self> {
        let (src, dst, header): (IpAddr, IpAddr, usize) = match quoted.first()? {
            // Without options: none are sent.
            0x45 => {
                let ip: &[u8; 20] = quoted.first_chunk()?;
                let at = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
                (ip[9] == Udp::PROTOCOL).then_some(())?;
                (at(12).into(), at(16).into(), ip.len())
            }
            first if first >> 4 == 6 => {
                let ip: &[u8; 40] = quoted.first_chunk()?;
                let at = |at: usize| -> Option<Ipv6Addr> {
                    ip[at..].first_chunk::<16>().map(|it| Ipv6Addr::from(*it))
                };
                (ip[6] == Udp::PROTOCOL).then_some(())?;
                (at(8)?.into(), at(24)?.into(), ip.len())
            }
            _ => return None,
        };
        let (udp, datagram) = quoted[header..].split_first_chunk::<8>()?;
        let field = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
        let length = usize::from(field(4)).checked_sub(udp.len())?;
        (field(2) == ROCE_PORT).then_some(Self {
            src,
            dst,
            length,
            datagram,
        })
    }

    fn refused(&self) -> PortEvent {
        PortEvent::Refused {
            dst: self.dst,
            quote: Quoted::new(&self.datagram[..self.datagram.len().min(self.length)]),
        }
    }
}
