//! End-to-end credits: what the peer grants, and what a message without one does.

use super::*;
use trunkline_wire::Aeth;

/// A bench whose peer's credits count.
fn counting() -> Bench {
    Bench::new(Config {
        flow_control: true,
        ..config()
    })
}

/// An acknowledgement of a peer that has done `msn` messages and grants `credits`.
fn granting(number: u32, credits: u8, msn: u32) -> Packet<'static> {
    let syndrome = Syndrome::Ack { credits };
    Packet {
        aeth: Some(Aeth { syndrome, msn }),
        ..ack(number)
    }
}

#[test]
fn without_a_credit_one_message_leaves_and_the_next_waits_for_its_answer() {
    let mut bench = counting();
    for wr_id in 0..10 {
        bench.post(wr_id, SendOp::Send, 2 * MTU);
    }
    assert_eq!(numbers(&bench.sent()), [0, 1], "a whole message");
    assert_eq!(bench.feed(granting(1, 0, 1)), Ok(()));
    assert_eq!(numbers(&bench.sent()), [2, 3]);
    assert_eq!(bench.feed(granting(3, 2, 2)), Ok(()));
    assert_eq!(numbers(&bench.sent()), [4, 5, 6, 7, 8, 9]);
    assert_eq!(bench.engine.stats().rnr_naks_received, 0);
}

#[test]
fn only_what_takes_a_receive_waits_for_a_credit() {
    let ops = [
        (SendOp::Write(remote(0)), false),
        (read(0), false),
        (SendOp::Atomic(remote(0), FETCH_ADD), false),
        (SendOp::Send, true),
        (SendOp::SendImm(1), true),
        (SendOp::SendInvalidate(Rkey(1)), true),
        (SendOp::WriteImm(remote(0), 1), true),
    ];
    for (op, waits) in ops {
        let mut bench = counting();
        bench.post(0, SendOp::Send, 4);
        bench.post(1, op, 8);
        assert_eq!(bench.sent().len(), if waits { 1 } else { 2 }, "{op:?}");
    }
}

#[test]
fn what_waits_for_a_credit_is_not_overtaken() {
    let mut bench = counting();
    bench.post(0, SendOp::Send, 4);
    bench.post(1, SendOp::Send, 4);
    bench.post(2, SendOp::Write(remote(0)), 4);
    assert_eq!(numbers(&bench.sent()), [0]);
    assert_eq!(bench.feed(granting(0, 0, 1)), Ok(()));
    assert_eq!(numbers(&bench.sent()), [1, 2]);
}

#[test]
fn pieces_of_reads_count_as_the_messages_that_they_are_to_the_peer() {
    let mut bench = Bench::new(Config {
        flow_control: true,
        window: 8,
        ..config()
    });
    bench.post(0, read(0), 4 * MTU);
    for wr_id in 1..6 {
        bench.post(wr_id, SendOp::Send, 4);
    }
    // Two pieces, and one message without a credit.
    assert_eq!(numbers(&bench.sent()), [0, 2, 4]);
    for (number, opcode) in (0..).zip([
        Opcode::RC_READ_RESPONSE_FIRST,
        Opcode::RC_READ_RESPONSE_LAST,
        Opcode::RC_READ_RESPONSE_FIRST,
        Opcode::RC_READ_RESPONSE_LAST,
    ]) {
        let mut data = read_response(opcode, number, &[0; MTU]);
        let (syndrome, msn) = (Syndrome::Ack { credits: 2 }, 1 + number / 2);
        data.aeth = data.aeth.map(|_| Aeth { syndrome, msn });
        assert_eq!(bench.feed(data), Ok(()));
    }
    // Two receives behind the two pieces: one of them is the first SEND's. One more may ask.
    assert_eq!(numbers(&bench.sent()), [5, 6]);
}

#[test]
fn a_peer_without_credits_says_so_once() {
    let mut bench = counting();
    for wr_id in 0..10 {
        bench.post(wr_id, SendOp::Send, 4);
    }
    assert_eq!(numbers(&bench.sent()), [0]);
    assert_eq!(bench.feed(ack(0)), Ok(()));
    assert_eq!(bench.sent().len(), 9);
}

#[test]
fn credits_come_with_acknowledgements_that_come_again() {
    let mut bench = counting();
    for wr_id in 0..4 {
        bench.post(wr_id, SendOp::Send, 4);
    }
    bench.sent();
    assert_eq!(bench.feed(granting(0, 0, 1)), Ok(()));
    assert_eq!(numbers(&bench.sent()), [1]);
    let again = bench.feed(granting(0, 3, 1));
    assert_eq!(again, Err(Dropped::StaleResponse));
    assert_eq!(numbers(&bench.sent()), [2, 3]);
}

#[test]
fn a_peer_that_counts_wrongly_stops_nobody() {
    let mut bench = counting();
    for wr_id in 0..3 {
        bench.post(wr_id, SendOp::Write(remote(0)), 4);
    }
    for wr_id in 3..6 {
        bench.post(wr_id, SendOp::Send, 4);
    }
    assert_eq!(bench.sent().len(), 4);
    for number in 3..6 {
        assert_eq!(bench.feed(granting(number, 0, 0)), Ok(()));
        assert_eq!(bench.sent().len(), usize::from(number < 5));
    }
    assert_eq!(bench.ends().len(), 6);
}

#[test]
fn what_is_sent_again_needs_no_new_credit() {
    let mut bench = counting();
    bench.post(0, SendOp::Send, 4);
    bench.post(1, SendOp::Send, 4);
    assert_eq!(numbers(&bench.sent()), [0]);
    assert!(bench.next_timer());
    assert_eq!(numbers(&bench.sent()), [0]);
    assert_eq!(bench.feed(granting(0, 1, 1)), Ok(()));
    assert_eq!(numbers(&bench.sent()), [1]);
}
