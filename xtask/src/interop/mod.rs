//! `cargo xtask interop`: Trunkline against soft-RoCE of the Linux kernel, in an emulated guest.
//!
//! A script beside the checkout boots the guest on a bridge in a network namespace of its own;
//! there `trunkline-interop` runs its list. All packets are captured, and what Trunkline sent is
//! afterwards looked at by tshark and by `trunkline decode`.

mod cmtime;
pub(crate) mod guest;
pub(crate) mod record;

use crate::{cargo, dpdk};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use guest::{ADDRESSES, Guest};
use record::Origin;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Names the script, where it is not in its usual place.
const SCRIPT: &str = "TRUNKLINE_RXE_VM";
const RUN_LIMIT: Duration = Duration::from_secs(8 * 60);
const FULL_LIMIT: Duration = Duration::from_secs(60 * 60);
/// What carries our packets, unless somebody says it.
const PORTS: [&str; 2] = ["udp", "xdp"];
/// And where there is DPDK, by a program of its own: one of its drivers, on the host's end of the
/// link.
const DPDK: &str = "dpdk:";
const DPDK_PORT: &str = "dpdk:net_af_packet0,iface=rnic";
const DPDK_PROGRAM: &str = "trunkline-interop-dpdk";
/// Programs that all this needs.
const TOOLS: [&str; 7] = [
    "qemu-system-x86_64",
    "cpio",
    "modprobe",
    "ip",
    "tcpdump",
    "tshark",
    "cc",
];

/// Protocols that tshark suspects behind any payload that looks a bit like theirs.
const GUESSES: [&str; 9] = [
    "smc",
    "smb_direct",
    "rpcordma",
    "nvme-rdma",
    "lnet",
    "iser",
    "infiniband_sdp",
    "fcoib",
    "infiniband.eoib",
];

/// What to run.
#[derive(Args, Debug, Default)]
pub(crate) struct Options {
    /// The whole matrix, not the cut for an ordinary run.
    #[arg(long)]
    pub(crate) full: bool,
    /// Only cases with this in their name; may be given several times.
    #[arg(long, value_name = "PART")]
    pub(crate) only: Vec<String>,
    /// What carries our packets; may be given several times, and each runs the list [default: udp,
    /// xdp and, where DPDK is installed, one of its drivers].
    #[arg(long, value_name = "KIND")]
    pub(crate) port: Vec<String>,
    /// Write the outcome of every case to this file, as a JSON array.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write what came of it to this file, in words: with date and commit.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Instead of the list: how fast connections are opened in the guest, by the kernel (cmtime of
    /// rdma-core) and by Trunkline.
    #[arg(long, conflicts_with_all = ["full", "only", "port", "json"])]
    pub(crate) cmtime: bool,
}

/// How it went, where nothing failed.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Every case passed.
    Passed(String),
    /// This machine cannot run it.
    Skipped(String),
}

/// Runs the list.
///
/// # Errors
/// A case failed, or a packet of ours was wrong.
pub(crate) fn run(options: &Options) -> Result<Verdict> {
    let script = match script() {
        Ok(script) => script,
        // CI has to notice when there is nothing to talk to.
        Err(why) if std::env::var_os("CI").is_some() => bail!(why),
        Err(why) => return Ok(Verdict::Skipped(why)),
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let folder = cargo::target_dir()?.join("interop");
    std::fs::create_dir_all(&folder)?;
    // What was asked for is known before minutes are spent.
    let record = options
        .record
        .as_ref()
        .map(std::path::absolute)
        .transpose()?;
    if options.cmtime {
        return cmtime::run(script, &stop, record.as_deref());
    }
    let origin = Origin::now()?;
    let peers = compile(&folder)?;
    cargo::build_release(&["trunkline", "trunkline-interop"], None)?;
    let json = match &options.json {
        Some(file) => std::path::absolute(file)?,
        None => folder.join("outcomes.json"),
    };
    let capture = folder.join("packets.pcap");
    let started = Instant::now();
    let runs = runs(&options.port)?;
    let guest = Guest::boot(script, &peers, Some(&capture))?;
    let result = runs_of(&guest, options, &runs, &json, &stop);
    drop(guest);
    if stop.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    let packets = result.and_then(|()| check(&capture));
    if let Some(file) = &record {
        let found = packets.as_ref().map_err(|error| format!("{error:#}"));
        record::write(file, &origin, options.full, &json, started.elapsed(), found)?;
    }
    Ok(Verdict::Passed(format!(
        "{} packets of ours looked at",
        packets?
    )))
}

/// The script, if this machine can run it.
///
/// # Errors
/// It cannot: why not.
pub(crate) fn script() -> Result<PathBuf, String> {
    let script = std::env::var_os(SCRIPT)
        .map_or_else(|| cargo::root().join("../shared/rxe-vm"), PathBuf::from);
    if !script.is_file() {
        return Err(format!("no {} ({SCRIPT} names another)", script.display()));
    }
    let missing: Vec<_> = TOOLS
        .into_iter()
        .filter(|tool| !cargo::works("which", &[tool]))
        .collect();
    if !missing.is_empty() {
        return Err(format!("not installed: {}", missing.join(", ")));
    }
    if !has_namespaces() || !Path::new("/dev/net/tun").exists() {
        return Err("network namespaces and taps need root and /dev/net/tun".to_owned());
    }
    Ok(script)
}

/// Whether network namespaces can be made here: anyone may list them.
pub(crate) fn has_namespaces() -> bool {
    cargo::works("ip", &["-Version"]) && cargo::works("unshare", &["--net", "true"])
}

/// The peers' programs, for the guest.
fn compile(folder: &Path) -> Result<Vec<PathBuf>> {
    let compile = |name: &str| {
        let program = folder.join(name);
        let mut command = cargo::command("cc", &["-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
        command.arg(&program);
        command.arg(format!("interop/guest/{name}.c"));
        command.args(["-lrdmacm", "-libverbs"]);
        cargo::run(command, None).context("are libibverbs-dev and librdmacm-dev installed?")?;
        Ok(program)
    };
    ["verbs_peer", "cm_peer"].into_iter().map(compile).collect()
}

/// A program and the ports that it runs the list with.
type Run = (PathBuf, Vec<String>);

/// Who runs the list with these ports, or with the usual ones.
///
/// # Errors
/// A program cannot be built.
fn runs(ports: &[String]) -> Result<Vec<Run>> {
    let mut ports = ports.to_vec();
    if ports.is_empty() {
        ports.extend(PORTS.map(str::to_owned));
        ports.extend(dpdk::is_installed().then(|| DPDK_PORT.to_owned()));
    }
    let (of_dpdk, others): (Vec<_>, Vec<_>) =
        ports.into_iter().partition(|port| port.starts_with(DPDK));
    let mut runs = Vec::new();
    if !others.is_empty() {
        let program = cargo::target_dir()?.join("release/trunkline-interop");
        runs.push((program, others));
    }
    if !of_dpdk.is_empty() {
        runs.push((dpdk::program(DPDK_PROGRAM)?, of_dpdk));
    }
    Ok(runs)
}

/// Runs the list as often as it takes; what came of it is in the file `json`.
fn runs_of(
    guest: &Guest,
    options: &Options,
    runs: &[Run],
    json: &Path,
    stop: &AtomicBool,
) -> Result<()> {
    let mut all = Vec::new();
    let mut result = Ok(());
    for run in runs {
        // What an earlier run left is not of this one.
        std::fs::write(json, "[]")?;
        result = result.and(cases(guest, options, run, json, stop));
        let text = std::fs::read_to_string(json)?;
        all.extend(serde_json::from_str::<Vec<serde_json::Value>>(&text)?);
    }
    std::fs::write(json, serde_json::to_string_pretty(&all)?)?;
    result
}

fn cases(
    guest: &Guest,
    options: &Options,
    (program, ports): &Run,
    json: &Path,
    stop: &AtomicBool,
) -> Result<()> {
    if stop.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut suite = guest.command([program.as_os_str(), "suite".as_ref()]);
    // A driver of DPDK has the kernel forget its neighbours whenever it starts. What UC and UD send
    // first over IPv6 would be lost; over IPv4 the guest's programs talk to us meanwhile.
    let families = match ports.iter().any(|port| port.starts_with(DPDK)) {
        true => &["--v4"][..],
        false => &["--v4", "--v6"],
    };
    for (name, (ours, theirs)) in families.iter().zip(ADDRESSES) {
        suite.args([name, ours, theirs]);
    }
    if options.full {
        suite.arg("--full");
    }
    for part in &options.only {
        suite.args(["--only", part]);
    }
    for port in ports {
        suite.args(["--port", port]);
    }
    suite.arg("--json").arg(json);
    let limit = if options.full { FULL_LIMIT } else { RUN_LIMIT };
    cargo::run(suite, Some(limit))
}

/// Looks at every packet that Trunkline sent; gives how many there are.
fn check(capture: &Path) -> Result<usize> {
    let [(v4, _), (v6, _)] = ADDRESSES;
    let ours = format!("udp.dstport == 4791 && (ip.src == {v4} || ipv6.src == {v6})");
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(capture).arg("-Y").arg(&ours);
    tshark.args(["-T", "fields", "-E", "separator=;", "-e", "frame.number"]);
    tshark.args(["-e", "_ws.malformed", "-e", "infiniband.bth.opcode"]);
    for protocol in GUESSES {
        tshark.args(["--disable-protocol", protocol]);
    }
    // The same of Ethernet frames, which as a protocol are needed.
    tshark.args(["--disable-heuristic", "eth_over_ib"]);
    let text = cargo::output(tshark)?;
    let mut packets = 0;
    let mut wrong = Vec::new();
    for line in text.lines() {
        let mut fields = line.split(';');
        let (frame, malformed, opcode) = (fields.next(), fields.next(), fields.next());
        packets += 1;
        if malformed != Some("") || opcode.is_none_or(str::is_empty) {
            wrong.push(frame.unwrap_or_default().to_owned());
        }
    }
    let file = capture.display();
    ensure!(packets > 0, "{file} has no packet of ours");
    wrong.truncate(10);
    ensure!(
        wrong.is_empty(),
        "tshark does not understand frames {} of {file}",
        wrong.join(", ")
    );
    let program = cargo::target_dir()?.join("release/trunkline");
    let mut decode = Command::new(program);
    decode.args(["decode", "--summary", "--json"]).arg(capture);
    let summary: serde_json::Value = serde_json::from_str(&cargo::output(decode)?)?;
    for key in ["malformed", "icrc_bad"] {
        let count = summary.get(key).and_then(serde_json::Value::as_u64);
        ensure!(count == Some(0), "{file}: {key} is {count:?}");
    }
    Ok(packets)
}
