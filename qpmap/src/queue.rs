//! Send and receive queues: a program posts, a worker fetches.
//!
//! A queue that nothing was posted to takes 24 bytes: its ring, and all that is needed to use it,
//! comes with the first post. Posting takes a lock that only threads of the same program contend
//! for; the worker takes none.

mod shared;

use crate::allowed::Allowed;
use crate::error::{PostError, RingError, VerbsError};
use crate::ring::{Count, CursorCell, MAX_SLOTS, Position, Ring, RingMemory};
use crate::sync::Mutex;
use crate::wqe::{self, Limits, Post, RecvWr, SendWr};
use std::sync::{OnceLock, PoisonError};
use trunkline_conn::work::{MAX_INLINE, MAX_SGE, Receive, Request};

pub use crate::ring::Cursor as SendCursor;
pub use shared::SharedRecvQueue;

/// Most requests of one queue.
pub const MAX_WR: u32 = 1 << 15;
const _: () = assert!(MAX_WR <= u16::MAX as u32);

/// What both kinds of queue are.
#[derive(Debug)]
struct Queue<W> {
    used: OnceLock<Box<Used<W>>>,
    max_wr: u16,
    /// Slots that the ring has or will have: 2 to this power.
    slots_log2: u8,
    limits: Limits,
}

/// What a queue has from the first post on.
#[derive(Debug)]
struct Used<W> {
    ring: Ring<W>,
    /// The worker's, where it keeps none elsewhere.
    cursor: CursorCell,
    /// Requests that the worker has taken and not released. It counts them itself: a program may
    /// say anything.
    taken: Count,
    /// What the consumer had released when the producer last looked.
    released: Mutex<Position>,
}

/// Work that a program wants sent (`ibv_post_send(3)`).
#[derive(Debug)]
pub struct SendQueue<W> {
    queue: Queue<W>,
}

/// Room that a program offers to messages (`ibv_post_recv(3)`), of one QP or, as an SRQ, of many.
#[derive(Debug)]
pub struct RecvQueue<W> {
    queue: Queue<W>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<SendQueue<Box<[crate::sync::AtomicU64]>>>() <= 24);
#[cfg(not(loom))]
const _: () = assert!(size_of::<Option<RecvQueue<Box<[crate::sync::AtomicU64]>>>>() <= 24);
const _: () = assert!(size_of::<SendCursor>() <= 12);
// The largest requests still make rings that can be.
const _: () = {
    let limits = Limits {
        max_inline: MAX_INLINE as u16,
        max_sge: MAX_SGE as u8,
        datagrams: true,
    };
    assert!((MAX_WR * wqe::max_send_slots(limits)).next_power_of_two() <= MAX_SLOTS);
    assert!((MAX_WR * wqe::max_recv_slots(limits)).next_power_of_two() <= MAX_SLOTS);
};

impl<W: RingMemory> SendQueue<W> {
    /// A queue for `max_wr` requests of at most `max_sge` elements or `max_inline` bytes.
    ///
    /// # Errors
    /// [`VerbsError::BadAttribute`] beyond [`MAX_WR`], [`MAX_SGE`] or [`MAX_INLINE`].
    pub fn new(max_wr: u32, max_sge: u32, max_inline: u32) -> Result<Self, VerbsError> {
        Self::of(max_wr, max_sge, (max_inline, false))
    }

    /// The same for a UD QP, whose requests name their receivers.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn for_datagrams(max_wr: u32, max_sge: u32, max_inline: u32) -> Result<Self, VerbsError> {
        Self::of(max_wr, max_sge, (max_inline, true))
    }

    fn of(
        max_wr: u32,
        max_sge: u32,
        (max_inline, datagrams): (u32, bool),
    ) -> Result<Self, VerbsError> {
        Allowed::Range(0, MAX_WR).check("max_send_wr", max_wr)?;
        Allowed::Range(0, MAX_SGE as u32).check("max_send_sge", max_sge)?;
        Allowed::Range(0, MAX_INLINE as u32).check("max_inline_data", max_inline)?;
        let limits = Limits {
            max_inline: max_inline as u16,
            max_sge: max_sge as u8,
            datagrams,
        };
        let slots = ring_slots(max_wr, wqe::max_send_slots(limits));
        Ok(Self {
            queue: Queue::new(max_wr, limits, slots),
        })
    }

    /// Posts `requests` in order, up to the first that is refused. The doorbell is the caller's to
    /// ring.
    ///
    /// # Errors
    /// What `ibv_post_send(3)` refuses: too many elements, too many bytes, flags that make no
    /// sense; [`VerbsError::QueueFull`] when it does not fit any more.
    #[inline]
    pub fn post(&self, requests: &[SendWr<'_>]) -> Result<(), PostError> {
        self.queue.post(requests)
    }

    /// Worker: reads the next request; gives it, its route, and the slots to release when it is
    /// done.
    ///
    /// # Errors
    /// The program wrote something that cannot be. The cursor stays, so the error stays, until
    /// [`discard`](Self::discard).
    #[inline(always)]
    pub fn fetch(&self, cursor: &mut SendCursor) -> Result<Option<(Request, u32, u16)>, RingError> {
        let Some(used) = self.queue.used.get() else {
            return Ok(None);
        };
        let taken = used.taken.get();
        if taken >= self.max_wr() {
            return self.find_no_more(&used.ring, cursor).map(|()| None);
        }
        // It goes where the caller wants it: to look into it by `?` would copy it.
        let found = wqe::take_send(&used.ring, cursor, self.queue.limits);
        if matches!(found, Ok(Some(_))) {
            used.taken.set(taken + 1);
        }
        found
    }

    /// # Errors
    /// There are more requests, though as many were taken as the queue was made for.
    #[cold]
    fn find_no_more(&self, ring: &Ring<W>, cursor: &mut SendCursor) -> Result<(), RingError> {
        match cursor.available(ring)? {
            0 => Ok(()),
            _ => Err(RingError::TooManyRequests { max: self.max_wr() }),
        }
    }

    /// Worker: puts back the `requests` fetched last, of `slots` slots together: they are fetched
    /// again.
    pub(crate) fn put_back(&self, cursor: &mut SendCursor, requests: u32, slots: u32) {
        if let Some(used) = self.queue.used.get() {
            used.taken.lower(requests);
            cursor.rewind(slots);
        }
    }

    /// Worker: whether [`fetch`](Self::fetch) would find something, be it an error.
    #[inline]
    pub fn has_entry(&self, cursor: &SendCursor) -> bool {
        self.queue.has_entry(*cursor)
    }

    /// Worker: the slot behind what was posted and not fetched; `None`: all was fetched.
    pub(crate) fn posted_behind(&self, cursor: &SendCursor) -> Option<u32> {
        let tail = self.queue.ring()?.tail().slots;
        (tail != cursor.slot()).then_some(tail)
    }

    /// Worker: whether nothing that was posted is outstanding.
    pub fn is_empty(&self) -> bool {
        let ring = self.queue.ring();
        ring.is_none_or(|ring| ring.head() == ring.tail())
    }

    /// Worker: gives back the slots of one request, in the order in which they were fetched.
    #[inline]
    pub fn release(&self, slots: u16) {
        if let Some(used) = self.queue.used.get() {
            used.taken.lower(1);
            used.ring.release(slots.into());
        }
    }

    /// Reads what [`post`](Self::post) and [`release`](Self::release) read and write first, to have
    /// it in the cache. The number says nothing.
    #[inline]
    pub fn look_ahead(&self) -> u64 {
        let read = |ring: &Ring<W>| ring.load(ring.tail().slots, 0) ^ u64::from(ring.head().slots);
        self.queue.ring().map_or(0, read)
    }

    /// Worker: drops everything posted so far, fetched or not, and mends the cursor of a broken
    /// ring. Nothing fetched before may be released after.
    pub fn discard(&self, cursor: &mut SendCursor) {
        if let Some(used) = self.queue.used.get() {
            used.taken.set(0);
            self.queue.discard(cursor);
        }
    }

    /// Most requests outstanding.
    pub const fn max_wr(&self) -> u32 {
        self.queue.max_wr as u32
    }

    /// Most scatter-gather elements of a request.
    pub const fn max_sge(&self) -> u32 {
        self.queue.limits.max_sge as u32
    }

    /// Most inline bytes of a request.
    pub const fn max_inline(&self) -> u32 {
        self.queue.limits.max_inline as u32
    }

    /// Bytes of the ring: 0 until something is posted.
    pub fn ring_bytes(&self) -> usize {
        self.queue.ring_bytes()
    }
}

impl<W: RingMemory> RecvQueue<W> {
    /// A queue for `max_wr` requests of at most `max_sge` elements.
    ///
    /// # Errors
    /// [`VerbsError::BadAttribute`] beyond [`MAX_WR`] or [`MAX_SGE`].
    pub fn new(max_wr: u32, max_sge: u32) -> Result<Self, VerbsError> {
        Allowed::Range(0, MAX_WR).check("max_recv_wr", max_wr)?;
        Allowed::Range(0, MAX_SGE as u32).check("max_recv_sge", max_sge)?;
        let limits = Limits {
            max_inline: 0,
            max_sge: max_sge as u8,
            datagrams: false,
        };
        let slots = ring_slots(max_wr, wqe::max_recv_slots(limits));
        let queue = Queue::new(max_wr, limits, slots);
        Ok(Self { queue })
    }

    /// Posts `requests` in order, up to the first that is refused.
    ///
    /// # Errors
    /// What `ibv_post_recv(3)` refuses: too many elements, too many bytes;
    /// [`VerbsError::QueueFull`] when it does not fit any more.
    #[inline]
    pub fn post(&self, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.queue.post(requests)
    }

    /// Worker: takes the next request; its slots are free again at once.
    ///
    /// # Errors
    /// As [`SendQueue::fetch`].
    #[inline(always)]
    pub fn fetch(&self) -> Result<Option<Receive>, RingError> {
        let Some(used) = self.queue.used.get() else {
            return Ok(None);
        };
        match wqe::take_recv(&used.ring, &used.cursor, self.queue.limits) {
            Ok(Some((receive, slots))) => {
                used.ring.release(slots.into());
                Ok(Some(receive))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Worker: reads the next request; gives it with the slots to release when it is used.
    ///
    /// # Errors
    /// As [`SendQueue::fetch`].
    #[inline(always)]
    pub(crate) fn read(&self) -> Result<Option<(Receive, u16)>, RingError> {
        match self.queue.used.get() {
            Some(used) => wqe::take_recv(&used.ring, &used.cursor, self.queue.limits),
            None => Ok(None),
        }
    }

    /// Worker: gives back the slots of a request that was read, in whatever order.
    #[inline]
    pub(crate) fn release(&self, slots: u16) {
        if let Some(ring) = self.queue.ring() {
            ring.release(slots.into());
        }
    }

    /// Worker: whether [`fetch`](Self::fetch) would find something, be it an error.
    #[inline]
    pub fn has_entry(&self) -> bool {
        let used = self.queue.used.get();
        used.is_some_and(|used| self.queue.has_entry(used.cursor.get()))
    }

    /// Worker: requests that were posted and not taken.
    #[inline]
    pub fn posted(&self) -> u32 {
        let ring = self.queue.ring();
        let posted = ring.map_or(0, |ring| ring.tail().since(ring.head()).entries);
        // The program may have scribbled on its tail.
        posted.min(self.max_wr())
    }

    /// Worker: drops everything posted so far and mends a broken ring.
    pub fn discard(&self) {
        if let Some(used) = self.queue.used.get() {
            let mut cursor = used.cursor.get();
            self.queue.discard(&mut cursor);
            used.cursor.set(cursor);
        }
    }

    /// Most requests outstanding.
    pub const fn max_wr(&self) -> u32 {
        self.queue.max_wr as u32
    }

    /// Most scatter-gather elements of a request.
    pub const fn max_sge(&self) -> u32 {
        self.queue.limits.max_sge as u32
    }

    /// Bytes of the ring: 0 until something is posted.
    pub fn ring_bytes(&self) -> usize {
        self.queue.ring_bytes()
    }

    /// Claims more than there can be, as a program can that writes what it likes. Returns what
    /// mends it.
    #[cfg(test)]
    pub(crate) fn break_tail(&self) -> crate::ring::Position {
        let ring = self.queue.ring().expect("something was posted");
        let tail = ring.tail();
        ring.publish(tail.advance(ring.capacity() + 1, 0));
        tail
    }

    /// Takes back a false claim.
    #[cfg(test)]
    pub(crate) fn mend_tail(&self, tail: crate::ring::Position) {
        let ring = self.queue.ring().expect("something was posted");
        ring.publish(tail);
    }
}

impl<W: RingMemory> Queue<W> {
    fn new(max_wr: u32, limits: Limits, slots: u32) -> Self {
        Self {
            used: OnceLock::new(),
            max_wr: max_wr as u16,
            slots_log2: slots.ilog2() as u8,
            limits,
        }
    }

    #[inline]
    fn post<E: Post>(&self, requests: &[E]) -> Result<(), PostError> {
        if requests.is_empty() {
            return Ok(());
        }
        let used = self.used.get_or_init(|| self.begin_use());
        let ring = &used.ring;
        // A panic cannot leave the position half written: it is copied in one go.
        let mut released = used.released.lock().unwrap_or_else(PoisonError::into_inner);
        // Only holders of this lock write the tail.
        let start = ring.tail();
        let mut room = self.room(start, *released);
        if room < requests.len() {
            *released = ring.head();
            room = self.room(start, *released);
        }
        let mut tail = start;
        let mut refused = None;
        for request in &requests[..room.min(requests.len())] {
            match request.write(self.limits, ring, tail.slots) {
                Ok(slots) => tail = tail.advance(slots, 1),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        let posted = tail.since(start).entries as usize;
        if posted > 0 {
            ring.publish(tail);
        }
        if posted == requests.len() {
            return Ok(());
        }
        let error = refused.unwrap_or(VerbsError::QueueFull {
            capacity: self.max_wr.into(),
        });
        Err(PostError { posted, error })
    }

    /// Requests that fit behind `tail`.
    #[inline]
    const fn room(&self, tail: Position, released: Position) -> usize {
        (self.max_wr as u32).saturating_sub(tail.since(released).entries) as usize
    }

    #[cold]
    fn begin_use(&self) -> Box<Used<W>> {
        Box::new(Used {
            ring: Ring::new(W::zeroed(self.ring_words())),
            cursor: CursorCell::default(),
            taken: Count::default(),
            released: Mutex::new(Position::default()),
        })
    }

    /// Its ring, if something was posted.
    #[inline]
    fn ring(&self) -> Option<&Ring<W>> {
        self.used.get().map(|used| &used.ring)
    }

    const fn ring_words(&self) -> usize {
        Ring::<W>::words_for(1 << self.slots_log2)
    }

    #[inline]
    fn has_entry(&self, mut cursor: SendCursor) -> bool {
        self.ring()
            .is_some_and(|ring| cursor.available(ring) != Ok(0))
    }

    fn discard(&self, cursor: &mut SendCursor) {
        if let Some(ring) = self.ring() {
            let tail = cursor.skip_all(ring);
            ring.release_to(tail);
        }
    }

    fn ring_bytes(&self) -> usize {
        self.ring()
            .map_or(0, |_| self.ring_words() * size_of::<u64>())
    }
}

/// Slots of a ring for `max_wr` requests of up to `each` slots: all of them fit, whatever they are.
const fn ring_slots(max_wr: u32, each: u32) -> u32 {
    let slots = max_wr * each;
    if slots == 0 {
        1
    } else {
        slots.next_power_of_two()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests;
