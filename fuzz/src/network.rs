//! The network between two managers: management datagrams under way, which an input may deliver,
//! deliver twice, lose or damage.

use crate::input::Input;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use trunkline_wire::{IpFields, MAD_LEN, Path, ROCE_PORT};

/// Datagrams under way at most; further ones are lost.
const MAX_FLYING: usize = 64;

/// A management datagram under way.
#[derive(Clone, Copy)]
pub(crate) struct Datagram {
    /// The index of the host that it goes to.
    pub(crate) to: usize,
    pub(crate) path: Path,
    pub(crate) mad: [u8; MAD_LEN],
}

/// Management datagrams under way, oldest first.
#[derive(Default)]
pub(crate) struct Network {
    flying: VecDeque<Datagram>,
}

impl Network {
    pub(crate) fn send(&mut self, datagram: Datagram) {
        if self.flying.len() < MAX_FLYING {
            self.flying.push_back(datagram);
        }
    }

    /// Takes the oldest datagram off the network: to deliver it, or to lose it.
    pub(crate) fn take(&mut self) -> Option<Datagram> {
        self.flying.pop_front()
    }

    /// Returns the oldest datagram, which stays under way.
    pub(crate) fn first(&self) -> Option<Datagram> {
        self.flying.front().copied()
    }

    /// Takes the oldest datagram, a copy of which arrives later once more.
    pub(crate) fn take_and_repeat(&mut self) -> Option<Datagram> {
        if let Some(copy) = self.first() {
            self.send(copy);
        }
        self.take()
    }

    /// Takes the oldest datagram, one byte of it changed.
    pub(crate) fn take_damaged(&mut self, input: &mut Input<'_>) -> Option<Datagram> {
        if let Some(first) = self.flying.front_mut() {
            first.mad[usize::from(input.byte())] ^= input.byte();
        }
        self.take()
    }

    pub(crate) fn lose_all(&mut self) {
        self.flying.clear();
    }
}

/// The address of a host by its number.
pub(crate) fn address(host: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, host).into()
}

/// The way of a datagram from one address to another.
pub(crate) fn way(from: IpAddr, to: IpAddr) -> Path {
    Path {
        src: from,
        dst: to,
        src_port: ROCE_PORT,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    }
}

/// Returns a management datagram that holds what the input has left, filled up with zeros.
pub(crate) fn invented(input: &mut Input<'_>) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    let taken = input.bytes(MAD_LEN);
    mad[..taken.len()].copy_from_slice(taken);
    mad
}
