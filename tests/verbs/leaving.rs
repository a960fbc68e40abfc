//! Peers that leave in order, before the other end has done all that it wanted.

use super::common::{Pair, events, until};
use super::{TARGET, ended};
use std::time::{Duration, Instant};
use trunkline::{
    Changes, Event, Node, Qp, QpEvent, QpModify, QpState, SendOp, Status, VendorError, WorkOpcode,
};

/// How long a request waits for another life of a QP that has left.
const GRACE: Duration = Duration::from_millis(100);

/// Two QPs that have talked to each other, the first of which has receives left.
fn acquainted(pair: &Pair) -> (Qp, Qp) {
    let (qa, qb) = pair.qps();
    for wr_id in [11, 12] {
        pair.a.receive(&qa, wr_id, TARGET, 64);
    }
    pair.b.receive(&qb, 21, TARGET, 64);
    pair.a.post(&qa, 1, SendOp::Send, 0, 8);
    assert_eq!(pair.next(&pair.b.recv_cq).status, Status::Success);
    assert_eq!(pair.next(&pair.a.send_cq).status, Status::Success);
    (qa, qb)
}

/// Waits for the event that the peer of a QP is gone. Gives all events of QPs by then.
fn hears_it(nodes: &[&Node], qp: &Qp) -> Vec<Event> {
    let (mut heard, gone) = (Vec::new(), Event::PeerQpGone { qpn: qp.qpn() });
    until(nodes, "the program to hear that its peer is gone", || {
        heard.extend(events(nodes[0]));
        heard.contains(&gone)
    });
    heard
}

#[test]
fn a_qp_whose_peer_is_destroyed_stays_in_rts_and_its_receives_stay_posted() {
    let pair = Pair::new();
    let (qa, qb) = acquainted(&pair);
    drop(qb);
    let mut heard = hears_it(&[&pair.a.node, &pair.b.node], &qa);
    pair.run_for(3 * GRACE);
    heard.extend(events(&pair.a.node));
    let gone = Event::PeerQpGone { qpn: qa.qpn() };
    assert_eq!(heard.iter().filter(|event| **event == gone).count(), 1);
    let (qpn, event) = (qa.qpn(), QpEvent::Fatal);
    assert!(!heard.contains(&Event::Qp { qpn, event }), "{heard:?}");
    assert_eq!(qa.state(), QpState::Rts);
    assert!(pair.a.recv_cq.poll_one().unwrap().is_none());

    let since = Instant::now();
    pair.a.post(&qa, 2, SendOp::Send, 0, 8);
    let done = pair.next(&pair.a.send_cq);
    assert!(since.elapsed() >= GRACE, "{:?}", since.elapsed());
    assert_eq!(ended(&done), (2, Status::RetryExceeded, WorkOpcode::Send));
    assert_eq!(done.vendor_err, VendorError::QpGone);
    assert_eq!(qa.state(), QpState::Error);
    for wr_id in [11, 12] {
        let flushed = pair.next(&pair.a.recv_cq);
        assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::Flushed));
    }
}

#[test]
fn what_waits_for_a_peer_that_is_reset_fails_after_a_while() {
    let pair = Pair::new();
    let (qa, qb) = acquainted(&pair);
    // It has no receive.
    for wr_id in [2, 3] {
        pair.a.post(&qa, wr_id, SendOp::Send, 0, 8);
    }
    pair.run_for(Duration::from_millis(5));
    let since = Instant::now();
    qb.modify(&QpModify::Reset).unwrap();
    let done = pair.next(&pair.a.send_cq);
    assert!(since.elapsed() >= GRACE, "{:?}", since.elapsed());
    let gone = (Status::RetryExceeded, VendorError::QpGone);
    assert_eq!((done.status, done.vendor_err), gone);
    assert_eq!(pair.next(&pair.a.send_cq).status, Status::Flushed);
}

#[test]
fn a_qp_whose_peers_node_is_shut_down_is_left_as_well() {
    let pair = Pair::new();
    let (qa, qb) = acquainted(&pair);
    // Where the other end is not driven meanwhile, it does not hear all that is said to it in time.
    let _ = pair.b.node.shutdown(Duration::from_millis(20));
    let alone = [&pair.a.node];
    hears_it(&alone, &qa);
    let since = Instant::now();
    until(&alone, "time to pass", || since.elapsed() > GRACE);
    assert_eq!(qa.state(), QpState::Rts);
    assert!(pair.a.recv_cq.poll_one().unwrap().is_none());
    drop(qb);
}

#[test]
fn a_peer_that_goes_to_error_is_told_of_as_such() {
    let pair = Pair::new();
    let (qa, qb) = acquainted(&pair);
    // A SEND that comes once again would be refused by a QP in error before all else: it may not
    // for 655 ms (IBTA's code 0).
    let change = Changes {
        min_rnr_timer: Some(0),
        ..Changes::default()
    };
    qb.modify(&QpModify::Change(change)).unwrap();
    pair.a.post(&qa, 2, SendOp::Send, 0, 8);
    pair.until("the pause", || pair.a.carrier.counters().rnr_received > 0);
    qb.modify(&QpModify::Error).unwrap();
    let done = pair.next(&pair.a.send_cq);
    assert_eq!(ended(&done), (2, Status::RetryExceeded, WorkOpcode::Send));
    assert_eq!(qa.state(), QpState::Error);
}

#[test]
fn two_qps_meet_again_after_both_were_reset() {
    let pair = Pair::new();
    let (qa, qb) = acquainted(&pair);
    for round in 0..5 {
        qb.modify(&QpModify::Reset).unwrap();
        hears_it(&[&pair.a.node, &pair.b.node], &qa);
        qa.modify(&QpModify::Reset).unwrap();
        qb.connect(qa.address()).unwrap();
        qa.connect(qb.address()).unwrap();
        pair.b.receive(&qb, 30, TARGET, 64);
        pair.a.post(&qa, 4, SendOp::Send, 0, 8);
        let done = pair.next(&pair.a.send_cq);
        assert_eq!(done.status, Status::Success, "round {round}");
        assert_eq!(pair.next(&pair.b.recv_cq).wr_id, 30);
    }
}
