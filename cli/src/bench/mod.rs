//! `trunkline bench`: measures between two processes or hosts.

mod channel;
mod client;
mod end;
mod failure;
mod histogram;
mod idle;
mod latency;
mod node;
mod pace;
mod params;
mod ping;
mod report;
mod server;
mod session;
mod stream;
mod throughput;
mod yardstick;

use super::interrupt::Interrupt;
use super::port::kinds;
use super::range::Range;
use super::usage::wrong;
use anyhow::Result;
use clap::Args;
use latency::Goal;
use params::{
    ATOMIC_SIZE, CONNECTIONS, Controller, DEPTH, Mode, Op, Params, QPS, SIZE, TIMEOUT, WORKERS,
};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use trunkline::PortKind;
use trunkline_wire::may_be_one_host;
use yardstick::Yardstick;

/// Round trips of `lat`, unless the command line says otherwise.
const USUAL_ITERATIONS: u64 = 10_000;
/// Duration of `bw` and `rate`, unless the command line says otherwise.
const DURATION: Duration = Duration::from_secs(5);

/// TCP ports.
const PORT: Range<u64> = Range::new(0, u16::MAX as u64);
/// Round trips.
const ITERATIONS: Range<u64> = Range::new(1, 1_000_000_000_000);
/// Seconds before anything counts.
const WARMUP: Range<f64> = Range::new(0.0, TIMEOUT.most());

/// What has no meaning where clients are served: each says for itself what it wants.
const CLIENTS: [&str; 16] = [
    "connect",
    "bind",
    "yardstick",
    "op",
    "size",
    "qps",
    "connections",
    "workers",
    "depth",
    "control",
    "duration",
    "iterations",
    "warmup",
    "verify",
    "capture_cm",
    "json",
];

/// What has no meaning without the transport.
const TRANSPORT: [&str; 8] = [
    "qps",
    "connections",
    "workers",
    "depth",
    "control",
    "verify",
    "capture_cm",
    "metrics",
];

/// Options of `trunkline bench`.
#[derive(Args, Debug)]
#[command(
    after_help = "Start a server, then a client: what is measured is the client's choice.\n  \
    trunkline bench lat --listen 127.0.0.2\n  \
    trunkline bench lat --connect 127.0.0.2 --op write --size 64"
)]
pub(crate) struct BenchArgs {
    /// What to measure.
    #[arg(value_enum)]
    mode: Mode,
    /// Serve clients on this IP address, one after another.
    #[arg(long, value_name = "ADDR", conflicts_with_all = CLIENTS)]
    listen: Option<IpAddr>,
    /// Measure against the server at this IP address.
    #[arg(long, value_name = "ADDR")]
    connect: Option<IpAddr>,
    #[arg(long, value_name = "N", default_value_t = 18515, value_parser = PORT.count::<u16>())]
    #[arg(allow_negative_numbers = true)]
    #[arg(help = PORT.help("TCP port on which both ends agree on what to do",
                           "; the measurement itself is RoCEv2; 0 is any that is free"))]
    tcp_port: u16,
    /// What carries packets at this end.
    #[arg(long, value_parser = kinds(), default_value_t)]
    port: PortKind,
    /// With --listen: serve one client only.
    #[arg(long, conflicts_with = "connect")]
    once: bool,
    #[arg(long, value_parser = TIMEOUT.seconds(), value_name = "SECS", default_value = "10")]
    #[arg(help = TIMEOUT.help("Give up when nothing moves for so long",
                              ": of a client's and its server's the longer counts"))]
    #[arg(allow_negative_numbers = true)]
    timeout: Duration,
    /// Answer Prometheus at this address, under /metrics: all that this end's node counts. Port 0
    /// is any that is free.
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    client: ClientArgs,
}

/// Options of the end that measures. The server hears of what it has to know.
#[derive(Args, Debug)]
#[command(next_help_heading = "Options with --connect")]
struct ClientArgs {
    /// Address of the client's node [default: that of the connection to the server].
    #[arg(long, value_name = "ADDR")]
    bind: Option<IpAddr>,
    /// Measure the same without Trunkline's transport, to compare.
    #[arg(long, value_enum, conflicts_with_all = TRANSPORT)]
    yardstick: Option<Yardstick>,
    /// Operation [default: send; bw: write].
    #[arg(long, value_enum)]
    op: Option<Op>,
    #[arg(long, value_parser = SIZE.bytes(), value_name = "BYTES", allow_negative_numbers = true)]
    #[arg(help = SIZE.help("Bytes of a message",
                           ", K, M and G are powers of 1024 [default: 64; bw: 1M; atomic: 8]"))]
    size: Option<u64>,
    #[arg(long, value_name = "N", value_parser = QPS.count::<u32>(), allow_negative_numbers = true)]
    #[arg(help = QPS.help("QPs at each end", " [default: 1; rate: 64]"))]
    qps: Option<u32>,
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = CONNECTIONS.count::<u32>())]
    #[arg(allow_negative_numbers = true)]
    #[arg(help = CONNECTIONS.help("Most shared connections for them",
                                  ": another one is opened when 1,024 QPs use each"))]
    connections: u32,
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = WORKERS.count::<u8>())]
    #[arg(allow_negative_numbers = true)]
    #[arg(help = WORKERS.help("Workers of each node", "; with several each has its own thread"))]
    workers: u8,
    #[arg(long, value_name = "N", value_parser = DEPTH.count::<u32>())]
    #[arg(allow_negative_numbers = true)]
    #[arg(help = DEPTH.help("Requests under way on each QP", " [default: 16; lat: always 1]"))]
    depth: Option<u32>,
    /// Congestion control of the shared connections.
    #[arg(long, value_enum, default_value_t = Controller::Delay)]
    control: Controller,
    #[arg(long, value_parser = TIMEOUT.seconds(), value_name = "SECS")]
    #[arg(help = TIMEOUT.help("Time to measure",
                              " [default: 5; lat: as long as the iterations take]. In bw and \
                               rate, where no request is completed in it, all that are under way \
                               count; rate takes up to a tenth more to find the smallest round \
                               trip first"))]
    #[arg(allow_negative_numbers = true)]
    duration: Option<Duration>,
    #[arg(long, value_name = "N", conflicts_with = "duration")]
    #[arg(value_parser = ITERATIONS.count::<u64>(), allow_negative_numbers = true)]
    #[arg(help = ITERATIONS.help("lat: round trips to measure", " [default: 10000]"))]
    iterations: Option<u64>,
    #[arg(long, value_parser = WARMUP.seconds(), value_name = "SECS", default_value = "0.2")]
    #[arg(help = WARMUP.help("Time before anything counts", ""), allow_negative_numbers = true)]
    warmup: Duration,
    /// Compare what arrives with what was sent: every message, but of WRITEs in bw and rate only
    /// those that are left at the end.
    #[arg(long)]
    verify: bool,
    /// Write what the client's node says and hears of connection management to a pcapng file.
    #[arg(long, value_name = "FILE")]
    capture_cm: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// A command line that makes no sense, and whatever goes wrong at the end that it chose.
pub(crate) fn run(args: &BenchArgs, interrupt: &Interrupt) -> Result<()> {
    for address in [args.listen, args.connect, args.client.bind]
        .into_iter()
        .flatten()
    {
        // The ICRC covers addresses: a node has one, and its peers send to it.
        if !may_be_one_host(address) {
            return Err(wrong(format!("{address} is not the address of one host")));
        }
    }
    let apart = args.port.check_between_processes();
    apart.map_err(|conflict| wrong(format!("--port: {conflict}")))?;
    match (args.listen, args.connect) {
        (Some(address), _) => {
            let plan = server::Plan {
                address,
                tcp_port: args.tcp_port,
                port: args.port.clone(),
                once: args.once,
                timeout: args.timeout,
                metrics: args.metrics,
            };
            server::run(&plan, interrupt)
        }
        (None, Some(server)) => client::run(&args.plan(server)?, interrupt),
        (None, None) => Err(wrong("--listen ADDR or --connect ADDR is needed")),
    }
}

impl BenchArgs {
    fn plan(&self, server: IpAddr) -> Result<client::Plan> {
        if self.tcp_port == 0 {
            return Err(wrong(
                "--tcp-port 0 is for --listen: with --connect it is the one that the server shows",
            ));
        }
        let client = &self.client;
        let op = client.op.unwrap_or(match self.mode {
            Mode::Lat | Mode::Rate => Op::Send,
            Mode::Bw => Op::Write,
        });
        let one = client.yardstick.is_some();
        if one && !op.is_answered() {
            return Err(wrong(format!(
                "--yardstick has no {op}: --op is send or write"
            )));
        }
        let params = Params {
            mode: self.mode,
            op,
            size: client.size.unwrap_or(match (op, self.mode) {
                (Op::Atomic, _) => ATOMIC_SIZE,
                (_, Mode::Bw) => 1 << 20,
                (_, Mode::Lat | Mode::Rate) => 64,
            }),
            qps: client.qps.unwrap_or(if self.mode == Mode::Rate && !one {
                64
            } else {
                1
            }),
            connections: client.connections,
            depth: client
                .depth
                .unwrap_or(if self.mode == Mode::Lat || one { 1 } else { 16 }),
            control: client.control,
            verify: client.verify,
            workers: client.workers,
            timeout: self.timeout,
        };
        if let Err(error) = params.check() {
            return Err(wrong(error.to_string()));
        }
        if self.mode == Mode::Lat && params.depth != 1 {
            return Err(wrong("--depth is 1 where latency is measured"));
        }
        if self.mode != Mode::Lat && client.iterations.is_some() {
            return Err(wrong(
                "--iterations is for lat; bw and rate have --duration",
            ));
        }
        if client
            .bind
            .is_some_and(|bind| bind.is_ipv4() != server.is_ipv4())
        {
            return Err(wrong(
                "--bind and --connect are addresses of different families",
            ));
        }
        let iterations = match (self.mode, client.duration) {
            (Mode::Lat, None) => Some(client.iterations.unwrap_or(USUAL_ITERATIONS)),
            _ => None,
        };
        Ok(client::Plan {
            server: SocketAddr::new(server, self.tcp_port),
            port: self.port.clone(),
            bind: client.bind,
            yardstick: client.yardstick,
            params,
            goal: Goal {
                warmup: client.warmup,
                iterations,
                duration: client.duration.unwrap_or(DURATION),
            },
            json: client.json,
            capture: client.capture_cm.clone(),
            metrics: self.metrics,
        })
    }
}
