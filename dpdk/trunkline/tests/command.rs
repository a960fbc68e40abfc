//! The command with ports of DPDK, as users meet it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

const TRUNKLINE: &str = env!("CARGO_BIN_EXE_trunkline");

fn run(words: &[&str]) -> Output {
    Command::new(TRUNKLINE).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The only line on standard error of a run that ended with `code`.
#[track_caller]
fn complaint(output: &Output, code: i32) -> &str {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said.strip_prefix("trunkline: ").expect(said).trim_end()
}

/// A service on an end of a memif, killed in the end.
struct Service(Child);

impl Service {
    fn start(words: &[&str]) -> Self {
        let mut command = Command::new(TRUNKLINE);
        let mut child = command.args(words).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.starts_with("serving "), "{line}");
        Self(child)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_demo_runs_over_a_ring() {
    let ends = ["--client", "10.9.0.1", "--server", "10.9.0.2"];
    let words = ["demo", "--qps", "20", "--json", "--port", "dpdk:ring"];
    let output = run(&[&words[..], &ends].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("\"errors\":0"));
}

#[test]
fn what_is_wrong_with_an_address_is_said_of_every_kind_of_port() {
    let output = run(&["ports", "--address", "192.0.2.1"]);
    let said = complaint(&output, 1);
    assert_eq!(said, "no kind of port works on 192.0.2.1");
    let lacks = "192.0.2.1 is not an address of this machine";
    let told = text(&output.stdout);
    assert_eq!(told.matches(lacks).count(), 5, "{told}");
}

#[test]
fn ports_of_dpdk_are_told_to_be_there_and_not_to_work() {
    let output = run(&["ports", "--address", "127.0.0.1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout).trim_end();
    let line = said.lines().last().unwrap_or_default().trim();
    assert!(line.starts_with("there is DPDK "), "{said}");
    let tried = "; a device is tried when a node is opened on it";
    assert!(line.ends_with(tried), "{said}");
    let output = run(&["ports", "--address", "127.0.0.1", "--json"]);
    let said = text(&output.stdout);
    let family = said.split("\"dpdk:...\"").nth(1).expect(said);
    assert!(family.starts_with(",\"works\":null"), "{said}");
}

#[test]
fn bench_refuses_a_ring_at_once_as_its_ends_are_two_processes() {
    for end in ["--listen", "--connect"] {
        let output = run(&["bench", "lat", end, "10.9.0.1", "--port", "dpdk:ring"]);
        let says = "--port: dpdk:ring joins two nodes of one process: use `trunkline demo`, or \
            dpdk:net_memif; try 'trunkline bench --help'";
        assert_eq!(complaint(&output, 2), says);
    }
}

#[test]
fn a_port_that_no_two_nodes_or_no_node_can_have_is_a_wrong_command_line() {
    for (port, why) in [
        ("net_memif0,role=server", "is a port of one node"),
        ("net_af_packet0,iface=lo", "dpdk:ring joins two"),
        ("ring -- --help", "`--help` cannot be among the EAL"),
        ("ring -- --proc-type=secondary", "takes a primary process"),
    ] {
        let output = run(&["demo", "--qps", "1", "--port", &format!("dpdk:{port}")]);
        let said = complaint(&output, 2);
        assert!(said.contains(why), "{port}: {said}");
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn a_second_server_on_the_socket_of_a_memif_hears_who_has_it() {
    let name = format!("trunkline-two-{}", std::process::id());
    let file = std::env::temp_dir().join(&name);
    let file = format!("{},socket-abstract=no", file.display());
    for (at, socket) in [name, file].into_iter().enumerate() {
        let port = format!("dpdk:net_memif0,role=server,socket={socket}");
        let ours = [1, 2].map(|end| format!("@trunkline-{}-{at}-{end}", std::process::id()));
        let words = |end: usize| {
            [
                "serve",
                "--port",
                &port,
                "--socket",
                &ours[end],
                "--address",
            ]
        };
        let _first = Service::start(&[&words(0)[..], &["10.9.0.1"]].concat());
        let second = run(&[&words(1)[..], &["10.9.0.2"]].concat());
        let said = complaint(&second, 1);
        let path = socket.split(',').next().unwrap();
        let why = format!(
            "net_memif0 cannot use the socket {path}: a process serves there already: end it, or \
             give this device another socket="
        );
        assert!(said.ends_with(&why), "{said}");
    }
}

#[test]
fn a_shortage_of_descriptors_is_told_with_what_helps() {
    let xdp = ["serve", "--socket", "@none", "--address", "127.0.0.1"];
    let ring = [
        "demo", "--qps", "1", "--client", "10.9.0.1", "--server", "10.9.0.2",
    ];
    for (words, port, limits) in [
        (&xdp[..], "dpdk:net_af_xdp0,iface=lo prefix=8", [10, 16]),
        (&ring, "dpdk:ring", [8, 10]),
    ] {
        for limit in limits {
            let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
            let mut shell = Command::new("sh");
            shell.args(["-c", &script, TRUNKLINE]).args(words);
            let output = shell.args(["--port", port]).output().unwrap();
            let said = complaint(&output, 1);
            let told = ["descriptors, and this process may have", "ulimit -n"];
            assert!(
                told.iter().all(|part| said.contains(part)),
                "{limit}: {said}"
            );
        }
    }
}

/// As whoever starts a command may have it: a limit, and signals that are ignored.
#[test]
fn dpdk_that_cannot_be_tried_says_why() {
    let bench = ["bench", "lat", "--listen", "127.0.0.1", "--port"];
    let port = "dpdk:net_null0 prefix=8";
    for (before, told) in [
        ("ulimit -f 100; exec", ["ended by signal 25", "ulimit -f"]),
        ("ulimit -v 400000; exec", ["--no-huge", "ulimit -v"]),
        ("env --ignore-signal=CHLD", ["ignores SIGCHLD", "SIG_DFL"]),
    ] {
        let script = format!("{before} \"$0\" \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, TRUNKLINE]).args(bench);
        let output = shell.args([port]).output().unwrap();
        let said = complaint(&output, 1);
        assert!(
            told.iter().all(|part| said.contains(part)),
            "{before}: {said}"
        );
    }
}

/// Two ends of it are not called the same.
#[test]
fn a_device_is_not_measured_between_namespaces() {
    let output = run(&[
        "ports",
        "--measure",
        "--port",
        "dpdk:net_memif0,role=server",
    ]);
    let said = complaint(&output, 2);
    assert!(said.contains("`trunkline bench` at both"), "{said}");
    let help = run(&["ports", "--help"]);
    assert!(!text(&help.stdout).contains("- dpdk:"), "none is offered");
}
