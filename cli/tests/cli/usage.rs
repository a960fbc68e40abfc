//! Command lines that are wrong, and those that ask for help.

use crate::{FULL, complaint, run, text};

#[test]
fn wrong_command_lines_get_one_line_and_exit_code_2() {
    for (words, says, help) in [
        (
            &[][..],
            "no command given: demo, bench, cm, stat, serve, run, install, ports, decode",
            "trunkline",
        ),
        (
            &["frobnicate"],
            "unrecognized subcommand 'frobnicate'",
            "trunkline",
        ),
        (
            &["--frobnicate"],
            "unexpected argument '--frobnicate' found",
            "trunkline",
        ),
        (&["cm"], "no command given: watch", "trunkline cm"),
        (&["decode"], "not provided: <FILE>", "trunkline decode"),
        (
            &["decode", "a", "b"],
            "unexpected argument 'b' found",
            "trunkline decode",
        ),
        (
            &["demo", "--qps", "many"],
            "invalid value 'many' for '--qps <QPS>'",
            "trunkline demo",
        ),
        (
            &["demo", "--client", "127.0.0.2"],
            "--client and --server are one address",
            "trunkline demo",
        ),
        (
            &["demo", "--client", "::1"],
            "--client and --server are addresses of different families",
            "trunkline demo",
        ),
        (&["bench"], "not provided", "trunkline bench"),
        (
            &["bench", "fast", "--listen", "::1"],
            "invalid value 'fast' for '<MODE>'",
            "trunkline bench",
        ),
        (
            &["bench", "lat", "--listen", "0.0.0.0"],
            "0.0.0.0 is not the address of one host",
            "trunkline bench",
        ),
        (
            &["bench", "lat", "--connect", "255.255.255.255"],
            "255.255.255.255 is not the address of one host",
            "trunkline bench",
        ),
        (
            &["bench", "lat"],
            "--listen ADDR or --connect ADDR is needed",
            "trunkline bench",
        ),
        (
            &["bench", "lat", "--listen", "::1", "--connect", "::2"],
            "cannot be used with",
            "trunkline bench",
        ),
        (
            &["bench", "lat", "--connect", "localhost"],
            "invalid value 'localhost'",
            "trunkline bench",
        ),
        (
            &["bench", "bw", "--connect", "::1", "--size", "4Q"],
            "not a number of bytes",
            "trunkline bench",
        ),
        (
            &["bench", "bw", "--connect", "::1", "--size", "2G"],
            "'--size <BYTES>': 2147483648 is not in 1..=1073741824",
            "trunkline bench",
        ),
        (
            &["bench", "bw", "--connect", "::1", "--qps", "0"],
            "'--qps <N>': 0 is not in 1..=200000",
            "trunkline bench",
        ),
        (
            &[
                "bench",
                "bw",
                "--connect",
                "::1",
                "--op",
                "atomic",
                "--size",
                "9",
            ],
            "--size of an atomic is 8",
            "trunkline bench",
        ),
        (
            &["bench", "lat", "--connect", "::1", "--depth", "2"],
            "--depth is 1",
            "trunkline bench",
        ),
        (
            &["bench", "bw", "--connect", "::1", "--iterations", "9"],
            "is for lat",
            "trunkline bench",
        ),
        (
            &["bench", "bw", "--connect", "::1", "--qps", "-1"],
            "'--qps <N>': -1 is not in 1..=200000",
            "trunkline bench",
        ),
        (
            &["bench", "bw", "--connect", "::1", "--size", "-4"],
            "'--size <BYTES>': -4 is not in 1..=1073741824",
            "trunkline bench",
        ),
        (
            &["bench", "bw", "--connect", "::1", "--tcp-port", "0"],
            "--tcp-port 0 is for --listen: with --connect it is the one that the server shows",
            "trunkline bench",
        ),
        (
            &["bench", "bw", "--connect", "::1", "--workers", "65"],
            "65 is not in 1..=64",
            "trunkline bench",
        ),
        (
            &["bench", "bw", "--connect", "::1", "--workers", "999"],
            "999 is not in 1..=64",
            "trunkline bench",
        ),
        (
            &["bench", "bw", "--connect", "::1", "--duration", "0"],
            "'--duration <SECS>': 0 is not in 0.001..=604800",
            "trunkline bench",
        ),
        (
            &["bench", "bw", "--connect", "::1", "--duration", "-1"],
            "--duration",
            "trunkline bench",
        ),
        (
            &["bench", "bw", "--connect", "::1", "--timeout", "0"],
            "'--timeout <SECS>': 0 is not in 0.001..=604800",
            "trunkline bench",
        ),
        (
            &["bench", "bw", "--connect", "::1", "--bind", "127.0.0.1"],
            "different families",
            "trunkline bench",
        ),
        (
            &["bench", "bw", "--connect", "::1", "--yardstick", "rdma"],
            "invalid value 'rdma' for '--yardstick <YARDSTICK>'",
            "trunkline bench",
        ),
        (
            &[
                "bench",
                "rate",
                "--connect",
                "::1",
                "--yardstick",
                "tcp",
                "--qps",
                "2",
            ],
            "'--yardstick <YARDSTICK>' cannot be used with '--qps <N>'",
            "trunkline bench",
        ),
        (
            &[
                "bench",
                "lat",
                "--connect",
                "::1",
                "--yardstick",
                "port",
                "--op",
                "read",
            ],
            "--yardstick has no READ: --op is send or write",
            "trunkline bench",
        ),
        (
            &["ports", "--measure", "--address", "127.0.0.1"],
            "'--measure' cannot be used with '--address <IP>'",
            "trunkline ports",
        ),
        (
            &["ports", "--seconds", "2"],
            "not provided: --measure",
            "trunkline ports",
        ),
        (
            &["ports", "--measure", "--port", "carrier-pigeon"],
            "carrier-pigeon",
            "trunkline ports",
        ),
        (
            &["ports", "--measure", "--seconds", "0"],
            "'--seconds <SECS>': 0 is not in 0.05..=3600",
            "trunkline ports",
        ),
    ] {
        let output = run(words);
        let line = complaint(&output, 2);
        assert!(line.contains(says), "{words:?}: {line}");
        assert!(
            line.ends_with(&format!("; try '{help} --help'")),
            "{words:?}: {line}"
        );
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn a_server_refuses_what_only_clients_choose() {
    let help = text(&run(&["bench", "--help"]).stdout);
    let (_, clients) = help.split_once("Options with --connect:").unwrap();
    let options = clients
        .lines()
        .filter_map(|line| line.strip_prefix("      --"));
    let mut count = 0;
    for option in options {
        let (name, value) = option.split_once(' ').unwrap_or((option, ""));
        let value = match (name, value) {
            (_, "") => None,
            ("bind", _) => Some("127.0.0.1"),
            ("op", _) => Some("read"),
            ("yardstick", _) => Some("tcp"),
            ("control", _) => Some("delay"),
            _ => Some("1"),
        };
        let name = format!("--{name}");
        let words = [
            &["bench", "lat", "--listen", "127.0.0.1", &name][..],
            value.as_slice(),
        ];
        let line = complaint(&run(&words.concat()), 2);
        let says = format!("'--listen <ADDR>' cannot be used with '{name}");
        assert!(line.contains(&says), "{line}");
        count += 1;
    }
    assert!(count >= 14, "{help}");
}

#[test]
fn control_characters_of_a_command_line_do_not_reach_the_terminal() {
    let line = complaint(&run(&["decode", "--a\x1b[31m\nb"]), 2);
    assert!(!line.chars().any(char::is_control), "{line:?}");
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    for words in [&["--help"][..], &["--version"], &["bench", "--help"]] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_trunkline"));
        let output = command.args(words).stdout(full).output().unwrap();
        let line = complaint(&output, 1);
        assert_eq!(line, FULL, "{words:?}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    let version = run(&["--version"]);
    assert!(version.status.success() && version.stderr.is_empty());
    assert_eq!(
        text(&version.stdout),
        concat!("trunkline ", env!("CARGO_PKG_VERSION"), "\n")
    );
    for (words, says) in [
        (&["--help"][..], "Commands:"),
        (&["help"], "Commands:"),
        (&["demo", "--help"], "--qps"),
        (&["bench", "--help"], "--connect <ADDR>"),
        (&["decode", "--help"], "--summary"),
    ] {
        let help = run(words);
        assert!(help.status.success() && help.stderr.is_empty(), "{words:?}");
        assert!(text(&help.stdout).contains(says), "{words:?}");
    }
}
