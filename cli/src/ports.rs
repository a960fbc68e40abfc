//! `trunkline ports`: which kinds of ports an address of this machine can have, and how fast they
//! are.

mod link;
mod measure;
mod table;

use crate::interrupt::Interrupt;
use crate::output::{self, print_json};
use crate::port::built_in_kinds;
use crate::range::Range;
use crate::run::service::default_address;
use crate::usage::wrong;
use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;
use trunkline::{Node, PortFamily, PortKind, PortTrial};

/// Seconds that one measurement takes.
const SECONDS: Range<f64> = Range::new(0.05, 3600.0);

/// Options of `trunkline ports`.
#[derive(Args, Debug)]
#[command(
    after_help = "Each kind is opened for a moment on the address, so none works while a node has \
    it. Of kinds that name a device (dpdk:...) none is opened: what they need is looked for, and a \
    device is tried when a node is opened on it; they do not count for the exit code. --port of \
    other commands takes the names."
)]
pub(crate) struct PortsArgs {
    /// Address of a node [default: the one with which packets leave by the default route, else
    /// 127.0.0.1].
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Measure how fast each kind is, beside the same without Trunkline's transport and TCP: in two
    /// network namespaces of their own, which takes root.
    #[arg(long, conflicts_with = "address")]
    measure: bool,
    /// With --measure: this kind alone, or these [default: udp, packet and xdp].
    #[arg(long, value_parser = built_in_kinds(), requires = "measure")]
    port: Vec<PortKind>,
    #[arg(long, value_name = "SECS", default_value = "1", requires = "measure")]
    #[arg(value_parser = SECONDS.seconds(), allow_negative_numbers = true)]
    #[arg(help = SECONDS.help("With --measure: time for each of six measurements of a kind", ""))]
    seconds: Duration,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// What there is at an address.
#[derive(Debug, Serialize)]
struct Found {
    address: IpAddr,
    ports: Vec<Kind>,
}

#[derive(Debug, Serialize)]
struct Kind {
    /// What `--port` calls it.
    port: String,
    #[serde(skip)]
    about: &'static str,
    /// `null`: what it needs is there, and a device is tried when it is used.
    works: Option<bool>,
    /// Workers that a node on it has to have; `null`: any number.
    workers: Option<u8>,
    /// What there is to know of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    how: Option<String>,
    /// Why it does not work, and what helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Kind {
    fn of(kind: &PortKind, address: IpAddr) -> Self {
        let (trial, why) = match kind.try_on(address) {
            Ok(trial) => (trial, None),
            Err(error) => (PortTrial::default(), Some(error.to_string())),
        };
        Self {
            port: kind.name().to_owned(),
            about: kind.about(),
            works: Some(why.is_none()),
            workers: trial.workers,
            how: trial.how,
            why,
        }
    }

    /// What this machine has for ports that name a device: none of them is opened.
    fn of_family(family: &dyn PortFamily, address: IpAddr) -> Self {
        let (how, why) = match family.look(address) {
            Ok(how) => (Some(how), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self {
            port: format!("{}:...", family.name()),
            about: family.about(),
            works: why.is_some().then_some(false),
            workers: None,
            how,
            why,
        }
    }

    /// What becomes of it, in a line.
    fn said(&self) -> String {
        if let Some(why) = &self.why {
            return why.clone();
        }
        if self.works.is_none() {
            let how = self.how.as_deref().unwrap_or("what it needs");
            return format!("there is {how}; a device is tried when a node is opened on it");
        }
        let workers = self.workers.map(|count| format!("with --workers {count}"));
        let parts = [Some("works".to_owned()), self.how.clone(), workers];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        parts.join(", ")
    }
}

/// Runs the command.
///
/// # Errors
/// No node can have the address, or no kind of port works there, or what it takes to measure cannot
/// be had, or Ctrl-C.
pub(crate) fn run(args: &PortsArgs, interrupt: &Interrupt) -> Result<()> {
    if args.measure {
        return measure::run(args, interrupt);
    }
    let address = args.address.unwrap_or_else(default_address).to_canonical();
    Node::check_address(address).map_err(|error| wrong(format!("--address: {error}")))?;
    let built_in = PortKind::BUILT_IN.into_iter();
    let families = PortKind::families().into_iter();
    let ports = built_in
        .map(|kind| Kind::of(&kind, address))
        .chain(families.map(|family| Kind::of_family(family, address)))
        .collect();
    let found = Found { address, ports };
    if args.json {
        print_json(&found)?;
    } else {
        print(&found)?;
    }
    if !found.ports.iter().any(|kind| kind.works == Some(true)) {
        bail!("no kind of port works on {address}");
    }
    Ok(())
}

fn print(found: &Found) -> Result<()> {
    let mut out = output::out();
    writeln!(out, "ports of {}", found.address)?;
    for kind in &found.ports {
        let (port, about, said) = (&kind.port, kind.about, kind.said());
        writeln!(out, "  {port:<8} {about}\n           {said}")?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests;
