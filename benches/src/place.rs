//! Where the two processes of a benchmark stand: on loopback, or at the ends of a veth pair.

use crate::link::{EAST, Link, Side, WEST};
use anyhow::Result;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

/// Where two processes stand.
#[derive(Debug)]
pub(crate) enum Place {
    /// In this network namespace, at addresses that no other benchmark has at the same time.
    Loopback,
    /// At the ends of a veth pair, in a network namespace each.
    Veth(Link),
}

impl Place {
    /// The ends of a new veth pair.
    ///
    /// # Errors
    /// As [`Link::new`].
    pub(crate) fn veth(program: &Path) -> Result<Self> {
        Ok(Self::Veth(Link::new(program)?))
    }

    /// In a word.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth(_) => "veth",
        }
    }

    /// The address of an end.
    pub(crate) fn address(&self, side: Side) -> IpAddr {
        match (self, side) {
            (Self::Loopback, Side::East) => on_loopback(1),
            (Self::Loopback, Side::West) => on_loopback(2),
            (Self::Veth(_), Side::East) => EAST,
            (Self::Veth(_), Side::West) => WEST,
        }
    }

    /// A command that will run at one end.
    pub(crate) fn command(&self, side: Side, program: impl AsRef<OsStr>) -> Command {
        match self {
            Self::Loopback => Command::new(program),
            Self::Veth(link) => link.command(side, program),
        }
    }
}

/// One of the addresses of this process. Tests keep to the lower half of 127.0.0.0/8.
fn on_loopback(last: u8) -> IpAddr {
    let [.., a, b] = std::process::id().to_be_bytes();
    IpAddr::from([127, 128 | a, b, last])
}
