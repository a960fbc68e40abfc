#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::accounts::{ALLOWANCE, MOST_CONNECTIONS, MOST_KEPT};
use super::waits::{LEAST_HELD_NS, MOST_HELD_NS};
use super::*;
use trunkline_conn::time::MILLISECOND;

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
    assert!(tenants.waits.is_empty());
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
