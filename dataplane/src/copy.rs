//! Copies between registered memory and private buffers, with the CRC-32 summed in the same pass.
//!
//! # Memory that others write
//! One side of every copy is memory that the program, another process or a peer's packets may write at
//! the same moment, like the buffers of a device that masters the bus. So that side is never a
//! reference, only an address, and it is touched only by single loads and stores the optimiser
//! cannot see through: relaxed atomics in the portable kernel, inline assembly in the others. Every
//! byte is read once: the sum is over exactly the bytes that were copied, even when a writer raced.
//! What a race leaves behind is some mixture of old and new bytes, never undefined behaviour.
//!
//! # Order of stores
//! [`Copier::copy_in`] stores in ascending order and the last byte by a store of its own, after all
//! others (x86 keeps stores in order; the portable kernel stores it with release): a program that
//! polls the last byte of a WRITE finds the rest in place.

mod portable;

/// The kernel that suits this machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Copier(Kernel);

// INVARIANT: a kernel other than `Portable` is made only where the CPU has what it needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kernel {
    Portable,
}

impl Copier {
    /// The fastest kernel this CPU runs.
    pub fn detect() -> Self {
        Self(Kernel::Portable)
    }

    /// Copies `out.len()` bytes from `src`.
    ///
    /// # Safety
    /// `src` must be readable for `out.len()` bytes and not overlap `out`. Others may write there.
    pub unsafe fn copy_out(self, out: &mut [u8], src: *const u8) {
        match self.0 {
            // SAFETY: the caller's promise.
            Kernel::Portable => unsafe { portable::copy_out(out, src) },
        }
    }

    /// Copies `out.len()` bytes from `src` and gives the CRC-32 of `state`'s bytes followed by them
    /// (both as `crc32fast::Hasher::finalize` gives it; 0 for no bytes).
    ///
    /// # Safety
    /// As [`copy_out`](Self::copy_out).
    #[must_use]
    pub unsafe fn copy_out_crc(self, out: &mut [u8], src: *const u8, state: u32) -> u32 {
        match self.0 {
            // SAFETY: the caller's promise.
            Kernel::Portable => unsafe { portable::copy_out(out, src) },
        }
        resume(state, out)
    }

    /// Copies `data` to `dst`, the last byte last.
    ///
    /// # Safety
    /// `dst` must be writable for `data.len()` bytes and not overlap `data`. Others may access it.
    pub unsafe fn copy_in(self, dst: *mut u8, data: &[u8]) {
        match self.0 {
            // SAFETY: the caller's promise.
            Kernel::Portable => unsafe { portable::copy_in(dst, data) },
        }
    }

    /// Copies `data` to `dst`, the last byte last, and sums as
    /// [`copy_out_crc`](Self::copy_out_crc) does.
    ///
    /// # Safety
    /// As [`copy_in`](Self::copy_in).
    #[must_use]
    pub unsafe fn copy_in_crc(self, dst: *mut u8, data: &[u8], state: u32) -> u32 {
        match self.0 {
            // SAFETY: the caller's promise.
            Kernel::Portable => unsafe { portable::copy_in(dst, data) },
        }
        resume(state, data)
    }
}

fn resume(state: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(state);
    hasher.update(bytes);
    hasher.finalize()
}
