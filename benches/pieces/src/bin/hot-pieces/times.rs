//! What an entry of each table takes from few to many of them, in time: caches and the memory of
//! the machine count here, which instructions do not show.

use super::{Piece, Scale};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Entries that are compared.
const ENTRIES: [u32; 4] = [10, 1_000, 100_000, 1_000_000];
/// An entry may take so many times as long with many of them as with few.
const MOST_TIMES: f64 = 5.0;
/// A piece runs again for so long, and at least so often: the shortest run counts.
const ENOUGH: Duration = Duration::from_millis(500);
const RUNS: u32 = 2;

/// Compares the tables of these names, or all: a line of a Markdown table for each.
pub(crate) fn compare(scales: &[Scale], names: &[&str]) -> ExitCode {
    let heads = ENTRIES.map(|entries| format!(" {entries} |")).concat();
    println!("| ns an entry of |{heads} times |");
    println!("| --- |{}", " ---: |".repeat(ENTRIES.len() + 1));
    let wanted = |name: &str| names.is_empty() || names.contains(&name);
    let mut slow = Vec::new();
    for (name, _, most) in scales.iter().filter(|(name, ..)| wanted(name)) {
        let mut took = Vec::new();
        let mut line = format!("| {name} |");
        for entries in ENTRIES {
            // As many as there may be, where that is fewer.
            let entries = entries.min(*most);
            let Some(ns) = alone(name, entries) else {
                eprintln!("hot-pieces: {name} with {entries} entries failed");
                return ExitCode::FAILURE;
            };
            line += &match ENTRIES.contains(&entries) {
                true => format!(" {ns:.0} |"),
                false => format!(" {ns:.0} ({entries}) |"),
            };
            took.push(ns);
        }
        let times = took.iter().copied().fold(0.0, f64::max) / took[0].max(1.0);
        println!("{line} {times:.1} |");
        if times > MOST_TIMES {
            slow.push(*name);
        }
    }
    if slow.is_empty() {
        return ExitCode::SUCCESS;
    }
    let slow = slow.join(", ");
    eprintln!("hot-pieces: more than {MOST_TIMES} times as long with many entries: {slow}");
    ExitCode::FAILURE
}

/// Keeps the memory of a process with it from run to run. What the kernel takes to give a page for
/// the first time is no table's, and the allocator by itself gives large tables back after each.
const KEEP_MEMORY: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184",
);

/// What an entry takes in a process of its own, which has the memory of no other.
fn alone(name: &str, entries: u32) -> Option<f64> {
    let binary = std::env::current_exe().ok()?;
    let mut command = Command::new(binary);
    let output = command
        .args(["--time", name, &entries.to_string()])
        .env(KEEP_MEMORY.0, KEEP_MEMORY.1)
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// Prints what one of so many entries takes, in ns: what half of them take is left out, and with it
/// what is there before the first one.
pub(crate) fn print(piece: Piece, entries: u32) {
    let begin = Instant::now();
    let (half, mut some, mut all) = (entries / 2, Duration::MAX, Duration::MAX);
    let mut runs = 0;
    while runs < RUNS || begin.elapsed() < ENOUGH {
        some = some.min(time(piece, half));
        all = all.min(time(piece, entries));
        runs += 1;
    }
    let each = all.saturating_sub(some).as_nanos() as f64 / f64::from(entries - half);
    println!("{each:.1}");
}

fn time(piece: Piece, entries: u32) -> Duration {
    let begin = Instant::now();
    piece(entries);
    begin.elapsed()
}
