#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod stores;

use super::*;
use crate::mapping::Mapping;
use crate::maps::{Area, Maps};
use crate::process::page_size;
use std::cell::RefCell;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use trunkline_conn::mem::RegionMemory;

const PAGE: usize = 4096;

/// A memory file that is mapped as a service maps it.
struct File {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range that is unmapped once.
unsafe impl Send for File {}
// SAFETY: as above.
unsafe impl Sync for File {}

impl File {
    fn new(len: usize) -> Self {
        // SAFETY: a system call that makes a descriptor.
        let fd = unsafe { libc::memfd_create(c"promotion-test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: it was made just now, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a call on a descriptor of our own.
        let long = unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) };
        assert_eq!(long, 0);
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the system's choice.
        let base = unsafe { libc::mmap(nowhere, len, rights, flags, fd.as_raw_fd(), 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let base = NonNull::new(base.cast()).unwrap();
        Self { base, len }
    }

    fn words(&self) -> &[AtomicU64] {
        let words = self.base.cast::<AtomicU64>().as_ptr();
        // SAFETY: mapped for as long as `self`, and reached as atomics.
        unsafe { std::slice::from_raw_parts(words, self.len / 8) }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Lends memory, and counts what was not given back.
#[derive(Default)]
struct Files(Arc<AtomicUsize>);

struct Counted(File, Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Files {
    fn lent(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Lender for Files {
    fn lend(&self, len: usize) -> Option<Region> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let file = Counted(File::new(len), Arc::clone(&self.0));
        Some(Region::of_words(Arc::new(file), |file| file.0.words()))
    }

    fn userfault_device(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Holds memory with its pages promoted; `None`: this process may not, which is said.
fn promoted(memory: &Region, files: &Files) -> Option<Held> {
    let held = hold(memory, Some(files));
    if let Some(NotPromoted::NoUserfault(why)) = held.refused() {
        eprintln!("not run: this process gets no userfaultfd: {why}");
        return None;
    }
    assert!(held.refused().is_none(), "{:?}", held.refused());
    Some(held)
}

/// Memory of the program's own.
fn memory(len: usize) -> (Mapping, Region) {
    let mapping = Mapping::new(len).unwrap();
    // SAFETY: it stays mapped for as long as the tests have both.
    let region = unsafe { Region::foreign(mapping.base(), len) };
    (mapping, region)
}

fn part(region: &Region, offset: usize, len: usize) -> Region {
    region.clone().part(offset, len).unwrap()
}

fn is_plain(region: &Region) -> bool {
    let start = region.addr() as usize;
    let maps = Maps::read().unwrap();
    maps.all_within(&(start..start + region.len()), Area::is_plain)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 256) as u8).collect()
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut out = vec![0; region.len()];
    region.copy_out(0, &mut out, None);
    out
}

#[test]
fn whole_pages_of_a_region_are_shared_while_it_is_held_and_keep_their_bytes() {
    let (_mapping, all) = memory(700 * PAGE);
    let data = pattern(all.len());
    all.copy_in(0, &data, None);
    let region = part(&all, 100, 650 * PAGE);
    let files = Files::default();
    let Some(held) = promoted(&region, &files) else {
        return;
    };
    let (offset, place) = held.shared().unwrap();
    assert_eq!((offset, place.len()), (PAGE - 100, 649 * PAGE));
    assert!(bytes(place) == data[PAGE..650 * PAGE] && bytes(&all) == data);
    assert!(is_plain(&part(&all, 0, PAGE)) && is_plain(&part(&all, 650 * PAGE, PAGE)));
    // What one writes the other reads.
    place.copy_in(5, b"service", None);
    all.copy_in(2 * PAGE, b"program", None);
    assert_eq!(bytes(&all)[PAGE + 5..][..7], *b"service");
    assert_eq!(bytes(place)[PAGE..][..7], *b"program");
    drop(held);
    assert_eq!(files.lent(), 0);
    assert!(is_plain(&all));
    let start = all.addr() as usize;
    let areas = Maps::read().unwrap();
    let areas = areas.within(&(start..start + all.len()));
    assert!(areas.len() <= 3, "{areas:?}");
    assert_eq!(bytes(&all)[PAGE + 5..][..7], *b"service");
    assert_eq!(bytes(&all)[2 * PAGE..][..7], *b"program");
    assert!(bytes(&all)[3 * PAGE..] == data[3 * PAGE..]);
}

#[test]
fn regions_share_pages_that_are_promoted_until_the_last_is_gone() {
    let (_mapping, all) = memory(64 * PAGE);
    let files = Files::default();
    let Some(first) = promoted(&part(&all, 0, 32 * PAGE), &files) else {
        return;
    };
    let inside = promoted(&part(&all, 8 * PAGE + 1, 4 * PAGE), &files).unwrap();
    let (offset, place) = inside.shared().unwrap();
    assert_eq!((offset, place.len()), (PAGE - 1, 3 * PAGE));
    place.copy_in(0, b"inside", None);
    assert_eq!(bytes(&part(&all, 9 * PAGE, 6)), b"inside");
    // One that is promoted in part stays as it is, and keeps that part.
    let beyond = hold(&part(&all, 16 * PAGE, 32 * PAGE), Some(&files));
    assert!(matches!(beyond.refused(), Some(NotPromoted::Overlaps)));
    let again = hold(&part(&all, 40 * PAGE, 16 * PAGE), Some(&files));
    assert!(matches!(again.refused(), Some(NotPromoted::Overlaps)));
    assert_eq!(files.lent(), 1);
    drop((first, inside));
    assert!(!is_plain(&part(&all, 0, PAGE)), "another region has it");
    drop(beyond);
    assert!(is_plain(&all));
    assert_eq!(files.lent(), 0);
    drop(again);
    let held = promoted(&all, &files).unwrap();
    assert_eq!(held.shared().unwrap().1.len(), all.len());
}

#[test]
fn what_is_no_private_memory_to_read_and_write_is_never_promoted() {
    let files = Files::default();
    let (mapping, all) = memory(16 * PAGE);
    if promoted(&all, &files).is_none() {
        return;
    }
    let refused = |region: &Region| {
        let held = hold(region, Some(&files));
        matches!(held.refused(), Some(NotPromoted::NotPlain))
    };
    let read_only = mapping.base().as_ptr().wrapping_add(4 * PAGE);
    // SAFETY: pages of the test, which only reads there.
    let read = unsafe { libc::mprotect(read_only.cast(), PAGE, libc::PROT_READ) };
    assert_eq!(read, 0);
    assert!(refused(&all) && refused(&part(&all, 4 * PAGE, PAGE)));
    let file = Files::default().lend(4 * PAGE).unwrap();
    assert!(refused(&file));
    let mut stack = [0_u8; 4 * PAGE];
    // SAFETY: it is there until the end of the test.
    let stack = unsafe { Region::foreign(NonNull::from(&mut stack).cast(), 4 * PAGE) };
    assert!(refused(&stack));
    let small = hold(&part(&all, 1, 2 * PAGE - 2), Some(&files));
    assert!(matches!(small.refused(), Some(NotPromoted::NoPage)));
    assert!(hold(&all, None).shared().is_none());
    assert_eq!(files.lent(), 0);
}

#[test]
fn a_program_that_takes_promoted_pages_away_harms_nobody_else() {
    let (mapping, all) = memory(32 * PAGE);
    let base = mapping.base().as_ptr();
    let files = Files::default();
    all.copy_in(0, &pattern(32 * PAGE), None);
    let Some(held) = promoted(&all, &files) else {
        return;
    };
    // SAFETY: pages of the test, which it does not use afterwards.
    let unmapped = unsafe { libc::munmap(base.wrapping_add(4 * PAGE).cast(), 4 * PAGE) };
    assert_eq!(unmapped, 0);
    // SAFETY: as above: it only reads there.
    let read =
        unsafe { libc::mprotect(base.wrapping_add(16 * PAGE).cast(), PAGE, libc::PROT_READ) };
    assert_eq!(read, 0);
    let (_, place) = held.shared().unwrap();
    assert!(bytes(place) == pattern(32 * PAGE), "the service has it all");
    drop(held);
    assert_eq!(files.lent(), 0);
    let start = base.addr();
    let maps = Maps::read().unwrap();
    assert!(maps.file_at(start).is_none() && maps.file_at(start + 20 * PAGE).is_none());
    assert!(
        !maps.all_within(&(start + 16 * PAGE..start + 17 * PAGE), |area| area
            .writable)
    );
    assert!(bytes(&part(&all, 8 * PAGE, 24 * PAGE)) == pattern(32 * PAGE)[8 * PAGE..]);
    // Pages that it has moved are its own for good.
    let moved = part(&all, 20 * PAGE, 8 * PAGE);
    let held = promoted(&moved, &files).unwrap();
    let at = base.wrapping_add(22 * PAGE).cast();
    // SAFETY: as above.
    let to = unsafe { libc::mremap(at, 2 * PAGE, 3 * PAGE, libc::MREMAP_MAYMOVE) };
    assert_ne!(to, libc::MAP_FAILED);
    drop(held);
    assert_eq!(files.lent(), 1, "nobody else is given the memory");
    // SAFETY: mapped just now; the lent memory ends behind it.
    unsafe { libc::munmap(to, 3 * PAGE) };
}

/// How a child ended that runs `work`, which must only compute.
fn in_child(made: impl Fn() -> libc::pid_t, work: impl Fn() -> bool) -> libc::c_int {
    let child = made();
    assert!(child >= 0);
    if child == 0 {
        let code = if work() { 0 } else { 1 };
        // SAFETY: the child ends at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: room for the status of a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

#[test]
fn a_child_has_copies_and_shares_nothing_with_its_parent() {
    let (_mapping, all) = memory(600 * PAGE);
    let base = all.addr() as usize;
    let word = |page: usize| {
        let word = std::ptr::with_exposed_provenance_mut::<u64>(base + page * PAGE);
        // SAFETY: a word of the memory, which is reached as atomics.
        unsafe { AtomicU64::from_ptr(word) }
    };
    for page in 0..600 {
        word(page).store(page as u64, Ordering::Relaxed);
    }
    let files = Files::default();
    let Some(held) = promoted(&all, &files) else {
        return;
    };
    // SAFETY: the child computes and ends.
    let fork = || unsafe { libc::fork() };
    let status = in_child(fork, || {
        let is_same = (0..600).all(|page| word(page).load(Ordering::Relaxed) == page as u64);
        (0..600).for_each(|page| word(page).store(7, Ordering::Relaxed));
        is_same
    });
    assert_eq!(status, 0, "it has what its parent had");
    let place = held.shared().unwrap().1.clone();
    assert!((0..600).all(|page| word(page).load(Ordering::Relaxed) == page as u64));
    word(3).store(4, Ordering::Relaxed);
    assert_eq!(bytes(&place)[3 * PAGE], 4, "the parent shares it still");
    let clone = || {
        // SAFETY: a child with memory of its own, which computes and ends.
        let made = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        made as libc::pid_t
    };
    let status = in_child(clone, || word(0).load(Ordering::Relaxed) == 0);
    assert!(
        libc::WIFSIGNALED(status),
        "it has nothing there: {status:#x}"
    );
    assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
    drop((held, place));
    assert_eq!(files.lent(), 0);
    assert!(page_size() == PAGE || is_plain(&all));
}

#[test]
fn a_child_that_is_made_while_memory_is_promoted_and_taken_back_has_all_of_it() {
    const PAGES: usize = 1200;
    let (_mapping, all) = memory(PAGES * PAGE);
    let base = all.addr() as usize;
    let word = |page: usize| {
        let word = std::ptr::with_exposed_provenance_mut::<u64>(base + page * PAGE);
        // SAFETY: a word of the memory, which is reached as atomics.
        unsafe { AtomicU64::from_ptr(word) }
    };
    (0..PAGES).for_each(|page| word(page).store(page as u64, Ordering::Relaxed));
    let files = Files::default();
    if promoted(&all, &files).is_none() {
        return;
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(promoted(&all, &files));
            }
        });
        for _ in 0..30 {
            // SAFETY: the child computes and ends.
            let fork = || unsafe { libc::fork() };
            let status = in_child(fork, || {
                (0..PAGES).all(|page| word(page).swap(7, Ordering::Relaxed) == page as u64)
            });
            assert_eq!(status, 0, "it has what its parent had");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!((0..PAGES).all(|page| word(page).load(Ordering::Relaxed) == page as u64));
    assert_eq!(files.lent(), 0);
}

#[test]
fn memory_that_is_unmapped_while_another_thread_forks_ends_nothing() {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let (mapping, all) = memory(64 * PAGE);
                let held = promoted(&all, &Files::default());
                let base = mapping.base().as_ptr();
                // What is unmapped may be somebody else's at once: each part once.
                std::mem::forget(mapping);
                let unmap = |first: usize, pages: usize| {
                    let at = base.wrapping_add(first * PAGE).cast();
                    // SAFETY: pages of the test, which it does not use afterwards.
                    assert_eq!(unsafe { libc::munmap(at, pages * PAGE) }, 0);
                };
                // In the midst of a fork, some time or other.
                std::thread::sleep(Duration::from_micros(turn % 20 * 30));
                unmap(8, 8);
                drop(held);
                unmap(0, 8);
                unmap(16, 48);
            }
        });
        for _ in 0..500 {
            // SAFETY: the child ends at once.
            let fork = || unsafe { libc::fork() };
            assert_eq!(in_child(fork, || true), 0);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_a_parent_held_is_no_affair_of_its_childs() {
    let (_mapping, all) = memory(4 * PAGE);
    let files = Files::default();
    let Some(held) = promoted(&all, &files) else {
        return;
    };
    let held = RefCell::new(Some(held));
    // SAFETY: the child does what follows and ends.
    let fork = || unsafe { libc::fork() };
    let status = in_child(fork, || {
        let Some(own) = promoted(&all, &files) else {
            return false;
        };
        drop(held.take());
        own.shared().is_some() && !is_plain(&all)
    });
    assert_eq!(status, 0, "what it promoted itself stays so");
    assert!(!is_plain(&all), "so does what its parent did");
}
