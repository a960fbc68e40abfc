//! The `trunkline` command, as users meet it.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod bench;
mod captures;
#[path = "../../../tests/common/mod.rs"]
mod common;
mod damage;
mod decode;
mod demo;
mod detached;
mod directory;
mod endings;
mod forged;
mod formats;
mod installing;
mod interrupt;
#[path = "../../../verbs/tests/programs/library.rs"]
mod library;
mod metrics;
#[path = "../../../wire/tests/common/names.rs"]
mod names;
mod output;
mod places;
mod ports;
mod running;
mod serve;
mod serving;
mod sysfs;
mod told;
mod usage;
mod watch;
mod wireshark;

use signal_hook::SigId;
use signal_hook::consts::SIGINT;
use signal_hook::flag::register_conditional_default;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};

/// What is said where standard output is a full disk.
const FULL: &str = "standard output: No space left on device (os error 28)";

/// The command, with nothing on its standard input, and with Ctrl-C heeded though whoever runs the
/// tests ignores it: what a process catches is no more ignored in its children.
fn trunkline(words: &[&str]) -> Command {
    static CAUGHT: LazyLock<SigId> = LazyLock::new(|| {
        let always = Arc::new(AtomicBool::new(true));
        register_conditional_default(SIGINT, always).unwrap()
    });
    LazyLock::force(&CAUGHT);
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command.args(words).stdin(Stdio::null());
    command
}

/// Runs the command to its end.
fn run(words: &[&str]) -> Output {
    trunkline(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The only line on standard error of a run that ended with `code`.
#[track_caller]
fn complaint(output: &Output, code: i32) -> String {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    let lines: Vec<_> = stderr.lines().collect();
    let [line] = lines[..] else {
        panic!("{} lines: {stderr}", lines.len())
    };
    let says = line.strip_prefix("trunkline: ");
    says.unwrap_or_else(|| panic!("{line}")).to_owned()
}
