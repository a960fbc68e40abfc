//! DCQCN between QPs with connections of their own: both ends of a congestion notification.
//!
//! The receiver of marked packets sends a CNP at most every 50 us ([`Notifier`]); the sender that
//! gets one paces what it sends, until its rate is that of the link again ([`RateLimit`]).

use crate::dcqcn::ReactionPoint;
use crate::time::{Instant, MICROSECOND, SECOND};

/// Least time between two CNPs of a connection.
const NOTIFY_INTERVAL_NS: u64 = 50 * MICROSECOND;
/// Time that packets may leave ahead of the rate.
const BURST_NS: u64 = 4 * MICROSECOND;

/// The rate at which data may leave.
#[derive(Clone, Debug)]
pub struct RateLimit {
    point: ReactionPoint,
    /// No CNP since the rate last reached that of the link: nothing is paced.
    free: bool,
    /// When all that was sent has left at the rate.
    next: Instant,
}

impl RateLimit {
    /// Starts at the rate of the link, in bytes per second.
    pub fn new(link_rate: Option<u64>) -> Self {
        Self {
            point: ReactionPoint::new(link_rate),
            free: true,
            next: Instant::ZERO,
        }
    }

    /// A CNP came.
    pub fn on_cnp(&mut self, now: Instant) {
        self.advance(now);
        self.free = false;
        self.point.on_congestion(now);
    }

    /// `bytes` of data leave.
    pub fn on_sent(&mut self, now: Instant, bytes: u64) {
        if self.free {
            return;
        }
        let rate = u128::from(self.point.rate().max(1));
        let time = (u128::from(bytes) * u128::from(SECOND) / rate) as u64;
        self.next = self.next.max(now) + time;
        self.point.on_bytes(bytes);
        self.free_if_fast();
    }

    /// Whether data may leave now.
    pub fn may_send(&mut self, now: Instant) -> bool {
        self.advance(now);
        self.free || self.next <= now + BURST_NS
    }

    /// When data may leave that may not now.
    pub fn next_send(&self) -> Instant {
        if self.free {
            return Instant::ZERO;
        }
        Instant::from_nanos(self.next.as_nanos().saturating_sub(BURST_NS))
    }

    /// Rate in bytes per second; `None` while nothing is paced.
    pub fn rate(&self) -> Option<u64> {
        (!self.free).then_some(self.point.rate())
    }

    /// Catches up with the timers.
    fn advance(&mut self, now: Instant) {
        if !self.free {
            self.point.advance(now);
            self.free_if_fast();
        }
    }

    fn free_if_fast(&mut self) {
        if self.point.is_free() {
            self.point.release();
            self.free = true;
        }
    }
}

/// Notification point: when to send a CNP.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notifier {
    pending: bool,
    last: Option<Instant>,
}

impl Notifier {
    /// A marked packet came.
    pub(crate) fn on_marked(&mut self, now: Instant) {
        let rested = |last| now.since(last) >= NOTIFY_INTERVAL_NS;
        if self.last.is_none_or(rested) {
            self.pending = true;
        }
    }

    pub(crate) const fn is_pending(&self) -> bool {
        self.pending
    }

    pub(crate) fn on_sent(&mut self, now: Instant) {
        *self = Self {
            pending: false,
            last: Some(now),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: u64 = 12_500_000_000;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * MICROSECOND)
    }

    #[test]
    fn the_first_notification_halves_the_rate_and_later_ones_cut_less() {
        let mut rate = RateLimit::new(Some(LINK));
        assert_eq!(rate.rate(), None);
        rate.on_cnp(at(100));
        assert_eq!(rate.rate(), Some(LINK / 2));
        rate.on_cnp(at(100));
        assert_eq!(rate.rate(), Some(LINK / 4));
        // 100 quiet steps let alpha decay to two thirds.
        assert!(rate.may_send(at(100 + 55 * 100)));
        let before = rate.rate().expect("it is still limited");
        assert!(before > LINK / 2);
        rate.on_cnp(at(100 + 55 * 100));
        let after = rate.rate().expect("it is limited");
        assert!(after > before / 2 + before / 10 && after < before);
    }

    #[test]
    fn a_limited_sender_leaves_at_its_rate() {
        let mut rate = RateLimit::new(Some(LINK));
        for _ in 0..4 {
            rate.on_cnp(at(1));
        }
        let limit = rate.rate().expect("it is limited");
        let mut now = at(1);
        let mut sent = 0;
        while now < at(51) {
            if rate.may_send(now) {
                rate.on_sent(now, 4096);
                sent += 4096;
            } else {
                assert!(rate.next_send() > now);
                now = rate.next_send();
            }
        }
        let allowed = limit * 54 / 1_000_000 + 4096;
        assert!(
            sent <= allowed && sent >= allowed * 8 / 10,
            "{sent} {allowed}"
        );
    }

    #[test]
    fn the_rate_never_falls_below_its_floor_and_silence_frees_it() {
        let mut rate = RateLimit::new(Some(LINK));
        for _ in 0..1000 {
            rate.on_cnp(at(1));
        }
        assert_eq!(rate.rate(), Some(LINK / 1000));
        assert!(rate.may_send(at(10_000_000)));
        assert_eq!(rate.rate(), None);
        rate.on_cnp(at(10_000_000));
        assert_eq!(rate.rate(), Some(LINK / 2));
        rate.advance(at(10_000_000 + 55 * 1000));
        assert_eq!(rate.rate(), None);
        rate.on_cnp(at(20_000_000));
        assert_eq!(rate.rate(), Some(LINK / 2));
    }

    #[test]
    fn marks_bring_one_notification_per_interval() {
        let mut notifier = Notifier::default();
        notifier.on_marked(at(0));
        assert!(notifier.is_pending());
        notifier.on_sent(at(0));
        notifier.on_marked(at(49));
        assert!(!notifier.is_pending());
        notifier.on_marked(at(50));
        assert!(notifier.is_pending());
    }
}
