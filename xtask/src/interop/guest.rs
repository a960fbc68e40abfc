//! The guest: booted by the script, on a bridge in a network namespace of its own, which a veth(4)
//! pair joins to the host's end: that is an interface that every kind of port can have.

use crate::{cargo, output};
use anyhow::Result;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The bridge, the host's end, and what joins them.
const BRIDGE: &str = "rxebr";
const HOST: &str = "rnic";
const JOINT: &str = "rnic-peer";
/// Largest packet of the links: RoCEv2 with 4096 bytes of payload fits.
const MTU: &str = "4200";
/// What both ends are called.
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
        up.args(["up", "-m", MTU, "-N", &guest.name, "-n", &guest.namespace]);
        up.args(["-b", BRIDGE, "-H", ""]);
        for program in programs {
            up.arg("-x").arg(program);
        }
        if let Some(file) = capture {
            up.arg("-w").arg(file);
        }
        cargo::run(up, Some(BOOT_LIMIT))?;
        let tap = format!("t-{}", guest.name);
        let [(v4, _), (v6, theirs)] = ADDRESSES;
        let (v4, v6, theirs) = (
            format!("{v4}/24"),
            format!("{v6}/64"),
            format!("{theirs}/64"),
        );
        guest.inside(["ip", "link", "set", &tap, "txqueuelen", QUEUE])?;
        let pair = ["type", "veth", "peer", "name", JOINT];
        guest.inside(
            ["ip", "link", "add", HOST, "mtu", MTU]
                .into_iter()
                .chain(pair),
        )?;
        guest.inside([
            "ip", "link", "set", JOINT, "mtu", MTU, "master", BRIDGE, "up",
        ])?;
        guest.inside(["ip", "link", "set", HOST, "up"])?;
        guest.inside(["ip", "addr", "add", &v4, "dev", HOST])?;
        guest.inside(["ip", "addr", "add", &v6, "dev", HOST, "nodad"])?;
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

    fn inside<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Result<()> {
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
