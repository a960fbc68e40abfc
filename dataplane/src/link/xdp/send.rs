//! The sending side: slots of two chunks side by side, so that a frame that needs both is one run
//! of bytes for whoever writes it.

use super::rings::{Consumer, Producer};
use super::umem::{CHUNK, Umem};
use crate::link::device::Kicked;
use crate::port::PortError;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Chunks of a slot.
pub(super) const SLOT_CHUNKS: u32 = 2;
/// An Ethernet header. The kernel takes nothing shorter for a frame.
const SHORTEST: usize = 14;

/// The sending side of a socket.
#[derive(Debug)]
pub(super) struct Sender {
    tx: Producer<libc::xdp_desc>,
    completion: Consumer<u64>,
    /// First chunk of the first slot.
    first: usize,
    /// Slots that hold no frame, the one that was sent last on top.
    free: Vec<u32>,
    /// Pieces that the kernel has, of each slot.
    lent: Box<[u8]>,
    /// The slot that was allocated, and how much of it.
    open: Option<(u32, usize)>,
    /// Where the driver reads the chunks itself.
    zero_copy: bool,
    /// Frames that were pushed since the last kick.
    pushed: usize,
    /// Frames that the kernel was seen to have taken since then.
    taken: usize,
    /// Of which so many are known to be lost. They are told before the kernel shows that it took
    /// them.
    refused: usize,
}

impl Sender {
    /// Uses `slots` slots from chunk `first` on.
    pub(super) fn new(
        (tx, completion): (Producer<libc::xdp_desc>, Consumer<u64>),
        (first, slots): (u32, u32),
        zero_copy: bool,
    ) -> Self {
        Self {
            tx,
            completion,
            first: first as usize,
            free: (0..slots).rev().collect(),
            lent: vec![0; slots as usize].into(),
            open: None,
            zero_copy,
            pushed: 0,
            taken: 0,
            refused: 0,
        }
    }

    fn address(&self, slot: u32) -> usize {
        (self.first + slot as usize * SLOT_CHUNKS as usize) * CHUNK
    }

    /// See [`Device::allocate`](super::Device::allocate); `length` was checked.
    pub(super) fn allocate<'a>(
        &mut self,
        umem: &'a mut Umem,
        length: usize,
    ) -> Option<&'a mut [u8]> {
        assert!(length >= SHORTEST, "a frame begins with an Ethernet header");
        let slot = match self.open {
            Some((slot, _)) => slot,
            None => {
                if self.free.is_empty() || self.tx.room() < SLOT_CHUNKS {
                    self.make_room();
                }
                if self.tx.room() < SLOT_CHUNKS {
                    return None;
                }
                self.free.pop()?
            }
        };
        self.open = Some((slot, length));
        // SAFETY: a free slot is one of which the kernel has no piece.
        Some(unsafe { umem.get_mut(self.address(slot), length) })
    }

    /// Looks for slots, or for room in the ring, whichever is missing.
    #[cold]
    fn make_room(&mut self) {
        if self.free.is_empty() {
            self.reclaim();
        }
        if self.tx.room() < SLOT_CHUNKS {
            self.count();
        }
    }

    /// See [`Device::push`](super::Device::push).
    pub(super) fn push(&mut self) {
        let open = self.open.take();
        let (slot, length) = open.expect("what is pushed was allocated");
        let (mut address, mut left, mut pieces) = (self.address(slot) as u64, length, 0);
        while left > 0 {
            let piece = left.min(CHUNK);
            left -= piece;
            let options = if left > 0 { libc::XDP_PKT_CONTD } else { 0 };
            self.tx.write(libc::xdp_desc {
                addr: address,
                len: piece as u32,
                options,
            });
            pieces += 1;
            address += CHUNK as u64;
        }
        self.lent[slot as usize] = pieces;
        self.pushed += 1;
    }

    /// See [`Device::kick`](super::Device::kick).
    pub(super) fn kick(&mut self, socket: BorrowedFd<'_>) -> Result<Kicked, PortError> {
        if self.tx.waiting() == 0 && self.pushed == 0 && self.taken == 0 {
            return Ok(Kicked::default());
        }
        self.tx.publish();
        self.count();
        let is_down = self.tx.waiting() > 0 && !self.hand_over(socket)?;
        self.reclaim();
        let mut kicked = self.tell();
        kicked.is_down = is_down;
        kicked.is_full &= !is_down;
        Ok(kicked)
    }

    /// Has the kernel take what is in the ring. Gives whether the interface is up, as far as that
    /// shows.
    fn hand_over(&mut self, socket: BorrowedFd<'_>) -> Result<bool, PortError> {
        // Each refusal is about one frame, so there are no more than frames; a kernel that says
        // otherwise is asked again next time.
        let most = self.refused + self.tx.waiting() as usize;
        while self.tx.needs_wakeup() && self.refused <= most {
            let before = self.tx.seen();
            let result = wake(socket);
            self.count();
            let Err(source) = result else { break };
            match source.raw_os_error() {
                // One call sends so many only.
                Some(libc::EAGAIN) if self.tx.seen() != before => {}
                // The kernel took a frame, and the interface's queue did not.
                Some(libc::EBUSY) if !self.zero_copy => self.refused += 1,
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::ENOMEM) => break,
                Some(libc::ENETDOWN) => return Ok(false),
                Some(libc::EINTR) => {}
                _ => {
                    let call = "sendto";
                    return Err(PortError::System { call, source });
                }
            }
        }
        Ok(true)
    }

    /// What became of the frames since the last time.
    fn tell(&mut self) -> Kicked {
        let waiting = self.tx.waiting();
        if self.zero_copy {
            // The driver takes them when it likes; in the ring they are on their way. Room to wait
            // for is what the kernel calls writable: half of the ring.
            let (sent, refused) = (self.pushed, 0);
            (self.pushed, self.taken) = (0, 0);
            let is_full = waiting > self.tx.capacity() / 2;
            return Kicked {
                sent,
                refused,
                is_full,
                is_down: false,
            };
        }
        // The kernel says that a frame is lost when it has taken it, but shows that only once it
        // has taken one that is not lost, or has looked for more.
        let refused = self.refused.min(self.taken);
        let sent = self.taken - refused;
        self.refused -= refused;
        (self.pushed, self.taken) = (0, 0);
        let is_full = waiting > 0;
        Kicked {
            sent,
            refused,
            is_full,
            is_down: false,
        }
    }

    /// Counts the frames that the kernel has taken.
    fn count(&mut self) {
        let mut position = self.tx.seen();
        self.tx.look();
        while position != self.tx.seen() {
            let last = self.tx.read(position).options & libc::XDP_PKT_CONTD == 0;
            self.taken += usize::from(last);
            position = position.wrapping_add(1);
        }
    }

    /// Takes back the slots whose frames have left.
    fn reclaim(&mut self) {
        self.completion.look();
        while let Some(address) = self.completion.take() {
            // One that cannot be is of no slot of ours.
            let chunk = (address / CHUNK as u64).wrapping_sub(self.first as u64);
            let Ok(slot) = usize::try_from(chunk / u64::from(SLOT_CHUNKS)) else {
                continue;
            };
            let Some(lent) = self.lent.get_mut(slot).filter(|lent| **lent > 0) else {
                continue;
            };
            *lent -= 1;
            if *lent == 0 {
                // There are fewer than 2^32.
                self.free.push(slot as u32);
            }
        }
    }
}

/// Tells the kernel to look into the TX ring.
pub(super) fn wake(socket: BorrowedFd<'_>) -> io::Result<()> {
    let (flags, none) = (libc::MSG_DONTWAIT, std::ptr::null());
    // SAFETY: there is nothing to read from.
    let result = unsafe { libc::sendto(socket.as_raw_fd(), none, 0, flags, std::ptr::null(), 0) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
