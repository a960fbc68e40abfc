//! Where flows belong: on a connection, or with those that wait for one to their peer.
//!
//! Each such group is a circle, linked in both directions by the numbers of flows: one joins and
//! leaves in the same few steps, however many there are.

use crate::engine::routes::Member;
use crate::slab::{NONE, fit, reach};

/// The home of each flow, and of each dormant one by its route.
#[derive(Debug, Default)]
pub(crate) struct Homes {
    flows: Vec<Home>,
    routes: Vec<Links>,
}

/// Of one flow.
#[derive(Clone, Copy, Debug)]
struct Home {
    /// The peer of its remote QP.
    peer: u32,
    links: Links,
}

/// The neighbours of a flow in its group; [`NONE`] while it is in none.
#[derive(Clone, Copy, Debug)]
struct Links {
    prev: u32,
    next: u32,
}

impl Links {
    const NOWHERE: Self = Self {
        prev: NONE,
        next: NONE,
    };
}

/// Bytes of it for each flow.
pub(crate) const HOME_BYTES: usize = size_of::<Home>();

/// Flows that belong together: the link of the first one, or [`NONE`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Group(u32);

impl Group {
    pub(crate) const EMPTY: Self = Self(NONE);

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == NONE
    }

    /// The first of its flows.
    pub(crate) fn first(self) -> Option<Member> {
        (self.0 != NONE).then_some(member(self.0))
    }
}

/// The bit that tells routes from flows where either is a link.
const ROUTE: u32 = 1 << 31;

const fn link(member: Member) -> u32 {
    match member {
        Member::Awake(flow) => flow,
        Member::Dormant(route) => route | ROUTE,
    }
}

const fn member(link: u32) -> Member {
    if link & ROUTE == 0 {
        Member::Awake(link)
    } else {
        Member::Dormant(link & !ROUTE)
    }
}

impl Homes {
    const NOWHERE: Home = Home {
        peer: NONE,
        links: Links::NOWHERE,
    };

    /// Bytes that are for more than `flows` flows.
    pub(crate) const fn room_bytes(&self, flows: usize) -> usize {
        (self.flows.capacity() - flows) * HOME_BYTES
    }

    /// Bytes that are for routes.
    pub(crate) const fn route_bytes(&self) -> usize {
        self.routes.capacity() * size_of::<Links>()
    }

    /// Gives back room that was needed once: there are at most `flows` flows.
    pub(crate) fn trim(&mut self, flows: u32) {
        self.flows.truncate(flows as usize);
        fit(&mut self.flows);
        fit(&mut self.routes);
    }

    /// A flow begins; its remote QP is one of `peer`.
    pub(crate) fn begin(&mut self, flow: u32, peer: u32) {
        reach(&mut self.flows, flow, || Self::NOWHERE);
        self.flows[flow as usize] = Home {
            peer,
            ..Self::NOWHERE
        };
    }

    /// The peer of a flow's remote QP.
    #[inline]
    pub(crate) fn peer(&self, flow: u32) -> u32 {
        self.flows[flow as usize].peer
    }

    /// Puts a flow that is in no group at the end of one.
    pub(crate) fn join(&mut self, group: &mut Group, flow: u32) {
        let first = group.0;
        assert_eq!(self.at(flow).next, NONE, "a flow is in one group at a time");
        if first == NONE {
            *self.at(flow) = Links {
                prev: flow,
                next: flow,
            };
            group.0 = flow;
            return;
        }
        let last = std::mem::replace(&mut self.at(first).prev, flow);
        self.at(last).next = flow;
        *self.at(flow) = Links {
            prev: last,
            next: first,
        };
    }

    /// Takes a flow out of the group it is in.
    pub(crate) fn leave(&mut self, group: &mut Group, flow: u32) {
        self.leave_one_of([group], flow);
    }

    /// The same where it is in one of several groups.
    pub(crate) fn leave_one_of<const N: usize>(&mut self, groups: [&mut Group; N], flow: u32) {
        let Links { prev, next } = std::mem::replace(self.at(flow), Links::NOWHERE);
        assert_ne!(next, NONE, "a flow that leaves is in the group");
        if next != flow {
            self.at(prev).next = next;
            self.at(next).prev = prev;
        }
        let first = if next == flow { NONE } else { next };
        for group in groups {
            if group.0 == flow {
                group.0 = first;
            }
        }
    }

    /// A member of a group gives another one its place: a flow that becomes dormant, or wakes up.
    pub(super) fn replace(&mut self, group: &mut Group, from: Member, to: Member) {
        if let Member::Dormant(route) = to {
            reach(&mut self.routes, route, || Links::NOWHERE);
        }
        let (from, to) = (link(from), link(to));
        let mut links = std::mem::replace(self.at(from), Links::NOWHERE);
        assert_ne!(links.next, NONE, "who gives up a place in a group has one");
        if links.next == from {
            links = Links { prev: to, next: to };
        } else {
            self.at(links.prev).next = to;
            self.at(links.next).prev = to;
        }
        *self.at(to) = links;
        if group.0 == from {
            group.0 = to;
        }
    }

    /// Puts all flows of one group at the end of another.
    pub(crate) fn append(&mut self, group: &mut Group, from: &mut Group) {
        let (first, other) = (group.0, std::mem::replace(&mut from.0, NONE));
        if first == NONE || other == NONE {
            group.0 = if first == NONE { other } else { first };
            return;
        }
        let last = std::mem::replace(&mut self.at(first).prev, NONE);
        let other_last = std::mem::replace(&mut self.at(other).prev, last);
        self.at(last).next = other;
        self.at(other_last).next = first;
        self.at(first).prev = other_last;
    }

    /// The first flow goes to the end of its group.
    pub(crate) fn rotate(&mut self, group: &mut Group) {
        if !group.is_empty() {
            group.0 = self.at(group.0).next;
        }
    }

    /// The flows of a group, first to last.
    #[cfg(test)]
    pub(crate) fn members(&mut self, group: Group) -> Vec<Member> {
        let mut rest = group;
        let mut members = Vec::new();
        while let Some(member) = rest.first() {
            members.push(member);
            self.rotate(&mut rest);
            if rest == group {
                break;
            }
        }
        members
    }

    #[inline]
    fn at(&mut self, link: u32) -> &mut Links {
        match member(link) {
            Member::Awake(flow) => &mut self.flows[flow as usize].links,
            Member::Dormant(route) => &mut self.routes[route as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows(homes: &mut Homes, group: Group) -> Vec<u32> {
        let members = homes.members(group);
        members.into_iter().map(Member::awake).collect()
    }

    #[test]
    fn flows_leave_their_group_from_anywhere() {
        let mut homes = Homes::default();
        let mut group = Group::EMPTY;
        for flow in 0..5 {
            homes.begin(flow, 7);
            homes.join(&mut group, flow);
        }
        assert_eq!(flows(&mut homes, group), [0, 1, 2, 3, 4]);
        for (gone, left) in [
            (2, vec![0, 1, 3, 4]),
            (0, vec![1, 3, 4]),
            (4, vec![1, 3]),
            (1, vec![3]),
            (3, vec![]),
        ] {
            homes.leave(&mut group, gone);
            assert_eq!(flows(&mut homes, group), left);
        }
        assert!(group.is_empty());
        assert_eq!(homes.peer(3), 7);
    }

    #[test]
    fn a_flow_moves_between_groups() {
        let mut homes = Homes::default();
        let (mut here, mut there) = (Group::EMPTY, Group::EMPTY);
        for flow in [3, 1] {
            homes.begin(flow, 0);
            homes.join(&mut here, flow);
        }
        homes.leave(&mut here, 3);
        homes.join(&mut there, 3);
        assert_eq!(flows(&mut homes, here), [1]);
        assert_eq!(flows(&mut homes, there), [3]);
    }

    #[test]
    fn groups_are_joined_at_once_and_flows_leave_whichever_they_are_in() {
        let mut homes = Homes::default();
        let mut groups = [Group::EMPTY; 2];
        for flow in 0..6 {
            homes.begin(flow, 0);
            homes.join(&mut groups[flow as usize / 3], flow);
        }
        let [here, there] = &mut groups;
        homes.append(here, there);
        assert_eq!(flows(&mut homes, *here), [0, 1, 2, 3, 4, 5]);
        assert!(there.is_empty());
        homes.rotate(here);
        homes.append(there, here);
        for (gone, left) in [(1, vec![2, 3, 4, 5, 0]), (0, vec![2, 3, 4, 5])] {
            homes.leave_one_of([&mut *here, &mut *there], gone);
            assert_eq!(flows(&mut homes, *there), left);
        }
        for gone in 2..6 {
            homes.leave_one_of([&mut *here, &mut *there], gone);
        }
        assert!(here.is_empty() && there.is_empty());
        homes.append(here, there);
        assert!(here.is_empty());
    }

    #[test]
    fn a_flow_that_becomes_dormant_keeps_its_place_and_so_does_one_that_wakes_up() {
        let mut homes = Homes::default();
        let mut group = Group::EMPTY;
        for flow in 0..3 {
            homes.begin(flow, 7);
            homes.join(&mut group, flow);
        }
        for (flow, route) in [(0, 5), (1, 0), (2, 9)] {
            homes.replace(&mut group, Member::Awake(flow), Member::Dormant(route));
        }
        let all = [5, 0, 9].map(Member::Dormant);
        assert_eq!(homes.members(group), all);
        homes.begin(8, 7);
        homes.replace(&mut group, Member::Dormant(0), Member::Awake(8));
        homes.begin(1, 7);
        homes.join(&mut group, 1);
        let [first, _, last] = all;
        let now = [first, Member::Awake(8), last, Member::Awake(1)];
        assert_eq!(homes.members(group), now);
        homes.leave(&mut group, 8);
        homes.leave(&mut group, 1);
        homes.replace(&mut group, last, Member::Awake(8));
        homes.replace(&mut group, first, Member::Awake(1));
        assert_eq!(flows(&mut homes, group), [1, 8]);
        homes.leave(&mut group, 1);
        homes.replace(&mut group, Member::Awake(8), first);
        assert_eq!(homes.members(group), [first], "a group of one");
    }
}
