//! The memory that is copied.

use trunkline_dataplane::copy::{Bounds, Copier};
use trunkline_dma::Job;

/// Which way payload goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Way {
    /// Out of a buffer, which is summed, into registered memory.
    Place,
    /// Out of registered memory into a buffer. That is what is summed: others may write the source
    /// between two looks.
    Gather,
}

/// A size of blocks, and how much memory they go around in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) way: Way,
    /// Bytes of a block, which is copied and summed as one.
    pub(crate) block: usize,
    /// Bytes of all sources.
    pub(crate) sources: usize,
    /// Bytes of all destinations.
    pub(crate) destinations: usize,
}

/// What fits into the second-level cache, and what fits into none.
const SMALL: usize = 256 << 10;
const LARGE: usize = 32 << 20;

/// What is measured. The last two are what a node does: buffers of packets are few and stay in
/// cache, and the program's memory is large.
pub(crate) const CASES: [Case; 8] = [
    Case::new(Way::Place, 4 << 10, SMALL, SMALL),
    Case::new(Way::Place, 64 << 10, SMALL, SMALL),
    Case::new(Way::Place, 1 << 20, 1 << 20, 1 << 20),
    Case::new(Way::Place, 4 << 10, LARGE, LARGE),
    Case::new(Way::Place, 64 << 10, LARGE, LARGE),
    Case::new(Way::Place, 1 << 20, LARGE, LARGE),
    Case::new(Way::Place, 4 << 10, SMALL, LARGE),
    Case::new(Way::Gather, 4 << 10, LARGE, SMALL),
];

/// Where a page begins.
const ALIGNMENT: usize = 4096;
/// Between the two sides, so that equal offsets are not in the same set of a cache.
const SKEW: usize = 128;

impl Case {
    const fn new(way: Way, block: usize, sources: usize, destinations: usize) -> Self {
        Self {
            way,
            block,
            sources,
            destinations,
        }
    }

    /// How many copies may be under way, if no two write the same block.
    pub(crate) const fn most_under_way(self) -> usize {
        self.destinations / self.block
    }

    /// Whether sources or destinations are more than a cache holds.
    pub(crate) const fn is_large(self) -> bool {
        self.sources >= LARGE || self.destinations >= LARGE
    }
}

/// Sources and destinations.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) case: Case,
    /// What has the memory that the addresses are of.
    _memory: [Vec<u8>; 2],
    source: *mut u8,
    destination: *mut u8,
    next: usize,
}

/// A block to copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    way: Way,
    source: *mut u8,
    destination: *mut u8,
    length: usize,
    within: Bounds,
}

impl Arena {
    /// Memory that was written, so that all pages of it are there.
    pub(crate) fn new(case: Case) -> Self {
        let allocate = |bytes: usize, byte: u8| vec![byte; bytes + ALIGNMENT + SKEW];
        let mut sources = allocate(case.sources, 0x5a);
        let mut destinations = allocate(case.destinations, 1);
        let aligned = |memory: &mut [u8]| {
            let start = memory.as_ptr().align_offset(ALIGNMENT);
            memory[start..].as_mut_ptr()
        };
        let source = aligned(&mut sources);
        let destination = aligned(&mut destinations).wrapping_add(SKEW);
        Self {
            case,
            _memory: [sources, destinations],
            source,
            destination,
            next: 0,
        }
    }

    /// The next block; either side begins again behind its last.
    pub(crate) fn block(&mut self) -> Block {
        let case = self.case;
        let offset = self.next;
        self.next = (offset + case.block) % (case.sources * case.destinations);
        let within = match case.way {
            Way::Place => Bounds::of(self.destination, case.destinations),
            Way::Gather => Bounds::of(self.source, case.sources),
        };
        Block {
            way: case.way,
            source: self.source.wrapping_add(offset % case.sources),
            destination: self.destination.wrapping_add(offset % case.destinations),
            length: case.block,
            within,
        }
    }
}

/// What is done with a block.
///
/// # Safety
/// Of all: the arena lives, and no engine has a copy that writes the block.
impl Block {
    /// The copy of it.
    pub(crate) const fn job(&self) -> Job {
        let (from, to) = (self.source, self.destination);
        match self.way {
            Way::Place => Job::place(from, to, self.length, self.within),
            Way::Gather => Job::gather(from, to, self.length, self.within),
        }
    }

    /// Copies and sums in one pass.
    pub(crate) unsafe fn copy_and_sum(&self, copier: Copier) -> u32 {
        match self.way {
            Way::Place => {
                // SAFETY: the caller's promise.
                let data = unsafe { self.buffer() };
                // SAFETY: the caller's promise; the sides do not overlap.
                unsafe { copier.copy_in_crc(self.destination, data, 0, self.within) }
            }
            Way::Gather => {
                // SAFETY: the caller's promise.
                let out = unsafe { std::slice::from_raw_parts_mut(self.destination, self.length) };
                // SAFETY: the caller's promise; the sides do not overlap.
                unsafe { copier.copy_out_crc(out, self.source, 0, self.within) }
            }
        }
    }

    /// Copies.
    pub(crate) unsafe fn copy(&self, copier: Copier) {
        match self.way {
            Way::Place => {
                // SAFETY: the caller's promise.
                let data = unsafe { self.buffer() };
                // SAFETY: the caller's promise; the sides do not overlap.
                unsafe { copier.copy_in(self.destination, data, self.within) };
            }
            Way::Gather => {
                // SAFETY: the caller's promise.
                let out = unsafe { std::slice::from_raw_parts_mut(self.destination, self.length) };
                // SAFETY: the caller's promise; the sides do not overlap.
                unsafe { copier.copy_out(out, self.source, self.within) };
            }
        }
    }

    /// Sums the side that is no registered memory.
    pub(crate) unsafe fn sum(&self, copier: Copier) -> u32 {
        // SAFETY: the caller's promise.
        copier.sum(unsafe { self.buffer() }, 0)
    }

    const unsafe fn buffer<'a>(&self) -> &'a [u8] {
        let start = match self.way {
            Way::Place => self.source,
            Way::Gather => self.destination,
        };
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(start, self.length) }
    }
}
