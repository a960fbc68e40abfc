//! Two ports joined by memory: for tests, the simulator, and QPs of one node that talk to each
//! other.
//!
//! Each direction has a slab of packet slots and two rings of slot numbers: full slots go forward,
//! empty ones come back. The sender builds a packet in a slot, the receiver reads it there; nothing
//! is copied in between. The sender takes the slot it got back last first, so that a short exchange
//! works on a few slots that stay in cache, however many there are.
//!
//! Costs about 14 ns per packet, both ends together: two ring entries, one 56-byte header, and per
//! burst two stores and two loads of a shared position. No lock, no system call.
//!
//! What a node sends to its own address comes back to it, by a third direction that is made when it
//! is first used.

pub(crate) mod lane;

use crate::port::{Arrival, Capabilities, Egress, Port, PortCounters, PortError, Slot};
use lane::{Receiver, Sender, lane};
use std::os::fd::BorrowedFd;
use trunkline_wire::Path;

/// Sizes of a memory pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MemoryConfig {
    /// Most bytes of a datagram, in `256 ..= 65_536`.
    pub slot_bytes: usize,
    /// Datagrams in flight per direction, in `1 ..= 65_536`. Memory is touched when first used.
    pub slots: u32,
}

impl Default for MemoryConfig {
    /// 1,024 slots of 9,216 bytes.
    fn default() -> Self {
        Self {
            slot_bytes: 9216,
            slots: 1024,
        }
    }
}

/// Most bytes of a datagram over IPv4.
const MOST: usize = 65_507;

/// One end of a memory pair. [`Send`], so that the ends may live on two threads.
#[derive(Debug)]
pub struct MemoryPort {
    config: MemoryConfig,
    sender: Sender,
    receiver: Receiver,
    /// What goes to where it comes from.
    own: Option<Box<(Sender, Receiver)>>,
    /// Whether the slot given out last is one of those.
    reserved_own: bool,
    /// Where datagrams are built that no slot holds, and whether the slot given out last is that.
    waste: Vec<u8>,
    reserved_waste: bool,
    /// Whether those are received first, next time.
    own_first: bool,
    /// What is received next was looked for.
    fetched: bool,
    counters: PortCounters,
}

impl MemoryPort {
    /// Two ports, each receiving what the other sends. They carry any path; the identification is
    /// 0. Where a path leads to the address it starts from, the port that sends receives.
    ///
    /// # Panics
    /// When `config` is out of its ranges.
    pub fn pair(config: MemoryConfig) -> (Self, Self) {
        assert!(
            (256..=65_536).contains(&config.slot_bytes),
            "slot_bytes {}",
            config.slot_bytes
        );
        assert!(
            (1..=65_536).contains(&config.slots),
            "slots {}",
            config.slots
        );
        let (to_west, from_east) = lane(config);
        let (to_east, from_west) = lane(config);
        let port = |sender, receiver| Self {
            config,
            sender,
            receiver,
            own: None,
            waste: Vec::new(),
            reserved_waste: false,
            reserved_own: false,
            own_first: false,
            fetched: false,
            counters: PortCounters::default(),
        };
        (port(to_west, from_west), port(to_east, from_east))
    }

    /// Datagrams that were sent and not yet received by the other end, as far as this end knows.
    pub fn in_flight(&self) -> usize {
        self.sender.in_flight()
    }

    /// Room for a datagram that is dropped.
    #[cold]
    fn reserve_waste(&mut self, length: usize) -> Option<Slot<'_>> {
        if length == 0 || length > MOST {
            return None;
        }
        self.waste.resize(length, 0);
        Some(Slot {
            datagram: &mut self.waste,
            identification: 0,
        })
    }

    /// Room in the lane to itself.
    #[cold]
    fn reserve_own(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        let config = self.config;
        let own = self.own.get_or_insert_with(|| Box::new(lane(config)));
        own.0.reserve(path, length)
    }
}

impl Egress for MemoryPort {
    #[inline]
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        self.reserved_waste = length == 0 || length > self.config.slot_bytes;
        if self.reserved_waste {
            return self.reserve_waste(length);
        }
        self.reserved_own = path.src == path.dst;
        if self.reserved_own {
            return self.reserve_own(path, length);
        }
        self.sender.reserve(path, length)
    }

    #[inline]
    fn commit(&mut self) {
        if std::mem::take(&mut self.reserved_waste) {
            self.counters.too_long += 1;
            return;
        }
        match &mut self.own {
            Some(own) if self.reserved_own => own.0.commit(),
            _ => self.sender.commit(),
        }
    }
}

impl Port for MemoryPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_datagram: self.config.slot_bytes,
            sees_identification: true,
            super_packets: false,
            coalesced_receive: false,
            lossless: true,
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.sender.flush(&mut self.counters);
        if let Some(own) = &mut self.own {
            own.0.flush(&mut self.counters);
        }
        Ok(())
    }

    fn fetch(&mut self) -> Result<bool, PortError> {
        self.fetched = true;
        let own = self.own.as_mut().is_some_and(|own| own.1.fetch());
        Ok(self.receiver.fetch() || own)
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        if !self.fetched {
            self.fetch()?;
        }
        self.fetched = false;
        let counters = &mut self.counters;
        let Some(own) = &mut self.own else {
            return Ok(self.receiver.receive(limit, sink, counters));
        };
        // In turns, so that neither keeps the other waiting.
        self.own_first = !self.own_first;
        let (first, second) = if self.own_first {
            (&mut own.1, &mut self.receiver)
        } else {
            (&mut self.receiver, &mut own.1)
        };
        let count = first.receive(limit, sink, counters);
        Ok(count + second.receive(limit - count, sink, counters))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
