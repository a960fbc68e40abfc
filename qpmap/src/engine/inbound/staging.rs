//! Packets that wait for an earlier one of their QP pair.
//!
//! Each flow with such packets has a *shelf*: its packets in the order of message and place, and
//! what they cost. Whatever a peer sends, a packet is put there and taken from there in
//! logarithmic time, and what it may take is what it leaves to others: a flow at most as much as
//! it leaves to its peer's other flows, a peer at most as much as it leaves to other peers.

use crate::slab::{NONE, Slab};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

/// What a packet costs beside the bytes of its buffer: its entry, and the work that it makes. So a
/// packet of one byte is not nearly free.
const ENTRY: usize = 256;
/// Bytes of the smallest buffer. Each further class holds twice as many.
const SMALLEST: usize = 128;
/// Classes of buffers: the largest holds any datagram.
const CLASSES: usize = 10;
/// Bytes of buffers of each class that are kept for packets to come.
const SPARE: usize = 256 << 10;

/// Bit of a place that says "the last packet of its message": it runs after all others.
const LAST: u64 = 1 << 63;

/// A message's packets in the order in which they are taken, by shelf, message and place.
type Key = (u32, u32, u64);

/// Where a packet belongs among those of its flow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    pub(crate) msn: u32,
    /// Where in its message its payload belongs.
    pub(crate) offset: u32,
    /// Nothing of its message comes after it.
    pub(crate) last: bool,
}

impl Place {
    fn key(self, shelf: u32) -> Key {
        let last = if self.last { LAST } else { 0 };
        (shelf, self.msn, u64::from(self.offset) | last)
    }
}

/// The packets of one flow.
#[derive(Debug)]
struct Shelf {
    flow: u32,
    peer: u32,
    /// What its packets cost.
    used: usize,
    packets: u32,
    /// Tells this use of the slot from others.
    serial: u64,
    /// In the list of shelves that go on in a later round.
    deferred: bool,
}

/// Packets that wait for an earlier one: a bounded store, with a share per flow and per peer.
#[derive(Debug)]
pub(crate) struct Staging {
    shelves: Slab<Shelf>,
    packets: BTreeMap<Key, Vec<u8>>,
    /// What the packets of each peer cost, of peers that have some.
    peers: BTreeMap<u32, usize>,
    /// Shelves whose next packets may run, in the order of their turns, with their serials: some
    /// may be gone since.
    deferred: VecDeque<(u32, u64)>,
    serial: u64,
    spare: [Vec<Vec<u8>>; CLASSES],
    total: usize,
    used: usize,
}

/// The class of buffer that a packet of `length` bytes takes.
const fn class_of(length: usize) -> usize {
    let class = length.div_ceil(SMALLEST).next_power_of_two().ilog2() as usize;
    if class < CLASSES { class } else { CLASSES - 1 }
}

/// What a packet of `length` bytes costs.
const fn cost(length: usize) -> usize {
    (SMALLEST << class_of(length)) + ENTRY
}

impl Staging {
    /// A store whose packets cost at most `total` bytes.
    pub(crate) const fn new(total: usize) -> Self {
        Self {
            shelves: Slab::new(),
            packets: BTreeMap::new(),
            peers: BTreeMap::new(),
            deferred: VecDeque::new(),
            serial: 0,
            spare: [const { Vec::new() }; CLASSES],
            total,
            used: 0,
        }
    }

    /// Packets in it.
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether packets of some flow may run.
    pub(crate) fn is_busy(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Keeps a packet of `flow`, whose shelf is `shelf` ([`NONE`]: it gets one), from `peer`.
    /// `false`: it would take more than its share.
    ///
    /// One that is there already is not kept twice: nobody but a peer that breaks the rules sends
    /// a place of a message in two packets.
    pub(crate) fn add(
        &mut self,
        shelf: &mut u32,
        (flow, peer): (u32, u32),
        place: Place,
        datagram: &[u8],
    ) -> bool {
        let cost = cost(datagram.len());
        let of_flow = self.shelves.get(*shelf).map_or(0, |shelf| shelf.used);
        let of_peer = self.peers.get(&peer).copied().unwrap_or(0);
        let left = self.total - self.used;
        // What the peer could take if it took no more than it leaves to others.
        let of_its_share = (left + of_peer) / 2;
        if of_flow + cost > of_its_share.saturating_sub(of_peer + cost) {
            return false;
        }
        if *shelf == NONE {
            self.serial += 1;
            *shelf = self.shelves.insert(Shelf {
                flow,
                peer,
                used: 0,
                packets: 0,
                serial: self.serial,
                deferred: false,
            });
        }
        let Entry::Vacant(place) = self.packets.entry(place.key(*shelf)) else {
            return true;
        };
        let class = class_of(datagram.len());
        let mut copy = self.spare[class]
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(SMALLEST << class));
        copy.extend_from_slice(datagram);
        place.insert(copy);
        let record = &mut self.shelves[*shelf];
        record.used += cost;
        record.packets += 1;
        self.used += cost;
        *self.peers.entry(peer).or_default() += cost;
        true
    }

    /// Takes out the next packet of message `msn`: any but its last one, or that, if as many bytes
    /// as it belongs behind were `placed`, or more, which makes no sense.
    pub(crate) fn take(&mut self, shelf: &mut u32, msn: u32, placed: u32) -> Option<Vec<u8>> {
        if *shelf == NONE {
            return None;
        }
        let key = *self.packets.range((*shelf, msn, 0)..).next()?.0;
        let is_next = (key.0, key.1) == (*shelf, msn);
        let waits_for_others = key.2 & LAST != 0 && key.2 as u32 > placed;
        if !is_next || waits_for_others {
            return None;
        }
        let datagram = self.packets.remove(&key).expect("it was just found");
        self.give_up(shelf, datagram.len());
        Some(datagram)
    }

    /// A packet of so many bytes left the shelf.
    fn give_up(&mut self, shelf: &mut u32, length: usize) {
        let cost = cost(length);
        let record = &mut self.shelves[*shelf];
        record.used -= cost;
        record.packets -= 1;
        self.used -= cost;
        let (peer, empty) = (record.peer, record.packets == 0);
        let of_peer = self.peers.get_mut(&peer).expect("it had a packet here");
        *of_peer -= cost;
        if *of_peer == 0 {
            self.peers.remove(&peer);
        }
        if empty {
            self.shelves.remove(*shelf);
            *shelf = NONE;
        }
    }

    /// The bytes of a packet that was taken are not needed any more.
    pub(crate) fn recycle(&mut self, mut datagram: Vec<u8>) {
        let class = class_of(datagram.len());
        let spare = &mut self.spare[class];
        datagram.clear();
        if spare.len() < SPARE / (SMALLEST << class) {
            spare.push(datagram);
        }
    }

    /// Drops all packets of a shelf.
    pub(crate) fn clear(&mut self, shelf: &mut u32) {
        while *shelf != NONE {
            let all = (*shelf, 0, 0)..=(*shelf, u32::MAX, u64::MAX);
            let found = self.packets.range(all).next();
            let key = *found.expect("a shelf has packets").0;
            let datagram = self.packets.remove(&key).expect("it was just found");
            self.give_up(shelf, datagram.len());
            self.recycle(datagram);
        }
    }

    /// The packets of a shelf go on in a later round.
    pub(crate) fn defer(&mut self, shelf: u32) {
        if let Some(record) = self.shelves.get_mut(shelf)
            && !std::mem::replace(&mut record.deferred, true)
        {
            self.deferred.push_back((shelf, record.serial));
        }
    }

    /// The flow whose turn to go on it is.
    pub(crate) fn next_deferred(&mut self) -> Option<u32> {
        loop {
            let (shelf, serial) = self.deferred.pop_front()?;
            let record = self.shelves.get_mut(shelf);
            if let Some(record) = record.filter(|record| record.serial == serial) {
                record.deferred = false;
                return Some(record.flow);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    const fn at(msn: u32, offset: u32, last: bool) -> Place {
        Place { msn, offset, last }
    }

    /// Adds packets of `length` bytes, one message each, until one is refused; how many were kept.
    fn fill(staging: &mut Staging, shelf: &mut u32, who: (u32, u32), length: usize) -> u32 {
        let datagram = vec![0; length];
        (0..)
            .find(|msn| !staging.add(shelf, who, at(*msn, 0, true), &datagram))
            .expect("it is bounded")
    }

    #[test]
    fn packets_come_out_by_message_and_the_last_of_each_behind_what_it_follows() {
        let mut staging = Staging::new(64 * KIB);
        let mut shelf = NONE;
        for (msn, offset, last) in [(7, 20, true), (8, 0, true), (7, 10, false), (7, 0, false)] {
            let datagram = [msn as u8, offset as u8];
            assert!(staging.add(&mut shelf, (1, 1), at(msn, offset, last), &datagram));
        }
        assert_eq!(staging.take(&mut shelf, 6, 0), None);
        assert_eq!(staging.take(&mut shelf, 7, 0), Some(vec![7, 0]));
        assert_eq!(staging.take(&mut shelf, 7, 10), Some(vec![7, 10]));
        assert_eq!(staging.take(&mut shelf, 7, 10), None, "some are missing");
        assert_eq!(staging.take(&mut shelf, 7, 20), Some(vec![7, 20]));
        assert_eq!(staging.take(&mut shelf, 8, 0), Some(vec![8, 0]));
        assert_eq!((shelf, staging.len(), staging.used), (NONE, 0, 0));
    }

    #[test]
    fn messages_are_told_apart_where_their_numbers_wrap() {
        let mut staging = Staging::new(64 * KIB);
        let mut shelf = NONE;
        for msn in [1, 0, u32::MAX] {
            assert!(staging.add(&mut shelf, (1, 1), at(msn, 0, true), &[msn as u8]));
        }
        for msn in [u32::MAX, 0, 1] {
            assert_eq!(staging.take(&mut shelf, msn, 0), Some(vec![msn as u8]));
        }
    }

    #[test]
    fn a_packet_that_is_there_is_not_kept_twice() {
        let mut staging = Staging::new(64 * KIB);
        let mut shelf = NONE;
        assert!(staging.add(&mut shelf, (1, 1), at(3, 0, true), &[1]));
        assert!(staging.add(&mut shelf, (1, 1), at(3, 0, true), &[2]));
        assert_eq!(staging.take(&mut shelf, 3, 0), Some(vec![1]));
        assert_eq!(staging.len(), 0);
    }

    #[test]
    fn a_packet_of_one_byte_costs_what_it_takes() {
        let mut staging = Staging::new(1024 * KIB);
        let kept = fill(&mut staging, &mut NONE.clone(), (1, 1), 73);
        assert!(kept <= 1024 * KIB as u32 / 4 / 384, "{kept}");
    }

    #[test]
    fn a_flow_leaves_room_to_its_peer_s_others_and_a_peer_to_others() {
        let mut staging = Staging::new(1024 * KIB);
        let mut shelves = [NONE; 40];
        // Ten flows of a peer take what they can get.
        let mut of_first = 0;
        for (flow, shelf) in (0..10).zip(&mut shelves) {
            let kept = fill(&mut staging, shelf, (flow, 1), 1000);
            assert!(kept > 0 || flow > 6, "flow {flow} of the first peer");
            of_first += kept as usize * cost(1000);
        }
        assert!(of_first <= 512 * KIB, "{of_first}");
        // So does a second peer, and yet a third one has room.
        for (flow, shelf) in (10..20).zip(&mut shelves[10..]) {
            fill(&mut staging, shelf, (flow, 2), 1000);
        }
        assert!(fill(&mut staging, &mut shelves[20], (20, 3), 1000) > 10);
        for shelf in &mut shelves {
            staging.clear(shelf);
        }
        assert_eq!((staging.len(), staging.used), (0, 0));
        assert!(staging.peers.is_empty() && staging.shelves.is_empty());
    }

    #[test]
    fn flows_that_go_on_later_take_turns_and_are_forgotten_with_their_packets() {
        let mut staging = Staging::new(64 * KIB);
        let mut shelves = [NONE; 3];
        for (flow, shelf) in (0..).zip(&mut shelves) {
            assert!(staging.add(shelf, (flow, 1), at(0, 0, true), &[0]));
            staging.defer(*shelf);
            staging.defer(*shelf);
        }
        staging.clear(&mut shelves[1]);
        assert_eq!(staging.next_deferred(), Some(0));
        staging.defer(shelves[0]);
        assert_eq!(staging.next_deferred(), Some(2));
        assert_eq!(staging.next_deferred(), Some(0));
        assert_eq!((staging.next_deferred(), staging.is_busy()), (None, false));
    }

    #[test]
    fn every_datagram_fits_a_buffer_of_its_class() {
        for length in [0, 1, 127, 128, 129, 4096, 9000, 65_507] {
            assert!(length <= SMALLEST << class_of(length), "{length}");
        }
        assert_eq!(class_of(65_535), CLASSES - 1);
    }
}
