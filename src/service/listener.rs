//! The socket at which programs attach.

use super::spare::Spare;
use crate::attached::ServiceAddress;
use crate::error::Error;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Programs that wait to be let in.
const BACKLOG: i32 = 128;

/// A socket that listens. Its file is removed when it is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    file: Option<SocketFile>,
    /// Held by whoever has the file, next to it.
    _lock: Option<OwnedFd>,
    /// Given up for a moment where the process has as many descriptors as it may.
    spare: Arc<Spare>,
    /// Somebody may wait for whom there was neither a descriptor nor the spare one.
    is_short: bool,
}

impl Listener {
    /// # Errors
    /// Somebody listens there; the address cannot be used.
    pub(super) fn bind(address: ServiceAddress) -> Result<Self, Error> {
        let system = |e: Errno| {
            let error = io::Error::from(e);
            let text = format!("{address}: {error}");
            Error::system("socket of the service")(io::Error::new(error.kind(), text))
        };
        let socket = new_socket().map_err(system)?;
        let file = address.file().map(PathBuf::from);
        let lock = file.as_deref().map(|file| take_place(&address, file));
        let lock = lock.transpose()?;
        bind(&socket, address.socket()).map_err(|e| taken_or(&address, e))?;
        listen(&socket, BACKLOG).map_err(system)?;
        let file = file.and_then(|file| SocketFile::of(file).ok());
        Ok(Self {
            socket,
            file,
            _lock: lock,
            spare: Arc::new(Spare::new().map_err(system)?),
            is_short: false,
        })
    }

    /// What becomes the spare descriptor again when it has been closed.
    pub(super) const fn spare(&self) -> &Arc<Spare> {
        &self.spare
    }

    /// Whether whoever waits to be let in has to wait until a descriptor is closed: the socket may
    /// be readable until then, to no avail.
    pub(super) fn is_short(&mut self) -> bool {
        self.is_short &= !self.spare.refill();
        self.is_short
    }

    /// The next program that wants to be let in; an error is the socket of one that cannot be, as
    /// no descriptor is left.
    pub(super) fn accept(&mut self) -> Option<Result<OwnedFd, OwnedFd>> {
        self.spare.refill();
        let accept = || accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        match accept() {
            Ok(socket) => Some(Ok(socket)),
            Err(Errno::MFILE | Errno::NFILE) => {
                // Whoever waits is turned away, or the socket stays readable for ever.
                self.spare.give_up();
                let accepted = accept().ok();
                if accepted.is_none() {
                    // Nobody waits, or nobody can be told.
                    self.is_short = !self.spare.refill();
                }
                accepted.map(Err)
            }
            Err(_) => None,
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            file.remove();
        }
    }
}

/// The file of a socket, told from others that take its name.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn of(path: PathBuf) -> io::Result<Self> {
        let found = path.symlink_metadata()?;
        Ok(Self {
            path,
            device: found.dev(),
            inode: found.ino(),
        })
    }

    /// Removes it, if it is there still.
    fn remove(&self) {
        let found = self.path.symlink_metadata();
        if found.is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode)) {
            // Somebody may remove it at the same moment.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Makes the place of a socket free: the lock beside it is taken, and the socket of a service that
/// died is removed. Nothing else is.
fn take_place(address: &ServiceAddress, file: &Path) -> Result<OwnedFd, Error> {
    let system = |e: Errno| taken_or(address, e);
    let is_there = match file.symlink_metadata() {
        Ok(found) if found.file_type().is_socket() => true,
        Ok(_) => {
            let text = format!("{address} is there, and no socket: it is left as it is");
            let error = io::Error::new(io::ErrorKind::AlreadyExists, text);
            return Err(Error::system("socket of the service")(error));
        }
        // What else is wrong, bind(2) says as well.
        Err(_) => false,
    };
    let lock = lock_beside(file).map_err(system)?;
    if is_there {
        let asked = new_socket().and_then(|socket| connect(&socket, address.socket()));
        match asked {
            Err(Errno::CONNREFUSED) => rustix::fs::unlink(file).map_err(system)?,
            Err(Errno::NOENT) => {}
            // Whether anybody serves there does not show.
            Err(error @ (Errno::ACCESS | Errno::PERM)) => return Err(system(error)),
            Ok(()) | Err(_) => return Err(system(Errno::ADDRINUSE)),
        }
    }
    Ok(lock)
}

/// Takes the lock of whoever serves at `file`; it ends with its holder, however that ends.
fn lock_beside(file: &Path) -> rustix::io::Result<OwnedFd> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(".lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = rustix::fs::open(beside, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// Why an address cannot be had: who serves there already, or what the system says.
fn taken_or(address: &ServiceAddress, error: Errno) -> Error {
    let kind = io::Error::from(error).kind();
    let text = match error {
        Errno::ADDRINUSE | Errno::AGAIN => {
            format!("{address} is taken: {} serves there", owner(address))
        }
        other => format!("{address}: {}{}", io::Error::from(other), remedy(other)),
    };
    Error::system("socket of the service")(io::Error::new(kind, text))
}

/// What to do where a socket cannot be made for that reason.
const fn remedy(error: Errno) -> &'static str {
    match error {
        Errno::NOENT => ": make its folder, or choose another place",
        Errno::NOTDIR => ": choose another place",
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            ": choose a place in a folder that this user may write to"
        }
        Errno::NOSPC | Errno::DQUOT => ": make room on its file system, or choose another place",
        _ => "",
    }
}

/// Who listens at an address, for people.
fn owner(address: &ServiceAddress) -> String {
    let asked = new_socket().and_then(|socket| {
        connect(&socket, address.socket())?;
        Ok(socket)
    });
    let peer = asked
        .ok()
        .and_then(|socket| trunkline_host::socket::peer(socket.as_fd()).ok()?.pid);
    match peer {
        Some(pid) => format!("process {pid}"),
        None => "another process".into(),
    }
}
