//! Two network namespaces that a veth pair joins. Threads of this process are in them, and what
//! they start: when all have ended the kernel takes the namespaces away, and the pair with them.

use crate::namespace::unshare;
use anyhow::{Context, Result, anyhow, bail};
use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, gettid};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio, id};
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Bytes of the longest IP packet on the link: one of RoCE with an MTU of 4096 fits.
pub(super) const MTU: u32 = 4200;
/// Address of the far end; the near one has another of its network.
pub(super) const FAR: &str = "10.9.0.2";
const NEAR: &str = "10.9.0.1";

/// Both ends of a link.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) near: Namespace,
    pub(super) far: Namespace,
}

/// A network namespace, and a thread that starts programs in it.
#[derive(Debug)]
pub(super) struct Namespace {
    /// What names it.
    path: String,
    orders: Sender<Order>,
}

/// A program to start, and who wants to know of it.
type Order = (Command, Sender<io::Result<Child>>);

impl Link {
    /// Makes both ends.
    ///
    /// # Errors
    /// This user may not, or `ip` is missing.
    pub(super) fn new() -> Result<Self> {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        let there = &far.path;
        near.ip(&format!(
            "link add near mtu {MTU} type veth peer name far mtu {MTU} netns {there}"
        ))?;
        for (namespace, name, address) in [(&near, "near", NEAR), (&far, "far", FAR)] {
            namespace.ip(&format!("address add {address}/24 dev {name}"))?;
            namespace.ip(&format!("link set {name} up"))?;
        }
        Ok(Self { near, far })
    }
}

impl Namespace {
    fn new() -> Result<Self> {
        let (orders, coming) = channel::<Order>();
        let (made, making) = channel();
        let serve = move || {
            let entered = unshare(UnshareFlags::NEWNET);
            let path = format!("/proc/{}/task/{}/ns/net", id(), gettid());
            if made.send(entered.map(|()| path)).is_err() || entered.is_err() {
                return;
            }
            for (command, started) in coming {
                // Who does not wait any more has no use for it, and it ends with this thread.
                let _ = started.send(start(command));
            }
        };
        thread::Builder::new()
            .name("namespace".into())
            .spawn(serve)?;
        let path = making.recv().context("the thread of a namespace ended")?;
        let path = path.map_err(|error| {
            let helps = match error {
                Errno::PERM => ": run it as root (it takes CAP_SYS_ADMIN)",
                Errno::INVAL => ": this kernel has none",
                _ => "",
            };
            anyhow!("cannot make a network namespace: {error}{helps}")
        })?;
        Ok(Self { path, orders })
    }

    /// Starts a program in it. It ends with this process at the latest, however that ends.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn spawn(&self, command: Command) -> Result<Child> {
        let (started, starting) = channel();
        self.orders.send((command, started))?;
        Ok(starting.recv()??)
    }

    /// Runs `ip` in it.
    fn ip(&self, words: &str) -> Result<()> {
        let mut command = Command::new("ip");
        command.args(words.split(' ')).stderr(Stdio::piped());
        let child = self.spawn(command);
        let child = child.context("cannot run ip (Debian: iproute2)")?;
        let output = child.wait_with_output().context("ip")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("ip {words}: {}", said.trim());
        }
        Ok(())
    }
}

/// Starts a program that is killed when this thread ends.
fn start(mut command: Command) -> io::Result<Child> {
    let end_too = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec it makes one system call, and takes no memory.
    unsafe { command.pre_exec(end_too) };
    command.spawn()
}
