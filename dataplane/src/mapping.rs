//! Memory straight from the system.

use std::io;
use std::ptr::NonNull;

/// From this size on huge pages are asked for: fewer translations, and bytes that lie side by side
/// in caches too.
const HUGE_FROM: usize = 2 << 20;

/// An anonymous mapping: zeroed, starting at a page; pages are taken when first touched.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address range that is only ever unmapped, once.
unsafe impl Send for Mapping {}
// SAFETY: as above; by a shared reference it only tells where it is.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `bytes` bytes, at least one.
    ///
    /// # Errors
    /// When the system has no such room.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if bytes >= HUGE_FROM && !cfg!(miri) {
            // SAFETY: advice on the mapping just made; refusal does no harm.
            unsafe { libc::madvise(base, bytes, libc::MADV_HUGEPAGE) };
        }
        let base = NonNull::new(base.cast()).expect("mmap does not map page 0 unasked");
        Ok(Self { base, bytes })
    }

    /// Its first byte.
    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; whoever owned the mapping is gone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
