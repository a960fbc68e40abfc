//! Whether others alone lose what a full queue drops.

/// A queue is full that lacks less than this part of its length.
const LACKS: u64 = 32;
/// Of so many times in a row that the queue fills up, one is for us to give way.
const TIMES: u32 = 3;

/// How often the queue has filled up since something of ours was lost in it.
///
/// A full queue drops a packet for each by which the flows have grown, and that is one of a burst
/// rather than one that is paced. A flow that paces would take what the others leave after each.
#[derive(Clone, Debug, Default)]
pub(super) struct Spared {
    /// Length at which it overflowed, in ns.
    brim: u64,
    full: bool,
    times: u32,
}

impl Spared {
    /// Something of ours was lost in a queue of so many ns.
    pub(super) fn lost(&mut self, longest: u64) {
        *self = Self {
            brim: longest,
            full: true,
            times: 0,
        };
    }

    /// Nobody else fills the queue.
    pub(super) fn forget(&mut self) {
        self.times = 0;
    }

    /// A round has ended in which the queue did not drop what is ours. Whether it has spared us for
    /// long enough.
    pub(super) fn end_round(&mut self, shortest: u64, longest: u64) -> bool {
        let least = self.brim - self.brim / LACKS;
        if longest < least {
            self.full = false;
        } else if shortest >= least && !self.full {
            self.full = true;
            self.times += 1;
        }
        if self.times < TIMES {
            return false;
        }
        self.times = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: u64 = 1_000_000;

    /// So many rounds of a queue that is full in every fourth one.
    fn fill(spared: &mut Spared, rounds: u64) -> u32 {
        let fill = |round| match round % 4 {
            3 => (FULL, FULL),
            _ => (FULL / 2, FULL / 4 * 3),
        };
        let ends = (0..rounds).map(fill);
        ends.map(|(shortest, longest)| u32::from(spared.end_round(shortest, longest)))
            .sum()
    }

    #[test]
    fn who_is_spared_gives_way_at_every_third_full_queue() {
        let mut spared = Spared::default();
        assert_eq!(fill(&mut spared, 40), 0, "none is known to be full");
        spared.lost(FULL);
        assert_eq!(fill(&mut spared, 8), 0);
        assert_eq!(fill(&mut spared, 4), 1);
        assert_eq!(fill(&mut spared, 24), 2);
        assert_eq!(fill(&mut spared, 8), 0);
        spared.lost(FULL);
        assert_eq!(fill(&mut spared, 8), 0, "it was not spared");
    }

    #[test]
    fn a_queue_that_is_never_full_for_a_whole_round_spares_nobody() {
        let mut spared = Spared::default();
        spared.lost(FULL);
        for round in 0..100 {
            let longest = if round % 2 == 0 { FULL } else { FULL / 2 };
            assert!(!spared.end_round(FULL / 4, longest));
        }
    }
}
