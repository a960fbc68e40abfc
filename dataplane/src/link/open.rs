//! The frame that was built last, where others may join it: a super-packet. Whoever gets it on a
//! wire gets the frames that it stands for.

use super::device::{Joined, Offload};
use super::headers;
use crate::super_packet::{MAX_SEGMENTS, SuperPacket};
use trunkline_wire::{InternetSum, Path};

/// A frame that was built and is not pushed yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Open {
    pub(super) packet: SuperPacket,
    /// Bytes of its headers.
    pub(super) headers: usize,
    /// Over IPv6, what the checksum of a datagram alone begins with.
    pub(super) sum: Option<InternetSum>,
}

/// The most that a super-packet has is counted in a byte.
const _: () = assert!(MAX_SEGMENTS <= u8::MAX as usize);

impl Open {
    /// Where a datagram of `length` bytes on `path` begins in the frame, which then has at most
    /// `most` bytes; and the identification that it gets. `None`: it does not join.
    #[inline]
    pub(super) fn place(&self, path: &Path, length: usize, most: usize) -> Option<(usize, u16)> {
        let joins = self.frame() + length <= most && self.packet.takes(path, length);
        joins.then(|| (self.frame(), self.packet.identification()))
    }

    /// Bytes of the frame.
    pub(super) const fn frame(&self) -> usize {
        self.headers + self.packet.bytes
    }

    /// Completes the headers of `frame`, which is of several datagrams, and says what is left to
    /// the device.
    pub(super) fn complete(&self, frame: &mut [u8]) -> Offload {
        let udp = self.headers - headers::UDP;
        headers::lengthen(frame, &self.packet.path, udp);
        Offload {
            udp,
            joined: Some(Joined {
                segment: self.packet.segment as u16,
                count: self.packet.count as u8,
            }),
        }
    }
}
