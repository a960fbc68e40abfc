//! The half of a queue that a worker takes requests from.

use super::{SendCursor, Size};
use crate::error::RingError;
use crate::ring::{Count, Cursor, CursorCell, Ring, RingMemory};
use crate::wqe;
use trunkline_conn::work::{Receive, Request};

/// Takes requests from a ring, whose other half a program has, be it in another process, which may
/// have written anything.
#[derive(Debug)]
pub(super) struct Consumer<W> {
    ring: Ring<W>,
    size: Size,
    /// Where it reads next, where the worker keeps that nowhere else.
    cursor: CursorCell,
    /// Requests that the worker has taken and not released. It counts them itself: a program may
    /// say anything.
    taken: Count,
}

impl<W: RingMemory> Consumer<W> {
    /// Takes from a ring over `memory`, from which nothing was taken.
    ///
    /// # Panics
    /// It has another number of words than its size says.
    pub(super) fn new(size: Size, memory: W) -> Self {
        Self {
            ring: size.ring_over(memory),
            size,
            cursor: CursorCell::default(),
            taken: Count::default(),
        }
    }

    pub(super) const fn ring(&self) -> &Ring<W> {
        &self.ring
    }

    /// Reads the next send request: it, its route, and the slots to release when it is done.
    #[inline(always)]
    pub(super) fn fetch_send(
        &self,
        cursor: &mut SendCursor,
    ) -> Result<Option<(Request, u32, u16)>, RingError> {
        let taken = self.taken.get();
        if taken >= self.size.max_wr() {
            return self.find_no_more(*cursor).map(|()| None);
        }
        // It goes where the caller wants it: to look into it by `?` would copy it.
        let found = wqe::take_send(&self.ring, cursor, self.size.limits);
        if matches!(found, Ok(Some(_))) {
            self.taken.set(taken + 1);
        }
        found
    }

    /// # Errors
    /// There are more requests, though as many were taken as the queue was made for.
    #[cold]
    fn find_no_more(&self, mut cursor: Cursor) -> Result<(), RingError> {
        match cursor.available(&self.ring)? {
            0 => Ok(()),
            _ => Err(RingError::TooManyRequests {
                max: self.size.max_wr(),
            }),
        }
    }

    /// Puts back the `requests` fetched last, of `slots` slots together: they are fetched again.
    pub(super) fn put_back(&self, cursor: &mut SendCursor, requests: u32, slots: u32) {
        self.taken.lower(requests);
        cursor.rewind(slots);
    }

    /// Gives back the slots of a request: of a send request in the order in which they were
    /// fetched, of a receive that was read in any.
    #[inline]
    pub(super) fn release(&self, slots: u16) {
        self.taken.lower(1);
        self.ring.release(slots.into());
    }

    /// Reads the next receive; gives it with the slots to release when it is used.
    #[inline(always)]
    pub(super) fn read_receive(&self) -> Result<Option<(Receive, u16)>, RingError> {
        let taken = self.taken.get();
        if taken >= self.size.max_wr() {
            return self.find_no_more(self.cursor.get()).map(|()| None);
        }
        let found = wqe::take_recv(&self.ring, &self.cursor, self.size.limits);
        if matches!(found, Ok(Some(_))) {
            self.taken.set(taken + 1);
        }
        found
    }

    /// Takes the next receive; its slots are free again at once.
    #[inline(always)]
    pub(super) fn fetch_receive(&self) -> Result<Option<Receive>, RingError> {
        match wqe::take_recv(&self.ring, &self.cursor, self.size.limits) {
            Ok(Some((receive, slots))) => {
                self.ring.release(slots.into());
                Ok(Some(receive))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a receive would be found, be it an error.
    #[inline]
    pub(super) fn has_receive(&self) -> bool {
        self.has_entry(self.cursor.get())
    }

    /// Whether something would be found at `cursor`, be it an error.
    #[inline]
    pub(super) fn has_entry(&self, mut cursor: Cursor) -> bool {
        cursor.available(&self.ring) != Ok(0)
    }

    /// Requests that were posted and not released; more than the ring holds where the program has
    /// scribbled on its tail.
    #[inline]
    pub(super) fn posted(&self) -> u32 {
        self.ring.tail().since(self.ring.head()).entries
    }

    /// Drops all that was sent so far, fetched or not.
    pub(super) fn discard_sends(&self, cursor: &mut SendCursor) {
        self.taken.set(0);
        self.ring.release_to(cursor.skip_all(&self.ring));
    }

    /// Drops all receives that were posted so far.
    pub(super) fn discard_receives(&self) {
        self.taken.set(0);
        let mut cursor = self.cursor.get();
        self.ring.release_to(cursor.skip_all(&self.ring));
        self.cursor.set(cursor);
    }
}
