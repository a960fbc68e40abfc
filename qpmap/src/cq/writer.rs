//! The worker's side of a completion queue.

use super::entries::Entries;
use super::entry::{Spread, encode};
use super::{ARMED, ARMED_SOLICITED, CompletionQueue, CqOverflow, DISARMED, HEAD, IN_ERROR, TAIL};
use crate::error::VerbsError;
use crate::ring::RingMemory;
use crate::sync::fence;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trunkline_conn::work::{Completion, Status};

/// Something was pushed since the last look at the arming; it was worth a solicited event.
const FRESH: u8 = 1;
const FRESH_SOLICITED: u8 = 1 << 1;

/// What the worker has of a completion queue. Nobody else writes completions into it.
#[derive(Debug)]
pub struct Writer<W> {
    /// What programs have of it.
    pub(super) queue: Arc<CompletionQueue<W>>,
    pub(super) entries: Arc<Entries<W>>,
    /// Completions written, published or not.
    pub(super) written: u32,
    /// Completions polled when the worker last looked.
    pub(super) polled: u32,
    fresh: u8,
    /// Programs poll through another half, in a process of theirs, which alone moves the head.
    pub(super) is_apart: bool,
}

impl<W: RingMemory> Writer<W> {
    /// Makes a queue for `depth` completions, rounded up to a power of two.
    ///
    /// # Errors
    /// [`VerbsError::BadAttribute`] for a depth of 0 or beyond [`MAX_CQE`](super::MAX_CQE).
    pub fn new(depth: u32) -> Result<Self, VerbsError> {
        let entries = Arc::new(Entries::new(depth)?);
        Ok(Self {
            queue: Arc::new(CompletionQueue::new(Arc::clone(&entries))),
            entries,
            written: 0,
            polled: 0,
            fresh: 0,
            is_apart: false,
        })
    }

    /// The worker's half of a queue that a program in another process polls, over the memory that
    /// [its half](CompletionQueue::over) has, all of it zero.
    ///
    /// # Errors
    /// Memory that is not of such a length.
    pub fn over(header: W, entries: W) -> Result<Self, VerbsError> {
        let queue = CompletionQueue::over(header, entries)?;
        let entries = Arc::clone(&queue.reader().entries);
        Ok(Self {
            queue: Arc::new(queue),
            entries,
            written: 0,
            polled: 0,
            fresh: 0,
            is_apart: true,
        })
    }

    /// Returns the queue as programs have it.
    pub const fn queue(&self) -> &Arc<CompletionQueue<W>> {
        &self.queue
    }

    /// Adds a completion, which programs see after [`publish`](Self::publish).
    ///
    /// # Errors
    /// The queue is full, or was before: the completion is lost, and the queue is in error. Whoever
    /// armed it is woken up all the same.
    #[inline(always)]
    pub fn push(&mut self, completion: &Completion) -> Result<(), CqOverflow> {
        self.push_at(completion, Spread::of(completion.ticks))
    }

    /// The same at another time than the completion says.
    #[inline(always)]
    pub(crate) fn push_at(
        &mut self,
        completion: &Completion,
        at: Spread,
    ) -> Result<(), CqOverflow> {
        self.mark_fresh(completion);
        if self.written.wrapping_sub(self.polled) >= self.entries.capacity() {
            self.make_room()?;
        }
        self.entries
            .slots()
            .store(self.written, encode(completion, at));
        self.written = self.written.wrapping_add(1);
        Ok(())
    }

    /// Makes all that was pushed visible to the program.
    #[inline]
    pub fn publish(&self) {
        let error = match self.queue.has_failed() {
            true => IN_ERROR,
            false => 0,
        };
        let tail = u64::from(self.written) | error;
        // A queue that nothing was pushed to has nothing to tell.
        if tail != 0 || self.queue.header.get().is_some() {
            // Release pairs with the Acquire in `poll`: entries below the tail are written.
            self.queue.header()[TAIL].store(tail, Ordering::Release);
        }
    }

    /// After [`publish`](Self::publish): returns whether the program armed the queue and something
    /// came since that it armed for. That is so at most once per arming; then it is to be notified.
    #[inline]
    pub fn take_notification(&mut self) -> bool {
        if self.fresh == 0 {
            return false;
        }
        let fresh = std::mem::take(&mut self.fresh);
        // Between the store of the tail and the load of the arming; see the head of the module.
        fence(Ordering::SeqCst);
        let armed = &self.queue.header()[ARMED];
        let fires = match armed.load(Ordering::Relaxed) {
            DISARMED => false,
            ARMED_SOLICITED => fresh & FRESH_SOLICITED != 0,
            _ => true,
        };
        // An arming that comes between the load and this swap is for completions to come after it,
        // but its program is about to be woken up and will look for itself.
        fires && armed.swap(DISARMED, Ordering::AcqRel) != DISARMED
    }

    /// Puts the queue in error, as an overflow does. Whoever armed it is woken up.
    pub fn fail(&mut self) {
        self.queue.in_error.store(true, Ordering::Relaxed);
        self.fresh = FRESH | FRESH_SOLICITED;
        // Full for good, so that nothing is pushed any more.
        self.polled = self.written.wrapping_sub(self.entries.capacity());
    }

    /// Checks that the queue may be [resized](Self::resize) to what has room for `capacity`
    /// completions. Completions of QPs that are gone do not count.
    ///
    /// # Errors
    /// [`VerbsError::TooManyCompletions`] where more have not been polled;
    /// [`VerbsError::CqInError`] where the queue is in error, whose index is `cq`.
    pub fn check_resize(&self, cq: u32, capacity: u32) -> Result<(), VerbsError> {
        if self.queue.has_failed() {
            return Err(VerbsError::CqInError { cq });
        }
        let mut reader = self.queue.reader();
        if !reader.gone.is_empty() {
            self.take_back(&mut reader);
        }
        let count = self.waiting();
        if count > capacity {
            return Err(VerbsError::TooManyCompletions { count, capacity });
        }
        Ok(())
    }

    /// Moves the queue to `entries` (`ibv_resize_cq(3)`): every completion that was not polled
    /// keeps its position, published or not, and so does the arming. The worker calls it after
    /// [`check_resize`](Self::check_resize); in between it adds nothing, and programs may poll. A
    /// program in another process holds its half up meanwhile, by
    /// [`move_to`](CompletionQueue::move_to).
    pub fn resize(&mut self, entries: Entries<W>) {
        let entries = Arc::new(entries);
        let mut reader = self.queue.reader();
        // Nobody polls from here on, until the guard is dropped.
        let waiting = self.waiting().min(entries.capacity());
        entries.copy_from(&self.entries, self.written, waiting);
        reader.entries = Arc::clone(&entries);
        drop(reader);
        self.polled = self.written.wrapping_sub(waiting);
        self.entries = entries;
    }

    /// Completions that were not polled; all that the ring holds where the program scribbled on its
    /// head.
    fn waiting(&self) -> u32 {
        let head = self.queue.position(HEAD);
        self.written.wrapping_sub(head).min(self.entries.capacity())
    }

    #[inline]
    fn mark_fresh(&mut self, completion: &Completion) {
        let solicited = completion.solicited || completion.status != Status::Success;
        self.fresh |= if solicited {
            FRESH | FRESH_SOLICITED
        } else {
            FRESH
        };
    }

    /// Looks how much the program has polled, and takes back what nobody will.
    #[cold]
    fn make_room(&mut self) -> Result<(), CqOverflow> {
        if !self.queue.has_failed() {
            self.polled = self.queue.position(HEAD);
            // More than the capacity: the program scribbled on its head. That only costs itself.
            let capacity = self.entries.capacity();
            if self.written.wrapping_sub(self.polled) < capacity || self.sweep() {
                return Ok(());
            }
            self.fail();
        }
        Err(CqOverflow {
            capacity: self.entries.capacity(),
        })
    }
}
