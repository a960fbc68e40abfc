//! Loss detection by time and order (RACK, RFC 8985), with a reordering window that learns.

use super::config::TICK_SHIFT;
use super::rtt::Rtt;
use crate::time::Instant;

/// Later transmissions that prove a loss as long as no reordering was seen.
const ORDER_THRESHOLD: i32 = 3;
/// Share of the learned window that a quiet round trip takes away: 1 / 2^6.
const FORGET_SHIFT: u32 = 6;

/// What has become of a transmission.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    Lost,
    /// Lost if it is not acknowledged for so many ticks.
    Wait(u32),
    /// Nothing sent later has arrived.
    Unknown,
}

/// What the transmissions that arrived tell of the others. Times are in ticks of 16 ns.
#[derive(Debug)]
pub(super) struct Rack {
    /// Latest transmission that arrived, if any: its order, and what it took.
    latest: Option<u32>,
    took: u32,
    /// How late packets have been of late, beyond those sent after them.
    lateness: u32,
    /// When to look again.
    pub(super) deadline: Instant,
}

impl Default for Rack {
    fn default() -> Self {
        Self {
            latest: None,
            took: 0,
            lateness: 0,
            deadline: Instant::FAR,
        }
    }
}

impl Rack {
    /// The transmission `order` arrived; its acknowledgement came `took` ticks after it was sent.
    #[inline]
    pub(super) fn delivered(&mut self, order: u32, took: u32) {
        if self
            .latest
            .is_none_or(|latest| order.wrapping_sub(latest).cast_signed() > 0)
        {
            self.latest = Some(order);
            self.took = took;
        }
    }

    /// A packet turned out to have been overtaken; its acknowledgement took `took` ticks.
    pub(super) fn late(&mut self, took: u32) {
        // An eighth more, so that the next one like it is waited for; at least a tick, so that
        // reordering is known even where it costs no time.
        let lateness = took.saturating_sub(self.took);
        let lateness = lateness.saturating_add(lateness / 8).saturating_add(1);
        self.lateness = self.lateness.max(lateness);
    }

    /// A round trip has passed.
    pub(super) fn end_round(&mut self) {
        self.lateness = self
            .lateness
            .saturating_sub((self.lateness >> FORGET_SHIFT).max(1));
    }

    /// Reordering tolerated, in ticks: a quarter of the smallest round trip, or what was seen, but
    /// no more than the mean round trip.
    pub(super) fn window(&self, rtt: &Rtt) -> u32 {
        let ticks = |ns: u64| u32::try_from(ns >> TICK_SHIFT).unwrap_or(u32::MAX);
        self.lateness
            .max(ticks(rtt.min / 4))
            .min(ticks(rtt.smoothed).max(1))
    }

    /// Judges the transmission `order` of time `at`.
    #[inline]
    pub(super) fn verdict(&self, order: u32, at: u32, now: u32, window: u32) -> Verdict {
        let Some(latest) = self.latest else {
            return Verdict::Unknown;
        };
        let behind = latest.wrapping_sub(order).cast_signed();
        if behind <= 0 {
            return Verdict::Unknown;
        }
        let limit = self.took.saturating_add(window);
        let elapsed = now.wrapping_sub(at);
        if elapsed >= limit || (self.lateness == 0 && behind >= ORDER_THRESHOLD) {
            Verdict::Lost
        } else {
            Verdict::Wait(limit - elapsed)
        }
    }
}
