//! `state`: what a node keeps for its peers, QPs and routes, counted by the allocator, beside what
//! it says itself (`Node::state_bytes`). The program has an allocator of its own, which counts;
//! benchmarks must not.

use anyhow::Result;
use clap::Parser;
use serde::Serialize;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use trunkline_benches::resident::resident_bytes;
use trunkline_sim::state::cluster::Cluster;

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Counts what a node keeps for peers, each with one connection, for QPs whose connections the
/// program manages, and for a route from each of these to each of as many peers more. Prints a JSON
/// object.
#[derive(Debug, Parser)]
#[command(name = "state", max_term_width = 100)]
struct Cli {
    /// Peers: real nodes in this process, one after another, which go once they have met the one
    /// that is looked at.
    #[arg(long, value_name = "N", default_value_t = 511)]
    peers: usize,
    /// QPs.
    #[arg(long, value_name = "N", default_value_t = 20)]
    qps: usize,
    /// Peers more, to which all QPs have routes on which nothing happens.
    #[arg(long, value_name = "N", default_value_t = 0)]
    routed: usize,
}

/// What something takes, in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
struct Taken {
    /// What the node says.
    said: i64,
    /// What it has allocated and not freed.
    allocated: i64,
    /// By how much the process became larger. What peers that are gone have left to the allocator
    /// is part of it.
    resident: i64,
}

impl Taken {
    fn now(cluster: &mut Cluster) -> Result<Self> {
        cluster.settle()?;
        Ok(Self {
            said: cluster.state_bytes() as i64,
            allocated: cluster.held(),
            resident: resident_bytes()? as i64,
        })
    }

    const fn since(self, before: Self) -> Self {
        Self {
            said: self.said - before.said,
            allocated: self.allocated - before.allocated,
            resident: self.resident - before.resident,
        }
    }
}

/// What was found.
#[derive(Debug, Serialize)]
struct Found {
    peers: usize,
    qps: usize,
    routes: usize,
    /// The node alone.
    of_node: Taken,
    /// Its first peer, and as many peers more as were asked for.
    of_first: Taken,
    of_peers: Taken,
    /// Its QPs. The program's handles are part of what is allocated.
    of_qps: Taken,
    /// Peers to which all QPs have routes, and these.
    of_routed: Taken,
    /// All of it.
    total: Taken,
}

fn allocated() -> i64 {
    let stats = HEAP.stats();
    // What it calls reallocated is part of both.
    stats.bytes_allocated as i64 - stats.bytes_deallocated as i64
}

fn main() -> Result<()> {
    let Cli { peers, qps, routed } = Cli::parse();
    let resident = resident_bytes()? as i64;
    let mut cluster = Cluster::new(allocated)?;
    let nothing = Taken {
        said: 0,
        allocated: 0,
        resident,
    };
    let alone = Taken::now(&mut cluster)?;
    cluster.meet(1, false)?;
    let first = Taken::now(&mut cluster)?;
    cluster.meet(peers, false)?;
    let met = Taken::now(&mut cluster)?;
    cluster.create(qps)?;
    let with_qps = Taken::now(&mut cluster)?;
    cluster.meet(routed, true)?;
    let all = Taken::now(&mut cluster)?;
    let found = Found {
        peers,
        qps,
        routes: routed * qps,
        of_node: alone.since(nothing),
        of_first: first.since(alone),
        of_peers: met.since(first),
        of_qps: with_qps.since(met),
        of_routed: all.since(with_qps),
        total: all.since(nothing),
    };
    println!("{}", serde_json::to_string_pretty(&found)?);
    Ok(())
}
