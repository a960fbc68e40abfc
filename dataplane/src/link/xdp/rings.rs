//! The four rings between kernel and device (Documentation/networking/af_xdp.rst).
//!
//! Each has one side that produces and one that consumes; positions wrap at 2^32, and only their
//! lower bits say where an entry lies. Whoever moves a position does so by a store with Release,
//! after which the other side may touch what it covers; whoever reads the other's does so by a load
//! with Acquire. What the kernel says is believed only as far as it can be true.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A ring as it is mapped.
#[derive(Debug)]
struct Area<T> {
    base: *mut u8,
    bytes: usize,
    entries: *mut T,
    producer: usize,
    consumer: usize,
    flags: usize,
    capacity: u32,
}

// SAFETY: an address range that is only unmapped once; its atomics may be used from anywhere, and
// its entries are touched through `&mut` of whoever owns it.
unsafe impl<T: Send> Send for Area<T> {}

impl<T: Copy> Area<T> {
    /// Maps the ring that a socket has at `page`, of `capacity` entries, a power of two.
    fn map(
        socket: RawFd,
        page: i64,
        offsets: &libc::xdp_ring_offset,
        capacity: u32,
    ) -> io::Result<Self> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidData);
        let place = |offset: u64| usize::try_from(offset).map_err(|_| wrong());
        let (producer, consumer) = (place(offsets.producer)?, place(offsets.consumer)?);
        let (flags, entries) = (place(offsets.flags)?, place(offsets.desc)?);
        let length = capacity as usize * size_of::<T>();
        let bytes = entries.checked_add(length).ok_or_else(wrong)?;
        let fits = |word: usize| word.is_multiple_of(align_of::<u32>()) && word <= bytes - 4;
        if !fits(producer)
            || !fits(consumer)
            || !fits(flags)
            || !entries.is_multiple_of(align_of::<T>())
        {
            return Err(wrong());
        }
        let (protection, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
        );
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                kind,
                socket,
                page as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base.cast::<u8>();
        Ok(Self {
            base,
            bytes,
            entries: base.wrapping_add(entries).cast(),
            producer,
            consumer,
            flags,
            capacity,
        })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        let word = self.base.wrapping_add(offset).cast();
        // SAFETY: inside the mapping and aligned, as `map` saw to; both sides use atomics on it.
        unsafe { AtomicU32::from_ptr(word) }
    }

    fn entry(&self, position: u32) -> *mut T {
        let index = (position & (self.capacity - 1)) as usize;
        self.entries.wrapping_add(index)
    }
}

impl<T> Drop for Area<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; whoever used it is gone.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// The end of a ring that we produce at.
#[derive(Debug)]
pub(super) struct Producer<T> {
    area: Area<T>,
    /// Behind the last entry that was written.
    next: u32,
    /// What the kernel had consumed when it was last looked at.
    seen: u32,
    /// Something was published since it was last looked whether the kernel waits.
    is_new: bool,
}

impl<T: Copy> Producer<T> {
    pub(super) fn map(
        socket: RawFd,
        page: i64,
        offsets: &libc::xdp_ring_offset,
        capacity: u32,
    ) -> io::Result<Self> {
        let area = Area::map(socket, page, offsets, capacity)?;
        Ok(Self {
            area,
            next: 0,
            seen: 0,
            is_new: false,
        })
    }

    /// Entries that were written and that the kernel had not consumed at the last
    /// [`look`](Self::look).
    pub(super) const fn waiting(&self) -> u32 {
        self.next.wrapping_sub(self.seen)
    }

    /// Entries that may be written before the next look.
    pub(super) const fn room(&self) -> u32 {
        self.area.capacity - self.waiting()
    }

    /// Entries that it holds.
    pub(super) const fn capacity(&self) -> u32 {
        self.area.capacity
    }

    /// Where the kernel was at the last look.
    pub(super) const fn seen(&self) -> u32 {
        self.seen
    }

    /// Looks how far the kernel is.
    pub(super) fn look(&mut self) {
        let consumed = self.area.word(self.area.consumer).load(Ordering::Acquire);
        // It neither goes back nor passes us.
        if consumed.wrapping_sub(self.seen) <= self.waiting() {
            self.seen = consumed;
        }
    }

    /// Writes an entry, for which there is room.
    pub(super) fn write(&mut self, entry: T) {
        assert!(self.room() > 0, "more entries than the ring was made for");
        // SAFETY: inside the mapping; the kernel does not touch it before it is published.
        unsafe { self.area.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// An entry that was written, at a position from [`seen`](Self::seen) as it was before the last
    /// look on.
    pub(super) fn read(&self, position: u32) -> T {
        // SAFETY: inside the mapping; the kernel only reads the entries of this ring.
        unsafe { self.area.entry(position).read() }
    }

    /// Gives the kernel all that was written.
    pub(super) fn publish(&mut self) {
        let producer = self.area.word(self.area.producer);
        producer.store(self.next, Ordering::Release);
        self.is_new = true;
    }

    /// Whether the kernel waits to be told of what was published.
    pub(super) fn needs_wakeup(&mut self) -> bool {
        // A driver that goes to sleep sets the flag, then looks for entries once more; here one
        // is published, then the flag is looked at. Were the load done before the store, both could
        // miss the other. For what was published before the last fence there needs no other one.
        if std::mem::take(&mut self.is_new) {
            fence(Ordering::SeqCst);
        }
        let flags = self.area.word(self.area.flags).load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// The end of a ring that we consume at.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    area: Area<T>,
    /// The oldest entry that was not taken.
    next: u32,
    /// What the kernel had produced when it was last looked at.
    seen: u32,
}

impl<T: Copy> Consumer<T> {
    pub(super) fn map(
        socket: RawFd,
        page: i64,
        offsets: &libc::xdp_ring_offset,
        capacity: u32,
    ) -> io::Result<Self> {
        let area = Area::map(socket, page, offsets, capacity)?;
        let (next, seen) = (0, 0);
        Ok(Self { area, next, seen })
    }

    /// Gives back the entries that were taken, and looks what the kernel has produced.
    pub(super) fn look(&mut self) {
        let consumer = self.area.word(self.area.consumer);
        consumer.store(self.next, Ordering::Release);
        let produced = self.area.word(self.area.producer).load(Ordering::Acquire);
        let ready = produced.wrapping_sub(self.next);
        // It neither goes back nor writes over what we have not taken.
        if ready <= self.area.capacity && ready >= self.ready() {
            self.seen = produced;
        }
    }

    /// Entries that there were at the last look and that were not taken.
    pub(super) const fn ready(&self) -> u32 {
        self.seen.wrapping_sub(self.next)
    }

    /// The entry so many behind the oldest, if it is ready.
    pub(super) fn peek(&self, behind: u32) -> Option<T> {
        (behind < self.ready()).then(|| {
            let entry = self.area.entry(self.next.wrapping_add(behind));
            // SAFETY: inside the mapping; the kernel does not write it before it is given back.
            unsafe { entry.read() }
        })
    }

    /// Takes the oldest entries, of which so many are ready.
    pub(super) fn skip(&mut self, count: u32) {
        debug_assert!(count <= self.ready(), "what is taken was seen");
        self.next = self.next.wrapping_add(count);
    }

    /// Takes the oldest entry, if one is ready.
    pub(super) fn take(&mut self) -> Option<T> {
        let entry = self.peek(0)?;
        self.skip(1);
        Some(entry)
    }
}
