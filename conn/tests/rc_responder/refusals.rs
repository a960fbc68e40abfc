//! What the responder refuses, and with which code.

use super::*;

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
fn a_request_that_needs_a_receive_where_there_will_be_none_ends_the_qp() {
    let write = with_reth(packet(Opcode::RC_WRITE_ONLY_IMM, 1, b"word"), 0, 4);
    for request in [send(1), with_imm(write, 7)] {
        let mut bench = bench();
        bench.receives(1, 64);
        bench.qp.receives_in_error = true;
        assert_eq!(bench.feed(without_ack_req(send(0))), Ok(()));
        let before = bench.qp.ram.bytes(KEY, ADDR, SIZE);
        assert_eq!(bench.feed(request), Err(Dropped::ReceivesInError));
        let told = nak(NakCode::RemoteOperational);
        assert_eq!(only_answer(&bench.sent()), (1, told, 1));
        let events = [QpEvent::CommunicationEstablished, QpEvent::Fatal];
        assert_eq!(bench.qp.events, events);
        assert_eq!(bench.engine.state(), State::Error);
        assert_eq!(bench.qp.received.len(), 1, "the one before it");
        assert!(bench.qp.ram.bytes(KEY, ADDR, SIZE) == before);
        assert_eq!(bench.feed(request), Err(Dropped::QpInError));
    }
}
