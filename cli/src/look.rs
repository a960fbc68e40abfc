//! Looking at a running node again and again: what `trunkline cm watch` and `trunkline stat` share.

use super::interrupt::Interrupt;
use super::output::{self, print_json};
use super::range::Range;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use std::io::{self, IsTerminal, Write, stdout};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use trunkline::status::{self, Status, StatusError};

/// How long a node has to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Nodes of which more than the address is told where one has to be chosen, and how long each has
/// to say what it is.
const TOLD: usize = 64;
const TOLD_WITHIN: Duration = Duration::from_millis(100);
/// How often Ctrl-C is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Columns of a table.
pub(crate) const WIDTH: usize = 80;

/// Seconds between two looks: up to a day.
const INTERVAL: Range<f64> = Range::new(0.0, 86_400.0);

/// Which node is looked at, how often, and how that is shown.
#[derive(Args, Debug)]
#[command(
    after_help = "A node tells its own user and root. What is shown first is since the node \
    started, then since the time before."
)]
pub(crate) struct LookArgs {
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

/// What a command shows of one interval.
pub(crate) trait View: Serialize {
    /// Of the time between two looks.
    fn of(interval: &Interval<'_>) -> Self;

    /// Prints it as a table.
    ///
    /// # Errors
    /// It cannot be written.
    fn print(&self, out: &mut impl Write) -> io::Result<()>;
}

/// Shows a node until the user has seen enough.
///
/// # Errors
/// There is no such node, it does not answer, or it is gone.
pub(crate) fn look<V: View>(args: &LookArgs, interrupt: &Interrupt) -> Result<()> {
    output::check()?;
    let address = match args.node {
        Some(address) => address,
        None => only_node()?,
    };
    let mut before = None;
    let mut due = Instant::now();
    loop {
        let now = status::ask(address, ANSWER_WITHIN)?;
        show(&V::of(&Interval::new(before.as_ref(), &now)), args)?;
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

fn show(view: &impl View, args: &LookArgs) -> Result<()> {
    if args.json {
        return print_json(view);
    }
    let mut out = output::out();
    if !args.once && stdout().is_terminal() {
        // Home, and nothing below.
        write!(out, "\x1b[H\x1b[J")?;
    }
    view.print(&mut out)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

fn only_node() -> Result<IpAddr> {
    let nodes = status::nodes().context("cannot look for nodes")?;
    match nodes[..] {
        [] => bail!("no node that can be watched runs on this host"),
        [address] => Ok(address),
        _ => {
            let (told, rest) = nodes.split_at(nodes.len().min(TOLD));
            let told = told.iter().copied().map(described);
            let all: Vec<_> = told.chain(rest.iter().map(ToString::to_string)).collect();
            bail!(
                "several nodes run on this host, name one: {}",
                all.join(", ")
            )
        }
    }
}

/// An address, and whose node is there.
fn described(address: IpAddr) -> String {
    match status::ask(address, TOLD_WITHIN) {
        Ok(status) => match status.service {
            Some(service) => format!(
                "{address} (service at {}, {} programs)",
                service.socket, service.client_count
            ),
            None => format!("{address} (process {})", status.pid),
        },
        Err(StatusError::OtherUser { uid, .. }) => format!("{address} (of user {uid})"),
        Err(_) => format!("{address} (it does not answer)"),
    }
}

/// A node now, and as it was when the interval began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval<'a> {
    /// `None`: it began with the node.
    pub(crate) before: Option<&'a Status>,
    pub(crate) now: &'a Status,
}

impl<'a> Interval<'a> {
    /// From `before`, or from the start of the node, to `now`.
    pub(crate) fn new(before: Option<&'a Status>, now: &'a Status) -> Self {
        // Another node may have taken the address.
        let same = |then: &&Status| then.pid == now.pid && then.uptime_ns < now.uptime_ns;
        let before = before.filter(same);
        Self { before, now }
    }

    fn seconds(&self) -> f64 {
        let began_ns = self.before.map_or(0, |then| then.uptime_ns);
        (self.now.uptime_ns - began_ns) as f64 / 1e9
    }

    /// How much a count grew.
    pub(crate) fn grown(&self, count: impl Fn(&Status) -> u64) -> u64 {
        let before = self.before.map_or(0, &count);
        count(self.now).saturating_sub(before)
    }

    /// How much a count grew in a second.
    pub(crate) fn rate(&self, count: impl Fn(&Status) -> u64) -> f64 {
        let (events, seconds) = (self.grown(count), self.seconds());
        if seconds > 0.0 {
            events as f64 / seconds
        } else {
            0.0
        }
    }

    pub(crate) fn head(&self) -> Head {
        Head {
            address: self.now.address,
            port: self.now.port.clone(),
            pid: self.now.pid,
            uptime_seconds: self.now.uptime_ns as f64 / 1e9,
            seconds: self.seconds(),
        }
    }
}

/// Which node is shown, and of which time.
#[derive(Debug, Serialize)]
pub(crate) struct Head {
    address: IpAddr,
    port: String,
    pid: u32,
    uptime_seconds: f64,
    /// Time that rates and steps are of.
    seconds: f64,
}

impl Head {
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Self {
            address, port, pid, ..
        } = self;
        let times = format!(
            "up {:.1} s; the last {:.1} s:",
            self.uptime_seconds, self.seconds
        );
        print_wrapped(
            &format!("node {address}, port {port}, process {pid}, {times}"),
            out,
        )
    }
}

/// Prints words in lines that fit, those after the first indented.
pub(crate) fn print_wrapped(text: &str, out: &mut impl Write) -> io::Result<()> {
    let mut line = String::new();
    for word in text.split_inclusive(' ') {
        if line.len() + word.trim_end().len() > WIDTH {
            writeln!(out, "{}", line.trim_end())?;
            line = "    ".to_owned();
        }
        line.push_str(word);
    }
    writeln!(out, "{}", line.trim_end())
}
