//! Copies between registered memory and private buffers, with the CRC-32 summed in the same pass.
//!
//! # Memory that others write
//! One side of every copy is memory that the program, another process or a peer's packets may write
//! at the same moment, like the buffers of a device that masters the bus. So that side is never a
//! reference, only an address, and it is touched only by single loads and stores the optimiser
//! cannot see through: relaxed atomics in the portable kernel, inline assembly in the others. The
//! atomics that reach a byte are all of one size ([`Bounds`]), whatever the lengths of copies.
//! Every byte is read once: the sum is over exactly the bytes that were copied, even when a writer
//! raced. What a race leaves behind is some mixture of old and new bytes, never undefined
//! behaviour.
//!
//! # Order of stores
//! [`Copier::copy_in`] stores in ascending order and the last byte after all others (x86 keeps
//! stores in order; the portable kernel stores its word with release): a program that polls the
//! last byte of a WRITE finds the rest in place.
//!
//! # Speed
//! On a Zen 4 core the fused AVX-512 kernel moves 4 KiB blocks at 0.7 to 0.85 of the speed of
//! `memcpy` in the second-level cache, and at 0.75 to 0.85 over memory; copying first and summing
//! then reaches 0.47. The carry-less multiplier is the limit. `benches/copy.rs` measures it.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx512;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod fold;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod pclmul;
mod portable;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

/// The range of memory that copies reach, of one region: its whole aligned words, which are
/// accessed as words only, and the bytes around them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bounds {
    /// Address of the first whole word, and behind the last one.
    words: usize,
    end: usize,
}

impl Bounds {
    /// Of `length` bytes at `base`.
    #[inline]
    pub fn of(base: *mut u8, length: usize) -> Self {
        let start = base.addr();
        Self {
            words: start.next_multiple_of(portable::WORD),
            end: (start + length) / portable::WORD * portable::WORD,
        }
    }

    /// Whether the byte at `address` is one of a whole word.
    const fn has_word(self, address: usize) -> bool {
        self.words <= address && address < self.end
    }

    /// Whole words among the `length` bytes at `address`, where a word begins.
    const fn words_from(self, address: usize, length: usize) -> usize {
        let left = self.end.saturating_sub(address);
        let length = if length < left { length } else { left };
        length / portable::WORD
    }
}

/// A kernel that suits this machine. Made once (it asks the CPU), then copied around.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Copier(Kernel);

// INVARIANT: a kernel other than `Portable` is made only where the CPU has what it needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kernel {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx512,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Pclmul,
    Portable,
}

impl Copier {
    /// The fastest kernel this CPU runs.
    #[inline]
    pub fn detect() -> Self {
        static FASTEST: OnceLock<Copier> = OnceLock::new();
        *FASTEST.get_or_init(|| {
            Self::available()
                .next()
                .expect("the portable kernel runs everywhere")
        })
    }

    /// All kernels this CPU runs, the fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        [
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            avx512::is_available().then_some(Kernel::Avx512),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            pclmul::is_available().then_some(Kernel::Pclmul),
            Some(Kernel::Portable),
        ]
        .into_iter()
        .flatten()
        .map(Self)
    }

    /// The kernel's name.
    pub const fn name(self) -> &'static str {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Kernel::Avx512 => "avx512",
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Kernel::Pclmul => "pclmul",
            Kernel::Portable => "portable",
        }
    }

    /// Copies `out.len()` bytes from `src`.
    ///
    /// # Safety
    /// `src` must be readable for `out.len()` bytes and not overlap `out`. Others may write there,
    /// so it must not come from a shared reference; nothing is written through it. It must lie in
    /// the memory of `within`, of which `src` may reach all.
    #[inline]
    pub unsafe fn copy_out(self, out: &mut [u8], src: *mut u8, within: Bounds) {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: the caller's promise, and the invariant of `Kernel`.
            Kernel::Avx512 => unsafe { avx512::copy(out.as_mut_ptr(), src, out.len()) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above.
            Kernel::Pclmul => unsafe { pclmul::copy(out.as_mut_ptr(), src, out.len()) },
            // SAFETY: the caller's promise.
            Kernel::Portable => unsafe { portable::copy_out(out, src, within) },
        }
    }

    /// Copies `out.len()` bytes from `src` and gives the CRC-32 of `state`'s bytes followed by them
    /// (both as `crc32fast::Hasher::finalize` gives it; 0 for no bytes).
    ///
    /// # Safety
    /// As [`copy_out`](Self::copy_out).
    #[inline]
    #[must_use]
    pub unsafe fn copy_out_crc(
        self,
        out: &mut [u8],
        src: *mut u8,
        state: u32,
        within: Bounds,
    ) -> u32 {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: the caller's promise, and the invariant of `Kernel`.
            Kernel::Avx512 => unsafe { avx512::copy_crc(out.as_mut_ptr(), src, out.len(), state) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above.
            Kernel::Pclmul => unsafe { pclmul::copy_crc(out.as_mut_ptr(), src, out.len(), state) },
            Kernel::Portable => {
                // SAFETY: the caller's promise.
                unsafe { portable::copy_out(out, src, within) };
                resume(state, out)
            }
        }
    }

    /// Copies `data` to `dst`, the last byte last.
    ///
    /// # Safety
    /// `dst` must be readable and writable for `data.len()` bytes and not overlap `data`. Others
    /// may access it. It must lie in the memory of `within`, of which `dst` may reach all.
    #[inline]
    pub unsafe fn copy_in(self, dst: *mut u8, data: &[u8], within: Bounds) {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: the caller's promise, and the invariant of `Kernel`.
            Kernel::Avx512 => unsafe { avx512::copy(dst, data.as_ptr(), data.len()) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above.
            Kernel::Pclmul => unsafe { pclmul::copy(dst, data.as_ptr(), data.len()) },
            // SAFETY: the caller's promise.
            Kernel::Portable => unsafe { portable::copy_in(dst, data, within) },
        }
    }

    /// Copies `data` to `dst`, the last byte last, and sums as
    /// [`copy_out_crc`](Self::copy_out_crc) does.
    ///
    /// # Safety
    /// As [`copy_in`](Self::copy_in).
    #[inline]
    #[must_use]
    pub unsafe fn copy_in_crc(self, dst: *mut u8, data: &[u8], state: u32, within: Bounds) -> u32 {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: the caller's promise, and the invariant of `Kernel`.
            Kernel::Avx512 => unsafe { avx512::copy_crc(dst, data.as_ptr(), data.len(), state) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above.
            Kernel::Pclmul => unsafe { pclmul::copy_crc(dst, data.as_ptr(), data.len(), state) },
            Kernel::Portable => {
                // SAFETY: the caller's promise.
                unsafe { portable::copy_in(dst, data, within) };
                resume(state, data)
            }
        }
    }

    /// The CRC-32 of `state`'s bytes followed by `bytes`, which nobody else has.
    #[inline]
    #[must_use]
    pub fn sum(self, bytes: &[u8], state: u32) -> u32 {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: the invariant of `Kernel`.
            Kernel::Avx512 if avx512::SUMS.contains(&bytes.len()) => unsafe {
                avx512::sum(bytes, state)
            },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above.
            Kernel::Pclmul if pclmul::SUMS.contains(&bytes.len()) => unsafe {
                pclmul::sum(bytes, state)
            },
            _ => resume(state, bytes),
        }
    }
}

/// The byte at `src`, and with it all that was written before.
///
/// # Safety
/// `src` must be inside the memory of `within`, and reach all of it for reading.
pub(crate) unsafe fn load_byte(src: *mut u8, within: Bounds) -> u8 {
    // SAFETY: the caller's promise.
    unsafe { portable::load_byte(src, within) }
}

/// By a library: not inlined, so that who does not need it does not pay for it.
#[inline(never)]
fn resume(state: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(state);
    hasher.update(bytes);
    hasher.finalize()
}
