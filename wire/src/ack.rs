//! Payload of [`Opcode::SRC_ACK`](crate::Opcode::SRC_ACK): what of the reverse direction arrived,
//! beside the cumulative acknowledgement in the extension header, whose generation is the UDP
//! source port that packets should leave from no more, or 0. Big-endian.
//!
//! ```text
//! | CE-marked packets so far  |         delay, ns         |  0..8
//! |    x     |  bit i stands for packet number              8 + 8 e ..
//! |          |  ack + 1 + 48 x + i, least significant first |
//! ```

use crate::WireError;

const HEADER: &str = "SACK";

/// A selective acknowledgement, read in place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AckPayload<'a> {
    /// Packets received with a congestion mark so far, wrapping.
    pub ce_count: u32,
    /// Nanoseconds between receipt of the packet whose timestamp is echoed and this one.
    pub delay_ns: u32,
    words: &'a [[u8; 8]],
}

impl<'a> AckPayload<'a> {
    /// Most entries of the bitmap.
    pub const MAX_WORDS: usize = 64;
    /// Packet numbers that an entry speaks of, in its low bits; those above say which.
    pub const BITS: u32 = 48;

    /// Reads a whole payload.
    ///
    /// # Errors
    /// Fewer than 8 bytes, a part of a word, or more than [`MAX_WORDS`](Self::MAX_WORDS).
    #[inline]
    pub fn parse(payload: &'a [u8]) -> Result<Self, WireError> {
        let (chunks, part) = payload.as_chunks();
        let Some((head, words)) = chunks.split_first() else {
            return Err(WireError::Truncated {
                header: HEADER,
                need: 8,
                got: payload.len(),
            });
        };
        if !part.is_empty() || words.len() > Self::MAX_WORDS {
            let value = payload.len() as u32;
            return Err(WireError::Invalid {
                header: HEADER,
                field: "length",
                value,
            });
        }
        let [a, b, c, d, e, f, g, h] = *head;
        Ok(Self {
            ce_count: u32::from_be_bytes([a, b, c, d]),
            delay_ns: u32::from_be_bytes([e, f, g, h]),
            words,
        })
    }

    /// The entries of the bitmap, 48 packet numbers each, in any order.
    pub fn words(&self) -> impl ExactSizeIterator<Item = u64> + use<'a> {
        self.words.iter().map(|&word| u64::from_be_bytes(word))
    }

    /// Bytes of a payload with `words` bitmap words.
    pub const fn length(words: usize) -> usize {
        8 + 8 * words
    }

    /// Writes a payload and returns its length.
    ///
    /// # Panics
    /// More than [`MAX_WORDS`](Self::MAX_WORDS) words, or `out` is shorter than
    /// [`length`](Self::length) says.
    #[inline]
    pub fn emit(ce_count: u32, delay_ns: u32, words: &[u64], out: &mut [u8]) -> usize {
        assert!(
            words.len() <= Self::MAX_WORDS,
            "{} bitmap words",
            words.len()
        );
        let length = Self::length(words.len());
        let (head, bitmap) = out[..length].split_at_mut(8);
        head[..4].copy_from_slice(&ce_count.to_be_bytes());
        head[4..].copy_from_slice(&delay_ns.to_be_bytes());
        for (place, word) in bitmap.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_be_bytes();
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_counters_and_bitmap() {
        let mut out = [0; 32];
        let length = AckPayload::emit(1, 0x0203_0405, &[0x8000_0000_0000_0001, 7], &mut out);
        assert_eq!(length, 24);
        assert_eq!(out[..9], [0, 0, 0, 1, 2, 3, 4, 5, 0x80]);
        let ack = AckPayload::parse(&out[..24]).expect("it parses");
        assert_eq!((ack.ce_count, ack.delay_ns), (1, 0x0203_0405));
        assert!(ack.words().eq([0x8000_0000_0000_0001, 7]));
    }

    #[test]
    fn other_lengths_are_refused() {
        let bytes = [0; AckPayload::length(AckPayload::MAX_WORDS) + 8];
        for length in 0..=bytes.len() {
            let fits = length >= 8 && length.is_multiple_of(8) && length < bytes.len();
            assert_eq!(
                AckPayload::parse(&bytes[..length]).is_ok(),
                fits,
                "{length}"
            );
        }
    }
}
