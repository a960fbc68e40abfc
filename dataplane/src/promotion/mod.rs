//! Promotion: pages of a program that become memory which it shares with its service, while the
//! program goes on with them (docs/adr/0033).
//!
//! The pages of a region that are wholly in it are copied into memory that both have mapped, and
//! that is put in their place. Stores of other threads, and of system calls, wait for that and are
//! not lost. When the last region with these pages is gone they are private memory again.
//!
//! Never promoted are pages that are not private memory of the program, readable and writable:
//! files, hugepages, shared memory, code, the stack of the process, that of the thread that asks;
//! and pages that a region reaches already that is there.
//!
//! A child made by fork(2) has copies of promoted pages in their place, made before the fork. One
//! that is made by a bare clone(2) has nothing there.

mod fork;
mod ledger;
mod ranges;
mod swap;
mod userfault;

pub use ledger::{Held, hold};
pub use userfault::{DEVICE, open_device};

use crate::region::Region;
use std::io;
use std::os::fd::OwnedFd;

/// Who has shared memory for pages that are to be promoted.
pub trait Lender {
    /// `len` bytes, whole pages, that are mapped as shared memory and that nobody uses; `None`:
    /// there is no room for them. They are given back when the region that this gives is dropped.
    fn lend(&self, len: usize) -> Option<Region>;

    /// An open [`DEVICE`], for a process that may not open it itself.
    ///
    /// # Errors
    /// There is none.
    fn userfault_device(&self) -> io::Result<OwnedFd>;
}

/// Why pages of a region were not promoted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotPromoted {
    /// No page is wholly in the region.
    #[error("no whole page is in the region")]
    NoPage,
    /// They are pages of another region that is not promoted, or that is so in part.
    #[error("another region has some of the pages")]
    Overlaps,
    /// They are not all private memory of the program that may be read and written.
    #[error("they are files, hugepages, a stack, or other than private memory")]
    NotPlain,
    /// The lender has no room for them.
    #[error("the service has no room for them")]
    NoRoom,
    /// This process gets no descriptor of userfaultfd(2) whose faults system calls bear.
    #[error("no userfaultfd: {0}")]
    NoUserfault(io::Error),
    /// The system refused.
    #[error("the system refused: {0}")]
    System(io::Error),
}

#[cfg(all(test, not(miri)))]
mod tests;
