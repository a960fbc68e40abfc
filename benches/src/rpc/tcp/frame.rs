//! Entries on a TCP connection: a header of 16 bytes, little endian, and a body.
//!
//! | offset | field |
//! | --- | --- |
//! | 0 | number of the call, 4 bytes |
//! | 4 | kind: 1 a request, 2 an answer |
//! | 5 | flags, 0 |
//! | 6 | reserved, 2 bytes of 0 |
//! | 8 | length of the body in bytes, 4 bytes |
//! | 12 | deadline in ms, 4 bytes; 0 is none |

use std::io;

/// Bytes of a header.
pub(super) const HEADER: usize = 16;
/// Bytes of the longest body.
const LONGEST: usize = 1 << 20;

/// What an entry is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Request,
    Answer,
}

impl Kind {
    const fn to_wire(self) -> u8 {
        match self {
            Self::Request => 1,
            Self::Answer => 2,
        }
    }
}

/// An entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Entry<'a> {
    /// Number of the call.
    pub(super) id: u32,
    pub(super) body: &'a [u8],
}

impl Entry<'_> {
    /// Appends it.
    pub(super) fn emit(&self, kind: Kind, out: &mut Vec<u8>) {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&self.id.to_le_bytes());
        header[4] = kind.to_wire();
        header[8..12].copy_from_slice(&(self.body.len() as u32).to_le_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(self.body);
    }
}

/// The first entry of `bytes`, if it is whole, and the bytes behind it.
///
/// # Errors
/// It is none of this kind, or longer than there may be.
pub(super) fn parse(kind: Kind, bytes: &[u8]) -> io::Result<Option<(Entry<'_>, &[u8])>> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let word = |at: usize| {
        let [a, b, c, d] = [header[at], header[at + 1], header[at + 2], header[at + 3]];
        u32::from_le_bytes([a, b, c, d])
    };
    let length = word(8) as usize;
    if header[4] != kind.to_wire() || length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let id = word(0);
    Ok(rest
        .split_at_checked(length)
        .map(|(body, rest)| (Entry { id, body }, rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_emitted_is_parsed_whole_or_not_at_all() {
        let mut bytes = Vec::new();
        let entry = Entry {
            id: 0x0102_0304,
            body: b"hello",
        };
        entry.emit(Kind::Request, &mut bytes);
        assert_eq!(bytes.len(), HEADER + 5);
        for short in 0..bytes.len() {
            let parsed = parse(Kind::Request, &bytes[..short]).expect("it is right so far");
            assert_eq!(parsed, None, "{short} bytes");
        }
        bytes.push(7);
        let parsed = parse(Kind::Request, &bytes).expect("it is right");
        assert_eq!(parsed, Some((entry, &[7][..])));
    }

    #[test]
    fn what_is_no_entry_of_its_kind_is_refused() {
        let mut bytes = Vec::new();
        Entry { id: 1, body: b"" }.emit(Kind::Answer, &mut bytes);
        assert!(parse(Kind::Request, &bytes).is_err());
        bytes[11] = 1;
        assert!(parse(Kind::Answer, &bytes).is_err());
    }
}
