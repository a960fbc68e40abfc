//! How a window of TCP grows and shrinks, in segments.

use crate::path::scenario::Rival;
use trunkline_conn::time::{MILLISECOND, SECOND};

/// First window (RFC 6928).
const FIRST: f64 = 10.0;
const LEAST: f64 = 2.0;
/// CUBIC's constants (RFC 9438).
const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// HyStart: samples of a round trip that are looked at, and the delay that ends slow start.
const SAMPLES: u32 = 8;
const LEAST_ETA: u64 = 4 * MILLISECOND;
const MOST_ETA: u64 = 16 * MILLISECOND;

/// A congestion window.
#[derive(Debug)]
pub(super) struct Growth {
    rival: Rival,
    window: f64,
    threshold: f64,
    cubic: Cubic,
    start: HyStart,
}

/// What CUBIC remembers.
#[derive(Debug, Default)]
struct Cubic {
    most: f64,
    /// Start of the epoch, if one has begun, its inflection in seconds, and the window there.
    epoch: Option<u64>,
    inflection: f64,
    origin: f64,
    /// What Reno would have.
    estimate: f64,
}

/// Round trips of slow start.
#[derive(Debug)]
struct HyStart {
    last: u64,
    now: u64,
    samples: u32,
}

impl HyStart {
    const NEW: Self = Self {
        last: u64::MAX,
        now: u64::MAX,
        samples: 0,
    };

    /// Whether the round trip has grown by so much that slow start has gone far enough.
    fn is_over(&mut self, rtt: u64, round: bool) -> bool {
        if round {
            *self = Self {
                last: self.now,
                ..Self::NEW
            };
        }
        self.samples += 1;
        if self.samples <= SAMPLES {
            self.now = self.now.min(rtt);
        }
        let known = self.last != u64::MAX && self.samples >= SAMPLES;
        let eta = (self.last / 8).clamp(LEAST_ETA, MOST_ETA);
        known && self.now >= self.last.saturating_add(eta)
    }
}

impl Growth {
    pub(super) fn new(rival: Rival) -> Self {
        Self {
            rival,
            window: FIRST,
            threshold: f64::INFINITY,
            cubic: Cubic::default(),
            start: HyStart::NEW,
        }
    }

    /// Segments that may be out.
    pub(super) fn window(&self) -> u64 {
        self.window as u64
    }

    /// `segments` were acknowledged outside of recovery.
    pub(super) fn on_ack(&mut self, now: u64, segments: u64, rtt: u64, srtt: u64, round: bool) {
        let segments = segments as f64;
        if self.window < self.threshold {
            self.window = (self.window + segments).min(self.threshold);
            if self.rival == Rival::Cubic && self.start.is_over(rtt, round) {
                self.threshold = self.window;
            }
            return;
        }
        match self.rival {
            Rival::Reno => self.window += segments / self.window,
            Rival::Cubic => self.window = self.cubic.grow(now, self.window, segments, srtt),
        }
    }

    /// A loss, the first of its window.
    pub(super) fn on_loss(&mut self) {
        self.threshold = match self.rival {
            Rival::Reno => self.window / 2.0,
            Rival::Cubic => self.cubic.shrink(self.window),
        }
        .max(LEAST);
        self.window = self.threshold;
    }

    /// A retransmission timeout, the first of its window or not.
    pub(super) fn on_timeout(&mut self, first: bool) {
        if first {
            self.on_loss();
        }
        self.window = 1.0;
        self.start = HyStart::NEW;
    }
}

impl Cubic {
    fn shrink(&mut self, window: f64) -> f64 {
        // Fast convergence: who loses before it was where it had been leaves room for others.
        self.most = if window < self.most {
            window * (1.0 + BETA) / 2.0
        } else {
            window
        };
        self.epoch = None;
        window * BETA
    }

    fn grow(&mut self, now: u64, window: f64, segments: f64, srtt: u64) -> f64 {
        let begin = match self.epoch {
            Some(begin) => begin,
            None => {
                self.epoch = Some(now);
                self.origin = self.most.max(window);
                self.inflection = ((self.origin - window) / C).cbrt();
                self.estimate = window;
                now
            }
        };
        let at = (now - begin + srtt) as f64 / SECOND as f64 - self.inflection;
        let target = (self.origin + C * at.powi(3)).clamp(window, 1.5 * window);
        let alpha = if self.estimate < self.origin {
            3.0 * (1.0 - BETA) / (1.0 + BETA)
        } else {
            1.0
        };
        self.estimate += alpha * segments / window;
        let cubic = window + (target - window) * segments / window;
        cubic.max(self.estimate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reno_grows_by_a_segment_per_round_trip_and_halves() {
        let mut growth = Growth::new(Rival::Reno);
        growth.window = 100.0;
        growth.on_loss();
        assert_eq!(growth.window(), 50);
        for _ in 0..50 {
            growth.on_ack(0, 1, MILLISECOND, MILLISECOND, false);
        }
        assert!((50.9..51.1).contains(&growth.window), "{}", growth.window);
    }

    #[test]
    fn cubic_is_back_at_its_old_window_when_the_formula_says() {
        let mut growth = Growth::new(Rival::Cubic);
        (growth.window, growth.threshold) = (1000.0, 1000.0);
        growth.on_loss();
        assert_eq!(growth.window(), 700);
        // K is the cubic root of 1000 * 0.3 / 0.4, 9.1 s.
        let mut now = SECOND;
        let rtt = 50 * MILLISECOND;
        while now < SECOND + 9_100 * MILLISECOND {
            let whole = growth.window();
            growth.on_ack(now, whole, rtt, rtt, true);
            now += rtt;
        }
        assert!(
            (960.0..1040.0).contains(&growth.window),
            "{}",
            growth.window
        );
    }

    #[test]
    fn slow_start_ends_when_the_round_trip_grows() {
        let mut growth = Growth::new(Rival::Cubic);
        let rtts = [20, 20, 30];
        for rtt in rtts {
            for sample in 0..10 {
                let rtt = rtt * MILLISECOND;
                growth.on_ack(0, 1, rtt, rtt, sample == 0);
            }
        }
        assert!(growth.threshold < 50.0, "{}", growth.threshold);
    }
}
