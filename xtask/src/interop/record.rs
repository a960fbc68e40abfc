//! What came of a run, in words for the repository.

use crate::cargo;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// How a case ended, as the suite writes it.
#[derive(Debug, Deserialize)]
struct Outcome {
    name: String,
    seconds: f64,
    error: Option<String>,
}

/// The title of a record: when, of what, on what machine.
pub(crate) fn heading(title: &str, command: &str) -> Result<String> {
    let date = cargo::output(cargo::command("date", &["-u", "+%Y-%m-%d"]))?;
    let commit = cargo::output(cargo::command("git", &["rev-parse", "--short=12", "HEAD"]))?;
    let changed = cargo::command("git", &["status", "--porcelain", "--untracked-files=no"]);
    let changed = if cargo::output(changed)?.trim().is_empty() {
        ""
    } else {
        ", with changes that are not committed"
    };
    let kernel = cargo::output(cargo::command("uname", &["-r"]))?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(format!(
        "# {title}\n\n`{command}` on {}, commit {}{changed}, on {cpus} CPUs, Linux {}. The guest \
         is emulated: one CPU, Debian's kernel with rdma_rxe.\n\n",
        date.trim(),
        commit.trim(),
        kernel.trim()
    ))
}

/// Writes the record of a list; `packets` of ours were looked at, or why not all is well.
///
/// # Errors
/// The outcomes cannot be read, or the file not written.
pub(super) fn write(
    file: &Path,
    full: bool,
    json: &Path,
    took: Duration,
    packets: Result<&usize, String>,
) -> Result<()> {
    let outcomes = std::fs::read_to_string(json).context("no outcomes")?;
    let outcomes: Vec<Outcome> = serde_json::from_str(&outcomes)?;
    let (title, command) = if full {
        (
            "The whole matrix against soft-RoCE",
            "cargo xtask interop --full",
        )
    } else {
        ("The list against soft-RoCE", "cargo xtask interop")
    };
    let mut text = heading(title, command)?;
    let failed = outcomes.iter().filter(|case| case.error.is_some()).count();
    let _ = write!(
        text,
        "{} cases, {failed} failed, in {} minutes. ",
        outcomes.len(),
        took.as_secs().div_ceil(60)
    );
    let _ = match packets {
        Ok(packets) => writeln!(
            text,
            "{packets} packets of ours: none malformed to tshark, each ICRC right.\n"
        ),
        Err(why) => writeln!(text, "Packets: {why}\n"),
    };
    text.push_str(&table(&outcomes));
    for case in &outcomes {
        if let Some(error) = &case.error {
            let _ = writeln!(text, "\n- `{}`: {}", case.name, error.replace('\n', " "));
        }
    }
    std::fs::write(file, text).with_context(|| file.display().to_string())
}

/// Cases of one kind in a line.
fn table(outcomes: &[Outcome]) -> String {
    let mut groups: BTreeMap<String, (usize, usize, f64)> = BTreeMap::new();
    for case in outcomes {
        let (count, failed, seconds) = groups.entry(group(&case.name)).or_default();
        *count += 1;
        *failed += usize::from(case.error.is_some());
        *seconds += case.seconds;
    }
    let mut text =
        String::from("| cases | run | failed | seconds |\n| --- | ---: | ---: | ---: |\n");
    for (name, (count, failed, seconds)) in groups {
        let _ = writeln!(text, "| {name} | {count} | {failed} | {seconds:.0} |");
    }
    text
}

/// A name without what says how long packets are and who asks.
fn group(name: &str) -> String {
    let words = name.split('/');
    let kept = words.filter(|word| !word.starts_with("mtu") && !word.contains("guest"));
    kept.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_of_one_kind_share_a_line() {
        let case = |name: &str, error: Option<&str>| Outcome {
            name: name.to_owned(),
            seconds: 1.0,
            error: error.map(str::to_owned),
        };
        let text = table(&[
            case("rc/send/mtu1024/to-guest", None),
            case("rc/send/mtu4096/from-guest", Some("no")),
            case("ipv6/rc/send/loss/mtu4096/from-guest", None),
        ]);
        assert!(text.contains("| rc/send | 2 | 1 | 2 |"), "{text}");
        assert!(text.contains("| ipv6/rc/send/loss | 1 | 0 | 1 |"), "{text}");
    }
}
