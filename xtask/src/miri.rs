//! Modules that hold unsafe code, run by Miri: an interpreter that finds undefined behaviour.

use crate::cargo;
use anyhow::Result;
use std::time::Duration;

/// Those of `trunkline-dataplane`, as filters of its unit tests. What makes system calls Miri does
/// not know.
const MODULES: [&str; 3] = ["copy::", "memory::", "region::"];
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
    let mut command = cargo::cargo(&["+nightly", "miri", "test", "--quiet"]);
    command.args(["--package", "trunkline-dataplane", "--lib", "--"]);
    command.args(MODULES);
    command.env("CARGO_TARGET_DIR", cargo::target_dir()?.join(FOLDER));
    // Some tests ask for the time.
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
    cargo::run(command, limit)?;
    Ok(Verdict::Passed(MODULES.join(", ")))
}
