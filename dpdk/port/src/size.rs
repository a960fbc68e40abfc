//! How long the frames of a device are, and how much memory they take.

use crate::error::DpdkOpenError;
use crate::kernel::KernelInterface;
use crate::spec::{DeviceSpec, DpdkSpec, Driver};
use trunkline_dpdk_sys::Info;

/// MTU of links that have no other end than ours: for payloads of 4,096 bytes and all headers.
const OWN_MTU: u32 = 4200;
/// Largest MTU of AF_XDP, whose frames lie in one page each.
const XDP_MTU: u32 = 3200;
/// Bytes of a block of the rings of AF_PACKET, and what is before the packet in a frame of them
/// (linux/if_packet.h), at most.
pub(crate) const PACKET_BLOCK: u32 = 65_536;
const PACKET_HEADER: u32 = 128;
/// Bytes of an Ethernet header, and of a check sequence behind the frame.
const ETHERNET: u32 = 14;
const CHECK: u32 = 4;
/// Room of a frame behind its packet and header: for a VLAN tag and a check sequence.
const SPARE: u32 = 8;
/// Least room of a frame: many cards want as much.
const LEAST_ROOM: u32 = 2048;
/// Room of a frame of AF_XDP: as much as lets it lie in a page, with what is before it.
const XDP_ROOM: u32 = 3712;
/// Rooms are multiples of a line of the cache.
const LINE: u32 = 64;
/// Frames of a pool: for both rings of a queue, for what is being built and read, and for what
/// threads keep at hand. Pools waste least with one less than a power of two.
const FRAMES: u32 = 4095;
/// The same where drivers copy, or the other end has a pool of its own.
const FEW_FRAMES: u32 = 2047;

/// How long frames are, and how much memory they take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Size {
    /// Bytes of the longest IP packet.
    pub(crate) mtu: u32,
    /// The MTU that the driver is told: some refuse what they carry.
    pub(crate) told: u32,
    /// Bytes that a frame has room for.
    pub(crate) room: u16,
    /// Frames of a queue.
    frames: u32,
}

impl Size {
    /// For packets of so many bytes, or of what is usual for the device.
    pub(crate) fn of(device: &DeviceSpec, mtu: Option<u32>) -> Self {
        let driver = device.driver();
        let mtu = mtu.unwrap_or(OWN_MTU);
        let own = (mtu + ETHERNET + SPARE).next_multiple_of(LINE);
        let (room, frames) = match driver {
            Driver::AfXdp => (XDP_ROOM, FRAMES),
            Driver::AfPacket => (packet_frame(device, mtu), FEW_FRAMES),
            Driver::Ring | Driver::Memif => (own, FEW_FRAMES),
            Driver::Pci | Driver::Other => (own.max(LEAST_ROOM), FRAMES),
        };
        // The interface may carry more than a frame of its ring has room for.
        let mtu = match driver {
            Driver::AfPacket => mtu.min(room - PACKET_HEADER - ETHERNET),
            _ => mtu,
        };
        // MTUs are checked to be small.
        let room = room.min(u16::MAX.into()) as u16;
        Self {
            mtu,
            told: mtu,
            room,
            frames,
        }
    }

    /// Bytes of the longest frame.
    pub(crate) const fn frame(self) -> u32 {
        self.mtu + ETHERNET
    }

    /// Frames of a pool, and the room of each.
    pub(crate) const fn pool(self) -> (u32, u16) {
        (self.frames, self.room)
    }

    /// Makes it what the device carries.
    ///
    /// # Errors
    /// It carries no such packets.
    pub(crate) fn fit(&mut self, device: &DeviceSpec, info: &Info) -> Result<(), DpdkOpenError> {
        let its = u32::from(info.max_mtu);
        let most = match device.driver() {
            Driver::AfXdp => its.min(XDP_MTU),
            Driver::AfPacket | Driver::Memif | Driver::Ring => {
                // What these say of their largest frame is that of an Ethernet of old.
                let frame = info.max_frame.saturating_sub(ETHERNET + CHECK);
                self.told = self.mtu.min(its).min(frame);
                return Ok(());
            }
            Driver::Pci | Driver::Other => its,
        };
        if self.mtu <= most {
            return Ok(());
        }
        let remedy = match device.argument("iface") {
            Some(interface) => format!("`ip link set {interface} mtu {most}`"),
            None => format!("mtu={most}"),
        };
        Err(DpdkOpenError::Mtu {
            device: device.name().to_owned(),
            mtu: self.mtu,
            most,
            remedy,
        })
    }
}

/// Bytes of a frame of the ring of AF_PACKET, with what is before the packet.
fn packet_frame(device: &DeviceSpec, mtu: u32) -> u32 {
    let own = (mtu + ETHERNET + PACKET_HEADER).next_power_of_two();
    let said = device
        .argument("framesz")
        .and_then(|size| size.parse().ok());
    said.unwrap_or(own).clamp(LEAST_ROOM, PACKET_BLOCK / 2)
}

/// The MTU that a device has by itself, if it knows better than we.
pub(crate) fn own_mtu(driver: Driver, info: &Info) -> Option<u32> {
    let is_ours = matches!(driver, Driver::Memif | Driver::Ring);
    (!is_ours).then_some(info.mtu.into())
}

/// The MTU that was asked for, or that the kernel gave the interface; `None`: any.
pub(crate) fn wanted_mtu(spec: &DpdkSpec) -> Result<Option<u32>, DpdkOpenError> {
    if let Some(mtu) = spec.mtu() {
        return Ok(Some(mtu.into()));
    }
    let device = spec.device();
    match (device.driver(), device.argument("iface")) {
        (Driver::AfPacket | Driver::AfXdp, Some(interface)) => {
            let asked = KernelInterface::new(interface).and_then(|it| it.mtu());
            let mtu = asked.map_err(|source| DpdkOpenError::of_interface(interface, source))?;
            Ok(Some(mtu))
        }
        _ => Ok(None),
    }
}
