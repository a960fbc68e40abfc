//! What a run gave: rates of each flow, drops, the queue.

use super::world::BIN;
use serde::Serialize;
use trunkline_conn::time::SECOND;

/// One flow.
#[derive(Clone, Debug, Serialize)]
pub struct Flow {
    /// `trunkline`, or the algorithm of TCP.
    pub name: &'static str,
    /// Megabits of IP packets per second that came for the first time, over the whole run.
    pub mbps: f64,
    /// The same for each second.
    pub per_second: Vec<f64>,
    /// Bytes in each [`BIN`].
    #[serde(skip)]
    pub bins: Vec<u64>,
}

/// The run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Ours first.
    pub flows: Vec<Flow>,
    /// Packets that found the queue full, and those lost by `--loss`.
    pub drops: u64,
    /// Most bytes that waited.
    pub max_queue: u64,
    /// The same for each [`BIN`].
    #[serde(skip)]
    pub queue: Vec<u64>,
}

fn mbps(bytes: u64, ns: u64) -> f64 {
    bytes as f64 * 8e3 / ns as f64
}

impl Flow {
    pub(super) fn new(name: &'static str, bins: Vec<u64>, length: u64) -> Self {
        let per_second = bins
            .chunks((SECOND / BIN) as usize)
            .enumerate()
            .map(|(second, bins)| {
                let ns = (length - second as u64 * SECOND).min(SECOND);
                round(mbps(bins.iter().sum(), ns))
            });
        Self {
            name,
            mbps: round(mbps(bins.iter().sum(), length)),
            per_second: per_second.collect(),
            bins,
        }
    }

    /// Megabits per second from `from` to `to`, both in ns after the start.
    pub fn between(&self, from: u64, to: u64) -> f64 {
        let bins = (from / BIN) as usize..((to / BIN) as usize).min(self.bins.len());
        let ns = bins.len() as u64 * BIN;
        mbps(self.bins[bins].iter().sum(), ns.max(1))
    }
}

/// To a thousandth: what follows is noise.
fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Jain's index of fairness: 1 where all are equal, 1/n where one has all.
pub fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    if squares == 0.0 {
        return 1.0;
    }
    sum * sum / (rates.len() as f64 * squares)
}

impl Outcome {
    /// A table for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for flow in &self.flows {
            let seconds: Vec<_> = flow.per_second.iter().map(|r| format!("{r:.0}")).collect();
            text += &format!(
                "{:<10} {:>10.1} Mb/s   by seconds: {}\n",
                flow.name,
                flow.mbps,
                seconds.join(" ")
            );
        }
        text + &format!(
            "{} packets dropped, at most {} bytes waited\n",
            self.drops, self.max_queue
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_they_cover() {
        let bins = vec![125_000; 150];
        let flow = Flow::new("x", bins, 1_500 * SECOND / 1000);
        assert_eq!(flow.mbps, 100.0);
        assert_eq!(flow.per_second, [100.0, 100.0]);
        assert_eq!(flow.between(SECOND / 2, SECOND), 100.0);
    }

    #[test]
    fn jains_index_is_one_for_equals_and_a_share_for_a_glutton() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), 1.0);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-9);
        assert_eq!(jain(&[0.0, 0.0]), 1.0);
    }
}
