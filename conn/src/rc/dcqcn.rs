//! DCQCN between plain QPs: both ends of a congestion notification.
//!
//! After Zhu et al., "Congestion Control for Large-Scale RDMA Deployments" (SIGCOMM 2015): the
//! receiver of marked packets sends a CNP at most every 50 us ([`Notifier`]); the sender that gets
//! one cuts its rate by a factor that follows how often that happens, and climbs back by fast
//! recovery, additive and hyper increase ([`RateLimit`]). The steps of the timers are caught up
//! with when somebody asks, so that an idle connection needs none.

use crate::time::{Instant, MICROSECOND, SECOND};

/// Least time between two CNPs of a connection.
const NOTIFY_INTERVAL_NS: u64 = 50 * MICROSECOND;
/// Without a CNP for this long the estimate of congestion decays by one step.
const ALPHA_INTERVAL_NS: u64 = 55 * MICROSECOND;
/// One step of the increase timer.
const INCREASE_INTERVAL_NS: u64 = 55 * MICROSECOND;
/// One step of the byte counter.
const INCREASE_BYTES: u64 = 10 << 20;
/// Steps of fast recovery before the target grows.
const FAST_STEPS: u32 = 5;
/// `alpha` is a fraction of this.
const ALPHA_ONE: u64 = 1 << 16;
/// Gain of `alpha`: 1 / 2^8.
const ALPHA_SHIFT: u32 = 8;
/// Steps caught up with one by one; after a longer silence the rate is that of the link.
const MAX_STEPS: u64 = 1024;
/// Link rate where none is given: 100 Gb/s, in bytes per second.
const DEFAULT_LINK: u64 = 12_500_000_000;
/// Time that packets may leave ahead of the rate.
const BURST_NS: u64 = 4 * MICROSECOND;

/// Reaction point: the rate at which data may leave.
#[derive(Clone, Debug)]
pub struct RateLimit {
    /// Rates in bytes per second.
    link: u64,
    current: u64,
    target: u64,
    alpha: u64,
    /// No CNP since the rate last reached that of the link: nothing is paced.
    free: bool,
    alpha_at: Instant,
    increased_at: Instant,
    bytes: u64,
    timer_steps: u32,
    byte_steps: u32,
    /// When all that was sent has left at the rate.
    next: Instant,
}

impl RateLimit {
    /// Starts at the rate of the link, in bytes per second.
    pub fn new(link_rate: Option<u64>) -> Self {
        let link = link_rate.unwrap_or(DEFAULT_LINK).max(1000);
        Self {
            link,
            current: link,
            target: link,
            alpha: ALPHA_ONE,
            free: true,
            alpha_at: Instant::ZERO,
            increased_at: Instant::ZERO,
            bytes: 0,
            timer_steps: 0,
            byte_steps: 0,
            next: Instant::ZERO,
        }
    }

    /// A CNP came.
    pub fn on_cnp(&mut self, now: Instant) {
        self.advance(now);
        if self.free {
            // Congestion of long ago says nothing about what begins now.
            self.alpha = ALPHA_ONE;
        }
        self.free = false;
        self.target = self.current;
        self.current -= self.current * self.alpha / (2 * ALPHA_ONE);
        self.current = self.current.max(self.link / 1000);
        self.alpha = self.alpha - (self.alpha >> ALPHA_SHIFT) + (ALPHA_ONE >> ALPHA_SHIFT);
        self.alpha = self.alpha.min(ALPHA_ONE);
        (self.alpha_at, self.increased_at) = (now, now);
        (self.bytes, self.timer_steps, self.byte_steps) = (0, 0, 0);
    }

    /// `bytes` of data leave.
    pub fn on_sent(&mut self, now: Instant, bytes: u64) {
        if self.free {
            return;
        }
        let time =
            (u128::from(bytes) * u128::from(SECOND) / u128::from(self.current.max(1))) as u64;
        self.next = self.next.max(now) + time;
        self.bytes += bytes;
        if self.bytes >= INCREASE_BYTES {
            self.bytes = 0;
            self.byte_steps += 1;
            self.increase();
        }
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
        (!self.free).then_some(self.current)
    }

    /// Catches up with the timers.
    fn advance(&mut self, now: Instant) {
        if self.free {
            return;
        }
        let steps = now.since(self.increased_at) / INCREASE_INTERVAL_NS;
        if steps > MAX_STEPS {
            self.release();
            return;
        }
        while now.since(self.alpha_at) >= ALPHA_INTERVAL_NS {
            self.alpha -= self.alpha >> ALPHA_SHIFT;
            self.alpha_at = self.alpha_at + ALPHA_INTERVAL_NS;
        }
        for _ in 0..steps {
            self.increased_at = self.increased_at + INCREASE_INTERVAL_NS;
            self.timer_steps += 1;
            self.increase();
            if self.free {
                return;
            }
        }
    }

    fn increase(&mut self) {
        let slow = self.timer_steps.min(self.byte_steps);
        let fast = self.timer_steps.max(self.byte_steps);
        // Additive and hyper steps of 40 Mb/s and 400 Mb/s at 40 Gb/s, in proportion elsewhere.
        if slow > FAST_STEPS {
            self.target += self.link / 100 * u64::from((slow - FAST_STEPS).min(10));
        } else if fast > FAST_STEPS {
            self.target += self.link / 1000;
        }
        self.target = self.target.min(self.link);
        self.current = self.current.midpoint(self.target);
        if self.link - self.current <= self.link / 1000 {
            self.release();
        }
    }

    fn release(&mut self) {
        (self.current, self.target, self.free) = (self.link, self.link, true);
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
    fn five_steps_of_fast_recovery_come_back_to_where_the_cut_was() {
        let mut rate = RateLimit::new(Some(LINK));
        rate.on_cnp(at(0));
        rate.on_cnp(at(0));
        let target = LINK / 2;
        assert_eq!(rate.target, target);
        rate.advance(at(5 * 55));
        assert_eq!(rate.target, target);
        assert!(target - rate.current < target / 30);
        rate.advance(at(6 * 55));
        assert!(rate.target > target);
    }

    #[test]
    fn bytes_and_time_together_bring_hyper_increase() {
        let mut rate = RateLimit::new(Some(LINK));
        rate.on_cnp(at(0));
        rate.on_cnp(at(0));
        rate.advance(at(6 * 55));
        let slow = rate.target;
        for _ in 0..7 {
            rate.on_sent(at(6 * 55), INCREASE_BYTES);
        }
        assert!(rate.target - slow > LINK / 100);
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
