//! Latencies that were measured, and their percentiles.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// Longest latency that is told apart from longer ones.
const MAX_NS: u64 = 60_000_000_000;
/// Nanoseconds of a microsecond, in which latencies are told.
pub(super) const NS_PER_US: f64 = 1000.0;
/// Significant digits of latencies.
const DIGITS: u8 = 3;

/// Latencies measured so far.
#[derive(Debug)]
pub(crate) struct Latencies {
    histogram: Histogram<u64>,
    /// How long they took to measure.
    pub(crate) elapsed: Duration,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_NS, DIGITS);
        Self {
            histogram: histogram.expect("the bounds are in order and the digits at most 5"),
            elapsed: Duration::ZERO,
        }
    }
}

impl Latencies {
    /// Adds one.
    pub(crate) fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record(ns);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// How it goes, in one line.
    pub(crate) fn progress(&self) -> String {
        let us = |quantile| self.histogram.value_at_quantile(quantile) as f64 / NS_PER_US;
        let count = self.count();
        let seconds = self.elapsed.as_secs_f64();
        format!(
            "  {seconds:.0} s: {count} samples, p50 {:.2} us, p99 {:.2} us",
            us(0.5),
            us(0.99)
        )
    }

    pub(super) fn percentiles(&self) -> Percentiles {
        let us = |quantile| self.histogram.value_at_quantile(quantile) as f64 / NS_PER_US;
        Percentiles {
            min_us: self.histogram.min() as f64 / NS_PER_US,
            p50_us: us(0.5),
            p90_us: us(0.9),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: self.histogram.max() as f64 / NS_PER_US,
            mean_us: self.histogram.mean() / NS_PER_US,
        }
    }
}

/// What the latencies come to, in microseconds.
#[derive(Debug, Serialize)]
pub(super) struct Percentiles {
    pub(super) min_us: f64,
    pub(super) p50_us: f64,
    pub(super) p90_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) max_us: f64,
    pub(super) mean_us: f64,
}
