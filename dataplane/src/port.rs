//! What a node asks of whatever carries its packets: burst in, burst out, nothing guessed.
//!
//! Sending is [`Egress`]: `reserve` gives room inside the port's own transmit buffers, the caller
//! builds the datagram there and `commit`s it. Nothing leaves before [`Port::flush`], so that a
//! port sees a whole burst and can hand it over in as few steps as its medium allows.
//!
//! What `reserve` means to a port, beyond the contract of [`Egress`]:
//! - `None` says that nothing more fits before the next flush (or, when flushing does not help,
//!   before the medium took something), or that `length` is 0 or above 65,507;
//! - a datagram above [`Capabilities::max_datagram`] finds room like any other, and is dropped and
//!   counted ([`PortCounters::too_long`]) at the latest when it is flushed;
//! - a datagram to a neighbour that is not known, or not known yet, finds room like any other, and
//!   is dropped and counted ([`PortCounters::unreachable`]): nothing to anybody else waits for it;
//! - a slot given out again for the same path and length, with no flush in between, carries the
//!   same identification;
//! - a flush forgets a slot that was not committed;
//! - the bytes of a slot are those of some earlier packet until they are written;
//! - a datagram whose path leads to the address that it starts from comes back to the same port:
//!   QPs of one node may talk to each other.

use crate::errno::Errno;
use crate::links::LinkChanges;
use crate::routes::Routes;
use crate::udp::InterfaceName;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
pub use trunkline_conn::egress::{Egress, Slot};
pub use trunkline_conn::ingress::{Arrival, Identification};

/// Something that carries datagrams between nodes.
pub trait Port: Egress {
    /// What this port can do. May shrink while it runs, when the machine refuses an offload.
    fn capabilities(&self) -> Capabilities;

    /// Hands all committed datagrams to the medium, oldest first; what does not fit stays for the
    /// next flush.
    ///
    /// Datagrams the medium refuses one by one (too long, no route) are dropped and counted.
    ///
    /// # Errors
    /// When the port itself cannot go on.
    fn flush(&mut self) -> Result<(), PortError>;

    /// Takes from the medium what it has, unless something of the last time is still to be given
    /// out. Gives whether there may be something to give out.
    ///
    /// This is when it has arrived: what [`Arrival::waited_ns`] says of it is counted up to here,
    /// without what it took to take the packet itself.
    /// So whoever measures round trips reads the clock after this call, once for all that the next
    /// [`receive`](Self::receive) gives out: a reading from before belongs to nothing that came
    /// later, and makes round trips shorter than the path. And a node knows all objects that its
    /// programs made before this call; by default, where packets are taken from the medium in
    /// [`receive`](Self::receive), one may name a QP that was made in the same microseconds, and is
    /// refused.
    ///
    /// # Errors
    /// When the port itself cannot go on.
    fn fetch(&mut self) -> Result<bool, PortError> {
        Ok(true)
    }

    /// Gives up to `limit` received datagrams to `sink`, in place, and says how many. When it is
    /// fewer than `limit` nothing was left over inside the port, and [`fd`](Self::fd) may be slept
    /// on. Without a [`fetch`](Self::fetch) before it, it begins with one.
    ///
    /// # Errors
    /// When the port itself cannot go on.
    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError>;

    /// Readable when something may be received. `None`: the port has to be polled.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// All descriptors of the port: that of [`fd`](Self::fd) first, others only send. They stay
    /// what they are as long as the port lives.
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.fd().into_iter().collect()
    }

    /// Which of [`fds`](Self::fds) is writable when the medium takes more, after a flush left
    /// something behind because it was full. `None`: nothing was left behind, or the port has to be
    /// polled.
    fn full(&self) -> Option<usize> {
        None
    }

    /// What became of datagrams that were sent, oldest first. Few are kept: they come again.
    fn poll_event(&mut self) -> Option<PortEvent> {
        None
    }

    /// What happened so far.
    fn counters(&self) -> PortCounters;

    /// The UDP source ports that packets may leave from. Empty: any.
    fn source_ports(&self) -> &[u16] {
        &[]
    }

    /// Returns what the system says of the interface that has the address `local`. `None`: the port
    /// has no interface, or the system does not say which one it is.
    fn link_state(&self, local: IpAddr) -> Option<LinkState> {
        let _ = local;
        None
    }

    /// Returns who tells of changes of the link of the interface that has the address `local`: the
    /// kernel, where the interface is its own ([`KernelLink`](crate::KernelLink)), else the port.
    /// `None`: the link never changes, as that of a loop, or nobody tells.
    fn link_changes(&self, local: IpAddr) -> Option<Box<dyn LinkChanges + Send>> {
        let _ = local;
        None
    }

    /// Who knows the ways of packets from `local`: the kernel, where the interface is its own
    /// ([`KernelRoutes`](crate::KernelRoutes)), else the port
    /// ([`Neighbours`](crate::Neighbours)). `None`: every address counts as reachable, and who is
    /// not there is silent.
    fn routes(&self, local: IpAddr) -> Option<Box<dyn Routes + Send>> {
        let _ = local;
        None
    }
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn flush(&mut self) -> Result<(), PortError> {
        (**self).flush()
    }

    fn fetch(&mut self) -> Result<bool, PortError> {
        (**self).fetch()
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        (**self).receive(limit, sink)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).fd()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        (**self).fds()
    }

    fn full(&self) -> Option<usize> {
        (**self).full()
    }

    fn poll_event(&mut self) -> Option<PortEvent> {
        (**self).poll_event()
    }

    fn counters(&self) -> PortCounters {
        (**self).counters()
    }

    fn source_ports(&self) -> &[u16] {
        (**self).source_ports()
    }

    fn link_state(&self, local: IpAddr) -> Option<LinkState> {
        (**self).link_state(local)
    }

    fn link_changes(&self, local: IpAddr) -> Option<Box<dyn LinkChanges + Send>> {
        (**self).link_changes(local)
    }

    fn routes(&self, local: IpAddr) -> Option<Box<dyn Routes + Send>> {
        (**self).routes(local)
    }
}

/// What the system says of an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LinkState {
    /// The interface is up, and something is at the other end of its cable.
    pub works: bool,
    /// Its rate in Mb/s; `None` where it has none, as a loop has, or does not tell it.
    pub rate_mbps: Option<u32>,
}

/// What a port can do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capabilities {
    /// Most bytes of a datagram, BTH to ICRC.
    pub max_datagram: usize,
    /// Received packets come with the IPv4 identification they carried, so that their ICRC can be
    /// checked outright. Otherwise the identification is predicted.
    pub sees_identification: bool,
    /// Consecutive datagrams of one path and one length leave as one super-packet: worth ordering
    /// them so.
    pub super_packets: bool,
    /// Received packets come as super-packets where the machine coalesced them.
    pub coalesced_receive: bool,
    /// Nothing is ever lost, reordered or duplicated between the two ends.
    pub lossless: bool,
}

/// What became of a datagram that was sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum PortEvent {
    /// It was longer than the medium takes now ([`PortCounters::too_long`]), whatever it took
    /// before.
    TooLong {
        /// Where it was to go.
        dst: IpAddr,
        /// Its bytes, BTH to ICRC.
        length: usize,
    },
    /// An ICMP error says that nobody listens where it went. Anybody can send one: it is worth
    /// what it quotes.
    Refused {
        /// Where it went.
        dst: IpAddr,
        /// Its first bytes, from the BTH on, as far as they are quoted.
        quote: Quoted,
    },
    /// The machine refused to send it ([`PortCounters::refused`], [`PortCounters::unreachable`]).
    /// What waits with the same address and error stands for all of them.
    Unsent {
        /// Where it was to go.
        dst: IpAddr,
        /// What the machine said.
        error: Errno,
    },
}

/// Bytes that an ICMP error quotes of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quoted {
    bytes: [u8; Quoted::MOST],
    length: u8,
}

impl Quoted {
    /// Most bytes that are kept.
    pub const MOST: usize = 64;

    /// As much of them as is kept.
    pub fn new(bytes: &[u8]) -> Self {
        let length = bytes.len().min(Self::MOST);
        let mut quoted = Self {
            bytes: [0; Self::MOST],
            length: length as u8,
        };
        quoted.bytes[..length].copy_from_slice(&bytes[..length]);
        quoted
    }

    /// Those bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// What happened at a port. All since it was opened; counters do not wrap in practice.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PortCounters {
    /// Datagrams handed to the medium.
    pub sent: u64,
    /// Their bytes, BTH to ICRC.
    pub sent_bytes: u64,
    /// Super-packets among what was handed over: units of two datagrams or more.
    pub super_packets_sent: u64,
    /// Calls that handed something over.
    pub send_calls: u64,
    /// Datagrams given to the sink.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Super-packets among what was received.
    pub super_packets_received: u64,
    /// Calls that received something.
    pub receive_calls: u64,
    /// Flushes that left something because the medium was full.
    pub full: u64,
    /// Datagrams dropped when sending: longer than the path carries (`EMSGSIZE`).
    pub too_long: u64,
    /// Datagrams dropped when sending: the machine was out of buffers (`ENOBUFS`, `ENOMEM`).
    pub no_buffers: u64,
    /// Datagrams dropped when sending: no such peer or no way to it (`ECONNREFUSED`,
    /// `ENETUNREACH`, `EHOSTUNREACH`), or the peer's end of a memory pair is gone.
    pub unreachable: u64,
    /// Datagrams dropped when sending: their path does not start at this port (another family,
    /// another source address, an unknown source port).
    pub misrouted: u64,
    /// Datagrams dropped when sending: refused for another reason.
    pub refused: u64,
    /// Super-packets the machine refused, sent as single datagrams instead.
    pub split: u64,
    /// Datagrams dropped when receiving: truncated, or with unusable ancillary data.
    pub malformed: u64,
    /// Frames dropped when receiving: for others, or of protocols that nobody here speaks. A port
    /// sees them where no kernel has its interface.
    pub foreign: u64,
    /// Frames that were lost before they were received: there was no room for them.
    pub missed: u64,
}

impl PortCounters {
    /// Adds what happened at another port.
    pub const fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.super_packets_sent += other.super_packets_sent;
        self.send_calls += other.send_calls;
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.super_packets_received += other.super_packets_received;
        self.receive_calls += other.receive_calls;
        self.full += other.full;
        self.too_long += other.too_long;
        self.no_buffers += other.no_buffers;
        self.unreachable += other.unreachable;
        self.misrouted += other.misrouted;
        self.refused += other.refused;
        self.split += other.split;
        self.malformed += other.malformed;
        self.foreign += other.foreign;
        self.missed += other.missed;
    }
}

/// Why a port cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// A system call failed in a way that repeating it will not cure.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The interface of a port of raw frames was removed, or moved to another network namespace.
    #[error(
        "interface {interface} is gone, or was for a moment: open the node again when it is there"
    )]
    Gone {
        /// Its name.
        interface: InterfaceName,
    },
}

impl PortError {
    /// Whether the same call may work later, though nobody repairs anything: a shortage of memory,
    /// buffers or descriptors, an interruption, a network that is down. Everything else says that
    /// the port itself is gone.
    pub fn is_passing(&self) -> bool {
        use std::io::ErrorKind;
        let Self::System { source, .. } = self else {
            return false;
        };
        match source.raw_os_error() {
            Some(code) => !matches!(
                code,
                libc::EBADF
                    | libc::ENOTSOCK
                    | libc::EFAULT
                    | libc::EINVAL
                    | libc::ENODEV
                    | libc::ENXIO
                    | libc::ENOSYS
            ),
            None => matches!(
                source.kind(),
                ErrorKind::Interrupted
                    | ErrorKind::WouldBlock
                    | ErrorKind::TimedOut
                    | ErrorKind::OutOfMemory
                    | ErrorKind::ResourceBusy
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PortError;
    use std::io::{Error, ErrorKind};

    fn passes(source: Error) -> bool {
        let call = "send";
        PortError::System { call, source }.is_passing()
    }

    #[test]
    fn shortages_pass_and_a_descriptor_that_is_none_does_not() {
        for code in [
            libc::EINTR,
            libc::EAGAIN,
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOBUFS,
            libc::ENOMEM,
            libc::ENETDOWN,
            libc::EPERM,
        ] {
            assert!(passes(Error::from_raw_os_error(code)), "{code}");
        }
        for code in [libc::EBADF, libc::ENOTSOCK, libc::EFAULT, libc::ENODEV] {
            assert!(!passes(Error::from_raw_os_error(code)), "{code}");
        }
        assert!(passes(ErrorKind::Interrupted.into()));
        assert!(!passes(Error::other("it broke")));
    }
}
