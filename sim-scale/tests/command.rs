//! What a command line runs, prints and exits with.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs::File;
use std::process::{Command, Output, Stdio};

fn sim(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline-sim"));
    command.args(words).output().unwrap()
}

/// The same with another standard output.
fn into(stdout: impl Into<Stdio>, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline-sim"));
    command.args(words).stdout(stdout).output().unwrap()
}

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// The one line that a command complains with.
#[track_caller]
fn refused(output: &Output) -> String {
    let says = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{says}");
    assert_eq!(says.lines().count(), 1, "{says}");
    says
}

#[test]
fn the_last_seed_is_run_and_none_beyond_it() {
    let last = u64::MAX.to_string();
    for words in [
        &["--json", "--seed", &last][..],
        &["--json", "--start", &last, "--count", "1"],
    ] {
        let output = sim(words);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        assert!(text.starts_with(r#"{"seeds":1,"failures":[]"#), "{text}");
    }
    let beyond = sim(&["--start", &last, "--count", "2"]);
    assert_eq!(beyond.status.code(), Some(2));
    let says = String::from_utf8(beyond.stderr).unwrap();
    assert!(says.contains("beyond the last seed"), "{says}");
}

#[test]
fn help_that_nobody_gets_is_an_error() {
    let says = refused(&into(full(), &["--help"]));
    assert!(says.contains("No space left"), "{says}");
    // Who gets it is content, and so is who asks for what is wrong.
    assert!(sim(&["path", "--help"]).status.success());
    assert_eq!(sim(&["--nonsense"]).status.code(), Some(2));
}

#[test]
fn results_that_nobody_gets_are_one_line_and_no_panic() {
    for words in [
        &["path", "--seconds", "0.1"][..],
        &["state", "--nodes", "1"],
        &["--seed", "1"],
        &["--count", "1"],
        &["--seed", "1", "--json"],
    ] {
        let says = refused(&into(full(), words));
        assert!(says.contains("standard output: No space left"), "{says}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let says = refused(&into(writer, words));
        assert!(says.contains("standard output: Broken pipe"), "{says}");
    }
}

#[test]
fn what_would_do_nothing_is_refused() {
    for (words, why) in [
        (&["--count", "0"][..], "0 is not in 1.."),
        (&["path", "--rivals", "3"], "--rival <NAME>"),
        (
            &["path", "--at", "5s:rtt=1ms", "--seconds", "1"],
            "never happens",
        ),
    ] {
        let output = sim(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let says = String::from_utf8(output.stderr).unwrap();
        assert!(says.contains(why), "{says}");
    }
}
