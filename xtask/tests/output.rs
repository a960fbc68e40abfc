//! Standard output and standard error that take nothing: no task panics.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs::File;
use std::process::{Command, Output, Stdio};

fn xtask(words: &[&str], stdout: Stdio, stderr: Stdio) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let command = command.args(words).stdout(stdout).stderr(stderr);
    command.spawn().unwrap().wait_with_output().unwrap()
}

fn full() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into()
}

/// A pipe whose reader is gone.
fn closed() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

#[test]
fn what_cannot_be_printed_is_one_line_and_what_nobody_reads_any_more_is_none() {
    for words in [&["layers"][..], &["fuzz", "--list"], &["--help"]] {
        let output = xtask(words, full(), Stdio::piped());
        let says = String::from_utf8(output.stderr).unwrap();
        let line = "error: standard output: No space left on device (os error 28)\n";
        assert_eq!((output.status.code(), &*says), (Some(1), line), "{words:?}");

        let output = xtask(words, closed(), Stdio::piped());
        let says = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*says), (Some(0), ""), "{words:?}");
    }
}

#[test]
fn a_complaint_that_nobody_hears_is_no_panic() {
    for (words, code) in [(&["nonsense"][..], 2), (&["fuzz", "nonsense"], 1)] {
        for stderr in [full(), closed()] {
            let output = xtask(words, Stdio::piped(), stderr);
            assert_eq!(output.status.code(), Some(code), "{words:?}");
        }
    }
}
