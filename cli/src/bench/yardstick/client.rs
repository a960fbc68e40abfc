//! The end that measures.

use super::datagrams::{Datagrams, is_payload, most_payload};
use super::port::PortCarrier;
use super::tcp::{self, TcpCarrier};
use super::watch::Watch;
use super::{Carrier, Yardstick, YardstickEnd};
use crate::bench::channel::{Channel, Message, VERSION};
use crate::bench::client::{Plan, answer, print, reach};
use crate::bench::failure::Ends;
use crate::bench::histogram::Latencies;
use crate::bench::latency;
use crate::bench::params::{Mode, Side};
use crate::bench::report::{Found, Report, Surroundings};
use crate::bench::session::until_interrupted;
use crate::bench::stream;
use crate::bench::throughput::Throughput;
use crate::interrupt::Interrupt;
use crate::output;
use crate::progress::Progress;
use crate::taken;
use anyhow::{Result, bail, ensure};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// Measures and prints.
///
/// # Errors
/// As of a measurement with the transport.
pub(crate) fn run(plan: &Plan, yardstick: Yardstick, interrupt: &Interrupt) -> Result<()> {
    output::check()?;
    let progress = Progress::new(!plan.json);
    let channel = Channel::new(reach(plan)?, Side::Server, plan.params.timeout)?;
    let here = match plan.bind {
        Some(address) => address,
        None => channel.local()?,
    };
    let ends = Ends {
        here,
        there: plan.server.ip(),
        port: plan.port.clone(),
    };
    let mut watch = Watch::new(channel, interrupt, ends, plan.params.timeout);
    let mut carrier: Box<dyn Carrier> = match yardstick {
        Yardstick::Port => Box::new(meet_on_port(plan, here, &mut watch)?),
        Yardstick::Tcp => Box::new(meet_by_tcp(plan, here, &mut watch)?),
    };
    let title = yardstick.title(&plan.params);
    progress.step(&format!("{here} to {}: {title}", plan.server.ip()));

    let mut found = match plan.params.mode {
        Mode::Lat => Found::Latencies(Latencies::default()),
        Mode::Bw | Mode::Rate => Found::Throughput(Throughput::default()),
    };
    let mut around = Surroundings {
        yardstick: Some(yardstick),
        ..Surroundings::default()
    };
    let measured = measure(plan, carrier.as_mut(), &mut watch, &progress, &mut found);
    let finished = measured.and_then(|()| finish(carrier.as_mut(), &mut watch, &mut around));
    let interrupted = until_interrupted(finished)?;
    around.complete = interrupted.is_none();
    around.counters = carrier.counters();
    print(&Report::new(&plan.params, &found, around), plan.json)?;
    match interrupted {
        None => Ok(()),
        Some(interrupted) => Err(interrupted.into()),
    }
}

fn meet_on_port(plan: &Plan, here: IpAddr, watch: &mut Watch<'_>) -> Result<PortCarrier> {
    let there = plan.server.ip();
    ensure!(
        here != there,
        "the server's port has {there}: give this one another address with --bind"
    );
    let port = taken::open_port(&plan.port, here, "--bind")?;
    let payload = most_payload(port.as_ref())?;
    let ours = YardstickEnd {
        address: SocketAddr::new(here, 0),
        payload,
    };
    let theirs = meet(plan, Yardstick::Port, ours, watch)?;
    ensure!(
        is_payload(theirs.payload),
        "{} speaks of datagrams with {} bytes",
        watch.channel.peer(),
        theirs.payload
    );
    let datagrams = Datagrams::new(port, here, there)?;
    let payload = payload.min(theirs.payload);
    let mut carrier = PortCarrier::new(datagrams, &plan.params, payload)?;
    carrier.settle(watch)?;
    Ok(carrier)
}

fn meet_by_tcp(plan: &Plan, here: IpAddr, watch: &mut Watch<'_>) -> Result<TcpCarrier> {
    let ours = YardstickEnd {
        address: SocketAddr::new(here, 0),
        payload: 0,
    };
    let theirs = meet(plan, Yardstick::Tcp, ours, watch)?;
    let server = SocketAddr::new(plan.server.ip(), theirs.address.port());
    let stream = tcp::connect(server, plan.params.timeout)?;
    TcpCarrier::new(stream, &plan.params)
}

/// Asks the server for a measurement. Gives how its end is reached.
fn meet(
    plan: &Plan,
    yardstick: Yardstick,
    end: YardstickEnd,
    watch: &mut Watch<'_>,
) -> Result<YardstickEnd> {
    watch.channel.send(&Message::Yardstick {
        version: VERSION,
        yardstick,
        params: plan.params,
        end,
    })?;
    match answer(watch.channel.wait_idle(watch.interrupt))? {
        Message::YardstickReady { end } => Ok(end),
        _ => bail!("{} speaks out of turn", watch.channel.peer()),
    }
}

fn measure(
    plan: &Plan,
    carrier: &mut dyn Carrier,
    watch: &mut Watch<'_>,
    progress: &Progress,
    found: &mut Found,
) -> Result<()> {
    match found {
        Found::Latencies(latencies) => latency::sample(&plan.goal, progress, latencies, || {
            // As Trunkline's SENDs and WRITEs: half of the round trip counts.
            Ok(carrier.round_trip(watch)? / 2)
        }),
        Found::Throughput(throughput) => {
            let (first, what) = (Instant::now(), (&plan.params, progress));
            stream::count(&plan.goal, what, throughput, 0, || carrier.send(watch))?;
            while throughput.operations == 0 {
                throughput.operations = carrier.send(watch)?;
                throughput.elapsed = first.elapsed();
            }
            Ok(())
        }
    }
}

/// Ends the measurement at the server, and takes over what it counted.
fn finish(
    carrier: &mut dyn Carrier,
    watch: &mut Watch<'_>,
    around: &mut Surroundings,
) -> Result<()> {
    carrier.finish(watch)?;
    watch.channel.send(&Message::Stop { counts: Vec::new() })?;
    match watch.channel.wait_idle(watch.interrupt)? {
        Message::Done { counters, .. } => {
            around.server_counters = counters;
            Ok(())
        }
        _ => bail!("{} speaks out of turn", watch.channel.peer()),
    }
}
