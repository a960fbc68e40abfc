//! A service of a benchmark, and the command that starts it.

use super::usage;
use crate::process::Process;
use crate::resident::resident_bytes_of;
use anyhow::{Context, Result, ensure};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A service ends so many seconds after its last program, if the benchmark dies before it.
const LINGER: &str = "60";
/// Services of this process, so that each has a socket and an address of its own.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The command `trunkline` of this repository.
#[derive(Clone, Debug)]
pub(super) struct Trunkline(PathBuf);

impl Trunkline {
    /// The one that is beside this program.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn beside(program: &Path) -> Result<Self> {
        let found = program.with_file_name("trunkline");
        ensure!(
            found.is_file(),
            "there is no {}: `cargo build --release --bin trunkline` makes it",
            found.display()
        );
        Ok(Self(found))
    }

    pub(super) fn command(&self) -> Command {
        Command::new(&self.0)
    }
}

/// `trunkline serve`, on loopback. It is killed when it is dropped.
#[derive(Debug)]
pub(super) struct Service {
    process: Process,
    socket: String,
}

impl Service {
    /// Starts one at an address that no other of this process has, with these options more.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn start(trunkline: &Trunkline, options: &[&str]) -> Result<Self> {
        let at = COUNT.fetch_add(1, Ordering::Relaxed);
        let socket = format!("@trunkline-benches/{}/{at}", std::process::id());
        let mut command = trunkline.command();
        command.args(["serve", "--socket", &socket, "--end-when-idle", LINGER]);
        command.args(["--address", &next_address(at).to_string()]);
        command.args(options);
        let mut process = Process::start(command)?;
        // It says so when programs can attach.
        process.hear_line().context("the service")?;
        Ok(Self { process, socket })
    }

    /// Where programs attach.
    pub(super) fn socket(&self) -> &str {
        &self.socket
    }

    /// Time of a CPU that it has taken, in ns.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn cpu_ns(&self) -> Result<u64> {
        usage::cpu_ns(self.process.id()).context("the service")
    }

    /// Its resident bytes.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn resident_bytes(&self) -> Result<u64> {
        resident_bytes_of(self.process.id()).context("the service")
    }
}

/// Time of a CPU that all of them have taken, in ns.
///
/// # Errors
/// One has ended.
pub(super) fn cpu_ns_of(services: &[Service]) -> Result<u64> {
    services.iter().map(Service::cpu_ns).sum()
}

/// An address of loopback by this process. Tests and other benchmarks do not end in 10 and more.
pub(super) fn next_address(at: u32) -> IpAddr {
    let [.., a, b] = std::process::id().to_be_bytes();
    IpAddr::from([127, 128 | a, b, 10 + (at % 200) as u8])
}
