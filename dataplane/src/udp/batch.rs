//! Hands units to the kernel, several per system call.

use super::control::Control;
use super::queue::Unit;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use trunkline_wire::Path;

/// Traffic class of what sockets send unless a message says otherwise: best effort, ECN-capable
/// (ECT(0)), as shared connections have it. Saying it with each costs 0.3 us.
pub(super) const USUAL_CLASS: u8 = 0b10;

/// What all messages of a port have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addressing {
    /// Destination port.
    pub(super) port: u16,
    /// Interface that link-local addresses belong to.
    pub(super) scope: u32,
    /// The sockets have no address of their own: say where each message comes from.
    pub(super) set_source: bool,
    /// The kernel takes flow labels that nobody asked it for.
    pub(super) labels: bool,
}

/// The structures that `sendmmsg` reads, filled anew for each call.
pub(super) struct Batch {
    addressing: Addressing,
    headers: Vec<libc::mmsghdr>,
    pieces: Vec<libc::iovec>,
    names: Vec<Name>,
    controls: Vec<Control>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("addressing", &self.addressing)
            .finish_non_exhaustive()
    }
}

// SAFETY: the pointers inside lead to the vectors beside them, and are written before each use.
unsafe impl Send for Batch {}

/// A socket address of either family, as the kernel reads it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    pub(super) const BYTES: u32 = size_of::<Self>() as u32;

    pub(super) const fn new() -> Self {
        let v6 = libc::sockaddr_in6 {
            sin6_family: 0,
            sin6_port: 0,
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
            sin6_scope_id: 0,
        };
        Self { v6 }
    }

    /// The address in it, if it is one.
    pub(super) fn address(&self) -> Option<IpAddr> {
        // SAFETY: all bytes of the union are initialized, and any are good for either view; both
        // begin with the family.
        let (v4, v6) = unsafe { (self.v4, self.v6) };
        match i32::from(v6.sin6_family) {
            libc::AF_INET => Some(IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes())),
            libc::AF_INET6 => Some(IpAddr::from(v6.sin6_addr.s6_addr)),
            _ => None,
        }
    }

    /// Writes where packets of a path go; gives how many bytes that has. A flow label goes with the
    /// address (`IPV6_FLOWINFO_SEND`, ipv6(7)); 0 leaves it to the kernel.
    fn set(&mut self, path: &Path, addressing: &Addressing) -> u32 {
        let Addressing {
            port,
            scope,
            labels,
            ..
        } = *addressing;
        match path.dst {
            IpAddr::V4(address) => {
                self.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: port.to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(address.octets()),
                    },
                    sin_zero: [0; 8],
                };
                size_of::<libc::sockaddr_in>() as u32
            }
            IpAddr::V6(address) => {
                let scope = if address.is_unicast_link_local() {
                    scope
                } else {
                    0
                };
                let label = if labels { path.ip.flow_label() } else { 0 };
                self.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: port.to_be(),
                    sin6_flowinfo: label.to_be(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.octets(),
                    },
                    sin6_scope_id: scope,
                };
                size_of::<libc::sockaddr_in6>() as u32
            }
        }
    }

    /// The address and port that the kernel wrote, `bytes` long.
    pub(super) fn read(&self, bytes: u32) -> Option<(IpAddr, u16)> {
        // SAFETY: both begin with the family, and all bytes are initialised.
        let family = i32::from(unsafe { self.v4.sin_family });
        if family == libc::AF_INET && bytes as usize >= size_of::<libc::sockaddr_in>() {
            // SAFETY: the family says so; any bytes are a valid value.
            let name = unsafe { self.v4 };
            let address = IpAddr::from(name.sin_addr.s_addr.to_ne_bytes());
            Some((address, u16::from_be(name.sin_port)))
        } else if family == libc::AF_INET6 && bytes as usize >= size_of::<libc::sockaddr_in6>() {
            // SAFETY: as above.
            let name = unsafe { self.v6 };
            Some((
                IpAddr::from(name.sin6_addr.s6_addr),
                u16::from_be(name.sin6_port),
            ))
        } else {
            None
        }
    }
}

/// A message header that leads nowhere yet.
pub(super) const fn empty_header() -> libc::mmsghdr {
    // SAFETY: all zeros are a valid `mmsghdr`: null pointers and no lengths.
    unsafe { std::mem::zeroed() }
}

impl Batch {
    /// Most units of one call.
    pub(super) const MOST: usize = 32;

    pub(super) fn new(addressing: Addressing) -> Self {
        let none = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Self {
            addressing,
            headers: vec![empty_header(); Self::MOST],
            pieces: vec![none; Self::MOST],
            names: vec![Name::new(); Self::MOST],
            controls: vec![Control::new(); Self::MOST],
        }
    }

    /// Sends no more flow labels; gives whether it did before.
    pub(super) const fn stop_labels(&mut self) -> bool {
        std::mem::replace(&mut self.addressing.labels, false)
    }

    /// Sends `units`, at least one and at most [`MOST`](Self::MOST), which lie in `arena`; gives
    /// how many the kernel took, at least one.
    ///
    /// # Errors
    /// What the kernel said of the first one.
    pub(super) fn send(
        &mut self,
        socket: RawFd,
        units: &[Unit],
        arena: &[u8],
    ) -> io::Result<usize> {
        for (i, unit) in units.iter().enumerate() {
            self.fill(i, unit, &arena[unit.range()]);
        }
        let headers = &mut self.headers[..units.len()];
        // One message goes quicker without an array around it, and quicker still with no control.
        let sent = match headers {
            // SAFETY: `fill` made every pointer of the header lead to live memory of its length.
            [header] => unsafe { send_one(socket, &header.msg_hdr) }.min(1),
            headers => {
                let (first, count) = (headers.as_mut_ptr(), headers.len() as u32);
                // SAFETY: as above; there are `count` headers.
                let sent = unsafe { libc::sendmmsg(socket, first, count, libc::MSG_DONTWAIT) };
                sent as isize
            }
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    fn fill(&mut self, i: usize, unit: &Unit, bytes: &[u8]) {
        let piece = &mut self.pieces[i];
        // The kernel only reads what a send points to.
        piece.iov_base = bytes.as_ptr().cast_mut().cast();
        piece.iov_len = bytes.len();
        let name = &mut self.names[i];
        let name_length = name.set(&unit.packet.path, &self.addressing);
        let control = &mut self.controls[i];
        let control_length = self.addressing.control(control, unit);
        let header = &mut self.headers[i].msg_hdr;
        header.msg_name = (&raw mut *name).cast();
        header.msg_namelen = name_length;
        header.msg_iov = piece;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        // The width of the field differs between C libraries.
        header.msg_controllen = control_length as _;
    }
}

/// `sendmsg`, or what is quicker and does the same: the bare call, without what the C library does
/// around it for threads that are cancelled.
///
/// # Safety
/// The pointers of `header` lead to live memory of their lengths; it has one piece.
unsafe fn send_one(socket: RawFd, header: &libc::msghdr) -> isize {
    let flags = libc::MSG_DONTWAIT;
    if header.msg_controllen > 0 {
        let header = std::ptr::from_ref(header);
        // SAFETY: the caller's promise; these are the arguments of `sendmsg`.
        return unsafe { libc::syscall(libc::SYS_sendmsg, socket, header, flags) } as isize;
    }
    // SAFETY: the caller's promise.
    let piece = unsafe { &*header.msg_iov };
    let (from, length) = (piece.iov_base, piece.iov_len);
    let (name, bytes) = (header.msg_name, header.msg_namelen);
    // SAFETY: the caller's promise; these are the arguments of `sendto`.
    unsafe { libc::syscall(libc::SYS_sendto, socket, from, length, flags, name, bytes) as isize }
}

impl Addressing {
    /// Writes what the kernel has to know of `unit`; gives the bytes it takes.
    fn control(&self, control: &mut Control, unit: &Unit) -> usize {
        let mut used = 0;
        if unit.packet.count > 1 {
            let segment = (unit.packet.segment as u16).to_ne_bytes();
            used = control.push(used, libc::SOL_UDP, libc::UDP_SEGMENT, &segment);
        }
        let Path {
            src,
            traffic_class,
            ip,
            ..
        } = unit.packet.path;
        let class = i32::from(traffic_class).to_ne_bytes();
        let hops = i32::from(ip.hop_limit()).to_ne_bytes();
        match src {
            IpAddr::V4(src) => {
                if traffic_class != USUAL_CLASS {
                    used = control.push(used, libc::IPPROTO_IP, libc::IP_TOS, &class);
                }
                if ip.hop_limit() != 0 {
                    used = control.push(used, libc::IPPROTO_IP, libc::IP_TTL, &hops);
                }
                if self.set_source {
                    // ipi_ifindex (any), ipi_spec_dst, ipi_addr (unused).
                    let mut info = [0; 12];
                    info[4..8].copy_from_slice(&src.octets());
                    used = control.push(used, libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
                }
            }
            IpAddr::V6(src) => {
                if traffic_class != USUAL_CLASS {
                    used = control.push(used, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class);
                }
                if ip.hop_limit() != 0 {
                    used = control.push(used, libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &hops);
                }
                if self.set_source {
                    // ipi6_addr, ipi6_ifindex (any).
                    let mut info = [0; 20];
                    info[..16].copy_from_slice(&src.octets());
                    used = control.push(used, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
                }
            }
        }
        used
    }
}
