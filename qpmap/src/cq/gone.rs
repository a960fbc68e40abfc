//! Completions of QPs that were destroyed or reset: nobody polls them.
//!
//! Where they lie in the ring nobody knows, and a look at all that waits, for each QP that goes,
//! would cost the product of both. So a QP that goes is noted with the place in the ring up to
//! which its completions lie, and polling passes over them. When the ring is full, or more QPs are
//! noted than completions wait, those that wait are gone through once for all.

use super::entry::{decode, qpn};
use super::{CompletionQueue, CqOverflow, HEAD, Reader, TAIL};
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
    /// Worker: what was pushed so far for the QP is not polled any more.
    pub fn forget(&self, qpn: Qpn) {
        let Some(ring) = self.ring.get() else {
            return;
        };
        let written = self.worker.written.load(Ordering::Relaxed);
        let mut reader = self.reader();
        let head = ring.as_slice()[HEAD].load(Ordering::Relaxed) as u32;
        let waiting = written.wrapping_sub(head);
        if waiting == 0 {
            return;
        }
        reader.gone.note(qpn, written);
        if reader.gone.len() > waiting as usize {
            self.take_back(ring, written, &mut reader);
        }
    }

    /// Program: polls past the completions of QPs that are gone.
    #[cold]
    pub(super) fn poll_sifting(
        &self,
        ring: &W,
        reader: &mut Reader,
        out: &mut [Completion],
    ) -> Result<usize, CqOverflow> {
        // Acquire pairs with the Release of `publish`.
        reader.seen = ring.as_slice()[TAIL].load(Ordering::Acquire) as u32;
        let mut head = ring.as_slice()[HEAD].load(Ordering::Relaxed) as u32;
        if reader.seen.wrapping_sub(head) > self.capacity {
            return Ok(0);
        }
        let mut count = 0;
        while count < out.len() && head != reader.seen {
            let words = self.load(ring, head);
            if !reader.gone.has(qpn(words), head) {
                out[count] = decode(words);
                count += 1;
            }
            head = head.wrapping_add(1);
        }
        reader.gone.passed(head);
        // Release pairs with the Acquire in `make_room`: the entries have been read.
        ring.as_slice()[HEAD].store(head.into(), Ordering::Release);
        self.polled(ring, count, out)
    }

    /// Worker: makes room of the completions of QPs that are gone; gives whether there is some.
    pub(super) fn sweep(&self, ring: &W, written: u32) -> bool {
        let mut reader = self.reader();
        if !reader.gone.is_empty() {
            self.take_back(ring, written, &mut reader);
        }
        let polled = ring.as_slice()[HEAD].load(Ordering::Relaxed) as u32;
        self.worker.polled.store(polled, Ordering::Relaxed);
        written.wrapping_sub(polled) < self.capacity
    }

    /// Moves what is left of the completions that wait together, up to `written`.
    fn take_back(&self, ring: &W, written: u32, reader: &mut Reader) {
        let head = ring.as_slice()[HEAD].load(Ordering::Relaxed) as u32;
        if written.wrapping_sub(head) > self.capacity {
            // The program scribbled on its head.
            return;
        }
        let (mut from, mut to) = (written, written);
        while from != head {
            from = from.wrapping_sub(1);
            let words = self.load(ring, from);
            if !reader.gone.has(qpn(words), from) {
                to = to.wrapping_sub(1);
                self.store(ring, to, words);
            }
        }
        // What was not published has moved, too.
        self.publish();
        reader.seen = written;
        reader.gone = Gone::default();
        ring.as_slice()[HEAD].store(to.into(), Ordering::Release);
    }
}
