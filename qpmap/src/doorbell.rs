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
//! `ring` sets the leaf bit, then goes up and sets each bit that it does not *see* set. `drain`
//! goes down: it takes (swaps for 0) a word, then the words below that the bits it took stand for.
//! Claim: after `ring` has returned, its leaf bit has been taken by a swap that comes after it, or
//! all bits above are set or about to be taken, so that the same `drain` or the next one takes it.
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
//! No step waits for another program: one that stops between two levels delays only itself.

use crate::chunks::Chunks;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// One bit per QP of a worker, up to 2^24.
#[derive(Debug)]
pub struct Doorbells {
    top: Top,
    /// From the leaves upwards.
    levels: [Chunks; 3],
}

/// On a line of its own: the worker polls it, every program reads it.
#[derive(Debug)]
#[repr(align(64))]
struct Top(AtomicU64);

impl Doorbells {
    /// Most QPs.
    pub const SIZE: u32 = 1 << 24;

    /// Bells of which none rings.
    pub const fn new() -> Self {
        Self {
            top: Top(AtomicU64::new(0)),
            levels: [const { Chunks::new() }; 3],
        }
    }

    /// Rings the bell of the QP of this index. Anything written before is visible to whoever drains
    /// the bell.
    ///
    /// # Panics
    /// When `index` is not below [`SIZE`](Self::SIZE).
    pub fn ring(&self, index: u32) {
        assert!(index < Self::SIZE, "QP index {index} has a doorbell");
        let [leaves, middle, upper] = &self.levels;
        leaves.get_or_grow(index >> 6).fetch_or(bit(index), AcqRel);
        set(middle.get_or_grow(index >> 12), bit(index >> 6));
        set(upper.get_or_grow(index >> 18), bit(index >> 12));
        set(&self.top.0, bit(index >> 18));
    }

    /// Hands each bell that rings to `take`, in ascending order, and silences it. Bells that ring
    /// meanwhile may come now or stay for the next time. For one thread at a time.
    pub fn drain(&self, mut take: impl FnMut(u32)) {
        if self.is_empty() {
            return;
        }
        let top = self.top.0.swap(0, AcqRel);
        self.drain_word(2, 0, top, &mut take);
    }

    /// Goes through the words of `level` that the bits of `word` stand for; `word` is number
    /// `number` of the level above.
    fn drain_word(&self, level: usize, number: u32, word: u64, take: &mut impl FnMut(u32)) {
        for below in bits(number, word) {
            let Some(found) = self.levels[level].get(below) else {
                continue;
            };
            // Nothing there: an earlier drain took it when its ringer was still on the way up.
            let found = found.swap(0, AcqRel);
            match level.checked_sub(1) {
                Some(next) => self.drain_word(next, below, found, take),
                None => bits(below, found).for_each(&mut *take),
            }
        }
    }

    /// Whether no bell rings. One that is being rung at the moment may not be seen yet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.top.0.load(Acquire) == 0
    }

    /// Bytes it takes now.
    pub fn state_bytes(&self) -> usize {
        size_of::<Top>() + self.levels.iter().map(Chunks::state_bytes).sum::<usize>()
    }
}

impl Default for Doorbells {
    fn default() -> Self {
        Self::new()
    }
}

#[inline]
const fn bit(index: u32) -> u64 {
    1 << (index % 64)
}

/// Sets a bit unless it is seen set, so that a line which many share stays shared.
#[inline]
fn set(word: &AtomicU64, bit: u64) {
    if word.load(Acquire) & bit == 0 {
        word.fetch_or(bit, AcqRel);
    }
}

/// The indices, one level down, of the bits that are set in word `number`.
fn bits(number: u32, mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = std::num::NonZeroU64::new(word)?.trailing_zeros();
        word &= word - 1;
        Some(number * 64 + lowest)
    })
}
