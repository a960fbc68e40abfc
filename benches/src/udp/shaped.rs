//! WRITEs through a bottleneck of the kernel's, alone and beside TCP.

use super::iperf::Iperf;
use super::pair::Pair;
use super::write;
use crate::link::{Link, Shape};
use crate::rounds::median;
use crate::{Measurement, Setting};
use anyhow::Result;
use std::time::Duration;

/// 100 Mb/s, 2 ms, and a queue of four products of the two.
const SHAPE: Shape = Shape {
    rate: 100_000_000,
    queue: 100_000,
    rtt: 2_000_000,
};
/// TCP needs so long to find its rate and to say what it was.
const LEAST_ROUND: Duration = Duration::from_secs(4);
const PATH: &str = "bytes/s, WRITEs of 1 MiB, two processes, 100 Mb/s, 2 ms, queue of 100 kB";

/// `shaped_alone`
///
/// # Errors
/// No namespaces, no iperf3, or a process that fails.
pub fn alone(setting: &Setting) -> Result<Measurement> {
    let duration = setting.duration.max(LEAST_ROUND);
    let link = &Link::shaped(&setting.program, SHAPE)?;
    let tcp = Iperf::start(link, duration)?;
    let (mut writes, mut streams) = (Vec::new(), Vec::new());
    for _ in 0..rounds(setting) {
        let pair = Pair::start(setting, link, "write", duration, 1)?;
        writes.push(write::bytes_per_second(&pair)?);
        streams.push(tcp.bytes_per_second()?);
    }
    Ok(Measurement::new(
        "shaped_alone",
        PATH,
        "one TCP stream of iperf3 over the same path, by turns",
        (median(&mut writes), median(&mut streams)),
    ))
}

/// `shaped_beside`
///
/// # Errors
/// No namespaces, no iperf3, or a process that fails.
pub fn beside(setting: &Setting) -> Result<Measurement> {
    let duration = setting.duration.max(2 * LEAST_ROUND);
    let link = &Link::shaped(&setting.program, SHAPE)?;
    let tcp = Iperf::start(link, duration)?;
    let (mut writes, mut streams) = (Vec::new(), Vec::new());
    for _ in 0..rounds(setting) {
        let stream = tcp.begin(Some("cubic"))?;
        let pair = Pair::start(setting, link, "write", duration, 1)?;
        writes.push(write::bytes_per_second(&pair)?);
        streams.push(stream.bytes_per_second()?);
    }
    Ok(Measurement::new(
        "shaped_beside",
        PATH,
        "one TCP stream (cubic) of iperf3 over the same path at the same time",
        (median(&mut writes), median(&mut streams)),
    ))
}

fn rounds(setting: &Setting) -> usize {
    setting.rounds.clamp(1, 3)
}
