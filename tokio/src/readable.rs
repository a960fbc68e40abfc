//! Descriptors of a node that a task waits for.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use trunkline::Error;

/// A copy of a descriptor for the current runtime to wait for until it is readable: it stays open
/// whatever becomes of the node.
///
/// # Errors
/// The operating system has no descriptor left, or no memory.
///
/// # Panics
/// Outside a runtime, or one whose I/O is not enabled.
pub(crate) fn readable(fd: BorrowedFd<'_>) -> Result<AsyncFd<OwnedFd>, Error> {
    let system = |call| move |source: io::Error| Error::System { call, source };
    let copy = fd.try_clone_to_owned().map_err(system("dup"))?;
    #[allow(
        deprecated,
        reason = "what replaces it is unsafe, for descriptors that nobody owns"
    )]
    let registered = AsyncFd::with_interest(copy, Interest::READABLE);
    registered.map_err(system("epoll_ctl"))
}
