//! Loss that falls when the rate falls.

use super::{Acked, SHARE_ONE};
use crate::time::{Instant, SECOND};

/// Share of bytes lost that is heavy for who answers to delay, and for who does not.
pub(super) const HEAVY: u64 = SHARE_ONE / 16;
const HEAVY_BLIND: u64 = SHARE_ONE / 64;
/// Share that is never put up with.
const MOST: u64 = SHARE_ONE / 4;
/// Packets over which loss is judged.
const JUDGED_PACKETS: u64 = 64;
/// Times in a row the sender slows down for heavy loss before it is asked whether that helps.
const STEPS: u32 = 4;

/// Whether loss, whatever the delay says, comes of sending too much: it is heavy, and less when
/// less is sent. Loss that does not answer is the path's own and is put up with.
#[derive(Clone, Debug)]
pub(super) struct LossGuard {
    /// Bytes since the last judgement.
    acked: u64,
    lost: u64,
    /// Share that is put up with, and the least of it.
    tolerated: u64,
    heavy: u64,
    /// Heavy judgements in a row, and the share at the first.
    steps: u32,
    first: u64,
}

impl LossGuard {
    pub(super) const fn new(heavy: u64) -> Self {
        Self {
            acked: 0,
            lost: 0,
            tolerated: heavy,
            heavy,
            steps: 0,
            first: 0,
        }
    }

    pub(super) fn acked(&mut self, bytes: u64) {
        self.acked += bytes;
    }

    pub(super) fn lost(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    /// Whether it is being tried how much less is lost when less is sent: the window must not grow.
    pub(super) fn is_trying(&self) -> bool {
        self.steps > 0
    }

    /// Something else explains what was lost.
    pub(super) fn forget(&mut self) {
        (self.acked, self.lost, self.steps) = (0, 0, 0);
    }

    /// The share lost, as a fraction of [`SHARE_ONE`], if it is too much: so much less should be
    /// sent. To be asked once per round; judges when enough packets of `packet` bytes have gone.
    pub(super) fn judge(&mut self, packet: u64) -> Option<u64> {
        let all = self.acked + self.lost;
        if all < JUDGED_PACKETS * packet {
            return None;
        }
        let share = self.lost * SHARE_ONE / all;
        (self.acked, self.lost) = (0, 0);
        self.tolerated = (self.tolerated - self.tolerated / 64).max(self.heavy);
        if share <= self.tolerated {
            self.steps = 0;
            return None;
        }
        if self.steps == 0 {
            self.first = share;
        }
        self.steps += 1;
        if self.steps > STEPS {
            self.steps = 0;
            if share * 3 > self.first * 2 {
                self.tolerated = (share + share / 2).min(MOST);
                return None;
            }
        }
        Some(share)
    }
}

/// What keeps a controller that does not look at loss from flooding a path: a rate that was
/// delivered while too much was lost, and grows from there.
#[derive(Clone, Debug)]
pub(super) struct Ceiling {
    guard: LossGuard,
    packet: u64,
    /// Bytes per second; `u64::MAX` for none.
    rate: u64,
    srtt_ns: u64,
    /// Bytes delivered since then.
    bytes: u64,
    since: Instant,
}

impl Ceiling {
    pub(super) const fn new(packet: u64) -> Self {
        Self {
            guard: LossGuard::new(HEAVY_BLIND),
            packet,
            rate: u64::MAX,
            srtt_ns: 0,
            bytes: 0,
            since: Instant::ZERO,
        }
    }

    pub(super) fn on_loss(&mut self, bytes: u64) {
        self.guard.lost(bytes);
    }

    pub(super) fn on_ack(&mut self, acked: &Acked) {
        self.guard.acked(acked.bytes);
        self.bytes += acked.bytes;
        self.srtt_ns = acked.srtt_ns;
        if !acked.round {
            return;
        }
        let took = acked.now.since(self.since);
        let known = self.since != Instant::ZERO && took > 0;
        match self.guard.judge(self.packet) {
            Some(_) if known => {
                let delivered = u128::from(self.bytes) * u128::from(SECOND) / u128::from(took);
                let delivered = u64::try_from(delivered).unwrap_or(u64::MAX);
                self.rate = self
                    .rate
                    .min((delivered - delivered / 16).max(self.packet * 10));
            }
            // A round trip of quiet: a bit more, and soon there is no bound.
            _ => self.rate = self.rate.saturating_add(self.rate / 64),
        }
        (self.bytes, self.since) = (0, acked.now);
    }

    /// The rate, where the controller wants `rate`.
    pub(super) fn rate(&self, rate: Option<u64>) -> Option<u64> {
        if self.rate == u64::MAX {
            return rate;
        }
        Some(rate.map_or(self.rate, |rate| rate.min(self.rate)))
    }

    /// The window, where the controller wants `window`: twice what the rate sends in a round trip.
    pub(super) fn window(&self, window: u64) -> u64 {
        if self.rate == u64::MAX || self.srtt_ns == 0 {
            return window;
        }
        let most = u128::from(self.rate) * 2 * u128::from(self.srtt_ns) / u128::from(SECOND);
        window.min(u64::try_from(most).unwrap_or(u64::MAX).max(4 * self.packet))
    }
}
