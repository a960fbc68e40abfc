//! The socket by which both ends of `net_memif` meet.

use crate::error::DpdkOpenError;
use crate::leak::{self, Listener};
use crate::spec::{DeviceSpec, Driver};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

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
    let refused =
        UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    if is_socket && refused {
        let _ = std::fs::remove_file(path);
    }
}

/// Tries to listen where a server is about to. Where the driver fails at that it keeps the device's
/// name, and nobody in this process could open the device again.
///
/// # Errors
/// The socket cannot be made.
pub(crate) fn check(device: &DeviceSpec) -> Result<(), DpdkOpenError> {
    // Devices of one process share a socket.
    let Some(path) = served(device).filter(|path| !leak::is_listened_at(path)) else {
        return Ok(());
    };
    let is_in_folder = device.argument("socket-abstract") == Some("no");
    // Names in no folder begin with a zero (unix(7)).
    let name = match is_in_folder {
        true => path.to_owned(),
        false => format!("\0{path}"),
    };
    // Of another type it could be there beside.
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None);
    let made = socket.and_then(|socket| {
        socket.bind(&SockAddr::unix(name)?)?;
        Ok(socket)
    });
    let error = match made {
        Ok(socket) => {
            drop(socket);
            if is_in_folder {
                let _ = std::fs::remove_file(path);
            }
            return Ok(());
        }
        // The driver says what is wrong with a name, and before it keeps that of the device.
        Err(error) if error.kind() == ErrorKind::InvalidInput => return Ok(()),
        Err(_) if is_in_folder && !Path::new(path).parent().is_some_and(Path::is_dir) => {
            return Ok(());
        }
        Err(error) => error,
    };
    let file = std::fs::symlink_metadata(path);
    let why = match error.kind() {
        ErrorKind::AddrInUse if file.is_ok_and(|it| !it.file_type().is_socket()) => {
            "what is there is no socket: remove it, or give this device another socket=".to_owned()
        }
        ErrorKind::AddrInUse => {
            "a process serves there already: end it, or give this device another socket=".to_owned()
        }
        _ => error.to_string(),
    };
    Err(unusable(device, why))
}

/// The same error in words about the socket, where it is about that.
pub(crate) fn explain(device: &DeviceSpec, error: DpdkOpenError) -> DpdkOpenError {
    let (DpdkOpenError::Call { said, .. }, Driver::Memif) = (&error, device.driver()) else {
        return error;
    };
    if !said.contains("Invalid socket directory") {
        return error;
    }
    let why =
        "it takes a path from / on, in a folder that is there and that this user may write to";
    unusable(device, why.to_owned())
}

fn unusable(device: &DeviceSpec, why: String) -> DpdkOpenError {
    DpdkOpenError::Socket {
        device: device.name().to_owned(),
        path: path(device).to_owned(),
        why,
    }
}
