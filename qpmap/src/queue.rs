//! Send and receive queues: a program posts, a worker fetches.
//!
//! A queue has two halves, which share the words of a ring and nothing else: a program has a
//! [`Producer`], and a worker the consumer. Where both are of one process they lie side by side,
//! and come with the first post: a queue that nothing was posted to takes 24 bytes. Posting takes a
//! lock that only threads of the same program contend for; the worker takes none.

mod consumer;
mod producer;
mod shared;
mod size;

use crate::error::{PostError, RingError};
use crate::ring::{Ring, RingMemory};
use crate::state::QpState;
use crate::wqe::{Post, RecvWr, SendWr};
use consumer::Consumer;
use std::sync::OnceLock;
use trunkline_conn::work::{Receive, Request};

pub use crate::ring::Cursor as SendCursor;
pub use producer::Producer;
pub use shared::SharedRecvQueue;
pub use size::{MAX_WR, Size};

/// What both kinds of queue are.
#[derive(Debug)]
pub(crate) struct Queue<W> {
    halves: OnceLock<Box<Halves<W>>>,
    size: Size,
}

/// What a queue has from the first post on.
#[derive(Debug)]
struct Halves<W> {
    consumer: Consumer<W>,
    producer: Producer<W>,
}

/// Work that a program wants sent (`ibv_post_send(3)`).
#[derive(Debug)]
pub struct SendQueue<W> {
    pub(crate) queue: Queue<W>,
}

/// Room that a program offers to messages (`ibv_post_recv(3)`), of one QP or, as an SRQ, of many.
#[derive(Debug)]
pub struct RecvQueue<W> {
    pub(crate) queue: Queue<W>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<SendQueue<std::sync::Arc<[crate::sync::AtomicU64]>>>() <= 24);
#[cfg(not(loom))]
const _: () =
    assert!(size_of::<Option<RecvQueue<std::sync::Arc<[crate::sync::AtomicU64]>>>>() <= 24);
const _: () = assert!(size_of::<SendCursor>() <= 12);

impl<W: RingMemory> SendQueue<W> {
    /// A queue of this size.
    pub fn new(size: Size) -> Self {
        let queue = Queue::new(size);
        Self { queue }
    }

    /// Gives the queue the memory of its ring, whose producer lives elsewhere: as many words as its
    /// [size](Size::ring_words) says, and zero. `false`: it has one.
    ///
    /// # Panics
    /// It has another number of words.
    pub fn begin(&self, memory: W) -> bool {
        self.queue.begin(memory)
    }

    /// Posts `requests` in order, up to the first that is refused. The doorbell is the caller's to
    /// ring.
    ///
    /// # Errors
    /// As [`Producer::post`].
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
        match self.queue.consumer() {
            Some(consumer) => consumer.fetch_send(cursor),
            None => Ok(None),
        }
    }

    /// Worker: puts back the `requests` fetched last, of `slots` slots together: they are fetched
    /// again.
    pub(crate) fn put_back(&self, cursor: &mut SendCursor, requests: u32, slots: u32) {
        if let Some(consumer) = self.queue.consumer() {
            consumer.put_back(cursor, requests, slots);
        }
    }

    /// Worker: whether [`fetch`](Self::fetch) would find something, be it an error.
    #[inline]
    pub fn has_entry(&self, cursor: &SendCursor) -> bool {
        let consumer = self.queue.consumer();
        consumer.is_some_and(|consumer| consumer.has_entry(*cursor))
    }

    /// Worker: the slot behind what was posted and not fetched; `None`: all was fetched, or the
    /// program says that there is more than there can be.
    pub(crate) fn posted_behind(&self, cursor: &SendCursor) -> Option<u32> {
        let ring = self.queue.ring()?;
        let tail = ring.tail().slots;
        let ahead = tail.wrapping_sub(cursor.slot());
        (1..=ring.capacity()).contains(&ahead).then_some(tail)
    }

    /// Worker: whether nothing that was posted is outstanding.
    pub fn is_empty(&self) -> bool {
        let ring = self.queue.ring();
        ring.is_none_or(|ring| ring.head() == ring.tail())
    }

    /// Worker: gives back the slots of one request, in the order in which they were fetched.
    #[inline]
    pub fn release(&self, slots: u16) {
        if let Some(consumer) = self.queue.consumer() {
            consumer.release(slots);
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
        if let Some(consumer) = self.queue.consumer() {
            consumer.discard_sends(cursor);
        }
    }

    /// Worker: shows the program the state of its QP, where there is a ring.
    pub(crate) fn show(&self, state: QpState) {
        self.queue.show(state);
    }

    /// What it was made for.
    pub const fn size(&self) -> Size {
        self.queue.size
    }

    /// Whether it has the memory of its ring.
    #[inline]
    pub fn has_ring(&self) -> bool {
        self.queue.halves.get().is_some()
    }

    /// Bytes of the ring: 0 until something is posted.
    pub fn ring_bytes(&self) -> usize {
        self.queue.ring_bytes()
    }
}

impl<W: RingMemory> RecvQueue<W> {
    /// A queue of this size.
    pub fn new(size: Size) -> Self {
        let queue = Queue::new(size);
        Self { queue }
    }

    /// Gives the queue the memory of its ring, as [`SendQueue::begin`].
    ///
    /// # Panics
    /// It has another number of words than its size says.
    pub fn begin(&self, memory: W) -> bool {
        self.queue.begin(memory)
    }

    /// Posts `requests` in order, up to the first that is refused.
    ///
    /// # Errors
    /// As [`Producer::post`].
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
        match self.queue.consumer() {
            Some(consumer) => consumer.fetch_receive(),
            None => Ok(None),
        }
    }

    /// Worker: reads the next request; gives it with the slots to release when it is used.
    ///
    /// # Errors
    /// As [`SendQueue::fetch`].
    #[inline(always)]
    pub(crate) fn read(&self) -> Result<Option<(Receive, u16)>, RingError> {
        match self.queue.consumer() {
            Some(consumer) => consumer.read_receive(),
            None => Ok(None),
        }
    }

    /// Worker: gives back the slots of a request that was read, in whatever order.
    #[inline]
    pub(crate) fn release(&self, slots: u16) {
        if let Some(consumer) = self.queue.consumer() {
            consumer.release(slots);
        }
    }

    /// Worker: whether [`fetch`](Self::fetch) would find something, be it an error.
    #[inline]
    pub fn has_entry(&self) -> bool {
        self.queue.consumer().is_some_and(Consumer::has_receive)
    }

    /// Worker: requests that were posted and not taken.
    #[inline]
    pub fn posted(&self) -> u32 {
        let posted = self.queue.consumer().map_or(0, Consumer::posted);
        // The program may have scribbled on its tail.
        posted.min(self.queue.size.max_wr())
    }

    /// Worker: drops everything posted so far and mends a broken ring.
    pub fn discard(&self) {
        if let Some(consumer) = self.queue.consumer() {
            consumer.discard_receives();
        }
    }

    /// Worker: shows the program the state of its QP, where there is a ring.
    pub(crate) fn show(&self, state: QpState) {
        self.queue.show(state);
    }

    /// What it was made for.
    pub const fn size(&self) -> Size {
        self.queue.size
    }

    /// Whether it has the memory of its ring.
    #[inline]
    pub fn has_ring(&self) -> bool {
        self.queue.halves.get().is_some()
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
    const fn new(size: Size) -> Self {
        Self {
            halves: OnceLock::new(),
            size,
        }
    }

    /// Posts; the halves are made when the first request is.
    #[inline]
    fn post<E: Post>(&self, requests: &[E]) -> Result<(), PostError> {
        if requests.is_empty() {
            return Ok(());
        }
        let halves = self.halves.get_or_init(|| {
            let memory = W::zeroed(self.size.ring_words());
            self.make_halves(memory)
        });
        halves.producer.post(requests)
    }

    fn begin(&self, memory: W) -> bool {
        self.halves.set(self.make_halves(memory)).is_ok()
    }

    #[cold]
    fn make_halves(&self, memory: W) -> Box<Halves<W>> {
        Box::new(Halves {
            consumer: Consumer::new(self.size, memory.clone()),
            producer: Producer::new(self.size, memory),
        })
    }

    /// The worker's half, if there is a ring.
    #[inline]
    fn consumer(&self) -> Option<&Consumer<W>> {
        self.halves.get().map(|halves| &halves.consumer)
    }

    /// Its ring, if something was posted.
    #[inline]
    fn ring(&self) -> Option<&Ring<W>> {
        self.consumer().map(Consumer::ring)
    }

    fn show(&self, state: QpState) {
        if let Some(ring) = self.ring() {
            ring.show(state as u64);
        }
    }

    /// The state that a worker shows; `None`: there is no ring, or the word is none that it writes.
    pub(crate) fn shown(&self) -> Option<QpState> {
        let word = u8::try_from(self.ring()?.shown()).ok()?;
        QpState::from_value(word)
    }

    fn ring_bytes(&self) -> usize {
        self.ring()
            .map_or(0, |_| self.size.ring_words() * size_of::<u64>())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests;
