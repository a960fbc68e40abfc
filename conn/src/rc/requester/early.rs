//! Answers that came before an earlier one: placed, and remembered by their PSNs.

use crate::rc::segment;
use trunkline_wire::Psn;

/// PSNs ahead of the oldest outstanding one within which an answer is placed. What is further ahead
/// is dropped, and comes again.
const AHEAD: u32 = 256;
const WORDS: usize = AHEAD as usize / 64;

/// PSNs of answers that came early: a bit each, at the PSN's place on a circle of [`AHEAD`].
///
/// Each bit stands for one PSN, as those that are set lie less than `AHEAD` ahead of the oldest
/// outstanding one, `una`. Whoever passes a PSN takes it; what is passed without that is none that
/// an answer comes for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Early {
    came: [u64; WORDS],
    /// The one furthest ahead.
    last: Psn,
}

const fn place(psn: Psn) -> (usize, u64) {
    let at = psn.get() % AHEAD;
    (at as usize / 64, 1 << (at % 64))
}

impl Early {
    pub(super) fn is_empty(&self) -> bool {
        self.came == [0; WORDS]
    }

    /// Whether an answer is ahead of its turn, and not too far.
    pub(super) const fn reaches(una: Psn, psn: Psn) -> bool {
        let ahead = segment::distance(una, psn);
        ahead > 0 && ahead < AHEAD
    }

    pub(super) const fn has(&self, una: Psn, psn: Psn) -> bool {
        let (word, bit) = place(psn);
        Self::reaches(una, psn) && self.came[word] & bit != 0
    }

    /// The answer with this PSN came.
    ///
    /// # Panics
    /// It is not within reach.
    pub(super) fn mark(&mut self, una: Psn, psn: Psn) {
        assert!(Self::reaches(una, psn), "{psn:?} is not ahead of {una:?}");
        if self.is_empty() || psn.offset_from(self.last) > 0 {
            self.last = psn;
        }
        let (word, bit) = place(psn);
        self.came[word] |= bit;
    }

    /// All before this PSN has come: whether its answer has, too. Asked once.
    pub(super) const fn take(&mut self, una: Psn) -> bool {
        let (word, bit) = place(una);
        let came = self.came[word] & bit != 0;
        self.came[word] &= !bit;
        came
    }

    /// The answer furthest ahead.
    pub(super) fn last(&self) -> Option<Psn> {
        (!self.is_empty()).then_some(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::{Purpose, Secret};
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    #[test]
    fn what_came_early_is_found_once_in_its_turn() {
        let mut early = Early::default();
        let at = |n| Psn::from_wire(0x00ff_fff0).advance(n);
        for n in [3, 1, 255, 20] {
            early.mark(at(0), at(n));
            early.mark(at(0), at(n));
        }
        assert_eq!(early.last(), Some(at(255)));
        let found: Vec<_> = (1..=255).filter(|n| early.take(at(*n))).collect();
        assert_eq!(found, [1, 3, 20, 255]);
        assert!(early.is_empty() && early.last().is_none());
        assert!(!early.has(at(0), at(3)) && !early.take(at(3)));
    }

    #[test]
    fn what_came_early_is_not_taken_for_what_shares_its_place_on_the_circle() {
        let mut early = Early::default();
        let at = |n| Psn::from_wire(n);
        early.mark(at(0), at(7));
        assert!(early.has(at(0), at(7)));
        for psn in [at(7 + AHEAD), at(7 + 2 * AHEAD), at(0).advance(1 << 23)] {
            assert!(!early.has(at(0), psn), "{psn:?}");
        }
        // It is none of those that come when it has been passed.
        assert!(early.take(at(7)));
        assert!(!early.has(at(8), at(7 + AHEAD)));
    }

    /// PSNs go by, of which any may be answered early that an answer comes for. What is known of
    /// them is compared with a set of plain numbers at each step.
    #[test]
    fn bits_agree_with_a_set_of_numbers_whatever_comes() {
        for seed in 0..50 {
            let mut random = Secret::from_seed(seed).stream(Purpose::Nodes);
            let mut below = |n: u64| random.next_u64() % n;
            let (mut early, mut came) = (Early::default(), BTreeSet::new());
            // Numbers that do not wrap, 3 of 4 of which an answer comes for.
            let is_answered = |number: u64| number % 4 != 3;
            let psn = |number: u64| Psn::from_wire(number as u32);
            let mut una = (1 << 24) - below(600);
            for _ in 0..3000 {
                match below(3) {
                    0 => {
                        let number = una + 1 + below(AHEAD.into());
                        let fits = number < una + u64::from(AHEAD);
                        assert_eq!(Early::reaches(psn(una), psn(number)), fits);
                        if fits && is_answered(number) {
                            early.mark(psn(una), psn(number));
                            came.insert(number);
                        }
                    }
                    1 => {
                        if is_answered(una) {
                            assert_eq!(early.take(psn(una)), came.remove(&una));
                        }
                        una += 1;
                    }
                    _ => {
                        let number = una + 1 + below(4 * u64::from(AHEAD));
                        let known = came.contains(&number);
                        assert_eq!(early.has(psn(una), psn(number)), known);
                    }
                }
                let bits: u32 = early.came.iter().map(|word| word.count_ones()).sum();
                assert_eq!(bits as usize, came.len(), "seed {seed}");
                assert_eq!(early.last(), came.last().map(|last| psn(*last)));
            }
        }
    }
}
