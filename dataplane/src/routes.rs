//! What the kernel knows of the way to an address: its routing and neighbour tables (rtnetlink(7)).
//!
//! The kernel answers while it takes the question, so nothing here waits. What takes time, asking a
//! link for a neighbour, is the kernel's work: [`KernelRoutes::solicit`] makes it begin,
//! [`KernelRoutes::neighbour`] says how far it is.

use crate::netlink;
use crate::udp::interface::{self, InterfaceName};
use netlink_packet_core::{NetlinkDeserializable, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use socket2::Socket;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;
use trunkline_wire::{Mac, may_be_one_host};

/// Where nothing listens (RFC 863): a datagram there makes the kernel look for the neighbour.
const DISCARD: u16 = 9;

/// The way to a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NextHop {
    /// Address of ours that packets leave from.
    pub source: IpAddr,
    /// Index of the interface.
    pub interface: u32,
    /// The neighbour that packets go to: the peer itself, or a gateway.
    pub address: IpAddr,
    /// Bytes of the largest IP packet that the path carries, as far as the kernel knows.
    pub mtu: u32,
    /// The neighbour has an address of the link that has to be known first. Not so where the
    /// interface is a loop, or has one neighbour only.
    pub has_neighbour: bool,
}

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Neighbour {
    /// Its address of the link.
    Known,
    /// The kernel asks the link for it.
    Asked,
    /// Nothing.
    Unknown,
    /// It did not answer when it was asked last.
    Silent,
}

/// All that is known of a neighbour.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NeighbourEntry {
    /// How well it is known.
    pub state: Neighbour,
    /// Its address of the link.
    pub mac: Option<Mac>,
    /// It has not been confirmed for long, and nobody asks for it before it is
    /// [solicited](Routes::solicit).
    pub is_stale: bool,
}

impl NeighbourEntry {
    const UNKNOWN: Self = Self {
        state: Neighbour::Unknown,
        mac: None,
        is_stale: false,
    };
}

/// Why there is no way.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The peer's address is of the other family.
    #[error("{peer} is not of the family of {local}")]
    Family {
        /// Our address.
        local: IpAddr,
        /// The peer's.
        peer: IpAddr,
    },
    /// A broadcast or multicast address, or none at all.
    #[error("{0} is not the address of one host")]
    NotOneHost(IpAddr),
    /// The peer is on a link that our address is not on.
    #[error("interface {asked} is not {ours}, where our address is")]
    Interface {
        /// Index that came with the peer's address.
        asked: u32,
        /// Index of ours.
        ours: u32,
    },
    /// The kernel has no route: what it says.
    #[error("no route to {peer} from {local}: {source}")]
    NoRoute {
        /// Our address.
        local: IpAddr,
        /// The peer's.
        peer: IpAddr,
        /// `ENETUNREACH`, `EHOSTUNREACH`, `EACCES` where it is prohibited, and the like.
        source: io::Error,
    },
    /// There would be a way if its link worked.
    #[error("interface {interface}, which leads to {peer}, is down")]
    Down {
        /// Its name.
        interface: InterfaceName,
        /// The peer's address.
        peer: IpAddr,
    },
    /// The kernel could not be asked, or its answer makes no sense.
    #[error("{call}: {source}")]
    System {
        /// What was asked for.
        call: &'static str,
        /// What went wrong.
        source: io::Error,
    },
}

/// Who knows the ways of a port's packets, and the neighbours on them. Nothing here waits: what
/// takes time is begun by [`solicit`](Self::solicit), and [`neighbour`](Self::neighbour) says how
/// far it is.
pub trait Routes: std::fmt::Debug {
    /// The way to a peer; its port does not count.
    ///
    /// # Errors
    /// There is none.
    fn next_hop(&mut self, peer: SocketAddr) -> Result<NextHop, RouteError>;

    /// What is known of the neighbour on a way, which has to have one.
    ///
    /// # Errors
    /// Whoever knows cannot be asked.
    fn entry(&mut self, hop: &NextHop) -> Result<NeighbourEntry, RouteError>;

    /// How well the neighbour on a way is known; who has none counts as known.
    ///
    /// # Errors
    /// Whoever knows cannot be asked.
    fn neighbour(&mut self, hop: &NextHop) -> Result<Neighbour, RouteError> {
        if !hop.has_neighbour {
            return Ok(Neighbour::Known);
        }
        self.entry(hop).map(|entry| entry.state)
    }

    /// The interface that a way leaves by, where it is down: by somebody's wish, or because nothing
    /// is at the other end of its cable. The kernel keeps ways of the latter kind.
    fn down(&mut self, hop: &NextHop) -> Option<InterfaceName> {
        let _ = hop;
        None
    }

    /// Begins to look for the neighbour on the way to a peer.
    ///
    /// # Errors
    /// As [`next_hop`](Self::next_hop).
    fn solicit(&mut self, peer: SocketAddr) -> Result<(), RouteError>;
}

impl<R: Routes + ?Sized> Routes for Box<R> {
    fn next_hop(&mut self, peer: SocketAddr) -> Result<NextHop, RouteError> {
        (**self).next_hop(peer)
    }

    fn entry(&mut self, hop: &NextHop) -> Result<NeighbourEntry, RouteError> {
        (**self).entry(hop)
    }

    fn down(&mut self, hop: &NextHop) -> Option<InterfaceName> {
        (**self).down(hop)
    }

    fn solicit(&mut self, peer: SocketAddr) -> Result<(), RouteError> {
        (**self).solicit(peer)
    }
}

/// Asks the kernel about ways from one address of ours. It belongs to the network namespace in
/// which it was opened.
#[derive(Debug)]
pub struct KernelRoutes {
    local: IpAddr,
    /// Index of the interface that has our address; 0 when several may be meant.
    scope: u32,
    netlink: Socket,
    probe: UdpSocket,
    sequence: u32,
    answer: Box<[u8]>,
}

impl From<NeighbourMessage> for NeighbourEntry {
    fn from(found: NeighbourMessage) -> Self {
        let mac = found
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                NeighbourAttribute::LinkLayerAddress(bytes) => {
                    bytes.as_slice().try_into().ok().map(Mac)
                }
                _ => None,
            });
        Self {
            state: match found.header.state {
                NeighbourState::Incomplete => Neighbour::Asked,
                NeighbourState::Failed => Neighbour::Silent,
                NeighbourState::None => Neighbour::Unknown,
                // Old knowledge is good until it proves wrong, and then the kernel asks again.
                _ => Neighbour::Known,
            },
            mac,
            is_stale: found.header.state == NeighbourState::Stale,
        }
    }
}

/// A link, as far as it matters.
struct Link {
    mtu: u32,
    has_neighbours: bool,
    /// Its name, where it is down.
    down: Option<InterfaceName>,
}

fn system(call: &'static str) -> impl Fn(io::Error) -> RouteError {
    move |source| RouteError::System { call, source }
}

fn nonsense() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

impl KernelRoutes {
    /// For ways from `local`.
    ///
    /// # Errors
    /// The address is not ours, or the system has no descriptor left.
    pub fn open(local: IpAddr) -> Result<Self, RouteError> {
        let netlink = netlink::open(0).map_err(system("socket(AF_NETLINK)"))?;
        let own = interface::of(local, netlink.as_fd()).map_err(system("getifaddrs"))?;
        let from = match local {
            IpAddr::V4(_) => SocketAddr::new(local, 0),
            IpAddr::V6(address) => SocketAddrV6::new(address, 0, 0, own.scope).into(),
        };
        let probe = UdpSocket::bind(from).map_err(system("bind"))?;
        Ok(Self {
            local,
            scope: own.scope,
            netlink,
            probe,
            sequence: 0,
            answer: vec![0; netlink::LONGEST].into_boxed_slice(),
        })
    }

    /// Ways from `local`, as a port tells of them: `None` where the kernel does not let itself be
    /// asked, and nobody knows.
    pub(crate) fn ways(local: IpAddr) -> Option<Box<dyn Routes + Send>> {
        let routes = Self::open(local).ok()?;
        Some(Box::new(routes))
    }

    /// The link that a link-local address belongs to; 0 for others.
    fn scope_of(&self, peer: SocketAddr) -> Result<u32, RouteError> {
        let SocketAddr::V6(peer) = peer else {
            return Ok(0);
        };
        let (asked, ours) = (peer.scope_id(), self.scope);
        if asked != 0 && ours != 0 && asked != ours {
            return Err(RouteError::Interface { asked, ours });
        }
        let link_local = peer.ip().is_unicast_link_local();
        Ok(if link_local { asked.max(ours) } else { 0 })
    }

    fn ask_route(&mut self, to: IpAddr, scope: u32) -> Result<RouteMessage, Answer> {
        let bits = if to.is_ipv4() { 32 } else { 128 };
        let mut question = RouteMessage::default();
        question.header.address_family = family(to);
        question.header.destination_prefix_length = bits;
        question
            .attributes
            .push(RouteAttribute::Destination(to.into()));
        if !self.local.is_unspecified() {
            question.header.source_prefix_length = bits;
            let from = RouteAttribute::Source(self.local.into());
            question.attributes.push(from);
        }
        if scope != 0 {
            question.attributes.push(RouteAttribute::Oif(scope));
        }
        match self.ask(Message::GetRoute(question))? {
            Message::NewRoute(route) => Ok(route),
            _ => Err(Answer::System(nonsense())),
        }
    }

    fn ask_link(&mut self, interface: u32) -> Result<Link, Answer> {
        let mut question = LinkMessage::default();
        question.header.index = interface;
        let Message::NewLink(link) = self.ask(Message::GetLink(question))? else {
            return Err(Answer::System(nonsense()));
        };
        let mtu = link
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::Mtu(mtu) => Some(*mtu),
                _ => None,
            });
        let name = link
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(InterfaceName::new(name.as_bytes())),
                _ => None,
            });
        let works = link.header.flags.contains(LinkFlags::Running);
        let alone = LinkFlags::Loopback | LinkFlags::Noarp | LinkFlags::Pointopoint;
        Ok(Link {
            mtu: mtu.ok_or_else(|| Answer::System(nonsense()))?,
            has_neighbours: !link.header.flags.intersects(alone),
            down: name.filter(|_| !works),
        })
    }

    /// One question and its answer.
    fn ask(&mut self, question: Message) -> Result<Message, Answer> {
        self.sequence = self.sequence.wrapping_add(1);
        netlink::ask(&self.netlink, self.sequence, question).map_err(Answer::System)?;
        loop {
            let length = (&self.netlink).read(&mut self.answer);
            let length = length.map_err(Answer::System)?;
            let answer = parse::<Message>(&self.answer[..length])?;
            // An answer to a question that was given up would be an older one's.
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            return match answer.payload {
                NetlinkPayload::InnerMessage(message) => Ok(message),
                NetlinkPayload::Error(error) => Err(Answer::Refused(error.to_io())),
                _ => Err(Answer::System(nonsense())),
            };
        }
    }
}

impl Routes for KernelRoutes {
    fn next_hop(&mut self, peer: SocketAddr) -> Result<NextHop, RouteError> {
        let (local, to) = (self.local, peer.ip());
        if local.is_ipv4() != to.is_ipv4() {
            return Err(RouteError::Family { local, peer: to });
        }
        if !may_be_one_host(to) {
            return Err(RouteError::NotOneHost(to));
        }
        let scope = self.scope_of(peer)?;
        let route = self.ask_route(to, scope).map_err(|error| match error {
            Answer::Refused(source) => match interface::down(local, to) {
                Some(interface) => RouteError::Down {
                    interface,
                    peer: to,
                },
                None => RouteError::NoRoute {
                    local,
                    peer: to,
                    source,
                },
            },
            Answer::System(source) => system("RTM_GETROUTE")(source),
        })?;
        let refused = |kind| RouteError::NoRoute {
            local,
            peer: to,
            source: io::Error::from_raw_os_error(kind),
        };
        match route.header.kind {
            RouteType::Unicast | RouteType::Local => {}
            RouteType::Prohibit => return Err(refused(libc::EACCES)),
            RouteType::Broadcast | RouteType::Multicast | RouteType::Anycast => {
                return Err(RouteError::NotOneHost(to));
            }
            _ => return Err(refused(libc::EHOSTUNREACH)),
        }
        let found = parse_route(&route, local, to);
        let (hop, limit) = found.ok_or_else(|| system("RTM_GETROUTE")(nonsense()))?;
        let link = self.ask_link(hop.interface);
        let link = link.map_err(|error| system("RTM_GETLINK")(error.into()))?;
        Ok(NextHop {
            mtu: limit.unwrap_or(link.mtu).min(link.mtu),
            has_neighbour: hop.has_neighbour && link.has_neighbours,
            ..hop
        })
    }

    fn entry(&mut self, hop: &NextHop) -> Result<NeighbourEntry, RouteError> {
        let mut question = NeighbourMessage::default();
        question.header.family = family(hop.address);
        question.header.ifindex = hop.interface;
        let to = NeighbourAttribute::Destination(hop.address.into());
        question.attributes.push(to);
        match self.ask(Message::GetNeighbour(question)) {
            Ok(Message::NewNeighbour(found)) => Ok(NeighbourEntry::from(found)),
            Ok(_) => Err(system("RTM_GETNEIGH")(nonsense())),
            // ENOENT: there is no entry.
            Err(Answer::Refused(_)) => Ok(NeighbourEntry::UNKNOWN),
            Err(Answer::System(source)) => Err(system("RTM_GETNEIGH")(source)),
        }
    }

    fn down(&mut self, hop: &NextHop) -> Option<InterfaceName> {
        self.ask_link(hop.interface).ok()?.down
    }

    /// Makes the kernel look for it: by a datagram without content to the discard port, as entering
    /// questions into the neighbour table takes privileges.
    fn solicit(&mut self, peer: SocketAddr) -> Result<(), RouteError> {
        let to = match peer.ip() {
            IpAddr::V4(_) => SocketAddr::new(peer.ip(), DISCARD),
            IpAddr::V6(address) => {
                let scope = self.scope_of(peer)?;
                SocketAddrV6::new(address, DISCARD, 0, scope).into()
            }
        };
        match self.probe.send_to(&[], to) {
            Ok(_) => Ok(()),
            // What became of an earlier one.
            Err(error) if error.kind() == io::ErrorKind::HostUnreachable => Ok(()),
            Err(error) => Err(system("sendto")(error)),
        }
    }
}

/// Whether an address is that of one host. Where the kernel cannot be asked it is taken for one.
pub(crate) fn is_of_one_host(address: IpAddr) -> bool {
    let anywhere: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let hop = KernelRoutes::open(anywhere)
        .and_then(|mut routes| routes.next_hop(SocketAddr::new(address, DISCARD)));
    !matches!(hop, Err(RouteError::NotOneHost(_)))
}

/// Why a question has no answer.
enum Answer {
    /// The kernel says no.
    Refused(io::Error),
    /// It could not be asked, or cannot be understood.
    System(io::Error),
}

impl From<Answer> for io::Error {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Refused(error) | Answer::System(error) => error,
        }
    }
}

fn parse<M: NetlinkDeserializable>(bytes: &[u8]) -> Result<NetlinkMessage<M>, Answer> {
    NetlinkMessage::deserialize(bytes).map_err(|_| Answer::System(nonsense()))
}

const fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

const fn address(of: &RouteAddress) -> Option<IpAddr> {
    match of {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

/// The way that a route tells, and the limit it sets to packets.
fn parse_route(route: &RouteMessage, local: IpAddr, to: IpAddr) -> Option<(NextHop, Option<u32>)> {
    let (mut interface, mut gateway, mut preferred, mut limit) = (None, None, None, None);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(hop) => gateway = address(hop),
            // An IPv4 route by way of an IPv6 neighbour.
            RouteAttribute::Via(via) => {
                gateway = match via {
                    netlink_packet_route::route::RouteVia::Inet(hop) => Some((*hop).into()),
                    netlink_packet_route::route::RouteVia::Inet6(hop) => Some((*hop).into()),
                    _ => None,
                };
            }
            RouteAttribute::PrefSource(source) => preferred = address(source),
            RouteAttribute::Metrics(metrics) => {
                limit = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    let hop = NextHop {
        source: if local.is_unspecified() {
            preferred?
        } else {
            local
        },
        interface: interface?,
        address: gateway.unwrap_or(to),
        mtu: 0,
        has_neighbour: route.header.kind != RouteType::Local,
    };
    Some((hop, limit))
}

#[cfg(test)]
mod tests;
