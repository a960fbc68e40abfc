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
//!
//! The headers to a destination are written once, with the answer where it is (headers.rs), and
//! what arrives is checked at fixed places (datagram.rs).

mod address;
mod alone;
mod arrivals;
mod datagram;
pub mod device;
mod guard;
mod headers;
mod held;
mod hops;
mod icmp;
mod interface;
mod open;
mod own;
pub mod packet;
mod wake;
pub mod xdp;

pub use address::{LinkAddress, LinkConfig, LinkOpenError};
pub use device::Device;
pub use interface::LinkInterface;
pub use packet::PacketDevice;
pub use xdp::{XdpConfig, XdpDevice, XdpMode, XdpOpenError};

use crate::errno::Errno;
use crate::links::{KernelLink, LinkChanges};
use crate::port::{
    Arrival, Capabilities, Egress, LinkState, Port, PortCounters, PortError, PortEvent, Slot,
};
use crate::reidentify::reidentify;
use crate::routes::{KernelRoutes, Routes};
use crate::super_packet::{MAX_SEND, SuperPacket};
use crate::udp;
use address::Owner;
use alone::Heard;
use arrivals::Arrivals;
use device::Offload;
use headers::{ETHERNET, UDP};
use held::{Datagram, Held, ToPeer};
use hops::{Hops, SILENT, Way};
use open::Open;
use own::Own;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use trunkline_wire::{InternetSum, Path};
use wake::Wake;

/// Most events that wait; later ones are lost.
const EVENTS: usize = 64;
/// What packets keep to where a path carries less than it did (RFC 8200, 5).
const LEAST_MTU: usize = 1280;
/// How often ICMP errors, and what neighbours need, are looked for.
const LOOK: Duration = Duration::from_millis(1);
/// Peers whose held datagrams have their turn at a time: each may take a system call.
const TURNS: usize = 16;
/// Flushes after a fetch that take its time: in a round of a worker there are two.
const ON_TIME: u8 = 2;
/// How often it is asked how many frames were missed, and what has become of the interface.
const COUNT: Duration = Duration::from_millis(100);

/// What becomes of the slot given out last.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fate {
    /// A frame of the device is to go out.
    Sent { open: Open },
    /// It joins the frame that is open.
    Joins { length: usize },
    /// It comes back from here.
    Own,
    /// It is dropped: the port does not lead there.
    Misrouted,
    /// It is dropped: longer than the interface carries.
    TooLong { dst: IpAddr, length: usize },
    /// It is held: the neighbour is not known yet.
    Held { path: Path },
    /// It is dropped: there is no way.
    NoWay { dst: IpAddr, error: Errno },
}

/// A port of raw frames on one address of one interface.
#[derive(Debug)]
pub struct LinkPort<D> {
    device: D,
    address: IpAddr,
    /// As it was when it was looked at last.
    interface: LinkInterface,
    max_datagram: usize,
    hops: Hops,
    /// Who has the interface; shared by the ports of all workers.
    owner: Owner,
    wake: Wake,
    arrivals: Arrivals,
    own: Own,
    /// What came back from here is given first, this time.
    own_first: bool,
    /// What becomes of the slot given out last, if that was not committed.
    reserved: Option<Fate>,
    /// The frame built last, where others may join it.
    open: Option<Open>,
    /// Where datagrams are built that are dropped or held.
    waste: Vec<u8>,
    held: Held,
    source_ports: Vec<u16>,
    events: VecDeque<PortEvent>,
    counters: PortCounters,
    fetched: bool,
    is_full: bool,
    /// Frames wait for an interface that is down; others would have no room soon.
    is_down: bool,
    /// What the clock said last, and for how many flushes that does.
    now: Instant,
    on_time: u8,
    /// When ICMP errors, and what neighbours need, are looked for next.
    look_due: Instant,
    /// When it is asked next how many frames were missed, and what has become of the interface.
    count_due: Instant,
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
        let owner = at.owner.clone();
        let wake = Wake::new([device.fd(), owner.fd()].into_iter().flatten());
        let wake = wake.map_err(|source| LinkOpenError::System {
            call: "epoll_create1",
            source,
        })?;
        let now = Instant::now();
        Ok(Self {
            max_datagram: longest(address, interface.mtu, &device),
            hops: Hops::new(owner.routes(address)?, address, &interface),
            owner,
            wake,
            arrivals: Arrivals::new(address, interface.mac),
            own: Own::default(),
            own_first: false,
            reserved: None,
            open: None,
            waste: Vec::new(),
            held: Held::default(),
            source_ports: config.source_ports(),
            events: VecDeque::new(),
            counters: PortCounters::default(),
            fetched: false,
            is_full: false,
            is_down: false,
            now,
            on_time: 0,
            look_due: now,
            count_due: now + COUNT,
            device,
            address,
            interface,
        })
    }

    /// What carries its frames.
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// What becomes of a datagram that does not leave, wherever its way leads.
    #[inline]
    fn unfit(&self, path: &Path, length: usize) -> Option<Fate> {
        let dst = path.dst;
        if path.src != self.address || dst.is_ipv4() != path.src.is_ipv4() {
            Some(Fate::Misrouted)
        } else if dst == self.address {
            Some(Fate::Own)
        } else if length > self.max_datagram {
            Some(Fate::TooLong { dst, length })
        } else if self.is_down {
            let error = Errno::new(libc::ENETDOWN);
            Some(Fate::NoWay { dst, error })
        } else {
            None
        }
    }

    /// Room for a datagram that is no frame.
    #[cold]
    fn divert(&mut self, path: &Path, length: usize, fate: Fate) -> Option<Slot<'_>> {
        let datagram = match fate {
            Fate::Own => self.own.reserve(path, length)?,
            _ => {
                self.waste.resize(length, 0);
                &mut self.waste
            }
        };
        self.reserved = Some(fate);
        Some(Slot {
            datagram,
            identification: 0,
        })
    }

    /// Completes the frame allocated last, whose datagram has so many bytes, by the UDP checksum
    /// that IPv6 asks for: hosts drop what has none, unless a program wants it, and say nothing.
    /// Gives what is left to the device, if that finishes it.
    fn write_checksum(&mut self, length: usize, sum: InternetSum) -> Option<Offload> {
        let udp = headers(self.address) - UDP;
        let finishes = self.device.finishes_checksums();
        let packet = self.device.allocate(udp + UDP + length)?.get_mut(udp..)?;
        let checksum = match finishes {
            true => sum.folded(),
            false => sum.with(packet).of_udp(),
        };
        packet[6..8].copy_from_slice(&checksum.to_be_bytes());
        finishes.then_some(Offload { udp, joined: None })
    }

    /// Where a datagram begins in the frame that is open, if it joins that, and what its
    /// identification is.
    #[inline]
    fn place(&self, path: &Path, length: usize) -> Option<(usize, u16)> {
        let most = self.device.max_super_packet()?;
        self.open.as_ref()?.place(path, length, most)
    }

    /// Nothing more joins the frame that is open, if there is one.
    fn close(&mut self) {
        let Some(open) = self.open.take() else {
            return;
        };
        let Some(frame) = self.device.allocate(open.frame()) else {
            // It breaks its word: there was room for it.
            self.counters.refused += open.packet.count as u64;
            return;
        };
        let left = if open.packet.count > 1 {
            self.counters.super_packets_sent += 1;
            Some(open.complete(frame))
        } else {
            let sum = open.sum;
            sum.and_then(|sum| self.write_checksum(open.packet.bytes, sum))
        };
        self.device.push(left);
    }

    fn drop_datagram(&mut self, fate: Fate) {
        let counters = &mut self.counters;
        match fate {
            Fate::Sent { .. } | Fate::Joins { .. } | Fate::Own => {}
            Fate::Held { path } => {
                // The clock may have been read long ago.
                let is_held = self.held.hold(path, &self.waste, Instant::now());
                counters.unreachable += u64::from(!is_held);
                // Whoever asks for it does so at once.
                self.look_due = self.now;
            }
            Fate::Misrouted => counters.misrouted += 1,
            Fate::TooLong { dst, length } => {
                counters.too_long += 1;
                self.emit(PortEvent::TooLong { dst, length });
            }
            Fate::NoWay { dst, error } => self.has_no_way(dst, error),
        }
    }

    fn has_no_way(&mut self, dst: IpAddr, error: Errno) {
        self.counters.unreachable += 1;
        let event = PortEvent::Unsent { dst, error };
        if !self.events.contains(&event) {
            self.emit(event);
        }
    }

    /// Datagrams that are held leave, where their neighbours have answered. Gives whether any does.
    /// Whoever makes a port send to many that are not there has it ask for few of them at a time.
    #[cold]
    fn release(&mut self) -> bool {
        let mut any = false;
        for _ in 0..self.held.peers().min(TURNS) {
            let Some((peer, datagrams)) = self.held.take_turn() else {
                break;
            };
            any |= self.release_to(peer, datagrams);
        }
        any
    }

    fn release_to(&mut self, peer: IpAddr, mut datagrams: ToPeer) -> bool {
        let (now, mut any) = (self.now, false);
        if *self.hops.way(peer, now) == Way::Asked {
            while datagrams.pop_front_if(|first| first.is_over(now)).is_some() {
                self.has_no_way(peer, SILENT);
            }
            self.held.put_back(peer, datagrams);
            return false;
        }
        while let Some(Datagram { path, bytes, .. }) = datagrams.front() {
            let Some(slot) = self.reserve(path, bytes.len()) else {
                break;
            };
            slot.datagram.copy_from_slice(bytes);
            // It was sealed for 0.
            reidentify(path, 0, slot.identification, slot.datagram);
            self.commit();
            datagrams.pop_front();
            any = true;
        }
        self.held.put_back(peer, datagrams);
        any
    }

    /// What is held for a neighbour that has answered leaves before what comes now. Gives whether
    /// nothing is left of that.
    #[cold]
    fn may_pass(&mut self, dst: IpAddr) -> bool {
        if !self.held.has(dst) || !matches!(self.hops.way(dst, self.now), Way::To(_)) {
            return true;
        }
        let datagrams = self.held.take(dst);
        self.release_to(dst, datagrams);
        !self.held.has(dst)
    }

    fn emit(&mut self, event: PortEvent) {
        keep(&mut self.events, event);
    }

    /// Looks now and then what ICMP errors there are, and what neighbours need: it takes a system
    /// call, or a lock. Gives whether there is something to kick.
    #[inline]
    fn look_after(&mut self) -> Result<bool, PortError> {
        // A frame that is being built stays what it is.
        if self.now < self.look_due || self.reserved.is_some() {
            return Ok(false);
        }
        self.look_around()
    }

    #[cold]
    fn look_around(&mut self) -> Result<bool, PortError> {
        self.look_due = self.now + LOOK;
        // Others allocate frames, too.
        self.close();
        if self.now >= self.count_due {
            self.count_due = self.now + COUNT;
            self.counters.missed = self.device.missed();
            self.follow_interface()?;
        }
        let released = !self.held.is_empty() && self.release();
        let refused = match &self.owner {
            Owner::Kernel(guard) => guard.refused(),
            Owner::Ports(alone) => return Ok(alone.tend(&mut self.device, self.now) | released),
        };
        for event in refused {
            self.emit(event);
        }
        Ok(released)
    }

    /// The address of the link and the MTU that the interface has now count from here on.
    fn follow_interface(&mut self) -> Result<(), PortError> {
        let Owner::Kernel(guard) = &self.owner else {
            return Ok(());
        };
        let (before, now) = (self.interface, self.interface.now(guard.as_fd())?);
        if !self.device.is_attached() {
            return Err(PortError::Gone {
                interface: now.name,
            });
        }
        self.interface = now;
        if now.mac != before.mac {
            self.hops.readdress(now.mac, self.now);
            self.arrivals.readdress(now.mac);
            self.device.readdress(now.mac);
        }
        if now.mtu != before.mtu {
            self.max_datagram = longest(self.address, now.mtu, &self.device);
            if now.mtu < LEAST_MTU {
                let (interface, mtu) = (now.name, now.mtu);
                tracing::warn!(%interface, mtu, "the interface carries less than 1280 bytes now");
            }
        }
        Ok(())
    }

    fn kick(&mut self) -> Result<(), PortError> {
        self.close();
        let kicked = self.device.kick().map_err(|error| match error {
            PortError::System { source, .. } if is_gone(&source) => PortError::Gone {
                interface: self.interface.name,
            },
            other => other,
        })?;
        self.counters.send_calls += u64::from(kicked.sent > 0);
        self.counters.sent += kicked.sent as u64;
        self.counters.refused += kicked.refused as u64;
        self.counters.full += u64::from(kicked.is_full);
        (self.is_full, self.is_down) = (kicked.is_full, kicked.is_down);
        Ok(())
    }
}

/// Keeps an event until it is asked for, if there is room.
fn keep(events: &mut VecDeque<PortEvent>, event: PortEvent) {
    if events.len() < EVENTS {
        events.push_back(event);
    }
}

/// Whether a system call says so that there is no such interface.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV))
}

/// Most bytes of a datagram between these addresses.
fn longest(address: IpAddr, mtu: usize, device: &impl Device) -> usize {
    let carried = mtu.min(device.max_frame() - ETHERNET);
    let headers = headers(address) - ETHERNET;
    carried.saturating_sub(headers).min(MAX_SEND)
}

/// Bytes before a datagram.
const fn headers(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => headers::V4,
        IpAddr::V6(_) => headers::V6,
    }
}

impl<D: Device> Egress for LinkPort<D> {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        self.reserved = None;
        if length == 0 || length > MAX_SEND {
            return None;
        }
        if !self.held.is_empty() && !self.may_pass(path.dst) {
            return None;
        }
        if let Some((at, identification)) = self.place(path, length) {
            let frame = self.device.allocate(at + length)?;
            self.reserved = Some(Fate::Joins { length });
            return Some(Slot {
                datagram: &mut frame[at..],
                identification,
            });
        }
        self.close();
        let fate = match self.unfit(path, length) {
            Some(fate) => fate,
            None => match self.hops.way(path.dst, self.now) {
                Way::To(headers) => {
                    let frame = self.device.allocate(headers.length() + length)?;
                    let (datagram, sum) = headers.write(frame, path)?;
                    self.reserved = Some(Fate::Sent {
                        open: Open {
                            packet: SuperPacket::new(*path, length),
                            headers: headers.length(),
                            sum,
                        },
                    });
                    return Some(Slot {
                        datagram,
                        identification: 0,
                    });
                }
                Way::Asked => Fate::Held { path: *path },
                Way::Nowhere(error) => Fate::NoWay {
                    dst: path.dst,
                    error: *error,
                },
            },
        };
        self.divert(path, length, fate)
    }

    fn commit(&mut self) {
        match self.reserved.take() {
            Some(Fate::Sent { open }) => {
                self.counters.sent_bytes += open.packet.bytes as u64;
                self.open = Some(open);
                if self.device.max_super_packet().is_none() {
                    self.close();
                }
            }
            Some(Fate::Joins { length }) => {
                self.counters.sent_bytes += length as u64;
                if let Some(open) = &mut self.open {
                    open.packet.add(length);
                }
            }
            Some(Fate::Own) => self.own.commit(),
            Some(fate) => self.drop_datagram(fate),
            None => {}
        }
    }

    fn part(&mut self) {
        self.reserved = None;
        self.close();
    }
}

impl<D: Device> Port for LinkPort<D> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_datagram: self.max_datagram,
            sees_identification: true,
            super_packets: self.device.max_super_packet().is_some(),
            coalesced_receive: false,
            lossless: false,
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.reserved = None;
        // Who fetches in between has the clock read once for all.
        match self.on_time.checked_sub(1) {
            Some(left) => self.on_time = left,
            None => self.now = Instant::now(),
        }
        self.look_after()?;
        self.kick()?;
        if self.own.flush(&mut self.counters) {
            self.wake.set();
        }
        if !self.held.is_empty() {
            self.wake.set_in(LOOK);
        }
        Ok(())
    }

    fn fetch(&mut self) -> Result<bool, PortError> {
        self.fetched = true;
        self.on_time = ON_TIME;
        self.now = Instant::now();
        let own = self.own.look();
        if !own {
            // Not before: what was flushed since is looked for only then.
            self.wake.clear();
        }
        let any = self.device.look()?;
        self.counters.receive_calls += u64::from(any);
        if self.look_after()? {
            self.kick()?;
        }
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
        let Self {
            device,
            counters,
            owner,
            events,
            look_due,
            now,
            ..
        } = self;
        let mut strange = |frame: &[u8], counters: &mut PortCounters| {
            let heard = match owner {
                Owner::Kernel(_) => Heard::Malformed,
                Owner::Ports(alone) => alone.hear(frame, *now),
            };
            match heard {
                Heard::Malformed => counters.malformed += 1,
                Heard::Foreign => counters.foreign += 1,
                // There may be an answer.
                Heard::Neighbour => *look_due = *now,
                Heard::Error(event) => keep(events, event),
            }
        };
        // In turns, so that neither keeps the other waiting.
        self.own_first = !self.own_first;
        let mut given = 0;
        if self.own_first {
            given += self.own.receive(limit, counters, sink);
        }
        given += self
            .arrivals
            .receive(device, limit - given, counters, sink, &mut strange);
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
        match self.owner {
            Owner::Kernel(_) => udp::interface::link_state(local),
            Owner::Ports(_) => self.device.link(),
        }
    }

    fn link_changes(&self, local: IpAddr) -> Option<Box<dyn LinkChanges + Send>> {
        match self.owner {
            Owner::Kernel(_) => KernelLink::changes(local),
            Owner::Ports(_) => None,
        }
    }

    fn routes(&self, local: IpAddr) -> Option<Box<dyn Routes + Send>> {
        match &self.owner {
            Owner::Kernel(_) => KernelRoutes::ways(local),
            Owner::Ports(alone) => Some(alone.routes()),
        }
    }
}

#[cfg(test)]
mod tests;
