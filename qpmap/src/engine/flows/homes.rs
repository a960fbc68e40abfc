//! Where flows belong: on a connection, or with those that wait for one to their peer.
//!
//! Each such group is a circle, linked in both directions by the numbers of flows: one joins and
//! leaves in the same few steps, however many there are.

use crate::slab::{NONE, reach};

/// The home of each flow.
#[derive(Debug, Default)]
pub(crate) struct Homes(Vec<Home>);

/// Of one flow.
#[derive(Clone, Copy, Debug)]
struct Home {
    /// The peer of its remote QP.
    peer: u32,
    /// Its neighbours in its group; [`NONE`] while it is in none.
    prev: u32,
    next: u32,
}

/// Bytes of it for each flow.
pub(crate) const HOME_BYTES: usize = size_of::<Home>();

/// Flows that belong together: the number of the first one, or [`NONE`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Group(u32);

impl Group {
    pub(crate) const EMPTY: Self = Self(NONE);

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == NONE
    }

    /// The first of its flows.
    pub(crate) fn first(self) -> Option<u32> {
        (self.0 != NONE).then_some(self.0)
    }
}

impl Homes {
    const NOWHERE: Home = Home {
        peer: NONE,
        prev: NONE,
        next: NONE,
    };

    /// Bytes that are for more than `flows` flows.
    pub(crate) const fn room_bytes(&self, flows: usize) -> usize {
        (self.0.capacity() - flows) * HOME_BYTES
    }

    /// A flow begins; its remote QP is one of `peer`.
    pub(crate) fn begin(&mut self, flow: u32, peer: u32) {
        reach(&mut self.0, flow, || Self::NOWHERE);
        self.0[flow as usize] = Home {
            peer,
            ..Self::NOWHERE
        };
    }

    /// The peer of a flow's remote QP.
    #[inline]
    pub(crate) fn peer(&self, flow: u32) -> u32 {
        self.0[flow as usize].peer
    }

    /// Puts a flow that is in no group at the end of one.
    pub(crate) fn join(&mut self, group: &mut Group, flow: u32) {
        let first = group.0;
        assert_eq!(self.at(flow).next, NONE, "a flow is in one group at a time");
        if first == NONE {
            (self.at(flow).prev, self.at(flow).next) = (flow, flow);
            group.0 = flow;
            return;
        }
        let last = std::mem::replace(&mut self.at(first).prev, flow);
        self.at(last).next = flow;
        (self.at(flow).prev, self.at(flow).next) = (last, first);
    }

    /// Takes a flow out of the group it is in.
    pub(crate) fn leave(&mut self, group: &mut Group, flow: u32) {
        self.leave_one_of([group], flow);
    }

    /// The same where it is in one of several groups.
    pub(crate) fn leave_one_of<const N: usize>(&mut self, groups: [&mut Group; N], flow: u32) {
        let Home { prev, next, .. } = *self.at(flow);
        assert_ne!(next, NONE, "a flow that leaves is in the group");
        self.at(prev).next = next;
        self.at(next).prev = prev;
        (self.at(flow).prev, self.at(flow).next) = (NONE, NONE);
        let first = if next == flow { NONE } else { next };
        for group in groups {
            if group.0 == flow {
                group.0 = first;
            }
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
    pub(crate) fn rotate(&self, group: &mut Group) {
        if let Some(home) = self.0.get(group.0 as usize) {
            group.0 = home.next;
        }
    }

    /// The flows of a group, first to last.
    #[cfg(test)]
    pub(crate) fn flows(&self, group: Group) -> impl Iterator<Item = u32> {
        let mut next = group.0;
        std::iter::from_fn(move || {
            let flow = next;
            let home = self.0.get(flow as usize)?;
            next = if home.next == group.0 {
                NONE
            } else {
                home.next
            };
            Some(flow)
        })
    }

    fn at(&mut self, flow: u32) -> &mut Home {
        &mut self.0[flow as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_leave_their_group_from_anywhere() {
        let mut homes = Homes::default();
        let mut group = Group::EMPTY;
        for flow in 0..5 {
            homes.begin(flow, 7);
            homes.join(&mut group, flow);
        }
        assert_eq!(homes.flows(group).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        for (gone, left) in [
            (2, vec![0, 1, 3, 4]),
            (0, vec![1, 3, 4]),
            (4, vec![1, 3]),
            (1, vec![3]),
            (3, vec![]),
        ] {
            homes.leave(&mut group, gone);
            assert_eq!(homes.flows(group).collect::<Vec<_>>(), left);
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
        assert_eq!(homes.flows(here).collect::<Vec<_>>(), [1]);
        assert_eq!(homes.flows(there).collect::<Vec<_>>(), [3]);
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
        assert_eq!(homes.flows(*here).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert!(there.is_empty());
        homes.rotate(here);
        homes.append(there, here);
        for (gone, left) in [(1, vec![2, 3, 4, 5, 0]), (0, vec![2, 3, 4, 5])] {
            homes.leave_one_of([&mut *here, &mut *there], gone);
            assert_eq!(homes.flows(*there).collect::<Vec<_>>(), left);
        }
        for gone in 2..6 {
            homes.leave_one_of([&mut *here, &mut *there], gone);
        }
        assert!(here.is_empty() && there.is_empty());
        homes.append(here, there);
        assert!(here.is_empty());
    }
}
