//! `trunkline demo`, in small.

use crate::common::address;
use crate::{FULL, complaint, run, text, trunkline};
use serde_json::Value;
use std::fs::File;
use std::process::Command;

fn demo(qps: &str) -> Command {
    let (client, server) = (address().to_string(), address().to_string());
    trunkline(&[
        "demo", "--qps", qps, "--client", &client, "--server", &server, "--json",
    ])
}

#[test]
fn a_small_demo_verifies_every_operation() {
    let output = demo("50").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["qps"], &found["errors"]), (&50.into(), &0.into()));
    for count in ["send", "write", "read", "atomic"] {
        assert!(
            found["operations"][count].as_u64().unwrap() >= 50,
            "{found}"
        );
    }
    assert!(found["connections"].as_u64().unwrap() <= 8, "{found}");
}

#[test]
fn a_log_goes_to_standard_error_and_only_where_it_is_wanted() {
    let silent = text(&demo("10").output().unwrap().stderr).to_owned();
    assert!(!silent.contains("node started"), "{silent}");
    let output = demo("10").args(["--log", "info"]).output().unwrap();
    let said = text(&output.stderr);
    for what in ["node started", "peer met"] {
        assert_eq!(said.matches(what).count(), 2, "{said}");
    }
    assert_eq!(said.matches(" port=udp ").count(), 2, "{said}");
    assert!(!said.contains("handshake"), "{said}");
    serde_json::from_slice::<Value>(&output.stdout).unwrap();
}

#[test]
fn an_address_of_many_hosts_is_refused() {
    let client = address().to_string();
    for server in ["127.255.255.255", "255.255.255.255", "224.0.0.1", "0.0.0.0"] {
        let words = [
            "demo", "--qps", "1", "--client", &client, "--server", server,
        ];
        let said = complaint(&run(&words), 1);
        let says = format!("cannot start a node on {server}: {server} ");
        assert!(said.starts_with(&says), "{said}");
    }
}

#[test]
fn a_full_disk_is_one_line() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = demo("10").stdout(full).output().unwrap();
    assert_eq!(complaint(&output, 1), FULL);
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut logged = demo("10");
    let output = logged.args(["--log", "debug"]).stderr(full).output();
    assert!(output.unwrap().status.success());
}

#[test]
fn a_shortage_of_descriptors_is_told_with_what_they_were_for() {
    for limit in 6..20 {
        let (client, server) = (address().to_string(), address().to_string());
        let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_trunkline"), "demo"]);
        shell.args(["--qps", "1", "--client", &client, "--server", &server]);
        let output = shell.output().unwrap();
        if !output.status.success() {
            let said = text(&output.stderr);
            let last = said.lines().last().unwrap();
            let line = last.strip_prefix("trunkline: ").unwrap();
            let whose = [
                "cannot handle signals".to_owned(),
                format!("cannot start a node on {client}"),
                format!("cannot start a node on {server}"),
                format!("completion queues of {client}"),
                format!("completion queues of {server}"),
            ];
            let told = line.split(": ").next().unwrap();
            assert!(whose.contains(&told.to_owned()), "{limit}: {line}");
            assert!(line.contains("Too many open files"), "{limit}: {line}");
        }
    }
}

#[test]
fn the_management_of_its_connections_can_be_captured_and_decoded() {
    let file = tempfile();
    let output = demo("20").args(["--capture-cm", &file]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let decoded = run(&["decode", "--json", &file]);
    assert!(decoded.status.success(), "{}", text(&decoded.stderr));
    let mut requests = 0;
    for line in text(&decoded.stdout).lines() {
        let packet: Value = serde_json::from_str(line).unwrap();
        assert_eq!(packet["icrc"], Value::from("ok"), "{packet}");
        assert!(packet["cm"].is_object(), "{packet}");
        requests += u32::from(packet["cm"]["message"] == "REQ");
    }
    assert!(requests >= 1);
    let nowhere = demo("1").args(["--capture-cm", "/nowhere/at/all"]).output();
    assert!(complaint(&nowhere.unwrap(), 1).starts_with("/nowhere/at/all: "));
    let full = demo("1").args(["--capture-cm", "/dev/full"]).output();
    let full = complaint(&full.unwrap(), 1);
    assert!(
        full.starts_with("/dev/full: the capture ended early: "),
        "{full}"
    );
    std::fs::remove_file(file).unwrap();
}

fn tempfile() -> String {
    let name = format!("trunkline-{}.pcapng", std::process::id());
    let path = std::env::temp_dir().join(name);
    path.to_str().unwrap().to_owned()
}
