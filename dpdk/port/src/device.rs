//! A queue of a port of DPDK, as a [`Device`].

use crate::port::DpdkPort;
use std::cell::Cell;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_dataplane::link::Device;
use trunkline_dataplane::link::device::{Kicked, Offload, Unit};
use trunkline_dataplane::{LinkAddress, LinkState, PortError};
use trunkline_dpdk_eal as eal;
use trunkline_dpdk_sys::{self as sys, BURST, Frame};
use trunkline_wire::{EtherType, Mac, ROCE_PORT};

/// Frames that are allocated at once.
const FRESH: usize = 32;
/// Most frames that wait for a kick.
const PUSHED: usize = 256;
/// Shortest frame of Ethernet, without its check sequence (IEEE 802.3, 3.2.8).
const SHORTEST: usize = 60;
/// Most bytes before an IP packet: a header of Ethernet with a tag (IEEE 802.1Q, 9.3).
const LONGEST_HEADER: usize = 18;
/// The number of UDP among protocols over IP.
const UDP: u8 = 17;
/// How long a link may be down before what waits for it is told so.
const GRACE: Duration = Duration::from_secs(1);
/// After so many looks it is seen to the link, where the driver does not.
const TEND: u32 = 64;
/// After so many looks it is asked whether its interface is still there.
const CHECK: u32 = 1024;
/// How often a driver is asked how its link is.
const LOOK: Duration = Duration::from_millis(5);

/// A queue of a port of DPDK.
///
/// The device of the port is stopped and removed when its last queue is dropped, and can be opened
/// again then.
pub struct DpdkDevice {
    port: Arc<DpdkPort>,
    queue: u16,
    max_frame: usize,
    mtu: u32,
    mac: Mac,
    /// Allocated, and not pushed yet. The last is built next.
    fresh: [Frame; FRESH],
    fresh_count: usize,
    /// Pushed, oldest first, and not sent yet.
    pushed: Box<[Frame; PUSHED]>,
    pushed_count: usize,
    /// Arrived at the last look, of which so many were recycled.
    arrived: Box<[Frame; BURST]>,
    arrived_count: usize,
    recycled: usize,
    /// Frames that were sent since the last kick.
    late: usize,
    /// Since when frames wait for a link that is down.
    down_since: Option<Instant>,
    /// How often it looked for frames.
    looks: u32,
    /// The interface stays the kernel's, whose frames come here, too.
    pub(crate) is_beside_kernel: bool,
    /// What keeps other nodes from an address that the kernel believes to be its own.
    pub(crate) claim: Option<LinkAddress>,
    /// How the link was, and when.
    link: Cell<Option<(Instant, Option<LinkState>)>>,
}

// SAFETY: frames and pools belong to no thread; one thread at a time has the device.
unsafe impl Send for DpdkDevice {}

impl fmt::Debug for DpdkDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DpdkDevice")
            .field("port", &self.port)
            .field("queue", &self.queue)
            .field("pushed", &self.pushed_count)
            .field("arrived", &(self.arrived_count - self.recycled))
            .finish_non_exhaustive()
    }
}

impl DpdkDevice {
    /// A queue of a port that is started, whose frames have room for `max_frame` bytes.
    pub(crate) fn new(
        port: Arc<DpdkPort>,
        queue: u16,
        (mtu, max_frame): (u32, usize),
        mac: Mac,
    ) -> Self {
        Self {
            port,
            queue,
            max_frame,
            mtu,
            mac,
            fresh: [Frame::NONE; FRESH],
            fresh_count: 0,
            pushed: Box::new([Frame::NONE; PUSHED]),
            pushed_count: 0,
            arrived: Box::new([Frame::NONE; BURST]),
            arrived_count: 0,
            recycled: 0,
            late: 0,
            down_since: None,
            looks: 0,
            is_beside_kernel: false,
            claim: None,
            link: Cell::new(None),
        }
    }

    /// What its port is called.
    pub fn name(&self) -> &str {
        self.port.name()
    }

    /// Its address of the link.
    pub const fn mac(&self) -> Mac {
        self.mac
    }

    /// Bytes of the longest IP packet.
    pub const fn mtu(&self) -> u32 {
        self.mtu
    }

    /// The number of its queue.
    pub const fn queue(&self) -> u16 {
        self.queue
    }

    /// Frames of its pool that nobody has.
    #[cfg(test)]
    pub(crate) fn free_frames(&self) -> u32 {
        self.port.frames(self.queue).free()
    }

    /// Takes all frames out of its pool.
    #[cfg(test)]
    pub(crate) fn drain(&self) -> Vec<Frame> {
        let (pool, mut all, mut frame) = (self.port.pool(self.queue), Vec::new(), Frame::NONE);
        // SAFETY: the pool lives as long as the port, and there is room for one.
        while unsafe { sys::trunkline_allocate(pool, &raw mut frame, 1) } > 0 {
            all.push(frame);
        }
        all
    }

    /// Takes some frames from the pool. Gives whether there were any.
    fn refill(&mut self) -> bool {
        let pool = self.port.pool(self.queue);
        // The last few of a pool may be fewer than a burst.
        for count in [FRESH, 1] {
            let to = self.fresh.as_mut_ptr();
            // SAFETY: the pool lives as long as the port, and there is so much room.
            let got = unsafe { sys::trunkline_allocate(pool, to, count as u16) };
            if got > 0 {
                self.fresh_count = count;
                break;
            }
        }
        let fresh = &self.fresh[..self.fresh_count];
        let room = |frame: &Frame| frame.room_or_cut as usize >= self.max_frame;
        assert!(fresh.iter().all(room), "the pool was made for these frames");
        !fresh.is_empty()
    }

    /// Frees frames of ours.
    pub(crate) fn free(frames: &[Frame]) {
        for burst in frames.chunks(BURST) {
            // SAFETY: they are ours, and so many.
            unsafe { sys::trunkline_free(burst.as_ptr(), burst.len() as u16) };
        }
    }

    /// Frees what arrived and is no datagram of RoCEv2 for us: the kernel has it, too, and what it
    /// sends comes here as well.
    fn leave_to_kernel(&mut self) {
        let mut kept = 0;
        for at in 0..self.arrived_count {
            let frame = self.arrived[at];
            // SAFETY: a frame of ours, which has so many bytes.
            let bytes = unsafe { std::slice::from_raw_parts(frame.data, frame.length as usize) };
            if is_roce(bytes, self.mac) {
                self.arrived[kept] = frame;
                kept += 1;
            } else {
                Self::free(&[frame]);
            }
        }
        self.arrived_count = kept;
    }

    /// Gives the driver what waits, as far as it has room; says how many frames.
    fn send(&mut self) -> usize {
        if self.pushed_count == 0 {
            return 0;
        }
        eal::enter();
        let Some(pass) = self.port.pass() else {
            return 0;
        };
        let mut sent = 0;
        while sent < self.pushed_count {
            let rest = &self.pushed[sent..self.pushed_count];
            let count = rest.len().min(BURST);
            let (port, queue, frames) = (self.port.number(), self.queue, rest.as_ptr());
            // SAFETY: the port is started, this queue is ours, and so are so many frames.
            let taken = unsafe { sys::trunkline_send(port, queue, frames, count as u16) };
            sent += usize::from(taken);
            if usize::from(taken) < count {
                break;
            }
        }
        drop(pass);
        self.pushed.copy_within(sent..self.pushed_count, 0);
        self.pushed_count -= sent;
        sent
    }

    /// Whether frames wait for a link that has been down for a while: another end that is just
    /// about to come gets them.
    fn is_down(&mut self) -> bool {
        if self.link().is_none_or(|link| link.works) {
            self.down_since = None;
            return false;
        }
        let since = *self.down_since.get_or_insert_with(Instant::now);
        since.elapsed() > GRACE
    }

    /// Whether a frame is a super-packet that the kernel carried whole: nothing here says where its
    /// datagrams begin.
    const fn is_joined(&self, frame: &[u8]) -> bool {
        self.is_beside_kernel && frame.len() > self.mtu as usize + LONGEST_HEADER
    }

    /// How the link is now.
    fn ask(&self) -> Option<LinkState> {
        let state = self.port.link().map(|link| LinkState {
            works: link.is_up != 0,
            rate_mbps: (link.rate != 0).then_some(link.rate),
        });
        self.link.set(Some((Instant::now(), state)));
        state
    }
}

impl Drop for DpdkDevice {
    fn drop(&mut self) {
        Self::free(&self.fresh[..self.fresh_count]);
        Self::free(&self.pushed[..self.pushed_count]);
        // None of a burst is freed before its last.
        Self::free(&self.arrived[..self.arrived_count]);
    }
}

impl Device for DpdkDevice {
    fn max_frame(&self) -> usize {
        self.max_frame
    }

    fn allocate(&mut self, length: usize) -> Option<&mut [u8]> {
        assert!(length <= self.max_frame, "{length} bytes are too many");
        if self.pushed_count == PUSHED || (self.fresh_count == 0 && !self.refill()) {
            return None;
        }
        let frame = &mut self.fresh[self.fresh_count - 1];
        frame.length = length as u32;
        // SAFETY: a frame of ours, with room for so many bytes, as was checked.
        Some(unsafe { std::slice::from_raw_parts_mut(frame.data, length) })
    }

    fn push(&mut self, _: Option<Offload>) {
        assert!(self.fresh_count > 0, "pushed before it was allocated");
        self.fresh_count -= 1;
        let mut frame = self.fresh[self.fresh_count];
        let length = frame.length as usize;
        if length < SHORTEST {
            // SAFETY: frames have room for the shortest one, and more.
            let rest = unsafe { frame.data.add(length) };
            // SAFETY: the same.
            unsafe { rest.write_bytes(0, SHORTEST - length) };
            frame.length = SHORTEST as u32;
        }
        self.pushed[self.pushed_count] = frame;
        self.pushed_count += 1;
    }

    fn kick(&mut self) -> Result<Kicked, PortError> {
        let sent = std::mem::take(&mut self.late) + self.send();
        let waits = self.pushed_count > 0;
        let is_down = waits && self.is_down();
        Ok(Kicked {
            sent,
            refused: 0,
            is_full: waits && !is_down,
            is_down,
        })
    }

    fn look(&mut self) -> Result<bool, PortError> {
        if self.recycled < self.arrived_count {
            return Ok(true);
        }
        eal::enter();
        self.looks = self.looks.wrapping_add(1);
        if self.port.calls() && self.looks.is_multiple_of(TEND) {
            self.port.tend();
        }
        if self.looks.is_multiple_of(CHECK) {
            self.port.check_interface()?;
        }
        // Nothing else tells when there is room again.
        self.late += self.send();
        let Some(pass) = self.port.pass() else {
            return Ok(false);
        };
        let (port, queue, to) = (self.port.number(), self.queue, self.arrived.as_mut_ptr());
        // SAFETY: the port is started, this queue is ours, and there is so much room.
        let count = unsafe { sys::trunkline_receive(port, queue, to, BURST as u16) };
        drop(pass);
        (self.arrived_count, self.recycled) = (count.into(), 0);
        if self.is_beside_kernel {
            self.leave_to_kernel();
        }
        Ok(self.arrived_count > 0)
    }

    fn front(&self) -> Option<Unit<'_>> {
        let frame = self.arrived[..self.arrived_count].get(self.recycled)?;
        // SAFETY: a frame of ours, which has so many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(frame.data, frame.length as usize) };
        Some(Unit {
            frame: bytes,
            segment: None,
            is_cut: frame.room_or_cut != 0 || self.is_joined(bytes),
        })
    }

    /// All of a burst are freed when the last is recycled.
    fn recycle(&mut self) {
        if self.recycled == self.arrived_count {
            return;
        }
        self.recycled += 1;
        if self.recycled == self.arrived_count {
            Self::free(&self.arrived[..self.arrived_count]);
            (self.arrived_count, self.recycled) = (0, 0);
        }
    }

    /// Drivers of DPDK are polled.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn link(&self) -> Option<LinkState> {
        match self.link.get() {
            Some((at, state)) if at.elapsed() < LOOK => state,
            _ => self.ask(),
        }
    }

    fn readdress(&mut self, mac: Mac) {
        self.mac = mac;
    }

    /// Those of all queues: the first tells of them.
    fn missed(&mut self) -> u64 {
        match self.queue {
            0 => self.port.missed(),
            _ => 0,
        }
    }
}

/// Whether a frame goes to this address of the link, and to the UDP port of RoCEv2.
fn is_roce(frame: &[u8], mac: Mac) -> bool {
    let byte = |at: usize| frame.get(at).copied().unwrap_or_default();
    let word = |at: usize| u16::from_be_bytes([byte(at), byte(at + 1)]);
    let (protocol, udp) = match EtherType(word(12)) {
        EtherType::IPV4 => (byte(23), 14 + 4 * usize::from(byte(14) & 15)),
        EtherType::IPV6 => (byte(20), 54),
        _ => return false,
    };
    frame.starts_with(&mac.0) && protocol == UDP && word(udp + 2) == ROCE_PORT
}
