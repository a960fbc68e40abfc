//! Ping-pong of 64 bytes: SENDs between two nodes, TCP between the same two processes, and UDP
//! ports with no node. Nobody sleeps: both ends poll.

use super::PeerArgs;
use super::node::{End, Watch};
use super::pair::Pair;
use crate::link::{EAST, WEST};
use crate::process::Parent;
use crate::rounds::{median, percentile};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use trunkline::{RecvWr, SendFlags, SendOp, SendWr, Status};
use trunkline_conn::egress::Egress;
use trunkline_dataplane::{Port, UdpConfig, UdpPort};
use trunkline_wire::{IpFields, Path};

const SIZE: usize = 64;
/// Where ports without a node talk.
const BARE_PORT: u16 = 4792;
/// Receives that wait.
const RECEIVES: usize = 16;
/// One request of so many asks for a completion.
const SIGNAL: u64 = 16;
/// Round trips before any is measured.
const WARM_UP: usize = 200;
/// Both ends are quiet after so long.
const QUIET: Duration = Duration::from_millis(5);

/// Medians and 99th percentiles of half round trips, in ns, one of each round.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct Found {
    pub(super) rdma: Vec<f64>,
    pub(super) rdma_99: Vec<f64>,
    pub(super) tcp: Vec<f64>,
    pub(super) tcp_99: Vec<f64>,
    pub(super) bare: Vec<f64>,
}

pub(super) fn result(pair: &Pair) -> Result<Found> {
    pair.client()
}

type Message = [u8; SIZE];

/// The message of a round trip; the last one of a round says so.
fn message(number: u64, last: bool) -> Message {
    let mut message = [7; SIZE];
    message[..8].copy_from_slice(&number.to_le_bytes());
    message[8] = u8::from(last);
    message
}

fn is_last(message: &Message) -> bool {
    message[8] == 1
}

/// Something that messages go over.
trait Wire {
    fn send(&mut self, message: &Message) -> Result<()>;
    fn receive(&mut self) -> Result<Message>;
}

/// One round of the end that asks: times of half round trips in ns.
fn ask_round(wire: &mut impl Wire, duration: Duration) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(1 << 17);
    let (mut number, started) = (0, Instant::now());
    let mut last = false;
    while !last {
        last = number as usize > WARM_UP && started.elapsed() >= duration;
        let said = message(number, last);
        let before = Instant::now();
        wire.send(&said)?;
        let heard = wire.receive()?;
        let time = before.elapsed();
        ensure!(heard == said, "an echo is not what was said");
        if number as usize >= WARM_UP {
            times.push(time.as_nanos() as f64 / 2.0);
        }
        number += 1;
    }
    Ok(times)
}

/// One round of the end that answers.
fn serve_round(wire: &mut impl Wire) -> Result<()> {
    loop {
        let heard = wire.receive()?;
        wire.send(&heard)?;
        if is_last(&heard) {
            return Ok(());
        }
    }
}

pub(super) fn serve(parent: &Parent, arguments: &PeerArgs) -> Result<()> {
    let listener = TcpListener::bind((WEST, 0))?;
    let mut rdma = Rdma::open(parent, WEST, listener.local_addr()?.port())?;
    let mut bare = Bare::open(WEST, EAST)?;
    // The other end connects as soon as it knows the port.
    let mut tcp = Tcp::new(listener.accept()?.0)?;
    for _ in 0..arguments.rounds {
        serve_round(&mut rdma)?;
        rdma.end.settle(QUIET)?;
        serve_round(&mut tcp)?;
        serve_round(&mut bare)?;
    }
    arguments.show(&rdma.end);
    parent.wait()
}

pub(super) fn ask(parent: &Parent, arguments: &PeerArgs) -> Result<()> {
    let duration = arguments.duration();
    let mut rdma = Rdma::open(parent, EAST, 0)?;
    let stream = TcpStream::connect((WEST, rdma.end.tcp)).context("TCP to the other end")?;
    let mut tcp = Tcp::new(stream)?;
    let mut bare = Bare::open(EAST, WEST)?;
    let mut found = Found::default();
    for _ in 0..arguments.rounds {
        let mut times = ask_round(&mut rdma, duration)?;
        rdma.end.settle(2 * QUIET)?;
        found.rdma.push(median(&mut times));
        found.rdma_99.push(percentile(&mut times, 99));
        let mut times = ask_round(&mut tcp, duration)?;
        found.tcp.push(median(&mut times));
        found.tcp_99.push(percentile(&mut times, 99));
        found
            .bare
            .push(median(&mut ask_round(&mut bare, duration / 2)?));
    }
    arguments.show(&rdma.end);
    parent.say(&found)?;
    parent.wait()
}

struct Rdma {
    end: End,
    posted: u64,
}

impl Rdma {
    fn open(parent: &Parent, address: IpAddr, tcp: u16) -> Result<Self> {
        let end = End::open(parent, address, RECEIVES * SIZE, tcp)?;
        let rdma = Self { end, posted: 0 };
        (0..RECEIVES).try_for_each(|at| rdma.post_receive(at))?;
        Ok(rdma)
    }

    fn post_receive(&self, at: usize) -> Result<()> {
        let sges = [self.end.mr.sge(at * SIZE, SIZE)];
        Ok(self.end.qp.post_recv(&[RecvWr {
            wr_id: at as u64,
            sges: &sges,
        }])?)
    }
}

impl Wire for Rdma {
    fn send(&mut self, message: &Message) -> Result<()> {
        self.posted += 1;
        let signalled = self.posted.is_multiple_of(SIGNAL);
        let flags = if signalled {
            SendFlags::SIGNALED
        } else {
            SendFlags::default()
        };
        let (op, inline) = (SendOp::Send, Some(&message[..]));
        let request = SendWr {
            wr_id: 0,
            op,
            flags,
            sges: &[],
            inline,
            route: 0,
        };
        Ok(self.end.qp.post_send(&[request])?)
    }

    fn receive(&mut self) -> Result<Message> {
        let watch = Watch::new();
        loop {
            self.end.node.poll()?;
            if let Some(done) = self.end.recv_cq.poll_one().expect("room in the CQ") {
                ensure!(
                    done.status == Status::Success,
                    "a receive: {:?}",
                    done.status
                );
                ensure!(
                    done.byte_len as usize == SIZE,
                    "{} bytes came",
                    done.byte_len
                );
                let at = done.wr_id as usize;
                let mut message = [0; SIZE];
                self.end.mr.read(at * SIZE, &mut message)?;
                self.post_receive(at)?;
                return Ok(message);
            }
            self.end.take_sent()?;
            watch.check()?;
        }
    }
}

/// A UDP port without a node.
struct Bare {
    port: UdpPort,
    path: Path,
}

impl Bare {
    fn open(local: IpAddr, remote: IpAddr) -> Result<Self> {
        let port = UdpPort::open(&UdpConfig {
            port: BARE_PORT,
            ..UdpConfig::new(local)
        })?;
        let path = Path {
            src: local,
            dst: remote,
            src_port: BARE_PORT,
            traffic_class: 0,
            ip: IpFields::DEFAULT,
        };
        Ok(Self { port, path })
    }
}

impl Wire for Bare {
    fn send(&mut self, message: &Message) -> Result<()> {
        let slot = self.port.reserve(&self.path, SIZE).context("no room")?;
        slot.datagram.copy_from_slice(message);
        self.port.commit();
        Ok(self.port.flush()?)
    }

    fn receive(&mut self) -> Result<Message> {
        let watch = Watch::new();
        let mut message = [0; SIZE];
        loop {
            let got = self.port.receive(1, &mut |_, datagram| {
                if datagram.len() == SIZE {
                    message.copy_from_slice(datagram);
                }
            })?;
            if got > 0 {
                return Ok(message);
            }
            watch.check()?;
        }
    }
}

struct Tcp(TcpStream);

impl Tcp {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self(stream))
    }
}

impl Wire for Tcp {
    fn send(&mut self, message: &Message) -> Result<()> {
        // So few bytes fit the socket's buffer whole.
        ensure!(self.0.write(message)? == SIZE, "TCP takes only a part");
        Ok(())
    }

    fn receive(&mut self) -> Result<Message> {
        let watch = Watch::new();
        let (mut message, mut got) = ([0; SIZE], 0);
        while got < SIZE {
            match self.0.read(&mut message[got..]) {
                Ok(0) => anyhow::bail!("the other end closed its TCP connection"),
                Ok(count) => got += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => watch.check()?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hears what was said.
    struct Echo(Vec<Message>);

    impl Wire for Echo {
        fn send(&mut self, message: &Message) -> Result<()> {
            self.0.push(*message);
            Ok(())
        }

        fn receive(&mut self) -> Result<Message> {
            self.0.last().copied().context("nothing was said")
        }
    }

    #[test]
    fn only_the_last_message_of_a_round_says_so() {
        let mut echo = Echo(Vec::new());
        let times = ask_round(&mut echo, Duration::ZERO).expect("echoes are right");
        let (last, others) = echo.0.split_last().expect("it said something");
        assert!(is_last(last) && !others.iter().any(is_last));
        assert_eq!(times.len(), echo.0.len() - WARM_UP);
    }
}
