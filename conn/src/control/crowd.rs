//! Whether the queue explains what is lost.

/// So many times as often as with a short queue, packets are lost with a long one where the queue
/// overflows.
const FACTOR: u128 = 4;
/// So many packets count as lost with a short queue before any was: a few losses prove nothing.
const PRIOR_PACKETS: u64 = 1;
/// A queue that is short for less than this part of what comes while it is long stands.
const STANDS: u64 = 16;
/// What the longest queue loses in a round.
const FADES: u64 = 64;
/// Packets, and windows, over which loss is remembered.
const REMEMBERED_PACKETS: u64 = 1024;
const REMEMBERED_WINDOWS: u64 = 16;

/// Bytes that came and bytes that were lost.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    came: u64,
    lost: u64,
}

/// What a round has seen of the queue, in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queues {
    pub(super) shortest: u64,
    pub(super) longest: u64,
    /// Whether a queue that is never short would explain all that was lost.
    pub(super) stands: bool,
    /// A shorter one explains nothing.
    pub(super) least: u64,
}

/// What was lost with a long queue and with a short one. A queue that overflows is as long as it
/// can be when it does, so loss that comes as often with a short one is not of the queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Crowd {
    /// Longest queue of late in ns; it fades.
    peak: u64,
    long: Tally,
    short: Tally,
    /// Bytes lost since the last round trip was measured, and with a long queue in this round.
    pending: u64,
    lost: u64,
}

impl Crowd {
    pub(super) fn lost(&mut self, bytes: u64) {
        self.pending += bytes;
    }

    /// `bytes` came, with a queue of so many ns.
    pub(super) fn came(&mut self, bytes: u64, queue: u64) {
        let lost = core::mem::take(&mut self.pending);
        let tally = if queue * 4 >= self.peak * 3 {
            self.lost += lost;
            &mut self.long
        } else if queue * 2 <= self.peak {
            &mut self.short
        } else {
            return;
        };
        tally.came += bytes;
        tally.lost += lost;
    }

    /// What was lost had arrived.
    pub(super) fn forget(&mut self) {
        (self.pending, self.lost) = (0, 0);
    }

    /// A round has ended. Whether the queue overflowed in it: something was lost for which it is
    /// the reason.
    pub(super) fn end_round(&mut self, queues: &Queues, window: u64, packet: u64) -> bool {
        self.peak = (self.peak - self.peak / FADES).max(queues.longest);
        let lost = core::mem::take(&mut self.lost);
        let never_short =
            queues.shortest * 2 >= self.peak || self.short.came * STANDS < self.long.came;
        let stands = queues.stands && never_short;
        let overflows =
            lost > 0 && self.peak >= queues.least && (stands || self.is_of_queue(packet));
        if self.long.came + self.short.came
            > REMEMBERED_WINDOWS * window + REMEMBERED_PACKETS * packet
        {
            for tally in [&mut self.long, &mut self.short] {
                tally.came /= 2;
                tally.lost /= 2;
            }
        }
        overflows
    }

    fn is_of_queue(&self, packet: u64) -> bool {
        let (long, short) = (self.long, self.short);
        u128::from(long.lost) * u128::from(short.came)
            > FACTOR
                * u128::from(short.lost + PRIOR_PACKETS * packet)
                * u128::from(long.came + long.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u64 = 1500;
    const STEP: u64 = 1_000;

    /// Rounds of ten packets with a queue that grows from nothing to ten steps, in which `lost`
    /// says whether a packet is lost with a queue of so many steps. How many rounds overflow.
    fn sawtooth(stands: bool, lost: impl Fn(u64, u64) -> bool) -> u32 {
        let mut crowd = Crowd::default();
        let mut overflows = 0;
        for round in 0..100 {
            for step in 0..=10 {
                if lost(round, step) {
                    crowd.lost(PACKET);
                }
                crowd.came(PACKET, step * STEP);
            }
            let queues = Queues {
                shortest: 0,
                longest: 10 * STEP,
                stands,
                least: STEP,
            };
            overflows += u32::from(crowd.end_round(&queues, 10 * PACKET, PACKET));
        }
        overflows
    }

    #[test]
    fn loss_with_a_full_queue_alone_is_an_overflow() {
        assert!(sawtooth(false, |_, step| step == 10) > 90);
    }

    #[test]
    fn loss_as_often_with_a_short_queue_is_none() {
        assert!(sawtooth(false, |round, step| (round + step) % 10 == 0) < 3);
        assert_eq!(sawtooth(true, |_, _| false), 0);
    }

    #[test]
    fn a_queue_that_stands_explains_what_is_lost_if_it_is_long_enough() {
        let overflows = |least| {
            let mut crowd = Crowd::default();
            crowd.came(10 * PACKET, 9 * STEP);
            crowd.lost(PACKET);
            crowd.came(PACKET, 9 * STEP);
            let queues = Queues {
                shortest: 8 * STEP,
                longest: 9 * STEP,
                stands: true,
                least,
            };
            crowd.end_round(&queues, 10 * PACKET, PACKET)
        };
        assert!(overflows(STEP));
        assert!(!overflows(20 * STEP));
    }
}
