//! Routes: whom app-managed QPs talk to.
//!
//! All routes of an engine are in one table, by the QP, the peer and the QP there, so that finding
//! one costs the same however many there are. A program knows the routes that it asked for by
//! numbers, per QP, which are free again once it has closed them; a route that a peer opened has
//! none until the program asks for it, and goes when the peer's QP ends.

use crate::hash::{IndexMap, Keyed};
use crate::slab::{NONE, Slab};
use hashbrown::HashTable;
use std::collections::VecDeque;
use trunkline_wire::Qpn;

/// Most routes that peers may have opened, at all app-managed QPs together.
const MAX_OPENED: u32 = 1 << 20;
/// Most of one peer, which may never have more than are left for others.
const MAX_OPENED_PER_PEER: u32 = 1 << 16;

/// One of them.
#[derive(Debug)]
struct Route {
    qp: u32,
    peer: u32,
    remote: Qpn,
    /// Its flow; [`NONE`] once the route has ended.
    flow: u32,
    /// What its program calls it; 0 while it does not know it.
    number: u32,
    /// Its neighbours among the routes of the QP: a circle.
    prev: u32,
    next: u32,
    /// The peer opened it.
    opened: bool,
    /// Its program has closed it, while requests that name it were in the ring.
    closing: bool,
}

/// The routes of one QP.
#[derive(Debug)]
pub(crate) struct OwnRoutes {
    first: u32,
    /// By number, from 1.
    numbers: Slab<u32>,
    /// Numbers of routes that are closing, and the slot of the ring behind the last request that
    /// may name each; in order.
    closing: VecDeque<(u32, u32)>,
}

/// The routes of an engine.
#[derive(Debug)]
pub(crate) struct RouteTable {
    hash: Keyed,
    routes: Slab<Route>,
    /// Those that have not ended.
    by_pair: HashTable<u32>,
    /// Routes that peers opened: all, and by peer.
    opened: u32,
    opened_by: IndexMap<u32>,
}

impl OwnRoutes {
    pub(crate) const EMPTY: Self = Self {
        first: NONE,
        numbers: Slab::new(),
        closing: VecDeque::new(),
    };
}

impl RouteTable {
    /// An empty table; `hash` is one that nobody can foresee.
    pub(crate) fn new(hash: Keyed) -> Self {
        Self {
            hash,
            routes: Slab::new(),
            by_pair: HashTable::new(),
            opened: 0,
            opened_by: IndexMap::default(),
        }
    }

    /// Routes, ended ones that their programs have not closed included.
    #[cfg(test)]
    pub(crate) const fn len(&self) -> usize {
        self.routes.len()
    }

    /// Bytes of what is known of them: a record each, with its number and its place in the table.
    pub(crate) const fn state_bytes(&self) -> usize {
        const EACH: usize = size_of::<Route>() + 2 * size_of::<u32>() + 1;
        self.routes.len() * EACH
    }

    /// Whether `peer`, or one that is not known yet, may open another route.
    pub(crate) fn may_be_opened_by(&self, peer: Option<u32>) -> bool {
        let own = peer.map_or(0, |peer| self.opened_by.get(&peer).copied().unwrap_or(0));
        own < MAX_OPENED_PER_PEER.min(MAX_OPENED.saturating_sub(self.opened))
    }

    /// The flow between a QP and `remote` at `peer`.
    #[inline]
    pub(crate) fn find(&self, qp: u32, peer: u32, remote: Qpn) -> Option<u32> {
        let fits = |route: &u32| {
            let route = &self.routes[*route];
            (route.qp, route.peer, route.remote) == (qp, peer, remote)
        };
        let found = self.by_pair.find(self.hash_of(qp, peer, remote), fits)?;
        Some(self.routes[*found].flow)
    }

    /// The flow of route `number` of a QP. `None`: no such route; [`NONE`]: it has ended.
    #[inline]
    pub(crate) fn numbered(&self, own: &OwnRoutes, number: u32) -> Option<u32> {
        let route = own.numbers.get(number.wrapping_sub(1))?;
        Some(self.routes[*route].flow)
    }

    /// What its program calls a route that has not ended; 0 when it does not know it.
    pub(crate) fn number(&self, qp: u32, peer: u32, remote: Qpn) -> u32 {
        let found = self.route_of(qp, peer, remote);
        found.map_or(0, |route| self.routes[route].number)
    }

    /// Takes up a route, which is not there yet; `opened` by the peer, or by the program.
    pub(crate) fn insert(
        &mut self,
        own: &mut OwnRoutes,
        (qp, peer, remote): (u32, u32, Qpn),
        flow: u32,
        opened: bool,
    ) {
        let index = self.routes.next_index();
        let (prev, next) = match own.first {
            NONE => (index, index),
            first => (self.routes[first].prev, first),
        };
        self.routes.insert(Route {
            qp,
            peer,
            remote,
            flow,
            number: 0,
            prev,
            next,
            opened,
            closing: false,
        });
        if own.first == NONE {
            own.first = index;
        } else {
            self.routes[prev].next = index;
            self.routes[next].prev = index;
        }
        let hash = self.hash_of(qp, peer, remote);
        let (keyed, routes) = (self.hash, &self.routes);
        self.by_pair
            .insert_unique(hash, index, |route| routes[*route].hash(&keyed));
        if opened {
            self.opened += 1;
            *self.opened_by.entry(peer).or_insert(0) += 1;
        }
    }

    /// Gives a route its number, if it has none yet.
    pub(crate) fn name(
        &mut self,
        own: &mut OwnRoutes,
        (qp, peer, remote): (u32, u32, Qpn),
    ) -> Option<u32> {
        let index = self.route_of(qp, peer, remote)?;
        let route = &mut self.routes[index];
        if route.number == 0 {
            route.number = own.numbers.insert(index) + 1;
        }
        Some(route.number)
    }

    /// A route ends: nobody finds it any more. One that its program knows keeps its number until
    /// that is closed; all others are gone. Gives the number.
    pub(crate) fn end(&mut self, own: &mut OwnRoutes, (qp, peer, remote): (u32, u32, Qpn)) -> u32 {
        let Some(index) = self.route_of(qp, peer, remote) else {
            return 0;
        };
        let hash = self.hash_of(qp, peer, remote);
        if let Ok(entry) = self.by_pair.find_entry(hash, |route| *route == index) {
            entry.remove();
        }
        let route = &mut self.routes[index];
        route.flow = NONE;
        let number = route.number;
        if std::mem::take(&mut route.opened) {
            self.opened -= 1;
            let count = self.opened_by.get_mut(&peer);
            let count = count.expect("each route that a peer opened is counted");
            *count -= 1;
            if *count == 0 {
                self.opened_by.remove(&peer);
            }
        }
        if number == 0 {
            self.remove(own, index);
        }
        number
    }

    /// Whether a program has closed the route that had this number.
    pub(crate) fn is_closing(&self, own: &OwnRoutes, number: u32) -> bool {
        let route = own.numbers.get(number.wrapping_sub(1));
        route.is_some_and(|route| self.routes[*route].closing)
    }

    /// The program has closed a route that has ended. Its number is free once all requests before
    /// `slot` of the ring were taken: they may name it.
    pub(crate) fn close_behind(&mut self, own: &mut OwnRoutes, number: u32, slot: u32) {
        self.routes[own.numbers[number - 1]].closing = true;
        own.closing.push_back((number, slot));
    }

    /// All requests before `slot` were taken from the ring.
    #[inline]
    pub(crate) fn taken(&mut self, own: &mut OwnRoutes, slot: u32) {
        while let Some(&(number, behind)) = own.closing.front()
            && slot.wrapping_sub(behind).cast_signed() >= 0
        {
            own.closing.pop_front();
            self.close(own, number);
        }
    }

    /// Frees the number of a route that has ended.
    pub(crate) fn close(&mut self, own: &mut OwnRoutes, number: u32) {
        let index = own.numbers.remove(number - 1);
        assert_eq!(self.routes[index].flow, NONE, "a route ends first");
        self.remove(own, index);
    }

    /// Whether a flow is that of the oldest route of a QP.
    pub(crate) fn is_oldest(&self, own: &OwnRoutes, flow: u32) -> bool {
        let oldest = self.routes.get(own.first);
        oldest.is_some_and(|route| route.flow == flow)
    }

    /// The flows of a QP's routes, oldest first, but for those that have ended.
    pub(crate) fn flows(&self, own: &OwnRoutes) -> impl Iterator<Item = u32> {
        let (first, mut next) = (own.first, own.first);
        let all = std::iter::from_fn(move || {
            let route = self.routes.get(next)?;
            next = if route.next == first {
                NONE
            } else {
                route.next
            };
            Some(route.flow)
        });
        all.filter(|flow| *flow != NONE)
    }

    /// Forgets what is left of a QP whose routes have all ended: the numbers that its program has
    /// not closed.
    pub(crate) fn clear(&mut self, own: &mut OwnRoutes) {
        while own.first != NONE {
            self.remove(own, own.first);
        }
        own.numbers = Slab::new();
        own.closing.clear();
    }

    fn remove(&mut self, own: &mut OwnRoutes, index: u32) {
        let Route {
            prev, next, flow, ..
        } = self.routes.remove(index);
        assert_eq!(flow, NONE, "a route ends before it goes");
        if next == index {
            own.first = NONE;
            return;
        }
        self.routes[prev].next = next;
        self.routes[next].prev = prev;
        if own.first == index {
            own.first = next;
        }
    }

    fn route_of(&self, qp: u32, peer: u32, remote: Qpn) -> Option<u32> {
        let fits = |route: &u32| {
            let route = &self.routes[*route];
            (route.qp, route.peer, route.remote) == (qp, peer, remote)
        };
        let hash = self.hash_of(qp, peer, remote);
        self.by_pair.find(hash, fits).copied()
    }

    #[inline]
    fn hash_of(&self, qp: u32, peer: u32, remote: Qpn) -> u64 {
        pair_hash(&self.hash, qp, peer, remote)
    }
}

impl Route {
    fn hash(&self, keyed: &Keyed) -> u64 {
        pair_hash(keyed, self.qp, self.peer, self.remote)
    }
}

#[inline]
fn pair_hash(keyed: &Keyed, qp: u32, peer: u32, remote: Qpn) -> u64 {
    let here = u64::from(qp) | u64::from(peer) << 32;
    keyed.hash([here, remote.get().into()])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use trunkline_conn::secret::{Purpose, Secret};

    fn table() -> RouteTable {
        RouteTable::new(Keyed::of(Secret::from_seed(1).stream(Purpose::Routes)))
    }

    fn pair(qp: u32, peer: u32, remote: u32) -> (u32, u32, Qpn) {
        (qp, peer, Qpn::from_wire(remote))
    }

    #[test]
    fn a_route_is_found_by_its_qps_and_its_peer_alone() {
        let (mut table, mut own) = (table(), OwnRoutes::EMPTY);
        for remote in 0..1000 {
            table.insert(&mut own, pair(3, 7, remote), remote, false);
        }
        let find = |qp, peer, remote| table.find(qp, peer, Qpn::from_wire(remote));
        assert_eq!(find(3, 7, 500), Some(500));
        assert_eq!(find(3, 8, 500), None);
        assert_eq!(find(4, 7, 500), None);
        assert_eq!(find(3, 7, 1000), None);
        assert!(table.flows(&own).eq(0..1000));
    }

    #[test]
    fn a_number_stays_the_programs_until_it_is_closed() {
        let (mut table, mut own) = (table(), OwnRoutes::EMPTY);
        for remote in 0..3 {
            table.insert(&mut own, pair(0, 0, remote), 10 + remote, remote == 1);
        }
        assert_eq!(table.name(&mut own, pair(0, 0, 1)), Some(1));
        assert_eq!(table.name(&mut own, pair(0, 0, 2)), Some(2));
        assert_eq!(
            table.name(&mut own, pair(0, 0, 1)),
            Some(1),
            "the same again"
        );
        assert_eq!(table.numbered(&own, 1), Some(11));
        assert_eq!(table.end(&mut own, pair(0, 0, 1)), 1);
        assert_eq!(table.numbered(&own, 1), Some(NONE), "known, but ended");
        assert_eq!(table.find(0, 0, Qpn::from_wire(1)), None);
        // Another route to the same QP is another one, with another number.
        table.insert(&mut own, pair(0, 0, 1), 20, false);
        assert_eq!(table.name(&mut own, pair(0, 0, 1)), Some(3));
        table.close(&mut own, 1);
        assert_eq!(table.numbered(&own, 1), None);
        assert_eq!(table.name(&mut own, pair(0, 0, 0)), Some(1), "free again");
        assert_eq!(table.numbered(&own, 0), None);
    }

    #[test]
    fn what_a_peer_opened_goes_without_a_trace() {
        let (mut table, mut own) = (table(), OwnRoutes::EMPTY);
        for round in 0..3 {
            for remote in 0..100 {
                table.insert(&mut own, pair(0, 5, remote), remote, true);
            }
            for remote in (0..100).rev() {
                assert_eq!(table.end(&mut own, pair(0, 5, remote)), 0, "round {round}");
            }
            assert_eq!(table.len(), 0);
        }
        assert!(table.opened == 0 && table.opened_by.is_empty());
        assert_eq!(table.flows(&own).count(), 0);
    }

    #[test]
    fn a_peer_takes_its_share_of_routes_and_none_of_the_others() {
        let (mut table, mut own) = (table(), OwnRoutes::EMPTY);
        let mut flow = 0;
        let mut fill = |table: &mut RouteTable, peer| {
            let mut count = 0;
            while table.may_be_opened_by(Some(peer)) {
                table.insert(&mut own, pair(0, peer, count), flow, true);
                (count, flow) = (count + 1, flow + 1);
            }
            count
        };
        assert_eq!(fill(&mut table, 0), MAX_OPENED_PER_PEER);
        assert!(table.may_be_opened_by(Some(1)) && table.may_be_opened_by(None));
        for peer in 1..15 {
            assert_eq!(fill(&mut table, peer), MAX_OPENED_PER_PEER);
        }
        // However many come, one more finds room.
        assert_eq!(fill(&mut table, 15), MAX_OPENED_PER_PEER / 2);
        assert_eq!(fill(&mut table, 16), MAX_OPENED_PER_PEER / 4);
        assert!(table.may_be_opened_by(Some(17)));
        // What one gives back another may have.
        assert!(!table.may_be_opened_by(Some(16)));
        table.end(&mut own, pair(0, 0, 9));
        assert!(table.may_be_opened_by(Some(16)));
    }

    #[test]
    fn the_numbers_of_a_qp_go_with_it() {
        let (mut table, mut own) = (table(), OwnRoutes::EMPTY);
        let mut neighbour = OwnRoutes::EMPTY;
        table.insert(&mut neighbour, pair(1, 0, 0), 99, true);
        for remote in 0..4 {
            table.insert(&mut own, pair(0, 0, remote), remote, false);
            table.name(&mut own, pair(0, 0, remote));
        }
        for remote in 0..4 {
            table.end(&mut own, pair(0, 0, remote));
        }
        table.clear(&mut own);
        assert_eq!((table.len(), table.numbered(&own, 1)), (1, None));
        assert_eq!(table.find(1, 0, Qpn::from_wire(0)), Some(99));
    }
}
