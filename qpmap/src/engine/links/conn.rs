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

/// Flags of a [`Conn`], and what fits beside them: how its packets come out at workers.
///
/// A NIC deals packets to its receive queues by a hash over addresses and ports (RSS), which knows
/// nothing of the workers that have these queues. A worker hands over what is another one's, but
/// the way is longer. The only thing in that hash that a sender is free to choose is its UDP source
/// port. So a worker that gets packets of a connection by another one says so in its pure
/// acknowledgements, with the source port that they came from, and the sender goes on to its next
/// one, until they come out right or it has tried all. Whatever hashes the packets need not be
/// known: keys and tables of NICs, those of a hypervisor, or the kernel's fanout.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnFlags {
    bits: u8,
    /// Which of the node's UDP source ports its packets leave from.
    source: u8,
    /// Whether its control messages may still wait.
    pub(crate) ack_delay: AckDelay,
}

impl ConnFlags {
    const PRIVATE: u8 = 1;
    const PACKS: u8 = 2;
    const PING: u8 = 4;
    /// Of packets that came astray in a row: whether their source port is odd, and how many they
    /// were, in the four bits above it. Who goes on to another port changes that bit.
    const ODD: u8 = 8;
    const ONE: u8 = 16;
    const COUNT: u8 = 0xf0;
    /// So many before the peer is told, as what the network joins to units may come so without
    /// being hashed there; and when it is told no more: it can do nothing about it.
    const ENOUGH: u8 = 8 * Self::ONE;
    const TOO_MANY: u8 = 15 * Self::ONE;

    fn of(terms: &Terms) -> Self {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        Self {
            bits: bit(terms.private, Self::PRIVATE) | bit(terms.packs, Self::PACKS),
            ..Self::default()
        }
    }

    /// It owes its peer a keep-alive.
    #[inline]
    pub(crate) const fn owes_ping(self) -> bool {
        self.bits & Self::PING != 0
    }

    /// From now on it does, or does not.
    pub(crate) const fn set_ping(&mut self, owes: bool) {
        if owes {
            self.bits |= Self::PING;
        } else {
            self.bits &= !Self::PING;
        }
    }

    /// Which of the node's UDP source ports its packets leave from.
    #[inline]
    pub(crate) const fn source(self) -> usize {
        self.source as usize
    }

    /// A packet came by the right worker.
    #[inline]
    pub(crate) const fn came_right(&mut self) {
        self.bits &= !Self::COUNT;
    }

    /// A packet from this source port came by another worker. Gives whether the peer is to be told.
    pub(crate) const fn came_astray(&mut self, from: u16) -> bool {
        let odd = if from & 1 == 1 { Self::ODD } else { 0 };
        if self.bits & Self::ODD != odd {
            self.bits = self.bits & !(Self::COUNT | Self::ODD) | odd;
        }
        if self.bits & Self::COUNT < Self::TOO_MANY {
            self.bits += Self::ONE;
        }
        let count = self.bits & Self::COUNT;
        count >= Self::ENOUGH && count < Self::TOO_MANY
    }

    /// The peer says that packets from one of these ports come out at the wrong worker there.
    /// Gives whether they leave from the next one from now on.
    pub(crate) fn leave(&mut self, told: u16, ports: &[u16]) -> bool {
        let next = self.source.checked_add(1);
        let next = next.filter(|next| usize::from(*next) < ports.len());
        match (ports.get(self.source()), next) {
            (Some(used), Some(next)) if *used == told => {
                self.source = next;
                true
            }
            // Packets that were under way when it changed, or there is no port left to try.
            _ => false,
        }
    }

    /// Opened by a program for itself.
    pub(crate) const fn is_private(self) -> bool {
        self.bits & Self::PRIVATE != 0
    }

    /// Several messages may share a packet.
    #[inline]
    pub(crate) const fn packs(self) -> bool {
        self.bits & Self::PACKS != 0
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_is_told_of_a_port_for_a_while() {
        let mut flags = ConnFlags::default();
        flags.set_ping(true);
        for packet in 1..=300 {
            let told = flags.came_astray(4791);
            assert_eq!(told, (8..15).contains(&packet), "{packet}");
        }
        let before = |flags: &mut ConnFlags, from| (0..7).all(|_| !flags.came_astray(from));
        assert!(before(&mut flags, 49_152), "another port counts anew");
        assert!(flags.came_astray(49_152));
        flags.came_right();
        assert!(before(&mut flags, 49_152));
        assert!(before(&mut flags, 49_153) && flags.came_astray(49_153));
        assert!(flags.owes_ping() && !flags.packs() && !flags.is_private());
    }

    #[test]
    fn each_port_is_tried_once_and_late_words_change_nothing() {
        let (mut flags, ports) = (ConnFlags::default(), [4791, 49_152, 49_153]);
        assert!(!flags.leave(49_152, &ports), "it does not use that one");
        assert!(flags.leave(4791, &ports));
        assert!(!flags.leave(4791, &ports), "it has left it");
        assert!(flags.leave(49_152, &ports));
        assert!(!flags.leave(49_153, &ports), "there is none left");
        assert_eq!(flags.source(), 2);
        assert!(!ConnFlags::default().leave(4791, &[4791]));
    }
}
