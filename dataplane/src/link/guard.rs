//! Keeps the kernel out of what a port of raw frames does on its address.
//!
//! The kernel gets the same frames, or some of them. Without a socket on the UDP port it would
//! answer each with an ICMP error, and another node could take the address. So a socket has both,
//! and a filter that drops all that comes to it. To it the kernel gives the ICMP errors, too, that
//! come for what was sent past it.

use crate::bpf;
use crate::port::PortEvent;
use crate::udp::{Errors, UdpConfig, UdpOpenError, bound, set};
use socket2::Socket;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The socket on the node's address.
#[derive(Debug)]
pub(super) struct Guard(Socket);

impl Guard {
    /// # Errors
    /// Another socket has the address, or no interface does.
    pub(super) fn open(address: IpAddr) -> Result<Self, UdpOpenError> {
        let config = UdpConfig {
            socket_bytes: 0,
            ..UdpConfig::new(address)
        };
        let socket = bound(&config, config.port, false)?;
        drop_all(&socket).map_err(|source| UdpOpenError::System {
            call: "setsockopt(SO_ATTACH_FILTER)",
            source,
        })?;
        let errors = match address {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVERR),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        };
        // Where it is refused, nobody who is not there is told from who is silent.
        let _ = set(&socket, errors, 1);
        Ok(Self(socket))
    }

    /// What ICMP errors tell that came since this was asked last.
    pub(super) fn refused(&self) -> Vec<PortEvent> {
        Errors::read(self.0.as_raw_fd()).refused
    }
}

impl AsFd for Guard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A filter that keeps 0 bytes of whatever comes.
fn drop_all(socket: &Socket) -> std::io::Result<()> {
    let option = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    bpf::attach(socket, option, &mut [bpf::answer(0)])
}
