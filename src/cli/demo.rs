//! `trunkline demo`: two nodes on loopback addresses, thousands of QPs on a handful of connections,
//! every byte checked.

use super::capture;
use super::interrupt::Interrupt;
use super::progress::Progress;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use std::io::{Write, stdout};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trunkline::{
    Access, AtomicOp, Completion, Cq, Drive, Mr, Node, Pd, Qp, QpOptions, RecvWr, SendFlags,
    SendOp, SendWr, Status, WorkOpcode,
};

/// State of one RC connection in hardware, in bytes: the figure of the SRC paper's table.
const RC_STATE_BYTES: u64 = 750;
/// Bytes of each QP's own part of the buffers.
const SLICE: usize = 8192;
/// QPs with an operation under way at any time.
const ACTIVE: usize = 256;
/// How long a demo may stand still before it is called off.
const STALL: Duration = Duration::from_secs(10);

/// Options of `trunkline demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// QPs to open.
    #[arg(long, default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=200_000))]
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
    _pd: Pd,
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
    let mut client = End::open(args.client, args, count, capture)?;
    let mut server = End::open(args.server, args, count, None)?;
    for (a, b) in client.qps.iter().zip(&server.qps) {
        a.connect(b.address())?;
        b.connect(a.address())?;
    }
    let mut demo = Demo {
        client: &mut client,
        server: &mut server,
        report: &mut report,
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
    Ok(())
}

impl End {
    fn open(
        address: IpAddr,
        args: &DemoArgs,
        count: usize,
        capture: Option<&Path>,
    ) -> Result<Self> {
        let builder = Node::builder()
            .address(address)
            .drive(Drive::Inline)
            .pool(args.connections);
        let node = capture::add(builder, capture)?
            .build()
            .with_context(|| format!("cannot start a node on {address}"))?;
        let pd = node.alloc_pd();
        let mr = pd.register(count * SLICE, Access::ALL)?;
        let send_cq = node.create_cq(4 * ACTIVE as u32)?;
        let recv_cq = node.create_cq(4 * ACTIVE as u32)?;
        let options = QpOptions {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
            ..QpOptions::default()
        };
        let qps = (0..count)
            .map(|_| pd.create_qp(&send_cq, &recv_cq, &options))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            node,
            send_cq,
            recv_cq,
            qps,
            mr,
            _pd: pd,
        })
    }

    fn receive(&self, at: usize, offset: usize, length: usize) -> Result<()> {
        let sges = [self.mr.sge(at * SLICE + offset, length)];
        Ok(self.qps[at].post_recv(&[RecvWr {
            wr_id: at as u64,
            sges: &sges,
        }])?)
    }

    fn post(&self, at: usize, op: SendOp, offset: usize, length: usize) -> Result<()> {
        let sges = [self.mr.sge(at * SLICE + offset, length)];
        let request = SendWr {
            wr_id: at as u64,
            op,
            flags: SendFlags::SIGNALED,
            sges: &sges,
            inline: None,
            route: 0,
        };
        Ok(self.qps[at].post_send(&[request])?)
    }
}

struct Demo<'a> {
    client: &'a mut End,
    server: &'a mut End,
    report: &'a mut Report,
    progress: Progress,
    interrupt: &'a Interrupt,
}

impl Demo<'_> {
    /// A request and a response on every QP: each end checks what the other sent.
    fn rpcs(&mut self, round: u64, size: usize) -> Result<()> {
        self.progress.say(&format!("RPCs of {size} bytes"));
        let count = self.client.qps.len();
        let (mut begun, mut ended) = (0, 0);
        let mut moved = Instant::now();
        let before = self.report.operations.send;
        while ended < count {
            // A response does not say that the SENDs before it have been completed, and their
            // queues must have room.
            let unanswered = |sends: u64, begun| 2 * begun - (sends - before) as usize;
            while begun < count
                && begun - ended < ACTIVE
                && unanswered(self.report.operations.send, begun) < 2 * ACTIVE
            {
                self.server.receive(begun, 0, size)?;
                self.client.receive(begun, 0, size)?;
                let data = pattern(begun as u64, round, size);
                self.client.mr.write(begun * SLICE + SLICE / 2, &data)?;
                self.client.post(begun, SendOp::Send, SLICE / 2, size)?;
                begun += 1;
            }
            self.turn()?;
            for done in drain(&self.server.recv_cq) {
                let at = self.index(&done, false)?;
                self.check(false, at, 0, &pattern(at as u64, round, size))?;
                let data = pattern(at as u64, !round, size);
                self.server.mr.write(at * SLICE + SLICE / 2, &data)?;
                self.server.post(at, SendOp::Send, SLICE / 2, size)?;
            }
            for done in drain(&self.client.recv_cq) {
                let at = self.index(&done, true)?;
                self.check(true, at, 0, &pattern(at as u64, !round, size))?;
                ended += 1;
                moved = Instant::now();
            }
            self.count_sends()?;
            self.watch(moved, ended, count)?;
        }
        while !self.report.operations.send.is_multiple_of(2 * count as u64) {
            self.turn()?;
            self.count_sends()?;
            self.watch(moved, ended, count)?;
        }
        Ok(())
    }

    fn writes(&mut self) -> Result<()> {
        self.progress.say("WRITEs of 4096 bytes");
        let size = SLICE / 2;
        self.one_sided(
            |demo, at| {
                demo.client
                    .mr
                    .write(at * SLICE, &pattern(at as u64, 77, size))?;
                let remote = demo.server.mr.remote(at * SLICE + size);
                demo.client.post(at, SendOp::Write(remote), 0, size)
            },
            |demo, at| {
                demo.report.operations.write += 1;
                demo.check(false, at, size, &pattern(at as u64, 77, size))
            },
        )
    }

    fn reads(&mut self) -> Result<()> {
        self.progress.say("READs of 4096 bytes");
        let size = SLICE / 2;
        self.one_sided(
            |demo, at| {
                demo.server
                    .mr
                    .write(at * SLICE, &pattern(at as u64, 88, size))?;
                let remote = demo.server.mr.remote(at * SLICE);
                demo.client.post(at, SendOp::Read(remote), size, size)
            },
            |demo, at| {
                demo.report.operations.read += 1;
                demo.check(true, at, size, &pattern(at as u64, 88, size))
            },
        )
    }

    /// Every QP adds to one counter, then swaps a cell of its own.
    fn atomics(&mut self) -> Result<()> {
        self.progress.say("atomics");
        let count = self.client.qps.len();
        self.server.mr.write(0, &[0; 8])?;
        let mut seen = vec![false; count];
        self.one_sided(
            |demo, at| {
                let add = AtomicOp::FetchAdd { add: 1 };
                demo.client
                    .post(at, SendOp::Atomic(demo.server.mr.remote(0), add), 0, 8)
            },
            |demo, at| {
                demo.report.operations.atomic += 1;
                let before = read_u64(&demo.client.mr, at * SLICE)? as usize;
                ensure!(
                    before < count,
                    "FETCH_ADD gave {before}, beyond the {count} additions"
                );
                ensure!(
                    !std::mem::replace(&mut seen[before], true),
                    "FETCH_ADD gave {before} twice"
                );
                demo.report.bytes_verified += 8;
                Ok(())
            },
        )?;
        let sum = read_u64(&self.server.mr, 0)?;
        ensure!(sum == count as u64, "{count} additions made {sum}");
        self.one_sided(
            |demo, at| {
                demo.server
                    .mr
                    .write(at * SLICE + 8, &(at as u64).to_ne_bytes())?;
                let swap = AtomicOp::CompareSwap {
                    compare: at as u64,
                    swap: !(at as u64),
                };
                let remote = demo.server.mr.remote(at * SLICE + 8);
                demo.client.post(at, SendOp::Atomic(remote, swap), 0, 8)
            },
            |demo, at| {
                demo.report.operations.atomic += 1;
                demo.check(true, at, 0, &(at as u64).to_ne_bytes())?;
                demo.check(false, at, 8, &(!(at as u64)).to_ne_bytes())
            },
        )
    }

    /// One operation on every QP of the client.
    fn one_sided(
        &mut self,
        mut begin: impl FnMut(&mut Self, usize) -> Result<()>,
        mut end: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<()> {
        let count = self.client.qps.len();
        let (mut begun, mut ended) = (0, 0);
        let mut moved = Instant::now();
        while ended < count {
            while begun < count && begun - ended < ACTIVE {
                begin(self, begun)?;
                begun += 1;
            }
            self.turn()?;
            for done in drain(&self.client.send_cq) {
                let at = self.index(&done, true)?;
                end(self, at)?;
                ended += 1;
                moved = Instant::now();
            }
            self.watch(moved, ended, count)?;
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<()> {
        self.client.node.poll()?;
        self.server.node.poll()?;
        Ok(())
    }

    fn count_sends(&mut self) -> Result<()> {
        for (cq, client) in [(&self.client.send_cq, true), (&self.server.send_cq, false)] {
            for done in drain(cq) {
                ensure!(
                    done.opcode == WorkOpcode::Send,
                    "a completion of {:?}",
                    done.opcode
                );
                check_status(&done, client)?;
                self.report.operations.send += 1;
            }
        }
        Ok(())
    }

    /// The QP that a completion belongs to.
    fn index(&mut self, done: &Completion, client: bool) -> Result<usize> {
        if let Err(error) = check_status(done, client) {
            self.report.errors += 1;
            return Err(error);
        }
        let at = done.wr_id as usize;
        let end = if client { &self.client } else { &self.server };
        ensure!(
            end.qps[at].qpn() == done.qpn,
            "a completion with another QP's wr_id"
        );
        Ok(at)
    }

    fn check(&mut self, client: bool, at: usize, offset: usize, expected: &[u8]) -> Result<()> {
        let end = if client { &self.client } else { &self.server };
        let mut found = vec![0; expected.len()];
        end.mr.read(at * SLICE + offset, &mut found)?;
        if found != expected {
            self.report.errors += 1;
            bail!(
                "wrong bytes in the {} of QP {}",
                name(client),
                end.qps[at].qpn()
            );
        }
        self.report.bytes_verified += expected.len() as u64;
        Ok(())
    }

    fn watch(&self, moved: Instant, ended: usize, count: usize) -> Result<()> {
        self.interrupt.check()?;
        self.progress.show(ended, count);
        ensure!(
            moved.elapsed() < STALL,
            "nothing moved for {STALL:?}: {ended} of {count} done"
        );
        Ok(())
    }
}

const fn name(client: bool) -> &'static str {
    if client { "client" } else { "server" }
}

fn check_status(done: &Completion, client: bool) -> Result<()> {
    let end = name(client);
    ensure!(
        done.status == Status::Success,
        "QP {} of the {end}: {:?} ended with {:?}",
        done.qpn,
        done.opcode,
        done.status
    );
    Ok(())
}

fn drain(cq: &Cq) -> Vec<Completion> {
    let mut batch = [Completion::BLANK; 64];
    let mut all = Vec::new();
    loop {
        let count = cq.poll(&mut batch);
        all.extend_from_slice(&batch[..count]);
        if count < batch.len() {
            return all;
        }
    }
}

fn read_u64(mr: &Mr, offset: usize) -> Result<u64> {
    let mut bytes = [0; 8];
    mr.read(offset, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Bytes that depend on the QP and the round, so that nothing can pass for something else.
fn pattern(qp: u64, round: u64, size: usize) -> Vec<u8> {
    let mut state =
        qp.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round.wrapping_mul(0xd1b5_4a32_d192_ed03);
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        bytes.extend((state ^ (state >> 29)).to_le_bytes());
    }
    bytes.truncate(size);
    bytes
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
