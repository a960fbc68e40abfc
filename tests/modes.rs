//! Two nodes of which one took the other for an ordinary host, as its questions were not answered:
//! whatever the other one does first, their QPs meet.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, Pair, inline, pattern, turn};
use trunkline::{Access, Attributes, Clock, Node, Qp, QpOptions, SendOp, Status};
use trunkline_conn::time::{MILLISECOND, SECOND};

/// Where received bytes go.
const TARGET: usize = 2 << 20;
const LENGTH: usize = 10_000;

/// Two nodes on a clock turned by hand.
struct Scene {
    clock: Clock,
    pair: Pair,
    qa: Qp,
    qb: Qp,
}

impl Scene {
    /// Node a has asked node b in vain, and its SEND stands in b's socket. Node b has not run yet.
    fn new() -> Self {
        let clock = Clock::manual();
        let timed = || inline().clock(clock.clone());
        let pair = Pair {
            a: End::new(timed()),
            b: End::new(timed()),
        };
        let options = QpOptions::default();
        let (qa, qb) = (pair.a.qp(&options), pair.b.qp(&options));
        let mut scene = Self {
            clock,
            pair,
            qa,
            qb,
        };
        scene.pair.a.mr.write(0, &pattern(1, LENGTH)).unwrap();
        scene.pair.b.mr.write(0, &pattern(2, LENGTH)).unwrap();
        connect(&scene.qa, &scene.qb);
        scene.pair.a.post(&scene.qa, 1, SendOp::Send, 0, LENGTH);
        scene.run(400, false);
        scene
    }

    /// Lets `ms` milliseconds pass, at node a or at both.
    fn run(&mut self, ms: u64, both: bool) {
        let (a, b) = (&self.pair.a.node, &self.pair.b.node);
        for _ in 0..ms {
            self.clock.set(self.clock.now() + MILLISECOND);
            let nodes: &[&Node] = if both { &[a, b] } else { &[a] };
            turn(nodes);
        }
    }

    /// Both ends have had one message from each other.
    fn check(&self) {
        for (end, seed) in [(&self.pair.a, 2), (&self.pair.b, 1)] {
            let sent = end.send_cq.poll_one().unwrap().expect("its SEND is done");
            assert_eq!((sent.wr_id, sent.status), (1, Status::Success));
            assert!(end.bytes(TARGET, LENGTH) == pattern(seed, LENGTH));
            assert!(end.send_cq.poll_one().unwrap().is_none());
        }
    }
}

/// With half a second for each retry.
fn connect(from: &Qp, to: &Qp) {
    let attributes = Attributes {
        timeout: 17,
        ..Attributes::default()
    };
    from.connect_with(to.address(), Access::ALL, &attributes)
        .unwrap();
}

#[test]
fn a_qp_that_does_not_know_its_peer_takes_up_the_plain_rc_that_comes() {
    let mut scene = Scene::new();
    let Pair { a, b } = &scene.pair;
    connect(&scene.qb, &scene.qa);
    b.receive(&scene.qb, 2, TARGET, LENGTH);
    a.receive(&scene.qa, 2, TARGET, LENGTH);
    b.post(&scene.qb, 1, SendOp::Send, 0, LENGTH);
    // Node a says nothing to its question.
    for _ in 0..100 {
        turn(&[&b.node]);
    }
    let received = b
        .recv_cq
        .poll_one()
        .unwrap()
        .expect("it is executed at once");
    assert_eq!((received.wr_id, received.status), (2, Status::Success));
    scene.run(2 * SECOND / MILLISECOND, true);
    scene.check();
    assert!(
        scene.pair.b.recv_cq.poll_one().unwrap().is_none(),
        "it came once"
    );
}

#[test]
fn a_qp_that_took_its_peer_for_an_ordinary_host_shares_with_it_once_that_asks() {
    let mut scene = Scene::new();
    // What came for its QP was too early.
    scene.run(10, true);
    let Pair { a, b } = &scene.pair;
    connect(&scene.qb, &scene.qa);
    b.receive(&scene.qb, 2, TARGET, LENGTH);
    a.receive(&scene.qa, 2, TARGET, LENGTH);
    b.post(&scene.qb, 1, SendOp::Send, 0, LENGTH);
    scene.run(100, true);
    scene.check();
    let Pair { a, b } = &scene.pair;
    assert_eq!(a.node.connection_count(), 1);
    assert_eq!(a.node.counters().bound + b.node.counters().bound, 2);
}
