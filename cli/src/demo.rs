//! `trunkline demo`: two nodes on loopback addresses, thousands of QPs on a handful of connections,
//! every byte checked.

mod client;
mod end;
mod pattern;
mod server;
mod slots;

use super::capture;
use super::interrupt::Interrupt;
use super::output::{self, print_json};
use super::port::kinds;
use super::progress::Progress;
use super::range::Range;
use super::usage::wrong;
use anyhow::{Result, ensure};
use clap::Args;
use client::Client;
use end::{End, Exchange, Gone};
use serde::Serialize;
use server::{Server, Tally};
use slots::Slots;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use trunkline::PortKind;

/// State of one RC connection in hardware, in bytes: the figure of the SRC paper's table.
const RC_STATE_BYTES: u64 = 750;
/// Bytes of the buffers that each operation under way has for itself.
const SLICE: usize = 8192;
/// Operations under way at any time, each on another QP.
const ACTIVE: usize = 256;
/// Rounds of RPCs, and the bytes of each message in them.
const RPCS: [(u64, usize); 4] = [(0, 32), (1, 64), (2, 1000), (3, SLICE / 2)];
/// How long a demo may stand still before it is called off.
const STALL: Duration = Duration::from_secs(10);

/// QPs that may be opened.
const QPS: Range<u64> = Range::new(1, 1_000_000);
/// Shared connections for them.
const CONNECTIONS: Range<u64> = Range::new(1, 8);

/// Options of `trunkline demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    #[arg(long, default_value_t = 10_000, value_parser = QPS.count::<u32>())]
    #[arg(allow_negative_numbers = true)]
    #[arg(help = QPS.help("QPs to open", ""))]
    qps: u32,
    #[arg(long, default_value_t = 4, value_parser = CONNECTIONS.count::<u32>())]
    #[arg(allow_negative_numbers = true)]
    #[arg(help = CONNECTIONS.help("Most shared connections for them",
                                  ": another one is opened when 1,024 QPs use each"))]
    connections: u32,
    /// Address of the client's node.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1)))]
    client: IpAddr,
    /// Address of the server's node.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)))]
    server: IpAddr,
    /// What carries packets.
    #[arg(long, value_parser = kinds(), default_value_t)]
    port: PortKind,
    /// Write what the client's node says and hears of connection management to a pcapng file.
    #[arg(long, value_name = "FILE")]
    capture_cm: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

impl DemoArgs {
    /// A command line that makes no sense.
    fn check(&self) -> Result<()> {
        if self.client == self.server {
            return Err(wrong(
                "--client and --server are one address, and each node needs its own",
            ));
        }
        if self.client.is_ipv4() != self.server.is_ipv4() {
            return Err(wrong(
                "--client and --server are addresses of different families",
            ));
        }
        let ends = [self.client, self.server];
        let both = self.port.check_within_host(ends);
        let both = both.and_then(|()| self.port.check_together(&ends));
        both.map_err(|conflict| wrong(format!("--port: {conflict}")))
    }
}

/// What the demo found.
#[derive(Debug, Default, Serialize)]
struct Report {
    qps: u64,
    connections: u64,
    errors: u64,
    bytes_verified: u64,
    operations: Operations,
    state_bytes: u64,
    rc_state_bytes: u64,
    state_bytes_per_qp: u64,
    state_bytes_per_connection: u64,
    state_bytes_management: u64,
    setup_seconds: f64,
    seconds: f64,
}

#[derive(Debug, Default, Serialize)]
struct Operations {
    send: u64,
    write: u64,
    read: u64,
    atomic: u64,
}

/// Runs the demo: the client in this thread, the server in another one, so that two cores share the
/// work.
///
/// # Errors
/// Addresses that do not go together, a node that cannot start, a byte that is wrong, an operation
/// that fails, Ctrl-C.
pub(crate) fn run(args: &DemoArgs, interrupt: &Interrupt) -> Result<()> {
    args.check()?;
    output::check()?;
    let started = Instant::now();
    let progress = Progress::new(!args.json);
    let count = args.qps as usize;
    let capture = args.capture_cm.as_deref();
    let client = End::open("client", args.client, args, ACTIVE, capture)?;
    // A response is under way, for its sender, after the client has it.
    let server = End::open("server", args.server, args, 2 * ACTIVE, None)?;
    let server = server.share_receives(2 * ACTIVE)?;
    progress.step(&format!(
        "opening {count} QPs between {} and {}",
        args.client, args.server
    ));
    let tally = Tally::default();
    let (at_client, at_server) = exchanges();
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("server".into());
        let serve = || {
            let server = Server::open(&server, &tally, count, &at_server, interrupt);
            // What it is asked from now on comes in packets.
            drop(at_server);
            server?.run(interrupt)
        };
        let thread = thread.spawn_scoped(scope, serve)?;
        let ask = || {
            let qps = client.open_qps(count, &at_client, interrupt, Some(&progress))?;
            let client = Client {
                end: &client,
                remote: &server.mr,
                qps,
                report: Report::default(),
                slots: Slots::new(),
                tally: &tally,
                progress: &progress,
                interrupt,
                alone: &|| thread.is_finished(),
            };
            run_client(client, started, args)
        };
        let asked = ask();
        tally.over.store(true, Ordering::Release);
        let served = thread.join();
        let served = served.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (asked, served) {
            // Why it is gone is what the other thread says.
            (Err(error), Err(why)) if error.is::<Gone>() => Err(why),
            (asked, served) => asked.and(served),
        }
    })
}

/// The client's, and the server's.
fn exchanges() -> (Exchange, Exchange) {
    let ((to_server, from_client), (to_client, from_server)) = (channel(), channel());
    let client = Exchange {
        ours: to_server,
        theirs: from_server,
    };
    let server = Exchange {
        ours: to_client,
        theirs: from_client,
    };
    (client, server)
}

/// All operations, what came of them, and the end.
fn run_client(mut client: Client<'_>, started: Instant, args: &DemoArgs) -> Result<()> {
    for (round, size) in RPCS {
        client.rpcs(round, size)?;
        if round == 0 {
            client.report.setup_seconds = started.elapsed().as_secs_f64();
        }
    }
    client.writes()?;
    client.reads()?;
    client.atomics()?;
    let Client {
        end,
        qps,
        tally,
        progress,
        interrupt,
        mut report,
        ..
    } = client;
    report.qps = qps.len() as u64;
    report.operations.send += tally.responses.load(Ordering::Acquire);
    report.bytes_verified += tally.bytes_verified.load(Ordering::Acquire);
    let state = end.node.state_bytes();
    report.connections = end.node.connection_count() as u64;
    report.state_bytes = state.total();
    report.state_bytes_per_qp = state.per_qp + state.per_flow;
    report.state_bytes_per_connection = state.per_connection;
    report.state_bytes_management = state.management;
    report.rc_state_bytes = report.qps * RC_STATE_BYTES;
    report.seconds = started.elapsed().as_secs_f64();
    capture::check(&end.node, args.capture_cm.as_deref())?;
    if args.json {
        print_json(&report)?;
    } else {
        let mut out = output::out();
        print_table(&report, &mut out)?;
        out.flush()?;
    }
    ensure!(report.errors == 0, "{} operations failed", report.errors);
    progress.step("closing");
    tally.over.store(true, Ordering::Release);
    end.close_qps(qps, interrupt)
}

fn print_table(report: &Report, out: &mut impl Write) -> std::io::Result<()> {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let ops = &report.operations;
    writeln!(out)?;
    writeln!(out, "  QPs opened                      {:>12}", report.qps)?;
    writeln!(
        out,
        "  connections they share          {:>12}",
        report.connections
    )?;
    writeln!(out, "  SENDs (requests and responses)  {:>12}", ops.send)?;
    writeln!(out, "  WRITEs                          {:>12}", ops.write)?;
    writeln!(out, "  READs                           {:>12}", ops.read)?;
    writeln!(out, "  atomics                         {:>12}", ops.atomic)?;
    writeln!(
        out,
        "  bytes verified                  {:>12}",
        report.bytes_verified
    )?;
    writeln!(
        out,
        "  errors                          {:>12}",
        report.errors
    )?;
    writeln!(out)?;
    writeln!(
        out,
        "  state of one node, MiB          {:>12.3}",
        mib(report.state_bytes)
    )?;
    writeln!(
        out,
        "    bytes per QP                  {:>12}",
        report.state_bytes_per_qp
    )?;
    writeln!(
        out,
        "    bytes per connection          {:>12}",
        report.state_bytes_per_connection
    )?;
    writeln!(
        out,
        "    bytes to manage connections   {:>12}",
        report.state_bytes_management
    )?;
    writeln!(
        out,
        "  the same QPs as RC, MiB         {:>12.3}",
        mib(report.rc_state_bytes)
    )?;
    writeln!(out)?;
    writeln!(
        out,
        "  all QPs usable after            {:>10.2} s",
        report.setup_seconds
    )?;
    writeln!(
        out,
        "  everything done after           {:>10.2} s",
        report.seconds
    )
}
