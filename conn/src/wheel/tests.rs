use super::*;
use alloc::collections::BTreeMap;
use proptest::prelude::*;

const fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

/// All timers that are due, in order.
fn fire(wheel: &mut Wheel, now: u64) -> Vec<u32> {
    let mut fired = Vec::new();
    loop {
        match wheel.step(at(now)) {
            Step::Fired(key) => fired.push(key),
            Step::Sorted => {}
            Step::Idle => return fired,
        }
    }
}

#[test]
fn timers_of_one_time_fire_in_the_order_in_which_they_were_armed() {
    let mut wheel = Wheel::new();
    // Armed from afar and from near by, and sorted in between.
    let time = 1_000_000;
    for key in 0..100 {
        wheel.arm(at(time), key);
    }
    wheel.arm(at(time - 500), 1000);
    assert_eq!(fire(&mut wheel, time - 100), [1000]);
    for key in 100..200 {
        wheel.arm(at(time), key);
    }
    wheel.arm(at(time - 1), 1001);
    wheel.arm(at(time), 0);
    assert_eq!(fire(&mut wheel, time - 1), [1001]);
    let order: Vec<_> = (0..200).collect();
    assert_eq!(fire(&mut wheel, time), order);
}

#[test]
fn nothing_fires_early() {
    let mut wheel = Wheel::new();
    assert_eq!(wheel.next(), None);
    wheel.arm(at(10), 7);
    assert_eq!(
        (wheel.next(), wheel.step(at(9))),
        (Some(at(10)), Step::Idle)
    );
    assert_eq!(wheel.step(at(10)), Step::Fired(7));
    assert_eq!((wheel.next(), wheel.len()), (None, 0));
}

#[test]
fn a_timer_that_is_armed_again_moves() {
    let mut wheel = Wheel::new();
    wheel.arm(at(10), 1);
    wheel.arm(at(1_000_000_000_000), 1);
    assert_eq!(wheel.len(), 1);
    assert_eq!(fire(&mut wheel, 999_999_999_999), []);
    wheel.arm_sooner(at(1_000_000_000_001), 1);
    assert_eq!(wheel.deadline(1), Some(at(1_000_000_000_000)));
    wheel.arm_sooner(at(999_999_999_999), 1);
    assert_eq!(fire(&mut wheel, 999_999_999_999), [1]);
}

#[test]
fn what_is_armed_for_a_time_that_never_comes_is_not_armed() {
    let mut wheel = Wheel::new();
    wheel.arm(Instant::FAR, 1);
    wheel.arm_sooner(Instant::FAR, 1);
    assert!(wheel.is_empty());
    wheel.arm(at(5), 1);
    wheel.arm(Instant::FAR, 1);
    assert!(wheel.is_empty());
    wheel.arm(at(u64::MAX - 1), 2);
    assert_eq!(fire(&mut wheel, u64::MAX - 2), []);
    assert_eq!(wheel.next(), Some(at(u64::MAX - 1)));
    assert_eq!(fire(&mut wheel, u64::MAX), [2]);
}

#[test]
fn what_is_armed_for_the_past_is_due_after_what_is_due() {
    let mut wheel = Wheel::new();
    assert_eq!(wheel.step(at(1000)), Step::Idle);
    wheel.arm(at(1000), 1);
    wheel.arm(at(5), 2);
    assert_eq!(wheel.next(), Some(at(1000)));
    assert_eq!(fire(&mut wheel, 1000), [1, 2]);
}

#[test]
fn what_is_armed_for_the_past_is_due_after_what_is_due_in_a_slot_that_is_sorted_late() {
    let mut wheel = Wheel::new();
    wheel.arm(at(66), 1);
    wheel.arm(at(66), 2);
    assert_eq!(wheel.step(at(66)), Step::Fired(1));
    // The slot, in the middle of which the wheel stands, has more than a few now.
    for key in 10..15 {
        wheel.arm(at(100), key);
    }
    assert_eq!(wheel.step(at(66)), Step::Sorted);
    wheel.arm(at(65), 3);
    assert_eq!(fire(&mut wheel, 66), [2, 3]);
}

#[test]
fn a_step_touches_a_few_timers_however_many_there_are() {
    let mut wheel = Wheel::new();
    const MANY: u32 = 100_000;
    for key in 0..MANY {
        wheel.arm(at(1_000_000_000 + u64::from(key)), key);
    }
    // One step sorts one timer: that is no time at which any is due.
    assert_eq!(wheel.step(at(2_000_000_000)), Step::Sorted);
    let mut steps = 1;
    let mut fired = 0;
    while fired < MANY {
        assert!(
            wheel.next() <= Some(at(2_000_000_000)),
            "there is more to do"
        );
        steps += 1;
        if let Step::Fired(key) = wheel.step(at(2_000_000_000)) {
            assert_eq!(key, fired);
            fired += 1;
        }
    }
    assert!(steps < 5 * MANY, "{steps} steps");
}

#[test]
fn few_timers_are_known_to_the_nanosecond() {
    let mut wheel = Wheel::new();
    for key in 0..FEW as u32 {
        wheel.arm(at(10_000_000_000 - u64::from(key)), key);
    }
    assert_eq!(wheel.next(), Some(at(10_000_000_001 - FEW as u64)));
}

#[test]
fn memory_goes_with_the_timers() {
    let mut wheel = Wheel::new();
    for key in 0..100_000 {
        wheel.arm(at(u64::from(key) * 1000), key);
    }
    let bytes = |wheel: &Wheel| {
        size_of::<Entry>() * wheel.entries.capacity() + size_of::<u32>() * wheel.index.capacity()
    };
    let most = bytes(&wheel);
    assert!(most < 100_000 * 38, "{most} bytes");
    // Those that stay are any of them.
    for key in (0..100_000).filter(|key| key % 1000 != 7) {
        wheel.cancel(key);
    }
    assert_eq!(wheel.len(), 100);
    let left = bytes(&wheel);
    assert!(left < 100 * 24 * 5, "{left} bytes");
    let order: Vec<_> = (0..100).map(|n| 1000 * n + 7).collect();
    assert_eq!(fire(&mut wheel, 1_000_000_000), order);
}

/// A plain model: all timers by deadline, then by when they were armed.
#[derive(Debug, Default)]
struct Model {
    timers: BTreeMap<(u64, u64), u32>,
    /// Of each key.
    places: BTreeMap<u32, (u64, u64)>,
    armed: u64,
}

impl Model {
    fn arm(&mut self, at: u64, key: u32) {
        if self.places.get(&key).is_some_and(|place| place.0 == at) {
            return;
        }
        self.cancel(key);
        self.armed += 1;
        self.timers.insert((at, self.armed), key);
        self.places.insert(key, (at, self.armed));
    }

    fn cancel(&mut self, key: u32) {
        if let Some(place) = self.places.remove(&key) {
            self.timers.remove(&place);
        }
    }

    fn first(&self) -> Option<u64> {
        self.timers.keys().next().map(|place| place.0)
    }

    fn fire(&mut self, now: u64) -> Option<u32> {
        let place = *self.timers.keys().next().filter(|place| place.0 <= now)?;
        let key = self.timers.remove(&place).expect("it is there");
        self.places.remove(&key);
        Some(key)
    }
}

/// What is done to both.
#[derive(Clone, Debug)]
enum Act {
    Arm(u64, u32),
    ArmSooner(u64, u32),
    /// For a time that has passed.
    ArmLate(u32),
    Cancel(u32),
    /// Fires what is due after so long, with at most so many steps.
    Turn(u64, u32),
    /// Goes to where the wheel wants to be called next.
    TurnToNext(u32),
}

/// A few nanoseconds to hours, the former more often than they would be by chance.
fn delay() -> impl Strategy<Value = u64> {
    (0_u32..44, any::<u64>()).prop_map(|(bits, any)| any & ((1 << bits) - 1))
}

fn act() -> impl Strategy<Value = Act> {
    let key = || 0_u32..60;
    // Times that many share, or that are next to each other.
    let rounded = (delay(), 0_u32..30).prop_map(|(ns, bits)| ns >> bits << bits);
    prop_oneof![
        4 => (rounded, key()).prop_map(|(ns, key)| Act::Arm(ns, key)),
        4 => (delay(), key()).prop_map(|(ns, key)| Act::Arm(ns, key)),
        2 => (delay(), key()).prop_map(|(ns, key)| Act::ArmSooner(ns, key)),
        1 => key().prop_map(Act::ArmLate),
        2 => key().prop_map(Act::Cancel),
        2 => (delay(), 0_u32..40).prop_map(|(ns, steps)| Act::Turn(ns, steps)),
        2 => (0_u32..40).prop_map(Act::TurnToNext),
    ]
}

/// Lists, links and bits agree with each other.
fn check(wheel: &Wheel) {
    let mut seen = 0;
    for (number, level) in (0..).zip(&wheel.levels) {
        assert_eq!(level.occupied != 0, wheel.used & 1 << number != 0);
        for slot in 0..SLOTS as u32 {
            if level.occupied & 1 << slot == 0 {
                continue;
            }
            let mut entry = level.first[slot as usize];
            loop {
                seen += 1;
                let record = wheel.entries[entry as usize];
                assert_eq!(digit(record.at, number), slot);
                assert!(record.at >= wheel.time);
                assert_eq!(wheel.find(record.key), entry);
                if record.after & SLOT != 0 {
                    assert_eq!(record.after, SLOT | number << BITS | slot);
                    let first = level.first[slot as usize];
                    assert_eq!(wheel.entries[first as usize].before, entry);
                    break;
                }
                assert_eq!(wheel.entries[record.after as usize].before, entry);
                entry = record.after;
            }
            let present = number > 0 && digit(wheel.time, number) == slot;
            let same = wheel.time >> (number * BITS)
                == wheel.entries[entry as usize].at >> (number * BITS);
            assert_eq!(
                present && same,
                wheel.open == number && number > 0 && present
            );
        }
    }
    assert_eq!(seen, wheel.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Arms, moves, cancels and fires at random, beside a sorted map.
    #[test]
    fn a_wheel_agrees_with_a_sorted_map(
        start in prop_oneof![Just(0), any::<u64>().prop_map(|ns| ns >> 2)],
        acts in prop::collection::vec(act(), 0..200),
    ) {
        let (mut wheel, mut model) = (Wheel::new(), Model::default());
        let mut now = start;
        prop_assert_eq!(wheel.step(at(now)), Step::Idle);
        for act in acts {
            let mut steps = 0;
            match act {
                Act::Arm(after, key) => {
                    wheel.arm(at(now + after), key);
                    model.arm(now + after, key);
                }
                Act::ArmSooner(after, key) => {
                    wheel.arm_sooner(at(now + after), key);
                    if model.places.get(&key).is_none_or(|place| now + after < place.0) {
                        model.arm(now + after, key);
                    }
                }
                Act::ArmLate(key) => {
                    wheel.arm(at(now / 2), key);
                    model.arm(wheel.time.max(now / 2), key);
                }
                Act::Cancel(key) => {
                    wheel.cancel(key);
                    model.cancel(key);
                }
                Act::Turn(after, most) => (now, steps) = (now + after, most),
                Act::TurnToNext(most) => {
                    now = wheel.next().map_or(now, |next| next.as_nanos().max(now));
                    steps = most;
                }
            }
            for _ in 0..steps {
                match wheel.step(at(now)) {
                    Step::Fired(key) => prop_assert_eq!(Some(key), model.fire(now)),
                    Step::Sorted => {}
                    Step::Idle => {
                        prop_assert_eq!(model.fire(now), None);
                        prop_assert!(wheel.next().is_none_or(|next| next > at(now)));
                        break;
                    }
                }
            }
            check(&wheel);
            prop_assert_eq!(wheel.len(), model.timers.len());
            let next = wheel.next().map(Instant::as_nanos);
            prop_assert_eq!(next.is_some(), model.first().is_some());
            prop_assert!(next <= model.first(), "it would be called late");
            for (key, place) in &model.places {
                prop_assert_eq!(wheel.deadline(*key), Some(at(place.0)));
            }
        }
        // All that is left fires, in order.
        loop {
            match wheel.step(at(u64::MAX - 1)) {
                Step::Fired(key) => prop_assert_eq!(Some(key), model.fire(u64::MAX)),
                Step::Sorted => {}
                Step::Idle => break,
            }
        }
        prop_assert!(model.timers.is_empty());
        prop_assert!(wheel.is_empty());
    }
}
