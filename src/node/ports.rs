//! What carries the packets of a node.

use crate::error::Error;
use crate::worker::core::PortBox;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use trunkline_dataplane::link::Device;
use trunkline_dataplane::{
    LinkAddress, LinkConfig, LinkOpenError, LinkPort, PacketDevice, UdpConfig, UdpPort, XdpConfig,
    XdpDevice,
};
use trunkline_wire::{ROCE_PORT, Workers};

/// What carries the packets of a node ([`Builder::port`](crate::Builder::port)).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum PortKind {
    /// A UDP socket: any Linux, no privilege.
    #[default]
    Udp,
    /// Raw frames by an AF_PACKET socket (packet(7)): any interface that carries Ethernet, with
    /// `CAP_NET_RAW`. What the kernel does to each packet of a socket is left out, and the IPv4
    /// identification of what comes is seen.
    Packet,
    /// Raw frames by AF_XDP sockets, one for each receive queue of an interface
    /// (Documentation/networking/af_xdp.rst), with `CAP_NET_RAW`, `CAP_NET_ADMIN` and `CAP_BPF`. No
    /// part of the kernel's stack sees the packets of the node; without copies where the driver can
    /// do that. The node has as many workers as the interface has receive queues.
    Xdp,
}

impl PortKind {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Udp, Self::Packet, Self::Xdp];

    /// What it is called on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Packet => "packet",
            Self::Xdp => "xdp",
        }
    }

    /// Opens a port of this kind for a moment, as a node on this address would. Gives how many
    /// workers such a node has to have, where that is not any number.
    ///
    /// # Errors
    /// As [`Builder::build`](crate::Builder::build): the address cannot be had, or the system lacks
    /// what this kind takes.
    pub fn try_on(self, address: IpAddr) -> Result<Option<u8>, Error> {
        let workers = match self {
            Self::Udp | Self::Packet => None,
            Self::Xdp => Some(LinkAddress::take(address, ROCE_PORT)?.queues()?),
        };
        let config = UdpConfig::new(address);
        drop(self.open(&config, workers.unwrap_or(Workers::ONE))?);
        Ok(workers.map(Workers::count))
    }

    /// Opens a port of this kind for each worker.
    ///
    /// # Errors
    /// The address cannot be had, or the system lacks what this kind takes.
    pub(super) fn open(self, config: &UdpConfig, workers: Workers) -> Result<Vec<PortBox>, Error> {
        match self {
            Self::Udp => {
                let group = UdpPort::open_group(config, workers)?;
                Ok(group.into_iter().map(boxed).collect())
            }
            Self::Packet => {
                let at = LinkAddress::take(config.address, config.port)?;
                let devices = PacketDevice::open_group(&at, workers)?;
                Ok(on(&at, devices, config)?)
            }
            Self::Xdp => {
                let at = LinkAddress::take(config.address, config.port)?;
                at.check_queues(workers)?;
                let queues = (0..workers.count().into()).map(|queue| XdpConfig {
                    queue,
                    ..XdpConfig::new(at.interface().index, config.address)
                });
                let queues: Vec<_> = queues.collect();
                let devices = XdpDevice::open_group(&queues).map_err(LinkOpenError::from)?;
                Ok(on(&at, devices, config)?)
            }
        }
    }
}

/// Ports of raw frames that these devices carry.
fn on<D: Device + Send + 'static>(
    at: &LinkAddress,
    devices: Vec<D>,
    config: &UdpConfig,
) -> Result<Vec<PortBox>, LinkOpenError> {
    let sources = LinkConfig {
        extra_source_ports: config.extra_source_ports,
    };
    let open = |device| LinkPort::new(at, device, &sources).map(boxed);
    devices.into_iter().map(open).collect()
}

fn boxed(port: impl trunkline_dataplane::Port + Send + 'static) -> PortBox {
    Box::new(port)
}

impl fmt::Display for PortKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No port is called that.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("no port is called {0:?}: udp, packet or xdp")]
pub struct UnknownPort(String);

impl FromStr for PortKind {
    type Err = UnknownPort;

    fn from_str(text: &str) -> Result<Self, UnknownPort> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| UnknownPort(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_found_by_its_name_and_nothing_else_is() {
        for kind in PortKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        for text in ["", "UDP", "udp ", "dpdk"] {
            let refused = text.parse::<PortKind>().expect_err("no such port");
            let names = PortKind::ALL.map(PortKind::name);
            let said = refused.to_string();
            assert!(names.iter().all(|name| said.contains(name)), "{said}");
        }
    }
}
