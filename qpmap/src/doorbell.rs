//! Doorbells: programs tell a worker which of its QPs have new work, without a system call and
//! without a queue that could be full.
//!
//! A bell is a bit. Ringing it twice before the worker looks is ringing it once, and the worker
//! finds the bits that are set without looking at all the others: a bit of each level stands for a
//! word of the level below it.
//!
//! ```text
//! top      1 word             each bit: 2^18 QPs
//! upper    up to 64 words     each bit: 4096 QPs
//! middle   up to 2^12 words   each bit: 64 QPs
//! leaves   up to 2^18 words   each bit: one QP
//! ```
//!
//! # No bell is lost
//!
//! `ring` sets the leaf bit, then goes up and sets each bit that it does not *see* set. A [`Sweep`]
//! goes down: it takes (swaps for 0) a word, then the words below that the bits it took stand for,
//! and may rest between any two of them.
//! Claim: after `ring` has returned, its leaf bit has been taken by a swap that comes after it, or
//! all bits above are set or taken by a sweep that has not come to the word below, so that this
//! sweep or the next one takes it.
//!
//! Every change of a word is a read-modify-write with `AcqRel`, so each swap heads a release
//! sequence that all later changes continue: whoever reads a word with `Acquire` synchronises with
//! the last swap before the value it reads.
//!
//! Let L be the last swap of the leaf before our `fetch_or` of it. Ours reads from the release
//! sequence of L, so all that the worker did before L happens before what we do next; in particular
//! each swap of the middle word that came before L. Hence the middle bit, if we see it set, was set
//! after those swaps, and the swap that takes it is not before L in the worker's order; nor is the
//! swap of the leaf that follows it, and as L was the last one before our `fetch_or`, this one
//! comes after it and takes our bit. If we do not see the middle bit set, we set it, with the same
//! consequence. The value of the middle word that we read or wrote plays the part of our `fetch_or`
//! for the upper word, and so on to the top.
//!
//! What a program wrote before it rang is visible to the worker: the leaf is changed with release
//! each time, even if its bit was set already, and taken with acquire. That is why `ring` never
//! stops at a leaf bit that is set.
//!
//! # No worker sleeps over a bell
//!
//! A worker says that it sleeps (a `SeqCst` store) and then looks at the top word; a program rings
//! and then looks whether the worker sleeps (a `SeqCst` load). Changes of the top word and the
//! worker's look at it are `SeqCst` too. In their one order, if the worker's look does not see the
//! bit, it comes before the change that set it, so the worker's store does; and the program's load
//! comes after that change: it made the change itself, or has seen its bit with `Acquire`. So the
//! program sees that the worker sleeps.
//!
//! No step waits for another program: one that stops between two levels delays only itself.
//!
//! # Programs of other processes
//! They have bells of their own ([`Apart`]), in memory that they share with a worker: what one of
//! them writes there is its own loss. The worker does not look at the bells of those that have not
//! rung of late. It tells them so, and the next ring says that the worker is to be woken.

mod apart;

pub use apart::{Apart, Rung};

use crate::chunks::{Chunks, chunks};
use crate::sync::AtomicU64;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, SeqCst};

/// Levels of words: the top, and three below it.
const LEVELS: usize = 4;

/// Where the words of bells lie.
pub trait Words {
    /// Bells that there may be.
    fn size(&self) -> u32;

    /// Word `number` of a level, 0 for the top; `None`: no bit of it was ever set.
    fn get(&self, level: usize, number: u32) -> Option<&AtomicU64>;

    /// The same word, made if need be.
    ///
    /// # Panics
    /// The level has no such word.
    fn get_or_grow(&self, level: usize, number: u32) -> &AtomicU64;
}

/// One bit per QP.
#[derive(Debug)]
pub struct Bells<L> {
    words: L,
}

/// Bells of the programs of a worker's process, up to 2^24.
pub type Doorbells = Bells<Grown>;

/// Words in memory of the process, which grows with the highest bell that rang.
#[derive(Debug)]
pub struct Grown {
    top: Top,
    upper: Chunks<AtomicU64, { chunks(6) }>,
    middle: Chunks<AtomicU64, { chunks(12) }>,
    leaves: Chunks<AtomicU64, { chunks(18) }>,
}

/// On a line of its own: the worker polls it, every program reads it.
#[derive(Debug)]
#[repr(align(64))]
struct Top(AtomicU64);

impl Words for Grown {
    #[inline]
    fn size(&self) -> u32 {
        Doorbells::SIZE
    }

    #[inline]
    fn get(&self, level: usize, number: u32) -> Option<&AtomicU64> {
        match level {
            0 => Some(&self.top.0),
            1 => self.upper.get(number),
            2 => self.middle.get(number),
            _ => self.leaves.get(number),
        }
    }

    #[inline]
    fn get_or_grow(&self, level: usize, number: u32) -> &AtomicU64 {
        match level {
            0 => &self.top.0,
            1 => self.upper.get_or_grow(number),
            2 => self.middle.get_or_grow(number),
            _ => self.leaves.get_or_grow(number),
        }
    }
}

impl Doorbells {
    /// Most QPs.
    pub const SIZE: u32 = 1 << 24;

    /// Bells of which none rings.
    pub fn new() -> Self {
        let words = Grown {
            top: Top(AtomicU64::new(0)),
            upper: Chunks::new(),
            middle: Chunks::new(),
            leaves: Chunks::new(),
        };
        Self { words }
    }

    /// Bytes it takes now.
    pub fn state_bytes(&self) -> usize {
        size_of::<Top>()
            + self.words.upper.state_bytes()
            + self.words.middle.state_bytes()
            + self.words.leaves.state_bytes()
    }
}

impl Default for Doorbells {
    fn default() -> Self {
        Self::new()
    }
}

impl<L: Words> Bells<L> {
    /// Bells that there are: QPs have indices below it.
    pub fn size(&self) -> u32 {
        self.words.size()
    }

    /// Rings the bell of the QP of this index. Anything written before is visible to whoever drains
    /// the bell.
    ///
    /// # Panics
    /// There is no such bell.
    #[inline]
    pub fn ring(&self, index: u32) {
        let words = &self.words;
        assert!(index < words.size(), "QP index {index} has a doorbell");
        words
            .get_or_grow(3, index >> 6)
            .fetch_or(bit(index), AcqRel);
        set(words.get_or_grow(2, index >> 12), bit(index >> 6), AcqRel);
        set(words.get_or_grow(1, index >> 18), bit(index >> 12), AcqRel);
        set(words.get_or_grow(0, 0), bit(index >> 18), SeqCst);
    }

    /// The next bell that rings, which is silent then: a sweep gives them in ascending order, and
    /// begins anew once it has given all. Bells that ring meanwhile may come now or in the next
    /// one. For one thread at a time, and one sweep.
    #[inline]
    pub fn next(&self, sweep: &mut Sweep) -> Option<u32> {
        let mut looks = u32::MAX;
        self.next_within(sweep, &mut looks)
    }

    /// The same for bells that others than their worker may keep ringing: looks at no more words
    /// than `looks`, which it lowers. With none left the sweep rests.
    #[inline]
    pub fn next_within(&self, sweep: &mut Sweep, looks: &mut u32) -> Option<u32> {
        let Sweep([top, upper, middle, leaf]) = sweep;
        loop {
            if let Some(index) = leaf.next() {
                return Some(index);
            }
            *looks = looks.checked_sub(1)?;
            if let Some(index) = middle.next() {
                *leaf = Word::of(index, self.words.get(3, index));
            } else if let Some(index) = upper.next() {
                *middle = Word::of(index, self.words.get(2, index));
            } else if let Some(index) = top.next() {
                *upper = Word::of(index, self.words.get(1, index));
            } else if self.is_empty() {
                return None;
            } else {
                *top = Word::of(0, self.words.get(0, 0));
            }
        }
    }

    /// Whether no bell rings. One that is being rung at the moment may not be seen yet.
    ///
    /// Where a worker says that it sleeps, in the total order of `SeqCst`, and this is true after
    /// that, whoever rings sees what the worker said.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let top = self.words.get(0, 0);
        top.is_none_or(|top| top.load(SeqCst) == 0)
    }
}

/// How far a worker has come with the bells that ring: the words, of each level one, that it has
/// taken and has not gone through.
#[derive(Debug, Default)]
pub struct Sweep([Word; LEVELS]);

impl Sweep {
    /// Whether it has nothing left to go through.
    pub fn is_over(&self) -> bool {
        self.0.iter().all(|word| word.bits == 0)
    }
}

/// Bits that were taken of word `number` of a level.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    number: u32,
    bits: u64,
}

impl Word {
    /// Takes what is set in a word. That may be nothing: an earlier sweep took it, and only then
    /// its ringer came to set the bit above.
    #[inline]
    fn of(number: u32, word: Option<&AtomicU64>) -> Self {
        let bits = word.map_or(0, |word| word.swap(0, AcqRel));
        Self { number, bits }
    }

    /// The index, one level down, of the next bit.
    #[inline]
    fn next(&mut self) -> Option<u32> {
        let lowest = std::num::NonZeroU64::new(self.bits)?.trailing_zeros();
        self.bits &= self.bits - 1;
        Some(self.number * 64 + lowest)
    }
}

#[inline]
const fn bit(index: u32) -> u64 {
    1 << (index % 64)
}

/// Sets a bit unless it is seen set, so that a line which many share stays shared.
#[inline]
fn set(word: &AtomicU64, bit: u64, order: Ordering) {
    if word.load(Acquire) & bit == 0 {
        word.fetch_or(bit, order);
    }
}

#[cfg(test)]
mod tests;
