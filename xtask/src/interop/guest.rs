//! The guest: booted by the script, on a bridge in a network namespace of its own.

use crate::{cargo, output};
use anyhow::Result;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The bridge at the host's end, and what both ends are called.
const BRIDGE: &str = "rxebr";
pub(crate) const ADDRESSES: [(&str, &str); 2] =
    [("10.99.0.1", "10.99.0.2"), ("fd00:99::1", "fd00:99::2")];
/// Datagrams that may wait for the guest: an unreliable message of 8 MiB comes in one burst, and no
/// link between paces it.
const QUEUE: &str = "20000";
const BOOT_LIMIT: Duration = Duration::from_secs(150);

/// A guest that is up; it goes down when dropped.
#[derive(Debug)]
pub(crate) struct Guest {
    script: PathBuf,
    name: String,
    namespace: String,
}

impl Guest {
    pub(crate) fn boot(
        script: PathBuf,
        programs: &[PathBuf],
        capture: Option<&Path>,
    ) -> Result<Self> {
        let id = std::process::id();
        let guest = Self {
            script,
            name: format!("io{id}"),
            namespace: format!("trunkline-{id}"),
        };
        let mut up = Command::new(&guest.script);
        up.args([
            "up",
            "-m",
            "4200",
            "-N",
            &guest.name,
            "-n",
            &guest.namespace,
        ]);
        up.args(["-b", BRIDGE]);
        for program in programs {
            up.arg("-x").arg(program);
        }
        if let Some(file) = capture {
            up.arg("-w").arg(file);
        }
        cargo::run(up, Some(BOOT_LIMIT))?;
        let tap = format!("t-{}", guest.name);
        let (ours, theirs) = (
            format!("{}/64", ADDRESSES[1].0),
            format!("{}/64", ADDRESSES[1].1),
        );
        guest.inside(["ip", "link", "set", &tap, "txqueuelen", QUEUE])?;
        guest.inside(["ip", "addr", "add", &ours, "dev", BRIDGE, "nodad"])?;
        let address = format!("/bin/ip addr add {theirs} dev eth0 nodad");
        guest.shell(&address, Duration::from_secs(20))?;
        Ok(guest)
    }

    /// Runs a line of shell in the guest; gives what it printed.
    ///
    /// # Errors
    /// It failed, or did not end in time.
    pub(crate) fn shell(&self, line: &str, limit: Duration) -> Result<String> {
        cargo::output(self.exec(line, limit))
    }

    /// The command that runs a line of shell in the guest, which ends in time.
    pub(crate) fn exec(&self, line: &str, limit: Duration) -> Command {
        let mut exec = Command::new(&self.script);
        let seconds = limit.as_secs().to_string();
        exec.args(["exec", "-N", &self.name, "-T", &seconds, "--", line]);
        exec
    }

    /// The network namespace of the host's end of its link.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A command in the namespace.
    pub(crate) fn command<I: IntoIterator<Item: AsRef<OsStr>>>(&self, arguments: I) -> Command {
        let mut command = cargo::command("ip", &["netns", "exec", &self.namespace]);
        command.args(arguments);
        command
    }

    fn inside<const N: usize>(&self, arguments: [&str; N]) -> Result<()> {
        cargo::run(self.command(arguments), None)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut down = Command::new(&self.script);
        down.args(["down", "-N", &self.name]);
        if let Err(error) = cargo::run(down, None) {
            output::tell(format_args!("{error:#}"));
        }
    }
}
