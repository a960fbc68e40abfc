//! Answers that came before an earlier one: placed, and remembered by their PSNs.

use trunkline_wire::Psn;

/// PSNs ahead of the oldest outstanding one within which an answer is placed. What is further ahead
/// is dropped, and comes again.
pub(super) const AHEAD: u32 = 256;
const WORDS: usize = AHEAD as usize / 64;

/// PSNs of answers that came early: a bit each, at the PSN's place on a circle of [`AHEAD`]. Those
/// that are set lie within `AHEAD` of the oldest outstanding PSN.
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
    pub(super) const fn is_empty(&self) -> bool {
        let mut word = 0;
        while word < WORDS {
            if self.came[word] != 0 {
                return false;
            }
            word += 1;
        }
        true
    }

    pub(super) const fn has(&self, psn: Psn) -> bool {
        let (word, bit) = place(psn);
        self.came[word] & bit != 0
    }

    /// The answer with this PSN came.
    pub(super) const fn mark(&mut self, psn: Psn) {
        let (word, bit) = place(psn);
        if self.came[word] & bit == 0 {
            if self.is_empty() || psn.offset_from(self.last) > 0 {
                self.last = psn;
            }
            self.came[word] |= bit;
        }
    }

    /// All before this PSN has come: whether its answer has, too. Asked once.
    pub(super) const fn take(&mut self, psn: Psn) -> bool {
        let (word, bit) = place(psn);
        let came = self.came[word] & bit != 0;
        self.came[word] &= !bit;
        came
    }

    /// The answer furthest ahead.
    pub(super) const fn last(&self) -> Option<Psn> {
        if self.is_empty() {
            None
        } else {
            Some(self.last)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn what_came_early_is_found_once_in_its_turn() {
        let mut early = Early::default();
        let at = |n| Psn::from_wire(0x00ff_fff0).advance(n);
        for n in [3, 1, 255, 20] {
            early.mark(at(n));
            early.mark(at(n));
        }
        assert_eq!(early.last(), Some(at(255)));
        let found: Vec<_> = (1..=255).filter(|n| early.take(at(*n))).collect();
        assert_eq!(found, [1, 3, 20, 255]);
        assert!(early.is_empty() && early.last().is_none());
        assert!(!early.has(at(3)) && !early.take(at(3)));
    }
}
