//! The probe timer: tail loss probe first, retransmission timeout with backoff after it.

use super::rtt::Rtt;
use crate::time::{Instant, MICROSECOND, MILLISECOND, SECOND};

/// Wait for a path nobody has measured.
const FIRST_WAIT_NS: u64 = 10 * MILLISECOND;
/// Shortest wait: less is the jitter of hosts.
const MIN_WAIT_NS: u64 = 50 * MICROSECOND;
/// Longest wait between probes.
const MAX_WAIT_NS: u64 = SECOND;
/// Half of what a peer held packets for is forgotten in so long. A peer that is busy from time to
/// time answers at once in between, as often as it is asked: it is time that says whether it
/// still is.
const HALF_LIFE_NS: u64 = 100 * MILLISECOND;
/// Doublings of the wait.
const MAX_BACKOFF: u32 = 20;

#[derive(Debug, Default)]
pub(super) struct Timers {
    /// Last time something was acknowledged, or the window ceased to be empty.
    pub(super) progress_at: Instant,
    /// What the probe timer counts from.
    base: Instant,
    /// Probes since the last acknowledgement.
    probes: u32,
    /// How long the peer holds packets at most, of late, in ns, before it is known here that they
    /// have arrived: round trips leave that out. It may be busy with something else, or have no
    /// processor.
    held: u64,
    /// When it was held for so long, or half of that was forgotten.
    held_at: Instant,
}

impl Timers {
    /// Nothing has been sent or acknowledged since then.
    pub(super) fn rest_since(&mut self, at: Instant) {
        self.base = at;
    }

    /// How long nothing was sent or acknowledged.
    pub(super) fn rested(&self, now: Instant) -> u64 {
        now.since(self.base)
    }

    /// The window ceased to be empty.
    pub(super) fn progress(&mut self, now: Instant) {
        self.progress_at = now;
    }

    /// For so long nothing could leave that an answer would come to: it counts for nothing.
    pub(super) fn stalled(&mut self, ns: u64) {
        self.progress_at = self.progress_at + ns;
    }

    #[inline]
    pub(super) fn transmitted(&mut self, now: Instant) {
        self.base = now;
    }

    /// Something new was acknowledged. Whether that ended a timeout.
    pub(super) fn acknowledged(&mut self, now: Instant) -> bool {
        let timed_out = self.probes > 1;
        (self.progress_at, self.base, self.probes) = (now, now, 0);
        timed_out
    }

    /// A packet is known to have arrived so much later than the round trip explains.
    #[inline]
    pub(super) fn held(&mut self, now: Instant, ns: u64) {
        if ns >= self.held {
            (self.held, self.held_at) = (ns, now);
            return;
        }
        let since = now.since(self.held_at);
        if since >= HALF_LIFE_NS {
            let halves = since / HALF_LIFE_NS;
            let left = self.held >> halves.min(63);
            (self.held, self.held_at) = match ns > left {
                true => (ns, now),
                false => (left, self.held_at + halves * HALF_LIFE_NS),
            };
        }
    }

    /// A probe is sent. Whether it is the first, which is no sign of trouble yet.
    pub(super) fn probing(&mut self, now: Instant) -> bool {
        self.base = now;
        self.probes = (self.probes + 1).min(MAX_BACKOFF);
        self.probes == 1
    }

    /// Silence until now was that of this host's own link, and says nothing of the peer: waits grow
    /// from the shortest one again. Whether they had grown.
    pub(super) fn begin_anew(&mut self, now: Instant) -> bool {
        let grown = self.probes > 1;
        if grown {
            (self.base, self.probes) = (now, 1);
        }
        grown
    }

    /// Probes since the last acknowledgement.
    pub(super) const fn probes(&self) -> u32 {
        self.probes
    }

    pub(super) fn probe_at(&self, rtt: &Rtt, max_ack_delay_ns: u64, dead_after_ns: u64) -> Instant {
        let wait = if rtt.smoothed == 0 {
            FIRST_WAIT_NS
        } else {
            let held = max_ack_delay_ns.max(self.held + self.held / 4);
            (rtt.smoothed + 4 * rtt.variation + held).max(MIN_WAIT_NS)
        };
        // Several probes before death, however long the wait has grown.
        let most = if dead_after_ns == 0 {
            MAX_WAIT_NS
        } else {
            MAX_WAIT_NS.min(dead_after_ns / 8)
        };
        self.base + (wait << self.probes).min(most.max(MIN_WAIT_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long is waited for an answer over 10 us, from a peer that held packets so long at these
    /// times, all in ns.
    fn waits(held: impl IntoIterator<Item = (u64, u64)>) -> u64 {
        let mut rtt = Rtt::restore(Instant::ZERO, [10_000, 1_000, 8_000]);
        rtt.sample(Instant::ZERO, 10_000);
        let mut timers = Timers::default();
        for (at, ns) in held {
            timers.held(Instant::from_nanos(at), ns);
        }
        let at = timers.probe_at(&rtt, 25_000, 2 * SECOND);
        at.since(Instant::ZERO)
    }

    #[test]
    fn a_peer_that_answers_late_is_given_the_time_it_takes_and_not_for_long() {
        assert_eq!(waits([]), MIN_WAIT_NS);
        let prompt = (0..5).map(|at| (at, 10_000));
        assert_eq!(waits(prompt), MIN_WAIT_NS);
        assert!(waits([(0, 1_500_000), (1, 1_400_000), (2, 1_500_000)]) > 1_800_000);
        // However long: several probes before death.
        assert_eq!(waits([(0, SECOND)]), SECOND / 4);
    }

    #[test]
    fn a_peer_that_was_busy_is_remembered_for_a_time_however_often_it_answers() {
        let busy = (SECOND, 1_500_000);
        let until = |end: u64| {
            let prompt = (0..end / 10_000).map(|at| (SECOND + at * 10_000, 10_000));
            waits([busy].into_iter().chain(prompt))
        };
        assert!(until(HALF_LIFE_NS) > 1_800_000);
        let halved = until(HALF_LIFE_NS + 10_001);
        assert!((900_000..1_000_000).contains(&halved), "{halved}");
        assert_eq!(until(10 * HALF_LIFE_NS), MIN_WAIT_NS);
        // From when it was busy last, though less than before.
        let again = (2 * HALF_LIFE_NS - 1, 1_400_000);
        let prompt = (2 * HALF_LIFE_NS + 1, 10_000);
        assert!(waits([(0, 1_500_000), again, prompt]) > 1_700_000);
        // One that answers seldom is forgotten as fast.
        assert_eq!(waits([busy, (2 * SECOND, 10_000)]), MIN_WAIT_NS);
        assert_eq!(waits([busy, (u64::MAX / 2, 10_000)]), MIN_WAIT_NS);
    }

    #[test]
    fn waits_that_grew_while_the_link_was_down_begin_anew_when_it_is_up() {
        let rtt = Rtt::restore(Instant::ZERO, [10_000, 1_000, 8_000]);
        let mut timers = Timers::default();
        let wait =
            |timers: &Timers, now: Instant| timers.probe_at(&rtt, 25_000, 8 * SECOND).since(now);
        let (up, first) = (Instant::from_nanos(SECOND), wait(&timers, Instant::ZERO));
        assert!(!timers.begin_anew(up), "nothing has failed");
        for _ in 0..30 {
            timers.probing(Instant::from_nanos(SECOND / 2));
        }
        assert_eq!(wait(&timers, Instant::from_nanos(SECOND / 2)), SECOND);
        assert!(timers.begin_anew(up));
        assert_eq!(wait(&timers, up), 2 * first);
        // The next one is no first probe: that was no sign of trouble.
        assert!(!timers.probing(up));
    }

    #[test]
    fn a_peer_that_is_busy_again_is_remembered_from_then_on() {
        let busy = (SECOND, 1_500_000);
        let again = (SECOND + 150 * MILLISECOND, 1_500_000);
        let prompt = (SECOND + 240 * MILLISECOND, 10_000);
        assert!(waits([busy, again, prompt]) > 1_800_000);
        let less = (SECOND + HALF_LIFE_NS, 1_400_000);
        assert!(waits([busy, less]) > 1_700_000);
    }

    #[test]
    fn it_is_time_that_halves_what_a_peer_held_and_not_its_answers() {
        let waits_after = |ms: &[u64]| {
            let prompt = ms.iter().map(|ms| (SECOND + ms * MILLISECOND, 10_000));
            waits([(SECOND, 1_500_000)].into_iter().chain(prompt))
        };
        assert!(waits_after(&[99]) > 1_800_000);
        assert!((900_000..1_000_000).contains(&waits_after(&[100])));
        let eighth = 200_000..300_000;
        for answers in [&[300][..], &[100, 200, 300], &[150, 300], &[150, 250, 310]] {
            let waits = waits_after(answers);
            assert!(eighth.contains(&waits), "{answers:?}: {waits}");
        }
    }
}
