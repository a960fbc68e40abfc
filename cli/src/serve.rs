//! `trunkline serve`: a node that carries the QPs of other programs.

mod settings;

use super::interrupt::Interrupt;
use super::output;
use super::taken;
use anyhow::{Context, Result, ensure};
use clap::Args;
use settings::{Flags, Settings};
use std::ffi::OsStr;
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::time::Duration;
use trunkline::service::Service;
use trunkline::{Drive, Node};

/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// How long requests that are under way have when the service ends.
const GRACE: Duration = Duration::from_secs(2);

/// Options of `trunkline serve`.
#[derive(Args, Debug)]
#[command(
    after_help = "Programs attach by Node::attach. The configuration file is TOML, with the names \
    of the options as keys (segment-bytes = \"1G\"); an option of the command line goes before \
    the file's. The service ends at SIGINT and SIGTERM: programs hear of it, and their peers do."
)]
pub(crate) struct ServeArgs {
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

/// Runs the command.
///
/// # Errors
/// The configuration is wrong, the address or the socket is taken, or the node failed.
pub(crate) fn run(args: &ServeArgs, interrupt: &Interrupt) -> Result<()> {
    let settings = Settings::of(args.config.as_deref(), &args.flags)?;
    let builder = Node::builder()
        .drive(Drive::Threaded)
        .workers(settings.workers)
        .pool(settings.connections);
    let node = taken::build(builder, settings.address, "--address")?;
    let service = Service::start(node.clone(), &settings.socket, &settings.limits)
        .with_context(|| format!("cannot serve at {}", settings.socket.display()))?;
    let mut out = output::out();
    let (address, socket) = (settings.address, settings.socket.display());
    writeln!(out, "serving {address} at {socket}")?;
    out.flush()?;
    drop(out);
    ready();
    while node.health().down.is_none() {
        ensure!(
            !service.has_failed(),
            "the thread that serves programs has failed"
        );
        if interrupt.check().is_err() {
            interrupt.heed();
            break;
        }
        std::thread::sleep(LOOK);
    }
    let failed = node.health().down;
    // Programs hear that it ends, and then their peers do.
    drop(service);
    match failed {
        Some(down) => Err(down.into()),
        None => end(&node),
    }
}

/// Ends the node; what its peers did not take in time they learn by silence.
fn end(node: &Node) -> Result<()> {
    match node.shutdown(GRACE) {
        Ok(()) | Err(trunkline::Error::Unfinished) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Tells whoever started it that programs can attach (sd_notify(3)), if it wants to know.
fn ready() {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let told =
        address(&socket).and_then(|to| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &to));
    if let Err(error) = told {
        super::print_line(&format!(
            "trunkline: nobody hears that it is ready: {error}"
        ));
    }
}

/// Where a socket is: a name that begins with `@` is one without a file.
fn address(socket: &OsStr) -> std::io::Result<SocketAddr> {
    match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(socket),
    }
}
