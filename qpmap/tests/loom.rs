//! Laws of the lock-free modules in all orders in which threads may meet: `cargo xtask loom`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;
use trunkline_conn::work::{Completion, Status};
use trunkline_qpmap::cq::{CompletionQueue, Entries, Writer};
use trunkline_qpmap::doorbell::{Apart, Bells, Doorbells, Rung, Sweep};
use trunkline_qpmap::mapping::{Binding, Mapping};
use trunkline_qpmap::rcu::Table;
use trunkline_qpmap::ring::RingMemory;

type Heap = std::sync::Arc<[AtomicU64]>;

/// Goes through all runs in which a thread is interrupted twice at most, where it could go on: more
/// take minutes.
fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(run);
}

const fn done(wr_id: u64) -> Completion {
    Completion {
        wr_id,
        status: Status::Success,
        ..Completion::BLANK
    }
}

/// Bells whose words are there. Loom does not know who made what an `OnceLock` of the standard
/// library holds, so it is made before threads meet.
fn bells_with(of: &[u32]) -> Doorbells {
    let (bells, mut sweep) = (Doorbells::new(), Sweep::default());
    of.iter().for_each(|index| bells.ring(*index));
    while bells.next(&mut sweep).is_some() {}
    bells
}

/// A completion queue whose ring is there, for the same reason.
fn completion_queue(depth: u32) -> (Writer<Heap>, std::sync::Arc<CompletionQueue<Heap>>) {
    let mut writer = Writer::<Heap>::new(depth).unwrap();
    writer.push(&done(0)).unwrap();
    writer.publish();
    assert!(!writer.take_notification());
    let queue = std::sync::Arc::clone(writer.queue());
    assert_eq!(queue.poll(&mut [done(9)]).unwrap(), 1);
    (writer, queue)
}

/// What a sweep finds; of each bell found, what was posted before it rang has to be there.
fn swept(bells: &Doorbells, posted: &[AtomicU64], found: &mut Vec<u32>, of: &[u32]) {
    let mut sweep = Sweep::default();
    while let Some(index) = bells.next(&mut sweep) {
        let Some(which) = of.iter().position(|bell| *bell == index) else {
            assert_eq!(index, OWN);
            continue;
        };
        assert_eq!(posted[which].load(Relaxed), 1, "bell {index}");
        found.push(index);
    }
    assert!(sweep.is_over());
}

/// A bell that the worker itself rings. Its sweep has to take words then: of threads that only look
/// loom does not go through all orders (a look that follows hides the one before it).
const OWN: u32 = 2;

/// Two programs ring while the worker sweeps.
fn no_bell_is_lost(of: [u32; 2]) {
    model(move || {
        let bells = Arc::new(bells_with(&[of[0], of[1], OWN]));
        let posted = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let programs = [0, 1].map(|which| {
            let (bells, posted) = (Arc::clone(&bells), Arc::clone(&posted));
            thread::spawn(move || {
                posted[which].store(1, Relaxed);
                bells.ring(of[which]);
            })
        });
        let mut found = Vec::new();
        bells.ring(OWN);
        swept(&bells, &*posted, &mut found, &of);
        for program in programs {
            program.join().unwrap();
        }
        swept(&bells, &*posted, &mut found, &of);
        found.sort_unstable();
        assert_eq!(found, of, "each once");
        assert!(bells.is_empty());
    });
}

#[test]
fn no_bell_is_lost_of_two_in_one_leaf() {
    no_bell_is_lost([0, 1]);
}

#[test]
fn no_bell_is_lost_of_two_leaves_below_one_word() {
    no_bell_is_lost([1, 64]);
}

#[test]
fn a_bell_that_rings_again_brings_what_was_posted_before_it() {
    model(|| {
        let bells = Arc::new(bells_with(&[7, OWN]));
        let posted = Arc::new(AtomicU64::new(0));
        let program = {
            let (bells, posted) = (Arc::clone(&bells), Arc::clone(&posted));
            thread::spawn(move || {
                for count in 1..=2 {
                    posted.store(count, Relaxed);
                    bells.ring(7);
                }
            })
        };
        let mut sweep = Sweep::default();
        let mut taken = 0;
        bells.ring(OWN);
        while let Some(index) = bells.next(&mut sweep) {
            if index == 7 {
                taken = posted.load(Relaxed);
                assert!(taken > 0);
            }
        }
        program.join().unwrap();
        while bells.next(&mut sweep).is_some() {
            taken = posted.load(Relaxed);
        }
        assert_eq!(taken, 2, "nothing posted is left behind");
    });
}

#[test]
fn a_worker_that_looks_away_from_bells_is_woken_or_sees_them() {
    model(|| {
        let memory = Heap::zeroed(Bells::<Apart<Heap>>::words_for(1));
        let side = || Bells::over(memory.clone(), 1).unwrap();
        let (program, worker) = (side(), side());
        let program = thread::spawn(move || program.ring_and_look(0));
        let mut sweep = Sweep::default();
        let away = worker.look_away(&sweep);
        let rung = program.join().unwrap();
        assert!(!away || rung == Rung::Unheard, "it sleeps over the bell");
        assert_eq!(worker.next(&mut sweep), Some(0));
    });
}

#[test]
fn a_reader_of_the_mapping_sees_one_binding_and_what_came_before_it() {
    model(|| {
        let mapping = Arc::new(Mapping::new());
        mapping.set(3, 0, 0);
        let opened = Arc::new(AtomicU64::new(0));
        let owner = {
            let (mapping, opened) = (Arc::clone(&mapping), Arc::clone(&opened));
            thread::spawn(move || {
                for round in 1..=2 {
                    opened.store(round, Relaxed);
                    mapping.set(3, round as u32, round as u16);
                }
            })
        };
        if let Some(Binding {
            connection,
            generation,
        }) = mapping.get(3)
        {
            assert_eq!(connection, u32::from(generation));
            assert!(opened.load(Relaxed) >= connection.into());
        }
        owner.join().unwrap();
    });
}

#[test]
fn a_program_that_armed_and_found_nothing_is_notified() {
    model(|| {
        let (mut writer, queue) = completion_queue(2);
        let worker = thread::spawn(move || {
            writer.push(&done(1)).unwrap();
            writer.publish();
            writer.take_notification()
        });
        queue.arm(false);
        let polled = queue.poll(&mut [done(0)]).unwrap();
        let notified = worker.join().unwrap();
        assert!(polled == 1 || notified, "it would sleep for ever");
    });
}

#[test]
fn completions_are_polled_whole_and_in_order_however_the_worker_goes_on() {
    model(|| {
        let (mut writer, queue) = completion_queue(2);
        let worker = thread::spawn(move || {
            for wr_id in 1..=2 {
                writer.push(&done(wr_id)).unwrap();
                writer.publish();
            }
        });
        let mut polled = Vec::new();
        let mut poll = || {
            let mut out = [done(0), done(0)];
            let count = queue.poll(&mut out).unwrap();
            polled.extend_from_slice(&out[..count]);
        };
        poll();
        worker.join().unwrap();
        poll();
        assert_eq!(polled, [done(1), done(2)]);
    });
}

#[test]
fn a_queue_that_is_resized_loses_doubles_and_swaps_nothing_and_keeps_its_arming() {
    model(|| {
        let (mut writer, queue) = completion_queue(2);
        let worker = thread::spawn(move || {
            writer.push(&done(1)).unwrap();
            writer.publish();
            let notified = writer.take_notification();
            let entries = Entries::new(4).unwrap();
            writer.check_resize(0, entries.capacity()).unwrap();
            writer.resize(entries);
            for wr_id in 2..=3 {
                writer.push(&done(wr_id)).unwrap();
            }
            writer.publish();
            writer.take_notification() | notified
        });
        let mut polled = Vec::new();
        let mut poll = || {
            let mut out = [done(0); 4];
            let count = queue.poll(&mut out).unwrap();
            polled.extend_from_slice(&out[..count]);
            count
        };
        poll();
        queue.arm(false);
        let count = poll();
        let notified = worker.join().unwrap();
        assert!(
            count > 0 || notified || polled.len() == 3,
            "it would sleep for ever"
        );
        let mut out = [done(0); 4];
        let count = queue.poll(&mut out).unwrap();
        polled.extend_from_slice(&out[..count]);
        assert_eq!(polled, [done(1), done(2), done(3)]);
    });
}

/// A reader finds a value whole or not at all, and never one that was reclaimed: loom tells of a
/// value that is read while it is written, or after it was freed.
#[test]
fn a_value_is_read_whole_or_not_at_all_and_never_once_it_is_reclaimed() {
    model(|| {
        let table = Table::new();
        // The chunk is made before threads meet.
        table.insert(1, Box::new(AtomicU64::new(0)));
        let reader = Arc::new(loom::sync::Mutex::new(table.reader()));
        let reading = thread::spawn({
            let reader = Arc::clone(&reader);
            move || {
                let reader = reader.lock().unwrap();
                reader.get(0).map(|value| value.load(Relaxed))
            }
        });
        let value = Box::new(AtomicU64::new(0));
        value.store(7, Relaxed);
        table.insert(0, value);
        let mut removed = table.remove(0).unwrap();
        removed.quiesced(&mut reader.lock().unwrap());
        let value = removed.reclaim().unwrap();
        value.store(9, Relaxed);
        let found = reading.join().unwrap();
        assert!(matches!(found, None | Some(7)), "{found:?}");
    });
}
