//! `--connect`: asks for a measurement and makes it.

use super::channel::{Channel, EndAddress, Message, Silent, VERSION};
use super::end::End;
use super::failure::link_down;
use super::histogram::Latencies;
use super::latency::{self, Goal};
use super::node;
use super::params::{Mode, Params, Side};
use super::report::{Found, PathReport, Report, Surroundings};
use super::session::{Session, until_interrupted};
use super::stream;
use super::throughput::Throughput;
use super::yardstick::{self, Yardstick};
use crate::capture;
use crate::interrupt::Interrupt;
use crate::metrics::{self, Metrics};
use crate::output::{self, print_json};
use crate::progress::Progress;
use anyhow::{Context, Result, bail};
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;
use trunkline::PortKind;

/// Pause of the node while the server makes its QPs.
const PAUSE: Duration = Duration::from_micros(200);

/// What the command line says.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Server.
    pub(crate) server: SocketAddr,
    /// What carries our node's packets.
    pub(crate) port: PortKind,
    /// Address of our node, unless that of the control connection.
    pub(crate) bind: Option<IpAddr>,
    /// What carries messages, if not our node.
    pub(crate) yardstick: Option<Yardstick>,
    /// What to measure.
    pub(crate) params: Params,
    /// When to stop.
    pub(crate) goal: Goal,
    /// Print JSON.
    pub(crate) json: bool,
    /// Where management datagrams are written to.
    pub(crate) capture: Option<PathBuf>,
    /// Where metrics are told.
    pub(crate) metrics: Option<SocketAddr>,
}

/// A connection to the server.
///
/// # Errors
/// There is no server, or the link to it is down.
pub(super) fn reach(plan: &Plan) -> Result<TcpStream> {
    let Plan { server, params, .. } = plan;
    let silent = |error: std::io::Error| match link_down(plan.bind, server.ip()) {
        Some(down) => anyhow::Error::from(down),
        None => error.into(),
    };
    TcpStream::connect_timeout(server, params.timeout)
        .map_err(silent)
        .with_context(|| {
            format!(
                "no server at {server} ('trunkline bench {} --listen')",
                params.mode.name()
            )
        })
}

/// Measures and prints.
///
/// # Errors
/// No server, a server that refuses or goes away, requests that fail, wrong bytes, or Ctrl-C: then
/// what there is has been printed.
pub(crate) fn run(plan: &Plan, interrupt: &Interrupt) -> Result<()> {
    let Plan { server, params, .. } = *plan;
    if let Some(yardstick) = plan.yardstick {
        return yardstick::run(plan, yardstick, interrupt);
    }
    output::check()?;
    let progress = Progress::new(!plan.json);
    let (metrics, told_at) = Metrics::serve(plan.metrics)?;
    told_at.into_iter().for_each(metrics::say);
    let stream = reach(plan)?;
    let channel = Channel::new(stream, Side::Server, params.timeout)?;
    let address = match plan.bind {
        Some(address) => address,
        None => channel.local()?,
    };
    let mut session = meet(plan, address, channel, interrupt)?;
    progress.step(&format!("{address} to {}: {params}", server.ip()));
    let _shown = metrics.show(&session.end.node);

    let mut found = match params.mode {
        Mode::Lat => Found::Latencies(Latencies::default()),
        Mode::Bw | Mode::Rate => Found::Throughput(Throughput::default()),
    };
    let mut around = Surroundings::default();
    let measured = measure(
        &mut session,
        &plan.goal,
        &progress,
        &mut found,
        &mut around.paths,
    );
    // The server's node ends when it hears that this was all.
    around.connections = session.end.node.connection_count();
    let finished = measured.and_then(|counts| finish(&mut session, counts, &mut around));
    let interrupted = until_interrupted(finished.map_err(|error| session.explain(error)))?;
    around.complete = interrupted.is_none();
    around.counters = session.counters();
    around.verified += session.verified;
    capture::check(&session.end.node, plan.capture.as_deref())?;

    print(&Report::new(&params, &found, around), plan.json)?;
    match interrupted {
        None => Ok(()),
        Some(interrupted) => Err(interrupted.into()),
    }
}

/// Prints what came out.
///
/// # Errors
/// It cannot be written.
pub(super) fn print(report: &Report, json: bool) -> Result<()> {
    if json {
        return print_json(report);
    }
    let mut out = output::out();
    write!(out, "{report}")?;
    Ok(out.flush()?)
}

/// What the server says to a client that asks for a measurement.
///
/// # Errors
/// It says no, or nothing.
pub(super) fn answer(said: Result<Message>) -> Result<Message> {
    match said {
        Err(error) if error.is::<Silent>() => bail!("{error}: it may serve another client"),
        said => said,
    }
}

/// Makes our end and connects it with the server's.
fn meet<'a>(
    plan: &Plan,
    address: IpAddr,
    mut channel: Channel,
    interrupt: &'a Interrupt,
) -> Result<Session<'a>> {
    let params = plan.params;
    if address == plan.server.ip() {
        bail!("the server's node has {address}: give this one another address with --bind");
    }
    let capture = plan.capture.as_deref();
    let end = End::open(
        node::start((address, "--bind"), &plan.port, Some(&params), capture)?,
        Side::Client,
        params,
    )?;
    channel.send(&Message::Hello {
        version: VERSION,
        params,
        end: end.address(),
    })?;
    let said = channel.wait(interrupt, || {
        // The server's node may call before the server says that it is ready.
        node::turn(&end.node)?;
        std::thread::sleep(PAUSE);
        Ok(())
    });
    let theirs: EndAddress = match answer(said)? {
        Message::Ready { end } => end,
        _ => bail!("{} speaks out of turn", channel.peer()),
    };
    let target = end.connect(&theirs)?;
    let mut session = Session::new((end, plan.port.clone()), target, params, channel, interrupt);
    if params.mode == Mode::Lat {
        latency::prepare(&mut session)?;
    }
    Ok(session)
}

/// Measures; gives the requests that were completed on each QP, where the server is to verify.
fn measure(
    session: &mut Session<'_>,
    goal: &Goal,
    progress: &Progress,
    found: &mut Found,
    paths: &mut Vec<PathReport>,
) -> Result<Vec<u64>> {
    session.moved();
    let verify = session.params.verify;
    match found {
        Found::Latencies(latencies) => {
            let mut client = latency::Client::new(session);
            client.run(goal, progress, latencies)?;
            *paths = client.paths();
            client.finish()?;
            Ok(Vec::new())
        }
        Found::Throughput(throughput) => {
            let mut client = stream::Client::new(session);
            client.run(goal, progress, throughput)?;
            *paths = client.paths();
            client.finish(progress, throughput)?;
            Ok(if verify { client.counts() } else { Vec::new() })
        }
    }
}

/// Ends the measurement at the server, and takes over what it found.
fn finish(session: &mut Session<'_>, counts: Vec<u64>, around: &mut Surroundings) -> Result<()> {
    session.channel.send(&Message::Stop { counts })?;
    let ours = session.end.node.clone();
    let answer = session.channel.wait(session.interrupt, || {
        node::turn(&ours)?;
        std::thread::sleep(PAUSE);
        Ok(())
    });
    match answer? {
        Message::Done { verified, counters } => {
            around.verified = verified;
            around.server_counters = counters;
            Ok(())
        }
        _ => bail!("{} speaks out of turn", session.channel.peer()),
    }
}
