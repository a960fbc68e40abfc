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

/// When a run began, and what ran on what machine. A run takes so long that commits may come while
/// it lasts: they are none of what it tried.
#[derive(Debug)]
pub(crate) struct Origin {
    date: String,
    commit: String,
    is_changed: bool,
    cpus: usize,
    kernel: String,
}

impl Origin {
    /// That of a run that begins.
    ///
    /// # Errors
    /// A program that tells of it is not there, or fails.
    pub(crate) fn now() -> Result<Self> {
        let told = |program: &str, words: &[&str]| {
            let told = cargo::output(cargo::command(program, words))?;
            anyhow::Ok(told.trim().to_owned())
        };
        let changes = told("git", &["status", "--porcelain", "--untracked-files=no"])?;
        Ok(Self {
            date: told("date", &["-u", "+%Y-%m-%d"])?,
            commit: told("git", &["rev-parse", "--short=12", "HEAD"])?,
            is_changed: !changes.is_empty(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: told("uname", &["-r"])?,
        })
    }

    /// The title of a record, and whence it is.
    pub(crate) fn heading(&self, title: &str, command: &str) -> String {
        let changed = match self.is_changed {
            true => ", with changes that are not committed",
            false => "",
        };
        format!(
            "# {title}\n\n`{command}` on {}, commit {}{changed}, on {} CPUs, Linux {}. The guest \
             is emulated: one CPU, Debian's kernel with rdma_rxe.\n\n",
            self.date, self.commit, self.cpus, self.kernel
        )
    }
}

/// Writes the record of a list; `packets` of ours were looked at, or why not all is well.
///
/// # Errors
/// The outcomes cannot be read, or the file not written.
pub(super) fn write(
    file: &Path,
    origin: &Origin,
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
    let mut text = origin.heading(title, command);
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
    fn a_record_says_what_was_there_when_the_run_began() {
        let mut origin = Origin {
            date: "2026-11-28".to_owned(),
            commit: "7fd2b66".to_owned(),
            is_changed: false,
            cpus: 2,
            kernel: "6.18.44".to_owned(),
        };
        let text = origin.heading("Rows", "cargo xtask rows");
        let said = "# Rows\n\n`cargo xtask rows` on 2026-11-28, commit 7fd2b66, on 2 CPUs, Linux \
                    6.18.44. The guest is emulated";
        assert!(text.starts_with(said), "{text}");
        origin.is_changed = true;
        let text = origin.heading("Rows", "cargo xtask rows");
        let said = "commit 7fd2b66, with changes that are not committed, on 2 CPUs";
        assert!(text.contains(said), "{text}");
    }

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
