//! Completions of QPs that were destroyed or reset: nobody polls them.
//!
//! Where they lie in the ring nobody knows, and a look at all that waits, for each QP that goes,
//! would cost the product of both. So a QP that goes is noted with the place in the ring up to
//! which its completions lie, and polling passes over them. When the ring is full, or more QPs are
//! noted than completions wait, those that wait are gone through once for all.

use super::entries::Slots;
use super::entry::{decode, qpn};
use super::{CompletionQueue, CqOverflow, HEAD, Reader, TAIL, Writer};
use crate::hash::IndexMap;
use crate::order::before;
use crate::ring::RingMemory;
use std::sync::atomic::Ordering;
use trunkline_conn::work::Completion;
use trunkline_wire::Qpn;

/// QPs that went, while completions of them may wait.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// Where the completions of each end.
    ends: IndexMap<u32>,
    /// The last of these places.
    last: u32,
    /// When the head is there, those that it has passed are forgotten.
    check: u32,
}

impl Gone {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    fn note(&mut self, qpn: Qpn, end: u32) {
        if self.ends.is_empty() {
            self.check = end;
        }
        self.ends.insert(qpn.get(), end);
        self.last = end;
    }

    fn has(&self, qpn: Qpn, position: u32) -> bool {
        let end = self.ends.get(&qpn.get());
        end.is_some_and(|end| before(position, *end))
    }

    /// The program has polled up to `head`. Each QP is looked at twice at most, and forgotten long
    /// before positions wrap around.
    fn passed(&mut self, head: u32) {
        if !before(head, self.check) {
            self.ends.retain(|_, end| before(head, *end));
            self.check = self.last;
        }
    }
}

impl<W: RingMemory> CompletionQueue<W> {
    /// Polls past the completions of QPs that are gone.
    #[cold]
    pub(super) fn poll_sifting(
        &self,
        reader: &mut Reader<W>,
        out: &mut [Completion],
    ) -> Result<usize, CqOverflow> {
        reader.seen = self.position(TAIL);
        let mut head = self.position(HEAD);
        if reader.seen.wrapping_sub(head) > reader.entries.capacity() {
            return Ok(0);
        }
        let Some(slots) = reader.entries.allocated() else {
            return self.polled(reader, 0, out);
        };
        let mut count = 0;
        while count < out.len() && head != reader.seen {
            let words = slots.load(head);
            if !reader.gone.has(qpn(words), head) {
                out[count] = decode(words);
                count += 1;
            }
            head = head.wrapping_add(1);
        }
        reader.gone.passed(head);
        // Release pairs with the Acquire in `position`: the entries have been read.
        self.header()[HEAD].store(head.into(), Ordering::Release);
        self.polled(reader, count, out)
    }
}

/// Moves those of the completions from `head` to `end` whose QP is not gone together, up to the
/// end. Gives where they begin.
fn compact(slots: Slots<'_>, (head, end): (u32, u32), is_gone: impl Fn(Qpn, u32) -> bool) -> u32 {
    let (mut from, mut to) = (end, end);
    while from != head {
        from = from.wrapping_sub(1);
        let words = slots.load(from);
        if !is_gone(qpn(words), from) {
            to = to.wrapping_sub(1);
            slots.store(to, words);
        }
    }
    to
}

impl<W: RingMemory> CompletionQueue<W> {
    /// What was published so far for a QP, which is destroyed or reset, is not polled any more, and
    /// takes no room. For the program's half of a queue whose worker is in another process: it
    /// alone moves the head.
    pub fn forget(&self, gone: Qpn) {
        let mut reader = self.reader();
        let (head, tail) = (self.position(HEAD), self.position(TAIL));
        if tail.wrapping_sub(head) > reader.entries.capacity() {
            return;
        }
        let Some(slots) = reader.entries.allocated() else {
            return;
        };
        let begin = compact(slots, (head, tail), |qpn, _| qpn == gone);
        reader.seen = tail;
        // Release pairs with the Acquire in `position`: the entries below it have been read.
        self.header()[HEAD].store(begin.into(), Ordering::Release);
    }
}

impl<W: RingMemory> Writer<W> {
    /// What was pushed so far for the QP is not polled any more. A program in another process sees
    /// to that [by itself](CompletionQueue::forget).
    pub fn forget(&self, qpn: Qpn) {
        if self.is_apart || self.entries.allocated().is_none() {
            return;
        }
        let mut reader = self.queue.reader();
        let waiting = self.written.wrapping_sub(self.queue.position(HEAD));
        if waiting == 0 {
            return;
        }
        reader.gone.note(qpn, self.written);
        if reader.gone.len() > waiting as usize {
            self.take_back(&mut reader);
        }
    }

    /// Makes room of the completions of QPs that are gone; gives whether there is some.
    pub(super) fn sweep(&mut self) -> bool {
        let mut reader = self.queue.reader();
        if !reader.gone.is_empty() {
            self.take_back(&mut reader);
        }
        self.polled = self.queue.position(HEAD);
        self.written.wrapping_sub(self.polled) < self.entries.capacity()
    }

    /// Moves what is left of the completions that wait together, up to the last that was written.
    pub(super) fn take_back(&self, reader: &mut Reader<W>) {
        let head = self.queue.position(HEAD);
        if self.written.wrapping_sub(head) > self.entries.capacity() {
            // The program scribbled on its head.
            return;
        }
        let slots = self.entries.slots();
        let is_gone = |qpn, position| reader.gone.has(qpn, position);
        let to = compact(slots, (head, self.written), is_gone);
        // What was not published has moved, too.
        self.publish();
        reader.seen = self.written;
        reader.gone = Gone::default();
        self.queue.header()[HEAD].store(to.into(), Ordering::Release);
    }
}
