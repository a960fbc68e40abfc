//! A UDP socket as a port: no privilege, any Linux.
//!
//! # Super-packets
//! The kernel's way through its stack costs about a microsecond, whatever is sent. So consecutive
//! datagrams of one path and one length (the last may be shorter) are built one behind the other
//! and handed over as one send that the kernel, or the network card, cuts up late (`UDP_SEGMENT`),
//! and received super-packets are taken whole (`UDP_GRO`). Several super-packets go in one call.
//!
//! # IP headers
//! The ICRC covers the IPv4 identification. Sockets are unconnected and forbid fragmentation
//! (`IP_MTU_DISCOVER` = `IP_PMTUDISC_PROBE`, which also ignores what ICMP says of the path's MTU):
//! then the kernel sends identification 0, and 0, 1, 2, ... within a super-packet.
//! [`Slot::identification`] says which. A receiver is not shown it, so arrivals carry
//! [`Identification::Predicted`](crate::Identification::Predicted) with the place in the received
//! super-packet.
//!
//! # What is refused, and what happens then
//! 1. No `UDP_SEGMENT` in the kernel: every datagram is its own message; several go in one
//!    `sendmmsg`.
//! 2. A super-packet is refused when it is sent (`EIO`, `EINVAL`, `EMSGSIZE`): it is cut up here,
//!    the ICRCs are changed to identification 0, and the pieces are sent singly. When that works
//!    for a piece of full length, no more super-packets are made:
//!    [`Capabilities::super_packets`] turns false.
//! 3. No `UDP_GRO`: every datagram comes as its own message; [`Capabilities::coalesced_receive`] is
//!    false.
//! 4. A datagram is refused: it is dropped like one lost on the network, and counted by reason. One
//!    that is longer than the interface takes now is told of, too ([`PortEvent::TooLong`]), and so
//!    is one that a route or a firewall of this machine refuses ([`PortEvent::Unsent`]).
//! 5. A flow label is refused (`EINVAL`): where a program of the machine has one to itself
//!    (`IPV6_FL_S_EXCL`), and with old kernels, labels have to be asked for. Then the kernel
//!    chooses the flow labels of all datagrams.
//! 6. The socket's buffer is full: what is left stays queued for the next flush.

mod batch;
mod control;
mod errors;
pub(crate) mod interface;
mod owner;
mod queue;
mod receive;
mod socket;
mod steer;

pub(crate) use errors::Errors;
pub use interface::InterfaceName;
pub use owner::Owner;
pub(crate) use socket::{bound, set};
pub(crate) use steer::program as steering;

use crate::errno::Errno;
use crate::links::{KernelLink, LinkChanges};
use crate::port::{
    Arrival, Capabilities, Egress, LinkState, Port, PortCounters, PortError, PortEvent, Slot,
};
use crate::routes::{self, KernelRoutes, Routes};
pub use crate::super_packet::{MAX_SEGMENTS, MAX_SEND};
use batch::{Addressing, Batch};
use queue::{Queue, Unit};
use receive::Receiver;
use socket::Sockets;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use trunkline_wire::{Path, ROCE_PORT, Workers};

/// What a UDP port is made of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UdpConfig {
    /// Local address. An unspecified one stands for all of its family; then the source address of
    /// every path is set on each send.
    pub address: IpAddr,
    /// UDP port to receive on and to send to; [`ROCE_PORT`] but where peers agree on another. The
    /// ICRC is always computed for [`ROCE_PORT`].
    pub port: u16,
    /// Sockets on ports of the kernel's choice that only send, in `0 ..= 64`: entropy for switches
    /// and receive queues.
    pub extra_source_ports: usize,
    /// Bytes that may be committed between flushes, in `131_072 ..= 16_777_216`. What is not
    /// flushed should fit the second-level cache.
    pub burst_bytes: usize,
    /// `SO_SNDBUF` and `SO_RCVBUF` asked for, in bytes. The kernel may give less.
    pub socket_bytes: usize,
    /// Make super-packets, where the kernel does.
    pub segmentation: bool,
    /// Take super-packets, where the kernel does.
    pub coalescing: bool,
}

impl UdpConfig {
    /// Port 4791 of `address`, no extra source ports, 512 KiB bursts, 4 MiB socket buffers, all
    /// offloads.
    pub const fn new(address: IpAddr) -> Self {
        Self {
            address,
            port: ROCE_PORT,
            extra_source_ports: 0,
            burst_bytes: 512 << 10,
            socket_bytes: 4 << 20,
            segmentation: true,
            coalescing: true,
        }
    }
}

/// Why a UDP port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpOpenError {
    /// Another socket has the address.
    #[error("{address} is taken by {owner}")]
    InUse {
        /// The address.
        address: SocketAddr,
        /// Whose socket it is, as far as can be found out.
        owner: Owner,
    },
    /// Many may have the address, or everybody: packets cannot come from it.
    #[error("{address} is a broadcast or multicast address, not that of one host")]
    NotOneHost {
        /// The address.
        address: IpAddr,
    },
    /// No interface has the address.
    #[error("{address} is not an address of this machine")]
    NotLocal {
        /// The address.
        address: IpAddr,
    },
    /// A value of the configuration is outside its range.
    #[error("{field} is {value}, not in {least} ..= {most}")]
    OutOfRange {
        /// The field of [`UdpConfig`].
        field: &'static str,
        /// Its value.
        value: usize,
        /// Least allowed.
        least: usize,
        /// Most allowed.
        most: usize,
    },
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// A port on UDP sockets.
#[derive(Debug)]
pub struct UdpPort {
    sockets: Sockets,
    max_datagram: usize,
    queue: Queue,
    batch: Batch,
    receiver: Receiver,
    counters: PortCounters,
    /// The socket whose buffer was full at the last flush.
    full: Option<usize>,
    /// Bytes that may wait: few where they do not get away.
    backlog: usize,
    /// More was to wait since the last flush.
    backed_up: bool,
    /// Something was fetched that the next call gives out.
    fetched: bool,
    events: VecDeque<PortEvent>,
    /// A call sent a part of what it was given: the error that ended it is gone with that, and may
    /// have left its message in the error queue, for which a sleep on the socket ends at once.
    cut_short: bool,
    /// Sends that may still be repeated since an error of the network was in their way.
    repeats: usize,
}

/// Sends that a flush repeats at most.
const REPEATS: usize = 64;

/// Most events that wait; later ones are lost.
const EVENTS: usize = 64;

/// Bytes that may wait here for a socket whose buffer is full: what goes before data must not stand
/// behind a long queue.
const BACKLOG: usize = 64 << 10;

impl UdpPort {
    /// Opens the sockets. The interface's MTU is read now; when it falls later, datagrams that have
    /// become too long are dropped, counted and told of.
    ///
    /// # Errors
    /// See [`UdpOpenError`].
    pub fn open(config: &UdpConfig) -> Result<Self, UdpOpenError> {
        check(config)?;
        Self::on(config, Sockets::open(config)?)
    }

    /// Opens a port for each worker of a node, all on one address. What comes goes to the port of
    /// the worker whose number it names ([`Workers`]), the first port being that of worker 0; only
    /// datagrams that the network or a sender joined to a unit with others may come out elsewhere.
    /// Close them together.
    ///
    /// # Errors
    /// See [`UdpOpenError`].
    pub fn open_group(config: &UdpConfig, workers: Workers) -> Result<Vec<Self>, UdpOpenError> {
        check(config)?;
        let group = Sockets::open_group(config, workers)?;
        let ports = group.into_iter().map(|sockets| Self::on(config, sockets));
        ports.collect()
    }

    fn on(config: &UdpConfig, sockets: Sockets) -> Result<Self, UdpOpenError> {
        let interface =
            interface::of(config.address, sockets.main().as_fd()).map_err(|source| {
                UdpOpenError::System {
                    call: "getifaddrs",
                    source,
                }
            })?;
        let headers = if config.address.is_ipv4() { 28 } else { 48 };
        let addressing = Addressing {
            port: sockets.local().port(),
            scope: interface.scope,
            set_source: config.address.is_unspecified(),
            labels: config.address.is_ipv6(),
        };
        Ok(Self {
            max_datagram: interface.mtu.saturating_sub(headers).min(MAX_SEND),
            queue: Queue::new(config.burst_bytes, sockets.segmentation()),
            batch: Batch::new(addressing),
            receiver: Receiver::new(sockets.local().ip()),
            counters: PortCounters::default(),
            sockets,
            full: None,
            backlog: config.burst_bytes,
            backed_up: false,
            fetched: false,
            events: VecDeque::new(),
            cut_short: false,
            repeats: 0,
        })
    }

    /// The address and port it receives on.
    pub const fn local(&self) -> SocketAddr {
        self.sockets.local()
    }

    /// Drops the units at the front that cannot leave from here; then how many units at the front
    /// leave from one socket, and which.
    fn next_run(&mut self) -> Option<(usize, usize)> {
        while let Some(unit) = self.queue.waiting().first() {
            if let Some(socket) = unit.socket {
                let same = |unit: &&Unit| unit.socket == Some(socket);
                let run = self.queue.waiting().iter().take_while(same).count();
                return Some((run.min(Batch::MOST), socket));
            }
            self.counters.misrouted += unit.packet.count as u64;
            self.queue.advance(1);
        }
        None
    }

    /// Whether enough waits for the network, so that `length` bytes more had better wait where it
    /// is still open who sends them.
    fn is_backed_up(&self, length: usize) -> bool {
        let waiting = self.queue.waiting_bytes();
        waiting > 0 && waiting + length > self.backlog
    }

    /// The first `sent` waiting units are with the kernel.
    fn account(&mut self, sent: usize) {
        self.counters.send_calls += 1;
        let mut proven = false;
        for unit in &self.queue.waiting()[..sent] {
            self.counters.sent += unit.packet.count as u64;
            self.counters.sent_bytes += unit.packet.bytes as u64;
            self.counters.super_packets_sent += u64::from(unit.packet.count > 1);
            proven |= unit.split_from == Some(unit.packet.bytes);
        }
        if proven && self.queue.segments() {
            self.queue.stop_segmentation();
            let address = self.sockets.local();
            tracing::warn!(%address, "the machine refuses super-packets; datagrams leave alone");
        }
        self.queue.advance(sent);
    }

    /// The first waiting unit was refused. Gives whether to go on with the next one.
    fn refused(&mut self, error: io::Error) -> Result<bool, PortError> {
        let passing = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
        if !passing.contains(&error.kind()) && self.read_errors() && self.repeats > 0 {
            // It was about some datagram of long ago.
            self.repeats -= 1;
            return Ok(true);
        }
        let unit = &self.queue.waiting()[0];
        let count = unit.packet.count as u64;
        let counters = &mut self.counters;
        let code = error.raw_os_error().unwrap_or(0);
        match code {
            libc::EINTR => return Ok(true),
            libc::EAGAIN => {
                counters.full += 1;
                self.full = unit.socket;
                self.backlog = BACKLOG;
                return Ok(false);
            }
            libc::EIO | libc::EINVAL | libc::EMSGSIZE if unit.packet.count > 1 => {
                counters.split += 1;
                self.queue.split_first();
                return Ok(true);
            }
            libc::EINVAL if unit.packet.path.ip.flow_label() != 0 && self.batch.stop_labels() => {
                let address = self.sockets.local();
                tracing::warn!(%address, "the machine refuses flow labels; it chooses them");
                return Ok(true);
            }
            libc::EMSGSIZE => {
                counters.too_long += count;
                let (dst, length) = (unit.packet.path.dst, unit.packet.bytes);
                self.emit(PortEvent::TooLong { dst, length });
            }
            libc::ENOBUFS | libc::ENOMEM => counters.no_buffers += count,
            // It is the peer's host that refuses, some datagram of long ago.
            libc::ECONNREFUSED => counters.unreachable += count,
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ENETDOWN | libc::EHOSTDOWN => {
                counters.unreachable += count;
                self.unsent(Errno::new(code));
            }
            libc::EBADF | libc::ENOTSOCK | libc::EFAULT => {
                return Err(PortError::System {
                    call: "sendmmsg",
                    source: error,
                });
            }
            _ => {
                counters.refused += count;
                self.unsent(Errno::new(code));
            }
        }
        self.queue.advance(1);
        Ok(true)
    }

    /// Tells that the machine refused to send the first waiting unit, unless that waits to be told.
    fn unsent(&mut self, error: Errno) {
        let dst = self.queue.waiting()[0].packet.path.dst;
        let event = PortEvent::Unsent { dst, error };
        if !self.events.contains(&event) {
            self.emit(event);
        }
    }
}

impl UdpPort {
    /// Reads what errors there are; whether some came from the network.
    fn read_errors(&mut self) -> bool {
        let errors = Errors::read(self.sockets.main().as_raw_fd());
        errors
            .refused
            .into_iter()
            .for_each(|event| self.emit(event));
        errors.arrived > 0
    }

    fn emit(&mut self, event: PortEvent) {
        if self.events.len() < EVENTS {
            self.events.push_back(event);
        }
    }
}

/// Whether every value is in its range, and the address one of one host as far as the kernel says.
fn check(config: &UdpConfig) -> Result<(), UdpOpenError> {
    let within = |field, value, least, most| {
        let error = UdpOpenError::OutOfRange {
            field,
            value,
            least,
            most,
        };
        if (least..=most).contains(&value) {
            Ok(())
        } else {
            Err(error)
        }
    };
    within("extra_source_ports", config.extra_source_ports, 0, 64)?;
    within("burst_bytes", config.burst_bytes, 128 << 10, 16 << 20)?;
    within("socket_bytes", config.socket_bytes, 0, i32::MAX as usize)?;
    let address = config.address;
    // The kernel binds sockets that receive to the broadcast address of a network, too.
    if address.is_unspecified() || routes::is_of_one_host(address) {
        Ok(())
    } else {
        Err(UdpOpenError::NotOneHost { address })
    }
}

impl Egress for UdpPort {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        // What is longer than the interface carries is refused by the kernel, and dropped.
        if length == 0 || length > MAX_SEND {
            return None;
        }
        if self.is_backed_up(length) {
            self.backed_up = true;
            return None;
        }
        let sockets = &self.sockets;
        self.queue
            .reserve(path, length, |path| sockets.choose(path))
    }

    fn commit(&mut self) {
        self.queue.commit();
    }

    fn part(&mut self) {
        self.queue.part();
    }
}

impl Port for UdpPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_datagram: self.max_datagram,
            sees_identification: false,
            super_packets: self.queue.segments(),
            coalesced_receive: self.sockets.coalescing(),
            lossless: false,
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        (self.full, self.repeats) = (None, REPEATS);
        let filled = std::mem::take(&mut self.backed_up);
        while let Some((run, socket)) = self.next_run() {
            let socket = self.sockets.get(socket).as_raw_fd();
            let (units, arena) = self.queue.sendable(run);
            let going_on = match self.batch.send(socket, units, arena) {
                Ok(sent) => {
                    self.cut_short |= sent < run;
                    self.account(sent);
                    true
                }
                Err(error) => self.refused(error)?,
            };
            if !going_on {
                return Ok(());
            }
        }
        if filled {
            // All of it got away: there may be more at once.
            self.backlog = self.backlog.saturating_mul(2);
        }
        Ok(())
    }

    fn fetch(&mut self) -> Result<bool, PortError> {
        self.fetched = true;
        let socket = self.sockets.main();
        let any = self.receiver.has_more() || self.receiver.fetch(socket, &mut self.counters)?;
        if any {
            self.receiver.arrived();
        } else if self.receiver.take_failure() | std::mem::take(&mut self.cut_short) {
            self.read_errors();
        }
        Ok(any)
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        if !std::mem::take(&mut self.fetched) {
            self.fetch()?;
            self.fetched = false;
        }
        Ok(self.receiver.deliver(limit, &mut self.counters, sink))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sockets.main().as_fd())
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.sockets.all().collect()
    }

    fn full(&self) -> Option<usize> {
        self.full
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        self.events.pop_front()
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }

    fn source_ports(&self) -> &[u16] {
        self.sockets.source_ports()
    }

    fn link_state(&self, local: IpAddr) -> Option<LinkState> {
        interface::link_state(local)
    }

    fn link_changes(&self, local: IpAddr) -> Option<Box<dyn LinkChanges + Send>> {
        KernelLink::changes(local)
    }

    fn routes(&self, local: IpAddr) -> Option<Box<dyn Routes + Send>> {
        KernelRoutes::ways(local)
    }
}

#[cfg(test)]
mod tests;
