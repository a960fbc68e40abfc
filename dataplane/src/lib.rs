//! Where packets and memory meet the machine.
//!
//! A [`Port`] takes datagrams (BTH up to the ICRC) that are built in place in its own transmit
//! buffers and gives received ones to a closure, again in place: [`MemoryPort`] joins two nodes of
//! one process, [`UdpPort`] is a UDP socket. [`Fault`] and [`Capture`] wrap any port. A [`Region`]
//! is memory that peers reach; [`copy::Copier`] moves bytes in and out of it and sums their CRC-32
//! in the same pass.
//!
//! This floor holds unsafe code; every block says why it is sound.

pub mod capture;
pub mod copy;
pub mod fault;
pub mod link;
pub mod links;
pub mod maps;
pub mod memory;
pub mod neighbours;
pub mod parts;
pub mod port;
pub mod prng;
pub mod process;
pub mod process_memory;
pub mod promotion;
pub mod region;
pub mod routes;
pub mod udp;

mod bpf;
mod errno;
mod mapping;
mod netlink;
mod prefetch;
mod reidentify;
mod ring;
mod super_packet;

pub use capture::{Capture, PacketWriter};
pub use errno::Errno;
pub use fault::Fault;
pub use link::{
    LinkAddress, LinkConfig, LinkOpenError, LinkPort, PacketDevice, XdpConfig, XdpDevice, XdpMode,
    XdpOpenError,
};
pub use links::{KernelLink, LinkChanges};
pub use memory::{MemoryConfig, MemoryPort};
pub use neighbours::{Interface, Neighbours};
pub use parts::PartedRegion;
pub use port::{
    Arrival, Capabilities, Identification, LinkState, Port, PortCounters, PortError, PortEvent,
    Quoted,
};
pub use process_memory::{Patience, ProcessMemory, ProcessRegion};
pub use region::Region;
pub use routes::{KernelRoutes, Neighbour, NeighbourEntry, NextHop, RouteError, Routes};
pub use udp::{InterfaceName, UdpConfig, UdpOpenError, UdpPort};
