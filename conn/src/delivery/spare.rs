//! Boxes that wait to be used again: as many as were needed at once not long ago.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Most that are freed in one call.
const MOST: usize = 4096;

/// A stack of boxes.
#[derive(Debug)]
pub(super) struct Spare<T> {
    free: Vec<Box<T>>,
    /// The fewest there were since the last [`trim`](Self::trim): so many nobody needed.
    fewest: usize,
}

impl<T> Spare<T> {
    pub(super) const fn new() -> Self {
        Self {
            free: Vec::new(),
            fewest: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.free.len()
    }

    /// Bytes of those that wait.
    pub(super) fn bytes(&self) -> usize {
        self.free.len() * size_of::<T>()
    }

    pub(super) fn take(&mut self) -> Option<Box<T>> {
        let taken = self.free.pop();
        self.fewest = self.fewest.min(self.free.len());
        taken
    }

    pub(super) fn give(&mut self, done: Box<T>) {
        self.free.push(done);
    }

    /// Frees those that nobody has needed since the last call, not all at once where they are many.
    pub(super) fn trim(&mut self) {
        let kept = self.free.len() - self.fewest.min(MOST);
        self.free.truncate(kept);
        if kept < self.free.capacity() / 4 {
            self.free.shrink_to(2 * kept);
        }
        self.fewest = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: usize) -> Spare<usize> {
        let mut spare = Spare::new();
        (0..count).for_each(|at| spare.give(Box::new(at)));
        spare
    }

    #[test]
    fn what_is_needed_again_and_again_is_kept_and_the_rest_freed_in_the_second_call() {
        let mut spare = filled(100);
        spare.trim();
        assert_eq!(spare.len(), 100, "nobody has had the time to need them");
        for _ in 0..3 {
            let taken: Vec<_> = (0..30).map_while(|_| spare.take()).collect();
            assert_eq!(taken.len(), 30);
            taken.into_iter().for_each(|one| spare.give(one));
            spare.trim();
            assert_eq!(spare.len(), 30);
        }
        spare.trim();
        assert_eq!((spare.len(), spare.free.capacity()), (0, 0));
        assert!(spare.take().is_none());
    }

    #[test]
    fn many_are_freed_in_several_calls() {
        let mut spare = filled(2 * MOST + 1);
        for left in [2 * MOST + 1, MOST + 1, 1, 0] {
            spare.trim();
            assert_eq!(spare.len(), left);
        }
    }
}
