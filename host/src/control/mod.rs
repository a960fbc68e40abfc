//! Control messages: what a program and the service say to each other over their socket.
//!
//! Each message is one datagram of at most [`MAX_MESSAGE`] bytes and of fixed layout:
//!
//! ```text
//! | kind          | reserved, 0   |  0..4
//! | number of the request         |  4..8
//! | bytes behind the header       |  8..12
//! | fields of the kind            | 12..
//! ```
//!
//! Numbers are little-endian, as messages do not leave the host. Fields stand one behind the other
//! in the order in which the type of the message has them, without padding. A flag is a byte 0 or
//! 1; a value that may be missing is a flag and the value, zero where it is missing; a
//! [`Handle`](crate::Handle) is its index and its serial; a [`Text`] is its length in a byte and
//! all of its room; an error of verbs is its [`Parts`](trunkline_qpmap::error::Parts).
//!
//! A client begins with [`Hello`](requests::Hello), and who only holds the service sends
//! [`Hold`](requests::Hold) and nothing else. A client chooses the numbers of its requests; an
//! answer has the number of what it answers, and what the service says unasked has number 0.
//!
//! Parsing judges each field once: what it returns is valid by itself, though it may ask for what
//! the service refuses. Only one sequence of bytes stands for a message, so a message that was
//! parsed gives the same bytes again.

mod field;
mod layout;
mod text;

pub mod answers;
pub mod attributes;
pub mod law;
pub mod requests;

pub use answers::Answer;
pub use requests::Request;
pub use text::Text;

use field::{Field, next};

/// Most bytes of a message.
pub const MAX_MESSAGE: usize = 4096;
/// The version of the messages described here.
pub const VERSION: u32 = 4;
/// The first field of [`Hello`](requests::Hello).
pub const MAGIC: u32 = u32::from_le_bytes(*b"TRNK");

/// Bytes of the header.
const HEADER: usize = 12;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The bytes end before the header does.
    #[error("header: {got} bytes where {HEADER} are needed")]
    Truncated {
        /// Bytes there were.
        got: usize,
    },
    /// The bytes are more than a message has.
    #[error("{got} bytes where a message has at most {MAX_MESSAGE}")]
    TooLong {
        /// Bytes there were.
        got: usize,
    },
    /// There are other than as many bytes behind the header as it says.
    #[error("header: length is {said} where {got} bytes follow")]
    OtherLength {
        /// What the header says.
        said: u32,
        /// Bytes there were.
        got: usize,
    },
    /// The side that sent it has no message of this kind.
    #[error("header: kind {kind:#06x} is unknown")]
    UnknownKind {
        /// The kind.
        kind: u16,
    },
    /// The message has other than the bytes of its kind.
    #[error("{message}: {got} bytes where {need} are needed")]
    BadLength {
        /// Name of the message.
        message: &'static str,
        /// Bytes that its fields take.
        need: usize,
        /// Bytes there were.
        got: usize,
    },
    /// A field holds what it must not.
    #[error("{message}: {field} is {value:#x}")]
    Invalid {
        /// Name of the message.
        message: &'static str,
        /// Name of the field.
        field: &'static str,
        /// What it held; of a longer field, its first eight bytes.
        value: u64,
    },
}

/// What every message begins with, the length apart.
#[derive(Clone, Copy, Debug)]
struct Header {
    kind: u16,
    number: u32,
}

impl Header {
    /// Splits a message; the fields are the rest.
    fn split(message: &[u8]) -> Result<(Self, &[u8]), ControlError> {
        let got = message.len();
        if got > MAX_MESSAGE {
            return Err(ControlError::TooLong { got });
        }
        let mut rest = message;
        let kind = part("header", "kind", &mut rest);
        let reserved = part::<u16>("header", "reserved", &mut rest);
        let number = part("header", "number", &mut rest);
        let said = part::<u32>("header", "length", &mut rest);
        let (Ok(kind), Ok(reserved), Ok(number), Ok(said)) = (kind, reserved, number, said) else {
            return Err(ControlError::Truncated { got });
        };
        if reserved != 0 {
            return Err(ControlError::Invalid {
                message: "header",
                field: "reserved",
                value: reserved.into(),
            });
        }
        if said as usize != rest.len() {
            let got = rest.len();
            return Err(ControlError::OtherLength { said, got });
        }
        Ok((Self { kind, number }, rest))
    }

    /// The message with so many bytes of fields, up to where they begin.
    fn begin(self, length: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + length);
        self.kind.write(&mut out);
        0_u16.write(&mut out);
        self.number.write(&mut out);
        (length as u32).write(&mut out);
        out
    }
}

/// Reads the next field of a message.
fn part<T: Field>(
    message: &'static str,
    field: &'static str,
    rest: &mut &[u8],
) -> Result<T, ControlError> {
    next(rest).map_err(|bad| ControlError::Invalid {
        message,
        field: bad.inner.unwrap_or(field),
        value: bad.value,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests;
