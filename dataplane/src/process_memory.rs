//! Memory of another process, which it may unmap at any time.
//!
//! A program hands out a descriptor of its `/proc/self/mem` (proc_pid_mem(5)); whoever holds it
//! reads and writes the program's memory by pread(2) and pwrite(2), across users, for as long as
//! the program runs the same image. A page that is not there is an error, never a signal. One that
//! does not come (of a file on FUSE, or on a network) blocks whoever reaches for it: the caller, or
//! a thread that is waited for as long as [`Patience`] lasts.

mod copy_thread;
mod file;
mod patience;

pub use patience::Patience;

use crate::copy::Copier;
use copy_thread::{CopyThread, Terms};
use file::MemoryFile;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use trunkline_conn::mem::{AtomicOp, Order, RegionMemory, Unreachable};
use trunkline_wire::Crc;

/// All memory of a process. Clones are the same.
#[derive(Clone, Debug)]
pub struct ProcessMemory {
    file: Arc<MemoryFile>,
    /// The thread that reaches it, unless callers do by themselves.
    apart: Option<Arc<Apart>>,
}

/// A thread of the memory's own.
#[derive(Debug)]
struct Apart {
    terms: Arc<Terms>,
    started: Mutex<Option<Started>>,
}

/// The thread, which there is from the first region on.
#[derive(Debug)]
struct Started {
    thread: Arc<CopyThread>,
    handle: JoinHandle<()>,
}

impl ProcessMemory {
    /// That of the process whose `/proc/self/mem` this is, open for reading and writing. Whoever
    /// reaches for it waits as long as a page blocks.
    ///
    /// # Errors
    /// It is no file of proc, or cannot be asked what it is. Which file of proc it is does not
    /// show: reads and writes of others fail, or give what whoever opened it may read anyway.
    pub fn new(memory: OwnedFd) -> io::Result<Self> {
        let file = Arc::new(MemoryFile::new(memory)?);
        Ok(Self { file, apart: None })
    }

    /// The same, reached by a thread of its own. Whoever waits for that does so as long as
    /// `patience` lasts. Then nothing is reachable any more, and `on_slow` is called, once, by
    /// whoever waited.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_patience(
        memory: OwnedFd,
        patience: Arc<Patience>,
        on_slow: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let on_slow = Box::new(on_slow);
        let apart = Apart {
            terms: Arc::new(Terms { patience, on_slow }),
            started: Mutex::new(None),
        };
        Ok(Self {
            apart: Some(Arc::new(apart)),
            ..Self::new(memory)?
        })
    }

    /// The `len` bytes at `addr`, whether they are there or not.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`]: the range wraps. The system has no thread left.
    pub fn region(&self, addr: u64, len: usize) -> io::Result<ProcessRegion> {
        if addr.checked_add(len as u64).is_none() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "the range wraps"));
        }
        let by = match &self.apart {
            None => By::Caller(Arc::clone(&self.file)),
            Some(apart) => By::Thread(apart.thread(&self.file)?),
        };
        Ok(ProcessRegion { by, addr, len })
    }

    /// The thread that reaches this memory, if there is one. It ends when all regions are gone, or
    /// once the kernel lets it go; that may take as long as the process likes.
    pub fn into_thread(self) -> Option<JoinHandle<()>> {
        let started = self.apart?.started().take()?;
        Some(started.handle)
    }
}

impl Apart {
    fn started(&self) -> MutexGuard<'_, Option<Started>> {
        // It is replaced as a whole.
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread, which is started if there is none.
    fn thread(&self, file: &Arc<MemoryFile>) -> io::Result<Arc<CopyThread>> {
        let mut started = self.started();
        if let Some(started) = &*started {
            return Ok(Arc::clone(&started.thread));
        }
        let (thread, handle) = CopyThread::start(Arc::clone(file), Arc::clone(&self.terms))?;
        let thread = Arc::new(thread);
        *started = Some(Started {
            thread: Arc::clone(&thread),
            handle,
        });
        Ok(thread)
    }
}

/// A range of another process's memory.
#[derive(Clone, Debug)]
pub struct ProcessRegion {
    by: By,
    addr: u64,
    len: usize,
}

/// Who reads and writes.
#[derive(Clone, Debug)]
enum By {
    Caller(Arc<MemoryFile>),
    Thread(Arc<CopyThread>),
}

impl ProcessRegion {
    /// Address of `length` bytes at `offset`.
    fn at(&self, offset: usize, length: usize) -> u64 {
        let inside = offset <= self.len && length <= self.len - offset;
        assert!(
            inside,
            "{length} bytes at {offset} of a region of {}",
            self.len
        );
        self.addr + offset as u64
    }
}

impl RegionMemory for ProcessRegion {
    fn addr(&self) -> u64 {
        self.addr
    }

    fn len(&self) -> usize {
        self.len
    }

    fn copy_out(
        &self,
        offset: usize,
        out: &mut [u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        let addr = self.at(offset, out.len());
        match &self.by {
            By::Caller(file) => file.read(addr, out)?,
            By::Thread(thread) => thread.read(addr, out)?,
        }
        if let Some(crc) = crc {
            Self::sum(out, crc);
        }
        Ok(())
    }

    fn copy_in(
        &self,
        offset: usize,
        data: &[u8],
        order: Order,
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        let addr = self.at(offset, data.len());
        match &self.by {
            By::Caller(file) => file.write(addr, data, order)?,
            By::Thread(thread) => thread.write(addr, data, order)?,
        }
        if let Some(crc) = crc {
            Self::sum(data, crc);
        }
        Ok(())
    }

    /// Nothing else that goes through the same [`ProcessMemory`] as an atomic comes between; what
    /// the process itself does to these bytes may.
    fn atomic(&self, offset: usize, op: AtomicOp) -> Result<u64, Unreachable> {
        let addr = self.at(offset, 8);
        assert!(addr.is_multiple_of(8), "atomic at {addr:#x}");
        match &self.by {
            By::Caller(file) => file.atomic(addr, op),
            By::Thread(thread) => thread.atomic(addr, op),
        }
    }

    #[inline]
    fn sum(bytes: &[u8], crc: &mut Crc) {
        *crc = Crc::resume(Copier::detect().sum(bytes, crc.value()));
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
