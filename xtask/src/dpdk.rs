//! What needs DPDK: a workspace of its own, so that the others need no library of the system.

use crate::cargo;
use crate::interop;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The workspace.
const MANIFEST: &str = "dpdk/Cargo.toml";
/// The folder below the target directory that it is built in: it has a program called `trunkline`,
/// too.
const FOLDER: &str = "dpdk";
/// The version of DPDK that it takes at least.
const LEAST: &str = "libdpdk >= 22.11";

/// How it went, where nothing failed.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// All tests passed.
    Passed(String),
    /// This machine cannot run them.
    Skipped(String),
}

/// Lints, builds and tests the workspace, with the tests that take privileges where there are any.
///
/// # Errors
/// Something failed.
pub(crate) fn run(limit: Option<Duration>) -> Result<Verdict> {
    if !is_installed() {
        let how = format!("there is no {LEAST} (`apt-get install libdpdk-dev`)");
        return Ok(Verdict::Skipped(how));
    }
    cargo::run(cargo(&["fmt", "--all", "--check"])?, limit)?;
    let lints = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    cargo::run(cargo(&lints)?, limit)?;
    cargo::run_tests(cargo(&["test", "--workspace", "--no-fail-fast"])?, limit)?;
    if !interop::has_namespaces() {
        let why = "but for ports on interfaces, which need root and iproute2";
        return Ok(Verdict::Passed(why.to_owned()));
    }
    let privileged = ["test", "--workspace", "--tests", "--no-fail-fast"];
    let mut command = cargo(&privileged)?;
    command.args(["--", "--ignored", "--test-threads", "1"]);
    cargo::run_tests(command, limit)?;
    Ok(Verdict::Passed(String::new()))
}

/// Whether DPDK is there, with what programs are built with.
pub(crate) fn is_installed() -> bool {
    cargo::works("pkg-config", &["--exists", LEAST])
}

/// A program of the workspace, built without optimization.
///
/// # Errors
/// It cannot be built.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    cargo::run(cargo(&["build", "--quiet", "--bin", name])?, None)?;
    Ok(folder()?.join("debug").join(name))
}

fn folder() -> Result<PathBuf> {
    Ok(cargo::target_dir()?.join(FOLDER))
}

/// `cargo ARGUMENTS` in the workspace.
fn cargo(arguments: &[&str]) -> Result<Command> {
    let (first, rest) = arguments.split_first().context("a command of cargo")?;
    let mut command = cargo::cargo(&[first, "--manifest-path", MANIFEST]);
    command.args(rest).env("CARGO_TARGET_DIR", folder()?);
    Ok(command)
}
