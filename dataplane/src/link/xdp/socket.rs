//! Makes the socket, its rings, and binds it to a queue.

use super::error::XdpOpenError;
use super::rings::{Consumer, Producer};
use super::umem::Umem;
use crate::udp::InterfaceName;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

/// How long something that is busy is waited for: when a socket is closed, the kernel lets go of
/// its queue a moment later (Documentation/networking/af_xdp.rst says nothing of it).
const PATIENCE_TRIES: u32 = 100;
const PATIENCE_PAUSE: Duration = Duration::from_millis(5);

/// Option of how many frames one call sends in copy mode, from Linux 6.17 on. Less than that is 32.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

/// Entries of the rings, powers of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Of the fill ring and the RX ring.
    pub(super) receive: u32,
    /// Of the TX ring and the completion ring.
    pub(super) send: u32,
}

/// The rings of a socket.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) fill: Producer<u64>,
    pub(super) rx: Consumer<libc::xdp_desc>,
    pub(super) tx: Producer<libc::xdp_desc>,
    pub(super) completion: Consumer<u64>,
}

/// How a socket was bound.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Bound {
    /// The card reads and writes the shared memory itself.
    pub(super) zero_copy: bool,
    /// Frames may lie in several chunks.
    pub(super) multi_buffer: bool,
}

/// A socket on `umem`, not bound yet.
pub(super) fn open(umem: &Umem, sizes: Sizes) -> Result<(OwnedFd, Rings), XdpOpenError> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: touches no memory.
    let descriptor = unsafe { libc::socket(libc::AF_XDP, kind, 0) };
    if descriptor < 0 {
        let error = io::Error::last_os_error();
        return Err(XdpOpenError::of("socket(AF_XDP)", error));
    }
    // SAFETY: the call just made it, and nobody else knows of it.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    umem.register(socket.as_fd())
        .map_err(|source| match source.raw_os_error() {
            Some(libc::ENOBUFS) => XdpOpenError::LockedMemory {
                bytes: umem.bytes(),
            },
            _ => XdpOpenError::of("setsockopt(XDP_UMEM_REG)", source),
        })?;
    for (option, entries) in [
        (libc::XDP_UMEM_FILL_RING, sizes.receive),
        (libc::XDP_UMEM_COMPLETION_RING, sizes.send),
        (libc::XDP_RX_RING, sizes.receive),
        (libc::XDP_TX_RING, sizes.send),
    ] {
        set(descriptor, option, &entries)
            .map_err(|error| XdpOpenError::of("setsockopt(XDP_RX_RING)", error))?;
    }
    // Where these are refused, a burst takes more calls.
    let _ = set(descriptor, XDP_MAX_TX_SKB_BUDGET, &sizes.send);
    let room = i32::try_from(umem.bytes()).unwrap_or(i32::MAX);
    let _ = set_at(descriptor, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &room);
    let rings = map(descriptor, sizes).map_err(|source| XdpOpenError::System {
        call: "mmap of the rings",
        source,
    })?;
    Ok((socket, rings))
}

fn map(socket: RawFd, sizes: Sizes) -> io::Result<Rings> {
    const NONE: libc::xdp_ring_offset = libc::xdp_ring_offset {
        producer: 0,
        consumer: 0,
        desc: 0,
        flags: 0,
    };
    let mut offsets = libc::xdp_mmap_offsets {
        rx: NONE,
        tx: NONE,
        fr: NONE,
        cr: NONE,
    };
    get(socket, libc::XDP_MMAP_OFFSETS, &mut offsets)?;
    let (fill, completion) = (
        libc::XDP_UMEM_PGOFF_FILL_RING as i64,
        libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64,
    );
    Ok(Rings {
        fill: Producer::map(socket, fill, &offsets.fr, sizes.receive)?,
        rx: Consumer::map(socket, libc::XDP_PGOFF_RX_RING, &offsets.rx, sizes.receive)?,
        tx: Producer::map(socket, libc::XDP_PGOFF_TX_RING, &offsets.tx, sizes.send)?,
        completion: Consumer::map(socket, completion, &offsets.cr, sizes.send)?,
    })
}

/// Which ways to bind a socket come into question.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wishes {
    /// Without copies: where the program runs in the driver.
    pub(super) zero_copy: bool,
    /// With several chunks for a frame: where the program takes that.
    pub(super) multi_buffer: bool,
    /// Not with one chunk for a frame, rather with copies.
    pub(super) no_single: bool,
}

/// Binds a socket to a queue, in the best way that kernel and driver take.
pub(super) fn bind(
    socket: &OwnedFd,
    place: &Place,
    queue: u32,
    wishes: Wishes,
) -> Result<Bound, XdpOpenError> {
    let (index, interface) = (place.index, place.name);
    let bound = |zero_copy, multi_buffer| Bound {
        zero_copy,
        multi_buffer,
    };
    let ways = [
        bound(true, true),
        bound(true, false),
        bound(false, true),
        bound(false, false),
    ];
    let mut refusal = io::Error::from(io::ErrorKind::Unsupported);
    for way in ways {
        if way.zero_copy && !wishes.zero_copy
            || way.multi_buffer && !wishes.multi_buffer
            || !way.multi_buffer && wishes.no_single
        {
            continue;
        }
        let Err(error) = unless_busy(|| bind_as(socket.as_raw_fd(), index, queue, way)) else {
            return Ok(way);
        };
        match error.raw_os_error() {
            Some(libc::EBUSY) => return Err(XdpOpenError::QueueTaken { interface, queue }),
            Some(libc::ENODEV) => return Err(XdpOpenError::NoInterface { interface: index }),
            Some(libc::EPERM) => return Err(XdpOpenError::of("bind", error)),
            _ => {}
        }
        refusal = error;
    }
    Err(match refusal.raw_os_error() {
        // All else in the last way is right.
        Some(libc::EINVAL) => XdpOpenError::NoSuchQueue { interface, queue },
        _ => XdpOpenError::of("bind", refusal),
    })
}

fn bind_as(socket: RawFd, interface: u32, queue: u32, way: Bound) -> io::Result<()> {
    let copies = if way.zero_copy {
        libc::XDP_ZEROCOPY
    } else {
        libc::XDP_COPY
    };
    let several = if way.multi_buffer {
        libc::XDP_USE_SG
    } else {
        0
    };
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: copies | several | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address leads to a live `sockaddr_xdp` of this length.
    let result = unsafe { libc::bind(socket, (&raw const address).cast(), length) };
    done(result)
}

/// Repeats what is busy, for a while.
pub(super) fn unless_busy<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..PATIENCE_TRIES {
        match call() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                thread::sleep(PATIENCE_PAUSE);
            }
            other => return other,
        }
    }
    call()
}

/// Sets an option of AF_XDP sockets.
pub(super) fn set<T: Copy>(socket: RawFd, option: i32, value: &T) -> io::Result<()> {
    set_at(socket, libc::SOL_XDP, option, value)
}

/// Sets an option of a level.
pub(super) fn set_at<T: Copy>(socket: RawFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let value: *const T = value;
    // SAFETY: `value` leads to so many bytes, which are read only.
    done(unsafe { libc::setsockopt(socket, level, option, value.cast(), length) })
}

/// Reads an option of AF_XDP sockets into a structure of integers that is exactly as long.
pub(super) fn get<T: Copy>(socket: RawFd, option: i32, value: &mut T) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    let (value, got): (*mut T, _) = (value, &raw mut length);
    // SAFETY: `value` leads to so many bytes; the kernel writes no more than that, and any bytes
    // make integers.
    let result = unsafe { libc::getsockopt(socket, libc::SOL_XDP, option, value.cast(), got) };
    done(result)?;
    if length as usize == size_of::<T>() {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::InvalidData))
    }
}

/// An interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) index: u32,
    pub(super) name: InterfaceName,
    /// Without the Ethernet header.
    pub(super) mtu: usize,
}

impl Place {
    /// The interface of that index in the network namespace of this thread.
    pub(super) fn of(index: u32) -> Result<Self, XdpOpenError> {
        let (name, mtu) = asked(index)?;
        Ok(Self { index, name, mtu })
    }
}

/// The name and the MTU of an interface.
fn asked(interface: u32) -> Result<(InterfaceName, usize), XdpOpenError> {
    let system = |call| move |source| XdpOpenError::System { call, source };
    let any = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)
        .map_err(system("socket"))?;
    let none = XdpOpenError::NoInterface { interface };
    let Ok(number) = i32::try_from(interface) else {
        return Err(none);
    };
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_ifindex: number,
        },
    };
    for (call, number) in [
        ("ioctl(SIOCGIFNAME)", libc::SIOCGIFNAME),
        ("ioctl(SIOCGIFMTU)", libc::SIOCGIFMTU),
    ] {
        // SAFETY: both calls take an `ifreq`, which is live; the first writes the name for the
        // second.
        let result = unsafe { libc::ioctl(any.as_raw_fd(), number as _, &raw mut request) };
        match done(result) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Err(none),
            other => other.map_err(system(call))?,
        }
    }
    // SAFETY: the second call wrote this field, and any bytes make an integer.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    let name = request.ifr_name.map(libc::c_char::cast_unsigned);
    Ok((InterfaceName::new(&name), usize::try_from(mtu).unwrap_or(0)))
}

pub(super) fn done(result: i32) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
