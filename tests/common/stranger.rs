//! A peer whose every step the test takes.

use super::address;
use std::net::{IpAddr, UdpSocket};
use trunkline::{Instant, Node, Psn, Qpn};
use trunkline_cm::{
    Binds, Config, ConnectRequest, Identity, NodeCm, Offer, Outgoing, Purpose, Retry, Route, gsi,
};
use trunkline_wire::{Bth, IpFields, MAD_LEN, Opcode, Path, SrcExt, Workers, icrc};

/// A bare socket for management datagrams between an address and a node.
pub struct Wire {
    socket: UdpSocket,
    pub route: Route,
    psn: Psn,
}

impl Wire {
    pub fn to(node: &Node) -> Self {
        let (local, remote) = (address(), node.gid().address());
        let socket = UdpSocket::bind((local, 4791)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self {
            socket,
            route: Route { local, remote },
            psn: Psn::default(),
        }
    }

    pub fn say(&mut self, message: &Outgoing) {
        let path = path(self.route.local, message.route.remote);
        let mut datagram = [0; gsi::LEN];
        gsi::build(&path, 0, self.psn, &message.mad, &mut datagram);
        self.psn = self.psn.advance(1);
        let to = (path.dst, path.src_port);
        self.socket.send_to(&datagram, to).unwrap();
    }

    /// Sends a datagram that is no management.
    pub fn send(&self, datagram: &[u8]) {
        let to = (self.route.remote, 4791);
        self.socket.send_to(datagram, to).unwrap();
    }

    pub fn hear(&self, mut heard: impl FnMut(&Path, &[u8; MAD_LEN])) {
        let mut packet = [0; 2048];
        while let Ok((length, from)) = self.socket.recv_from(&mut packet) {
            if length == gsi::LEN {
                let path = path(from.ip(), self.route.local);
                heard(&path, packet[20..276].try_into().unwrap());
            }
        }
    }
}

/// A node of another make: a manager of its own behind a bare socket.
pub struct Stranger {
    pub manager: NodeCm<fn() -> u64>,
    pub route: Route,
    wire: Wire,
}

/// Its end of a connection.
pub fn offer(window: u16) -> Offer {
    Offer {
        connection: Qpn::from_wire(u32::from(window) + 2),
        token: 1,
        first_packet: 0,
        packet_size: 4096,
        window,
        workers: Workers::ONE,
        packs: false,
    }
}

impl Stranger {
    pub fn new(node: &Node) -> Self {
        let wire = Wire::to(node);
        let config = Config::new(Identity { guid: 7, epoch: 1 });
        let random: fn() -> u64 = || 0x1234_5678_9abc_def0;
        let manager = NodeCm::new(config, random);
        Self {
            manager,
            route: wire.route,
            wire,
        }
    }

    /// Asks the node for a connection.
    pub fn ask(&mut self, window: u16) {
        let ask = ConnectRequest {
            offer: offer(window),
            purpose: Purpose::Private,
            toward: 0,
            traffic_class: 0,
            binds: Binds::default(),
            retry: Retry::KNOWN,
        };
        self.manager.open(Instant::ZERO, self.route, ask).unwrap();
    }

    /// Sends what the manager has to say, and hears what came.
    pub fn turn(&mut self) {
        self.say();
        self.hear();
    }

    /// Hears what came.
    pub fn hear(&mut self) {
        let manager = &mut self.manager;
        self.wire
            .hear(|path, mad| manager.handle_mad(Instant::ZERO, path, mad));
    }

    /// A bare acknowledgement for a connection of the node, without a valid sum.
    pub fn send_packet(&self, connection: Qpn, token: u32) {
        let bth = Bth {
            opcode: Opcode::SRC_ACK,
            dest_qp: connection,
            ..Bth::default()
        };
        let ext = SrcExt {
            token,
            ..SrcExt::default()
        };
        let mut datagram = bth.to_bytes().to_vec();
        datagram.extend(ext.to_bytes());
        datagram.extend([0; icrc::LEN]);
        self.wire.send(&datagram);
    }

    pub fn say(&mut self) {
        while let Some(message) = self.manager.poll_transmit() {
            self.wire.say(&message);
        }
    }
}

const fn path(src: IpAddr, dst: IpAddr) -> Path {
    Path {
        src,
        dst,
        src_port: 4791,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    }
}
