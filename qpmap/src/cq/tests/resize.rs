//! What happens to completions, programs and memory when a queue is resized.

use super::*;

/// The cookies of what a program polls until nothing is there.
fn drain(queue: &CompletionQueue<Heap>) -> Vec<u64> {
    std::iter::from_fn(|| poll_one(queue))
        .map(|done| done.wr_id)
        .collect()
}

const fn numbered(wr_id: u64) -> Completion {
    Completion { wr_id, ..DONE }
}

#[test]
fn a_queue_is_as_deep_as_it_was_asked_to_be_at_least_and_holds_just_that() {
    for depth in [1, 2, 3, 5, 64, 100] {
        let (mut writer, queue) = queue(1);
        resize(&mut writer, depth).unwrap();
        let capacity = queue.capacity();
        assert!(capacity >= depth && capacity < 2 * depth);
        for wr_id in 0..capacity.into() {
            push(&mut writer, numbered(wr_id));
        }
        assert_eq!(writer.push(&DONE), Err(CqOverflow { capacity }));
        writer.publish();
        let mut out = vec![DONE; capacity as usize + 1];
        assert_eq!(queue.poll(&mut out), Ok(capacity as usize));
        assert_eq!(queue.poll(&mut out), Err(CqOverflow { capacity }));
    }
}

#[test]
fn more_completions_than_the_new_depth_holds_are_counted_and_nothing_changes() {
    let (mut writer, queue) = queue(8);
    for wr_id in 0..5 {
        push(&mut writer, numbered(wr_id));
    }
    let refused = VerbsError::TooManyCompletions {
        count: 5,
        capacity: 4,
    };
    assert_eq!(resize(&mut writer, 4), Err(refused));
    let told = "5 completions are in the CQ, and with that depth it holds 4";
    assert_eq!((refused.to_string().as_str(), refused.errno()), (told, 22));
    assert_eq!(queue.capacity(), 8);
    assert_eq!(poll_one(&queue).map(|done| done.wr_id), Some(0));
    resize(&mut writer, 4).unwrap();
    assert_eq!(drain(&queue), [1, 2, 3, 4]);
}

#[test]
fn depths_that_no_queue_has_are_refused_when_one_is_resized() {
    let (mut writer, queue) = queue(8);
    for depth in [0, MAX_CQE + 1, u32::MAX] {
        let refused = Allowed::Range(1, MAX_CQE).refuse("cqe", depth.into());
        assert_eq!(resize(&mut writer, depth), Err(refused));
    }
    assert_eq!(queue.capacity(), 8);
}

#[test]
fn what_was_not_published_comes_along_and_is_seen_when_it_is_published() {
    let (mut writer, queue) = queue(4);
    push(&mut writer, numbered(1));
    writer.push(&numbered(2)).unwrap();
    resize(&mut writer, 16).unwrap();
    assert_eq!(drain(&queue), [1]);
    writer.publish();
    assert_eq!(drain(&queue), [2]);
}

#[test]
fn completions_of_qps_that_are_gone_take_no_room_in_the_new_depth() {
    let (mut writer, queue) = queue(8);
    let gone = Qpn::from_wire(9);
    for wr_id in 0..8 {
        let qpn = if wr_id % 4 == 0 { DONE.qpn } else { gone };
        push(
            &mut writer,
            Completion {
                qpn,
                ..numbered(wr_id)
            },
        );
    }
    writer.forget(gone);
    resize(&mut writer, 2).unwrap();
    assert_eq!(drain(&queue), [0, 4]);
}

#[test]
fn an_arming_holds_when_the_queue_is_resized() {
    let (mut writer, queue) = queue(2);
    queue.arm(false);
    resize(&mut writer, 8).unwrap();
    writer.publish();
    assert!(!writer.take_notification(), "nothing came");
    push(&mut writer, DONE);
    assert!(writer.take_notification());
}

#[test]
fn a_queue_in_error_stays_so_and_is_not_resized() {
    let (mut writer, queue) = queue(1);
    push(&mut writer, DONE);
    assert!(writer.push(&DONE).is_err());
    let refused = VerbsError::CqInError { cq: 0 };
    assert_eq!(resize(&mut writer, 64), Err(refused));
    writer.publish();
    assert_eq!(drain_until_error(&queue), 1);
    assert_eq!(queue.capacity(), 1);
}

fn drain_until_error(queue: &CompletionQueue<Heap>) -> usize {
    let mut out = [DONE; 8];
    let taken = queue.poll(&mut out).unwrap();
    assert_eq!(queue.poll(&mut out), Err(CqOverflow { capacity: 1 }));
    taken
}

#[test]
fn memory_follows_the_depth() {
    let (mut writer, queue) = queue(1 << 10);
    resize(&mut writer, 1 << 12).unwrap();
    assert_eq!(queue.ring_bytes(), 0, "nothing is there that needs it");
    push(&mut writer, DONE);
    assert_eq!(queue.ring_bytes(), 192 + (1 << 12) * 32);
    resize(&mut writer, 2).unwrap();
    assert_eq!(queue.ring_bytes(), 192 + 2 * 32);
    assert_eq!(drain(&queue), [0]);
}

/// One thread completes and resizes, as a worker does, and another polls, arms and sleeps.
#[test]
fn a_program_misses_nothing_and_sleeps_through_nothing_while_its_queue_is_resized() {
    const COUNT: u64 = 30_000;
    let (mut writer, queue) = queue(16);
    let bell = Bell::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut depth = 16;
            for wr_id in 0..COUNT {
                while writer.check_resize(0, queue.capacity() - 1).is_err() {
                    // It is full: the program is behind.
                    thread::yield_now();
                }
                push(&mut writer, numbered(wr_id));
                if writer.take_notification() {
                    bell.notify();
                }
                if wr_id % 7 == 0 {
                    depth = depth * 5 % 61 + 2;
                    // Refused or not: no completion may know.
                    let _ = resize(&mut writer, depth);
                }
            }
        });
        let (mut next, mut out) = (0, [DONE; 5]);
        let mut take = || {
            let taken = queue.poll(&mut out).unwrap();
            for done in &out[..taken] {
                assert_eq!(done.wr_id, next);
                next += 1;
            }
            (taken, next == COUNT)
        };
        loop {
            let (taken, over) = take();
            if over {
                break;
            }
            if taken == 0 {
                queue.arm(false);
                let (taken, over) = take();
                if over {
                    break;
                }
                assert!(taken > 0 || bell.wait(), "it was not woken up");
            }
        }
    });
    assert!(poll_one(&queue).is_none());
}
