//! What a thread of a library owes the process around it: signals that are not its own, and
//! children that `fork(2)` makes of the process. And processes that are to outlive their parent.

use crate::mapping::Mapping;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of the page of a [`Birthmark`]; the kernel rounds up.
const PAGE: usize = 4096;

/// Returns the bytes of a page of memory.
pub fn page_size() -> usize {
    // SAFETY: the call reads a number that stays the same.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(PAGE)
}

/// Has all threads of the process allocate from one heap, where the C library would give each a
/// heap of its own (mallopt(3)): of what comes and goes in many, each keeps some. It is for a
/// process that allocates rarely, before it starts threads.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: it sets a number, under the C library's own lock.
        let is_set = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) } == 1;
        debug_assert!(is_set, "the number is allowed");
    }
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

/// Has `command` start a process that has nothing to do with this one: in a session of its own
/// without a terminal, with all signals as they are by default, and without descriptors but the
/// three of standard input, output and error. The umask and the folder stay.
pub fn detach(command: &mut Command) {
    // SAFETY: between fork and exec this makes system calls alone, and touches no memory of others.
    unsafe { command.pre_exec(leave) };
}

/// The first descriptor that a detached process does not keep, and where it ends to look for more
/// on a kernel that cannot name them all.
const FIRST: libc::c_int = 3;
const MOST: libc::c_int = 1 << 16;

/// What a child does before its program begins.
fn leave() -> io::Result<()> {
    // SAFETY: it has no conditions.
    if unsafe { libc::setsid() } == -1 {
        return Err(io::Error::last_os_error());
    }
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: no handler is set. Those that cannot be changed are as they should be.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let (last, how) = (libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int);
    // SAFETY: descriptors are marked, not closed: whoever has them may use them until exec.
    if unsafe { libc::close_range(FIRST as libc::c_uint, last, how) } != 0 {
        // Before Linux 5.11, one by one.
        for descriptor in FIRST..MOST {
            // SAFETY: as before; a number that is no descriptor is refused.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
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

    #[test]
    fn a_detached_process_has_a_session_of_its_own_and_inherits_nothing() {
        let (kept, _other) = std::io::pipe().unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&kept);
        // SAFETY: the descriptor is ours; children are to inherit it.
        assert_eq!(unsafe { libc::fcntl(number, libc::F_SETFD, 0) }, 0);
        let script = format!(
            "cut -d' ' -f6 /proc/$$/stat; echo $$; grep SigIgn /proc/$$/status; \
             test -e /proc/$$/fd/{number} && echo inherited"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let ignore = || {
            // SAFETY: no handler is set.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: a system call alone.
        unsafe { command.pre_exec(ignore) };
        let said = |command: &mut Command| {
            let output = command.output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert!(said(&mut command).contains("inherited"), "as it should be");
        detach(&mut command);
        let told = said(&mut command);
        let [session, process, ignored] = told.lines().collect::<Vec<_>>()[..] else {
            panic!("{told}")
        };
        assert_eq!(session, process);
        let ignored = ignored.strip_prefix("SigIgn:").unwrap().trim();
        let ignored = u64::from_str_radix(ignored, 16).unwrap();
        assert_eq!(ignored >> (libc::SIGCHLD - 1) & 1, 0);
    }
}
