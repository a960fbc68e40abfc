//! The RC responder, rule by rule. PSNs are counted from the first one, which lies two before the
//! end of the circle.

mod common;

use common::bench::{
    ADDR, Bench, KEY, MTU, PRIVATE, SIZE, config, fetch_add, numbers, only_answer, packet,
    read_request, with_imm, with_invalidate, with_reth,
};
use common::{Region, pattern};
use trunkline_conn::host::QpEvent;
use trunkline_conn::mem::Access;
use trunkline_conn::rc::{Config, Dropped, State};
use trunkline_conn::work::{Extra, SendOp, Status, WorkOpcode};
use trunkline_wire::{Bth, NakCode, Opcode, Packet, Position, Qpn, Reth, Rkey, Syndrome};

const ACK: Syndrome = Syndrome::ACK_WITHOUT_CREDITS;
const FULL: [u8; MTU] = [7; MTU];

fn nak(code: NakCode) -> Syndrome {
    Syndrome::Nak(code)
}

fn bench() -> Bench {
    Bench::new(config())
}

fn send(number: u32) -> Packet<'static> {
    packet(Opcode::RC_SEND_ONLY, number, b"hello")
}

fn write(number: u32, offset: u64) -> Packet<'static> {
    with_reth(packet(Opcode::RC_WRITE_ONLY, number, b"word"), offset, 4)
}

fn without_ack_req(mut packet: Packet<'_>) -> Packet<'_> {
    packet.bth.ack_req = false;
    packet
}

#[test]
fn requests_that_came_together_are_acknowledged_together() {
    let mut bench = bench();
    bench.receives(5, 64);
    for number in 0..5 {
        assert_eq!(bench.feed(send(number)), Ok(()));
    }
    assert_eq!(only_answer(&bench.sent()), (4, ACK, 5));
    assert!(bench.sent().is_empty());
    assert_eq!(bench.qp.received.len(), 5);
}

#[test]
fn what_asks_for_no_acknowledgement_gets_none_until_something_does() {
    let mut bench = bench();
    bench.receives(2, 64);
    assert_eq!(bench.feed(without_ack_req(send(0))), Ok(()));
    assert!(bench.sent().is_empty());
    assert_eq!(bench.feed(send(1)), Ok(()));
    assert_eq!(only_answer(&bench.sent()), (1, ACK, 2));
}

#[test]
fn a_middle_packet_that_asks_is_acknowledged_with_the_msn_before() {
    let mut bench = bench();
    bench.receives(1, 1024);
    assert_eq!(bench.feed(packet(Opcode::RC_SEND_FIRST, 0, &FULL)), Ok(()));
    assert_eq!(only_answer(&bench.sent()), (0, ACK, 0));
    assert_eq!(bench.feed(packet(Opcode::RC_SEND_LAST, 1, b"end")), Ok(()));
    assert_eq!(only_answer(&bench.sent()), (1, ACK, 1));
    assert_eq!(bench.qp.received[0].byte_len, MTU as u32 + 3);
    let bytes = bench.qp.ram.bytes(PRIVATE, ADDR, MTU + 3);
    assert_eq!(bytes, [&FULL[..], b"end"].concat());
}

#[test]
fn answers_carry_mig_req_and_requests_need_not() {
    let mut bench = bench();
    let mut request = write(0, 0);
    request.bth.mig_req = false;
    assert_eq!(bench.feed(request), Ok(()));
    let mut request = write(1, 0);
    request.bth.mig_req = true;
    assert_eq!(bench.feed(request), Ok(()));
    let sent = bench.sent();
    assert!(sent[0].bth.mig_req && !sent[0].bth.ack_req);
}

#[test]
fn a_gap_is_complained_of_once_and_again_after_progress() {
    let mut bench = bench();
    assert_eq!(bench.feed(write(2, 0)), Err(Dropped::PsnGap));
    assert_eq!(bench.feed(write(3, 0)), Err(Dropped::PsnGap));
    assert_eq!(
        only_answer(&bench.sent()),
        (0, nak(NakCode::PsnSequence), 0)
    );
    assert_eq!(bench.feed(write(4, 0)), Err(Dropped::PsnGap));
    assert!(bench.sent().is_empty());
    assert_eq!(bench.feed(write(0, 0)), Ok(()));
    assert_eq!(bench.feed(write(2, 0)), Err(Dropped::PsnGap));
    let sent = bench.sent();
    assert_eq!(only_answer(&sent[..1]), (0, ACK, 1));
    assert_eq!(only_answer(&sent[1..]), (1, nak(NakCode::PsnSequence), 1));
    assert_eq!(bench.engine.stats().sequence_naks_sent, 2);
    assert_eq!(bench.engine.stats().dropped(Dropped::PsnGap), 4);
}

#[test]
fn a_complaint_that_was_settled_before_it_left_is_not_made() {
    let mut bench = bench();
    assert_eq!(bench.feed(write(1, 0)), Err(Dropped::PsnGap));
    assert_eq!(bench.feed(write(0, 0)), Ok(()));
    assert_eq!(only_answer(&bench.sent()), (0, ACK, 1));
}

#[test]
fn without_a_receive_the_requester_is_told_to_wait_and_what_follows_is_dropped_in_silence() {
    let mut bench = Bench::new(Config {
        min_rnr_timer: 9,
        ..config()
    });
    assert_eq!(bench.feed(send(0)), Err(Dropped::ReceiverNotReady));
    assert_eq!(
        only_answer(&bench.sent()),
        (0, Syndrome::RnrNak { timer: 9 }, 0)
    );
    assert_eq!(bench.feed(send(1)), Err(Dropped::PsnGap));
    assert!(bench.sent().is_empty());
    bench.receives(1, 64);
    assert_eq!(bench.feed(send(0)), Ok(()));
    assert_eq!(only_answer(&bench.sent()), (0, ACK, 1));
    assert_eq!(bench.engine.stats().rnr_naks_sent, 1);
}

#[test]
fn a_write_with_immediate_takes_its_receive_with_the_last_packet() {
    let mut bench = bench();
    let length = MTU + 4;
    let first = with_reth(packet(Opcode::RC_WRITE_FIRST, 0, &FULL), 0, length);
    let last = with_imm(packet(Opcode::RC_WRITE_LAST_IMM, 1, b"tail"), 0xfeed);
    assert_eq!(bench.feed(without_ack_req(first)), Ok(()));
    assert_eq!(bench.feed(last), Err(Dropped::ReceiverNotReady));
    let before = bench.qp.ram.bytes(KEY, ADDR + MTU as u64, 4);
    assert_ne!(before, b"tail");
    assert!(matches!(
        only_answer(&bench.sent()),
        (1, Syndrome::RnrNak { .. }, 0)
    ));
    bench.receives(1, 0);
    assert_eq!(bench.feed(last), Ok(()));
    assert_eq!(only_answer(&bench.sent()), (1, ACK, 1));
    let done = bench.qp.received[0];
    assert_eq!(
        (done.opcode, done.byte_len),
        (WorkOpcode::ReceiveWriteImm, length as u32)
    );
    assert_eq!(done.extra, Extra::Immediate(0xfeed));
    assert_eq!(bench.qp.ram.bytes(KEY, ADDR + MTU as u64, 4), b"tail");
}

/// Feeds packets, of which the last is refused with `code`, and sees the QP in error.
fn refused(mut bench: Bench, packets: &[Packet<'_>], code: NakCode) -> Bench {
    bench.receives(3, 1024);
    bench.post(1, SendOp::Send, 4);
    bench.post(2, SendOp::Send, 4);
    let before = bench.qp.ram.bytes(KEY, ADDR, SIZE);
    let (last, rest) = packets.split_last().expect("there is one to refuse");
    for packet in rest {
        assert_eq!(bench.feed(without_ack_req(*packet)), Ok(()));
    }
    let access = code == NakCode::RemoteAccess;
    let reason = if access {
        Dropped::AccessDenied
    } else {
        Dropped::Refused
    };
    assert_eq!(bench.feed(*last), Err(reason));
    let number = packets.len() as u32 - 1;
    let (refused, syndrome, _) = only_answer(&bench.sent());
    assert_eq!((refused, syndrome), (number, nak(code)));
    assert_eq!(bench.engine.state(), State::Error);
    assert_eq!(bench.ends(), [(1, Status::Flushed), (2, Status::Flushed)]);
    assert_eq!(bench.feed(write(number, 0)), Err(Dropped::QpInError));
    assert!(bench.sent().is_empty() && bench.engine.poll_timeout().is_none());
    if rest.is_empty() {
        assert!(bench.qp.ram.bytes(KEY, ADDR, SIZE) == before);
    }
    bench
}

#[test]
fn a_message_that_does_not_begin_is_an_invalid_request() {
    for opcode in [Opcode::RC_SEND_MIDDLE, Opcode::RC_WRITE_MIDDLE] {
        let bench = refused(
            bench(),
            &[packet(opcode, 0, &FULL)],
            NakCode::InvalidRequest,
        );
        let events = [QpEvent::CommunicationEstablished, QpEvent::RequestError];
        assert_eq!(bench.qp.events, events);
    }
    let code = NakCode::InvalidRequest;
    refused(bench(), &[packet(Opcode::RC_SEND_LAST, 0, b"end")], code);
}

#[test]
fn a_message_that_does_not_end_is_an_invalid_request() {
    let first = packet(Opcode::RC_SEND_FIRST, 0, &FULL);
    let others = [
        packet(Opcode::RC_SEND_FIRST, 1, &FULL),
        send(1),
        write(1, 0),
        read_request(1, 0, 4),
        fetch_add(1, 0, 1),
        packet(Opcode::RC_WRITE_MIDDLE, 1, &FULL),
    ];
    for other in others {
        let bench = refused(bench(), &[first, other], NakCode::InvalidRequest);
        assert_eq!(bench.qp.received.len(), 1);
        assert_eq!(bench.qp.received[0].status, Status::Flushed);
    }
}

#[test]
fn packets_before_the_last_are_full_and_the_last_is_not_empty() {
    let code = NakCode::InvalidRequest;
    let long = [7; MTU + 4];
    for payload in [&FULL[..MTU - 4], &long] {
        refused(bench(), &[packet(Opcode::RC_SEND_FIRST, 0, payload)], code);
        let first = packet(Opcode::RC_WRITE_FIRST, 0, payload);
        refused(bench(), &[with_reth(first, 0, 2 * MTU)], code);
    }
    refused(bench(), &[packet(Opcode::RC_SEND_ONLY, 0, &long)], code);
    let first = packet(Opcode::RC_SEND_FIRST, 0, &FULL);
    for payload in [&[][..], &long] {
        refused(
            bench(),
            &[first, packet(Opcode::RC_SEND_LAST, 1, payload)],
            code,
        );
    }
    refused(
        bench(),
        &[first, packet(Opcode::RC_SEND_MIDDLE, 1, b"part")],
        code,
    );
}

#[test]
fn the_packets_of_a_write_add_up_to_what_its_first_one_promised() {
    let code = NakCode::InvalidRequest;
    let only = packet(Opcode::RC_WRITE_ONLY, 0, b"word");
    for length in [0, 3, 5, MTU + 1] {
        refused(bench(), &[with_reth(only, 0, length)], code);
    }
    let first = packet(Opcode::RC_WRITE_FIRST, 0, &FULL);
    for length in [MTU - 1, MTU] {
        refused(bench(), &[with_reth(first, 0, length)], code);
    }
    let first = with_reth(first, 0, 2 * MTU);
    refused(
        bench(),
        &[first, packet(Opcode::RC_WRITE_LAST, 1, b"less")],
        code,
    );
    refused(
        bench(),
        &[first, packet(Opcode::RC_WRITE_MIDDLE, 1, &FULL)],
        code,
    );
}

#[test]
fn a_message_longer_than_its_receive_is_an_invalid_request_and_a_local_length_error() {
    let first = packet(Opcode::RC_SEND_FIRST, 0, &FULL);
    let middle = |number| packet(Opcode::RC_SEND_MIDDLE, number, &FULL);
    let packets = [first, middle(1), middle(2), middle(3), middle(4)];
    let bench = refused(bench(), &packets, NakCode::InvalidRequest);
    assert_eq!(bench.qp.received[0].status, Status::LocalLength);
    assert_eq!(bench.qp.events, [QpEvent::CommunicationEstablished]);
}

#[test]
fn a_receive_in_memory_that_is_gone_is_a_remote_operational_error() {
    let mut bench = bench();
    bench.receives(1, 64);
    bench.qp.receives[0].sges[0].lkey.0 = 0x1234;
    assert_eq!(bench.feed(send(0)), Err(Dropped::Refused));
    let answer = only_answer(&bench.sent());
    assert_eq!(answer, (0, nak(NakCode::RemoteOperational), 0));
    assert_eq!(bench.qp.received[0].status, Status::LocalProtection);
}

#[test]
fn rights_that_the_qp_does_not_have_are_an_invalid_request() {
    let bare = || {
        Bench::new(Config {
            access: Access::LOCAL_WRITE,
            ..config()
        })
    };
    for request in [write(0, 0), read_request(0, 0, 4), fetch_add(0, 0, 1)] {
        refused(bare(), &[request], NakCode::InvalidRequest);
    }
}

#[test]
fn keys_ranges_and_rights_that_are_wrong_are_a_remote_access_error() {
    let code = NakCode::RemoteAccess;
    let bad = [
        (0x999, ADDR, 4),
        (KEY, ADDR - 1, 4),
        (KEY, ADDR + SIZE as u64 - 3, 4),
        (KEY, u64::MAX - 1, 4),
        (PRIVATE, ADDR, 4),
    ];
    for (key, va, length) in bad {
        let reth = Some(Reth {
            va,
            rkey: Rkey(key),
            length,
        });
        refused(
            bench(),
            &[Packet {
                reth,
                ..write(0, 0)
            }],
            code,
        );
        refused(
            bench(),
            &[Packet {
                reth,
                ..read_request(0, 0, 4)
            }],
            code,
        );
        let mut atomic = fetch_add(0, 0, 1);
        let header = atomic.atomic.as_mut().expect("it is an atomic");
        (header.va, header.rkey) = (va & !7, Rkey(key));
        if va != ADDR + SIZE as u64 - 3 {
            let bench = refused(bench(), &[atomic], code);
            assert_eq!(bench.qp.events.last(), Some(&QpEvent::AccessError));
        }
    }
}

#[test]
fn the_whole_range_of_a_write_is_checked_before_its_first_byte_is_written() {
    let first = packet(Opcode::RC_WRITE_FIRST, 0, &FULL);
    let first = with_reth(first, SIZE as u64 - MTU as u64, MTU + 1);
    refused(bench(), &[first], NakCode::RemoteAccess);
}

#[test]
fn accesses_of_no_length_need_no_key() {
    let mut bench = bench();
    let nowhere = Some(Reth {
        va: 3,
        rkey: Rkey(0xdead),
        length: 0,
    });
    let empty = Packet {
        reth: nowhere,
        ..packet(Opcode::RC_WRITE_ONLY, 0, &[])
    };
    assert_eq!(bench.feed(empty), Ok(()));
    let read = Packet {
        reth: nowhere,
        ..read_request(1, 0, 0)
    };
    assert_eq!(bench.feed(read), Ok(()));
    let sent = bench.sent();
    assert_eq!(numbers(&sent), [0, 1]);
    assert_eq!(sent[1].bth.opcode, Opcode::RC_READ_RESPONSE_ONLY);
    assert!(sent[1].payload.is_empty());
}

#[test]
fn what_was_accepted_is_answered_before_the_refusal() {
    let mut bench = bench();
    assert_eq!(bench.feed(read_request(0, 0, 2 * MTU)), Ok(()));
    assert_eq!(bench.feed(write(2, 0)), Ok(()));
    assert_eq!(
        bench.feed(write(3, SIZE as u64)),
        Err(Dropped::AccessDenied)
    );
    let sent = bench.sent();
    assert_eq!(numbers(&sent), [0, 1, 2, 3]);
    assert_eq!(only_answer(&sent[3..]), (3, nak(NakCode::RemoteAccess), 2));
}

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
fn send_with_invalidate_takes_the_key_away() {
    let mut bench = bench();
    bench.receives(2, 64);
    bench
        .qp
        .ram
        .regions
        .push(Region::new(0x99, ADDR, pattern(3, 64)));
    let request = packet(Opcode::RC_SEND_ONLY_INV, 0, b"bye");
    assert_eq!(bench.feed(with_invalidate(request, 0x99)), Ok(()));
    assert_eq!(bench.qp.received[0].extra, Extra::Invalidated(Rkey(0x99)));
    assert!(bench.qp.ram.regions.iter().all(|region| region.key != 0x99));
    assert_eq!(only_answer(&bench.sent()), (0, ACK, 1));
    let request = packet(Opcode::RC_SEND_ONLY_INV, 1, b"bye");
    let verdict = bench.feed(with_invalidate(request, 0x99));
    assert_eq!(verdict, Err(Dropped::AccessDenied));
    assert_eq!(bench.qp.received[1].status, Status::LocalAccess);
}

#[test]
fn immediate_data_and_the_wish_for_an_event_reach_the_program() {
    let mut bench = bench();
    bench.receives(2, 64);
    let mut request = with_imm(packet(Opcode::RC_SEND_ONLY_IMM, 0, b""), 0x0102_0304);
    request.bth.solicited = true;
    assert_eq!(bench.feed(request), Ok(()));
    assert_eq!(bench.feed(send(1)), Ok(()));
    let [first, second] = bench.qp.received[..] else {
        panic!("two messages came");
    };
    assert_eq!(
        (first.extra, first.byte_len),
        (Extra::Immediate(0x0102_0304), 0)
    );
    assert!(first.solicited && !second.solicited);
    assert_eq!((second.extra, second.byte_len), (Extra::None, 5));
}

#[test]
fn packets_for_somebody_else_move_nothing() {
    let mut bench = bench();
    let mut other = write(0, 0);
    other.bth.dest_qp = Qpn::from_wire(0x12);
    assert_eq!(bench.feed(other), Err(Dropped::WrongQp));
    let mut other = write(0, 0);
    other.bth.pkey = 0x8001;
    assert_eq!(bench.feed(other), Err(Dropped::WrongPartition));
    let mut other = write(0, 0);
    other.bth.opcode = Opcode::UC_WRITE_ONLY;
    assert_eq!(bench.feed(other), Err(Dropped::WrongTransport));
    assert!(bench.sent().is_empty() && bench.qp.events.is_empty());
    assert_eq!(bench.engine.stats().dropped_total(), 3);
    assert_eq!(bench.feed(write(0, 0)), Ok(()));
}

#[test]
fn the_first_request_establishes_communication_once() {
    let mut bench = bench();
    assert_eq!(bench.feed(write(0, 0)), Ok(()));
    assert_eq!(bench.feed(write(1, 0)), Ok(()));
    assert_eq!(bench.qp.events, [QpEvent::CommunicationEstablished]);
}

#[test]
fn marked_packets_bring_a_notification_every_50_us() {
    let mut bench = bench();
    assert_eq!(bench.feed_marked(write(0, 0), true), Ok(()));
    assert_eq!(bench.feed_marked(write(1, 0), true), Ok(()));
    let sent = bench.sent();
    assert_eq!(sent.len(), 2);
    let cnp = sent[0].bth;
    let expected = Bth {
        opcode: Opcode::CNP,
        becn: true,
        mig_req: true,
        pkey: 0xffff,
        dest_qp: common::bench::PEER,
        ..Bth::default()
    };
    assert_eq!(cnp, expected);
    assert_eq!(bench.feed_marked(write(2, 0), true), Ok(()));
    assert_eq!(bench.sent().len(), 1);
    bench.now = bench.now + 50_000;
    assert_eq!(bench.feed_marked(write(3, 0), true), Ok(()));
    assert_eq!(bench.sent()[0].bth.opcode, Opcode::CNP);
    assert_eq!(bench.engine.stats().cnps_sent, 2);
    assert_eq!(bench.engine.stats().marked, 4);
}

#[test]
fn a_read_of_two_gib_is_half_the_circle_of_psns() {
    let mut bench = bench();
    let region = Region::new(0x55, 0x1000, vec![0; 1 << 31]);
    bench.qp.ram.regions.push(region);
    let huge = Packet {
        reth: Some(Reth {
            va: 0x1000,
            rkey: Rkey(0x55),
            length: 1 << 31,
        }),
        ..read_request(0, 0, 0)
    };
    assert_eq!(bench.feed(huge), Ok(()));
    bench.port.room = 3;
    assert_eq!(numbers(&bench.sent()), [0, 1, 2]);
    assert_eq!(bench.feed(write((1 << 23) + 1, 0)), Err(Dropped::PsnGap));
    assert_eq!(bench.feed(write(1 << 23, 0)), Ok(()));
    let mut longer = huge;
    longer.bth.psn = longer.bth.psn.advance((1 << 23) + 1);
    longer.reth.as_mut().expect("it is a READ").length += 1;
    assert_eq!(bench.feed(longer), Err(Dropped::Refused));
}
