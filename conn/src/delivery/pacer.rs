//! Pacing: a leaky bucket in time.

use crate::time::{Instant, MICROSECOND, MILLISECOND, SECOND};

/// Bytes that may leave at once: what segmentation offload takes in one piece.
const BURST_BYTES: u64 = 64 << 10;
/// Longest burst: what a sender that sleeps for so long can still make up for.
const MAX_BURST_NS: u64 = MILLISECOND;
/// A burst so short that hosts make worse ones, up to [`BURST_BYTES`].
const SHORT_BURST_NS: u64 = MICROSECOND;
/// Where a burst holds one packet of full size only, small ones leave together: one more packet may
/// begin while they have taken at most such a part of it.
const SMALL_PART: u64 = 8;
/// What waits for a rate that has grown so many times since waits no longer for that: a packet that
/// left when the path was taken for slow, after its peer stood still, say, would hold back those
/// behind it for as long as it was to take then.
const RELIEF: u64 = 4;
/// What a sender that was told to wait and comes late makes up for, in bursts and in bytes: hosts
/// that are busy have rounds which take longer than a burst does to leave. With a burst of a
/// quarter of what we may have of a queue that is all of it.
const LATE_BURSTS: u64 = 3;
const LATE_BYTES: u64 = 2 * BURST_BYTES;
/// Who comes later than this was not kept by a round.
const LATEST_NS: u64 = MILLISECOND;
/// Costs of a byte are kept in ns / 2^20.
const COST_SHIFT: u32 = 20;

#[derive(Debug, Default)]
pub(super) struct Pacer {
    /// Bytes per second; 0 for no pacing.
    rate: u64,
    burst: u64,
    /// Time one byte takes, in ns / 2^20; 0 for no pacing.
    cost: u64,
    burst_ns: u64,
    packet_ns: u64,
    /// When everything sent so far has left at the rate that was when it was sent.
    free_at: Instant,
    /// What a byte cost then.
    charged: u64,
    held_back: bool,
    /// A sender that was held back has not asked since.
    waits: bool,
    /// When a sender asked that was held back before.
    late_at: Instant,
}

impl Pacer {
    /// Sets the rate in bytes per second; `burst` is how many the path may get at once.
    pub(super) fn set_rate(&mut self, rate: Option<u64>, packet: u64, burst: u64) {
        let rate = rate.map_or(0, |rate| rate.max(1));
        if rate == self.rate && burst == self.burst {
            return;
        }
        (self.rate, self.burst) = (rate, burst);
        if rate == 0 {
            self.cost = 0;
            return;
        }
        self.cost = ((SECOND << COST_SHIFT) / rate).max(1);
        // As much as is sent in no time is no burst. Whole ones of what takes one piece where that
        // is many: a packet more would take a way of its own through the kernel.
        let short = (rate / (SECOND / SHORT_BURST_NS)).min(BURST_BYTES);
        let most = burst.max(short).min(rate / (SECOND / MAX_BURST_NS));
        let most = if most > BURST_BYTES {
            most / BURST_BYTES * BURST_BYTES
        } else {
            most.max((2 * packet).min(BURST_BYTES.max(packet)))
        };
        self.burst_ns = self.time(most).max(1);
        self.packet_ns = self.time(packet).clamp(1, self.burst_ns);
    }

    const fn time(&self, bytes: u64) -> u64 {
        self.cost.saturating_mul(bytes) >> COST_SHIFT
    }

    /// Packets of full size that may leave now. Small ones leave room: ask again when they are
    /// sent.
    #[inline]
    pub(super) fn allowance(&mut self, now: Instant) -> u64 {
        if self.cost == 0 {
            return u64::MAX;
        }
        if self.charged > self.cost.saturating_mul(RELIEF) {
            self.relieve(now);
        }
        let backlog = self.free_at.as_nanos().saturating_sub(now.as_nanos());
        // What has drained before now is no credit, but for who was told to wait.
        if (self.held_back || self.waits) && now.since(self.due()) <= LATEST_NS {
            self.late_at = now;
        }
        self.waits = false;
        let late = now.since(self.free_at).min(self.most_late(now));
        let packets = (self.burst_ns + late).saturating_sub(backlog) / self.packet_ns;
        let packets = packets.max(u64::from(backlog <= self.burst_ns / SMALL_PART));
        self.held_back = packets == 0;
        packets
    }

    #[inline]
    pub(super) fn sent(&mut self, now: Instant, bytes: u64) {
        if self.cost != 0 {
            let time = self.time(bytes);
            if time >= self.free_at.since(now) {
                self.charged = self.cost;
            }
            let least = now.as_nanos().saturating_sub(self.most_late(now));
            self.free_at = self.free_at.max(Instant::from_nanos(least)) + time;
        }
    }

    /// Time for which a sender may make up now.
    #[inline]
    fn most_late(&self, now: Instant) -> u64 {
        match self.late_at == now {
            true => (self.burst_ns.saturating_mul(LATE_BURSTS)).min(self.time(LATE_BYTES)),
            false => 0,
        }
    }

    /// What was sent at a rate far below that of now leaves at that of now.
    #[cold]
    fn relieve(&mut self, now: Instant) {
        let backlog = u128::from(self.free_at.since(now)) * u128::from(self.cost);
        self.free_at = now + (backlog / u128::from(self.charged)) as u64;
        self.charged = self.cost;
    }

    /// Something else keeps a sender that was held back.
    #[inline]
    pub(super) fn kept(&mut self) {
        self.waits = false;
    }

    /// Whether a sender was told to wait.
    pub(super) fn is_holding_back(&self) -> bool {
        self.held_back
    }

    /// A sender that still wants to send will ask again.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.held_back && now >= self.timeout() {
            (self.held_back, self.waits) = (false, true);
        }
    }

    /// When a sender that was held back may send a quarter of a burst, and a packet at least, or
    /// [`Instant::FAR`].
    pub(super) fn timeout(&self) -> Instant {
        if self.held_back && self.cost != 0 {
            self.due()
        } else {
            Instant::FAR
        }
    }

    /// The same, for one that was.
    fn due(&self) -> Instant {
        let backlog = (self.burst_ns / 4 * 3).min(self.burst_ns - self.packet_ns);
        let backlog = backlog.max(self.burst_ns / SMALL_PART);
        Instant::from_nanos(self.free_at.as_nanos().saturating_sub(backlog))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacer(rate: u64, packet: u64, burst: u64) -> Pacer {
        let mut pacer = Pacer::default();
        pacer.set_rate(Some(rate), packet, burst);
        pacer
    }

    #[test]
    fn a_burst_is_whole_super_packets_and_nothing_after_them() {
        let now = Instant::from_nanos(SECOND);
        let mut pacer = pacer(10_000_000_000, 8268, 64 << 10);
        assert_eq!(pacer.allowance(now), 7);
        pacer.sent(now, 7 * 8268);
        assert_eq!(pacer.allowance(now), 0, "the rest of 64 KiB holds none");
        let at = pacer.timeout();
        assert!(at > now);
        assert!(pacer.allowance(at) > 0, "it waited for so much");
    }

    #[test]
    fn a_packet_as_large_as_a_burst_waits_until_there_is_room_for_it() {
        let mut now = Instant::from_nanos(SECOND);
        let mut pacer = pacer(1_000_000_000, 65_535, 32 << 10);
        for _ in 0..100 {
            assert_eq!(pacer.allowance(now), 1);
            pacer.sent(now, 65_535);
            assert_eq!(pacer.allowance(now), 0);
            now = pacer.timeout();
        }
        let took = now.since(Instant::from_nanos(SECOND));
        assert!((6_400_000..6_600_000).contains(&took), "{took}");
    }

    #[test]
    fn small_packets_leave_together_where_a_burst_holds_one_of_full_size() {
        let now = Instant::from_nanos(SECOND);
        let mut pacer = pacer(10_000_000_000, 65_507, 64 << 10);
        for sent in 0..8 {
            assert_eq!(pacer.allowance(now), 1, "after {sent}");
            pacer.sent(now, 1024);
        }
        pacer.sent(now, 1024);
        assert_eq!(pacer.allowance(now), 0, "an eighth of a burst is exceeded");
        let at = pacer.timeout();
        assert!(at > now);
        assert_eq!(pacer.allowance(at), 1, "it waited for so much");
        // A packet of full size more is no longer burst than an eighth more.
        pacer.sent(at, 65_507);
        assert_eq!(pacer.allowance(at), 0);
    }

    #[test]
    fn who_waits_for_a_packet_as_large_as_a_burst_is_woken_before_the_path_runs_dry() {
        let now = Instant::from_nanos(SECOND);
        let mut pacer = pacer(1_000_000_000, 65_507, 64 << 10);
        pacer.sent(now, 65_507);
        assert_eq!(pacer.allowance(now), 0);
        let waits = pacer.timeout().since(now);
        assert!(waits <= 65_507 - (65_536 / SMALL_PART) + 2, "{waits}");
    }

    #[test]
    fn what_left_when_the_path_was_taken_for_slow_holds_nothing_back_once_it_is_known_to_be_fast() {
        let now = Instant::from_nanos(SECOND);
        let mut pacer = pacer(100_000, 65_507, 64 << 10);
        pacer.sent(now, 65_507);
        assert_eq!(pacer.allowance(now), 0);
        pacer.set_rate(Some(1_000_000_000), 65_507, 64 << 10);
        let later = now + 10_000;
        assert_eq!(pacer.allowance(later), 0, "it has not left");
        assert!(pacer.timeout().since(later) < 65_507);
        assert_eq!(pacer.allowance(pacer.timeout()), 1);
        // A rate that grows a little changes nothing of what was sent.
        pacer.sent(later, 65_507);
        let free_at = pacer.free_at;
        pacer.set_rate(Some(3_000_000_000), 65_507, 64 << 10);
        pacer.allowance(later);
        assert_eq!(pacer.free_at, free_at);
    }

    /// Bytes that a sender sends in a millisecond that always has some, and asks once per round of
    /// so many ns; and the most of a round.
    fn sent_in_rounds(pacer: &mut Pacer, round: u64) -> (u64, u64) {
        const PACKET: u64 = 4096;
        let (mut now, mut all, mut most) = (Instant::from_nanos(SECOND), 0, 0);
        while now.as_nanos() < SECOND + MILLISECOND {
            pacer.handle_timeout(now);
            let mut burst = 0;
            loop {
                let packets = pacer.allowance(now);
                if packets == 0 {
                    break;
                }
                pacer.sent(now, packets * PACKET);
                burst += packets * PACKET;
            }
            (all, most) = (all + burst, most.max(burst));
            now = now + round;
        }
        (all, most)
    }

    #[test]
    fn who_has_long_rounds_is_no_slower_as_long_as_little_has_to_be_made_up_for() {
        // 4 bytes per ns; bursts of 24 KiB take 6 us.
        for round in [500, 3_000, 7_000, 15_000, 25_000] {
            let mut pacer = pacer(4_000_000_000, 4096, 24 << 10);
            let (all, most) = sent_in_rounds(&mut pacer, round);
            assert!((3_800_000..4_200_000).contains(&all), "{round}: {all}");
            assert!(most <= (24 << 10) + 4 * round.max(6_000), "{round}: {most}");
        }
        // There is an end to that: three bursts, and 128 KiB.
        for (burst, least, most) in [
            (24 << 10, 80 << 10, 96 << 10),
            (64 << 10, 176 << 10, 192 << 10),
        ] {
            let mut pacer = pacer(4_000_000_000, 4096, burst);
            let (_, sent) = sent_in_rounds(&mut pacer, 100_000);
            assert!((least..=most).contains(&sent), "{burst}: {sent}");
        }
    }

    #[test]
    fn who_wanted_nothing_makes_up_for_nothing() {
        let mut now = Instant::from_nanos(SECOND);
        let mut pacer = pacer(4_000_000_000, 4096, 24 << 10);
        for _ in 0..10 {
            assert_eq!(pacer.allowance(now), 6);
            pacer.sent(now, 4 * 4096);
            now = now + 100_000;
        }
        let held_back = |pacer: &mut Pacer, now: Instant| {
            pacer.sent(now, 6 * 4096);
            assert_eq!(pacer.allowance(now), 0);
        };
        // Who makes up for some of what it missed had nothing more to send.
        held_back(&mut pacer, now);
        now = now + 12_000;
        assert!(pacer.allowance(now) > 6);
        pacer.sent(now, 4096);
        now = now + 1_000;
        assert_eq!(pacer.allowance(now), 6);
        // Something else kept it meanwhile.
        held_back(&mut pacer, now);
        now = now + 12_000;
        pacer.handle_timeout(now);
        pacer.kept();
        assert_eq!(pacer.allowance(now), 6);
        // No round takes so long.
        held_back(&mut pacer, now);
        now = now + 2 * MILLISECOND;
        assert_eq!(pacer.allowance(now), 6);
    }

    #[test]
    fn no_rate_is_too_high_to_send_at() {
        let now = Instant::from_nanos(SECOND);
        for rate in [u64::MAX, 1 << 50, 1 << 40] {
            let mut pacer = pacer(rate, 8268, 128 << 10);
            assert!(pacer.allowance(now) > 0, "{rate}");
            pacer.sent(now, 8268);
            assert!(pacer.allowance(now + 1_000) > 0, "{rate}");
        }
    }
}
