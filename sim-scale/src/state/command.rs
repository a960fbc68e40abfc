//! `trunkline-sim state`.

use super::cluster::Growth;
use super::formula::Scheme;
use crate::output::{self, Sink};
use crate::path::units;
use anyhow::Result;
use clap::Args;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// Computes the state of a node in a cluster: RC, XRC, DCT and SRC by their published model,
/// Trunkline from the structures of a real node.
///
/// One row for each number of nodes and of processes, for each transport; of Trunkline another
/// one, `trunkline_routed`, where each QP has a route to each peer on which nothing happens. Rings
/// of queues, packets under way and registered memory do not count.
#[derive(Args, Debug)]
pub struct StateArgs {
    /// Nodes of the cluster, 1 to 1000000. May be given several times.
    #[arg(long, value_name = "N", default_values_t = [32, 128, 512])]
    #[arg(value_parser = units::whole(1..=1_000_000_u64))]
    nodes: Vec<u64>,
    /// Processes of each node, 1 to 65536. May be given several times.
    #[arg(long, value_name = "P", default_values_t = [20])]
    #[arg(value_parser = units::whole(1..=65_536_u64))]
    processes: Vec<u64>,
    /// Writes the rows to this file, as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A row of the table.
#[derive(Debug, Serialize)]
struct Row {
    scheme: &'static str,
    nodes: u64,
    processes: u64,
    bytes: u64,
}

fn rows(args: &StateArgs, growth: &Growth) -> Vec<Row> {
    let sizes = |nodes: &u64| {
        let nodes = *nodes;
        let processes = args.processes.iter();
        processes.map(move |processes| (nodes, *processes))
    };
    let rows = |(nodes, processes)| {
        let published = Scheme::ALL.map(|scheme| (scheme.name(), scheme.bytes(nodes, processes)));
        let ours = [
            ("trunkline", growth.bytes(nodes, processes)),
            (
                "trunkline_routed",
                growth.bytes_with_routes(nodes, processes),
            ),
        ];
        let all = published.into_iter().chain(ours);
        all.map(move |(scheme, bytes)| Row {
            scheme,
            nodes,
            processes,
            bytes,
        })
    };
    args.nodes.iter().flat_map(sizes).flat_map(rows).collect()
}

/// Prints the table, and writes it.
///
/// # Errors
/// The cluster does not work, or the file cannot be written.
pub fn state(args: &StateArgs) -> Result<()> {
    let json = Sink::open(args.json.as_ref())?;
    let growth = Growth::count()?;
    let rows = rows(args, &growth);
    let mut table = String::new();
    writeln!(
        table,
        "scheme            nodes  processes            bytes         MiB"
    )?;
    for row in &rows {
        let Row {
            scheme,
            nodes,
            processes,
            bytes,
        } = row;
        let mib = *bytes as f64 / f64::from(1 << 20);
        writeln!(
            table,
            "{scheme:16} {nodes:6} {processes:10} {bytes:16} {mib:11.3}"
        )?;
    }
    writeln!(
        table,
        "trunkline: {} bytes for each peer with one connection, {} for each QP, {} for each idle \
         route",
        growth.per_peer, growth.per_qp, growth.per_route
    )?;
    if let Some(file) = json {
        file.fill(&(serde_json::to_string_pretty(&rows)? + "\n"))?;
    }
    output::print(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_row_of_ours_has_an_idle_route_from_each_qp_to_each_peer() {
        let growth = Growth {
            per_peer: 100,
            per_qp: 10,
            per_route: 3,
        };
        let args = StateArgs {
            nodes: vec![5],
            processes: vec![2],
            json: None,
        };
        let rows: Vec<_> = rows(&args, &growth)
            .into_iter()
            .map(|row| (row.scheme, row.bytes))
            .collect();
        let ours = [("trunkline", 420), ("trunkline_routed", 444)];
        assert_eq!(rows[Scheme::ALL.len()..], ours);
    }
}
