//! Registered memory of a lane: buffers of messages, and regions of what is longer than those.

use crate::frame::Extent;
use crate::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use trunkline::{Access, Error, Mr, Pd, Sge};

/// Bytes that are registered at a time for buffers, at least: a huge page.
const CHUNK: usize = 2 << 20;
/// Bytes from the end of a buffer to the next one: were all of them a power of two apart, their
/// first bytes, which are all that short messages use, would share a few places of the cache.
const GAP: usize = 128;

/// A buffer of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Buffer(u32);

impl Buffer {
    /// What names it in the cookie of a work request: less than 2^32.
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    pub(crate) const fn numbered(number: u32) -> Self {
        Self(number)
    }
}

/// Buffers of one size. They are registered when they are needed first, and kept.
#[derive(Debug)]
pub(crate) struct Buffers {
    pd: Pd,
    size: usize,
    /// Bytes from one to the next.
    stride: usize,
    per_chunk: usize,
    chunks: Vec<Mr>,
    free: Vec<u32>,
}

impl Buffers {
    pub(crate) fn new(pd: Pd, size: usize) -> Self {
        let stride = size.next_multiple_of(GAP) + GAP;
        Self {
            pd,
            size,
            stride,
            per_chunk: (CHUNK / stride).max(1),
            chunks: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Takes a free one.
    ///
    /// # Errors
    /// There is no memory, or no room for one more region.
    pub(crate) fn take(&mut self) -> Result<Buffer, Error> {
        if let Some(number) = self.free.pop() {
            return Ok(Buffer(number));
        }
        let bytes = (self.stride * self.per_chunk).max(CHUNK);
        let chunk = self.pd.register(bytes, Access::LOCAL_WRITE)?;
        let first = (self.chunks.len() * self.per_chunk) as u32;
        self.chunks.push(chunk);
        self.free
            .extend((first..first + self.per_chunk as u32).rev());
        let number = self.free.pop().expect("a chunk has a buffer");
        Ok(Buffer(number))
    }

    /// Brings into the cache the first bytes of those that are [taken](Self::take) next.
    pub(crate) fn look_at(&self, count: usize) {
        for number in self.free.iter().rev().take(count) {
            let (chunk, offset) = self.place(Buffer(*number));
            let mut first = [0];
            let read = chunk.read(offset, &mut first);
            read.expect("a buffer has a byte");
            std::hint::black_box(first);
        }
    }

    pub(crate) fn give_back(&mut self, buffer: Buffer) {
        debug_assert!(!self.free.contains(&buffer.0), "it was taken");
        self.free.push(buffer.0);
    }

    /// Those that were taken.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> usize {
        self.chunks.len() * self.per_chunk - self.free.len()
    }

    fn place(&self, buffer: Buffer) -> (&Mr, usize) {
        let number = buffer.0 as usize;
        let chunk = &self.chunks[number / self.per_chunk];
        (chunk, number % self.per_chunk * self.stride)
    }

    /// The first `length` bytes of it as an element of a work request.
    pub(crate) fn sge(&self, buffer: Buffer, length: usize) -> Sge {
        let (chunk, offset) = self.place(buffer);
        chunk.sge(offset, length)
    }

    /// All of it as an element of a work request.
    pub(crate) fn whole(&self, buffer: Buffer) -> Sge {
        self.sge(buffer, self.size)
    }

    pub(crate) fn write(&self, buffer: Buffer, bytes: &[u8]) {
        let (chunk, offset) = self.place(buffer);
        let written = chunk.write(offset, bytes);
        written.expect("a message fits its buffer");
    }

    /// Copies its first `length` bytes.
    pub(crate) fn read(&self, buffer: Buffer, length: usize) -> Vec<u8> {
        let (chunk, offset) = self.place(buffer);
        read(chunk, offset, length)
    }
}

fn read(mr: &Mr, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let read = mr.read(offset, &mut bytes);
    read.expect("what was received is within its region");
    bytes
}

/// Bytes of regions that nobody uses and that are kept, at most.
const KEPT: usize = 32 << 20;
/// The smallest region that is kept.
const SMALLEST: usize = 16 << 10;

/// Regions of requests and responses that are longer than a message.
#[derive(Debug)]
pub(crate) struct Regions {
    pd: Pd,
    /// Bytes that may be kept for peers, and those that may still be taken.
    budget: u64,
    left: AtomicU64,
    unused: Mutex<Unused>,
}

#[derive(Debug, Default)]
struct Unused {
    bytes: usize,
    /// By their length, a power of two.
    regions: BTreeMap<usize, Vec<Mr>>,
}

/// What a connection has of what may be kept for peers.
#[derive(Debug)]
pub(crate) struct Share {
    held: AtomicU64,
    of: Arc<Regions>,
}

/// A region that somebody uses.
#[derive(Debug)]
pub(crate) struct Region {
    /// There until it is dropped.
    mr: Option<Mr>,
    length: u32,
    charge: Option<Charge>,
    /// No peer knows its key, so that it may serve again.
    private: bool,
    of: Arc<Regions>,
}

/// Bytes of what may be kept for peers. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Charge {
    cost: u64,
    by: Arc<Share>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.by.held.fetch_sub(self.cost, Ordering::Relaxed);
        self.by.of.left.fetch_add(self.cost, Ordering::Relaxed);
    }
}

impl Share {
    /// Takes what a region of so many bytes costs; `None`: that would be more than may be kept, or
    /// the connection would have more than it leaves to all others together. So who keeps all that
    /// it can leaves the next one half as much, and so on. Where nothing is kept there is room for
    /// one body, however long.
    fn charge(self: &Arc<Self>, length: u32) -> Option<Charge> {
        let cost = size_for(length) as u64;
        let order = Ordering::Relaxed;
        // What it has grows under its connection's lock alone.
        let held = self.held.load(order) + cost;
        let spend = |left: u64| {
            let rest = left.checked_sub(cost);
            rest.filter(|rest| held <= *rest || left == self.of.budget)
        };
        self.of.left.fetch_update(order, order, spend).ok()?;
        self.held.fetch_add(cost, order);
        let by = Arc::clone(self);
        Some(Charge { cost, by })
    }

    /// A region of `length` bytes that only this end reads and writes, for a request of a peer, and
    /// what that takes until it is answered; `None`: that would be more than may be kept at a time,
    /// or there is no memory.
    pub(crate) fn admit(self: &Arc<Self>, length: u32) -> Option<(Region, Charge)> {
        let charge = self.charge(length)?;
        Some((self.of.take(length)?, charge))
    }

    /// A region with these bytes in it, of which there are some, for a response that its client
    /// reads and has to release; `None` as for [`admit`](Self::admit).
    pub(crate) fn lend(self: &Arc<Self>, bytes: &[u8]) -> Option<Region> {
        let charge = self.charge(u32::try_from(bytes.len()).ok()?)?;
        let mut region = self.of.offer(bytes)?;
        region.charge = Some(charge);
        Some(region)
    }

    /// The same for a response that is written to where its client wants it: only this end reads
    /// and writes the region.
    pub(crate) fn hold(self: &Arc<Self>, bytes: &[u8]) -> Option<Region> {
        let length = u32::try_from(bytes.len()).ok()?;
        let charge = self.charge(length)?;
        let mut region = self.of.take(length)?;
        region.charge = Some(charge);
        region.write(bytes);
        Some(region)
    }
}

/// Bytes of a region for so many: what it costs, and what is kept of it.
fn size_for(length: u32) -> usize {
    (length as usize).next_power_of_two().max(SMALLEST)
}

impl Regions {
    pub(crate) fn new(pd: Pd, budget: u64) -> Arc<Self> {
        Arc::new(Self {
            pd,
            budget,
            left: AtomicU64::new(budget),
            unused: Mutex::default(),
        })
    }

    /// What a connection may have of it.
    pub(crate) fn share(self: &Arc<Self>) -> Arc<Share> {
        let of = Arc::clone(self);
        Arc::new(Share {
            held: AtomicU64::new(0),
            of,
        })
    }

    /// A region for what this end has asked for; `None`: there is no memory.
    pub(crate) fn take(self: &Arc<Self>, length: u32) -> Option<Region> {
        let mr = self.private(length)?;
        Some(self.region(mr, length, true))
    }

    /// One with these bytes in it, of which there are some, that peers may read. It never serves
    /// again: whoever was told its key keeps it.
    pub(crate) fn offer(self: &Arc<Self>, bytes: &[u8]) -> Option<Region> {
        let length = u32::try_from(bytes.len()).ok()?;
        let mr = self.pd.register(bytes.len(), Access::REMOTE_READ).ok()?;
        let region = self.region(mr, length, false);
        region.write(bytes);
        Some(region)
    }

    fn region(self: &Arc<Self>, mr: Mr, length: u32, private: bool) -> Region {
        Region {
            mr: Some(mr),
            length,
            charge: None,
            private,
            of: Arc::clone(self),
        }
    }

    fn private(&self, length: u32) -> Option<Mr> {
        let size = size_for(length);
        let mut unused = lock(&self.unused);
        let known = unused.regions.get_mut(&size).and_then(Vec::pop);
        if known.is_some() {
            unused.bytes -= size;
        }
        drop(unused);
        known.or_else(|| self.pd.register(size, Access::LOCAL_WRITE).ok())
    }
}

impl Region {
    fn mr(&self) -> &Mr {
        self.mr.as_ref().expect("it goes when the region does")
    }

    /// Where peers find its bytes.
    pub(crate) fn extent(&self) -> Extent {
        let (remote, length) = (self.mr().remote(0), self.length);
        Extent { remote, length }
    }

    /// Its bytes as an element of a work request.
    pub(crate) fn sge(&self) -> Sge {
        self.mr().sge(0, self.length as usize)
    }

    fn write(&self, bytes: &[u8]) {
        let written = self.mr().write(0, bytes);
        written.expect("it is as long as its bytes");
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        read(self.mr(), 0, self.length as usize)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let regions = &self.of;
        let Some(mr) = self.mr.take().filter(|_| self.private) else {
            return;
        };
        let (mut unused, size) = (lock(&regions.unused), mr.len());
        if unused.bytes + size <= KEPT {
            unused.bytes += size;
            unused.regions.entry(size).or_default().push(mr);
        }
    }
}

#[cfg(test)]
mod tests;
