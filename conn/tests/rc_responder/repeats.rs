//! READs and atomics, and what comes again.

use super::*;

#[test]
fn a_read_is_answered_in_packets_whose_first_and_last_carry_the_msn() {
    let mut bench = bench();
    assert_eq!(bench.feed(write(0, 0)), Ok(()));
    assert_eq!(bench.feed(read_request(1, 8, 3 * MTU + 5)), Ok(()));
    assert_eq!(bench.feed(write(5, 0)), Ok(()));
    let sent = bench.sent();
    assert_eq!(numbers(&sent), [0, 1, 2, 3, 4, 5]);
    let places = sent[1..5].iter().map(|one| one.position());
    let expected = [
        Position::First,
        Position::Middle,
        Position::Middle,
        Position::Last,
    ];
    assert!(places.eq(expected));
    let msns: Vec<_> = sent
        .iter()
        .map(|one| one.aeth.map(|aeth| aeth.msn))
        .collect();
    assert_eq!(msns, [Some(1), Some(2), None, None, Some(2), Some(3)]);
    let data: Vec<u8> = sent[1..5]
        .iter()
        .flat_map(|one| one.payload.clone())
        .collect();
    assert_eq!(data, bench.qp.ram.bytes(KEY, ADDR + 8, 3 * MTU + 5));
}

#[test]
fn a_read_repeated_from_its_middle_is_answered_from_there_with_what_memory_holds_now() {
    let mut bench = bench();
    assert_eq!(bench.feed(read_request(0, 0, 4 * MTU)), Ok(()));
    assert_eq!(bench.sent().len(), 4);
    bench.qp.ram.set(KEY, ADDR + 2 * MTU as u64, b"new");
    let again = read_request(2, 2 * MTU as u64, 2 * MTU);
    assert_eq!(bench.feed(again), Ok(()));
    let sent = bench.sent();
    assert_eq!(numbers(&sent), [2, 3]);
    assert_eq!(sent[0].bth.opcode, Opcode::RC_READ_RESPONSE_FIRST);
    assert_eq!(sent[0].payload[..3], *b"new");
    assert_eq!(bench.engine.stats().duplicates, 1);
}

#[test]
fn a_repeated_read_that_reaches_beyond_what_was_executed_is_dropped() {
    let mut bench = bench();
    assert_eq!(bench.feed(read_request(0, 0, 2 * MTU)), Ok(()));
    bench.sent();
    let longer = read_request(1, 0, MTU + 1);
    assert_eq!(bench.feed(longer), Err(Dropped::Duplicate));
    assert!(bench.sent().is_empty());
}

#[test]
fn going_back_withdraws_what_was_not_sent_yet() {
    let mut bench = bench();
    assert_eq!(bench.feed(read_request(0, 0, 4 * MTU)), Ok(()));
    assert_eq!(bench.feed(write(4, 0)), Ok(()));
    bench.port.room = 1;
    assert_eq!(numbers(&bench.sent()), [0]);
    bench.port.room = usize::MAX;
    assert_eq!(bench.feed(read_request(0, 0, 4 * MTU)), Ok(()));
    assert_eq!(bench.feed(write(4, 0)), Ok(()));
    assert_eq!(numbers(&bench.sent()), [0, 1, 2, 3, 4]);
}

#[test]
fn memory_that_goes_away_under_a_read_ends_it_with_a_remote_access_error() {
    let mut bench = bench();
    bench.post(1, SendOp::Send, 4);
    assert_eq!(bench.feed(read_request(0, 0, 4 * MTU)), Ok(()));
    bench.port.room = 2;
    bench.sent();
    bench.qp.ram.regions.retain(|region| region.key != KEY);
    bench.port.room = usize::MAX;
    let sent = bench.sent();
    let (_, syndrome, _) = only_answer(&sent[sent.len() - 1..]);
    assert_eq!(syndrome, nak(NakCode::RemoteAccess));
    assert_eq!(bench.engine.state(), State::Error);
    assert_eq!(bench.ends(), [(1, Status::Flushed)]);
}

/// The requester may have had the data: then it does not hear this, and goes on.
#[test]
fn a_read_that_comes_again_when_its_region_is_gone_is_refused_and_ends_nothing() {
    let again = read_request(1, MTU as u64, MTU);
    for gone_before in [true, false] {
        let mut bench = bench();
        assert_eq!(bench.feed(read_request(0, 0, 2 * MTU)), Ok(()));
        assert_eq!(bench.sent().len(), 2);
        if !gone_before {
            assert_eq!(bench.feed(again), Ok(()));
        }
        bench.qp.ram.regions.retain(|region| region.key != KEY);
        if gone_before {
            assert_eq!(bench.feed(again), Err(Dropped::AccessDenied));
        }
        let (psn, syndrome, _) = only_answer(&bench.sent());
        assert_eq!((psn, syndrome), (1, nak(NakCode::RemoteAccess)));
        assert_eq!(bench.qp.events, [QpEvent::CommunicationEstablished]);
        assert_eq!(bench.engine.state(), State::Ready);
        bench.receives(1, 64);
        assert_eq!(bench.feed(send(2)), Ok(()));
        assert_eq!(only_answer(&bench.sent()), (2, ACK, 2));
    }
}

#[test]
fn more_reads_and_atomics_than_agreed_are_an_invalid_request() {
    let two = Config {
        max_dest_rd_atomic: 2,
        ..config()
    };
    let mut bench = Bench::new(two);
    assert_eq!(bench.feed(read_request(0, 0, 4)), Ok(()));
    assert_eq!(bench.feed(fetch_add(1, 0, 1)), Ok(()));
    assert_eq!(bench.feed(read_request(2, 0, 4)), Err(Dropped::Refused));
    let mut bench = Bench::new(two);
    for number in 0..10 {
        assert_eq!(bench.feed(fetch_add(number, 0, 1)), Ok(()));
        assert_eq!(numbers(&bench.sent()), [number]);
    }
    let none = Config {
        max_dest_rd_atomic: 0,
        ..config()
    };
    refused(
        Bench::new(none),
        &[read_request(0, 0, 4)],
        NakCode::InvalidRequest,
    );
    refused(
        Bench::new(none),
        &[fetch_add(0, 0, 4)],
        NakCode::InvalidRequest,
    );
}

#[test]
fn an_atomic_that_comes_again_is_answered_and_not_run_again() {
    let mut bench = bench();
    bench.qp.ram.set(KEY, ADDR, &40_u64.to_ne_bytes());
    assert_eq!(bench.feed(fetch_add(0, 0, 2)), Ok(()));
    assert_eq!(bench.feed(fetch_add(1, 0, 2)), Ok(()));
    let values = |sent: Vec<common::capture::Seen>| -> Vec<_> {
        sent.iter().map(|one| one.atomic_ack).collect()
    };
    assert_eq!(values(bench.sent()), [Some(40), Some(42)]);
    assert_eq!(bench.feed(fetch_add(0, 0, 2)), Ok(()));
    assert_eq!(bench.feed(fetch_add(1, 0, 2)), Ok(()));
    assert_eq!(values(bench.sent()), [Some(40), Some(42)]);
    assert_eq!(bench.qp.ram.bytes(KEY, ADDR, 8), 44_u64.to_ne_bytes());
}

#[test]
fn results_of_atomics_are_kept_as_long_as_they_may_be_asked_for() {
    let mut bench = Bench::new(Config {
        max_dest_rd_atomic: 3,
        ..config()
    });
    for number in 0..5 {
        assert_eq!(bench.feed(fetch_add(number, 0, 1)), Ok(()));
        bench.sent();
    }
    assert_eq!(bench.feed(fetch_add(1, 0, 1)), Err(Dropped::Duplicate));
    assert!(bench.sent().is_empty());
    for number in 2..5 {
        assert_eq!(bench.feed(fetch_add(number, 0, 1)), Ok(()));
        assert_eq!(numbers(&bench.sent()), [number]);
    }
}

#[test]
fn an_atomic_that_is_not_aligned_is_an_invalid_request() {
    refused(bench(), &[fetch_add(0, 4, 1)], NakCode::InvalidRequest);
}

#[test]
fn compare_and_swap_stores_only_on_a_match() {
    let mut bench = bench();
    bench.qp.ram.set(KEY, ADDR, &5_u64.to_ne_bytes());
    for (number, (compare, swap)) in (0..).zip([(4, 9), (5, 6), (5, 7)]) {
        let mut request = fetch_add(number, 0, swap);
        request.bth.opcode = Opcode::RC_CMP_SWAP;
        request.atomic.as_mut().expect("it is an atomic").compare = compare;
        assert_eq!(bench.feed(request), Ok(()));
    }
    let values: Vec<_> = bench.sent().iter().map(|one| one.atomic_ack).collect();
    assert_eq!(values, [Some(5), Some(5), Some(6)]);
    assert_eq!(bench.qp.ram.bytes(KEY, ADDR, 8), 6_u64.to_ne_bytes());
}

#[test]
fn sends_and_writes_that_come_again_are_acknowledged_and_not_executed_again() {
    let mut bench = bench();
    bench.receives(2, 64);
    assert_eq!(bench.feed(write(0, 0)), Ok(()));
    assert_eq!(bench.feed(send(1)), Ok(()));
    bench.sent();
    bench.qp.ram.set(KEY, ADDR, b"mine");
    assert_eq!(bench.feed(write(0, 0)), Ok(()));
    assert_eq!(only_answer(&bench.sent()), (0, ACK, 2));
    assert_eq!(bench.feed(send(1)), Ok(()));
    assert_eq!(only_answer(&bench.sent()), (1, ACK, 2));
    assert_eq!(bench.qp.ram.bytes(KEY, ADDR, 4), b"mine");
    assert_eq!(bench.qp.received.len(), 1);
}

#[test]
fn a_duplicate_does_not_take_back_what_is_about_to_be_acknowledged() {
    let mut bench = bench();
    for number in 0..3 {
        assert_eq!(bench.feed(write(number, 0)), Ok(()));
    }
    assert_eq!(bench.feed(write(0, 0)), Ok(()));
    assert_eq!(only_answer(&bench.sent()), (2, ACK, 3));
}

#[test]
fn a_repeated_answer_that_nobody_waits_for_makes_room_for_a_new_one() {
    let mut bench = Bench::new(Config {
        max_dest_rd_atomic: 1,
        ..config()
    });
    assert_eq!(bench.feed(read_request(0, 0, 4)), Ok(()));
    assert_eq!(numbers(&bench.sent()), [0]);
    assert_eq!(bench.feed(read_request(0, 0, 4)), Ok(()));
    assert_eq!(bench.feed(fetch_add(1, 0, 1)), Ok(()));
    assert_eq!(numbers(&bench.sent()), [1]);
}

#[test]
fn what_comes_again_takes_no_more_room_however_often_it_comes() {
    let mut bench = bench();
    bench.port.room = 0;
    assert_eq!(bench.feed(read_request(0, 0, 4 * MTU)), Ok(()));
    assert_eq!(bench.feed(write(4, 0)), Ok(()));
    assert_eq!(bench.feed(read_request(5, 0, 4)), Ok(()));
    let mut again = |times: u32| {
        for _ in 0..times {
            assert_eq!(bench.feed(write(4, 0)), Ok(()));
            assert_eq!(bench.feed(read_request(5, 0, 4)), Ok(()));
        }
        bench.engine.state_bytes()
    };
    let bytes = again(3);
    assert_eq!(again(10_000), bytes);
    bench.port.room = usize::MAX;
    assert_eq!(numbers(&bench.sent()), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_read_that_is_answered_again_in_part_is_refused_from_where_its_region_went() {
    let mut bench = bench();
    assert_eq!(bench.feed(read_request(0, 0, 2 * MTU)), Ok(()));
    assert_eq!(bench.sent().len(), 2);
    bench.port.room = 1;
    assert_eq!(bench.feed(read_request(0, 0, 2 * MTU)), Ok(()));
    assert_eq!(numbers(&bench.sent()), [0]);
    bench.qp.ram.regions.retain(|region| region.key != KEY);
    bench.port.room = usize::MAX;
    let (psn, syndrome, _) = only_answer(&bench.sent());
    assert_eq!((psn, syndrome), (1, nak(NakCode::RemoteAccess)));
}

#[test]
fn a_complaint_of_a_gap_goes_before_the_refusal_of_a_read_that_comes_again() {
    let mut bench = bench();
    assert_eq!(bench.feed(read_request(0, 0, 2 * MTU)), Ok(()));
    assert_eq!(bench.sent().len(), 2);
    bench.port.room = 0;
    let _ = bench.feed(write(4, 0));
    bench.qp.ram.regions.retain(|region| region.key != KEY);
    assert_eq!(
        bench.feed(read_request(0, 0, 2 * MTU)),
        Err(Dropped::AccessDenied)
    );
    bench.port.room = usize::MAX;
    let (psn, syndrome, _) = only_answer(&bench.sent());
    assert_eq!((psn, syndrome), (2, nak(NakCode::PsnSequence)));
}
