//! What a command line runs, prints and exits with.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::process::{Command, Output};

fn sim(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline-sim"));
    command.args(words).output().unwrap()
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
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline-sim"));
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = command.arg("--help").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let says = String::from_utf8(output.stderr).unwrap();
    assert!(says.contains("No space left"), "{says}");
    // Who gets it is content, and so is who asks for what is wrong.
    assert!(sim(&["path", "--help"]).status.success());
    assert_eq!(sim(&["--nonsense"]).status.code(), Some(2));
}
