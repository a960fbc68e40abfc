//! Extension header of Trunkline's shared connections, behind the BTH, big-endian, 40 bytes.
//!
//! ```text
//! | vers flags | attempt  |     generation      |  0..4
//! |                   token                     |  4..8
//! |            source QP             |  round   |  8..12
//! |          destination QP          |             12..15
//! |          packet number, bits 24..64         |  15..20
//! |                    MSN                      |  20..24
//! |                   offset                    |  24..28
//! |                  timestamp                  |  28..32
//! |                    echo                     |  32..36
//! |                    ack                      |  36..40
//! ```
//!
//! Version 1 in the upper four bits; flags 1 LAST, 2 HCRC, 4 ABORT, 8 SEALED in the lower four.

use crate::bytes::{header, put, put_u24, u16_at, u24_at, u32_at};
use crate::{Psn, Qpn, WireError};

const VERSION: u8 = 1;
const LAST: u8 = 1;
const HEADER_CRC: u8 = 2;
const ABORT: u8 = 4;
const SEALED: u8 = 8;
const HIGH_BITS: u32 = 40;

/// Extension header: with it every packet describes itself.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SrcExt {
    /// Last packet of its message.
    pub last: bool,
    /// The sum over the headers follows them (see [`icrc::trailer`](crate::icrc::trailer)).
    pub header_crc: bool,
    /// The QP that this is for is to be aborted.
    pub abort: bool,
    /// Reserved for authenticated encryption.
    pub sealed: bool,
    /// Transmissions of this packet number before this one.
    pub attempt: u8,
    /// Incarnation of the binding of source and destination QP.
    pub generation: u16,
    /// Token of the receiving connection.
    pub token: u32,
    /// QP the packet comes from.
    pub src_qp: Qpn,
    /// Resend round of the source QP: grows when messages are sent again with new numbers.
    pub round: u8,
    /// QP the packet is for.
    pub dest_qp: Qpn,
    /// Bits 24 to 63 of the packet number, shifted down: below 2^40.
    pub psn_high: u64,
    /// Message number on its QP, that of the request in responses too.
    pub msn: u32,
    /// Where in its message the payload stands, in bytes.
    pub offset: u32,
    /// Sender's clock, in units of 16 ns, wrapping.
    pub timestamp: u32,
    /// Timestamp being echoed; 0: none.
    pub echo: u32,
    /// Low 32 bits of the next packet number expected of the reverse direction.
    pub ack: u32,
}

header!(SrcExtView of SrcExt, 40 bytes, "SrcExt", checked);

impl SrcExtView<'_> {
    /// Version, in `0 ..= 15`; only 1 is known.
    pub const fn version(self) -> u8 {
        self.0[0] >> 4
    }

    /// Four flags, in the low bits.
    pub const fn flags(self) -> u8 {
        self.0[0] & 0xf
    }

    /// Token of the receiving connection.
    pub const fn token(self) -> u32 {
        u32_at(self.0, 4)
    }

    /// Bits 24 to 63 of the packet number, shifted down.
    pub const fn psn_high(self) -> u64 {
        let [a, b, c, d, e] = [self.0[15], self.0[16], self.0[17], self.0[18], self.0[19]];
        u64::from_be_bytes([0, 0, 0, a, b, c, d, e])
    }

    const fn has(self, flag: u8) -> bool {
        self.0[0] & flag != 0
    }
}

impl SrcExt {
    /// Judges what the view shows.
    ///
    /// # Errors
    /// A version other than 1.
    #[inline]
    pub const fn parse(view: SrcExtView<'_>) -> Result<Self, WireError> {
        if view.version() != VERSION {
            let value = view.version() as u32;
            return Err(WireError::Invalid {
                header: "SrcExt",
                field: "version",
                value,
            });
        }
        let bytes = view.0;
        Ok(Self {
            last: view.has(LAST),
            header_crc: view.has(HEADER_CRC),
            abort: view.has(ABORT),
            sealed: view.has(SEALED),
            attempt: bytes[1],
            generation: u16_at(bytes, 2),
            token: view.token(),
            src_qp: Qpn::from_wire(u24_at(bytes, 8)),
            round: bytes[11],
            dest_qp: Qpn::from_wire(u24_at(bytes, 12)),
            psn_high: view.psn_high(),
            msn: u32_at(bytes, 20),
            offset: u32_at(bytes, 24),
            timestamp: u32_at(bytes, 28),
            echo: u32_at(bytes, 32),
            ack: u32_at(bytes, 36),
        })
    }

    /// Writes the header.
    ///
    /// # Panics
    /// `psn_high` takes more than 40 bits.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        assert!(
            self.psn_high >> HIGH_BITS == 0,
            "the upper part of a packet number has 40 bits"
        );
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(self.last, LAST)
            | flag(self.header_crc, HEADER_CRC)
            | flag(self.abort, ABORT)
            | flag(self.sealed, SEALED);
        put(out, 0, [VERSION << 4 | flags, self.attempt]);
        put(out, 2, self.generation.to_be_bytes());
        put(out, 4, self.token.to_be_bytes());
        put_u24(out, 8, self.src_qp.get());
        out[11] = self.round;
        // Destination and upper number are one 64-bit word.
        let word = u64::from(self.dest_qp.get()) << HIGH_BITS | self.psn_high;
        put(out, 12, word.to_be_bytes());
        put(out, 20, self.msn.to_be_bytes());
        put(out, 24, self.offset.to_be_bytes());
        put(out, 28, self.timestamp.to_be_bytes());
        put(out, 32, self.echo.to_be_bytes());
        put(out, 36, self.ack.to_be_bytes());
    }

    /// The whole packet number, of which the BTH of the same packet carries the low 24 bits.
    pub const fn psn64(&self, psn: Psn) -> u64 {
        self.psn_high << 24 | psn.get() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_the_map_says() {
        let ext = SrcExt {
            last: true,
            header_crc: false,
            abort: true,
            sealed: false,
            attempt: 1,
            generation: 0x0203,
            token: 0x0405_0607,
            src_qp: Qpn::from_wire(0x0008_090a),
            round: 0x0b,
            dest_qp: Qpn::from_wire(0x000c_0d0e),
            psn_high: 0x0f_1011_1213,
            msn: 0x1415_1617,
            offset: 0x1819_1a1b,
            timestamp: 0x1c1d_1e1f,
            echo: 0x2021_2223,
            ack: 0x2425_2627,
        };
        let mut map: [u8; 40] = core::array::from_fn(|i| i as u8);
        map[0] = 0x15;
        assert_eq!(ext.to_bytes(), map);
        assert_eq!(SrcExt::read(&map).expect("it parses").0, ext);
        assert_eq!(
            ext.psn64(Psn::from_wire(0x0014_1516)),
            0x0f10_1112_1314_1516
        );
    }

    #[test]
    fn flags_are_apart() {
        let byte = |ext: SrcExt| ext.to_bytes()[0];
        assert_eq!(
            byte(SrcExt {
                header_crc: true,
                ..SrcExt::default()
            }),
            0x12
        );
        assert_eq!(
            byte(SrcExt {
                sealed: true,
                ..SrcExt::default()
            }),
            0x18
        );
        assert_eq!(byte(SrcExt::default()), 0x10);
    }

    #[test]
    fn another_version_is_refused() {
        let mut bytes = SrcExt::default().to_bytes();
        bytes[0] = 0x25;
        let refused = WireError::Invalid {
            header: "SrcExt",
            field: "version",
            value: 2,
        };
        assert_eq!(SrcExt::read(&bytes), Err(refused));
    }

    #[test]
    #[should_panic(expected = "40 bits")]
    fn a_packet_number_over_64_bits_is_our_own_fault() {
        SrcExt {
            psn_high: 1 << 40,
            ..SrcExt::default()
        }
        .to_bytes();
    }
}
