//! What the suite knows of a kind of port.

use crate::AnyPort;
use std::net::IpAddr;
use trunkline_dataplane::{
    LinkAddress, LinkConfig, LinkPort, PacketDevice, UdpConfig, UdpPort, XdpConfig, XdpDevice,
    XdpMode,
};
use trunkline_testkit::netns::Far;
use trunkline_wire::ROCE_PORT;

/// Which end of a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    /// The one in the namespace of the test.
    Near,
    /// The one in the namespace of its neighbour.
    Far,
}

impl Side {
    /// Name of the end of the veth(4) pair.
    pub const fn interface(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}

/// What joins both ends, and who has the interfaces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Link {
    /// The veth pair. Its ends stay the kernel's, who answers ARP and carries what is not RoCEv2.
    Kernels,
    /// The veth pair, whose ends the ports have to themselves.
    Taken,
    /// Something of the ports' own that no kernel knows.
    Own,
}

/// A kind of port.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// What it is called.
    pub name: &'static str,
    /// What joins its ends.
    pub link: Link,
    /// Most bytes of an IP packet that it carries where the link carries 4200.
    pub mtu: usize,
    /// Whether a program can sleep until something arrives.
    pub can_sleep: bool,
    /// Whether the kernel finds the neighbours of a port, and tells of those who are not there by
    /// an error queue, without the datagram.
    pub is_socket: bool,
    /// Whether it takes super-packets of the other end apart that a link carries whole.
    pub parts_super_packets: bool,
    /// Whether it gives up a frame that the driver of its interface never takes.
    pub gives_up: bool,
    /// Opens a port on an address, in the namespace of its end.
    pub open: fn(Side, IpAddr) -> AnyPort,
}

impl Kind {
    /// Opens a port on that end.
    pub fn open_at(&self, side: Side, address: IpAddr, far: &Far) -> AnyPort {
        match side {
            Side::Near => (self.open)(side, address),
            Side::Far => far.within(|| (self.open)(side, address)),
        }
    }
}

/// UDP sockets.
pub const UDP: Kind = Kind {
    name: "udp",
    link: Link::Kernels,
    mtu: 4200,
    can_sleep: true,
    is_socket: true,
    parts_super_packets: true,
    gives_up: true,
    open: |_, address| Box::new(UdpPort::open(&UdpConfig::new(address)).unwrap()),
};

/// Raw frames by AF_PACKET.
pub const PACKET: Kind = Kind {
    name: "packet",
    is_socket: false,
    open: |_, address| {
        let at = LinkAddress::take(address, ROCE_PORT).unwrap();
        let device = PacketDevice::open(&at).unwrap();
        Box::new(LinkPort::new(&at, device, &LinkConfig::default()).unwrap())
    },
    ..UDP
};

/// Raw frames by AF_XDP, in the driver.
pub const XDP: Kind = Kind {
    name: "xdp",
    open: |_, address| {
        let at = LinkAddress::take(address, ROCE_PORT).unwrap();
        let config = XdpConfig::new(at.interface().index, address);
        let device = XdpDevice::open(&config).unwrap();
        assert_eq!(device.mode(), XdpMode::Native);
        Box::new(LinkPort::new(&at, device, &LinkConfig::default()).unwrap())
    },
    ..PACKET
};
