//! Owns the lists of what packets carry that several messages share: of the one that is being put
//! together, and of those in flight until they are acknowledged.

use super::build::{SentKind, SentPacket};
use crate::slab::Slab;
use trunkline_wire::Record;

/// Most payload bytes of a message that shares a packet, and of such a packet. Above the first the
/// headers are a small part of a packet of its own; see docs/results on small messages.
pub(crate) const SMALL: u32 = 512;
const MOST: u32 = 4096;

const _: () = assert!(SMALL as usize <= Record::MOST);

/// What one packet in flight carries.
#[derive(Debug)]
struct Pack {
    serial: u32,
    records: Vec<SentPacket>,
}

/// Records of packets.
#[derive(Debug, Default)]
pub(crate) struct Packs {
    live: Slab<Pack>,
    spare: Vec<Vec<SentPacket>>,
    serial: u32,
    /// Those of the packet that is being put together, and their bytes on the wire.
    open: Vec<SentPacket>,
    bytes: u32,
    /// Bytes of those of them that are control messages.
    control_bytes: u32,
    /// Bytes of the records of the packets before it in this turn: equal packets leave together.
    full: Option<u32>,
}

impl Packs {
    /// Payload bytes that packets of several records have at most on a connection whose full
    /// packets have `payload`.
    pub(crate) fn most(&self, payload: u32) -> u32 {
        self.full.unwrap_or(payload.min(MOST))
    }

    /// A turn of a connection begins.
    pub(crate) const fn begin(&mut self) {
        self.full = None;
    }

    /// Whether records wait in a packet that has not left.
    #[inline]
    pub(crate) const fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Bytes of those records.
    pub(crate) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Bytes of those of them that are control messages.
    pub(crate) const fn control_bytes(&self) -> usize {
        self.control_bytes as usize
    }

    /// A record of `bytes` bytes joins the packet.
    #[inline]
    pub(crate) fn join(&mut self, item: SentPacket, bytes: u32) {
        self.open.push(item);
        self.bytes += bytes;
    }

    /// The same for a record of control messages.
    pub(crate) fn join_control(&mut self, item: SentPacket, bytes: u32) {
        self.join(item, bytes);
        self.control_bytes += bytes;
    }

    /// The records of the packet, which leaves; `full`: because another one did not fit, so that
    /// those behind it had better be as long. One record alone leaves in a packet of another kind.
    /// Gives how many bytes such a packet has, too, with its padding.
    pub(crate) fn take(&mut self, full: bool) -> (Vec<SentPacket>, u32) {
        let mut bytes = std::mem::take(&mut self.bytes);
        self.control_bytes = 0;
        if full && self.open.len() > 1 {
            bytes = *self.full.get_or_insert(bytes);
        }
        let blank = self.spare.pop().unwrap_or_default();
        (std::mem::replace(&mut self.open, blank), bytes)
    }

    /// Keeps the records of a packet until it is [freed](Self::free). Returns what stands for them.
    pub(crate) fn insert(&mut self, records: Vec<SentPacket>) -> SentPacket {
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let slot = self.live.insert(Pack { serial, records });
        SentPacket {
            kind: SentKind::Packed,
            slot,
            serial,
            ..SentPacket::PING
        }
    }

    /// What a packet in flight carries: its records, or itself.
    pub(crate) fn records<'a>(&'a self, item: &'a SentPacket) -> &'a [SentPacket] {
        if item.kind != SentKind::Packed {
            return std::slice::from_ref(item);
        }
        let pack = self.live.get(item.slot);
        let pack = pack.filter(|pack| pack.serial == item.serial);
        pack.map_or(&[], |pack| &pack.records)
    }

    /// A packet is in flight no more. Returns its records, to be [given back](Self::give_back).
    pub(crate) fn free(&mut self, item: &SentPacket) -> Vec<SentPacket> {
        match self.live.get(item.slot) {
            Some(pack) if pack.serial == item.serial => self.live.remove(item.slot).records,
            _ => Vec::new(),
        }
    }

    /// Keeps the memory of a list for another one.
    pub(crate) fn give_back(&mut self, mut records: Vec<SentPacket>) {
        if records.capacity() > 0 {
            records.clear();
            self.spare.push(records);
        }
    }

    /// Bytes of all lists.
    pub(crate) fn state_bytes(&self) -> usize {
        let list = |list: &Vec<SentPacket>| list.capacity() * size_of::<SentPacket>();
        let spare = self.spare.capacity() * size_of::<Vec<SentPacket>>();
        let live = self.live.iter().map(|(_, pack)| &pack.records);
        let lists = live.chain(&self.spare).chain([&self.open]);
        self.live.state_bytes() + spare + lists.map(list).sum::<usize>()
    }

    /// Gives back memory of lists that were needed once.
    pub(crate) fn trim(&mut self) {
        self.live.trim();
        self.spare = Vec::new();
        if self.open.is_empty() {
            self.open = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stood_for_a_packet_stands_for_none_that_has_its_place_now() {
        let mut packs = Packs::default();
        let sent = |packs: &mut Packs, serial: u32| {
            let item = SentPacket {
                serial,
                ..SentPacket::PING
            };
            packs.join(item, 20);
            let (records, _) = packs.take(false);
            packs.insert(records)
        };
        let serials = |records: &[SentPacket]| -> Vec<u32> {
            records.iter().map(|record| record.serial).collect()
        };
        let old = sent(&mut packs, 7);
        assert_eq!(serials(packs.records(&old)), [7]);
        assert_eq!(serials(&packs.free(&old)), [7]);
        let new = sent(&mut packs, 8);
        assert_eq!(new.slot, old.slot);
        assert_eq!(serials(packs.records(&old)), []);
        assert_eq!(serials(&packs.free(&old)), []);
        assert_eq!(serials(packs.records(&new)), [8]);
    }

    #[test]
    fn lists_count_wherever_they_are() {
        let mut packs = Packs::default();
        (0..100).for_each(|_| packs.join(SentPacket::PING, 20));
        let least = 100 * size_of::<SentPacket>();
        assert!(packs.state_bytes() >= least, "it is put together");
        let (records, _) = packs.take(false);
        let item = packs.insert(records);
        assert!(packs.state_bytes() >= least, "it is in flight");
        let records = packs.free(&item);
        packs.give_back(records);
        assert!(packs.state_bytes() >= least, "it is spare");
        packs.trim();
        assert!(packs.state_bytes() < least, "it is gone");
    }
}
