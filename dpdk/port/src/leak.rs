//! Sockets that drivers leave open when their devices are removed, as those of DPDK 22.11 do.

use crate::descriptors;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An option of a socket that is a number.
fn option(fd: RawFd, option: i32) -> Option<i32> {
    let (mut value, mut length) = (0, size_of::<i32>() as libc::socklen_t);
    let place = (&raw mut value).cast();
    let level = libc::SOL_SOCKET;
    // SAFETY: room for an `int`, and its length; of what is no socket it is refused.
    let got = unsafe { libc::getsockopt(fd, level, option, place, &raw mut length) };
    (got == 0).then_some(value)
}

/// The descriptors that this process has; none where it cannot look.
fn descriptors() -> Vec<RawFd> {
    descriptors::open().unwrap_or_default()
}

/// A socket of the driver for AF_XDP: its descriptor, and the inode by which it is told from a
/// later one. Until it is closed the kernel gives its queue to nobody.
///
/// It is told by what no other AF_XDP socket of a program of Rust has: the driver lets programs
/// that are executed inherit it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct XdpSocket {
    fd: RawFd,
    inode: u64,
}

impl XdpSocket {
    /// Those that the driver has open.
    pub(crate) fn all() -> Vec<Self> {
        descriptors().into_iter().filter_map(Self::of).collect()
    }

    fn of(fd: RawFd) -> Option<Self> {
        option(fd, libc::SO_DOMAIN).filter(|domain| *domain == libc::AF_XDP)?;
        // SAFETY: asks for flags.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        let inode = inode(fd)?;
        (flags == 0).then_some(Self { fd, inode })
    }

    /// Closes it, unless the driver did.
    pub(crate) fn close(self) {
        if inode(self.fd) == Some(self.inode) {
            // SAFETY: it is the socket that the driver opened, and nobody uses it any more.
            unsafe { libc::close(self.fd) };
        }
    }
}

fn inode(fd: RawFd) -> Option<u64> {
    let found = std::fs::metadata(format!("/proc/self/fd/{fd}")).ok()?;
    Some(found.ino())
}

/// How many devices share the socket that `net_memif` listens on, by its path.
static LISTENERS: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

fn listeners() -> MutexGuard<'static, BTreeMap<String, usize>> {
    LISTENERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this process listens at a path already.
pub(crate) fn is_listened_at(path: &str) -> bool {
    listeners().contains_key(path)
}

/// The socket that a server of `net_memif` listens on. The driver forgets it: nobody else could
/// listen there, and whoever calls would be answered from memory that was freed.
#[derive(Debug)]
pub(crate) struct Listener(String);

impl Listener {
    /// That at a path, which is opened after this.
    pub(crate) fn new(path: &str) -> Self {
        *listeners().entry(path.to_owned()).or_default() += 1;
        Self(path.to_owned())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut all = listeners();
        let Some(count) = all.get_mut(&self.0) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            all.remove(&self.0);
            let own = descriptors().into_iter();
            own.filter(|fd| listens_at(*fd, &self.0)).for_each(replace);
        }
    }
}

/// Whether it is a socket that listens at a path, be it in a folder or not.
fn listens_at(fd: RawFd, path: &str) -> bool {
    let is = |name, value| option(fd, name) == Some(value);
    let listens = is(libc::SO_DOMAIN, libc::AF_UNIX)
        && is(libc::SO_TYPE, libc::SOCK_SEQPACKET)
        && is(libc::SO_ACCEPTCONN, 1);
    // SAFETY: all zeros are a valid address of this family.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&name) as libc::socklen_t;
    let place = (&raw mut name).cast();
    // SAFETY: room for an address, and its length.
    if !listens || unsafe { libc::getsockname(fd, place, &raw mut length) } != 0 {
        return false;
    }
    let bytes = name.sun_path.map(i8::cast_unsigned);
    // Names that are in no folder begin with a zero.
    let from = usize::from(bytes[0] == 0);
    let is_at = bytes[from..].starts_with(path.as_bytes());
    is_at && bytes.get(from + path.len()).is_none_or(|byte| *byte == 0)
}

/// Puts something in the place of a descriptor that never is readable: the environment keeps
/// waiting for it, and ends the process if it is gone.
fn replace(fd: RawFd) {
    // SAFETY: makes a descriptor.
    let quiet = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if quiet < 0 {
        return;
    }
    // SAFETY: the socket is the driver's, which does nothing with it but wait.
    unsafe { libc::dup3(quiet, fd, libc::O_CLOEXEC) };
    // SAFETY: it was made here, and the other one stays.
    unsafe { libc::close(quiet) };
}
