//! What ports of raw frames are opened from: an address, and who has its interface.

use super::alone::Alone;
use super::guard::Guard;
use super::{LinkInterface, XdpOpenError};
use crate::neighbours::Interface;
use crate::routes::{KernelRoutes, RouteError, Routes};
use crate::udp::{InterfaceName, UdpOpenError};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use trunkline_wire::{ROCE_PORT, Workers, may_be_one_host};

/// The index of an interface that the kernel does not have (RFC 3493, 4).
const NO_INDEX: u32 = 0;

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
    /// The interface is down.
    #[error("interface {interface} is down: `ip link set {interface} up`")]
    Down {
        /// Its name.
        interface: InterfaceName,
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
         both the same, by other workers or `ethtool -L {interface} combined {workers}` (`rx \
         {workers} tx {workers}` where it counts them apart)"
    )]
    Queues {
        /// The name of the interface.
        interface: InterfaceName,
        /// Its queues.
        queues: u32,
        /// The node's workers.
        workers: u8,
    },
    /// Frames would be copied between the interface's driver and the port.
    #[error("the driver of interface {interface} does not do without copies")]
    Copies {
        /// The name of the interface.
        interface: InterfaceName,
    },
    /// The address is not one that an interface of its own can have.
    #[error(
        "{address} is not an address that an interface of its own can have: give it that of one \
         host of its network"
    )]
    NotOneHost {
        /// The address.
        address: IpAddr,
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

/// UDP source ports from here on are for whoever wants them (RFC 6335, 6).
const FIRST_SOURCE_PORT: u16 = 49_152;
/// A port has so many of them at least beside that of RoCEv2. Of 128 source ports one leads to the
/// right one of a peer's `n` receive queues, if that hashes them, but for once in
/// `(1 - 1 / n) ^ -128` times: 4,000 with 16 queues.
const SOURCE_PORTS: usize = 127;

/// What a port of raw frames is made of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LinkConfig {
    /// UDP source ports beside that of RoCEv2, 127 at least: entropy for switches and receive
    /// queues.
    pub extra_source_ports: usize,
}

impl LinkConfig {
    /// The first is the one that answers come to, and ICMP errors.
    pub(super) fn source_ports(self) -> Vec<u16> {
        let extra = (FIRST_SOURCE_PORT..).take(self.extra_source_ports.max(SOURCE_PORTS));
        [ROCE_PORT].into_iter().chain(extra).collect()
    }
}

/// What ports of one address share, from which they are opened.
#[derive(Clone, Debug)]
pub struct LinkAddress {
    pub(super) address: IpAddr,
    pub(super) interface: LinkInterface,
    pub(super) owner: Owner,
}

/// Who has the interface: answers for its address, and knows the ways from there.
#[derive(Clone, Debug)]
pub(super) enum Owner {
    /// The kernel, which is kept from answering what comes.
    Kernel(Arc<Guard>),
    /// The ports.
    Ports(Arc<Alone>),
}

impl Owner {
    /// # Errors
    /// The kernel cannot be asked for routes.
    pub(super) fn routes(&self, local: IpAddr) -> Result<Box<dyn Routes + Send>, RouteError> {
        match self {
            Self::Kernel(_) => Ok(Box::new(KernelRoutes::open(local)?)),
            Self::Ports(alone) => Ok(alone.routes()),
        }
    }

    /// What is readable when an ICMP error waits.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Kernel(guard) => Some(guard.as_fd()),
            Self::Ports(_) => None,
        }
    }
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
            owner: Owner::Kernel(guard),
        })
    }

    /// The address of an interface that the ports have to themselves, which is called `name` and
    /// has so many receive queues. They answer ARP and Neighbor Discovery, and take in ICMP errors.
    ///
    /// # Errors
    /// The address is not that of one host.
    pub fn alone(
        interface: Interface,
        name: InterfaceName,
        queues: u32,
    ) -> Result<Self, LinkOpenError> {
        let address = interface.address;
        if !may_be_one_host(address) || address.is_loopback() {
            return Err(LinkOpenError::NotOneHost { address });
        }
        Ok(Self {
            address,
            interface: LinkInterface {
                index: NO_INDEX,
                name,
                mac: interface.mac,
                mtu: interface.mtu as usize,
                queues,
            },
            owner: Owner::Ports(Arc::new(Alone::new(interface))),
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
