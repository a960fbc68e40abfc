//! BINDs whose QP is not ready for them yet.
//!
//! They spare the asker a pause, no more: it asks again until it hears something. So there may be
//! few of them, each peer has places of its own, and one that finds none is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use trunkline_wire::{Control as ControlEntry, Qpn};

use crate::engine::ConnId;
use crate::engine::binding::is_newer;

/// Most BINDs that may wait, in all.
const MOST: usize = 1 << 20;
/// Most of one peer, which gets half of what others leave at most.
const MOST_PER_PEER: usize = 1 << 16;
/// Most of one peer for one QP.
const MOST_PER_QP: usize = 8;

/// A BIND whose QP is not ready for it yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unready {
    /// The connection that carried it.
    pub(crate) conn: ConnId,
    pub(crate) entry: ControlEntry,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct WaitingBinds {
    /// By peer and QP.
    binds: BTreeMap<(u32, u32), Vec<Unready>>,
    /// QPs and the peers whose BINDs wait for them.
    by_qp: BTreeSet<(u32, u32)>,
    of_peer: BTreeMap<u32, usize>,
    len: usize,
}

impl WaitingBinds {
    /// BINDs in it.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// `false`: there is no room.
    pub(crate) fn insert(&mut self, peer: u32, qp: u32, bind: Unready) -> bool {
        let mine = self.of_peer.get(&peer).copied().unwrap_or(0);
        let room = mine < ((MOST - self.len) / 2).min(MOST_PER_PEER);
        let list = self.binds.entry((peer, qp)).or_default();
        let same = |old: &&mut Unready| old.entry.src_qp == bind.entry.src_qp;
        if let Some(old) = list.iter_mut().find(same) {
            // Said again, it may have come over another connection.
            if !is_newer(old.entry.generation, bind.entry.generation) {
                *old = bind;
            }
            return true;
        }
        let fits = room && list.len() < MOST_PER_QP;
        if fits {
            list.push(bind);
            self.by_qp.insert((qp, peer));
            *self.of_peer.entry(peer).or_default() += 1;
            self.len += 1;
        } else if list.is_empty() {
            self.binds.remove(&(peer, qp));
        }
        fits
    }

    /// Takes out those for a QP, each with its peer.
    #[inline]
    pub(crate) fn take(&mut self, qp: u32) -> Vec<(u32, Unready)> {
        if self.len == 0 {
            return Vec::new();
        }
        self.take_some(qp)
    }

    fn take_some(&mut self, qp: u32) -> Vec<(u32, Unready)> {
        let mut taken = Vec::new();
        while let Some(&(_, peer)) = self.by_qp.range((qp, 0)..=(qp, u32::MAX)).next() {
            let binds = self.remove(peer, qp);
            taken.extend(binds.into_iter().map(|bind| (peer, bind)));
        }
        taken
    }

    /// The QP `remote` of a peer is gone, in the life `generation`.
    pub(crate) fn forget(&mut self, peer: u32, qp: u32, remote: Qpn, generation: u32) {
        let Some(list) = self.binds.get_mut(&(peer, qp)) else {
            return;
        };
        let before = list.len();
        list.retain(|bind| {
            bind.entry.src_qp != remote || is_newer(bind.entry.generation, generation)
        });
        let gone = before - list.len();
        let empty = list.is_empty();
        self.discount(peer, gone);
        if empty {
            self.remove(peer, qp);
        }
    }

    /// Whether BINDs of a peer wait.
    pub(crate) fn has(&self, peer: u32) -> bool {
        self.of_peer.contains_key(&peer)
    }

    /// Those of a peer for one QP, whichever, are forgotten.
    pub(crate) fn forget_one(&mut self, peer: u32) {
        let mut all = self.binds.range((peer, 0)..=(peer, u32::MAX));
        if let Some((&(_, qp), _)) = all.next() {
            self.remove(peer, qp);
        }
    }

    fn remove(&mut self, peer: u32, qp: u32) -> Vec<Unready> {
        self.by_qp.remove(&(qp, peer));
        let list = self.binds.remove(&(peer, qp)).unwrap_or_default();
        self.discount(peer, list.len());
        list
    }

    fn discount(&mut self, peer: u32, gone: usize) {
        self.len -= gone;
        let of_peer = self.of_peer.entry(peer).or_default();
        *of_peer -= gone;
        if *of_peer == 0 {
            self.of_peer.remove(&peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_wire::ControlKind;

    fn bind(src: u32, generation: u32) -> Unready {
        Unready {
            conn: ConnId {
                index: 0,
                serial: 0,
            },
            entry: ControlEntry {
                kind: ControlKind::Bind,
                src_qp: Qpn::from_wire(src),
                replay_epoch: 0,
                dest_qp: Qpn::from_wire(1),
                generation,
                status: 0,
                msn: 0,
            },
        }
    }

    fn sources(taken: &[(u32, Unready)]) -> Vec<(u32, u32)> {
        let source = |(peer, bind): &(u32, Unready)| (*peer, bind.entry.src_qp.get());
        taken.iter().map(source).collect()
    }

    #[test]
    fn strangers_take_no_place_of_another_peer() {
        let mut binds = WaitingBinds::default();
        let taken = (1..100).filter(|src| binds.insert(7, 0, bind(*src, 1)));
        assert_eq!(taken.count(), MOST_PER_QP);
        assert!(binds.insert(8, 0, bind(1, 1)));
        // Said again, it takes no further place.
        assert!(binds.insert(8, 0, bind(1, 1)));
        let taken = sources(&binds.take(0));
        assert_eq!(taken.len(), MOST_PER_QP + 1);
        assert!(taken.contains(&(8, 1)));
        assert_eq!(binds.len(), 0);
        assert!(binds.of_peer.is_empty() && binds.by_qp.is_empty() && binds.binds.is_empty());
    }

    #[test]
    fn a_peer_with_all_it_may_have_leaves_room_for_others() {
        let mut binds = WaitingBinds::default();
        for qp in 0..20_000 {
            for src in 0..4 {
                binds.insert(7, qp, bind(src, 1));
            }
        }
        assert_eq!(binds.len(), MOST_PER_PEER);
        assert!(!binds.insert(7, 30_000, bind(1, 1)));
        assert!(binds.insert(8, 30_000, bind(1, 1)));
        while binds.has(7) {
            binds.forget_one(7);
        }
        assert_eq!(binds.len(), 1);
        assert!(binds.insert(7, 30_000, bind(1, 1)));
        assert_eq!(sources(&binds.take(30_000)), [(7, 1), (8, 1)]);
    }

    #[test]
    fn what_a_qp_asked_in_a_life_that_is_over_is_forgotten() {
        let mut binds = WaitingBinds::default();
        for src in [1, 2] {
            assert!(binds.insert(7, 0, bind(src, 5)));
        }
        binds.forget(7, 0, Qpn::from_wire(1), 4);
        assert_eq!(binds.len(), 2);
        binds.forget(7, 0, Qpn::from_wire(1), 5);
        assert_eq!(binds.len(), 1);
        binds.forget(7, 0, Qpn::from_wire(2), 6);
        assert_eq!(binds.len(), 0);
        assert!(binds.of_peer.is_empty() && binds.by_qp.is_empty() && binds.binds.is_empty());
    }
}
