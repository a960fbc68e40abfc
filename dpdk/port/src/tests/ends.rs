//! Two ends, and what is done with them.

use crate::DpdkSpec;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use trunkline::{PortRequest, Workers};
use trunkline_dataplane::{Arrival, LinkAddress, LinkConfig, LinkPort, PacketDevice, Port};
use trunkline_wire::{IcrcSeed, IpFields, Mac, Path, ROCE_PORT};

/// Longest that anything takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// Addresses of both ends, of both families.
pub(super) const FAMILIES: [[&str; 2]; 2] = [["10.9.0.1", "10.9.0.2"], ["fd09::1", "fd09::2"]];
/// Bytes of datagrams, from the shortest that there is.
pub(super) const LENGTHS: [usize; 7] = [16, 17, 40, 255, 1040, 1476, 4152];

/// A port and its address.
pub(super) struct End {
    pub(super) port: Box<dyn Port + Send>,
    pub(super) address: IpAddr,
    /// The device's.
    pub(super) mac: Mac,
    pub(super) mtu: u32,
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.address, self.port.counters())
    }
}

impl End {
    pub(super) fn open(spec: &str, address: &str) -> Self {
        let spec: DpdkSpec = spec.parse().unwrap();
        let address = address.parse().unwrap();
        let request = PortRequest {
            address,
            udp_port: ROCE_PORT,
            extra_source_ports: 0,
            workers: Workers::ONE,
        };
        let mut ports = spec.open_ports(&request).unwrap();
        let port = ports.pop().unwrap();
        let (mac, mtu) = (port.device().mac(), port.device().mtu());
        Self {
            port: Box::new(port),
            address,
            mac,
            mtu,
        }
    }

    /// An end on an AF_PACKET socket, without DPDK.
    pub(super) fn packet(address: &str) -> Self {
        let address = address.parse().unwrap();
        let at = LinkAddress::take(address, ROCE_PORT).unwrap();
        let device = PacketDevice::open(&at).unwrap();
        let port = LinkPort::new(&at, device, &LinkConfig::default()).unwrap();
        Self {
            port: Box::new(port),
            address,
            mac: at.interface().mac,
            mtu: at.interface().mtu as u32,
        }
    }

    fn path(&self, to: IpAddr) -> Path {
        Path {
            src: self.address,
            dst: to,
            src_port: ROCE_PORT,
            traffic_class: 2,
            ip: IpFields::DEFAULT,
        }
    }

    /// A datagram as a node makes it.
    pub(super) fn datagram(&self, to: IpAddr, length: usize) -> Vec<u8> {
        let mut datagram: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
        IcrcSeed::new(&self.path(to)).seal(0, &mut datagram);
        datagram
    }

    /// Gives the port a datagram, and says whether it had room.
    pub(super) fn put(&mut self, to: IpAddr, datagram: &[u8]) -> bool {
        let path = self.path(to);
        let Some(slot) = self.port.reserve(&path, datagram.len()) else {
            return false;
        };
        slot.datagram.copy_from_slice(datagram);
        self.port.commit();
        true
    }

    pub(super) fn send(&mut self, to: IpAddr, datagram: &[u8]) -> bool {
        let had_room = self.put(to, datagram);
        self.port.flush().unwrap();
        had_room
    }

    pub(super) fn receive(&mut self) -> Vec<(Arrival, Vec<u8>)> {
        let mut all = Vec::new();
        let mut take = |arrival: &Arrival, datagram: &[u8]| all.push((*arrival, datagram.to_vec()));
        while self.port.receive(usize::MAX, &mut take).unwrap() > 0 {}
        all
    }

    /// Waits for the next datagrams.
    pub(super) fn wait(&mut self) -> Vec<(Arrival, Vec<u8>)> {
        let start = Instant::now();
        loop {
            self.port.flush().unwrap();
            let got = self.receive();
            if !got.is_empty() {
                return got;
            }
            assert!(start.elapsed() < PATIENCE, "nothing comes to {self:?}");
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// They know each other's addresses of the link.
pub(super) fn meet(one: &mut End, other: &mut End) {
    let start = Instant::now();
    let (to_other, to_one) = (other.address, one.address);
    let (hello, answer) = (one.datagram(to_other, 64), other.datagram(to_one, 64));
    let (mut there, mut back) = (false, false);
    while !(there && back) {
        assert!(
            start.elapsed() < PATIENCE,
            "they do not meet: {one:?} {other:?}"
        );
        one.send(to_other, &hello);
        other.send(to_one, &answer);
        std::thread::sleep(Duration::from_millis(1));
        there |= !other.receive().is_empty();
        back |= !one.receive().is_empty();
    }
    std::thread::sleep(Duration::from_millis(20));
    one.receive();
    other.receive();
}

/// Datagrams of all lengths get there whole.
pub(super) fn carry(one: &mut End, other: &mut End, lengths: &[usize]) {
    for length in lengths {
        let datagram = one.datagram(other.address, *length);
        assert!(one.send(other.address, &datagram));
        let got = other.wait();
        assert_eq!(got.len(), 1, "{length}");
        let (arrival, bytes) = &got[0];
        assert_eq!(
            (bytes, arrival.path.src),
            (&datagram, one.address),
            "{length}"
        );
        assert_eq!(arrival.path.dst, other.address);
    }
}

/// So many datagrams get there in order, and nothing else.
pub(super) fn stream(one: &mut End, other: &mut End, count: u32, length: usize) {
    let start = Instant::now();
    let (mut sent, mut got) = (0, 0);
    while got < count {
        assert!(start.elapsed() < PATIENCE, "{got} of {sent} came");
        // No more than a queue holds: links of Ethernet do not tell when one is full.
        for _ in 0..64 {
            if sent == count || sent - got >= 512 {
                break;
            }
            let mut datagram = vec![0; length];
            datagram[12..16].copy_from_slice(&sent.to_be_bytes());
            sent += u32::from(one.put(other.address, &datagram));
        }
        one.port.flush().unwrap();
        for (_, bytes) in other.receive() {
            assert_eq!(bytes[12..16], got.to_be_bytes());
            got += 1;
        }
        other.port.flush().unwrap();
        one.receive();
    }
    assert_eq!(other.port.counters().malformed, 0);
}

/// Waits until something is so.
pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}, but not soon");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Nothing is opened there, and it is said why.
pub(super) fn refused(device: &str, address: &str, why: &str) {
    let spec: DpdkSpec = device.parse().unwrap();
    let request = PortRequest {
        address: address.parse().unwrap(),
        udp_port: ROCE_PORT,
        extra_source_ports: 0,
        workers: Workers::ONE,
    };
    let said = spec.open_ports(&request).expect_err(device).to_string();
    assert!(said.contains(why), "{device}: {said}");
}
