//! Resident memory of QPs that are connected and do nothing.
//!
//! A fresh process connects many QPs of two nodes that a memory pair joins, and looks at its own
//! resident set before and after. Everything counts that a program has of a QP: handle, queues,
//! engine state, tables, and what the allocator adds. Afterwards some of them have to work.

use crate::{Measurement, Setting};
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Instant;
use trunkline::{
    Access, Completion, Cq, Drive, Mr, Node, Pd, Qp, QpOptions, RecvWr, SendFlags, SendOp, SendWr,
    Status,
};
use trunkline_dataplane::{MemoryConfig, MemoryPort};

/// The most an idle QP may take.
const MOST: f64 = 1024.0;
/// QPs at each of the two nodes.
const PAIRS: u32 = 100_000;
/// The same when there is time.
const MANY_PAIRS: u32 = 1_000_000;

/// Arguments of the process that is measured.
#[derive(Args, Debug)]
pub struct PartArgs {
    /// QPs at each of the two nodes.
    #[arg(long)]
    pairs: u32,
}

/// What it says.
#[derive(Debug, Deserialize, Serialize)]
struct Found {
    /// Bytes resident, with both nodes there but no QPs.
    before: u64,
    /// Bytes resident with all QPs connected.
    after: u64,
    seconds: f64,
}

/// `idle_qp_bytes`
///
/// # Errors
/// The process cannot be started, or fails.
pub fn idle_qp_bytes(setting: &Setting) -> Result<Measurement> {
    let (each, _) = measure(setting, PAIRS)?;
    let measurement = Measurement::new(
        "idle_qp_bytes",
        "bytes resident per idle connected QP, 100,000 at each of two nodes, its queues included \
         (lower is better)",
        "the most it may be",
        (each, MOST),
    );
    if !setting.full {
        return Ok(measurement);
    }
    let (each, found) = measure(setting, MANY_PAIRS)?;
    ensure!(
        each <= MOST,
        "with 1,000,000 QPs at each node one takes {each:.0} bytes"
    );
    Ok(measurement.note(format!(
        "1,000,000 at each of two nodes: {each:.0} bytes each, {:.2} GiB in all, connected in \
         {:.1} s",
        found.after as f64 / f64::from(1 << 30),
        found.seconds
    )))
}

fn measure(setting: &Setting, pairs: u32) -> Result<(f64, Found)> {
    let output = Command::new(&setting.program)
        .args(["resident", "--pairs", &pairs.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start the process that is measured")?;
    ensure!(
        output.status.success(),
        "the process that is measured: {}",
        output.status
    );
    let found: Found = serde_json::from_slice(&output.stdout).context("its answer")?;
    Ok((
        found.after.saturating_sub(found.before) as f64 / (2.0 * f64::from(pairs)),
        found,
    ))
}

/// Connects QPs, and says what they take.
///
/// # Errors
/// A node that refuses, or a QP that does not work.
pub fn part(arguments: &PartArgs) -> Result<()> {
    let count = arguments.pairs as usize;
    let (a, b) = MemoryPort::pair(MemoryConfig::default());
    let mut nodes = [End::new(1, a, count)?, End::new(2, b, count)?];
    let before = resident_bytes()?;
    let started = Instant::now();
    for at in 0..count {
        for end in &mut nodes {
            end.create()?;
        }
        let [a, b] = &nodes;
        a.qps[at].connect(b.qps[at].address())?;
        b.qps[at].connect(a.qps[at].address())?;
        if at % 64 == 0 {
            turn(&nodes)?;
        }
    }
    for _ in 0..1000 {
        turn(&nodes)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let found = Found {
        before,
        after: resident_bytes()?,
        seconds,
    };
    for at in [0, count / 2, count - 1] {
        exchange(&nodes, at)?;
    }
    println!("{}", serde_json::to_string(&found)?);
    Ok(())
}

struct End {
    node: Node,
    pd: Pd,
    mr: Mr,
    cq: Cq,
    qps: Vec<Qp>,
}

impl End {
    fn new(last: u8, port: MemoryPort, count: usize) -> Result<Self> {
        let node = Node::builder()
            .address(IpAddr::from([10, 0, 0, last]))
            .drive(Drive::Inline)
            .build_on(Box::new(port))?;
        let (pd, cq) = (node.alloc_pd(), node.create_cq(64)?);
        let mr = pd.register(4096, Access::ALL)?;
        Ok(Self {
            node,
            pd,
            mr,
            cq,
            qps: Vec::with_capacity(count),
        })
    }

    fn create(&mut self) -> Result<()> {
        self.qps.push(
            self.pd
                .create_qp(&self.cq, &self.cq, &QpOptions::default())?,
        );
        Ok(())
    }
}

fn turn(nodes: &[End; 2]) -> Result<()> {
    for end in nodes {
        end.node.poll()?;
    }
    Ok(())
}

/// One SEND from the first node to the second.
fn exchange(nodes: &[End; 2], at: usize) -> Result<()> {
    let [a, b] = nodes;
    let said = (at as u64 + 1).to_ne_bytes();
    a.mr.write(0, &said)?;
    let (from, to) = ([a.mr.sge(0, 8)], [b.mr.sge(0, 8)]);
    b.qps[at].post_recv(&[RecvWr {
        wr_id: 0,
        sges: &to,
    }])?;
    let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
    let request = SendWr {
        wr_id: 0,
        op,
        flags,
        sges: &from,
        inline: None,
        route: 0,
    };
    a.qps[at].post_send(&[request])?;
    let mut done: Vec<Completion> = Vec::new();
    let started = Instant::now();
    while done.len() < 2 {
        turn(nodes)?;
        done.extend(
            a.cq.poll_one()
                .expect("room in the CQ")
                .into_iter()
                .chain(b.cq.poll_one().expect("room in the CQ")),
        );
        ensure!(
            started.elapsed().as_secs() < 10,
            "QP {at} is idle, and does not wake up"
        );
    }
    let mut heard = [0; 8];
    b.mr.read(0, &mut heard)?;
    ensure!(
        done.iter().all(|d| d.status == Status::Success),
        "QP {at}: {done:?}"
    );
    ensure!(heard == said, "QP {at} carried the wrong bytes");
    Ok(())
}

/// Resident bytes of this process.
///
/// # Errors
/// The kernel does not say.
pub fn resident_bytes() -> Result<u64> {
    resident_bytes_of(std::process::id())
}

/// Resident bytes of a process.
///
/// # Errors
/// The kernel does not say.
pub(crate) fn resident_bytes_of(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/smaps_rollup");
    let text = std::fs::read_to_string(path).context("smaps_rollup")?;
    parse_resident(&text).context("smaps_rollup says nothing of Rss")
}

fn parse_resident(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_bytes_are_read_from_the_roll_up() {
        let text = "5581-7fff ---p 00000000 00:00 0 [rollup]\nRss:      1780 kB\nPss: 9 kB\n";
        assert_eq!(parse_resident(text), Some(1780 * 1024));
        assert_eq!(parse_resident("Pss: 9 kB\n"), None);
    }

    #[test]
    fn this_process_is_resident() {
        assert!(resident_bytes().is_ok_and(|bytes| bytes > 1 << 19));
    }
}
