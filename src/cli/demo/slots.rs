//! Who has which part of the buffers: operations under way, and nobody else.

use super::ACTIVE;

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
}

impl Slots {
    pub(super) fn new() -> Self {
        Self {
            free: (0..ACTIVE).rev().collect(),
            open: [0; ACTIVE],
        }
    }

    /// A slot for an operation with so many completions, if one is free.
    pub(super) fn take(&mut self, completions: u8) -> Option<usize> {
        let slot = self.free.pop()?;
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
    fn a_slot_is_free_after_its_last_completion() {
        let mut slots = Slots::new();
        let taken: Vec<_> = std::iter::from_fn(|| slots.take(2)).collect();
        assert_eq!(taken.len(), ACTIVE);
        assert!(!slots.completed(taken[7]));
        assert_eq!(slots.take(1), None);
        assert!(slots.completed(taken[7]));
        assert_eq!(slots.take(1), Some(taken[7]));
    }
}
