//! Hints that memory will be used soon. They touch nothing a program could see and never fault.

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Fetches the `lines` cache lines from `address` on, to be read or written soon.
#[inline]
pub(crate) fn prefetch(address: *const u8, lines: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..lines {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at = address.wrapping_add(line * LINE);
        // SAFETY: every x86-64 CPU has the instruction, which faults at no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (address, lines);
}
