//! What a stream reads: messages that came, which wait until they are read.
//!
//! A reader takes a part of what waits, and then other tasks have their turn before it takes
//! the next. So who answers each piece of what came, or hands it to somebody who does, answers
//! the first ones while the last ones wait, and the peer has something to do meanwhile: over one
//! stream with a hundred requests under way, two ends that each take everything at once take
//! turns, and either of them idles for half of the time (docs/adr/0028-readers-give-way.md). A
//! message that is half as long as they may be is a piece of something long, which its reader
//! puts together: it takes that as it is.

use super::error::StreamError;
use super::link::{Link, OWN};
use std::collections::VecDeque;
use tokio::io::ReadBuf;

/// Parts that a message is read in, unless they become too short.
const PARTS: usize = 8;
/// Shortest part, in bytes.
const LEAST: usize = 1 << 10;
/// Messages from this length on, in bytes, are read as they are.
const LONG: usize = OWN.bytes as usize / 2;

/// Messages that were not read to their end, in order.
#[derive(Debug, Default)]
pub(super) struct Unread {
    messages: VecDeque<Message>,
    /// Bytes that the reader may take before other tasks have their turn.
    share: usize,
    /// It has taken them, and waits for that.
    waits: bool,
}

#[derive(Debug)]
struct Message {
    /// The receive that it lies in.
    slot: u16,
    from: usize,
    to: usize,
}

impl Message {
    /// Whether readers take it in parts.
    const fn is_shared(&self) -> bool {
        self.to < LONG
    }
}

/// Bytes that are read at once, in a receive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Piece {
    slot: u16,
    from: usize,
    bytes: usize,
    /// The message ends with them: its receive is free again.
    last: bool,
}

impl Unread {
    /// A message of `bytes` bytes came into this receive.
    pub(super) fn push(&mut self, slot: u16, bytes: usize) {
        let (from, to) = (0, bytes);
        self.messages.push_back(Message { slot, from, to });
        if self.messages.len() == 1 {
            self.share = self.next_share();
        }
    }

    /// Returns how many there are.
    pub(super) fn count(&self) -> u16 {
        // Each lies in a receive of its own.
        self.messages.len() as u16
    }

    /// Whether the reader has had its share while there is more.
    pub(super) fn is_share_over(&self) -> bool {
        self.share == 0 && self.messages.front().is_some_and(Message::is_shared)
    }

    /// The reader waits for the next turn. Returns whether it did not before.
    pub(super) const fn wait(&mut self) -> bool {
        !std::mem::replace(&mut self.waits, true)
    }

    /// The next turn is there: the reader has another share. Returns whether it waited for that.
    pub(super) fn renew(&mut self) -> bool {
        self.share = self.next_share();
        std::mem::take(&mut self.waits)
    }

    fn next_share(&self) -> usize {
        match self.messages.front() {
            Some(first) => (first.to / PARTS).max(LEAST),
            None => 0,
        }
    }

    /// Takes up to `most` bytes, which are in one receive; `None`: there are none, or the reader
    /// has had its share.
    fn take(&mut self, most: usize) -> Option<Piece> {
        let first = self.messages.front_mut()?;
        let mut bytes = (first.to - first.from).min(most);
        if first.is_shared() {
            bytes = bytes.min(self.share);
            self.share -= bytes;
        }
        if bytes == 0 {
            return None;
        }
        let piece = Piece {
            slot: first.slot,
            from: first.from,
            bytes,
            last: first.from + bytes == first.to,
        };
        first.from += bytes;
        if piece.last {
            self.messages.pop_front();
        }
        Some(piece)
    }
}

impl Link {
    /// Copies bytes that came into `out`; `None`: there are none yet. Nothing and no error is the
    /// end.
    pub(super) fn read(&mut self, out: &mut ReadBuf<'_>) -> Option<Result<(), StreamError>> {
        let room = out.remaining();
        while let Some(piece) = self.unread.take(out.remaining()) {
            let at = usize::from(piece.slot) * OWN.bytes as usize + piece.from;
            let copied = self.mr.read(at, out.initialize_unfilled_to(piece.bytes));
            copied.expect("a message is no longer than its receive");
            out.advance(piece.bytes);
            if piece.last {
                self.repost(piece.slot);
            }
        }
        if out.remaining() < room || room == 0 {
            self.speak();
            return Some(Ok(()));
        }
        match &self.failed {
            _ if self.has_peer_ended() => Some(Ok(())),
            Some(why) => Some(Err(why.clone())),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares in which all of it is read, by a reader with room for `room` bytes.
    fn shares(messages: &[usize], room: usize) -> Vec<usize> {
        let mut unread = Unread::default();
        for (slot, &bytes) in messages.iter().enumerate() {
            unread.push(slot as u16, bytes);
        }
        let (mut shares, mut at) = (Vec::new(), (0, 0));
        while at.0 < messages.len() {
            assert_eq!(unread.is_share_over(), !shares.is_empty());
            if unread.is_share_over() {
                assert!(unread.wait());
                assert!(!unread.wait(), "it waits already");
                assert!(unread.renew());
            }
            let mut share = 0;
            while let Some(piece) = unread.take(room) {
                assert_eq!((usize::from(piece.slot), piece.from), at);
                assert!(piece.bytes <= room);
                share += piece.bytes;
                at.1 += piece.bytes;
                assert_eq!(piece.last, at.1 == messages[at.0]);
                if piece.last {
                    at = (at.0 + 1, 0);
                }
            }
            shares.push(share);
        }
        assert_eq!(unread.take(room), None);
        assert!(!unread.is_share_over(), "there is no more");
        shares
    }

    #[test]
    fn a_message_is_read_in_parts_that_are_not_too_short_and_a_long_one_as_it_is() {
        assert_eq!(shares(&[1], 4096), [1]);
        assert_eq!(shares(&[LEAST], 4096), [LEAST]);
        assert_eq!(shares(&[LEAST + 1], 4096), [LEAST, 1]);
        assert_eq!(shares(&[16 << 10], 1 << 20), [2048; 8]);
        let almost = shares(&[LONG - 1], 1 << 20);
        assert_eq!(almost.len(), PARTS + 1);
        for bytes in [LONG, OWN.bytes as usize] {
            assert_eq!(shares(&[bytes], 1 << 20), [bytes]);
            assert_eq!(
                shares(&[bytes; 3], 1000),
                [3 * bytes],
                "in however many calls"
            );
        }
    }

    #[test]
    fn messages_that_are_short_make_a_share_together_and_long_ones_take_none() {
        assert_eq!(shares(&[400; 6], 4096), [LEAST, LEAST, 352]);
        assert_eq!(
            shares(&[100, LONG, 2000], 4096),
            [LONG + LEAST, LEAST, 2100 - 2 * LEAST]
        );
    }

    #[test]
    fn a_turn_that_nobody_waits_for_wakes_nobody() {
        let mut unread = Unread::default();
        assert!(!unread.renew());
        unread.push(0, LEAST + 1);
        assert_eq!(unread.take(1).map(|piece| piece.bytes), Some(1));
        assert!(!unread.renew());
        assert_eq!(unread.take(LEAST).map(|piece| piece.last), Some(true));
    }

    #[test]
    fn a_share_does_not_grow_with_what_comes_meanwhile() {
        let mut unread = Unread::default();
        unread.push(0, 16 << 10);
        let take = |_| {
            unread.push(1, LEAST);
            unread.take(700).map(|piece| piece.bytes)
        };
        assert_eq!((0..10).filter_map(take).sum::<usize>(), 2048);
        assert!(unread.is_share_over());
    }

    #[test]
    fn who_has_read_all_that_there_was_gives_way_to_nobody() {
        let mut unread = Unread::default();
        for _ in 0..10 {
            unread.push(0, LEAST);
            assert!(!unread.is_share_over());
            assert!(unread.take(LEAST).is_some_and(|piece| piece.last));
        }
    }
}
