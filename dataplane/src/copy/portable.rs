//! The kernel for every machine: relaxed atomic words and bytes on the side that others write.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// # Safety
/// `src` must be readable for `out.len()` bytes.
#[inline(never)]
pub(super) unsafe fn copy_out(out: &mut [u8], src: *mut u8) {
    let head = src.align_offset(WORD).min(out.len());
    let (bytes, rest) = out.split_at_mut(head);
    for (i, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: inside the range the caller vouches for.
        *byte = unsafe { load_byte(src.wrapping_add(i)) };
    }
    let src = src.wrapping_add(head);
    let (words, bytes) = rest.as_chunks_mut::<WORD>();
    for (i, word) in words.iter_mut().enumerate() {
        // SAFETY: inside the range, and `src` was brought to a multiple of 8.
        *word = unsafe { load_word(src.wrapping_add(i * WORD)) };
    }
    let src = src.wrapping_add(words.len() * WORD);
    for (i, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: inside the range.
        *byte = unsafe { load_byte(src.wrapping_add(i)) };
    }
}

/// # Safety
/// `dst` must be writable for `data.len()` bytes.
#[inline(never)]
pub(super) unsafe fn copy_in(dst: *mut u8, data: &[u8]) {
    let Some((last, data)) = data.split_last() else {
        return;
    };
    let head = dst.align_offset(WORD).min(data.len());
    let (bytes, rest) = data.split_at(head);
    for (i, byte) in bytes.iter().enumerate() {
        // SAFETY: inside the range the caller vouches for.
        unsafe { store_byte(dst.wrapping_add(i), *byte, Ordering::Relaxed) };
    }
    let dst = dst.wrapping_add(head);
    let (words, bytes) = rest.as_chunks::<WORD>();
    for (i, word) in words.iter().enumerate() {
        // SAFETY: inside the range, and `dst` was brought to a multiple of 8.
        unsafe { store_word(dst.wrapping_add(i * WORD), *word) };
    }
    let dst = dst.wrapping_add(words.len() * WORD);
    for (i, byte) in bytes.iter().enumerate() {
        // SAFETY: inside the range.
        unsafe { store_byte(dst.wrapping_add(i), *byte, Ordering::Relaxed) };
    }
    // SAFETY: the last byte of the range.
    unsafe { store_byte(dst.wrapping_add(bytes.len()), *last, Ordering::Release) };
}

/// # Safety
/// `src` must be readable for one byte.
unsafe fn load_byte(src: *mut u8) -> u8 {
    // SAFETY: the caller's promise; a relaxed load of one byte does not write.
    let cell = unsafe { AtomicU8::from_ptr(src) };
    cell.load(Ordering::Relaxed)
}

/// # Safety
/// `src` must be a multiple of 8, readable for 8 bytes.
unsafe fn load_word(src: *mut u8) -> [u8; WORD] {
    // SAFETY: the caller's promise; a relaxed load of one word does not write.
    let cell = unsafe { AtomicU64::from_ptr(src.cast()) };
    cell.load(Ordering::Relaxed).to_ne_bytes()
}

/// # Safety
/// `dst` must be writable for one byte.
unsafe fn store_byte(dst: *mut u8, byte: u8, ordering: Ordering) {
    // SAFETY: the caller's promise.
    let cell = unsafe { AtomicU8::from_ptr(dst) };
    cell.store(byte, ordering);
}

/// # Safety
/// `dst` must be a multiple of 8, writable for 8 bytes.
unsafe fn store_word(dst: *mut u8, word: [u8; WORD]) {
    // SAFETY: the caller's promise.
    let cell = unsafe { AtomicU64::from_ptr(dst.cast()) };
    cell.store(u64::from_ne_bytes(word), Ordering::Relaxed);
}
