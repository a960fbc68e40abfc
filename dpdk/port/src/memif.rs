//! The socket by which both ends of `net_memif` meet.

use crate::error::DpdkOpenError;
use crate::leak::Listener;
use crate::spec::{DeviceSpec, Driver};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;

/// Where `net_memif` listens by itself.
const SOCKET: &str = "/run/memif.sock";

/// Where it is.
fn path(device: &DeviceSpec) -> &str {
    device.argument("socket").unwrap_or(SOCKET)
}

/// The path that a server listens at.
fn served(device: &DeviceSpec) -> Option<&str> {
    let serves = matches!(device.argument("role"), Some("server" | "master"));
    (device.driver() == Driver::Memif && serves).then(|| path(device))
}

/// Whether it calls a server.
pub(crate) fn calls(device: &DeviceSpec) -> bool {
    device.driver() == Driver::Memif && served(device).is_none()
}

/// What a server is about to listen on.
pub(crate) fn listener(device: &DeviceSpec) -> Option<Listener> {
    served(device).map(Listener::new)
}

/// A socket in a folder stays behind a process that was killed, and is in the way of the next.
pub(crate) fn remove_stale(device: &DeviceSpec) {
    let Some(path) = served(device) else { return };
    if device.argument("socket-abstract") != Some("no") {
        return;
    }
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    let refused = UnixStream::connect(path)
        .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
    if is_socket && refused {
        let _ = std::fs::remove_file(path);
    }
}

/// The same error in words about the socket, where it is about that.
pub(crate) fn explain(device: &DeviceSpec, error: DpdkOpenError) -> DpdkOpenError {
    let (DpdkOpenError::Call { said, .. }, Driver::Memif) = (&error, device.driver()) else {
        return error;
    };
    let path = path(device);
    let refused = said.split_once(&format!("Failed to setup socket {path}: "));
    let refused = refused.and_then(|(_, rest)| rest.split(';').next());
    let file = std::fs::symlink_metadata(path);
    let why = match refused {
        Some("Address already in use") if file.is_ok_and(|it| !it.file_type().is_socket()) => {
            "what is there is no socket: remove it, or give this device another socket="
        }
        Some("Address already in use") => {
            "a process serves there already: end it, or give this device another socket="
        }
        Some(other) => other,
        None if said.contains("Invalid socket directory") => {
            "it takes a path from / on, in a folder that is there and that this user may write to"
        }
        None => return error,
    };
    DpdkOpenError::Socket {
        device: device.name().to_owned(),
        path: path.to_owned(),
        why: why.to_owned(),
    }
}
