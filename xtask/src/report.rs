//! The table at the end of a run: what was checked, how long it took, what it was allowed to take.

use std::fmt::Write;
use std::time::Duration;

/// How a step ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// All well; a word on what was seen, possibly empty.
    Passed(String),
    /// Not run, and why.
    Skipped(String),
    /// What is wrong.
    Failed(String),
}

/// One line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) area: &'static str,
    pub(crate) budget: Duration,
    pub(crate) took: Duration,
    pub(crate) outcome: Outcome,
}

/// Steps that passed, failed, were skipped.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

/// Counts the outcomes.
pub(crate) fn count(entries: &[Entry]) -> Count {
    let mut count = Count::default();
    for entry in entries {
        match entry.outcome {
            Outcome::Passed(_) => count.passed += 1,
            Outcome::Failed(_) => count.failed += 1,
            Outcome::Skipped(_) => count.skipped += 1,
        }
    }
    count
}

/// The table, and the count in plain words as its last line.
pub(crate) fn table(entries: &[Entry]) -> String {
    let mut text = String::from("area          result   seconds  budget\n");
    for entry in entries {
        let (word, detail) = match &entry.outcome {
            Outcome::Passed(note) => ("passed", note),
            Outcome::Skipped(why) => ("skipped", why),
            Outcome::Failed(why) => ("FAILED", why),
        };
        let over = if entry.took > entry.budget {
            " over"
        } else {
            ""
        };
        let first = detail.lines().next().unwrap_or_default();
        let line = format!(
            "{:<13} {word:<8} {:>7.1} {:>7}{over}  {first}",
            entry.area,
            entry.took.as_secs_f64(),
            entry.budget.as_secs(),
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let total = entries
        .iter()
        .map(|entry| entry.took.as_secs_f64())
        .sum::<f64>();
    let budget = entries
        .iter()
        .map(|entry| entry.budget.as_secs())
        .sum::<u64>();
    let Count {
        passed,
        failed,
        skipped,
    } = count(entries);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{:<22} {total:>7.1} {budget:>7}", "all");
    let _ = write!(
        text,
        "xtask: {passed} passed, {failed} failed, {skipped} skipped"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(outcome: Outcome, took: u64) -> Entry {
        let (budget, took) = (Duration::from_secs(10), Duration::from_secs(took));
        Entry {
            area: "tests",
            budget,
            took,
            outcome,
        }
    }

    #[test]
    fn the_last_line_counts_every_step_once() {
        let entries = [
            entry(Outcome::Passed(String::new()), 1),
            entry(Outcome::Failed("broken\nin detail".to_owned()), 1),
            entry(Outcome::Skipped("no valgrind".to_owned()), 0),
        ];
        let text = table(&entries);
        assert!(
            text.ends_with("\nxtask: 1 passed, 1 failed, 1 skipped"),
            "{text}"
        );
        assert!(!text.contains("in detail"), "one line each: {text}");
    }

    #[test]
    fn a_step_over_its_budget_is_marked() {
        let slow = table(&[entry(Outcome::Passed(String::new()), 11)]);
        let quick = table(&[entry(Outcome::Passed(String::new()), 9)]);
        assert!(slow.contains(" over") && !quick.contains(" over"));
    }
}
