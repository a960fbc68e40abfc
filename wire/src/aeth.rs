//! ACK Extended Transport Header (IBTA Vol 1, 9.3.5 and 9.7.5.2), big-endian, 4 bytes.
//!
//! ```text
//! | 0 type value |            MSN              |  0..4
//! ```
//!
//! The syndrome: one reserved bit, two bits of type (0 ACK, 1 RNR NAK, 3 NAK), five of value.

use crate::WireError;
use crate::bytes::{header, put_u24, u24_at};

/// What a responder says to a request.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Syndrome {
    /// Done.
    Ack {
        /// Coded count of receives posted, in `0 ..= 31`; 31: no end-to-end flow control.
        credits: u8,
    },
    /// Receiver not ready.
    RnrNak {
        /// Coded time to wait, in `0 ..= 31`: see [`rnr_timer_ns`](crate::rnr_timer_ns).
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum NakCode {
    /// A packet is missing before this one.
    PsnSequence,
    /// Malformed or unsupported request, or it does not fit the receive.
    InvalidRequest,
    /// Key, range or rights are wrong.
    RemoteAccess,
    /// The responder failed.
    RemoteOperational,
    /// Reliable datagrams only.
    InvalidRd,
    /// Codes without meaning, in `5 ..= 31`.
    Reserved(u8),
}

impl NakCode {
    /// From the five low bits.
    pub const fn from_code(code: u8) -> Self {
        match code & 0x1f {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRd,
            code => Self::Reserved(code),
        }
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRd => 4,
            Self::Reserved(code) => code,
        }
    }
}

/// Receives that each code of credits stands for (IBTA Vol 1, 9.7.7.2.4): powers of two, and the
/// sums of two neighbours between them. Code 31 says that there is no end-to-end flow control.
const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768,
];

impl Syndrome {
    /// An acknowledgement of a responder that has so many receives posted: the code of as many, or
    /// of the next number below that has one.
    pub const fn ack_with(receives: u32) -> Self {
        let mut code = CREDITS.len() - 1;
        while CREDITS[code] as u32 > receives {
            code -= 1;
        }
        Self::Ack {
            credits: code as u8,
        }
    }

    /// Receives that a code of credits stands for; `None`: no end-to-end flow control.
    pub const fn receives(credits: u8) -> Option<u32> {
        if (credits as usize) < CREDITS.len() {
            Some(CREDITS[credits as usize] as u32)
        } else {
            None
        }
    }

    /// Credits of a responder without end-to-end flow control.
    pub const ACK_WITHOUT_CREDITS: Self = Self::Ack { credits: 31 };

    /// From the byte on the wire.
    ///
    /// # Errors
    /// The reserved bit or the reserved type.
    #[inline]
    pub const fn from_byte(byte: u8) -> Result<Self, WireError> {
        let value = byte & 0x1f;
        match byte >> 5 {
            0 => Ok(Self::Ack { credits: value }),
            1 => Ok(Self::RnrNak { timer: value }),
            3 => Ok(Self::Nak(NakCode::from_code(value))),
            _ => {
                let value = byte as u32;
                Err(WireError::Invalid {
                    header: "AETH",
                    field: "syndrome",
                    value,
                })
            }
        }
    }

    /// The byte on the wire.
    ///
    /// # Panics
    /// Credits, timer or code are over 31.
    #[inline]
    pub const fn byte(self) -> u8 {
        let (kind, value) = match self {
            Self::Ack { credits } => (0, credits),
            Self::RnrNak { timer } => (1, timer),
            Self::Nak(code) => (3, code.code()),
        };
        assert!(value < 32, "a syndrome's value has five bits");
        kind << 5 | value
    }
}

/// ACK Extended Transport Header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Aeth {
    /// Verdict.
    pub syndrome: Syndrome,
    /// Message sequence number: requests completed so far. 24 bits; more are cut off on the wire.
    pub msn: u32,
}

header!(AethView of Aeth, 4 bytes, "AETH", checked);

impl AethView<'_> {
    /// Syndrome, not judged.
    pub const fn syndrome(self) -> u8 {
        self.0[0]
    }

    /// Message sequence number, 24 bits.
    pub const fn msn(self) -> u32 {
        u24_at(self.0, 1)
    }
}

impl Aeth {
    /// Judges what the view shows.
    ///
    /// # Errors
    /// A reserved type of syndrome.
    #[inline]
    pub const fn parse(view: AethView<'_>) -> Result<Self, WireError> {
        match Syndrome::from_byte(view.syndrome()) {
            Ok(syndrome) => Ok(Self {
                syndrome,
                msn: view.msn(),
            }),
            Err(error) => Err(error),
        }
    }

    /// Writes the header.
    ///
    /// # Panics
    /// See [`Syndrome::byte`].
    #[inline]
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[0] = self.syndrome.byte();
        put_u24(out, 1, self.msn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captured_syndromes_mean_what_they_meant() {
        // As the captures count them: ACK(31), ACK(32), ACK(96), ACK(98), ACK(99).
        let of = |byte| Syndrome::from_byte(byte).expect("a captured syndrome parses");
        assert_eq!(of(31), Syndrome::ACK_WITHOUT_CREDITS);
        assert_eq!(of(32), Syndrome::RnrNak { timer: 0 });
        assert_eq!(of(96), Syndrome::Nak(NakCode::PsnSequence));
        assert_eq!(of(97), Syndrome::Nak(NakCode::InvalidRequest));
        assert_eq!(of(98), Syndrome::Nak(NakCode::RemoteAccess));
        assert_eq!(of(99), Syndrome::Nak(NakCode::RemoteOperational));
    }

    #[test]
    fn credits_are_the_largest_number_with_a_code_that_is_not_more() {
        let code = |receives| match Syndrome::ack_with(receives) {
            Syndrome::Ack { credits } => credits,
            other => panic!("{other:?}"),
        };
        // Each code at its boundaries.
        let table = [
            (0, 0),
            (1, 1),
            (2, 2),
            (3, 3),
            (4, 4),
            (5, 6),
            (6, 8),
            (7, 12),
            (8, 16),
            (9, 24),
            (10, 32),
            (11, 48),
            (12, 64),
            (13, 96),
            (14, 128),
            (15, 192),
            (16, 256),
            (17, 384),
            (18, 512),
            (19, 768),
            (20, 1024),
            (21, 1536),
            (22, 2048),
            (23, 3072),
            (24, 4096),
            (25, 6144),
            (26, 8192),
            (27, 12_288),
            (28, 16_384),
            (29, 24_576),
            (30, 32_768),
        ];
        for (expected, receives) in table {
            assert_eq!(code(receives), expected, "{receives} receives");
            assert_eq!(Syndrome::receives(expected), Some(receives));
            if receives > 0 {
                assert_eq!(
                    code(receives - 1),
                    expected - 1,
                    "{} receives",
                    receives - 1
                );
            }
        }
        assert_eq!(code(u32::MAX), 30, "31 would mean something else");
        assert_eq!(Syndrome::receives(31), None);
    }

    #[test]
    fn every_byte_is_refused_or_comes_back() {
        for byte in 0..=255 {
            match Syndrome::from_byte(byte) {
                Ok(syndrome) => assert_eq!(syndrome.byte(), byte),
                Err(_) => assert!(byte >= 128 || byte >> 5 == 2),
            }
        }
    }

    #[test]
    fn the_msn_is_cut_to_24_bits() {
        let aeth = Aeth {
            syndrome: Syndrome::ACK_WITHOUT_CREDITS,
            msn: 0x0102_0304,
        };
        assert_eq!(aeth.to_bytes(), [31, 2, 3, 4]);
    }
}
