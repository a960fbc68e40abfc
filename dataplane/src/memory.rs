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

use crate::port::{
    Arrival, Capabilities, Egress, Identification, Port, PortCounters, PortError, Slot,
};
use crate::prefetch::{LINE, prefetch};
use crate::ring::Ring;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline_wire::Path;

const ECN: u8 = 0b11;

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
    base: NonNull<u8>,
    layout: Layout,
    stride: usize,
    slots: u32,
}

// SAFETY: the slab is plain memory whose slots pass from thread to thread by the rings' release and
// acquire; what is in them (addresses and bytes) is Send.
unsafe impl Send for Slab {}
// SAFETY: as above; the slab itself is only read through a shared reference.
unsafe impl Sync for Slab {}

impl Slab {
    fn new(config: MemoryConfig) -> Self {
        // An odd number of cache lines, so that the first lines of slots spread over all sets.
        let stride = ((HEADER + config.slot_bytes).div_ceil(LINE) | 1) * LINE;
        let bytes = stride * config.slots as usize;
        let layout = Layout::from_size_align(bytes, LINE).expect("at most 65,536 slots of 64 KiB");
        // SAFETY: `layout` has a size above 0.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else {
            handle_alloc_error(layout)
        };
        Self {
            base,
            layout,
            stride,
            slots: config.slots,
        }
    }

    #[inline]
    fn slot(&self, number: u32) -> NonNull<u8> {
        assert!(number < self.slots, "slot {number} of {}", self.slots);
        // SAFETY: `number` is below `slots`, so the slot lies inside the allocation.
        unsafe { self.base.add(number as usize * self.stride) }
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

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
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

#[derive(Debug)]
struct Sender {
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

#[derive(Debug)]
struct Receiver {
    lane: Arc<Lane>,
    /// Position of the next entry to take from the full ring.
    taken: u32,
    /// Position of the next entry of the empty ring.
    returned: u32,
}

/// One end of a memory pair. [`Send`], so that the ends may live on two threads.
#[derive(Debug)]
pub struct MemoryPort {
    slot_bytes: usize,
    sender: Sender,
    receiver: Receiver,
    counters: PortCounters,
}

impl MemoryPort {
    /// Two ports, each receiving what the other sends. They carry any path; the identification is
    /// 0.
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
        let lane = || {
            Arc::new(Lane {
                slab: Slab::new(config),
                full: Ring::new(config.slots),
                empty: Ring::new(config.slots),
                receiver_gone: AtomicBool::new(false),
            })
        };
        let (east, west) = (lane(), lane());
        let port = |out: &Arc<Lane>, into: &Arc<Lane>| Self {
            slot_bytes: config.slot_bytes,
            sender: Sender {
                lane: Arc::clone(out),
                free: (0..config.slots).rev().collect(),
                reserved: None,
                committed: 0,
                published: 0,
                reclaimed: 0,
                pending_bytes: 0,
            },
            receiver: Receiver {
                lane: Arc::clone(into),
                taken: 0,
                returned: 0,
            },
            counters: PortCounters::default(),
        };
        (port(&east, &west), port(&west, &east))
    }

    /// Datagrams that were sent and not yet received by the other end, as far as this end knows.
    pub fn in_flight(&self) -> usize {
        let owned = self.sender.free.len() + usize::from(self.sender.reserved.is_some());
        self.sender.lane.slab.slots as usize - owned
    }
}

impl Sender {
    /// Takes back the slots the receiver is done with.
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

impl Egress for MemoryPort {
    #[inline]
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        if length == 0 || length > self.slot_bytes {
            return None;
        }
        let sender = &mut self.sender;
        let number = match sender.reserved {
            Some((number, _)) => number,
            None => {
                if sender.free.is_empty() {
                    sender.reclaim();
                }
                sender.free.pop()?
            }
        };
        sender.reserved = Some((number, length));
        let ce = path.traffic_class & ECN == ECN;
        let arrival = Arrival {
            path: *path,
            identification: Identification::Seen(0),
            ce,
            waited_ns: 0,
        };
        let header = sender.lane.slab.header(number);
        // SAFETY: this end owns the slot (see `Slab`), and the header lies aligned at its start.
        unsafe { header.write(Header { arrival, length }) };
        let datagram = sender.lane.slab.datagram(number).as_ptr();
        // SAFETY: this end owns the slot and `self` is borrowed while the slice lives; `length` is
        // at most `slot_bytes`; the memory was zeroed when allocated, so it is initialised.
        let datagram = unsafe { std::slice::from_raw_parts_mut(datagram, length) };
        Some(Slot {
            datagram,
            identification: 0,
        })
    }

    #[inline]
    fn commit(&mut self) {
        let sender = &mut self.sender;
        let (number, length) = sender.reserved.take().expect("commit follows reserve");
        sender.lane.full.set(sender.committed, number);
        sender.committed = sender.committed.wrapping_add(1);
        sender.pending_bytes += length as u64;
    }
}

impl Port for MemoryPort {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_datagram: self.slot_bytes,
            sees_identification: true,
            super_packets: false,
            coalesced_receive: false,
            kernel_routes: false,
            lossless: true,
        }
    }

    fn flush(&mut self) -> Result<(), PortError> {
        let sender = &mut self.sender;
        if sender.lane.receiver_gone.load(Ordering::Acquire) {
            self.counters.unreachable += sender.reclaim_all();
            return Ok(());
        }
        let burst = sender.committed.wrapping_sub(sender.published);
        if burst > 0 {
            sender.lane.full.publish(sender.committed);
            sender.published = sender.committed;
            self.counters.sent += u64::from(burst);
            self.counters.sent_bytes += sender.pending_bytes;
            self.counters.send_calls += 1;
            sender.pending_bytes = 0;
        }
        sender.reclaim();
        Ok(())
    }

    fn receive(
        &mut self,
        limit: usize,
        sink: &mut dyn FnMut(&Arrival, &[u8]),
    ) -> Result<usize, PortError> {
        let receiver = &mut self.receiver;
        let lane = &*receiver.lane;
        let ready = lane.full.published().wrapping_sub(receiver.taken) as usize;
        let burst = ready.min(limit);
        if burst == 0 {
            return Ok(0);
        }
        let mut bytes = 0;
        let end = receiver.taken.wrapping_add(burst as u32);
        for _ in 0..burst {
            let number = lane.full.get(receiver.taken);
            receiver.taken = receiver.taken.wrapping_add(1);
            if receiver.taken != end {
                lane.slab.prefetch(lane.full.get(receiver.taken));
            }
            // SAFETY: the sender initialised the header and gave the slot to this end.
            let header = unsafe { lane.slab.header(number).as_ref() };
            let datagram = lane.slab.datagram(number).as_ptr();
            // SAFETY: as above; `length` is at most the slot's, and the slice ends before the slot
            // is returned.
            let datagram = unsafe { std::slice::from_raw_parts(datagram, header.length) };
            bytes += header.length as u64;
            sink(&header.arrival, datagram);
            lane.empty.set(receiver.returned, number);
            receiver.returned = receiver.returned.wrapping_add(1);
        }
        lane.empty.publish(receiver.returned);
        self.counters.received += burst as u64;
        self.counters.received_bytes += bytes;
        self.counters.receive_calls += 1;
        Ok(burst)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

impl Drop for MemoryPort {
    fn drop(&mut self) {
        self.receiver
            .lane
            .receiver_gone
            .store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
