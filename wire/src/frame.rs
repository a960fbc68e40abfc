//! Whole Ethernet frames: for captures, and for ports that see them.
//!
//! ```text
//! | Ethernet 14 | 802.1Q 4 (maybe) | IPv4 20 or IPv6 40 | UDP 8 | datagram | padding |
//! ```

use crate::bytes::append;
use crate::eth::{Eth, EtherType, Vlan};
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::path::{IpFields, Path, ROCE_PORT};
use crate::udp::Udp;
use crate::{IcrcSeed, Packet, WireError};
use core::net::IpAddr;

/// An Ethernet frame taken apart, as far as it is IP and UDP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Frame<'a> {
    /// Link layer.
    pub eth: Eth,
    /// Tag, when `eth.ethertype` is [`EtherType::VLAN`].
    pub vlan: Option<Vlan>,
    /// What follows.
    pub content: Content<'a>,
    /// What Ethernet added to short frames, behind the IP packet.
    pub padding: &'a [u8],
}

/// What a frame carries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Content<'a> {
    /// A UDP packet.
    Udp {
        /// Network layer.
        ip: Ip,
        /// Transport layer.
        udp: Udp,
        /// Bytes behind the UDP header.
        datagram: &'a [u8],
    },
    /// IP with something else: another protocol, a fragment, IPv6 extension headers.
    Ip {
        /// Network layer.
        ip: Ip,
        /// Bytes behind the IP header.
        payload: &'a [u8],
    },
    /// Not IP.
    Other(&'a [u8]),
}

/// An IP header of either version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ip {
    /// Version 4.
    V4(Ipv4),
    /// Version 6.
    V6(Ipv6),
}

/// What of a frame makes it RoCEv2.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Roce<'a> {
    /// From and to.
    pub path: Path,
    /// IPv4 identification; 0 over IPv6.
    pub identification: u16,
    /// IPv4 flags and fragment offset; 0 over IPv6.
    pub flags: u16,
    /// BTH up to and including the ICRC.
    pub datagram: &'a [u8],
}

impl Roce<'_> {
    /// Whether the ICRC is right.
    pub fn icrc_ok(&self) -> bool {
        self.seed().verify(self.identification, self.datagram)
    }

    /// Whether the checksum over the headers of `packet` is right, which was parsed from its
    /// datagram. `None` when there is none.
    pub fn header_crc_ok(&self, packet: &Packet<'_>) -> Option<bool> {
        packet.header_crc_ok(self.seed(), self.identification, self.datagram)
    }

    fn seed(&self) -> IcrcSeed {
        IcrcSeed::with_flags(&self.path, self.flags, ROCE_PORT)
    }
}

impl Ip {
    /// Sender.
    pub const fn src(&self) -> IpAddr {
        match self {
            Self::V4(ip) => IpAddr::V4(ip.src),
            Self::V6(ip) => IpAddr::V6(ip.src),
        }
    }

    /// Receiver.
    pub const fn dst(&self) -> IpAddr {
        match self {
            Self::V4(ip) => IpAddr::V4(ip.dst),
            Self::V6(ip) => IpAddr::V6(ip.dst),
        }
    }

    /// DSCP and ECN.
    pub const fn traffic_class(&self) -> u8 {
        match self {
            Self::V4(ip) => ip.traffic_class,
            Self::V6(ip) => ip.traffic_class,
        }
    }

    /// What follows, when it is not a fragment.
    pub const fn protocol(&self) -> Option<u8> {
        match self {
            Self::V4(ip) if ip.is_fragment() => None,
            Self::V4(ip) => Some(ip.protocol),
            Self::V6(ip) => Some(ip.next_header),
        }
    }

    /// Reads an IP header of the version that its first four bits say, and the payload as long as
    /// the header says; what is behind it is padding.
    ///
    /// # Errors
    /// Neither version, a header that is not valid, or fewer bytes than it says.
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8], &[u8]), WireError> {
        let (ip, rest, length) = match bytes.first().map_or(0, |byte| byte >> 4) {
            6 => {
                let (ip, rest) = Ipv6::read(bytes)?;
                (Self::V6(ip), rest, usize::from(ip.payload_length))
            }
            _ => {
                let (ip, rest) = Ipv4::read(bytes)?;
                // At least a header: the parser has checked it.
                let length = usize::from(ip.total_length) - Ipv4::LEN;
                (Self::V4(ip), rest, length)
            }
        };
        let Some((payload, padding)) = rest.split_at_checked(length) else {
            return Err(WireError::Truncated {
                header: "IP payload",
                need: length,
                got: rest.len(),
            });
        };
        Ok((ip, payload, padding))
    }

    const fn length(&self) -> usize {
        match self {
            Self::V4(_) => Ipv4::LEN,
            Self::V6(_) => Ipv6::LEN,
        }
    }
}

impl<'a> Frame<'a> {
    /// Most bytes before a datagram.
    pub const MAX_HEADERS: usize = Eth::LEN + Vlan::LEN + Ipv6::LEN + Udp::LEN;

    /// Takes a frame apart.
    ///
    /// # Errors
    /// A header that is not valid or cut off. What is merely not IP or not UDP is no error.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (eth, mut rest) = Eth::read(bytes)?;
        let mut vlan = None;
        let mut ethertype = eth.ethertype;
        if ethertype == EtherType::VLAN {
            let (tag, after) = Vlan::read(rest)?;
            (vlan, ethertype, rest) = (Some(tag), tag.ethertype, after);
        }
        let (content, padding) = match ethertype {
            EtherType::IPV4 | EtherType::IPV6 => {
                let (ip, payload, padding) = Ip::read(rest)?;
                if matches!(ip, Ip::V6(_)) != (ethertype == EtherType::IPV6) {
                    return Err(WireError::Invalid {
                        header: "Ethernet",
                        field: "type",
                        value: ethertype.0.into(),
                    });
                }
                (Content::of(ip, payload)?, padding)
            }
            _ => (Content::Other(rest), &rest[..0]),
        };
        Ok(Self {
            eth,
            vlan,
            content,
            padding,
        })
    }

    /// A frame for a datagram on `path`, as RNICs send it: DF, no UDP checksum, and hop limit 64
    /// where the path says none.
    /// Over IPv6 `identification` does not count.
    ///
    /// # Panics
    /// The addresses of `path` are of different families, or the datagram is longer than 65,507
    /// bytes.
    pub fn for_datagram(
        dst: crate::eth::Mac,
        src: crate::eth::Mac,
        path: &Path,
        identification: u16,
        datagram: &'a [u8],
    ) -> Self {
        assert!(
            datagram.len() <= 65_507,
            "{} bytes fit no UDP packet",
            datagram.len()
        );
        let length = (Udp::LEN + datagram.len()) as u16;
        let udp = Udp {
            src_port: path.src_port,
            dst_port: ROCE_PORT,
            length,
            checksum: 0,
        };
        let hop_limit = match path.ip.hop_limit() {
            0 => 64,
            said => said,
        };
        let (ethertype, ip) = match (path.src, path.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let ip = Ipv4 {
                    traffic_class: path.traffic_class,
                    total_length: length + Ipv4::LEN as u16,
                    identification,
                    dont_fragment: true,
                    more_fragments: false,
                    fragment_offset: 0,
                    ttl: hop_limit,
                    protocol: Udp::PROTOCOL,
                    src,
                    dst,
                };
                (EtherType::IPV4, Ip::V4(ip))
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip = Ipv6 {
                    traffic_class: path.traffic_class,
                    flow_label: path.ip.flow_label(),
                    payload_length: length,
                    next_header: Udp::PROTOCOL,
                    hop_limit,
                    src,
                    dst,
                };
                (EtherType::IPV6, Ip::V6(ip))
            }
            (src, dst) => panic!("a path goes from {src} to {dst}"),
        };
        Self {
            eth: Eth {
                dst,
                src,
                ethertype,
            },
            vlan: None,
            content: Content::Udp { ip, udp, datagram },
            padding: &[],
        }
    }

    /// The RoCEv2 part, when it has one.
    pub fn roce(&self) -> Option<Roce<'a>> {
        self.content.roce()
    }

    /// Bytes of the frame.
    pub fn length(&self) -> usize {
        let vlan = if self.vlan.is_some() { Vlan::LEN } else { 0 };
        Eth::LEN + vlan + self.content.length() + self.padding.len()
    }

    /// Writes the frame and returns its length.
    ///
    /// # Panics
    /// `out` is too short.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let length = self.length();
        let headers = self.emit_headers(out);
        let mut rest = &mut out[headers..length];
        append(&mut rest, self.content.bytes());
        append(&mut rest, self.padding);
        length
    }

    /// Writes what comes before the content's bytes, and returns its length.
    ///
    /// # Panics
    /// `out` is too short.
    pub fn emit_headers(&self, out: &mut [u8]) -> usize {
        let whole = out.len();
        let mut rest = out;
        append(&mut rest, &self.eth.to_bytes());
        if let Some(vlan) = self.vlan {
            append(&mut rest, &vlan.to_bytes());
        }
        match self.content {
            Content::Udp { ip, udp, .. } => {
                write_ip(&mut rest, &ip);
                append(&mut rest, &udp.to_bytes());
            }
            Content::Ip { ip, .. } => write_ip(&mut rest, &ip),
            Content::Other(_) => {}
        }
        whole - rest.len()
    }
}

impl<'a> Content<'a> {
    /// What an IP packet carries.
    ///
    /// # Errors
    /// A UDP header that is cut off, or whose length is not that of the IP payload.
    pub fn of(ip: Ip, payload: &'a [u8]) -> Result<Self, WireError> {
        if ip.protocol() != Some(Udp::PROTOCOL) {
            return Ok(Self::Ip { ip, payload });
        }
        let (udp, datagram) = Udp::read(payload)?;
        if usize::from(udp.length) != payload.len() {
            return Err(WireError::Invalid {
                header: "UDP",
                field: "length",
                value: udp.length.into(),
            });
        }
        Ok(Self::Udp { ip, udp, datagram })
    }

    /// The RoCEv2 part, when it has one.
    pub fn roce(&self) -> Option<Roce<'a>> {
        let Self::Udp { ip, udp, datagram } = *self else {
            return None;
        };
        if udp.dst_port != ROCE_PORT {
            return None;
        }
        let path = Path {
            src: ip.src(),
            dst: ip.dst(),
            src_port: udp.src_port,
            traffic_class: ip.traffic_class(),
            ip: IpFields::DEFAULT,
        };
        let (identification, flags) = match ip {
            Ip::V4(ip) => (ip.identification, ip.flags_and_offset()),
            Ip::V6(_) => (0, 0),
        };
        Some(Roce {
            path,
            identification,
            flags,
            datagram,
        })
    }

    /// What it carries, behind its headers.
    const fn bytes(&self) -> &'a [u8] {
        match *self {
            Self::Udp { datagram, .. } => datagram,
            Self::Ip { payload, .. } => payload,
            Self::Other(bytes) => bytes,
        }
    }

    const fn length(&self) -> usize {
        match self {
            Self::Udp { ip, datagram, .. } => ip.length() + Udp::LEN + datagram.len(),
            Self::Ip { ip, payload } => ip.length() + payload.len(),
            Self::Other(bytes) => bytes.len(),
        }
    }
}

fn write_ip(rest: &mut &mut [u8], ip: &Ip) {
    match ip {
        Ip::V4(ip) => append(rest, &ip.to_bytes()),
        Ip::V6(ip) => append(rest, &ip.to_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eth::Mac;
    use core::net::{Ipv4Addr, Ipv6Addr};
    use std::vec;
    use std::vec::Vec;

    fn path(v6: bool) -> Path {
        let (src, dst) = if v6 {
            (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::UNSPECIFIED.into())
        } else {
            (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::BROADCAST.into())
        };
        Path {
            src,
            dst,
            src_port: 49_152,
            traffic_class: 2,
            ip: IpFields::DEFAULT,
        }
    }

    fn emitted(frame: &Frame<'_>) -> Vec<u8> {
        let mut out = vec![0; frame.length()];
        assert_eq!(frame.emit(&mut out), out.len());
        out
    }

    #[test]
    fn a_frame_made_for_a_datagram_is_roce_with_a_right_icrc() {
        for v6 in [false, true] {
            let path = path(v6);
            let mut datagram = [9; 64];
            crate::icrc::seal(&path, 77, &mut datagram);
            let frame = Frame::for_datagram(Mac::default(), Mac([1; 6]), &path, 77, &datagram);
            let bytes = emitted(&frame);
            let again = Frame::parse(&bytes).expect("our own frame parses");
            assert_eq!(again, frame);
            let roce = again.roce().expect("it is RoCEv2");
            assert_eq!((roce.path, roce.datagram), (path, &datagram[..]));
            assert_eq!(roce.identification, if v6 { 0 } else { 77 });
            assert!(roce.icrc_ok());
        }
    }

    #[test]
    fn tags_and_padding_stay_where_they_are() {
        let datagram = [9; 16];
        let mut frame =
            Frame::for_datagram(Mac::default(), Mac::default(), &path(false), 1, &datagram);
        let ethertype = core::mem::replace(&mut frame.eth.ethertype, EtherType::VLAN);
        frame.vlan = Some(Vlan { tci: 3, ethertype });
        frame.padding = &[0, 1];
        let bytes = emitted(&frame);
        assert_eq!(bytes.len(), 14 + 4 + 20 + 8 + 16 + 2);
        assert_eq!(Frame::parse(&bytes), Ok(frame));
    }

    #[test]
    fn what_is_not_udp_is_carried_as_it_is() {
        let arp = [[0xff; 12].as_slice(), &[0x08, 0x06, 1, 2, 3]].concat();
        let frame = Frame::parse(&arp).expect("it is Ethernet");
        assert_eq!(frame.content, Content::Other(&[1, 2, 3]));
        assert_eq!((frame.roce(), emitted(&frame)), (None, arp.clone()));

        let datagram = [9; 16];
        let mut frame =
            Frame::for_datagram(Mac::default(), Mac::default(), &path(false), 1, &datagram);
        let Content::Udp {
            ip: Ip::V4(mut ip), ..
        } = frame.content
        else {
            panic!("it was made as UDP over IPv4");
        };
        ip.more_fragments = true;
        let payload = &[7; 24];
        frame.content = Content::Ip {
            ip: Ip::V4(ip),
            payload,
        };
        let bytes = emitted(&frame);
        assert_eq!(Frame::parse(&bytes), Ok(frame));
        assert_eq!(frame.roce(), None);
    }

    #[test]
    fn every_prefix_of_a_frame_is_refused() {
        for v6 in [false, true] {
            let datagram = [9; 16];
            let path = path(v6);
            let frame = Frame::for_datagram(Mac::default(), Mac::default(), &path, 1, &datagram);
            let bytes = emitted(&frame);
            for length in 0..bytes.len() {
                assert!(Frame::parse(&bytes[..length]).is_err(), "{length}");
            }
        }
    }

    #[test]
    fn type_and_version_and_lengths_have_to_agree() {
        let datagram = [9; 16];
        let frame = Frame::for_datagram(Mac::default(), Mac::default(), &path(false), 1, &datagram);
        let good = emitted(&frame);
        let mut bytes = good.clone();
        bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
        assert!(Frame::parse(&bytes).is_err());
        bytes = good;
        bytes[39] -= 1;
        assert!(Frame::parse(&bytes).is_err());
    }
}
