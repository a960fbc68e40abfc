//! Plain connection management: a REQ, a REP and an RTU for each QP, between two nodes on the
//! loopback interface, against TCP connections between the same addresses.
//!
//! One thread drives both ends of either. The nodes do not share connections, so that each QP has
//! an InfiniBand connection of its own; all are opened at once, as `cmtime` of rdma-core does.

use crate::rounds::alternate;
use crate::{Measurement, Setting};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use trunkline::rdma_cm::{CmEvent, CmEventKind, CmId, EventChannel, Kind, Params, PortSpace};
use trunkline::{Cq, Drive, Node, Pd, QpOptions};

const CONNECTIONS: usize = 1000;
const ASKING: [u8; 4] = [127, 0, 47, 91];
const ASKED: [u8; 4] = [127, 0, 47, 92];
const PORT: u16 = 7471;
/// No step takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of a process that opens connections.
#[derive(Args, Clone, Copy, Debug)]
pub struct ConnectArgs {
    /// What it opens.
    #[arg(long, value_enum, default_value_t = Over::Cm)]
    over: Over,
    /// How many.
    #[arg(long, default_value_t = CONNECTIONS)]
    connections: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Over {
    /// QPs, by RDMA-CM.
    Cm,
    /// TCP connections.
    Tcp,
}

/// Seconds that each step took, all connections together; the names are those of `cmtime`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Steps {
    create_id: f64,
    resolve_addr: f64,
    resolve_route: f64,
    create_qp: f64,
    connect: f64,
    disconnect: f64,
    destroy: f64,
    /// From the first ID to the last connection that stands at both ends.
    until_established: f64,
}

/// `cm_plain_rate`
///
/// # Errors
/// No loopback interface, or a connection that does not come about.
pub fn plain_rate(setting: &Setting) -> Result<Measurement> {
    let mut ends = Ends::new()?;
    let count = CONNECTIONS as f64;
    let mut alone = Vec::new();
    let rates = alternate(
        setting.rounds,
        || {
            let steps = ends.round(CONNECTIONS)?;
            alone.push(count / steps.connect);
            Ok::<_, anyhow::Error>(count / steps.until_established)
        },
        || Ok(count / tcp(CONNECTIONS)?.as_secs_f64()),
    )?;
    // Further processes need the addresses.
    drop(ends);
    let measurement = Measurement::new(
        "cm_plain_rate",
        "RC QPs connected per second by REQ, REP and RTU, 1,000 at once, both ends ready, creation \
         of IDs and QPs and resolution included; two nodes on loopback, one thread",
        "TCP connections made and accepted per second between the same addresses, one thread",
        rates,
    );
    let connect = crate::rounds::median(&mut alone);
    let measurement = measurement.note(format!(
        "connecting alone, with QPs and routes there before: {connect:.0} per second"
    ));
    Ok(match system_calls(setting) {
        Ok((cm, tcp)) => measurement.note(format!(
            "system calls per connection, both ends, as strace counts them: {cm:.2}; of TCP \
             {tcp:.2}, without closing"
        )),
        Err(error) => measurement.note(format!("system calls were not counted: {error:#}")),
    })
}

/// One end: a node and what its QPs need.
struct End {
    node: Node,
    pd: Pd,
    cq: Cq,
    channel: EventChannel,
}

impl End {
    fn new(address: [u8; 4]) -> Result<Self> {
        let node = Node::builder()
            .address(IpAddr::from(address))
            .drive(Drive::Inline)
            .sharing(false)
            .build()?;
        Ok(Self {
            pd: node.alloc_pd(),
            cq: node.create_cq(64)?,
            channel: node.create_event_channel()?,
            node,
        })
    }

    fn give_qp(&self, id: &CmId) -> Result<()> {
        let options = QpOptions::default();
        id.create_qp(&self.pd, &self.cq, &self.cq, &options)?;
        Ok(())
    }
}

struct Ends {
    asking: End,
    asked: End,
    _listener: CmId,
}

impl Ends {
    fn new() -> Result<Self> {
        let (asking, asked) = (End::new(ASKING)?, End::new(ASKED)?);
        let listener = asked.channel.create_id(PortSpace::Tcp, Kind::Rc)?;
        listener.bind((IpAddr::from(ASKED), PORT).into())?;
        listener.listen(0)?;
        Ok(Self {
            asking,
            asked,
            _listener: listener,
        })
    }

    /// Opens so many connections, and closes them.
    fn round(&mut self, count: usize) -> Result<Steps> {
        let mut steps = Steps::default();
        let started = Instant::now();
        let to = SocketAddr::from((ASKED, PORT));
        let mut watch = Stopwatch::start();
        let create = || self.asking.channel.create_id(PortSpace::Tcp, Kind::Rc);
        let ids: Vec<_> = (0..count).map(|_| create()).collect::<Result<_, _>>()?;
        steps.create_id = watch.lap();
        ids.iter()
            .try_for_each(|id| id.resolve_addr(to, PATIENCE))?;
        self.wait_for(count, |kind| matches!(kind, CmEventKind::AddressResolved))?;
        steps.resolve_addr = watch.lap();
        ids.iter().try_for_each(CmId::resolve_route)?;
        self.wait_for(count, |kind| matches!(kind, CmEventKind::RouteResolved))?;
        steps.resolve_route = watch.lap();
        ids.iter().try_for_each(|id| self.asking.give_qp(id))?;
        steps.create_qp = watch.lap();
        let theirs = self.connect(&ids)?;
        steps.connect = watch.lap();
        steps.until_established = started.elapsed().as_secs_f64();
        ids.iter().try_for_each(CmId::disconnect)?;
        self.wait_for(count, |kind| {
            matches!(kind, CmEventKind::Disconnected { .. })
        })?;
        steps.disconnect = watch.lap();
        drop((ids, theirs));
        steps.destroy = watch.lap();
        // What was left behind does not reach into the next round.
        while self.turn()? {}
        while self.asked.channel.poll_event().is_some() {}
        Ok(steps)
    }

    fn turn(&self) -> Result<bool> {
        Ok(self.asking.node.poll()? | self.asked.node.poll()?)
    }

    /// Connects all, and accepts all at the other end; gives the IDs there.
    fn connect(&self, ids: &[CmId]) -> Result<Vec<CmId>> {
        let params = Params {
            responder_resources: 1,
            initiator_depth: 1,
            ..Params::default()
        };
        ids.iter().try_for_each(|id| id.connect(&params))?;
        let (mut theirs, mut standing) = (Vec::with_capacity(ids.len()), 0);
        let started = Instant::now();
        while standing < 2 * ids.len() {
            self.turn()?;
            while let Some(event) = self.asking.channel.poll_event() {
                match event.kind {
                    CmEventKind::Established { .. } => standing += 1,
                    other => bail!("asking: {other:?}"),
                }
            }
            while let Some(CmEvent { id, kind }) = self.asked.channel.poll_event() {
                match kind {
                    CmEventKind::ConnectRequest { .. } => {
                        self.asked.give_qp(&id)?;
                        id.accept(&params)?;
                        theirs.push(id);
                    }
                    CmEventKind::Established { .. } => standing += 1,
                    other => bail!("asked: {other:?}"),
                }
            }
            ensure!(started.elapsed() < PATIENCE, "{standing} ends stand");
        }
        Ok(theirs)
    }

    /// Waits for `count` events of the end that asks.
    fn wait_for(&self, count: usize, fits: impl Fn(&CmEventKind) -> bool) -> Result<()> {
        let (mut found, started) = (0, Instant::now());
        while found < count {
            self.turn()?;
            while let Some(event) = self.asking.channel.poll_event() {
                ensure!(fits(&event.kind), "{:?}", event.kind);
                found += 1;
            }
            while let Some(event) = self.asked.channel.poll_event() {
                let kind = event.kind;
                ensure!(matches!(kind, CmEventKind::Disconnected { .. }), "{kind:?}");
            }
            ensure!(started.elapsed() < PATIENCE, "{found} of {count}");
        }
        Ok(())
    }
}

/// Times of steps that follow each other.
struct Stopwatch(Instant);

impl Stopwatch {
    fn start() -> Self {
        Self(Instant::now())
    }

    /// Seconds since the last lap.
    fn lap(&mut self) -> f64 {
        let last = std::mem::replace(&mut self.0, Instant::now());
        (self.0 - last).as_secs_f64()
    }
}

/// Time of so many TCP connections. Closing them is not part of it.
fn tcp(count: usize) -> Result<Duration> {
    let listener = TcpListener::bind((IpAddr::from(ASKED), 0))?;
    let to = listener.local_addr()?;
    let mut streams = Vec::with_capacity(2 * count);
    let started = Instant::now();
    for _ in 0..count {
        streams.push(TcpStream::connect(to)?);
        streams.push(listener.accept()?.0);
    }
    Ok(started.elapsed())
}

/// Opens connections once, and says how long each step took.
///
/// # Errors
/// A connection that does not come about.
pub fn part(arguments: &ConnectArgs) -> Result<()> {
    match arguments.over {
        Over::Cm => {
            let steps = Ends::new()?.round(arguments.connections)?;
            println!("{}", serde_json::to_string(&steps)?);
        }
        Over::Tcp => {
            tcp(arguments.connections)?;
        }
    }
    Ok(())
}

/// System calls per connection, of QPs and of TCP.
fn system_calls(setting: &Setting) -> Result<(f64, f64)> {
    let per_connection = |over: &str| {
        // What a process does besides opening connections cancels out.
        let (few, many) = (CONNECTIONS, 3 * CONNECTIONS);
        let calls = count_calls(setting, over, many)?.checked_sub(count_calls(setting, over, few)?);
        let calls = calls.context("more connections take fewer calls")?;
        Ok::<_, anyhow::Error>(calls as f64 / (many - few) as f64)
    };
    Ok((per_connection("cm")?, per_connection("tcp")?))
}

fn count_calls(setting: &Setting, over: &str, connections: usize) -> Result<u64> {
    let output = Command::new("strace")
        .args(["-f", "-c", "-U", "calls", "-e", "trace=!close", "--"])
        .arg(&setting.program)
        .args(["connect", "--over", over])
        .args(["--connections", &connections.to_string()])
        .stdout(Stdio::null())
        .output()
        .context("no strace")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "strace: {text}");
    parse_calls(&text).context("strace counted nothing")
}

/// The sum in the last line of a table of `strace -c -U calls`.
fn parse_calls(text: &str) -> Option<u64> {
    let total = text.lines().rfind(|line| !line.trim().is_empty())?;
    total.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_connections_come_about_and_go() {
        let mut ends = Ends::new().expect("4791 is free on loopback");
        for _ in 0..2 {
            let steps = ends.round(10).expect("they connect");
            assert!(steps.connect > 0.0 && steps.connect < steps.until_established);
        }
    }

    #[test]
    fn the_sum_of_calls_is_in_the_last_line() {
        let table = "    calls\n---------\n       12\n        3\n---------\n       15\n\n";
        assert_eq!(parse_calls(table), Some(15));
        assert_eq!(parse_calls("nothing"), None);
    }
}
