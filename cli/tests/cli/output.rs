//! Standard output that takes nothing: whatever a command prints, it is told as what it is.

use crate::captures::golden;
use crate::common::{Pair, address};
use crate::{FULL, complaint, text, trunkline};
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

/// What is said where there is no standard output, or none to write to.
const CLOSED: &str = "standard output: Bad file descriptor (os error 9)";

/// Runs the command with its standard output as a shell redirects it.
fn redirected(words: &[&str], to: &str) -> Output {
    let script = format!("exec \"$0\" \"$@\" >{to}");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_trunkline")]);
    shell.args(words).output().unwrap()
}

#[test]
fn every_command_that_prints_says_that_it_cannot() {
    let pair = Pair::new();
    let node = pair.a.node.gid().address().to_string();
    let capture = golden("mtu1024-udaddy-sidr");
    let capture = capture.to_str().unwrap();
    let (client, server) = (address().to_string(), address().to_string());
    for words in [
        &[
            "demo", "--qps", "1", "--client", &client, "--server", &server,
        ][..],
        &["cm", "watch", &node, "--once"],
        &["decode", capture],
        &["decode", capture, "--json"],
        &["decode", capture, "--summary"],
        &["--help"],
    ] {
        for (to, says) in [("/dev/full", FULL), ("&-", CLOSED)] {
            let output = redirected(words, to);
            let said = text(&output.stderr);
            let last = said.lines().last().unwrap();
            assert_eq!(last, format!("trunkline: {says}"), "{words:?} >{to}");
            assert_eq!(output.status.code(), Some(1), "{words:?} >{to}");
        }
        let thrown_away = redirected(words, "/dev/null");
        assert!(thrown_away.status.success(), "{words:?}");
    }
}

/// As it ends other tools of the shell.
#[test]
fn a_reader_that_is_gone_ends_a_command_without_a_word() {
    let capture = golden("mtu1024-udaddy-sidr");
    let capture = capture.to_str().unwrap();
    for words in [&["decode", capture][..], &["decode", capture, "--json"]] {
        let (_, closed) = std::io::pipe().unwrap();
        let output = trunkline(words).stdout(closed).output().unwrap();
        let said = text(&output.stderr);
        let signal = Some(Signal::PIPE.as_raw());
        assert_eq!((output.status.signal(), &*said), (signal, ""), "{words:?}");
    }
}

#[test]
fn without_standard_output_nothing_is_begun() {
    let nobody = address().to_string();
    for words in [
        &["bench", "lat", "--connect", &nobody][..],
        &["decode", "/nowhere/at/all"],
        &["cm", "watch", &nobody],
    ] {
        assert_eq!(complaint(&redirected(words, "&-"), 1), CLOSED, "{words:?}");
    }
}
