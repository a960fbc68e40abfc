//! Repository tasks, run as `cargo xtask TASK`. Everything CI does is a task here, so that it can
//! be repeated at any desk: `cargo xtask test` is the whole of it.

mod cargo;
mod dpdk;
mod failures;
mod fuzz;
mod instructions;
mod interop;
mod layers;
mod loom;
mod matrix;
mod miri;
mod no_std;
mod output;
mod report;
mod suite;
mod tidy;
mod verbs;

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::{ArgGroup, Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Tasks of the Trunkline repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Everything CI checks: format, lints, build, tests, docs, layers, no_std, tidy, corpora,
    /// simulator seeds, examples, instruction counts, loom, Miri. Ends with a table of times and
    /// budgets.
    Test(suite::Options),
    /// The same as `test`.
    Ci(suite::Options),
    /// Checks that dependencies between the crates point down only, and that the ground floor
    /// declares what it promises.
    Layers,
    /// Proves that wire, conn and cm need no standard library.
    NoStd,
    /// Checks what no other tool does: line and file lengths, dead files, stray marks, changelog.
    Tidy,
    /// Runs the simulator (release build): one seed or a range of them; `sim path` runs connections
    /// over one bottleneck, `sim suite` the table of such paths; `sim state` counts what a node
    /// of a cluster keeps.
    Sim(Sim),
    /// Runs the benchmarks (release build) with the arguments given.
    Bench(Bench),
    /// Fuzzes one target with cargo-fuzz and a nightly compiler, or replays the corpora on stable.
    Fuzz(fuzz::Options),
    /// Runs Trunkline against soft-RoCE of the Linux kernel in an emulated guest, as root: all
    /// operations, errors, faults and the guest's own programs.
    Interop(interop::Options),
    /// Counts instructions of the hot pieces under valgrind and compares them with the baseline in
    /// benches/instructions.json.
    Instructions(instructions::Options),
    /// Runs the models of lock-free modules under loom, which goes through the orders in which
    /// threads may meet.
    Loom,
    /// Runs the tests of modules with unsafe code under Miri, which finds undefined behaviour.
    /// Needs a nightly compiler with Miri.
    Miri,
    /// Runs the distribution's own programs with the library in place of libibverbs.so.1, as root:
    /// between two network namespaces with a service each, and against soft-RoCE in a guest.
    VerbsMatrix(matrix::Options),
    /// Builds the library in place of libibverbs.so.1, in `verbs` below the target folder, and says
    /// where that is: programs run with it when `LD_LIBRARY_PATH` names the folder.
    Verbs(verbs::Options),
}

#[derive(Args, Debug)]
#[command(group(ArgGroup::new("seeds").required(true).args(["seed", "count"])))]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Sim {
    #[command(subcommand)]
    other: Option<Other>,
    /// Replays this seed.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Runs this many seeds.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// First seed of `--count`.
    #[arg(long, value_name = "N", requires = "count")]
    start: Option<u64>,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// What the simulator does besides seeds; it says itself what there is to type.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
enum Other {
    /// Connections over one bottleneck in virtual time, beside TCP if asked for.
    #[command(disable_help_flag = true)]
    Path(HandedOn),
    /// The table of such paths, each held to a law.
    #[command(disable_help_flag = true)]
    Suite(HandedOn),
    /// What a node of a cluster keeps, beside RC, XRC, DCT and SRC.
    #[command(disable_help_flag = true)]
    State(HandedOn),
}

/// Arguments of theirs that a file follows.
const FILES: [&str; 3] = ["--json", "--svg", "--markdown"];

#[derive(Args, Debug)]
struct HandedOn {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// The simulator runs in the root of the repository, a path is meant from here.
fn from_here(file: &str) -> String {
    let absolute = std::path::absolute(file);
    absolute.map_or_else(|_| file.to_owned(), |path| path.display().to_string())
}

impl Sim {
    fn arguments(&self) -> Vec<String> {
        let other = match &self.other {
            Some(Other::Path(path)) => Some(("path", path)),
            Some(Other::Suite(suite)) => Some(("suite", suite)),
            Some(Other::State(state)) => Some(("state", state)),
            None => None,
        };
        if let Some((name, HandedOn { rest })) = other {
            let mut arguments = vec![name.to_owned()];
            let mut is_file = false;
            for argument in rest {
                let joined = argument.split_once('=');
                let joined = joined.filter(|(name, _)| !is_file && FILES.contains(name));
                arguments.push(match joined {
                    Some((name, file)) => format!("{name}={}", from_here(file)),
                    None if is_file => from_here(argument),
                    None => argument.clone(),
                });
                is_file = !is_file && FILES.contains(&argument.as_str());
            }
            return arguments;
        }
        let mut arguments = Vec::new();
        for (name, value) in [
            ("--seed", self.seed),
            ("--count", self.count),
            ("--start", self.start),
        ] {
            if let Some(value) = value {
                arguments.extend([name.to_owned(), value.to_string()]);
            }
        }
        if self.json {
            arguments.push("--json".to_owned());
        }
        arguments
    }
}

#[derive(Args, Debug)]
struct Bench {
    /// Writes the results to this file, as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Runs only this benchmark; may be given several times.
    #[arg(long, value_name = "NAME", value_parser = benchmarks())]
    only: Vec<String>,
    /// Further arguments, handed on as they are.
    #[arg(last = true)]
    rest: Vec<String>,
}

/// The names of the benchmarks, from where they are listed: to build them and ask takes minutes.
fn benchmarks() -> PossibleValuesParser {
    let lines = include_str!("../../benches/src/catalogue.rs").lines();
    let names = lines.filter_map(|line| line.trim().strip_prefix("name: \"")?.strip_suffix("\","));
    names.into()
}

impl Bench {
    /// Whether one of the benchmarks needs the command, and the library for unmodified programs.
    fn is_served(&self) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name.starts_with("served_"))
    }

    fn arguments(&self) -> Result<Vec<String>> {
        let mut arguments = Vec::new();
        if let Some(file) = &self.json {
            // The benchmarks run in the root of the repository, the path is meant from here.
            let file = std::path::absolute(file)?;
            arguments.extend(["--json".to_owned(), file.display().to_string()]);
        }
        for name in &self.only {
            arguments.extend(["--only".to_owned(), name.clone()]);
        }
        arguments.extend(self.rest.iter().cloned());
        Ok(arguments)
    }
}

fn run(task: Task) -> Result<bool> {
    match task {
        Task::Test(options) | Task::Ci(options) => suite::run(&options),
        Task::Layers => layers::check().and_then(|notes| say(&notes)),
        Task::NoStd => no_std::check().and_then(|note| say(&note)),
        Task::Tidy => tidy::check().and_then(|note| say(&note)),
        Task::Sim(sim) => run_release("trunkline-sim", &sim.arguments()),
        Task::Bench(bench) => {
            let arguments = bench.arguments()?;
            if bench.is_served() {
                cargo::build_release(&["trunkline"], None)?;
                verbs::build(&verbs::Options::release())?;
            }
            run_release("trunkline-benches", &arguments)
        }
        Task::Fuzz(options) => fuzz::run(&options).and_then(|note| say(&note)),
        Task::Interop(options) => match interop::run(&options)? {
            interop::Verdict::Passed(note) => say(&note),
            interop::Verdict::Skipped(why) => say(&format!("SKIPPED: {why}")),
        },
        Task::Instructions(options) => match instructions::run(&options)? {
            instructions::Verdict::Compared(note) => say(&note),
            instructions::Verdict::Skipped(why) => say(&format!("skipped: {why}")),
        },
        Task::Loom => loom::run(None).map(|()| true),
        Task::Miri => match miri::run(None)? {
            miri::Verdict::Passed(note) => say(&note),
            miri::Verdict::Skipped(why) => say(&format!("SKIPPED: {why}")),
        },
        Task::VerbsMatrix(options) => match matrix::run(&options)? {
            interop::Verdict::Passed(note) => say(&note),
            interop::Verdict::Skipped(why) => say(&format!("SKIPPED: {why}")),
        },
        Task::Verbs(options) => say(&verbs::build(&options)?.display().to_string()),
    }
}

fn run_release(program: &str, arguments: &[String]) -> Result<bool> {
    let mut command = cargo::release(program)?;
    command.args(arguments);
    cargo::run(command, None).map(|()| true)
}

fn say(note: &str) -> Result<bool> {
    output::print(note).map(|()| true)
}

/// What clap complains about, as one line.
fn complaint(rendered: &str) -> String {
    let line: Vec<_> = rendered
        .lines()
        .take_while(|line| !line.trim().is_empty())
        .map(str::trim)
        .collect();
    format!("{} (see `cargo xtask --help`)", line.join(" "))
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let asked_for = matches!(
                error.kind(),
                ErrorKind::DisplayHelp
                    | ErrorKind::DisplayVersion
                    | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            );
            if asked_for {
                let printed = output::taken(error.print());
                return if error.use_stderr() {
                    ExitCode::from(2)
                } else {
                    exit_code(printed.map(|()| true))
                };
            }
            output::tell(complaint(&error.render().to_string()));
            return ExitCode::from(2);
        }
    };
    exit_code(run(cli.task))
}

fn exit_code(result: Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            output::tell(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::builder::TypedValueParser;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_arguments_give_one_line() {
        for line in [
            &["xtask", "sim"][..],
            &["xtask", "fuzz"],
            &["xtask", "tset"],
        ] {
            let error = Cli::try_parse_from(line).expect_err("these arguments are wrong");
            let line = complaint(&error.render().to_string());
            assert!(line.starts_with("error: "), "{line}");
            assert!(!line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn a_benchmark_that_does_not_exist_is_refused_before_any_is_built() {
        let listed = include_str!("../../benches/src/catalogue.rs").matches("\n    Bench {\n");
        let names = benchmarks();
        let names = names.possible_values().expect("it has a list");
        assert_eq!(names.count(), listed.count());
        let only = |name| Cli::try_parse_from(["xtask", "bench", "--only", name]);
        assert!(only("udp_lat64").is_ok());
        let error = only("nope").expect_err("there is no such benchmark");
        assert!(complaint(&error.to_string()).contains("udp_lat64"));
    }

    #[test]
    fn sim_arguments_are_handed_on() {
        let cli = Cli::try_parse_from(["xtask", "sim", "--count", "5", "--start", "7"])
            .expect("these arguments are right");
        let Task::Sim(sim) = cli.task else {
            panic!("not the sim task")
        };
        assert_eq!(sim.arguments(), ["--count", "5", "--start", "7"]);
        let cli = Cli::try_parse_from(["xtask", "sim", "path", "--at", "2s:rtt=6ms", "--help"])
            .expect("what a path is the simulator judges");
        let Task::Sim(sim) = cli.task else {
            panic!("not the sim task")
        };
        assert_eq!(sim.arguments(), ["path", "--at", "2s:rtt=6ms", "--help"]);
        let cli = Cli::try_parse_from(["xtask", "sim", "suite", "--json", "out.json"])
            .expect("a file is named from where one stands");
        let Task::Sim(sim) = cli.task else {
            panic!("not the sim task")
        };
        assert!(std::path::Path::new(&sim.arguments()[2]).is_absolute());
    }

    #[test]
    fn a_file_is_named_from_where_one_stands_in_either_form() {
        for option in FILES {
            for words in [
                &[option.to_owned(), "out".to_owned()][..],
                &[format!("{option}=out")],
            ] {
                let line = ["xtask", "sim", "path"].map(str::to_owned);
                let cli = Cli::try_parse_from(line.iter().chain(words))
                    .expect("these arguments are right");
                let Task::Sim(sim) = cli.task else {
                    panic!("not the sim task")
                };
                let here = std::env::current_dir().expect("tests have a current folder");
                let file = here.join("out").display().to_string();
                let said = sim.arguments().split_off(1).join("=");
                assert_eq!(said, format!("{option}={file}"));
            }
        }
    }
}
