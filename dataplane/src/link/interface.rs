//! The interface that raw frames go through.

use super::LinkOpenError;
use crate::port::PortError;
use crate::udp::InterfaceName;
use crate::udp::interface::{self, request};
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
        let name = name.ok_or(LinkOpenError::NotLocal { address })?;
        if found.scope == 0 {
            return Err(LinkOpenError::Down { interface: name });
        }
        let mac = mac(&name, socket)?;
        Ok(Self {
            index: found.scope,
            name,
            mac,
            mtu: found.mtu,
            queues: queues(&name, socket),
        })
    }

    /// The same interface as it is now: its name, its address of the link and its MTU change.
    ///
    /// # Errors
    /// It is gone.
    pub(super) fn now(&self, socket: BorrowedFd<'_>) -> Result<Self, PortError> {
        let Some(name) = name(self.index, socket) else {
            let interface = self.name;
            return Err(PortError::Gone { interface });
        };
        // One that is renamed in between is asked again the next time.
        let (Ok(mac), Some(mtu)) = (mac(&name, socket), interface::mtu(&name, socket)) else {
            return Ok(*self);
        };
        Ok(Self {
            name,
            mac,
            mtu,
            ..*self
        })
    }

    /// Whether it is a VLAN of another one (`ETHTOOL_GDRVINFO`). Where that does not insert tags by
    /// itself, the kernel looks for the headers of a super-packet in the wrong place, and loses it.
    pub(super) fn is_vlan(&self, socket: BorrowedFd<'_>) -> bool {
        driver(&self.name, socket).starts_with(VLAN)
    }
}

/// What the kernel calls the driver of VLANs.
const VLAN: &[u8] = b"802.1Q VLAN";

/// What the driver of an interface calls itself; zeros behind it, and where it does not say.
fn driver(name: &InterfaceName, socket: BorrowedFd<'_>) -> [u8; 32] {
    let mut info = DriverInfo {
        cmd: GET_DRIVER,
        ..DriverInfo::default()
    };
    ask_ethtool(name, socket, (&raw mut info).cast());
    info.driver
}

/// `struct ethtool_drvinfo`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    others: [[u8; 32]; 4],
    reserved: [u8; 12],
    counts: [u32; 5],
}

const _: () = assert!(size_of::<DriverInfo>() == 196);

/// `ETHTOOL_GDRVINFO`
const GET_DRIVER: u32 = 3;

/// Asks the driver of an interface what `question` begins with (`SIOCETHTOOL`); gives whether it
/// has answered.
fn ask_ethtool(name: &InterfaceName, socket: BorrowedFd<'_>, question: *mut libc::c_char) -> bool {
    let mut request = request(name);
    request.ifr_ifru.ifru_data = question;
    // SAFETY: this request reads and writes an `ifreq`, and the structure that its data leads to.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    asked == 0
}

/// How many receive queues are in use (`ETHTOOL_GCHANNELS`, linux/ethtool.h); one where the driver
/// does not tell.
fn queues(name: &InterfaceName, socket: BorrowedFd<'_>) -> u32 {
    let mut channels = Channels {
        cmd: GET_CHANNELS,
        ..Channels::default()
    };
    match ask_ethtool(name, socket, (&raw mut channels).cast()) {
        true => (channels.rx_count + channels.combined_count).max(1),
        false => 1,
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

/// What an interface is called (`SIOCGIFNAME`); `None`: there is none with this index.
fn name(index: u32, socket: BorrowedFd<'_>) -> Option<InterfaceName> {
    let mut request = request(&InterfaceName::new(b""));
    request.ifr_ifru.ifru_ifindex = index.cast_signed();
    // SAFETY: this request reads and writes an `ifreq`.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFNAME, &raw mut request) };
    let bytes = request.ifr_name.map(libc::c_char::cast_unsigned);
    (asked == 0).then(|| InterfaceName::new(&bytes))
}

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
