//! Which routes have flows that are awake, when they are looked at, and how they become dormant.
//!
//! Routes that are awake stand in a circle. Every [`PAUSE_NS`] all that are in it then are looked
//! at, some in each round of the loop: so packets have nothing to note, and a flow that is used now
//! and then wakes up at most once in that time.

use super::{RouteTable, State};
use crate::slab::NONE;
use trunkline_conn::time::SECOND;
use trunkline_wire::Qpn;

/// Routes that are awake are looked at every so often, in ns.
pub(crate) const PAUSE_NS: u64 = 2 * SECOND;

/// A flow that is awake, and its neighbours in the circle of all that are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awake {
    pub(super) flow: u32,
    prev: u32,
    next: u32,
}

impl Awake {
    /// One that is not in the circle yet.
    pub(super) const fn alone(flow: u32) -> Self {
        Self {
            flow,
            prev: NONE,
            next: NONE,
        }
    }
}

/// The circle, and how far a look at it is.
#[derive(Debug)]
pub(super) struct Looks {
    /// The route that is looked at next.
    first: u32,
    /// Routes in the circle.
    awake: u32,
    /// How many of them are still to be looked at.
    left: u32,
    /// The timer of the next look is armed.
    due: bool,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            first: NONE,
            awake: 0,
            left: 0,
            due: false,
        }
    }
}

impl<D> RouteTable<D> {
    fn awake(&mut self, route: u32) -> &mut Awake {
        match &mut self.routes[route].state {
            State::Awake(awake) => awake,
            State::Dormant(_) => panic!("route {route} is dormant"),
        }
    }

    /// A route whose flow is awake is looked at from now on, after all others.
    pub(super) fn watch_out(&mut self, route: u32) {
        let first = self.looks.first;
        let (prev, next) = match first {
            NONE => (route, route),
            first => (std::mem::replace(&mut self.awake(first).prev, route), first),
        };
        if first == NONE {
            self.looks.first = route;
        } else {
            self.awake(prev).next = route;
        }
        let own = self.awake(route);
        (own.prev, own.next) = (prev, next);
        self.looks.awake += 1;
    }

    /// It is not any more.
    pub(super) fn look_away(&mut self, route: u32) {
        let Awake { prev, next, .. } = *self.awake(route);
        let looks = &mut self.looks;
        looks.awake -= 1;
        looks.left = looks.left.min(looks.awake);
        if next == route {
            looks.first = NONE;
            return;
        }
        if looks.first == route {
            looks.first = next;
        }
        self.awake(prev).next = next;
        self.awake(next).prev = prev;
    }

    /// Routes whose flows are dormant.
    pub(crate) const fn dormant(&self) -> usize {
        self.routes.len() - self.looks.awake as usize
    }

    /// Whether a timer is to be armed after which routes are looked at: some are awake, and none
    /// is. It is from now on.
    #[inline]
    pub(crate) const fn needs_timer(&mut self) -> bool {
        let needed = self.looks.awake > 0 && !self.looks.due && self.looks.left == 0;
        self.looks.due |= needed;
        needed
    }

    /// That timer has fired: all that are awake now are looked at, in this round or later ones.
    pub(crate) const fn begin_looks(&mut self) {
        self.looks.due = false;
        self.looks.left = self.looks.awake;
    }

    /// Whether some are still to be looked at.
    #[inline]
    pub(crate) const fn has_looks(&self) -> bool {
        self.looks.left > 0
    }

    /// The route to look at now, and its flow; the next one has its turn after that.
    pub(crate) fn next_look(&mut self) -> Option<(u32, u32)> {
        self.looks.left = self.looks.left.checked_sub(1)?;
        let route = self.looks.first;
        let Awake { flow, next, .. } = *self.awake(route);
        self.looks.first = next;
        Some((route, flow))
    }

    /// The flow of a route becomes dormant.
    pub(crate) fn let_sleep(&mut self, route: u32, dormant: D) {
        self.look_away(route);
        self.routes[route].state = State::Dormant(dormant);
    }

    /// What is kept of the dormant flow of a route, its QP, its peer and the QP there.
    pub(crate) fn sleeper(&self, route: u32) -> (&D, (u32, u32, Qpn)) {
        let record = &self.routes[route];
        match &record.state {
            State::Dormant(dormant) => (dormant, (record.qp, record.peer, record.remote())),
            State::Awake(_) => panic!("route {route} is awake"),
        }
    }

    /// The flow of a route, which was dormant, is this one from now on.
    pub(crate) fn wake_up(&mut self, route: u32, flow: u32) {
        self.routes[route].state = State::Awake(Awake::alone(flow));
        self.watch_out(route);
    }
}
