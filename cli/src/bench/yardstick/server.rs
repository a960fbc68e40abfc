//! The end that serves.

use super::datagrams::{Datagrams, is_payload, most_payload};
use super::port::PortCarrier;
use super::tcp::{self, TcpCarrier};
use super::watch::Watch;
use super::{Carrier, Yardstick, YardstickEnd};
use crate::bench::channel::Message;
use crate::bench::params::Params;
use crate::bench::server::{LISTEN, Plan};
use crate::taken;
use anyhow::{Result, ensure};
use std::net::{IpAddr, SocketAddr};

/// Serves a client, which has the address `client` and is reached at `theirs`, to the end of its
/// measurement.
///
/// # Errors
/// A client that asks for what cannot be, or is gone or silent, or Ctrl-C.
pub(crate) fn serve(
    plan: &Plan,
    (yardstick, params): (Yardstick, &Params),
    (client, theirs): (IpAddr, YardstickEnd),
    watch: &mut Watch<'_>,
) -> Result<()> {
    let mut carrier: Box<dyn Carrier> = match yardstick {
        Yardstick::Port => Box::new(meet_on_port(plan, params, theirs, watch)?),
        Yardstick::Tcp => Box::new(meet_by_tcp(plan, params, client, watch)?),
    };
    while !watch.stopped {
        carrier.serve(params.mode, watch)?;
    }
    watch.channel.send(&Message::Done {
        verified: 0,
        counters: carrier.counters(),
    })
}

fn meet_on_port(
    plan: &Plan,
    params: &Params,
    theirs: YardstickEnd,
    watch: &mut Watch<'_>,
) -> Result<PortCarrier> {
    ensure!(
        is_payload(theirs.payload),
        "it speaks of datagrams with {} bytes",
        theirs.payload
    );
    let port = taken::open_port(&plan.port, plan.address, LISTEN)?;
    let payload = most_payload(port.as_ref())?;
    let datagrams = Datagrams::new(port, plan.address, theirs.address.ip())?;
    let carrier = PortCarrier::new(datagrams, params, payload.min(theirs.payload))?;
    ready(SocketAddr::new(plan.address, 0), payload, watch)?;
    Ok(carrier)
}

fn meet_by_tcp(
    plan: &Plan,
    params: &Params,
    client: IpAddr,
    watch: &mut Watch<'_>,
) -> Result<TcpCarrier> {
    let listener = tcp::listen(plan.address)?;
    ready(listener.local_addr()?, 0, watch)?;
    let stream = tcp::accept(&listener, client, watch)?;
    TcpCarrier::new(stream, params)
}

fn ready(address: SocketAddr, payload: u64, watch: &mut Watch<'_>) -> Result<()> {
    let end = YardstickEnd { address, payload };
    watch.channel.send(&Message::YardstickReady { end })
}
