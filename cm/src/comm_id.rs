//! Communication IDs that find their record without a search and that strangers cannot guess.

use crate::random::Random;
use trunkline_conn::secret::Permutation32;
use trunkline_wire::Worker;
use trunkline_wire::cm::CommId;

/// Bits of an ID that hold the place of the record.
pub(crate) const INDEX_BITS: u32 = 20;
/// Bits that tell the users of one place apart.
const TAG_MASK: u16 = 0xfff;

/// Whose records an ID names. The low bit tells, and the bits above it which worker's they are: a
/// datagram that names an ID of ours finds its manager by them, and no ID belongs to two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    /// Handshakes between Trunkline nodes.
    Nodes,
    /// Connections of ordinary hosts.
    Plain,
}

impl Side {
    pub(crate) const fn of(id: CommId) -> Self {
        if id.0 & 1 == 0 {
            Self::Nodes
        } else {
            Self::Plain
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

    /// A tag for a new user of `index`: another than `last`, one that makes an ID of this side and
    /// worker, which one of 128 does at worst, and none that makes it 0, which means "no ID".
    pub(crate) fn draw_tag(&self, index: u32, last: u16, random: &mut impl Random) -> u16 {
        let mut tag = random.next() as u16 & TAG_MASK;
        let (side, worker) = (self.side, self.worker);
        let fits = |id: CommId| id.0 != 0 && Side::of(id) == side && worker.owns(id.0 >> 1);
        while tag == last || !fits(self.seal(index, tag)) {
            tag = (tag + 1) & TAG_MASK;
        }
        tag
    }

    pub(crate) fn seal(&self, index: u32, tag: u16) -> CommId {
        let plain = u32::from(tag) << INDEX_BITS | index;
        CommId(self.secret.seal(plain))
    }

    /// Place and tag.
    pub(crate) fn open(&self, id: CommId) -> (u32, u16) {
        let plain = self.secret.open(id.0);
        (
            plain & ((1 << INDEX_BITS) - 1),
            (plain >> INDEX_BITS) as u16,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_wire::Workers;

    #[test]
    fn what_was_sealed_opens_and_no_id_is_zero() {
        let mut state = 7_u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 16
        };
        let many = Workers::new(Workers::MOST)
            .into_iter()
            .flat_map(Workers::iter);
        let workers = many.step_by(21).chain([Worker::ONLY]);
        let all = workers.flat_map(|worker| [Side::Nodes, Side::Plain].map(|side| (side, worker)));
        for (side, worker) in all {
            let ids = CommIds::new((side, worker), &mut random);
            let mut last = 0;
            for index in (0..1 << INDEX_BITS).step_by(997) {
                let tag = ids.draw_tag(index, last, &mut random);
                assert_ne!(tag, last);
                let id = ids.seal(index, tag);
                assert_ne!(id, CommId(0));
                assert_eq!(Side::of(id), side);
                assert!(worker.owns(id.0 >> 1));
                assert_eq!(ids.open(id), (index, tag));
                last = tag;
            }
        }
        let ids = CommIds::new((Side::Nodes, Worker::ONLY), &mut random);
        let (index, tag) = ids.open(CommId(0));
        let other = ids.draw_tag(index, tag.wrapping_add(1) & TAG_MASK, &mut || {
            u64::from(tag)
        });
        assert_ne!(other, tag, "the tag that gives 0 is passed over");
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
