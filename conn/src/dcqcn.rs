//! DCQCN's reaction point: the rate of a sender that hears of congestion by marks.
//!
//! After Zhu et al., "Congestion Control for Large-Scale RDMA Deployments" (SIGCOMM 2015), section
//! 5. A notification cuts the rate by a factor that follows how often that happens; the rate climbs
//! back by fast recovery, additive and hyper increase. The steps of the timers are caught up with
//! when somebody asks, so that an idle connection needs none. What a notification is differs: to a
//! connection of one QP a CNP (`rc`), to a shared one a mark that an acknowledgement reports
//! (`control`).

use crate::time::{Instant, MICROSECOND};

/// Without a notification for this long the estimate of congestion decays by one step, and the
/// increase timer takes one.
const STEP_NS: u64 = 55 * MICROSECOND;
/// One step of the byte counter.
const STEP_BYTES: u64 = 10 << 20;
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

/// Rate, and what it comes back to. Rates are in bytes per second.
#[derive(Clone, Debug)]
pub(crate) struct ReactionPoint {
    link: u64,
    current: u64,
    target: u64,
    alpha: u64,
    alpha_at: Instant,
    increased_at: Instant,
    bytes: u64,
    timer_steps: u32,
    byte_steps: u32,
}

impl ReactionPoint {
    /// Starts at the rate of the link.
    pub(crate) fn new(link_rate: Option<u64>) -> Self {
        let link = link_rate.unwrap_or(DEFAULT_LINK).max(1000);
        Self {
            link,
            current: link,
            target: link,
            alpha: ALPHA_ONE,
            alpha_at: Instant::ZERO,
            increased_at: Instant::ZERO,
            bytes: 0,
            timer_steps: 0,
            byte_steps: 0,
        }
    }

    /// The rate.
    pub(crate) const fn rate(&self) -> u64 {
        self.current
    }

    /// Whether the rate is that of the link, or so near to it that it makes no difference.
    pub(crate) const fn is_free(&self) -> bool {
        self.link - self.current <= self.link / 1000
    }

    /// The rate is that of the link again; congestion of long ago says nothing about what begins
    /// now.
    pub(crate) const fn release(&mut self) {
        (self.current, self.target, self.alpha) = (self.link, self.link, ALPHA_ONE);
    }

    /// The timers begin.
    pub(crate) const fn begin(&mut self, now: Instant) {
        (self.alpha_at, self.increased_at) = (now, now);
    }

    /// A notification came.
    pub(crate) fn on_congestion(&mut self, now: Instant) {
        self.cut(now, self.current * self.alpha / (2 * ALPHA_ONE));
        self.alpha = self.alpha - (self.alpha >> ALPHA_SHIFT) + (ALPHA_ONE >> ALPHA_SHIFT);
        self.alpha = self.alpha.min(ALPHA_ONE);
        self.alpha_at = now;
    }

    /// All that was sent is lost.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        self.cut(now, self.current / 2);
    }

    fn cut(&mut self, now: Instant, by: u64) {
        self.target = self.current;
        self.current = (self.current - by).max(self.link / 1000);
        self.increased_at = now;
        (self.bytes, self.timer_steps, self.byte_steps) = (0, 0, 0);
    }

    /// The last cut was for nothing: the rate is at least `rate` again.
    pub(crate) fn restore(&mut self, rate: u64) {
        self.current = self.current.max(rate);
    }

    /// `bytes` have left, or were acknowledged.
    pub(crate) fn on_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bytes >= STEP_BYTES {
            self.bytes = 0;
            self.byte_steps += 1;
            self.increase();
        }
    }

    /// Catches up with the timers.
    pub(crate) fn advance(&mut self, now: Instant) {
        let steps = now.since(self.increased_at) / STEP_NS;
        if steps > MAX_STEPS {
            self.release();
            self.begin(now);
            return;
        }
        let quiet = now.since(self.alpha_at) / STEP_NS;
        for _ in 0..quiet.min(MAX_STEPS) {
            self.alpha -= self.alpha >> ALPHA_SHIFT;
        }
        self.alpha_at = self.alpha_at + quiet * STEP_NS;
        for _ in 0..steps {
            self.increased_at = self.increased_at + STEP_NS;
            self.timer_steps += 1;
            self.increase();
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: u64 = 12_500_000_000;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * MICROSECOND)
    }

    fn cut_twice() -> ReactionPoint {
        let mut point = ReactionPoint::new(Some(LINK));
        point.on_congestion(at(0));
        point.on_congestion(at(0));
        point
    }

    #[test]
    fn five_steps_of_fast_recovery_come_back_to_where_the_cut_was() {
        let mut point = cut_twice();
        let target = LINK / 2;
        assert_eq!(point.target, target);
        point.advance(at(5 * 55));
        assert_eq!(point.target, target);
        assert!(target - point.current < target / 30);
        point.advance(at(6 * 55));
        assert!(point.target > target);
    }

    #[test]
    fn bytes_and_time_together_bring_hyper_increase() {
        let mut point = cut_twice();
        point.advance(at(6 * 55));
        let slow = point.target;
        for _ in 0..7 {
            point.on_bytes(STEP_BYTES);
        }
        assert!(point.target - slow > LINK / 100);
    }

    #[test]
    fn hyper_increase_takes_steps_of_a_tenth_of_the_link_at_most() {
        let mut point = ReactionPoint::new(Some(LINK));
        (0..20).for_each(|_| point.on_congestion(at(0)));
        point.advance(at(30 * 55));
        let mut steps = [0; 17];
        for step in &mut steps {
            let before = point.target;
            point.on_bytes(STEP_BYTES);
            *step = point.target - before;
        }
        assert_eq!(steps[5..8], [1, 2, 3].map(|n| n * LINK / 100));
        assert_eq!(steps[14..], [LINK / 10; 3]);
    }

    #[test]
    fn a_cut_begins_recovery_anew_whatever_was_counted_before_it() {
        let mut point = ReactionPoint::new(Some(LINK));
        (0..7).for_each(|_| point.on_bytes(STEP_BYTES));
        point.on_bytes(STEP_BYTES - 1);
        (0..2).for_each(|_| point.on_congestion(at(550)));
        let cut = (point.current, point.target);
        point.on_bytes(1);
        assert_eq!(
            (point.current, point.target),
            cut,
            "a whole step is to come"
        );
        point.advance(at(551));
        assert_eq!(point.alpha, ALPHA_ONE, "none of the quiet came after it");
        point.advance(at(550 + 6 * 55));
        assert_eq!(point.target, cut.1 + LINK / 1000, "time alone passed since");
    }

    #[test]
    fn a_timeout_halves_the_rate_and_what_is_restored_is_never_less() {
        let mut point = ReactionPoint::new(Some(LINK));
        point.on_timeout(at(0));
        assert_eq!(point.rate(), LINK / 2);
        point.restore(LINK / 4);
        assert_eq!(point.rate(), LINK / 2);
        point.restore(LINK);
        assert_eq!(point.rate(), LINK);
    }

    #[test]
    fn a_long_silence_frees_the_rate_and_forgets_congestion() {
        let mut point = cut_twice();
        point.advance(at(55 * (MAX_STEPS + 1)));
        assert!(point.is_free() && point.rate() == LINK);
        point.on_congestion(at(55 * (MAX_STEPS + 1)));
        assert_eq!(point.rate(), LINK / 2);
    }

    #[test]
    fn timers_that_are_asked_rarely_take_all_their_steps() {
        let (mut often, mut once) = (cut_twice(), cut_twice());
        (1..=100).for_each(|step| often.advance(at(55 * step)));
        once.advance(at(55 * 100));
        assert_eq!((often.current, often.alpha), (once.current, once.alpha));
    }

    #[test]
    fn a_timeout_after_any_silence_takes_a_bounded_number_of_steps() {
        let mut point = ReactionPoint::new(Some(LINK));
        point.begin(at(0));
        // One step for each 55 us of it would take days.
        let centuries = u64::MAX / MICROSECOND / 2;
        point.on_timeout(at(centuries));
        point.advance(at(centuries + 55));
        assert!(point.alpha < ALPHA_ONE / 32, "{}", point.alpha);
    }
}
