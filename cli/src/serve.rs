//! `trunkline serve`: a node that carries the QPs of other programs.

mod detach;
mod settings;

use super::interrupt::Interrupt;
use super::output;
use super::range::Range;
use super::socket;
use super::taken;
use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::process::{Resource, getrlimit, setrlimit};
use settings::{Flags, Settings};
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;
use trunkline::service::Service;
use trunkline::{Drive, Node};

/// The variable that says whom to tell that programs can attach.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// How long requests that are under way have when the service ends.
const GRACE: Duration = Duration::from_secs(2);

/// How long a service without programs goes on: up to a day.
pub(crate) const LINGER: Range<f64> = Range::new(0.0, 86_400.0);

/// Options of `trunkline serve`.
#[derive(Args, Debug)]
#[command(
    after_help = "Programs attach by Node::attach, and those that were built for libibverbs are \
    started with trunkline run. The configuration file is TOML, with the names of the options as \
    keys (segment-bytes = \"1G\"), but for --detach and --end-when-idle; an option of the command \
    line goes before the file's. The service ends at SIGINT and SIGTERM: programs hear of it, and \
    their peers do."
)]
pub(crate) struct ServeArgs {
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
    /// Return once programs can attach, and serve in a session of its own; the log goes to a file
    /// beside the socket, whose name ends with .log.
    #[arg(long)]
    detach: bool,
    #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = "3")]
    #[arg(value_parser = LINGER.seconds(), allow_negative_numbers = true)]
    #[arg(help = LINGER.help(
        "End when no program has been attached for so long", " [default without SECS: 3]"
    ))]
    end_when_idle: Option<Duration>,
    /// This process is the one that --detach has started.
    #[arg(long = detach::DETACHED, hide = true)]
    detached: bool,
}

/// Runs the command.
///
/// # Errors
/// The configuration is wrong, the address or the socket is taken, or the node failed.
pub(crate) fn run(args: &ServeArgs, interrupt: &Interrupt) -> Result<()> {
    let settings = Settings::of(args.config.as_deref(), &args.flags)?;
    if args.detached {
        std::env::set_current_dir("/").context("cannot go to /")?;
    } else if args.detach {
        return detach::start(&settings.socket);
    }
    raise_limit();
    let builder = Node::builder()
        .drive(Drive::Threaded)
        .workers(settings.workers)
        .pool(settings.connections);
    let node = taken::build(builder, settings.address, "--address")?;
    let service = Service::start(node.clone(), &settings.socket, &settings.limits)
        .with_context(|| format!("cannot serve at {}", settings.socket.display()))?;
    if let Some(after) = args.end_when_idle {
        service.end_when_idle(after);
    }
    tell(&settings, args.detached)?;
    while !service.is_over() && node.health().down.is_none() {
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

/// Tells that programs can attach.
fn tell(settings: &Settings, detached: bool) -> Result<()> {
    let mut out = output::out();
    let (address, socket) = (settings.address, settings.socket.display());
    writeln!(out, "serving {address} at {socket}")?;
    out.flush()?;
    if detached {
        // Whoever started it has heard it, and listens no more.
        let nowhere = File::options().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(nowhere)?;
    }
    ready();
    Ok(())
}

/// Lets the process have as many descriptors as it may at all: programs need some each.
fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where that is refused, there are as many as before.
    let _ = setrlimit(Resource::Nofile, limit);
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
    let Some(path) = std::env::var_os(NOTIFY_SOCKET) else {
        return;
    };
    let told = socket::address(&path)
        .and_then(|to| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &to));
    if let Err(error) = told {
        super::print_line(&format!(
            "trunkline: nobody hears that it is ready: {error}"
        ));
    }
}
