//! The owner of what stays from one packet to the next that comes in.

use super::build::SentPacket;
use super::seeded::Seeded;
use trunkline_wire::Path;

/// State of receiving, beside that of connections.
#[derive(Debug)]
pub(crate) struct Rx {
    /// Path of the last packet that came.
    arrived: Seeded,
    /// Room for what an acknowledgement frees.
    freed: Vec<SentPacket>,
    /// Packets come by another worker of the node.
    handed_over: bool,
}

impl Rx {
    pub(crate) fn new(path: Path) -> Self {
        Self {
            arrived: Seeded::new(path),
            freed: Vec::new(),
            handed_over: false,
        }
    }

    /// Path of the last packet that came.
    #[inline]
    pub(crate) const fn arrived(&self) -> &Seeded {
        &self.arrived
    }

    /// Whether packets come by another worker of the node.
    #[inline]
    pub(crate) const fn is_handed_over(&self) -> bool {
        self.handed_over
    }

    /// How the next packets come.
    pub(crate) const fn begin(&mut self, handed_over: bool) {
        self.handed_over = handed_over;
    }

    /// A packet comes this way. Gives whether it is another than before.
    #[inline]
    pub(crate) fn turn_to(&mut self, path: &Path) -> bool {
        self.arrived.turn_to(path)
    }

    /// Room for what an acknowledgement frees, empty.
    #[inline]
    pub(crate) fn take_room(&mut self) -> Vec<SentPacket> {
        std::mem::take(&mut self.freed)
    }

    /// It is not needed any more.
    #[inline]
    pub(crate) fn give_back_room(&mut self, mut room: Vec<SentPacket>) {
        room.clear();
        self.freed = room;
    }
}
