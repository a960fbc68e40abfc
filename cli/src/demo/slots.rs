//! Who has which part of the buffers: operations under way, and nobody else.

use super::ACTIVE;

/// Operations that begin at once.
const BURST: usize = ACTIVE / 4;

/// An operation under way: a QP, and the slot of the buffers that it has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Work {
    pub(super) qp: usize,
    pub(super) slot: usize,
}

impl Work {
    /// As the cookie of its requests.
    pub(super) const fn wr_id(self) -> u64 {
        (self.slot as u64) << 32 | self.qp as u64
    }

    pub(super) const fn of(wr_id: u64) -> Self {
        Self {
            qp: wr_id as u32 as usize,
            slot: (wr_id >> 32) as usize,
        }
    }
}

/// The slots.
#[derive(Debug)]
pub(super) struct Slots {
    free: Vec<usize>,
    /// By slot: completions that have to come until it is free.
    open: [u8; ACTIVE],
    /// Operations begin, until no slot is free.
    filling: bool,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self {
            free: (0..ACTIVE).rev().collect(),
            open: [0; ACTIVE],
            filling: true,
        }
    }

    /// A slot for the next operation, which has so many completions, if there is one now. After
    /// the last one many have to be free again, so that packets go out in bursts.
    pub(super) fn next(&mut self, completions: u8) -> Option<usize> {
        self.filling |= self.free.len() >= BURST;
        if !self.filling {
            return None;
        }
        let next = self.free.pop();
        self.filling = next.is_some();
        let slot = next?;
        self.open[slot] = completions;
        Some(slot)
    }

    /// A completion has come; gives whether it was the last.
    pub(super) fn completed(&mut self, slot: usize) -> bool {
        self.open[slot] -= 1;
        let last = self.open[slot] == 0;
        if last {
            self.free.push(slot);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_name_the_qp_and_the_slot() {
        let work = Work {
            qp: 999_999,
            slot: ACTIVE - 1,
        };
        assert_eq!(Work::of(work.wr_id()), work);
    }

    #[test]
    fn a_slot_is_free_after_its_last_completion_and_taken_with_many_others() {
        let mut slots = Slots::new();
        let taken: Vec<_> = std::iter::from_fn(|| slots.next(2)).collect();
        assert_eq!(taken.len(), ACTIVE);
        for slot in &taken[..BURST] {
            assert!(!slots.completed(*slot));
            assert_eq!(slots.next(1), None);
            assert!(slots.completed(*slot));
        }
        let next: Vec<_> = std::iter::from_fn(|| slots.next(1)).collect();
        assert_eq!(next.len(), BURST);
        assert!(next.iter().all(|slot| taken[..BURST].contains(slot)));
    }
}
