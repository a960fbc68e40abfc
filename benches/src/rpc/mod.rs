//! Calls of 64 bytes with as many to answer them, from one process to another, each a tokio
//! runtime on one thread; beside the same over TCP, and TCP with no calls at all. The same with
//! gRPC, and streams of its messages.

mod grpc;
mod load;
mod open;
mod ours;
mod process;
mod table;
mod tcp;

use crate::cpus::Pinned;
use crate::link::Side;
use crate::place::Place;
use crate::process::Process;
use crate::{Measurement, Setting};
use anyhow::{Context, Result};
use load::Found;
use process::{Load, Over};
use std::net::SocketAddr;
use std::time::Duration;
use table::{Line, Table};

pub use process::{RpcArgs, part};

/// QPs, or TCP connections, of the echoes.
const CONNECTIONS: usize = 100;
/// Clients of the fan.
const FAN: usize = 10_000;
/// In a shorter round each of so many clients gets an answer or two, and which of them are in time
/// decides.
const FAN_ROUND: Duration = Duration::from_secs(2);

/// A benchmark.
#[derive(Clone, Copy, Debug)]
struct Task {
    name: &'static str,
    unit: &'static str,
    yardstick: &'static str,
    connections: usize,
    load: Load,
    /// What it is about first, with its yardstick among the others.
    over: &'static [Over],
}

/// `rpc_echo_1`
///
/// # Errors
/// A process that fails.
pub fn echo_1(setting: &Setting) -> Result<Measurement> {
    let unit = "calls of 64 B per second, one at a time over 100 QPs, two processes on loopback";
    echo(setting, "rpc_echo_1", unit, 1)
}

/// `rpc_echo_100`
///
/// # Errors
/// A process that fails.
pub fn echo_100(setting: &Setting) -> Result<Measurement> {
    let unit = "calls of 64 B per second, 100 under way on 100 QPs, two processes on loopback";
    echo(setting, "rpc_echo_100", unit, 100)
}

/// `rpc_echo_10000`
///
/// # Errors
/// A process that fails.
pub fn echo_10000(setting: &Setting) -> Result<Measurement> {
    let unit = "calls of 64 B per second, 10,000 under way on 100 QPs, two processes on loopback";
    echo(setting, "rpc_echo_10000", unit, 10_000)
}

fn echo(
    setting: &Setting,
    name: &'static str,
    unit: &'static str,
    under_way: usize,
) -> Result<Measurement> {
    let task = Task {
        name,
        unit,
        yardstick: "the same over 100 TCP connections",
        connections: CONNECTIONS,
        load: Load::UnderWay(under_way),
        over: &[Over::Trunkline, Over::Tcp, Over::Raw],
    };
    task.measure(setting)
}

/// `rpc_open_p99`
///
/// # Errors
/// A process that fails.
pub fn open_p99(setting: &Setting) -> Result<Measurement> {
    let closed = Task {
        name: "rpc_open_p99",
        unit: "ns, 99th percentile of calls of 64 B that begin by the clock over 100 QPs, at half \
               of what TCP answers with 100 under way (lower is better)",
        yardstick: "ns, the same over 100 TCP connections (lower is better)",
        connections: CONNECTIONS,
        load: Load::UnderWay(100),
        over: &[Over::Tcp],
    };
    let mut table = Table::default();
    closed.measure_at(&Place::Loopback, setting, &mut table)?;
    let (most, _) = table.rates(Over::Tcp);
    let open = Task {
        load: Load::Rate(most / 2.0),
        over: &[Over::Trunkline, Over::Tcp],
        ..closed
    };
    open.measure_as(setting, Table::p99s)
}

/// `rpc_fan_10000`
///
/// # Errors
/// Too few descriptors for one process, or a process that fails.
pub fn fan_10000(setting: &Setting) -> Result<Measurement> {
    let task = Task {
        name: "rpc_fan_10000",
        unit: "calls of 64 B per second of 10,000 clients with a QP and a call under way each, \
               two processes on loopback",
        yardstick: "the same of 10,000 clients with a TCP connection each",
        connections: FAN,
        load: Load::UnderWay(FAN),
        over: &[Over::Trunkline, Over::Tcp],
    };
    task.measure(&Setting {
        duration: setting.duration.max(FAN_ROUND),
        ..setting.clone()
    })
}

/// `grpc_echo`
///
/// # Errors
/// A process that fails.
pub fn grpc_echo(setting: &Setting) -> Result<Measurement> {
    let task = Task {
        name: "grpc_echo",
        unit: "calls of 64 B per second by tonic, 100 under way on one connection, two processes \
               on loopback",
        yardstick: "the same over a TCP connection",
        connections: 1,
        load: Load::UnderWay(100),
        over: &[Over::Grpc, Over::GrpcTcp],
    };
    task.measure(setting)
}

/// `grpc_stream64k`
///
/// # Errors
/// A process that fails.
pub fn grpc_stream64k(setting: &Setting) -> Result<Measurement> {
    let task = Task {
        name: "grpc_stream64k",
        unit: "messages of 64 KiB per second of one stream of tonic, two processes on loopback",
        yardstick: "the same over a TCP connection",
        connections: 1,
        load: Load::UnderWay(1),
        over: &[Over::Stream, Over::StreamTcp],
    };
    task.measure(setting)
}

impl Task {
    fn measure(&self, setting: &Setting) -> Result<Measurement> {
        self.measure_as(setting, Table::rates)
    }

    /// The same, with other figures of the table as those of the benchmark.
    fn measure_as(
        &self,
        setting: &Setting,
        figures: impl Fn(&Table, Over) -> (f64, f64),
    ) -> Result<Measurement> {
        let mut table = Table::default();
        self.measure_at(&Place::Loopback, setting, &mut table)?;
        let veth = Place::veth(&setting.program);
        let veth = veth.and_then(|veth| self.measure_at(&veth, setting, &mut table));
        let medians = figures(&table, self.over[0]);
        let measurement = Measurement::new(self.name, self.unit, self.yardstick, medians);
        let notes = table.notes().into_iter().chain(
            veth.err()
                .map(|error| format!("not measured across a veth pair: {error:#}")),
        );
        Ok(notes.fold(measurement, Measurement::note))
    }

    /// Rounds of all by turns, with a CPU for each process if there are two, and with one for both.
    fn measure_at(&self, place: &Place, setting: &Setting, table: &mut Table) -> Result<()> {
        for cpus in Pinned::ways()? {
            let mut pairs = Vec::new();
            for over in self.over {
                let line = Line::new(place.name(), cpus.name(), *over);
                let pair = Pair::start(self, setting, place, cpus, *over);
                pairs.push((pair.with_context(|| line.name())?, line));
            }
            for _ in 0..setting.rounds {
                for (pair, line) in &mut pairs {
                    line.add(&pair.round().with_context(|| line.name())?);
                }
            }
            table.extend(pairs.into_iter().map(|(_, line)| line));
        }
        Ok(())
    }
}

/// The two processes.
#[derive(Debug)]
struct Pair {
    server: Process,
    client: Process,
}

/// What both processes found in a round.
#[derive(Clone, Copy, Debug)]
struct Both {
    client: Found,
    /// Time of a CPU that the server took, in ns.
    server_cpu_ns: u64,
}

impl Pair {
    fn start(
        task: &Task,
        setting: &Setting,
        place: &Place,
        cpus: Pinned,
        over: Over,
    ) -> Result<Self> {
        let command = |side, cpu: usize| {
            let mut command = place.command(side, &setting.program);
            command.args(["rpc", over.word(), "--cpu", &cpu.to_string()]);
            command.args(["--connections", &task.connections.to_string()]);
            command
        };
        let mut server = command(Side::West, cpus.server);
        server.args(["server", &place.address(Side::West).to_string()]);
        let mut server = Process::start(server)?;
        let at: SocketAddr = server.hear().context("the server")?;
        let mut client = command(Side::East, cpus.client);
        client.args(["client", &place.address(Side::East).to_string()]);
        client.arg(at.to_string());
        match task.load {
            Load::UnderWay(calls) => client.args(["--under-way", &calls.to_string()]),
            Load::Rate(rate) => client.args(["--rate", &rate.to_string()]),
        };
        client.args(["--seconds", &setting.duration.as_secs_f64().to_string()]);
        let mut client = Process::start(client)?;
        client.hear::<()>().context("the client")?;
        Ok(Self { server, client })
    }

    fn round(&mut self) -> Result<Both> {
        let before = self.server_cpu_ns()?;
        self.client.say_line("\n")?;
        let client = self.client.hear().context("the client")?;
        Ok(Both {
            client,
            server_cpu_ns: self.server_cpu_ns()? - before,
        })
    }

    fn server_cpu_ns(&mut self) -> Result<u64> {
        self.server.say_line("\n")?;
        self.server.hear().context("the server")
    }
}
