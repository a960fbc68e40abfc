//! What a signal does to a call that waits.
//!
//! Where the library that this one is in place of waits in read(2), that goes on behind a handler
//! which was installed with SA_RESTART, and fails with EINTR behind another (signal(7)). poll(2)
//! and epoll_wait(2) fail behind both, and do not tell which handler ran.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;

/// Signals that there may be.
const SIGNALS: std::ops::RangeInclusive<c_int> = 1..=64;

/// Whether a wait goes on that a signal interrupted: every handler of the program asks for that.
pub(crate) fn goes_on() -> bool {
    SIGNALS.into_iter().all(|signal| {
        // SAFETY: its fields are integers and a set of bits, which may be zero.
        let mut action: libc::sigaction = unsafe { zeroed() };
        // SAFETY: it asks, and changes nothing; there is room for the answer.
        let is_known = unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } == 0;
        let is_handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        !(is_known && is_handled) || action.sa_flags & libc::SA_RESTART != 0
    })
}
