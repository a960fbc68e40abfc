//! Where the programs run: network namespaces of this machine, and the guest.

use super::rows::{Device, Row};
use crate::cargo;
use crate::interop::guest::{ADDRESSES, Guest};
use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use trunkline_testkit::programs::Program;

/// Our device, and the guest's.
const OURS: &str = "trunk0";
const THEIRS: &str = "rxe0";
/// Where the services of both namespaces are found: a name of each.
const SOCKET: &str = "@trunkline";
/// Carries RoCE packets with a payload of 4,096 bytes.
const MTU: &str = "4200";
/// How long a service may take to start, and a server to listen.
pub(super) const START: Duration = Duration::from_secs(30);
/// How long a line of shell in the guest may take.
const SHELL: Duration = Duration::from_secs(20);

/// What carries the programs of a host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Carrier {
    /// A service of its namespace.
    Service,
    /// A node inside each program.
    OwnNode,
}

/// What is built here and started there.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) trunkline: PathBuf,
    pub(super) sim: PathBuf,
    /// The folder of the library.
    pub(super) library: PathBuf,
}

/// A network namespace; it goes when this is dropped.
#[derive(Debug)]
pub(super) struct Namespace(String);

impl Namespace {
    fn new(name: String) -> Result<Self> {
        cargo::output(cargo::command("ip", &["netns", "add", &name]))?;
        let namespace = Self(name);
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    fn ip(&self, arguments: &[&str]) -> Result<()> {
        let mut command = cargo::command("ip", &["-n", &self.0]);
        command.args(arguments);
        cargo::output(command).map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It is there, unless somebody else removed it.
        let _ = cargo::output(cargo::command("ip", &["netns", "del", &self.0]));
    }
}

/// Two namespaces, joined by a pair of interfaces.
///
/// # Errors
/// They cannot be made.
pub(super) fn two_namespaces() -> Result<[Namespace; 2]> {
    let id = std::process::id();
    let near = Namespace::new(format!("trunkline-near-{id}"))?;
    let far = Namespace::new(format!("trunkline-far-{id}"))?;
    let pair = [
        "link", "add", "eth0", "mtu", MTU, "type", "veth", "peer", "name", "eth0", "mtu", MTU,
        "netns", &far.0,
    ];
    near.ip(&pair)?;
    for (namespace, address) in [(&near, NEAR), (&far, FAR)] {
        let address = format!("{address}/24");
        namespace.ip(&["addr", "add", &address, "dev", "eth0"])?;
        namespace.ip(&["link", "set", "eth0", "up"])?;
    }
    Ok([near, far])
}

/// Addresses of the two namespaces.
pub(super) const NEAR: &str = "10.98.0.1";
pub(super) const FAR: &str = "10.98.0.2";

/// An end with our device.
#[derive(Debug)]
pub(super) struct Host<'a> {
    built: &'a Built,
    /// Name of the network namespace.
    namespace: String,
    address: &'static str,
    carrier: Carrier,
    /// It ends when it is dropped.
    service: Option<Program>,
}

impl<'a> Host<'a> {
    /// A host in a namespace of ours.
    ///
    /// # Errors
    /// Its service does not start.
    pub(super) fn new(
        built: &'a Built,
        namespace: &Namespace,
        address: &'static str,
        carrier: Carrier,
    ) -> Result<Self> {
        Self::start(built, namespace.0.clone(), address, carrier)
    }

    /// The host at the other end of the guest's link, with a service.
    ///
    /// # Errors
    /// As above.
    pub(super) fn beside(built: &'a Built, guest: &Guest) -> Result<Self> {
        let namespace = guest.namespace().to_owned();
        Self::start(built, namespace, ADDRESSES[0].0, Carrier::Service)
    }

    fn start(
        built: &'a Built,
        namespace: String,
        address: &'static str,
        carrier: Carrier,
    ) -> Result<Self> {
        let mut host = Self {
            built,
            namespace,
            address,
            carrier,
            service: None,
        };
        if carrier == Carrier::Service {
            let mut serve = host.inside();
            serve.arg(&built.trunkline);
            serve.args(["serve", "--address", address, "--socket", SOCKET]);
            let mut service = Program::start(serve)?;
            let until = Instant::now() + START;
            while !host.stat().is_ok_and(|told| told.get("service").is_some()) {
                if !service.is_running() || Instant::now() > until {
                    bail!("the service of {address}: {}", service.wait(Instant::now()));
                }
                sleep(Duration::from_millis(50));
            }
            host.service = Some(service);
        }
        Ok(host)
    }

    fn inside(&self) -> Command {
        cargo::command("ip", &["netns", "exec", &self.namespace])
    }

    /// What `trunkline stat` tells of the service.
    ///
    /// # Errors
    /// It tells nothing.
    pub(super) fn stat(&self) -> Result<serde_json::Value> {
        let mut stat = self.inside();
        stat.arg(&self.built.trunkline);
        stat.args(["stat", self.address, "--once", "--json"]);
        let told = cargo::output(stat)?;
        serde_json::from_str(&told).context("trunkline stat")
    }

    /// Whether the service goes on.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(service) = &mut self.service {
            ensure!(
                service.is_running(),
                "the service of {} has ended: {}",
                self.address,
                service.wait(Instant::now())
            );
        }
        Ok(())
    }

    fn command(&self, line: &str) -> Command {
        let mut command = self.inside();
        let Built {
            trunkline, library, ..
        } = self.built;
        match self.carrier {
            Carrier::Service => {
                command.arg(trunkline).args(["run", "--socket", SOCKET]);
            }
            Carrier::OwnNode => {
                command.arg("env");
                command.arg(format!("LD_LIBRARY_PATH={}", library.display()));
                command.arg(format!("TRUNKLINE_ADDRESS={}", self.address));
            }
        }
        command.args(line.split_whitespace());
        command
    }
}

/// One end of a pair.
#[derive(Clone, Copy, Debug)]
pub(super) enum End<'a> {
    Here(&'a Host<'a>),
    There(&'a Guest, u32),
}

impl<'a> End<'a> {
    /// The guest's.
    ///
    /// # Errors
    /// It has no GID of its address.
    pub(super) fn guest(guest: &'a Guest) -> Result<Self> {
        // The words of ::ffff:10.99.0.2, as /sys writes them.
        let line = "cd /sys/class/infiniband/rxe0/ports/1/gids && grep -l :ffff:0a63:0002 *";
        let found = guest.shell(line, SHELL)?;
        let first = found.split_whitespace().next();
        let index = first.context("the guest has no GID of its address")?;
        Ok(End::There(guest, index.parse()?))
    }

    /// Where clients find its servers.
    pub(super) const fn address(&self) -> &'static str {
        match self {
            Self::Here(host) => host.address,
            Self::There(..) => ADDRESSES[0].1,
        }
    }

    const fn device(&self) -> Device<'static> {
        match self {
            Self::Here(_) => Device {
                name: OURS,
                gid_index: 0,
            },
            Self::There(_, gid_index) => Device {
                name: THEIRS,
                gid_index: *gid_index,
            },
        }
    }

    /// Starts the program of a row, as server or as client of `server`.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn start(
        &self,
        row: &Row,
        port: u16,
        server: Option<&str>,
        limit: Duration,
    ) -> Result<Program> {
        let line = row.line(&self.device(), port, server);
        let command = match self {
            Self::Here(host) => host.command(&line),
            // It is ended over there, so that nothing is left when we give up.
            Self::There(guest, _) => {
                let seconds = limit.as_secs();
                guest.exec(&format!("timeout {seconds} {line}"), limit)
            }
        };
        Program::start(command).context(line)
    }

    /// Waits until a server listens; `false`: it has ended, or does not.
    pub(super) fn listens(&self, server: &mut Program, port: u16) -> bool {
        let until = Instant::now() + START;
        match self {
            Self::Here(_) => server.listens(port, until),
            Self::There(guest, _) => {
                // A shell of its own: who has told it to end does not hear how it ended.
                let look = format!(
                    "(for i in $(seq 100); do netstat -ltn | grep -q :{port} && exit; sleep 0.1; \
                     done; false)"
                );
                guest.shell(&look, START).is_ok() && server.is_running()
            }
        }
    }
}
