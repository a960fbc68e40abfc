//! Where a service is found: a path, or a name without a file.

use super::call::SILENT;
use crate::error::Error;
use rustix::net::SocketAddrUnix;
use std::fmt;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most bytes of a socket's path: unix(7) has room for one more, a zero.
const LONGEST: usize = 107;

/// The address of a service's socket.
#[derive(Clone, Debug)]
pub(crate) struct ServiceAddress {
    socket: SocketAddrUnix,
    path: PathBuf,
}

impl ServiceAddress {
    /// That of `path`; one that begins with `@` is an abstract name.
    ///
    /// # Errors
    /// It is empty, has a zero byte, or is longer than addresses are.
    pub(crate) fn of(path: &Path) -> Result<Self, Error> {
        let bytes = path.as_os_str().as_bytes();
        let socket = match bytes.split_first() {
            Some((b'@', name)) if !name.is_empty() => SocketAddrUnix::new_abstract_name(name),
            Some((b'@', _)) | None => Err(rustix::io::Errno::INVAL),
            Some(_) => SocketAddrUnix::new(path),
        };
        let wrong = |error| {
            let shown = path.display();
            let why = match error {
                rustix::io::Errno::NAMETOOLONG => format!(
                    "{shown} has {} bytes, and the path of a socket at most {LONGEST}",
                    bytes.len()
                ),
                _ => format!("{shown} is no address of a socket"),
            };
            std::io::Error::new(ErrorKind::InvalidInput, why)
        };
        let socket = socket.map_err(wrong).map_err(Error::system("socket"))?;
        let path = path.to_owned();
        Ok(Self { socket, path })
    }

    /// Of a service there that does not answer in time.
    pub(crate) fn silent(&self) -> Error {
        let text = format!("the service at {self}: {SILENT}");
        Error::system("connect")(std::io::Error::new(ErrorKind::TimedOut, text))
    }

    /// As the kernel takes it.
    pub(crate) const fn socket(&self) -> &SocketAddrUnix {
        &self.socket
    }

    /// The file that it leaves, if it is no abstract name.
    pub(crate) fn file(&self) -> Option<&Path> {
        let is_abstract = self.path.as_os_str().as_bytes().first() == Some(&b'@');
        (!is_abstract).then_some(&*self.path)
    }
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}
