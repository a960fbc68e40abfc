//! Running cargo and other programs from the root of the repository.

use crate::failures::{Failures, Writer};
use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Root of the repository.
pub(crate) fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest
        .parent()
        .map_or(manifest.clone(), Path::to_path_buf)
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> Result<PathBuf> {
    Ok(metadata()?.target_directory)
}

/// A command that runs in the root of the repository.
pub(crate) fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    command
}

/// `cargo ARGUMENTS`. Not the `CARGO` of the environment: that one knows no `+toolchain`.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    command("cargo", arguments)
}

/// Whether `program ARGUMENTS` can be run at all and succeeds; its output is dropped.
pub(crate) fn works(program: &str, arguments: &[&str]) -> bool {
    command(program, arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Runs `command` with the terminal's output.
///
/// # Errors
/// When it cannot be started, fails, or (where nobody is there to press Ctrl-C) takes longer than
/// `limit`.
pub(crate) fn run(command: Command, limit: Option<Duration>) -> Result<()> {
    let shown = shown(&command);
    ended(&mut started(command, limit)?, limit, &shown)
}

/// Runs tests as [`run`] runs a command; where nobody is there to look back, the error repeats what
/// those that failed have said.
///
/// # Errors
/// As [`run`] says.
pub(crate) fn run_tests(mut command: Command, limit: Option<Duration>) -> Result<()> {
    if !unattended() {
        return run(command, limit);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let shown = shown(&command);
    let mut child = started(command, limit)?;
    let failures = Failures::new();
    if let Some(stdout) = child.stdout.take() {
        failures.watch(Writer::Harness, stdout, std::io::stdout());
    }
    if let Some(stderr) = child.stderr.take() {
        failures.watch(Writer::Cargo, stderr, std::io::stderr());
    }
    let ended = ended(&mut child, limit, &shown);
    let told = failures.told();
    ended.map_err(|error| anyhow!("{error}\n{told}"))
}

/// Whether nobody is there to press Ctrl-C, or to look back at what was printed.
fn unattended() -> bool {
    !std::io::stdin().is_terminal()
}

fn started(mut command: Command, limit: Option<Duration>) -> Result<Child> {
    let shown = shown(&command);
    crate::output::tell(format_args!("$ {shown}"));
    if unattended() && limit.is_some() {
        // A group of its own, so that the tests a killed cargo leaves behind die with it.
        command.process_group(0).stdin(Stdio::null());
    }
    command
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))
}

fn ended(child: &mut Child, limit: Option<Duration>, shown: &str) -> Result<()> {
    let status = match limit {
        Some(limit) if unattended() => wait(child, limit, shown)?,
        _ => child.wait()?,
    };
    if !status.success() {
        bail!("`{shown}` failed: {status}");
    }
    Ok(())
}

/// Runs `command` and gives its standard output.
///
/// # Errors
/// When it cannot be started or fails; the end of what it said is in the error.
pub(crate) fn output(mut command: Command) -> Result<String> {
    let shown = shown(&command);
    let output = command
        .output()
        .with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.trim_end().lines().rev().take(30).collect::<Vec<_>>();
        let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
        bail!("`{shown}` failed: {}\n{last}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn wait(child: &mut Child, limit: Duration, shown: &str) -> Result<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > limit {
            let group = format!("-{}", child.id());
            works("kill", &["-KILL", "--", &group]);
            child.wait()?;
            bail!("`{shown}` was stopped after {} s", limit.as_secs());
        }
        sleep(Duration::from_millis(50));
    }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Programs that every run of the tests takes with optimization.
pub(crate) const RELEASED: [&str; 4] = [
    "trunkline",
    "trunkline-sim",
    "trunkline-interop",
    "hot-pieces",
];

/// Whom cargo chooses with these words has these programs, and the library for verbs programs.
///
/// The features of a dependency are those that all who are chosen ask for. Chosen by its package
/// alone, each would have dependencies of its own; chosen from the whole workspace, all would wait
/// for what benchmarks ask for.
pub(crate) const CHOOSE_RELEASED: [&str; 10] = [
    "--package",
    "trunkline-cli",
    "--package",
    "trunkline-sim",
    "--package",
    "trunkline-interop",
    "--package",
    "trunkline-pieces",
    "--package",
    "trunkline-verbs",
];

/// Builds programs of the workspace with optimization; gives the folder that they are in.
///
/// # Errors
/// One of them cannot be built.
pub(crate) fn build_release(programs: &[&str], limit: Option<Duration>) -> Result<PathBuf> {
    let mut command = cargo(&["build", "--quiet", "--release"]);
    match programs.iter().all(|program| RELEASED.contains(program)) {
        true => command.args(CHOOSE_RELEASED),
        false => command.arg("--workspace"),
    };
    for program in programs {
        command.args(["--bin", program]);
    }
    run(command, limit)?;
    Ok(target_dir()?.join("release"))
}

/// A program of the workspace, built with optimization.
///
/// # Errors
/// It cannot be built.
pub(crate) fn release(program: &str) -> Result<Command> {
    let folder = build_release(&[program], None)?;
    Ok(command(&folder.join(program).to_string_lossy(), &[]))
}

/// What `cargo metadata` says of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    /// Members of the workspace.
    pub(crate) packages: Vec<Package>,
    /// Where cargo puts what it builds.
    pub(crate) target_directory: PathBuf,
}

/// One member.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    #[serde(default)]
    pub(crate) dependencies: Vec<Dependency>,
    #[serde(default)]
    pub(crate) targets: Vec<Target>,
}

/// One line of a `dependencies` table.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `None` for ordinary ones, else `dev` or `build`.
    pub(crate) kind: Option<String>,
}

/// Something a package builds.
#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
}

/// The workspace's members, their dependencies and targets.
pub(crate) fn metadata() -> Result<Metadata> {
    let text = output(cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    serde_json::from_str(&text).context("cargo metadata is not what was expected")
}
