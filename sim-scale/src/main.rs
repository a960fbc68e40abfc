//! `trunkline-sim`: runs seeds of the simulator.

use anyhow::{Result, anyhow, bail};
use clap::{Arg, ArgGroup, CommandFactory, FromArgMatches, Parser, Subcommand};
use serde::{Serialize, Serializer};
use std::io::ErrorKind;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use trunkline_sim::failure::Kind;
use trunkline_sim::output::{self, counted};
use trunkline_sim::path::{command, units};
use trunkline_sim::run::{Report, Settings, run};
use trunkline_sim::state;

/// Runs seeds of the simulator: a cluster of real nodes on virtual time, against a model.
///
/// Each seed draws its faults: packets lost, doubled, reordered, corrupted; management packets on
/// top of that, up to 20 % of them lost, and late; partitions, narrow paths, restarts, closed
/// connections, QPs moved or destroyed, regions taken away, bad requests, late receives, slow
/// programs; nodes of several workers, some of them slow, with packets that come out at the wrong
/// one; a node more that lies.
#[derive(Debug, Parser)]
#[command(name = "trunkline-sim", version, max_term_width = 100, after_help = CODES)]
#[command(group(ArgGroup::new("seeds").required(true).args(["seed", "count"])))]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Runs this seed.
    #[arg(long, value_name = "N", value_parser = units::whole(0..=u64::MAX))]
    seed: Option<u64>,
    /// Runs this many seeds, 1 or more.
    #[arg(long, value_name = "N", value_parser = units::whole(1..=u64::MAX))]
    count: Option<u64>,
    /// First seed of `--count`.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = units::whole(0..=u64::MAX))]
    start: u64,
    /// Threads; 0 takes one per processor.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = units::whole(0..=usize::MAX))]
    jobs: usize,
    /// Goes on after a failure, to find more.
    #[arg(long)]
    keep_going: bool,
    /// Prints every event to standard error as it happens.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Prints one JSON object instead of text. Its digest is a string of 16 hexadecimal digits.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Connections over one bottleneck in virtual time, beside TCP if asked for.
    Path(command::PathArgs),
    /// The table of such paths, each held to a law.
    Suite(command::SuiteArgs),
    /// What a node of a cluster keeps, beside RC, XRC, DCT and SRC.
    State(state::command::StateArgs),
}

/// Exit code of what could not be run, or whose result could not be written.
const FAILED: u8 = 2;

/// What the exit codes mean: those of [`Kind`], and [`FAILED`].
const CODES: &str = "Exit code: 0 when all went well; 1 when a law was broken: something happened \
    that must not happen; 2 when the command line is wrong, or a file or standard output cannot be \
    written; 101 when the code under test panicked; 128 when something did not happen in time.";

#[derive(Debug, Default, Serialize)]
struct Summary {
    seeds: u64,
    failures: Vec<u64>,
    #[serde(serialize_with = "as_hexadecimal")]
    digest: u64,
    posted: u64,
    succeeded: u64,
    failed: u64,
    received: u64,
    troubles: u64,
    silences: u64,
    packets: u64,
    dropped: u64,
    lies: u64,
    virtual_seconds: f64,
    seconds: f64,
}

/// A number as a string: many readers of JSON round one that takes more than 53 bits.
fn as_hexadecimal<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{number:016x}"))
}

impl Summary {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        // Seeds finish in any order: the sum does not depend on it.
        self.digest = self.digest.wrapping_add(report.digest);
        self.posted += report.posted;
        self.succeeded += report.succeeded;
        self.failed += report.failed;
        self.received += report.received;
        self.troubles += report.troubles;
        self.silences += report.silences;
        self.packets += report.packets;
        self.dropped += report.dropped;
        self.lies += report.lies;
        self.virtual_seconds += report.virtual_ns as f64 / 1e9;
        if report.failure.is_some() {
            self.failures.push(report.seed);
        }
    }
}

/// What all threads share.
struct Shared {
    start: u64,
    /// Seeds that were taken, and of how many.
    taken: AtomicU64,
    count: u64,
    stop: AtomicBool,
    summary: Mutex<(Summary, Option<Kind>)>,
}

fn main() -> ExitCode {
    let matches = command_line().try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(said) => return tell(&said),
    };
    let outcome = match &cli.command {
        Some(Command::Path(args)) => Some(command::path(args).map(|()| true)),
        Some(Command::Suite(args)) => Some(command::suite(args)),
        Some(Command::State(args)) => Some(state::command::state(args).map(|()| true)),
        None => None,
    };
    if let Some(result) = outcome {
        return match result {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(Kind::Correctness as u8),
            Err(error) => complain(&error),
        };
    }
    match execute(&cli) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(kind)) => ExitCode::from(kind as u8),
        Err(error) => complain(&error),
    }
}

/// The command line, in which what looks like a negative number is a value that is out of range,
/// and no unknown option.
fn command_line() -> clap::Command {
    let negative = |arg: Arg| {
        let takes = arg.get_action().takes_values();
        arg.allow_negative_numbers(takes)
    };
    let command = Cli::command().mut_args(negative);
    command.mut_subcommands(|command| command.mut_args(negative))
}

/// Prints help, the version, or in one line what is wrong with the arguments.
fn tell(said: &clap::Error) -> ExitCode {
    if said.use_stderr() {
        let text = said.render().to_string();
        let lines = text.lines().map(str::trim);
        let what: Vec<_> = lines
            .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more info"))
            .filter(|line| !line.is_empty())
            .collect();
        let what = what.join(" ").replace(" tip:", "; tip:");
        let what = what.trim_start_matches("error: ");
        return complain(&anyhow!("{what}; try 'trunkline-sim --help'"));
    }
    match said.print() {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            complain(&anyhow::Error::new(error).context("cannot print"))
        }
        _ => ExitCode::SUCCESS,
    }
}

fn complain(error: &anyhow::Error) -> ExitCode {
    output::tell(format_args!("trunkline-sim: {error:#}"));
    ExitCode::from(FAILED)
}

fn execute(cli: &Cli) -> Result<Option<Kind>> {
    let started = Instant::now();
    // A panic is reported with its seed; where it happened is said here.
    std::panic::set_hook(Box::new(|panic| output::tell(panic)));
    let (start, count) = match cli.seed {
        Some(seed) => (seed, 1),
        None => (cli.start, cli.count.unwrap_or(0)),
    };
    let last = start.checked_add(count.saturating_sub(1));
    if last.is_none() {
        bail!(
            "--count {count} from {start} on goes beyond the last seed, {}",
            u64::MAX
        );
    }
    let shared = Shared {
        start,
        taken: AtomicU64::new(0),
        count,
        stop: AtomicBool::new(false),
        summary: Mutex::new((Summary::default(), None)),
    };
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = if cli.jobs == 0 { processors } else { cli.jobs };
    let jobs = jobs
        .min(usize::try_from(count).unwrap_or(usize::MAX))
        .max(1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs)
            .map(|_| scope.spawn(|| work(cli, &shared)))
            .collect();
        let mut said = Instant::now();
        while workers.iter().any(|worker| !worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            if !cli.json && said.elapsed() > Duration::from_secs(5) {
                said = Instant::now();
                progress(&shared, count, started);
            }
        }
    });
    let (mut summary, kind) = shared
        .summary
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    summary.failures.sort_unstable();
    summary.seconds = started.elapsed().as_secs_f64();
    if cli.json {
        output::print(&(serde_json::to_string(&summary)? + "\n"))?;
    } else {
        output::print(&told(cli, &summary))?;
    }
    Ok(kind)
}

fn progress(shared: &Shared, count: u64, started: Instant) {
    let done = shared
        .summary
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .0
        .seeds;
    let rate = done as f64 / started.elapsed().as_secs_f64();
    let seeds = counted(count, "seed");
    output::tell(format_args!("{done} of {seeds}, {rate:.1} per second"));
}

fn work(cli: &Cli, shared: &Shared) {
    let settings = Settings {
        print: cli.trace,
        ..Settings::default()
    };
    while !shared.stop.load(Ordering::Relaxed) {
        let taken = shared.taken.fetch_add(1, Ordering::Relaxed);
        if taken >= shared.count {
            return;
        }
        let seed = shared.start + taken;
        let report = run(seed, &settings);
        let mut summary = shared
            .summary
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        summary.0.add(&report);
        if let Some(failure) = &report.failure {
            summary.1.get_or_insert(failure.kind);
            show(&report);
            if !cli.keep_going {
                shared.stop.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// Says all there is to say of a failure.
fn show(report: &Report) {
    let seed = report.seed;
    output::tell(format_args!(
        "\nseed {seed} at {:.3} us of virtual time",
        report.virtual_ns as f64 / 1e3
    ));
    output::tell(&report.options);
    report.trace.iter().for_each(output::tell);
    if let Some(failure) = &report.failure {
        output::tell(format_args!("FAIL {failure}"));
    }
    output::tell(format_args!("replay: cargo xtask sim --seed {seed}\n"));
}

/// What a summary says to people.
fn told(cli: &Cli, summary: &Summary) -> String {
    let digest = match cli.seed {
        Some(_) => format!("digest {:016x}\n", summary.digest),
        None => String::new(),
    };
    digest
        + &format!(
            "{} in {:.1} s ({:.1} per second), {} failed\n{} posted: {} succeeded, {} did not; {} \
             received; {}; {} lost a peer that the network kept silent\n{}, {} of them lost, {} no \
             longer what a liar's node had sent; {:.1} s of virtual time\n",
            counted(summary.seeds, "seed"),
            summary.seconds,
            summary.seeds as f64 / summary.seconds,
            summary.failures.len(),
            counted(summary.posted, "request"),
            summary.succeeded,
            summary.failed,
            counted(summary.received, "message"),
            counted(summary.troubles, "trouble"),
            counted(summary.silences, "group"),
            counted(summary.packets, "packet"),
            summary.dropped,
            summary.lies,
            summary.virtual_seconds
        )
}
