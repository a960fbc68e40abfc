//! The model of words that many QPs run atomics on.

use crate::failure::{Failure, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// A word that is only ever counted up by one.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    posted: u64,
    /// Values that were found, one per success.
    seen: BTreeSet<u64>,
    /// Operations that ended without a result: each was executed once or not at all.
    unknown: u64,
    /// The word is known to be at least this.
    floor: u64,
}

impl Counter {
    /// What a FETCH_ADD that is posted now must find at least.
    pub(crate) const fn floor(&self) -> u64 {
        self.floor
    }

    /// A FETCH_ADD of 1 is posted; gives what it must find at least.
    pub(crate) const fn post(&mut self) -> u64 {
        self.posted += 1;
        self.floor
    }

    /// One found `value`; it was posted when the word was at least `floor`.
    ///
    /// # Errors
    /// That cannot be.
    pub(crate) fn found(&mut self, value: u64, floor: u64) -> Verdict {
        if value < floor || value >= self.posted {
            return Err(Failure::wrong(format!(
                "FETCH_ADD found {value}; possible were {floor} to {}",
                self.posted - 1
            )));
        }
        if !self.seen.insert(value) {
            return Err(Failure::wrong(format!(
                "two FETCH_ADDs found {value}: one was lost"
            )));
        }
        self.floor = self.floor.max(value + 1);
        Ok(())
    }

    /// One ended without a result.
    pub(crate) const fn lost(&mut self) {
        self.unknown += 1;
    }

    /// Nothing is outstanding and the word is `value`.
    ///
    /// # Errors
    /// Some operation was executed twice, or one that succeeded was not.
    pub(crate) fn settle(&self, value: u64) -> Verdict {
        let sure = self.seen.len() as u64;
        let highest = self.seen.last().map_or(0, |last| last + 1);
        if value < sure.max(highest) || value > sure + self.unknown {
            return Err(Failure::wrong(format!(
                "counter is {value} after {sure} FETCH_ADDs that succeeded (the highest left \
                 {highest}) and {} that may have been executed",
                self.unknown
            )));
        }
        Ok(())
    }
}

/// A word that is only ever compared and swapped, with a new value each time.
#[derive(Debug)]
pub(crate) struct Cell {
    posted: BTreeSet<u64>,
    /// Successful swaps, from value to value.
    steps: BTreeMap<u64, u64>,
    unknown: u64,
    last: u64,
}

impl Default for Cell {
    fn default() -> Self {
        Self {
            posted: BTreeSet::from([0]),
            steps: BTreeMap::new(),
            unknown: 0,
            last: 0,
        }
    }
}

impl Cell {
    /// The value that was seen last: what a program would compare with.
    pub(crate) const fn last(&self) -> u64 {
        self.last
    }

    /// A swap to `to` is posted, a value that was never there before.
    pub(crate) fn post(&mut self, to: u64) {
        self.posted.insert(to);
    }

    /// A CMP_SWAP from `compare` to `swap` found `value`.
    ///
    /// # Errors
    /// That cannot be.
    pub(crate) fn found(&mut self, compare: u64, swap: u64, value: u64) -> Verdict {
        if !self.posted.contains(&value) {
            return Err(Failure::wrong(format!(
                "CMP_SWAP found {value:#x}, which nobody ever put there"
            )));
        }
        self.last = value;
        if value == compare {
            self.last = swap;
            if let Some(other) = self.steps.insert(compare, swap) {
                return Err(Failure::wrong(format!(
                    "the value {compare:#x} was swapped for {swap:#x} and for {other:#x}"
                )));
            }
        }
        Ok(())
    }

    /// One ended without a result.
    pub(crate) const fn lost(&mut self) {
        self.unknown += 1;
    }

    /// Nothing is outstanding and the word is `value`.
    ///
    /// # Errors
    /// The successful swaps do not lead there.
    pub(crate) fn settle(&self, value: u64) -> Verdict {
        if !self.posted.contains(&value) {
            return Err(Failure::wrong(format!(
                "the word is {value:#x}: nobody put that there"
            )));
        }
        if self.unknown > 0 {
            return Ok(());
        }
        let (mut at, mut steps) = (0, 0);
        while let Some(next) = self.steps.get(&at) {
            (at, steps) = (*next, steps + 1);
        }
        if at != value || steps != self.steps.len() {
            return Err(Failure::wrong(format!(
                "{} CMP_SWAPs succeeded, {steps} of them in a chain that ends at {at:#x}, but the \
                 word is {value:#x}",
                self.steps.len()
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_lost_or_doubled_an_addition_is_found_out() {
        let mut counter = Counter::default();
        let (first, second) = (counter.post(), counter.post());
        assert!(counter.found(1, first).is_ok());
        assert!(counter.found(0, second).is_ok());
        assert!(counter.settle(2).is_ok());
        assert!(counter.settle(3).is_err());
        assert!(counter.settle(1).is_err());
        let third = counter.post();
        assert_eq!(third, 2);
        assert!(counter.found(1, third).is_err());
        counter.lost();
        assert!(counter.settle(3).is_ok());
    }

    #[test]
    fn a_word_that_was_left_twice_is_found_out() {
        let mut cell = Cell::default();
        cell.post(7);
        cell.post(8);
        assert!(cell.found(0, 7, 0).is_ok());
        assert!(cell.settle(7).is_ok());
        assert!(cell.settle(8).is_err());
        assert!(cell.found(0, 8, 0).is_err());
        assert!(Cell::default().found(0, 1, 5).is_err());
    }
}
