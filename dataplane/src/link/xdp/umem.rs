//! The memory that kernel and device share (UMEM in Documentation/networking/af_xdp.rst).
//!
//! It is cut into chunks of one page, the most that the kernel takes in aligned mode. A chunk is
//! the kernel's from when its number is in the fill ring or the TX ring until it comes back in the
//! RX ring or the completion ring, else ours.

use crate::mapping::Mapping;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes of a chunk.
pub(super) const CHUNK: usize = 4096;
/// What the kernel leaves free at the beginning of a chunk that it receives into
/// (XDP_PACKET_HEADROOM).
pub(super) const HEADROOM: usize = 256;

/// All chunks, side by side.
#[derive(Debug)]
pub(super) struct Umem {
    memory: Mapping,
    bytes: usize,
}

impl Umem {
    /// So many chunks, at least one.
    pub(super) fn new(chunks: usize) -> io::Result<Self> {
        let bytes = chunks * CHUNK;
        let memory = Mapping::new(bytes)?;
        Ok(Self { memory, bytes })
    }

    /// Their bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Tells a socket of it; the kernel keeps its pages in place from now on.
    pub(super) fn register(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let area = libc::xdp_umem_reg {
            addr: self.memory.base().as_ptr() as u64,
            len: self.bytes as u64,
            chunk_size: CHUNK as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        super::socket::set(socket.as_raw_fd(), libc::XDP_UMEM_REG, &area)
    }

    /// `length` bytes from `at` on.
    ///
    /// # Panics
    /// When they are not all inside.
    ///
    /// # Safety
    /// They are ours, and nobody writes them as long as what is given lives.
    pub(super) unsafe fn get(&self, at: usize, length: usize) -> &[u8] {
        let start = self.pointer(at, length);
        // SAFETY: inside the mapping, which was zeroed at first; nobody writes there, as the caller
        // says.
        unsafe { std::slice::from_raw_parts(start, length) }
    }

    /// `length` bytes from `at` on.
    ///
    /// # Panics
    /// When they are not all inside.
    ///
    /// # Safety
    /// They are ours.
    pub(super) unsafe fn get_mut(&mut self, at: usize, length: usize) -> &mut [u8] {
        let start = self.pointer(at, length);
        // SAFETY: inside the mapping, which was zeroed at first; the kernel leaves them alone, as
        // the caller says, and all others go through this borrow.
        unsafe { std::slice::from_raw_parts_mut(start, length) }
    }

    /// Copies `length` bytes that lie at `from` to `to`.
    ///
    /// # Panics
    /// When they are not all inside.
    ///
    /// # Safety
    /// Both are ours, and they do not overlap.
    pub(super) unsafe fn copy(&mut self, from: usize, to: usize, length: usize) {
        let (from, to) = (self.pointer(from, length), self.pointer(to, length));
        // SAFETY: both are inside the mapping; the rest is as the caller says.
        unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
    }

    fn pointer(&self, at: usize, length: usize) -> *mut u8 {
        assert!(at <= self.bytes && length <= self.bytes - at);
        self.memory.base().as_ptr().wrapping_add(at)
    }
}
