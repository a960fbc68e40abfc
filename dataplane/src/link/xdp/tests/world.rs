//! What the tests have at both ends of a link.

use crate::link::device::Device;
use crate::link::xdp::{XdpConfig, XdpDevice};
use std::ffi::CString;
use std::fs::File;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};
use trunkline_testkit::netns::{Far, ip};

pub(super) const PATIENCE: Duration = Duration::from_secs(20);
pub(super) const ROCE: u16 = 4791;
/// Addresses of both ends.
pub(super) const V4: (&str, &str) = ("10.9.0.1", "10.9.0.2");
pub(super) const V6: (&str, &str) = ("fd09::1", "fd09::2");

/// Runs `work` in the neighbour's namespace.
pub(super) fn there<T: Send>(far: &Far, work: impl FnOnce() -> T + Send) -> T {
    let wanted = far.run("readlink /proc/self/ns/net");
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let mut namespaces = threads.map(|thread| thread.unwrap().path().join("ns/net"));
    let found = namespaces.find(|path| {
        let name = std::fs::read_link(path);
        name.is_ok_and(|name| name.to_str() == Some(wanted.trim()))
    });
    let found = found.unwrap();
    let namespace = File::open(found).unwrap();
    let work = move || {
        // SAFETY: concerns this thread only, which began for that.
        let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(entered, 0);
        work()
    };
    thread::scope(|scope| scope.spawn(work).join().unwrap())
}

/// A UDP socket of the neighbour.
pub(super) fn socket_there(far: &Far, address: &str, port: u16) -> UdpSocket {
    let address: IpAddr = address.parse().unwrap();
    let socket = there(far, || UdpSocket::bind((address, port)).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

pub(super) fn index(name: &str) -> u32 {
    let name = CString::new(name).unwrap();
    // SAFETY: the name is a string.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// The device at our end, whose link takes packets of 4,200 bytes.
pub(super) fn device(far: &Far, address: &str) -> XdpDevice {
    far.run("ip link set far mtu 4200");
    let config = XdpConfig::new(index("near"), address.parse().unwrap());
    XdpDevice::open(&config).unwrap()
}

fn hardware(shown: &str) -> [u8; 6] {
    let words: Vec<_> = shown.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "link/ether").unwrap();
    let bytes = words[at + 1].split(':');
    let bytes: Vec<_> = bytes.map(|byte| u8::from_str_radix(byte, 16)).collect();
    std::array::from_fn(|at| bytes[at].clone().unwrap())
}

/// Writes frames from our end to the other.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    ethernet: [u8; 12],
    addresses: (IpAddr, IpAddr),
}

fn sum(bytes: &[u8]) -> u32 {
    let pairs = bytes.chunks(2);
    let pairs =
        pairs.map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)));
    pairs.sum()
}

fn folded(mut sum: u32) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!sum as u16).to_be_bytes()
}

impl Writer {
    pub(super) fn new(far: &Far, ends: (&str, &str)) -> Self {
        Self::of([&ip("link show near"), &far.run("ip link show far")], ends)
    }

    /// Between two interfaces here.
    pub(super) fn between(near: &str, far: &str, ends: (&str, &str)) -> Self {
        let shown = [near, far].map(|name| ip(&format!("link show {name}")));
        Self::of([&shown[0], &shown[1]], ends)
    }

    fn of(shown: [&str; 2], (from, to): (&str, &str)) -> Self {
        let mut ethernet = [0; 12];
        ethernet[..6].copy_from_slice(&hardware(shown[1]));
        ethernet[6..].copy_from_slice(&hardware(shown[0]));
        let addresses = (from.parse().unwrap(), to.parse().unwrap());
        Self {
            ethernet,
            addresses,
        }
    }

    /// Headers of Ethernet, IP and UDP.
    pub(super) fn headers(&self) -> usize {
        if self.addresses.0.is_ipv4() { 42 } else { 62 }
    }

    /// Fills a frame with a datagram from RoCEv2's port to `port`.
    pub(super) fn write(&self, frame: &mut [u8], port: u16, payload: &[u8]) {
        let headers = self.headers();
        frame.fill(0);
        frame[headers..].copy_from_slice(payload);
        frame[..12].copy_from_slice(&self.ethernet);
        let length = (frame.len() - headers + 8) as u16;
        let udp = headers - 8;
        frame[udp..][..2].copy_from_slice(&ROCE.to_be_bytes());
        frame[udp + 2..][..2].copy_from_slice(&port.to_be_bytes());
        frame[udp + 4..][..2].copy_from_slice(&length.to_be_bytes());
        match self.addresses {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
                frame[16..18].copy_from_slice(&(length + 20).to_be_bytes());
                frame[20..24].copy_from_slice(&[0x40, 0, 64, 17]);
                frame[26..30].copy_from_slice(&from.octets());
                frame[30..34].copy_from_slice(&to.octets());
                let checksum = folded(sum(&frame[14..34]));
                frame[24..26].copy_from_slice(&checksum);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame[12..18].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
                frame[18..20].copy_from_slice(&length.to_be_bytes());
                frame[20..22].copy_from_slice(&[17, 64]);
                frame[22..38].copy_from_slice(&from.octets());
                frame[38..54].copy_from_slice(&to.octets());
                let checksum = sum(&frame[22..]) + u32::from(length) + 17;
                frame[60..62].copy_from_slice(&folded(checksum));
            }
            _ => panic!("one family"),
        }
    }

    /// Sends a datagram, kicking as often as it takes.
    pub(super) fn send(&self, device: &mut XdpDevice, port: u16, payload: &[u8]) {
        let length = self.headers() + payload.len();
        self.write(device.allocate(length).unwrap(), port, payload);
        device.push(None);
        let kicked = device.kick().unwrap();
        assert_eq!((kicked.sent, kicked.refused), (1, 0), "{kicked:?}");
        assert!(!kicked.is_full);
    }

    /// The next datagram that arrives: the port that it comes from, and what is in it.
    pub(super) fn receive(&self, device: &mut XdpDevice) -> (u16, Vec<u8>) {
        let frame = receive(device);
        let headers = self.headers();
        let port = u16::from_be_bytes([frame[headers - 8], frame[headers - 7]]);
        (port, frame[headers..].to_vec())
    }
}

/// The next frame that arrives.
pub(super) fn receive(device: &mut XdpDevice) -> Vec<u8> {
    let give_up = Instant::now() + PATIENCE;
    while !device.look().unwrap() {
        assert!(Instant::now() < give_up, "nothing arrives");
        readable(device, 100);
    }
    let unit = device.front().unwrap();
    assert!(!unit.is_cut && unit.segment.is_none());
    let frame = unit.frame.to_vec();
    device.recycle();
    frame
}

/// Sleeps until the device has something, for so many milliseconds at most, and tells whether.
pub(super) fn readable(device: &XdpDevice, milliseconds: i32) -> bool {
    let mut wait = libc::pollfd {
        fd: device.fd().unwrap().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor, which is live.
    unsafe { libc::poll(&raw mut wait, 1, milliseconds) == 1 }
}

/// One of the counts of an interface: `rx` or `tx`, and which column.
pub(super) fn count(shown: &str, side: &str, column: usize) -> u64 {
    let mut lines = shown.lines();
    lines
        .find(|line| line.trim_start().starts_with(side))
        .unwrap();
    let numbers = lines.next().unwrap().split_whitespace();
    numbers
        .map(|number| number.parse().unwrap())
        .nth(column)
        .unwrap()
}
