//! Connections that the program opens, QPs that it routes, binds and moves itself.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, Pair, inline, next, open, pattern, src_qp, until};
use std::collections::VecDeque;
use std::time::Duration;
use trunkline::{
    CongestionControl, ConnectionOptions, ConnectionState, Error, Event, NoConnection, Qp, QpState,
    SendFlags, SendOp, SendWr, Status, VerbsError,
};

/// Where received bytes go.
const TARGET: usize = 2 << 20;
/// Bytes of a message in [`Stream`]: several packets.
const MESSAGE: usize = 10_000;
/// Messages of a stream in flight.
const DEPTH: u64 = 16;

/// Sends numbered messages from one end to the other, as many as fit, and checks that each arrives
/// once, whole, and in its turn.
struct Stream<'a> {
    pair: &'a Pair,
    from: &'a Qp,
    to: &'a Qp,
    route: u32,
    posted: u64,
    acknowledged: u64,
    received: u64,
    receives: VecDeque<u64>,
}

impl<'a> Stream<'a> {
    fn new(pair: &'a Pair, from: &'a Qp, to: &'a Qp, route: u32) -> Self {
        let mut stream = Self {
            pair,
            from,
            to,
            route,
            posted: 0,
            acknowledged: 0,
            received: 0,
            receives: VecDeque::new(),
        };
        for slot in 0..DEPTH {
            stream.receive(slot);
        }
        stream
    }

    fn receive(&mut self, slot: u64) {
        self.pair
            .b
            .receive(self.to, slot, TARGET + slot as usize * MESSAGE, MESSAGE);
        self.receives.push_back(slot);
    }

    /// One round of everything.
    fn turn(&mut self) {
        while self.posted - self.acknowledged < DEPTH {
            let slot = (self.posted % DEPTH) as usize * MESSAGE;
            self.pair
                .a
                .mr
                .write(slot, &pattern(self.posted, MESSAGE))
                .unwrap();
            let sges = [self.pair.a.mr.sge(slot, MESSAGE)];
            let request = SendWr::send_imm(self.posted as u32)
                .wr_id(self.posted)
                .sges(&sges)
                .signaled()
                .route(self.route);
            self.from.post_send(&[request]).unwrap();
            self.posted += 1;
        }
        self.pair.turn();
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(done) = self.pair.b.recv_cq.poll_one().unwrap() {
            assert_eq!(done.status, Status::Success, "message {}", self.received);
            assert_eq!(Some(done.wr_id), self.receives.pop_front());
            let number = trunkline::Extra::Immediate(self.received as u32);
            assert_eq!(done.extra, number, "each once and in its turn");
            let found = self
                .pair
                .b
                .bytes(TARGET + done.wr_id as usize * MESSAGE, MESSAGE);
            assert!(
                found == pattern(self.received, MESSAGE),
                "message {}",
                self.received
            );
            self.received += 1;
            self.receive(done.wr_id);
        }
        while let Some(done) = self.pair.a.send_cq.poll_one().unwrap() {
            assert_eq!(
                (done.wr_id, done.status),
                (self.acknowledged, Status::Success)
            );
            self.acknowledged += 1;
        }
    }

    fn run(&mut self, messages: u64) {
        let target = self.received + messages;
        let started = std::time::Instant::now();
        while self.received < target {
            self.turn();
            assert!(
                started.elapsed() < common::PATIENCE,
                "{} of {target}",
                self.received
            );
        }
    }

    fn finish(&mut self) {
        let started = std::time::Instant::now();
        while self.acknowledged < self.posted {
            self.pair.turn();
            self.collect();
            assert!(
                started.elapsed() < common::PATIENCE,
                "{} acknowledged",
                self.acknowledged
            );
        }
        assert_eq!(self.received, self.posted);
    }
}

#[test]
fn a_program_routes_one_qp_to_two_peers() {
    let (a, b, c) = (End::new(inline()), End::new(inline()), End::new(inline()));
    let nodes = [&a.node, &b.node, &c.node];
    let options = ConnectionOptions::default();
    let (to_b, to_c) = (
        open(&nodes, &a, &b, &options),
        open(&nodes, &a, &c, &options),
    );
    let (qa, qb, qc) = (src_qp(&a, None), src_qp(&b, None), src_qp(&c, None));
    let routes = [
        qa.route(&to_b, qb.qpn()).unwrap(),
        qa.route(&to_c, qc.qpn()).unwrap(),
    ];
    assert_eq!(routes, [1, 2]);
    assert_eq!(
        qa.route(&to_b, qb.qpn()).unwrap(),
        1,
        "the same route again"
    );
    for (route, end, qp) in [(routes[0], &b, &qb), (routes[1], &c, &qc)] {
        let data = pattern(route.into(), 50_000);
        a.mr.write(0, &data).unwrap();
        end.receive(qp, 9, TARGET, data.len());
        let sges = [a.mr.sge(0, data.len())];
        let request = SendWr::send()
            .wr_id(route.into())
            .sges(&sges)
            .signaled()
            .route(route);
        qa.post_send(&[request]).unwrap();
        let received = next(&nodes, &end.recv_cq);
        assert_eq!(
            (received.status, received.src_qp),
            (Status::Success, qa.qpn())
        );
        assert!(end.bytes(TARGET, data.len()) == data);
        let sent = next(&nodes, &a.send_cq);
        assert_eq!((sent.wr_id, sent.status), (route.into(), Status::Success));
    }
    for (connection, peer) in [(&to_b, &b), (&to_c, &c)] {
        let stats = connection.stats().unwrap();
        assert_eq!(
            (connection.peer(), stats.peer),
            (peer.node.gid().address(), peer.node.gid())
        );
        assert_eq!(stats.flows, 1);
        assert!(stats.delivery.min_rtt_ns > 0, "{stats:?}");
    }
    // A route that was never made fails the request that names it, and nothing else.
    let sges = [a.mr.sge(0, 8)];
    let flags = SendFlags::SIGNALED;
    let lost = SendWr::send().wr_id(5).sges(&sges).flags(flags).route(3);
    qa.post_send(&[lost]).unwrap();
    let done = next(&nodes, &a.send_cq);
    assert_eq!(
        (done.wr_id, done.status, done.route),
        (5, Status::LocalQpOperation, 3)
    );
    assert_eq!(qa.state(), QpState::Rts);
}

#[test]
fn qps_of_the_node_stay_off_connections_that_a_program_opened() {
    let pair = Pair::new();
    let nodes = [&pair.a.node, &pair.b.node];
    let own = open(&nodes, &pair.a, &pair.b, &ConnectionOptions::default());
    let (qa, _qb) = pair.qps();
    pair.a
        .post(&qa, 1, SendOp::Write(pair.b.mr.remote(TARGET)), 0, 64);
    assert_eq!(pair.next(&pair.a.send_cq).status, Status::Success);
    assert_eq!(own.stats().unwrap().flows, 0);
    assert_eq!(
        pair.a.node.connection_count(),
        2,
        "its own, and one of the pool"
    );
}

#[test]
fn a_connection_has_the_attributes_it_was_opened_with() {
    let (a, b) = (End::new(inline().extra_source_ports(3)), End::new(inline()));
    let pair = Pair { a, b };
    let nodes = [&pair.a.node, &pair.b.node];
    for (control, source_ports) in [
        (CongestionControl::Delay, 1),
        (CongestionControl::Dcqcn, 2),
        (CongestionControl::None, 4),
    ] {
        let options = ConnectionOptions {
            control: Some(control),
            traffic_class: 0x20,
            weight: 3,
            source_ports,
            ..ConnectionOptions::default()
        };
        let own = open(&nodes, &pair.a, &pair.b, &options);
        let (qa, qb) = (src_qp(&pair.a, None), src_qp(&pair.b, None));
        let route = qa.route(&own, qb.qpn()).unwrap();
        let mut stream = Stream::new(&pair, &qa, &qb, route);
        stream.run(100);
        stream.finish();
        let stats = own.stats().unwrap().delivery;
        assert!(
            stats.min_rtt_ns > 0 && stats.window_bytes >= 10_000,
            "{control:?}: {stats:?}"
        );
    }
}

#[test]
fn a_live_qp_moves_between_connections_without_its_peer_noticing() {
    let pair = Pair::new();
    let nodes = [&pair.a.node, &pair.b.node];
    let options = ConnectionOptions::default();
    let own = [
        open(&nodes, &pair.a, &pair.b, &options),
        open(&nodes, &pair.a, &pair.b, &options),
    ];
    let (qa, qb) = pair.qps();
    let mut stream = Stream::new(&pair, &qa, &qb, 0);
    stream.run(20);
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..20 {
        qa.bind(&own[round % 2]).unwrap();
        // The first of these may have been under way before.
        stream.run(2 * DEPTH);
        assert_eq!(own[round % 2].stats().unwrap().flows, 1, "round {round}");
        seen.insert(qa.connection());
    }
    stream.finish();
    assert_eq!(seen.len(), 2);
    let moves = std::iter::from_fn(|| pair.a.node.poll_event())
        .filter(|event| matches!(event, Event::Moved { qpn, .. } if *qpn == qa.qpn()))
        .count();
    assert_eq!(moves, 20);
    assert_eq!(pair.a.node.counters().failovers, 0);
}

#[test]
fn a_route_moves_while_it_is_used() {
    let pair = Pair::new();
    let nodes = [&pair.a.node, &pair.b.node];
    let options = ConnectionOptions::default();
    let own = [
        open(&nodes, &pair.a, &pair.b, &options),
        open(&nodes, &pair.a, &pair.b, &options),
    ];
    let (qa, qb) = (src_qp(&pair.a, None), src_qp(&pair.b, None));
    let route = qa.route(&own[0], qb.qpn()).unwrap();
    let mut stream = Stream::new(&pair, &qa, &qb, route);
    for round in 1..20 {
        qa.bind_route(route, &own[round % 2]).unwrap();
        // The first of these may have been under way before.
        stream.run(2 * DEPTH);
        assert_eq!(own[round % 2].stats().unwrap().flows, 1, "round {round}");
    }
    stream.finish();
    let error = qa.bind_route(7, &own[0]).unwrap_err();
    let expected = VerbsError::UnknownRoute {
        qpn: qa.qpn().get(),
        route: 7,
    };
    assert!(
        matches!(error, Error::Verbs(found) if found == expected),
        "{error:?}"
    );
}

#[test]
fn closing_a_connection_under_traffic_loses_nothing() {
    let pair = Pair::new();
    let nodes = [&pair.a.node, &pair.b.node];
    let (qa, qb) = pair.qps();
    let mut stream = Stream::new(&pair, &qa, &qb, 0);
    stream.run(10);
    for round in 1..=10 {
        // By turns the end that sends and the end that receives closes.
        let end = [&pair.a, &pair.b][round % 2];
        let other = [&pair.b, &pair.a][round % 2].node.gid().address();
        let own = open(&nodes, &pair.a, &pair.b, &ConnectionOptions::default());
        qa.bind(&own).unwrap();
        stream.run(5);
        let carrying = end.node.connections(other);
        assert!(!carrying.is_empty());
        for connection in carrying {
            connection.close();
        }
        stream.run(20);
        until(&nodes, "the closed connection to be gone", || {
            !own.is_open()
        });
    }
    stream.finish();
    assert!(
        pair.a.node.counters().failovers >= 10,
        "{:?}",
        pair.a.node.counters().failovers
    );
    assert_eq!((qa.state(), qb.state()), (QpState::Rts, QpState::Rts));
}

#[test]
fn dropping_the_handle_closes_what_the_program_opened() {
    let pair = Pair::new();
    let nodes = [&pair.a.node, &pair.b.node];
    let own = open(&nodes, &pair.a, &pair.b, &ConnectionOptions::default());
    let (qa, qb) = pair.qps();
    let mut stream = Stream::new(&pair, &qa, &qb, 0);
    stream.run(10);
    qa.bind(&own).unwrap();
    stream.run(10);
    drop(own);
    stream.run(10);
    stream.finish();
    until(&nodes, "one connection to be left", || {
        pair.a.node.connection_count() == 1 && pair.b.node.connection_count() == 1
    });
}

#[test]
fn a_connection_to_nobody_says_why_it_failed() {
    let a = End::new(inline());
    let nobody = common::address();
    let own = a
        .node
        .open_connection(nobody, &ConnectionOptions::default())
        .unwrap();
    let error = own.stats().unwrap_err().to_string();
    assert_eq!(
        error,
        format!("no shared connection to {nobody}: it is still being opened")
    );
    until(&[&a.node], "the question to fail", || {
        own.state() != ConnectionState::Opening
    });
    assert_eq!(own.state(), ConnectionState::Failed(NoConnection::Nobody));
    let error = own.stats().unwrap_err().to_string();
    assert_eq!(
        error,
        format!("no shared connection to {nobody}: no node runs there")
    );
}

#[test]
fn a_qp_is_not_bound_to_another_peers_connection() {
    let pair = Pair::new();
    let c = End::new(inline());
    let nodes = [&pair.a.node, &pair.b.node, &c.node];
    let to_c = open(&nodes, &pair.a, &c, &ConnectionOptions::default());
    let (qa, _qb) = pair.qps();
    pair.a
        .post(&qa, 1, SendOp::Write(pair.b.mr.remote(TARGET)), 0, 64);
    assert_eq!(pair.next(&pair.a.send_cq).status, Status::Success);
    let error = qa.bind(&to_c).unwrap_err();
    let expected = VerbsError::OtherPeer {
        qpn: qa.qpn().get(),
    };
    assert!(
        matches!(error, Error::Verbs(found) if found == expected),
        "{error:?}"
    );
    let error = qa.route(&to_c, qa.qpn()).unwrap_err();
    assert!(
        matches!(error, Error::Verbs(VerbsError::NotShared { .. })),
        "{error:?}"
    );
}

#[test]
fn idle_connections_beyond_the_first_of_a_pool_close() {
    let idle = || inline().pool(2).idle_timeout(Duration::from_millis(100));
    let pair = Pair {
        a: End::new(idle()),
        b: End::new(idle()),
    };
    let qps: Vec<_> = (0..1100).map(|_| pair.qps()).collect();
    pair.until("a second connection", || {
        pair.a.node.connection_count() == 2
    });
    assert_eq!(
        pair.a.node.connections(pair.b.node.gid().address()).len(),
        2
    );
    drop(qps);
    let counts = || {
        (
            pair.a.node.connection_count(),
            pair.b.node.connection_count(),
        )
    };
    pair.until("one to close", || counts() == (1, 1));
    // They are looked for every second; the last one stays.
    pair.run_for(Duration::from_millis(1200));
    assert_eq!(counts(), (1, 1));
}

/// Its consent names the life that the QP was in then.
#[test]
fn who_is_agreed_to_in_a_handshake_is_served_though_another_route_ends_meanwhile() {
    let pair = Pair::new();
    let (a, b, c) = (&pair.a, &pair.b, End::new(inline()));
    let hub = src_qp(b, None);
    let write = SendOp::Write(b.mr.remote(TARGET));
    let other = c.qp(&Default::default());
    other.connect(hub.address()).unwrap();
    c.post(&other, 1, write, 0, 8);
    let nodes = [&a.node, &b.node, &c.node];
    assert_eq!(next(&nodes, &c.send_cq).status, Status::Success);

    let asker = a.qp(&Default::default());
    asker.connect(hub.address()).unwrap();
    a.post(&asker, 2, write, 0, 8);
    // The ask leaves, and its answer.
    for node in [&a.node, &b.node] {
        let began = std::time::Instant::now();
        until(&[node], "a moment", || {
            began.elapsed() > Duration::from_millis(20)
        });
    }
    drop(other);
    until(&nodes[1..], "the other route to end", || {
        b.node.counters().routes_ended > 0
    });
    let done = next(&nodes, &a.send_cq);
    assert_eq!((done.wr_id, done.status), (2, Status::Success));
}
