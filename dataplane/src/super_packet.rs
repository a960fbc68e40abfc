//! Which datagrams may leave together: those of one path and one length that follow each other, the
//! last of which may be shorter. Together they are a super-packet.

use trunkline_wire::Path;

/// Most bytes of one send, which is also the most of a datagram: what fits an IPv4 packet.
pub const MAX_SEND: usize = 65_507;
/// Most datagrams of a super-packet; older kernels take no more.
pub const MAX_SEGMENTS: usize = 64;

/// One datagram, or several that leave together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SuperPacket {
    pub(crate) path: Path,
    /// Bytes of the first datagram.
    pub(crate) segment: usize,
    /// Bytes of all.
    pub(crate) bytes: usize,
    pub(crate) count: usize,
}

impl SuperPacket {
    /// One datagram of `length` bytes.
    pub(crate) const fn new(path: Path, length: usize) -> Self {
        Self {
            path,
            segment: length,
            bytes: length,
            count: 1,
        }
    }

    /// Whether a datagram of `length` bytes on `path` may join it.
    #[inline]
    pub(crate) fn takes(&self, path: &Path, length: usize) -> bool {
        length <= self.segment
            && self.bytes == self.segment * self.count
            && self.count < MAX_SEGMENTS
            && self.bytes + length <= MAX_SEND
            && self.path == *path
    }

    /// The IPv4 identification of the next datagram that joins; 0 over IPv6.
    #[inline]
    pub(crate) const fn identification(&self) -> u16 {
        match self.path.dst.is_ipv4() {
            true => self.count as u16,
            false => 0,
        }
    }

    /// A datagram has joined.
    #[inline]
    pub(crate) const fn add(&mut self, length: usize) {
        self.bytes += length;
        self.count += 1;
    }
}
