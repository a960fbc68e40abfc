//! Two network namespaces, joined by a veth pair with jumbo frames.
//!
//! A guard makes them: this program again, in a process group of its own. It removes them when its
//! standard input ends, and that ends however the benchmark does: in order, by a failure, by
//! Ctrl-C, or killed.

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
/// What the guard says when all is there.
const READY: &str = "ready";

/// Arguments of the guard.
#[derive(Args, Debug)]
pub struct GuardArgs {
    east: String,
    west: String,
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
        ensure!(geteuid().is_root(), "needs root, for network namespaces");
        need("ip", "iproute2")?;
        let name = |side| format!("tlbench{}-{side}", std::process::id());
        let (east, west) = (name("east"), name("west"));
        let mut guard = Command::new(program)
            .args(["guard", &east, &west])
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
    let GuardArgs { east, west } = arguments;
    let made = make(east, west);
    if made.is_ok() {
        println!("{READY}");
        // However it ends, it has ended.
        let _ = stdin().read_to_end(&mut Vec::new());
    }
    remove(east);
    remove(west);
    made
}

fn make(east: &str, west: &str) -> Result<()> {
    ip(&format!("netns add {east}"))?;
    ip(&format!("netns add {west}"))?;
    ip(&format!(
        "-n {east} link add veth0 type veth peer name veth0 netns {west}"
    ))?;
    for (namespace, address) in [(east, EAST), (west, WEST)] {
        ip(&format!(
            "-n {namespace} address add {address}/24 dev veth0"
        ))?;
        ip(&format!("-n {namespace} link set lo up"))?;
        ip(&format!("-n {namespace} link set veth0 mtu 9000 up"))?;
    }
    Ok(())
}

fn ip(arguments: &str) -> Result<()> {
    let status = Command::new("ip").args(arguments.split(' ')).status()?;
    if !status.success() {
        bail!("`ip {arguments}`: {status}");
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
