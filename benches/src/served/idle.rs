//! What programs with QPs on which nothing happens cost a service.

use super::client::{End, Memory, Shape};
use super::service::{Service, Trunkline};
use crate::process::{Parent, Process};
use crate::rounds::median;
use crate::{Measurement, Setting};
use anyhow::Result;
use clap::Args;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Clients of a service, and QPs of each.
const CLIENTS: usize = 100;
const QPS: usize = 100;
/// Half a percent of a core, in microseconds per second.
const MOST: f64 = 5000.0;
/// What setting up leaves to do is done after so long.
const SETTLE: Duration = Duration::from_secs(6);
/// In a shorter round a single timer would decide.
const LEAST_ROUND: Duration = Duration::from_secs(2);

/// What the program has.
#[derive(Args, Clone, Debug)]
pub(super) struct IdleArgs {
    /// Nodes, each a client of the service.
    #[arg(long)]
    clients: usize,
    /// QPs of each, connected with each other.
    #[arg(long)]
    qps: usize,
}

/// Attaches, connects the QPs of each node with each other, and waits until all is over.
///
/// # Errors
/// The service refuses.
pub(super) fn part(parent: &Parent, socket: &str, arguments: &IdleArgs) -> Result<()> {
    let shape = Shape {
        qps: arguments.qps,
        depth: 16,
        size: 64,
        memory: Memory::Segment,
    };
    let ends = (0..arguments.clients).map(|_| {
        let end = End::open(socket, shape)?;
        for pair in end.qps.chunks_exact(2) {
            pair[0].connect(pair[1].address())?;
            pair[1].connect(pair[0].address())?;
        }
        Ok(end)
    });
    let _ends: Vec<End> = ends.collect::<Result<_>>()?;
    parent.say(&())?;
    parent.hear_line()?;
    Ok(())
}

/// `served_idle`
///
/// # Errors
/// A process that fails.
pub fn idle(setting: &Setting) -> Result<Measurement> {
    let service = Service::start(&Trunkline::beside(&setting.program)?, &[])?;
    let alone = rounds(setting, &service)?;
    let mut command = Command::new(&setting.program);
    command.args(["served", "--socket", service.socket(), "idle"]);
    command.args(["--clients", &CLIENTS.to_string()]);
    command.args(["--qps", &QPS.to_string()]);
    let mut clients = Process::start(command)?;
    clients.hear::<()>()?;
    let loaded = rounds(setting, &service)?;
    Ok(Measurement::new(
        "served_idle",
        "us of CPU per second of a service with 100 clients of 100 connected QPs each, on which \
         nothing happens (lower is better)",
        "the most it may be: 0.5 % of a core",
        (loaded, MOST),
    )
    .want(loaded < MOST, format!("less than {MOST:.0}"))
    .note(format!("without clients: {alone:.0}")))
}

/// The service's time of a CPU in us per second, a median.
fn rounds(setting: &Setting, service: &Service) -> Result<f64> {
    sleep(SETTLE);
    let mut found = Vec::new();
    for _ in 0..setting.rounds {
        let (before, begun) = (service.cpu_ns()?, Instant::now());
        sleep(setting.duration.max(LEAST_ROUND));
        let us = (service.cpu_ns()? - before) as f64 / 1e3;
        found.push(us / begun.elapsed().as_secs_f64());
    }
    Ok(median(&mut found))
}
