//! Calls of the C library at which a thread of the program may be cancelled (pthreads(7)).
//!
//! The C library unwinds a thread that is cancelled in one of them. So whoever calls them has
//! nothing on the stack that is to be dropped, up to the function that C called. They are declared
//! here as calls that may unwind: by other declarations the compiler takes it that they do not,
//! and a function in which it has put a call that catches panics, too, would end the program.

use std::ffi::c_int;

unsafe extern "C-unwind" {
    pub(crate) fn epoll_wait(
        epoll: c_int,
        events: *mut libc::epoll_event,
        most: c_int,
        timeout_ms: c_int,
    ) -> c_int;
    pub(crate) fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
}
