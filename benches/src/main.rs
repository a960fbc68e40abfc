//! `trunkline-benches`: runs the benchmarks, prints a table, writes JSON.

use anyhow::{Context, Result};
use clap::Parser;
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use trunkline_benches::catalogue::{self, ALL, Bench};
use trunkline_benches::machine::Machine;
use trunkline_benches::parts::Part;
use trunkline_benches::{Measurement, Setting};

/// Benchmarks of Trunkline, each with a yardstick that is measured in the same run.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
struct Cli {
    /// Writes the results to this file, as a JSON array.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes the results to this file too, with what the machine is like.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Runs only this benchmark; may be given several times.
    #[arg(long, value_name = "NAME", value_parser = bench)]
    only: Vec<&'static Bench>,
    /// Lists the benchmarks.
    #[arg(long)]
    list: bool,
    /// Length of a round in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    duration: Duration,
    /// Rounds of each figure and its yardstick, by turns; the medians count.
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Clients that served_kills kills.
    #[arg(long, value_name = "N", default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cycles: u32,
    /// Ends with an error where a benchmark misses what is wanted of it.
    #[arg(long)]
    judge: bool,
    /// Also what takes minutes and GBs: 1,000,000 QPs at each of two nodes.
    #[arg(long)]
    full: bool,
    /// Prints what the nodes of udp_write1m and udp_lat64 counted, on standard error.
    #[arg(long)]
    counters: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

fn bench(name: &str) -> Result<&'static Bench, String> {
    catalogue::find(name).ok_or_else(|| "no such benchmark; --list shows them".into())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "not a number")?;
    if !(0.001..=60.0).contains(&seconds) {
        return Err("not within 0.001 to 60 seconds".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.part {
        Some(part) => part.run().map(|()| true),
        None if cli.list => {
            ALL.iter()
                .for_each(|bench| println!("{:<20} {}", bench.name, bench.what));
            Ok(true)
        }
        None => run(&cli),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs what was asked for; gives whether all of it could, and met what is wanted where that is
/// judged.
fn run(cli: &Cli) -> Result<bool> {
    // A file that cannot be written should not be found out after minutes.
    let file = cli.json.as_deref().map(create).transpose()?;
    let record = cli.record.as_deref().map(create).transpose()?;
    let setting = Setting {
        duration: cli.duration,
        rounds: cli.rounds.into(),
        cycles: cli.cycles as usize,
        full: cli.full,
        counters: cli.counters,
        program: std::env::current_exe().context("where is this program?")?,
    };
    let wanted =
        |bench: &Bench| cli.only.is_empty() || cli.only.iter().any(|only| only.name == bench.name);
    let wanted: Vec<_> = ALL.iter().filter(|bench| wanted(bench)).collect();
    let (mut found, mut left_out) = (Vec::new(), false);
    let before = look_at_machine();
    for (at, bench) in wanted.iter().enumerate() {
        eprintln!(
            "[{}/{}] {}: {}",
            at + 1,
            wanted.len(),
            bench.name,
            bench.what
        );
        let started = Instant::now();
        match (bench.run)(&setting) {
            Ok(measurement) => found.push(measurement),
            Err(error) => {
                left_out = true;
                eprintln!("{} is left out: {error:#}", bench.name);
            }
        }
        eprintln!("        {:.1} s", started.elapsed().as_secs_f64());
    }
    let after = look_at_machine();
    print_table(&found);
    if let Some(file) = file {
        serde_json::to_writer_pretty(file, &found).context("cannot write the results")?;
    }
    if let Some(mut file) = record {
        let record = Record {
            machines: [&before, &after],
            results: &found,
            notes: notes(&found),
        };
        serde_json::to_writer_pretty(&file, &record)
            .map_err(Into::into)
            .and_then(|()| writeln!(file))
            .context("cannot write the record")?;
    }
    let met = found
        .iter()
        .all(|measurement| measurement.missed.is_empty());
    Ok(!left_out && (met || !cli.judge))
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

fn notes(found: &[Measurement]) -> Vec<&str> {
    let notes = found.iter().flat_map(|measurement| &measurement.notes);
    notes.map(String::as_str).collect()
}

/// What a file of `--record` holds.
#[derive(Serialize)]
struct Record<'a> {
    /// Before and after, since machines change.
    machines: [&'a Machine; 2],
    results: &'a [Measurement],
    notes: Vec<&'a str>,
}

/// On what it runs, told on standard error.
fn look_at_machine() -> Machine {
    let machine = Machine::look();
    let Machine {
        cpu,
        cpus,
        kernel,
        load,
        line_ns,
    } = &machine;
    eprintln!(
        "on {cpus} CPUs ({cpu}), Linux {kernel}, load {load}, {line_ns:.0} ns from CPU to CPU"
    );
    if *load > *cpus as f64 {
        eprintln!("other programs are busy here: figures will be too low");
    }
    machine
}

fn print_table(found: &[Measurement]) {
    println!(
        "{:<20} {:>14} {:>14} {:>7}",
        "benchmark", "value", "yardstick", "ratio"
    );
    for m in found {
        println!(
            "{:<20} {:>14.0} {:>14.0} {:>7.3}",
            m.name, m.value, m.yardstick_value, m.ratio
        );
        println!("    in {}", m.unit);
        println!("    against {}", m.yardstick);
        m.notes.iter().for_each(|note| println!("    {note}"));
        m.missed
            .iter()
            .for_each(|what| println!("    MISSED: {what}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn unknown_benchmarks_and_odd_durations_are_refused() {
        for line in [
            ["--only", "nothing"],
            ["--duration", "0"],
            ["--duration", "NaN"],
        ] {
            assert!(
                Cli::try_parse_from(["benches"].into_iter().chain(line)).is_err(),
                "{line:?}"
            );
        }
    }

    #[test]
    fn several_benchmarks_may_be_chosen() {
        let line = ["benches", "--only", "udp_lat64", "--only", "engine_send64"];
        let cli = Cli::try_parse_from(line).expect("these arguments are right");
        assert_eq!(cli.only.len(), 2);
    }
}
