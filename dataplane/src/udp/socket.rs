//! Makes the sockets of a port and sets their options.

use super::batch::USUAL_CLASS;
use super::owner::Owner;
use super::{UdpConfig, UdpOpenError};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use trunkline_wire::{Path, Workers};

/// The socket that receives, and those that only send.
#[derive(Debug)]
pub(super) struct Sockets {
    /// The first one receives.
    sockets: Vec<Socket>,
    /// Their ports, in the same order.
    ports: Vec<u16>,
    local: SocketAddr,
    segmentation: bool,
    coalescing: bool,
}

impl Sockets {
    pub(super) fn open(config: &UdpConfig) -> Result<Self, UdpOpenError> {
        Self::around(config, bound(config, config.port, false)?)
    }

    /// One port for each worker, on one address.
    ///
    /// The first is bound as one that shares its address with nobody: where another process has it,
    /// that fails. Only then may others join it. A stranger who does, which only another process of
    /// the same user can, gets nothing: packets go to the first ones, by their index.
    pub(super) fn open_group(
        config: &UdpConfig,
        workers: Workers,
    ) -> Result<Vec<Self>, UdpOpenError> {
        let system = |call| move |source| UdpOpenError::System { call, source };
        let first = Self::open(config)?;
        if workers == Workers::ONE {
            return Ok(vec![first]);
        }
        let share = (libc::SOL_SOCKET, libc::SO_REUSEPORT);
        set(first.main(), share, 1).map_err(system("setsockopt(SO_REUSEPORT)"))?;
        let port = first.local.port();
        let mut group = vec![first];
        for _ in 1..workers.count() {
            group.push(Self::around(config, bound(config, port, true)?)?);
        }
        super::steer::attach(group[0].main(), workers)
            .map_err(system("setsockopt(SO_ATTACH_REUSEPORT_CBPF)"))?;
        Ok(group)
    }

    /// All sockets of a port, of which `main` receives.
    fn around(config: &UdpConfig, main: Socket) -> Result<Self, UdpOpenError> {
        let system = |call| move |source| UdpOpenError::System { call, source };
        let local = local_address(&main).map_err(system("getsockname"))?;
        let ipv6 = config.address.is_ipv6();
        let class = if ipv6 {
            (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)
        } else {
            (libc::IPPROTO_IP, libc::IP_RECVTOS)
        };
        set(&main, class, 1).map_err(system("setsockopt(IP_RECVTOS)"))?;
        if ipv6 {
            // RoCEv2 leaves the UDP checksum out, which IPv6 forbids but where it is asked for.
            let option = (libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX);
            set(&main, option, 1).map_err(system("setsockopt(UDP_NO_CHECK6_RX)"))?;
        }
        let errors = if ipv6 {
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        } else {
            (libc::IPPROTO_IP, libc::IP_RECVERR)
        };
        // Where it is refused, nobody who is not there is told from who is silent.
        let _ = set(&main, errors, 1);
        // Where it is refused, waiting in the socket counts as the network's.
        let _ = set(&main, (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS), 1);
        if config.address.is_unspecified() {
            let information = if ipv6 {
                (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)
            } else {
                (libc::IPPROTO_IP, libc::IP_PKTINFO)
            };
            set(&main, information, 1).map_err(system("setsockopt(IP_PKTINFO)"))?;
        }
        grow(
            &main,
            libc::SO_RCVBUFFORCE,
            libc::SO_RCVBUF,
            config.socket_bytes,
        );
        // Refused by kernels before 4.18 and 5.0; setting the segment to 0 changes nothing
        // elsewhere.
        let segmentation =
            config.segmentation && set(&main, (libc::SOL_UDP, libc::UDP_SEGMENT), 0).is_ok();
        let coalescing = config.coalescing && set(&main, (libc::SOL_UDP, libc::UDP_GRO), 1).is_ok();
        let mut sockets = vec![main];
        let mut ports = vec![local.port()];
        for _ in 0..config.extra_source_ports {
            let socket = bound(config, 0, false)?;
            ports.push(
                local_address(&socket)
                    .map_err(system("getsockname"))?
                    .port(),
            );
            // Nobody should send to it; what comes nevertheless is not worth memory.
            grow(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, 0);
            sockets.push(socket);
        }
        Ok(Self {
            sockets,
            ports,
            local,
            segmentation,
            coalescing,
        })
    }

    /// The socket that packets along `path` leave from: `None` when none of these can send them.
    pub(super) fn choose(&self, path: &Path) -> Option<usize> {
        let address = self.local.ip();
        let from_here = if address.is_unspecified() {
            path.src.is_ipv4() == address.is_ipv4()
        } else {
            path.src == address
        };
        let one_family = path.src.is_ipv4() == path.dst.is_ipv4();
        let socket = self.ports.iter().position(|port| *port == path.src_port);
        socket.filter(|_| from_here && one_family)
    }

    pub(super) fn get(&self, socket: usize) -> BorrowedFd<'_> {
        self.sockets[socket].as_fd()
    }

    /// All of them, the one that receives first.
    pub(super) fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }

    pub(super) fn main(&self) -> &Socket {
        &self.sockets[0]
    }

    pub(super) const fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn source_ports(&self) -> &[u16] {
        &self.ports
    }

    pub(super) const fn segmentation(&self) -> bool {
        self.segmentation
    }

    pub(super) const fn coalescing(&self) -> bool {
        self.coalescing
    }
}

/// A socket on `port` of the configured address, with what sending needs. If it `joins`, other
/// sockets have that port, and share it.
pub(crate) fn bound(config: &UdpConfig, port: u16, joins: bool) -> Result<Socket, UdpOpenError> {
    let system = |call| move |source| UdpOpenError::System { call, source };
    let address = SocketAddr::new(config.address, port);
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )
    .map_err(system("socket"))?;
    socket
        .set_nonblocking(true)
        .map_err(system("fcntl(O_NONBLOCK)"))?;
    let (discover, class) = match config.address {
        IpAddr::V4(_) => (
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            (libc::IPPROTO_IP, libc::IP_TOS),
        ),
        IpAddr::V6(_) => {
            socket
                .set_only_v6(true)
                .map_err(system("setsockopt(IPV6_V6ONLY)"))?;
            (
                (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            )
        }
    };
    // Of ICMP messages about the path's MTU, which anybody can forge, nothing is believed.
    const { assert!(libc::IP_PMTUDISC_PROBE == libc::IPV6_PMTUDISC_PROBE) }
    set(&socket, discover, libc::IP_PMTUDISC_PROBE)
        .map_err(system("setsockopt(IP_MTU_DISCOVER)"))?;
    set(&socket, class, USUAL_CLASS.into()).map_err(system("setsockopt(IP_TOS)"))?;
    if config.address.is_ipv6() {
        let labels = (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO_SEND);
        set(&socket, labels, 1).map_err(system("setsockopt(IPV6_FLOWINFO_SEND)"))?;
    }
    grow(
        &socket,
        libc::SO_SNDBUFFORCE,
        libc::SO_SNDBUF,
        config.socket_bytes,
    );
    if joins {
        let share = (libc::SOL_SOCKET, libc::SO_REUSEPORT);
        set(&socket, share, 1).map_err(system("setsockopt(SO_REUSEPORT)"))?;
    }
    let mut name = SockAddr::from(address);
    if let SocketAddr::V6(mut v6) = address
        && v6.ip().is_unicast_link_local()
    {
        let interface = super::interface::of(config.address, socket.as_fd());
        v6.set_scope_id(interface.map_err(system("getifaddrs"))?.scope);
        name = SockAddr::from(v6);
    }
    match socket.bind(&name) {
        Ok(()) => Ok(socket),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(UdpOpenError::InUse {
            address,
            owner: Owner::of(address),
        }),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            Err(UdpOpenError::NotLocal {
                address: config.address,
            })
        }
        Err(error) => Err(system("bind")(error)),
    }
}

fn local_address(socket: &Socket) -> io::Result<SocketAddr> {
    let address = socket.local_addr()?.as_socket();
    address.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Sets an option whose value is an `int`.
pub(crate) fn set(socket: &Socket, (level, option): (i32, i32), value: i32) -> io::Result<()> {
    let length = size_of::<i32>() as libc::socklen_t;
    let value = (&raw const value).cast();
    // SAFETY: `value` leads to an `int` and `length` is its size.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Asks for buffers of `bytes`, beyond the system's limit where the privilege is there. The
/// kernel's answer is its own business: a smaller buffer loses more, and works.
fn grow(socket: &Socket, forced: i32, plain: i32, bytes: usize) {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    if set(socket, (libc::SOL_SOCKET, forced), bytes).is_err() {
        let _ = set(socket, (libc::SOL_SOCKET, plain), bytes);
    }
}
