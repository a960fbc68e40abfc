//! The interface an address belongs to: its MTU and index, and which one is down.

use crate::port::LinkState;
use std::ffi::{CStr, OsStr};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What a port has to know of its interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Interface {
    /// Bytes of the longest IP packet.
    pub(crate) mtu: usize,
    /// Its index, which link-local addresses need beside them. 0 when several may be meant.
    pub(crate) scope: u32,
}

/// Name of an interface, as `ip link` shows it.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct InterfaceName {
    /// Up to the first zero.
    bytes: [u8; libc::IF_NAMESIZE],
}

impl InterfaceName {
    /// From as much of a name as the kernel lets one have.
    pub fn new(name: &[u8]) -> Self {
        let mut bytes = [0; libc::IF_NAMESIZE];
        let length = name.len().min(bytes.len() - 1);
        bytes[..length].copy_from_slice(&name[..length]);
        Self { bytes }
    }

    /// Its bytes, up to the first zero.
    pub(crate) fn bytes(&self) -> &[u8] {
        let name = self.bytes.split(|byte| *byte == 0).next();
        name.unwrap_or_default()
    }

    /// The interface that has `address`; `None`: none has it.
    ///
    /// # Errors
    /// When the system does not list its interfaces.
    pub fn of(address: IpAddr) -> io::Result<Option<Self>> {
        let all = list()?;
        let found = find(&all, address);
        Ok(found.map(|entry| Self::new(entry.name.to_bytes())))
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A name is any bytes: those of others must not move a terminal's cursor.
        self.bytes().escape_ascii().fmt(f)
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InterfaceName({self})")
    }
}

/// MTU when no interface claims the address.
const ETHERNET: usize = 1500;

/// The interface of `address`. For an unspecified address the smallest MTU of all that are up and
/// leave the machine.
///
/// # Errors
/// When the system does not list its interfaces.
pub(crate) fn of(address: IpAddr, socket: BorrowedFd<'_>) -> io::Result<Interface> {
    let mut all = list()?;
    all.retain(|entry| entry.up);
    let name = |entry: &Entry| InterfaceName::new(entry.name.to_bytes());
    let mtu = |entry: &Entry| mtu(&name(entry), socket).unwrap_or(ETHERNET);
    if address.is_unspecified() {
        let leaving = all.iter().filter(|entry| !entry.loopback);
        let mtu = leaving.map(mtu).min().unwrap_or(ETHERNET);
        return Ok(Interface { mtu, scope: 0 });
    }
    Ok(match find(&all, address) {
        Some(entry) => Interface {
            mtu: mtu(entry),
            scope: entry.index,
        },
        None => Interface {
            mtu: ETHERNET,
            scope: 0,
        },
    })
}

/// What the system says of the interface that has `address`.
pub(crate) fn link_state(address: IpAddr) -> Option<LinkState> {
    let all = list().ok()?;
    let entry = find(&all, address)?;
    Some(LinkState {
        works: entry.up && entry.running,
        rate_mbps: rate(&entry.name),
    })
}

/// Index of the interface that has `address`; `None`: no interface has it.
///
/// # Errors
/// When the system does not list its interfaces.
pub(crate) fn index(address: IpAddr) -> io::Result<Option<u32>> {
    Ok(find(&list()?, address).map(|entry| entry.index))
}

/// The interface that has `address`.
fn find(all: &[Entry], address: IpAddr) -> Option<&Entry> {
    let exact = all.iter().find(|entry| entry.address == Some(address));
    // Of the loopback network every address is local, though only the first is listed.
    let is_loop = |entry: &&Entry| entry.loopback && address.is_loopback();
    exact.or_else(|| all.iter().find(is_loop))
}

/// The rate of an interface in Mb/s, where it says one: the kernel gives -1 or an error otherwise.
fn rate(name: &CStr) -> Option<u32> {
    let folder = Path::new("/sys/class/net").join(OsStr::from_bytes(name.to_bytes()));
    let text = std::fs::read_to_string(folder.join("speed")).ok()?;
    text.trim().parse().ok().filter(|rate| *rate > 0)
}

/// The interface that is down, or not plugged in, where `peer` is on its network or, if that is so
/// of none, where it has the address `local`.
pub(crate) fn down(local: IpAddr, peer: IpAddr) -> Option<InterfaceName> {
    let all = list().ok()?;
    let mut down = all.iter().filter(|entry| !(entry.up && entry.running));
    let leads = |entry: &&Entry| entry.is_on_link(peer);
    let is_ours = |entry: &&Entry| entry.address == Some(local);
    let found = down.clone().find(leads).or_else(|| down.find(is_ours))?;
    Some(InterfaceName::new(found.name.to_bytes()))
}

/// One address of one interface.
struct Entry {
    name: Box<CStr>,
    index: u32,
    /// It is meant to work, and it can.
    up: bool,
    running: bool,
    loopback: bool,
    address: Option<IpAddr>,
    mask: Option<IpAddr>,
}

impl Entry {
    fn is_on_link(&self, peer: IpAddr) -> bool {
        match (self.address, self.mask, peer) {
            (Some(IpAddr::V4(ours)), Some(IpAddr::V4(mask)), IpAddr::V4(peer)) => {
                (ours.to_bits() ^ peer.to_bits()) & mask.to_bits() == 0
            }
            (Some(IpAddr::V6(ours)), Some(IpAddr::V6(mask)), IpAddr::V6(peer)) => {
                (ours.to_bits() ^ peer.to_bits()) & mask.to_bits() == 0
            }
            _ => false,
        }
    }
}

fn list() -> io::Result<Vec<Entry>> {
    let mut head = std::ptr::null_mut();
    // SAFETY: `head` receives the list.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut entries = Vec::new();
    let mut next = head;
    // SAFETY: null, or an element of the list, which lives until `freeifaddrs`.
    while let Some(element) = unsafe { next.as_ref() } {
        next = element.ifa_next;
        let flags = element.ifa_flags.cast_signed();
        // SAFETY: the name is a C string of the list.
        let name = unsafe { CStr::from_ptr(element.ifa_name) };
        // SAFETY: a C string.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        entries.push(Entry {
            name: name.into(),
            index,
            up: flags & libc::IFF_UP != 0,
            running: flags & libc::IFF_RUNNING != 0,
            loopback: flags & libc::IFF_LOOPBACK != 0,
            // SAFETY: null, or an address of the list.
            address: unsafe { address(element.ifa_addr) },
            // SAFETY: as the address.
            mask: unsafe { address(element.ifa_netmask) },
        });
    }
    // SAFETY: the list that `getifaddrs` made, which nothing refers to any more.
    unsafe { libc::freeifaddrs(head) };
    Ok(entries)
}

/// # Safety
/// `name` must be null or lead to a socket address of the length its family has.
unsafe fn address(name: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise.
    let family = i32::from(unsafe { name.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: the family says that it is one.
            let name = unsafe { name.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::from(name.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { name.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::from(name.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

/// A question about an interface (netdevice(7)).
pub(crate) fn request(name: &InterfaceName) -> libc::ifreq {
    // SAFETY: all zeros are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request
}

/// Bytes of the longest IP packet that an interface carries (`SIOCGIFMTU`).
pub(crate) fn mtu(name: &InterfaceName, socket: BorrowedFd<'_>) -> Option<usize> {
    let mut request = request(name);
    // SAFETY: this request reads and writes an `ifreq`.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) } != 0 {
        return None;
    }
    // SAFETY: the request filled in the MTU.
    usize::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_loop_works_and_has_no_rate_whichever_of_its_addresses_is_meant() {
        for last in [1, 77] {
            let link = link_state(Ipv4Addr::new(127, 0, 0, last).into());
            let (works, rate_mbps) = (true, None);
            assert_eq!(link, Some(LinkState { works, rate_mbps }));
        }
        assert_eq!(link_state(Ipv4Addr::new(192, 0, 2, 1).into()), None);
    }

    #[test]
    fn an_address_of_the_loop_is_on_the_loop_and_that_of_nobody_on_no_interface() {
        let name = InterfaceName::of(Ipv4Addr::new(127, 0, 0, 77).into());
        assert_eq!(name.expect("a list"), Some(InterfaceName::new(b"lo")));
        let name = InterfaceName::of(Ipv4Addr::new(192, 0, 2, 1).into());
        assert_eq!(name.expect("a list"), None);
    }
}
