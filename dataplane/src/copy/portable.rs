//! The kernel for every machine: relaxed atomics on the side that others access.
//!
//! Atomics of different sizes on the same bytes at the same moment are undefined behaviour, so the
//! size follows from the address alone: bytes of a whole aligned word of the region are accessed
//! as that word, by every copy of every length and by [`RegionMemory::atomic`], those in front of
//! the first and behind the last one by one ([`Bounds`]). Where a copy begins or ends within a
//! word, it loads all of it, or changes its own bytes of it by a compare-and-swap.
//!
//! [`RegionMemory::atomic`]: trunkline_conn::mem::RegionMemory::atomic

use super::Bounds;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

pub(super) const WORD: usize = size_of::<u64>();

/// What one access covers: bytes of one word, or one byte beside the words.
#[derive(Clone, Copy, Debug)]
struct Unit {
    /// Of the word, or of the byte.
    at: *mut u8,
    is_word: bool,
    /// Where the copy's bytes begin in it, and how many they are.
    skip: usize,
    count: usize,
}

impl Unit {
    /// The one at `at`, of which at most `length` bytes, one or more, are wanted.
    fn of(at: *mut u8, length: usize, within: Bounds) -> Self {
        if !within.has_word(at.addr()) {
            return Self {
                at,
                is_word: false,
                skip: 0,
                count: 1,
            };
        }
        let skip = at.addr() % WORD;
        Self {
            at: at.wrapping_sub(skip),
            is_word: true,
            skip,
            count: length.min(WORD - skip),
        }
    }

    /// # Safety
    /// Its word or byte must be readable.
    unsafe fn load(self, ordering: Ordering) -> [u8; WORD] {
        if self.is_word {
            // SAFETY: the caller's promise; `of` took the address of the word.
            return unsafe { word(self.at) }.load(ordering).to_ne_bytes();
        }
        // SAFETY: the caller's promise.
        let byte = unsafe { byte(self.at) }.load(ordering);
        [byte, 0, 0, 0, 0, 0, 0, 0]
    }

    /// Stores `data`, as many bytes as it counts.
    ///
    /// # Safety
    /// Its word or byte must be readable and writable.
    unsafe fn store(self, data: &[u8], ordering: Ordering) {
        if !self.is_word {
            // SAFETY: the caller's promise.
            unsafe { byte(self.at) }.store(data[0], ordering);
            return;
        }
        // SAFETY: the caller's promise; `of` took the address of the word.
        let cell = unsafe { word(self.at) };
        if let Ok(whole) = data.try_into() {
            cell.store(u64::from_ne_bytes(whole), ordering);
            return;
        }
        let change = |old: u64| {
            let mut bytes = old.to_ne_bytes();
            bytes[self.skip..self.skip + self.count].copy_from_slice(data);
            Some(u64::from_ne_bytes(bytes))
        };
        let changed = cell.fetch_update(ordering, Ordering::Relaxed, change);
        debug_assert!(changed.is_ok(), "there is always a new value");
    }
}

/// # Safety
/// `src` must be readable for `out.len()` bytes, all inside the region of `within`, and readable
/// for all of it.
#[inline(never)]
pub(super) unsafe fn copy_out(mut out: &mut [u8], mut src: *mut u8, within: Bounds) {
    while !out.is_empty() {
        let unit = Unit::of(src, out.len(), within);
        // SAFETY: a word or byte of the region.
        let bytes = unsafe { unit.load(Ordering::Relaxed) };
        let (now, rest) = out.split_at_mut(unit.count);
        now.copy_from_slice(&bytes[unit.skip..unit.skip + unit.count]);
        src = src.wrapping_add(unit.count);
        out = rest;
        // In the middle, word by word.
        if unit.is_word {
            let whole = within.words_from(src.addr(), out.len());
            let (words, rest) = out.split_at_mut(whole * WORD);
            for (i, place) in words.as_chunks_mut::<WORD>().0.iter_mut().enumerate() {
                // SAFETY: a whole word of the region.
                let cell = unsafe { word(src.wrapping_add(i * WORD)) };
                *place = cell.load(Ordering::Relaxed).to_ne_bytes();
            }
            src = src.wrapping_add(whole * WORD);
            out = rest;
        }
    }
}

/// # Safety
/// `dst` must be readable and writable for `data.len()` bytes, all inside the region of `within`,
/// and for all of it.
#[inline(never)]
pub(super) unsafe fn copy_in(mut dst: *mut u8, mut data: &[u8], within: Bounds) {
    while !data.is_empty() {
        let unit = Unit::of(dst, data.len(), within);
        let (now, rest) = data.split_at(unit.count);
        // The last byte comes after all others.
        let ordering = match rest {
            [] => Ordering::Release,
            _ => Ordering::Relaxed,
        };
        // SAFETY: a word or byte of the region.
        unsafe { unit.store(now, ordering) };
        dst = dst.wrapping_add(unit.count);
        data = rest;
        if unit.is_word {
            // All but the word with the last byte.
            let whole = within.words_from(dst.addr(), data.len().saturating_sub(1));
            let (words, rest) = data.split_at(whole * WORD);
            for (i, bytes) in words.as_chunks::<WORD>().0.iter().enumerate() {
                // SAFETY: a whole word of the region.
                let cell = unsafe { word(dst.wrapping_add(i * WORD)) };
                cell.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
            dst = dst.wrapping_add(whole * WORD);
            data = rest;
        }
    }
}

/// One byte, with all that was written before it.
///
/// # Safety
/// `src` must be inside the region of `within`, which must be readable.
pub(super) unsafe fn load_byte(src: *mut u8, within: Bounds) -> u8 {
    let unit = Unit::of(src, 1, within);
    // SAFETY: the caller's promise.
    let bytes = unsafe { unit.load(Ordering::Acquire) };
    bytes[unit.skip]
}

/// # Safety
/// `at` must be a multiple of 8 and readable for 8 bytes.
const unsafe fn word<'a>(at: *mut u8) -> &'a AtomicU64 {
    // SAFETY: the caller's promise; a relaxed load of a word does not write.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

/// # Safety
/// `at` must be readable for one byte.
const unsafe fn byte<'a>(at: *mut u8) -> &'a AtomicU8 {
    // SAFETY: the caller's promise; a relaxed load of a byte does not write.
    unsafe { AtomicU8::from_ptr(at) }
}
