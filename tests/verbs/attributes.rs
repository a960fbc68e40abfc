//! Attributes that change while a QP is in use, and local faults of QPs that are not reliable.

use super::common::{End, Pair, ah_to, pattern};
use super::{TARGET, ended, verbs_error};
use std::time::Duration;
use trunkline::{
    Access, Allowed, Attributes, Changes, Event, Qp, QpEvent, QpModify, QpOptions, QpState, QpType,
    SendFlags, SendOp, Status, VerbsError, WorkOpcode,
};

const QKEY: u32 = 7;

fn of_kind(kind: QpType) -> QpOptions {
    QpOptions {
        kind,
        ..QpOptions::default()
    }
}

fn attributes(qp: &Qp) -> Attributes {
    qp.query().unwrap().1
}

/// What is refused of a change, and where.
fn fixed(qp: &Qp, change: &QpModify) -> (&'static str, QpState) {
    match verbs_error(qp.modify(change).unwrap_err()) {
        VerbsError::FixedAttribute { what, state } => (what, state),
        other => panic!("{other}"),
    }
}

/// Each attribute that changes only where nothing is under way.
fn terms() -> [(&'static str, Changes); 5] {
    let none = Changes::default();
    [
        (
            "timeout",
            Changes {
                timeout: Some(9),
                ..none
            },
        ),
        (
            "retry_cnt",
            Changes {
                retry_count: Some(1),
                ..none
            },
        ),
        (
            "rnr_retry",
            Changes {
                rnr_retry: Some(2),
                ..none
            },
        ),
        (
            "max_rd_atomic",
            Changes {
                max_rd_atomic: Some(3),
                ..none
            },
        ),
        (
            "max_dest_rd_atomic",
            Changes {
                max_dest_rd_atomic: Some(4),
                ..none
            },
        ),
    ]
}

#[test]
fn in_rts_the_rnr_timer_and_rights_change_and_nothing_else_does() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    let before = attributes(&qb);
    for (what, changes) in terms() {
        let refused = fixed(&qb, &QpModify::Change(changes));
        assert_eq!(refused, (what, QpState::Rts));
    }
    let qkey = Changes {
        qkey: Some(1),
        ..Changes::default()
    };
    assert_eq!(fixed(&qb, &QpModify::Change(qkey)), ("qkey", QpState::Rts));
    assert_eq!(attributes(&qb), before);
    let change = Changes {
        min_rnr_timer: Some(3),
        access: Some(Access::LOCAL_READ),
        ..Changes::default()
    };
    qb.modify(&QpModify::Change(change)).unwrap();
    assert_eq!(qb.state(), QpState::Rts);
    let after = Attributes {
        access: change.access,
        min_rnr_timer: 3,
        ..before
    };
    assert_eq!(attributes(&qb), after);
    // The rights count for the next request.
    pair.a
        .post(&qa, 1, SendOp::Write(pair.b.mr.remote(TARGET)), 0, 8);
    let status = pair.next(&pair.a.send_cq).status;
    assert!(
        status != Status::Success,
        "the QP allows no writes any more"
    );
}

#[test]
fn each_step_to_rts_may_change_the_rights_of_the_peer_and_so_may_rts() {
    for kind in [QpType::Rc, QpType::Uc] {
        let pair = Pair::new();
        let (qa, qb) = (pair.a.qp(&of_kind(kind)), pair.b.qp(&of_kind(kind)));
        let none = Access::LOCAL_READ;
        let attributes = |access| Attributes {
            remote: qa.address().gid,
            dest_qpn: qa.qpn(),
            rq_psn: qa.address().psn,
            sq_psn: qb.address().psn,
            access,
            ..Attributes::default()
        };
        let change = |access| {
            QpModify::Change(Changes {
                access: Some(access),
                ..Changes::default()
            })
        };
        let rights = || qb.query().unwrap().1.access;
        qb.modify(&QpModify::Init { access: none }).unwrap();
        qb.modify(&change(Access::REMOTE_READ)).unwrap();
        assert_eq!(rights(), Some(Access::REMOTE_READ));
        qb.modify(&QpModify::Rtr(attributes(Some(none)))).unwrap();
        assert_eq!(rights(), Some(none));
        let step = QpModify::Rts(attributes(Some(Access::REMOTE_WRITE)));
        qb.modify(&step).unwrap();
        assert_eq!(rights(), Some(Access::REMOTE_WRITE));
        qa.connect(qb.address()).unwrap();
        let write = |wr_id| {
            pair.a.mr.write(0, &pattern(wr_id, 64)).unwrap();
            let remote = SendOp::Write(pair.b.mr.remote(TARGET));
            pair.a.post(&qa, wr_id, remote, 0, 64);
            pair.next(&pair.a.send_cq).status
        };
        assert_eq!(write(1), Status::Success);
        pair.until("the bytes", || pair.b.bytes(TARGET, 64) == pattern(1, 64));
        qb.modify(&change(none)).unwrap();
        let refused = write(2) != Status::Success;
        assert_eq!(refused, kind == QpType::Rc, "nobody answers in UC");
        pair.run_for(Duration::from_millis(5));
        assert!(pair.b.bytes(TARGET, 64) == pattern(1, 64), "as they were");
    }
}

#[test]
fn a_value_out_of_range_changes_nothing() {
    let pair = Pair::new();
    let (qa, _qb) = pair.qps();
    let before = attributes(&qa);
    let change = Changes {
        min_rnr_timer: Some(32),
        access: Some(Access::LOCAL_READ),
        ..Changes::default()
    };
    let error = verbs_error(qa.modify(&QpModify::Change(change)).unwrap_err());
    assert_eq!(error, Allowed::Range(0, 31).refuse("min_rnr_timer", 32));
    assert_eq!(attributes(&qa), before);
}

#[test]
fn a_drained_qp_takes_new_terms_and_goes_on_with_them() {
    for kind in [QpType::Rc, QpType::Uc] {
        let pair = Pair::new();
        let (qa, _qb) = pair.qps_with(&of_kind(kind), &Attributes::default());
        qa.modify(&QpModify::Drain).unwrap();
        let drained = Event::Qp {
            qpn: qa.qpn(),
            event: QpEvent::SendQueueDrained,
        };
        pair.until("the event", || pair.a.node.poll_event() == Some(drained));
        for (what, changes) in terms() {
            let refused = fixed(&qa, &QpModify::Resume(changes));
            assert_eq!(refused, (what, QpState::Sqd));
            let taken = qa.modify(&QpModify::Change(changes)).is_ok();
            assert_eq!(taken, kind == QpType::Rc, "{what} of {kind}");
        }
        if kind == QpType::Rc {
            let now = attributes(&qa);
            assert_eq!(
                (now.timeout, now.retry_count, now.rnr_retry),
                (9, 1, 2),
                "{now:?}"
            );
            assert_eq!((now.max_rd_atomic, now.max_dest_rd_atomic), (3, 4));
        }
        // On the way back to RTS the RNR timer of RC may change, which UC has none of.
        let last = Changes {
            min_rnr_timer: (kind == QpType::Rc).then_some(5),
            ..Changes::default()
        };
        qa.modify(&QpModify::Resume(last)).unwrap();
        if let Some(timer) = last.min_rnr_timer {
            assert_eq!(attributes(&qa).min_rnr_timer, timer);
        }
        pair.a
            .post(&qa, 1, SendOp::Write(pair.b.mr.remote(TARGET)), 0, 8);
        let done = pair.next(&pair.a.send_cq);
        assert_eq!(done.status, Status::Success, "{kind}");
    }
}

#[test]
fn terms_wait_until_the_send_queue_is_drained() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    // Nobody is ready for it.
    pair.a.post(&qa, 1, SendOp::Send, 0, 64);
    pair.until("the pause", || pair.a.carrier.counters().rnr_received > 0);
    qa.modify(&QpModify::Drain).unwrap();
    let change = QpModify::Change(terms()[0].1);
    let error = verbs_error(qa.modify(&change).unwrap_err());
    assert!(matches!(error, VerbsError::Busy { .. }), "{error}");
    pair.b.receive(&qb, 1, TARGET, 64);
    assert_eq!(pair.next(&pair.a.send_cq).status, Status::Success);
    qa.modify(&change).unwrap();
}

#[test]
fn a_step_to_rts_with_all_attributes_is_for_rtr_alone() {
    let pair = Pair::new();
    let (qa, _qb) = pair.qps();
    let all = attributes(&qa);
    let again = qa.modify(&QpModify::Rts(all)).unwrap_err();
    assert!(matches!(
        verbs_error(again),
        VerbsError::BadTransition { .. }
    ));
    let error = qa.modify(&QpModify::Resume(Changes::default()));
    assert!(error.is_err(), "it goes on anyway");
}

fn datagrams(end: &End, mtu: u16) -> Qp {
    let qp = end.qp(&of_kind(QpType::Ud));
    let attributes = Attributes {
        qkey: QKEY,
        path_mtu: mtu,
        ..Attributes::default()
    };
    let access = Access::LOCAL_READ;
    qp.modify(&QpModify::Init { access }).unwrap();
    qp.modify(&QpModify::Rtr(attributes)).unwrap();
    qp.modify(&QpModify::Rts(attributes)).unwrap();
    qp
}

/// Posts a good request, one with `fault`, and another good one; then the QP is in SQE, receives,
/// and sends again once it is told to.
fn is_cured(pair: &Pair, qps: (&Qp, &Qp), ops: (SendOp, SendOp), fault: (SendOp, usize, Status)) {
    let ((qa, qb), (op, back)) = (qps, ops);
    let (bad, length, status) = fault;
    let data = pattern(9, 64);
    pair.a.mr.write(0, &data).unwrap();
    pair.b.receive(qb, 70, TARGET, 1024);
    pair.b.receive(qb, 71, TARGET, 1024);
    pair.a.receive(qa, 80, TARGET, 1024);
    pair.a.post(qa, 1, op, 0, 64);
    // Beyond the end of the region, unless the fault is another one.
    let offset = pair.a.mr.len() - 8;
    let at = if status == Status::LocalProtection {
        offset
    } else {
        0
    };
    pair.a.post(qa, 2, bad, at, length);
    pair.a
        .try_post(qa, 3, op, SendFlags::default(), 0, 64)
        .unwrap();
    let ends = [(1, Status::Success), (2, status), (3, Status::Flushed)];
    for end in ends {
        let done = pair.next(&pair.a.send_cq);
        assert_eq!((done.wr_id, done.status), end, "{bad:?}");
    }
    assert_eq!(qa.state(), QpState::Sqe, "{bad:?}");
    // What is posted now is flushed.
    pair.a.post(qa, 4, op, 0, 64);
    let done = pair.next(&pair.a.send_cq);
    assert_eq!((done.wr_id, done.status), (4, Status::Flushed));
    assert_eq!(pair.next(&pair.b.recv_cq).wr_id, 70);
    pair.b.post(qb, 5, back, 0, 64);
    let received = pair.next(&pair.a.recv_cq);
    assert_eq!(ended(&received), (80, Status::Success, WorkOpcode::Receive));
    qa.modify(&QpModify::Resume(Changes::default())).unwrap();
    pair.a.post(qa, 6, op, 0, 64);
    let done = pair.next(&pair.a.send_cq);
    assert_eq!((done.wr_id, done.status), (6, Status::Success));
    let received = pair.next(&pair.b.recv_cq);
    assert_eq!((received.wr_id, received.status), (71, Status::Success));
}

#[test]
fn a_local_fault_of_an_unreliable_connection_ends_sending_until_the_program_resumes() {
    let pair = Pair::new();
    let options = of_kind(QpType::Uc);
    let remote = pair.b.mr.remote(TARGET);
    for fault in [
        (SendOp::Send, 64, Status::LocalProtection),
        (SendOp::Read(remote), 64, Status::LocalQpOperation),
        (
            SendOp::SendInvalidate(pair.b.mr.rkey()),
            64,
            Status::LocalQpOperation,
        ),
    ] {
        let (qa, qb) = pair.qps_with(&options, &Attributes::default());
        is_cured(&pair, (&qa, &qb), (SendOp::Send, SendOp::Send), fault);
    }
}

#[test]
fn a_local_fault_of_datagrams_ends_sending_until_the_program_resumes() {
    let pair = Pair::new();
    let other = pair.a.node.alloc_pd();
    let strange = other.create_ah(&ah_to(pair.b.node.gid())).unwrap();
    let to_b = pair.a.pd.create_ah(&ah_to(pair.b.node.gid())).unwrap();
    let to_a = pair.b.pd.create_ah(&ah_to(pair.a.node.gid())).unwrap();
    for (fault, length, status) in [
        (None, 64, Status::LocalProtection),
        (None, 1025, Status::LocalLength),
        (Some(SendOp::Send), 64, Status::LocalQpOperation),
        (
            Some(strange.send(pair.a.qp(&of_kind(QpType::Ud)).qpn(), QKEY)),
            64,
            Status::LocalQpOperation,
        ),
    ] {
        let (qa, qb) = (datagrams(&pair.a, 1024), datagrams(&pair.b, 1024));
        let op = to_b.send(qb.qpn(), QKEY);
        let back = to_a.send(qa.qpn(), QKEY);
        let fault = (fault.unwrap_or(op), length, status);
        is_cured(&pair, (&qa, &qb), (op, back), fault);
    }
}

#[test]
fn a_q_key_changes_in_rts() {
    let pair = Pair::new();
    let (qa, qb) = (datagrams(&pair.a, 1024), datagrams(&pair.b, 1024));
    let change = Changes {
        qkey: Some(8),
        ..Changes::default()
    };
    qb.modify(&QpModify::Change(change)).unwrap();
    pair.b.receive(&qb, 1, TARGET, 1024);
    let to_b = pair.a.pd.create_ah(&ah_to(pair.b.node.gid())).unwrap();
    pair.a.post(&qa, 1, to_b.send(qb.qpn(), QKEY), 0, 8);
    pair.a.post(&qa, 2, to_b.send_imm(qb.qpn(), 8, 2), 0, 8);
    let received = pair.next(&pair.b.recv_cq);
    assert_eq!(received.extra, trunkline::Extra::Immediate(2));
}
