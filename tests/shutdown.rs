//! How a node ends: what is queued leaves, and its peers hear of it.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, PATIENCE, address, inline, next, turn, until, wait_for};
use std::time::{Duration, Instant};
use trunkline::{
    Access, Builder, Down, Error, Event, Node, Qp, QpOptions, QpState, SendFlags, SendOp, Status,
};

/// Beyond any test.
const NEVER: Duration = Duration::from_secs(3600);

/// A node that finds out that its peer is gone by what the peer says, or never.
fn trusting(builder: Builder) -> End {
    End::new(
        builder
            .address(address())
            .peer_timeout(NEVER)
            .keep_alive(NEVER),
    )
}

fn connected(a: &End, b: &End) -> (Qp, Qp) {
    let options = QpOptions {
        max_send_wr: 1024,
        max_recv_wr: 1024,
        ..QpOptions::default()
    };
    let (qa, qb) = (a.qp(&options), b.qp(&options));
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    (qa, qb)
}

/// Waits until a program hears that the peer of a QP is gone, which stays as it is.
fn wait_for_gone(node: &Node, qp: &Qp) {
    let (end, qpn) = (Instant::now() + PATIENCE, qp.qpn());
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let event = node.wait_event(left).unwrap();
        if event.expect("it hears in time") == (Event::PeerQpGone { qpn }) {
            break;
        }
    }
    assert_eq!(qp.state(), QpState::Rts);
}

#[test]
fn what_was_posted_is_done_before_a_node_ends() {
    const MESSAGES: u64 = 1000;
    let (a, b) = (trusting(Node::builder()), trusting(Node::builder()));
    let (qa, qb) = connected(&a, &b);
    for id in 0..MESSAGES {
        b.receive(&qb, id, id as usize * 1024, 1024);
    }
    for id in 0..MESSAGES {
        a.post(&qa, id, SendOp::Send, id as usize * 1024, 1000);
    }
    a.node.shutdown(PATIENCE).unwrap();
    for id in 0..MESSAGES {
        for cq in [&a.send_cq, &b.recv_cq] {
            let done = wait_for(cq);
            assert_eq!((done.wr_id, done.status), (id, Status::Success));
        }
    }
    // It has ended: its own program and its peer's see that.
    assert_eq!(qa.state(), QpState::Error);
    wait_for_gone(&b.node, &qb);
    assert_eq!(a.node.health().down, Some(Down::ShutDown));
    let (op, flags) = (SendOp::Send, SendFlags::SIGNALED);
    let late = a.try_post(&qa, 1, op, flags, 0, 8);
    assert!(matches!(late, Err(Error::Down(Down::ShutDown))), "{late:?}");
    assert!(a.node.alloc_pd().register(64, Access::ALL).is_err());
    assert_eq!(a.node.connection_count(), 0);
    a.node.shutdown(Duration::ZERO).unwrap();
}

#[test]
fn peers_of_a_dropped_node_hear_of_it_at_once() {
    for workers in [1, 2] {
        let b = trusting(Node::builder().workers(workers));
        let qb = {
            let a = trusting(Node::builder().workers(2));
            let (qa, qb) = connected(&a, &b);
            a.post(&qa, 1, SendOp::Write(b.mr.remote(0)), 0, 64);
            assert_eq!(wait_for(&a.send_cq).status, Status::Success);
            qb
        };
        // It had nothing outstanding, and nobody is asked for a sign of life.
        wait_for_gone(&b.node, &qb);
        // Its connections end with it, by messages of their own; one that is idle lasts for longer.
        let end = Instant::now() + Duration::from_secs(5);
        while b.node.connection_count() > 0 {
            assert!(Instant::now() < end, "a connection is left");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn an_inline_node_ends_in_the_same_way() {
    let (a, b) = (trusting(inline()), trusting(inline()));
    let (qa, qb) = connected(&a, &b);
    let nodes = [&a.node, &b.node];
    a.post(&qa, 1, SendOp::Write(b.mr.remote(0)), 0, 64);
    assert_eq!(next(&nodes, &a.send_cq).status, Status::Success);
    // Its peer is not driven: what is outstanding stays so, and time is up.
    a.post(&qa, 2, SendOp::Write(b.mr.remote(0)), 0, 64);
    let ended = a.node.shutdown(Duration::from_millis(20));
    assert!(matches!(ended, Err(Error::Unfinished)), "{ended:?}");
    let flushed = a.send_cq.poll_one().unwrap().unwrap();
    assert_eq!((flushed.wr_id, flushed.status), (2, Status::Flushed));
    assert!(a.node.poll().is_err());
    let gone = Event::PeerQpGone { qpn: qb.qpn() };
    until(&[&b.node], "the peer to hear", || {
        b.node.poll_event() == Some(gone)
    });
    assert_eq!(qb.state(), QpState::Rts);
    turn(&[&b.node]);
    assert_eq!(b.node.connection_count(), 0);
}

#[test]
fn a_receiver_that_is_not_ready_does_not_hold_a_node_up_for_ever() {
    let (a, b) = (trusting(Node::builder()), trusting(Node::builder()));
    let (qa, _qb) = connected(&a, &b);
    a.post(&qa, 7, SendOp::Send, 0, 64);
    let ended = a.node.shutdown(Duration::from_millis(50));
    assert!(matches!(ended, Err(Error::Unfinished)), "{ended:?}");
    let flushed = wait_for(&a.send_cq);
    assert_eq!((flushed.wr_id, flushed.status), (7, Status::Flushed));
}
