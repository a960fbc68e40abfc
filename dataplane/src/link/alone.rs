//! An interface that ports have to themselves: they do what the kernel does for those it has.

use super::device::Device;
use super::icmp;
use crate::neighbours::{Interface, Neighbours};
use crate::port::PortEvent;
use crate::routes::Routes;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use trunkline_wire::{Content, Frame, Mac, ROCE_PORT};

/// What a frame was to an interface, which is no RoCEv2 to its address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Heard {
    /// Of neighbours: there may be something to send.
    Neighbour,
    /// An ICMP error.
    Error(PortEvent),
    /// For others, or of protocols that nobody here speaks.
    Foreign,
    /// For us, and wrong.
    Malformed,
}

/// What the ports of one interface share.
#[derive(Debug)]
pub(super) struct Alone {
    neighbours: Arc<Mutex<Neighbours>>,
    /// When its time began.
    start: Instant,
    address: IpAddr,
    mac: Mac,
}

impl Alone {
    pub(super) fn new(interface: Interface) -> Self {
        Self {
            neighbours: Arc::new(Mutex::new(Neighbours::new(interface))),
            start: Instant::now(),
            address: interface.address,
            mac: interface.mac,
        }
    }

    /// The ways from here.
    pub(super) fn routes(&self) -> Box<dyn Routes + Send> {
        Box::new(Arc::clone(&self.neighbours))
    }

    /// Takes in a frame that is no datagram for the port.
    pub(super) fn hear(&self, frame: &[u8], now: Instant) -> Heard {
        let Ok(parsed) = Frame::parse(frame) else {
            // What goes to many may be of protocols that nobody here reads.
            return match frame.starts_with(&self.mac.0) {
                true => Heard::Malformed,
                false => Heard::Foreign,
            };
        };
        let is_ours = parsed.eth.dst == self.mac && parsed.vlan.is_none();
        match parsed.content {
            // Of another UDP port are those by which kernels have neighbours asked for, too.
            Content::Udp { ip, udp, .. }
                if is_ours && ip.dst() == self.address && udp.dst_port == ROCE_PORT =>
            {
                Heard::Malformed
            }
            Content::Udp { .. } => Heard::Foreign,
            Content::Ip { .. } if is_ours && icmp::is_icmp(&parsed) => {
                match icmp::error(&parsed, self.address) {
                    Some(event) => Heard::Error(event),
                    None => self.hear_neighbour(frame, now),
                }
            }
            Content::Ip { .. } | Content::Other(_) => self.hear_neighbour(frame, now),
        }
    }

    fn hear_neighbour(&self, frame: &[u8], now: Instant) -> Heard {
        let now = self.time(now);
        let mut neighbours = self.neighbours();
        let conflicts = neighbours.counters().conflicts;
        if !neighbours.receive(now, frame) {
            return Heard::Foreign;
        }
        if conflicts == 0 && neighbours.counters().conflicts > 0 {
            let address = self.address;
            tracing::warn!(%address, "another host of the link says that it has this address");
        }
        Heard::Neighbour
    }

    /// Asks and answers what is due, as far as `device` has room. Gives whether there is something
    /// to kick.
    pub(super) fn tend(&self, device: &mut impl Device, now: Instant) -> bool {
        let mut any = false;
        let mut neighbours = self.neighbours();
        neighbours.handle_timeout(self.time(now));
        // First the room: what was taken from it is not kept.
        while device.allocate(1).is_some() {
            let Some(frame) = neighbours.poll_transmit() else {
                break;
            };
            let Some(room) = device.allocate(frame.len()) else {
                break;
            };
            room.copy_from_slice(&frame);
            device.push(None);
            any = true;
        }
        any
    }

    fn time(&self, now: Instant) -> trunkline_conn::time::Instant {
        let passed = now.saturating_duration_since(self.start);
        trunkline_conn::time::Instant::from_nanos(passed.as_nanos() as u64)
    }

    fn neighbours(&self) -> MutexGuard<'_, Neighbours> {
        // What a thread that panicked left behind is whole between two calls.
        self.neighbours
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
