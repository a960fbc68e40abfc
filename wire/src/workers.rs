//! How the numbers of a node show which of its workers they belong to.
//!
//! A node may have several workers, each with QPs, connections and handshakes of its own. The low
//! bits of every number that it hands out (QPNs, numbers of connections, and above the lowest bit
//! of communication IDs) are the worker's: whoever sees a packet knows whose it is, and nobody
//! looks it up.

/// How many workers a node has: 1 to [`Workers::MOST`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Workers(u8); // INVARIANT: 1 ..= MOST.

impl Workers {
    /// Most workers of a node.
    pub const MOST: u8 = 64;
    /// One worker: no number shows anything.
    pub const ONE: Self = Self(1);

    /// `None` when `count` is 0 or more than [`MOST`](Self::MOST).
    pub const fn new(count: u8) -> Option<Self> {
        if count >= 1 && count <= Self::MOST {
            Some(Self(count))
        } else {
            None
        }
    }

    /// The workers.
    pub const fn count(self) -> u8 {
        self.0
    }

    /// Low bits of a number that are the worker's, 0 to 6.
    pub const fn bits(self) -> u32 {
        self.0.next_power_of_two().trailing_zeros()
    }

    /// The worker that `number` belongs to, going by its low bits. Where those name one that is not
    /// there, which numbers that were handed out never do, it is one of the first.
    #[inline]
    pub const fn owner(self, number: u32) -> u8 {
        let named = (number & ((1 << self.bits()) - 1)) as u8;
        if named < self.0 {
            named
        } else {
            named - self.0
        }
    }

    /// The worker for what a peer begins and names by `number`, one of its own: the same whenever
    /// it names it, and each gets a like share of any run of numbers. The kernel does the same sum
    /// where it picks sockets (dataplane/src/udp/steer.rs).
    pub const fn spread(self, number: u32) -> u8 {
        let mixed = number.wrapping_mul(Self::SPREAD) >> 16;
        ((mixed * self.0 as u32) >> 16) as u8
    }

    /// The worker for a QP whose peer's is `number`, at a node of `theirs`: where all QPs of two
    /// nodes are placed so, as many pairs of workers talk as the larger node has workers, and all
    /// of them equally much if the numbers are any run of each of the peer's workers.
    pub const fn facing(self, theirs: Self, number: u32) -> u8 {
        let theirs_is = theirs.owner(number);
        if theirs_is >= self.0 {
            return theirs_is % self.0;
        }
        // Ours that face that one: it, and each `theirs.0`-th behind it.
        let several = Self((self.0 - theirs_is).div_ceil(theirs.0));
        theirs_is + theirs.0 * several.spread(number >> theirs.bits())
    }

    /// What numbers are multiplied with for that: 2^32 divided by the golden ratio.
    pub const SPREAD: u32 = 0x9e37_79b1;

    /// All of them, in order.
    pub fn iter(self) -> impl Iterator<Item = Worker> {
        (0..self.0).map(move |index| Worker { of: self, index })
    }
}

/// One worker of a node.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Worker {
    of: Workers,
    // INVARIANT: below the number of workers.
    index: u8,
}

impl Worker {
    /// The worker of a node that has no other.
    pub const ONLY: Self = Self {
        of: Workers::ONE,
        index: 0,
    };

    /// Its place among all, from 0.
    pub const fn index(self) -> u8 {
        self.index
    }

    /// All workers of its node.
    pub const fn of(self) -> Workers {
        self.of
    }

    /// Whether `number` is one of those that this worker hands out.
    #[inline]
    pub const fn owns(self, number: u32) -> bool {
        number & ((1 << self.of.bits()) - 1) == self.index as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_no_node_has_are_refused() {
        assert_eq!(Workers::new(0), None);
        assert_eq!(Workers::new(65), None);
        assert_eq!(Workers::new(1), Some(Workers::ONE));
        assert_eq!(Workers::new(64).map(Workers::count), Some(64));
    }

    #[test]
    fn every_number_has_one_owner_that_is_there() {
        for count in 1..=Workers::MOST {
            let Some(workers) = Workers::new(count) else {
                panic!("{count} workers may be");
            };
            assert!(1 << workers.bits() >= count && 1_u32 << workers.bits() < 2 * u32::from(count));
            for number in 0..256 {
                let owner = workers.owner(number);
                assert!(owner < count, "{number} of {count}");
                for worker in workers.iter().filter(|worker| worker.owns(number)) {
                    assert_eq!(worker.index(), owner);
                }
            }
        }
    }

    #[test]
    fn any_run_of_numbers_is_spread_evenly() {
        for count in 1..=Workers::MOST {
            let Some(workers) = Workers::new(count) else {
                panic!("{count} workers may be");
            };
            for step in [1, 2, 64, 1000] {
                let mut shares = [0_u32; Workers::MOST as usize];
                for number in 0..1000_u32 {
                    shares[usize::from(workers.spread(0x12_3456 + number * step))] += 1;
                }
                let even = 1000 / u32::from(count);
                let (taken, none) = shares.split_at(count.into());
                assert!(
                    taken
                        .iter()
                        .all(|share| (even / 2..=2 * even + 2).contains(share))
                );
                assert_eq!(none.iter().sum::<u32>(), 0);
            }
        }
    }

    #[test]
    fn workers_that_face_each_other_are_few_pairs_and_none_is_left_out() {
        for (ours, theirs) in (1..=Workers::MOST).flat_map(|a| [1, 2, 3, 8, 64].map(|b| (a, b))) {
            let [Some(ours), Some(theirs)] = [ours, theirs].map(Workers::new) else {
                panic!("so many workers may be");
            };
            let mut pairs = [[0_u32; 64]; 64];
            for number in 0..64 * 1000 {
                let asking = theirs.owner(number);
                if number & ((1 << theirs.bits()) - 1) == u32::from(asking) {
                    pairs[usize::from(ours.facing(theirs, number))][usize::from(asking)] += 1;
                }
            }
            let talking = pairs.as_flattened().iter().filter(|count| **count > 0);
            let larger = usize::from(ours.count().max(theirs.count()));
            assert_eq!(talking.count(), larger, "{ours:?} {theirs:?}");
            let at = |worker: u8| pairs[usize::from(worker)].iter().sum::<u32>();
            let shares = || ours.iter().map(|worker| at(worker.index()));
            let (least, most) = (shares().min(), shares().max());
            assert!(
                least > Some(0) && most < least.map(|least| 4 * least),
                "{ours:?} {theirs:?}"
            );
        }
    }

    #[test]
    fn the_low_bits_name_the_worker() {
        let Some(three) = Workers::new(3) else {
            panic!("three workers may be");
        };
        let owners: [u8; 8] = core::array::from_fn(|number| three.owner(number as u32));
        assert_eq!(owners, [0, 1, 2, 0, 0, 1, 2, 0]);
        assert!((0..1000).all(|number| Worker::ONLY.owns(number)));
    }
}
