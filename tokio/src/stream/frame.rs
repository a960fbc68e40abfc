//! What the two ends of a stream say to each other beside its bytes: docs/stream-format.md.

use trunkline::{Completion, Extra, WorkOpcode};

/// First bytes of the private data of both ends, with the version of the format.
const MAGIC: [u8; 6] = *b"TLst\x01\x00";
/// Receives that an end may have: the last one is kept for credits.
const RECEIVES: std::ops::RangeInclusive<u16> = 2..=1024;
/// Bytes that each of them may hold.
const BYTES: std::ops::RangeInclusive<u32> = 256..=1 << 20;

/// What an end takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Hello {
    /// Receives that it has posted, and will have at most.
    pub(crate) receives: u16,
    /// Bytes that fit into each.
    pub(crate) bytes: u32,
}

impl Hello {
    pub(crate) const LENGTH: usize = 12;

    pub(crate) fn emit(self) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        out[..6].copy_from_slice(&MAGIC);
        out[6..8].copy_from_slice(&self.receives.to_be_bytes());
        out[8..].copy_from_slice(&self.bytes.to_be_bytes());
        out
    }

    /// Reads the private data of a peer, which may be longer; `None` if it speaks of no stream, or
    /// of one that cannot be.
    pub(crate) fn parse(data: &[u8]) -> Option<Self> {
        let (magic, rest) = data.split_first_chunk()?;
        let (receives, rest) = rest.split_first_chunk()?;
        let (bytes, _) = rest.split_first_chunk()?;
        let receives = u16::from_be_bytes(*receives);
        let bytes = u32::from_be_bytes(*bytes);
        let good = *magic == MAGIC && RECEIVES.contains(&receives) && BYTES.contains(&bytes);
        good.then_some(Self { receives, bytes })
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// Bytes of the stream.
    Data = 0,
    /// Nothing but the count of receives.
    Credit = 1,
    /// No more bytes come.
    End = 2,
    /// The end was heard.
    Heard = 3,
}

/// The immediate data of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// Receives that the sender has posted since the beginning, modulo 2^16.
    pub(crate) posted: u16,
}

impl Frame {
    pub(crate) const fn emit(self) -> u32 {
        (self.kind as u32) << 30 | self.posted as u32
    }

    /// Reads what came with a message that was received.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) const fn parse(received: &Completion) -> Result<Self, &'static str> {
        let Extra::Immediate(word) = received.extra else {
            return Err("a message without its word");
        };
        if !matches!(received.opcode, WorkOpcode::Receive) {
            return Err("a message that is no SEND");
        }
        if word & 0x3fff_0000 != 0 {
            return Err("reserved bits are set");
        }
        let kind = match word >> 30 {
            0 => Kind::Data,
            1 => Kind::Credit,
            2 => Kind::End,
            _ => Kind::Heard,
        };
        let has_bytes = received.byte_len > 0;
        if has_bytes != matches!(kind, Kind::Data) {
            return Err("bytes where none belong, or none where some do");
        }
        let posted = word as u16;
        Ok(Self { kind, posted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_emitted_is_parsed() {
        for receives in [2, 7, 1024] {
            let hello = Hello {
                receives,
                bytes: 4096,
            };
            let mut data = hello.emit().to_vec();
            assert_eq!(Hello::parse(&data), Some(hello));
            data.extend([0; 44]);
            assert_eq!(Hello::parse(&data), Some(hello));
        }
        let bare = [Kind::Credit, Kind::End, Kind::Heard].map(|kind| (kind, 0));
        for (kind, byte_len) in [(Kind::Data, 1)].into_iter().chain(bare) {
            for posted in [0, 1, 0x8000, 0xffff] {
                let frame = Frame { kind, posted };
                let received = Completion {
                    opcode: WorkOpcode::Receive,
                    extra: Extra::Immediate(frame.emit()),
                    byte_len,
                    ..Completion::BLANK
                };
                assert_eq!(Frame::parse(&received), Ok(frame));
            }
        }
    }

    #[test]
    fn a_hello_of_another_kind_or_out_of_range_is_none() {
        let hello = |receives, bytes| Hello { receives, bytes }.emit();
        for bad in [
            hello(1, 4096),
            hello(1025, 4096),
            hello(8, 255),
            hello(8, (1 << 20) + 1),
        ] {
            assert_eq!(Hello::parse(&bad), None);
        }
        let good = hello(8, 4096);
        for at in 0..6 {
            let mut bad = good;
            bad[at] ^= 1;
            assert_eq!(Hello::parse(&bad), None, "byte {at}");
            assert_eq!(Hello::parse(&good[..Hello::LENGTH - 1 - at]), None);
        }
    }

    #[test]
    fn every_word_that_no_end_says_is_refused() {
        let received = |opcode, extra, byte_len| {
            Frame::parse(&Completion {
                opcode,
                extra,
                byte_len,
                ..Completion::BLANK
            })
        };
        let word = |word, byte_len| {
            received(WorkOpcode::Receive, Extra::Immediate(word), byte_len).is_err()
        };
        assert!(word(0, 0), "data without bytes");
        assert!(word(1 << 30, 1), "a credit with bytes");
        assert!(word(2 << 30, 1), "an end with bytes");
        assert!(word(3 << 30, 1), "bytes that say that the end was heard");
        for bit in 16..30 {
            assert!(word(1 << bit, 1), "bit {bit}");
        }
        assert!(received(WorkOpcode::Receive, Extra::None, 1).is_err());
        let written = received(WorkOpcode::ReceiveWriteImm, Extra::Immediate(0), 1);
        assert!(written.is_err());
    }
}
