use super::*;
use std::thread;

fn ring(slots: u32) -> Ring<Arc<[AtomicU64]>> {
    Ring::new(Arc::zeroed(words_for(slots)))
}

#[test]
fn a_new_ring_is_empty() {
    let ring = ring(4);
    assert_eq!(ring.capacity(), 4);
    assert_eq!(Cursor::default().available(&ring), Ok(0));
}

#[test]
fn entries_wrap_around_the_end_of_the_ring_and_of_the_counters() {
    let ring = ring(4);
    let start = Position {
        slots: u32::MAX,
        entries: u32::MAX,
    };
    ring.publish(start);
    ring.release_to(start);
    let mut cursor = Cursor::default();
    assert_eq!(cursor.skip_all(&ring), start);
    for at in 0..3 * SLOT_WORDS {
        ring.store(start.slots, at, 100 + at as u64);
    }
    ring.publish(start.advance(3, 1));
    assert_eq!(cursor.available(&ring), Ok(3));
    for at in 0..3 * SLOT_WORDS {
        assert_eq!(ring.load(cursor.slot(), at), 100 + at as u64);
    }
    // Slot -1 is the last of four, slots 0 and 1 are the first two.
    assert_eq!(ring.load_slot(3)[0], 100);
    assert_eq!(ring.load_slot(0)[0], 100 + SLOT_WORDS as u64);
    cursor.advance(3);
    ring.release(3);
    assert_eq!(
        ring.head(),
        Position {
            slots: 2,
            entries: 0
        }
    );
}

#[test]
fn a_tail_beyond_the_capacity_is_refused_until_it_is_mended() {
    let ring = ring(4);
    let mut cursor = Cursor::default();
    for claimed in [5, 1000, u32::MAX] {
        ring.publish(Position::default().advance(claimed, 1));
        let error = RingError::TailOutOfRange {
            claimed,
            capacity: 4,
        };
        assert_eq!(cursor.available(&ring), Err(error));
        assert_eq!(cursor.available(&ring), Err(error), "asking twice");
    }
    ring.publish(Position::default().advance(4, 1));
    assert_eq!(cursor.available(&ring), Ok(4));
}

#[test]
fn a_tail_that_goes_back_is_refused() {
    let ring = ring(4);
    let mut cursor = Cursor::default();
    ring.publish(Position::default().advance(2, 1));
    assert_eq!(cursor.available(&ring), Ok(2));
    cursor.advance(2);
    ring.publish(Position::default().advance(1, 1));
    assert!(cursor.available(&ring).is_err());
    cursor.skip_all(&ring);
    assert_eq!(cursor.available(&ring), Ok(0), "a skip mends the cursor");
}

#[test]
#[should_panic(expected = "not a power of two")]
fn a_ring_of_three_slots_cannot_be() {
    ring(3);
}

#[test]
#[should_panic(expected = "not a power of two")]
fn a_ring_without_slots_cannot_be() {
    Ring::new(Arc::zeroed(HEADER - 1));
}

#[test]
fn positions_survive_their_word() {
    for position in [
        (0, 0),
        (1, 2),
        (u32::MAX, 0),
        (0, u32::MAX),
        (0xdead_beef, 7),
    ] {
        let position = Position {
            slots: position.0,
            entries: position.1,
        };
        assert_eq!(Position::from_word(position.to_word()), position);
    }
    let cursor = Cursor { fetch: 3, tail: 9 };
    let cell = CursorCell::default();
    cell.set(cursor);
    assert_eq!(cell.get(), cursor);
}

/// Entries of one to three slots, each word a function of its place: a slot that is seen before it
/// was written, or written before it was released, shows.
#[test]
fn two_threads_see_every_entry_whole_and_in_order() {
    const ENTRIES: u64 = 200_000;
    let ring = ring(8);
    let size = |entry: u64| (entry * 7 % 3 + 1) as u32;
    let value = |entry: u64, at: usize| entry << 8 | at as u64;
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut tail = Position::default();
            for entry in 0..ENTRIES {
                let slots = size(entry);
                while tail.since(ring.head()).slots + slots > ring.capacity() {
                    thread::yield_now();
                }
                for at in 0..slots as usize * SLOT_WORDS {
                    ring.store(tail.slots, at, value(entry, at));
                }
                tail = tail.advance(slots, 1);
                ring.publish(tail);
            }
        });
        let mut cursor = Cursor::default();
        let mut held = std::collections::VecDeque::new();
        for entry in 0..ENTRIES {
            while cursor.available(&ring).unwrap() == 0 {
                // Only what is held keeps the producer from going on.
                while let Some(slots) = held.pop_front() {
                    ring.release(slots);
                }
                thread::yield_now();
            }
            let slots = size(entry);
            assert!(cursor.available(&ring).unwrap() >= slots);
            for at in 0..slots as usize * SLOT_WORDS {
                assert_eq!(ring.load(cursor.slot(), at), value(entry, at));
            }
            cursor.advance(slots);
            held.push_back(slots);
            if held.len() > 2 {
                ring.release(held.pop_front().unwrap());
            }
        }
    });
    assert_eq!(u64::from(ring.tail().entries), ENTRIES);
}
