//! Two network namespaces, joined by a veth pair with jumbo frames, or by a path with a bottleneck.
//!
//! A guard makes them: this program again, in a process group of its own. It removes them when its
//! standard input ends, and that ends however the benchmark does: in order, by a failure, by
//! Ctrl-C, or killed.

use crate::delay;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::io::{BufRead, BufReader, Read, stdin};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Address of the end that asks.
pub const EAST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 1));
/// Address of the end that answers.
pub const WEST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2));
/// The interface of either end.
pub const INTERFACE: &str = "veth0";
/// What the guard says when all is there.
const READY: &str = "ready";

/// A bottleneck from east to west, with frames of Ethernet's ordinary size.
#[derive(Args, Clone, Copy, Debug)]
pub struct Shape {
    /// Rate in bits per second of Ethernet frames.
    #[arg(long, default_value_t = 0)]
    pub rate: u64,
    /// Bytes that may wait.
    #[arg(long, default_value_t = 0)]
    pub queue: u64,
    /// Round trip without queueing in ns.
    #[arg(long, default_value_t = 0)]
    pub rtt: u64,
}

/// Arguments of the guard.
#[derive(Args, Debug)]
pub struct GuardArgs {
    east: String,
    west: String,
    #[command(flatten)]
    shape: Shape,
}

/// Two namespaces and their guard.
#[derive(Debug)]
pub struct Link {
    guard: Child,
    east: String,
    west: String,
}

/// An end of the link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// [`EAST`]
    East,
    /// [`WEST`]
    West,
}

impl Link {
    /// Makes them; `program` is this one.
    ///
    /// # Errors
    /// Not root, no `ip`, or it refuses.
    pub fn new(program: &Path) -> Result<Self> {
        Self::make(program, &[])
    }

    /// Makes them with a bottleneck between them.
    ///
    /// # Errors
    /// Not root, no `ip`, `tc` or `ethtool`, or one refuses.
    pub fn shaped(program: &Path, shape: Shape) -> Result<Self> {
        need("tc", "iproute2")?;
        need("ethtool", "ethtool")?;
        let Shape { rate, queue, rtt } = shape;
        let words = [("--rate", rate), ("--queue", queue), ("--rtt", rtt)];
        let words: Vec<String> = words
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value.to_string()])
            .collect();
        Self::make(program, &words)
    }

    fn make(program: &Path, shape: &[String]) -> Result<Self> {
        ensure!(geteuid().is_root(), "needs root, for network namespaces");
        need("ip", "iproute2")?;
        let name = |side| format!("tlbench{}-{side}", std::process::id());
        let (east, west) = (name("east"), name("west"));
        let mut guard = Command::new(program)
            .args(["guard", &east, &west])
            .args(shape)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot start the guard of the namespaces")?;
        let said = guard.stdout.take().expect("a pipe");
        let link = Self { guard, east, west };
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        ensure!(
            line.trim() == READY,
            "no namespaces: the guard says why above"
        );
        Ok(link)
    }

    /// A command that will run at one end.
    pub fn command(&self, side: Side, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let namespace = match side {
            Side::East => &self.east,
            Side::West => &self.west,
        };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(program);
        command
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        // It says itself what goes wrong.
        let _ = self.guard.wait();
    }
}

/// Whether a program is there.
///
/// # Errors
/// It is not; the error names the package that usually has it.
pub fn need(program: &str, package: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    ensure!(found, "needs `{program}` (Debian: {package})");
    Ok(())
}

/// Makes the namespaces, waits for the end of standard input, removes them.
///
/// # Errors
/// `ip` refuses.
pub fn guard(arguments: &GuardArgs) -> Result<()> {
    let GuardArgs { east, west, shape } = arguments;
    let middle = format!("{east}-west");
    let shaped = shape.rate > 0;
    let made = if shaped {
        make_path(east, west, &middle, *shape)
    } else {
        make(east, west)
    };
    let made = made.map(|_line| {
        println!("{READY}");
        // However it ends, it has ended.
        let _ = stdin().read_to_end(&mut Vec::new());
    });
    if shaped {
        remove(&middle);
    }
    remove(east);
    remove(west);
    made
}

/// East and west with a namespace between them, which delays and shapes. Gives the process that
/// delays.
fn make_path(east: &str, west: &str, middle: &str, shape: Shape) -> Result<Option<Child>> {
    for namespace in [east, west, middle] {
        ip(&format!("netns add {namespace}"))?;
    }
    for (namespace, address, end) in [(east, EAST, "left"), (west, WEST, "right")] {
        ip(&format!(
            "-n {namespace} link add {INTERFACE} type veth peer name {end} netns {middle}"
        ))?;
        ip(&format!(
            "-n {namespace} address add {address}/24 dev {INTERFACE}"
        ))?;
        ip(&format!("-n {namespace} link set lo up"))?;
        // Nobody behind a packet socket finishes checksums or cuts super-packets.
        run(&format!(
            "ip netns exec {namespace} ethtool -K {INTERFACE} tx off tso off gso off gro off"
        ))?;
        ip(&format!(
            "-n {namespace} link set {INTERFACE} gso_max_segs 1"
        ))?;
        ip(&format!("-n {namespace} link set {INTERFACE} up"))?;
        ip(&format!("-n {middle} link set {end} addrgenmode none"))?;
        ip(&format!("-n {middle} link set {end} up"))?;
    }
    let Shape { rate, queue, rtt } = shape;
    // A bucket of two frames: what leaves is spaced as on a link of that rate.
    run(&format!(
        "tc -n {middle} qdisc add dev right root tbf rate {rate}bit burst 3100 limit {queue}"
    ))?;
    let mut line = Command::new("ip");
    line.args(["netns", "exec", middle])
        .arg(std::env::current_exe()?)
        .args(["delay", "left", "right", &(rtt / 2).to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut line = line.spawn().context("cannot start the line of delay")?;
    let said = line.stdout.take().expect("a pipe");
    let mut word = String::new();
    BufReader::new(said).read_line(&mut word)?;
    ensure!(word.trim() == delay::READY, "no line of delay");
    Ok(Some(line))
}

fn make(east: &str, west: &str) -> Result<Option<Child>> {
    ip(&format!("netns add {east}"))?;
    ip(&format!("netns add {west}"))?;
    ip(&format!(
        "-n {east} link add {INTERFACE} type veth peer name {INTERFACE} netns {west}"
    ))?;
    for (namespace, address) in [(east, EAST), (west, WEST)] {
        ip(&format!(
            "-n {namespace} address add {address}/24 dev {INTERFACE}"
        ))?;
        ip(&format!("-n {namespace} link set lo up"))?;
        ip(&format!("-n {namespace} link set {INTERFACE} mtu 9000 up"))?;
    }
    Ok(None)
}

fn ip(arguments: &str) -> Result<()> {
    run(&format!("ip {arguments}"))
}

fn run(line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    let status = command.args(words).stdout(Stdio::null()).status()?;
    if !status.success() {
        bail!("`{line}`: {status}");
    }
    Ok(())
}

/// Ends what still runs in a namespace, and removes it.
fn remove(namespace: &str) {
    let mut pids = Command::new("ip");
    pids.args(["netns", "pids", namespace])
        .stderr(Stdio::null());
    if let Ok(output) = pids.output() {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for pid in text
            .lines()
            .filter_map(|line| Pid::from_raw(line.trim().parse().ok()?))
        {
            // One that has just ended is as good.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    // It may never have been made.
    let _ = Command::new("ip")
        .args(["netns", "delete", namespace])
        .stderr(Stdio::null())
        .status();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_missing_is_named_with_its_package() {
        let error = need("no-such-program", "some-package").expect_err("there is none");
        assert_eq!(
            error.to_string(),
            "needs `no-such-program` (Debian: some-package)"
        );
        assert!(need("sh", "dash").is_ok());
    }
}
