//! Many timers, of which most are never waited for: a heap that forgets nothing by itself.
//!
//! Nothing is ever cancelled. Whoever armed a timer finds out when it fires whether it still means
//! anything (a serial number in its key), and arms another one if it fired early. That makes arming
//! cheap, and the order in which timers fire depends on nothing but the order of the calls.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use trunkline_conn::time::Instant;

/// Timers with keys; equal times fire in the order in which they were armed.
#[derive(Clone, Debug)]
pub struct Timers<K> {
    heap: BinaryHeap<Reverse<Entry<K>>>,
    armed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry<K> {
    at: Instant,
    /// How many were armed before it.
    serial: u64,
    key: K,
}

impl<K> Entry<K> {
    const fn rank(&self) -> (Instant, u64) {
        (self.at, self.serial)
    }
}

impl<K> PartialEq for Entry<K> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<K> Eq for Entry<K> {}

impl<K> PartialOrd for Entry<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for Entry<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl<K: Copy + Eq> Timers<K> {
    /// No timers. Allocates nothing.
    pub const fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            armed: 0,
        }
    }

    /// Lets `key` come out of [`pop_due`](Self::pop_due) at `at`, beside any other timer of the
    /// same key. [`Instant::FAR`] never comes, so that it costs nothing.
    pub fn arm(&mut self, at: Instant, key: K) {
        if at == Instant::FAR {
            return;
        }
        self.heap.push(Reverse(Entry {
            at,
            serial: self.armed,
            key,
        }));
        self.armed += 1;
    }

    /// When the next timer is due.
    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// The key of the next timer, if it is due at `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<K> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry.key)
    }

    /// Timers that have not fired yet.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

impl<K: Copy + Eq> Default for Timers<K> {
    fn default() -> Self {
        Self::new()
    }
}
