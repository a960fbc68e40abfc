//! The owner of tenants: who QPs belong to, as far as turns are concerned, their weights, and what
//! each may still send.
//!
//! Where several tenants have something to send, on whatever connections, each may send its
//! allowance in a *period*, in proportion to its weight. The next period begins when none that
//! could send has any left: so a tenant is never ahead of another one that could send by more than
//! an allowance, and one that could not has no claim on what the others had meanwhile.
//!
//! Where connections lead to one peer, their windows share its path, and each gets as much of that
//! as any other, whoever sends on it. So a tenant that *waits* for the window of its connection
//! holds back those that are ahead of it by an allowance on the others to that peer: the path has
//! room then, and the window grows. It keeps what it had left, up to [`MOST_KEPT`] allowances, and
//! holds back nobody once its connection has sent nothing for some time.

use crate::allowed::Allowed;
use crate::error::VerbsError;
use crate::hash::IndexMap;
use crate::slab::Slab;
use trunkline_conn::time::{Instant, MILLISECOND};

/// Most tenants of an engine, itself included.
const MOST: u16 = u16::MAX;
/// The largest weight: a turn of such a tenant is about as long as one of a connection.
const MOST_WEIGHT: u32 = 64;
/// Bytes that a tenant of weight 1 may send in a period, for each connection that had something to
/// send when it began, up to so many of these: that a tenant has none left is found out once a
/// period on each connection, and that must cost little of what it sends.
const ALLOWANCE: i32 = 64 << 10;
const MOST_CONNECTIONS: usize = 64;

/// Allowances that a tenant which waits for a window has at most.
const MOST_KEPT: i32 = 4;
/// It holds others back for so long in ns, from when its connection sent last: at least what a
/// Longest turnaround of a window that others wait for, in ns.
const MOST_TURNAROUND_NS: u64 = 2 * MILLISECOND;
/// worker may be without a processor, which says nothing of the path.
const LEAST_HELD_NS: u64 = MILLISECOND;
const MOST_HELD_NS: u64 = 10 * MILLISECOND;

// What a tenant has left fits.
const _: () = {
    let most = ALLOWANCE as i64 * MOST_CONNECTIONS as i64 * MOST_WEIGHT as i64;
    assert!(most * MOST_KEPT as i64 <= 1 << 30);
};

/// Who a QP belongs to: the tenants of an engine share what it sends by weight, whatever number of
/// QPs they have, on whatever connections.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Tenant(u16);

impl Tenant {
    /// The program that the engine is in. Its weight is 1, unless it is [changed].
    ///
    /// [changed]: super::Engine::set_tenant_weight
    pub const OWN: Self = Self(0);

    /// Tells it from others.
    pub(crate) const fn index(self) -> u16 {
        self.0
    }
}

/// All tenants.
#[derive(Debug)]
pub(crate) struct Tenants {
    own: Record,
    /// That of each other one is at the place before its number.
    others: Slab<Record>,
    /// How many have something to send.
    sending: u32,
    /// Counts periods.
    period: u32,
    /// Bytes that a tenant of weight 1 may send in this one.
    allowance: i32,
    /// By peer, who waits for a window there.
    waiting: IndexMap<Waiting>,
    /// Bytes that such tenants have sent since others may have a turn again.
    caught_up: i32,
    /// Counts when tenants without a turn may have one again.
    chances: u32,
}

/// A tenant that waits for the window of a connection, and until when others are held back.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    tenant: Tenant,
    /// That connection.
    conn: u32,
    until: Instant,
    /// Others were held back when that was asked last.
    holds: bool,
}

/// Why a tenant with something to send has no turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pause {
    /// It has sent what it may in this period.
    Spent,
    /// It is ahead of one that waits for a window to the same peer.
    Held,
}

#[derive(Debug)]
struct Record {
    weight: u8,
    /// QPs that it has.
    qps: u32,
    /// Connections on which it has something to send.
    lanes: u32,
    /// The period in which it sent last, beside others, and what it had left of its allowance.
    period: u32,
    left: i32,
    /// It has sent nothing since it began to wait for a window.
    waits: bool,
}

impl Record {
    const fn new(weight: u8) -> Self {
        Self {
            weight,
            qps: 0,
            lanes: 0,
            period: 0,
            left: 0,
            waits: false,
        }
    }

    /// Bytes that it may still send in a period, in which weight 1 has such an allowance.
    fn left_in(&mut self, period: u32, allowance: i32) -> i32 {
        if self.period != period {
            self.period = period;
            let own = allowance * i32::from(self.weight);
            let kept = if self.waits { (MOST_KEPT - 1) * own } else { 0 };
            self.left = self.left.min(kept) + own;
        }
        self.left
    }
}

impl Tenants {
    /// The engine's own program alone.
    pub(crate) fn new() -> Self {
        Self {
            own: Record::new(1),
            others: Slab::new(),
            sending: 0,
            period: 1,
            allowance: ALLOWANCE,
            waiting: IndexMap::default(),
            caught_up: 0,
            chances: 0,
        }
    }

    /// A tenant without QPs.
    ///
    /// # Errors
    /// A weight out of range, or too many tenants.
    pub(crate) fn add(&mut self, weight: u32) -> Result<Tenant, VerbsError> {
        let weight = checked(weight)?;
        if self.others.len() + 1 >= MOST.into() {
            return Err(VerbsError::Limit {
                what: "tenants",
                limit: MOST.into(),
            });
        }
        let place = self.others.insert(Record::new(weight));
        Ok(Tenant(place as u16 + 1))
    }

    /// Its turns are so long from the next one on.
    ///
    /// # Errors
    /// No such tenant, or a weight out of range.
    pub(crate) fn set_weight(&mut self, tenant: Tenant, weight: u32) -> Result<(), VerbsError> {
        let weight = checked(weight)?;
        self.known(tenant)?.weight = weight;
        Ok(())
    }

    /// A tenant is gone.
    ///
    /// # Errors
    /// No such tenant, or the engine's own program; [`VerbsError::Busy`] while it has QPs.
    pub(crate) fn remove(&mut self, tenant: Tenant) -> Result<(), VerbsError> {
        let what = "tenant";
        let users = self.known(tenant)?.qps;
        if users > 0 {
            return Err(VerbsError::Busy { what, users });
        }
        let place = place(tenant).ok_or(VerbsError::InvalidArgument { what })?;
        self.others.remove(place);
        Ok(())
    }

    /// # Errors
    /// There is no such tenant.
    pub(crate) fn check(&mut self, tenant: Tenant) -> Result<(), VerbsError> {
        self.known(tenant).map(|_| ())
    }

    /// It has a QP more.
    pub(crate) fn join(&mut self, tenant: Tenant) {
        self.record(tenant).qps += 1;
    }

    /// One of its QPs is gone.
    pub(crate) fn leave(&mut self, tenant: Tenant) {
        self.record(tenant).qps -= 1;
    }

    /// How much of a connection it gets, beside the weights of others.
    pub(crate) fn weight(&self, tenant: Tenant) -> i32 {
        let record = place(tenant).map_or(&self.own, |place| &self.others[place]);
        record.weight.into()
    }

    /// It has something to send on a connection more.
    #[inline]
    pub(crate) fn begin_lane(&mut self, tenant: Tenant) {
        let record = self.record(tenant);
        record.lanes += 1;
        self.sending += u32::from(record.lanes == 1);
    }

    /// It has nothing to send on one of them any more.
    #[inline]
    pub(crate) fn end_lane(&mut self, tenant: Tenant) {
        let record = self.record(tenant);
        record.lanes -= 1;
        self.sending -= u32::from(record.lanes == 0);
    }

    /// Whether one of them may be ahead of another: else nothing is counted.
    #[inline]
    pub(crate) const fn are_several(&self) -> bool {
        self.sending > 1
    }

    /// Bytes that a tenant may send to a peer now, in this period.
    ///
    /// # Errors
    /// Why it has no turn there.
    pub(crate) fn left(
        &mut self,
        tenant: Tenant,
        (peer, now): (u32, Instant),
    ) -> Result<i32, Pause> {
        let held = self.held(peer, now);
        let (period, allowance) = (self.period, self.allowance);
        let record = self.record(tenant);
        let left = record.left_in(period, allowance);
        if left <= 0 {
            return Err(Pause::Spent);
        }
        let left = left.saturating_sub(held.saturating_mul(record.weight.into()));
        if left > 0 { Ok(left) } else { Err(Pause::Held) }
    }

    /// Who has no more left for each weight than this is ahead of one that waits for a window to a
    /// peer.
    fn held(&mut self, peer: u32, now: Instant) -> i32 {
        if self.waiting.is_empty() {
            return 0;
        }
        let Some(waiting) = self.waiting.get(&peer).copied() else {
            return 0;
        };
        let (tenant, until, holds) = (waiting.tenant, waiting.until, waiting.holds);
        let left = if now < until {
            self.left_each(tenant)
        } else {
            0
        };
        let held = (left - self.allowance).max(0);
        if now >= until {
            self.waiting.remove(&peer);
        } else if holds != (held > 0)
            && let Some(waiting) = self.waiting.get_mut(&peer)
        {
            waiting.holds = held > 0;
        }
        if holds && held == 0 {
            self.give_chance();
        }
        held
    }

    /// Bytes for each weight that a tenant may still send in this period; 0 where it has nothing to
    /// send.
    fn left_each(&mut self, tenant: Tenant) -> i32 {
        let (period, allowance) = (self.period, self.allowance);
        match self.known(tenant) {
            Ok(record) if record.lanes > 0 => {
                record.left_in(period, allowance) / i32::from(record.weight)
            }
            _ => 0,
        }
    }

    /// A connection to a peer has sent something, and `tenant`, which is the next one there, waits
    /// for its window, which takes `turnaround_ns`, on a path that loses nothing. Who is furthest
    /// behind of those that wait to that peer holds back others.
    pub(crate) fn wait(
        &mut self,
        tenant: Tenant,
        (conn, peer, now): (u32, u32, Instant),
        turnaround_ns: u64,
    ) {
        // By so slow a path nobody catches up soon, whatever others send.
        if turnaround_ns > MOST_TURNAROUND_NS {
            return;
        }
        let held_ns = turnaround_ns.saturating_mul(2);
        let until = now + held_ns.clamp(LEAST_HELD_NS, MOST_HELD_NS);
        let mut waiting = Waiting {
            tenant,
            conn,
            until,
            holds: false,
        };
        let mut left = self.left_each(tenant);
        if let Some(other) = self.waiting.get(&peer).copied() {
            waiting.holds = other.holds;
            let behind = now < other.until && self.left_each(other.tenant) >= left;
            if behind && other.conn != conn {
                return;
            }
            if behind {
                left = self.left_each(other.tenant);
                waiting.tenant = other.tenant;
            }
        }
        if left > 0 {
            self.record(waiting.tenant).waits = true;
            self.waiting.insert(peer, waiting);
        }
    }

    /// It has sent so many bytes.
    pub(crate) fn spend(&mut self, tenant: Tenant, bytes: i32) {
        let record = self.record(tenant);
        record.left -= bytes;
        if record.waits && bytes > 0 {
            record.waits = false;
            self.caught_up += bytes;
            if self.caught_up >= ALLOWANCE {
                self.give_chance();
            }
        }
    }

    /// Who had no turn may have one now.
    const fn give_chance(&mut self) {
        self.chances = self.chances.wrapping_add(1);
        self.caught_up = 0;
    }

    /// Another number than before says that tenants without a turn may have one again.
    pub(crate) const fn chances(&self) -> u32 {
        self.chances
    }

    /// None that could send has anything left: another period begins, in which `connections` have
    /// something to send.
    pub(crate) fn begin_period(&mut self, connections: usize) {
        self.period = self.period.wrapping_add(1);
        self.give_chance();
        self.allowance = ALLOWANCE * connections.clamp(1, MOST_CONNECTIONS) as i32;
    }

    /// Bytes that they take.
    pub(crate) fn state_bytes(&self) -> usize {
        self.others.state_bytes() + self.waiting.allocation_size()
    }

    /// Gives back room that was needed once.
    pub(crate) fn trim(&mut self) {
        if self.waiting.is_empty() {
            self.waiting = IndexMap::default();
        }
    }

    #[inline]
    fn record(&mut self, tenant: Tenant) -> &mut Record {
        match place(tenant) {
            None => &mut self.own,
            Some(place) => &mut self.others[place],
        }
    }

    fn known(&mut self, tenant: Tenant) -> Result<&mut Record, VerbsError> {
        let record = match place(tenant) {
            None => Some(&mut self.own),
            Some(place) => self.others.get_mut(place),
        };
        record.ok_or(VerbsError::InvalidArgument { what: "tenant" })
    }
}

/// Where the record of a tenant is; `None`: it is that of the engine's own program.
fn place(tenant: Tenant) -> Option<u32> {
    u32::from(tenant.0).checked_sub(1)
}

fn checked(weight: u32) -> Result<u8, VerbsError> {
    Allowed::Range(1, MOST_WEIGHT).check("weight", weight)?;
    Ok(weight as u8)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_checked_when_it_is_given_and_when_it_is_changed() {
        let mut tenants = Tenants::new();
        for weight in [0, MOST_WEIGHT + 1, 256 + 1] {
            let allowed = Allowed::Range(1, 64);
            let refused = Err(allowed.refuse("weight", weight.into()));
            assert_eq!(tenants.add(weight), refused);
            assert_eq!(tenants.set_weight(Tenant::OWN, weight), refused.map(|_| ()));
        }
        let tenant = tenants.add(MOST_WEIGHT).unwrap();
        assert_eq!(tenants.weight(tenant), 64);
        tenants.set_weight(tenant, 3).unwrap();
        assert_eq!(
            (tenants.weight(tenant), tenants.weight(Tenant::OWN)),
            (3, 1)
        );
    }

    #[test]
    fn a_tenant_is_there_as_long_as_it_has_qps() {
        let mut tenants = Tenants::new();
        let tenant = tenants.add(1).unwrap();
        tenants.join(tenant);
        tenants.join(tenant);
        tenants.leave(tenant);
        let what = "tenant";
        let busy = Err(VerbsError::Busy { what, users: 1 });
        assert_eq!(tenants.remove(tenant), busy);
        tenants.leave(tenant);
        tenants.remove(tenant).unwrap();
        let unknown = Err(VerbsError::InvalidArgument { what });
        assert_eq!(tenants.check(tenant), unknown);
        assert_eq!(tenants.set_weight(tenant, 2), unknown);
        assert_eq!(tenants.remove(tenant), unknown);
        assert_eq!(tenants.remove(Tenant::OWN), unknown, "it always stays");
        assert_eq!(tenants.add(5).unwrap(), tenant, "its place is free again");
    }

    #[test]
    fn there_are_no_more_tenants_than_numbers() {
        let mut tenants = Tenants::new();
        for _ in 1..MOST {
            tenants.add(1).unwrap();
        }
        let limit = MOST.into();
        let what = "tenants";
        assert_eq!(tenants.add(1), Err(VerbsError::Limit { what, limit }));
        tenants.remove(Tenant(7)).unwrap();
        assert_eq!(tenants.add(1), Ok(Tenant(7)));
    }

    /// Some time, and a peer.
    const AT: (u32, Instant) = (7, Instant::ZERO);
    /// A connection to it.
    const FROM: (u32, u32, Instant) = (3, AT.0, AT.1);

    /// Tenants of these weights, each with something to send.
    fn sending<const N: usize>(weights: [u32; N]) -> (Tenants, [Tenant; N]) {
        let mut tenants = Tenants::new();
        let all = weights.map(|weight| tenants.add(weight).unwrap());
        all.iter().for_each(|tenant| tenants.begin_lane(*tenant));
        (tenants, all)
    }

    #[test]
    fn what_a_tenant_sent_too_much_is_taken_off_and_what_it_left_is_forgotten() {
        let (mut tenants, [one, other]) = sending([1, 3]);
        assert_eq!(tenants.left(one, AT), Ok(ALLOWANCE));
        assert_eq!(tenants.left(other, AT), Ok(3 * ALLOWANCE));
        tenants.spend(one, ALLOWANCE + 100);
        assert_eq!(tenants.left(one, AT), Err(Pause::Spent));
        tenants.begin_period(1);
        assert_eq!(tenants.left(one, AT), Ok(ALLOWANCE - 100));
        assert_eq!(tenants.left(other, AT), Ok(3 * ALLOWANCE));
        tenants.begin_period(MOST_CONNECTIONS + 1);
        let most = ALLOWANCE * MOST_CONNECTIONS as i32;
        assert_eq!(tenants.left(other, AT), Ok(3 * most));
    }

    #[test]
    fn who_waits_for_a_window_holds_back_who_is_ahead_to_the_same_peer_and_not_for_long() {
        let (mut tenants, [waits, ahead]) = sending([1, 2]);
        assert!(tenants.are_several());
        assert_eq!(tenants.left(ahead, AT), Ok(2 * ALLOWANCE));
        tenants.spend(ahead, 2 * ALLOWANCE);
        tenants.wait(waits, FROM, 1000);
        tenants.begin_period(1);
        assert_eq!(tenants.left(ahead, AT), Err(Pause::Held));
        assert_eq!(tenants.left(waits, AT), Ok(ALLOWANCE));
        let (peer, now) = AT;
        assert_eq!(tenants.left(ahead, (peer + 1, now)), Ok(2 * ALLOWANCE));
        let chances = tenants.chances();
        tenants.spend(waits, ALLOWANCE / 2);
        assert_eq!(tenants.left(ahead, AT), Ok(ALLOWANCE));
        tenants.spend(waits, ALLOWANCE / 2);
        assert_eq!(tenants.left(ahead, AT), Ok(2 * ALLOWANCE));
        assert_ne!(tenants.chances(), chances);
        tenants.wait(waits, FROM, 1000);
        tenants.begin_period(1);
        assert_eq!(
            tenants.left(ahead, (peer, now + (LEAST_HELD_NS - 1))),
            Err(Pause::Held)
        );
        assert_eq!(
            tenants.left(ahead, (peer, now + LEAST_HELD_NS)),
            Ok(2 * ALLOWANCE)
        );
        tenants.wait(waits, FROM, u64::MAX);
        let late = now + MOST_HELD_NS;
        assert_eq!(tenants.left(ahead, (peer, late)), Ok(2 * ALLOWANCE));
    }

    #[test]
    fn who_waits_long_keeps_a_few_allowances_and_who_has_nothing_to_send_holds_back_nobody() {
        let (mut tenants, [waits, ahead]) = sending([1, 1]);
        tenants.wait(waits, FROM, 1000);
        for _ in 0..10 {
            tenants.begin_period(1);
            assert!(tenants.left(waits, AT).is_ok());
        }
        let (peer, now) = AT;
        let kept = tenants.left(waits, (peer + 1, now));
        assert_eq!(kept, Ok(MOST_KEPT * ALLOWANCE));
        assert_eq!(tenants.left(ahead, AT), Err(Pause::Held));
        tenants.end_lane(waits);
        assert_eq!(tenants.left(ahead, AT), Ok(ALLOWANCE));
        tenants.remove(waits).unwrap();
        assert_eq!(tenants.left(ahead, AT), Ok(ALLOWANCE));
    }

    /// Another peer, to which nobody waits.
    const ELSEWHERE: (u32, Instant) = (AT.0 + 1, AT.1);

    #[test]
    fn who_has_nothing_left_at_all_has_spent_it() {
        let (mut tenants, [one, _]) = sending([1, 1]);
        assert_eq!(tenants.left(one, AT), Ok(ALLOWANCE));
        tenants.spend(one, ALLOWANCE);
        assert_eq!(tenants.left(one, AT), Err(Pause::Spent));
    }

    #[test]
    fn who_is_behind_is_judged_by_weight_and_by_the_allowance_of_the_period() {
        let (mut tenants, [waits, ahead]) = sending([2, 1]);
        tenants.begin_period(3);
        tenants.wait(waits, FROM, 1000);
        assert_eq!(tenants.left(ahead, AT), Ok(3 * ALLOWANCE));
    }

    #[test]
    fn others_are_held_back_for_two_turnarounds_and_nothing_is_left_of_that() {
        let (mut tenants, [waits, ahead]) = sending([1, 1]);
        tenants.wait(waits, FROM, MILLISECOND);
        tenants.begin_period(1);
        let (peer, now) = AT;
        let before = now + (2 * MILLISECOND - 1);
        assert_eq!(tenants.left(ahead, (peer, before)), Err(Pause::Held));
        assert_eq!(tenants.left(ahead, (peer, before + 1)), Ok(ALLOWANCE));
        assert!(tenants.waiting.is_empty());
    }

    #[test]
    fn who_waited_and_sent_or_had_nothing_left_keeps_nothing_for_later_periods() {
        for spent in [1, ALLOWANCE] {
            let (mut tenants, [waits, _]) = sending([1, 1]);
            assert!(tenants.left(waits, AT).is_ok());
            if spent == 1 {
                tenants.wait(waits, FROM, 1000);
                tenants.spend(waits, spent);
            } else {
                tenants.spend(waits, spent);
                tenants.wait(waits, FROM, 1000);
            }
            for _ in 0..3 {
                tenants.begin_period(1);
                assert_eq!(tenants.left(waits, ELSEWHERE), Ok(ALLOWANCE), "{spent}");
            }
        }
    }

    #[test]
    fn others_have_a_chance_each_time_that_who_waits_has_caught_up_by_an_allowance() {
        let (mut tenants, [waits, _]) = sending([1, 1]);
        for _ in 0..2 {
            tenants.wait(waits, FROM, 1000);
            tenants.begin_period(1);
        }
        let mut chances = tenants.chances();
        for _ in 0..2 {
            tenants.wait(waits, FROM, 1000);
            tenants.spend(waits, ALLOWANCE - 1);
            assert_eq!(tenants.chances(), chances);
            tenants.wait(waits, FROM, 1000);
            tenants.spend(waits, 1);
            assert_ne!(tenants.chances(), chances);
            chances = tenants.chances();
        }
    }

    #[test]
    fn that_a_hold_which_went_on_has_ended_is_told() {
        let (mut tenants, [waits, ahead]) = sending([1, 1]);
        tenants.wait(waits, FROM, 1000);
        tenants.begin_period(1);
        assert_eq!(tenants.left(ahead, AT), Err(Pause::Held));
        tenants.wait(waits, FROM, 1000);
        let chances = tenants.chances();
        let late = (AT.0, AT.1 + MOST_HELD_NS);
        assert_eq!(tenants.left(ahead, late), Ok(ALLOWANCE));
        assert_ne!(tenants.chances(), chances);
    }

    #[test]
    fn another_that_waits_prolongs_no_hold_and_begins_its_own_once_that_is_over() {
        let (mut tenants, [first, second, ahead]) = sending([1, 1, 1]);
        tenants.wait(first, FROM, 1000);
        tenants.begin_period(1);
        tenants.wait(second, (FROM.0 + 1, AT.0 + 1, AT.1), 1000);
        tenants.begin_period(1);
        let (peer, now) = AT;
        assert_eq!(tenants.left(second, (99, now)), Ok(2 * ALLOWANCE));
        tenants.wait(second, (FROM.0 + 1, peer, now + LEAST_HELD_NS / 2), 1000);
        let over = now + LEAST_HELD_NS;
        assert_eq!(
            tenants.left(ahead, (peer, now + (LEAST_HELD_NS - 1))),
            Err(Pause::Held)
        );
        let mut later = tenants;
        later.wait(second, (FROM.0 + 1, peer, over), 1000);
        assert_eq!(later.left(ahead, (peer, over)), Err(Pause::Held));
    }

    #[test]
    fn another_that_waits_prolongs_no_hold() {
        let (mut tenants, [first, second, ahead]) = sending([1, 1, 1]);
        tenants.wait(first, FROM, 1000);
        tenants.begin_period(1);
        let (peer, now) = AT;
        tenants.wait(second, (FROM.0 + 1, peer, now + LEAST_HELD_NS / 2), 1000);
        assert_eq!(
            tenants.left(ahead, (peer, now + LEAST_HELD_NS)),
            Ok(ALLOWANCE)
        );
    }
}
