//! Segments: memory files that the service makes, seals and maps, and that a client maps too.
//!
//! A file that one side can shrink is a danger to the other: a load or store past its end raises
//! SIGBUS. So the service alone makes the files, and seals each against shrinking, growing and
//! further seals (memfd_create(2), `F_ADD_SEALS` in fcntl(2)) before anybody else sees it. A client
//! checks the seals and the length before it maps the file.
#![allow(unsafe_code, reason = "maps memory")]

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Most bytes of a segment: what the largest ring takes, and room for eight of them.
pub const MAX_SEGMENT: u64 = 1 << 30;

/// The seals of every segment.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Why a segment was not made or not mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The length is no number of whole pages between one page and [`MAX_SEGMENT`].
    #[error("a segment cannot have {bytes} bytes")]
    BadLength {
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// The descriptor is no memory file, or its file can still shrink, grow or get other seals.
    #[error("the descriptor is not one of a sealed memory file")]
    NotSealed,
    /// The file has another length than was said.
    #[error("the memory file has {found} bytes, and {said} were said")]
    OtherLength {
        /// Bytes that the other side said.
        said: u64,
        /// Bytes that the file has.
        found: u64,
    },
    /// Memory that is promised may not come (`vm.overcommit_memory`, proc(5)).
    #[error(
        "vm.overcommit_memory is 2: a client could have a page of a segment taken away that does \
         not come back, and an access to it would end the service (SIGBUS). Set it to 0 or 1"
    )]
    StrictOvercommit,
    /// A system call failed.
    #[error("{call}: {error}")]
    System {
        /// Name of the call.
        call: &'static str,
        /// What it said.
        error: io::Error,
    },
}

fn failed(call: &'static str) -> impl FnOnce(Errno) -> SegmentError {
    move |error| SegmentError::System {
        call,
        error: error.into(),
    }
}

/// Where the kernel tells whether it promises more memory than there is.
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";

/// Whether this system can be trusted with segments: a service asks before it makes the first.
///
/// A client can punch pages out of a segment that it has mapped. They come back zero at the next
/// access, but for a system that counts each page against a limit (`vm.overcommit_memory=2`): there
/// the access raises SIGBUS once the limit is reached.
///
/// # Errors
/// It is such a system, or does not tell (proc(5) is not mounted).
pub fn check_overcommit() -> Result<(), SegmentError> {
    let setting = std::fs::read_to_string(OVERCOMMIT).map_err(|error| SegmentError::System {
        call: OVERCOMMIT,
        error,
    })?;
    judge_overcommit(&setting)
}

fn judge_overcommit(setting: &str) -> Result<(), SegmentError> {
    match setting.trim() {
        "2" => Err(SegmentError::StrictOvercommit),
        _ => Ok(()),
    }
}

/// Bytes of a page.
pub(crate) fn page() -> u64 {
    rustix::param::page_size() as u64
}

/// Whether a segment may have so many bytes.
fn check_length(bytes: u64) -> Result<usize, SegmentError> {
    let fits = bytes > 0 && bytes <= MAX_SEGMENT && bytes.is_multiple_of(page());
    let length = usize::try_from(bytes).ok().filter(|_| fits);
    length.ok_or(SegmentError::BadLength { bytes })
}

/// A segment on the side of the service: the file and its mapping.
#[derive(Debug)]
pub struct Segment {
    file: OwnedFd,
    mapping: Mapping,
}

impl Segment {
    /// Makes a memory file of `bytes` bytes that are zero, seals it and maps it.
    ///
    /// # Errors
    /// `bytes` is no number of whole pages up to [`MAX_SEGMENT`], or the system refuses the file or
    /// the mapping.
    pub fn create(bytes: u64) -> Result<Self, SegmentError> {
        let length = check_length(bytes)?;
        let file = memory_file()?;
        rustix::fs::ftruncate(&file, bytes).map_err(failed("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(failed("fcntl(F_ADD_SEALS)"))?;
        let mapping = Mapping::new(file.as_fd(), length)?;
        Ok(Self { file, mapping })
    }

    /// The descriptor that is passed to the client.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The mapping of the service.
    pub const fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The file and its mapping, which live on independently.
    pub(crate) fn into_parts(self) -> (OwnedFd, Mapping) {
        (self.file, self.mapping)
    }
}

/// An empty memory file that can be sealed, closed on exec, and that nobody can execute where the
/// kernel (6.3 or later) knows how to forbid it.
fn memory_file() -> Result<OwnedFd, SegmentError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = match rustix::fs::memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(NAME, flags),
        made => made,
    };
    made.map_err(failed("memfd_create"))
}

/// What `/proc/PID/maps` shows behind `/memfd:`.
const NAME: &str = "trunkline-segment";

/// A shared mapping of a whole segment, readable and writable.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: an address range that only `drop` unmaps; what lies in it is reached as atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file that came from the other side, on the side of the client. The descriptor may be
    /// closed afterwards.
    ///
    /// # Errors
    /// The descriptor is no memory file that is sealed against shrinking, growing and further
    /// seals; the file has other than `bytes` bytes; `bytes` is no length of a segment; or the
    /// system refuses.
    pub fn of_sealed(file: BorrowedFd<'_>, bytes: u64) -> Result<Self, SegmentError> {
        let length = check_length(bytes)?;
        // What is no memory file has no seals to tell, and the call fails.
        let seals = rustix::fs::fcntl_get_seals(file);
        if !seals.is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(SegmentError::NotSealed);
        }
        let status = rustix::fs::fstat(file).map_err(failed("fstat"))?;
        let found = u64::try_from(status.st_size).unwrap_or(0);
        if found != bytes {
            return Err(SegmentError::OtherLength { said: bytes, found });
        }
        Self::new(file, length)
    }

    /// Maps the first `bytes` bytes of a file that has at least as many for as long as it exists.
    fn new(file: BorrowedFd<'_>, bytes: usize) -> Result<Self, SegmentError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let base =
            unsafe { rustix::mm::mmap(anywhere, bytes, protection, MapFlags::SHARED, file, 0) };
        let base = base.map_err(failed("mmap"))?;
        let base = NonNull::new(base.cast()).expect("mmap does not map page 0 unasked");
        Ok(Self { base, bytes })
    }

    /// Bytes of the mapping.
    pub const fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Has the system take pages back: they are zero when they are used again. All who have the
    /// segment mapped have the same pages.
    ///
    /// # Errors
    /// The range is not inside, is not whole pages, or the system refuses.
    pub fn discard(&self, bytes: Range<usize>) -> io::Result<()> {
        let inside = bytes.start <= bytes.end && bytes.end <= self.bytes;
        if !inside {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let at = self.base.as_ptr().wrapping_byte_add(bytes.start);
        let (at, advice) = (at.cast(), rustix::mm::Advice::LinuxRemove);
        // SAFETY: inside the mapping, whose words may become zero at any time as they may become
        // anything else.
        let advised = unsafe { rustix::mm::madvise(at, bytes.len(), advice) };
        Ok(advised?)
    }

    /// All words of the segment. The other side may change them at any time.
    pub const fn words(&self) -> &[AtomicU64] {
        let count = self.bytes / size_of::<AtomicU64>();
        // SAFETY: the mapping has so many bytes, starts at a page and lives as long as `self`; the
        // file cannot shrink, so all of them are there. Any bytes are a valid AtomicU64, and the
        // other process, too, reaches them as atomics or harms only itself.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; whoever borrowed the mapping is gone.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests;
