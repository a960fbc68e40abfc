//! Many programs of one host with QPs to as many of another: one pool of connections carries them.

use super::hosts::{Built, End, Host, START};
use super::rows::{Expect, Row};
use crate::cargo;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::thread::sleep;
use std::time::{Duration, Instant};
use trunkline_testkit::programs::Pair;

const PROGRAMS: u16 = 20;
/// QPs of each. With events these programs take 16 completions for one, and never come back for the
/// rest: up to two of each QP wait at a time.
const QPS: u64 = 8;
/// Most connections to a peer, unless a service is told otherwise.
const POOL: u64 = 4;
/// How long they keep their QPs after their messages, so that all are there at once.
const STAY_S: u64 = 10;
const FIRST_PORT: u16 = 20_000;
/// How long all of them may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs them all at once; gives what was seen, in words.
///
/// # Errors
/// A program failed, or they do not share.
pub(super) fn run(built: &Built, near: &Host<'_>, far: &Host<'_>) -> Result<String> {
    let until = Instant::now() + LIMIT;
    let [server, client] = [End::Here(near), End::Here(far)];
    let row = Row {
        program: "ib_send_bw",
        options: format!("-q {QPS} -s 1024 -e -n 1000 --wait_destroy={STAY_S}"),
        expect: Expect::Result("#bytes"),
        in_cut: true,
    };
    let mut pairs = Vec::new();
    for port in (FIRST_PORT..).take(usize::from(PROGRAMS)) {
        let mut listener = server.start(&row, port, None, LIMIT)?;
        ensure!(
            server.listens(&mut listener, port),
            "{} does not listen: {}",
            row.name(),
            listener.wait(Instant::now())
        );
        pairs.push(Pair {
            server: listener,
            client: client.start(&row, port, Some(server.address()), LIMIT)?,
        });
    }
    let seen = seen(near, client.address());
    let ended: Vec<_> = pairs.into_iter().map(|pair| pair.wait(until)).collect();
    let connections = seen?;
    for ended in &ended {
        ensure!(ended.is_good(), "one of {PROGRAMS} programs: {ended}");
    }
    ensure!(
        (1..=POOL).contains(&connections),
        "{connections} connections carry {PROGRAMS} programs"
    );
    let qps = u64::from(PROGRAMS) * QPS;
    Ok(format!(
        "{PROGRAMS} programs of a host with {qps} QPs to {PROGRAMS} of another: {connections} \
         connections between the hosts, by `trunkline stat`. {}",
        state(built, qps, connections)?
    ))
}

/// Waits until the service has all programs with all their QPs; gives how many connections it has
/// to the other host.
fn seen(near: &Host<'_>, peer: &str) -> Result<u64> {
    let until = Instant::now() + START;
    loop {
        let told = near.stat()?;
        let number = |at: &str| told.pointer(at).and_then(Value::as_u64);
        let of_peer = told.get("peers").and_then(Value::as_array);
        let of_peer = of_peer.and_then(|peers| {
            let is_it = |entry: &&Value| entry.get("address").and_then(Value::as_str) == Some(peer);
            peers.iter().find(is_it)?.get("connections")?.as_u64()
        });
        let qps = u64::from(PROGRAMS) * QPS;
        let all_there = number("/service/client_count") == Some(u64::from(PROGRAMS))
            && number("/service/qps") == Some(qps);
        match of_peer {
            Some(connections) if all_there && connections > 0 => return Ok(connections),
            _ if Instant::now() > until => bail!("not all programs came: {told}"),
            _ => sleep(Duration::from_millis(100)),
        }
    }
}

/// What a node keeps, beside what it would with RC.
fn state(built: &Built, qps: u64, connections: u64) -> Result<String> {
    let mut sim = cargo::command(&built.sim.to_string_lossy(), &[]);
    let processes = PROGRAMS.to_string();
    sim.args(["state", "--nodes", "2", "--processes", &processes]);
    let text = cargo::output(sim)?;
    let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    let numbers = |line: &str| -> Vec<u64> {
        let words = line.split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    };
    let rc = line("rc ").map(numbers);
    let ours = line("trunkline:").map(numbers);
    let (rc, ours) = rc.zip(ours).context("trunkline-sim state")?;
    let (Some(rc), [per_peer, per_qp, ..]) = (rc.get(2), ours.as_slice()) else {
        bail!("trunkline-sim state: {text}");
    };
    // The model has a QP from each process to each of the other node.
    let rc = qps * rc / u64::from(PROGRAMS).pow(2);
    Ok(format!(
        "State of a node (`trunkline-sim state`): {} bytes for QPs and {} for connections; with \
         RC, by its published model, {rc}.",
        qps * per_qp,
        connections * per_peer
    ))
}
