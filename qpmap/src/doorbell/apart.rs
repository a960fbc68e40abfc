//! Bells of a program in another process, in memory that it shares with a worker.
//!
//! ```text
//! word 0     top                                           program sets, worker takes
//! word 8     1: the worker does not look; 0: it does       worker sets, whoever rings clears
//! word 16..  upper, middle, leaves: one word each for      program sets, worker takes
//!            2^18, 2^12 and 2^6 bells
//! ```
//!
//! # No worker sleeps over a bell
//! The worker says that it does not look, and then looks once more at the top word; who rings sets
//! the top word, or sees its bit set, and then looks whether the worker does. Either side has a
//! SeqCst fence in between, so in their one order one fence comes first: if it is the worker's, the
//! program sees that it does not look; if it is the program's, the worker sees the bit, or has
//! taken it. Of several threads that ring, one clears the word, and wakes the worker.

use super::{Bells, LEVELS, Sweep, Words};
use crate::allowed::Allowed;
use crate::error::VerbsError;
use crate::ring::RingMemory;
use crate::sync::{AtomicU64, fence};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

const LINE_WORDS: u32 = 8;
const UNHEARD: usize = LINE_WORDS as usize;
const BELOW_TOP: u32 = 2 * LINE_WORDS;

/// Whether who rang a bell has to wake the worker.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "a worker that does not look is to be woken"]
pub enum Rung {
    /// It looks by itself.
    Heard,
    /// It does not.
    Unheard,
}

/// Words in memory of the program and the worker.
#[derive(Debug)]
pub struct Apart<W> {
    memory: W,
    size: u32,
    /// Where the words of each level begin, and end.
    levels: [(u32, u32); LEVELS],
}

impl<W: RingMemory> Words for Apart<W> {
    #[inline]
    fn size(&self) -> u32 {
        self.size
    }

    #[inline]
    fn get(&self, level: usize, number: u32) -> Option<&AtomicU64> {
        let (begin, end) = self.levels[level];
        let at = begin.checked_add(number).filter(|at| *at < end)?;
        Some(&self.memory.as_slice()[at as usize])
    }

    #[inline]
    fn get_or_grow(&self, level: usize, number: u32) -> &AtomicU64 {
        self.get(level, number).expect("the bell has words")
    }
}

impl<W: RingMemory> Bells<Apart<W>> {
    /// Most bells of one program.
    pub const MOST: u32 = 1 << 18;

    /// Words that `size` bells take, from 1 to [`MOST`](Self::MOST).
    pub const fn words_for(size: u32) -> usize {
        let levels = levels(size);
        levels[LEVELS - 1].1 as usize
    }

    /// `size` bells over `memory`, which both sides have. None rings if it is zero.
    ///
    /// # Errors
    /// [`VerbsError::BadAttribute`]: no bells, more than [`MOST`](Self::MOST), or memory of another
    /// length than [`words_for`](Self::words_for) says.
    pub fn over(memory: W, size: u32) -> Result<Self, VerbsError> {
        Allowed::Range(1, Self::MOST).check("doorbells", size)?;
        let (words, need) = (memory.as_slice().len(), Self::words_for(size));
        if words != need {
            let exactly = Allowed::Range(need as u32, need as u32);
            return Err(exactly.refuse("words of doorbells", words as u64));
        }
        let levels = levels(size);
        Ok(Self {
            words: Apart {
                memory,
                size,
                levels,
            },
        })
    }

    fn unheard(&self) -> &AtomicU64 {
        &self.words.memory.as_slice()[UNHEARD]
    }

    /// Program: rings a bell, and says whether the worker is to be woken.
    ///
    /// # Panics
    /// There is no such bell.
    pub fn ring_and_look(&self, index: u32) -> Rung {
        self.ring(index);
        // Between the change of the top word and the load; see the head of this file.
        fence(SeqCst);
        let unheard = self.unheard();
        if unheard.load(Relaxed) == 0 {
            return Rung::Heard;
        }
        // Of several that ring, one is enough.
        match unheard.swap(0, Relaxed) {
            0 => Rung::Heard,
            _ => Rung::Unheard,
        }
    }

    /// Worker: does not look at these bells any more, until it is woken and
    /// [looks again](Self::look). `false`: one rings, or is left of a sweep, and it goes on so.
    pub fn look_away(&self, sweep: &Sweep) -> bool {
        if !sweep.is_over() {
            return false;
        }
        self.unheard().store(1, Relaxed);
        // Between the store and the load of the top word; see the head of this file.
        fence(SeqCst);
        if self.is_empty() {
            return true;
        }
        self.look();
        false
    }

    /// Worker: looks at these bells from now on.
    pub fn look(&self) {
        // Who rings meanwhile wakes the worker in vain at most.
        self.unheard().store(0, Relaxed);
    }
}

/// Where the words of each level begin, and end.
const fn levels(size: u32) -> [(u32, u32); LEVELS] {
    let leaves = size.div_ceil(1 << 6);
    let middle = size.div_ceil(1 << 12);
    let (upper_end, middle_end) = (BELOW_TOP + 1, BELOW_TOP + 1 + middle);
    [
        (0, 1),
        (BELOW_TOP, upper_end),
        (upper_end, middle_end),
        (middle_end, middle_end + leaves),
    ]
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    type Heap = Arc<[AtomicU64]>;
    type Both = Bells<Apart<Heap>>;

    /// The program's side and the worker's.
    fn both(size: u32) -> (Both, Both, Heap) {
        let memory = Heap::zeroed(Both::words_for(size));
        let side = || Both::over(memory.clone(), size).unwrap();
        (side(), side(), memory)
    }

    fn swept(bells: &Both, sweep: &mut Sweep) -> Vec<u32> {
        std::iter::from_fn(|| bells.next(sweep)).collect()
    }

    proptest! {
        #[test]
        fn what_one_side_rings_the_other_finds(
            size in 1_u32..=Both::MOST,
            bells in prop::collection::vec(any::<u32>(), 0..40),
        ) {
            let (program, worker, _) = both(size);
            let bells: BTreeSet<_> = bells.iter().map(|bell| bell % size).collect();
            for bell in &bells {
                prop_assert_eq!(program.ring_and_look(*bell), Rung::Heard);
            }
            let mut sweep = Sweep::default();
            prop_assert_eq!(swept(&worker, &mut sweep), bells.into_iter().collect::<Vec<_>>());
            prop_assert!(worker.is_empty() && worker.look_away(&sweep));
        }

        #[test]
        fn whatever_is_written_there_a_sweep_ends_and_gives_bells_that_are(
            size in 1_u32..5000,
            writes in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 1..40),
        ) {
            let (_, worker, memory) = both(size);
            for (place, word) in writes {
                place.get(&memory).store(word, Relaxed);
            }
            let mut sweep = Sweep::default();
            let found = swept(&worker, &mut sweep);
            // A word of leaves has bits for more bells than the last of them: who hears looks.
            prop_assert!(found.iter().all(|bell| *bell < size.next_multiple_of(64)));
            prop_assert!(sweep.is_over());
            worker.look();
            prop_assert!(worker.look_away(&sweep));
        }
    }

    #[test]
    fn who_rings_wakes_a_worker_that_does_not_look_once() {
        let (program, worker, _) = both(100);
        let mut sweep = Sweep::default();
        assert!(worker.look_away(&sweep));
        assert_eq!(program.ring_and_look(7), Rung::Unheard);
        assert_eq!(program.ring_and_look(8), Rung::Heard);
        assert!(!worker.look_away(&sweep), "two ring");
        assert_eq!(worker.next(&mut sweep), Some(7));
        assert!(!worker.look_away(&sweep), "one is left of the sweep");
        assert_eq!(swept(&worker, &mut sweep), [8]);
        assert!(worker.look_away(&sweep));
        worker.look();
        assert_eq!(program.ring_and_look(99), Rung::Heard);
    }

    #[test]
    fn memory_of_another_length_is_refused() {
        let over = |words, size| Both::over(Heap::zeroed(words), size).err();
        assert_eq!(Both::words_for(1), 19);
        assert!(over(19, 64).is_none() && over(18, 1).is_some() && over(20, 1).is_some());
        assert!(over(19, 0).is_some() && over(1 << 13, Both::MOST + 1).is_some());
    }
}
