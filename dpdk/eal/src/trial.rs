//! Tries the environment in a child, since C code that fails may end the process.

use super::{Arguments, error_text, folders};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};
use trunkline_dpdk_sys as sys;

/// How long the environment may take to start.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether it did.
const PAUSE: Duration = Duration::from_millis(2);
/// Most lines of what it says that get into an error.
const LINES: usize = 6;
/// How a child ends that has set the environment up: C code that ends it, with success or without,
/// does not do it like that. Above all errnos.
const SET_UP: i32 = 200;

/// Why there is no environment of DPDK.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EalError {
    /// It does not start.
    #[error(
        "DPDK does not start with `{arguments}`: {said}{}",
        remedy(arguments, said)
    )]
    Refused {
        /// Its arguments.
        arguments: String,
        /// What it said.
        said: String,
    },
    /// A word is none for ports.
    #[error("`{word}` cannot be among the EAL arguments of a port: {why}")]
    Unfit {
        /// The word.
        word: String,
        /// Why, and what helps.
        why: &'static str,
    },
    /// It takes too long.
    #[error("DPDK did not start within 30 s with `{arguments}`")]
    Silent {
        /// Its arguments.
        arguments: String,
    },
    /// The kernel tells this process nothing of children that end, nor how.
    #[error(
        "DPDK is tried in a child, and this process hears of none that ends: it ignores SIGCHLD, \
         be it since whoever started it did; let it have SIG_DFL"
    )]
    Unseen,
    /// It runs already, and not as it is wanted.
    #[error(
        "this process runs DPDK with `{running}` already, and a port wants `{wanted}`: give all \
         ports of a process the same arguments after --, and name a device on the PCI bus first"
    )]
    Other {
        /// The arguments with which it runs.
        running: String,
        /// Those that a port wants.
        wanted: String,
    },
    /// A system call failed.
    #[error("{call}: {said}")]
    System {
        /// The call.
        call: &'static str,
        /// What the system said.
        said: String,
    },
}

impl EalError {
    pub(super) fn system(call: &'static str, error: &io::Error) -> Self {
        let said = error.to_string();
        Self::System { call, said }
    }
}

/// What helps, where that is known.
fn remedy(arguments: &str, said: &str) -> &'static str {
    let has = |what: &str| said.contains(what);
    let has_no_huge = arguments.split(' ').any(|word| word == "--no-huge");
    if has("ended by signal") {
        " (a limit of this process may be too small, as `ulimit -f`, or memory have run out)"
    } else if has_no_huge && has("Cannot init memory") {
        " (it takes address space: raise `ulimit -v`, or ask for less memory: `-- -m 256`)"
    } else if has("unrecognized option") || has("invalid option") || has("Invalid") {
        " (words after -- are EAL arguments, as DPDK's guide has them)"
    } else if has("hugepage") || has("Cannot get hugepage information") || has("Cannot init memory")
    {
        " (more huge pages: `sysctl vm.nr_hugepages=512`; none at all: `-- --no-huge`)"
    } else if has("Permission denied") || has("Operation not permitted") {
        " (run as root)"
    } else {
        ""
    }
}

/// The last lines of what was said, as one.
pub(super) fn summary(said: &str, code: i32) -> String {
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut lines: Vec<_> = lines.collect();
    lines.dedup();
    // Arguments that are wrong are answered by a list of all that there are.
    let usage = lines.iter().position(|line| line.starts_with("Usage:"));
    let lines = &lines[..usage.unwrap_or(lines.len())];
    match lines {
        [] => error_text(code),
        _ => lines[lines.len().saturating_sub(LINES)..].join("; "),
    }
}

/// Starts the environment in a child.
///
/// # Errors
/// It does not start.
pub(super) fn run(arguments: &Arguments) -> Result<(), EalError> {
    let (count, words) = arguments.leak();
    let mut said = said()?;
    // SAFETY: the child calls C alone from here on, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    match child {
        0 => in_child(said.as_raw_fd(), count, words),
        -1 => {
            let error = io::Error::last_os_error();
            return Err(EalError::system("fork", &error));
        }
        _ => {}
    }
    let ended = wait(child);
    // What the child made is in nobody's way then.
    folders::remove_own();
    folders::remove_ended();
    let Some(status) = ended? else {
        let arguments = arguments.to_string();
        return Err(EalError::Silent { arguments });
    };
    let code = libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
    if code == Some(SET_UP) {
        return Ok(());
    }
    let mut text = Vec::new();
    let read = said.rewind().and_then(|()| said.read_to_end(&mut text));
    read.map_err(|error| EalError::system("read", &error))?;
    let text = String::from_utf8_lossy(&text);
    Err(EalError::Refused {
        arguments: arguments.to_string(),
        said: match code {
            Some(0) => "DPDK ended the process instead".to_owned(),
            Some(code) => summary(&text, -code),
            None => format!("it was ended by signal {}", libc::WTERMSIG(status)),
        },
    })
}

/// A file without a name, for what the child says.
fn said() -> Result<File, EalError> {
    // SAFETY: a text that ends with a zero.
    let file = unsafe { libc::memfd_create(c"eal".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        let error = io::Error::last_os_error();
        return Err(EalError::system("memfd_create", &error));
    }
    // SAFETY: it was opened just now, and nobody else has it.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    Ok(File::from(file))
}

/// What the child does: nothing that another thread of its parent may have a lock for, as far as
/// Rust is concerned; the C library takes care of its own.
fn in_child(said: i32, count: i32, words: *mut *mut libc::c_char) -> ! {
    let standard = [libc::STDOUT_FILENO, libc::STDERR_FILENO];
    for place in standard {
        // SAFETY: concerns this process, which is alone with its descriptors.
        unsafe { libc::dup2(said, place) };
    }
    // SAFETY: it ends with its parent.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: these texts are leaked.
    let code = unsafe { sys::trunkline_init(count, words) };
    if code == 0 {
        // SAFETY: it is set up, and nobody uses it.
        unsafe { sys::trunkline_cleanup() };
    }
    let status = match code {
        0 => SET_UP,
        _ => code.saturating_neg().clamp(1, SET_UP - 1),
    };
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}

/// The status of a child that ended; `None`: it had to be killed.
fn wait(child: libc::pid_t) -> Result<Option<i32>, EalError> {
    let start = Instant::now();
    let mut is_killed = false;
    let mut status = 0;
    loop {
        let flags = if is_killed { 0 } else { libc::WNOHANG };
        // SAFETY: room for a status.
        let ended = unsafe { libc::waitpid(child, &raw mut status, flags) };
        if ended == child {
            return Ok((!is_killed).then_some(status));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error().filter(|_| ended < 0) {
            None | Some(libc::EINTR) => {}
            Some(libc::ECHILD) => return Err(EalError::Unseen),
            Some(_) => return Err(EalError::system("waitpid", &error)),
        }
        if start.elapsed() > PATIENCE {
            // SAFETY: our child, which was not waited for yet.
            unsafe { libc::kill(child, libc::SIGKILL) };
            is_killed = true;
        }
        std::thread::sleep(PAUSE);
    }
}
