//! The interface that raw frames go through.

use super::LinkOpenError;
use crate::udp::InterfaceName;
use crate::udp::interface;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use trunkline_wire::Mac;

/// What a port has to know of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LinkInterface {
    /// Its index (netdevice(7)).
    pub index: u32,
    /// Its name.
    pub name: InterfaceName,
    /// Its address of the link; all zeros for a loop.
    pub mac: Mac,
    /// Bytes of the longest IP packet.
    pub mtu: usize,
    /// Its receive queues that are in use.
    pub queues: u32,
}

impl LinkInterface {
    /// The interface that has the address.
    ///
    /// # Errors
    /// None has it; it carries no Ethernet frames.
    pub(super) fn of(address: IpAddr, socket: BorrowedFd<'_>) -> Result<Self, LinkOpenError> {
        let system = |call| move |source| LinkOpenError::System { call, source };
        let found = interface::of(address, socket).map_err(system("getifaddrs"))?;
        let name = InterfaceName::of(address).map_err(system("getifaddrs"))?;
        let (Some(name), true) = (name, found.scope != 0) else {
            return Err(LinkOpenError::NotLocal { address });
        };
        let mac = mac(&name, socket)?;
        Ok(Self {
            index: found.scope,
            name,
            mac,
            mtu: found.mtu,
            queues: queues(&name, socket),
        })
    }
}

/// A question about an interface (netdevice(7)).
fn request(name: &InterfaceName) -> libc::ifreq {
    // SAFETY: all zeros are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request
}

/// How many receive queues are in use (`ETHTOOL_GCHANNELS`, linux/ethtool.h); one where the driver
/// does not tell.
fn queues(name: &InterfaceName, socket: BorrowedFd<'_>) -> u32 {
    let mut channels = Channels {
        cmd: GET_CHANNELS,
        ..Channels::default()
    };
    let mut request = request(name);
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: this request reads and writes an `ifreq`, and the structure that its data leads to.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    match asked {
        0 => (channels.rx_count + channels.combined_count).max(1),
        _ => 1,
    }
}

/// `struct ethtool_channels`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Channels {
    cmd: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx_count: u32,
    tx_count: u32,
    other_count: u32,
    combined_count: u32,
}

/// `ETHTOOL_GCHANNELS`
const GET_CHANNELS: u32 = 0x3c;

/// The address of the link (`SIOCGIFHWADDR`).
fn mac(name: &InterfaceName, socket: BorrowedFd<'_>) -> Result<Mac, LinkOpenError> {
    let mut request = request(name);
    // SAFETY: this request reads and writes an `ifreq`.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) };
    if asked != 0 {
        let (call, source) = ("ioctl(SIOCGIFHWADDR)", std::io::Error::last_os_error());
        return Err(LinkOpenError::System { call, source });
    }
    // SAFETY: the request filled in the address of the link.
    let found = unsafe { request.ifr_ifru.ifru_hwaddr };
    match found.sa_family {
        libc::ARPHRD_ETHER => {
            let mut bytes = [0; 6];
            for (to, from) in bytes.iter_mut().zip(found.sa_data) {
                *to = from.cast_unsigned();
            }
            Ok(Mac(bytes))
        }
        libc::ARPHRD_LOOPBACK => Ok(Mac::default()),
        _ => Err(LinkOpenError::NoEthernet { interface: *name }),
    }
}
