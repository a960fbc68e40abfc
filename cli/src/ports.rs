//! `trunkline ports`: which kinds of ports an address of this machine can have.

use crate::output::{self, print_json};
use crate::port;
use crate::run::service::default_address;
use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use std::io::Write;
use std::net::IpAddr;
use trunkline::PortKind;

/// Options of `trunkline ports`.
#[derive(Args, Debug)]
#[command(
    after_help = "Each kind is opened for a moment on the address, so none works while a node has \
    it. --port of other commands takes the names."
)]
pub(crate) struct PortsArgs {
    /// Address of a node [default: the one with which packets leave by the default route, else
    /// 127.0.0.1].
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
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
    port: &'static str,
    works: bool,
    /// Workers that a node on it has to have; `null`: any number.
    workers: Option<u8>,
    /// Why it does not work, and what helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl Kind {
    fn of(kind: PortKind, address: IpAddr) -> Self {
        let tried = kind.try_on(address);
        Self {
            port: kind.name(),
            works: tried.is_ok(),
            workers: *tried.as_ref().unwrap_or(&None),
            why: tried.err().map(|error| error.to_string()),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// No kind of port works there.
pub(crate) fn run(args: &PortsArgs) -> Result<()> {
    let address = args.address.unwrap_or_else(default_address).to_canonical();
    let ports = PortKind::ALL.map(|kind| Kind::of(kind, address)).into();
    let found = Found { address, ports };
    if args.json {
        print_json(&found)?;
    } else {
        print(&found)?;
    }
    if !found.ports.iter().any(|kind| kind.works) {
        bail!("no kind of port works on {address}");
    }
    Ok(())
}

fn print(found: &Found) -> Result<()> {
    let mut out = output::out();
    writeln!(out, "ports of {}", found.address)?;
    for (kind, found) in PortKind::ALL.into_iter().zip(&found.ports) {
        let what = match (&found.why, found.workers) {
            (Some(why), _) => why.clone(),
            (None, Some(workers)) => format!("works, with --workers {workers}"),
            (None, None) => "works".to_owned(),
        };
        writeln!(out, "  {kind:<8} {}\n           {what}", port::help(kind))?;
    }
    Ok(out.flush()?)
}
