//! The owner of what programs have told: doorbells that rang and are not heard yet, and how far it
//! is known that nothing is left to do.

mod programs;

pub(crate) use programs::Bell;

use crate::doorbell::{Doorbells, Sweep};
use crate::ring::RingMemory;
use programs::Programs;
use std::sync::Arc;

/// What programs have posted.
#[derive(Debug)]
pub(crate) struct Posted<W> {
    doorbells: Arc<Doorbells>,
    /// Those that have rung and are not heard yet.
    sweep: Sweep,
    /// Slots of QPs, and then of connections, in which nothing was left to do since a program
    /// posted something last.
    drained: u32,
    /// Doorbells of programs in other processes.
    programs: Programs<W>,
}

impl<W: RingMemory> Posted<W> {
    pub(crate) fn new() -> Self {
        Self {
            doorbells: Arc::new(Doorbells::new()),
            sweep: Sweep::default(),
            drained: 0,
            programs: Programs::new(),
        }
    }

    /// Those in other processes.
    pub(crate) const fn programs(&mut self) -> &mut Programs<W> {
        &mut self.programs
    }

    /// Programs ring them after posting.
    pub(crate) const fn doorbells(&self) -> &Arc<Doorbells> {
        &self.doorbells
    }

    /// The next QP whose program has rung.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u32> {
        self.doorbells.next(&mut self.sweep)
    }

    /// Whether no program has rung that was not heard, and none of another process is looked at.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.doorbells.is_empty() && self.sweep.is_over() && !self.programs.is_looking()
    }

    /// A program has posted something: whatever was drained may not be any more.
    #[inline]
    pub(crate) const fn heard(&mut self) {
        self.drained = 0;
    }

    /// The next slot to look at, whether something is left to do there.
    pub(crate) const fn next_undrained(&self) -> u32 {
        self.drained
    }

    /// Nothing is left to do in the slots before this one.
    pub(crate) const fn drained_to(&mut self, slot: u32) {
        self.drained = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;

    #[test]
    fn what_rang_is_heard_once_and_undoes_what_was_drained() {
        let mut posted = Posted::<Arc<[AtomicU64]>>::new();
        assert!(posted.is_empty() && posted.next().is_none());
        posted.drained_to(9);
        for qp in [70, 3] {
            posted.doorbells().ring(qp);
            posted.doorbells().ring(qp);
        }
        assert!(!posted.is_empty());
        assert_eq!([posted.next(), posted.next()], [Some(3), Some(70)]);
        assert_eq!(posted.next_undrained(), 9);
        posted.heard();
        assert_eq!((posted.next(), posted.next_undrained()), (None, 0));
        assert!(posted.is_empty());
    }
}
