//! Error numbers of the operating system, as values.

use std::{fmt, io};

/// An error number of the operating system (errno(3)). Unlike [`io::Error`] it can be copied and
/// compared. It is shown as the system's text for it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Errno(i32);

impl Errno {
    /// Takes a number of errno(3).
    pub const fn new(code: i32) -> Self {
        Self(code)
    }

    /// Returns the number.
    pub const fn code(self) -> i32 {
        self.0
    }

    /// Returns what the user of a machine may look at that refuses to send datagrams for this
    /// reason.
    pub const fn advice(self) -> &'static str {
        match self.0 {
            libc::EPERM => "a firewall drops them: look at `nft list ruleset`",
            libc::EACCES => "a route or a firewall prohibits them: look at `ip route get`",
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EHOSTDOWN => {
                "there is no route: look at `ip route get`"
            }
            libc::ENETDOWN => "an interface is down: look at `ip link`",
            libc::EINVAL => "a loopback address reaches no other host: look at the node's address",
            _ => "look at errno(3), send(2) and ip(7)",
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}
