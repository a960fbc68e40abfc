//! What a port of raw frames asks of whatever carries them: room for a frame, a burst out, a burst
//! in, nothing else. What is in the frames is the business of [`LinkPort`](super::LinkPort).

use crate::port::{LinkState, PortError};
use std::fmt;
use std::os::fd::BorrowedFd;
use trunkline_wire::Mac;

/// Carries Ethernet frames: from the header on, without their check sequence.
///
/// What is sent goes `allocate`, `push`, `kick`; what arrives goes `look`, then `front` and
/// `recycle` for each unit. Nothing here waits.
pub trait Device: fmt::Debug {
    /// Most bytes of a frame.
    fn max_frame(&self) -> usize;

    /// Most bytes of a frame that holds several datagrams, of which the medium makes as many
    /// frames: at least those of any other frame. `None`: it makes none. Who does finishes their
    /// checksums.
    fn max_super_packet(&self) -> Option<usize> {
        None
    }

    /// Room for one frame of `length` bytes, at most [`max_frame`](Self::max_frame) or
    /// [`max_super_packet`](Self::max_super_packet): that of an earlier frame, whose bytes it has,
    /// and the same each time until it is pushed, with what was written to it. `None`: there is
    /// none before the next kick, or before the medium has taken some.
    fn allocate(&mut self, length: usize) -> Option<&mut [u8]>;

    /// Whether it, or who gets the frame, finishes a UDP checksum that is the sum of the pseudo
    /// header alone.
    fn finishes_checksums(&self) -> bool {
        false
    }

    /// The frame that was allocated last is whole: it goes with the next kick, which does what is
    /// `left` to do of it.
    fn push(&mut self, left: Option<Offload>);

    /// Hands over what was pushed, oldest first. What the medium does not take now stays for the
    /// next kick; while an interface is down it stays, or is refused.
    ///
    /// # Errors
    /// When the device itself cannot go on.
    fn kick(&mut self) -> Result<Kicked, PortError>;

    /// Looks what has arrived. What comes later is given after the next look only. Gives whether
    /// there is a [`front`](Self::front).
    ///
    /// # Errors
    /// When the device itself cannot go on.
    fn look(&mut self) -> Result<bool, PortError>;

    /// The oldest unit that had arrived at the last look and was not recycled.
    fn front(&self) -> Option<Unit<'_>>;

    /// Takes the front back: its memory is used for what arrives next.
    fn recycle(&mut self);

    /// Readable when something has arrived since the last look that found nothing; writable when
    /// there is room again after a kick that left something. `None`: it has to be polled.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// What it knows of its link: for interfaces that no kernel has.
    fn link(&self) -> Option<LinkState> {
        None
    }

    /// Whether its interface was there all the time: one that was removed or moved is not got back.
    fn is_attached(&self) -> bool {
        true
    }

    /// Its interface has another address of the link from now on.
    fn readdress(&mut self, _mac: Mac) {}

    /// Frames that arrived and were lost since there was no room for them, since it was opened.
    fn missed(&mut self) -> u64 {
        0
    }
}

/// What is left to whoever takes a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Offload {
    /// Where its UDP header is, in which a checksum is to be finished that is the sum of the pseudo
    /// header.
    pub udp: usize,
    /// It is a super-packet, and each frame that is made of it has such a checksum.
    pub joined: Option<Joined>,
}

/// Datagrams in a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Joined {
    /// Bytes of each of them; the last may have fewer.
    pub segment: u16,
    /// How many they are.
    pub count: u8,
}

/// What became of a kick. Of a super-packet each datagram counts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Kicked {
    /// Datagrams that the medium took.
    pub sent: usize,
    /// Datagrams that the medium refused, and that are lost.
    pub refused: usize,
    /// Some wait for the next kick, and there is room when the descriptor is writable.
    pub is_full: bool,
    /// Some wait for an interface that is down: nothing tells when it is up but the next kick.
    pub is_down: bool,
}

/// What arrived at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Unit<'a> {
    /// One frame; or, with a `segment`, the headers of a frame with the content of several.
    pub frame: &'a [u8],
    /// Bytes of UDP payload in each of the frames that were joined; the last may have fewer.
    pub segment: Option<u16>,
    /// Its end is missing, as it was longer than there was room for.
    pub is_cut: bool,
}
