//! `trunkline serve`: a node that carries the QPs of other programs.

mod detach;
mod settings;

use super::interrupt::Interrupt;
use super::output;
use super::range::Range;
use super::shortage::MORE_MEMORY;
use super::socket;
use super::taken;
use super::usage::wrong;
use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::process::{Resource, getrlimit, setrlimit};
use settings::{Flags, Settings};
use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use trunkline::service::Service;
use trunkline::{Down, Drive, Node};
use trunkline_dataplane::process::share_one_heap;

/// The variable that says whom to tell that programs can attach.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// How long requests that are under way have when the service ends.
const GRACE: Duration = Duration::from_secs(2);
/// Memory that a worker needs to start, at most.
const START_BYTES: usize = 12 << 20;

/// How long a service without programs goes on: up to a day.
pub(crate) const LINGER: Range<f64> = Range::new(0.0, 86_400.0);

/// Options of `trunkline serve`.
#[derive(Args, Debug)]
#[command(
    after_help = "Programs attach by Node::attach, and those that were built for libibverbs are \
    started with trunkline run. The configuration file is TOML, with the names of the options as \
    keys (segment-bytes = \"1G\"), but for --detach, --end-when-idle and --log; an option of the \
    command line goes before the file's. The service ends at SIGINT and SIGTERM: programs hear of \
    it, and their peers do."
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
        "End when no program has been attached for so long, for one address",
        " [default without SECS: 3]"
    ))]
    end_when_idle: Option<Duration>,
    /// This process is the one that --detach has started.
    #[arg(long = detach::DETACHED, hide = true)]
    detached: bool,
}

/// Runs the command.
///
/// # Errors
/// The configuration is wrong, an address or a socket is taken, or a node failed.
pub(crate) fn run(args: &ServeArgs, interrupt: &Interrupt) -> Result<()> {
    let settings = Settings::of(args.config.as_deref(), &args.flags)?;
    if args.end_when_idle.is_some() && settings.places.len() > 1 {
        return Err(wrong(
            "--end-when-idle: it is for a service of one --address",
        ));
    }
    let addresses: Vec<_> = settings
        .places
        .iter()
        .map(|(address, _)| *address)
        .collect();
    let together = settings.port.check_together(&addresses);
    together.map_err(|conflict| wrong(format!("--port: {conflict}")))?;
    if args.detached {
        std::env::set_current_dir("/").context("cannot go to /")?;
    } else if args.detach {
        return detach::start(&settings.places[0].1, interrupt);
    }
    raise_limit();
    check_memory(settings.workers, settings.places.len())?;
    // Packets allocate nothing; programs that come and go do.
    share_one_heap();
    let served = start(&settings, args.end_when_idle)?;
    tell(&settings, args.detached)?;
    let failed = wait(&served, interrupt)?;
    // Programs hear that it ends, and then their peers do.
    let nodes: Vec<_> = served.into_iter().map(|(node, _)| node).collect();
    match failed {
        Some((address, down)) => {
            let what = format!("the service ends, as its node on {address} does");
            Err(anyhow::Error::from(down).context(what))
        }
        None => end(&nodes),
    }
}

/// Starts a node at each address, and its service.
///
/// # Errors
/// An address or a socket is taken.
fn start(settings: &Settings, idle: Option<Duration>) -> Result<Vec<(Node, Service)>> {
    let mut served = Vec::new();
    for (address, socket) in &settings.places {
        let builder = Node::builder()
            .drive(Drive::Threaded)
            .port(settings.port.clone())
            .workers(settings.workers)
            .pool(settings.connections);
        let node = taken::build(builder, *address, "--address")?;
        let service = Service::start(node.clone(), socket, &settings.limits)
            .with_context(|| format!("cannot serve at {}", socket.display()))?;
        if let Some(after) = idle {
            service.end_when_idle(after);
        }
        served.push((node, service));
    }
    Ok(served)
}

/// Waits until all are over, or somebody asks for the end. Gives which node has failed, and why,
/// if one has.
///
/// # Errors
/// A thread that serves programs has failed.
fn wait(served: &[(Node, Service)], interrupt: &Interrupt) -> Result<Option<(IpAddr, Down)>> {
    while !served.iter().all(|(_, service)| service.is_over()) {
        for (node, service) in served {
            ensure!(
                !service.has_failed(),
                "the thread that serves programs has failed"
            );
            if let Some(down) = node.health().down {
                return Ok(Some((node.gid().address(), down)));
            }
        }
        if interrupt.check().is_err() {
            interrupt.heed();
            break;
        }
        std::thread::sleep(LOOK);
    }
    Ok(None)
}

/// Tells that programs can attach.
fn tell(settings: &Settings, detached: bool) -> Result<()> {
    let nowhere = detached.then(|| File::options().write(true).open("/dev/null"));
    let nowhere = nowhere.transpose().context("cannot open /dev/null")?;
    let mut out = output::out();
    let place =
        |(address, socket): &(IpAddr, PathBuf)| format!("{address} at {}", socket.display());
    let places: Vec<_> = settings.places.iter().map(place).collect();
    writeln!(out, "serving {}", places.join(", "))?;
    out.flush()?;
    if let Some(nowhere) = nowhere {
        // Whoever started it has heard it, and listens no more.
        rustix::stdio::dup2_stdout(nowhere)?;
    }
    ready();
    Ok(())
}

/// Checks that there is as much memory as nodes need to start, while that can still be said.
///
/// # Errors
/// There is not.
fn check_memory(workers: u8, nodes: usize) -> Result<()> {
    let bytes = START_BYTES * usize::from(workers) * nodes;
    let mut room = Vec::<u8>::new();
    let is_there = room.try_reserve_exact(bytes).is_ok();
    // It is asked for though nobody uses it.
    std::hint::black_box(&room);
    let mib = bytes >> 20;
    ensure!(
        is_there,
        "cannot serve: there are no {mib} MiB of memory to start with: {MORE_MEMORY}"
    );
    Ok(())
}

/// Lets the process have as many descriptors as it may at all: programs need some each.
fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where that is refused, there are as many as before.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Ends the nodes; what their peers did not take in time they learn by silence.
fn end(nodes: &[Node]) -> Result<()> {
    let within = Instant::now() + GRACE;
    for node in nodes {
        match node.shutdown(within.saturating_duration_since(Instant::now())) {
            Ok(()) | Err(trunkline::Error::Unfinished) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
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
