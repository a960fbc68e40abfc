//! The entries of a completion queue: the part of its ring that is replaced when it is resized.

use super::MAX_CQE;
use crate::allowed::Allowed;
use crate::error::VerbsError;
use crate::ring::RingMemory;
use crate::sync::AtomicU64;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// Words of an entry.
pub const CQE_WORDS: usize = 4;

/// Room for the completions of a queue. The memory is allocated when the first completion is
/// written.
#[derive(Debug)]
pub struct Entries<W> {
    words: OnceLock<W>,
    capacity: u32,
}

impl<W: RingMemory> Entries<W> {
    /// Makes room for `depth` completions, rounded up to a power of two.
    ///
    /// # Errors
    /// [`VerbsError::BadAttribute`] for a depth of 0 or beyond [`MAX_CQE`].
    pub fn new(depth: u32) -> Result<Self, VerbsError> {
        Allowed::Range(1, MAX_CQE).check("cqe", depth)?;
        Ok(Self {
            words: OnceLock::new(),
            capacity: depth.next_power_of_two(),
        })
    }

    /// Makes room in memory of four words for each completion, a power of two of them.
    ///
    /// # Errors
    /// [`VerbsError::BadAttribute`]: it is of another length.
    pub fn over(memory: W) -> Result<Self, VerbsError> {
        let words = memory.as_slice().len();
        let capacity = (words / CQE_WORDS) as u64;
        if !words.is_multiple_of(CQE_WORDS)
            || !capacity.is_power_of_two()
            || capacity > MAX_CQE.into()
        {
            return Err(Allowed::Range(1, MAX_CQE).refuse("cqe", capacity));
        }
        Ok(Self {
            words: OnceLock::from(memory),
            capacity: capacity as u32,
        })
    }

    /// Returns how many completions find room.
    #[inline]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Allocates the memory now, where somebody waits for the first completion.
    pub fn allocate(&self) {
        self.slots();
    }

    /// Returns how many bytes are allocated.
    pub(super) fn bytes(&self) -> usize {
        let words = self.words.get();
        words.map_or(0, |words| size_of_val(words.as_slice()))
    }

    /// Returns the entries, allocated if need be.
    #[inline]
    pub(super) fn slots(&self) -> Slots<'_> {
        Slots {
            words: self.words.get_or_init(|| self.make()).as_slice(),
            mask: self.capacity - 1,
        }
    }

    /// Returns the entries, if they are allocated: nothing was written otherwise.
    #[inline]
    pub(super) fn allocated(&self) -> Option<Slots<'_>> {
        self.words.get().map(|words| Slots {
            words: words.as_slice(),
            mask: self.capacity - 1,
        })
    }

    #[cold]
    fn make(&self) -> W {
        let count = self.capacity as usize * CQE_WORDS;
        let words = W::zeroed(count);
        assert_eq!(words.as_slice().len(), count, "words of the ring");
        words
    }

    /// Copies the `count` entries before position `end`, each to the same position.
    pub(super) fn copy_from(&self, other: &Self, end: u32, count: u32) {
        let Some(other) = other.allocated() else {
            return;
        };
        for back in 1..=count {
            let position = end.wrapping_sub(back);
            self.slots().store(position, other.load(position));
        }
    }
}

/// The entries as they lie in memory, by their free-running positions.
#[derive(Clone, Copy)]
pub(super) struct Slots<'a> {
    words: &'a [AtomicU64],
    mask: u32,
}

impl<'a> Slots<'a> {
    #[inline]
    pub(super) fn load(self, position: u32) -> [u64; CQE_WORDS] {
        let entry = self.entry(position);
        entry.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(super) fn store(self, position: u32, words: [u64; CQE_WORDS]) {
        for (place, word) in self.entry(position).iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn entry(self, position: u32) -> &'a [AtomicU64; CQE_WORDS] {
        let place = (position & self.mask) as usize * CQE_WORDS;
        self.words[place..]
            .first_chunk()
            .expect("`make` made sure of the length")
    }
}
