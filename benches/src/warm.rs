//! QPs connected per second where the two nodes know each other: one thread drives both nodes, over
//! UDP on loopback.

use crate::end::{End, connect_pairs};
use crate::rounds::alternate;
use crate::{Measurement, Setting};
use anyhow::Result;
use socket2::{Domain, Socket, Type};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use trunkline::{Drive, Node, Qp};

/// QPs that are connected at a time.
const BATCH: usize = 256;
const UNIT: &str = "pairs of QPs per second, created and connected at both ends, one thread";

/// `cm_warm_qps`
///
/// # Errors
/// An address that is taken, or a node that refuses.
pub fn qps(setting: &Setting) -> Result<Measurement> {
    let mut pair = Pair::new([1, 2], true)?;
    let listener = Listener::new()?;
    let mut away = Vec::new();
    let medians = alternate::<anyhow::Error>(
        setting.rounds,
        || {
            let (connected, destroyed) = pair.run(setting.duration)?;
            away.push(destroyed);
            Ok(connected)
        },
        || listener.run(setting.duration),
    )?;
    let yardstick = "TCP over loopback: socket, connect, accept per second, one thread";
    let destroyed = crate::rounds::median(&mut away);
    Ok(
        Measurement::new("cm_warm_qps", UNIT, yardstick, medians).note(format!(
            "destroyed again: {destroyed:.0} pairs per second, not counted above"
        )),
    )
}

fn end(last: u8, watched: bool) -> Result<End> {
    let node = Node::builder()
        .address(IpAddr::from([127, 77, 1, last]))
        .drive(Drive::Inline)
        .watched(watched)
        .build()?;
    End::new(node, 64)
}

/// Two nodes that know each other.
pub(crate) struct Pair {
    ends: [End; 2],
    /// Keeps the nodes acquainted.
    _first: Vec<[Qp; 2]>,
}

impl Pair {
    /// Nodes at 127.77.1.x, for each of `hosts` one; `watched` as for [`trunkline::Builder`].
    pub(crate) fn new(hosts: [u8; 2], watched: bool) -> Result<Self> {
        let [a, b] = hosts;
        let ends = [end(a, watched)?, end(b, watched)?];
        let mut pair = Self {
            ends,
            _first: Vec::new(),
        };
        pair._first = pair.connect(1)?;
        Ok(pair)
    }

    fn connect(&self, count: usize) -> Result<Vec<[Qp; 2]>> {
        connect_pairs(&self.ends, count, || self.turn())
    }

    fn turn(&self) -> Result<()> {
        for end in &self.ends {
            end.node.poll()?;
        }
        Ok(())
    }

    /// Pairs connected per second, and destroyed.
    pub(crate) fn run(&mut self, duration: Duration) -> Result<(f64, f64)> {
        let (mut connecting, mut destroying) = (Duration::ZERO, Duration::ZERO);
        let mut done = 0;
        while connecting < duration {
            let started = Instant::now();
            let pairs = self.connect(BATCH)?;
            connecting += started.elapsed();
            done += pairs.len();
            let started = Instant::now();
            drop(pairs);
            for _ in 0..4 {
                self.turn()?;
            }
            destroying += started.elapsed();
        }
        let rate = |time: Duration| done as f64 / time.as_secs_f64();
        Ok((rate(connecting), rate(destroying)))
    }
}

/// The yardstick.
struct Listener {
    socket: Socket,
    address: SocketAddr,
}

impl Listener {
    fn new() -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        socket.listen(128)?;
        let local = socket.local_addr()?;
        let address = local.as_socket().expect("it is bound to an IPv4 address");
        Ok(Self { socket, address })
    }

    fn run(&self, duration: Duration) -> Result<f64> {
        let (mut connecting, mut done) = (Duration::ZERO, 0);
        while connecting < duration {
            let started = Instant::now();
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.connect(&self.address.into())?;
            let accepted = self.socket.accept()?;
            connecting += started.elapsed();
            done += 1;
            // Closed by a reset: ports in TIME-WAIT would soon be all there are.
            socket.set_linger(Some(Duration::ZERO))?;
            drop(socket);
            drop(accepted);
        }
        Ok(f64::from(done) / connecting.as_secs_f64())
    }
}
