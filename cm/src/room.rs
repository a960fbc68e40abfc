//! Whether there is room for a peer's request.

use crate::config::Limits;
use crate::shares::Shares;
use crate::table::Load;
use core::net::IpAddr;

/// What is found before anything takes time: what a flood is told costs little.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Room {
    Enough,
    /// For others; for this address once what it has under way has come to something.
    PeerHasItsShare,
    /// For others; for this address once connections of it have ended.
    Share,
    /// Later.
    None,
}

impl Room {
    /// What a peer at `address` finds where `events` wait to be taken.
    pub(crate) fn of(
        limits: &Limits,
        load: &Load,
        events: usize,
        (shares, address): (&Shares, IpAddr),
    ) -> Self {
        let free = limits.connections.saturating_sub(load.connections());
        let unconfirmed = limits.half_open.saturating_sub(load.half_open);
        let under_way = shares.of_address(address).half_open;
        if free == 0 || events as u64 >= limits.connections as u64 {
            Self::None
        } else if shares.is_spent(address, free, |held| held.connections) {
            Self::Share
        } else if under_way >= limits.half_open_per_peer {
            Self::PeerHasItsShare
        } else if shares.is_spent(address, unconfirmed, |held| held.half_open) {
            Self::None
        } else {
            Self::Enough
        }
    }
}
