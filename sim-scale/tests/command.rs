//! What a command line runs, prints and exits with.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs::{self, File};
use std::io::PipeWriter;
use std::path::PathBuf;
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
fn a_digest_in_json_is_the_hexadecimal_one_of_the_text() {
    let [json, text] = [&["--json"][..], &[]].map(|more| {
        let output = sim(&[&["--seed", "1"], more].concat());
        String::from_utf8(output.stdout).unwrap()
    });
    let digest = text.lines().next().unwrap().strip_prefix("digest ");
    let member = format!(r#""digest":"{}","#, digest.unwrap());
    assert!(json.contains(&member), "{json}");
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
    }
}

/// A pipe whose reader is gone.
fn closed() -> PipeWriter {
    std::io::pipe().unwrap().1
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    for words in [
        &["--help"][..],
        &["path", "--help"],
        &["path", "--seconds", "0.1"],
        &["state", "--nodes", "1"],
        &["--seed", "1"],
        &["--seed", "1", "--json"],
    ] {
        let output = into(closed(), words);
        let says = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{words:?}: {says}");
        assert!(!says.contains("Broken pipe"), "{words:?}: {says}");
    }
}

#[test]
fn a_standard_error_that_takes_nothing_ends_no_run() {
    for stderr in [full().into(), Stdio::from(closed())] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline-sim"));
        let command = command.args(["--seed", "1", "--trace"]).stderr(stderr);
        let output = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        let says = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{says}");
        assert!(says.contains("\n1 seed in "), "{says}");
    }
}

#[test]
fn help_says_what_exit_codes_mean() {
    let says = String::from_utf8(sim(&["--help"]).stdout).unwrap();
    assert!(says.contains("Exit code: 0 when all went well; 1 when a law"));
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
        (
            &["path", "--idle", "5s..6s", "--seconds", "1"],
            "never happens",
        ),
    ] {
        let says = refused(&sim(words));
        assert!(says.contains(why), "{says}");
    }
}

#[test]
fn a_wrong_command_line_gets_one_line_that_says_what_to_type() {
    for (words, why) in [
        (&[][..], "not provided: <--seed <N>|--count <N>>; try"),
        (&["--nonsense"], "unexpected argument '--nonsense' found"),
        (&["paths"], "; tip: "),
        (&["path", "--control", "x"], "`x` is none of"),
        (&["path", "--rate", "-1"], "between 1k and 1000g"),
        (&["path", "--loss", "-0.1"], "between 0 and 1"),
    ] {
        wrong(words, why);
    }
}

#[track_caller]
fn wrong(words: &[&str], why: &str) {
    let says = refused(&sim(words));
    assert!(says.starts_with("trunkline-sim: ") && !says.contains("error:"));
    assert!(says.contains(why), "{says}");
    assert!(says.ends_with("; try 'trunkline-sim --help'\n"), "{says}");
}

#[test]
fn a_number_out_of_range_gets_one_line_with_the_range() {
    let any = format!("0..={}", u64::MAX);
    let some = format!("1..={}", u64::MAX);
    for (command, option, range) in [
        (&[][..], "--seed", &*any),
        (&[], "--count", &some),
        (&["--count", "1"], "--start", &any),
        (&["--count", "1"], "--jobs", &any),
        (&["path"], "--seed", &any),
        (&["path"], "--flows", "0..=1000"),
        (&["path", "--rival", "reno"], "--rivals", "1..=1000"),
        (&["path"], "--mtu", "576..=65535"),
        (&["suite"], "--jobs", &any),
        (&["state"], "--nodes", "1..=1000000"),
        (&["state"], "--processes", "1..=65536"),
    ] {
        for number in ["-1", "99999999999999999999"] {
            let why = format!("{number} is not in {range}");
            wrong(&[command, &[option, number]].concat(), &why);
        }
        let words = [command, &[option, "1.5"]].concat();
        wrong(&words, "not a whole number");
    }
}

/// A folder for the files of a test.
fn folder(name: &str) -> PathBuf {
    let at = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&at);
    fs::create_dir_all(&at).unwrap();
    at
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_run() {
    let nowhere = folder("nowhere").join("missing").join("out");
    // It would run for longer than anybody waits.
    let long = [
        "path",
        "--seconds",
        "3600",
        "--rate",
        "100g",
        "--rtt",
        "10us",
    ];
    let full = ["suite", "--full"];
    for (command, file) in [
        (&long[..], "--json"),
        (&long, "--svg"),
        (&full, "--json"),
        (&full, "--markdown"),
        (&["state"], "--json"),
    ] {
        let words = [command, &[file, nowhere.to_str().unwrap()]].concat();
        let output = sim(&words);
        assert!(output.stdout.is_empty(), "{words:?}");
        let says = refused(&output);
        assert!(says.contains("out: No such file"), "{words:?}: {says}");
    }
}

#[test]
fn what_a_file_held_stays_until_a_run_has_found_something() {
    let at = folder("held");
    let (json, fresh, svg) = (at.join("json"), at.join("fresh"), at.join("missing/svg"));
    let path = |json: &PathBuf, svg: &PathBuf| {
        let files = [
            "--json",
            json.to_str().unwrap(),
            "--svg",
            svg.to_str().unwrap(),
        ];
        sim(&[&["path", "--seconds", "0.1"][..], &files].concat())
    };
    fs::write(&json, "x".repeat(1 << 20)).unwrap();
    for file in [&json, &fresh] {
        refused(&path(file, &svg));
    }
    assert_eq!(fs::metadata(&json).unwrap().len(), 1 << 20);
    assert!(!fresh.exists(), "a run that found nothing leaves nothing");
    assert!(path(&json, &fresh).status.success());
    let (json, svg) = (fs::read_to_string(&json), fs::read_to_string(&fresh));
    let (json, svg) = (json.unwrap(), svg.unwrap());
    assert!(json.starts_with('{') && json.ends_with("}\n"), "{json}");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
}

/// Two results do not fit into one file: the one that was written first would be gone.
#[test]
fn one_file_is_not_asked_for_twice() {
    let at = folder("twice");
    let (json, other) = (at.join("out"), at.join(".").join("out"));
    let [json, other] = [&json, &other].map(|path| path.to_str().unwrap());
    for run in [
        &["path", "--seconds", "0.1", "--json", json, "--svg", other][..],
        &["suite", "--full", "--json", json, "--markdown", other],
    ] {
        let says = refused(&sim(run));
        assert!(says.contains("does not hold two results"), "{says}");
        assert!(!at.join("out").exists());
    }
}
