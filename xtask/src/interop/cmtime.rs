//! How fast connections are opened in the guest: by the kernel, as `cmtime` of rdma-core measures
//! it, and by two Trunkline nodes. All ends of both are programs of that one emulated CPU, so that
//! their ratio means something though their figures do not.

use super::Verdict;
use super::guest::{ADDRESSES, Guest};
use super::record::Origin;
use crate::cargo;
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Connections opened at once.
const CONNECTIONS: u32 = 300;
/// Each is measured so often, by turns.
const ROUNDS: usize = 5;
const LIMIT: Duration = Duration::from_secs(60);
/// What the ratio should be.
const GOAL: f64 = 12.0;
/// Steps up to the last connection that stands.
const STEPS: [&str; 5] = [
    "create id",
    "resolve addr",
    "resolve route",
    "create qp",
    "connect",
];

/// Milliseconds of each step, for all connections together.
type Times = [f64; STEPS.len()];

/// Measures, and tells.
///
/// # Errors
/// A program failed, or the guest did.
pub(super) fn run(script: PathBuf, stop: &AtomicBool, record: Option<&Path>) -> Result<Verdict> {
    let origin = Origin::now()?;
    cargo::build_release(&["trunkline-benches"], None)?;
    let program = cargo::target_dir()?.join("release/trunkline-benches");
    let guest = Guest::boot(script, &[program], None)?;
    let (mut kernel, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        kernel.push(of_kernel(&guest)?);
        ours.push(of_trunkline(&guest)?);
    }
    drop(guest);
    let text = describe(&kernel, &ours);
    print!("{text}");
    if let Some(file) = record {
        let title = "Opening connections: the Linux kernel and Trunkline on one emulated CPU";
        let command = "cargo xtask interop --cmtime";
        std::fs::write(file, format!("{}{text}", origin.heading(title, command)))?;
    }
    Ok(Verdict::Passed(String::new()))
}

fn of_kernel(guest: &Guest) -> Result<Times> {
    let address = ADDRESSES[0].1;
    let line = format!(
        "cmtime -b {address} -c {CONNECTIONS} >/dev/null 2>&1 & sleep 1; \
         cmtime -s {address} -c {CONNECTIONS}; killall cmtime; wait"
    );
    let text = guest.shell(&line, LIMIT)?;
    parse_cmtime(&text).with_context(|| format!("cmtime: {text}"))
}

fn of_trunkline(guest: &Guest) -> Result<Times> {
    // The kernel's soft-RoCE holds the port in the first namespace.
    let line = format!(
        "unshare -n sh -c 'ip link set lo up && \
         trunkline-benches connect --connections {CONNECTIONS}'"
    );
    let text = guest.shell(&line, LIMIT)?;
    parse_ours(&text).with_context(|| format!("trunkline-benches: {text}"))
}

/// The column of sums in the table of cmtime.
fn parse_cmtime(text: &str) -> Option<Times> {
    let mut times = Times::default();
    for (time, step) in times.iter_mut().zip(STEPS) {
        let numbers = text.lines().find_map(|line| {
            let rest = line.strip_prefix(step)?;
            rest.trim_start().strip_prefix(':')
        })?;
        *time = numbers.split_whitespace().next()?.parse().ok()?;
    }
    Some(times)
}

fn parse_ours(text: &str) -> Option<Times> {
    let line = text.lines().find(|line| line.starts_with('{'))?;
    let found: serde_json::Value = serde_json::from_str(line).ok()?;
    let mut times = Times::default();
    for (time, step) in times.iter_mut().zip(STEPS) {
        *time = 1e3 * found.get(step.replace(' ', "_"))?.as_f64()?;
    }
    Some(times)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn least(values: Vec<f64>) -> f64 {
    values.into_iter().fold(f64::INFINITY, f64::min)
}

/// A table of medians, and what the ratios are.
fn describe(kernel: &[Times], ours: &[Times]) -> String {
    let rate = |milliseconds: f64| f64::from(CONNECTIONS) * 1e3 / milliseconds;
    let step = |times: &[Times], at: usize| median(times.iter().map(|t| t[at]).collect());
    let sum = |times: &[Times]| median(times.iter().map(|t| t.iter().sum()).collect());
    let mut text = format!(
        "{CONNECTIONS} connections at once, both ends in the guest; medians of {} runs each, by \
         turns.\n\n| step, ms | kernel | Trunkline |\n| --- | ---: | ---: |\n",
        kernel.len()
    );
    for (at, name) in STEPS.iter().enumerate() {
        let (theirs, own) = (step(kernel, at), step(ours, at));
        let _ = writeln!(text, "| {name} | {theirs:.1} | {own:.1} |");
    }
    let (theirs, own) = (sum(kernel), sum(ours));
    let _ = writeln!(text, "| all of these | {theirs:.1} | {own:.1} |\n");
    let last = STEPS.len() - 1;
    for (what, pick) in [
        ("medians", median as fn(Vec<f64>) -> f64),
        ("fastest runs", least),
    ] {
        let connect = |times: &[Times]| pick(times.iter().map(|t| t[last]).collect());
        let all = |times: &[Times]| pick(times.iter().map(|t| t.iter().sum()).collect());
        let _ = writeln!(
            text,
            "By {what}, connecting alone: {:.0} per second by the kernel, {:.0} by Trunkline, \
             {:.1} times as many; with all steps {:.1} times.\n",
            rate(connect(kernel)),
            rate(connect(ours)),
            connect(kernel) / connect(ours),
            all(kernel) / all(ours)
        );
    }
    let _ = writeln!(
        text,
        "The goal is {GOAL:.0}. Where the kernel loses a message, which soft-RoCE does when the \
         host is busy, it waits seconds before it sends it again: the fastest runs have none of it."
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_cmtime_is_read() {
        let text = "creating id\nconnecting\nstep              total ms     max ms\n\
                    create id    :        7.71       0.73       6.00      25.69\n\
                    resolve addr :       32.81      29.05\nresolve route:       11.43       8.01\n\
                    create qp    :       64.57       5.65\nconnect      :     3204.50    3049.45\n";
        assert_eq!(
            parse_cmtime(text),
            Some([7.71, 32.81, 11.43, 64.57, 3204.5])
        );
        assert_eq!(parse_cmtime("connect : 1"), None);
    }

    #[test]
    fn our_steps_are_read_in_milliseconds() {
        let text = "{\"create_id\":0.001,\"resolve_addr\":0.002,\"resolve_route\":0.003,\
                    \"create_qp\":0.004,\"connect\":0.5,\"disconnect\":1}";
        let times = parse_ours(text).expect("all are there");
        assert!((times[4] - 500.0).abs() < 1e-9);
        let text = describe(&[times; 3], &[[1.0; 5]; 3]);
        assert!(
            text.contains("500.0 times as many; with all steps 102.0 times"),
            "{text}"
        );
    }
}
