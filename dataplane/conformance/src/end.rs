//! An end of a link: its port, driven as an engine drives it.

use crate::{AnyPort, Kind, PATIENCE};
use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use trunkline_dataplane::{Arrival, PortCounters, PortEvent};
use trunkline_wire::{IcrcSeed, IpFields, Path, ROCE_PORT};

/// A port and its address.
pub struct End {
    pub(crate) kind: Kind,
    /// The port.
    pub port: AnyPort,
    /// Its address.
    pub address: IpAddr,
}

/// A datagram that arrived.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Got {
    /// Where it came from.
    pub arrival: Arrival,
    /// All of it.
    pub datagram: Vec<u8>,
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.kind.name, self.address)
    }
}

impl End {
    /// An end of that kind.
    pub fn new(kind: &Kind, port: AnyPort, address: IpAddr) -> Self {
        Self {
            kind: *kind,
            port,
            address,
        }
    }

    /// How packets get to a peer.
    pub fn path_to(&self, peer: IpAddr) -> Path {
        Path {
            src: self.address,
            dst: peer,
            src_port: ROCE_PORT,
            traffic_class: 2,
            ip: IpFields::DEFAULT,
        }
    }

    /// Bytes of a large datagram that it carries.
    pub(crate) fn large(&self) -> usize {
        self.port.capabilities().max_datagram.min(4000)
    }

    /// Sends a datagram with a right ICRC, whatever the port says of room.
    pub fn send(&mut self, path: &Path, datagram: &[u8]) {
        let start = Instant::now();
        while !self.try_send(path, datagram) {
            self.port.flush().unwrap();
            assert!(start.elapsed() < PATIENCE, "no room");
        }
    }

    pub(crate) fn try_send(&mut self, path: &Path, datagram: &[u8]) -> bool {
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
    pub fn receive(&mut self, count: usize, quiet: Duration) -> Vec<Got> {
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
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let fd = self.port.fd().expect("it can be slept on").as_raw_fd();
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one element that outlives the call.
        unsafe { libc::poll(&raw mut poll, 1, patience.as_millis() as i32) == 1 }
    }

    /// What its port tells next.
    pub(crate) fn event(&mut self) -> Option<PortEvent> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(event) = self.port.poll_event() {
                return Some(event);
            }
            self.port.flush().unwrap();
            self.receive(1, Duration::from_millis(1));
        }
        None
    }

    pub(crate) fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

/// Bytes that say which datagram they are, and room for the ICRC.
pub fn pattern(number: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (number * 31 + at * 7 + at / 251) as u8)
        .collect()
}

/// Whether a datagram is what was sent, with an ICRC that holds for its identification.
pub(crate) fn is_same(got: &Got, sent: &[u8]) -> bool {
    let body = sent.len().saturating_sub(4);
    got.datagram.len() == sent.len()
        && got.datagram[..body] == sent[..body]
        && IcrcSeed::new(&got.arrival.path)
            .verify(got.arrival.identification.guess(), &got.datagram)
}

/// Each sends until the other hears it: neighbours have to be asked for first.
pub(crate) fn meet([one, other]: [&mut End; 2]) {
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
