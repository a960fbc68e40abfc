//! What every port between two hosts does: one suite, for each kind of port against each other
//! kind, over a veth pair between two network namespaces.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod arrivals;
mod groups;
mod laws;
mod refusals;

use crate::link::{LinkAddress, LinkConfig, LinkPort, PacketDevice, XdpConfig, XdpDevice, XdpMode};
use crate::netns::{Far, beside_a_neighbour, ip};
use crate::port::{Arrival, Identification, Port, PortCounters};
use crate::{UdpConfig, UdpPort};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use trunkline_wire::{IcrcSeed, IpFields, Path, ROCE_PORT};

type AnyPort = Box<dyn Port + Send>;

/// What carries the packets of one end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Udp,
    Packet,
    Xdp,
}

impl Kind {
    fn open(self, address: IpAddr) -> AnyPort {
        match self {
            Self::Udp => Box::new(UdpPort::open(&UdpConfig::new(address)).unwrap()),
            Self::Packet => {
                let at = LinkAddress::take(address, ROCE_PORT).unwrap();
                let device = PacketDevice::open(&at).unwrap();
                Box::new(LinkPort::new(&at, device, &LinkConfig::default()).unwrap())
            }
            Self::Xdp => {
                let at = LinkAddress::take(address, ROCE_PORT).unwrap();
                let config = XdpConfig::new(at.interface().index, address);
                let device = XdpDevice::open(&config).unwrap();
                assert_eq!(device.mode(), XdpMode::Native);
                Box::new(LinkPort::new(&at, device, &LinkConfig::default()).unwrap())
            }
        }
    }
}

/// Each way of joining two ends.
const PAIRS: [[Kind; 2]; 8] = [
    [Kind::Udp, Kind::Udp],
    [Kind::Packet, Kind::Packet],
    [Kind::Packet, Kind::Udp],
    [Kind::Udp, Kind::Packet],
    [Kind::Xdp, Kind::Xdp],
    [Kind::Xdp, Kind::Udp],
    [Kind::Udp, Kind::Xdp],
    [Kind::Packet, Kind::Xdp],
];

/// Kinds of ports, each once, whose other end is of the same kind.
const ALIKE: [Kind; 3] = [Kind::Udp, Kind::Packet, Kind::Xdp];

/// Addresses of the near and of the far end, of both families.
const FAMILIES: [[&str; 2]; 2] = [["10.9.0.1", "10.9.0.2"], ["fd09::1", "fd09::2"]];

/// Longest that anything takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// A port and its address.
struct End {
    kind: Kind,
    port: AnyPort,
    address: IpAddr,
}

/// A datagram that arrived.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Got {
    arrival: Arrival,
    datagram: Vec<u8>,
}

/// Runs `test` with ports at both ends of a link that carries IP packets of 4200 bytes, for each
/// pair of kinds and for both families.
fn each_pair(test: fn(&Far, [&mut End; 2])) {
    for kinds in PAIRS {
        on_a_link(kinds, test);
    }
}

/// The same where both ends are of one kind.
fn each_kind(test: fn(&Far, [&mut End; 2])) {
    for kind in ALIKE {
        on_a_link([kind, kind], test);
    }
}

fn on_a_link(kinds: [Kind; 2], test: fn(&Far, [&mut End; 2])) {
    beside_a_neighbour(move |far| {
        far.run("ip link set far mtu 4200");
        for addresses in FAMILIES {
            println!("{kinds:?} {addresses:?}");
            let [near_at, far_at] = addresses.map(|address| address.parse().unwrap());
            let mut near = End {
                kind: kinds[0],
                port: kinds[0].open(near_at),
                address: near_at,
            };
            let mut other = End {
                kind: kinds[1],
                port: far.within(|| kinds[1].open(far_at)),
                address: far_at,
            };
            meet([&mut near, &mut other]);
            test(far, [&mut near, &mut other]);
        }
    });
}

impl End {
    fn path_to(&self, peer: IpAddr) -> Path {
        Path {
            src: self.address,
            dst: peer,
            src_port: ROCE_PORT,
            traffic_class: 2,
            ip: IpFields::DEFAULT,
        }
    }

    /// Sends a datagram with a right ICRC, whatever the port says of room.
    fn send(&mut self, path: &Path, datagram: &[u8]) {
        let start = Instant::now();
        while !self.try_send(path, datagram) {
            self.port.flush().unwrap();
            assert!(start.elapsed() < PATIENCE, "no room");
        }
    }

    fn try_send(&mut self, path: &Path, datagram: &[u8]) -> bool {
        let Some(slot) = self.port.reserve(path, datagram.len()) else {
            return false;
        };
        slot.datagram.copy_from_slice(datagram);
        if let Some(body) = datagram.len().checked_sub(4) {
            IcrcSeed::new(path).seal(slot.identification, slot.datagram);
            assert_eq!(slot.datagram[..body], datagram[..body]);
        }
        self.port.commit();
        true
    }

    /// What arrives next, until there are `count` or nothing comes for `quiet`.
    fn receive(&mut self, count: usize, quiet: Duration) -> Vec<Got> {
        let mut all = Vec::new();
        let mut moved = Instant::now();
        while all.len() < count && moved.elapsed() < quiet {
            let got = self.port.receive(7, &mut |arrival, datagram| {
                all.push(Got {
                    arrival: *arrival,
                    datagram: datagram.to_vec(),
                });
            });
            if got.unwrap() > 0 {
                moved = Instant::now();
            }
        }
        all
    }

    /// Waits until its descriptor is readable. Gives whether it is.
    fn wait(&self, patience: Duration) -> bool {
        let fd = self.port.fd().expect("it can be slept on").as_raw_fd();
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one element that outlives the call.
        unsafe { libc::poll(&raw mut poll, 1, patience.as_millis() as i32) == 1 }
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

/// Bytes that say which datagram they are, and room for the ICRC.
fn pattern(number: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (number * 31 + at * 7 + at / 251) as u8)
        .collect()
}

/// Whether a datagram is what was sent, with an ICRC that holds for its identification.
fn is_same(got: &Got, sent: &[u8]) -> bool {
    let body = sent.len().saturating_sub(4);
    got.datagram.len() == sent.len()
        && got.datagram[..body] == sent[..body]
        && IcrcSeed::new(&got.arrival.path)
            .verify(got.arrival.identification.guess(), &got.datagram)
}

/// Each sends until the other hears it: neighbours have to be asked for first.
fn meet([one, other]: [&mut End; 2]) {
    let start = Instant::now();
    let (mut there, mut back) = (false, false);
    while !(there && back) {
        assert!(start.elapsed() < PATIENCE, "they do not meet");
        let (to, from) = (one.path_to(other.address), other.path_to(one.address));
        one.send(&to, &pattern(0, 64));
        other.send(&from, &pattern(0, 64));
        one.port.flush().unwrap();
        other.port.flush().unwrap();
        there |= !other.receive(1, Duration::from_millis(20)).is_empty();
        back |= !one.receive(1, Duration::from_millis(20)).is_empty();
    }
    let quiet = Duration::from_millis(20);
    one.receive(usize::MAX, quiet);
    other.receive(usize::MAX, quiet);
    while one.port.poll_event().is_some() || other.port.poll_event().is_some() {}
}
