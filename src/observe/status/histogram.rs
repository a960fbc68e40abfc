//! Times, counted by their size.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of each power of two: a time is known to a quarter.
const PARTS: u32 = 4;
/// Times from this power of two on share the last buckets: 2^41 ns are 37 minutes.
const LAST: u32 = 40;
const BUCKETS: usize = (LAST * PARTS) as usize;

/// How many times were how long. Read while it is written to: each figure is right, together they
/// may be of different moments.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; BUCKETS],
            sum_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }
}

/// The bucket of a time.
const fn bucket(ns: u64) -> usize {
    if ns < PARTS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2();
    if power > LAST {
        return BUCKETS - 1;
    }
    let part = (ns >> (power - 2)) as u32 & (PARTS - 1);
    ((power - 1) * PARTS + part) as usize
}

/// The longest time of a bucket, but for the last, which has no end.
const fn longest(bucket: usize) -> u64 {
    let next = bucket as u32 + 1;
    if next < PARTS {
        return bucket as u64;
    }
    let (power, part) = (next / PARTS + 1, next % PARTS);
    (((PARTS + part) as u64) << (power - 2)) - 1
}

impl Histogram {
    pub(crate) fn record(&self, ns: u64) {
        self.counts[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// Adds what it counted to `times`.
    pub(crate) fn add_to(&self, times: &mut Times) {
        for (bucket, count) in self.counts.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                *times.buckets.entry(longest(bucket)).or_default() += count;
                times.count += count;
            }
        }
        times.sum_ns += self.sum_ns.load(Ordering::Relaxed);
        times.max_ns = times.max_ns.max(self.max_ns.load(Ordering::Relaxed));
    }
}

/// How long a step took, each time that it was taken.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Times {
    /// Times it was taken.
    pub count: u64,
    /// All of them together, in nanoseconds.
    pub sum_ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// By length: the longest time that counts, in nanoseconds, with how many there were. Each is
    /// at most a quarter longer than the shortest that counts.
    pub buckets: BTreeMap<u64, u64>,
}

impl Times {
    /// The time that `per_mille` of a thousand did not exceed, in nanoseconds, rounded up by a
    /// quarter at most; `None` if there were none.
    pub fn percentile(&self, per_mille: u64) -> Option<u64> {
        let total: u64 = self.buckets.values().sum();
        let wanted = total.checked_mul(per_mille.min(1000))?.div_ceil(1000);
        let mut seen = 0;
        for (longest, count) in &self.buckets {
            seen += count;
            if seen >= wanted.max(1) {
                return Some((*longest).min(self.max_ns));
            }
        }
        None
    }

    /// The average, in nanoseconds; 0 if there were none.
    pub const fn mean_ns(&self) -> u64 {
        match self.sum_ns.checked_div(self.count) {
            Some(mean) => mean,
            None => 0,
        }
    }

    /// Takes those of another worker in.
    pub(crate) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        for (longest, count) in &other.buckets {
            *self.buckets.entry(*longest).or_default() += count;
        }
    }

    /// What came since `earlier`. The longest is that of all times, or the end of the last bucket
    /// where that is less.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let left = |(longest, count): (&u64, &u64)| {
            let before = earlier.buckets.get(longest).copied().unwrap_or(0);
            let left = count.saturating_sub(before);
            (left > 0).then_some((*longest, left))
        };
        let buckets: BTreeMap<_, _> = self.buckets.iter().filter_map(left).collect();
        let end = buckets.last_key_value().map_or(0, |(longest, _)| *longest);
        Self {
            count: self.count.saturating_sub(earlier.count),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            max_ns: self.max_ns.min(end),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        for at in 0..BUCKETS - 1 {
            assert_eq!(bucket(longest(at)), at, "{at}");
            assert_eq!(bucket(longest(at) + 1), at + 1, "{at}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_percentile_is_right_to_a_quarter() {
        let histogram = Histogram::default();
        for ns in 1..=1000 {
            histogram.record(ns * 1000);
        }
        let mut times = Times::default();
        histogram.add_to(&mut times);
        assert_eq!((times.count, times.max_ns), (1000, 1_000_000));
        assert_eq!(times.mean_ns(), 500_500);
        for (per_mille, exact) in [(1, 1000), (500, 500_000), (990, 990_000), (1000, 1_000_000)] {
            let found = times.percentile(per_mille).expect("there are some");
            assert!(
                (exact..=exact * 5 / 4 + 1).contains(&found),
                "{per_mille}: {found}"
            );
        }
        assert_eq!(Times::default().percentile(500), None);
    }

    #[test]
    fn an_interval_has_what_came_in_it() {
        let histogram = Histogram::default();
        histogram.record(10);
        histogram.record(1_000_000);
        let (mut before, mut after) = (Times::default(), Times::default());
        histogram.add_to(&mut before);
        histogram.record(100);
        histogram.add_to(&mut after);
        let between = after.since(&before);
        assert_eq!((between.count, between.sum_ns), (1, 100));
        assert!((100..=125).contains(&between.max_ns));
        assert_eq!(between.percentile(500), Some(between.max_ns));
        assert_eq!(after.since(&after), Times::default());
    }
}
