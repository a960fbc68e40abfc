//! Completion queues: a worker pushes, a program polls, and sleeps when there is nothing.
//!
//! A ring of 32-byte entries over [`RingMemory`]:
//!
//! ```text
//! word 0    tail: completions published, free-running; bit 32:    worker writes
//!           the queue is in error
//! word 8    head: completions polled, free-running                program writes
//! word 16   armed: 0 no, 1 for solicited completions, 2 for any   both write
//! word 24.. entries of 4 words, a power of two of them:
//!             0  wr_id
//!             1  bytes; immediate, or key invalidated (high half)
//!             2  QPN; source QP (high half)
//!             3  bits 0-7 status, 8-15 opcode, 16-23 flags, 24-31 vendor error; route (high
//!                half)
//! ```
//!
//! The worker writes entries as they come and publishes them once per burst. A full queue is in
//! error for good: it says so, takes nothing more, and nothing is overwritten. Programs poll what
//! it has taken, and then an error.
//!
//! Completions of a QP that is destroyed or reset are not polled any more (`gone`).
//!
//! # No wake-up is lost
//! The program arms, then polls once more, and sleeps only when that found nothing. The worker
//! publishes, then looks whether somebody armed. Either side has a SeqCst fence between its store
//! and its load, so in their one order one fence comes first: if it is the program's, the worker
//! sees the arming and notifies; if it is the worker's, the program's poll sees the completion.
//! That the program is notified of something it has polled already can happen, and does no harm.

mod entry;
mod gone;
mod merged;

pub use merged::MergedQueue;

use crate::allowed::Allowed;
use crate::error::VerbsError;
use crate::ring::RingMemory;
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Mutex, MutexGuard, fence};
use entry::{decode, encode};
use gone::Gone;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError};
use trunkline_conn::work::{Completion, Status};

/// Most completions of one queue.
pub const MAX_CQE: u32 = 1 << 22;

const LINE_WORDS: usize = 8;
const TAIL: usize = 0;
const HEAD: usize = LINE_WORDS;
const ARMED: usize = 2 * LINE_WORDS;
const HEADER: usize = 3 * LINE_WORDS;
const CQE_WORDS: usize = 4;

/// In the word of the tail: the queue is in error.
const IN_ERROR: u64 = 1 << 32;

const DISARMED: u64 = 0;
const ARMED_SOLICITED: u64 = 1;
const ARMED_ANY: u64 = 2;

/// Something was pushed since the last look at the arming; it was worth a solicited event.
const FRESH: u8 = 1;
const FRESH_SOLICITED: u8 = 1 << 1;

/// Wakes a program up; called by the worker.
pub trait Notify: Send + Sync {
    /// Something was published that the program armed for.
    fn notify(&self);
}

/// Programs that armed for what was published. They are woken when this is dropped: whoever holds a
/// lock that they may need gives it up before.
#[derive(Default)]
pub struct Notifications(Vec<Arc<dyn Notify>>);

impl Notifications {
    pub(crate) fn push(&mut self, program: &Arc<dyn Notify>) {
        self.0.push(Arc::clone(program));
    }
}

impl fmt::Debug for Notifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Notifications").field(&self.0.len()).finish()
    }
}

impl Drop for Notifications {
    fn drop(&mut self) {
        self.0.iter().for_each(|program| program.notify());
    }
}

/// A completion came when the queue was full: the queue is in error (`IBV_EVENT_CQ_ERR`), and so
/// are the QPs that use it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CqOverflow {
    /// Completions it holds.
    pub capacity: u32,
}

impl fmt::Display for CqOverflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the completion queue had no room for more than {} entries and is in error",
            self.capacity
        )
    }
}

impl std::error::Error for CqOverflow {}

/// A completion queue. One worker pushes; any thread of the program polls. Its ring is made when it
/// is first pushed to or armed.
#[derive(Debug)]
pub struct CompletionQueue<W> {
    ring: OnceLock<W>,
    capacity: u32,
    worker: Worker,
    program: Program,
}

/// The worker's side. Only the worker touches it, so relaxed loads and stores will do; where a
/// queue moves to another worker, that hand-over orders the two.
#[derive(Debug)]
#[repr(align(64))]
struct Worker {
    /// Completions written, published or not.
    written: AtomicU32,
    /// Completions polled when the worker last looked.
    polled: AtomicU32,
    fresh: AtomicU8,
    in_error: AtomicBool,
}

/// The program's side, away from the cache lines of the worker.
#[derive(Debug)]
#[repr(align(64))]
struct Program {
    reader: Mutex<Reader>,
}

/// Who holds it may move the head: programs that poll, and the worker where it takes completions
/// back.
#[derive(Debug, Default)]
struct Reader {
    /// Completions published when the program last looked.
    seen: u32,
    gone: Gone,
}

impl<W: RingMemory> CompletionQueue<W> {
    /// A queue for `depth` completions, rounded up to a power of two.
    ///
    /// # Errors
    /// [`VerbsError::BadAttribute`] for a depth of 0 or beyond [`MAX_CQE`].
    pub fn new(depth: u32) -> Result<Self, VerbsError> {
        Allowed::Range(1, MAX_CQE).check("cqe", depth)?;
        Ok(Self {
            ring: OnceLock::new(),
            capacity: depth.next_power_of_two(),
            worker: Worker {
                written: AtomicU32::new(0),
                polled: AtomicU32::new(0),
                fresh: AtomicU8::new(0),
                in_error: AtomicBool::new(false),
            },
            program: Program {
                reader: Mutex::default(),
            },
        })
    }

    /// Completions it holds.
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Bytes of the ring: 0 until it is made.
    pub fn ring_bytes(&self) -> usize {
        self.ring
            .get()
            .map_or(0, |ring| ring.as_slice().len() * size_of::<u64>())
    }

    /// Worker: adds a completion, which programs see after [`publish`](Self::publish).
    ///
    /// # Errors
    /// The queue is full, or was before: the completion is lost, and the queue is in error. Whoever
    /// armed it is woken up all the same.
    #[inline]
    pub fn push(&self, completion: &Completion) -> Result<(), CqOverflow> {
        let ring = self.ring.get_or_init(|| self.make_ring());
        let written = self.worker.written.load(Ordering::Relaxed);
        self.mark_fresh(completion);
        if written.wrapping_sub(self.worker.polled.load(Ordering::Relaxed)) >= self.capacity {
            self.make_room(ring, written)?;
        }
        self.store(ring, written, encode(completion));
        self.worker
            .written
            .store(written.wrapping_add(1), Ordering::Relaxed);
        Ok(())
    }

    /// Worker: makes all that was pushed visible to the program.
    #[inline]
    pub fn publish(&self) {
        if let Some(ring) = self.ring.get() {
            let written = self.worker.written.load(Ordering::Relaxed);
            let error = match self.worker.in_error.load(Ordering::Relaxed) {
                true => IN_ERROR,
                false => 0,
            };
            // Release pairs with the Acquire in `poll`: entries below the tail are written.
            ring.as_slice()[TAIL].store(u64::from(written) | error, Ordering::Release);
        }
    }

    /// Worker, after [`publish`](Self::publish): whether the program armed the queue and something
    /// came since that it armed for. True at most once per arming; then it is to be notified.
    #[inline]
    pub fn take_notification(&self) -> bool {
        let fresh = self.worker.fresh.load(Ordering::Relaxed);
        let Some(ring) = self.ring.get() else {
            return false;
        };
        if fresh == 0 {
            return false;
        }
        self.worker.fresh.store(0, Ordering::Relaxed);
        // Between the store of the tail and the load of the arming; see the head of this file.
        fence(Ordering::SeqCst);
        let armed = &ring.as_slice()[ARMED];
        let fires = match armed.load(Ordering::Relaxed) {
            DISARMED => false,
            ARMED_SOLICITED => fresh & FRESH_SOLICITED != 0,
            _ => true,
        };
        // An arming that comes between the load and this swap is for completions to come after it,
        // but its program is about to be woken up and will look for itself.
        fires && armed.swap(DISARMED, Ordering::AcqRel) != DISARMED
    }

    /// Program: takes completions, oldest first, into `out`; gives how many.
    ///
    /// A ring whose tail makes no sense, which takes a stray write into its memory, gives none.
    ///
    /// # Errors
    /// The queue is in error, and all that it had taken before was polled.
    #[inline]
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, CqOverflow> {
        let Some(ring) = self.ring.get() else {
            return Ok(0);
        };
        // Programs spin on empty queues: no lock for that. Of a queue in error the two differ.
        if ring.as_slice()[TAIL].load(Ordering::Relaxed)
            == ring.as_slice()[HEAD].load(Ordering::Relaxed)
        {
            return Ok(0);
        }
        let mut reader = self.reader();
        if !reader.gone.is_empty() {
            return self.poll_sifting(ring, &mut reader, out);
        }
        // Only holders of this lock write the head.
        let head = ring.as_slice()[HEAD].load(Ordering::Relaxed) as u32;
        let mut ready = reader.seen.wrapping_sub(head);
        if (ready as usize) < out.len() || ready > self.capacity {
            // Acquire pairs with the Release of `publish`.
            reader.seen = ring.as_slice()[TAIL].load(Ordering::Acquire) as u32;
            ready = reader.seen.wrapping_sub(head);
        }
        if ready > self.capacity {
            return Ok(0);
        }
        let count = (ready as usize).min(out.len());
        for (n, slot) in out.iter_mut().enumerate().take(count) {
            *slot = decode(self.load(ring, head.wrapping_add(n as u32)));
        }
        // Release pairs with the Acquire in `make_room`: the entries have been read.
        ring.as_slice()[HEAD].store(head.wrapping_add(count as u32).into(), Ordering::Release);
        self.polled(ring, count, out)
    }

    /// What a poll says that took `count` completions.
    #[inline]
    fn polled(&self, ring: &W, count: usize, out: &[Completion]) -> Result<usize, CqOverflow> {
        let in_error = || ring.as_slice()[TAIL].load(Ordering::Relaxed) & IN_ERROR != 0;
        if count == 0 && !out.is_empty() && in_error() {
            return Err(self.overflow());
        }
        Ok(count)
    }

    /// Program: asks to be notified once, of the next completion or of the next solicited one
    /// (`ibv_req_notify_cq(3)`), which a failed one also is. Poll once more before sleeping. An
    /// arming for any completion is not narrowed by a later one for solicited ones.
    pub fn arm(&self, solicited_only: bool) {
        self.arm_with(solicited_only, |armed, wanted| {
            armed.fetch_max(wanted, Ordering::AcqRel);
        });
    }

    /// As [`arm`](Self::arm), whatever it was armed for before.
    fn arm_anew(&self, solicited_only: bool) {
        self.arm_with(solicited_only, |armed, wanted| {
            armed.swap(wanted, Ordering::AcqRel);
        });
    }

    fn arm_with(&self, solicited_only: bool, arm: impl FnOnce(&AtomicU64, u64)) {
        let ring = self.ring.get_or_init(|| self.make_ring());
        let wanted = if solicited_only {
            ARMED_SOLICITED
        } else {
            ARMED_ANY
        };
        arm(&ring.as_slice()[ARMED], wanted);
        // Between the store of the arming and the load of the tail; see the head of this file.
        fence(Ordering::SeqCst);
    }

    #[cold]
    fn make_ring(&self) -> W {
        let words = W::zeroed(HEADER + self.capacity as usize * CQE_WORDS);
        assert_eq!(
            words.as_slice().len(),
            HEADER + self.capacity as usize * CQE_WORDS,
            "words of the ring"
        );
        words
    }

    #[inline]
    fn mark_fresh(&self, completion: &Completion) {
        let solicited = completion.solicited || completion.status != Status::Success;
        let fresh = if solicited {
            FRESH | FRESH_SOLICITED
        } else {
            FRESH
        };
        let before = self.worker.fresh.load(Ordering::Relaxed);
        self.worker.fresh.store(before | fresh, Ordering::Relaxed);
    }

    /// Whether the worker has put it in error.
    pub fn is_in_error(&self) -> bool {
        self.worker.in_error.load(Ordering::Relaxed)
    }

    /// Worker: puts the queue in error, as an overflow does. Whoever armed it is woken up.
    pub fn fail(&self) {
        self.ring.get_or_init(|| self.make_ring());
        let worker = &self.worker;
        worker.in_error.store(true, Ordering::Relaxed);
        worker
            .fresh
            .store(FRESH | FRESH_SOLICITED, Ordering::Relaxed);
        // Full for good, so that nothing is pushed any more.
        let written = worker.written.load(Ordering::Relaxed);
        let polled = written.wrapping_sub(self.capacity);
        worker.polled.store(polled, Ordering::Relaxed);
    }

    /// Looks how much the program has polled, and takes back what nobody will.
    #[cold]
    fn make_room(&self, ring: &W, written: u32) -> Result<(), CqOverflow> {
        if self.is_in_error() {
            return Err(self.overflow());
        }
        let polled = ring.as_slice()[HEAD].load(Ordering::Acquire) as u32;
        self.worker.polled.store(polled, Ordering::Relaxed);
        // More than the capacity: the program scribbled on its head. That only costs itself.
        if written.wrapping_sub(polled) >= self.capacity && !self.sweep(ring, written) {
            self.fail();
            return Err(self.overflow());
        }
        Ok(())
    }

    const fn overflow(&self) -> CqOverflow {
        CqOverflow {
            capacity: self.capacity,
        }
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        let reader = self.program.reader.lock();
        reader.unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn load(&self, ring: &W, position: u32) -> [u64; CQE_WORDS] {
        let entry = self.entry(ring, position);
        entry.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    #[inline]
    fn store(&self, ring: &W, position: u32, words: [u64; CQE_WORDS]) {
        for (place, word) in self.entry(ring, position).iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
    }

    #[inline]
    fn entry<'a>(&self, ring: &'a W, position: u32) -> &'a [AtomicU64; CQE_WORDS] {
        let place = HEADER + (position & (self.capacity - 1)) as usize * CQE_WORDS;
        ring.as_slice()[place..]
            .first_chunk()
            .expect("`make_ring` made sure of the length")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests;
