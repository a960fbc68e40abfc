//! Rings of 64-byte slots between one producer and one consumer, over memory that both can write.
//!
//! All that the two sides share is [`RingMemory`], so that a ring may lie in a shared mapping:
//!
//! ```text
//! word 0          tail: slots written (low half), entries written (high half)    producer writes
//! word 8          head: slots released (low half), entries released (high half)  consumer writes
//! word 9          what the consumer shows of itself                              consumer writes
//! words 16 ..     slots of 8 words, a power of two of them
//! ```
//!
//! Both positions run freely and wrap at 2^32. The two lie 64 bytes apart, and so does the first
//! slot, so that no cache line has two writers. The consumer keeps a third position to itself, in
//! its [`Cursor`]: what it has read. Slots are released later, when the work they asked for is
//! done.
//!
//! Neither side is hurt by what the other writes: slots are atomics, so a racing writer yields
//! garbage and no undefined behaviour; positions are checked before use; and whoever parses an
//! entry reads each of its words once.

use crate::error::RingError;
use crate::sync::AtomicU64;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Words of a slot.
pub const SLOT_WORDS: usize = 8;
/// Most slots of a ring. Positions could tell four times as many apart; this bounds memory.
pub const MAX_SLOTS: u32 = 1 << 20;

const TAIL: usize = 0;
const HEAD: usize = SLOT_WORDS;
const SHOWN: usize = HEAD + 1;
const HEADER: usize = 2 * SLOT_WORDS;

/// Memory of a ring. Whoever else can write to it may do so at any time. A clone is the same
/// memory: each half of a queue has one.
pub trait RingMemory: Clone + Send + Sync + Debug {
    /// `count` words of this process that are zero, for a new ring both halves of which are in it.
    fn zeroed(count: usize) -> Self;

    /// The words; always the same ones.
    fn as_slice(&self) -> &[AtomicU64];
}

impl RingMemory for Arc<[AtomicU64]> {
    fn zeroed(count: usize) -> Self {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    #[inline]
    fn as_slice(&self) -> &[AtomicU64] {
        self
    }
}

/// How far a side has come. Both counts wrap.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Position {
    /// Slots.
    pub slots: u32,
    /// Entries (work requests), each of one or more slots.
    pub entries: u32,
}

impl Position {
    #[inline]
    const fn from_word(word: u64) -> Self {
        Self {
            slots: word as u32,
            entries: (word >> 32) as u32,
        }
    }

    #[inline]
    const fn to_word(self) -> u64 {
        self.slots as u64 | (self.entries as u64) << 32
    }

    /// The position after `slots` more slots that hold `entries` more entries.
    #[inline]
    #[must_use]
    pub const fn advance(self, slots: u32, entries: u32) -> Self {
        Self {
            slots: self.slots.wrapping_add(slots),
            entries: self.entries.wrapping_add(entries),
        }
    }

    /// Slots and entries from `earlier` to here.
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            slots: self.slots.wrapping_sub(earlier.slots),
            entries: self.entries.wrapping_sub(earlier.entries),
        }
    }
}

/// What the consumer remembers. Plain data, kept on the consumer's side only.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cursor {
    /// Next slot to read.
    fetch: u32,
    /// The producer's tail when it was last looked at.
    tail: u32,
}

impl Cursor {
    /// The slot to read next.
    #[inline]
    pub const fn slot(self) -> u32 {
        self.fetch
    }

    /// Slots that were written and not yet read. The producer's tail is looked at only when all
    /// that was seen before has been read, so a batch costs one shared cache line.
    ///
    /// # Errors
    /// [`RingError::TailOutOfRange`] when the producer claims more slots than there are. The cursor
    /// stays, so asking again fails again until the producer mends its tail.
    #[inline]
    pub fn available<W: RingMemory>(&mut self, ring: &Ring<W>) -> Result<u32, RingError> {
        if self.fetch == self.tail {
            let tail = ring.tail().slots;
            let claimed = tail.wrapping_sub(self.fetch);
            if claimed > ring.capacity() {
                return Err(RingError::TailOutOfRange {
                    claimed,
                    capacity: ring.capacity(),
                });
            }
            self.tail = tail;
        }
        Ok(self.tail.wrapping_sub(self.fetch))
    }

    /// Moves on after an entry of `slots` slots, at most as many as are available.
    #[inline]
    pub const fn advance(&mut self, slots: u32) {
        self.fetch = self.fetch.wrapping_add(slots);
    }

    /// Moves back over `slots` slots that were read and not released: they will be read again.
    pub(crate) const fn rewind(&mut self, slots: u32) {
        self.fetch = self.fetch.wrapping_sub(slots);
    }

    /// Skips all that the producer has written so far and gives that position back, for
    /// [`Ring::release_to`]. This also mends a cursor that met a broken ring.
    pub fn skip_all<W: RingMemory>(&mut self, ring: &Ring<W>) -> Position {
        let tail = ring.tail();
        *self = Self {
            fetch: tail.slots,
            tail: tail.slots,
        };
        tail
    }
}

/// A [`Cursor`] behind a shared reference. Only the consumer touches it.
#[derive(Debug, Default)]
pub(crate) struct CursorCell(AtomicU64);

// Relaxed: one consumer alone reads and writes it; where a ring moves to another one, that
// hand-over orders the two.
impl CursorCell {
    #[inline]
    pub(crate) fn get(&self) -> Cursor {
        let word = self.0.load(Ordering::Relaxed);
        Cursor {
            fetch: word as u32,
            tail: (word >> 32) as u32,
        }
    }

    #[inline]
    pub(crate) fn set(&self, cursor: Cursor) {
        let word = u64::from(cursor.fetch) | u64::from(cursor.tail) << 32;
        self.0.store(word, Ordering::Relaxed);
    }
}

/// A number behind a shared reference. Only the consumer touches it.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

// Relaxed: as for a `CursorCell`.
impl Count {
    #[inline]
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed) as u32
    }

    #[inline]
    pub(crate) fn set(&self, count: u32) {
        self.0.store(count.into(), Ordering::Relaxed);
    }

    /// # Panics
    /// It is less than that.
    #[inline]
    pub(crate) fn lower(&self, by: u32) {
        let left = self.get().checked_sub(by);
        self.set(left.expect("what is given back was taken"));
    }
}

/// Words that a ring of `slots` slots takes.
pub const fn words_for(slots: u32) -> usize {
    HEADER + slots as usize * SLOT_WORDS
}

/// A ring. One side alone calls the producer's methods, the other alone the consumer's.
#[derive(Debug)]
pub struct Ring<W> {
    words: W,
}

impl<W: RingMemory> Ring<W> {
    /// A ring over `words`, as many as [`words_for`] said; empty if they are zero.
    ///
    /// # Panics
    /// When the slots are not a power of two of them, at most [`MAX_SLOTS`].
    pub fn new(words: W) -> Self {
        let data = words.as_slice().len().saturating_sub(HEADER);
        let slots = data / SLOT_WORDS;
        assert!(
            data.is_multiple_of(SLOT_WORDS) && slots.is_power_of_two(),
            "{data} words are not a power of two of slots"
        );
        assert!(
            slots <= MAX_SLOTS as usize,
            "{slots} slots are too many for a ring"
        );
        Self { words }
    }

    /// Slots of the ring.
    #[inline]
    pub fn capacity(&self) -> u32 {
        ((self.words.as_slice().len() - HEADER) / SLOT_WORDS) as u32
    }

    /// The words of the free-running `slot`.
    #[inline(always)]
    pub fn slot(&self, slot: u32) -> &[AtomicU64; SLOT_WORDS] {
        let words = &self.words.as_slice()[HEADER..];
        // The length is a power of two, so the product may wrap.
        let place = (slot as usize).wrapping_mul(SLOT_WORDS) & (words.len() - 1);
        words[place..]
            .first_chunk()
            .expect("`new` made sure that slots are whole")
    }

    /// Reads a slot, each word once. Parse what this gave, never the ring again.
    #[inline]
    pub fn load_slot(&self, slot: u32) -> [u64; SLOT_WORDS] {
        self.slot(slot)
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed))
    }

    /// Reads word `at` of the entry that starts at `slot`; entries wrap around the end.
    #[inline]
    pub fn load(&self, slot: u32, at: usize) -> u64 {
        self.word(slot, at).load(Ordering::Relaxed)
    }

    /// Producer: writes word `at` of an entry that is not published yet.
    #[inline]
    pub fn store(&self, slot: u32, at: usize, value: u64) {
        self.word(slot, at).store(value, Ordering::Relaxed);
    }

    #[inline]
    fn word(&self, slot: u32, at: usize) -> &AtomicU64 {
        &self.slot(slot.wrapping_add((at / SLOT_WORDS) as u32))[at % SLOT_WORDS]
    }

    /// What the producer has written.
    #[inline]
    pub fn tail(&self) -> Position {
        // Acquire pairs with the Release of `publish`: slots below the tail hold their entries.
        Position::from_word(self.words.as_slice()[TAIL].load(Ordering::Acquire))
    }

    /// Producer: makes everything below `tail` visible.
    #[inline]
    pub fn publish(&self, tail: Position) {
        self.words.as_slice()[TAIL].store(tail.to_word(), Ordering::Release);
    }

    /// What the consumer has released.
    #[inline]
    pub fn head(&self) -> Position {
        // Acquire pairs with the Release of `release_to`: the consumer's reads of the slots below
        // the head happened before the producer writes there again.
        Position::from_word(self.words.as_slice()[HEAD].load(Ordering::Acquire))
    }

    /// Consumer: gives the slots of one entry back.
    ///
    /// The head is read back from the ring rather than remembered: where a hostile producer
    /// overwrites it, it misleads only itself.
    #[inline]
    pub fn release(&self, slots: u32) {
        let word = &self.words.as_slice()[HEAD];
        let head = Position::from_word(word.load(Ordering::Relaxed));
        // Only the consumer writes the head, so load and store need not be one operation.
        word.store(head.advance(slots, 1).to_word(), Ordering::Release);
    }

    /// Consumer: shows the producer a word. Who shows, fences and looks at the tail, and who
    /// publishes, fences and looks at the word, do not both miss what the other did.
    pub(crate) fn show(&self, word: u64) {
        self.words.as_slice()[SHOWN].store(word, Ordering::SeqCst);
    }

    /// Producer: the word that the consumer shows.
    #[inline]
    pub(crate) fn shown(&self) -> u64 {
        self.words.as_slice()[SHOWN].load(Ordering::SeqCst)
    }

    /// Consumer: gives everything below `head` back.
    #[inline]
    pub fn release_to(&self, head: Position) {
        self.words.as_slice()[HEAD].store(head.to_word(), Ordering::Release);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests;
