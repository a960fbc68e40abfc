//! Timers of a worker.

use std::hint::black_box;
use trunkline_conn::time::{Instant, MICROSECOND, MILLISECOND, SECOND};
use trunkline_conn::wheel::{Step, Wheel};

/// Of answers that wait for company, of a retransmission, of a plain QP, of a keep-alive.
const DELAYS: [u64; 4] = [50 * MICROSECOND, MILLISECOND, 67 * MILLISECOND, 10 * SECOND];

/// The delay of a timer, which is moved to the next kind.
const fn delay(key: u32) -> u64 {
    DELAYS[key as usize % DELAYS.len()]
}

/// Timers that are armed one each microsecond, moved, cancelled (each fourth), and that fire.
pub(crate) fn timers(entries: u32) {
    let mut wheel = Wheel::new();
    let mut now = Instant::from_nanos(1 << 50);
    let (mut fired, mut cancelled) = (0, 0);
    let mut run = |wheel: &mut Wheel, now| {
        while let step @ (Step::Fired(_) | Step::Sorted) = black_box(wheel.step(now)) {
            fired += u32::from(matches!(step, Step::Fired(_)));
        }
    };
    run(&mut wheel, now);
    for key in 0..entries {
        now = now + MICROSECOND;
        wheel.arm(now + delay(key), key);
        wheel.arm(now + delay(key + 1), key);
        if key % 4 == key / 4 % 4 {
            wheel.cancel(key);
            cancelled += 1;
        }
        run(&mut wheel, now);
    }
    while let Some(next) = wheel.next() {
        run(&mut wheel, next);
    }
    assert_eq!(fired + cancelled, entries, "a timer got lost");
}
