//! Queues: their limits, their completions, inline data, gathering and scattering, fences, SRQs.

use super::common::{Pair, pattern};
use super::{TARGET, ended, verbs_error};
use std::time::Duration;
use trunkline::{
    Access, Attributes, Changes, Error, Event, LAST_WQE, PostError, QpEvent, QpModify, QpOptions,
    QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, Status, VerbsError, WorkOpcode,
};

#[test]
fn inline_data_is_taken_when_it_is_posted() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    for (at, length) in [0usize, 1, 32, 33, 255, 256].into_iter().enumerate() {
        pair.b.receive(&qb, at as u64, TARGET + at * 256, 256);
        let mut data = pattern(at as u64, length);
        let send = SendWr::send().wr_id(at as u64).inline(&data).signaled();
        qa.post_send(&[send]).unwrap();
        data.fill(0xee);
    }
    for (at, length) in [0usize, 1, 32, 33, 255, 256].into_iter().enumerate() {
        let received = pair.next(&pair.b.recv_cq);
        assert_eq!(
            (received.wr_id, received.byte_len as usize),
            (at as u64, length)
        );
        assert_eq!(
            pair.b.bytes(TARGET + at * 256, length),
            pattern(at as u64, length)
        );
        assert_eq!(pair.next(&pair.a.send_cq).wr_id, at as u64);
    }
    let long = [0; 257];
    let request = SendWr::send().wr_id(1).inline(&long);
    let error = verbs_error(qa.post_send(&[request]).unwrap_err());
    assert_eq!(
        error,
        VerbsError::InlineTooLong {
            length: 257,
            max: 256
        }
    );
}

#[test]
fn sixteen_elements_are_gathered_and_scattered_in_order() {
    let pair = Pair::new();
    let options = QpOptions {
        max_send_sge: 16,
        max_recv_sge: 16,
        ..QpOptions::default()
    };
    let (qa, qb) = pair.qps_with(&options, &Attributes::default());
    // Elements of 1, 1002, 2003, ... bytes, apart from each other and out of order in memory.
    let length = |at: usize| 1 + 1001 * at;
    let total: usize = (0..16).map(length).sum();
    let data = pattern(3, total);
    let (mut from, mut to, mut done) = (Vec::new(), Vec::new(), 0);
    for at in 0..16 {
        let place = (15 - at) * 65_536 + 7;
        pair.a
            .mr
            .write(place, &data[done..done + length(at)])
            .unwrap();
        from.push(pair.a.mr.sge(place, length(at)));
        // Other cuts at the receiver.
        to.push(pair.b.mr.sge(TARGET + place, length(15 - at)));
        done += length(at);
    }
    qb.post_recv(&[RecvWr::new().wr_id(1).sges(&to)]).unwrap();
    let request = SendWr::send().wr_id(2).sges(&from).signaled();
    qa.post_send(&[request]).unwrap();
    assert_eq!(pair.next(&pair.b.recv_cq).byte_len as usize, total);
    assert_eq!(
        ended(&pair.next(&pair.a.send_cq)),
        (2, Status::Success, WorkOpcode::Send)
    );
    let mut found = Vec::new();
    for at in 0..16 {
        found.extend(
            pair.b
                .bytes(TARGET + (15 - at) * 65_536 + 7, length(15 - at)),
        );
    }
    assert!(found == data);
    let many = [from[0]; 17];
    let request = request.sges(&many);
    let error = verbs_error(qa.post_send(&[request]).unwrap_err());
    assert_eq!(error, VerbsError::TooManySge { count: 17, max: 16 });
}

#[test]
fn a_fenced_request_sees_what_earlier_reads_brought() {
    let pair = Pair::new();
    let (qa, _qb) = pair.qps();
    let length = 1 << 20;
    let data = pattern(11, length);
    pair.b.mr.write(0, &data).unwrap();
    let copy = pair.b.mr.remote(TARGET);
    pair.a
        .post(&qa, 1, SendOp::Read(pair.b.mr.remote(0)), 0, length);
    let flags = SendFlags::SIGNALED | SendFlags::FENCE;
    pair.a
        .try_post(&qa, 2, SendOp::Write(copy), flags, 0, length)
        .unwrap();
    assert_eq!(pair.next(&pair.a.send_cq).wr_id, 1);
    assert_eq!(
        ended(&pair.next(&pair.a.send_cq)),
        (2, Status::Success, WorkOpcode::Write)
    );
    assert!(
        pair.b.bytes(TARGET, length) == data,
        "the WRITE carried what the READ brought"
    );
}

#[test]
fn only_signalled_requests_complete_unless_all_shall() {
    let pair = Pair::new();
    for signal_all in [false, true] {
        let options = QpOptions {
            signal_all,
            ..QpOptions::default()
        };
        let (qa, _qb) = pair.qps_with(&options, &Attributes::default());
        // More than the queue holds, so that unsignalled ones must give their places back.
        for wr_id in 0..200 {
            let signalled = wr_id % 10 == 9;
            let flags = if signalled {
                SendFlags::SIGNALED
            } else {
                SendFlags::default()
            };
            let write = SendOp::Write(pair.b.mr.remote(TARGET));
            pair.until("room", || {
                pair.a.try_post(&qa, wr_id, write, flags, 0, 64).is_ok()
            });
        }
        let expected: Vec<u64> = (0..200).filter(|at| signal_all || at % 10 == 9).collect();
        let found: Vec<u64> = expected
            .iter()
            .map(|_| pair.next(&pair.a.send_cq).wr_id)
            .collect();
        assert_eq!(found, expected);
        pair.run_for(Duration::from_millis(2));
        assert!(pair.a.send_cq.poll_one().unwrap().is_none());
    }
}

#[test]
fn a_failed_request_completes_even_when_unsignalled() {
    let pair = Pair::new();
    let (qa, _qb) = pair.qps();
    let nowhere = SendOp::Write(trunkline::Remote::default());
    pair.a
        .try_post(&qa, 7, nowhere, SendFlags::default(), 0, 8)
        .unwrap();
    let done = pair.next(&pair.a.send_cq);
    assert_eq!((done.wr_id, done.status), (7, Status::RemoteAccess));
}

/// How many requests of a list were posted, and what is wrong with the next.
fn refused(posted: Result<(), Error>) -> (usize, VerbsError) {
    match posted {
        Err(Error::Post(PostError { posted, error })) => (posted, error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_list_with_a_bad_request_is_posted_up_to_it_and_the_bad_one_is_named() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    let (good, bad) = ([pair.a.mr.sge(0, 64)], [pair.a.mr.sge(0, 64); 5]);
    let write = |wr_id: u64| {
        let sges = if wr_id == 2 { &bad[..] } else { &good };
        SendWr::write(pair.b.mr.remote(TARGET))
            .wr_id(wr_id)
            .sges(sges)
            .signaled()
    };
    let list: Vec<_> = (0..4).map(write).collect();
    let many = VerbsError::TooManySge { count: 5, max: 4 };
    assert_eq!(refused(qa.post_send(&list)), (2, many));
    for wr_id in 0..2 {
        let done = pair.next(&pair.a.send_cq);
        assert_eq!((done.wr_id, done.status), (wr_id, Status::Success));
    }

    let sges = [pair.b.mr.sge(0, 64); 5];
    let receive = |wr_id: u64| {
        let sges = if wr_id == 2 { &sges } else { &sges[..1] };
        RecvWr::new().wr_id(wr_id).sges(sges)
    };
    let list: Vec<_> = (0..4).map(receive).collect();
    assert_eq!(refused(qb.post_recv(&list)), (2, many));
    let srq = pair.b.pd.create_srq(8, 4).unwrap();
    assert_eq!(refused(srq.post_recv(&list)), (2, many));
    qb.modify(&QpModify::Error).unwrap();
    for wr_id in 0..2 {
        let done = pair.next(&pair.b.recv_cq);
        assert_eq!((done.wr_id, done.status), (wr_id, Status::Flushed));
    }
    assert_eq!(pair.b.recv_cq.poll_one().unwrap(), None, "two were posted");
}

#[test]
fn a_queue_takes_a_list_as_far_as_it_has_room_and_says_how_much_it_holds() {
    let pair = Pair::new();
    let options = QpOptions {
        max_send_wr: 4,
        max_recv_wr: 5,
        ..QpOptions::default()
    };
    let (qa, qb) = pair.qps_with(&options, &Attributes::default());
    let sges = [pair.a.mr.sge(0, 64)];
    // They wait for receives, also where a service works while the program is held up.
    let send = |wr_id| SendWr::send().wr_id(wr_id).sges(&sges).signaled();
    let five: Vec<_> = (0..5).map(send).collect();
    let full = VerbsError::QueueFull { capacity: 4 };
    assert_eq!(refused(qa.post_send(&five)), (4, full));
    let error = verbs_error(qa.post_send(&five[4..]).unwrap_err());
    assert_eq!(error, VerbsError::QueueFull { capacity: 4 });
    let receive_five = || (0..5).for_each(|wr_id| pair.b.receive(&qb, wr_id, TARGET, 64));
    receive_five();
    for wr_id in 0..4 {
        assert_eq!(pair.next(&pair.a.send_cq).wr_id, wr_id);
    }
    qa.post_send(&five[4..]).unwrap();
    assert_eq!(pair.next(&pair.a.send_cq).wr_id, 4);

    for wr_id in 0..5 {
        assert_eq!(pair.next(&pair.b.recv_cq).wr_id, wr_id);
    }
    receive_five();
    let sges = [pair.b.mr.sge(0, 64)];
    let error = verbs_error(
        qb.post_recv(&[RecvWr::new().wr_id(5).sges(&sges)])
            .unwrap_err(),
    );
    assert_eq!(error, VerbsError::QueueFull { capacity: 5 });
}

#[test]
fn qps_take_turns_at_a_shared_receive_queue() {
    let pair = Pair::new();
    let srq = pair.b.pd.create_srq(64, 1).unwrap();
    let shared = QpOptions {
        srq: Some(srq.clone()),
        complete_last_wqe: true,
        ..QpOptions::default()
    };
    let qps: Vec<_> = (0..4)
        .map(|_| {
            let (qa, qb) = (pair.a.qp(&QpOptions::default()), pair.b.qp(&shared));
            qa.connect(qb.address()).unwrap();
            qb.connect(qa.address()).unwrap();
            (qa, qb)
        })
        .collect();
    let error = qps[0].1.post_recv(&[]).unwrap_err();
    assert!(matches!(verbs_error(error), VerbsError::HasSrq { .. }));
    // One receive too few: the last message waits for it.
    for wr_id in 0..7 {
        let sges = [pair.b.mr.sge(TARGET + 64 * wr_id as usize, 64)];
        srq.post_recv(&[RecvWr::new().wr_id(wr_id).sges(&sges)])
            .unwrap();
    }
    for round in 0..2 {
        for (at, (qa, _)) in qps.iter().enumerate() {
            let data = [at as u8; 64];
            pair.a.mr.write(64 * at, &data).unwrap();
            pair.a
                .post(qa, round * 4 + at as u64, SendOp::Send, 64 * at, 64);
        }
    }
    let (mut counts, mut taken) = ([0; 4], Vec::new());
    for got in 0..8 {
        if got == 7 {
            let sges = [pair.b.mr.sge(TARGET + 64 * 7, 64)];
            srq.post_recv(&[RecvWr::new().wr_id(7).sges(&sges)])
                .unwrap();
        }
        let received = pair.next(&pair.b.recv_cq);
        assert_eq!(received.status, Status::Success);
        taken.push(received.wr_id);
        let sender = pair.b.bytes(TARGET + 64 * received.wr_id as usize, 1)[0];
        assert_eq!(received.qpn, qps[usize::from(sender)].1.qpn());
        counts[usize::from(sender)] += 1;
    }
    assert_eq!(counts, [2; 4]);
    // Which one a message takes is open: here that which was posted last.
    assert_eq!(taken, [6, 5, 4, 3, 2, 1, 0, 7]);
    qps[0].1.modify(&QpModify::Error).unwrap();
    let (qpn, event) = (qps[0].1.qpn(), QpEvent::LastWqeReached);
    pair.until("the event", || {
        pair.b.node.poll_event() == Some(Event::Qp { qpn, event })
    });
    let last = pair.next(&pair.b.recv_cq);
    assert_eq!((last.wr_id, last.qpn), (LAST_WQE, qpn));
    assert_eq!(last.status, Status::Flushed);
}

#[test]
fn a_draining_qp_finishes_says_so_and_goes_on_later() {
    let pair = Pair::new();
    let (qa, _qb) = pair.qps();
    let write = SendOp::Write(pair.b.mr.remote(TARGET));
    pair.a.post(&qa, 1, write, 0, 1 << 20);
    // Over a loop of 64 KiB it takes 17 of them.
    pair.until("the first packets", || pair.a.carrier.counters().sent > 5);
    qa.modify(&QpModify::Drain).unwrap();
    pair.a.post(&qa, 2, write, 0, 64);
    assert_eq!(
        ended(&pair.next(&pair.a.send_cq)),
        (1, Status::Success, WorkOpcode::Write)
    );
    let drained = Event::Qp {
        qpn: qa.qpn(),
        event: QpEvent::SendQueueDrained,
    };
    pair.until("the event", || pair.a.node.poll_event() == Some(drained));
    pair.run_for(Duration::from_millis(5));
    assert!(
        pair.a.send_cq.poll_one().unwrap().is_none(),
        "nothing new is begun while it drains"
    );
    qa.modify(&QpModify::Resume(Changes::default())).unwrap();
    assert_eq!(
        ended(&pair.next(&pair.a.send_cq)),
        (2, Status::Success, WorkOpcode::Write)
    );
}

#[test]
fn sizes_out_of_range_are_refused_when_a_queue_is_made() {
    let pair = Pair::new();
    assert!(pair.a.node.create_cq(0).is_err());
    for options in [
        QpOptions {
            max_send_sge: 17,
            ..QpOptions::default()
        },
        QpOptions {
            max_inline: 257,
            ..QpOptions::default()
        },
        QpOptions {
            max_send_wr: u32::MAX,
            ..QpOptions::default()
        },
    ] {
        let made = pair
            .a
            .pd
            .create_qp(&pair.a.send_cq, &pair.a.recv_cq, &options);
        assert!(made.is_err(), "{options:?}");
    }
    let rights = Access::REMOTE_WRITE;
    assert!(
        pair.a.pd.register(64, rights).is_err(),
        "remote write needs local write"
    );
}

#[test]
fn an_unreliable_connection_carries_sends_and_writes() {
    let pair = Pair::new();
    let options = QpOptions {
        kind: QpType::Uc,
        ..QpOptions::default()
    };
    let (qa, qb) = pair.qps_with(&options, &Attributes::default());
    let data = pattern(4, 5000);
    pair.a.mr.write(0, &data).unwrap();
    pair.b.receive(&qb, 1, TARGET, 5000);
    pair.a.post(&qa, 2, SendOp::Send, 0, 5000);
    assert_eq!(
        ended(&pair.next(&pair.b.recv_cq)),
        (1, Status::Success, WorkOpcode::Receive)
    );
    assert!(pair.b.bytes(TARGET, 5000) == data);
    assert_eq!(
        ended(&pair.next(&pair.a.send_cq)),
        (2, Status::Success, WorkOpcode::Send)
    );
    pair.a.post(
        &qa,
        3,
        SendOp::Write(pair.b.mr.remote(TARGET + 8192)),
        0,
        5000,
    );
    assert_eq!(pair.next(&pair.a.send_cq).status, Status::Success);
    pair.until("the WRITE to land", || {
        pair.b.bytes(TARGET + 8192, 5000) == data
    });
    pair.a.post(&qa, 4, SendOp::Read(pair.b.mr.remote(0)), 0, 8);
    let read = pair.next(&pair.a.send_cq);
    assert_eq!(
        (read.wr_id, read.status),
        (4, Status::LocalQpOperation),
        "UC has no READ"
    );
    assert_eq!(qa.state(), QpState::Sqe);
}

#[test]
fn qps_of_one_node_talk_to_each_other() {
    let pair = Pair::new();
    let (one, other) = (
        pair.a.qp(&QpOptions::default()),
        pair.a.qp(&QpOptions::default()),
    );
    one.connect(other.address()).unwrap();
    other.connect(one.address()).unwrap();
    let data = pattern(8, 300_000);
    pair.a.mr.write(0, &data).unwrap();
    pair.a.receive(&other, 1, TARGET, 1 << 20);
    pair.a.post(&one, 2, SendOp::Send, 0, data.len());
    assert_eq!(
        ended(&pair.next(&pair.a.recv_cq)),
        (1, Status::Success, WorkOpcode::Receive)
    );
    assert!(pair.a.bytes(TARGET, data.len()) == data);
    assert_eq!(
        ended(&pair.next(&pair.a.send_cq)),
        (2, Status::Success, WorkOpcode::Send)
    );
}

#[test]
fn nothing_is_held_for_qps_that_are_gone() {
    let pair = Pair::new();
    for round in 0..20 {
        let (qa, qb) = pair.qps();
        let data = pattern(round, 100_000);
        pair.a.mr.write(0, &data).unwrap();
        pair.b.receive(&qb, 1, TARGET, data.len());
        pair.a.post(&qa, 2, SendOp::Send, 0, data.len());
        pair.a
            .post(&qa, 3, SendOp::Read(pair.b.mr.remote(0)), TARGET, 100_000);
        // Dropped at any moment: before, within or after the messages.
        for _ in 0..round * 3 {
            pair.turn();
        }
    }
    let empty = trunkline_qpmap::LiveObjects::default();
    pair.until("node a to be empty", || {
        pair.a.carrier.live_objects() == empty
    });
    pair.until("node b to be empty", || {
        pair.b.carrier.live_objects() == empty
    });
}
