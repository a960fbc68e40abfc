//! Halves of different processes: they share two pieces of memory and nothing else.

use super::*;

/// Both halves, and the memory that they share.
struct Apart {
    writer: Writer<Heap>,
    queue: CompletionQueue<Heap>,
    header: Heap,
}

fn apart(depth: usize) -> Apart {
    let (header, entries) = (Heap::zeroed(HEADER), Heap::zeroed(depth * CQE_WORDS));
    Apart {
        writer: Writer::over(header.clone(), entries.clone()).unwrap(),
        queue: CompletionQueue::over(header.clone(), entries).unwrap(),
        header,
    }
}

fn numbered(wr_id: u64, qpn: u32) -> Completion {
    Completion {
        wr_id,
        qpn: Qpn::from_wire(qpn),
        ..DONE
    }
}

fn ids(queue: &CompletionQueue<Heap>) -> Vec<u64> {
    std::iter::from_fn(|| poll_one(queue).map(|completion| completion.wr_id)).collect()
}

#[test]
fn what_one_half_writes_the_other_polls_and_an_arming_gets_there() {
    let mut cq = apart(4);
    for round in 0..10 {
        cq.queue.arm(false);
        for n in 0..4 {
            push(&mut cq.writer, numbered(round * 4 + n, 9));
        }
        assert!(cq.writer.take_notification() && !cq.writer.take_notification());
        let expected: Vec<_> = (round * 4..round * 4 + 4).collect();
        assert_eq!(ids(&cq.queue), expected);
    }
}

#[test]
fn a_program_hears_of_an_overrun_after_what_came_before_it() {
    let mut cq = apart(2);
    for n in 0..2 {
        push(&mut cq.writer, numbered(n, 9));
    }
    assert!(cq.writer.push(&DONE).is_err());
    cq.writer.publish();
    let mut out = [DONE; 4];
    assert_eq!(cq.queue.poll(&mut out), Ok(2));
    assert_eq!(cq.queue.poll(&mut out), Err(CqOverflow { capacity: 2 }));
    assert!(cq.queue.is_in_error());
}

#[test]
fn completions_of_a_qp_that_is_gone_take_no_room() {
    let mut cq = apart(4);
    for n in 0..4 {
        push(&mut cq.writer, numbered(n, 7 + n as u32 / 3));
    }
    cq.queue.forget(Qpn::from_wire(7));
    assert_eq!(cq.writer.check_resize(0, 2), Ok(()));
    for n in 4..7 {
        push(&mut cq.writer, numbered(n, 9));
    }
    assert_eq!(ids(&cq.queue), [3, 4, 5, 6]);
    assert!(!cq.queue.is_in_error());
}

#[test]
fn a_program_that_says_its_queue_is_in_error_does_not_make_it_so() {
    let mut cq = apart(2);
    cq.header[TAIL].store(IN_ERROR, Ordering::Relaxed);
    assert_eq!(cq.writer.check_resize(0, 2), Ok(()));
    push(&mut cq.writer, numbered(1, 9));
    assert_eq!(ids(&cq.queue), [1]);
}

#[test]
fn each_half_forgets_by_itself() {
    let mut cq = apart(4);
    push(&mut cq.writer, numbered(1, 8));
    push(&mut cq.writer, numbered(2, 9));
    // The worker's half must not move the head, which is the program's.
    cq.writer.forget(Qpn::from_wire(8));
    cq.writer.forget(Qpn::from_wire(9));
    cq.queue.forget(Qpn::from_wire(8));
    push(&mut cq.writer, numbered(3, 8));
    assert_eq!(ids(&cq.queue), [2, 3], "a QP of this number may come again");
    for n in 0..4 {
        push(&mut cq.writer, numbered(n, 9));
    }
    cq.writer.forget(Qpn::from_wire(9));
    assert!(cq.writer.push(&DONE).is_err(), "nothing was taken back");
}

#[test]
fn a_resize_keeps_what_was_not_polled_while_the_program_waits_for_it() {
    let mut cq = apart(2);
    push(&mut cq.writer, numbered(1, 9));
    assert_eq!(ids(&cq.queue), [1]);
    push(&mut cq.writer, numbered(2, 9));
    push(&mut cq.writer, numbered(3, 9));
    let room = Heap::zeroed(8 * CQE_WORDS);
    let writer = &mut cq.writer;
    let moved = cq.queue.move_to(|| {
        let entries = Entries::over(room.clone())?;
        writer.check_resize(0, entries.capacity())?;
        writer.resize(entries);
        Ok::<_, VerbsError>(room)
    });
    moved.unwrap();
    assert_eq!(cq.queue.capacity(), 8);
    for n in 4..10 {
        push(&mut cq.writer, numbered(n, 9));
    }
    assert_eq!(ids(&cq.queue), (2..10).collect::<Vec<_>>());
    let refused = cq.queue.move_to(|| Err(VerbsError::CqInError { cq: 0 }));
    assert_eq!(refused, Err(VerbsError::CqInError { cq: 0 }));
    assert_eq!(cq.queue.capacity(), 8);
}

#[test]
fn a_head_that_makes_no_sense_puts_its_own_queue_in_error() {
    for head in [1, 3, u64::from(u32::MAX), u64::MAX] {
        let mut cq = apart(2);
        cq.header[HEAD].store(head, Ordering::Relaxed);
        let pushed = (0..3).map(|_| cq.writer.push(&DONE)).collect::<Vec<_>>();
        let overrun = Err(CqOverflow { capacity: 2 });
        assert!(pushed[..2].iter().all(Result::is_ok), "{head}");
        // It polled one, as far as the worker can know.
        let expected = if head == 1 { Ok(()) } else { overrun };
        assert_eq!(pushed[2], expected, "{head}");
    }
}

#[test]
fn memory_of_another_length_is_refused() {
    let over = |header, entries| Writer::over(Heap::zeroed(header), Heap::zeroed(entries)).err();
    for header in [0, HEADER - 1, HEADER + 1] {
        assert!(over(header, CQE_WORDS).is_some(), "{header}");
    }
    for entries in [0, 3, CQE_WORDS + 1, 3 * CQE_WORDS] {
        assert!(over(HEADER, entries).is_some(), "{entries}");
    }
    assert_eq!(over(HEADER, CQE_WORDS), None);
}
