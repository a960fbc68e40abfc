//! What came of the rows, as a table for the repository and as JSON.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// How a row ended.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Passed,
    /// The program says that it cannot have what it asks for, as it should.
    NotOffered,
    /// The program is not on this machine.
    NotInstalled,
    Failed,
}

impl Verdict {
    const fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::NotOffered => "not offered",
            Self::NotInstalled => "not installed",
            Self::Failed => "**failed**",
        }
    }
}

/// A row that was run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Outcome {
    /// Between whom.
    pub(super) setting: &'static str,
    /// Program and options.
    pub(super) row: String,
    pub(super) verdict: Verdict,
    pub(super) seconds: f64,
    /// Why it failed: what both ends said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) why: String,
}

/// How many rows ended in which way, in words.
pub(super) fn count(outcomes: &[Outcome]) -> String {
    let mut text = format!("{} rows", outcomes.len());
    for verdict in [
        Verdict::Passed,
        Verdict::NotOffered,
        Verdict::NotInstalled,
        Verdict::Failed,
    ] {
        let count = outcomes.iter().filter(|row| row.verdict == verdict).count();
        if count > 0 {
            let _ = write!(text, ", {count} {}", verdict.word().replace('*', ""));
        }
    }
    text
}

/// Whether the record can be written: told before hours of rows, and not after.
///
/// # Errors
/// It cannot: no such folder, say, or a name that is that of the JSON beside it.
pub(super) fn can_write(file: &Path) -> Result<()> {
    ensure!(
        file.extension().is_some_and(|ext| ext == "md"),
        "{}: no FILE.md",
        file.display()
    );
    for file in [file, &file.with_extension("json")] {
        let mut open = std::fs::OpenOptions::new();
        let opened = open.append(true).create(true).open(file);
        opened.with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// Writes the record: `heading` and a table at `file`, and JSON beside it.
///
/// # Errors
/// A file cannot be written.
pub(super) fn write(
    file: &Path,
    heading: String,
    outcomes: &[Outcome],
    sharing: &str,
    whole: bool,
) -> Result<()> {
    let json = file.with_extension("json");
    let rows = serde_json::to_string_pretty(outcomes)?;
    std::fs::write(&json, rows + "\n").with_context(|| json.display().to_string())?;
    let mut text = heading;
    let until = if whole { "" } else { "Interrupted after " };
    let _ = writeln!(text, "{until}{}.\n", count(outcomes));
    if !sharing.is_empty() {
        let _ = writeln!(text, "{sharing}\n");
    }
    text.push_str(&table(outcomes));
    std::fs::write(file, text).with_context(|| file.display().to_string())
}

/// A line for each program with its options, a column for each setting.
fn table(outcomes: &[Outcome]) -> String {
    let mut settings: Vec<&str> = Vec::new();
    let mut order: Vec<&str> = Vec::new();
    let mut cells = BTreeMap::new();
    for outcome in outcomes {
        if !settings.contains(&outcome.setting) {
            settings.push(outcome.setting);
        }
        if !order.contains(&outcome.row.as_str()) {
            order.push(&outcome.row);
        }
        cells.insert(
            (outcome.row.as_str(), outcome.setting),
            outcome.verdict.word(),
        );
    }
    let mut text = format!("| program and options | {} |\n", settings.join(" | "));
    let _ = writeln!(text, "| --- |{}", " --- |".repeat(settings.len()));
    for row in order {
        let _ = write!(text, "| `{row}` |");
        for setting in &settings {
            let cell = cells.get(&(row, *setting)).copied().unwrap_or_default();
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(setting: &'static str, row: &str, verdict: Verdict) -> Outcome {
        Outcome {
            setting,
            row: row.to_owned(),
            verdict,
            seconds: 1.0,
            why: String::new(),
        }
    }

    #[test]
    fn a_row_has_a_cell_for_each_setting() {
        let outcomes = [
            outcome("services", "a -e", Verdict::Passed),
            outcome("services", "b", Verdict::NotOffered),
            outcome("guest", "a -e", Verdict::Failed),
        ];
        let text = table(&outcomes);
        assert!(text.contains("| program and options | services | guest |"));
        assert!(text.contains("| `a -e` | passed | **failed** |"), "{text}");
        assert!(text.contains("| `b` | not offered |  |"), "{text}");
        assert_eq!(
            count(&outcomes),
            "3 rows, 1 passed, 1 not offered, 1 failed"
        );
    }
}
