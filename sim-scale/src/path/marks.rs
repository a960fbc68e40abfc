//! What congestion marks (ECN) are for: where a bottleneck marks what finds a queue, less of it
//! stands there.

use super::run;
use super::scenario::Scenario;
use crate::failure::{Failure, Verdict};
use crate::options::{between, pick};
use trunkline_conn::control::CongestionControl;
use trunkline_conn::time::{MICROSECOND, SECOND};
use trunkline_dataplane::prng::Prng;

/// Flows of ours over a bottleneck that has room for more than they let wait there.
fn draw(seed: u64) -> Scenario {
    let random = &mut Prng::new(seed ^ 0x3ca9_11e8_04d7_b2f5);
    Scenario {
        rate: pick(random, &[20, 50]) * 1_000_000,
        rtt: pick(random, &[200, 500, 1_000, 2_000, 5_000]) * MICROSECOND,
        queue: 1 << 20,
        flows: between(random, 3, 6) as u32,
        control: CongestionControl::Delay,
        length: SECOND,
        seed,
        ..Scenario::default()
    }
}

/// Bytes that wait at the bottleneck at most in the second half of a run, in the mean of its bins.
fn standing(scenario: &Scenario) -> u64 {
    let queue = run(scenario).queue;
    let late = &queue[queue.len() / 2..];
    late.iter().sum::<u64>() / late.len() as u64
}

/// Runs flows under control by delay twice, with marks and without, over a bottleneck of the seed's
/// choice. Gives the bytes that waited without, and with, marks.
pub(crate) fn queues(seed: u64) -> (u64, u64) {
    let scenario = draw(seed);
    let without = standing(&scenario);
    let marking = Scenario {
        mark: Some(without / 4),
        ..scenario
    };
    (without, standing(&marking))
}

/// Below so many bytes, 16 packets, a queue is hardly longer than the bursts that flows send.
const SHORT: u64 = 16 * 1500;

/// Holds what waited to the law: marks from a quarter of a queue on take a quarter of it away, or
/// more. Of short queues nothing is said.
///
/// # Errors
/// They do not.
pub(crate) fn judge((without, with): (u64, u64)) -> Verdict {
    if without < SHORT || with <= without / 4 * 3 {
        return Ok(());
    }
    Err(Failure::wrong(format!(
        "{with} bytes wait at a bottleneck that marks what finds {} of them, {without} at one that \
         marks nothing",
        without / 4
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_take_a_quarter_of_a_queue_away_or_more_whatever_the_path() {
        let (mut most, mut judged) = (0, 0);
        for seed in 0..100 {
            let queues = queues(seed);
            if queues.0 >= SHORT {
                most = most.max(queues.1 * 100 / queues.0);
                judged += 1;
            }
            assert!(judge(queues).is_ok(), "seed {seed}: {queues:?}");
        }
        assert!(judged > 75, "{judged} queues of 100 are long enough");
        println!("at most {most} % of the queue without marks");
    }

    #[test]
    fn a_queue_that_no_marks_shorten_is_found() {
        assert!(judge((100_000, 100_000)).is_err());
        assert!(judge((100_000, 75_001)).is_err());
    }
}
