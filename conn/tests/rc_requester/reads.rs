//! READs and atomics: their data, their limit, and fences.

use super::*;

#[test]
fn read_data_lands_where_it_was_wanted_and_acknowledges_what_was_before() {
    let mut bench = bench();
    bench.post(0, SendOp::Send, 4);
    let elements = [sge(PRIVATE, ADDR + 100, 300), sge(PRIVATE, ADDR + 1000, 50)];
    let mut scattered = request(1, read(4), sge(PRIVATE, ADDR, 350));
    scattered.local = Local::Sges(elements.into_iter().collect());
    assert!(bench.engine.post_send(scattered).is_ok());
    let sent = bench.sent();
    assert_eq!(numbers(&sent), [0, 1]);
    let reth = sent[1].reth.expect("it is a READ request");
    assert_eq!((reth.va, reth.length), (ADDR + 4, 350));
    let data = pattern(9, 350);
    let first = read_response(Opcode::RC_READ_RESPONSE_FIRST, 1, &data[..MTU]);
    assert_eq!(bench.feed(first), Ok(()));
    assert_eq!(bench.ends(), [(0, Status::Success)]);
    let last = read_response(Opcode::RC_READ_RESPONSE_LAST, 2, &data[MTU..]);
    assert_eq!(bench.feed(last), Ok(()));
    assert_eq!(bench.qp.sent[1].byte_len, 350);
    assert_eq!(bench.qp.ram.bytes(PRIVATE, ADDR + 100, 300), data[..300]);
    assert_eq!(bench.qp.ram.bytes(PRIVATE, ADDR + 1000, 50), data[300..]);
}

#[test]
fn a_read_that_was_cut_short_is_asked_for_from_where_it_stopped() {
    let mut bench = bench();
    bench.post(0, read(16), 3 * MTU + 7);
    bench.post(1, SendOp::Send, 4);
    bench.sent();
    let data = pattern(9, 3 * MTU + 7);
    let first = read_response(Opcode::RC_READ_RESPONSE_FIRST, 0, &data[..MTU]);
    assert_eq!(bench.feed(first), Ok(()));
    assert!(bench.next_timer());
    let sent = bench.sent();
    assert_eq!(numbers(&sent), [1]);
    let reth = sent[0].reth.expect("it is a READ request");
    assert_eq!(
        (reth.va, reth.length),
        (ADDR + 16 + MTU as u64, 2 * MTU as u32 + 7)
    );
    let parts = [
        (Opcode::RC_READ_RESPONSE_FIRST, 1, &data[MTU..2 * MTU]),
        (Opcode::RC_READ_RESPONSE_MIDDLE, 2, &data[2 * MTU..3 * MTU]),
        (Opcode::RC_READ_RESPONSE_LAST, 3, &data[3 * MTU..]),
    ];
    for (opcode, number, part) in parts {
        assert_eq!(bench.feed(read_response(opcode, number, part)), Ok(()));
    }
    assert_eq!(bench.feed(ack(4)), Ok(()));
    assert_eq!(bench.ends(), [(0, Status::Success), (1, Status::Success)]);
    assert_eq!(bench.qp.ram.bytes(PRIVATE, ADDR, data.len()), data);
}

#[test]
fn an_acknowledgement_of_what_follows_a_read_asks_for_the_read_again_once() {
    let mut bench = bench();
    bench.post(0, SendOp::Send, 4);
    bench.post(1, read(0), 4);
    bench.post(2, SendOp::Send, 4);
    bench.sent();
    assert_eq!(bench.feed(ack(2)), Err(Dropped::MissingResponse));
    assert_eq!(bench.ends(), [(0, Status::Success)]);
    let window = bench.engine.window();
    assert!(bench.next_timer());
    let narrower = window - window / 4;
    assert_eq!(bench.engine.window(), narrower, "it was lost");
    assert_eq!(numbers(&bench.sent()), [1, 2]);
    assert_eq!(bench.feed(ack(2)), Err(Dropped::MissingResponse));
    assert!(bench.sent().is_empty());
    assert_eq!(bench.engine.window(), narrower);
    assert_eq!(bench.engine.stats().implied_naks, 1);
    assert_eq!(bench.feed(only(1, b"data")), Ok(()));
    assert_eq!(bench.feed(ack(2)), Ok(()));
    assert_eq!(bench.ends().len(), 3);
}

#[test]
fn read_data_that_overtook_others_is_placed_and_the_others_are_asked_for_after_a_while() {
    let mut bench = bench();
    bench.post(0, read(0), 3 * MTU);
    bench.sent();
    let before = bench.qp.ram.bytes(PRIVATE, ADDR, MTU);
    let middle = read_response(Opcode::RC_READ_RESPONSE_MIDDLE, 1, &[1; MTU]);
    assert_eq!(bench.feed(middle), Ok(()));
    assert_eq!(bench.feed(middle), Err(Dropped::StaleResponse));
    assert_eq!(bench.qp.ram.bytes(PRIVATE, ADDR, MTU), before);
    let placed = bench.qp.ram.bytes(PRIVATE, ADDR + MTU as u64, MTU);
    assert_eq!(placed, [1; MTU]);
    assert!(bench.sent().is_empty());
    assert!(bench.next_timer());
    let sent = bench.sent();
    assert_eq!(numbers(&sent), [0]);
    assert_eq!(sent[0].reth.map(|reth| reth.length), Some(3 * MTU as u32));
}

#[test]
fn an_answer_far_ahead_is_not_taken_for_one_that_came_256_before_it() {
    const LONG: usize = 300 * MTU;
    let mut bench = Bench::new(Config {
        window: 400,
        initial_window: 400,
        ..config()
    });
    let room = vec![0; LONG];
    bench.qp.ram.regions.push(Region::new(0x55, 0x1000, room));
    bench.post(0, read(0), 2 * MTU);
    let long = request(1, read(0), sge(0x55, 0x1000, LONG as u32));
    assert!(bench.engine.post_send(long).is_ok());
    let asked = numbers(&bench.sent());
    assert!(asked.last().is_some_and(|last| *last > 1), "{asked:?}");
    let last = read_response(Opcode::RC_READ_RESPONSE_LAST, 1, &[1; MTU]);
    assert_eq!(bench.feed(last), Ok(()));
    assert_eq!(bench.feed(last), Err(Dropped::StaleResponse));
    // Each of them overtakes the first packet, which is asked for after the third.
    let far = read_response(Opcode::RC_READ_RESPONSE_MIDDLE, 257, &[1; MTU]);
    assert_eq!(bench.feed(far), Err(Dropped::MissingResponse));
    assert_eq!(bench.engine.stats().implied_naks, 0);
    assert_eq!(bench.feed(far), Err(Dropped::MissingResponse));
    assert_eq!(bench.engine.stats().implied_naks, 1);
}

#[test]
fn read_data_of_the_wrong_shape_is_a_bad_response() {
    let shapes: [(Opcode, usize); 6] = [
        (Opcode::RC_READ_RESPONSE_ONLY, MTU),
        (Opcode::RC_READ_RESPONSE_FIRST, MTU - 4),
        (Opcode::RC_READ_RESPONSE_FIRST, MTU + 4),
        (Opcode::RC_READ_RESPONSE_MIDDLE, MTU),
        (Opcode::RC_READ_RESPONSE_LAST, MTU),
        (Opcode::RC_READ_RESPONSE_LAST, 4),
    ];
    for (opcode, length) in shapes {
        let mut bench = bench();
        bench.post(0, read(0), 2 * MTU);
        bench.post(1, SendOp::Send, 4);
        bench.sent();
        let data = vec![1; length];
        let verdict = bench.feed(read_response(opcode, 0, &data));
        assert_eq!(verdict, Err(Dropped::BadResponse), "{opcode:?} of {length}");
        assert_eq!(
            bench.ends(),
            [(0, Status::BadResponse), (1, Status::Flushed)]
        );
    }
    let data_for_send = only(0, b"");
    let value_for_read = atomic_response(0, 1);
    for (op, response) in [(SendOp::Send, data_for_send), (read(0), value_for_read)] {
        let mut bench = bench();
        bench.post(0, op, 4);
        bench.sent();
        assert_eq!(bench.feed(response), Err(Dropped::BadResponse));
        assert_eq!(bench.ends(), [(0, Status::BadResponse)]);
    }
}

#[test]
fn the_result_of_an_atomic_is_written_in_the_order_of_the_host() {
    let mut bench = bench();
    bench.post(0, SendOp::Atomic(remote(8), FETCH_ADD), 8);
    let swap = AtomicOp::CompareSwap {
        compare: 2,
        swap: 3,
    };
    bench.post(1, SendOp::Atomic(remote(16), swap), 8);
    let sent = bench.sent();
    assert_eq!(opcodes(&sent), [Opcode::RC_FETCH_ADD, Opcode::RC_CMP_SWAP]);
    let header = sent[1].atomic.expect("it is an atomic");
    assert_eq!(
        (header.va, header.swap_or_add, header.compare),
        (ADDR + 16, 3, 2)
    );
    assert_eq!(
        bench.feed(atomic_response(0, 0x0102_0304_0506_0708)),
        Ok(())
    );
    let value = bench.qp.ram.bytes(PRIVATE, ADDR, 8);
    assert_eq!(value, 0x0102_0304_0506_0708_u64.to_ne_bytes());
    assert_eq!(bench.qp.sent[0].byte_len, 8);
}

#[test]
fn no_more_reads_and_atomics_are_outstanding_than_agreed() {
    let mut bench = Bench::new(Config {
        max_rd_atomic: 2,
        ..config()
    });
    bench.post(0, read(0), 2 * MTU);
    bench.post(1, SendOp::Atomic(remote(0), FETCH_ADD), 8);
    bench.post(2, read(0), 4);
    bench.post(3, SendOp::Send, 4);
    assert_eq!(numbers(&bench.sent()), [0, 2]);
    let first = read_response(Opcode::RC_READ_RESPONSE_FIRST, 0, &[1; MTU]);
    assert_eq!(bench.feed(first), Ok(()));
    assert!(bench.sent().is_empty());
    let last = read_response(Opcode::RC_READ_RESPONSE_LAST, 1, &[1; MTU]);
    assert_eq!(bench.feed(last), Ok(()));
    assert_eq!(numbers(&bench.sent()), [3, 4]);
}

#[test]
fn reads_that_were_never_agreed_fail_when_it_is_their_turn() {
    let mut bench = Bench::new(Config {
        max_rd_atomic: 0,
        ..config()
    });
    bench.post(0, SendOp::Send, 4);
    bench.post(1, read(0), 4);
    assert_eq!(numbers(&bench.sent()), [0]);
    assert_eq!(bench.engine.state(), State::Ready);
    assert_eq!(bench.feed(ack(0)), Ok(()));
    assert_eq!(
        bench.ends(),
        [(0, Status::Success), (1, Status::LocalQpOperation)]
    );
}

#[test]
fn a_fence_waits_for_reads_and_atomics_and_for_nothing_else() {
    let mut bench = bench();
    bench.post(0, SendOp::Send, 4);
    bench.post(1, read(0), 4);
    let mut fenced = request(2, SendOp::Write(remote(0)), sge(PRIVATE, ADDR, 4));
    fenced.flags = fenced.flags.with(SendFlags::FENCE);
    assert!(bench.engine.post_send(fenced.clone()).is_ok());
    assert_eq!(numbers(&bench.sent()), [0, 1]);
    assert_eq!(bench.feed(only(1, b"data")), Ok(()));
    bench.post(3, SendOp::Send, 4);
    assert!(bench.engine.post_send(fenced).is_ok());
    assert_eq!(numbers(&bench.sent()), [2, 3, 4]);
}
