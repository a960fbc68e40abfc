//! `trunkline cm watch`: how a running node sets up connections, live.

use super::interrupt::Interrupt;
use super::look::{Head, Interval, LookArgs, View, look, print_wrapped};
use anyhow::Result;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use trunkline::status::{CmStats, Times};

/// Steps shown in the table.
const SLOWEST: usize = 8;

/// Options of `trunkline cm`.
#[derive(Args, Debug)]
pub(crate) struct CmArgs {
    #[command(subcommand)]
    command: CmCommand,
}

#[derive(Debug, Subcommand)]
enum CmCommand {
    /// Show how a running node sets up connections: rates, what is in flight, the slowest steps.
    Watch(LookArgs),
}

/// Runs the command.
///
/// # Errors
/// There is no such node, it does not answer, or it is gone.
pub(crate) fn run(args: &CmArgs, interrupt: &Interrupt) -> Result<()> {
    match &args.command {
        CmCommand::Watch(args) => look::<Watched>(args, interrupt),
    }
}

/// What is shown of one interval.
#[derive(Debug, Serialize)]
struct Watched {
    #[serde(flatten)]
    head: Head,
    #[serde(flatten)]
    cm: Management,
}

impl View for Watched {
    fn of(interval: &Interval<'_>) -> Self {
        Self {
            head: interval.head(),
            cm: Management::of(interval),
        }
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        self.head.print(out)?;
        self.cm.print(out)
    }
}

/// What connection management did in one interval.
#[derive(Debug, Serialize)]
pub(crate) struct Management {
    per_second: Rates,
    in_flight: u64,
    binding: u64,
    in_line: u64,
    handshakes: BTreeMap<String, u64>,
    connections: BTreeMap<String, u64>,
    ids: BTreeMap<String, u64>,
    /// Since the start of the interval.
    overload: BTreeMap<String, u64>,
    steps: BTreeMap<String, Step>,
}

/// Events per second.
#[derive(Debug, Serialize)]
struct Rates {
    established: f64,
    qps: f64,
    rebound: f64,
    opened: f64,
    down: f64,
    failovers: f64,
    sent: f64,
    received: f64,
}

/// How long a step took, in microseconds.
#[derive(Debug, Serialize)]
struct Step {
    count: u64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl Step {
    fn of(times: &Times) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        let percentile = |per_mille| us(times.percentile(per_mille).unwrap_or(0));
        Self {
            count: times.count,
            mean_us: us(times.mean_ns()),
            p50_us: percentile(500),
            p99_us: percentile(990),
            max_us: us(times.max_ns),
        }
    }
}

impl Management {
    pub(crate) fn of(interval: &Interval<'_>) -> Self {
        let none = CmStats::default();
        let old = interval.before.map_or(&none, |then| &then.cm);
        let new = &interval.now.cm;
        let rate = |count: fn(&CmStats) -> u64| interval.rate(|status| count(&status.cm));
        let step = |(name, times): (&String, &Times)| {
            let times = old
                .steps
                .get(name)
                .map_or_else(|| times.clone(), |old| times.since(old));
            (times.count > 0).then(|| (name.clone(), Step::of(&times)))
        };
        let overload = |(name, count): (&String, &u64)| {
            let before = old.overload.get(name).copied().unwrap_or(0);
            (name.clone(), count.saturating_sub(before))
        };
        Self {
            per_second: Rates {
                established: rate(|cm| cm.established),
                qps: rate(|cm| cm.qps),
                rebound: rate(|cm| cm.rebound),
                opened: rate(|cm| cm.opened),
                down: rate(|cm| cm.down),
                failovers: rate(|cm| cm.failovers),
                sent: rate(|cm| cm.sent),
                received: rate(|cm| cm.received),
            },
            in_flight: new.in_flight(),
            binding: new.binding,
            in_line: new.in_line,
            handshakes: new.handshakes.clone(),
            connections: new.connections.clone(),
            ids: new.ids.clone(),
            overload: new.overload.iter().map(overload).collect(),
            steps: new.steps.iter().filter_map(step).collect(),
        }
    }

    /// Connections and questions under way now.
    pub(crate) const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let rates = &self.per_second;
        writeln!(
            out,
            "  connections set up {:>12.1}/s  in flight {:>8}  peers in line {:>8}",
            rates.established, self.in_flight, self.in_line
        )?;
        writeln!(
            out,
            "  QPs set up         {:>12.1}/s  waiting   {:>8}",
            rates.qps, self.binding
        )?;
        writeln!(
            out,
            "  messages           {:>12.1}/s sent, {:.1}/s received",
            rates.sent, rates.received
        )?;
        let shared = format!(
            "  shared connections {:>12.1}/s opened, {:.1}/s gone, {:.1}/s QPs failed over",
            rates.opened, rates.down, rates.failovers
        );
        print_wrapped(&shared, out)?;
        let counts = [
            ("handshakes", &self.handshakes),
            ("connections", &self.connections),
            ("IDs", &self.ids),
            ("overload", &self.overload),
        ];
        for (what, counts) in counts {
            print_wrapped(&format!("  {what:<11} {}", by_state(counts)), out)?;
        }
        self.print_steps(out)
    }

    fn print_steps(&self, out: &mut impl Write) -> io::Result<()> {
        let mut steps: Vec<_> = self.steps.iter().collect();
        steps.sort_by(|a, b| b.1.p99_us.total_cmp(&a.1.p99_us));
        writeln!(
            out,
            "  {:<14} {:>9} {:>11} {:>11} {:>11}",
            "slowest steps", "count", "p50 us", "p99 us", "max us"
        )?;
        for (name, step) in steps.into_iter().take(SLOWEST) {
            let Step {
                count,
                p50_us,
                p99_us,
                max_us,
                ..
            } = step;
            writeln!(
                out,
                "  {name:<14} {count:>9} {p50_us:>11.1} {p99_us:>11.1} {max_us:>11.1}"
            )?;
        }
        Ok(())
    }
}

/// Those that there are, with their states.
pub(crate) fn by_state(counts: &BTreeMap<String, u64>) -> String {
    let there = counts.iter().filter(|(_, count)| **count > 0);
    let words: Vec<_> = there
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    if words.is_empty() {
        "none".to_owned()
    } else {
        words.join(", ")
    }
}
