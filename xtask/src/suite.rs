//! `cargo xtask test`: every check in turn, each timed.

use crate::cargo;
use crate::report::{self, Entry, Outcome};
use crate::{
    dpdk, fuzz, instructions, interop, layers, loom, matrix, miri, no_std, output, tidy, verbs,
};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// Seeds of the simulator: those of each run, and fresh ones in an ordinary run and in a full one.
const SEEDS: u32 = 300;
const SEEDS_FRESH: u32 = 200;
const SEEDS_FRESH_FULL: u32 = 10_000;
/// What an ordinary run may take: that is what the budgets come to, not what a run takes where a
/// machine is slower than the one that they are of.
const LIMIT: Duration = Duration::from_secs(40 * 60);
/// Seconds per fuzz target in a full run.
const FUZZ_SECONDS: u32 = 300;
/// Words of rings and bytes of messages that a full run says to what programs and a node share.
const WORDS: u64 = 1_000_000_000;
/// A step that takes this many times its budget hangs.
const PATIENCE: u32 = 4;
/// Where a full run leaves its table.
const RESULT: &str = "docs/results/xtask-test-full.md";
/// Where it leaves that of unmodified programs.
const MATRIX: &str = "docs/results/verbs-matrix.md";

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// More of everything that can be had more of: 10,000 simulator seeds, every fuzz target for
    /// minutes. The result goes to docs/results with date and commit.
    #[arg(long)]
    full: bool,
    /// Only this area; may be given several times.
    #[arg(long, value_name = "AREA")]
    only: Vec<String>,
}

/// Benchmarks of a service that say what is wanted of it.
const SERVED: [&str; 5] = [
    "served_write64k",
    "served_lat64",
    "served_idle",
    "served_fair",
    "served_kills",
];

struct Step {
    area: &'static str,
    /// What it may take on two cores with nothing built yet, in seconds.
    budget_s: u64,
    /// Part of `--full` runs only.
    full_only: bool,
    run: fn(&Setting) -> Result<Outcome>,
}

struct Setting {
    full: bool,
    limit: Duration,
}

const fn step(area: &'static str, budget_s: u64, run: fn(&Setting) -> Result<Outcome>) -> Step {
    Step {
        area,
        budget_s,
        full_only: false,
        run,
    }
}

/// Quick ones first.
const STEPS: &[Step] = &[
    step("fmt", 10, |s| {
        quietly(cargo::cargo(&["fmt", "--all", "--check"]), s)
    }),
    step("tidy", 15, |_| tidy::check().map(Outcome::Passed)),
    step("layers", 5, |_| layers::check().map(Outcome::Passed)),
    step("deny", 30, deny),
    step("clippy", 120, |s| {
        let arguments = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        quietly(cargo::cargo(&arguments), s)
    }),
    step("build", 320, |s| {
        // What tests run; benchmarks are built where they are measured, and looked at by clippy.
        quietly(cargo::cargo(&["test", "--workspace", "--no-run"]), s)
    }),
    step("no_std", 30, |_| no_std::check().map(Outcome::Passed)),
    step("tests", 400, tests),
    step("namespaces", 120, namespaces),
    step("docs", 50, |s| {
        let mut command = cargo::cargo(&["doc", "--workspace", "--no-deps"]);
        command.env("RUSTDOCFLAGS", "-D warnings");
        quietly(command, s)
    }),
    step("release", 240, |s| {
        cargo::build_release(&cargo::RELEASED, Some(s.limit))?;
        verbs::build(&verbs::Options::release())?;
        Ok(Outcome::Passed(String::new()))
    }),
    step("corpora", 30, |s| {
        fuzz::replay(Some(s.limit)).map(Outcome::Passed)
    }),
    step("sim", 90, sim),
    step("paths", 60, paths),
    step("examples", 30, examples),
    step("demo", 30, demo),
    step("dpdk", 220, |s| {
        Ok(match dpdk::run(Some(s.limit))? {
            dpdk::Verdict::Passed(note) => Outcome::Passed(note),
            dpdk::Verdict::Skipped(why) => Outcome::Skipped(why),
        })
    }),
    step("interop", 180, |setting| {
        let options = interop::Options {
            full: setting.full,
            ..interop::Options::default()
        };
        of_peers(interop::run(&options))
    }),
    step("verbs-matrix", 120, |setting| {
        let record = setting.full.then(|| cargo::root().join(MATRIX));
        let options = matrix::Options {
            full: setting.full,
            record,
            ..matrix::Options::default()
        };
        of_peers(matrix::run(&options))
    }),
    step("instructions", 80, |_| {
        Ok(
            match instructions::run(&instructions::Options::default())? {
                instructions::Verdict::Compared(note) => Outcome::Passed(note),
                instructions::Verdict::Skipped(why) => Outcome::Skipped(why),
            },
        )
    }),
    step("loom", 70, |s| {
        loom::run(Some(s.limit))?;
        Ok(Outcome::Passed("doorbells, mapping, CQs".to_owned()))
    }),
    step("miri", 140, |s| {
        Ok(match miri::run(Some(s.limit))? {
            miri::Verdict::Passed(note) => Outcome::Passed(note),
            miri::Verdict::Skipped(why) => Outcome::Skipped(why),
        })
    }),
    Step {
        area: "scales",
        budget_s: 900,
        full_only: true,
        run: |_| instructions::times().map(Outcome::Passed),
    },
    Step {
        area: "served",
        budget_s: 900,
        full_only: true,
        run: served,
    },
    Step {
        area: "words",
        budget_s: 900,
        full_only: true,
        run: words,
    },
    Step {
        area: "fuzz",
        budget_s: 3600 * 3,
        full_only: true,
        run: long_fuzz,
    },
];

/// Runs the steps and prints the table. `false` when one failed.
///
/// # Errors
/// An area that does not exist; a result that cannot be written.
pub(crate) fn run(options: &Options) -> Result<bool> {
    for area in &options.only {
        if !STEPS.iter().any(|step| step.area == *area) {
            let known: Vec<_> = STEPS.iter().map(|step| step.area).collect();
            bail!("there is no area `{area}`; there are {}", known.join(", "));
        }
    }
    let mut entries = Vec::new();
    for step in STEPS {
        let named = options.only.iter().any(|area| area == step.area);
        if named || options.only.is_empty() && (options.full || !step.full_only) {
            entries.push(run_step(step, options.full));
        }
    }
    let table = report::table(&entries);
    for entry in &entries {
        if let Outcome::Failed(why) = &entry.outcome {
            output::tell(format_args!("\n{} failed:\n       {why}", entry.area));
        }
    }
    if options.full && options.only.is_empty() {
        record(&table)?;
    }
    output::print(format_args!("\n{table}"))?;
    let took: Duration = entries.iter().map(|entry| entry.took).sum();
    if !options.full && took > LIMIT {
        output::tell(format_args!(
            "\nthis run took {} s; where budgets hold, one takes {} s at most",
            took.as_secs(),
            LIMIT.as_secs()
        ));
    }
    Ok(report::count(&entries).failed == 0)
}

fn run_step(step: &Step, full: bool) -> Entry {
    output::tell(format_args!("\n== {}", step.area));
    let scale = if full { 10 } else { 1 };
    let budget = Duration::from_secs(step.budget_s * if step.full_only { 1 } else { scale });
    let start = Instant::now();
    let outcome = (step.run)(&Setting {
        full,
        limit: budget * PATIENCE,
    })
    .unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
    Entry {
        area: step.area,
        budget,
        took: start.elapsed(),
        outcome,
    }
}

/// What came of a run against soft-RoCE.
fn of_peers(verdict: Result<interop::Verdict>) -> Result<Outcome> {
    Ok(match verdict? {
        interop::Verdict::Passed(note) => Outcome::Passed(note),
        interop::Verdict::Skipped(why) => Outcome::Skipped(why),
    })
}

fn quietly(command: Command, setting: &Setting) -> Result<Outcome> {
    cargo::run(command, Some(setting.limit))?;
    Ok(Outcome::Passed(String::new()))
}

/// The captures lie beside the checkout of whoever works on the project; a clone has the golden
/// ones.
fn tests(setting: &Setting) -> Result<Outcome> {
    const CAPTURES: &str = "TRUNKLINE_CAPTURES";
    const TSHARK: &str = "TRUNKLINE_TSHARK";
    let mut command = cargo::cargo(&["test", "--workspace", "--no-fail-fast"]);
    // An area of its own.
    command.args(["--exclude", fuzz::REPLAY]);
    let beside = cargo::root().join("../shared/captures").is_dir();
    let mut notes = Vec::new();
    if !beside && std::env::var_os(CAPTURES).is_none() {
        command.env(CAPTURES, "none");
        notes.push("but for ../shared/captures, which is not there");
    }
    if !cargo::works("tshark", &["--version"]) && std::env::var_os(TSHARK).is_none() {
        command.env(TSHARK, "none");
        notes.push("but for the Wireshark dissector, as there is no tshark");
    }
    cargo::run_tests(command, Some(setting.limit))?;
    Ok(Outcome::Passed(notes.join("; ")))
}

fn deny(setting: &Setting) -> Result<Outcome> {
    if !cargo::works("cargo", &["deny", "--version"]) {
        let how = "cargo-deny is not installed (`cargo install --locked cargo-deny`)";
        return Ok(Outcome::Skipped(how.to_owned()));
    }
    let all = [
        "deny",
        "--workspace",
        "check",
        "bans",
        "licenses",
        "sources",
    ];
    cargo::run(cargo::cargo(&all), Some(setting.limit))?;
    // Advisories come from a database on the network, which a desk may not reach.
    let advisories = ["deny", "--workspace", "check", "advisories"];
    match cargo::output(cargo::cargo(&advisories)) {
        Ok(_) => Ok(Outcome::Passed(String::new())),
        Err(error)
            if error
                .to_string()
                .contains("failed to fetch advisory database") =>
        {
            Ok(Outcome::Passed(
                "but for advisories: their database cannot be reached".to_owned(),
            ))
        }
        Err(error) => Err(error),
    }
}

/// A seed that no run before had, with room for as many as a run takes after it.
fn fresh_seed() -> Result<u64> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(since.as_millis() as u64 * 1_000)
}

/// Some seeds are the same in each run, so that what failed once is asked again; the others are
/// fresh, and the table tells which they were.
fn sim(setting: &Setting) -> Result<Outcome> {
    let fresh = if setting.full {
        SEEDS_FRESH_FULL
    } else {
        SEEDS_FRESH
    };
    let start = fresh_seed()?;
    for (start, count) in [(0, SEEDS), (start, fresh)] {
        let mut command = cargo::release("trunkline-sim")?;
        command.args(["--start", &start.to_string()]);
        command.args(["--count", &count.to_string()]);
        cargo::run(command, Some(setting.limit))?;
    }
    let note = format!("seeds 0 to {}, and {fresh} from {start}", SEEDS - 1);
    Ok(Outcome::Passed(note))
}

/// Congestion control over a cut of the table of paths; fails when a law is broken.
fn paths(setting: &Setting) -> Result<Outcome> {
    let mut command = cargo::release("trunkline-sim")?;
    command.arg("suite");
    if setting.full {
        command.arg("--full");
    }
    cargo::run(command, Some(setting.limit))?;
    Ok(Outcome::Passed(String::new()))
}

/// Tests that take network namespaces are ignored elsewhere.
fn namespaces(setting: &Setting) -> Result<Outcome> {
    if !cargo::works("unshare", &["--net", "ip", "link"]) {
        let why = "network namespaces need root and iproute2";
        return Ok(Outcome::Skipped(why.to_owned()));
    }
    let mut command = cargo::cargo(&["test", "--workspace", "--lib", "--tests", "--no-fail-fast"]);
    command.args(["--", "--ignored", "--test-threads", "1"]);
    cargo::run_tests(command, Some(setting.limit))?;
    Ok(Outcome::Passed(String::new()))
}

/// Runs every example of the root package without arguments.
fn examples(setting: &Setting) -> Result<Outcome> {
    let metadata = cargo::metadata()?;
    let package = metadata
        .packages
        .iter()
        .find(|package| package.name == "trunkline");
    let package = package.context("no package is called trunkline")?;
    let is_example = |kind: &Vec<String>| kind.iter().any(|kind| kind == "example");
    let build = cargo::cargo(&["build", "--quiet", "--workspace", "--examples"]);
    cargo::run(build, Some(setting.limit))?;
    let folder = cargo::target_dir()?.join("debug/examples");
    let mut names = Vec::new();
    for target in package
        .targets
        .iter()
        .filter(|target| is_example(&target.kind))
    {
        let example = folder.join(&target.name);
        let command = cargo::command(&example.to_string_lossy(), &[]);
        cargo::run(command, Some(setting.limit))?;
        names.push(target.name.clone());
    }
    if names.is_empty() {
        bail!("there are no examples");
    }
    Ok(Outcome::Passed(names.join(", ")))
}

/// The demo with many QPs has to end, all its bytes verified.
fn demo(setting: &Setting) -> Result<Outcome> {
    let qps = if setting.full { "1000000" } else { "200000" };
    let mut command = cargo::release("trunkline")?;
    command.args(["demo", "--qps", qps]);
    cargo::run(command, Some(setting.limit))?;
    Ok(Outcome::Passed(format!("{qps} QPs")))
}

/// What programs of a service cost, which is judged where there is nothing else on the machine.
fn served(setting: &Setting) -> Result<Outcome> {
    let mut command = cargo::release("trunkline-benches")?;
    command.args(["--judge", "--rounds", "3", "--duration", "2"]);
    for name in SERVED {
        command.args(["--only", name]);
    }
    cargo::run(command, Some(setting.limit))?;
    Ok(Outcome::Passed(SERVED.join(", ")))
}

/// So many words of rings and bytes of messages, from another seed each time, and as many words to
/// a service that runs.
fn words(setting: &Setting) -> Result<Outcome> {
    let said = fuzz::say(fresh_seed()?, "--words", WORDS)?;
    let test = "scribbles::neighbours_hear_nothing_of_who_scribbles_all_the_time";
    let arguments = ["test", "--quiet", "--workspace", "--test", "service", test];
    let mut command = cargo::cargo(&arguments);
    command.env("TRUNKLINE_WORDS", WORDS.to_string());
    cargo::run_tests(command, Some(setting.limit))?;
    Ok(Outcome::Passed(format!("{said}; {WORDS} to a service")))
}

fn long_fuzz(_: &Setting) -> Result<Outcome> {
    if let Some(why) = fuzz::missing() {
        return Ok(Outcome::Skipped(why.to_owned()));
    }
    fuzz::fuzz("all", FUZZ_SECONDS).map(Outcome::Passed)
}

/// Leaves the table of a full run in the repository.
fn record(table: &str) -> Result<()> {
    let commit = cargo::output(cargo::command("git", &["rev-parse", "--short", "HEAD"]))?;
    let changes = cargo::output(cargo::command("git", &["status", "--porcelain"]))?;
    let date = cargo::output(cargo::command("date", &["-u", "+%Y-%m-%d"]))?;
    let dirty = if changes.is_empty() {
        ""
    } else {
        ", with changes not committed"
    };
    let file = cargo::root().join(RESULT);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let text = format!(
        "# The last full run\n\n`cargo xtask test --full`, {}, commit {}{dirty}.\n\n\
         ```text\n{table}\n```\n",
        date.trim(),
        commit.trim(),
    );
    fs::write(&file, text).with_context(|| RESULT.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_have_names_of_their_own() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(
                STEPS[..index].iter().all(|other| other.area != step.area),
                "{}",
                step.area
            );
        }
    }

    #[test]
    fn the_budgets_of_an_ordinary_run_come_to_what_it_may_take() {
        let ordinary = STEPS.iter().filter(|step| !step.full_only);
        let all = ordinary.map(|step| step.budget_s).sum();
        assert!(Duration::from_secs(all) <= LIMIT, "{all} s");
    }

    #[test]
    fn an_unknown_area_is_refused() {
        let options = Options {
            full: false,
            only: vec!["nonsense".to_owned()],
        };
        let error = run(&options)
            .expect_err("there is no such area")
            .to_string();
        assert!(error.starts_with("there is no area `nonsense`"), "{error}");
    }
}
