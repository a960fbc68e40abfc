//! A peer whose every step the test takes.

use super::address;
use std::net::{IpAddr, UdpSocket};
use trunkline::{Instant, Node, Psn, Qpn};
use trunkline_cm::{Ask, Binds, Config, Identity, Manager, Offer, Purpose, Retry, Route, gsi};
use trunkline_wire::{Path, Workers};

/// A node of another make: a manager of its own behind a bare socket.
pub struct Stranger {
    pub manager: Manager<fn() -> u64>,
    socket: UdpSocket,
    pub route: Route,
    psn: Psn,
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
    }
}

impl Stranger {
    pub fn new(node: &Node) -> Self {
        let (local, remote) = (address(), node.gid().address());
        let socket = UdpSocket::bind((local, 4791)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let config = Config::new(Identity { guid: 7, epoch: 1 });
        let random: fn() -> u64 = || 0x1234_5678_9abc_def0;
        let manager = Manager::new(config, random);
        Self {
            manager,
            socket,
            route: Route { local, remote },
            psn: Psn::default(),
        }
    }

    /// Asks the node for a connection.
    pub fn ask(&mut self, window: u16) {
        let ask = Ask {
            offer: offer(window),
            purpose: Purpose::Private,
            toward: 0,
            traffic_class: 0,
            weight: 1,
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

    pub fn say(&mut self) {
        while let Some(message) = self.manager.poll_transmit() {
            let path = path(self.route.local, message.route.remote);
            let mut datagram = [0; gsi::LEN];
            gsi::build(&path, 0, self.psn, &message.mad, &mut datagram);
            self.psn = self.psn.advance(1);
            let to = (path.dst, path.src_port);
            self.socket.send_to(&datagram, to).unwrap();
        }
    }

    fn hear(&mut self) {
        let mut packet = [0; 2048];
        while let Ok((length, from)) = self.socket.recv_from(&mut packet) {
            let path = path(from.ip(), self.route.local);
            if length == gsi::LEN {
                let mad = packet[20..276].try_into().unwrap();
                self.manager.handle_mad(Instant::ZERO, &path, mad);
            }
        }
    }
}

const fn path(src: IpAddr, dst: IpAddr) -> Path {
    Path {
        src,
        dst,
        src_port: 4791,
        traffic_class: 0,
    }
}
