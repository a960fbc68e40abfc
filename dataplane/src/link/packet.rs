//! An AF_PACKET socket with rings in shared memory (packet(7),
//! Documentation/networking/packet_mmap.rst): frames on any Ethernet interface, of any driver.
//!
//! The kernel copies each frame that the filter lets through into the receive ring, and sends
//! what is in the send ring when it is called, once for a burst. While both sides are busy nothing
//! is called to receive.
//!
//! The rings are of TPACKET_V2: with V3 the kernel gives frames out by blocks, and one that is not
//! full only after a millisecond at least, which is a thousand times what an answer takes.
//!
//! Every frame has a header of virtio (`PACKET_VNET_HDR`): only that tells how long the datagrams
//! are of a super-packet that comes whole.

mod filter;
mod kernel;
mod ring;

use super::device::{Device, Kicked, Offload, Unit};
use super::{LinkAddress, LinkOpenError};
use crate::bpf;
use crate::port::PortError;
use ring::{Layout, Rings, TX_BYTES};
use socket2::{Domain, Socket, Type};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};
use trunkline_wire::Workers;

/// Bytes of the header of virtio before each frame (`struct virtio_net_hdr`).
const VIRTIO: usize = 10;
/// Where it says what the frame is, how long its pieces are, and what is summed.
const FLAGS: usize = 0;
const GSO_TYPE: usize = 1;
const HEADERS: usize = 2;
const GSO_SIZE: usize = 4;
const CSUM_START: usize = 6;
const CSUM_OFFSET: usize = 8;
/// The checksum is not finished (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
const NEEDS_CSUM: u8 = 1;
/// The frame is one; datagrams of UDP were joined to it (`VIRTIO_NET_HDR_GSO_UDP_L4`).
const GSO_NONE: u8 = 0;
const GSO_UDP: u8 = 5;
/// Bytes of a UDP header, and where the checksum is in it.
const UDP: u16 = 8;
const UDP_CHECKSUM: u16 = 6;
/// A frame for this host (`PACKET_HOST`, packet(7)).
const HOST: u8 = 0;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Most bytes of a frame that is sent: that of a loop.
const MOST: usize = 65_535 + ETHERNET;

/// How long the queue of an interface may take nothing before what waits for it is given up. One
/// that is full drains sooner. A frame that the driver drops stays the first one, and would be
/// tried for ever (`tpacket_snd` in net/packet/af_packet.c): one longer than the other end of a
/// veth(4) takes.
const STUCK: Duration = Duration::from_millis(10);

/// Frames by an AF_PACKET socket.
#[derive(Debug)]
pub struct PacketDevice {
    socket: Socket,
    max_frame: usize,
    /// Whether the kernel takes super-packets.
    joins: bool,
    rings: Rings,
    /// Since when the queue of the interface takes nothing.
    stuck_since: Option<Instant>,
    /// Frames that the kernel had no room for.
    missed: u64,
}

impl PacketDevice {
    /// A device on the interface of `at`, which gets what is for its address.
    ///
    /// # Errors
    /// See [`LinkOpenError`].
    pub fn open(at: &LinkAddress) -> Result<Self, LinkOpenError> {
        let mut device = Self::make(at)?;
        device.bind(at)?;
        Ok(device)
    }

    /// A device for each worker of a node. What comes goes to the device of the worker whose number
    /// it names ([`Workers`]), the first being that of worker 0.
    ///
    /// # Errors
    /// See [`LinkOpenError`].
    pub fn open_group(at: &LinkAddress, workers: Workers) -> Result<Vec<Self>, LinkOpenError> {
        if workers == Workers::ONE {
            return Ok(vec![Self::open(at)?]);
        }
        let mut group = Vec::with_capacity(workers.count().into());
        for _ in 0..workers.count() {
            let mut device = Self::make(at)?;
            device.bind(at)?;
            device.join(at, &group, workers)?;
            group.push(device);
        }
        Ok(group)
    }

    /// A socket with its rings and filter, which gets nothing yet.
    fn make(at: &LinkAddress) -> Result<Self, LinkOpenError> {
        let interface = at.interface();
        let socket = Socket::new(Domain::PACKET, Type::RAW, None);
        let socket = socket.map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => LinkOpenError::NoPrivilege {
                what: "an AF_PACKET socket",
                interface: interface.name,
                privilege: "CAP_NET_RAW",
            },
            _ => system("socket(AF_PACKET)")(source),
        })?;
        let nonblocking = socket.set_nonblocking(true);
        nonblocking.map_err(system("fcntl(O_NONBLOCK)"))?;
        let option = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
        bpf::attach(&socket, option, &mut filter::program(at.address()))
            .map_err(system("setsockopt(SO_ATTACH_FILTER)"))?;
        set(&socket, libc::PACKET_VNET_HDR, 1).map_err(system("setsockopt(PACKET_VNET_HDR)"))?;
        // Frames that the kernel refuses are lost, as on the wire; they do not hold up others.
        set(&socket, libc::PACKET_LOSS, 1).map_err(system("setsockopt(PACKET_LOSS)"))?;
        // Where these are refused, old kernels do more work for each frame. Super-packets do not
        // bypass the queue of the interface: those that it does not cut by itself would be lost.
        let joins = kernel::takes_super_packets() && !interface.is_vlan(socket.as_fd());
        let _ = set(&socket, libc::PACKET_QDISC_BYPASS, i32::from(!joins));
        let _ = set(&socket, libc::PACKET_IGNORE_OUTGOING, 1);
        let max_frame = (interface.mtu + ETHERNET).min(MOST);
        let rings = Rings::new(&socket, Layout::new(VIRTIO + max_frame, joins));
        Ok(Self {
            rings: rings.map_err(system("setsockopt(PACKET_RX_RING)"))?,
            socket,
            max_frame,
            joins,
            stuck_since: None,
            missed: 0,
        }
        .with_room())
    }

    /// What is on its way to the medium may fill the send ring. Not all programs may ask for so
    /// much: what a system gives is enough for a few super-packets.
    fn with_room(self) -> Self {
        let bytes = TX_BYTES as i32;
        for option in [libc::SO_SNDBUFFORCE, libc::SO_SNDBUF] {
            if crate::udp::set(&self.socket, (libc::SOL_SOCKET, option), bytes).is_ok() {
                break;
            }
        }
        self
    }

    /// Frames come from now on.
    fn bind(&mut self, at: &LinkAddress) -> Result<(), LinkOpenError> {
        let protocol = match at.address() {
            std::net::IpAddr::V4(_) => libc::ETH_P_IP,
            std::net::IpAddr::V6(_) => libc::ETH_P_IPV6,
        };
        // SAFETY: all zeros are a valid address of this family.
        let mut name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        name.sll_family = libc::AF_PACKET as u16;
        name.sll_protocol = (protocol as u16).to_be();
        name.sll_ifindex = at.interface().index.cast_signed();
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let socket = self.socket.as_raw_fd();
        // SAFETY: an address of this length.
        let bound = unsafe { libc::bind(socket, (&raw const name).cast(), length) };
        if bound != 0 {
            return Err(system("bind(AF_PACKET)")(io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Shares what comes with the others of a group: the program chooses among them by the order in
    /// which they joined (`PACKET_FANOUT_CBPF`).
    fn join(
        &mut self,
        at: &LinkAddress,
        group: &[Self],
        workers: Workers,
    ) -> Result<(), LinkOpenError> {
        // With this flag the kernel gives the first one an id that nobody has.
        let (flag, id) = match group.first() {
            None => (libc::PACKET_FANOUT_FLAG_UNIQUEID, 0),
            Some(first) => (
                0,
                first.group().map_err(system("getsockopt(PACKET_FANOUT)"))?,
            ),
        };
        let value = id | ((libc::PACKET_FANOUT_CBPF | flag) << 16).cast_signed();
        set(&self.socket, libc::PACKET_FANOUT, value)
            .map_err(system("setsockopt(PACKET_FANOUT)"))?;
        if group.is_empty() {
            let option = (libc::SOL_PACKET, libc::PACKET_FANOUT_DATA);
            let mut program = filter::steering(at.address(), workers);
            bpf::attach(&self.socket, option, &mut program)
                .map_err(system("setsockopt(PACKET_FANOUT_DATA)"))?;
        }
        Ok(())
    }

    /// Whether the queue of the interface, which has just taken so much, has taken nothing for too
    /// long.
    fn is_stuck(&mut self, taken: usize) -> bool {
        if taken > 0 {
            self.stuck_since = None;
        }
        let since = *self.stuck_since.get_or_insert_with(Instant::now);
        let is_stuck = since.elapsed() > STUCK;
        // What is given up makes room for others, which have as long.
        if is_stuck {
            self.stuck_since = None;
        }
        is_stuck
    }

    /// The id of the group that it is in.
    fn group(&self) -> io::Result<i32> {
        let mut value = 0_i32;
        let mut length = size_of::<i32>() as libc::socklen_t;
        let (socket, option) = (self.socket.as_raw_fd(), libc::PACKET_FANOUT);
        let place = (&raw mut value).cast();
        // SAFETY: room for an `int`, and its length.
        let got =
            unsafe { libc::getsockopt(socket, libc::SOL_PACKET, option, place, &raw mut length) };
        if got != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(value & 0xffff)
    }
}

fn system(call: &'static str) -> impl Fn(io::Error) -> LinkOpenError {
    move |source| LinkOpenError::System { call, source }
}

fn set(socket: &Socket, option: i32, value: i32) -> io::Result<()> {
    crate::udp::set(socket, (libc::SOL_PACKET, option), value)
}

impl Device for PacketDevice {
    fn max_frame(&self) -> usize {
        self.max_frame
    }

    fn allocate(&mut self, length: usize) -> Option<&mut [u8]> {
        let whole = self.rings.allocate(VIRTIO + length)?;
        let (virtio, frame) = whole.split_at_mut(VIRTIO);
        virtio.fill(0);
        Some(frame)
    }

    fn finishes_checksums(&self) -> bool {
        true
    }

    fn max_super_packet(&self) -> Option<usize> {
        self.joins.then(|| self.rings.most() - VIRTIO)
    }

    fn push(&mut self, left: Option<Offload>) {
        let mut count = 1;
        if let (Some(left), Some(virtio)) = (left, self.rings.allocated().first_chunk_mut()) {
            let virtio: &mut [u8; VIRTIO] = virtio;
            let mut word = |at: usize, word: u16| {
                virtio[at..][..2].copy_from_slice(&word.to_ne_bytes());
            };
            word(CSUM_START, left.udp as u16);
            word(CSUM_OFFSET, UDP_CHECKSUM);
            if let Some(joined) = left.joined {
                word(HEADERS, left.udp as u16 + UDP);
                word(GSO_SIZE, joined.segment);
                virtio[GSO_TYPE] = GSO_UDP;
                count = joined.count;
            }
            virtio[FLAGS] = NEEDS_CSUM;
        }
        self.rings.push(count);
    }

    fn kick(&mut self) -> Result<Kicked, PortError> {
        if !self.rings.has_pushed() {
            return Ok(Kicked::default());
        }
        let (socket, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: nothing but what is in the ring is sent.
        let sent = unsafe { libc::sendto(socket, std::ptr::null(), 0, flags, std::ptr::null(), 0) };
        let error = (sent < 0).then(io::Error::last_os_error);
        let taken = self.rings.taken();
        let Some(error) = error else {
            self.stuck_since = None;
            return Ok(Kicked {
                sent: taken,
                is_full: self.rings.is_full(),
                ..Kicked::default()
            });
        };
        match error.raw_os_error() {
            Some(libc::ENOBUFS) if self.is_stuck(taken) => Ok(Kicked {
                sent: taken,
                refused: self.rings.give_up(),
                ..Kicked::default()
            }),
            // The queue of the interface is full: there is room again soon.
            Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS) => Ok(Kicked {
                sent: taken,
                is_full: self.rings.is_full(),
                ..Kicked::default()
            }),
            Some(libc::EBADF | libc::ENOTSOCK | libc::EINVAL | libc::ENXIO | libc::ENODEV) => {
                Err(PortError::System {
                    call: "sendto(AF_PACKET)",
                    source: error,
                })
            }
            // The interface is down, or it does not take what was joined.
            code => {
                let is_down = code == Some(libc::ENETDOWN);
                self.joins &= is_down || !self.rings.has_joined();
                Ok(Kicked {
                    sent: taken,
                    refused: self.rings.give_up(),
                    ..Kicked::default()
                })
            }
        }
    }

    fn look(&mut self) -> Result<bool, PortError> {
        Ok(self.rings.look())
    }

    fn front(&self) -> Option<Unit<'_>> {
        let arrived = self.rings.front()?;
        let (virtio, frame) = arrived.bytes.split_at_checked(VIRTIO)?;
        let segment = match virtio[GSO_TYPE] {
            GSO_NONE => None,
            GSO_UDP => Some(u16::from_ne_bytes([virtio[GSO_SIZE], virtio[GSO_SIZE + 1]])),
            // What else may be joined is no datagram of ours.
            _ => Some(0),
        };
        let is_ours = arrived.kind == HOST && !arrived.is_tagged;
        Some(Unit {
            frame: if is_ours { frame } else { &[] },
            segment,
            is_cut: arrived.is_cut,
        })
    }

    fn recycle(&mut self) {
        self.rings.recycle();
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    /// The kernel unbinds a socket from an interface that goes, and binds it to none that comes.
    fn is_attached(&self) -> bool {
        // SAFETY: all zeros are a valid address of this family.
        let mut name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let (socket, place) = (self.socket.as_raw_fd(), (&raw mut name).cast());
        // SAFETY: room for an address of this length.
        let got = unsafe { libc::getsockname(socket, place, &raw mut length) };
        got != 0 || name.sll_ifindex > 0
    }

    /// The kernel forgets what it tells (`PACKET_STATISTICS`).
    fn missed(&mut self) -> u64 {
        let mut stats = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        let (socket, option) = (self.socket.as_raw_fd(), libc::PACKET_STATISTICS);
        let place = (&raw mut stats).cast();
        // SAFETY: room for the answer, and its length.
        let got =
            unsafe { libc::getsockopt(socket, libc::SOL_PACKET, option, place, &raw mut length) };
        if got == 0 {
            self.missed += u64::from(stats.tp_drops);
        }
        self.missed
    }
}
