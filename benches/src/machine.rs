//! What the machine is like: figures of different machines, or of one machine on different days, do
//! not compare without it.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// A machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model of its CPU.
    pub cpu: String,
    /// CPUs this program may use.
    pub cpus: usize,
    /// Release of its kernel.
    pub kernel: String,
    /// Processes that wanted a CPU in the minute before: beyond `cpus`, they shared.
    pub load: f64,
    /// Time a cache line takes from one CPU to another, in ns. About 50 where they share a cache,
    /// more than 100 where they do not; on virtual machines it may change from minute to minute.
    pub line_ns: f64,
}

impl Machine {
    /// This one, now.
    pub fn look() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let first = |text: &str| {
            text.split_whitespace()
                .next()
                .and_then(|word| word.parse().ok())
        };
        Self {
            cpu: model(&read("/proc/cpuinfo")).to_owned(),
            cpus: thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: first(&read("/proc/loadavg")).unwrap_or_default(),
            line_ns: line_ns(),
        }
    }
}

/// The model in `/proc/cpuinfo`; empty where there is none.
fn model(cpuinfo: &str) -> &str {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':'))
        .map_or("", |(_, model)| model.trim())
}

/// Half a round trip of a cache line between two threads: the best of several rounds, since a
/// thread that has to wait for its CPU says nothing.
pub fn line_ns() -> f64 {
    const TRIPS: u64 = 2_000;
    const ROUNDS: u64 = 50;
    let line = AtomicU64::new(0);
    let wait = |value| {
        let mut spins = 0_u32;
        while line.load(Ordering::Acquire) != value {
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(1 << 16) {
                thread::yield_now();
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for trip in 0..ROUNDS * TRIPS {
                wait(2 * trip + 1);
                line.store(2 * trip + 2, Ordering::Release);
            }
        });
        let mut best = f64::INFINITY;
        for round in 0..ROUNDS {
            let started = Instant::now();
            for trip in round * TRIPS..(round + 1) * TRIPS {
                line.store(2 * trip + 1, Ordering::Release);
                wait(2 * trip + 2);
            }
            best = best.min(started.elapsed().as_nanos() as f64 / (2 * TRIPS) as f64);
        }
        best
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_what_follows_the_colon() {
        let cpuinfo = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: Some CPU\nflags\t: a b\n";
        assert_eq!(model(cpuinfo), "Some CPU");
        assert_eq!(model("nothing"), "");
    }

    #[test]
    fn a_line_takes_nanoseconds() {
        assert!((0.1..1e6).contains(&line_ns()));
    }
}
