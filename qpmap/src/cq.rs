//! Completion queues: a worker pushes, a program polls, and sleeps when there is nothing.
//!
//! A ring of 32-byte entries in two pieces of [`RingMemory`]: the header stays for as long as the
//! queue lives, and the entries are replaced when it is resized.
//!
//! ```text
//! header
//! word 0    tail: completions published, free-running; bit 32:    worker writes
//!           the queue is in error
//! word 8    head: completions polled, free-running                program writes
//! word 16   armed: 0 no, 1 for solicited completions, 2 for any   both write
//!      17   of the first of several rings: an event is asked for  both write
//!
//! entries of 4 words, a power of two of them
//! word 0    wr_id
//!      1    bytes; immediate, or key invalidated (high half)
//!      2    QPN; source QP (high half)
//!      3    bits 0-7 status, 8-15 opcode, 16-23 flags, 24-31 vendor error; route (high half)
//! ```
//!
//! The worker writes entries as they come and publishes them once per burst. A full queue is in
//! error for good: it says so, takes nothing more, and nothing is overwritten. Programs poll what
//! it has taken, and then an error.
//!
//! Completions of a QP that is destroyed or reset are not polled any more (`gone`).
//!
//! The two halves, [`Writer`] and [`CompletionQueue`], may be of different processes, over the same
//! memory: then each checks what the other writes there, and the program's half notes QPs that are
//! gone by itself.
//!
//! # Resizing
//! The worker copies what was not polled to other entries, each completion to the position that it
//! had, and gives the new entries to the program under the lock that polling takes. It adds nothing
//! meanwhile. So tail, head and arming stay as they are: no completion is lost, doubled or out of
//! order, and an arming holds. What adds a completion, and a look at an empty queue, take no lock.
//!
//! # No wake-up is lost
//! The program arms, then polls once more, and sleeps only when that found nothing. The worker
//! publishes, then looks whether somebody armed. Either side has a SeqCst fence between its store
//! and its load, so in their one order one fence comes first: if it is the program's, the worker
//! sees the arming and notifies; if it is the worker's, the program's poll sees the completion.
//! That the program is notified of something it has polled already can happen, and does no harm.

mod entries;
mod entry;
mod gone;
mod merged;
mod writer;

pub use entries::{CQE_WORDS, Entries};
pub use merged::MergedQueue;
pub use writer::Writer;

use crate::allowed::Allowed;
use crate::error::VerbsError;
use crate::ring::RingMemory;
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, fence};
pub(crate) use entry::Spread;
use entry::decode;
use gone::Gone;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError};
use trunkline_conn::work::Completion;

/// Most completions of one queue.
pub const MAX_CQE: u32 = 1 << 22;

const LINE_WORDS: usize = 8;
const TAIL: usize = 0;
const HEAD: usize = LINE_WORDS;
const ARMED: usize = 2 * LINE_WORDS;
const GATE: usize = ARMED + 1;
/// Words of the header.
pub const HEADER: usize = 3 * LINE_WORDS;

/// In the word of the tail: the queue is in error.
const IN_ERROR: u64 = 1 << 32;

const DISARMED: u64 = 0;
const ARMED_SOLICITED: u64 = 1;
const ARMED_ANY: u64 = 2;

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

/// A completion queue as programs have it; any of their threads may poll. Its [`Writer`] belongs to
/// one worker.
#[derive(Debug)]
pub struct CompletionQueue<W> {
    /// Made when something is first published or armed; it stays when the queue is resized.
    header: OnceLock<W>,
    in_error: AtomicBool,
    program: Program<W>,
}

/// What pollers write, away from the cache lines that others read.
#[derive(Debug)]
#[repr(align(64))]
struct Program<W> {
    reader: Mutex<Reader<W>>,
}

/// Who holds it may move the head: programs that poll, and the worker where it takes completions
/// back. Who holds it reads entries, so they are replaced under it.
#[derive(Debug)]
struct Reader<W> {
    entries: Arc<Entries<W>>,
    /// Completions published when the program last looked.
    seen: u32,
    gone: Gone,
}

impl<W: RingMemory> CompletionQueue<W> {
    fn new(entries: Arc<Entries<W>>) -> Self {
        Self {
            header: OnceLock::new(),
            in_error: AtomicBool::new(false),
            program: Program {
                reader: Mutex::new(Reader {
                    entries,
                    seen: 0,
                    gone: Gone::default(),
                }),
            },
        }
    }

    /// The program's half of a queue whose worker is in another process, over the memory that the
    /// [other half](Writer::over) has.
    ///
    /// # Errors
    /// Memory that is not of such a length.
    pub fn over(header: W, entries: W) -> Result<Self, VerbsError> {
        check_header(&header)?;
        let queue = Self::new(Arc::new(Entries::over(entries)?));
        Ok(Self {
            header: OnceLock::from(header),
            ..queue
        })
    }

    /// Polls from other entries from now on: those that the worker's half has moved to while the
    /// program held it up, as [`Writer::resize`] says.
    ///
    /// # Errors
    /// Memory that is not of such a length; what `resized` says. It polls from the old ones then.
    pub fn move_to<E: From<VerbsError>>(
        &self,
        resized: impl FnOnce() -> Result<W, E>,
    ) -> Result<(), E> {
        let mut reader = self.reader();
        reader.entries = Arc::new(Entries::over(resized()?)?);
        Ok(())
    }

    /// Returns how many completions the queue holds (`cqe` of `ibv_create_cq(3)`): the depth asked
    /// for, rounded up to a power of two.
    pub fn capacity(&self) -> u32 {
        self.reader().entries.capacity()
    }

    /// Returns the bytes of the ring: 0 until it is made.
    pub fn ring_bytes(&self) -> usize {
        let header = self.header.get();
        let header = header.map_or(0, |words| size_of_val(words.as_slice()));
        header + self.reader().entries.bytes()
    }

    /// Takes completions, oldest first, into `out`; gives how many.
    ///
    /// A ring whose tail makes no sense, which takes a stray write into its memory, gives none.
    ///
    /// # Errors
    /// The queue is in error, and all that it had taken before was polled.
    #[inline]
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, CqOverflow> {
        let Some(header) = self.header.get() else {
            return Ok(0);
        };
        let header = header.as_slice();
        // Programs spin on empty queues: no lock for that. Of a queue in error the two differ.
        if header[TAIL].load(Ordering::Relaxed) == header[HEAD].load(Ordering::Relaxed) {
            return Ok(0);
        }
        let mut guard = self.reader();
        let reader = &mut *guard;
        if !reader.gone.is_empty() {
            return self.poll_sifting(reader, out);
        }
        let capacity = reader.entries.capacity();
        // Only holders of this lock write the head.
        let head = header[HEAD].load(Ordering::Relaxed) as u32;
        let mut ready = reader.seen.wrapping_sub(head);
        if (ready as usize) < out.len() || ready > capacity {
            // Acquire pairs with the Release of `publish`.
            reader.seen = header[TAIL].load(Ordering::Acquire) as u32;
            ready = reader.seen.wrapping_sub(head);
        }
        if ready > capacity {
            return Ok(0);
        }
        let Some(slots) = reader.entries.allocated() else {
            return self.polled(reader, 0, out);
        };
        let count = (ready as usize).min(out.len());
        for (n, slot) in out.iter_mut().enumerate().take(count) {
            *slot = decode(slots.load(head.wrapping_add(n as u32)));
        }
        // Release pairs with the Acquire in `position`: the entries have been read.
        header[HEAD].store(head.wrapping_add(count as u32).into(), Ordering::Release);
        self.polled(reader, count, out)
    }

    /// What a poll says that took `count` completions.
    #[inline]
    fn polled(
        &self,
        reader: &Reader<W>,
        count: usize,
        out: &[Completion],
    ) -> Result<usize, CqOverflow> {
        let in_error = || self.header()[TAIL].load(Ordering::Relaxed) & IN_ERROR != 0;
        if count == 0 && !out.is_empty() && in_error() {
            return Err(CqOverflow {
                capacity: reader.entries.capacity(),
            });
        }
        Ok(count)
    }

    /// Asks to be notified once, of the next completion or of the next solicited one
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
        let wanted = if solicited_only {
            ARMED_SOLICITED
        } else {
            ARMED_ANY
        };
        arm(&self.header()[ARMED], wanted);
        // Between the store of the arming and the load of the tail; see the head of this file.
        fence(Ordering::SeqCst);
    }

    /// Returns whether the worker has put it in error.
    #[inline]
    pub fn is_in_error(&self) -> bool {
        let published = |header: &W| header.as_slice()[TAIL].load(Ordering::Relaxed) & IN_ERROR;
        self.has_failed() || self.header.get().map_or(0, published) != 0
    }

    /// The same as the worker's half knows it, whatever stands in memory that others write.
    #[inline]
    fn has_failed(&self) -> bool {
        self.in_error.load(Ordering::Relaxed)
    }

    /// The header, made if need be.
    #[inline]
    fn header(&self) -> &[AtomicU64] {
        self.header.get_or_init(make_header).as_slice()
    }

    /// Where the tail or the head stands: at 0 before there is a header.
    #[inline]
    fn position(&self, word: usize) -> u32 {
        // Acquire pairs with the Release of whoever moved it: of the tail, entries below it are
        // written, and of the head, they have been read.
        let at = |header: &W| header.as_slice()[word].load(Ordering::Acquire) as u32;
        self.header.get().map_or(0, at)
    }

    #[inline]
    fn reader(&self) -> MutexGuard<'_, Reader<W>> {
        let reader = self.program.reader.lock();
        reader.unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_header<W: RingMemory>(header: &W) -> Result<(), VerbsError> {
    let words = header.as_slice().len() as u64;
    let exactly = Allowed::Range(HEADER as u32, HEADER as u32);
    match words == HEADER as u64 {
        true => Ok(()),
        false => Err(exactly.refuse("words of the header of a CQ", words)),
    }
}

#[cold]
fn make_header<W: RingMemory>() -> W {
    let words = W::zeroed(HEADER);
    assert_eq!(words.as_slice().len(), HEADER, "words of the header");
    words
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests;
