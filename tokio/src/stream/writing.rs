//! What a stream writes: bytes join the message that is being filled, which goes to the peer when
//! it is full, or when the node's task has its next turn. So whatever a task writes before others
//! have their turn goes together, and nothing waits for more.

use super::error::StreamError;
use super::frame::Kind;
use super::link::{Ending, Link, send_offset};
use crate::credits::Credits;
use std::io::IoSlice;
use std::slice;

/// The message that is being filled. The peer has a receive for it, which nothing else takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    /// Its buffer.
    slot: u16,
    /// Bytes that are in it.
    bytes: usize,
}

impl Link {
    /// Copies bytes into buffers that go to the peer, those of several slices behind one another;
    /// `None`: no buffer is free, or the peer has no receive. The last message may stay
    /// [unsent](Self::has_unsent).
    pub(super) fn write(&mut self, data: &[IoSlice<'_>]) -> Option<Result<usize, StreamError>> {
        if self.ending != Ending::Open {
            return Some(Err(StreamError::ShutDown));
        }
        let all: usize = data.iter().map(|slice| slice.len()).sum();
        let mut pieces = Pieces::of(data);
        let mut written = 0;
        while written < all
            && self.failed.is_none()
            && let Some(mut open) = self.open.take().or_else(|| self.begin())
        {
            let bytes = self.fill(open, &mut pieces);
            written += bytes;
            open.bytes += bytes;
            self.open = Some(open);
            if open.bytes == self.most {
                self.send_open();
            }
        }
        match &self.failed {
            Some(why) => Some(Err(why.clone())),
            None if written == 0 && all > 0 => None,
            None => Some(Ok(written)),
        }
    }

    /// Begins a message, if there is a buffer for it here and a receive at the peer.
    fn begin(&mut self) -> Option<Open> {
        if self.room() <= Credits::RESERVE {
            return None;
        }
        let slot = self.free.pop()?;
        Some(Open { slot, bytes: 0 })
    }

    /// Adds to a message as far as there are bytes and the peer takes them, and returns how many
    /// were added.
    fn fill(&self, open: Open, pieces: &mut Pieces<'_>) -> usize {
        let mut filled = open.bytes;
        while let Some(piece) = pieces.next(self.most - filled) {
            let at = send_offset(open.slot.into()) + filled;
            let copied = self.mr.write(at, piece);
            copied.expect("it fits into its buffer");
            filled += piece.len();
        }
        filled - open.bytes
    }

    /// Whether some of what was written is in a message that has not been sent yet.
    pub(super) const fn has_unsent(&self) -> bool {
        self.open.is_some()
    }

    /// Sends the message that is being filled, if there is one.
    pub(super) fn send_open(&mut self) {
        if let Some(Open { slot, bytes }) = self.open.take() {
            self.say(Kind::Data, slot.into(), bytes);
        }
    }
}

/// Bytes of several slices that were not taken yet.
struct Pieces<'a> {
    first: &'a [u8],
    rest: slice::Iter<'a, IoSlice<'a>>,
}

impl<'a> Pieces<'a> {
    fn of(slices: &'a [IoSlice<'a>]) -> Self {
        let rest = slices.iter();
        Self { first: &[], rest }
    }

    /// Takes bytes of one slice, so many at most; `None`: there are no more, or none were wished.
    fn next(&mut self, most: usize) -> Option<&'a [u8]> {
        while self.first.is_empty() {
            self.first = self.rest.next()?;
        }
        let (piece, later) = self.first.split_at(most.min(self.first.len()));
        self.first = later;
        (!piece.is_empty()).then_some(piece)
    }
}
