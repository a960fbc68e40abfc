//! `trunkline demo`: two nodes on loopback addresses, thousands of QPs on a handful of connections,
//! every byte checked.

mod slots;
mod work;

use super::capture;
use super::interrupt::Interrupt;
use super::progress::Progress;
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use slots::{Slots, Work};
use std::io::{Write, stdout};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trunkline::{
    Access, Cq, Drive, Mr, Node, Pd, Qp, QpOptions, RecvWr, SendFlags, SendOp, SendWr,
};
use work::Demo;

/// State of one RC connection in hardware, in bytes: the figure of the SRC paper's table.
const RC_STATE_BYTES: u64 = 750;
/// Bytes of the buffers that each operation under way has for itself.
const SLICE: usize = 8192;
/// Operations under way at any time, each on another QP.
const ACTIVE: usize = 256;
/// QPs made, connected or destroyed between looks at Ctrl-C.
const STRIDE: usize = 256;
/// How long a demo may stand still before it is called off.
const STALL: Duration = Duration::from_secs(10);

/// Options of `trunkline demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// QPs to open.
    #[arg(long, default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    qps: u32,
    /// Shared connections to open for them.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=8))]
    connections: u32,
    /// Address of the client's node.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1)))]
    client: IpAddr,
    /// Address of the server's node.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)))]
    server: IpAddr,
    /// Write what the client's node says and hears of connection management to a pcapng file.
    #[arg(long, value_name = "FILE")]
    capture_cm: Option<PathBuf>,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
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

/// One end of all the QPs.
struct End {
    node: Node,
    send_cq: Cq,
    recv_cq: Cq,
    qps: Vec<Qp>,
    mr: Mr,
    pd: Pd,
}

/// Runs the demo.
///
/// # Errors
/// A node that cannot start, a byte that is wrong, an operation that fails, Ctrl-C.
pub fn run(args: &DemoArgs, interrupt: &Interrupt) -> Result<()> {
    let started = Instant::now();
    let progress = Progress::new(!args.json);
    let count = args.qps as usize;
    let mut report = Report {
        qps: count as u64,
        ..Report::default()
    };
    progress.say(&format!(
        "opening {count} QPs between {} and {}",
        args.client, args.server
    ));
    let capture = args.capture_cm.as_deref();
    let mut client = End::open(args.client, args, Drive::Inline, capture)?;
    // The other end has a thread of its own, so that two cores share the work.
    let mut server = End::open(args.server, args, Drive::Threaded, None)?;
    for at in 0..count {
        if at.is_multiple_of(STRIDE) {
            interrupt.check()?;
            progress.show(at, count);
            // What connecting has to say leaves meanwhile.
            client.node.poll()?;
        }
        let (a, b) = (client.open_qp()?, server.open_qp()?);
        a.connect(b.address())?;
        b.connect(a.address())?;
        client.qps.push(a);
        server.qps.push(b);
    }
    let mut demo = Demo {
        client: &mut client,
        server: &mut server,
        report: &mut report,
        slots: Slots::new(),
        progress,
        interrupt,
    };
    demo.rpcs(0, 32)?;
    demo.report.setup_seconds = started.elapsed().as_secs_f64();
    for (round, size) in [(1, 64), (2, 1000), (3, 4096)] {
        demo.rpcs(round, size)?;
    }
    demo.writes()?;
    demo.reads()?;
    demo.atomics()?;
    let Demo { progress, .. } = demo;
    let state = client.node.state_bytes();
    report.connections = client.node.connection_count() as u64;
    report.state_bytes = state.total();
    report.state_bytes_per_qp = state.per_qp;
    report.state_bytes_per_connection = state.per_connection;
    report.state_bytes_management = state.management;
    report.rc_state_bytes = report.qps * RC_STATE_BYTES;
    report.seconds = started.elapsed().as_secs_f64();
    capture::check(&client.node)?;
    if args.json {
        writeln!(stdout(), "{}", serde_json::to_string(&report)?)?;
    } else {
        print_table(&report, &mut stdout().lock())?;
    }
    ensure!(report.errors == 0, "{} operations failed", report.errors);
    progress.say("closing");
    while let (Some(a), Some(b)) = (client.qps.pop(), server.qps.pop()) {
        drop((a, b));
        if client.qps.len().is_multiple_of(STRIDE) {
            interrupt.check()?;
            client.node.poll()?;
        }
    }
    Ok(())
}

impl End {
    fn open(
        address: IpAddr,
        args: &DemoArgs,
        drive: Drive,
        capture: Option<&Path>,
    ) -> Result<Self> {
        let builder = Node::builder()
            .address(address)
            .drive(drive)
            .pool(args.connections);
        let node = capture::add(builder, capture)?
            .build()
            .with_context(|| format!("cannot start a node on {address}"))?;
        let pd = node.alloc_pd();
        let mr = pd.register(ACTIVE * SLICE, Access::ALL)?;
        let send_cq = node.create_cq(4 * ACTIVE as u32)?;
        let recv_cq = node.create_cq(4 * ACTIVE as u32)?;
        Ok(Self {
            node,
            send_cq,
            recv_cq,
            qps: Vec::with_capacity(args.qps as usize),
            mr,
            pd,
        })
    }

    fn open_qp(&self) -> Result<Qp> {
        let options = QpOptions {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
            ..QpOptions::default()
        };
        Ok(self.pd.create_qp(&self.send_cq, &self.recv_cq, &options)?)
    }

    fn receive(&self, work: Work, offset: usize, length: usize) -> Result<()> {
        let sges = [self.mr.sge(work.slot * SLICE + offset, length)];
        Ok(self.qps[work.qp].post_recv(&[RecvWr {
            wr_id: work.wr_id(),
            sges: &sges,
        }])?)
    }

    fn post(&self, work: Work, op: SendOp, offset: usize, length: usize) -> Result<()> {
        let sges = [self.mr.sge(work.slot * SLICE + offset, length)];
        let request = SendWr {
            wr_id: work.wr_id(),
            op,
            flags: SendFlags::SIGNALED,
            sges: &sges,
            inline: None,
            route: 0,
        };
        Ok(self.qps[work.qp].post_send(&[request])?)
    }
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
