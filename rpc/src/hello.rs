//! What the two ends say when they connect: docs/rpc-format.md.

use std::ops::RangeInclusive;

/// First bytes of the private data of both ends, with the version of the format.
const MAGIC: [u8; 6] = *b"TLrp\x01\x00";
/// Receives that an end may have: the last one is kept for credits. With fewer, a message that only
/// grants one would be worth another.
pub(crate) const RECEIVES: RangeInclusive<u16> = 4..=1024;
/// Bytes that each of them may hold.
pub(crate) const BYTES: RangeInclusive<u32> = 512..=1 << 20;
/// Longest request or response.
pub(crate) const MAX_BODY: u32 = 1 << 30;

/// What an end takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Hello {
    /// Receives that it has posted, and will have at most.
    pub(crate) receives: u16,
    /// Requests that it takes at a time: 0 for a client.
    pub(crate) requests: u16,
    /// Bytes that fit into each receive.
    pub(crate) bytes: u32,
    /// Bytes of the longest request or response that it takes.
    pub(crate) max_body: u32,
}

impl Hello {
    pub(crate) const LENGTH: usize = 18;

    pub(crate) fn emit(self) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        out[..6].copy_from_slice(&MAGIC);
        out[6..8].copy_from_slice(&self.receives.to_be_bytes());
        out[8..10].copy_from_slice(&self.requests.to_be_bytes());
        out[10..14].copy_from_slice(&self.bytes.to_be_bytes());
        out[14..].copy_from_slice(&self.max_body.to_be_bytes());
        out
    }

    /// Reads the private data of a peer, which may be longer; `None` if it does not speak of
    /// requests, or says what cannot be.
    pub(crate) fn parse(data: &[u8]) -> Option<Self> {
        let (magic, rest) = data.split_first_chunk()?;
        let (receives, rest) = rest.split_first_chunk()?;
        let (requests, rest) = rest.split_first_chunk()?;
        let (bytes, rest) = rest.split_first_chunk()?;
        let (max_body, _) = rest.split_first_chunk()?;
        let hello = Self {
            receives: u16::from_be_bytes(*receives),
            requests: u16::from_be_bytes(*requests),
            bytes: u32::from_be_bytes(*bytes),
            max_body: u32::from_be_bytes(*max_body),
        };
        let good = *magic == MAGIC
            && RECEIVES.contains(&hello.receives)
            && BYTES.contains(&hello.bytes)
            && hello.max_body <= MAX_BODY;
        good.then_some(hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        receives: 8,
        requests: 1024,
        bytes: 4096,
        max_body: 1 << 20,
    };

    #[test]
    fn what_is_emitted_is_parsed() {
        let mut data = HELLO.emit().to_vec();
        assert_eq!(Hello::parse(&data), Some(HELLO));
        data.extend([0; 38]);
        assert_eq!(Hello::parse(&data), Some(HELLO));
    }

    #[test]
    fn a_hello_of_another_kind_cut_short_or_out_of_range_is_none() {
        let good = HELLO.emit();
        for length in 0..good.len() {
            assert_eq!(Hello::parse(&good[..length]), None);
        }
        for at in 0..6 {
            let mut bad = good;
            bad[at] ^= 1;
            assert_eq!(Hello::parse(&bad), None, "byte {at}");
        }
        let bad = [
            Hello {
                receives: 3,
                ..HELLO
            },
            Hello {
                receives: 1025,
                ..HELLO
            },
            Hello {
                bytes: 511,
                ..HELLO
            },
            Hello {
                bytes: (1 << 20) + 1,
                ..HELLO
            },
            Hello {
                max_body: MAX_BODY + 1,
                ..HELLO
            },
        ];
        assert!(bad.iter().all(|bad| Hello::parse(&bad.emit()).is_none()));
    }
}
