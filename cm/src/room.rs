//! Whether there is room for a peer's ask.

use crate::config::Limits;
use crate::table::Load;

/// What is found before anything takes time: what a flood is told costs little.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Room {
    Enough,
    /// For others, not for this peer.
    PeerHasItsShare,
    /// Later.
    None,
}

impl Room {
    /// What a peer finds that has `of_peer` half-open already, where `events` wait to be taken.
    ///
    /// It may have as much half-open as is left for all others: one that floods leaves half of the
    /// room free, and whoever has nothing under way finds some as long as there is any.
    pub(crate) const fn of(limits: &Limits, load: &Load, events: usize, of_peer: u32) -> Self {
        let left = limits.half_open.saturating_sub(load.half_open);
        if of_peer >= limits.half_open_per_peer {
            Self::PeerHasItsShare
        } else if of_peer >= left
            || load.connections() >= limits.connections
            || events as u64 >= limits.connections as u64
        {
            Self::None
        } else {
            Self::Enough
        }
    }
}
