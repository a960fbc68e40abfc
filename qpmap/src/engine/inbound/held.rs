//! Receives in the hands of peers: taken for a message that is not complete.
//!
//! A message of several packets takes a receive with its first one, and keeps it for as long as its
//! sender likes. Peers open as many routes to an app-managed QP as they have QPs, so that one could
//! begin a message on each and end none. So a peer may hold no more receives of a queue than it
//! leaves to others.

use std::collections::BTreeMap;
use trunkline_wire::Gid;

/// Whose share of which queue a receive counts for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Holder {
    /// A peer's, of the queue of a QP.
    Own(OwnHolder),
    /// That of the peer at an address, of an SRQ. It is counted there, as peers have QPs at all
    /// workers.
    Shared {
        /// The SRQ.
        srq: u32,
        /// The peer's address.
        peer: Gid,
    },
}

/// A QP, and a peer.
pub(crate) type OwnHolder = (u32, u32);

/// How many each holder has of a queue.
#[derive(Debug)]
pub(crate) struct Held<H>(BTreeMap<H, u32>);

impl<H> Default for Held<H> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<H: Copy + Ord> Held<H> {
    /// Whether `holder` may take one more of the `left` that are in the queue.
    pub(crate) fn may_take(&self, holder: H, left: u32) -> bool {
        let held = self.0.get(&holder).copied().unwrap_or(0);
        held < left
    }

    /// It took one.
    pub(crate) fn take(&mut self, holder: H) {
        *self.0.entry(holder).or_default() += 1;
    }

    /// One that it took is used up, or flushed.
    pub(crate) fn give_back(&mut self, holder: H) {
        let held = self.0.get_mut(&holder);
        let held = held.expect("what is given back was taken");
        *held -= 1;
        if *held == 0 {
            self.0.remove(&holder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all that `holder` gets of `posted` receives; how many it got.
    fn take_all(held: &mut Held<OwnHolder>, holder: OwnHolder, posted: &mut u32) -> u32 {
        let before = *posted;
        while held.may_take(holder, *posted) {
            held.take(holder);
            *posted -= 1;
        }
        before - *posted
    }

    #[test]
    fn a_peer_holds_no_more_of_a_queue_than_it_leaves_to_others() {
        let (mut held, mut posted) = (Held::default(), 64);
        let peers = [1, 2, 3].map(|peer| (7, peer));
        let got = peers.map(|peer| take_all(&mut held, peer, &mut posted));
        assert_eq!(got, [32, 16, 8]);
        // Another queue is another matter.
        assert!(held.may_take((8, 1), 1));
        // What comes back may be taken again.
        held.give_back(peers[0]);
        assert_eq!(take_all(&mut held, peers[0], &mut 32), 1);
        for (peer, got) in peers.into_iter().zip(got) {
            (0..got).for_each(|_| held.give_back(peer));
        }
        assert!(held.0.is_empty());
    }
}
