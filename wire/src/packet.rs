//! A whole datagram of RoCEv2: BTH, the headers its opcode asks for, payload, pad and ICRC.
//!
//! ```text
//! | BTH 12 | DETH | ext | RETH | AtomicETH | AETH | AtomicAckETH | ImmDt | IETH | CNP |
//! | header checksum 4 (shared connections, when flagged) | payload | pad 0..3 | ICRC 4 |
//! ```

use crate::bytes::append;
use crate::opcode::{Header, Headers, Operation};
use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Close, Cnp, Deth, IcrcSeed, Ieth, ImmDt, Opcode, Reth,
    SrcExt, WireError, icrc,
};

/// A datagram taken apart. Exactly those headers are there that the opcode asks for; lengths and
/// pad agree; the ICRC has been read, not checked.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Packet<'a> {
    /// Base header.
    pub bth: Bth,
    /// Datagrams.
    pub deth: Option<Deth>,
    /// Shared connections.
    pub ext: Option<SrcExt>,
    /// WRITE and READ requests.
    pub reth: Option<Reth>,
    /// Atomic requests.
    pub atomic: Option<AtomicEth>,
    /// Responses.
    pub aeth: Option<Aeth>,
    /// Results of atomics.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// Key to invalidate.
    pub ieth: Option<Ieth>,
    /// Body of a congestion notification.
    pub cnp: Option<Cnp>,
    /// Checksum over the headers as it stands there, when the extension header flags one.
    pub header_crc: Option<[u8; icrc::LEN]>,
    /// Payload, without pad.
    pub payload: &'a [u8],
    /// Pad, of `bth.pad` bytes.
    pub pad: &'a [u8],
    /// ICRC as it stands there.
    pub icrc: [u8; icrc::LEN],
}

/// Takes the datagram of one UDP packet apart.
///
/// # Errors
/// It is shorter than its headers, its opcode is unknown, a header holds what it may not, or
/// payload and pad do not fit the opcode: payload where there is none, a length that is no multiple
/// of 4 (IBTA transports) or any pad at all (shared connections).
pub fn parse_datagram(datagram: &[u8]) -> Result<Packet<'_>, WireError> {
    let (bth, rest) = Bth::read(datagram)?;
    let Some(headers) = bth.opcode.headers() else {
        return refused("opcode", bth.opcode.0.into());
    };
    let mut packet = Packet {
        bth,
        ..Packet::default()
    };
    let rest = packet.read_headers(headers, rest)?;
    let Some((body, icrc)) = rest.split_last_chunk() else {
        return Err(WireError::Truncated {
            header: "ICRC",
            need: icrc::LEN,
            got: rest.len(),
        });
    };
    let pad = usize::from(bth.pad);
    let Some(length) = body.len().checked_sub(pad) else {
        return refused("pad", pad as u32);
    };
    (packet.payload, packet.pad) = body.split_at(length);
    packet.icrc = *icrc;
    packet.check_lengths(body.len())?;
    Ok(packet)
}

fn refused<T>(field: &'static str, value: u32) -> Result<T, WireError> {
    Err(WireError::Invalid {
        header: "BTH",
        field,
        value,
    })
}

/// Reads a header into its place when it is among `headers`.
macro_rules! take {
    ($headers:ident, $rest:ident, $($header:ident into $place:expr;)*) => {
        $(if $headers.contains(Header::$header) {
            let (header, after) = $header::read($rest)?;
            $place = Some(header);
            $rest = after;
        })*
    };
}

impl<'a> Packet<'a> {
    fn read_headers(&mut self, headers: Headers, bytes: &'a [u8]) -> Result<&'a [u8], WireError> {
        let mut rest = bytes;
        take! {
            headers, rest,
            Deth into self.deth;
            SrcExt into self.ext;
            Reth into self.reth;
            AtomicEth into self.atomic;
            Aeth into self.aeth;
            AtomicAckEth into self.atomic_ack;
            ImmDt into self.imm;
            Ieth into self.ieth;
            Cnp into self.cnp;
        }
        if self.ext.is_some_and(|ext| ext.header_crc) {
            let Some((sum, after)) = rest.split_first_chunk() else {
                return Err(WireError::Truncated {
                    header: "HCRC",
                    need: 4,
                    got: rest.len(),
                });
            };
            self.header_crc = Some(*sum);
            rest = after;
        }
        Ok(rest)
    }

    /// `body` is the length of payload and pad.
    fn check_lengths(&self, body: usize) -> Result<(), WireError> {
        let opcode = self.bth.opcode;
        if opcode.is_src() {
            if self.bth.pad != 0 {
                return refused("pad", self.bth.pad.into());
            }
        } else if !body.is_multiple_of(4) {
            return refused("length", body as u32);
        }
        let fixed = match opcode.operation() {
            _ if !opcode.has_payload() => Some(0),
            Some(Operation::AtomicResponse) => Some(8),
            Some(Operation::Close) => Some(Close::LEN),
            _ => None,
        };
        match fixed {
            Some(length) if body != length => refused("length", body as u32),
            _ => Ok(()),
        }
    }

    /// The opcode.
    pub const fn opcode(&self) -> Opcode {
        self.bth.opcode
    }

    /// The headers that are there.
    fn present(&self) -> Headers {
        Headers::default()
            .with(Header::Deth, self.deth.is_some())
            .with(Header::SrcExt, self.ext.is_some())
            .with(Header::Reth, self.reth.is_some())
            .with(Header::AtomicEth, self.atomic.is_some())
            .with(Header::Aeth, self.aeth.is_some())
            .with(Header::AtomicAckEth, self.atomic_ack.is_some())
            .with(Header::ImmDt, self.imm.is_some())
            .with(Header::Ieth, self.ieth.is_some())
            .with(Header::Cnp, self.cnp.is_some())
    }

    /// Bytes before the payload.
    ///
    /// # Panics
    /// The opcode is unknown: no parsed packet has such.
    pub fn headers_length(&self) -> usize {
        let headers = self
            .bth
            .opcode
            .headers()
            .expect("a packet's opcode is known");
        Bth::LEN + headers.length() + if self.header_crc.is_some() { 4 } else { 0 }
    }

    /// Bytes of the datagram.
    ///
    /// # Panics
    /// The opcode is unknown: no parsed packet has such.
    pub fn length(&self) -> usize {
        self.headers_length() + self.payload.len() + self.pad.len() + icrc::LEN
    }

    /// Whether the checksum over the headers is right, given the datagram this was parsed from, the
    /// seed of its path, and the identification of its IPv4 header. `None` when there is none.
    pub fn header_crc_ok(
        &self,
        seed: IcrcSeed,
        identification: u16,
        datagram: &[u8],
    ) -> Option<bool> {
        let found = self.header_crc?;
        let headers = datagram.get(..self.headers_length() - icrc::LEN)?;
        let mut crc = seed.start(datagram.len(), identification);
        icrc::headers(&mut crc, headers);
        Some(icrc::trailer(crc) == found)
    }

    /// Writes the datagram, checksum and ICRC as they stand here, and returns its length.
    ///
    /// # Panics
    /// The headers are not those the opcode asks for, `pad` is not of `bth.pad` bytes, or `out` is
    /// too short: no parsed packet is so.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let length = self.length();
        assert_eq!(
            self.pad.len(),
            usize::from(self.bth.pad),
            "pad differs from its count"
        );
        let mut rest = &mut out[..length];
        append(&mut rest, &self.bth.to_bytes());
        assert_eq!(
            Some(self.present()),
            self.bth.opcode.headers(),
            "the headers are not those of {}",
            self.bth.opcode
        );
        let deth = self.deth.map(|header| header.to_bytes());
        let ext = self.ext.map(|header| header.to_bytes());
        let reth = self.reth.map(|header| header.to_bytes());
        let atomic = self.atomic.map(|header| header.to_bytes());
        let aeth = self.aeth.map(|header| header.to_bytes());
        let atomic_ack = self.atomic_ack.map(|header| header.to_bytes());
        let imm = self.imm.map(|header| header.to_bytes());
        let ieth = self.ieth.map(|header| header.to_bytes());
        let cnp = self.cnp.map(|header| header.to_bytes());
        for header in self.present().iter() {
            let bytes = match header {
                Header::Deth => deth.as_ref().map(|bytes| &bytes[..]),
                Header::SrcExt => ext.as_ref().map(|bytes| &bytes[..]),
                Header::Reth => reth.as_ref().map(|bytes| &bytes[..]),
                Header::AtomicEth => atomic.as_ref().map(|bytes| &bytes[..]),
                Header::Aeth => aeth.as_ref().map(|bytes| &bytes[..]),
                Header::AtomicAckEth => atomic_ack.as_ref().map(|bytes| &bytes[..]),
                Header::ImmDt => imm.as_ref().map(|bytes| &bytes[..]),
                Header::Ieth => ieth.as_ref().map(|bytes| &bytes[..]),
                Header::Cnp => cnp.as_ref().map(|bytes| &bytes[..]),
            };
            append(&mut rest, bytes.unwrap_or_default());
        }
        if let Some(sum) = self.header_crc {
            append(&mut rest, &sum);
        }
        append(&mut rest, self.payload);
        append(&mut rest, self.pad);
        append(&mut rest, &self.icrc);
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IpFields, Psn, Qpn, Rkey};
    use std::vec;
    use std::vec::Vec;

    fn src_write<'a>(header_crc: bool, payload: &'a [u8]) -> Packet<'a> {
        let opcode = Opcode::SRC_WRITE;
        Packet {
            bth: Bth {
                opcode,
                psn: Psn::from_wire(5),
                ..Bth::default()
            },
            ext: Some(SrcExt {
                header_crc,
                src_qp: Qpn::from_wire(7),
                ..SrcExt::default()
            }),
            reth: Some(Reth {
                va: 1,
                rkey: Rkey(2),
                length: 3,
            }),
            header_crc: header_crc.then_some([1, 2, 3, 4]),
            payload,
            ..Packet::default()
        }
    }

    fn emitted(packet: &Packet<'_>) -> Vec<u8> {
        let mut out = vec![0; packet.length()];
        assert_eq!(packet.emit(&mut out), out.len());
        out
    }

    #[test]
    fn a_shared_write_comes_back_with_and_without_its_header_checksum() {
        for header_crc in [false, true] {
            let packet = src_write(header_crc, b"abc");
            let bytes = emitted(&packet);
            assert_eq!(
                bytes.len(),
                12 + 40 + 16 + usize::from(header_crc) * 4 + 3 + 4
            );
            assert_eq!(parse_datagram(&bytes), Ok(packet));
        }
    }

    #[test]
    fn a_ping_may_be_padded_and_a_void_has_no_payload() {
        for (opcode, fits) in [(Opcode::SRC_PING, true), (Opcode::SRC_VOID, false)] {
            let packet = Packet {
                bth: Bth {
                    opcode,
                    ..Bth::default()
                },
                ext: Some(SrcExt::default()),
                payload: b"abc",
                ..Packet::default()
            };
            let bytes = emitted(&packet);
            assert_eq!(parse_datagram(&bytes).is_ok(), fits, "{opcode}");
        }
    }

    #[test]
    fn a_header_checksum_is_compared_with_the_headers() {
        let localhost = core::net::Ipv4Addr::LOCALHOST.into();
        let seed = IcrcSeed::new(&crate::Path {
            src: localhost,
            dst: localhost,
            src_port: 1,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        });
        let mut packet = src_write(true, b"abc");
        let mut bytes = emitted(&packet);
        assert_eq!(packet.header_crc_ok(seed, 7, &bytes), Some(false));
        let mut crc = seed.start(bytes.len(), 7);
        icrc::headers(&mut crc, &bytes[..68]);
        packet.header_crc = Some(icrc::trailer(crc));
        bytes = emitted(&packet);
        assert_eq!(packet.header_crc_ok(seed, 7, &bytes), Some(true));
        assert_eq!(packet.header_crc_ok(seed, 8, &bytes), Some(false));
        let none = src_write(false, b"");
        assert_eq!(none.header_crc_ok(seed, 7, &bytes), None);
    }

    #[test]
    fn every_prefix_of_a_packet_is_refused_or_short_of_payload() {
        let bytes = emitted(&src_write(true, &[]));
        for length in 0..bytes.len() {
            assert!(parse_datagram(&bytes[..length]).is_err(), "{length}");
        }
        assert!(parse_datagram(&bytes).is_ok());
    }

    #[test]
    fn pad_and_payload_have_to_suit_the_opcode() {
        let with = |opcode: Opcode, pad: u8, length: usize| {
            let bth = Bth {
                opcode,
                pad,
                ..Bth::default()
            };
            let mut bytes = bth.to_bytes().to_vec();
            for header in opcode.headers().expect("it is known").iter() {
                let mut zeros = vec![0; header.length()];
                if header == Header::SrcExt {
                    zeros[0] = 0x10;
                }
                bytes.extend(zeros);
            }
            bytes.resize(bytes.len() + length + 4, 0);
            parse_datagram(&bytes).map(|packet| packet.payload.len())
        };
        assert_eq!(with(Opcode::RC_SEND_ONLY, 0, 0), Ok(0));
        assert_eq!(with(Opcode::RC_SEND_ONLY, 3, 8), Ok(5));
        assert!(with(Opcode::RC_SEND_ONLY, 0, 5).is_err());
        assert!(with(Opcode::RC_SEND_ONLY, 3, 0).is_err());
        assert!(with(Opcode::RC_ACKNOWLEDGE, 0, 4).is_err());
        assert!(with(Opcode::CNP, 0, 4).is_err());
        assert!(with(Opcode::SRC_SEND, 1, 4).is_err());
        assert_eq!(with(Opcode::SRC_SEND, 0, 5), Ok(5));
        assert_eq!(with(Opcode::SRC_ATOMIC_RESP, 0, 8), Ok(8));
        assert!(with(Opcode::SRC_ATOMIC_RESP, 0, 7).is_err());
        assert_eq!(with(Opcode::SRC_CLOSE, 0, 4), Ok(4));
        assert!(with(Opcode::SRC_VOID, 0, 1).is_err());
    }

    #[test]
    fn unknown_opcodes_are_refused_by_name() {
        let mut bytes = [0; 32];
        bytes[0] = 0x15;
        let refused = WireError::Invalid {
            header: "BTH",
            field: "opcode",
            value: 0x15,
        };
        assert_eq!(parse_datagram(&bytes), Err(refused));
    }

    #[test]
    #[should_panic(expected = "not those of SRC_WRITE")]
    fn a_packet_without_its_headers_is_our_own_fault() {
        let packet = Packet {
            reth: None,
            ..src_write(false, b"")
        };
        emitted(&packet);
    }
}
