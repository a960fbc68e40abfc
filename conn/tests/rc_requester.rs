//! The RC requester, rule by rule. PSNs are counted from the first one, which lies two before the
//! end of the circle.

mod common;
#[path = "rc_requester/credits.rs"]
mod credits;
#[path = "rc_requester/failures.rs"]
mod failures;
#[path = "rc_requester/reads.rs"]
mod reads;

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
    assert_eq!(asking, [24, 49, 74, 99]);
    assert_eq!(bench.feed(ack(63)), Ok(()));
    assert_eq!(bench.sent().len(), 30);
}

#[test]
fn what_is_sent_again_asks_for_acknowledgements_sooner() {
    let mut bench = bench();
    bench.post(0, SendOp::Send, 130 * MTU);
    bench.sent();
    assert_eq!(bench.feed(nak(0, NakCode::PsnSequence)), Ok(()));
    let again = bench.sent();
    let asking = again.iter().filter(|one| one.bth.ack_req).cloned();
    let asking: Vec<Seen> = asking.collect();
    assert_eq!(numbers(&asking), [0, 2, 6, 14, 30, 62, 110, 129]);
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
        let answers = peer.sent();
        for one in &answers {
            let _ = bench.feed(one.packet());
        }
        assert!(!answers.is_empty() || bench.next_timer());
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
        initial_window: u32::MAX,
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
