//! Deadlines of many records, most of which are moved or dropped before they pass.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;
use core::mem;
use trunkline_conn::time::Instant;

/// The deadlines of records, by index. A record knows its own. One that counts no more stays in the
/// heap until it is the first or too many of them do: to search for each would cost more the more
/// there are.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// At most twice as many as count.
    heap: BinaryHeap<Reverse<Timer>>,
    /// Records that have a deadline.
    armed: usize,
}

type Timer = (Instant, u32);

impl Timers {
    /// The deadline of a record was `old` and is what `deadline_of` says, as are all others.
    pub(crate) fn change(
        &mut self,
        index: u32,
        old: Option<Instant>,
        deadline_of: impl Fn(u32) -> Option<Instant>,
    ) {
        let new = deadline_of(index);
        if old == new {
            return;
        }
        self.armed += usize::from(new.is_some());
        self.armed -= usize::from(old.is_some());
        self.heap
            .extend(new.map(|deadline| Reverse((deadline, index))));
        let counts =
            |&Reverse((deadline, index)): &Reverse<Timer>| deadline_of(index) == Some(deadline);
        if self.heap.len() > 2 * self.armed {
            self.heap.retain(counts);
        }
        if self.heap.len() > 2 * self.armed {
            // Records came back to deadlines that they had before.
            let mut timers = mem::take(&mut self.heap).into_vec();
            timers.sort_unstable();
            timers.dedup();
            self.heap = timers.into();
        }
        while self.heap.peek().is_some_and(|timer| !counts(timer)) {
            self.heap.pop();
        }
    }

    /// The earliest deadline and the record that has it; of equal ones that of the lowest index.
    pub(crate) fn first(&self) -> Option<Timer> {
        self.heap.peek().map(|Reverse(timer)| *timer)
    }

    pub(crate) fn state_bytes(&self) -> usize {
        self.heap.len() * size_of::<Timer>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    proptest! {
        /// Deadlines change at random, beside a set that holds those that count.
        #[test]
        fn the_first_is_that_of_a_sorted_set_however_deadlines_change(
            steps in prop::collection::vec((0_u32..20, prop::option::of(0_u64..30)), 0..500),
        ) {
            let mut timers = Timers::default();
            let mut deadlines = [None; 20];
            let mut model = BTreeSet::new();
            for (index, deadline) in steps {
                let at = &mut deadlines[index as usize];
                let old = mem::replace(at, deadline.map(Instant::from_nanos));
                timers.change(index, old, |index| deadlines[index as usize]);
                model.retain(|&(_, other)| other != index);
                model.extend(deadlines[index as usize].map(|deadline| (deadline, index)));
                prop_assert_eq!(timers.first(), model.first().copied());
                prop_assert!(timers.heap.len() <= 2 * model.len());
            }
        }
    }

    #[test]
    fn what_comes_back_to_its_deadline_does_not_add_up() {
        let mut timers = Timers::default();
        let mut deadlines = [None; 100];
        let mut set = |index: u32, deadline: Option<u64>| {
            let at = &mut deadlines[index as usize];
            let old = mem::replace(at, deadline.map(Instant::from_nanos));
            timers.change(index, old, |index| deadlines[index as usize]);
            assert!(timers.heap.len() <= 2 * timers.armed);
        };
        (0..100).for_each(|index| set(index, Some(7)));
        for _ in 0..90 {
            set(99, None);
            set(99, Some(7));
        }
        (0..99).for_each(|index| set(index, None));
        assert_eq!(timers.first(), Some((Instant::from_nanos(7), 99)));
    }
}
