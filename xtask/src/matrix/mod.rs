//! `cargo xtask verbs-matrix`: the distribution's own programs, unmodified, with all their options,
//! on our device: between services of two network namespaces, with a node inside each program, and
//! against soft-RoCE of the Linux kernel in an emulated guest.

mod hosts;
mod outcome;
mod rows;
mod sharing;

use crate::interop::{self, guest::Guest, record::Origin};
use crate::{cargo, output, verbs};
use anyhow::{Result, bail};
use clap::Args;
use hosts::{Built, Carrier, End, FAR, Host, NEAR};
use outcome::{Outcome, Verdict, count};
use rows::{Expect, Peer, Row};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trunkline_testkit::programs::{Ended, Pair, is_installed};

/// How long a row may take, and one with all sizes; twice that against the guest.
const LIMIT: Duration = Duration::from_secs(40);
const LONG_LIMIT: Duration = Duration::from_secs(180);
/// Ports of the servers: each row has another, so that what is left of one harms no other.
const FIRST_PORT: u16 = 10_000;

const SERVICES: &str = "services";
const OWN_NODES: &str = "own nodes";
const GUEST_SERVES: &str = "soft-RoCE serves";
const GUEST_ASKS: &str = "soft-RoCE asks";

/// What to run.
#[derive(Args, Debug, Default)]
pub(crate) struct Options {
    /// The whole matrix, not the cut for an ordinary run.
    #[arg(long)]
    pub(crate) full: bool,
    /// Only rows with this in their name; may be given several times.
    #[arg(long, value_name = "PART", allow_hyphen_values = true)]
    pub(crate) only: Vec<String>,
    /// Without the guest.
    #[arg(long)]
    pub(crate) no_guest: bool,
    /// Only against the guest.
    #[arg(long, conflicts_with = "no_guest")]
    pub(crate) guest: bool,
    /// Write what came of it to this file, and to one beside it as JSON.
    #[arg(long, value_name = "FILE.md")]
    pub(crate) record: Option<PathBuf>,
}

/// Runs the rows.
///
/// # Errors
/// A row failed, or this machine has not what it takes, where CI has to have it.
pub(crate) fn run(options: &Options) -> Result<interop::Verdict> {
    if !interop::has_namespaces() {
        let why = "network namespaces need root and iproute2";
        if std::env::var_os("CI").is_some() {
            bail!(why);
        }
        return Ok(interop::Verdict::Skipped(why.to_owned()));
    }
    let script = match interop::script() {
        _ if options.no_guest => None,
        Ok(script) => Some(script),
        Err(why) if std::env::var_os("CI").is_some() => bail!(why),
        Err(why) => {
            output::tell(format_args!("without the guest: {why}"));
            None
        }
    };
    if !options.matches() {
        bail!("no row is called so: {}", options.only.join(", "));
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let record = options.record.as_ref().map(std::path::absolute);
    let record = record.transpose()?;
    if let Some(file) = &record {
        outcome::can_write(file)?;
    }
    let origin = Origin::now()?;
    let built = build(options)?;
    let mut run = Run {
        options,
        stop,
        outcomes: Vec::new(),
        port: FIRST_PORT,
    };
    let sharing = match options.guest {
        true => String::new(),
        false => run.here(&built)?,
    };
    let guest = script.map(|script| run.with_guest(&built, script));
    let mut told = count(&run.outcomes);
    if guest.is_none() {
        told += ", without the guest";
    }
    if let Some(file) = &record {
        let full = if options.full { " --full" } else { "" };
        let alone = match (options.no_guest, options.guest) {
            (true, _) => " --no-guest",
            (_, true) => " --guest",
            _ => "",
        };
        let only = options.only.iter();
        let only: String = only.map(|part| format!(" --only \"{part}\"")).collect();
        let command = format!("cargo xtask verbs-matrix{full}{alone}{only}");
        let whole = !run.stop.load(Ordering::Relaxed);
        let heading = origin.heading("Unmodified programs", &command);
        outcome::write(file, heading, &run.outcomes, &sharing, whole)?;
    }
    guest.transpose()?;
    if run.stop.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    let failed = |row: &&Outcome| row.verdict == Verdict::Failed;
    if run.outcomes.is_empty() || run.outcomes.iter().any(|row| failed(&row)) {
        bail!("{told}");
    }
    if run
        .outcomes
        .iter()
        .all(|row| row.verdict == Verdict::NotInstalled)
    {
        if std::env::var_os("CI").is_some() {
            bail!("{told}");
        }
        return Ok(interop::Verdict::Skipped(told));
    }
    Ok(interop::Verdict::Passed(told))
}

impl Options {
    /// Whether there is a row that is to be run.
    fn matches(&self) -> bool {
        let rows = [Peer::Ours, Peer::Guest].into_iter().flat_map(rows::rows);
        let named = |name: &str| self.only.iter().any(|part| name.contains(part));
        self.only.is_empty() || rows.into_iter().any(|row| named(&row.name()))
    }
}

fn build(options: &Options) -> Result<Built> {
    let all = ["trunkline", "trunkline-sim"];
    let needed = if options.guest { &all[..1] } else { &all };
    let programs = cargo::build_release(needed, None)?;
    let library = verbs::build(&verbs::Options::release())?;
    Ok(Built {
        trunkline: programs.join("trunkline"),
        sim: programs.join("trunkline-sim"),
        library,
    })
}

struct Run<'a> {
    options: &'a Options,
    stop: Arc<AtomicBool>,
    outcomes: Vec<Outcome>,
    /// Port of the next row.
    port: u16,
}

impl Run<'_> {
    /// All between the namespaces; gives what was seen of sharing, in words.
    fn here(&mut self, built: &Built) -> Result<String> {
        let [near, far] = hosts::two_namespaces()?;
        let mut seen = String::new();
        for carrier in [Carrier::Service, Carrier::OwnNode] {
            if carrier == Carrier::OwnNode && !self.options.full {
                break;
            }
            let mut near = Host::new(built, &near, NEAR, carrier)?;
            let mut far = Host::new(built, &far, FAR, carrier)?;
            let setting = match carrier {
                Carrier::Service => SERVICES,
                Carrier::OwnNode => OWN_NODES,
            };
            self.rows(setting, End::Here(&near), End::Here(&far))?;
            if carrier == Carrier::Service && self.options.only.is_empty() {
                seen = sharing::run(built, &near, &far)?;
                output::tell(&seen);
            }
            near.check()?;
            far.check()?;
        }
        Ok(seen)
    }

    fn with_guest(&mut self, built: &Built, script: PathBuf) -> Result<()> {
        let guest = Guest::boot(script, &[], None)?;
        let there = End::guest(&guest)?;
        let mut host = Host::beside(built, &guest)?;
        self.rows(GUEST_SERVES, there, End::Here(&host))?;
        self.rows(GUEST_ASKS, End::Here(&host), there)?;
        host.check()
    }

    fn rows(&mut self, setting: &'static str, server: End<'_>, client: End<'_>) -> Result<()> {
        let with_guest = matches!(server, End::There(..)) || matches!(client, End::There(..));
        let peer = if with_guest { Peer::Guest } else { Peer::Ours };
        for row in rows::rows(peer) {
            let name = row.name();
            let named = self.options.only.is_empty()
                || self.options.only.iter().any(|part| name.contains(part));
            let wanted = self.options.full || row.in_cut || !self.options.only.is_empty();
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            if named && wanted {
                let started = Instant::now();
                let (verdict, why) = self.row(&row, server, client, with_guest)?;
                // Ctrl-C ends the programs of a row, too: that says nothing of them.
                if verdict == Verdict::Failed && self.stop.load(Ordering::Relaxed) {
                    break;
                }
                let seconds = started.elapsed().as_secs_f64();
                if verdict != Verdict::Passed {
                    output::tell(format_args!("{setting}: {name}: {verdict:?} {why}"));
                }
                self.outcomes.push(Outcome {
                    setting,
                    row: name,
                    verdict,
                    seconds,
                    why,
                });
            }
        }
        Ok(())
    }

    fn row(
        &mut self,
        row: &Row,
        server: End<'_>,
        client: End<'_>,
        with_guest: bool,
    ) -> Result<(Verdict, String)> {
        let failed = |why: String| Ok((Verdict::Failed, why));
        if !is_installed(row.program) {
            return Ok((Verdict::NotInstalled, String::new()));
        }
        let limit = if row.is_long() { LONG_LIMIT } else { LIMIT };
        let limit = if with_guest { 2 * limit } else { limit };
        let until = Instant::now() + limit;
        let port = self.port;
        self.port += 1;
        let mut first = server.start(row, port, None, limit)?;
        if let Expect::Alone(words) = row.expect {
            let ended = first.wait(until);
            if ended.is_good() && ended.said.contains(words) {
                return Ok((Verdict::Passed, String::new()));
            }
            return failed(ended.to_string());
        }
        if !server.listens(&mut first, port) {
            let ended = first.wait(Instant::now());
            if is_refused(row, &ended) {
                return Ok((Verdict::NotOffered, String::new()));
            }
            return failed(format!("the server: {ended}"));
        }
        let pair = Pair {
            client: client.start(row, port, Some(server.address()), limit)?,
            server: first,
        };
        let ended = pair.wait(until);
        match row.expect {
            Expect::Result(words) if ended.is_good() && ended.client.said.contains(words) => {
                Ok((Verdict::Passed, String::new()))
            }
            _ if is_refused(row, &ended.server) || is_refused(row, &ended.client) => {
                Ok((Verdict::NotOffered, String::new()))
            }
            _ => failed(ended.to_string()),
        }
    }
}

/// Whether a program said what the row expects, and ended by itself and not by a signal.
fn is_refused(row: &Row, ended: &Ended) -> bool {
    let Expect::Refusal(words) = row.expect else {
        return false;
    };
    let code = ended.status.and_then(|status| status.code());
    code.is_some_and(|code| code != 0) && ended.said.contains(words)
}
