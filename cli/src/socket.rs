//! Sockets on the command line and in the environment: a name that begins with `@` is one without
//! a file (an abstract name, unix(7)), all others are paths.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The file of a socket; an error has the name of one without.
pub(crate) fn file(socket: &OsStr) -> Result<&Path, &[u8]> {
    match socket.as_bytes() {
        [b'@', name @ ..] => Err(name),
        _ => Ok(Path::new(socket)),
    }
}

/// The same socket, for a process in whatever folder.
///
/// # Errors
/// The path is empty, or this process has no folder.
pub(crate) fn absolute(socket: &Path) -> io::Result<PathBuf> {
    match file(socket.as_os_str()) {
        Ok(path) => std::path::absolute(path),
        Err(_) => Ok(socket.to_owned()),
    }
}

/// The socket as the system takes it.
///
/// # Errors
/// It is too long, or has a zero byte.
pub(crate) fn address(socket: &OsStr) -> io::Result<SocketAddr> {
    match file(socket) {
        Ok(path) => SocketAddr::from_pathname(path),
        Err(name) => SocketAddr::from_abstract_name(name),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_file_stay_and_paths_become_absolute() {
        assert_eq!(file(OsStr::new("@here")), Err(&b"here"[..]));
        assert_eq!(file(OsStr::new("./@here")), Ok(Path::new("./@here")));
        let of = |socket: &str| absolute(Path::new(socket)).unwrap();
        assert_eq!(of("@here"), Path::new("@here"));
        assert_eq!(of("/run/it"), Path::new("/run/it"));
        assert!(of("it").is_absolute() && of("it").ends_with("it"));
        assert!(absolute(Path::new("")).is_err());
    }
}
