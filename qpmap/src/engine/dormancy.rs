//! Flows of routes that nothing happens on: their records are freed, and made again when something
//! does.

use super::routes::{Member, PAUSE_NS};
use super::timer::Timer;
use super::{Engine, Platform, Trace};
use trunkline_conn::time::Instant;

/// Routes that are looked at in a round.
const PER_ROUND: u32 = 256;

impl<P: Platform> Engine<P> {
    /// Lets flows of routes become dormant on which nothing happens, while nobody works with any:
    /// some in each round.
    #[inline]
    pub(crate) fn look_at_routes(&mut self, now: Instant) {
        if self.flows.routes().has_looks() {
            self.let_routes_sleep();
        }
        if self.flows.routes_mut().needs_timer() {
            self.timers.arm(now + PAUSE_NS, Timer::Dormancy.key());
        }
    }

    #[inline(never)]
    fn let_routes_sleep(&mut self) {
        for _ in 0..PER_ROUND {
            let Some((route, flow)) = self.flows.routes_mut().next_look() else {
                break;
            };
            self.let_sleep(route, flow);
        }
        if !self.flows.routes().has_looks() {
            self.flows.trim();
        }
    }

    /// Lets the flow of a route become dormant, if nothing is under way on it.
    fn let_sleep(&mut self, route: u32, flow: u32) {
        let conn = self.flows[flow].conn;
        if self.links.get(conn).is_none() {
            return;
        }
        let (group, _) = self.links.members(conn);
        if self.flows.let_sleep(group, (route, flow)) {
            self.emit(|_| Trace::Ended { flow });
        }
    }

    /// A flow, which is awake from now on.
    #[inline]
    pub(crate) fn awake(&mut self, member: Member) -> u32 {
        match member {
            Member::Awake(flow) => flow,
            Member::Dormant(route) => self.wake_route(route),
        }
    }

    #[inline(never)]
    fn wake_route(&mut self, route: u32) -> u32 {
        let conn = self.flows.conn_of_sleeper(route);
        let (group, _) = self.links.members(conn);
        self.flows.wake_up(group, route)
    }
}
