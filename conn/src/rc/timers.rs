//! The requester's timers and its retry counters (IBTA Vol 1, 9.7.5.1.4, 9.7.6 and 9.9).

use super::config::Config;
use crate::time::Instant;
use trunkline_wire::rnr_timer_ns;

/// Unit of the ACK timeout: 4.096 us.
const ACK_UNIT_NS: u64 = 4096;
/// Time that answers have which later ones have overtaken: more than paths reorder by, less than a
/// loss should cost.
const GAP_NS: u64 = 100_000;
/// The ACK timer runs for up to 2 to this power times the timeout: the specification allows four
/// times (IBTA Vol 1, 9.7.6.1.3).
const MOST_DOUBLINGS: u8 = 2;
/// RNR retry count that stands for "for ever".
const FOR_EVER: u8 = 7;

/// ACK timeout in ns, or `None` for 0: off. Doubles per step: 1 is 8,192 ns, 31 about 2.4 hours.
pub const fn ack_timeout_ns(exponent: u8) -> Option<u64> {
    match exponent & 0x1f {
        0 => None,
        exponent => Some(ACK_UNIT_NS << exponent),
    }
}

#[derive(Debug)]
pub(super) struct Timers {
    ack_at: Option<Instant>,
    rnr_at: Option<Instant>,
    /// When answers that others have overtaken count as lost.
    gap_at: Option<Instant>,
    retries: u8,
    rnr_retries: u8,
    /// How often the ACK timer has doubled since there was progress.
    doublings: u8,
}

impl Timers {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            ack_at: None,
            rnr_at: None,
            gap_at: None,
            retries: config.retry_cnt,
            rnr_retries: config.rnr_retry,
            doublings: 0,
        }
    }

    /// A packet left: the timer runs from the oldest one.
    pub(super) fn sent(&mut self, config: &Config, now: Instant) {
        if self.ack_at.is_none() {
            let timeout = ack_timeout_ns(config.timeout);
            self.ack_at = timeout.map(|ns| now + (ns << self.doublings));
        }
    }

    /// The peer got further. `waiting`: more is outstanding.
    pub(super) fn progress(&mut self, config: &Config, now: Instant, waiting: bool) {
        self.retries = config.retry_cnt;
        self.rnr_retries = config.rnr_retry;
        self.doublings = 0;
        self.ack_at = None;
        if waiting {
            self.sent(config, now);
        }
    }

    /// The peer was silent for as long as the ACK timer ran: it may be slow, and gets more time.
    pub(super) fn double(&mut self) {
        self.doublings = MOST_DOUBLINGS.min(self.doublings + 1);
    }

    /// Silence until now was that of this host's own link, and says nothing of the peer: what waits
    /// for an answer goes again at once, and no retry counts.
    pub(super) fn begin_anew(&mut self, config: &Config, now: Instant) {
        self.retries = config.retry_cnt;
        self.doublings = 0;
        self.ack_at = self.ack_at.map(|at| at.min(now));
    }

    /// Takes one retry; `false` when there is none left.
    pub(super) fn take_retry(&mut self) -> bool {
        let left = self.retries > 0;
        self.retries = self.retries.saturating_sub(1);
        left
    }

    /// The peer is not ready and says to wait; `false` when that happened too often.
    pub(super) fn start_rnr(&mut self, now: Instant, timer: u8) -> bool {
        if self.rnr_retries == 0 {
            return false;
        }
        if self.rnr_retries < FOR_EVER {
            self.rnr_retries -= 1;
        }
        self.rnr_at = Some(now + rnr_timer_ns(timer));
        true
    }

    /// Whether the peer asked to wait.
    pub(super) const fn is_rnr(&self) -> bool {
        self.rnr_at.is_some()
    }

    /// The wait may be over.
    pub(super) fn end_rnr(&mut self, now: Instant) {
        self.rnr_at = self.rnr_at.filter(|&at| at > now);
    }

    /// An answer overtook an earlier one, which has until `GAP_NS` from the first that did.
    pub(super) fn start_gap(&mut self, now: Instant) {
        self.gap_at = self.gap_at.or(Some(now + GAP_NS));
    }

    pub(super) fn stop_gap(&mut self) {
        self.gap_at = None;
    }

    /// Whether what was overtaken has had its time; asked once.
    pub(super) fn take_gap(&mut self, now: Instant) -> bool {
        let over = self.gap_at.is_some_and(|at| at <= now);
        self.gap_at = self.gap_at.filter(|_| !over);
        over
    }

    pub(super) fn stop_ack(&mut self) {
        self.ack_at = None;
    }

    pub(super) fn stop(&mut self) {
        (self.ack_at, self.rnr_at, self.gap_at) = (None, None, None);
    }

    pub(super) fn ack_ran_out(&self, now: Instant) -> bool {
        self.ack_at.is_some_and(|at| at <= now)
    }

    pub(super) fn next(&self) -> Option<Instant> {
        Instant::earliest([self.ack_at, self.rnr_at, self.gap_at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeouts_double_from_8_us_and_0_is_off() {
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(1), Some(8192));
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        assert_eq!(ack_timeout_ns(31), Some(4096 << 31));
        assert_eq!(ack_timeout_ns(32), None);
    }
}
