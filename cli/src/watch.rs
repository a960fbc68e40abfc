//! `trunkline cm watch`: how a running node sets up connections, live.

use super::interrupt::Interrupt;
use super::output::{self, print_json};
use super::range::Range;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write, stdout};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use trunkline::status::{self, CmStats, Status, Times};

/// How long a node has to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How often Ctrl-C is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// Steps shown in the table.
const SLOWEST: usize = 8;

/// Seconds between two looks: up to a day.
const INTERVAL: Range<f64> = Range::new(0.0, 86_400.0);

/// Options of `trunkline cm`.
#[derive(Args, Debug)]
pub(crate) struct CmArgs {
    #[command(subcommand)]
    command: CmCommand,
}

#[derive(Debug, Subcommand)]
enum CmCommand {
    /// Show how a running node sets up connections: rates, what is in flight, the slowest steps.
    Watch(WatchArgs),
}

/// Options of `trunkline cm watch`.
#[derive(Args, Debug)]
#[command(
    after_help = "A node tells its own user and root. What is shown first is since the node \
    started, then since the time before."
)]
struct WatchArgs {
    /// Address of the node [default: the only one of this host].
    node: Option<IpAddr>,
    #[arg(long, value_parser = INTERVAL.seconds(), value_name = "SECS", default_value = "1")]
    #[arg(help = INTERVAL.help("Time between two looks", ""), allow_negative_numbers = true)]
    interval: Duration,
    /// Print one JSON object a line for each look.
    #[arg(long)]
    json: bool,
    /// Look once: at all since the node started.
    #[arg(long)]
    once: bool,
}

/// Runs the command.
///
/// # Errors
/// There is no such node, it does not answer, or it is gone.
pub(crate) fn run(args: &CmArgs, interrupt: &Interrupt) -> Result<()> {
    match &args.command {
        CmCommand::Watch(args) => watch(args, interrupt),
    }
}

fn watch(args: &WatchArgs, interrupt: &Interrupt) -> Result<()> {
    output::check()?;
    let address = match args.node {
        Some(address) => address,
        None => only_node()?,
    };
    let mut before = None;
    let mut due = Instant::now();
    loop {
        let now = status::ask(address, ANSWER_WITHIN)?;
        let view = View::new(before.as_ref(), &now);
        if args.json {
            print_json(&view)?;
        } else {
            let mut out = output::out();
            let anew = !args.once && stdout().is_terminal();
            // Home, and nothing below.
            let clear = if anew { "\x1b[H\x1b[J" } else { "" };
            write!(out, "{clear}")?;
            view.print(&mut out)?;
            out.flush()?;
        }
        if args.once {
            return Ok(());
        }
        before = Some(now);
        due = (due + args.interval).max(Instant::now());
        while Instant::now() < due {
            interrupt.check()?;
            std::thread::sleep(LOOK.min(due.saturating_duration_since(Instant::now())));
        }
        interrupt.check()?;
    }
}

fn only_node() -> Result<IpAddr> {
    let nodes = status::nodes().context("cannot look for nodes")?;
    match nodes[..] {
        [] => bail!("no node that can be watched runs on this host"),
        [address] => Ok(address),
        _ => {
            let names: Vec<_> = nodes.iter().map(ToString::to_string).collect();
            bail!(
                "several nodes run on this host, name one: {}",
                names.join(", ")
            )
        }
    }
}

/// What is shown of one interval.
#[derive(Debug, Serialize)]
struct View {
    address: IpAddr,
    pid: u32,
    uptime_seconds: f64,
    /// Time that rates and steps are of.
    seconds: f64,
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

impl View {
    /// Of the time from `before`, or from the start of the node, to `now`.
    fn new(before: Option<&Status>, now: &Status) -> Self {
        // Another node may have taken the address.
        let same = |then: &&Status| then.pid == now.pid && then.uptime_ns < now.uptime_ns;
        let before = before.filter(same);
        let began_ns = before.map_or(0, |then| then.uptime_ns);
        let none = CmStats::default();
        let (old, new) = (before.map_or(&none, |then| &then.cm), &now.cm);
        let seconds = (now.uptime_ns - began_ns) as f64 / 1e9;
        let rate = |count: fn(&CmStats) -> u64| {
            let events = count(new).saturating_sub(count(old));
            if seconds > 0.0 {
                events as f64 / seconds
            } else {
                0.0
            }
        };
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
            address: now.address,
            pid: now.pid,
            uptime_seconds: now.uptime_ns as f64 / 1e9,
            seconds,
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

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let rates = &self.per_second;
        let Self { address, pid, .. } = self;
        writeln!(
            out,
            "node {address}, process {pid}, up {:.1} s; the last {:.1} s:",
            self.uptime_seconds, self.seconds
        )?;
        writeln!(
            out,
            "  connections set up {:>12.1}/s   in flight {:>8}   peers in line {:>8}",
            rates.established, self.in_flight, self.in_line
        )?;
        writeln!(
            out,
            "  QPs set up         {:>12.1}/s   waiting   {:>8}",
            rates.qps, self.binding
        )?;
        writeln!(
            out,
            "  messages           {:>12.1}/s sent, {:.1}/s received",
            rates.sent, rates.received
        )?;
        writeln!(
            out,
            "  shared connections {:>12.1}/s opened, {:.1}/s gone, {:.1}/s QPs failed over",
            rates.opened, rates.down, rates.failovers
        )?;
        let counts = [
            ("handshakes", &self.handshakes),
            ("connections", &self.connections),
            ("IDs", &self.ids),
            ("overload", &self.overload),
        ];
        for (what, counts) in counts {
            writeln!(out, "  {what:<11} {}", by_state(counts))?;
        }
        self.print_steps(out)
    }

    fn print_steps(&self, out: &mut impl Write) -> std::io::Result<()> {
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
        writeln!(out)
    }
}

/// Those that there are, with their states.
fn by_state(counts: &BTreeMap<String, u64>) -> String {
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
