//! Many timers, of which most are never waited for: queues and a heap that forget nothing by
//! themselves.
//!
//! Nothing is ever cancelled. Whoever armed a timer finds out when it fires whether it still means
//! anything (a serial number in its key), and arms another one if it fired early. That makes arming
//! cheap, and the order in which timers fire depends on nothing but the order of the calls.
//!
//! There may be a million, but of a few kinds, each with a delay of its own, so that those of one
//! kind come in the order of their times. They stand in *lanes*, which cost the same however long
//! they are; what fits into none goes into a heap.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use trunkline_conn::time::Instant;

/// Lanes: one for each usual delay.
const LANES: usize = 4;

/// Timers with keys; equal times fire in the order in which they were armed.
#[derive(Clone, Debug)]
pub struct Timers<K> {
    /// Each in the order of its times.
    lanes: [VecDeque<Entry<K>>; LANES],
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
            lanes: [const { VecDeque::new() }; LANES],
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
        let entry = Entry {
            at,
            serial: self.armed,
            key,
        };
        self.armed += 1;
        match self.lane_for(at) {
            Some(lane) => self.lanes[lane].push_back(entry),
            None => self.heap.push(Reverse(entry)),
        }
    }

    /// The lane whose last timer is the latest before `at`; an empty one if there is none.
    fn lane_for(&self, at: Instant) -> Option<usize> {
        let mut best: Option<(usize, Option<Instant>)> = None;
        for (lane, queue) in self.lanes.iter().enumerate() {
            let last = queue.back().map(|entry| entry.at);
            let fits = last.is_none_or(|last| last <= at);
            if fits && best.is_none_or(|(_, other)| other < last) {
                best = Some((lane, last));
            }
        }
        best.map(|(lane, _)| lane)
    }

    /// The next timer: the lane that it is in, if it is in one.
    fn first(&self) -> Option<(&Entry<K>, Option<usize>)> {
        let lanes = self.lanes.iter().enumerate();
        let lanes = lanes.filter_map(|(lane, queue)| Some((queue.front()?, Some(lane))));
        let heap = self.heap.peek().map(|Reverse(entry)| (entry, None));
        lanes.chain(heap).min_by_key(|(entry, _)| entry.rank())
    }

    /// When the next timer is due.
    pub fn next(&self) -> Option<Instant> {
        self.first().map(|(entry, _)| entry.at)
    }

    /// The key of the next timer, if it is due at `now`.
    pub fn pop_due(&mut self, now: Instant) -> Option<K> {
        let (_, lane) = self.first().filter(|(entry, _)| entry.at <= now)?;
        let entry = match lane {
            Some(lane) => self.lanes[lane].pop_front(),
            None => self.heap.pop().map(|Reverse(entry)| entry),
        };
        entry.map(|entry| entry.key)
    }

    /// Timers that have not fired yet.
    pub fn len(&self) -> usize {
        let lanes = self.lanes.iter().map(VecDeque::len);
        lanes.sum::<usize>() + self.heap.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Copy + Eq> Default for Timers<K> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn timers_of_one_time_fire_in_the_order_in_which_they_were_armed() {
        let mut timers = Timers::new();
        for key in 0..100 {
            timers.arm(at(5), key);
        }
        timers.arm(at(4), 1000);
        assert_eq!(timers.pop_due(at(5)), Some(1000));
        for key in 0..100 {
            assert_eq!(timers.pop_due(at(5)), Some(key));
        }
        assert_eq!(timers.pop_due(at(5)), None);
    }

    #[test]
    fn nothing_fires_early() {
        let mut timers = Timers::new();
        assert_eq!(timers.next(), None);
        timers.arm(at(10), 'x');
        assert_eq!((timers.next(), timers.pop_due(at(9))), (Some(at(10)), None));
        assert_eq!((timers.pop_due(at(10)), timers.next()), (Some('x'), None));
    }

    #[test]
    fn what_is_armed_for_a_time_that_never_comes_takes_no_room() {
        let mut timers = Timers::new();
        timers.arm(Instant::FAR, 1);
        assert!(timers.is_empty());
        assert_eq!(timers.pop_due(Instant::FAR), None);
    }

    #[test]
    fn timers_of_a_few_delays_stand_in_lanes_of_their_own() {
        let mut timers = Timers::new();
        for now in 0..1000 {
            for (kind, delay) in [50, 3000, 7].into_iter().enumerate() {
                timers.arm(at(now + delay), kind);
            }
        }
        assert!(timers.heap.is_empty());
        assert_eq!(timers.len(), 3000);
    }

    proptest! {
        /// Arms and fires at random, beside a list that is sorted anew each time.
        #[test]
        fn timers_agree_with_a_sorted_list(
            steps in prop::collection::vec((any::<bool>(), 0_u64..50), 0..200),
        ) {
            let mut timers = Timers::new();
            let mut model: Vec<(u64, usize)> = Vec::new();
            for (serial, (arm, ns)) in steps.into_iter().enumerate() {
                if arm {
                    timers.arm(at(ns), serial);
                    model.push((ns, serial));
                    model.sort_unstable();
                } else {
                    let due = model.first().copied().filter(|(first, _)| *first <= ns);
                    prop_assert_eq!(timers.pop_due(at(ns)), due.map(|(_, serial)| serial));
                    if due.is_some() {
                        model.remove(0);
                    }
                }
                prop_assert_eq!(timers.next(), model.first().map(|(ns, _)| at(*ns)));
                prop_assert_eq!(timers.len(), model.len());
            }
        }
    }
}
