//! Requests that were completed, and their rates.

use super::params::{Mode, Params};
use serde::Serialize;
use std::time::Duration;

/// Requests completed so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Throughput {
    /// Requests.
    pub(crate) operations: u64,
    /// In how long.
    pub(crate) elapsed: Duration,
    /// The smallest round trip of two messages, before there were many: to compare with
    /// what the connections measured. Of `rate`.
    pub(crate) ping: Option<Duration>,
}

impl Throughput {
    /// How it goes, in one line: `lately` requests in the last `lap`.
    pub(crate) fn progress(&self, params: &Params, lately: u64, lap: Duration) -> String {
        let rates = Rates::of(params, lately, lap);
        let seconds = self.elapsed.as_secs_f64();
        match params.mode {
            Mode::Rate => format!("  {seconds:.0} s: {:.0} operations/s", rates.ops_per_s),
            _ => format!("  {seconds:.0} s: {:.3} Gb/s", rates.gbit_per_s),
        }
    }
}

/// What requests of a size come to in their time.
#[derive(Debug, Serialize)]
pub(super) struct Rates {
    pub(super) bytes_per_s: f64,
    pub(super) gbit_per_s: f64,
    pub(super) ops_per_s: f64,
}

impl Rates {
    pub(super) fn of(params: &Params, operations: u64, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64();
        // A measurement that was stopped before it began has measured nothing.
        let ops_per_s = if seconds > 0.0 {
            operations as f64 / seconds
        } else {
            0.0
        };
        let bytes_per_s = ops_per_s * params.size as f64;
        Self {
            bytes_per_s,
            gbit_per_s: bytes_per_s * 8.0 / 1e9,
            ops_per_s,
        }
    }
}
