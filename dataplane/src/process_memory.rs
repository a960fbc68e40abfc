//! Memory of another process, which it may unmap at any time.
//!
//! A program hands out a descriptor of its `/proc/self/mem` (proc_pid_mem(5)); whoever holds it
//! reads and writes the program's memory by pread(2) and pwrite(2), across users, for as long as
//! the program runs the same image. A page that is not there is an error, never a signal.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use trunkline_conn::mem::{AtomicOp, RegionMemory, Unreachable};
use trunkline_wire::Crc;

use crate::copy::Copier;

/// All memory of a process. Clones are the same.
#[derive(Clone, Debug)]
pub struct ProcessMemory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    memory: File,
    /// Held while an atomic reads and writes.
    atomics: Mutex<()>,
}

impl ProcessMemory {
    /// That of the process whose `/proc/self/mem` this is, open for reading and writing.
    ///
    /// # Errors
    /// It is no file of proc, or cannot be asked what it is. Which file of proc it is does not
    /// show: reads and writes of others fail, or give what whoever opened it may read anyway.
    pub fn new(memory: OwnedFd) -> io::Result<Self> {
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
        let inner = Inner {
            memory: memory.into(),
            atomics: Mutex::new(()),
        };
        Ok(Self(Arc::new(inner)))
    }

    /// The `len` bytes at `addr`, whether they are there or not.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`]: the range wraps.
    pub fn region(&self, addr: u64, len: usize) -> io::Result<ProcessRegion> {
        let fits = addr.checked_add(len as u64).is_some();
        fits.then(|| ProcessRegion {
            of: self.clone(),
            addr,
            len,
        })
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the range wraps"))
    }

    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Unreachable> {
        let read = self.0.memory.read_exact_at(out, addr);
        read.map_err(|_| Unreachable)
    }

    fn write(&self, addr: u64, data: &[u8]) -> Result<(), Unreachable> {
        let written = self.0.memory.write_all_at(data, addr);
        written.map_err(|_| Unreachable)
    }
}

/// A range of another process's memory.
#[derive(Clone, Debug)]
pub struct ProcessRegion {
    of: ProcessMemory,
    addr: u64,
    len: usize,
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
        self.of.read(self.at(offset, out.len()), out)?;
        if let Some(crc) = crc {
            Self::sum(out, crc);
        }
        Ok(())
    }

    /// The kernel may copy a range in any order: the last byte, which programs poll, goes by
    /// itself.
    fn copy_in(
        &self,
        offset: usize,
        data: &[u8],
        crc: Option<&mut Crc>,
    ) -> Result<(), Unreachable> {
        let addr = self.at(offset, data.len());
        if let Some((last, before)) = data.split_last() {
            self.of.write(addr, before)?;
            self.of.write(addr + before.len() as u64, &[*last])?;
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
        let atomics = self.of.0.atomics.lock();
        let _alone = atomics.unwrap_or_else(PoisonError::into_inner);
        let mut bytes = [0; 8];
        self.of.read(addr, &mut bytes)?;
        let before = u64::from_ne_bytes(bytes);
        let after = op.after(before);
        if after != before {
            self.of.write(addr, &after.to_ne_bytes())?;
        }
        Ok(before)
    }

    #[inline]
    fn sum(bytes: &[u8], crc: &mut Crc) {
        *crc = Crc::resume(Copier::detect().sum(bytes, crc.value()));
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use crate::mapping::Mapping;
    use std::fs::OpenOptions;
    use std::process::{Child, Command, Stdio};

    const PAGE: usize = 4096;

    fn memory_of(process: &str) -> ProcessMemory {
        let path = format!("/proc/{process}/mem");
        let file = OpenOptions::new().read(true).write(true).open(path);
        ProcessMemory::new(file.unwrap().into()).unwrap()
    }

    fn own(at: &Mapping, len: usize) -> ProcessRegion {
        let addr = at.base().as_ptr().addr() as u64;
        memory_of("self").region(addr, len).unwrap()
    }

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 256) as u8).collect()
    }

    /// A process that does nothing, until it is killed.
    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Self {
            let mut command = Command::new("cat");
            let command = command.stdin(Stdio::piped()).stdout(Stdio::null());
            Self(command.spawn().unwrap())
        }

        /// The page in which its stack begins.
        fn stack(&self) -> ProcessRegion {
            let process = self.0.id().to_string();
            let find = || {
                let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
                let line = maps.lines().find(|line| line.ends_with("[stack]"))?;
                let end = line.split(['-', ' ']).nth(1)?;
                u64::from_str_radix(end, 16).ok()
            };
            let end = find().unwrap();
            let all = memory_of(&process);
            all.region(end - PAGE as u64, PAGE).unwrap()
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn what_was_copied_in_comes_out_with_the_right_sum() {
        let mapping = Mapping::new(4 * PAGE).unwrap();
        let region = own(&mapping, 4 * PAGE);
        for (offset, length) in [
            (0, 0),
            (0, 1),
            (3, 5),
            (17, 777),
            (0, 4 * PAGE),
            (100, 9000),
        ] {
            let data = pattern(length);
            let mut expected = Crc::resume(0x1234_5678);
            expected.update(&data);
            let (mut sum_in, mut sum_out) = (Crc::resume(0x1234_5678), Crc::resume(0x1234_5678));
            region.copy_in(offset, &data, Some(&mut sum_in)).unwrap();
            let mut out = vec![0; length];
            region
                .copy_out(offset, &mut out, Some(&mut sum_out))
                .unwrap();
            assert_eq!(out, data, "{length} bytes at {offset}");
            assert_eq!((sum_in, sum_out), (expected, expected));
        }
    }

    #[test]
    fn another_process_is_reached_until_it_ends() {
        let sleeper = Sleeper::start();
        let stack = sleeper.stack();
        let (mut before, mut after) = ([0; 64], [0; 64]);
        stack.copy_out(PAGE - 64, &mut before, None).unwrap();
        let data = pattern(64);
        stack.copy_in(PAGE - 64, &data, None).unwrap();
        stack.copy_out(PAGE - 64, &mut after, None).unwrap();
        assert_eq!(after[..], data[..]);
        assert_ne!(before, after);
        drop(sleeper);
        assert_eq!(stack.copy_out(0, &mut after, None), Err(Unreachable));
        assert_eq!(stack.copy_in(0, &data, None), Err(Unreachable));
        let add = AtomicOp::FetchAdd { add: 1 };
        assert_eq!(stack.atomic(0, add), Err(Unreachable));
    }

    #[test]
    fn a_hole_is_an_error_and_what_comes_before_it_is_written() {
        let mapping = Mapping::new(3 * PAGE).unwrap();
        let region = own(&mapping, 3 * PAGE);
        let middle = mapping.base().as_ptr().wrapping_add(PAGE);
        // SAFETY: the middle page of the mapping, which nothing refers to.
        let unmapped = unsafe { libc::munmap(middle.cast(), PAGE) };
        assert_eq!(unmapped, 0);
        let data = vec![7; 2 * PAGE];
        assert_eq!(region.copy_in(10, &data, None), Err(Unreachable));
        let mut out = vec![0; PAGE - 10];
        assert_eq!(region.copy_out(10, &mut out, None), Ok(()));
        assert!(out.iter().all(|byte| *byte == 7));
        assert_eq!(
            region.copy_out(PAGE - 1, &mut [0; 2], None),
            Err(Unreachable)
        );
        assert_eq!(region.copy_out(PAGE, &mut [0; 1], None), Err(Unreachable));
        assert_eq!(region.copy_in(2 * PAGE, &[1], None), Ok(()));
        let swap = AtomicOp::CompareSwap {
            compare: 0,
            swap: 1,
        };
        assert_eq!(region.atomic(PAGE, swap), Err(Unreachable));
    }

    #[test]
    fn atomics_of_one_process_do_not_lose_one_another() {
        const EACH: u64 = 2000;
        let mapping = Mapping::new(PAGE).unwrap();
        let region = own(&mapping, PAGE);
        let other = region.of.region(region.addr + 8, 8).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        region.atomic(8, AtomicOp::FetchAdd { add: 1 }).unwrap();
                    }
                });
            }
        });
        let miss = AtomicOp::CompareSwap {
            compare: 1,
            swap: 5,
        };
        let hit = AtomicOp::CompareSwap {
            compare: 4 * EACH,
            swap: 5,
        };
        assert_eq!(other.atomic(0, miss), Ok(4 * EACH));
        assert_eq!(other.atomic(0, hit), Ok(4 * EACH));
        assert_eq!(other.atomic(0, miss), Ok(5));
    }

    #[test]
    fn only_files_of_proc_and_ranges_that_do_not_wrap_are_taken() {
        let other = File::open("/dev/zero").unwrap();
        let refused = ProcessMemory::new(other.into()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        let all = memory_of("self");
        let refused = all.region(u64::MAX - 7, 9).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        let top = all.region(u64::MAX - 8, 8).unwrap();
        assert_eq!(top.copy_out(0, &mut [0; 8], None), Err(Unreachable));
        // One that is open for something else.
        let status = File::open("/proc/self/status").unwrap();
        let region = ProcessMemory::new(status.into()).unwrap();
        let region = region.region(0, 8).unwrap();
        assert_eq!(region.copy_in(0, &[0; 8], None), Err(Unreachable));
    }

    #[test]
    #[should_panic(expected = "2 bytes at 15 of a region of 16")]
    fn a_range_that_reaches_past_the_end_is_outside() {
        let region = memory_of("self").region(0, 16).unwrap();
        let _ = region.copy_out(15, &mut [0; 2], None);
    }
}
