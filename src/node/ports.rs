//! What carries the packets of a node.

mod family;

pub use family::{PortFamily, PortRequest, PortSource};

use crate::error::Error;
use crate::node::Node;
use crate::worker::core::PortBox;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use trunkline_cm::gsi;
use trunkline_dataplane::link::Device;
use trunkline_dataplane::{
    InterfaceName, LinkAddress, LinkConfig, LinkOpenError, LinkPort, PacketDevice, UdpConfig,
    UdpPort, XdpConfig, XdpDevice, XdpMode,
};
use trunkline_wire::{ROCE_PORT, Workers};

/// What Linux calls the interface over which a host sends to itself.
const LOOP: &str = "lo";

/// What carries the packets of a node ([`Builder::port`](crate::Builder::port)).
#[derive(Clone, Debug, Default)]
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
    /// [`Xdp`](Self::Xdp) where the driver can do without copies, else [`Udp`](Self::Udp): the
    /// fastest that needs no choice.
    Auto,
    /// One that another crate brings.
    Other(Arc<dyn PortSource>),
}

/// What a port was found to be that was opened for a moment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PortTrial {
    /// Workers that a node on it has to have; `None`: any number.
    pub workers: Option<u8>,
    /// What there is to know of it beside that it works.
    pub how: Option<String>,
}

impl PortKind {
    /// Those that are always there, from the one that asks for least.
    pub const BUILT_IN: [Self; 4] = [Self::Udp, Self::Packet, Self::Xdp, Self::Auto];

    /// What it is called on command lines, up to a colon.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Packet => "packet",
            Self::Xdp => "xdp",
            Self::Auto => "auto",
            Self::Other(source) => source.family(),
        }
    }

    /// What it is, in a line.
    pub fn about(&self) -> &'static str {
        match self {
            Self::Udp => "a UDP socket",
            Self::Packet => "raw frames by an AF_PACKET socket; it takes CAP_NET_RAW",
            Self::Xdp => {
                "raw frames by AF_XDP, a worker for each receive queue; it takes CAP_NET_RAW, \
                 CAP_NET_ADMIN and CAP_BPF"
            }
            Self::Auto => "xdp where the driver can do without copies, else udp",
            Self::Other(source) => source.about(),
        }
    }

    /// Looks whether a node at each of these addresses can have a port of this kind, as far as that
    /// shows before one is opened.
    ///
    /// # Errors
    /// They exclude each other.
    pub fn check_together(&self, addresses: &[IpAddr]) -> Result<(), PortConflict> {
        let port = || self.to_string();
        match self {
            Self::Xdp => {
                let mut taken = BTreeMap::new();
                for &second in addresses {
                    // One that is not there is refused when a port is opened.
                    let Ok(Some(interface)) = InterfaceName::of(second) else {
                        continue;
                    };
                    if let Some(first) = taken.insert(interface.to_string(), second) {
                        return Err(PortConflict::Interface {
                            port: port(),
                            interface,
                            addresses: [first, second],
                        });
                    }
                }
                Ok(())
            }
            Self::Other(source) if addresses.len() > 1 => match source.excludes_others() {
                None => Ok(()),
                Some(helps) => Err(PortConflict::Device {
                    port: port(),
                    helps,
                }),
            },
            _ => Ok(()),
        }
    }

    /// Looks whether nodes at these two addresses reach each other by ports of this kind, where
    /// both are of this host. Of [`Auto`](Self::Auto) that does not show before it is opened.
    ///
    /// # Errors
    /// They do not: what goes from one address of a host to another leaves by no interface but the
    /// loop, which two nodes on XDP cannot share.
    pub fn check_within_host(&self, addresses: [IpAddr; 2]) -> Result<(), PortConflict> {
        if !matches!(self, Self::Packet | Self::Xdp) {
            return Ok(());
        }
        // One that is not there is refused when a port is opened.
        let of = |address| InterfaceName::of(address).ok().flatten();
        let [Some(first), Some(second)] = addresses.map(of) else {
            return Ok(());
        };
        let on_loop = [first, second].iter().all(|name| name.to_string() == LOOP);
        if on_loop && matches!(self, Self::Packet) {
            return Ok(());
        }
        Err(PortConflict::SameHost {
            port: self.to_string(),
            addresses,
        })
    }

    /// What a node takes whose peers are all of its own host: [`Auto`](Self::Auto) is a socket
    /// there, as raw frames from one address of a host to another leave by no interface but the
    /// loop, and no driver of that does without copies.
    #[must_use]
    pub fn within_host(self) -> Self {
        match self {
            Self::Auto => Self::Udp,
            other => other,
        }
    }

    /// Looks whether a node on a port of this kind reaches those of other processes.
    ///
    /// # Errors
    /// Both ends of such a port are in one process.
    pub fn check_between_processes(&self) -> Result<(), PortConflict> {
        let Self::Other(source) = self else {
            return Ok(());
        };
        source.stays_in_process().map_or(Ok(()), |helps| {
            Err(PortConflict::OneProcess {
                port: self.to_string(),
                helps,
            })
        })
    }

    /// Opens a port of this kind for a moment, as a node on this address would.
    ///
    /// # Errors
    /// As [`Builder::build`](crate::Builder::build): the address cannot be had, or the system lacks
    /// what this kind takes.
    pub fn try_on(&self, address: IpAddr) -> Result<PortTrial, Error> {
        Node::check_address(address)?;
        let workers = match self {
            Self::Xdp => Some(LinkAddress::take(address, ROCE_PORT)?.queues()?),
            _ => None,
        };
        let opened = self.open(&UdpConfig::new(address), workers.unwrap_or(Workers::ONE))?;
        Ok(PortTrial {
            workers: workers.map(Workers::count),
            how: opened.how,
        })
    }

    /// A port of this kind without a node, for programs that measure what it does by itself.
    ///
    /// # Errors
    /// As [`Builder::build`](crate::Builder::build).
    pub fn open_alone(&self, address: IpAddr) -> Result<PortBox, Error> {
        let mut opened = self.open(&UdpConfig::new(address), Workers::ONE)?;
        Ok(opened.ports.pop().expect("a port for each worker"))
    }

    /// Opens a port of this kind for each worker.
    ///
    /// # Errors
    /// The address cannot be had, or the system lacks what this kind takes; the path of the address
    /// is too narrow.
    pub(super) fn open(&self, config: &UdpConfig, workers: Workers) -> Result<Opened, Error> {
        let opened = self.open_any(config, workers)?;
        let carries = opened
            .ports
            .iter()
            .map(|port| port.capabilities().max_datagram);
        match carries.min() {
            Some(carries) if carries < gsi::LEN => Err(Error::TooNarrow {
                port: opened.name,
                carries,
                least: gsi::LEN,
            }),
            _ => Ok(opened),
        }
    }

    fn open_any(&self, config: &UdpConfig, workers: Workers) -> Result<Opened, Error> {
        match self {
            Self::Udp => {
                let group = UdpPort::open_group(config, workers)?;
                Ok(Opened::of(self, group.into_iter().map(boxed).collect()))
            }
            Self::Packet => {
                let at = LinkAddress::take(config.address, config.port)?;
                let devices = PacketDevice::open_group(&at, workers)?;
                Ok(Opened::of(self, on(&at, devices, config)?))
            }
            Self::Xdp => open_xdp(config, workers, XdpMode::Generic),
            Self::Auto => match open_xdp(config, workers, XdpMode::ZeroCopy) {
                Ok(opened) => Ok(Opened {
                    how: Some("takes xdp, without copies".to_owned()),
                    ..opened
                }),
                Err(error) => {
                    tracing::debug!(%error, "a UDP socket is taken, as AF_XDP would be no faster");
                    Ok(Opened {
                        how: Some("takes udp".to_owned()),
                        ..Self::Udp.open(config, workers)?
                    })
                }
            },
            Self::Other(source) => {
                let request = PortRequest {
                    address: config.address,
                    udp_port: config.port,
                    extra_source_ports: config.extra_source_ports,
                    workers,
                };
                let opened = source.open(&request).map_err(|source| Error::OpenOther {
                    port: self.to_string(),
                    source,
                });
                opened.map(|ports| Opened::of(self, ports))
            }
        }
    }
}

/// What ports are called that the program has made itself.
pub(super) const OWN: &str = "own";

/// A port for each worker.
pub(super) struct Opened {
    pub(super) ports: Vec<PortBox>,
    /// What command lines call them: [`PortKind::Auto`] has taken one of the others.
    pub(super) name: String,
    /// What there is to know of them.
    how: Option<String>,
}

impl Opened {
    fn of(kind: &PortKind, ports: Vec<PortBox>) -> Self {
        Self {
            ports,
            name: kind.to_string(),
            how: None,
        }
    }
}

/// Ports of AF_XDP whose frames get to them in the way `least`, or a faster one.
fn open_xdp(config: &UdpConfig, workers: Workers, least: XdpMode) -> Result<Opened, Error> {
    let at = LinkAddress::take(config.address, config.port)?;
    at.check_queues(workers)?;
    let queues = (0..workers.count().into()).map(|queue| XdpConfig {
        queue,
        ..XdpConfig::new(at.interface().index, config.address)
    });
    let queues: Vec<_> = queues.collect();
    let devices = XdpDevice::open_group(&queues).map_err(LinkOpenError::from)?;
    let mode = devices[0].mode();
    if least == XdpMode::ZeroCopy && mode != least {
        return Err(LinkOpenError::Copies {
            interface: at.interface().name,
        }
        .into());
    }
    Ok(Opened {
        how: Some(mode.about().to_owned()),
        ..Opened::of(&PortKind::Xdp, on(&at, devices, config)?)
    })
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
        match self {
            Self::Other(source) => write!(f, "{}:{source}", source.family()),
            _ => f.pad(self.name()),
        }
    }
}

/// By what they are called.
impl PartialEq for PortKind {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for PortKind {}

/// Why two nodes cannot have ports of one kind, or do not reach each other by them.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PortConflict {
    /// An interface has one such port.
    #[error(
        "{port} takes an interface for one node, and {interface} has both {} and {}: give \
         addresses of two interfaces, or another kind of port", addresses[0], addresses[1]
    )]
    Interface {
        /// What it is called.
        port: String,
        /// The interface.
        interface: InterfaceName,
        /// The two that it has.
        addresses: [IpAddr; 2],
    },
    /// Both are of this host, and frames do not get from one to the other.
    #[error(
        "nodes on raw frames ({port}) do not reach other nodes of their host, and this one has \
         both {} and {}: take a UDP socket (udp), or packet with loopback addresses",
        addresses[0], addresses[1]
    )]
    SameHost {
        /// What it is called.
        port: String,
        /// The two addresses.
        addresses: [IpAddr; 2],
    },
    /// Both ends are in one process.
    #[error("{port} joins two nodes of one process: {helps}")]
    OneProcess {
        /// What it is called.
        port: String,
        /// What helps.
        helps: &'static str,
    },
    /// The device that it names has one user.
    #[error("{port} is a port of one node: {helps}")]
    Device {
        /// What it is called.
        port: String,
        /// What helps.
        helps: &'static str,
    },
}

/// Why a text says no port.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownPort {
    /// Nothing is called that.
    #[error("no port is called {text:?}: {known}")]
    Name {
        /// The text.
        text: String,
        /// What there is.
        known: String,
    },
    /// What follows the name is wrong.
    #[error("port {text:?}: {source}")]
    Source {
        /// The text.
        text: String,
        /// What is wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl FromStr for PortKind {
    type Err = UnknownPort;

    fn from_str(text: &str) -> Result<Self, UnknownPort> {
        let mut built_in = Self::BUILT_IN.into_iter();
        if let Some(kind) = built_in.find(|kind| kind.name() == text) {
            return Ok(kind);
        }
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let text = || text.to_owned();
        let Some(family) = family::named(name) else {
            let (text, known) = (text(), family::known(name));
            return Err(UnknownPort::Name { text, known });
        };
        match family.source(rest) {
            Ok(source) => Ok(Self::Other(source)),
            Err(source) => Err(UnknownPort::Source {
                text: text(),
                source,
            }),
        }
    }
}

#[cfg(test)]
mod tests;
