//! Flows of QPs that are gone, and whose peers have not heard of it.

use crate::hash::Keyed;
use hashbrown::HashTable;
use trunkline_wire::Qpn;

/// A pair of QPs: index of ours, number and peer of the other.
pub(crate) type Pair = (u32, Qpn, u32);

/// Flows of QPs that are gone, by the pair they were for.
#[derive(Debug)]
pub(crate) struct Endings {
    hash: Keyed,
    last: HashTable<(Pair, u32)>,
}

impl Endings {
    /// None; `hash` is one that nobody can foresee.
    pub(crate) const fn new(hash: Keyed) -> Self {
        Self {
            hash,
            last: HashTable::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// The flow of a former life of this pair whose end the peer has not heard of.
    pub(crate) fn get(&self, pair: &Pair) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let found = self.last.find(self.hash_of(pair), |(at, _)| at == pair);
        found.map(|(_, flow)| *flow)
    }

    /// Takes up the flow of a pair that has none.
    pub(crate) fn insert(&mut self, pair: Pair, flow: u32) {
        let (hash, of) = (self.hash_of(&pair), self.hash);
        let entry = (pair, flow);
        self.last
            .insert_unique(hash, entry, |(pair, _)| hash_of(of, pair));
    }

    pub(crate) fn remove(&mut self, pair: &Pair) {
        let hash = self.hash_of(pair);
        if let Ok(found) = self.last.find_entry(hash, |(at, _)| at == pair) {
            found.remove();
        }
    }

    fn hash_of(&self, pair: &Pair) -> u64 {
        hash_of(self.hash, pair)
    }
}

fn hash_of(hash: Keyed, (qp, remote, peer): &Pair) -> u64 {
    let both = u64::from(*qp) << 32 | u64::from(remote.get());
    hash.hash([both, (*peer).into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_is_found_by_its_pair_until_it_was_told() {
        let mut endings = Endings::new(Keyed::new([1, 2]));
        let pair = |qp, remote, peer| (qp, Qpn::from_wire(remote), peer);
        assert!(endings.is_empty());
        for flow in 0..100 {
            endings.insert(pair(flow, 7, 1), flow);
        }
        assert_eq!(endings.get(&pair(50, 7, 1)), Some(50));
        for other in [pair(50, 8, 1), pair(50, 7, 2), pair(100, 7, 1)] {
            assert_eq!(endings.get(&other), None);
        }
        for flow in 0..100 {
            endings.remove(&pair(flow, 7, 1));
            endings.remove(&pair(flow, 7, 1));
        }
        assert!(endings.is_empty() && endings.get(&pair(50, 7, 1)).is_none());
    }
}
