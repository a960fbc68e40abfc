//! Routes: whom app-managed QPs talk to.
//!
//! All routes of an engine are in one table, by the QP, the peer and the QP there, so that finding
//! one costs the same however many there are. A program knows the routes that it asked for by
//! numbers, per QP, which are free again once it has closed them; a route that a peer opened has
//! one that nobody is told until the program asks for the route, and goes when the peer's QP ends.
//!
//! The flow of a route is a record of its own while something is under way on it. Some time after
//! that it becomes *dormant*: the route keeps the few words that tell what it was, until a request
//! or a packet, or the end of its connection, wakes it up.

mod dormancy;
mod numbers;

use crate::hash::{IndexMap, Keyed};
use crate::slab::Slab;
pub(crate) use dormancy::PAUSE_NS;
use dormancy::{Awake, Looks};
use hashbrown::HashTable;
use numbers::{Entry, Numbers};
use std::collections::VecDeque;
use trunkline_wire::Qpn;

/// Most routes that peers may have opened, at all app-managed QPs together.
const MAX_OPENED: u32 = 1 << 20;
/// Most of one peer, which may never have more than are left for others.
const MAX_OPENED_PER_PEER: u32 = 1 << 16;

/// One that has not ended.
#[derive(Debug)]
struct Route<D> {
    qp: u32,
    peer: u32,
    number: u32,
    /// Number of the remote QP, which has 24 bits.
    remote: [u8; 3],
    origin: Origin,
    state: State<D>,
}

/// Who has asked for a route.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Origin {
    /// Its program.
    Program,
    /// The peer, and its program does not know of it.
    Peer,
    /// The peer, and then its program.
    Both,
}

/// Its flow, or what is kept of that.
#[derive(Debug)]
enum State<D> {
    Awake(Awake),
    Dormant(D),
}

/// Where the flow of a route is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Member {
    /// This flow.
    Awake(u32),
    /// With this route, dormant.
    Dormant(u32),
}

impl Member {
    /// The flow, which is awake.
    pub(crate) fn awake(self) -> u32 {
        match self {
            Self::Awake(flow) => flow,
            Self::Dormant(route) => panic!("the flow of route {route} is dormant"),
        }
    }
}

/// The routes of one QP.
#[derive(Debug)]
pub(crate) struct OwnRoutes {
    numbers: Numbers,
    /// Numbers of routes that are closing, and the slot of the ring behind the last request that
    /// may name each; in order.
    closing: VecDeque<(u32, u32)>,
}

/// The routes of an engine; `D` is what is kept of a dormant flow.
#[derive(Debug)]
pub(crate) struct RouteTable<D> {
    hash: Keyed,
    routes: Slab<Route<D>>,
    by_pair: HashTable<u32>,
    looks: Looks,
    /// Routes that peers opened: all, and by peer.
    opened: u32,
    opened_by: IndexMap<u32>,
}

impl OwnRoutes {
    pub(crate) const EMPTY: Self = Self {
        numbers: Numbers::EMPTY,
        closing: VecDeque::new(),
    };

    /// Bytes that it takes.
    pub(crate) fn state_bytes(&self) -> usize {
        let closing = self.closing.capacity() * size_of::<(u32, u32)>();
        size_of::<Self>() + self.numbers.state_bytes() + closing
    }
}

impl<D> Route<D> {
    fn new((qp, peer, remote): (u32, u32, Qpn), number: u32, origin: Origin, at: Awake) -> Self {
        let [_, remote @ ..] = remote.get().to_be_bytes();
        Self {
            qp,
            peer,
            number,
            remote,
            origin,
            state: State::Awake(at),
        }
    }

    fn remote(&self) -> Qpn {
        let [a, b, c] = self.remote;
        Qpn::from_wire(u32::from_be_bytes([0, a, b, c]))
    }

    fn is_between(&self, qp: u32, peer: u32, remote: Qpn) -> bool {
        (self.qp, self.peer, self.remote()) == (qp, peer, remote)
    }

    fn hash(&self, keyed: &Keyed) -> u64 {
        pair_hash(keyed, self.qp, self.peer, self.remote())
    }

    const fn member(&self, index: u32) -> Member {
        match self.state {
            State::Awake(Awake { flow, .. }) => Member::Awake(flow),
            State::Dormant(_) => Member::Dormant(index),
        }
    }
}

impl<D> RouteTable<D> {
    /// Bytes of a route.
    pub(crate) const RECORD: usize = size_of::<Option<Route<D>>>();

    /// An empty table; `hash` is one that nobody can foresee.
    pub(crate) fn new(hash: Keyed) -> Self {
        Self {
            hash,
            routes: Slab::new(),
            by_pair: HashTable::new(),
            looks: Looks::default(),
            opened: 0,
            opened_by: IndexMap::default(),
        }
    }

    /// Bytes of what is known of them, room in tables included.
    pub(crate) fn state_bytes(&self) -> usize {
        self.routes.state_bytes()
            + self.by_pair.allocation_size()
            + self.opened_by.allocation_size()
    }

    /// Gives back room that the next routes may need.
    pub(crate) fn fit(&mut self) {
        self.routes.fit();
    }

    /// Whether `peer`, or one that is not known yet, may open another route.
    pub(crate) fn may_be_opened_by(&self, peer: Option<u32>) -> bool {
        let own = peer.map_or(0, |peer| self.opened_by.get(&peer).copied().unwrap_or(0));
        own < MAX_OPENED_PER_PEER.min(MAX_OPENED.saturating_sub(self.opened))
    }

    /// The flow between a QP and `remote` at `peer`.
    #[inline]
    pub(crate) fn find(&self, qp: u32, peer: u32, remote: Qpn) -> Option<Member> {
        let route = self.route_of(qp, peer, remote)?;
        Some(self.routes[route].member(route))
    }

    /// The flow of route `number` of a QP. `None`: no such route; `Some(None)`: it has ended.
    #[inline]
    pub(crate) fn numbered(&self, own: &OwnRoutes, number: u32) -> Option<Option<Member>> {
        Some(match own.numbers.get(number)? {
            Entry::Route(route) => Some(self.routes[route].member(route)),
            Entry::Ended | Entry::Closing => None,
        })
    }

    /// What its program calls a route that has not ended; 0 when it does not know it.
    pub(crate) fn number(&self, qp: u32, peer: u32, remote: Qpn) -> u32 {
        let found = self.route_of(qp, peer, remote);
        found.map_or(0, |route| match self.routes[route] {
            Route {
                origin: Origin::Peer,
                ..
            } => 0,
            Route { number, .. } => number,
        })
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
        let number = own.numbers.insert(index);
        let origin = if opened {
            Origin::Peer
        } else {
            Origin::Program
        };
        let pair = (qp, peer, remote);
        let route = Route::new(pair, number, origin, Awake::alone(flow));
        self.routes.insert(route);
        self.watch_out(index);
        let hash = self.hash_of(qp, peer, remote);
        let (keyed, routes) = (self.hash, &self.routes);
        self.by_pair
            .insert_unique(hash, index, |route| routes[*route].hash(&keyed));
        if opened {
            self.opened += 1;
            *self.opened_by.entry(peer).or_insert(0) += 1;
        }
    }

    /// Gives the number of a route to its program.
    pub(crate) fn name(&mut self, (qp, peer, remote): (u32, u32, Qpn)) -> Option<u32> {
        let index = self.route_of(qp, peer, remote)?;
        let route = &mut self.routes[index];
        if route.origin == Origin::Peer {
            route.origin = Origin::Both;
        }
        Some(route.number)
    }

    /// A route ends, whose flow is awake: nobody finds it any more. One that its program knows
    /// keeps its number until that is closed. Gives the number, or 0.
    pub(crate) fn end(&mut self, own: &mut OwnRoutes, (qp, peer, remote): (u32, u32, Qpn)) -> u32 {
        let hash = self.hash_of(qp, peer, remote);
        let routes = &self.routes;
        let fits = |route: &u32| routes[*route].is_between(qp, peer, remote);
        let Ok(entry) = self.by_pair.find_entry(hash, fits) else {
            return 0;
        };
        let (index, _) = entry.remove();
        self.look_away(index);
        let Route { number, origin, .. } = self.routes.remove(index);
        if origin != Origin::Program {
            self.opened -= 1;
            let count = self.opened_by.get_mut(&peer);
            let count = count.expect("each route that a peer opened is counted");
            *count -= 1;
            if *count == 0 {
                self.opened_by.remove(&peer);
            }
        }
        if origin == Origin::Peer {
            own.numbers.remove(number);
            return 0;
        }
        own.numbers.set(number, Entry::Ended);
        number
    }

    fn route_of(&self, qp: u32, peer: u32, remote: Qpn) -> Option<u32> {
        let fits = |route: &u32| self.routes[*route].is_between(qp, peer, remote);
        let hash = self.hash_of(qp, peer, remote);
        self.by_pair.find(hash, fits).copied()
    }

    #[inline]
    fn hash_of(&self, qp: u32, peer: u32, remote: Qpn) -> u64 {
        pair_hash(&self.hash, qp, peer, remote)
    }
}

/// The routes of one QP.
impl<D> RouteTable<D> {
    /// The flows of a QP's routes, in the order of their numbers, but for those that have ended.
    pub(crate) fn flows(&self, own: &OwnRoutes) -> impl Iterator<Item = Member> {
        let member = |route: u32| self.routes[route].member(route);
        own.numbers.routes().map(member)
    }

    /// Whether a flow is that of the first route of a QP.
    pub(crate) fn is_first(&self, own: &OwnRoutes, flow: u32) -> bool {
        self.numbered(own, 1) == Some(Some(Member::Awake(flow)))
    }
}

impl OwnRoutes {
    /// Whether a program has closed the route that had this number.
    pub(crate) fn is_closing(&self, number: u32) -> bool {
        self.numbers.get(number) == Some(Entry::Closing)
    }

    /// The program has closed a route that has ended. Its number is free once all requests before
    /// `slot` of the ring were taken: they may name it.
    pub(crate) fn close_behind(&mut self, number: u32, slot: u32) {
        self.numbers.set(number, Entry::Closing);
        self.closing.push_back((number, slot));
    }

    /// All requests before `slot` were taken from the ring.
    #[inline]
    pub(crate) fn taken(&mut self, slot: u32) {
        while let Some(&(number, behind)) = self.closing.front()
            && slot.wrapping_sub(behind).cast_signed() >= 0
        {
            self.closing.pop_front();
            self.close(number);
        }
    }

    /// Frees the number of a route that has ended.
    pub(crate) fn close(&mut self, number: u32) {
        let entry = self.numbers.get(number);
        let ended = matches!(entry, Some(Entry::Ended | Entry::Closing));
        assert!(ended, "a route ends first");
        self.numbers.remove(number);
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

    fn table() -> RouteTable<()> {
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
        assert_eq!(find(3, 7, 500), Some(Member::Awake(500)));
        assert_eq!(find(3, 8, 500), None);
        assert_eq!(find(4, 7, 500), None);
        assert_eq!(find(3, 7, 1000), None);
        assert!(table.flows(&own).eq((0..1000).map(Member::Awake)));
    }

    #[test]
    fn a_number_stays_the_programs_until_it_is_closed() {
        let (mut table, mut own) = (table(), OwnRoutes::EMPTY);
        for remote in 0..3 {
            table.insert(&mut own, pair(0, 0, remote), 10 + remote, remote == 1);
        }
        let numbers = |table: &RouteTable<()>| {
            [0, 1, 2].map(|remote| table.number(0, 0, Qpn::from_wire(remote)))
        };
        assert_eq!(numbers(&table), [1, 0, 3], "the peer's is not known yet");
        assert_eq!(table.name(pair(0, 0, 1)), Some(2));
        assert_eq!(table.name(pair(0, 0, 1)), Some(2), "the same again");
        assert_eq!(numbers(&table), [1, 2, 3]);
        assert_eq!(table.numbered(&own, 2), Some(Some(Member::Awake(11))));
        assert_eq!(table.end(&mut own, pair(0, 0, 1)), 2);
        assert_eq!(table.numbered(&own, 2), Some(None), "known, but ended");
        assert_eq!(table.find(0, 0, Qpn::from_wire(1)), None);
        // Another route to the same QP is another one, with another number.
        table.insert(&mut own, pair(0, 0, 1), 20, false);
        assert_eq!(table.name(pair(0, 0, 1)), Some(4));
        own.close_behind(2, 7);
        assert!(own.is_closing(2) && table.numbered(&own, 2) == Some(None));
        own.taken(6);
        assert!(own.is_closing(2), "a request may still name it");
        own.taken(7);
        assert_eq!(table.numbered(&own, 2), None);
        table.insert(&mut own, pair(0, 0, 7), 21, false);
        assert_eq!(table.name(pair(0, 0, 7)), Some(2), "free again");
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
            assert_eq!(table.routes.len(), 0);
        }
        assert!(table.opened == 0 && table.opened_by.is_empty());
        assert_eq!(table.flows(&own).count(), 0);
    }

    #[test]
    fn a_peer_takes_its_share_of_routes_and_none_of_the_others() {
        let (mut table, mut own) = (table(), OwnRoutes::EMPTY);
        let mut flow = 0;
        let mut fill = |table: &mut RouteTable<()>, peer| {
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
    fn all_that_are_awake_when_a_look_begins_are_looked_at_once() {
        let (mut table, mut own) = (table(), OwnRoutes::EMPTY);
        for remote in 0..5 {
            table.insert(&mut own, pair(0, 0, remote), remote, true);
        }
        table.begin_looks();
        assert_eq!(table.next_look(), Some((0, 0)));
        // One that was looked at, the one whose turn it is, and one behind it end, and another one
        // begins.
        table.end(&mut own, pair(0, 0, 0));
        table.end(&mut own, pair(0, 0, 1));
        table.end(&mut own, pair(0, 0, 3));
        table.insert(&mut own, pair(0, 0, 9), 9, true);
        assert_eq!(table.next_look(), Some((2, 2)));
        assert_eq!(table.next_look(), Some((4, 4)));
        table.end(&mut own, pair(0, 0, 4));
        table.end(&mut own, pair(0, 0, 2));
        table.end(&mut own, pair(0, 0, 9));
        assert_eq!(table.next_look(), None);
        assert!(!table.needs_timer(), "none is awake");
    }

    #[test]
    fn the_routes_of_a_qp_are_its_own() {
        let (mut table, mut own) = (table(), OwnRoutes::EMPTY);
        let mut neighbour = OwnRoutes::EMPTY;
        table.insert(&mut neighbour, pair(1, 0, 0), 99, true);
        for remote in 0..4 {
            table.insert(&mut own, pair(0, 0, remote), remote, false);
        }
        for remote in 0..4 {
            table.end(&mut own, pair(0, 0, remote));
        }
        assert_eq!((table.routes.len(), table.flows(&own).count()), (1, 0));
        let found = table.find(1, 0, Qpn::from_wire(0));
        assert_eq!(found, Some(Member::Awake(99)));
        assert!(table.is_first(&neighbour, 99) && !table.is_first(&own, 99));
    }
}
