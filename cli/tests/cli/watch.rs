//! `trunkline cm watch` beside a node of this process.

use crate::common::{Pair, address};
use crate::{complaint, run, text, trunkline};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

fn object(line: &str) -> Value {
    serde_json::from_str(line).unwrap()
}

#[test]
fn looking_once_shows_what_a_node_has_done() {
    let pair = Pair::new();
    let _qps: Vec<_> = (0..7).map(|_| pair.qps()).collect();
    pair.until("all QPs are bound", || pair.a.node.cm_stats().qps == 7);
    let opened = pair.a.node.cm_stats().steps["node_open"].count;
    let node = pair.a.node.gid().address().to_string();
    let output = run(&["cm", "watch", &node, "--once", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let seen = object(&text(&output.stdout));
    assert_eq!(seen["address"], Value::from(node.as_str()));
    assert_eq!(seen["pid"], Value::from(std::process::id()));
    assert_eq!(seen["port"], "udp");
    assert_eq!(seen["steps"]["node_open"]["count"], Value::from(opened));
    assert!(seen["steps"]["node_open"]["p99_us"].as_f64().unwrap() > 0.0);
    assert!(seen["handshakes"]["established"].as_u64().unwrap() > 0);
    assert_eq!(seen["overload"]["node_share"], Value::from(0));
    assert_eq!(seen["in_line"], Value::from(0));
    let output = run(&["cm", "watch", &node, "--once"]);
    let table = text(&output.stdout);
    assert!(table.contains("slowest steps") && table.contains("node_open"));
}

#[test]
fn each_interval_shows_what_came_in_it() {
    let pair = Pair::new();
    // It may be bound by the handshake itself.
    let _first = pair.qps();
    pair.until("it is bound", || pair.a.node.cm_stats().qps == 1);
    let node = pair.a.node.gid().address().to_string();
    let mut command = trunkline(&["cm", "watch", &node, "--interval", "0.05", "--json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || object(&lines.next().unwrap().unwrap());
    next();
    let _qps: Vec<_> = (0..7).map(|_| pair.qps()).collect();
    pair.until("all QPs are bound", || pair.a.node.cm_stats().qps == 8);
    let mut seen = 0;
    while seen < 7 {
        seen += next()["steps"]["bind"]["count"].as_u64().unwrap_or(0);
    }
    let quiet = (0..10).map(|_| next()).last().unwrap();
    assert_eq!(seen, 7);
    assert_eq!(quiet["per_second"]["qps"], Value::from(0.0));
    assert_eq!(quiet["steps"], object("{}"));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn a_node_that_does_not_run_is_one_line() {
    let gone = address().to_string();
    let output = run(&["cm", "watch", &gone]);
    let expected = format!("no node that can be watched has address {gone}");
    assert_eq!(complaint(&output, 1), expected);
}

#[test]
fn a_watcher_hears_that_its_node_is_gone() {
    let pair = Pair::new();
    let node = pair.a.node.gid().address().to_string();
    let mut command = trunkline(&["cm", "watch", &node, "--interval", "0.05", "--json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut first = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut first).unwrap();
    drop(pair);
    let output = child.wait_with_output().unwrap();
    assert!(complaint(&output, 1).starts_with("no node that can be watched"));
}

#[test]
fn of_several_nodes_one_has_to_be_named() {
    let pair = Pair::new();
    let complaint = complaint(&run(&["cm", "watch", "--once"]), 1);
    assert!(complaint.starts_with("several nodes run on this host, name one: "));
    assert!(complaint.contains(&pair.a.node.gid().address().to_string()));
}
