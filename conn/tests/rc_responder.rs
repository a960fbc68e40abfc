//! The RC responder, rule by rule. PSNs are counted from the first one, which lies two before the
//! end of the circle.

mod common;
#[path = "rc_responder/refusals.rs"]
mod refusals;
#[path = "rc_responder/repeats.rs"]
mod repeats;

use common::bench::{
    ADDR, Bench, KEY, MTU, PRIVATE, SIZE, config, fetch_add, numbers, only_answer, packet,
    read_request, with_imm, with_invalidate, with_reth,
};
use common::{Region, pattern};
use trunkline_conn::host::QpEvent;
use trunkline_conn::mem::{Access, Order};
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
    let orders = bench.qp.ram.orders.borrow();
    assert_eq!(orders[..], [Order::Any, Order::LastByteLast]);
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

/// Credits of the acknowledgement that a SEND gets.
fn credits(bench: &mut Bench, number: u32) -> u8 {
    let send = packet(Opcode::RC_SEND_ONLY, number, b"text");
    assert_eq!(bench.feed(send), Ok(()));
    match only_answer(&bench.sent()) {
        (_, Syndrome::Ack { credits }, _) => credits,
        other => panic!("{other:?}"),
    }
}

#[test]
fn acknowledgements_grant_credits_for_the_receives_that_are_left() {
    let mut bench = bench();
    bench.receives(10, 64);
    assert_eq!(
        credits(&mut bench, 0),
        31,
        "not where nobody counts receives"
    );
    bench.qp.counts_receives = true;
    // 8, 7, 6, 5, 4, ... receives are left.
    let granted: Vec<u8> = (1..10).map(|number| credits(&mut bench, number)).collect();
    assert_eq!(granted, [6, 5, 5, 4, 4, 3, 2, 1, 0]);
    bench.receives(40_000, 64);
    assert_eq!(credits(&mut bench, 10), 30);
}

#[test]
fn the_receive_of_a_message_that_is_coming_is_granted_with_the_others() {
    let mut bench = bench();
    bench.qp.counts_receives = true;
    bench.receives(3, 1024);
    let mut first = packet(Opcode::RC_SEND_FIRST, 0, &[1; MTU]);
    first.bth.ack_req = true;
    assert_eq!(bench.feed(first), Ok(()));
    // No message is done, so the limit of the peer is the third.
    let (_, syndrome, msn) = only_answer(&bench.sent());
    assert_eq!((syndrome, msn), (Syndrome::Ack { credits: 3 }, 0));
}
