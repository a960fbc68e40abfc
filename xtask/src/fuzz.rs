//! Fuzzing: cargo-fuzz with a nightly compiler, and the replay of the corpora on stable.

use crate::cargo;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::fs;
use std::time::Duration;

/// Longest input libFuzzer makes: more than the largest packet a target can make sense of.
const MAX_INPUT_BYTES: u32 = 4096;
/// The package whose tests replay the corpora.
pub(crate) const REPLAY: &str = "trunkline-fuzz";

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Target, or `all` for one after the other.
    #[arg(value_name = "TARGET",
        required_unless_present_any = ["replay", "list", "words", "input"])]
    target: Option<String>,
    /// How long to fuzz each target.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
    /// Replays the corpora in fuzz/corpus through all targets, without a fuzzer.
    #[arg(long, conflicts_with = "target")]
    replay: bool,
    /// Prints the targets.
    #[arg(long, conflicts_with_all = ["target", "replay"])]
    list: bool,
    /// Says so many hostile words to rings, and bytes to a service's socket, in inputs made from a
    /// seed, without a fuzzer.
    #[arg(long, value_name = "N", conflicts_with_all = ["target", "replay", "list"],
        value_parser = clap::value_parser!(u64).range(1..))]
    words: Option<u64>,
    /// What these inputs are made from.
    #[arg(long, value_name = "N", default_value_t = 1,
        conflicts_with_all = ["target", "replay", "list"])]
    seed: u64,
    /// Says the input of this number alone.
    #[arg(long, value_name = "N", conflicts_with_all = ["target", "replay", "list", "words"])]
    input: Option<u64>,
}

/// Does what the options ask for.
///
/// # Errors
/// An unknown target, a missing tool, a crash found.
pub(crate) fn run(options: &Options) -> Result<String> {
    if options.list {
        return Ok(targets()?.join("\n"));
    }
    if options.replay {
        return replay(None);
    }
    let how = options.words.map(|words| ("--words", words));
    if let Some((how, number)) = how.or(options.input.map(|input| ("--input", input))) {
        return say(options.seed, how, number);
    }
    let name = options.target.as_deref().unwrap_or("all");
    fuzz(name, options.seconds)
}

/// Names of the targets: the files of fuzz/fuzz_targets.
///
/// # Errors
/// When the folder cannot be read.
pub(crate) fn targets() -> Result<Vec<String>> {
    let folder = cargo::root().join("fuzz").join("fuzz_targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && let Some(name) = path.file_stem().and_then(|name| name.to_str())
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Runs the corpora through the harness functions, as an ordinary test.
///
/// # Errors
/// When an input makes a target panic.
pub(crate) fn replay(limit: Option<Duration>) -> Result<String> {
    let arguments = ["test", "--quiet", "--workspace", "--test", "corpora"];
    cargo::run_tests(cargo::cargo(&arguments), limit)?;
    let root = cargo::root().join("fuzz").join("corpus");
    let mut inputs = 0;
    for folder in fs::read_dir(&root).with_context(|| root.display().to_string())? {
        inputs += fs::read_dir(folder?.path())?.count();
    }
    Ok(format!("{inputs} inputs in {} targets", targets()?.len()))
}

/// Runs hostile inputs made from a seed through what a program and its node share.
///
/// # Errors
/// A law is broken, or memory grows.
pub(crate) fn say(seed: u64, how: &str, number: u64) -> Result<String> {
    let mut command = cargo::release("trunkline-fuzz")?;
    command.args(["--seed", &seed.to_string(), how, &number.to_string()]);
    Ok(cargo::output(command)?.trim_end().to_owned())
}

/// Why cargo-fuzz cannot run here, if so.
pub(crate) fn missing() -> Option<&'static str> {
    if !cargo::works("cargo", &["+nightly", "--version"]) {
        return Some("no nightly compiler: `rustup toolchain install nightly`");
    }
    None
}

/// Fuzzes one target, or `all`, for `seconds` each. What is found new stays in the target folder;
/// crashing inputs in fuzz/artifacts.
///
/// # Errors
/// An unknown target, a missing tool, a crash.
pub(crate) fn fuzz(name: &str, seconds: u32) -> Result<String> {
    let known = targets()?;
    let chosen: Vec<_> = known
        .iter()
        .filter(|known| name == "all" || name == *known)
        .collect();
    if chosen.is_empty() {
        bail!(
            "no fuzz target is called `{name}`; there are {}",
            known.join(", ")
        );
    }
    if let Some(why) = missing() {
        bail!("{why}");
    }
    if !cargo::works("cargo", &["+nightly", "fuzz", "--version"]) {
        cargo::run(cargo::cargo(&["install", "--locked", "cargo-fuzz"]), None)?;
    }
    let grown = cargo::target_dir()?.join("fuzz-corpus");
    for target in &chosen {
        let found = grown.join(target);
        let seeds = cargo::root().join("fuzz").join("corpus").join(target);
        fs::create_dir_all(&found)?;
        let mut command = cargo::cargo(&["+nightly", "fuzz", "run", "--features", "libfuzzer"]);
        command.arg(target).arg(&found);
        if seeds.is_dir() {
            command.arg(&seeds);
        }
        command.args([
            "--".to_owned(),
            format!("-max_total_time={seconds}"),
            format!("-max_len={MAX_INPUT_BYTES}"),
            // Long inputs from the start: it takes a while of protocol to get anywhere.
            "-len_control=0".to_owned(),
        ]);
        cargo::run(command, None)?;
    }
    Ok(format!(
        "{} targets, {seconds} s each, no crash",
        chosen.len()
    ))
}
