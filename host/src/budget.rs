//! What several have together, so much of it and no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How much of something there is for all [`Share`]s of it.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    taken: AtomicU64,
}

/// The budget has not so much left.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("all of {limit} is taken, or nearly")]
pub struct Spent {
    /// How much there is for all.
    pub limit: u64,
}

impl Budget {
    /// One of which nothing is taken.
    pub const fn new(limit: u64) -> Self {
        Self {
            limit,
            taken: AtomicU64::new(0),
        }
    }

    fn take(&self, amount: u64) -> Result<(), Spent> {
        let limit = self.limit;
        let more = |taken: u64| taken.checked_add(amount).filter(|sum| *sum <= limit);
        // It counts, and orders nothing.
        let taken = self
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(drop).map_err(|_| Spent { limit })
    }
}

/// What one of them has of a [`Budget`]: it is given back when this is dropped.
#[derive(Debug)]
pub struct Share {
    of: Arc<Budget>,
    amount: u64,
}

impl Share {
    /// Nothing yet.
    pub fn of(budget: &Arc<Budget>) -> Self {
        let (of, amount) = (Arc::clone(budget), 0);
        Self { of, amount }
    }

    /// How much it is.
    pub const fn amount(&self) -> u64 {
        self.amount
    }

    /// Takes so much more.
    ///
    /// # Errors
    /// Less is left; nothing has changed.
    pub fn grow(&mut self, by: u64) -> Result<(), Spent> {
        self.of.take(by)?;
        self.amount += by;
        Ok(())
    }

    /// Gives so much back.
    ///
    /// # Panics
    /// It is more than the share.
    pub fn shrink(&mut self, by: u64) {
        let left = self.amount.checked_sub(by);
        self.amount = left.expect("nobody gives back what he has not");
        self.of.taken.fetch_sub(by, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_no_more_together_than_there_is_and_give_it_back() {
        let budget = Arc::new(Budget::new(10));
        let mut shares = [0, 1].map(|_| Share::of(&budget));
        assert_eq!(shares[0].grow(6), Ok(()));
        assert_eq!(shares[1].grow(5), Err(Spent { limit: 10 }));
        assert_eq!(shares[1].grow(u64::MAX), Err(Spent { limit: 10 }));
        assert_eq!(shares[1].grow(4), Ok(()));
        shares[0].shrink(2);
        assert_eq!(shares.each_ref().map(Share::amount), [4, 4]);
        let [first, mut second] = shares;
        drop(first);
        assert_eq!(second.grow(7), Err(Spent { limit: 10 }));
        assert_eq!(second.grow(6), Ok(()));
    }

    #[test]
    fn threads_take_no_more_together_than_there_is() {
        let budget = Arc::new(Budget::new(1000));
        let take = || {
            let mut share = Share::of(&budget);
            while share.grow(3).is_ok() {}
            share
        };
        let shares: Vec<Share> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended
                .map(|share| share.expect("it took its share"))
                .collect()
        });
        let all: u64 = shares.iter().map(Share::amount).sum();
        assert_eq!(all, 999);
    }
}
