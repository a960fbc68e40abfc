//! The user's own service at an address: one per network namespace, started where none runs.

use crate::log;
use crate::runtime::{self, SESSION, try_lock};
use crate::socket;
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use rustix::fs::Mode;
use rustix::process::{geteuid, umask};
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use trunkline::PortKind;
use trunkline::service::Hold;
use trunkline::status::{self, StatusError};

/// How long another command may take to start the service.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often that is looked for.
const LOOK: Duration = Duration::from_millis(10);
/// How often a service is started: the one before may just be ending.
const TRIES: usize = 3;
/// How long who has an address may take to say what it is.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Addresses for documentation (RFC 5737, RFC 3849): the way there is the default route.
const ANYWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// The address with which packets leave by the default route, else that of the loop.
pub(crate) fn default_address() -> IpAddr {
    let found = ANYWHERE.into_iter().find_map(source);
    found.unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// The address with which packets to `peer` leave.
fn source(peer: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match peer {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Nothing is sent: this asks for the route.
    socket.connect((peer, 9)).ok()?;
    let source = socket.local_addr().ok()?.ip();
    let is_local = matches!(source, IpAddr::V6(source) if source.is_unicast_link_local());
    (!is_local && !source.is_unspecified()).then_some(source)
}

/// Files that are made meanwhile are this user's alone, whatever was set before.
struct Private(Mode);

impl Private {
    fn begin() -> Self {
        Self(umask(Mode::RWXG | Mode::RWXO))
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        umask(self.0);
    }
}

/// Holds the user's own service at `address`, and says where its socket is. An IPv4 address that is
/// written as IPv6 (::ffff:127.0.0.1) is the same address.
///
/// # Errors
/// It does not run and cannot be started, or does not answer.
pub(super) fn hold(address: IpAddr, how: &Start) -> Result<(PathBuf, Hold)> {
    let _private = Private::begin();
    let address = address.to_canonical();
    let socket = socket_of(address)?;
    if let Some(hold) = Hold::take(&socket)? {
        return Ok((socket, hold));
    }
    // Of those that start it at the same time one does, and the others find it.
    let _turn = turn(&socket)?;
    for _ in 0..TRIES {
        if let Some(hold) = Hold::take(&socket)? {
            return Ok((socket, hold));
        }
        start(address, &socket, how).map_err(|error| anyhow!("{error:#}{}", remedy(address)))?;
    }
    bail!(
        "the service at {} ended as soon as it had begun: see {0}.log",
        socket.display()
    )
}

/// Those of these addresses at which the user has no service.
///
/// # Errors
/// One of them does not answer.
pub(super) fn missing(addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>> {
    let _private = Private::begin();
    let mut missing = Vec::new();
    for address in addresses {
        if Hold::take(&socket_of(address)?)?.is_none() {
            missing.push(address);
        }
    }
    Ok(missing)
}

fn socket_of(address: IpAddr) -> Result<PathBuf> {
    let namespace = std::fs::metadata("/proc/self/ns/net").context("/proc/self/ns/net")?;
    let name = format!("net-{}-{address}.socket", namespace.ino());
    let path = runtime::folder()?.join(name);
    ensure!(
        socket::address(path.as_os_str()).is_ok(),
        "{} is too long for a socket, of which {SESSION} names the folder",
        path.display()
    );
    Ok(path)
}

/// Waits for the turn to start a service at that socket.
fn turn(socket: &Path) -> Result<File> {
    let path = socket.with_extension("starting");
    let shown = path.display();
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).open(&path);
    let file =
        file.map_err(|error| anyhow!("cannot open {shown}: {error}: {}", runtime::remedy(&error)))?;
    let end = Instant::now() + PATIENCE;
    while !try_lock(&file)? {
        if Instant::now() > end {
            bail!("another trunkline run starts a service, and does not come to an end: {shown}");
        }
        std::thread::sleep(LOOK);
    }
    Ok(file)
}

/// How a service is started.
#[derive(Clone, Debug)]
pub(super) struct Start {
    /// How long it outlives its programs.
    pub(super) linger: Duration,
    /// What it writes to its log.
    pub(super) level: Option<log::Level>,
    /// What carries its packets.
    pub(super) port: Option<PortKind>,
}

/// Runs `trunkline serve --detach`.
fn start(address: IpAddr, socket: &Path, how: &Start) -> Result<()> {
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    let mut command = Command::new(program);
    command.args(["serve", "--detach", "--address", &address.to_string()]);
    command.arg("--socket").arg(socket);
    command.args(["--end-when-idle", &how.linger.as_secs_f64().to_string()]);
    let level = how.level.as_ref().and_then(ValueEnum::to_possible_value);
    if let Some(level) = level {
        command.args(["--log", level.get_name()]);
    }
    if let Some(port) = &how.port {
        command.args(["--port", &port.to_string()]);
    }
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start a process")?;
    let [mut told, mut said] = [String::new(), String::new()];
    if let (Some(mut out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) {
        out.read_to_string(&mut told)?;
        err.read_to_string(&mut said)?;
    }
    // Who ignores SIGCHLD has no children to wait for, so its words say how it ended.
    let ended = child.wait();
    if !told.is_empty() {
        return Ok(());
    }
    match (said.trim(), ended) {
        ("", Ok(status)) => bail!("the command that starts a service was ended: {status}"),
        ("", Err(_)) => bail!("the command that starts a service was ended"),
        (said, _) => bail!("{}", said.strip_prefix("trunkline: ").unwrap_or(said)),
    }
}

/// What to do where somebody else has the address.
fn remedy(address: IpAddr) -> String {
    match status::ask(address, ANSWER_WITHIN) {
        Ok(node) => match node.service {
            // A program hands its memory to its service: only to root's, or the user's own.
            Some(service) if is_trusted(node.pid) => format!(
                ", or attach to the service there with --socket {}",
                service.socket
            ),
            Some(_) | None => String::new(),
        },
        Err(StatusError::OtherUser { uid, .. }) => {
            format!(", or attach to the service there, if user {uid} has one, with --socket")
        }
        Err(_) => String::new(),
    }
}

/// Whether a process is this user's or root's.
fn is_trusted(pid: u32) -> bool {
    let found = std::fs::metadata(format!("/proc/{pid}"));
    found.is_ok_and(|found| [0, geteuid().as_raw()].contains(&found.uid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_address_is_one_of_this_host() {
        let address = default_address();
        assert!(UdpSocket::bind((address, 0)).is_ok(), "{address}");
        assert_eq!(
            source(Ipv4Addr::LOCALHOST.into()),
            Some(Ipv4Addr::LOCALHOST.into())
        );
    }
}
