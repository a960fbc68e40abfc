//! Neighbours that the kernel asks for, and that answer late or never.

use super::*;
use crate::link::hops::ASKED_FOR;
use crate::routes::{Neighbour, NeighbourEntry, NextHop, RouteError};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

/// What the kernel knows of its neighbours: all have answered, or none has.
#[derive(Clone, Debug, Default)]
struct Kernel(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    mac: Option<Mac>,
    /// Whom it was asked about.
    asked: Vec<IpAddr>,
}

impl Kernel {
    fn answers(&self, mac: Mac) {
        self.0.lock().unwrap().mac = Some(mac);
    }

    /// Whom it was asked about since this was called last.
    fn asked(&self) -> Vec<IpAddr> {
        std::mem::take(&mut self.0.lock().unwrap().asked)
    }
}

impl Routes for Kernel {
    fn next_hop(&mut self, peer: SocketAddr) -> Result<NextHop, RouteError> {
        Ok(NextHop {
            source: Ipv4Addr::LOCALHOST.into(),
            interface: 1,
            address: peer.ip(),
            mtu: 1500,
            has_neighbour: true,
        })
    }

    fn entry(&mut self, hop: &NextHop) -> Result<NeighbourEntry, RouteError> {
        let mut known = self.0.lock().unwrap();
        known.asked.push(hop.address);
        Ok(NeighbourEntry {
            state: match known.mac {
                Some(_) => Neighbour::Known,
                None => Neighbour::Asked,
            },
            mac: known.mac,
            is_stale: false,
        })
    }

    fn solicit(&mut self, _: SocketAddr) -> Result<(), RouteError> {
        Ok(())
    }
}

/// A port on an interface of the kernel's, and the other end of its cable.
fn of_the_kernel(kernel: &Kernel) -> (Alone, Cable) {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let pid = std::process::id();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    let address = Ipv4Addr::new(127, 192 + (pid >> 8) as u8 % 63, pid as u8, last);
    let at = LinkAddress::take(address.into(), ROCE_PORT).unwrap();
    let [mut near, far] = Cable::pair();
    // Nobody knows where to write to it.
    near.silence = Some(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let mut port = LinkPort::new(&at, near, &LinkConfig::default()).unwrap();
    let interface = LinkInterface {
        index: 1,
        ..at.interface
    };
    port.hops = Hops::new(Box::new(kernel.clone()), at.address, &interface);
    (port, far)
}

/// The port is flushed when the clock says `now`.
fn flush_at(port: &mut Alone, now: Instant) {
    (port.now, port.on_time) = (now, 1);
    port.flush().unwrap();
}

fn peers(count: u8) -> impl Iterator<Item = IpAddr> {
    (1..=count).map(|last| [10, 9, 0, last].into())
}

#[test]
fn what_is_held_for_a_neighbour_that_is_asked_for_without_end_is_held_for_four_seconds() {
    let (mut port, mut far) = of_the_kernel(&Kernel::default());
    let peer = peers(1).next().unwrap();
    let before = Instant::now();
    for _ in 0..3 {
        assert!(send(&mut port, peer, &[7; 64]));
    }
    let after = Instant::now();
    flush_at(&mut port, before + Duration::from_millis(3999));
    assert_eq!(port.counters().unreachable, 0, "it may still answer");
    assert_eq!(port.poll_event(), None);
    flush_at(&mut port, after + Duration::from_secs(4));
    assert_eq!(port.counters().unreachable, 3, "each is counted");
    let told = PortEvent::Unsent {
        dst: peer,
        error: SILENT,
    };
    assert_eq!((port.poll_event(), port.poll_event()), (Some(told), None));
    assert_eq!(far.take(), None);
}

#[test]
fn few_silent_neighbours_are_asked_about_at_a_time_and_each_in_its_turn() {
    const PEERS: u8 = 100;
    let kernel = Kernel::default();
    let (mut port, mut far) = of_the_kernel(&kernel);
    let (mut now, mut seen) = (Instant::now(), BTreeSet::new());
    // Time stands still while all are sent.
    (port.now, port.on_time) = (now, PEERS);
    for peer in peers(PEERS) {
        assert!(send(&mut port, peer, &[7; 64]));
    }
    kernel.asked();
    for _ in 0..usize::from(PEERS).div_ceil(TURNS) {
        now += LOOK;
        flush_at(&mut port, now);
        let asked = kernel.asked();
        assert!(asked.len() <= TURNS, "{} at a time", asked.len());
        seen.extend(asked);
    }
    assert!(seen.into_iter().eq(peers(PEERS)), "each has its turn");
    kernel.answers(MACS[1]);
    for _ in 0..usize::from(PEERS).div_ceil(TURNS) {
        now += LOOK;
        flush_at(&mut port, now);
    }
    assert_eq!(std::iter::from_fn(|| far.take()).count(), PEERS.into());
}

/// Who sends next may be the first to hear of the answer, before the port has looked around.
#[test]
fn what_is_sent_once_a_neighbour_has_answered_passes_nothing_that_is_held() {
    let kernel = Kernel::default();
    let (mut port, mut far) = of_the_kernel(&kernel);
    let peer = peers(1).next().unwrap();
    let asked = Instant::now();
    (port.now, port.on_time) = (asked, 3);
    for number in 0..3 {
        assert!(send(&mut port, peer, &[number; 64]));
    }
    let again = asked + ASKED_FOR;
    flush_at(&mut port, again - Duration::from_nanos(1));
    kernel.answers(MACS[1]);
    (port.now, port.on_time) = (again, 3);
    for number in 3..6 {
        assert!(send(&mut port, peer, &[number; 64]));
    }
    assert!(port.now < port.look_due, "it has not looked around since");
    let came = std::iter::from_fn(|| far.take());
    let numbers = came.map(|frame| *frame.last().unwrap());
    assert_eq!(numbers.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
}

/// Whether the port's descriptor is readable within that time.
fn wakes(port: &Alone, patience: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd: port.fd().expect("one may sleep on it").as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one `pollfd`.
    unsafe { libc::poll(&raw mut poll, 1, patience.as_millis() as i32) == 1 }
}

/// No frame comes that would wake it: the kernel gets the answer.
#[test]
fn who_sleeps_until_a_neighbour_of_the_kernel_has_answered_is_woken_by_nothing_but_the_port() {
    let kernel = Kernel::default();
    let (mut port, mut far) = of_the_kernel(&kernel);
    let peer = peers(1).next().unwrap();
    assert!(!wakes(&port, Duration::ZERO), "there is nothing to do");
    assert!(send(&mut port, peer, &[7; 64]));
    let sleep = |port: &mut Alone| {
        assert!(wakes(port, Duration::from_secs(5)), "it sleeps for ever");
        port.fetch().unwrap();
        port.flush().unwrap();
    };
    for _ in 0..3 {
        sleep(&mut port);
    }
    assert_eq!(far.take(), None);
    kernel.answers(MACS[1]);
    while port.counters().sent == 0 {
        sleep(&mut port);
    }
    assert!(far.take().is_some());
    port.fetch().unwrap();
    assert!(!wakes(&port, Duration::from_millis(20)), "nothing is held");
}
