//! DCQCN: rate steps driven by ECN marks.
//!
//! After Zhu et al., "Congestion Control for Large-Scale RDMA Deployments" (SIGCOMM 2015), section
//! 5: the marks that an acknowledgement reports stand for the CNP. Loss does not move the rate, as
//! in RNICs, unless it is heavy and falls with the rate; timeouts do. Besides the rate, twice what
//! it sends in a round trip bounds the bytes in flight, so that a silent peer is not flooded.

use super::guard::Ceiling;
use super::{Acked, Control, Start, first_window};
use crate::time::{Instant, MICROSECOND, SECOND};

/// Reacts to at most one mark in this time (the CNP interval N).
const MARK_INTERVAL_NS: u64 = 50 * MICROSECOND;
/// Without marks for this long the estimate of congestion decays by one step.
const ALPHA_INTERVAL_NS: u64 = 55 * MICROSECOND;
/// One step of the rate increase timer.
const INCREASE_INTERVAL_NS: u64 = 55 * MICROSECOND;
/// One step of the byte counter.
const INCREASE_BYTES: u64 = 10 << 20;
/// Steps of fast recovery before the target grows.
const FAST_STEPS: u32 = 5;
/// `alpha` is a fraction of this.
const ALPHA_ONE: u64 = 1 << 16;
/// Gain of `alpha`: 1 / 2^8.
const ALPHA_SHIFT: u32 = 8;
/// Packets that may be in flight at any rate.
const MIN_WINDOW: u64 = 64;
/// Assumed link rate where none is given: 100 Gb/s, in bytes per second.
const DEFAULT_LINK: u64 = 12_500_000_000;

/// DCQCN's reaction point.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    /// Current rate, target rate, link rate and the smallest rate, in bytes per second.
    current: u64,
    target: u64,
    link: u64,
    floor: u64,
    alpha: u64,
    window: u64,
    packet: u64,
    max_window: u64,
    before_timeout: u64,
    marked_at: Instant,
    alpha_at: Instant,
    increased_at: Instant,
    bytes: u64,
    timer_steps: u32,
    byte_steps: u32,
    started: bool,
    ceiling: Ceiling,
}

impl Dcqcn {
    /// The controller for a path; it begins at the link rate.
    pub fn new(start: &Start) -> Self {
        let link = start.link_rate.unwrap_or(DEFAULT_LINK).max(1000);
        Self {
            current: link,
            target: link,
            link,
            floor: (link / 1000).max(1),
            alpha: ALPHA_ONE,
            window: first_window(start).max(start.max_window.min(MIN_WINDOW * start.packet)),
            packet: start.packet,
            max_window: start.max_window.max(start.packet),
            before_timeout: 0,
            marked_at: Instant::ZERO,
            alpha_at: Instant::ZERO,
            increased_at: Instant::ZERO,
            bytes: 0,
            timer_steps: 0,
            byte_steps: 0,
            started: false,
            ceiling: Ceiling::new(start.packet),
        }
    }

    fn decrease(&mut self, now: Instant) {
        self.target = self.current;
        self.current -= self.current * self.alpha / (2 * ALPHA_ONE);
        self.current = self.current.max(self.floor);
        self.alpha = (self.alpha - (self.alpha >> ALPHA_SHIFT)) + (ALPHA_ONE >> ALPHA_SHIFT);
        self.alpha = self.alpha.min(ALPHA_ONE);
        (self.marked_at, self.alpha_at, self.increased_at) = (now, now, now);
        (self.bytes, self.timer_steps, self.byte_steps) = (0, 0, 0);
    }

    fn increase(&mut self) {
        let (slow, fast) = (
            self.timer_steps.min(self.byte_steps),
            self.timer_steps.max(self.byte_steps),
        );
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

impl Control for Dcqcn {
    fn on_ack(&mut self, acked: &Acked) {
        let now = acked.now;
        self.ceiling.on_ack(acked);
        if !self.started {
            self.started = true;
            (self.alpha_at, self.increased_at) = (now, now);
        }
        self.bytes += acked.bytes;
        self.window = (self.current.saturating_mul(2).saturating_mul(acked.srtt_ns) / SECOND)
            .max(MIN_WINDOW * self.packet)
            .min(self.max_window);
        if acked.round {
            self.before_timeout = 0;
        }
        if acked.marked > 0
            && (self.marked_at == Instant::ZERO || now.since(self.marked_at) >= MARK_INTERVAL_NS)
        {
            self.decrease(now);
            return;
        }
        // A long silence counts as a few steps: a loop without bound serves nobody.
        for _ in 0..16 {
            if now.since(self.alpha_at) < ALPHA_INTERVAL_NS {
                break;
            }
            self.alpha -= self.alpha >> ALPHA_SHIFT;
            self.alpha_at = self.alpha_at + ALPHA_INTERVAL_NS;
        }
        if now.since(self.alpha_at) >= ALPHA_INTERVAL_NS {
            self.alpha_at = now;
        }
        if now.since(self.increased_at) >= INCREASE_INTERVAL_NS {
            self.increased_at = now;
            self.timer_steps += 1;
            self.increase();
        }
        if self.bytes >= INCREASE_BYTES {
            self.bytes = 0;
            self.byte_steps += 1;
            self.increase();
        }
    }

    fn on_loss(&mut self, _: Instant, bytes: u64) {
        self.ceiling.on_loss(bytes);
    }

    fn on_timeout(&mut self, now: Instant) {
        self.before_timeout = self.before_timeout.max(self.current);
        self.target = self.current;
        self.current = (self.current / 2).max(self.floor);
        self.increased_at = now;
        (self.bytes, self.timer_steps, self.byte_steps) = (0, 0, 0);
    }

    fn on_spurious_timeout(&mut self) {
        self.current = self.current.max(self.before_timeout);
        self.before_timeout = 0;
    }

    fn window(&self) -> u64 {
        self.ceiling.window(self.window)
    }

    fn rate(&self) -> Option<u64> {
        self.ceiling.rate(Some(self.current))
    }
}
