//! Asking a node of another process how it is.

use super::server::name;
use super::{PREFIX, Status};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Most bytes of an answer.
const MOST: u64 = 1 << 20;

/// Why a node cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// No node has the address, or one that does not want to be watched.
    #[error("no node that can be watched has address {0}")]
    NoNode(IpAddr),
    /// The node belongs to another user.
    #[error("the node at {address} belongs to user {uid}")]
    OtherUser {
        /// Its address.
        address: IpAddr,
        /// The user's ID.
        uid: u32,
    },
    /// It does not answer: stopped, or asked by too many.
    #[error("the node at {0} does not answer")]
    Silent(IpAddr),
    /// What it answers makes no sense here: another version.
    #[error("the node at {address} says what makes no sense here: {why}")]
    Garbled {
        /// Its address.
        address: IpAddr,
        /// What is wrong.
        why: serde_json::Error,
    },
    /// The operating system refused.
    #[error("cannot ask the node at {address}: {source}")]
    System {
        /// Its address.
        address: IpAddr,
        /// Why.
        source: io::Error,
    },
}

/// Asks the node at `address`, of this process or another one, how it is; it has `patience` to
/// answer. Only its own user and root are told.
///
/// # Errors
/// There is no such node, it is another user's, or it does not answer with sense.
pub fn ask(address: IpAddr, patience: Duration) -> Result<Status, StatusError> {
    let system = |source: io::Error| StatusError::System { address, source };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.map_err(|error| system(error.into()))?;
    let name = SocketAddrUnix::new_abstract_name(name(address).as_bytes());
    let name = name.map_err(|error| system(error.into()))?;
    match connect(&socket, &name) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED | Errno::NOENT) => return Err(StatusError::NoNode(address)),
        Err(Errno::AGAIN) => return Err(StatusError::Silent(address)),
        Err(error) => return Err(system(error.into())),
    }
    // Anybody may take a name: what another user says is not believed.
    let owner = socket_peercred(&socket).map_err(|error| system(error.into()))?;
    if !geteuid().is_root() && !owner.uid.is_root() && owner.uid != geteuid() {
        let uid = owner.uid.as_raw();
        return Err(StatusError::OtherUser { address, uid });
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false).map_err(system)?;
    stream.set_read_timeout(Some(patience)).map_err(system)?;
    let mut text = Vec::new();
    match stream.take(MOST).read_to_end(&mut text) {
        Ok(0) => {
            let uid = owner.uid.as_raw();
            return Err(StatusError::OtherUser { address, uid });
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(StatusError::Silent(address));
        }
        Err(error) => return Err(system(error)),
    }
    serde_json::from_slice(&text).map_err(|why| StatusError::Garbled { address, why })
}

/// Addresses of all nodes of this network namespace that can be watched, other users' included, in
/// order.
///
/// # Errors
/// The system does not tell: `/proc` is not there.
pub fn nodes() -> io::Result<Vec<IpAddr>> {
    let sockets = std::fs::read_to_string("/proc/net/unix")?;
    let mut found: Vec<IpAddr> = sockets.lines().filter_map(listener).collect();
    found.sort();
    found.dedup();
    Ok(found)
}

/// The node whose listening socket a line of `/proc/net/unix` is.
fn listener(line: &str) -> Option<IpAddr> {
    let name = line.split_whitespace().nth(7)?;
    name.strip_prefix('@')?.strip_prefix(PREFIX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_among_other_sockets() {
        let line = |name| {
            format!("00000000a1: 00000002 00000000 00010000 0001 01 24601 @trunkline/{name}")
        };
        assert_eq!(listener(&line("127.0.0.1")), "127.0.0.1".parse().ok());
        assert_eq!(listener(&line("fe80::1")), "fe80::1".parse().ok());
        assert_eq!(listener(&line("other")), None);
        let none = "00000000a1: 00000003 00000000 00000000 0001 03 24602";
        assert_eq!(listener(none), None);
        assert_eq!(listener("Num RefCount Protocol Flags"), None);
    }
}
