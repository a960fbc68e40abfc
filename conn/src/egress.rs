//! How an engine gets room for a packet it is about to build.

use alloc::boxed::Box;
use trunkline_wire::Path;

/// Room for one datagram (BTH up to and including the ICRC) of exactly the reserved length.
#[derive(Debug)]
pub struct Slot<'a> {
    /// To be filled completely.
    pub datagram: &'a mut [u8],
    /// IPv4 identification the packet will carry; the ICRC covers it. 0 over IPv6.
    pub identification: u16,
}

/// What came of asking an engine for a packet.
#[must_use]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transmitted {
    /// One was built.
    Packet,
    /// There is nothing to send now.
    Nothing,
    /// There is, but the egress has no room: ask again when it has.
    NoRoom,
}

impl Transmitted {
    /// Whether a packet was built.
    pub const fn is_packet(self) -> bool {
        matches!(self, Self::Packet)
    }
}

/// Somewhere packets can be built in place. Every port is one.
pub trait Egress {
    /// Room for a datagram of exactly `length` bytes along `path`, or `None` when there is none at
    /// the moment. A slot that is not committed is given out again: where a long datagram had room,
    /// a shorter one has.
    ///
    /// A datagram longer than this egress carries at all finds room, and is dropped: others must
    /// not wait for what never fits.
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>>;

    /// Hands over the slot reserved last.
    fn commit(&mut self);

    /// What is reserved from now on goes to another queue of the receiver than what was before:
    /// an egress that joins datagrams to larger units begins a new one.
    fn part(&mut self) {}
}

impl<E: Egress + ?Sized> Egress for Box<E> {
    fn reserve(&mut self, path: &Path, length: usize) -> Option<Slot<'_>> {
        (**self).reserve(path, length)
    }

    fn commit(&mut self) {
        (**self).commit();
    }

    fn part(&mut self) {
        (**self).part();
    }
}
