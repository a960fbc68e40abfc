//! `state`: what a node keeps for its peers and QPs, counted by the allocator, beside what it says
//! itself (`Node::state_bytes`). The program has an allocator of its own, which counts; benchmarks
//! must not.

use anyhow::Result;
use clap::Parser;
use serde::Serialize;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use trunkline_benches::resident::resident_bytes;
use trunkline_sim::state::cluster::Cluster;

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Counts what a node keeps for peers, each with one connection, and for QPs whose connections the
/// program manages. Prints a JSON object.
#[derive(Debug, Parser)]
#[command(name = "state", max_term_width = 100)]
struct Cli {
    /// Peers: real nodes in this process, which go once they have met the one that is looked at.
    #[arg(long, value_name = "N", default_value_t = 511)]
    peers: usize,
    /// QPs.
    #[arg(long, value_name = "N", default_value_t = 20)]
    qps: usize,
}

/// What was found; all in bytes.
#[derive(Debug, Serialize)]
struct Found {
    peers: usize,
    qps: usize,
    /// What the node says that it keeps for its first peer, and what it has allocated then: its
    /// queues and buffers are part of it, which it has once.
    of_first: [i64; 2],
    /// The same for as many peers more.
    of_peers: [i64; 2],
    /// The same for its QPs. The program's handles are part of what is allocated.
    of_qps: [i64; 2],
    /// By how much the process became larger for peers and for QPs. What nodes that are gone have
    /// left to the allocator is part of it.
    resident_of_peers: i64,
    resident_of_qps: i64,
}

fn allocated() -> i64 {
    let stats = HEAP.stats();
    // What it calls reallocated is part of both.
    stats.bytes_allocated as i64 - stats.bytes_deallocated as i64
}

fn main() -> Result<()> {
    let Cli { peers, qps } = Cli::parse();
    let mut cluster = Cluster::new(peers + 1, allocated)?;
    let kept = |cluster: &mut Cluster| {
        cluster.settle()?;
        anyhow::Ok([cluster.state_bytes() as i64, cluster.held()])
    };
    let empty = kept(&mut cluster)?;
    cluster.meet(1)?;
    let before = kept(&mut cluster)?;
    let without = resident_bytes()? as i64;
    cluster.meet(peers)?;
    let met = kept(&mut cluster)?;
    let resident = resident_bytes()? as i64;
    cluster.create(qps)?;
    let with_qps = kept(&mut cluster)?;
    let grown = |from: [i64; 2], to: [i64; 2]| [to[0] - from[0], to[1] - from[1]];
    let found = Found {
        peers,
        qps,
        of_first: grown(empty, before),
        of_peers: grown(before, met),
        of_qps: grown(met, with_qps),
        resident_of_peers: resident - without,
        resident_of_qps: resident_bytes()? as i64 - resident,
    };
    println!("{}", serde_json::to_string(&found)?);
    Ok(())
}
