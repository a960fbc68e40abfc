//! `--listen`: serves one client after another.

use super::channel::{Channel, EndAddress, Message};
use super::end::End;
use super::failure::Ends;
use super::node;
use super::params::{Mode, Params, Side};
use super::session::Session;
use super::yardstick::{self, Watch};
use super::{latency, ping, stream};
use crate::interrupt::{Interrupt, Interrupted};
use crate::metrics::{self, Metrics};
use crate::{chain, print_error, print_line, taken};
use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use trunkline::PortKind;

/// How long a wait for clients lasts before it looks for Ctrl-C.
const WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// The option that names the node's address.
pub(super) const LISTEN: &str = "--listen";

/// What the command line says.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Address of the node, and with the port that of the control connections.
    pub(crate) address: IpAddr,
    /// Port of the control connections.
    pub(crate) tcp_port: u16,
    /// What carries the node's packets.
    pub(crate) port: PortKind,
    /// Serve one client only.
    pub(crate) once: bool,
    /// How long nothing may move.
    pub(crate) timeout: Duration,
    /// Where metrics are told.
    pub(crate) metrics: Option<SocketAddr>,
}

/// Serves.
///
/// # Errors
/// The address cannot be used, or Ctrl-C. A client that goes wrong is told about, and the next is
/// served, unless there is to be only one.
pub(crate) fn run(plan: &Plan, interrupt: &Interrupt) -> Result<()> {
    // Nodes live as long as their clients, which say how many workers they have; one that cannot
    // start should be told about at once.
    taken::try_port(&plan.port, plan.address, LISTEN)?;
    let asked = SocketAddr::new(plan.address, plan.tcp_port);
    let listener = TcpListener::bind(asked).map_err(|error| refused(asked, error))?;
    listener.set_nonblocking(true).context("control socket")?;
    let port = listener.local_addr().context("control socket")?.port();
    let (metrics, told_at) = Metrics::serve(plan.metrics)?;
    print_line(&format!("listening on {}, port {port}", plan.address));
    told_at.into_iter().for_each(metrics::say);
    loop {
        let (stream, client) = accept(&listener, interrupt)?;
        let served = serve(plan, stream, &metrics, interrupt);
        match &served {
            Ok(wanted) => print_line(&format!("{client}: {wanted}: done")),
            Err(error) if plan.once || error.is::<Interrupted>() => {}
            Err(error) => print_error(&format!("{client}: {}", chain(error))),
        }
        match served {
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) if plan.once => return Err(error.context(client)),
            Ok(_) if plan.once => return Ok(()),
            _ => {}
        }
    }
}

/// Why there can be no control connections at that address.
fn refused(asked: SocketAddr, error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        // A port that needs no interface has the address to itself.
        ErrorKind::AddrNotAvailable => anyhow!(
            "cannot listen on {asked}: {0} is of no interface of this host, and bench needs one \
             for its TCP connection: `ip address add {0} dev lo` beside a port of DPDK",
            asked.ip()
        ),
        _ => taken::refused(asked, error, "--tcp-port, at both ends"),
    }
}

fn accept(listener: &TcpListener, interrupt: &Interrupt) -> Result<(TcpStream, SocketAddr)> {
    loop {
        interrupt.check()?;
        match listener.accept() {
            Ok(accepted) => return Ok(accepted),
            // A client that left again, or a signal.
            Err(error)
                if [ErrorKind::ConnectionAborted, ErrorKind::Interrupted]
                    .contains(&error.kind()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&WAIT)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error).context("control socket"),
                }
            }
            Err(error) => return Err(error).context("cannot take a client"),
        }
    }
}

/// Serves one client; gives what it wanted, for people.
fn serve(
    plan: &Plan,
    stream: TcpStream,
    metrics: &Metrics,
    interrupt: &Interrupt,
) -> Result<String> {
    let client = stream.peer_addr().context("control connection")?.ip();
    let mut channel = Channel::new(stream, Side::Client, plan.timeout)?;
    match channel.wait_idle(interrupt)? {
        Message::Hello { params, end, .. } => {
            let params = match judged(plan, params) {
                Ok(params) => params,
                Err(error) => return Err(report(&mut channel, error)),
            };
            serve_qps(plan, channel, (params, end), metrics, interrupt)?;
            Ok(params.to_string())
        }
        Message::Yardstick {
            yardstick,
            params,
            end,
            ..
        } => {
            let ends = Ends {
                here: plan.address,
                there: end.address().ip(),
                port: plan.port.clone(),
            };
            let timeout = params.timeout.max(plan.timeout);
            let mut watch = Watch::new(channel, interrupt, ends, timeout);
            let served = judged(plan, params).and_then(|params| {
                yardstick::serve(plan, (yardstick, &params), (client, end), &mut watch)
            });
            match served {
                Ok(()) => Ok(yardstick.title(&params)),
                Err(error) => Err(report(&mut watch.channel, error)),
            }
        }
        _ => bail!("it does not say hello"),
    }
}

/// What a client wants, if it is within bounds.
fn judged(plan: &Plan, mut params: Params) -> Result<Params> {
    params.check()?;
    params.timeout = params.timeout.max(plan.timeout);
    Ok(params)
}

fn serve_qps(
    plan: &Plan,
    mut channel: Channel,
    (params, theirs): (Params, EndAddress),
    metrics: &Metrics,
    interrupt: &Interrupt,
) -> Result<()> {
    let ready = || {
        let node = node::start((plan.address, LISTEN), &plan.port, Some(&params), None)?;
        let end = End::open(node, Side::Server, params)?;
        let target = end.connect(&theirs)?;
        Ok((end, target))
    };
    let (end, target) = match ready() {
        Ok(ready) => ready,
        Err(error) => return Err(report(&mut channel, error)),
    };
    let ours = end.address();
    let _shown = metrics.show(&end.node);
    let mut session = Session::new((end, plan.port.clone()), target, params, channel, interrupt);
    measured(&mut session, Message::Ready { end: ours }).map_err(|error| {
        let why = session.explain(error);
        report(&mut session.channel, why)
    })
}

fn measured(session: &mut Session<'_>, ready: Message) -> Result<()> {
    match session.params.mode {
        Mode::Lat => latency::prepare(session)?,
        _ if ping::is_wanted(&session.params) => ping::prepare(session)?,
        Mode::Bw | Mode::Rate => stream::prepare(session)?,
    }
    session.channel.send(&ready)?;
    session.moved();
    if ping::is_wanted(&session.params) {
        ping::serve(session)?;
    }
    match session.params.mode {
        Mode::Lat => latency::serve(session)?,
        Mode::Bw | Mode::Rate => stream::serve(session)?,
    }
    let done = Message::Done {
        verified: session.verified,
        counters: session.counters(),
    };
    session.channel.send(&done)
}

/// Tells the client what went wrong, if it still listens.
fn report(channel: &mut Channel, error: anyhow::Error) -> anyhow::Error {
    // One that is gone need not know.
    let _ = channel.send(&Message::Failed { why: chain(&error) });
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_tcp_cannot_have_is_told_with_what_gives_it_one() {
        let nowhere = SocketAddr::from(([192, 0, 2, 1], 18515));
        let error = TcpListener::bind(nowhere).expect_err("no interface has it");
        let said = format!("{:#}", refused(nowhere, error));
        assert!(
            said.contains("192.0.2.1 is of no interface of this host"),
            "{said}"
        );
        assert!(said.contains("`ip address add 192.0.2.1 dev lo`"), "{said}");
        let here = TcpListener::bind("127.0.0.1:0").and_then(|listener| {
            let address = listener.local_addr()?;
            Ok((listener, address))
        });
        let (_listener, address) = here.expect("loopback has ports");
        let error = TcpListener::bind(address).expect_err("it is taken");
        let said = format!("{:#}", refused(address, error));
        assert!(
            said.ends_with("choose another one with --tcp-port, at both ends"),
            "{said}"
        );
    }
}
