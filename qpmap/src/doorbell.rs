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

use crate::chunks::{Chunks, chunks};
use crate::sync::AtomicU64;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, SeqCst};

/// One bit per QP of a worker, up to 2^24.
#[derive(Debug)]
pub struct Doorbells {
    top: Top,
    upper: Chunks<AtomicU64, { chunks(6) }>,
    middle: Chunks<AtomicU64, { chunks(12) }>,
    leaves: Chunks<AtomicU64, { chunks(18) }>,
}

/// On a line of its own: the worker polls it, every program reads it.
#[derive(Debug)]
#[repr(align(64))]
struct Top(AtomicU64);

impl Doorbells {
    /// Most QPs.
    pub const SIZE: u32 = 1 << 24;

    /// Bells of which none rings.
    pub fn new() -> Self {
        Self {
            top: Top(AtomicU64::new(0)),
            upper: Chunks::new(),
            middle: Chunks::new(),
            leaves: Chunks::new(),
        }
    }

    /// Rings the bell of the QP of this index. Anything written before is visible to whoever drains
    /// the bell.
    ///
    /// # Panics
    /// When `index` is not below [`SIZE`](Self::SIZE).
    pub fn ring(&self, index: u32) {
        assert!(index < Self::SIZE, "QP index {index} has a doorbell");
        self.leaves
            .get_or_grow(index >> 6)
            .fetch_or(bit(index), AcqRel);
        set(
            self.middle.get_or_grow(index >> 12),
            bit(index >> 6),
            AcqRel,
        );
        set(
            self.upper.get_or_grow(index >> 18),
            bit(index >> 12),
            AcqRel,
        );
        set(&self.top.0, bit(index >> 18), SeqCst);
    }

    /// The next bell that rings, which is silent then: a sweep gives them in ascending order, and
    /// begins anew once it has given all. Bells that ring meanwhile may come now or in the next
    /// one. For one thread at a time, and one sweep.
    pub fn next(&self, sweep: &mut Sweep) -> Option<u32> {
        let Sweep([top, upper, middle, leaf]) = sweep;
        loop {
            if let Some(index) = leaf.next() {
                return Some(index);
            }
            if let Some(index) = middle.next() {
                *leaf = Word::of(index, self.leaves.get(index));
            } else if let Some(index) = upper.next() {
                *middle = Word::of(index, self.middle.get(index));
            } else if let Some(index) = top.next() {
                *upper = Word::of(index, self.upper.get(index));
            } else if self.is_empty() {
                return None;
            } else {
                *top = Word::of(0, Some(&self.top.0));
            }
        }
    }

    /// Whether no bell rings. One that is being rung at the moment may not be seen yet.
    ///
    /// Where a worker says that it sleeps, in the total order of `SeqCst`, and this is true after
    /// that, whoever rings sees what the worker said.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.top.0.load(SeqCst) == 0
    }

    /// Bytes it takes now.
    pub fn state_bytes(&self) -> usize {
        size_of::<Top>()
            + self.upper.state_bytes()
            + self.middle.state_bytes()
            + self.leaves.state_bytes()
    }
}

impl Default for Doorbells {
    fn default() -> Self {
        Self::new()
    }
}

/// How far a worker has come with the bells that ring: the words, of each level one, that it has
/// taken and has not gone through.
#[derive(Debug, Default)]
pub struct Sweep([Word; 4]);

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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::Relaxed;

    fn drained(bells: &Doorbells) -> Vec<u32> {
        let mut sweep = Sweep::default();
        let found = std::iter::from_fn(|| bells.next(&mut sweep)).collect();
        assert!(sweep.is_over());
        found
    }

    proptest! {
        #[test]
        fn a_sweep_gives_each_ringing_bell_once_in_order(
            rounds in prop::collection::vec(prop::collection::vec(0_u32..1 << 24, 0..40), 1..6),
            scale in 0_u32..18,
        ) {
            let bells = Doorbells::new();
            for round in rounds {
                let mut model = BTreeSet::new();
                for index in round {
                    let index = index >> scale;
                    bells.ring(index);
                    model.insert(index);
                }
                prop_assert_eq!(bells.is_empty(), model.is_empty());
                prop_assert_eq!(drained(&bells), model.into_iter().collect::<Vec<_>>());
                prop_assert!(bells.is_empty());
            }
        }
    }

    #[test]
    fn the_first_and_the_last_bell_ring() {
        let bells = Doorbells::new();
        let ends = [
            0,
            63,
            64,
            4095,
            4096,
            (1 << 18) - 1,
            1 << 18,
            Doorbells::SIZE - 1,
        ];
        ends.into_iter().for_each(|index| bells.ring(index));
        assert_eq!(drained(&bells), ends);
        assert_eq!(drained(&bells), []);
    }

    #[test]
    fn a_bell_that_rings_all_the_time_leaves_others_their_turn() {
        let bells = Doorbells::new();
        [2, 70_000].into_iter().for_each(|index| bells.ring(index));
        let mut sweep = Sweep::default();
        let first: Vec<_> = (0..4)
            .map_while(|_| {
                let index = bells.next(&mut sweep)?;
                bells.ring(2);
                Some(index)
            })
            .collect();
        assert_eq!(first, [2, 70_000, 2, 2]);
    }

    #[test]
    fn a_bell_that_rings_during_a_sweep_is_not_lost() {
        let bells = Doorbells::new();
        bells.ring(3);
        let mut sweep = Sweep::default();
        let mut found = vec![bells.next(&mut sweep).expect("it rings")];
        // Itself, one before it and one behind it.
        [3, 1, 9000].into_iter().for_each(|index| bells.ring(index));
        found.extend(std::iter::from_fn(|| bells.next(&mut sweep)));
        assert!(sweep.is_over() && bells.is_empty());
        found.sort_unstable();
        assert_eq!(found, [1, 3, 3, 9000]);
    }

    #[test]
    #[should_panic(expected = "has a doorbell")]
    fn there_is_no_bell_past_the_last() {
        Doorbells::new().ring(Doorbells::SIZE);
    }

    #[test]
    fn bells_that_nobody_has_take_no_room() {
        let bells = Doorbells::new();
        assert!(bells.state_bytes() < 2048, "{}", bells.state_bytes());
        bells.ring(0);
        assert!(bells.state_bytes() < 4096, "{}", bells.state_bytes());
    }

    /// Programs, each with QPs of its own, wait for the worker's answer to each ring, so that one
    /// lost bell stops everything; what they post is written without any ordering of its own, so
    /// that a bell which does not carry it along shows, too.
    fn lockstep(programs: &[&[u32]], posts: u32) {
        let size = programs
            .iter()
            .copied()
            .flatten()
            .max()
            .map_or(0, |last| last + 1);
        let counters = || (0..size).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
        let (posted, seen) = (counters(), counters());
        let (bells, finished) = (Doorbells::new(), AtomicU32::new(0));
        let answered = |at: u32, post: u32| {
            (0..4_000_000).any(|spins| {
                if spins < 500 {
                    std::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
                seen[at as usize].load(Relaxed) == post
            })
        };
        // Gives the first bell that was lost. Nothing here panics, so that the worker always ends.
        let program = |qps: &[u32]| {
            let lost = (1..=posts).find_map(|post| {
                for at in qps {
                    posted[*at as usize].store(post, Relaxed);
                    bells.ring(*at);
                }
                qps.iter()
                    .find(|at| !answered(**at, post))
                    .map(|at| (*at, post))
            });
            finished.fetch_add(1, Relaxed);
            lost
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = programs
                .iter()
                .map(|qps| scope.spawn(|| program(qps)))
                .collect();
            let mut sweep = Sweep::default();
            while (finished.load(Relaxed) as usize) < programs.len() {
                while let Some(at) = bells.next(&mut sweep) {
                    let post = posted[at as usize].load(Relaxed);
                    seen[at as usize].store(post, Relaxed);
                }
            }
            for thread in threads {
                assert_eq!(
                    thread.join().expect("programs do not panic"),
                    None,
                    "a lost bell"
                );
            }
        });
    }

    #[test]
    fn a_program_alone_with_the_worker_loses_no_bell() {
        // Nobody else rings: no other bell saves this one.
        lockstep(&[&[5]], 100_000);
    }

    #[test]
    fn programs_that_share_words_at_every_level_lose_no_bell() {
        const FAR: u32 = 1 << 18;
        lockstep(
            &[
                &[0, 8, 64, 4096, 4160, FAR],
                &[1, 9, 65, 4097, 4161, FAR + 1],
                &[2, 10, 4098, FAR + 64],
                &[66, 8192, FAR + 4096],
            ],
            2000,
        );
    }

    #[test]
    fn two_programs_of_one_word_lose_no_bell() {
        lockstep(&[&[1], &[2]], 20_000);
    }
}
