//! Pages that block, and how long anybody waits for them.

use super::*;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use trunkline_testkit::SilentFile;

/// Longer than anything takes that does not block.
const DEADLINE: Duration = Duration::from_secs(20);
const PAGES: usize = 64;

/// A process with a page of zeros, and with pages of a file that are not read before it is let go.
/// Whoever waits for one of them has the lock of all its mappings, so it is not this process.
struct Blocked {
    fine: Mapping,
    slow: u64,
    file: SilentFile,
    child: libc::pid_t,
}

impl Blocked {
    /// `None`, and a line that says why: this process cannot have such a file.
    fn new() -> Option<Self> {
        let length = PAGES * PAGE;
        let file = match SilentFile::new(length as u64) {
            Ok(file) => file,
            Err(error) => {
                eprintln!("not run: a file system in user space cannot be had: {error}");
                return None;
            }
        };
        let fine = Mapping::new(PAGE).unwrap();
        let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.file().as_raw_fd());
        let place = std::ptr::null_mut();
        // SAFETY: a new mapping of a file, at a place that the kernel chooses.
        let base = unsafe { libc::mmap(place, length, access, libc::MAP_SHARED, fd, 0) };
        assert_ne!(base, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        // SAFETY: the child makes nothing but system calls.
        let child = unsafe { libc::fork() };
        if child == 0 {
            pause_for_good();
        }
        // SAFETY: the child has it still, and here nothing refers to it.
        let unmapped = unsafe { libc::munmap(base, length) };
        assert_eq!(unmapped, 0);
        let slow = base.addr() as u64;
        Some(Self {
            fine,
            slow,
            file,
            child,
        })
    }

    /// All its memory, reached within that patience.
    fn memory(&self, patience: &Arc<Patience>) -> ProcessMemory {
        patient(&self.child.to_string(), patience)
    }

    /// The page that is there, and one that is not.
    fn regions(&self, memory: &ProcessMemory) -> [ProcessRegion; 2] {
        let fine = self.fine.base().as_ptr().addr() as u64;
        [fine, self.slow].map(|at| memory.region(at, PAGE).unwrap())
    }

    /// Waits until somebody waits for a page.
    fn wait_for_reader(&self) {
        soon("somebody waits for a page", || self.file.waiting() > 0);
    }
}

/// What the child does.
fn pause_for_good() -> ! {
    // SAFETY: it ends with the thread that made it.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: the descriptors are copies, which nobody here uses.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    loop {
        // SAFETY: it has no conditions.
        unsafe { libc::pause() };
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.file.let_go();
        // SAFETY: a child of ours, which was not waited for yet.
        unsafe { libc::kill(self.child, libc::SIGKILL) };
        // SAFETY: the same, and nobody asks how it ended.
        unsafe { libc::waitpid(self.child, std::ptr::null_mut(), 0) };
    }
}

fn soon(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How much of such patience is used up.
fn used(patience: &Patience, most: Duration) -> Duration {
    most - patience.left(Instant::now())
}

#[test]
fn memory_that_blocks_is_given_up_when_patience_ends_and_its_thread_once_the_kernel_lets_it() {
    let Some(blocked) = Blocked::new() else {
        return;
    };
    let (patience, told) = (Arc::new(Patience::new()), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&told);
    let descriptor = descriptor_of(&blocked.child.to_string());
    let memory = ProcessMemory::with_patience(descriptor, patience, move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let memory = memory.unwrap();
    let [fine, slow] = blocked.regions(&memory);
    let mut out = [1; 64];
    assert_eq!(fine.copy_out(0, &mut out, None), Ok(()));

    let start = Instant::now();
    assert_eq!(slow.copy_out(0, &mut out, None), Err(Unreachable));
    let waited = start.elapsed();
    assert!(waited >= Patience::MOST && waited < DEADLINE, "{waited:?}");
    assert_eq!(out, [0; 64], "what was there before");

    // Nothing of the process is reached any more, and nobody waits.
    assert_eq!(fine.copy_out(0, &mut out, None), Err(Unreachable));
    assert_eq!(
        fine.copy_in(0, &out, Order::LastByteLast, None),
        Err(Unreachable)
    );
    let add = AtomicOp::FetchAdd { add: 1 };
    assert_eq!(fine.atomic(0, add), Err(Unreachable));
    assert_eq!(told.load(Ordering::Relaxed), 1);

    drop((fine, slow));
    let thread = memory.into_thread().unwrap();
    assert!(!thread.is_finished(), "it waits for the page");
    blocked.file.let_go();
    soon("the thread ends", || thread.is_finished());
}

#[test]
fn programs_that_share_patience_have_it_once() {
    const MOST: Duration = Duration::from_secs(1);
    let patience = Arc::new(Patience::of(MOST));
    let waits = [(); 3].map(|()| {
        let blocked = Blocked::new()?;
        let memory = blocked.memory(&patience);
        let start = Instant::now();
        let read = blocked.regions(&memory)[1].copy_out(0, &mut [0; 8], None);
        assert_eq!(read, Err(Unreachable));
        Some(start.elapsed())
    });
    if let [Some(first), Some(second), Some(third)] = waits {
        assert!(first >= MOST, "{waits:?}");
        assert!(second < MOST / 2 && third < MOST / 2, "{waits:?}");
    }
}

#[test]
fn a_page_that_comes_late_is_read_and_the_wait_for_it_is_charged() {
    const MOST: Duration = Duration::from_secs(60);
    let Some(blocked) = Blocked::new() else {
        return;
    };
    let patience = Arc::new(Patience::of(MOST));
    let [_, region] = blocked.regions(&blocked.memory(&patience));
    let waited = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let start = Instant::now();
            assert_eq!(region.copy_out(5, &mut [1; 64], None), Ok(()));
            start.elapsed()
        });
        blocked.wait_for_reader();
        std::thread::sleep(Duration::from_millis(300));
        blocked.file.let_go();
        reader.join().unwrap()
    });
    let used = used(&patience, MOST);
    assert!(
        used > waited / 2 && used <= waited,
        "{used:?} of {waited:?}"
    );
}

#[test]
fn who_waits_behind_another_access_is_not_charged_for_that() {
    const MOST: Duration = Duration::from_secs(60);
    let Some(blocked) = Blocked::new() else {
        return;
    };
    let patience = Arc::new(Patience::of(MOST));
    let [fine, slow] = blocked.regions(&blocked.memory(&patience));
    let timed = |region: &ProcessRegion| {
        let start = Instant::now();
        assert_eq!(region.copy_out(0, &mut [1; 64], None), Ok(()));
        start.elapsed()
    };
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| timed(&slow));
        blocked.wait_for_reader();
        let second = scope.spawn(|| timed(&fine));
        std::thread::sleep(Duration::from_millis(300));
        blocked.file.let_go();
        (first.join().unwrap(), second.join().unwrap())
    });
    let used = used(&patience, MOST);
    assert!(second > first / 4, "it waited, too: {second:?}, {first:?}");
    assert!(used <= first, "{used:?} of {first:?} and {second:?}");
}

#[test]
fn what_does_not_block_is_not_charged_however_much_of_it_there_is() {
    // Where others take the CPU from the thread that waits, that is charged: not every second.
    let is_free = (0..5).any(|_| charged_in_a_second() < Duration::from_millis(5));
    assert!(is_free, "what does not block is charged");
}

/// What is charged to a program whose memory is copied for a second.
fn charged_in_a_second() -> Duration {
    // More than others can take from it in that time, or what is copied would be unreachable.
    const MOST: Duration = Duration::from_secs(60);
    let patience = Arc::new(Patience::of(MOST));
    let mapping = Mapping::new(16 * PAGE).unwrap();
    let addr = mapping.base().as_ptr().addr() as u64;
    let region = patient("self", &patience).region(addr, 16 * PAGE).unwrap();
    let mut out = vec![0; 16 * PAGE];
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        for _ in 0..200 {
            region.copy_out(0, &mut out, None).unwrap();
            region
                .copy_in(7, &out[..64], Order::LastByteLast, None)
                .unwrap();
        }
        // Long enough for the thread to sleep: to wake it is nobody's fault.
        std::thread::sleep(Duration::from_millis(1));
    }
    used(&patience, MOST)
}

/// The kernel does not wait there for who handles the fault, as it does where the process itself
/// reaches for the page.
#[test]
fn a_page_that_a_userfaultfd_has_to_bring_is_an_error_at_once() {
    // SAFETY: a system call that makes a descriptor.
    let made = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if made < 0 {
        return eprintln!("not run: userfaultfd(2): {}", io::Error::last_os_error());
    }
    // SAFETY: it was made just now, and nobody else has it.
    let faults = unsafe { OwnedFd::from_raw_fd(made as i32) };
    let mapping = Mapping::new(PAGE).unwrap();
    let base = mapping.base().as_ptr().addr() as u64;
    let mut api = [0xAA_u64, 0, 0];
    // SAFETY: UFFDIO_API reads and writes three words.
    let asked = unsafe { libc::ioctl(faults.as_raw_fd(), 0xC018_AA3F, api.as_mut_ptr()) };
    let mut range = [base, PAGE as u64, 1, 0];
    // SAFETY: UFFDIO_REGISTER reads and writes four words.
    let watched = unsafe { libc::ioctl(faults.as_raw_fd(), 0xC020_AA00, range.as_mut_ptr()) };
    assert_eq!((asked, watched), (0, 0));
    for region in own(&mapping, PAGE) {
        assert_eq!(region.copy_out(0, &mut [0; 8], None), Err(Unreachable));
        assert_eq!(
            region.copy_in(0, &[0; 8], Order::Any, None),
            Err(Unreachable)
        );
    }
}
