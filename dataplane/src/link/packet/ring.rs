//! The two rings of an AF_PACKET socket, in one mapping that the kernel shares.
//!
//! A slot belongs to who its status word says. The kernel writes it with Release semantics, and so
//! do we; what the kernel says of a frame is checked against the slot before it is used.

use libc::{
    TP_STATUS_AVAILABLE, TP_STATUS_KERNEL, TP_STATUS_SEND_REQUEST, TP_STATUS_USER,
    TP_STATUS_VLAN_VALID, tpacket_req, tpacket2_hdr,
};
use socket2::Socket;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a block of slots, which the kernel allocates as one.
const BLOCK: usize = 1 << 20;
/// Bytes of a slot for what arrives: a super-packet of 64 KiB, and headers.
const RX_SLOT: usize = 68 << 10;
const RX_BLOCKS: usize = 16;
const TX_BLOCKS: usize = 8;
/// Bytes of all that can wait to be sent.
pub(super) const TX_BYTES: usize = TX_BLOCKS * BLOCK;
/// Bytes of a slot for super-packets that are sent: as many pages as the kernel takes of a frame,
/// but one.
const SUPER_SLOT: usize = 64 << 10;
/// Where the frame begins in a slot that is sent: behind the header (`TPACKET2_HDRLEN` without the
/// address).
const TX_DATA: usize = align(size_of::<tpacket2_hdr>());
/// Where the address begins in a slot that arrived, and in it what kind of frame that is.
const ADDRESS: usize = align(size_of::<tpacket2_hdr>());
const KIND: usize = ADDRESS + std::mem::offset_of!(libc::sockaddr_ll, sll_pkttype);
/// Most frames that one look finds.
const LOOK: usize = 64;

/// `TPACKET_ALIGN`
const fn align(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

const _: () = assert!(RX_SLOT.is_multiple_of(16) && BLOCK.is_multiple_of(4096));

/// How slots lie in blocks.
#[derive(Clone, Copy, Debug)]
struct Slots {
    /// Where the first block begins.
    start: usize,
    slot: usize,
    each_block: usize,
    count: usize,
}

impl Slots {
    const fn new(start: usize, slot: usize, blocks: usize) -> Self {
        let each_block = BLOCK / slot;
        Self {
            start,
            slot,
            each_block,
            count: each_block * blocks,
        }
    }

    const fn first(&self) -> Place {
        Place {
            at: self.start,
            left: self.each_block,
        }
    }

    /// The slot behind another one, and behind the last the first.
    const fn behind(&self, place: Place) -> Place {
        let Place { at, left } = place;
        if left > 1 {
            return Place {
                at: at + self.slot,
                left: left - 1,
            };
        }
        let block = at + self.slot - self.each_block * self.slot;
        let end = self.start + self.count / self.each_block * BLOCK;
        if block + BLOCK == end {
            return self.first();
        }
        Place {
            at: block + BLOCK,
            left: self.each_block,
        }
    }

    fn request(&self) -> tpacket_req {
        tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: (self.count / self.each_block) as u32,
            tp_frame_size: self.slot as u32,
            tp_frame_nr: self.count as u32,
        }
    }
}

/// Where a slot is.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: usize,
    /// Slots from there on in its block.
    left: usize,
}

/// How long slots are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    rx: Slots,
    tx: Slots,
}

impl Layout {
    /// For frames to send of up to so many bytes, or for as long ones as there are if datagrams are
    /// `joined`.
    pub(super) const fn new(most: usize, joined: bool) -> Self {
        let mut slot = align(TX_DATA + most);
        if joined && slot < SUPER_SLOT {
            slot = SUPER_SLOT;
        }
        Self {
            rx: Slots::new(0, RX_SLOT, RX_BLOCKS),
            tx: Slots::new(RX_BLOCKS * BLOCK, slot, TX_BLOCKS),
        }
    }

    const fn bytes() -> usize {
        (RX_BLOCKS + TX_BLOCKS) * BLOCK
    }
}

/// A frame that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived<'a> {
    /// From the header of virtio on.
    pub(super) bytes: &'a [u8],
    /// Whose it is (packet(7), `sll_pkttype`).
    pub(super) kind: u8,
    /// It is of a VLAN, whose tag was taken off.
    pub(super) is_tagged: bool,
    pub(super) is_cut: bool,
}

/// Both rings.
#[derive(Debug)]
pub(super) struct Rings {
    base: NonNull<u8>,
    layout: Layout,
    /// The slot that is received next, and how many from there on had arrived at the last look.
    next: Place,
    arrived: usize,
    /// The slot that is filled next, the oldest that the kernel was not seen to take, how many
    /// datagrams are in each between, and the length of the frame allocated last.
    free: Place,
    oldest: Place,
    pushed: VecDeque<u8>,
    length: usize,
}

// SAFETY: the mapping is this one's alone on this side.
unsafe impl Send for Rings {}

impl Rings {
    /// Gives the socket both rings.
    ///
    /// # Errors
    /// The system has no room for them.
    pub(super) fn new(socket: &Socket, layout: Layout) -> io::Result<Self> {
        option(
            socket,
            libc::PACKET_VERSION,
            &libc::tpacket_versions::TPACKET_V2,
        )?;
        option(socket, libc::PACKET_RX_RING, &layout.rx.request())?;
        option(socket, libc::PACKET_TX_RING, &layout.tx.request())?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let (bytes, socket) = (Layout::bytes(), socket.as_raw_fd());
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, socket, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            base: NonNull::new(base.cast()).expect("mmap does not map page 0 unasked"),
            next: layout.rx.first(),
            arrived: 0,
            free: layout.tx.first(),
            oldest: layout.tx.first(),
            pushed: VecDeque::with_capacity(layout.tx.count),
            layout,
            length: 0,
        })
    }

    fn place(&self, at: usize) -> NonNull<u8> {
        debug_assert!(at < Layout::bytes(), "a slot is inside");
        // SAFETY: inside the mapping.
        unsafe { self.base.add(at) }
    }

    fn status(&self, at: usize) -> &AtomicU32 {
        // SAFETY: slots begin at a multiple of 16 bytes, and with this word (`tp_status`), which
        // both sides only read and write as a whole.
        unsafe { self.place(at).cast::<AtomicU32>().as_ref() }
    }

    /// Most bytes that are sent at once.
    pub(super) const fn most(&self) -> usize {
        self.layout.tx.slot - TX_DATA
    }

    /// Room for a frame.
    pub(super) fn allocate(&mut self, length: usize) -> Option<&mut [u8]> {
        let tx = self.layout.tx;
        if length > self.most() || self.pushed.len() == tx.count {
            return None;
        }
        if self.status(self.free.at).load(Ordering::Acquire) != TP_STATUS_AVAILABLE {
            return None;
        }
        self.length = length;
        Some(self.allocated())
    }

    /// The room that was given out last, and was not pushed.
    pub(super) fn allocated(&mut self) -> &mut [u8] {
        let data = self.place(self.free.at + TX_DATA).as_ptr();
        // SAFETY: the slot is ours, as its status said when it was allocated, until it is pushed;
        // the length is inside, and 0 before.
        unsafe { std::slice::from_raw_parts_mut(data, self.length) }
    }

    /// The frame allocated last is whole, and has so many datagrams.
    pub(super) fn push(&mut self, datagrams: u8) {
        let at = self.free.at;
        let length = self.place(at + std::mem::offset_of!(tpacket2_hdr, tp_len));
        // SAFETY: a word of the header of a slot that is ours.
        unsafe { length.cast::<u32>().write(self.length as u32) };
        self.status(at)
            .store(TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.free = self.layout.tx.behind(self.free);
        self.pushed.push_back(datagrams);
        self.length = 0;
    }

    /// Whether the kernel has not taken all that was pushed.
    pub(super) fn has_pushed(&self) -> bool {
        !self.pushed.is_empty()
    }

    /// Whether a super-packet is among that.
    pub(super) fn has_joined(&self) -> bool {
        self.pushed.iter().any(|datagrams| *datagrams > 1)
    }

    /// Whether the kernel has to take something, or to be done with it, before there is room for as
    /// many frames as the ring has.
    pub(super) fn is_full(&self) -> bool {
        self.has_pushed()
            || self.status(self.free.at).load(Ordering::Acquire) != TP_STATUS_AVAILABLE
    }

    /// How many datagrams the kernel has taken since this was asked last.
    pub(super) fn taken(&mut self) -> usize {
        let mut taken = 0;
        while self.has_pushed() {
            if self.status(self.oldest.at).load(Ordering::Acquire) == TP_STATUS_SEND_REQUEST {
                break;
            }
            taken += self.settle_oldest();
        }
        taken
    }

    /// Takes back what the kernel has not taken. Says how many datagrams that were.
    pub(super) fn give_up(&mut self) -> usize {
        let (mut given_up, oldest) = (0, self.oldest);
        while self.has_pushed() {
            self.status(self.oldest.at)
                .store(TP_STATUS_AVAILABLE, Ordering::Release);
            given_up += self.settle_oldest();
        }
        // The kernel goes on at the slot that it did not take.
        (self.free, self.oldest) = (oldest, oldest);
        given_up
    }

    /// The oldest slot is ours again: gives how many datagrams were in it.
    fn settle_oldest(&mut self) -> usize {
        self.oldest = self.layout.tx.behind(self.oldest);
        self.pushed.pop_front().unwrap_or(0).into()
    }

    /// Looks how many frames have arrived, unless some of the last time are left.
    pub(super) fn look(&mut self) -> bool {
        let rx = self.layout.rx;
        let mut place = self.next;
        if self.arrived == 0 {
            while self.arrived < LOOK {
                let status = self.status(place.at).load(Ordering::Acquire);
                if status & TP_STATUS_USER == 0 {
                    break;
                }
                self.arrived += 1;
                place = rx.behind(place);
            }
        }
        self.arrived > 0
    }

    /// The oldest frame.
    pub(super) fn front(&self) -> Option<Arrived<'_>> {
        if self.arrived == 0 {
            return None;
        }
        let (slot, at) = (self.layout.rx.slot, self.next.at);
        let status = self.status(at).load(Ordering::Acquire);
        // SAFETY: the slot is ours, as its status says, and begins with this header.
        let header = unsafe { self.place(at).cast::<tpacket2_hdr>().read() };
        // SAFETY: as above; the address lies behind the header.
        let kind = unsafe { self.place(at + KIND).read() };
        // The header of virtio is before the frame.
        let begin = usize::from(header.tp_mac).saturating_sub(super::VIRTIO);
        let length = super::VIRTIO + header.tp_snaplen as usize;
        let is_inside = begin >= KIND && length <= slot && begin <= slot - length;
        let bytes: &[u8] = if is_inside {
            let data = self.place(at + begin).as_ptr();
            // SAFETY: inside the slot, which is ours until it is recycled.
            unsafe { std::slice::from_raw_parts(data, length) }
        } else {
            &[0; super::VIRTIO]
        };
        Some(Arrived {
            bytes,
            kind,
            is_tagged: status & TP_STATUS_VLAN_VALID != 0,
            is_cut: !is_inside || header.tp_snaplen < header.tp_len,
        })
    }

    /// Gives the slot of the oldest frame back.
    pub(super) fn recycle(&mut self) {
        if self.arrived == 0 {
            return;
        }
        self.status(self.next.at)
            .store(TP_STATUS_KERNEL, Ordering::Release);
        self.next = self.layout.rx.behind(self.next);
        self.arrived -= 1;
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; whoever owned the rings is gone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), Layout::bytes()) };
    }
}

/// Sets an option whose value is a structure.
fn option<T>(socket: &Socket, option: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_ref(value).cast();
    let socket = socket.as_raw_fd();
    // SAFETY: `value` leads to a structure of this length.
    let result = unsafe { libc::setsockopt(socket, libc::SOL_PACKET, option, value, length) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_lie_side_by_side_in_blocks_and_begin_again_behind_the_last() {
        for (slot, blocks) in [(RX_SLOT, RX_BLOCKS), (4256, TX_BLOCKS), (BLOCK / 2, 1)] {
            let slots = Slots::new(7 * BLOCK, slot, blocks);
            assert_eq!(slots.count, BLOCK / slot * blocks);
            let mut place = slots.first();
            for index in (0..slots.count).chain(0..2) {
                let (block, inside) = (index / slots.each_block, index % slots.each_block);
                assert_eq!(place.at, (7 + block) * BLOCK + inside * slot, "{index}");
                place = slots.behind(place);
            }
        }
    }
}
