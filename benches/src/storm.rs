//! 64 nodes connect 10,000 QPs to one that none of them knows: over UDP on loopback, in real time.
//! The one node runs on its own thread, all others take turns on another.

use crate::Measurement;
use crate::end::End;
use crate::rounds::percentile;
use anyhow::{Result, ensure};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use trunkline::{Drive, Node, QpOptions, RecvWr, Status};

/// Nodes that connect.
const NODES: usize = 64;
/// QPs of each; 10,048 in all.
const EACH: usize = 157;
const UNIT: &str = "s until 10,048 QPs of 64 nodes have each had a SEND answered, on two threads";
const YARDSTICK: &str = "what it may take";
const ALLOWED: f64 = 2.0;
/// Storms; the median counts.
const ROUNDS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(30);

/// `cm_storm`
///
/// # Errors
/// An address that is taken, or a QP that does not work.
pub fn storm() -> Result<Measurement> {
    let mut storms = (0..ROUNDS)
        .map(|_| Storm::run())
        .collect::<Result<Vec<_>>>()?;
    storms.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let median = &storms[ROUNDS / 2];
    let measured = Measurement::new("cm_storm", UNIT, YARDSTICK, (median.seconds, ALLOWED));
    Ok(measured.note(format!(
        "of the nodes: p99/p50 of the time until all QPs are usable {:.2}, Jain index of QPs per \
         second {:.3}; of all QPs: p50 {:.3} s, p99 {:.3} s",
        median.spread, median.jain, median.p50, median.p99
    )))
}

/// One round of each node: notes when a SEND of it was answered.
fn collect(ends: &[End], times: &mut [Vec<f64>], started: Instant) -> Result<()> {
    for (end, times) in ends.iter().zip(times) {
        end.node.poll()?;
        while let Some(done) = end.cq.poll_one().expect("room in the CQ") {
            ensure!(done.status == Status::Success, "{done:?}");
            times.push(started.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

/// What one storm was like.
#[derive(Debug)]
struct Storm {
    seconds: f64,
    spread: f64,
    jain: f64,
    p50: f64,
    p99: f64,
}

fn end(last: u8, drive: Drive) -> Result<End> {
    let address = IpAddr::from([127, 77, 2, last]);
    let node = Node::builder().address(address).drive(drive).build()?;
    End::new(node, 16_384)
}

impl Storm {
    fn run() -> Result<Self> {
        let target = end(1, Drive::Threaded)?;
        let ends = (0..NODES)
            .map(|node| end(node as u8 + 2, Drive::Inline))
            .collect::<Result<Vec<_>>>()?;
        let srq = target.pd.create_srq((NODES * EACH) as u32, 1)?;
        for wr_id in 0..(NODES * EACH) as u64 {
            let sges = [target.mr.sge(0, 8)];
            srq.post_recv(&[RecvWr { wr_id, sges: &sges }])?;
        }
        let listening = QpOptions {
            srq: Some(srq),
            ..QpOptions::default()
        };
        let started = Instant::now();
        let mut qps = Vec::with_capacity(2 * NODES * EACH);
        let mut times = vec![Vec::new(); NODES];
        // Each node's program has one request after the other; all nodes at the same time.
        for at in 0..EACH {
            for end in &ends {
                let (near, far) = (end.qp(&QpOptions::default())?, target.qp(&listening)?);
                near.connect(far.address())?;
                far.connect(near.address())?;
                end.send(&near, at as u64)?;
                qps.extend([near, far]);
            }
            collect(&ends, &mut times, started)?;
        }
        while times.iter().any(|times| times.len() < EACH) {
            collect(&ends, &mut times, started)?;
            ensure!(started.elapsed() < PATIENCE, "QPs are missing");
        }
        Ok(Self::of(&times))
    }

    /// Of the times after which each QP of each node was usable.
    fn of(times: &[Vec<f64>]) -> Self {
        let mut last: Vec<f64> = times
            .iter()
            .map(|times| times.iter().copied().fold(0.0, f64::max))
            .collect();
        let rates: Vec<f64> = times
            .iter()
            .zip(&last)
            .map(|(t, l)| t.len() as f64 / l)
            .collect();
        let sum: f64 = rates.iter().sum();
        let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
        let mut all: Vec<f64> = times.iter().flatten().copied().collect();
        Self {
            seconds: percentile(&mut last, 100),
            spread: percentile(&mut last, 99) / percentile(&mut last, 50),
            jain: sum * sum / (rates.len() as f64 * squares),
            p50: percentile(&mut all, 50),
            p99: percentile(&mut all, 99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_served_alike_have_an_index_of_one() {
        let storm = Storm::of(&[vec![0.5, 1.0], vec![1.0, 0.5]]);
        assert_eq!((storm.jain, storm.spread, storm.seconds), (1.0, 1.0, 1.0));
    }

    #[test]
    fn a_node_that_starves_shows_in_index_and_spread() {
        let storm = Storm::of(&[vec![1.0], vec![1.0], vec![100.0]]);
        assert!(storm.jain < 0.7 && storm.spread > 99.0, "{storm:?}");
    }
}
