//! Extension header of Trunkline's shared connections, behind the BTH, big-endian, 40 bytes.
//!
//! ```text
//! | vers flags | attempt  |     generation      |  0..4
//! |                   token                     |  4..8
//! |            source QP             |  epoch   |  8..12
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
    /// Incarnation of the binding of source and destination QP; of a pure acknowledgement, the UDP
    /// source port whose packets came out at the wrong worker, or 0.
    pub generation: u16,
    /// Token of the receiving connection.
    pub token: u32,
    /// QP the packet comes from.
    pub src_qp: Qpn,
    /// Replay epoch of the source QP: grows when messages are sent again with new numbers.
    pub replay_epoch: u8,
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

impl<'a> SrcExtView<'a> {
    /// Version, in `0 ..= 15`; only 1 is known.
    pub const fn version(self) -> u8 {
        self.0[0] >> 4
    }

    /// Four flags, in the low bits.
    pub const fn flags(self) -> u8 {
        self.0[0] & 0xf
    }

    /// Last packet of its message.
    #[inline]
    pub const fn last(self) -> bool {
        self.has(LAST)
    }

    /// The sum over the headers follows them.
    #[inline]
    pub const fn header_crc(self) -> bool {
        self.has(HEADER_CRC)
    }

    /// The QP that this is for is to be aborted.
    #[inline]
    pub const fn abort(self) -> bool {
        self.has(ABORT)
    }

    /// Incarnation of the binding of source and destination QP.
    #[inline]
    pub const fn generation(self) -> u16 {
        u16_at(self.0, 2)
    }

    /// Token of the receiving connection.
    #[inline]
    pub const fn token(self) -> u32 {
        u32_at(self.0, 4)
    }

    /// QP the packet comes from.
    #[inline]
    pub const fn src_qp(self) -> Qpn {
        Qpn::from_wire(u24_at(self.0, 8))
    }

    /// Replay epoch of the source QP.
    #[inline]
    pub const fn replay_epoch(self) -> u8 {
        self.0[11]
    }

    /// QP the packet is for.
    #[inline]
    pub const fn dest_qp(self) -> Qpn {
        Qpn::from_wire(u24_at(self.0, 12))
    }

    /// Bits 24 to 63 of the packet number, shifted down.
    #[inline]
    pub const fn psn_high(self) -> u64 {
        let [a, b, c, d, e] = [self.0[15], self.0[16], self.0[17], self.0[18], self.0[19]];
        u64::from_be_bytes([0, 0, 0, a, b, c, d, e])
    }

    /// Message number on its QP.
    #[inline]
    pub const fn msn(self) -> u32 {
        u32_at(self.0, 20)
    }

    /// Where in its message the payload stands, in bytes.
    #[inline]
    pub const fn offset(self) -> u32 {
        u32_at(self.0, 24)
    }

    /// Sender's clock, in units of 16 ns.
    #[inline]
    pub const fn timestamp(self) -> u32 {
        u32_at(self.0, 28)
    }

    /// Timestamp being echoed; 0: none.
    #[inline]
    pub const fn echo(self) -> u32 {
        u32_at(self.0, 32)
    }

    /// Low 32 bits of the next packet number expected of the reverse direction.
    #[inline]
    pub const fn ack(self) -> u32 {
        u32_at(self.0, 36)
    }

    /// Which message the packet belongs to.
    #[inline]
    pub const fn message(self) -> MessageView<'a> {
        let fields = self.0.split_at(8).1.first_chunk();
        let fields = fields.expect("the header is longer");
        MessageView::new(fields, self.generation(), (self.last(), self.abort()))
    }

    /// The same view, of a header that can be read.
    ///
    /// # Errors
    /// A version other than 1.
    #[inline]
    pub const fn known(self) -> Result<Self, WireError> {
        if self.version() == VERSION {
            return Ok(self);
        }
        Err(WireError::Invalid {
            header: "SrcExt",
            field: "version",
            value: self.version() as u32,
        })
    }

    /// The whole packet number, of which the BTH of the same packet carries the low 24 bits.
    #[inline]
    pub const fn psn64(self, psn: Psn) -> u64 {
        psn64(self.psn_high(), psn)
    }

    const fn has(self, flag: u8) -> bool {
        self.0[0] & flag != 0
    }
}

/// What an extension header says of the message that its packet belongs to, and a
/// [record](crate::Record) of itself.
#[derive(Clone, Copy, Debug)]
pub struct MessageView<'a> {
    /// As bytes 8 to 28 of an extension header.
    fields: &'a [u8; 20],
    generation: u16,
    last: bool,
    abort: bool,
}

impl<'a> MessageView<'a> {
    #[inline]
    pub(crate) const fn new(
        fields: &'a [u8; 20],
        generation: u16,
        (last, abort): (bool, bool),
    ) -> Self {
        Self {
            fields,
            generation,
            last,
            abort,
        }
    }

    /// QP it comes from.
    #[inline]
    pub const fn src_qp(self) -> Qpn {
        Qpn::from_wire(u24_at(self.fields, 0))
    }

    /// Replay epoch of the source QP.
    #[inline]
    pub const fn replay_epoch(self) -> u8 {
        self.fields[3]
    }

    /// QP it is for.
    #[inline]
    pub const fn dest_qp(self) -> Qpn {
        Qpn::from_wire(u24_at(self.fields, 4))
    }

    /// Message number on its QP.
    #[inline]
    pub const fn msn(self) -> u32 {
        u32_at(self.fields, 12)
    }

    /// Where in its message the payload stands, in bytes.
    #[inline]
    pub const fn offset(self) -> u32 {
        u32_at(self.fields, 16)
    }

    /// Incarnation of the binding of source and destination QP.
    #[inline]
    pub const fn generation(self) -> u16 {
        self.generation
    }

    /// The message ends here.
    #[inline]
    pub const fn last(self) -> bool {
        self.last
    }

    /// The message is to be aborted.
    #[inline]
    pub const fn abort(self) -> bool {
        self.abort
    }
}

impl SrcExt {
    /// Judges what the view shows.
    ///
    /// # Errors
    /// A version other than 1.
    #[inline]
    pub const fn parse(view: SrcExtView<'_>) -> Result<Self, WireError> {
        let view = match view.known() {
            Ok(view) => view,
            Err(error) => return Err(error),
        };
        Ok(Self {
            last: view.last(),
            header_crc: view.header_crc(),
            abort: view.abort(),
            sealed: view.has(SEALED),
            attempt: view.0[1],
            generation: view.generation(),
            token: view.token(),
            src_qp: view.src_qp(),
            replay_epoch: view.replay_epoch(),
            dest_qp: view.dest_qp(),
            psn_high: view.psn_high(),
            msn: view.msn(),
            offset: view.offset(),
            timestamp: view.timestamp(),
            echo: view.echo(),
            ack: view.ack(),
        })
    }

    /// Writes the header.
    ///
    /// # Panics
    /// `psn_high` takes more than 40 bits.
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(self.abort, ABORT) | flag(self.sealed, SEALED);
        put(out, 0, [VERSION << 4 | flags, 0]);
        put(out, 2, self.generation.to_be_bytes());
        put(out, 4, self.token.to_be_bytes());
        put_u24(out, 8, self.src_qp.get());
        out[11] = self.replay_epoch;
        put_u24(out, 12, self.dest_qp.get());
        put(out, 20, self.msn.to_be_bytes());
        SrcExtPart {
            last: self.last,
            header_crc: self.header_crc,
            attempt: self.attempt,
            psn_high: self.psn_high,
            offset: self.offset,
            timestamp: self.timestamp,
            echo: self.echo,
            ack: self.ack,
        }
        .emit(out);
    }

    /// The whole packet number, of which the BTH of the same packet carries the low 24 bits.
    pub const fn psn64(&self, psn: Psn) -> u64 {
        psn64(self.psn_high, psn)
    }
}

/// The fields in which packets of one message differ: see [`SrcExt`].
#[derive(Clone, Copy, Debug)]
pub struct SrcExtPart {
    /// Last packet of its message.
    pub last: bool,
    /// The sum over the headers follows them.
    pub header_crc: bool,
    /// Transmissions of this packet number before this one.
    pub attempt: u8,
    /// Bits 24 to 63 of the packet number, shifted down: below 2^40.
    pub psn_high: u64,
    /// Where in its message the payload stands, in bytes.
    pub offset: u32,
    /// Sender's clock, in units of 16 ns, wrapping.
    pub timestamp: u32,
    /// Timestamp being echoed; 0: none.
    pub echo: u32,
    /// Low 32 bits of the next packet number expected of the reverse direction.
    pub ack: u32,
}

impl SrcExtPart {
    /// Completes a header that has all other fields, and the flags `last` and `header_crc` not set.
    ///
    /// # Panics
    /// `psn_high` takes more than 40 bits.
    #[inline]
    pub fn emit(&self, out: &mut [u8; SrcExt::LEN]) {
        assert!(
            self.psn_high >> HIGH_BITS == 0,
            "the upper part of a packet number has 40 bits"
        );
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        out[0] |= flag(self.last, LAST) | flag(self.header_crc, HEADER_CRC);
        out[1] = self.attempt;
        let [_, _, _, a, b @ ..] = self.psn_high.to_be_bytes();
        put(out, 15, [a]);
        put(out, 16, b);
        put(out, 24, self.offset.to_be_bytes());
        put(out, 28, self.timestamp.to_be_bytes());
        put(out, 32, self.echo.to_be_bytes());
        put(out, 36, self.ack.to_be_bytes());
    }
}

const fn psn64(high: u64, psn: Psn) -> u64 {
    high << 24 | psn.get() as u64
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
            replay_epoch: 0x0b,
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
