//! Ports of raw Ethernet frames: for interfaces whose frames go past the kernel's stack.
//!
//! A [`LinkPort`] owns all that frames need and datagrams of a socket do not: headers, the way to
//! each peer, frames that are for somebody else. Under it is a [`Device`], which carries frames and
//! knows nothing of what is in them: [`PacketDevice`] is an AF_PACKET socket, [`XdpDevice`] an
//! AF_XDP socket.
//!
//! # The kernel beside it
//! The interface stays the kernel's: it has the address, answers ARP and Neighbor Discovery, and
//! knows the routes. It is asked for the way to each peer (hops.rs), and kept from answering what
//! comes (guard.rs). What a node sends to its own address never gets to the device: it comes back
//! from here.
//!
//! # Headers
//! Frames go out with IPv4 identification 0 and DF set, and without a UDP checksum, as RNICs send
//! them; over IPv6 with one, as firewalls and hosts drop what has none. The identification of what
//! comes is seen. Of a UDP socket's super-packet that comes whole, as it does over veth(4), the
//! datagrams are taken apart, and have the identifications that they would have had.

mod arrivals;
pub mod device;
mod guard;
mod hops;
mod interface;
mod own;
pub mod packet;
mod wake;
pub mod xdp;

pub use device::Device;
pub use interface::LinkInterface;
pub use packet::PacketDevice;
pub use xdp::{XdpConfig, XdpDevice, XdpMode, XdpOpenError};

use crate::errno::Errno;
use crate::links::{KernelLink, LinkChanges};
use crate::port::{
    Arrival, Capabilities, Egress, LinkState, Port, PortCounters, PortError, PortEvent, Slot,
};
use crate::routes::{KernelRoutes, RouteError, Routes};
use crate::udp::{self, InterfaceName, UdpOpenError};
use arrivals::Arrivals;
use guard::Guard;
use hops::{Hops, Way};
use own::Own;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_wire::Frame;
use trunkline_wire::{InternetSum, Mac, Path, ROCE_PORT, Workers};
use wake::Wake;

/// Most events that wait; later ones are lost.
const EVENTS: usize = 64;
/// UDP source ports from here on are for whoever wants them (RFC 6335, 6).
const FIRST_SOURCE_PORT: u16 = 49_152;
/// Most bytes of a datagram over IPv4.
const MOST: usize = 65_507;
/// How often ICMP errors are looked for.
const LOOK_FOR_ERRORS: Duration = Duration::from_millis(1);

/// Why a port of raw frames could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkOpenError {
    /// The address cannot be had.
    #[error(transparent)]
    Address(#[from] UdpOpenError),
    /// No interface has the address.
    #[error("{address} is not an address of an interface of this machine")]
    NotLocal {
        /// The address.
        address: IpAddr,
    },
    /// Raw frames go to the UDP port of RoCEv2 alone.
    #[error("raw frames go to UDP port 4791, not to {port}: use a UDP port")]
    UdpPort {
        /// The port asked for.
        port: u16,
    },
    /// The interface carries other frames.
    #[error("interface {interface} carries no Ethernet frames: use a UDP port")]
    NoEthernet {
        /// Its name.
        interface: InterfaceName,
    },
    /// The user may not.
    #[error("{what} on {interface} takes {privilege}: run as root, or use a UDP port")]
    NoPrivilege {
        /// What it takes privilege for.
        what: &'static str,
        /// The name of the interface.
        interface: InterfaceName,
        /// What is missing (capabilities(7)).
        privilege: &'static str,
    },
    /// The AF_XDP device cannot be had.
    #[error(transparent)]
    Xdp(#[from] XdpOpenError),
    /// Each worker has one queue of the interface, and frames in others would be lost.
    #[error(
        "interface {interface} has {queues} receive queues, and the node {workers} workers: give \
         both the same, by `ethtool -L {interface} combined {workers}` or other workers"
    )]
    Queues {
        /// The name of the interface.
        interface: InterfaceName,
        /// Its queues.
        queues: u32,
        /// The node's workers.
        workers: u8,
    },
    /// The kernel cannot be asked for routes.
    #[error(transparent)]
    Routes(#[from] RouteError),
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// What becomes of the slot given out last.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fate {
    /// A frame of the device is to go out.
    Sent {
        length: usize,
        /// Over IPv6, what its checksum begins with.
        sum: Option<InternetSum>,
    },
    /// It comes back from here.
    Own,
    /// It is dropped: the port does not lead there.
    Misrouted,
    /// It is dropped: longer than the interface carries.
    TooLong { dst: IpAddr, length: usize },
    /// It is dropped: the neighbour is not known yet.
    Unknown,
    /// It is dropped: there is no way.
    NoWay { dst: IpAddr, error: Errno },
}

/// A port of raw frames on one address of one interface.
#[derive(Debug)]
pub struct LinkPort<D> {
    device: D,
    address: IpAddr,
    interface: LinkInterface,
    max_datagram: usize,
    hops: Hops,
    /// Shared by the ports of all workers.
    guard: Arc<Guard>,
    wake: Wake,
    arrivals: Arrivals,
    own: Own,
    /// What came back from here is given first, this time.
    own_first: bool,
    /// What becomes of the slot given out last, if that was not committed.
    reserved: Option<Fate>,
    /// Where datagrams are built that are dropped.
    waste: Vec<u8>,
    source_ports: Vec<u16>,
    events: VecDeque<PortEvent>,
    counters: PortCounters,
    fetched: bool,
    is_full: bool,
    /// Frames wait for an interface that is down; others would have no room soon.
    is_down: bool,
    now: Instant,
    /// When ICMP errors are looked for next.
    errors_due: Instant,
}

/// What a port of raw frames is made of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LinkConfig {
    /// UDP source ports beside that of RoCEv2: entropy for switches and receive queues.
    pub extra_source_ports: usize,
}

impl LinkConfig {
    /// The first is the one that answers come to, and ICMP errors.
    fn source_ports(self) -> Vec<u16> {
        let extra = (FIRST_SOURCE_PORT..).take(self.extra_source_ports);
        [ROCE_PORT].into_iter().chain(extra).collect()
    }
}

/// What ports of one address share, from which they are opened.
#[derive(Clone, Debug)]
pub struct LinkAddress {
    address: IpAddr,
    interface: LinkInterface,
    guard: Arc<Guard>,
}

impl LinkAddress {
    /// Takes the address with UDP port `port`, which has to be that of RoCEv2: nobody else may have
    /// both.
    ///
    /// # Errors
    /// See [`LinkOpenError`].
    pub fn take(address: IpAddr, port: u16) -> Result<Self, LinkOpenError> {
        if port != ROCE_PORT {
            return Err(LinkOpenError::UdpPort { port });
        }
        if address.is_unspecified() {
            return Err(LinkOpenError::NotLocal { address });
        }
        let guard = Arc::new(Guard::open(address)?);
        let interface = LinkInterface::of(address, guard.as_fd())?;
        Ok(Self {
            address,
            interface,
            guard,
        })
    }

    /// The address.
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// A worker for each receive queue of the interface.
    ///
    /// # Errors
    /// A node cannot have so many.
    pub fn queues(&self) -> Result<Workers, LinkOpenError> {
        let (interface, queues) = (self.interface.name, self.interface.queues);
        let workers = u8::try_from(queues).ok().and_then(Workers::new);
        workers.ok_or(LinkOpenError::Queues {
            interface,
            queues,
            workers: Workers::MOST,
        })
    }

    /// Whether the interface has a receive queue for each worker, and no other: frames in others
    /// would get to nobody.
    ///
    /// # Errors
    /// It has more, or fewer.
    pub fn check_queues(&self, workers: Workers) -> Result<(), LinkOpenError> {
        if self.queues().is_ok_and(|queues| queues == workers) {
            return Ok(());
        }
        Err(LinkOpenError::Queues {
            interface: self.interface.name,
            queues: self.interface.queues,
            workers: workers.count(),
        })
    }

    /// The interface that has it.
    pub const fn interface(&self) -> &LinkInterface {
        &self.interface
    }
}

impl<D: Device> LinkPort<D> {
    /// A port whose frames `device` carries.
    ///
    /// # Errors
    /// The system has no descriptor left, or cannot be asked for routes.
    pub fn new(at: &LinkAddress, device: D, config: &LinkConfig) -> Result<Self, LinkOpenError> {
        let LinkAddress {
            address, interface, ..
        } = *at;
        let headers = headers(address);
        let carried = interface.mtu.min(device.max_frame() - ETHERNET);
        let wake = Wake::new([device.fd(), Some(at.guard.as_fd())].into_iter().flatten());
        let wake = wake.map_err(|source| LinkOpenError::System {
            call: "epoll_create1",
            source,
        })?;
        let now = Instant::now();
        Ok(Self {
            max_datagram: carried.saturating_sub(headers - ETHERNET).min(MOST),
            hops: Hops::open(address, interface.index)?,
            guard: Arc::clone(&at.guard),
            wake,
            arrivals: Arrivals::new(address, interface.mac),
            own: Own::default(),
            own_first: false,
            reserved: None,
            waste: Vec::new(),
            source_ports: config.source_ports(),
            events: VecDeque::new(),
            counters: PortCounters::default(),
            fetched: false,
            is_full: false,
            is_down: false,
            now,
            errors_due: now,
            device,
            address,
            interface,
        })
    }

    /// What carries its frames.
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// What is to become of a datagram.
    #[inline]
    fn fate(&mut self, path: &Path, length: usize) -> Result<Mac, Fate> {
        if path.src != self.address || path.dst.is_ipv4() != path.src.is_ipv4() {
            return Err(Fate::Misrouted);
        }
        let dst = path.dst;
        if dst == self.address {
            return Err(Fate::Own);
        }
        if length > self.max_datagram {
            return Err(Fate::TooLong { dst, length });
        }
        if self.is_down {
            let error = Errno::new(libc::ENETDOWN);
            return Err(Fate::NoWay { dst, error });
        }
        match self.hops.way(dst, self.now) {
            Way::To(mac) => Ok(mac),
            Way::Asked => Err(Fate::Unknown),
            Way::Nowhere(error) => Err(Fate::NoWay { dst, error }),
        }
    }

    /// Completes the frame allocated last, whose datagram has so many bytes, by the UDP checksum
    /// that IPv6 asks for: hosts drop what has none, unless a program wants it, and say nothing.
    /// Gives where the UDP header is, if the device finishes it.
    fn write_checksum(&mut self, length: usize, sum: InternetSum) -> Option<usize> {
        let udp = headers(self.address) - UDP;
        let finishes = self.device.finishes_checksums();
        let packet = self.device.allocate(udp + UDP + length)?.get_mut(udp..)?;
        let checksum = match finishes {
            true => sum.folded(),
            false => sum.with(packet).of_udp(),
        };
        packet[6..8].copy_from_slice(&checksum.to_be_bytes());
        finishes.then_some(udp)
    }

    fn drop_datagram(&mut self, fate: Fate) {
        let counters = &mut self.counters;
        match fate {
            Fate::Sent { .. } | Fate::Own => {}
            Fate::Misrouted => counters.misrouted += 1,
            Fate::TooLong { dst, length } => {
                counters.too_long += 1;
                self.emit(PortEvent::TooLong { dst, length });
            }
            Fate::Unknown => counters.unreachable += 1,
            Fate::NoWay { dst, error } => {
                counters.unreachable += 1;
                let event = PortEvent::Unsent { dst, error };
                if !self.events.contains(&event) {
                    self.emit(event);
                }
            }
        }
    }

    fn emit(&mut self, event: PortEvent) {
        if self.events.len() < EVENTS {
            self.events.push_back(event);
        }
    }

    /// Reads what ICMP errors there are, now and then: it takes a system call.
    fn read_errors(&mut self) {
        if self.now < self.errors_due {
            return;
        }
        self.errors_due = self.now + LOOK_FOR_ERRORS;
        for event in self.guard.refused() {
            self.emit(event);
        }
    }
}

/// Bytes of an Ethernet header, and of a UDP header.
const ETHERNET: usize = 14;
const UDP: usize = 8;

/// Bytes before a datagram.
const fn headers(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => ETHERNET + 20 + 8,
        IpAddr::V6(_) => ETHERNET + 40 + 8,
    }
}

impl<D: Device> Egress for LinkPort<D> {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        self.reserved = None;
        if length == 0 || length > MOST {
            return None;
        }
        let datagram = match self.fate(path, length) {
            Ok(to) => {
                let headers = headers(self.address);
                let frame = self.device.allocate(headers + length)?;
                let (head, datagram) = frame.split_at_mut(headers);
                Frame::for_datagram(to, self.interface.mac, path, 0, datagram).emit_headers(head);
                let udp = (length + UDP) as u16;
                let v6 = path.src.is_ipv6();
                let sum = v6.then(|| InternetSum::of_pseudo_header(path, udp));
                self.reserved = Some(Fate::Sent { length, sum });
                datagram
            }
            Err(Fate::Own) => {
                let datagram = self.own.reserve(path, length)?;
                self.reserved = Some(Fate::Own);
                datagram
            }
            Err(fate) => {
                self.reserved = Some(fate);
                self.waste.resize(length, 0);
                &mut self.waste
            }
        };
        Some(Slot {
            datagram,
            identification: 0,
        })
    }

    fn commit(&mut self) {
        match self.reserved.take() {
            Some(Fate::Sent { length, sum }) => {
                let unfinished = sum.and_then(|sum| self.write_checksum(length, sum));
                self.device.push(unfinished);
                self.counters.sent_bytes += length as u64;
            }
            Some(Fate::Own) => self.own.commit(),
            Some(fate) => self.drop_datagram(fate),
            None => {}
        }
    }
}

impl<D: Device> Port for LinkPort<D> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_datagram: self.max_datagram,
            sees_identification: true,
            super_packets: false,
            coalesced_receive: false,
            lossless: false,
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.reserved = None;
        self.now = Instant::now();
        let kicked = self.device.kick()?;
        self.counters.send_calls += u64::from(kicked.sent > 0);
        self.counters.sent += kicked.sent as u64;
        self.counters.refused += kicked.refused as u64;
        self.counters.full += u64::from(kicked.is_full);
        (self.is_full, self.is_down) = (kicked.is_full, kicked.is_down);
        if self.own.flush(&mut self.counters) {
            self.wake.set();
        }
        Ok(())
    }

    fn fetch(&mut self) -> Result<bool, PortError> {
        self.fetched = true;
        self.now = Instant::now();
        let own = self.own.look();
        if !own {
            // Not before: what was flushed since is looked for only then.
            self.wake.clear();
        }
        let any = self.arrivals.has_more() || self.device.look()?;
        self.counters.receive_calls += u64::from(any);
        self.read_errors();
        Ok(any || own)
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
        let (device, counters) = (&mut self.device, &mut self.counters);
        // In turns, so that neither keeps the other waiting.
        self.own_first = !self.own_first;
        let mut given = 0;
        if self.own_first {
            given += self.own.receive(limit, counters, sink);
        }
        given += self.arrivals.receive(device, limit - given, counters, sink);
        if !self.own_first {
            given += self.own.receive(limit - given, counters, sink);
        }
        Ok(given)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.fd().map(|_| self.wake.as_fd())
    }

    /// The device's own is there for what it sends.
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self.device.fd() {
            Some(device) => vec![self.wake.as_fd(), device],
            None => Vec::new(),
        }
    }

    fn full(&self) -> Option<usize> {
        (self.is_full && self.device.fd().is_some()).then_some(1)
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        self.events.pop_front()
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }

    fn source_ports(&self) -> &[u16] {
        &self.source_ports
    }

    fn link_state(&self, local: IpAddr) -> Option<LinkState> {
        udp::interface::link_state(local)
    }

    fn link_changes(&self, local: IpAddr) -> Option<Box<dyn LinkChanges + Send>> {
        KernelLink::changes(local)
    }

    fn routes(&self, local: IpAddr) -> Option<Box<dyn Routes + Send>> {
        KernelRoutes::ways(local)
    }
}
