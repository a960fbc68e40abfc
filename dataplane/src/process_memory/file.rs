//! A file of proc through which a process's memory is read and written.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};
use trunkline_conn::mem::{AtomicOp, Order, Unreachable};

/// `/proc/PID/mem` of a process, open for reading and writing. Whoever calls waits for as long as a
/// page of the process blocks.
#[derive(Debug)]
pub(super) struct MemoryFile {
    file: File,
    /// Held while an atomic reads and writes.
    atomics: Mutex<()>,
}

impl MemoryFile {
    /// # Errors
    /// It is no file of proc, or cannot be asked what it is.
    pub(super) fn new(memory: OwnedFd) -> io::Result<Self> {
        let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
        // SAFETY: an open descriptor, and room for what is said of its file system.
        if unsafe { libc::fstatfs(memory.as_raw_fd(), found.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fstatfs succeeded, so it has filled all of it.
        let found = unsafe { found.assume_init() };
        if found.f_type != libc::PROC_SUPER_MAGIC {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "the descriptor is not one of /proc/self/mem",
            ));
        }
        Ok(Self {
            file: memory.into(),
            atomics: Mutex::new(()),
        })
    }

    /// Reads the bytes at `addr`.
    pub(super) fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Unreachable> {
        let read = self.file.read_exact_at(out, addr);
        read.map_err(|_| Unreachable)
    }

    /// Writes the bytes at `addr`. The kernel may copy a range in any order: a byte that is to be
    /// last goes by itself.
    pub(super) fn write(&self, addr: u64, data: &[u8], order: Order) -> Result<(), Unreachable> {
        match (order, data.split_last()) {
            (Order::LastByteLast, Some((last, before))) => {
                self.store(addr, before)?;
                self.store(addr + before.len() as u64, &[*last])
            }
            _ => self.store(addr, data),
        }
    }

    /// Nothing else that goes through the same file as an atomic comes between; what the process
    /// itself does to these bytes may. Gives the value before.
    pub(super) fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, Unreachable> {
        let _alone = self.atomics.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = [0; 8];
        self.read(addr, &mut bytes)?;
        let before = u64::from_ne_bytes(bytes);
        let after = op.after(before);
        if after != before {
            self.store(addr, &after.to_ne_bytes())?;
        }
        Ok(before)
    }

    fn store(&self, addr: u64, data: &[u8]) -> Result<(), Unreachable> {
        let written = self.file.write_all_at(data, addr);
        written.map_err(|_| Unreachable)
    }
}
