//! AF_XDP: frames of one queue of an interface, without the kernel's network stack
//! (Documentation/networking/af_xdp.rst).
//!
//! Kernel and device share memory that is cut into chunks, and tell each other by four rings which
//! chunks hold frames. A program at the interface picks packets of RoCEv2 to one address out of
//! what arrives; all others go on to the kernel, which still answers for the address.
//!
//! ```text
//!            fill: chunks to fill             tx: frames to send
//!  device  ------------------------> kernel <---------------------- device
//!          <------------------------        ---------------------->
//!            rx: frames that arrived          completion: chunks that were sent
//! ```

mod attached;
mod error;
mod program;
mod receive;
mod rings;
mod send;
mod socket;
mod steering;
#[cfg(test)]
mod tests;
mod umem;

pub use attached::XdpWatch;
pub use error::XdpOpenError;

use crate::link::device::{Device, Kicked, Offload, Unit};
use crate::port::PortError;
use receive::Receiver;
use send::{SLOT_CHUNKS, Sender};
use socket::{Place, Sizes, Wishes};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use steering::Steering;
use umem::{CHUNK, HEADROOM, Umem};

/// What a chunk holds of a frame that arrives.
const CHUNK_FRAME: usize = CHUNK - HEADROOM;
/// Longest frame where several chunks may hold it.
const LONGEST: usize = SLOT_CHUNKS as usize * CHUNK;
/// An Ethernet header and a VLAN tag: what a frame has beside its packet.
const LINK_HEADER: usize = 18;

/// How to open an [`XdpDevice`].
#[derive(Clone, Copy, Debug)]
pub struct XdpConfig {
    /// Number of the interface, in the network namespace of the thread that opens the device.
    pub interface: u32,
    /// Its queue, from 0 on. What arrives in other queues is not seen.
    pub queue: u32,
    /// Packets to this address are received.
    pub address: IpAddr,
    /// Most chunks of 4 KiB that may hold received frames, 16 ..= 65,536; a frame above 3,840 bytes
    /// takes two. By default 4,096. Where frames may take two they take 8 KiB of locked memory
    /// each, else 4.
    pub frames: usize,
    /// Most frames on their way out, 16 ..= 16,384; by default 1,024. They take 8 KiB of locked
    /// memory each.
    pub send_frames: usize,
}

impl XdpConfig {
    /// Default [`frames`](Self::frames).
    pub const FRAMES: usize = 4096;
    /// Default [`send_frames`](Self::send_frames).
    pub const SEND_FRAMES: usize = 1024;

    /// A device for packets to `address` in queue 0 of an interface.
    pub const fn new(interface: u32, address: IpAddr) -> Self {
        Self {
            interface,
            queue: 0,
            address,
            frames: Self::FRAMES,
            send_frames: Self::SEND_FRAMES,
        }
    }
}

/// How frames get from the card to the device and back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum XdpMode {
    /// The card reads and writes the device's memory itself.
    ZeroCopy,
    /// The program runs in the driver; the kernel copies.
    Native,
    /// The driver knows nothing of it; the program runs in the kernel's stack, which copies.
    Generic,
}

impl XdpMode {
    /// What it is, in a few words.
    pub const fn about(self) -> &'static str {
        match self {
            Self::ZeroCopy => "without copies",
            Self::Native => "in the driver, with copies",
            Self::Generic => "above the driver, with copies",
        }
    }
}

/// An AF_XDP socket on one queue of an interface, as a [`Device`].
///
/// The program that it attaches is detached when it is dropped, or when the process ends.
#[derive(Debug)]
pub struct XdpDevice {
    // Dropped in this order: the kernel lets go of the queue, then of the program.
    socket: OwnedFd,
    receiver: Receiver,
    sender: Sender,
    umem: Umem,
    /// Shared by the devices of a group.
    steering: Arc<Steering>,
    queue: u32,
    mode: XdpMode,
    max_frame: usize,
    /// What was missed when it could be asked for last.
    missed: u64,
}

impl XdpDevice {
    /// Opens a device: in the driver and without copies where that can be.
    ///
    /// An interface can have one such device, or one group of them.
    ///
    /// # Errors
    /// See [`XdpOpenError`].
    pub fn open(config: &XdpConfig) -> Result<Self, XdpOpenError> {
        let mut group = Self::open_group(std::slice::from_ref(config))?;
        Ok(group.pop().expect("as many devices as configurations"))
    }

    /// Opens devices for several queues of one interface, for packets to one address. They share
    /// the program, which is detached when the last is dropped.
    ///
    /// # Errors
    /// See [`XdpOpenError`].
    pub fn open_group(configs: &[XdpConfig]) -> Result<Vec<Self>, XdpOpenError> {
        let Some(first) = configs.first() else {
            return Ok(Vec::new());
        };
        let mut last_queue = 0;
        for (index, config) in configs.iter().enumerate() {
            check(config)?;
            let same = |other: &XdpConfig| other.queue == config.queue;
            if (config.interface, config.address) != (first.interface, first.address)
                || configs[..index].iter().any(same)
            {
                return Err(XdpOpenError::Mixed);
            }
            last_queue = last_queue.max(config.queue);
        }
        let place = Place::of(first.interface)?;
        let steering = Steering::attach(&place, first.address, last_queue + 1)?;
        let steering = Arc::new(steering);
        let open = |config| Self::on(config, &place, Arc::clone(&steering));
        configs.iter().map(open).collect()
    }

    fn on(
        config: &XdpConfig,
        place: &Place,
        steering: Arc<Steering>,
    ) -> Result<Self, XdpOpenError> {
        let system = |call| move |source| XdpOpenError::System { call, source };
        let most = CHUNK_FRAME - LINK_HEADER;
        let too_large = XdpOpenError::MtuTooLarge {
            interface: place.name,
            mtu: place.mtu,
            most,
        };
        let need_several = place.mtu > most;
        if need_several && !steering.takes_several() {
            return Err(too_large);
        }
        // Checked to be small.
        let (frames, slots) = (config.frames as u32, config.send_frames as u32);
        let stride = if need_several { 2 } else { 1 };
        let first_slot = frames * stride;
        let umem = Umem::new((first_slot + slots * SLOT_CHUNKS) as usize);
        let umem = umem.map_err(system("mmap"))?;
        let sizes = Sizes {
            receive: frames.next_power_of_two(),
            send: (slots * SLOT_CHUNKS).next_power_of_two(),
        };
        let (socket, rings) = socket::open(&umem, sizes)?;
        let wishes = Wishes {
            zero_copy: steering.is_native(),
            multi_buffer: steering.takes_several(),
            no_single: need_several,
        };
        let bound = match socket::bind(&socket, place, config.queue, wishes) {
            // Kernels before 6.6 do not know frames of several chunks: if it is not for those, it
            // is for the queue.
            Err(XdpOpenError::NoSuchQueue { .. }) if need_several => {
                let wishes = Wishes {
                    multi_buffer: false,
                    no_single: false,
                    ..wishes
                };
                socket::bind(&socket, place, config.queue, wishes)?;
                return Err(too_large);
            }
            other => other?,
        };
        let longest = if bound.multi_buffer {
            LONGEST
        } else {
            CHUNK_FRAME
        };
        let receiver = Receiver::new((rings.fill, rings.rx), (frames, stride), LONGEST);
        let send = (rings.tx, rings.completion);
        let sender = Sender::new(send, (first_slot, slots), bound.zero_copy);
        steering
            .lead(config.queue, socket.as_raw_fd())
            .map_err(|error| XdpOpenError::of("bpf(BPF_MAP_UPDATE_ELEM)", error))?;
        let mode = match (bound.zero_copy, steering.is_native()) {
            (true, _) => XdpMode::ZeroCopy,
            (false, true) => XdpMode::Native,
            (false, false) => XdpMode::Generic,
        };
        Ok(Self {
            socket,
            receiver,
            sender,
            umem,
            steering,
            queue: config.queue,
            mode,
            max_frame: longest,
            missed: 0,
        })
    }

    /// How its frames get to it.
    pub const fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Whether a frame may lie in several chunks of the shared memory: then
    /// [`max_frame`](Device::max_frame) is 8,192 bytes, else 3,840.
    pub const fn is_multi_buffer(&self) -> bool {
        self.max_frame > CHUNK_FRAME
    }
}

impl Drop for XdpDevice {
    fn drop(&mut self) {
        self.steering.leave(self.queue);
    }
}

fn check(config: &XdpConfig) -> Result<(), XdpOpenError> {
    let address = config.address;
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    if address.is_unspecified() || address.is_multicast() || broadcast {
        return Err(XdpOpenError::NotOneHost { address });
    }
    for (field, value, least, most) in [
        ("frames", config.frames, 16, 1 << 16),
        ("send_frames", config.send_frames, 16, 1 << 14),
        // As many as a card may have.
        ("queue", config.queue as usize, 0, u16::MAX.into()),
    ] {
        if !(least..=most).contains(&value) {
            return Err(XdpOpenError::OutOfRange {
                field,
                value,
                least,
                most,
            });
        }
    }
    Ok(())
}

impl Device for XdpDevice {
    fn max_frame(&self) -> usize {
        self.max_frame
    }

    fn allocate(&mut self, length: usize) -> Option<&mut [u8]> {
        assert!(length <= self.max_frame, "{length} bytes are too many");
        self.sender.allocate(&mut self.umem, length)
    }

    fn push(&mut self, _: Option<Offload>) {
        self.sender.push();
    }

    fn kick(&mut self) -> Result<Kicked, PortError> {
        self.sender.kick(self.socket.as_fd())
    }

    fn look(&mut self) -> Result<bool, PortError> {
        Ok(self.receiver.look(&mut self.umem, self.socket.as_fd()))
    }

    fn front(&self) -> Option<Unit<'_>> {
        self.receiver.front(&self.umem)
    }

    fn recycle(&mut self) {
        self.receiver.recycle(&mut self.umem);
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    /// The kernel unbinds a socket from an interface that goes, and binds it to none that comes.
    fn is_attached(&self) -> bool {
        let called = send::wake(self.socket.as_fd());
        !called.is_err_and(|error| error.raw_os_error() == Some(libc::ENXIO))
    }

    /// With copies, what the kernel found no chunk for, or no room in the RX ring. Without, how
    /// often the driver found no chunk too, which need not have cost a frame each time; what the
    /// card itself dropped then is among the interface's counters (`ethtool -S`).
    fn missed(&mut self) -> u64 {
        let mut counts = libc::xdp_statistics {
            rx_dropped: 0,
            rx_invalid_descs: 0,
            tx_invalid_descs: 0,
            rx_ring_full: 0,
            rx_fill_ring_empty_descs: 0,
            tx_ring_empty_descs: 0,
        };
        if socket::get(self.socket.as_raw_fd(), libc::XDP_STATISTICS, &mut counts).is_ok() {
            self.missed = counts.rx_dropped + counts.rx_ring_full;
            // With copies each of these is a dropped frame too.
            if self.mode == XdpMode::ZeroCopy {
                self.missed += counts.rx_fill_ring_empty_descs;
            }
        }
        self.missed + self.receiver.broken()
    }
}
