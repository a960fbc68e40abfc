//! The probe timer: tail loss probe first, retransmission timeout with backoff after it.

use super::rtt::Rtt;
use crate::time::{Instant, MICROSECOND, MILLISECOND, SECOND};

/// Wait for a path nobody has measured.
const FIRST_WAIT_NS: u64 = 10 * MILLISECOND;
/// Shortest wait: less is the jitter of hosts.
const MIN_WAIT_NS: u64 = 50 * MICROSECOND;
/// Longest wait between probes.
const MAX_WAIT_NS: u64 = SECOND;
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

    /// A probe is sent. Whether it is the first, which is no sign of trouble yet.
    pub(super) fn probing(&mut self, now: Instant) -> bool {
        self.base = now;
        self.probes = (self.probes + 1).min(MAX_BACKOFF);
        self.probes == 1
    }

    /// Probes since the last acknowledgement.
    pub(super) const fn probes(&self) -> u32 {
        self.probes
    }

    pub(super) fn probe_at(&self, rtt: &Rtt, max_ack_delay_ns: u64, dead_after_ns: u64) -> Instant {
        let wait = if rtt.smoothed == 0 {
            FIRST_WAIT_NS
        } else {
            (rtt.smoothed + 4 * rtt.variation + max_ack_delay_ns).max(MIN_WAIT_NS)
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
