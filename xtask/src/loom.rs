//! The lock-free modules, run by loom: it goes through the orders in which threads may meet.

use crate::cargo;
use anyhow::Result;
use std::time::Duration;

/// Loom's build is apart from everything else, below the target folder: all atomics are others.
const FOLDER: &str = "loom";

/// Runs the models; `limit` is for all of them together.
///
/// # Errors
/// A law does not hold in some order.
pub(crate) fn run(limit: Option<Duration>) -> Result<()> {
    let mut command = cargo::cargo(&["test", "--release", "--package", "trunkline-qpmap"]);
    command.args(["--test", "loom"]);
    command.env("CARGO_TARGET_DIR", cargo::target_dir()?.join(FOLDER));
    command.env("RUSTFLAGS", "--cfg loom");
    // The models take seconds: what counts is how long the build takes.
    for (key, value) in [("LTO", "off"), ("CODEGEN_UNITS", "16"), ("OPT_LEVEL", "1")] {
        command.env(format!("CARGO_PROFILE_RELEASE_{key}"), value);
    }
    cargo::run_tests(command, limit)
}
