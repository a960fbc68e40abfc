//! Putting other pages in the place of those that a program uses, so that no store is lost.
//!
//! Some pages at a time: stores to them are held up, their bytes are copied into the new pages,
//! these are moved into their place, and who waits stores there. While pages are held up nothing is
//! allocated, no lock is taken and no signal is handled: a thread that waits may hold any lock of
//! the program's.

use super::userfault::Userfault;
use crate::process::with_signals_blocked;
use std::io;
use std::ptr::null_mut;

/// Bytes that are held up at once, for about a millisecond.
const CHUNK: usize = 2 << 20;

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Pages that nobody uses yet, unmapped unless they are moved.
struct Room {
    at: *mut u8,
    len: usize,
}

impl Room {
    /// The `len` bytes of shared memory at `place` once more.
    fn shared(place: *mut u8, len: usize) -> io::Result<Self> {
        // SAFETY: with an old length of 0 a second mapping of shared pages is made, at an address
        // of the system's choice. Of pages that are not shared there is none.
        let at = unsafe { mremap(place, 0, len, libc::MREMAP_MAYMOVE, null_mut()) };
        Self::made(at, len)
    }

    /// New private pages.
    fn private(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let at = unsafe { libc::mmap(null_mut(), len, READ_WRITE, flags, -1, 0) };
        Self::made(at, len)
    }

    fn made(at: *mut libc::c_void, len: usize) -> io::Result<Self> {
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = at.cast();
        Ok(Self { at, len })
    }

    /// Moves the first `len` bytes to `to`, in place of what is there.
    fn move_front(&mut self, len: usize, to: *mut u8) -> io::Result<()> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the pages are our own; those in their place are the program's, which it lent for
        // this, and hold the same bytes.
        let moved = unsafe { mremap(self.at, len, len, flags, to) };
        if moved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.at = self.at.wrapping_add(len);
        self.len -= len;
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: mapped when it was made, and not moved since.
            unsafe { libc::munmap(self.at.cast(), self.len) };
        }
    }
}

/// `mremap(2)`, and not by the C library: programs put functions of their own in the place of its
/// one. That of UCX (1.13) has no argument for the new address, and takes a lock, which a thread
/// that waits for these pages may hold.
///
/// # Safety
/// As for `mremap(2)`.
unsafe fn mremap(
    at: *mut u8,
    len: usize,
    new_len: usize,
    flags: libc::c_int,
    to: *mut u8,
) -> *mut libc::c_void {
    // The kernel reads all bits of a word.
    let flags = libc::c_long::from(flags);
    // SAFETY: the caller's promise.
    let moved = unsafe { libc::syscall(libc::SYS_mremap, at, len, new_len, flags, to) };
    std::ptr::with_exposed_provenance_mut(moved as usize)
}

/// Why pages were not shared.
#[derive(Debug)]
pub(super) struct NotShared {
    pub(super) error: io::Error,
    /// All is as it was; otherwise some pages at the place may be mapped in the program for good.
    pub(super) is_undone: bool,
}

/// Puts the shared memory at `place` where `len` private bytes at `at` are. Both are whole pages.
///
/// # Errors
/// The pages cannot be watched, or the system has no memory.
pub(super) fn share(
    userfault: &Userfault,
    at: *mut u8,
    place: *mut u8,
    len: usize,
) -> Result<(), NotShared> {
    let shared = in_chunks(userfault, at, len, |done, next| {
        let (at, place) = (at.wrapping_add(done), place.wrapping_add(done));
        // A page that is not there cannot be protected.
        advise(at, next, libc::MADV_POPULATE_WRITE)?;
        let mut room = Room::shared(place, next)?;
        keep_from_children(room.at, next)?;
        advise(room.at, next, libc::MADV_POPULATE_WRITE)?;
        exchange(userfault, &mut room, at, at, next)
    });
    shared.map_err(|(done, error)| NotShared {
        error,
        is_undone: unshare(userfault, at, place, done, READ_WRITE).is_ok(),
    })
}

/// Puts private memory with the same bytes and the rights `protection` where the `len` shared bytes
/// at `place` are mapped, at `at`.
///
/// # Errors
/// The system has no memory, or does not watch the pages: some may be shared still.
pub(super) fn unshare(
    userfault: &Userfault,
    at: *mut u8,
    place: *mut u8,
    len: usize,
    protection: libc::c_int,
) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    // All of it at once, so that the system makes one area of it again.
    let mut room = Room::private(len)?;
    let private = in_chunks(userfault, at, len, |done, next| {
        advise(room.at, next, libc::MADV_POPULATE_WRITE)?;
        let (at, place) = (at.wrapping_add(done), place.wrapping_add(done));
        exchange(userfault, &mut room, at, place, next)
    });
    private.map_err(|(_, error)| error)?;
    protect(at, len, protection)
}

/// Does `swap` for some bytes after the other, by their offset and their length, while stores to
/// them can be held up.
///
/// # Errors
/// Its own, with the bytes that it was done for.
fn in_chunks(
    userfault: &Userfault,
    at: *mut u8,
    len: usize,
    mut swap: impl FnMut(usize, usize) -> io::Result<()>,
) -> Result<(), (usize, io::Error)> {
    userfault.watch(at, len).map_err(|error| (0, error))?;
    for done in (0..len).step_by(CHUNK) {
        if let Err(error) = swap(done, CHUNK.min(len - done)) {
            let unwatched = userfault.unwatch(at.wrapping_add(done), len - done);
            return Err((done, unwatched.err().unwrap_or(error)));
        }
    }
    Ok(())
}

/// Moves the front of `room` to `at`, where it has the `len` bytes that are at `from` meanwhile.
fn exchange(
    userfault: &Userfault,
    room: &mut Room,
    at: *mut u8,
    from: *const u8,
    len: usize,
) -> io::Result<()> {
    with_signals_blocked(|| {
        userfault.protect(at, len)?;
        // SAFETY: both are mapped and do not overlap; nobody else knows the new pages, and whoever
        // writes the old ones waits.
        unsafe { std::ptr::copy_nonoverlapping(from, room.at, len) };
        match room.move_front(len, at) {
            Ok(()) => userfault.wake(at, len),
            Err(error) => {
                userfault.unprotect(at, len)?;
                Err(error)
            }
        }
    })
}

/// Children that are made by fork(2) do not have these pages, or have them again.
pub(super) fn keep_from_children(at: *mut u8, len: usize) -> io::Result<()> {
    advise(at, len, libc::MADV_DONTFORK)
}

/// See [`keep_from_children`].
pub(super) fn let_children_have(at: *mut u8, len: usize) -> io::Result<()> {
    advise(at, len, libc::MADV_DOFORK)
}

fn advise(at: *mut u8, len: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: none of the advice that is given here changes what memory contains.
    match unsafe { libc::madvise(at.cast(), len, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn protect(at: *mut u8, len: usize, protection: libc::c_int) -> io::Result<()> {
    if protection == READ_WRITE {
        return Ok(());
    }
    // SAFETY: the rights that the program itself gave these pages.
    match unsafe { libc::mprotect(at.cast(), len, protection) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A copy of `len` bytes at `place`, which a child made by fork(2) has in place of what its parent
/// shares.
pub(super) struct Copy {
    room: Room,
}

impl Copy {
    /// # Errors
    /// The system has no memory.
    pub(super) fn of(place: *const u8, len: usize) -> io::Result<Self> {
        let room = Room::private(len)?;
        advise(room.at, len, libc::MADV_POPULATE_WRITE)?;
        // SAFETY: both are mapped and do not overlap; nobody else knows the new pages. Others may
        // write the shared ones meanwhile, as they may any time: then bytes of both are copied.
        unsafe { std::ptr::copy_nonoverlapping(place, room.at, len) };
        Ok(Self { room })
    }

    /// Puts it in place of what is at `at`, with these rights.
    ///
    /// # Errors
    /// The system refuses.
    pub(super) fn put(mut self, at: *mut u8, protection: libc::c_int) -> io::Result<()> {
        let len = self.room.len;
        self.room.move_front(len, at)?;
        protect(at, len, protection)
    }
}
