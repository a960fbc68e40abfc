//! Namespaces of the kernel.

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives this thread, and what it starts from now on, namespaces of these kinds of its own.
///
/// # Errors
/// The system does not let this process have them.
pub(crate) fn unshare(what: UnshareFlags) -> rustix::io::Result<()> {
    assert!(
        !what.contains(UnshareFlags::FILES),
        "descriptors stay shared"
    );
    // SAFETY: descriptors stay shared between threads: namespaces are all that is parted.
    unsafe { unshare_unsafe(what) }
}
