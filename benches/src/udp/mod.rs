//! Two processes in two network namespaces, one node each, both driven inline.

mod bare;
mod iperf;
mod node;
mod pair;
mod ping;
mod shaped;
mod write;

use crate::link::Link;
use crate::machine::line_ns;
use crate::rounds::median;
use crate::{Measurement, Setting};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use iperf::Iperf;
use pair::Pair;
use std::time::Duration;

pub use shaped::{alone, beside};

/// A shorter round says nothing about a TCP stream.
const LEAST_ROUND: Duration = Duration::from_secs(1);

/// Arguments of a process at one end.
#[derive(Args, Clone, Debug)]
pub struct PeerArgs {
    /// Which end it is.
    role: Role,
    /// What it does.
    task: Task,
    /// Length of a round.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds.
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Prints what the node counted.
    #[arg(long)]
    counters: bool,
}

impl PeerArgs {
    fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Says on standard error what a node counted, if that is wanted.
    fn show(&self, end: &node::End) {
        if self.counters {
            let role = if self.role == Role::Server {
                "server"
            } else {
                "client"
            };
            end.print_counters(role);
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Role {
    /// Answers, at [`crate::link::WEST`].
    Server,
    /// Asks, at [`crate::link::EAST`].
    Client,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Task {
    /// WRITEs of 1 MiB.
    Write,
    /// Datagrams with nothing around them.
    Bare,
    /// Ping-pong, over RDMA, TCP and bare ports by turns.
    Ping,
}

/// One end of a link.
///
/// # Errors
/// Whatever went wrong.
pub fn peer(arguments: &PeerArgs) -> Result<()> {
    let parent = crate::process::Parent::new();
    match (arguments.task, arguments.role) {
        (Task::Write, Role::Server) => write::serve(&parent, arguments),
        (Task::Write, Role::Client) => write::ask(&parent, arguments),
        (Task::Bare, Role::Server) => bare::receive(&parent),
        (Task::Bare, Role::Client) => bare::send(&parent, arguments.duration()),
        (Task::Ping, Role::Server) => ping::serve(&parent, arguments),
        (Task::Ping, Role::Client) => ping::ask(&parent, arguments),
    }
}

/// `udp_write1m`
///
/// # Errors
/// No namespaces, no iperf3, or a process that fails.
pub fn write1m(setting: &Setting) -> Result<Measurement> {
    let duration = setting.duration.max(LEAST_ROUND);
    let link = &Link::new(&setting.program)?;
    let tcp = Iperf::start(link, duration)?;
    let (mut writes, mut streams, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..setting.rounds.max(3) {
        writes.push(write::bytes_per_second(&Pair::start(
            setting, link, "write", duration, 1,
        )?)?);
        streams.push(tcp.bytes_per_second()?);
        bare.push(bare::bytes_per_second(&Pair::start(
            setting, link, "bare", duration, 1,
        )?)?);
    }
    let bare = median(&mut bare);
    let line_ns = line_ns();
    let measurement = Measurement::new(
        "udp_write1m",
        "bytes/s, WRITEs of 1 MiB, 4 under way on one QP, two processes on a veth pair, MTU 9000",
        "one TCP stream of iperf3 over the same veth pair",
        (median(&mut writes), median(&mut streams)),
    );
    let ratio = bare / measurement.yardstick_value;
    Ok(measurement
        .note(format!(
            "datagrams of 8192 B alone, in super-packets, with no engine: {bare:.3e} bytes/s \
         received, {ratio:.2} of TCP"
        ))
        .note(format!(
            "a cache line took {line_ns:.0} ns from CPU to CPU just then"
        )))
}

/// `udp_lat64`
///
/// # Errors
/// No namespaces, or a process that fails.
pub fn lat64(setting: &Setting) -> Result<Measurement> {
    let link = Link::new(&setting.program)?;
    let pair = Pair::start(setting, &link, "ping", setting.duration, setting.rounds)?;
    let found = ping::result(&pair).context("the client's figures")?;
    let mut notes = Vec::new();
    for (name, mut times) in [("SEND", found.rdma_99), ("TCP", found.tcp_99)] {
        notes.push(format!(
            "99th percentile of {name}: {:.0} ns",
            median(&mut times)
        ));
    }
    let (mut rdma, mut tcp, mut bare) = (found.rdma, found.tcp, found.bare);
    notes.push(format!(
        "the UDP port alone, with no node: {:.0} ns",
        median(&mut bare)
    ));
    let measurement = Measurement::new(
        "udp_lat64",
        "ns, median half round trip of 64 B SENDs, both ends polling (lower is better)",
        "ns, the same over TCP_NODELAY, both ends polling non-blocking sockets (lower is better)",
        (median(&mut rdma), median(&mut tcp)),
    );
    Ok(notes.into_iter().fold(measurement, Measurement::note))
}
