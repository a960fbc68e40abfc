//! Pacing: a leaky bucket in time.

use crate::time::{Instant, SECOND};

/// Bytes that may leave at once: what segmentation offload takes in one piece.
const BURST_BYTES: u64 = 64 << 10;
/// Costs of a byte are kept in ns / 2^20.
const COST_SHIFT: u32 = 20;

#[derive(Debug, Default)]
pub(super) struct Pacer {
    rate: Option<u64>,
    window: u64,
    /// Time one byte takes, in ns / 2^20; 0 for no pacing.
    cost: u64,
    burst_ns: u64,
    packet_ns: u64,
    /// When everything sent so far has left at the rate.
    free_at: Instant,
    held_back: bool,
}

impl Pacer {
    /// Sets the rate in bytes per second; `window` is the congestion window in bytes.
    pub(super) fn set_rate(&mut self, rate: Option<u64>, packet: u64, window: u64) {
        if rate == self.rate && window == self.window {
            return;
        }
        (self.rate, self.window) = (rate, window);
        let Some(rate) = rate else {
            self.cost = 0;
            return;
        };
        self.cost = ((SECOND << COST_SHIFT) / rate.max(1)).max(1);
        self.burst_ns = self.time(BURST_BYTES.max(window / 8));
        self.packet_ns = self.time(packet).max(1);
    }

    const fn time(&self, bytes: u64) -> u64 {
        self.cost.saturating_mul(bytes) >> COST_SHIFT
    }

    /// Packets of full size that may leave now.
    #[inline]
    pub(super) fn allowance(&mut self, now: Instant) -> u64 {
        if self.cost == 0 {
            return u64::MAX;
        }
        let horizon = now + self.burst_ns;
        if self.free_at > horizon {
            self.held_back = true;
            return 0;
        }
        self.held_back = false;
        // What has drained before now is no credit.
        let room = horizon.since(self.free_at).min(self.burst_ns);
        room / self.packet_ns + 1
    }

    #[inline]
    pub(super) fn sent(&mut self, now: Instant, bytes: u64) {
        if self.cost != 0 {
            self.free_at = self.free_at.max(now) + self.time(bytes);
        }
    }

    /// Whether a sender was told to wait.
    pub(super) fn is_holding_back(&self) -> bool {
        self.held_back
    }

    /// A sender that still wants to send will ask again.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.held_back &= now < self.timeout();
    }

    /// When a sender that was held back may send a quarter of a burst, or [`Instant::FAR`].
    pub(super) fn timeout(&self) -> Instant {
        if self.held_back && self.cost != 0 {
            Instant::from_nanos(
                self.free_at
                    .as_nanos()
                    .saturating_sub(self.burst_ns / 4 * 3),
            )
        } else {
            Instant::FAR
        }
    }
}
