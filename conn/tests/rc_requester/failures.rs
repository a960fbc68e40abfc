//! What goes wrong: silence, complaints, refusals, receivers that are not ready.

use super::*;

#[test]
fn silence_is_retried_as_often_as_agreed_and_then_fails_the_oldest_request() {
    let mut bench = Bench::new(Config {
        retry_cnt: 4,
        ..config()
    });
    bench.post(0, SendOp::Send, MTU + 1);
    bench.post(1, read(0), 4);
    let timeout = ack_timeout_ns(10).expect("it is on");
    let mut start = bench.now;
    assert_eq!(numbers(&bench.sent()), [0, 1, 2]);
    for times in [1, 2, 4, 4] {
        let timeout = times * timeout;
        assert_eq!(bench.engine.poll_timeout(), Some(start + timeout));
        bench.now = start + (timeout - 1);
        bench.engine.handle_timeout(bench.now, &mut bench.qp);
        assert!(bench.sent().is_empty(), "too early");
        bench.now = start + timeout;
        bench.engine.handle_timeout(bench.now, &mut bench.qp);
        bench.engine.handle_timeout(bench.now, &mut bench.qp);
        assert_eq!(numbers(&bench.sent()), [0], "until something comes");
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
    assert_eq!(bench.engine.stats().timeouts, 5);
    assert_eq!(bench.engine.stats().retransmitted, 4);
}

#[test]
fn what_waits_when_the_link_is_up_again_goes_at_once_and_no_retry_counts() {
    let mut bench = Bench::new(Config {
        retry_cnt: 2,
        timeout: 18,
        ..config()
    });
    bench.engine.link_up(bench.now);
    assert_eq!(bench.engine.poll_timeout(), None, "nothing waits");
    bench.post(0, SendOp::Send, 4);
    assert_eq!(numbers(&bench.sent()), [0]);
    // It goes down and up more often than a peer may be silent.
    for _ in 0..10 {
        assert!(bench.next_timer());
        assert_eq!(numbers(&bench.sent()), [0]);
        bench.now = bench.now + 50_000_000;
        bench.engine.link_up(bench.now);
        assert_eq!(bench.engine.poll_timeout(), Some(bench.now));
        bench.engine.handle_timeout(bench.now, &mut bench.qp);
        assert_eq!(numbers(&bench.sent()), [0]);
    }
    assert_eq!(bench.feed(ack(0)), Ok(()));
    assert_eq!(bench.ends(), [(0, Status::Success)]);
}

/// One that serves other QPs first, and does again what it is asked for again.
#[test]
fn a_slow_peer_is_waited_for_and_asked_again_for_no_more_than_one_message_meanwhile() {
    let mut bench = bench();
    for wr_id in 0..4 {
        bench.post(wr_id, read(0), 4);
    }
    let timeout = ack_timeout_ns(10).expect("it is on");
    let end = bench.now + 20 * timeout;
    assert_eq!(numbers(&bench.sent()), [0, 1, 2, 3]);
    while bench.now < end {
        assert!(bench.next_timer());
        assert_eq!(numbers(&bench.sent()), [0]);
    }
    assert!(bench.engine.stats().retransmitted <= 7);
    assert_eq!(bench.feed(only(0, b"data")), Ok(()));
    assert_eq!(numbers(&bench.sent()), [1, 2], "these may be lost");
    for number in 1..4 {
        assert_eq!(bench.feed(only(number, b"data")), Ok(()));
    }
    assert_eq!(bench.ends(), [0, 1, 2, 3].map(|id| (id, Status::Success)));
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
        bench.sent();
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
fn who_was_slow_once_has_the_timeout_that_was_agreed_again_once_it_answers() {
    let mut bench = bench();
    bench.post(0, SendOp::Send, 2 * MTU);
    let timeout = ack_timeout_ns(10).expect("it is on");
    bench.sent();
    for _ in 0..2 {
        assert!(bench.next_timer());
        bench.sent();
    }
    assert_eq!(bench.feed(ack(0)), Ok(()));
    bench.sent();
    assert_eq!(bench.engine.poll_timeout(), Some(bench.now + timeout));
}

#[test]
fn who_complains_after_silence_gets_all_again_as_it_takes_it() {
    let mut bench = bench();
    for wr_id in 0..4 {
        bench.post(wr_id, SendOp::Send, 4);
    }
    assert_eq!(numbers(&bench.sent()), [0, 1, 2, 3]);
    assert!(bench.next_timer());
    assert_eq!(numbers(&bench.sent()), [0]);
    assert_eq!(bench.feed(nak(0, NakCode::PsnSequence)), Ok(()));
    assert_eq!(numbers(&bench.sent()), [0]);
    assert_eq!(bench.feed(ack(0)), Ok(()));
    assert_eq!(numbers(&bench.sent()), [1, 2]);
}
