//! Records of [`Opcode::SRC_PACKED`](crate::Opcode::SRC_PACKED): whole small messages, answers and
//! control messages that share a packet. Big-endian, 20 bytes, then the further headers of the
//! record's opcode, then its payload.
//!
//! ```text
//! |            source QP             |  epoch   |  0..4
//! |          destination QP          |  opcode  |  4..8
//! | flags |      length  |     generation       |  8..12
//! |                    MSN                      |  12..16
//! |                   offset                    |  16..20
//! ```
//!
//! Flags (4 bits) 1 SOLICITED, 4 ABORT; length (12 bits) of the payload alone. What belongs to a
//! message stands in the same places as in the [extension header](crate::SrcExt) behind its first
//! 8 bytes, and means the same.

use crate::bytes::{header, put, put_u24, u16_at};
use crate::{MessageView, Opcode, Qpn, WireError};

const SOLICITED: u8 = 1;
const ABORT: u8 = 4;
const LENGTH: u16 = 0x0fff;

/// What a record begins with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Record {
    /// What it is: that of the packet that could stand for it.
    pub opcode: Opcode,
    /// The message asks for a solicited event.
    pub solicited: bool,
    /// The message that this stands for is to be aborted.
    pub abort: bool,
    /// Incarnation of the binding of source and destination QP.
    pub generation: u16,
    /// QP the record comes from.
    pub src_qp: Qpn,
    /// Replay epoch of the source QP.
    pub replay_epoch: u8,
    /// QP the record is for.
    pub dest_qp: Qpn,
    /// Message number on its QP, that of the request in responses too.
    pub msn: u32,
    /// Of a READ or atomic: how many before it are outstanding. 0 otherwise.
    pub offset: u32,
    /// Bytes of its payload: at most [`Record::MOST`].
    pub length: u16,
}

header!(RecordView of Record, 20 bytes, "record", checked);

impl<'a> RecordView<'a> {
    /// What it is, not judged. 0: here begins padding.
    #[inline]
    pub const fn opcode(self) -> Opcode {
        Opcode(self.0[7])
    }

    /// The message asks for a solicited event.
    #[inline]
    pub const fn solicited(self) -> bool {
        self.0[8] >> 4 & SOLICITED != 0
    }

    /// Bytes of its payload.
    #[inline]
    pub const fn length(self) -> usize {
        (u16_at(self.0, 8) & LENGTH) as usize
    }

    /// Which message it is.
    #[inline]
    pub const fn message(self) -> MessageView<'a> {
        let abort = self.0[8] >> 4 & ABORT != 0;
        MessageView::new(self.0, u16_at(self.0, 10), (true, abort))
    }
}

impl Record {
    /// Most bytes of a record's payload.
    pub const MOST: usize = LENGTH as usize;

    /// Judges what the view shows.
    ///
    /// # Errors
    /// An opcode that no record has.
    pub const fn parse(view: RecordView<'_>) -> Result<Self, WireError> {
        let opcode = view.opcode();
        if !is_of_record(opcode) {
            return Err(not_of_record(opcode));
        }
        let message = view.message();
        Ok(Self {
            opcode,
            solicited: view.solicited(),
            abort: message.abort(),
            generation: message.generation(),
            src_qp: message.src_qp(),
            replay_epoch: message.replay_epoch(),
            dest_qp: message.dest_qp(),
            msn: message.msn(),
            offset: message.offset(),
            length: view.length() as u16,
        })
    }

    /// Writes the header.
    ///
    /// # Panics
    /// `length` is more than [`Record::MOST`].
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        assert!(self.length <= LENGTH, "a record is short");
        let flag = |set: bool, bit: u8| if set { u16::from(bit) << 12 } else { 0 };
        let flags = flag(self.solicited, SOLICITED) | flag(self.abort, ABORT);
        put_u24(out, 0, self.src_qp.get());
        out[3] = self.replay_epoch;
        put_u24(out, 4, self.dest_qp.get());
        out[7] = self.opcode.0;
        put(out, 8, (flags | self.length).to_be_bytes());
        put(out, 10, self.generation.to_be_bytes());
        put(out, 12, self.msn.to_be_bytes());
        put(out, 16, self.offset.to_be_bytes());
    }
}

/// Whether a record may have this opcode: that of a packet with a number that may have content.
#[inline]
const fn is_of_record(opcode: Opcode) -> bool {
    Opcode::SRC_SEND.0 <= opcode.0 && opcode.0 <= Opcode::SRC_VOID.0
}

#[cold]
const fn not_of_record(opcode: Opcode) -> WireError {
    WireError::Invalid {
        header: "record",
        field: "opcode",
        value: opcode.0 as u32,
    }
}

/// A record of a packet.
#[derive(Clone, Copy, Debug)]
pub struct PackedRecord<'a> {
    /// What it begins with.
    pub header: RecordView<'a>,
    /// The further headers of its opcode.
    pub further: &'a [u8],
    /// Its payload.
    pub payload: &'a [u8],
}

/// The records of a packet, in order.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// Records in the payload of a packet.
    #[inline]
    pub const fn of(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    /// How many there are: padding, from opcode 0 on or too short for a record, is none.
    ///
    /// # Errors
    /// One of them is longer than what is left, or has an opcode that no record has.
    pub fn check(self) -> Result<usize, WireError> {
        let mut count = 0;
        for record in self {
            record?;
            count += 1;
        }
        Ok(count)
    }

    #[inline(always)]
    fn take(&mut self) -> Result<Option<PackedRecord<'a>>, WireError> {
        let Ok((header, rest)) = RecordView::split(self.rest) else {
            return Ok(None);
        };
        let opcode = header.opcode();
        if opcode == Opcode(0) {
            return Ok(None);
        }
        if !is_of_record(opcode) {
            return Err(not_of_record(opcode));
        }
        let further = opcode.further_length();
        let need = further + header.length();
        let Some((record, rest)) = rest.split_at_checked(need) else {
            return Err(WireError::Truncated {
                header: "record",
                need: Record::LEN + need,
                got: self.rest.len(),
            });
        };
        self.rest = rest;
        let (further, payload) = record.split_at(further);
        Ok(Some(PackedRecord {
            header,
            further,
            payload,
        }))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<PackedRecord<'a>, WireError>;

    /// After an error there are none.
    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let taken = self.take();
        if !matches!(taken, Ok(Some(_))) {
            self.rest = &[];
        }
        taken.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reth;
    use std::vec::Vec;

    const SEND: Record = Record {
        opcode: Opcode::SRC_SEND,
        solicited: true,
        abort: false,
        generation: 0x0a0b,
        src_qp: Qpn::from_wire(0x0001_0203),
        replay_epoch: 4,
        dest_qp: Qpn::from_wire(0x0005_0607),
        msn: 0x0c0d_0e0f,
        offset: 0x1011_1213,
        length: 0x0102,
    };

    #[test]
    fn fields_stand_where_the_map_says() {
        let map = [
            1, 2, 3, 4, 5, 6, 7, 0xc0, 0x11, 2, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11,
            0x12, 0x13,
        ];
        assert_eq!(SEND.to_bytes(), map);
        let (read, rest) = Record::read(&map).expect("a record");
        assert_eq!((read, rest.len()), (SEND, 0));
        let aborts = Record {
            solicited: false,
            abort: true,
            opcode: Opcode::SRC_VOID,
            length: 0,
            ..SEND
        };
        let (read, _) = Record::read(&aborts.to_bytes()).expect("a record");
        assert_eq!(read, aborts);
    }

    fn packed(records: &[(Record, usize)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (record, further) in records {
            bytes.extend(record.to_bytes());
            bytes.resize(bytes.len() + further + usize::from(record.length), 7);
        }
        bytes
    }

    fn write() -> (Record, usize) {
        let record = Record {
            opcode: Opcode::SRC_WRITE,
            length: 5,
            ..SEND
        };
        (record, Reth::LEN)
    }

    #[test]
    fn records_follow_each_other_until_the_padding() {
        let small = Record { length: 3, ..SEND };
        let mut bytes = packed(&[(small, 0), write(), (small, 0)]);
        for padding in 0..40 {
            let records: Vec<_> = Records::of(&bytes).map(|at| at.expect("one")).collect();
            let parts = records
                .iter()
                .map(|at| (at.further.len(), at.payload.len()));
            assert!(parts.eq([(0, 3), (16, 5), (0, 3)]), "{padding}");
            assert_eq!(Records::of(&bytes).check(), Ok(3));
            bytes.push(0);
        }
        assert_eq!(Records::of(&[]).check(), Ok(0));
    }

    #[test]
    fn no_record_is_cut_short_or_nested_or_unknown() {
        let bytes = packed(&[write(), write()]);
        for length in 0..bytes.len() {
            let found = Records::of(&bytes[..length]);
            match length {
                // What is too short for a header is padding.
                0..20 => assert_eq!(found.check(), Ok(0)),
                41..61 => assert_eq!(found.check(), Ok(1)),
                _ => assert!(found.check().is_err(), "{length}"),
            }
            assert!(found.count() <= 2);
        }
        let all = (1..=255).map(Opcode);
        let some = all.filter(|opcode| is_of_record(*opcode));
        assert!(some.eq((0xc0..=0xcc).map(Opcode)));
        for opcode in [0x04, 0xcd, 0xcf, 0xd0, 0xff].map(Opcode) {
            let mut bytes = packed(&[(SEND, 0)]);
            bytes[7] = opcode.0;
            assert!(Records::of(&bytes).check().is_err(), "{opcode}");
        }
    }
}
