//! Why a device cannot be opened, or is down, on standard error: programs show an error number at
//! most.

use crate::node::MAX_DEVICES;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::Write;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};
use trunkline::{Error, UdpOpenError};
use trunkline_dataplane::process::with_signals_blocked;

/// What was said last of each device. Programs try again, and the same is not said twice.
static SAID: Mutex<[String; MAX_DEVICES]> = Mutex::new([const { String::new() }; MAX_DEVICES]);

/// Says why a device cannot be opened.
pub(crate) fn complain(device: usize, why: &str) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let said = &mut said[device];
    if *said != why {
        say(device, &format!("cannot be opened: {why}"));
        why.clone_into(said);
    }
}

/// Says something of a device.
pub(crate) fn say(device: usize, what: &str) {
    // A signal would end the wait for room, and one of the write the program.
    with_signals_blocked(|| {
        if has_room() {
            // Where nobody listens there is nobody to tell.
            let _ = without_sigpipe(|| writeln!(std::io::stderr(), "{}", line(device, what)));
        }
    });
}

/// Whether standard error takes a line now, or soon: whoever closes a device waits for it.
fn has_room() -> bool {
    const SOON: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    let stderr = std::io::stderr();
    let mut at = [PollFd::new(&stderr, PollFlags::OUT)];
    let polled = poll(&mut at, Some(&SOON));
    polled == Ok(1) && at[0].revents() == PollFlags::OUT
}

/// Runs `write` where signals are blocked, and leaves no signal of it that there is nobody at the
/// other end of a pipe: that would end the program.
fn without_sigpipe<T>(write: impl FnOnce() -> T) -> T {
    let had = is_pending();
    let written = write();
    // One that came before is the program's.
    if !had {
        take();
    }
    written
}

/// Whether SIGPIPE waits for this thread, or for the process.
fn is_pending() -> bool {
    let mut pending = MaybeUninit::uninit();
    // SAFETY: it fills the set that it is given.
    unsafe { libc::sigpending(pending.as_mut_ptr()) };
    // SAFETY: the set was filled just now.
    unsafe { libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1 }
}

/// Takes SIGPIPE, if it waits: that of a write is this thread's alone.
fn take() {
    const AT_ONCE: libc::timespec = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut pipe = MaybeUninit::uninit();
    // SAFETY: it makes a set of what it is given.
    unsafe { libc::sigemptyset(pipe.as_mut_ptr()) };
    // SAFETY: the set was made just now.
    unsafe { libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE) };
    // SAFETY: the set was made above, and nobody asks for more than which signal it was.
    unsafe { libc::sigtimedwait(pipe.as_ptr(), std::ptr::null_mut(), &AT_ONCE) };
}

fn line(device: usize, what: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let what: String = what.chars().map(plain).collect();
    format!("libibverbs (Trunkline): trunk{device} {what}")
}

/// What an error of a node inside the program means for its user.
pub(crate) fn of_node(error: &Error) -> String {
    match error {
        Error::Open(UdpOpenError::InUse { .. }) => format!(
            "{error}; if that is a service, name its socket in TRUNKLINE_SOCKET, or set another \
             address in TRUNKLINE_ADDRESS"
        ),
        _ => error.to_string(),
    }
}

/// What an error of attaching to a service means for its user.
pub(crate) fn of_service(error: &Error) -> String {
    match error {
        Error::System { source, .. }
            if matches!(
                source.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused
            ) =>
        {
            format!("{error}; start one (trunkline serve), or the program with trunkline run")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_one_line() {
        let expected = "libibverbs (Trunkline): trunk1 is down: no  way";
        assert_eq!(line(1, "is down: no\n\x1bway"), expected);
    }
}
