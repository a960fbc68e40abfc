//! What the kernel knows of an interface that a driver of DPDK is put on.

use std::ffi::{CStr, CString};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use trunkline_dataplane::InterfaceName;
use trunkline_dataplane::link::xdp::XdpWatch;

/// An interface of the kernel, whatever namespace it is asked from later, and whatever it is called
/// then.
#[derive(Debug)]
pub(crate) struct KernelInterface {
    socket: OwnedFd,
    index: libc::c_int,
    name: InterfaceName,
}

impl KernelInterface {
    /// The one of that name in the namespace of this thread.
    ///
    /// # Errors
    /// There is none, or the system has no descriptor left.
    pub(crate) fn new(name: &str) -> io::Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: opens a descriptor.
        let socket = unsafe { libc::socket(libc::AF_INET, kind, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was opened just now, and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let mut interface = Self {
            socket,
            index: 0,
            name: InterfaceName::new(name.as_bytes()),
        };
        // SAFETY: all zeros are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let room = request.ifr_name.iter_mut();
        if name.len() >= room.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in room.zip(name.bytes()) {
            *to = from.cast_signed();
        }
        interface.ask(libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: the request filled it in.
        interface.index = unsafe { request.ifr_ifru.ifru_ifindex };
        Ok(interface)
    }

    /// What it was called when it was opened.
    pub(crate) const fn name(&self) -> InterfaceName {
        self.name
    }

    /// Its MTU.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn mtu(&self) -> io::Result<u32> {
        let mut request = self.named()?;
        self.ask(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: the request filled it in.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(mtu.cast_unsigned())
    }

    /// Whether it is up, and something is at the other end of its cable. One that is gone is not.
    pub(crate) fn works(&self) -> bool {
        self.flags().is_ok_and(|flags| {
            let wanted = libc::IFF_UP | libc::IFF_RUNNING;
            i32::from(flags) & wanted == wanted
        })
    }

    /// Whether it was deleted, or moved to another namespace.
    pub(crate) fn is_gone(&self) -> bool {
        self.named()
            .is_err_and(|error| error.raw_os_error() == Some(libc::ENODEV))
    }

    fn flags(&self) -> io::Result<libc::c_short> {
        let mut request = self.named()?;
        self.ask(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: the request filled it in.
        Ok(unsafe { request.ifr_ifru.ifru_flags })
    }

    /// A request with the name that it has now.
    fn named(&self) -> io::Result<libc::ifreq> {
        // SAFETY: all zeros are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = self.index;
        self.ask(libc::SIOCGIFNAME, &mut request)?;
        Ok(request)
    }

    /// Asks the kernel about an interface (netdevice(7)).
    fn ask(&self, what: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: requests of interfaces read and write an `ifreq`.
        let asked = unsafe { libc::ioctl(self.socket.as_raw_fd(), what, &raw mut *request) };
        match asked {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// How often it is looked for a program.
const LOOK: Duration = Duration::from_secs(1);

/// The XDP program that a driver has attached, and that anybody can take away: no frame comes then,
/// and the driver does not notice.
#[derive(Debug)]
pub(crate) struct Program(Mutex<Asked>);

#[derive(Debug)]
struct Asked {
    watch: XdpWatch,
    /// When it is to be asked again.
    due: Instant,
}

impl Program {
    /// That at an interface in the namespace of this thread; `None`: it is elsewhere.
    ///
    /// # Errors
    /// The system does not say.
    pub(crate) fn at(interface: &KernelInterface) -> io::Result<Option<Self>> {
        let mut watch = XdpWatch::new(interface.index.cast_unsigned())?;
        let is_there = watch.has_program()?;
        let due = Instant::now() + LOOK;
        Ok(is_there.then(|| Self(Mutex::new(Asked { watch, due }))))
    }

    /// Whether it was found to be gone by this call, which looks once a second.
    pub(crate) fn is_gone(&self) -> bool {
        // Another thread does it.
        let Ok(mut asked) = self.0.try_lock() else {
            return false;
        };
        let now = Instant::now();
        if now < asked.due {
            return false;
        }
        asked.due = now + LOOK;
        matches!(asked.watch.has_program(), Ok(false))
    }
}

/// An interface of this network namespace that nobody else has by AF_XDP of DPDK. The kernel gives
/// it back when the process ends, however that is.
#[derive(Debug)]
pub(crate) struct Sole {
    _name: UnixListener,
}

impl Sole {
    /// `None`: somebody has it.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub(crate) fn take(interface: &str) -> io::Result<Option<Self>> {
        // Abstract names are those of a network namespace, as interfaces are.
        let name = format!("trunkline-dpdk-xdp/{interface}");
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?) {
            Ok(_name) => Ok(Some(Self { _name })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The addresses of the kernel's interfaces, freed in the end (getifaddrs(3)).
struct Addresses(*mut libc::ifaddrs);

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: it is of getifaddrs(3), and used no more.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

/// How many bits of `address` all neighbours at an interface share; `None`: the kernel has not
/// given it to this interface.
pub(crate) fn prefix(name: &str, address: IpAddr) -> Option<u8> {
    let name = CString::new(name).ok()?;
    let mut first = std::ptr::null_mut();
    // SAFETY: room for a pointer.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return None;
    }
    let all = Addresses(first);
    let mut next = all.0;
    while !next.is_null() {
        // SAFETY: one of the list, which lives.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // SAFETY: entries have names that end with a zero.
        let its = unsafe { CStr::from_ptr(entry.ifa_name) };
        if its == name.as_c_str() && ip(entry.ifa_addr) == Some(address) {
            return ip(entry.ifa_netmask).map(ones);
        }
    }
    None
}

fn ones(mask: IpAddr) -> u8 {
    match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones() as u8,
        IpAddr::V6(mask) => mask.to_bits().leading_ones() as u8,
    }
}

/// An address of the list.
fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: an address of the list, which lives.
    let family = unsafe { (*address).sa_family };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: addresses of this family are so long; they need not be aligned.
            let found: libc::sockaddr_in =
                unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(found.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: addresses of this family are so long; they need not be aligned.
            let found: libc::sockaddr_in6 =
                unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(found.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}
