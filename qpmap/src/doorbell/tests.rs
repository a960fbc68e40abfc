use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

fn drained(bells: &Doorbells) -> Vec<u32> {
    let mut sweep = Sweep::default();
    let found = std::iter::from_fn(|| bells.next(&mut sweep)).collect();
    assert!(sweep.is_over());
    found
}

proptest! {
    #[test]
    fn a_sweep_gives_each_ringing_bell_once_in_order(
        rounds in prop::collection::vec(prop::collection::vec(0_u32..1 << 24, 0..40), 1..6),
        scale in 0_u32..18,
    ) {
        let bells = Doorbells::new();
        for round in rounds {
            let mut model = BTreeSet::new();
            for index in round {
                let index = index >> scale;
                bells.ring(index);
                model.insert(index);
            }
            prop_assert_eq!(bells.is_empty(), model.is_empty());
            prop_assert_eq!(drained(&bells), model.into_iter().collect::<Vec<_>>());
            prop_assert!(bells.is_empty());
        }
    }
}

#[test]
fn the_first_and_the_last_bell_ring() {
    let bells = Doorbells::new();
    let ends = [
        0,
        63,
        64,
        4095,
        4096,
        (1 << 18) - 1,
        1 << 18,
        Doorbells::SIZE - 1,
    ];
    ends.into_iter().for_each(|index| bells.ring(index));
    assert_eq!(drained(&bells), ends);
    assert_eq!(drained(&bells), []);
}

#[test]
fn a_bell_that_rings_all_the_time_leaves_others_their_turn() {
    let bells = Doorbells::new();
    [2, 70_000].into_iter().for_each(|index| bells.ring(index));
    let mut sweep = Sweep::default();
    let first: Vec<_> = (0..4)
        .map_while(|_| {
            let index = bells.next(&mut sweep)?;
            bells.ring(2);
            Some(index)
        })
        .collect();
    assert_eq!(first, [2, 70_000, 2, 2]);
}

#[test]
fn a_bell_that_rings_during_a_sweep_is_not_lost() {
    let bells = Doorbells::new();
    bells.ring(3);
    let mut sweep = Sweep::default();
    let mut found = vec![bells.next(&mut sweep).expect("it rings")];
    // Itself, one before it and one behind it.
    [3, 1, 9000].into_iter().for_each(|index| bells.ring(index));
    found.extend(std::iter::from_fn(|| bells.next(&mut sweep)));
    assert!(sweep.is_over() && bells.is_empty());
    found.sort_unstable();
    assert_eq!(found, [1, 3, 3, 9000]);
}

#[test]
#[should_panic(expected = "has a doorbell")]
fn there_is_no_bell_past_the_last() {
    Doorbells::new().ring(Doorbells::SIZE);
}

#[test]
fn bells_that_nobody_has_take_no_room() {
    let bells = Doorbells::new();
    assert!(bells.state_bytes() < 2048, "{}", bells.state_bytes());
    bells.ring(0);
    assert!(bells.state_bytes() < 4096, "{}", bells.state_bytes());
}

/// Programs, each with QPs of its own, wait for the worker's answer to each ring, so that one
/// lost bell stops everything; what they post is written without any ordering of its own, so
/// that a bell which does not carry it along shows, too.
fn lockstep(programs: &[&[u32]], posts: u32) {
    let size = programs
        .iter()
        .copied()
        .flatten()
        .max()
        .map_or(0, |last| last + 1);
    let counters = || (0..size).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
    let (posted, seen) = (counters(), counters());
    let (bells, finished) = (Doorbells::new(), AtomicU32::new(0));
    let answered = |at: u32, post: u32| {
        (0..4_000_000).any(|spins| {
            if spins < 500 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
            seen[at as usize].load(Relaxed) == post
        })
    };
    // Gives the first bell that was lost. Nothing here panics, so that the worker always ends.
    let program = |qps: &[u32]| {
        let lost = (1..=posts).find_map(|post| {
            for at in qps {
                posted[*at as usize].store(post, Relaxed);
                bells.ring(*at);
            }
            qps.iter()
                .find(|at| !answered(**at, post))
                .map(|at| (*at, post))
        });
        finished.fetch_add(1, Relaxed);
        lost
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = programs
            .iter()
            .map(|qps| scope.spawn(|| program(qps)))
            .collect();
        let mut sweep = Sweep::default();
        while (finished.load(Relaxed) as usize) < programs.len() {
            while let Some(at) = bells.next(&mut sweep) {
                let post = posted[at as usize].load(Relaxed);
                seen[at as usize].store(post, Relaxed);
            }
        }
        for thread in threads {
            assert_eq!(
                thread.join().expect("programs do not panic"),
                None,
                "a lost bell"
            );
        }
    });
}

#[test]
fn a_program_alone_with_the_worker_loses_no_bell() {
    // Nobody else rings: no other bell saves this one.
    lockstep(&[&[5]], 100_000);
}

#[test]
fn programs_that_share_words_at_every_level_lose_no_bell() {
    const FAR: u32 = 1 << 18;
    lockstep(
        &[
            &[0, 8, 64, 4096, 4160, FAR],
            &[1, 9, 65, 4097, 4161, FAR + 1],
            &[2, 10, 4098, FAR + 64],
            &[66, 8192, FAR + 4096],
        ],
        2000,
    );
}

#[test]
fn two_programs_of_one_word_lose_no_bell() {
    lockstep(&[&[1], &[2]], 20_000);
}
