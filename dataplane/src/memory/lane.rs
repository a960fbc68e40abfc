//! One direction of a memory pair: packet slots, and who owns them.

use super::MemoryConfig;
use crate::mapping::Mapping;
use crate::port::{Arrival, Identification, PortCounters, Slot};
use crate::prefetch::{LINE, prefetch};
use crate::ring::Ring;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline_wire::Path;

const ECN: u8 = 0b11;

/// What a slot begins with, before the datagram.
struct Header {
    arrival: Arrival,
    length: usize,
}

/// Where the datagram begins in its slot: so that the payload of a packet in the middle of a WRITE,
/// behind 72 bytes of headers, lies on a cache line. Copies across lines take half as long again.
const HEADER: usize = size_of::<Header>().next_multiple_of(LINE) + 56;

/// Cache lines of a slot that are fetched ahead: the port's header, and the packet's.
const AHEAD: usize = (HEADER + 72).div_ceil(LINE);

/// The packet slots of one direction: raw memory, shared by both ends.
///
/// Every slot belongs to exactly one end at a time: the sender owns it from taking its number off
/// the ring of empty ones until publishing it on the ring of full ones, the receiver from there
/// until publishing it on the ring of empty ones. Publishing releases, taking acquires.
#[derive(Debug)]
struct Slab {
    memory: Mapping,
    stride: usize,
    slots: u32,
}

impl Slab {
    fn new(config: MemoryConfig) -> Self {
        // An odd number of cache lines, so that the first lines of slots spread over all sets.
        let stride = ((HEADER + config.slot_bytes).div_ceil(LINE) | 1) * LINE;
        let memory = Mapping::new(stride * config.slots as usize);
        Self {
            memory: memory.expect("memory for the slots"),
            stride,
            slots: config.slots,
        }
    }

    #[inline]
    fn slot(&self, number: u32) -> NonNull<u8> {
        assert!(number < self.slots, "slot {number} of {}", self.slots);
        // SAFETY: `number` is below `slots`, so the slot lies inside the allocation.
        unsafe { self.memory.base().add(number as usize * self.stride) }
    }

    /// Fetches the beginning of a slot that is used next.
    #[inline]
    fn prefetch(&self, number: u32) {
        prefetch(self.slot(number).as_ptr(), AHEAD);
    }

    fn header(&self, number: u32) -> NonNull<Header> {
        const { assert!(align_of::<Header>() <= LINE) }
        self.slot(number).cast()
    }

    fn datagram(&self, number: u32) -> NonNull<u8> {
        // SAFETY: every slot is longer than its header.
        unsafe { self.slot(number).add(HEADER) }
    }
}

/// One direction.
#[derive(Debug)]
struct Lane {
    slab: Slab,
    full: Ring,
    empty: Ring,
    receiver_gone: AtomicBool,
}

/// The end of a lane that packets go into.
#[derive(Debug)]
pub(crate) struct Sender {
    lane: Arc<Lane>,
    /// Slots owned and not in use; the one that came back last on top.
    free: Vec<u32>,
    /// The slot given out and not committed, with the length it was given out for.
    reserved: Option<(u32, usize)>,
    /// Position of the next entry of the full ring.
    committed: u32,
    /// Position up to which the receiver was told.
    published: u32,
    /// Position of the next entry to take from the empty ring.
    reclaimed: u32,
    /// Bytes committed since the last flush.
    pending_bytes: u64,
}

/// The end that they come out of.
#[derive(Debug)]
pub(crate) struct Receiver {
    lane: Arc<Lane>,
    /// Position of the next entry to take from the full ring.
    taken: u32,
    /// Position behind the last entry of the full ring that this end knows of.
    known: u32,
    /// Position of the next entry of the empty ring.
    returned: u32,
}

/// A direction of `config.slots` slots.
pub(crate) fn lane(config: MemoryConfig) -> (Sender, Receiver) {
    let lane = Arc::new(Lane {
        slab: Slab::new(config),
        full: Ring::new(config.slots),
        empty: Ring::new(config.slots),
        receiver_gone: AtomicBool::new(false),
    });
    let sender = Sender {
        lane: Arc::clone(&lane),
        free: (0..config.slots).rev().collect(),
        reserved: None,
        committed: 0,
        published: 0,
        reclaimed: 0,
        pending_bytes: 0,
    };
    let receiver = Receiver {
        lane,
        taken: 0,
        known: 0,
        returned: 0,
    };
    (sender, receiver)
}

impl Sender {
    /// Slots that are on their way or with the receiver, as far as this end knows.
    pub(crate) fn in_flight(&self) -> usize {
        let owned = self.free.len() + usize::from(self.reserved.is_some());
        self.lane.slab.slots as usize - owned
    }

    /// Room for a packet of `length` bytes, which the slot must be able to hold.
    #[inline]
    pub(crate) fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        let number = match self.reserved {
            Some((number, _)) => number,
            None => {
                if self.free.is_empty() {
                    self.reclaim();
                }
                self.free.pop()?
            }
        };
        self.reserved = Some((number, length));
        let ce = path.traffic_class & ECN == ECN;
        let arrival = Arrival {
            path: *path,
            identification: Identification::Seen(0),
            ce,
            waited_ns: 0,
        };
        let header = self.lane.slab.header(number);
        // SAFETY: this end owns the slot (see `Slab`), and the header lies aligned at its start.
        unsafe { header.write(Header { arrival, length }) };
        let datagram = self.lane.slab.datagram(number).as_ptr();
        // SAFETY: this end owns the slot and `self` is borrowed while the slice lives; `length` is
        // at most `slot_bytes`; the memory was zeroed when allocated, so it is initialised.
        let datagram = unsafe { std::slice::from_raw_parts_mut(datagram, length) };
        Some(Slot {
            datagram,
            identification: 0,
        })
    }

    #[inline]
    pub(crate) fn commit(&mut self) {
        let (number, length) = self.reserved.take().expect("commit follows reserve");
        self.lane.full.set(self.committed, number);
        self.committed = self.committed.wrapping_add(1);
        self.pending_bytes += length as u64;
    }

    /// Tells the receiver of what was committed.
    pub(crate) fn flush(&mut self, counters: &mut PortCounters) {
        if self.lane.receiver_gone.load(Ordering::Acquire) {
            counters.unreachable += self.reclaim_all();
            return;
        }
        let burst = self.committed.wrapping_sub(self.published);
        if burst > 0 {
            self.lane.full.publish(self.committed);
            self.published = self.committed;
            counters.sent += u64::from(burst);
            counters.sent_bytes += self.pending_bytes;
            counters.send_calls += 1;
            self.pending_bytes = 0;
        }
        self.reclaim();
    }

    /// Takes back the slots the receiver is done with.
    #[inline(never)]
    fn reclaim(&mut self) {
        let end = self.lane.empty.published();
        while self.reclaimed != end {
            self.free.push(self.lane.empty.get(self.reclaimed));
            self.reclaimed = self.reclaimed.wrapping_add(1);
        }
    }

    /// The receiver is gone: takes every slot back and says how many were never received.
    fn reclaim_all(&mut self) -> u64 {
        self.reclaim();
        let slots = self.lane.slab.slots;
        let owned = self.free.len() + usize::from(self.reserved.is_some());
        let lost = u64::from(slots) - owned as u64;
        if lost > 0 {
            let reserved = self.reserved.map(|(number, _)| number);
            self.free = (0..slots).filter(|slot| reserved != Some(*slot)).collect();
            self.published = self.committed;
        }
        self.pending_bytes = 0;
        lost
    }
}

impl Receiver {
    /// Looks what has arrived, unless some of the last time is left. Returns whether there is any.
    pub(crate) fn fetch(&mut self) -> bool {
        if self.known == self.taken {
            self.known = self.lane.full.published();
        }
        self.known != self.taken
    }

    /// Gives up to `limit` packets that were [fetched](Self::fetch) to `sink`, and says how many.
    pub(crate) fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
        counters: &mut PortCounters,
    ) -> usize {
        let lane = &*self.lane;
        let ready = self.known.wrapping_sub(self.taken) as usize;
        let burst = ready.min(limit);
        if burst == 0 {
            return 0;
        }
        let mut bytes = 0;
        let end = self.taken.wrapping_add(burst as u32);
        for _ in 0..burst {
            let number = lane.full.get(self.taken);
            self.taken = self.taken.wrapping_add(1);
            if self.taken != end {
                lane.slab.prefetch(lane.full.get(self.taken));
            }
            // SAFETY: the sender initialised the header and gave the slot to this end.
            let header = unsafe { lane.slab.header(number).as_ref() };
            let datagram = lane.slab.datagram(number).as_ptr();
            // SAFETY: as above; `length` is at most the slot's, and the slice ends before the slot
            // is returned.
            let datagram = unsafe { std::slice::from_raw_parts(datagram, header.length) };
            bytes += header.length as u64;
            sink(&header.arrival, datagram);
            lane.empty.set(self.returned, number);
            self.returned = self.returned.wrapping_add(1);
        }
        lane.empty.publish(self.returned);
        counters.received += burst as u64;
        counters.received_bytes += bytes;
        counters.receive_calls += 1;
        burst
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.lane.receiver_gone.store(true, Ordering::Release);
    }
}
