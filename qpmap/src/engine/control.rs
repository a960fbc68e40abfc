//! The owner of what is said to peers beside data: contents of packets of control
//! messages that were not acknowledged yet, stateless replies, and how many refusals peers get.

mod blobs;
mod refusals;
mod replies;

pub(crate) use blobs::{Blobs, MAX_BLOB};
use refusals::Refusals;
pub(crate) use replies::{Replies, Reply};

use crate::hash::Keyed;
use trunkline_conn::time::Instant;
use trunkline_wire::{Control as ControlEntry, Gid};

/// What peers are told.
#[derive(Debug)]
pub(crate) struct Control {
    /// In flight.
    pub(crate) blobs: Blobs,
    /// To those that have no flow here.
    pub(crate) replies: Replies,
    /// How often they may be refused something.
    pub(crate) refusals: Refusals,
}

impl Control {
    /// Nothing is to be said. `hash` is of addresses, which peers choose.
    pub(crate) fn new(hash: Keyed) -> Self {
        Self {
            blobs: Blobs::default(),
            replies: Replies::new(hash),
            refusals: Refusals::new(hash),
        }
    }

    /// Refuses a BIND, if the peer's address has not had too many refused. `false`: it hears
    /// nothing, and asks again.
    pub(crate) fn refuse(&mut self, now: Instant, of: (u32, Gid), entry: ControlEntry) -> bool {
        let told = self.refusals.may_ask(now, of.1) && self.replies.refuse(of, entry);
        if told {
            self.refusals.spend(now, of.1);
        }
        told
    }

    /// How many of both there are.
    pub(crate) const fn len(&self) -> usize {
        self.blobs.len() + self.replies.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use replies::tests::REFUSED;

    #[test]
    fn a_refusal_that_nobody_hears_costs_nothing() {
        let mut control = Control::new(Keyed::new([1, 2]));
        let peer = std::net::IpAddr::from([10, 0, 0, 1]).into();
        let now = Instant::from_nanos(1);
        let told = (0..10_000).filter(|_| control.refuse(now, (1, peer), REFUSED));
        assert!(told.count() < 2000, "there is no room for more");
        assert!(control.refusals.may_ask(now, peer));
    }
}
