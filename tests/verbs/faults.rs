//! What goes wrong ends in the right status, on the right QP and on no other.

use super::common::{Pair, address, ah_to, events, is_bound, pattern};
use super::{TARGET, ended, verbs_error};
use std::net::IpAddr;
use std::time::Duration;
use trunkline::{
    Access, AtomicOp, Attributes, ConnectionOptions, Error, Event, Gid, QpAddress, QpEvent,
    QpModify, QpOptions, QpState, Qpn, RecvWr, Remote, Rkey, SendOp, SendWr, Status, VendorError,
    VerbsError, WorkOpcode,
};

/// Whether the node reported `event` of the QP.
fn has_event(node: &trunkline::Node, qpn: Qpn, event: QpEvent) -> bool {
    events(node).contains(&Event::Qp { qpn, event })
}

/// Runs one faulty request beside a QP that must not notice, and gives its status.
fn fails_alone(pair: &Pair, op: SendOp, length: usize) -> Status {
    let (bad, peer) = pair.qps();
    if op.consumes_receive() {
        // Without one the answer would be: not ready.
        pair.b.receive(&peer, 5, TARGET, 64);
    }
    let good = pair.qps();
    let bound = || is_bound(&bad) && is_bound(&good.0);
    pair.until("both to be bound", bound);
    assert_eq!(
        bad.connection(),
        good.0.connection(),
        "the fault is on the connection that both use"
    );
    pair.a.post(
        &good.0,
        1,
        SendOp::Write(pair.b.mr.remote(TARGET)),
        0,
        100_000,
    );
    pair.a.post(&bad, 2, op, 0, length);
    pair.a.post(&bad, 3, SendOp::Send, 0, 8);
    pair.a.post(
        &good.0,
        4,
        SendOp::Write(pair.b.mr.remote(TARGET)),
        0,
        100_000,
    );
    let mut done: Vec<_> = (0..4).map(|_| pair.next(&pair.a.send_cq)).collect();
    done.sort_by_key(|done| done.wr_id);
    assert_eq!(
        done[0].status,
        Status::Success,
        "before the fault, on another QP"
    );
    assert_eq!(
        done[2].status,
        Status::Flushed,
        "behind the fault, on the same QP"
    );
    assert_eq!(
        done[3].status,
        Status::Success,
        "behind the fault, on another QP"
    );
    assert_eq!(
        (bad.state(), good.0.state()),
        (QpState::Error, QpState::Rts)
    );
    assert_eq!(
        (peer.state(), good.1.state()),
        (QpState::Error, QpState::Rts)
    );
    assert_eq!(
        pair.a.carrier.connection_count(),
        1,
        "the connection outlives the fault"
    );
    done[1].status
}

#[test]
fn a_wrong_rkey_fails_only_the_qp_that_used_it() {
    let pair = Pair::new();
    let right = pair.b.mr.remote(TARGET);
    let wrong = Remote {
        rkey: Rkey(right.rkey.0 ^ 1),
        ..right
    };
    for op in [
        SendOp::Write(wrong),
        SendOp::Read(wrong),
        SendOp::WriteImm(wrong, 1),
        SendOp::Atomic(wrong, AtomicOp::FetchAdd { add: 1 }),
    ] {
        assert_eq!(fails_alone(&pair, op, 8), Status::RemoteAccess, "{op:?}");
    }
    assert_eq!(pair.b.carrier.counters().nak_sent, 4);
}

#[test]
fn a_range_outside_its_region_is_refused_before_a_byte_is_written() {
    let pair = Pair::new();
    let small = pair.b.pd.register(8192, Access::ALL).unwrap();
    let before = small_bytes(&small);
    let past = small.remote(1);
    let below = Remote {
        addr: small.addr() - 1,
        rkey: small.rkey(),
    };
    let wraps = Remote {
        addr: u64::MAX - 3,
        rkey: small.rkey(),
    };
    pair.a.mr.write(0, &pattern(5, 8192)).unwrap();
    for remote in [past, below, wraps] {
        assert_eq!(
            fails_alone(&pair, SendOp::Write(remote), 8192),
            Status::RemoteAccess
        );
        assert_eq!(
            fails_alone(&pair, SendOp::Read(remote), 8192),
            Status::RemoteAccess
        );
    }
    assert!(small_bytes(&small) == before);
}

fn small_bytes(mr: &trunkline::Mr) -> Vec<u8> {
    let mut out = vec![0; mr.len()];
    mr.read(0, &mut out).unwrap();
    out
}

#[test]
fn rights_of_region_domain_and_qp_are_all_needed() {
    let pair = Pair::new();
    let add = AtomicOp::FetchAdd { add: 1 };
    let none = pair.b.pd.register(4096, Access::LOCAL_WRITE).unwrap();
    let read = pair.b.pd.register(4096, Access::REMOTE_READ).unwrap();
    let other_domain = pair.b.node.alloc_pd().register(4096, Access::ALL).unwrap();
    for op in [
        SendOp::Write(none.remote(0)),
        SendOp::Read(none.remote(0)),
        SendOp::Atomic(none.remote(0), add),
        SendOp::Write(read.remote(0)),
        SendOp::Read(other_domain.remote(0)),
    ] {
        assert_eq!(fails_alone(&pair, op, 8), Status::RemoteAccess, "{op:?}");
    }
    // The region allows it, the QP does not.
    let (qa, qb) = (
        pair.a.qp(&QpOptions::default()),
        pair.b.qp(&QpOptions::default()),
    );
    qa.connect(qb.address()).unwrap();
    qb.connect_with(qa.address(), Access::REMOTE_READ, &Attributes::default())
        .unwrap();
    pair.a.post(&qa, 1, SendOp::Read(pair.b.mr.remote(0)), 0, 8);
    pair.a
        .post(&qa, 2, SendOp::Write(pair.b.mr.remote(0)), 0, 8);
    assert_eq!(pair.next(&pair.a.send_cq).status, Status::Success);
    assert_eq!(
        pair.next(&pair.a.send_cq).status,
        Status::RemoteInvalidRequest
    );
    assert!(has_event(&pair.b.node, qb.qpn(), QpEvent::RequestError));
}

#[test]
fn an_atomic_beside_its_alignment_is_invalid() {
    let pair = Pair::new();
    let op = SendOp::Atomic(pair.b.mr.remote(4), AtomicOp::FetchAdd { add: 1 });
    assert_eq!(fails_alone(&pair, op, 8), Status::RemoteInvalidRequest);
}

#[test]
fn a_receive_that_is_too_short_fails_both_ends() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    pair.b.receive(&qb, 1, TARGET, 99);
    pair.a.post(&qa, 2, SendOp::Send, 0, 100);
    let sent = pair.next(&pair.a.send_cq);
    assert_eq!(
        ended(&sent),
        (2, Status::RemoteInvalidRequest, WorkOpcode::Send)
    );
    let received = pair.next(&pair.b.recv_cq);
    assert_eq!(
        ended(&received),
        (1, Status::LocalLength, WorkOpcode::Receive)
    );
    assert_eq!((qa.state(), qb.state()), (QpState::Error, QpState::Error));
}

#[test]
fn a_key_of_our_own_that_is_wrong_fails_the_request_in_its_turn() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    pair.b.receive(&qb, 1, TARGET, 64);
    let read_only = pair.a.pd.register(4096, Access::LOCAL_READ).unwrap();
    pair.a.post(&qa, 2, SendOp::Send, 0, 64);
    let sges = [read_only.sge(0, 64)];
    let read = SendOp::Read(pair.b.mr.remote(0));
    let flags = trunkline::SendFlags::SIGNALED;
    let request = SendWr::new(read).wr_id(3).sges(&sges).flags(flags);
    qa.post_send(&[request]).unwrap();
    assert_eq!(
        ended(&pair.next(&pair.a.send_cq)),
        (2, Status::Success, WorkOpcode::Send)
    );
    let expected = (3, Status::LocalProtection, WorkOpcode::Read);
    assert_eq!(ended(&pair.next(&pair.a.send_cq)), expected);
    assert_eq!(pair.next(&pair.b.recv_cq).status, Status::Success);
    assert_eq!(qa.state(), QpState::Error);
    assert_eq!(pair.a.carrier.counters().completed, 2);
}

#[test]
fn memory_deregistered_under_a_request_fails_that_request() {
    crate::not_served!("it stops the node in the middle of a message");
    let pair = Pair::new();
    let (qa, _qb) = pair.qps();
    let (good, _good_peer) = pair.qps();
    let gone = pair.a.pd.register(2 << 20, Access::ALL).unwrap();
    let sges = [gone.sge(0, 2 << 20)];
    let write = SendOp::Write(pair.b.mr.remote(TARGET));
    let flags = trunkline::SendFlags::SIGNALED;
    let request = SendWr::new(write).wr_id(1).sges(&sges).flags(flags);
    qa.post_send(&[request]).unwrap();
    let begun = || pair.a.carrier.counters().sent > 20;
    pair.until("some of the message to be sent", begun);
    drop(gone);
    assert_eq!(
        ended(&pair.next(&pair.a.send_cq)),
        (1, Status::LocalProtection, WorkOpcode::Write)
    );
    pair.a.post(
        &good,
        2,
        SendOp::Write(pair.b.mr.remote(TARGET)),
        0,
        1 << 20,
    );
    assert_eq!(
        ended(&pair.next(&pair.a.send_cq)),
        (2, Status::Success, WorkOpcode::Write)
    );
}

#[test]
fn a_receiver_that_is_not_ready_is_asked_as_often_as_was_said() {
    let pair = Pair::new();
    // Timer code 1 is 10 us.
    let attributes = Attributes {
        rnr_retry: 2,
        min_rnr_timer: 1,
        ..Attributes::default()
    };
    let (qa, _qb) = pair.qps_with(&QpOptions::default(), &attributes);
    pair.a.post(&qa, 1, SendOp::Send, 0, 64);
    let done = pair.next(&pair.a.send_cq);
    assert_eq!(
        ended(&done),
        (1, Status::RnrRetryExceeded, WorkOpcode::Send)
    );
    assert_eq!(
        pair.a.carrier.counters().rnr_received,
        3,
        "the first try and two more"
    );
}

#[test]
fn a_receive_posted_late_still_gets_its_message() {
    let pair = Pair::new();
    let attributes = Attributes {
        rnr_retry: 7,
        min_rnr_timer: 1,
        ..Attributes::default()
    };
    let (qa, qb) = pair.qps_with(&QpOptions::default(), &attributes);
    let (good, _good_peer) = pair.qps();
    let data = pattern(9, 20_000);
    pair.a.mr.write(0, &data).unwrap();
    for wr_id in 0..3 {
        pair.a.post(&qa, wr_id, SendOp::Send, 0, data.len());
    }
    pair.until("three refusals", || pair.b.carrier.counters().rnr_sent >= 3);
    pair.a
        .post(&good, 9, SendOp::Write(pair.b.mr.remote(0)), 0, 50_000);
    let done = pair.next(&pair.a.send_cq);
    assert_eq!(
        (done.wr_id, done.status),
        (9, Status::Success),
        "neighbours do not wait"
    );
    for wr_id in 0..3 {
        pair.b
            .receive(&qb, wr_id, TARGET + wr_id as usize * 20_000, 20_000);
    }
    for wr_id in 0..3 {
        let received = pair.next(&pair.b.recv_cq);
        assert_eq!((received.wr_id, received.status), (wr_id, Status::Success));
        assert!(pair.b.bytes(TARGET + wr_id as usize * 20_000, 20_000) == data);
        assert_eq!(pair.next(&pair.a.send_cq).wr_id, wr_id);
    }
}

#[test]
fn going_to_error_flushes_what_was_posted_and_what_is_posted_later() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    for wr_id in 0..3 {
        pair.a.receive(&qa, wr_id, TARGET, 64);
        pair.a.post(&qa, 10 + wr_id, SendOp::Send, 0, 64);
    }
    qa.modify(&QpModify::Error).unwrap();
    pair.a.receive(&qa, 3, TARGET, 64);
    pair.a.post(&qa, 13, SendOp::Send, 0, 64);
    for wr_id in 0..4 {
        let (received, sent) = (pair.next(&pair.a.recv_cq), pair.next(&pair.a.send_cq));
        assert_eq!(
            ended(&received),
            (wr_id, Status::Flushed, WorkOpcode::Receive)
        );
        assert_eq!(
            ended(&sent),
            (10 + wr_id, Status::Flushed, WorkOpcode::Send)
        );
    }
    // The peer finds out when it wants something.
    pair.b
        .post(&qb, 20, SendOp::Write(pair.a.mr.remote(TARGET)), 0, 64);
    let status = pair.next(&pair.b.send_cq).status;
    assert!(
        matches!(status, Status::RemoteOperation | Status::RetryExceeded),
        "a QP in error answered {status:?}"
    );
}

#[test]
fn a_qp_lives_again_after_reset() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    pair.a.post(&qa, 1, SendOp::Write(Remote::default()), 0, 8);
    assert_eq!(pair.next(&pair.a.send_cq).status, Status::RemoteAccess);
    for qp in [&qa, &qb] {
        qp.modify(&QpModify::Reset).unwrap();
        assert_eq!(qp.state(), QpState::Reset);
    }
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    pair.b.receive(&qb, 2, TARGET, 64);
    pair.a.post(&qa, 3, SendOp::Send, 0, 64);
    assert_eq!(
        ended(&pair.next(&pair.a.send_cq)),
        (3, Status::Success, WorkOpcode::Send)
    );
    assert_eq!(
        ended(&pair.next(&pair.b.recv_cq)),
        (2, Status::Success, WorkOpcode::Receive)
    );
}

#[test]
fn a_peer_is_one_host() {
    let pair = Pair::new();
    let qp = pair.a.qp(&QpOptions::default());
    let never = [
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        // The broadcast address of loopback's network: only routes know that it is one.
        "127.255.255.255",
    ];
    for address in never {
        let address: IpAddr = address.parse().unwrap();
        let gid = Gid::from(address);
        let refused = |error: Error| {
            let says = format!("{address} is not the address of one host");
            assert!(error.to_string().starts_with(&says), "{error}");
            let error = verbs_error(error);
            assert_eq!(error, VerbsError::NotOneHost { address });
        };
        let peer = QpAddress {
            gid,
            ..qp.address()
        };
        refused(qp.connect(peer).unwrap_err());
        assert_eq!(qp.state(), QpState::Init);
        qp.modify(&QpModify::Reset).unwrap();
        let options = ConnectionOptions::default();
        refused(
            pair.a
                .carrier
                .open_connection(address, &options)
                .unwrap_err(),
        );
        refused(pair.a.pd.create_ah(&ah_to(gid)).unwrap_err());
    }
    // A refusal leaves the QP as it was.
    let other = pair.b.qp(&QpOptions::default());
    qp.connect(other.address()).unwrap();
}

#[test]
fn wrong_states_are_refused_with_their_names() {
    let pair = Pair::new();
    let qp = pair.a.qp(&QpOptions::default());
    let sges = [pair.a.mr.sge(0, 8)];
    let request = SendWr::send().wr_id(1).sges(&sges).signaled();
    let number = format!("QP {:#08x}", qp.qpn().get());
    let error = qp.post_send(&[request]).unwrap_err();
    assert_eq!(error.to_string(), format!("{number} is in RESET"));
    let error = qp
        .post_recv(&[RecvWr::new().wr_id(1).sges(&sges)])
        .unwrap_err();
    assert_eq!(error.to_string(), format!("{number} is in RESET"));
    let error = qp
        .modify(&QpModify::Rts(Attributes::default()))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{number} cannot go from RESET to RTS")
    );
    qp.modify(&QpModify::Init {
        access: Access::ALL,
    })
    .unwrap();
    let odd = Attributes {
        path_mtu: 1000,
        ..Attributes::default()
    };
    let error = qp.modify(&QpModify::Rtr(odd)).unwrap_err();
    let complaint = "path_mtu cannot be 1000: a power of two, 256 to 4096";
    assert_eq!(error.to_string(), complaint);
    assert_eq!(qp.state(), QpState::Init, "a refused step changes nothing");
    let error = verbs_error(qp.modify(&QpModify::Drain).unwrap_err());
    let (from, to) = (QpState::Init, QpState::Sqd);
    assert_eq!(
        error,
        VerbsError::BadTransition {
            qpn: qp.qpn().get(),
            from,
            to
        }
    );
}

#[test]
fn a_peer_qp_that_does_not_exist_refuses_at_once() {
    let pair = Pair::new();
    let (qa, qb) = pair.qps();
    let nobody = trunkline::QpAddress {
        qpn: Qpn::from_wire(0x00ab_cdef),
        ..qb.address()
    };
    let lonely = pair.a.qp(&QpOptions::default());
    lonely.connect(nobody).unwrap();
    pair.a.post(&lonely, 1, SendOp::Send, 0, 8);
    let done = pair.next(&pair.a.send_cq);
    assert_eq!(ended(&done), (1, Status::RetryExceeded, WorkOpcode::Send));
    assert_eq!(done.vendor_err, VendorError::NoQp);
    pair.run_for(Duration::from_millis(5));
    assert_eq!(qa.state(), QpState::Rts, "neighbours stay");
}

#[test]
fn a_request_whose_peer_cannot_be_reached_says_why() {
    let pair = Pair::new();
    let fails = |qp: &trunkline::Qp| {
        pair.a.post(qp, 1, SendOp::Send, 0, 8);
        let done = pair.next(&pair.a.send_cq);
        assert_eq!(ended(&done), (1, Status::RetryExceeded, WorkOpcode::Send));
        done.vendor_err
    };
    let to = |address: trunkline::QpAddress| {
        let qp = pair.a.qp(&QpOptions::default());
        qp.connect(address).unwrap();
        qp
    };
    let (qa, qb) = pair.qps();
    let op = SendOp::Write(pair.b.mr.remote(TARGET));
    pair.a.post(&qa, 1, op, 0, 8);
    assert_eq!(pair.next(&pair.a.send_cq).status, Status::Success);
    let third = to(qb.address());
    assert_eq!(fails(&third), VendorError::OtherPeer);
    drop(qb);
    assert_eq!(fails(&qa), VendorError::QpGone);
    let nowhere = trunkline::QpAddress {
        gid: address().into(),
        ..qa.address()
    };
    let lonely = to(nowhere);
    assert_eq!(fails(&lonely), VendorError::NoNode);
}
