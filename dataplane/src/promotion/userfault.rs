//! A userfaultfd(2) descriptor: threads that store to a protected page wait until they are woken.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Numbers of `linux/userfaultfd.h`.
const IOC_NEW: libc::c_ulong = 0xAA00;
const API: libc::c_ulong = 0xC018_AA3F;
const REGISTER: libc::c_ulong = 0xC020_AA00;
const UNREGISTER: libc::c_ulong = 0x8010_AA01;
const WAKE: libc::c_ulong = 0x8010_AA02;
const WRITEPROTECT: libc::c_ulong = 0xC018_AA06;
const API_VERSION: u64 = 0xAA;
/// Stores to protected pages are faults, in memory files, too (Linux 5.19).
const FEATURES: u64 = 1 << 0 | 1 << 12;
const REGISTER_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;

const FLAGS: libc::c_int = libc::O_CLOEXEC | libc::O_NONBLOCK;

/// Where the kernel gives such descriptors to whoever may open it (Linux 6.1).
pub const DEVICE: &str = "/dev/userfaultfd";

/// A descriptor for the memory of this process. Nobody reads it: who protects pages also wakes who
/// waits for them.
#[derive(Debug)]
pub(super) struct Userfault(OwnedFd);

impl Userfault {
    /// One by the rights of this process: CAP_SYS_PTRACE, `vm.unprivileged_userfaultfd`, or those
    /// of [`DEVICE`].
    ///
    /// # Errors
    /// It has none of them, or the kernel is older than 5.19.
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: a system call that makes a descriptor.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, FLAGS) };
        if made >= 0 {
            return Self::begin(made as libc::c_int);
        }
        let refused = io::Error::last_os_error();
        match open_device() {
            Ok(device) => Self::by(device.as_fd()),
            Err(_) => Err(refused),
        }
    }

    /// One by an open [`DEVICE`], whoever opened it.
    ///
    /// # Errors
    /// It is not that device, or the kernel is older than 5.19.
    pub(super) fn by(device: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: a call that makes a descriptor, or is unknown to the file.
        let made = unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW, FLAGS) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        Self::begin(made)
    }

    fn begin(made: libc::c_int) -> io::Result<Self> {
        // SAFETY: it was made just now, and nobody else has it.
        let userfault = Self(unsafe { OwnedFd::from_raw_fd(made) });
        userfault.call(API, [API_VERSION, FEATURES, 0, 0])?;
        Ok(userfault)
    }

    /// Stores to the `len` bytes at `at`, which are whole pages, can be held up from here on.
    ///
    /// # Errors
    /// The pages are of a kind that has no such faults, or another descriptor watches them.
    pub(super) fn watch(&self, at: *mut u8, len: usize) -> io::Result<()> {
        self.call(REGISTER, [at as u64, len as u64, REGISTER_MODE_WP, 0])
    }

    /// They cannot any more, and who waits goes on.
    pub(super) fn unwatch(&self, at: *mut u8, len: usize) -> io::Result<()> {
        self.call(UNREGISTER, [at as u64, len as u64, 0, 0])
    }

    /// Who stores to these pages waits.
    pub(super) fn protect(&self, at: *mut u8, len: usize) -> io::Result<()> {
        self.call(
            WRITEPROTECT,
            [at as u64, len as u64, WRITEPROTECT_MODE_WP, 0],
        )
    }

    /// They may be written again, and who waits goes on.
    pub(super) fn unprotect(&self, at: *mut u8, len: usize) -> io::Result<()> {
        self.call(WRITEPROTECT, [at as u64, len as u64, 0, 0])
    }

    /// Who waits looks again at what is there now.
    pub(super) fn wake(&self, at: *mut u8, len: usize) -> io::Result<()> {
        self.call(WAKE, [at as u64, len as u64, 0, 0])
    }

    /// A call with its words, of which each takes as many as it needs.
    fn call(&self, number: libc::c_ulong, mut words: [u64; 4]) -> io::Result<()> {
        // SAFETY: no call reads or writes more than four words, and none changes what memory
        // contains.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), number, words.as_mut_ptr()) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// Opens [`DEVICE`]: whoever is given that makes a userfaultfd of its own by it.
///
/// # Errors
/// The kernel has none, or this process may not.
pub fn open_device() -> io::Result<OwnedFd> {
    let opened = std::fs::File::options().read(true).write(true).open(DEVICE);
    Ok(opened?.into())
}
