//! Instruction counts of the hot pieces, which do not depend on how busy the machine is.
//!
//! Each piece runs twice under callgrind, with N and with 2 N repetitions: the difference is what N
//! repetitions cost, without start-up. The counts belong to one compiler, so the baseline names it;
//! with another one nothing is compared. Tables are compared with themselves: what an entry costs
//! with few of them, and with many. Sums over payload are left out on purpose: valgrind does
//! not know AVX-512, their benchmark is a ratio to memcpy.

use crate::{cargo, output};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

const BASELINE: &str = "benches/instructions.json";
/// The program that has the pieces.
const PROGRAM: &str = "hot-pieces";
const REPETITIONS: u32 = 1_000;
/// Entries of a table that are few, and many: what one costs must not differ by more. A walk over
/// the table makes it many times as much.
const FEW: u32 = 100;
const MANY: u32 = 10_000;
const SCALE_PERCENT: f64 = 10.0;
/// Growth that fails, and shrinkage worth a new baseline, in percent.
const TOLERANCE_PERCENT: f64 = 3.0;

#[derive(Args, Debug, Default)]
pub(crate) struct Options {
    /// Writes the counts of this run as the new baseline.
    #[arg(long)]
    update: bool,
}

/// What came out.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Within bounds, with the table.
    Compared(String),
    /// Could not be compared, and why.
    Skipped(String),
}

/// The committed counts, and those of a run.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Counts {
    /// First line of `rustc --version`, without the date.
    rustc: String,
    /// Instructions of one repetition, by piece.
    pieces: BTreeMap<String, f64>,
}

/// Counts, and compares or updates.
///
/// # Errors
/// A piece that grew beyond the tolerance, or that the baseline does not know.
pub(crate) fn run(options: &Options) -> Result<Verdict> {
    if !cargo::works("valgrind", &["--version"]) {
        let how = "valgrind is not installed (`apt-get install valgrind`)";
        return Ok(Verdict::Skipped(how.to_owned()));
    }
    let binary = build()?;
    let scales = check_scales(&binary)?;
    let rustc = compiler()?;
    let file = cargo::root().join(BASELINE);
    let baseline = if options.update {
        None
    } else {
        Some(read(&file)?)
    };
    if let Some(baseline) = &baseline
        && baseline.rustc != rustc
    {
        let why = format!("the baseline is of {}, this is {rustc}", baseline.rustc);
        return Ok(Verdict::Skipped(format!(
            "{why}; --update writes a new one"
        )));
    }
    let counts = Counts {
        rustc,
        pieces: measure(&binary)?,
    };
    let Some(baseline) = baseline else {
        fs::write(&file, serde_json::to_string_pretty(&counts)? + "\n")?;
        return Ok(Verdict::Compared(format!(
            "{BASELINE}: {} pieces",
            counts.pieces.len()
        )));
    };
    let (table, faults) = compare(&baseline.pieces, &counts.pieces);
    output::print(&table)?;
    if !faults.is_empty() {
        bail!("{}", faults.join("\n       "));
    }
    Ok(Verdict::Compared(format!(
        "{} pieces within {TOLERANCE_PERCENT} %, {scales} tables flat",
        counts.pieces.len()
    )))
}

/// Compares the time that an entry of each table takes, from few to a million of them.
///
/// # Errors
/// One takes much longer where there are many.
pub(crate) fn times() -> Result<String> {
    let binary = build()?;
    cargo::run(
        cargo::command(&binary.to_string_lossy(), &["--scales-time"]),
        None,
    )?;
    Ok(format!("{} tables", list(&binary, "--list-scales")?.len()))
}

fn read(file: &Path) -> Result<Counts> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("{BASELINE} (`cargo xtask instructions --update` writes it)"))?;
    serde_json::from_str(&text).context(BASELINE)
}

fn compiler() -> Result<String> {
    let line = cargo::output(cargo::command("rustc", &["--version"]))?;
    Ok(line
        .split(" (")
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned())
}

fn build() -> Result<PathBuf> {
    Ok(cargo::build_release(&[PROGRAM], None)?.join(PROGRAM))
}

fn list(binary: &Path, which: &str) -> Result<Vec<String>> {
    let list = cargo::output(cargo::command(&binary.to_string_lossy(), &[which]))?;
    Ok(list.lines().map(str::to_owned).collect())
}

/// What one repetition of a piece costs.
fn each(binary: &Path, piece: &str, repetitions: u32) -> Result<f64> {
    // A count does not depend on what runs beside it.
    let (once, twice) = thread::scope(|scope| {
        let once = scope.spawn(|| instructions(binary, piece, repetitions));
        let twice = instructions(binary, piece, 2 * repetitions);
        (once.join(), twice)
    });
    let once = once.map_err(|_| anyhow!("the thread that ran {piece} panicked"))??;
    Ok(twice?.saturating_sub(once) as f64 / f64::from(repetitions))
}

fn measure(binary: &Path) -> Result<BTreeMap<String, f64>> {
    let mut pieces = BTreeMap::new();
    for piece in list(binary, "--list")? {
        let each = each(binary, &piece, REPETITIONS)?;
        pieces.insert(piece, (each * 10.0).round() / 10.0);
    }
    Ok(pieces)
}

/// Compares what an entry of each table costs; gives how many tables there are.
///
/// # Errors
/// One costs more where there are many.
fn check_scales(binary: &Path) -> Result<usize> {
    let tables = list(binary, "--list-scales")?;
    let mut faults = Vec::new();
    output::print(format_args!(
        "an entry of                 {FEW:>8} {MANY:>9}  change"
    ))?;
    for table in &tables {
        let (few, many) = (each(binary, table, FEW)?, each(binary, table, MANY)?);
        let percent = (many - few) / few.max(1.0) * 100.0;
        output::print(format_args!(
            "{table:<26} {few:>9.1} {many:>9.1} {percent:>+6.1}%"
        ))?;
        if percent > SCALE_PERCENT {
            faults.push(format!(
                "an entry of {table} takes {percent:+.1} % instructions with {MANY} of them; at \
                 most +{SCALE_PERCENT} %"
            ));
        }
    }
    if !faults.is_empty() {
        bail!("{}", faults.join("\n       "));
    }
    Ok(tables.len())
}

fn instructions(binary: &Path, piece: &str, repetitions: u32) -> Result<u64> {
    let mut command = cargo::command("valgrind", &["--tool=callgrind"]);
    command
        .arg("--callgrind-out-file=/dev/null")
        .arg(binary)
        .arg(piece);
    let output = command
        .arg(repetitions.to_string())
        .output()
        .context("valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!(
            "hot-pieces {piece} under valgrind: {}\n{said}",
            output.status
        );
    }
    collected(&said).with_context(|| format!("valgrind told no count:\n{said}"))
}

/// The number in callgrind's `Collected : N` line.
fn collected(said: &str) -> Option<u64> {
    said.lines()
        .find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

/// The table, and what is wrong.
fn compare(before: &BTreeMap<String, f64>, now: &BTreeMap<String, f64>) -> (String, Vec<String>) {
    let mut table = String::from("piece                       baseline       now  change");
    let mut faults = Vec::new();
    for (piece, count) in now {
        let Some(old) = before.get(piece) else {
            faults.push(format!("{piece} is not in {BASELINE}; --update adds it"));
            continue;
        };
        let percent = (count - old) / old.max(1.0) * 100.0;
        // Writing to a string cannot fail.
        let _ = write!(
            table,
            "\n{piece:<26} {old:>9.1} {count:>9.1} {percent:>+6.1}%"
        );
        if percent > TOLERANCE_PERCENT {
            let by = format!("{count:.1} instructions, {percent:+.1} %");
            faults.push(format!(
                "{piece} takes {by}; at most +{TOLERANCE_PERCENT} %"
            ));
        } else if percent < -TOLERANCE_PERCENT {
            table.push_str("  better: make it the baseline with --update");
        }
    }
    for piece in before.keys().filter(|piece| !now.contains_key(*piece)) {
        faults.push(format!(
            "{piece} of {BASELINE} is gone; --update removes it"
        ));
    }
    (table, faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(count: f64) -> BTreeMap<String, f64> {
        BTreeMap::from([("parse".to_owned(), count)])
    }

    #[test]
    fn growth_beyond_three_percent_fails() {
        assert_eq!(compare(&counts(100.0), &counts(103.0)).1, [""; 0]);
        assert_eq!(compare(&counts(100.0), &counts(103.2)).1.len(), 1);
    }

    #[test]
    fn shrinkage_beyond_three_percent_is_told() {
        let (table, faults) = compare(&counts(100.0), &counts(96.0));
        assert!(faults.is_empty() && table.contains("--update"), "{table}");
        assert!(
            !compare(&counts(100.0), &counts(98.0))
                .0
                .contains("--update")
        );
    }

    #[test]
    fn a_piece_on_one_side_only_fails() {
        assert_eq!(compare(&BTreeMap::new(), &counts(1.0)).1.len(), 1);
        assert_eq!(compare(&counts(1.0), &BTreeMap::new()).1.len(), 1);
    }

    #[test]
    fn the_count_is_read_out_of_what_callgrind_says() {
        let said = "==7== Events    : Ir\n==7== Collected : 123456\n==7==\n";
        assert_eq!(collected(said), Some(123_456));
        assert_eq!(collected("==7== nothing"), None);
    }
}
