//! A connection as the engine holds it.

use super::peers::Peer;
use crate::engine::ack_delay::AckDelay;
use crate::engine::build::{self, SentPacket};
use crate::engine::flows::{ControlDue, Group, List, Turns};
use crate::slab::NONE;
use trunkline_conn::delivery::Delivery;
use trunkline_wire::Qpn;

/// Traffic class of shared connections: best effort, ECN-capable (ECT(0)).
pub(crate) const ECT0: u8 = 0b10;

/// A shared connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) delivery: Delivery<SentPacket>,
    /// Tells it from others that had its index.
    pub(super) serial: u32,
    /// Its peer, and the connections beside it among those of its kind to the peer.
    pub(super) peer: u32,
    pub(super) next: u32,
    pub(super) prev: u32,
    /// What the engine's owner has noted of it.
    pub(crate) mark: u32,
    pub(crate) runnable: Turns,
    pub(crate) control_due: List<ControlDue>,
    pub(crate) flows: u32,
    /// Those flows.
    pub(crate) members: Group,
    /// Acknowledgement that the last packet carried.
    pub(crate) acked: u32,
    /// Largest datagram that both ends carry, in bytes.
    pub(super) most: u16,
    pub(crate) traffic_class: u8,
    pub(crate) weight: u8,
    pub(crate) flags: ConnFlags,
}

/// Flags of a [`Conn`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnFlags {
    /// It owes its peer a keep-alive.
    pub(crate) ping: bool,
    /// What it was opened as: bits.
    opened: u8,
    /// Whether its control messages may still wait.
    pub(crate) ack_delay: AckDelay,
}

impl ConnFlags {
    const PRIVATE: u8 = 1;
    const PACKS: u8 = 2;

    fn of(terms: &Terms) -> Self {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        Self {
            opened: bit(terms.private, Self::PRIVATE) | bit(terms.packs, Self::PACKS),
            ..Self::default()
        }
    }

    /// Opened by a program for itself.
    pub(crate) const fn is_private(self) -> bool {
        self.opened & Self::PRIVATE != 0
    }

    /// Several messages may share a packet.
    #[inline]
    pub(crate) const fn packs(self) -> bool {
        self.opened & Self::PACKS != 0
    }
}

/// What a connection is made of, beside its delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Number of the first packet to the peer.
    pub(crate) first_tx: u64,
    /// Largest datagram that both ends carry, in bytes.
    pub(crate) most: u32,
    /// DSCP (upper six bits) of its packets.
    pub(crate) traffic_class: u8,
    /// Share of the port beside other connections.
    pub(crate) weight: u8,
    /// Opened by a program for itself.
    pub(crate) private: bool,
    /// Several messages may share a packet.
    pub(crate) packs: bool,
}

impl Conn {
    /// A connection without flows.
    pub(crate) fn new(delivery: Delivery<SentPacket>, peer: u32, terms: &Terms) -> Self {
        Self {
            delivery,
            serial: 0,
            peer,
            next: NONE,
            prev: NONE,
            mark: 0,
            runnable: Turns::EMPTY,
            control_due: List::EMPTY,
            flows: 0,
            members: Group::EMPTY,
            acked: terms.first_tx as u32,
            most: terms.most as u16,
            traffic_class: terms.traffic_class & !0b11 | ECT0,
            weight: terms.weight.max(1),
            flags: ConnFlags::of(terms),
        }
    }

    /// Its peer.
    #[inline]
    pub(crate) const fn peer(&self) -> u32 {
        self.peer
    }

    /// A number of the peer's worker that it leads to.
    pub(crate) fn toward(&self) -> Qpn {
        self.delivery.remote_id()
    }

    /// Packets have at most `bytes` bytes from now on, BTH to ICRC.
    pub(super) fn resize(&mut self, bytes: u32) {
        if bytes != self.delivery.packet_size() {
            self.delivery.set_packet_size(bytes);
        }
    }

    /// Payload bytes of a full packet.
    pub(crate) fn payload(&self) -> u32 {
        build::full_payload(self.delivery.packet_size())
    }

    /// Whether its packets carry as much as both ends could.
    pub(super) fn is_whole(&self) -> bool {
        self.payload() == build::full_payload(self.most.into())
    }
}

/// Bytes of a connection's rows in tables: by its number, in the calendar, in the schedule, and its
/// peer by address where the table is half full, with a byte of control.
pub(crate) const CONNECTION_ROWS: usize = 4 + 4 + 4 + 2 * (4 + 1);

// DESIGN 4.2, invariant 6: an idle connection with its peer record and rows of tables takes at most
// 176 bytes. It has no timer.
const _: () = assert!(size_of::<Conn>() + size_of::<Peer>() + CONNECTION_ROWS <= 166);
