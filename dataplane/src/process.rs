//! What a thread of a library owes the process around it: signals that are not its own, and
//! children that `fork(2)` makes of the process.

use crate::mapping::Mapping;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of the page of a [`Birthmark`]; the kernel rounds up.
const PAGE: usize = 4096;

/// Returns the bytes of a page of memory.
pub fn page_size() -> usize {
    // SAFETY: the call reads a number that stays the same.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(PAGE)
}

/// A number that a child made by `fork(2)` reads as 0, whatever its parent stored: one load tells
/// the two processes apart.
///
/// The page that holds it is wiped in children (`MADV_WIPEONFORK`, Linux 4.14). Where the kernel
/// does not do that, each reading asks the kernel for the process's number instead.
#[derive(Debug)]
pub struct Birthmark {
    page: Mapping,
    /// The process that made it, where children keep the page.
    made_by: Option<u32>,
}

impl Birthmark {
    /// A mark that holds `value`, which should not be 0.
    ///
    /// # Errors
    /// There is no memory for a page.
    pub fn new(value: u32) -> std::io::Result<Self> {
        let page = Mapping::new(PAGE)?;
        let base = page.base().as_ptr().cast();
        // SAFETY: advice on a page of our own, which no child needs.
        let wiped = unsafe { libc::madvise(base, PAGE, libc::MADV_WIPEONFORK) } == 0;
        let made_by = (!wiped).then(std::process::id);
        let mark = Self { page, made_by };
        mark.set(value);
        Ok(mark)
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is there as long as `self`, begins at an aligned address, and holds
        // nothing but this word, which is only ever reached as an atomic.
        unsafe { self.page.base().cast::<AtomicU32>().as_ref() }
    }

    /// What was stored last; 0 in a child of the process that made the mark.
    #[inline]
    pub fn get(&self) -> u32 {
        match self.made_by {
            Some(process) if process != std::process::id() => 0,
            _ => self.word().load(Ordering::Acquire),
        }
    }

    /// Stores another value.
    pub fn set(&self, value: u32) {
        self.word().store(value, Ordering::Release);
    }
}

/// Runs `work` with all signals blocked in this thread: a thread that it starts inherits that, and
/// leaves every signal to the threads of the program.
pub fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: it fills the set that it is given.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the first set was filled just now, the second is room for what was blocked before.
    let refused =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    assert_eq!(refused, 0, "only an unknown way to set a mask is refused");
    let _restore = Mask(before);
    work()
}

/// Signals that were blocked, and are again when it goes.
struct Mask(MaybeUninit<libc::sigset_t>);

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: the set was filled when signals were blocked.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, self.0.as_ptr(), std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    /// What `read` gives in a child, as its exit code.
    fn in_child(read: impl FnOnce() -> u32) -> i32 {
        // SAFETY: the child calls nothing but `read` and `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                let code = read() as i32;
                // SAFETY: it ends the child, which owns nothing.
                unsafe { libc::_exit(code) }
            }
            child => {
                let mut status = 0;
                // SAFETY: a child of ours, and room for its status.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                libc::WEXITSTATUS(status)
            }
        }
    }

    #[test]
    fn a_child_reads_zero_and_the_parent_what_it_stored() {
        let mark = Birthmark::new(5).unwrap();
        assert_eq!(in_child(|| mark.get()), 0);
        assert_eq!(mark.get(), 5);
        mark.set(6);
        assert_eq!((mark.get(), in_child(|| mark.get())), (6, 0));
    }

    #[test]
    fn where_children_keep_the_page_the_process_is_asked_for() {
        let mark = Birthmark {
            page: Mapping::new(PAGE).unwrap(),
            made_by: Some(std::process::id()),
        };
        mark.set(7);
        assert_eq!((mark.get(), in_child(|| mark.get())), (7, 0));
    }

    fn blocked(line: &str) -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let found = status.lines().find_map(|at| at.strip_prefix(line)).unwrap();
        u64::from_str_radix(found.trim(), 16).unwrap()
    }

    #[test]
    fn a_thread_started_inside_takes_no_signals_and_its_parent_does_again() {
        let before = blocked("SigBlk:");
        let inside = with_signals_blocked(|| std::thread::spawn(|| blocked("SigBlk:")));
        let inside = inside.join().unwrap();
        for signal in [libc::SIGUSR1, libc::SIGINT, libc::SIGTERM, libc::SIGCHLD] {
            assert_ne!(inside & 1 << (signal - 1), 0, "signal {signal}");
        }
        assert_eq!(blocked("SigBlk:"), before);
    }
}
