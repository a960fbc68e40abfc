//! The rate of small SENDs between two processes, against tagged messages of UCX over TCP.

mod end;
mod ends;
mod ucx;

use crate::cpus::Pinned;
use crate::link::Side;
use crate::place::Place;
use crate::process::Process;
use crate::rounds::median;
use crate::{Measurement, Setting};
use anyhow::{Context, Result, ensure};
use std::time::Duration;
use ucx::Ucx;

pub use ends::{SendArgs, part};

/// Before anything counts.
const WARM_UP: Duration = Duration::from_millis(200);
/// Messages per second that there have to be anyway.
const LEAST: f64 = 2e6;

/// `udp_send64`
///
/// # Errors
/// A process that fails.
pub fn send64(setting: &Setting) -> Result<Measurement> {
    let (rate, ucx) = measure(setting, &Place::Loopback)?;
    let unit = "SENDs of 64 B per second, 64 QPs, 16 under way on each, two processes on loopback";
    let measurement = match &ucx {
        Ok(ucx) => Measurement::new(
            "udp_send64",
            unit,
            "tagged messages of 64 B per second over TCP, by ucx_perftest (tag_bw), by turns",
            (rate, *ucx),
        )
        .note(format!(
            "{:.2} of the least that is wanted, {LEAST:.0}",
            rate / LEAST
        )),
        Err(error) => Measurement::new(
            "udp_send64",
            unit,
            "the least that is wanted; UCX was not measured",
            (rate, LEAST),
        )
        .note(format!("no UCX beside it: {error:#}")),
    };
    let veth = Place::veth(&setting.program).and_then(|veth| measure(setting, &veth));
    Ok(measurement.note(match veth {
        Ok((rate, Ok(ucx))) => {
            let ratio = rate / ucx;
            format!("across a veth pair: {rate:.0}, UCX {ucx:.0}, ratio {ratio:.2}")
        }
        Ok((rate, Err(_))) => format!("across a veth pair: {rate:.0}"),
        Err(error) => format!("not measured across a veth pair: {error:#}"),
    }))
}

/// Medians of both rates; why there is none of UCX.
fn measure(setting: &Setting, place: &Place) -> Result<(f64, Result<f64>)> {
    let ucx = Ucx::new(place, setting.duration);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..setting.rounds {
        ours.push(rate(setting, place)?);
        if let Ok(ucx) = &ucx {
            theirs.push(ucx.rate()?);
        }
    }
    Ok((median(&mut ours), ucx.map(|_| median(&mut theirs))))
}

/// SENDs per second in one round, each process on a CPU of its own if there are two: both poll, and
/// where they were put would be a part of the figure.
fn rate(setting: &Setting, place: &Place) -> Result<f64> {
    let cpus = Pinned::ways()?[0];
    let start = |side, role, cpu: usize| {
        let mut command = place.command(side, &setting.program);
        command.args(["send64", role, &place.address(side).to_string()]);
        command.args(["--cpu", &cpu.to_string()]);
        command.args(["--seconds", &setting.duration.as_secs_f64().to_string()]);
        Process::start(command)
    };
    let mut server = start(Side::West, "server", cpus.server)?;
    let mut client = start(Side::East, "client", cpus.client)?;
    // What they are called, and that both are ready.
    for _ in 0..2 {
        let (of_server, of_client) = (server.hear_line()?, client.hear_line()?);
        server.say_line(&of_client)?;
        client.say_line(&of_server)?;
    }
    let (sent, in_time, seconds): (u64, u64, f64) =
        client.hear().context("the client's figures")?;
    server.say_line("\n")?;
    let received: u64 = server.hear().context("the server's figures")?;
    ensure!(received == sent, "{received} of {sent} messages came");
    Ok(in_time as f64 / seconds)
}
