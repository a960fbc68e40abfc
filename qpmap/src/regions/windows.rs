//! Memory windows: keys that let peers use a part of a region for some time (IBTA Vol 1, 10.6.6.2).
//!
//! The key of a window has 24 bits that are its own, and a tag in the low 8 bits that its program
//! chooses at each bind. With the tag 0 it opens, by the permutation of the keys of regions, to a
//! slot (16 bits) and a salt (16 bits): of the salts those are taken that seal to a number with
//! this tag, one of 256. No key of a region is one of a window. Slots are never freed, so what a
//! worker reads of one is always a window, be it another one than before.
//!
//! Binds happen under the lock of the table of regions. Workers read a slot without locks: a slot
//! that is being changed allows nothing.

use crate::sync::{AtomicU64, fence};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use trunkline_conn::mem::{Access, PdId};

/// Most memory windows.
pub const MAX_WINDOWS: u32 = 1 << SLOT_BITS;

pub(super) const SLOT_BITS: u32 = 16;
/// What the program chooses of a key.
pub(super) const TAG: u32 = 0xff;

const WORDS: usize = 6;

/// What a window lets peers do.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Binding {
    pub(super) key: u32,
    pub(super) pd: PdId,
    /// The QP whose peer may use it; 0: all QPs of the domain.
    pub(super) qpn: u32,
    pub(super) access: Access,
    /// Slot of the region, and which registration of it.
    pub(super) region: (u32, u32),
    /// Address of its first byte, as peers name it.
    pub(super) start: u64,
    /// Where in the region that is.
    pub(super) offset: u64,
    /// Bytes; 0: it is bound to nothing.
    pub(super) length: u64,
}

impl Binding {
    fn to_words(self) -> [u64; WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [
            pair(self.key, self.pd.0),
            pair(self.qpn, self.access.bits()),
            pair(self.region.0, self.region.1),
            self.start,
            self.offset,
            self.length,
        ]
    }

    const fn from_words(words: [u64; WORDS]) -> Self {
        let [names, rights, region, start, offset, length] = words;
        Self {
            key: names as u32,
            pd: PdId((names >> 32) as u32),
            qpn: rights as u32,
            access: Access::from_bits((rights >> 32) as u32),
            region: (region as u32, (region >> 32) as u32),
            start,
            offset,
            length,
        }
    }
}

/// Where a window is bound. One thread at a time writes; any read.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Odd while it is being written.
    version: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Slot {
    pub(super) fn write(&self, binding: Binding) {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        // Whoever reads a new word sees the odd version, or a later one.
        fence(Release);
        for (word, value) in self.words.iter().zip(binding.to_words()) {
            word.store(value, Relaxed);
        }
        self.version.store(version.wrapping_add(2), Release);
    }

    /// Where it is bound. `None`: nowhere, or it is being changed.
    pub(super) fn read(&self) -> Option<Binding> {
        let version = self.version.load(Acquire);
        let words = self.words.each_ref().map(|word| word.load(Relaxed));
        fence(Acquire);
        let same = version.is_multiple_of(2) && self.version.load(Relaxed) == version;
        let binding = Binding::from_words(words);
        (same && binding.length != 0).then_some(binding)
    }
}
