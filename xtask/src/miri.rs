//! Modules that hold unsafe code, run by Miri: an interpreter that finds undefined behaviour.

use crate::cargo;
use anyhow::Result;
use std::time::{Duration, Instant};

/// Crates, and their modules as filters of their unit tests. What makes system calls Miri does not
/// know.
const MODULES: [(&str, &[&str]); 2] = [
    ("trunkline-dataplane", &["copy::", "memory::", "region::"]),
    ("trunkline-qpmap", &["rcu::"]),
];
/// Miri builds apart from everything else, below the target folder.
const FOLDER: &str = "miri";

pub(crate) enum Verdict {
    Passed(String),
    /// Miri is not installed; how it can be.
    Skipped(String),
}

/// Runs the tests of the modules; `limit` is for all of them together.
///
/// # Errors
/// A test fails, or does what the language does not define.
pub(crate) fn run(limit: Option<Duration>) -> Result<Verdict> {
    if !cargo::works("cargo", &["+nightly", "miri", "--version"]) {
        let how = "Miri is not installed (`rustup toolchain install nightly --component miri \
                   --component rust-src`)";
        return Ok(Verdict::Skipped(how.to_owned()));
    }
    let begun = Instant::now();
    for (package, modules) in MODULES {
        let mut command = cargo::cargo(&["+nightly", "miri", "test", "--quiet"]);
        command.args(["--package", package, "--lib", "--"]);
        command.args(modules);
        command.env("CARGO_TARGET_DIR", cargo::target_dir()?.join(FOLDER));
        // Some tests ask for the time.
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
        cargo::run_tests(
            command,
            limit.map(|all| all.saturating_sub(begun.elapsed())),
        )?;
    }
    let modules = MODULES.iter().flat_map(|(_, modules)| *modules);
    Ok(Verdict::Passed(
        modules.copied().collect::<Vec<_>>().join(", "),
    ))
}
