//! The RC requester, rule by rule. PSNs are counted from the first one, which lies two before the
//! end of the circle.

mod common;

use common::bench::{
    ADDR, Bench, MTU, PEER, PRIVATE, US, ack, answer, atomic_response, config, numbers, packet,
    read_response, remote, with_reth,
};
use common::capture::Seen;
use common::{Region, pattern, request, sge};
use trunkline_conn::mem::AtomicOp;
use trunkline_conn::rc::{Config, Dropped, State, ack_timeout_ns};
use trunkline_conn::time::Instant;
use trunkline_conn::work::{Local, MAX_MESSAGE, SendFlags, SendOp, Status};
use trunkline_wire::{NakCode, Opcode, Packet, Rkey, Syndrome, rnr_timer_ns};

const FETCH_ADD: AtomicOp = AtomicOp::FetchAdd { add: 1 };

fn bench() -> Bench {
    Bench::new(config())
}

fn nak(number: u32, code: NakCode) -> Packet<'static> {
    answer(Opcode::RC_ACKNOWLEDGE, number, Syndrome::Nak(code))
}

fn rnr_nak(number: u32, timer: u8) -> Packet<'static> {
    answer(Opcode::RC_ACKNOWLEDGE, number, Syndrome::RnrNak { timer })
}

fn read(offset: u64) -> SendOp {
    SendOp::Read(remote(offset))
}

fn only(number: u32, payload: &[u8]) -> Packet<'_> {
    read_response(Opcode::RC_READ_RESPONSE_ONLY, number, payload)
}

fn opcodes(sent: &[Seen]) -> Vec<Opcode> {
    sent.iter().map(|one| one.bth.opcode).collect()
}

#[test]
fn every_kind_of_message_goes_out_in_its_packets() {
    let mut bench = bench();
    bench.post(0, SendOp::SendInvalidate(Rkey(9)), 2 * MTU + 1);
    bench.post(1, SendOp::WriteImm(remote(8), 7), MTU + 4);
    bench.post(2, SendOp::SendImm(6), 0);
    bench.post(3, SendOp::Write(remote(8)), MTU);
    let sent = bench.sent();
    let expected = [
        Opcode::RC_SEND_FIRST,
        Opcode::RC_SEND_MIDDLE,
        Opcode::RC_SEND_LAST_INV,
        Opcode::RC_WRITE_FIRST,
        Opcode::RC_WRITE_LAST_IMM,
        Opcode::RC_SEND_ONLY_IMM,
        Opcode::RC_WRITE_ONLY,
    ];
    assert_eq!(opcodes(&sent), expected);
    assert_eq!(numbers(&sent), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(sent[2].ieth.map(|ieth| ieth.0), Some(Rkey(9)));
    assert_eq!(sent[2].bth.pad, 3);
    let reth = sent[3].reth.expect("the first packet has it");
    assert_eq!((reth.va, reth.length), (ADDR + 8, MTU as u32 + 4));
    assert_eq!(sent[4].imm.map(|imm| imm.0), Some(7));
    let asks: Vec<bool> = sent.iter().map(|one| one.bth.ack_req).collect();
    assert_eq!(asks, [false, false, true, false, true, true, true]);
    assert!(sent.iter().all(|one| one.bth.mig_req));
    let data: Vec<u8> = sent[..3]
        .iter()
        .flat_map(|one| one.payload.clone())
        .collect();
    assert_eq!(data, bench.qp.ram.bytes(PRIVATE, ADDR, 2 * MTU + 1));
}

#[test]
fn one_acknowledgement_completes_all_before_it_in_order() {
    let mut bench = bench();
    for wr_id in 0..4 {
        bench.post(wr_id, SendOp::Send, 2 * MTU);
    }
    bench.sent();
    assert_eq!(bench.feed(ack(4)), Ok(()));
    assert_eq!(bench.ends(), [(0, Status::Success), (1, Status::Success)]);
    assert_eq!(bench.qp.sent[1].byte_len, 2 * MTU as u32);
    assert_eq!(bench.engine.pending(), 2);
    assert_eq!(bench.feed(ack(7)), Ok(()));
    assert_eq!(bench.ends().len(), 4);
    assert_eq!(bench.engine.poll_timeout(), None);
}

#[test]
fn answers_to_nothing_or_to_what_is_done_are_dropped() {
    let mut bench = bench();
    assert_eq!(bench.feed(ack(0)), Err(Dropped::UnexpectedResponse));
    bench.post(0, SendOp::Send, 2 * MTU);
    bench.post(1, SendOp::Send, 4);
    bench.sent();
    assert_eq!(bench.feed(ack(3)), Err(Dropped::UnexpectedResponse));
    assert_eq!(bench.feed(ack(1)), Ok(()));
    assert_eq!(bench.feed(ack(1)), Err(Dropped::StaleResponse));
    assert_eq!(
        bench.feed(nak(0, NakCode::RemoteAccess)),
        Err(Dropped::StaleResponse)
    );
    assert_eq!(bench.feed(only(0, b"")), Err(Dropped::StaleResponse));
    let reserved = nak(2, NakCode::Reserved(17));
    assert_eq!(bench.feed(reserved), Err(Dropped::UnexpectedResponse));
    assert_eq!(bench.engine.state(), State::Ready);
    assert_eq!(bench.ends(), [(0, Status::Success)]);
}

#[test]
fn what_was_not_sent_yet_cannot_be_acknowledged() {
    let mut bench = bench();
    bench.post(0, SendOp::Send, 4 * MTU);
    bench.port.room = 2;
    bench.sent();
    assert_eq!(bench.feed(ack(2)), Err(Dropped::UnexpectedResponse));
    assert_eq!(bench.feed(ack(1)), Ok(()));
    bench.port.room = usize::MAX;
    assert_eq!(numbers(&bench.sent()), [2, 3]);
}

#[test]
fn silence_is_retried_as_often_as_agreed_and_then_fails_the_oldest_request() {
    let mut bench = Bench::new(Config {
        retry_cnt: 2,
        ..config()
    });
    bench.post(0, SendOp::Send, MTU + 1);
    bench.post(1, read(0), 4);
    let timeout = ack_timeout_ns(10).expect("it is on");
    let mut start = bench.now;
    assert_eq!(numbers(&bench.sent()), [0, 1, 2]);
    for _ in 0..2 {
        assert_eq!(bench.engine.poll_timeout(), Some(start + timeout));
        bench.now = start + (timeout - 1);
        bench.engine.handle_timeout(bench.now, &mut bench.qp);
        assert!(bench.sent().is_empty(), "too early");
        bench.now = start + timeout;
        bench.engine.handle_timeout(bench.now, &mut bench.qp);
        bench.engine.handle_timeout(bench.now, &mut bench.qp);
        assert_eq!(numbers(&bench.sent()), [0, 1, 2]);
        start = bench.now;
    }
    assert!(bench.ends().is_empty());
    assert!(bench.next_timer());
    assert_eq!(
        bench.ends(),
        [(0, Status::RetryExceeded), (1, Status::Flushed)]
    );
    assert_eq!(bench.engine.state(), State::Error);
    assert_eq!(bench.engine.poll_timeout(), None);
    let back = bench
        .engine
        .post_send(request(2, SendOp::Send, sge(PRIVATE, ADDR, 4)));
    assert_eq!(back.map_err(|request| request.wr_id), Err(2));
    assert_eq!(bench.engine.stats().timeouts, 3);
    assert_eq!(bench.engine.stats().retransmitted, 6);
}

#[test]
fn progress_gives_all_retries_back() {
    let mut bench = Bench::new(Config {
        retry_cnt: 1,
        ..config()
    });
    bench.post(0, SendOp::Send, 4 * MTU);
    bench.sent();
    for number in 0..3 {
        assert!(bench.next_timer());
        bench.sent();
        assert_eq!(bench.feed(ack(number)), Ok(()));
    }
    assert_eq!(bench.engine.state(), State::Ready);
    assert!(bench.next_timer());
    bench.sent();
    assert!(bench.next_timer());
    assert_eq!(bench.ends(), [(0, Status::RetryExceeded)]);
}

#[test]
fn a_timeout_of_zero_waits_for_ever() {
    let mut bench = Bench::new(Config {
        timeout: 0,
        ..config()
    });
    bench.post(0, SendOp::Send, 4);
    bench.sent();
    assert_eq!(bench.engine.poll_timeout(), None);
    bench.engine.handle_timeout(Instant::FAR, &mut bench.qp);
    assert!(bench.sent().is_empty());
}

#[test]
fn a_complaint_about_a_gap_acknowledges_what_is_before_and_repeats_the_rest() {
    let mut bench = bench();
    bench.post(0, SendOp::Send, 4);
    bench.post(1, SendOp::Write(remote(0)), 3 * MTU);
    bench.post(2, SendOp::Send, 4);
    bench.sent();
    assert_eq!(bench.feed(nak(2, NakCode::PsnSequence)), Ok(()));
    assert_eq!(bench.ends(), [(0, Status::Success)]);
    let sent = bench.sent();
    assert_eq!(numbers(&sent), [2, 3, 4]);
    assert_eq!(sent[0].bth.opcode, Opcode::RC_WRITE_MIDDLE);
    assert_eq!(bench.engine.stats().retransmitted, 3);
}

#[test]
fn a_complaint_that_comes_twice_repeats_once() {
    let mut bench = bench();
    bench.post(0, SendOp::Send, 4);
    bench.sent();
    let complaint = nak(0, NakCode::PsnSequence);
    assert_eq!(bench.feed(complaint), Ok(()));
    assert_eq!(bench.feed(complaint), Err(Dropped::StaleResponse));
    assert_eq!(numbers(&bench.sent()), [0]);
}

#[test]
fn complaints_without_progress_are_counted_as_retries() {
    let mut bench = Bench::new(Config {
        retry_cnt: 2,
        ..config()
    });
    bench.post(0, SendOp::Send, 4);
    for _ in 0..3 {
        bench.sent();
        assert_eq!(bench.feed(nak(0, NakCode::PsnSequence)), Ok(()));
    }
    assert_eq!(bench.ends(), [(0, Status::RetryExceeded)]);
}

#[test]
fn acknowledgements_that_arrive_while_repeating_spare_the_rest() {
    let mut bench = bench();
    for wr_id in 0..4 {
        bench.post(wr_id, SendOp::Send, 4);
    }
    bench.sent();
    assert!(bench.next_timer());
    bench.port.room = 1;
    assert_eq!(numbers(&bench.sent()), [0]);
    assert_eq!(bench.feed(ack(2)), Ok(()));
    bench.port.room = usize::MAX;
    assert_eq!(numbers(&bench.sent()), [3]);
}

#[test]
fn what_is_acknowledged_before_it_is_repeated_is_not_repeated() {
    let mut bench = bench();
    bench.post(0, SendOp::Send, 4 * MTU);
    bench.sent();
    assert!(bench.next_timer());
    assert_eq!(bench.feed(ack(1)), Ok(()));
    assert_eq!(numbers(&bench.sent()), [2, 3]);
}

#[test]
fn refusals_become_the_status_of_the_refused_request() {
    let codes = [
        (NakCode::InvalidRequest, Status::RemoteInvalidRequest),
        (NakCode::RemoteAccess, Status::RemoteAccess),
        (NakCode::RemoteOperational, Status::RemoteOperation),
    ];
    for (code, status) in codes {
        let mut bench = bench();
        bench.post(0, SendOp::Send, MTU);
        bench.post(1, SendOp::Send, 3 * MTU);
        bench.post(2, SendOp::Send, 4);
        bench.sent();
        assert_eq!(bench.feed(nak(2, code)), Ok(()));
        let ends = [(0, Status::Success), (1, status), (2, Status::Flushed)];
        assert_eq!(bench.ends(), ends);
        assert_eq!(bench.engine.state(), State::Error);
        assert!(bench.sent().is_empty());
    }
}

#[test]
fn a_read_may_be_refused_in_the_middle_of_its_data() {
    let mut bench = bench();
    bench.post(0, read(0), 2 * MTU);
    bench.sent();
    let first = read_response(Opcode::RC_READ_RESPONSE_FIRST, 0, &[1; MTU]);
    assert_eq!(bench.feed(first), Ok(()));
    assert_eq!(bench.feed(nak(1, NakCode::RemoteAccess)), Ok(()));
    assert_eq!(bench.ends(), [(0, Status::RemoteAccess)]);
}

#[test]
fn a_read_is_refused_even_if_data_before_the_refusal_was_lost() {
    let mut bench = bench();
    bench.post(0, read(0), 3 * MTU);
    bench.sent();
    assert_eq!(bench.feed(nak(1, NakCode::RemoteAccess)), Ok(()));
    assert_eq!(bench.ends(), [(0, Status::RemoteAccess)]);
}

#[test]
fn a_receiver_that_is_not_ready_is_given_the_time_it_asks_for() {
    let mut bench = bench();
    bench.post(0, SendOp::Send, 4);
    bench.post(1, SendOp::Send, 4);
    bench.sent();
    assert_eq!(bench.feed(rnr_nak(0, 5)), Ok(()));
    assert!(bench.sent().is_empty());
    let at = bench.now + rnr_timer_ns(5);
    assert_eq!(bench.engine.poll_timeout(), Some(at));
    assert_eq!(bench.feed(rnr_nak(0, 5)), Err(Dropped::StaleResponse));
    assert_eq!(bench.engine.poll_timeout(), Some(at));
    assert!(bench.next_timer());
    assert_eq!(numbers(&bench.sent()), [0, 1]);
    assert_eq!(bench.feed(ack(1)), Ok(()));
    assert_eq!(bench.engine.stats().rnr_naks_received, 2);
}

#[test]
fn a_receiver_that_is_never_ready_fails_the_request_unless_that_is_to_be_borne() {
    for (rnr_retry, rounds) in [(0, 0), (3, 3), (7, 50)] {
        let mut bench = Bench::new(Config {
            rnr_retry,
            ..config()
        });
        bench.post(0, SendOp::Send, 4);
        for _ in 0..rounds {
            assert_eq!(numbers(&bench.sent()), [0]);
            assert_eq!(bench.feed(rnr_nak(0, 1)), Ok(()));
            assert!(bench.ends().is_empty());
            assert!(bench.next_timer());
        }
        bench.sent();
        assert_eq!(bench.feed(rnr_nak(0, 1)), Ok(()));
        let failed = [(0, Status::RnrRetryExceeded)];
        assert_eq!(bench.ends() == failed, rnr_retry < 7);
    }
}

#[test]
fn progress_gives_all_retries_of_a_receiver_that_was_not_ready_back() {
    let mut bench = Bench::new(Config {
        rnr_retry: 1,
        ..config()
    });
    for number in 0..3 {
        bench.post(number.into(), SendOp::Send, 4);
        bench.sent();
        assert_eq!(bench.feed(rnr_nak(number, 1)), Ok(()));
        assert!(bench.next_timer());
        bench.sent();
        assert_eq!(bench.feed(ack(number)), Ok(()));
    }
    assert_eq!(bench.engine.state(), State::Ready);
}

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
    assert_eq!(numbers(&sent), [1, 4]);
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
    assert_eq!(numbers(&bench.sent()), [1, 2]);
    assert_eq!(bench.feed(ack(2)), Err(Dropped::MissingResponse));
    assert!(bench.sent().is_empty());
    assert_eq!(bench.engine.stats().implied_naks, 1);
    assert_eq!(bench.feed(only(1, b"data")), Ok(()));
    assert_eq!(bench.feed(ack(2)), Ok(()));
    assert_eq!(bench.ends().len(), 3);
}

#[test]
fn read_data_out_of_order_is_not_placed() {
    let mut bench = bench();
    bench.post(0, read(0), 3 * MTU);
    bench.sent();
    let before = bench.qp.ram.bytes(PRIVATE, ADDR, 3 * MTU);
    let middle = read_response(Opcode::RC_READ_RESPONSE_MIDDLE, 1, &[1; MTU]);
    assert_eq!(bench.feed(middle), Err(Dropped::MissingResponse));
    assert_eq!(bench.qp.ram.bytes(PRIVATE, ADDR, 3 * MTU), before);
    let sent = bench.sent();
    assert_eq!(numbers(&sent), [0]);
    assert_eq!(sent[0].reth.map(|reth| reth.length), Some(3 * MTU as u32));
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

#[test]
fn local_memory_that_is_gone_fails_its_request_after_those_before_it() {
    for op in [SendOp::Send, read(0), SendOp::Atomic(remote(0), FETCH_ADD)] {
        let mut bench = bench();
        bench.post(0, SendOp::Send, 4);
        let bad = request(1, op, sge(0x999, ADDR, 8));
        assert!(bench.engine.post_send(bad).is_ok());
        bench.post(2, SendOp::Send, 4);
        assert_eq!(numbers(&bench.sent()), [0]);
        assert!(bench.ends().is_empty());
        assert_eq!(bench.feed(ack(0)), Ok(()));
        let ends = [
            (0, Status::Success),
            (1, Status::LocalProtection),
            (2, Status::Flushed),
        ];
        assert_eq!(bench.ends(), ends);
    }
    let mut bench = bench();
    let bad = request(1, SendOp::Send, sge(0x999, ADDR, 8));
    assert!(bench.engine.post_send(bad).is_ok());
    assert!(bench.sent().is_empty());
    assert_eq!(bench.ends(), [(1, Status::LocalProtection)]);
}

#[test]
fn inline_data_needs_no_memory() {
    let mut bench = bench();
    let mut inline = request(0, SendOp::Send, sge(0, 0, 300));
    let data = pattern(5, 300);
    inline.local = Local::Inline(data.iter().copied().collect());
    assert!(bench.engine.post_send(inline.clone()).is_ok());
    let sent = bench.sent();
    let carried: Vec<u8> = sent.iter().flat_map(|one| one.payload.clone()).collect();
    assert_eq!(carried, data);
    inline.local = Local::Inline(data[..299].iter().copied().collect());
    assert!(bench.engine.post_send(inline).is_ok());
    bench.sent();
    assert_eq!(bench.feed(ack(1)), Ok(()));
    assert_eq!(
        bench.ends(),
        [(0, Status::Success), (0, Status::LocalProtection)]
    );
}

#[test]
fn a_solicited_event_is_asked_for_by_the_last_packet_of_what_takes_a_receive() {
    let mut bench = bench();
    let post = |bench: &mut Bench, op, length| {
        let mut request = request(0, op, sge(PRIVATE, ADDR, length));
        request.flags = request.flags.with(SendFlags::SOLICITED);
        assert!(bench.engine.post_send(request).is_ok());
    };
    post(&mut bench, SendOp::Send, MTU as u32 + 1);
    post(&mut bench, SendOp::WriteImm(remote(0), 1), 4);
    post(&mut bench, SendOp::Write(remote(0)), 4);
    post(&mut bench, read(0), 4);
    let flags: Vec<bool> = bench.sent().iter().map(|one| one.bth.solicited).collect();
    assert_eq!(flags, [false, true, true, false, false]);
}

#[test]
fn long_messages_ask_for_acknowledgements_on_the_way_and_wait_for_the_window() {
    let mut bench = Bench::new(Config {
        window: 100,
        ..config()
    });
    bench.post(0, SendOp::Send, 130 * MTU);
    let sent = bench.sent();
    assert_eq!(sent.len(), 100);
    let asking: Vec<u32> = numbers(&sent)
        .into_iter()
        .zip(&sent)
        .filter_map(|(number, one)| one.bth.ack_req.then_some(number))
        .collect();
    assert_eq!(asking, [63, 99]);
    assert_eq!(bench.feed(ack(63)), Ok(()));
    assert_eq!(bench.sent().len(), 30);
}

#[test]
fn what_is_sent_again_asks_for_acknowledgements_sooner() {
    let mut bench = bench();
    bench.post(0, SendOp::Send, 130 * MTU);
    bench.sent();
    assert!(bench.next_timer());
    let again = bench.sent();
    let asking = again.iter().filter(|one| one.bth.ack_req).cloned();
    let asking: Vec<Seen> = asking.collect();
    assert_eq!(numbers(&asking), [0, 2, 6, 14, 30, 62, 126, 129]);
}

#[test]
fn a_path_that_carries_few_packets_at_once_is_got_through() {
    const AT_ONCE: usize = 63;
    let mut bench = bench();
    let mut peer = Bench::new(Config {
        qpn: PEER,
        dest_qpn: US,
        ..config()
    });
    peer.receives(1, 256 * MTU as u32);
    bench.post(0, SendOp::Send, 200 * MTU);
    while bench.ends().is_empty() {
        for one in bench.sent().into_iter().take(AT_ONCE) {
            let _ = peer.feed(one.packet());
        }
        for one in peer.sent() {
            let _ = bench.feed(one.packet());
        }
        assert!(bench.next_timer() || !bench.ends().is_empty());
    }
    assert_eq!(bench.ends(), [(0, Status::Success)]);
}

#[test]
fn a_long_read_does_not_close_the_window_for_what_follows() {
    let mut bench = Bench::new(Config {
        window: 20,
        max_rd_atomic: 1,
        ..config()
    });
    bench.post(0, read(0), 20 * MTU);
    bench.post(1, SendOp::Send, 4);
    assert_eq!(numbers(&bench.sent()), [0, 20]);
}

#[test]
fn half_the_circle_of_psns_is_the_most_that_is_outstanding() {
    let mut bench = Bench::new(Config {
        window: u32::MAX,
        max_rd_atomic: 1,
        ..config()
    });
    let room = vec![0; MAX_MESSAGE as usize];
    bench.qp.ram.regions.push(Region::new(0x55, 0x1000, room));
    let huge = request(0, read(0), sge(0x55, 0x1000, MAX_MESSAGE));
    assert!(bench.engine.post_send(huge).is_ok());
    bench.post(1, SendOp::Send, 4);
    let sent = bench.sent();
    assert_eq!(numbers(&sent), [0]);
    assert_eq!(sent[0].reth.map(|reth| reth.length), Some(MAX_MESSAGE));
    let first = read_response(Opcode::RC_READ_RESPONSE_FIRST, 0, &[1; MTU]);
    assert_eq!(bench.feed(first), Ok(()));
    assert_eq!(numbers(&bench.sent()), [1 << 23]);
}

#[test]
fn a_full_queue_gives_the_request_back() {
    let mut bench = Bench::new(Config {
        send_capacity: 2,
        ..config()
    });
    bench.post(0, SendOp::Send, 4);
    bench.post(1, SendOp::Send, 4);
    let third = request(2, SendOp::Send, sge(PRIVATE, ADDR, 4));
    let back = bench.engine.post_send(third.clone());
    assert_eq!(back.map_err(|request| request.wr_id), Err(2));
    bench.sent();
    assert_eq!(bench.feed(ack(0)), Ok(()));
    assert!(bench.engine.post_send(third).is_ok());
}

#[test]
fn a_full_port_loses_nothing() {
    let mut bench = bench();
    bench.post(0, SendOp::Send, 3 * MTU);
    bench.post(1, read(0), 4);
    let mut seen = Vec::new();
    for _ in 0..4 {
        bench.port.room = 0;
        assert!(bench.sent().is_empty());
        bench.port.room = 1;
        seen.extend(numbers(&bench.sent()));
    }
    assert_eq!(seen, [0, 1, 2, 3]);
    assert_eq!(bench.engine.stats().retransmitted, 0);
}

#[test]
fn an_abort_ends_the_oldest_request_with_its_reason_and_says_nothing_more() {
    let mut bench = bench();
    bench.receives(1, 1024);
    bench.post(0, SendOp::Send, 4);
    bench.post(1, SendOp::Send, 4);
    let first = packet(Opcode::RC_SEND_FIRST, 0, &[1; MTU]);
    assert_eq!(bench.feed(first), Ok(()));
    bench.engine.abort(&mut bench.qp, Status::General);
    bench.engine.abort(&mut bench.qp, Status::General);
    assert_eq!(bench.ends(), [(0, Status::General), (1, Status::Flushed)]);
    assert_eq!(bench.qp.received.len(), 1);
    assert_eq!(bench.qp.received[0].status, Status::Flushed);
    assert!(bench.sent().is_empty());
}

#[test]
fn notifications_slow_data_down_to_the_rate_and_pace_it_by_the_timer() {
    let mut bench = Bench::new(Config {
        link_rate: Some(100_000_000),
        timeout: 0,
        ..config()
    });
    for wr_id in 0..8 {
        bench.post(wr_id, SendOp::Send, 16 * MTU);
    }
    for _ in 0..3 {
        assert_eq!(bench.feed(packet(Opcode::CNP, 0, &[])), Ok(()));
    }
    let rate = bench.engine.rate().expect("it is limited");
    assert!(rate < 100_000_000 / 6);
    let start = bench.now;
    let burst = bench.sent();
    let mut count = burst.len();
    assert!((1..8).contains(&count), "{count} left at once");
    // What is far apart asks each time, lest the ACK timer runs out in between.
    assert!(burst.iter().all(|one| one.bth.ack_req));
    while count < 60 && bench.next_timer() {
        count += bench.sent().len();
    }
    let elapsed = bench.now.since(start);
    let least = 59 * MTU as u64 * 1_000_000_000 / 100_000_000;
    assert!(
        count >= 60 && elapsed > least,
        "{count} packets in {elapsed} ns"
    );
    assert_eq!(bench.engine.stats().cnps_received, 3);
}

#[test]
fn requests_and_read_data_take_turns() {
    let mut bench = bench();
    bench.post(0, SendOp::Send, 4 * MTU);
    let ask = with_reth(packet(Opcode::RC_READ_REQUEST, 0, &[]), 0, 4 * MTU);
    assert_eq!(bench.feed(ask), Ok(()));
    let kinds: Vec<bool> = bench.sent().iter().map(Seen::is_response).collect();
    assert_eq!(kinds, [true, false, true, false, true, false, true, false]);
}
