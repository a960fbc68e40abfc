//! The model of one direction between two QPs: what was asked, and what may have happened of it.

use crate::area::{Area, Maybe};
use crate::failure::{Failure, Verdict};
use std::collections::VecDeque;
use std::ops::Range;
use trunkline_wire::Rkey;

/// A WRITE that was posted.
#[derive(Debug)]
struct Write {
    seq: u64,
    at: usize,
    bytes: Vec<u8>,
}

impl Write {
    fn range(&self) -> Range<usize> {
        self.at..self.at + self.bytes.len()
    }

    fn maybe(&self, wild: bool) -> Maybe<'_> {
        Maybe {
            at: self.at,
            bytes: &self.bytes,
            wild,
        }
    }
}

/// A READ of the window that was posted and has not completed.
#[derive(Debug)]
struct Read {
    seq: u64,
    range: Range<usize>,
    /// What was there when all earlier WRITEs were placed and no later one, once that is past.
    base: Option<Vec<u8>>,
    /// WRITEs from here on wait for this READ.
    fenced: u64,
}

/// What a message that takes a receive brings.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Brings {
    /// Only its bytes.
    Nothing,
    /// Bytes and immediate data.
    Immediate(u32),
    /// Bytes, and a key is gone: the spare of this number.
    Invalidates(Rkey, usize),
    /// Immediate data; the bytes, so many, went to the window.
    WriteImmediate(u32, u32),
}

/// A message that takes a receive.
#[derive(Debug)]
pub(crate) struct Message {
    /// Number of its request.
    pub(crate) seq: u64,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// What comes with it.
    pub(crate) brings: Brings,
    /// Its sender asked for an event.
    pub(crate) solicited: bool,
    /// It must not be delivered.
    pub(crate) fails: bool,
}

/// Requests from one endpoint to another.
#[derive(Debug)]
pub(crate) struct Channel {
    /// Endpoint that posts.
    pub(crate) from: usize,
    /// Endpoint they are executed at.
    pub(crate) to: usize,
    /// Number that names it in requests.
    pub(crate) route: u32,
    /// Where in the receiver's area it writes: nobody else does.
    pub(crate) window: Range<usize>,
    /// The receiver's end was closed: its memory is not this channel's business any more.
    pub(crate) closed: bool,
    /// A send request ended badly.
    pub(crate) send_failed: bool,
    /// A request that was posted after the last fault has succeeded.
    pub(crate) proved: bool,
    /// The last message that its receiver took with success.
    pub(crate) taken: Option<u64>,
    /// Packets with wrong bits are about: placed while they are summed, they leave traces in the
    /// range of their message until they come again.
    wild: bool,
    open: VecDeque<Write>,
    /// WRITEs that are placed, for READs that may or may not have seen them.
    past: VecDeque<Write>,
    reads: Vec<Read>,
    messages: VecDeque<Message>,
}

impl Channel {
    /// A channel that nothing was posted to.
    pub(crate) const fn new(from: usize, to: usize, window: Range<usize>, wild: bool) -> Self {
        Self {
            from,
            to,
            route: 0,
            window,
            closed: false,
            proved: false,
            taken: None,
            send_failed: false,
            wild,
            open: VecDeque::new(),
            past: VecDeque::new(),
            reads: Vec::new(),
            messages: VecDeque::new(),
        }
    }

    /// A WRITE of `bytes` to `at` was posted.
    pub(crate) fn post_write(&mut self, seq: u64, at: usize, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.open.push_back(Write { seq, at, bytes });
        }
    }

    /// A READ of `range` was posted.
    pub(crate) fn post_read(&mut self, seq: u64, range: Range<usize>) {
        self.reads.push(Read {
            seq,
            range,
            base: None,
            fenced: u64::MAX,
        });
    }

    /// A message that takes a receive was posted.
    pub(crate) fn post_message(&mut self, message: Message) {
        self.messages.push_back(message);
    }

    /// A request with a fence was posted.
    pub(crate) fn fence(&mut self, seq: u64) {
        for read in self.reads.iter_mut().filter(|read| read.seq < seq) {
            read.fenced = read.fenced.min(seq);
        }
    }

    /// Bytes that may be in the window by now beside those that must be.
    pub(crate) fn maybe(&self) -> Vec<Maybe<'_>> {
        self.open
            .iter()
            .map(|write| write.maybe(self.wild))
            .collect()
    }

    /// Messages that are still to come.
    pub(crate) fn expected_messages(&self) -> usize {
        self.messages.len()
    }

    /// The message that has to come next.
    pub(crate) fn take_message(&mut self) -> Option<Message> {
        let message = self.messages.pop_front();
        if let Some(message) = &message {
            self.taken = Some(message.seq);
        }
        message
    }

    /// Everything posted before `seq` was executed: its bytes must be there.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn settle(&mut self, area: &mut Area, seq: u64, why: &str) -> Verdict {
        if self.closed {
            return Ok(());
        }
        let mut ranges = Vec::new();
        while self.open.front().is_some_and(|write| write.seq < seq) {
            let Some(write) = self.open.pop_front() else {
                break;
            };
            for read in self.reads.iter_mut().filter(|read| read.seq < write.seq) {
                let range = read.range.clone();
                read.base
                    .get_or_insert_with(|| area.expected(range).to_vec());
            }
            area.expect(write.at, &write.bytes);
            ranges.push(write.range());
            if !self.reads.is_empty() {
                self.past.push_back(write);
            }
        }
        let maybe = self.maybe();
        ranges
            .into_iter()
            .try_for_each(|range| area.check(range, &maybe, why))
    }

    /// Looks at the last byte of WRITEs under way, as a program may: where it is there, all of that
    /// WRITE and of earlier ones must be.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn witness(&mut self, area: &mut Area) -> Verdict {
        if self.closed {
            return Ok(());
        }
        let placed = self.open.iter().rev().find(|write| {
            let last = write.at + write.bytes.len() - 1;
            let value = write.bytes[write.bytes.len() - 1];
            area.byte(last) == Some(value)
                && area.expected(last..last + 1) != [value]
                && !self.open.iter().any(|other| {
                    other.seq != write.seq
                        && other.range().contains(&last)
                        && other.bytes[last - other.at] == value
                })
        });
        match placed.map(|write| write.seq) {
            Some(seq) => self.settle(area, seq + 1, "the last byte of a WRITE is there"),
            None => Ok(()),
        }
    }

    /// A READ of the window completed with `data`.
    ///
    /// # Errors
    /// The memory never held that.
    pub(crate) fn finish_read(&mut self, area: &mut Area, seq: u64, data: &[u8]) -> Verdict {
        self.settle(area, seq, "a later READ completed")?;
        let Some(at) = self.reads.iter().position(|read| read.seq == seq) else {
            return Ok(());
        };
        let read = self.reads.swap_remove(at);
        if !self.closed {
            self.check_read(area, &read, data)?;
        }
        let oldest = self
            .reads
            .iter()
            .map(|read| read.seq)
            .min()
            .unwrap_or(u64::MAX);
        self.past
            .retain(|write| write.seq > oldest && oldest != u64::MAX);
        Ok(())
    }

    fn check_read(&self, area: &Area, read: &Read, data: &[u8]) -> Verdict {
        let expected = area.expected(read.range.clone());
        let base = read.base.as_deref().unwrap_or(expected);
        if base == data {
            return Ok(());
        }
        let later = |write: &&Write| write.seq > read.seq && write.seq < read.fenced;
        let maybe: Vec<Maybe<'_>> = self
            .past
            .iter()
            .chain(&self.open)
            .filter(later)
            .map(|write| write.maybe(self.wild))
            .collect();
        for (i, (found, wanted)) in data.iter().zip(base).enumerate() {
            let at = read.range.start + i;
            if found != wanted && !maybe.iter().any(|maybe| maybe.has(at, *found)) {
                return Err(Failure::wrong(format!(
                    "READ #{} of {:?} found {found:#04x} at {at}, not {wanted:#04x}; {} WRITEs may \
                     have overtaken it",
                    read.seq,
                    read.range,
                    maybe.len()
                )));
            }
        }
        Ok(())
    }

    /// A READ ended without data.
    pub(crate) fn lose_read(&mut self, seq: u64) {
        self.reads.retain(|read| read.seq != seq);
    }
}

impl Channel {
    /// Whether a message up to number `seq` is still to come.
    pub(crate) fn awaits(&self, seq: u64) -> bool {
        self.messages
            .front()
            .is_some_and(|message| message.seq <= seq)
    }
}
