//! Communication IDs that find their record without a search and that strangers cannot guess.

use crate::random::Random;
use trunkline_conn::secret::Permutation32;
use trunkline_wire::Worker;
use trunkline_wire::cm::CommId;

/// Bits of an ID that hold the place of the record.
pub(crate) const INDEX_BITS: u32 = 20;
/// Bits that tell the users of one place apart.
const TAG_MASK: u32 = 0xfff;

/// IDs of a place that are used before one of them comes back.
const GAP: u32 = 32;

/// Whose records an ID names. The low bit tells, and the bits above it which worker's they are: a
/// datagram that names an ID of ours finds its manager by them, and no ID belongs to two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    /// Handshakes between Trunkline nodes.
    Nodes,
    /// Connections of ordinary hosts.
    Ibta,
}

impl Side {
    pub(crate) const fn of(id: CommId) -> Self {
        if id.0 & 1 == 0 {
            Self::Nodes
        } else {
            Self::Ibta
        }
    }
}

/// A secret permutation of 32 bits: place and tag go in, what looks random comes out. Guessing the
/// ID of one of `n` records takes 2^32 / `n` tries, and the peer's ID has to be guessed with it.
#[derive(Clone, Debug)]
pub(crate) struct CommIds {
    side: Side,
    worker: Worker,
    secret: Permutation32,
}

impl CommIds {
    pub(crate) fn new((side, worker): (Side, Worker), random: &mut impl Random) -> Self {
        Self {
            side,
            worker,
            secret: Permutation32::draw(|| random.next()),
        }
    }

    /// An ID for a new user of the place `index`, whose last one had the ID `last`, or none: of
    /// this side and worker, which one of 128 is at worst, and not 0, which means "no ID".
    ///
    /// No ID comes back before some [`GAP`] others of its place have been used, or nearly all where
    /// there are no more: the peer may remember what is forgotten here, and take an ID that it
    /// remembers for the old connection's. For that the IDs of a place have an order, which is
    /// secret; as far as the gap allows some of them are left out, so that who has seen all of
    /// them has still to guess which one is next.
    pub(crate) fn draw(&self, index: u32, last: CommId, random: &mut impl Random) -> CommId {
        let fits =
            |id: CommId| id.0 != 0 && Side::of(id) == self.side && self.worker.owns(id.0 >> 1);
        let (mut tag, mut left_out) = match last {
            CommId(0) => (random.next() as u32, 0),
            last => {
                let step = random.next() as u32 % self.longest_step();
                ((self.secret.open(last.0) >> INDEX_BITS) + 1, step)
            }
        };
        loop {
            let id = self.seal(index, tag & TAG_MASK);
            if fits(id) {
                if left_out == 0 {
                    return id;
                }
                left_out -= 1;
            }
            tag = tag.wrapping_add(1);
        }
    }

    /// How far in the order of a place the next ID may be from the last one.
    const fn longest_step(&self) -> u32 {
        let ids = (TAG_MASK + 1) >> (1 + self.worker.of().bits());
        if ids > GAP { ids / GAP } else { 1 }
    }

    const fn seal(&self, index: u32, tag: u32) -> CommId {
        CommId(self.secret.seal(tag << INDEX_BITS | index))
    }

    /// The place whose user an ID names.
    pub(crate) const fn place(&self, id: CommId) -> u32 {
        self.secret.open(id.0) & ((1 << INDEX_BITS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use trunkline_wire::Workers;

    /// Numbers that look random, the same each time.
    fn numbers() -> impl FnMut() -> u64 {
        let mut state = 7_u64;
        move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 16
        }
    }

    #[test]
    fn an_id_leads_to_its_place_and_none_is_zero() {
        let mut random = numbers();
        let many = Workers::new(Workers::MOST)
            .into_iter()
            .flat_map(Workers::iter);
        let workers = many.step_by(21).chain([Worker::ONLY]);
        let all = workers.flat_map(|worker| [Side::Nodes, Side::Ibta].map(|side| (side, worker)));
        for (side, worker) in all {
            let ids = CommIds::new((side, worker), &mut random);
            let mut last = CommId(0);
            for index in (0..1 << INDEX_BITS).step_by(997) {
                let id = ids.draw(index, last, &mut random);
                assert_ne!(id, CommId(0));
                assert_eq!(Side::of(id), side);
                assert!(worker.owns(id.0 >> 1));
                assert_eq!(ids.place(id), index);
                let again = ids.draw(index, id, &mut random);
                assert_ne!(again, id);
                assert_eq!(ids.place(again), index);
                last = again;
            }
        }
        let ids = CommIds::new((Side::Nodes, Worker::ONLY), &mut random);
        let zero = ids.secret.open(0);
        let tag = u64::from(zero >> INDEX_BITS);
        let other = ids.draw(ids.place(CommId(0)), CommId(0), &mut || tag);
        assert_ne!(other, CommId(0), "the tag that gives 0 is passed over");
    }

    /// The IDs of one place, in the order in which they are drawn.
    fn drawn(workers: u8, count: usize) -> Vec<u32> {
        let mut random = numbers();
        let worker = Workers::new(workers).expect("so many may be").iter().last();
        let worker = worker.expect("there is one");
        let ids = CommIds::new((Side::Ibta, worker), &mut random);
        let next = |last: &CommId| Some(ids.draw(5, *last, &mut random));
        let first = ids.draw(5, CommId(0), &mut || 3);
        core::iter::successors(Some(first), next)
            .map(|id| id.0)
            .take(count)
            .collect()
    }

    #[test]
    fn no_id_comes_back_before_many_others_of_its_place_have_been_used() {
        // The IDs of a place are as many as chance gives it of 4,096.
        for (workers, gap) in [(1, 30), (2, 28), (16, 24), (Workers::MOST, 12)] {
            let ids = drawn(workers, 10_000);
            let mut at = BTreeMap::new();
            for (place, id) in ids.into_iter().enumerate() {
                let before = at.insert(id, place);
                let since = before.map_or(usize::MAX, |before| place - before);
                assert!(since > gap, "{workers} workers: it came back after {since}");
            }
        }
    }

    #[test]
    fn who_has_seen_all_ids_of_a_place_does_not_know_which_is_next() {
        for (workers, most) in [(1, 400), (2, 800), (8, 3_000)] {
            let ids = drawn(workers, 20_000);
            let (seen, then) = ids.split_at(10_000);
            let pairs = seen.windows(2).map(|pair| (pair[0], pair[1]));
            let mut after: BTreeMap<_, _> = pairs.collect();
            let foretold = then.windows(2).filter(|pair| {
                let guess = after.insert(pair[0], pair[1]);
                guess == Some(pair[1])
            });
            let foretold = foretold.count();
            assert!(foretold < most, "{workers} workers: {foretold} of 10,000");
        }
    }

    #[test]
    fn neighbours_have_nothing_in_common() {
        let mut keys = (1..).map(|n: u64| n.wrapping_mul(0x1234_5678_9abc_def1));
        let ids = CommIds::new((Side::Nodes, Worker::ONLY), &mut || {
            keys.next().expect("they do not end")
        });
        let mut changed = 0;
        for index in 0..1_000 {
            changed += (ids.seal(index, 0).0 ^ ids.seal(index ^ 1, 0).0).count_ones();
        }
        assert!(
            (14_000..18_000).contains(&changed),
            "{changed} of 32,000 bits"
        );
    }
}
