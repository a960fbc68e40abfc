//! Nodes of several workers.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;
#[path = "workers/nic.rs"]
mod nic;

use common::faulty::{self, Fault};
use common::{End, Pair, address, ah_to, inline, next, pattern, src_qp, until};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use trunkline::rdma_cm::Params;
use trunkline::rdma_cm::sync::{Endpoint, Listener, Resources};
use trunkline::{
    Access, Allowed, AtomicOp, Attributes, Connection, ConnectionOptions, ConnectionState, Drive,
    Error, Extra, HandOvers, LiveObjects, NoConnection, Node, Qp, QpModify, QpOptions, QpState,
    QpType, SendOp, SendWr, Status, VerbsError,
};
use trunkline_dataplane::{MemoryConfig, MemoryPort};

fn pair(a: u8, b: u8) -> Pair {
    Pair {
        a: End::new(inline().workers(a)),
        b: End::new(inline().workers(b)),
    }
}

/// Two nodes of two workers, each with a thread.
fn two_threaded() -> [End; 2] {
    [(); 2].map(|()| End::new(Node::builder().address(address()).workers(2)))
}

fn at(worker: u8) -> QpOptions {
    QpOptions {
        worker: Some(worker),
        ..QpOptions::default()
    }
}

fn connect(qa: &Qp, qb: &Qp) {
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
}

/// One QP at each worker of `a` connected to one at each worker of `b`.
fn all_pairs(a: &End, b: &End) -> Vec<(Qp, Qp)> {
    let mut qps = Vec::new();
    for i in 0..a.node.workers().count() {
        for j in 0..b.node.workers().count() {
            let (qa, qb) = (a.qp(&at(i)), b.qp(&at(j)));
            assert_eq!((qa.worker(), qb.worker()), (i, j));
            connect(&qa, &qb);
            qps.push((qa, qb));
        }
    }
    qps
}

/// All operations of `qa`, a QP of `a`, towards `qb`.
fn exchange(nodes: &[&Node], (a, qa): (&End, &Qp), (b, qb): (&End, &Qp), seed: u64) {
    const LENGTH: usize = 20_000;
    let data = pattern(seed, LENGTH);
    a.mr.write(0, &data).unwrap();
    b.receive(qb, 1, 100_000, LENGTH);
    a.post(qa, 2, SendOp::Send, 0, LENGTH);
    let received = next(nodes, &b.recv_cq);
    assert_eq!((received.status, received.qpn), (Status::Success, qb.qpn()));
    assert!(b.bytes(100_000, LENGTH) == data);
    let sent = next(nodes, &a.send_cq);
    assert_eq!((sent.status, sent.qpn), (Status::Success, qa.qpn()));
    let run = |op, offset, length| {
        a.post(qa, 3, op, offset, length);
        assert_eq!(next(nodes, &a.send_cq).status, Status::Success, "{op:?}");
    };
    run(SendOp::Write(b.mr.remote(200_000)), 0, LENGTH);
    assert!(b.bytes(200_000, LENGTH) == data);
    run(SendOp::Read(b.mr.remote(200_000)), 300_000, LENGTH);
    assert!(a.bytes(300_000, LENGTH) == data);
    b.mr.write(400_000, &seed.to_ne_bytes()).unwrap();
    let add = AtomicOp::FetchAdd { add: 7 };
    run(SendOp::Atomic(b.mr.remote(400_000), add), 500_000, 8);
    assert_eq!((a.word(500_000), b.word(400_000)), (seed, seed + 7));
    b.receive(qb, 6, 0, 0);
    run(SendOp::WriteImm(b.mr.remote(200_000), 77), 0, 100);
    assert_eq!(next(nodes, &b.recv_cq).extra, Extra::Immediate(77));
}

/// Nothing is held any more, at neither node.
fn all_gone(nodes: &[&Node]) {
    until(nodes, "nothing is left", || {
        let mut left = nodes.iter().map(|node| node.live_objects());
        left.all(|left| left == LiveObjects::default())
    });
}

fn every_worker_reaches_every_other(a: u8, b: u8) {
    let Pair { a, b } = pair(a, b);
    let nodes = [&a.node, &b.node];
    let qps = all_pairs(&a, &b);
    for (seed, (qa, qb)) in (1..).zip(&qps) {
        exchange(&nodes, (&a, qa), (&b, qb), seed);
        exchange(&nodes, (&b, qb), (&a, qa), seed + 100);
    }
    for end in [&a, &b] {
        assert!(end.node.connection_count() >= qps.len());
        // The kernel brings every packet to its worker.
        let HandOvers { packets, lost, .. } = end.node.hand_overs();
        assert_eq!((packets, lost), (0, 0));
    }
    drop(qps);
    all_gone(&nodes);
}

#[test]
fn two_workers_reach_two() {
    every_worker_reaches_every_other(2, 2);
}

#[test]
fn one_worker_reaches_two() {
    every_worker_reaches_every_other(1, 2);
}

#[test]
fn three_workers_reach_one() {
    every_worker_reaches_every_other(3, 1);
}

#[test]
fn three_workers_reach_four() {
    every_worker_reaches_every_other(3, 4);
}

#[test]
fn qps_are_dealt_to_the_workers_in_turn() {
    let end = End::new(inline().workers(3));
    let qps: Vec<_> = (0..6).map(|_| end.qp(&QpOptions::default())).collect();
    let workers: Vec<_> = qps.iter().map(Qp::worker).collect();
    assert_eq!(workers, [0, 1, 2, 0, 1, 2]);
    let refused = end.pd.create_qp(&end.send_cq, &end.recv_cq, &at(3));
    let Err(Error::Verbs(VerbsError::BadAttribute {
        what,
        value,
        allowed,
    })) = refused
    else {
        panic!("{refused:?}");
    };
    let wanted = ("worker", 3, Allowed::Range(0, 2));
    assert_eq!((what, value, allowed), wanted);
}

#[test]
fn a_program_is_told_which_worker_faces_that_of_a_known_peers_qp() {
    let Pair { a, b } = pair(2, 4);
    let (qa, qb) = (a.qp(&at(1)), b.qp(&at(3)));
    assert_eq!(
        a.node.worker_facing(&qb.address()),
        None,
        "nothing is known of the peer"
    );
    connect(&qa, &qb);
    exchange(&[&a.node, &b.node], (&a, &qa), (&b, &qb), 1);
    let faces = |worker| {
        let own = a.qp(&at(worker));
        b.node.worker_facing(&own.address())
    };
    assert!(matches!(faces(0), Some(0 | 2)) && matches!(faces(1), Some(1 | 3)));
    let facing = (0..4).map(|worker| a.node.worker_facing(&b.qp(&at(worker)).address()));
    assert!(facing.eq([Some(0), Some(1), Some(0), Some(1)]));
    let alone = End::new(inline());
    assert_eq!(alone.node.worker_facing(&qa.address()), None);
}

#[test]
fn counts_out_of_range_and_ports_that_do_not_match_are_refused() {
    for count in [0, 65] {
        let refused = inline().workers(count).build();
        assert!(matches!(
            refused,
            Err(Error::Verbs(VerbsError::BadAttribute { .. }))
        ));
    }
    let (port, _other) = MemoryPort::pair(MemoryConfig::default());
    let refused = inline().workers(2).build_on(Box::new(port));
    assert!(matches!(
        refused,
        Err(Error::Verbs(VerbsError::BadAttribute { .. }))
    ));
}

#[test]
fn qps_of_one_node_talk_across_its_workers() {
    let end = End::new(inline().workers(2));
    let nodes = [&end.node];
    for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let (qa, qb) = (end.qp(&at(i)), end.qp(&at(j)));
        connect(&qa, &qb);
        exchange(&nodes, (&end, &qa), (&end, &qb), 5);
    }
    all_gone(&nodes);
}

#[test]
fn a_key_that_a_peer_takes_away_at_one_worker_is_gone_at_all() {
    let Pair { a, b } = pair(1, 2);
    let nodes = [&a.node, &b.node];
    let qps = all_pairs(&a, &b);
    let access = Access::ALL | Access::REMOTE_INVALIDATE;
    let shared = b.pd.register(4096, access).unwrap();
    let target = shared.remote(0);
    for (qa, _) in &qps {
        a.post(qa, 1, SendOp::Write(target), 0, 64);
        assert_eq!(next(&nodes, &a.send_cq).status, Status::Success);
    }
    let ((first, at_first), (second, _)) = (&qps[0], &qps[1]);
    b.receive(at_first, 2, 0, 64);
    a.post(first, 3, SendOp::SendInvalidate(shared.rkey()), 0, 8);
    assert_eq!(next(&nodes, &a.send_cq).status, Status::Success);
    a.post(second, 4, SendOp::Write(target), 0, 64);
    assert_eq!(next(&nodes, &a.send_cq).status, Status::RemoteAccess);
}

#[test]
fn datagrams_and_unreliable_connections_reach_the_worker_that_they_name() {
    const QKEY: u32 = 0x1111_2222;
    let Pair { a, b } = pair(2, 3);
    let nodes = [&a.node, &b.node];
    let to_b = a.pd.create_ah(&ah_to(b.node.gid())).unwrap();
    for (i, j) in [(0, 0), (0, 2), (1, 1), (1, 2)] {
        let of = |kind, worker| QpOptions { kind, ..at(worker) };
        let (qa, qb) = (a.qp(&of(QpType::Ud, i)), b.qp(&of(QpType::Ud, j)));
        for qp in [&qa, &qb] {
            let attributes = Attributes {
                qkey: QKEY,
                ..Attributes::default()
            };
            let access = Access::LOCAL_READ;
            qp.modify(&QpModify::Init { access }).unwrap();
            qp.modify(&QpModify::Rtr(attributes)).unwrap();
            qp.modify(&QpModify::Rts(attributes)).unwrap();
        }
        b.receive(&qb, 7, 0, 200);
        a.post(&qa, 1, to_b.send(qb.qpn(), QKEY), 0, 100);
        let received = next(&nodes, &b.recv_cq);
        assert_eq!((received.wr_id, received.src_qp), (7, qa.qpn()));
        assert_eq!(next(&nodes, &a.send_cq).status, Status::Success);

        let (qa, qb) = (a.qp(&of(QpType::Uc, i)), b.qp(&of(QpType::Uc, j)));
        connect(&qa, &qb);
        b.receive(&qb, 8, 0, 200);
        a.post(&qa, 2, SendOp::Send, 0, 200);
        assert_eq!(next(&nodes, &b.recv_cq).wr_id, 8);
        assert_eq!(next(&nodes, &a.send_cq).status, Status::Success);
    }
    assert_eq!(b.node.hand_overs().packets, 0);
}

fn open(nodes: &[&Node], a: &End, qa: &Qp, b: &End, qb: &Qp) -> Connection {
    let options = ConnectionOptions {
        local: Some(qa.qpn()),
        remote: Some(qb.qpn()),
        ..ConnectionOptions::default()
    };
    let connection = common::open(nodes, a, b, &options);
    assert_eq!(connection.worker(), qa.worker());
    connection
}

fn routed(end: &End, qp: &Qp, route: u32, op: SendOp) {
    let sges = [end.mr.sge(0, 1000)];
    let request = SendWr::new(op).wr_id(1).sges(&sges).signaled().route(route);
    qp.post_send(&[request]).unwrap();
}

#[test]
fn programs_route_and_move_qps_over_connections_between_their_workers() {
    let Pair { a, b } = pair(2, 2);
    let nodes = [&a.node, &b.node];
    let qa = src_qp(&a, Some(1));
    for j in 0..2 {
        let qb = src_qp(&b, Some(j));
        let own = open(&nodes, &a, &qa, &b, &qb);
        let route = qa.route(&own, qb.qpn()).unwrap();
        routed(&a, &qa, route, SendOp::Write(b.mr.remote(0)));
        assert_eq!(next(&nodes, &a.send_cq).status, Status::Success);
        let second = open(&nodes, &a, &qa, &b, &qb);
        qa.bind_route(route, &second).unwrap();
        routed(&a, &qa, route, SendOp::Write(b.mr.remote(0)));
        assert_eq!(next(&nodes, &a.send_cq).status, Status::Success);
        assert!(second.stats().unwrap().delivery.counters.sent > 1);
        // To the other worker of the peer neither leads.
        let other = src_qp(&b, Some(1 - j));
        let refused = qa.route(&own, other.qpn());
        let Err(Error::Verbs(VerbsError::OtherWorker { remote })) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(remote, other.qpn().get());
        // Nor is it one for QPs of the other worker here.
        let stranger = src_qp(&a, Some(0));
        assert!(matches!(
            stranger.route(&own, qb.qpn()),
            Err(Error::NoConnection { .. })
        ));
    }
}

#[test]
fn qps_move_within_their_pair_of_workers_when_a_connection_closes() {
    let Pair { a, b } = pair(2, 2);
    let nodes = [&a.node, &b.node];
    let qps = all_pairs(&a, &b);
    for round in 0..3 {
        for (qa, _) in &qps {
            a.post(qa, round, SendOp::Write(b.mr.remote(0)), 0, 100_000);
        }
        for connection in a.node.connections(b.node.gid().address()) {
            connection.close();
        }
        for _ in &qps {
            assert_eq!(next(&nodes, &a.send_cq).status, Status::Success);
        }
    }
    assert!(a.node.counters().failovers >= qps.len() as u64);
    for (seed, (qa, qb)) in (1..).zip(&qps) {
        exchange(&nodes, (&b, qb), (&a, qa), seed);
    }
}

#[test]
fn a_peer_may_restart_with_other_workers() {
    let a = End::new(inline().workers(2).peer_timeout(Duration::from_millis(300)));
    let home = address();
    let node = |workers| {
        Node::builder()
            .address(home)
            .drive(Drive::Inline)
            .workers(workers)
    };
    let first = End::new(node(3));
    let old = all_pairs(&a, &first);
    for (qa, _) in &old {
        a.post(qa, 1, SendOp::Write(first.mr.remote(0)), 0, 64);
        assert_eq!(
            next(&[&a.node, &first.node], &a.send_cq).status,
            Status::Success
        );
    }
    let lost: Vec<_> = old.into_iter().map(|(qa, _)| qa).collect();
    drop(first);
    let second = End::new(node(2));
    let nodes = [&a.node, &second.node];
    for qa in &lost {
        a.post(qa, 2, SendOp::Write(second.mr.remote(0)), 0, 64);
    }
    for _ in &lost {
        assert_eq!(next(&nodes, &a.send_cq).status, Status::RetryExceeded);
    }
    assert!(lost.iter().all(|qa| qa.state() == QpState::Error));
    for (seed, (qa, qb)) in (1..).zip(&all_pairs(&a, &second)) {
        exchange(&nodes, (&a, qa), (&second, qb), seed);
    }
}

#[test]
fn what_one_worker_hears_of_a_peer_that_came_back_all_of_them_know() {
    let patience = Duration::from_secs(25);
    let a = End::new(inline().workers(2).peer_timeout(patience));
    let home = address();
    let (node, switch) = faulty::node(home, Node::builder().drive(Drive::Inline));
    let first = End::of(node);
    let old = all_pairs(&a, &first);
    for (seed, (qa, qb)) in (1..).zip(&old) {
        exchange(&[&a.node, &first.node], (&a, qa), (&first, qb), seed);
    }
    // It dies without a word, and comes back.
    switch.set(Fault::Silent);
    let (lost, gone): (Vec<_>, Vec<_>) = old.into_iter().unzip();
    drop((gone, first));
    let second = End::new(Node::builder().address(home).drive(Drive::Inline));
    let (qa, qb) = (a.qp(&at(0)), second.qp(&QpOptions::default()));
    connect(&qa, &qb);
    let nodes = [&a.node, &second.node];
    exchange(&nodes, (&a, &qa), (&second, &qb), 3);
    let started = Instant::now();
    until(&nodes, "the end of both workers' QPs", || {
        lost.iter().all(|qa| qa.state() == QpState::Error)
    });
    assert!(started.elapsed() < patience / 5);
}

#[test]
fn who_connects_while_a_restarted_peer_of_other_workers_opens_waits_for_it() {
    let a = End::new(inline());
    let home = address();
    let node = |workers| Node::builder().address(home).workers(workers);
    let start = |workers| End::new(node(workers).drive(Drive::Inline));
    let first = start(2);
    let nodes = [&a.node, &first.node];
    let (qa, qb) = (a.qp(&QpOptions::default()), first.qp(&at(0)));
    connect(&qa, &qb);
    exchange(&nodes, (&a, &qa), (&first, &qb), 1);
    drop((qb, first));
    // One of its QPs was the first worker's as they were before, the other one the second's.
    let second = start(1);
    let qps: Vec<Qp> = (0..64).map(|_| second.qp(&QpOptions::default())).collect();
    let of = |worker: u32| {
        let mut found = qps.iter().filter(|qp| qp.qpn().get() & 1 == worker);
        found.next().unwrap()
    };
    let (even, odd) = (of(0), of(1));
    let [qc, qd] = [(); 2].map(|()| a.qp(&QpOptions::default()));
    even.connect(qc.address()).unwrap();
    // It asks and is answered, and gets no time to confirm.
    second.node.poll().unwrap();
    let before = a.node.cm_stats().sent;
    until(&[&a.node], "an answer", || a.node.cm_stats().sent > before);
    qd.connect(odd.address()).unwrap();
    assert_eq!(qd.state(), QpState::Rts);
    qc.connect(even.address()).unwrap();
    odd.connect(qd.address()).unwrap();
    let nodes = [&a.node, &second.node];
    exchange(&nodes, (&a, &qd), (&second, odd), 2);
    exchange(&nodes, (&a, &qc), (&second, even), 3);
}

#[test]
fn what_comes_out_at_the_wrong_worker_is_handed_over() {
    // Worker 0 of one node sends to worker 0 of the other alone, and so do the two workers 1.
    let (mut east, mut west) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let (a, b) = MemoryPort::pair(MemoryConfig::default());
        east.push(Box::new(a) as Box<dyn trunkline::Port + Send>);
        west.push(Box::new(b) as Box<dyn trunkline::Port + Send>);
    }
    let node = |ports| inline().workers(2).build_on_all(ports).unwrap();
    let (a, b) = (End::of(node(east)), End::of(node(west)));
    let nodes = [&a.node, &b.node];
    for (seed, (qa, qb)) in (1..).zip(&all_pairs(&a, &b)) {
        exchange(&nodes, (&a, qa), (&b, qb), seed);
    }
    for node in nodes {
        let HandOvers {
            packets,
            management,
            lost,
        } = node.hand_overs();
        assert!(packets > 0 && management > 0 && lost == 0);
    }
}

/// Nodes on NICs that know nothing of workers, with a QP for each pair of workers.
fn on_nics(workers: [u8; 2], source_ports: u16, hashes: bool) -> [End; 2] {
    let ports = nic::pair(workers.map(usize::from), source_ports, hashes);
    let mut workers = workers.into_iter();
    ports.map(|ports| {
        let node = inline().workers(workers.next().unwrap());
        End::of(node.build_on_all(ports).unwrap())
    })
}

/// Packets that came out at the wrong worker, and those that came, while all QPs exchanged
/// something.
fn astray([a, b]: &[End; 2], qps: &[(Qp, Qp)]) -> (u64, u64) {
    let nodes = [&a.node, &b.node];
    let count = || {
        let astray = nodes
            .map(|node| node.hand_overs().packets)
            .iter()
            .sum::<u64>();
        (
            astray,
            nodes
                .map(|node| node.counters().received)
                .iter()
                .sum::<u64>(),
        )
    };
    let before = count();
    for (seed, (qa, qb)) in (1..).zip(qps) {
        exchange(&nodes, (a, qa), (b, qb), seed);
        exchange(&nodes, (b, qb), (a, qa), seed + 100);
    }
    let after = count();
    (after.0 - before.0, after.1 - before.1)
}

fn source_ports_changed(ends: &[End; 2]) -> u64 {
    ends.iter()
        .map(|end| end.node.counters().source_port_changed)
        .sum()
}

#[test]
fn connections_find_source_ports_that_bring_their_packets_to_the_right_worker() {
    for workers in [[4, 4], [1, 4], [3, 2]] {
        let ends = on_nics(workers, 128, true);
        let qps = all_pairs(&ends[0], &ends[1]);
        let begin = Instant::now();
        while astray(&ends, &qps).0 > 0 {
            assert!(begin.elapsed() < Duration::from_secs(30), "{workers:?}");
        }
        assert!(source_ports_changed(&ends) > 0, "{workers:?}");
        let (astray, received) = astray(&ends, &qps);
        assert!(100 * astray < received, "{astray} of {received}");
    }
}

#[test]
fn where_no_source_port_helps_each_is_tried_once_and_all_is_handed_over() {
    let ends = on_nics([2, 2], 16, false);
    let qps = all_pairs(&ends[0], &ends[1]);
    let mut tried = 0;
    for turn in 0.. {
        let (astray, _) = astray(&ends, &qps);
        assert!(astray > 0);
        let now = source_ports_changed(&ends);
        if turn > 10 && now == tried {
            break;
        }
        tried = now;
    }
    // Of connections whose packets get to the other worker, which is half of them.
    let at_wrong = qps.len() as u64 / 2 * 2;
    assert_eq!(tried, at_wrong * 15);
    assert!(ends.iter().all(|end| end.node.hand_overs().lost == 0));
}

#[test]
fn many_qps_spread_over_all_workers_of_threaded_nodes() {
    let ends = two_threaded();
    let [a, b] = &ends;
    let qps: Vec<_> = (0..200)
        .map(|_| {
            let (qa, qb) = (a.qp(&QpOptions::default()), b.qp(&QpOptions::default()));
            connect(&qa, &qb);
            (qa, qb)
        })
        .collect();
    for (qa, _) in &qps {
        a.post(qa, 1, SendOp::Write(b.mr.remote(0)), 0, 5000);
    }
    for _ in &qps {
        assert_eq!(next(&[], &a.send_cq).status, Status::Success);
    }
    let at_second = qps.iter().filter(|(qa, _)| qa.worker() == 1).count();
    assert_eq!(at_second, 100);
    drop(qps);
    all_gone(&[]);
}

#[test]
fn rdma_cm_connects_qps_of_all_workers() {
    const LIMIT: Duration = Duration::from_secs(20);
    let ends = two_threaded();
    let [a, b] = &ends;
    let to = SocketAddr::new(b.node.gid().address(), 7471);
    let listener = Listener::bind(&b.node, to, 16).unwrap();
    let options = QpOptions::default();
    let mut seen = [false; 2];
    for _ in 0..4 {
        let (asked, accepted) = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                let request = listener.get_request(&b.node, LIMIT).unwrap();
                request
                    .accept(&resources(b, &options), &params(), LIMIT)
                    .unwrap()
            });
            let asked =
                Endpoint::connect(&a.node, &resources(a, &options), to, &params(), LIMIT).unwrap();
            (asked, accepting.join().unwrap())
        });
        seen[usize::from(asked.qp().worker())] = true;
        b.receive(accepted.qp(), 1, 0, 100);
        a.post(asked.qp(), 2, SendOp::Send, 0, 100);
        assert_eq!(next(&[], &b.recv_cq).status, Status::Success);
        assert_eq!(next(&[], &a.send_cq).status, Status::Success);
        asked.disconnect(LIMIT).unwrap();
        accepted.wait_for_end(LIMIT).unwrap();
    }
    assert_eq!(seen, [true; 2]);
}

fn resources<'a>(end: &'a End, options: &'a QpOptions) -> Resources<'a> {
    Resources {
        pd: &end.pd,
        send_cq: &end.send_cq,
        recv_cq: &end.recv_cq,
        options,
    }
}

fn params() -> Params<'static> {
    Params::new(trunkline::Qpn::from_wire(0))
}

#[test]
fn a_node_that_shares_no_connections_shares_none_at_any_worker() {
    let plain = End::new(Node::builder().address(address()).workers(4).sharing(false));
    let [asker, _] = two_threaded();
    let qps: Vec<Qp> = (0..4).map(|worker| plain.qp(&at(worker))).collect();
    let to = plain.node.gid().address();
    let asked: Vec<Connection> = qps
        .iter()
        .map(|qp| {
            let options = ConnectionOptions {
                remote: Some(qp.qpn()),
                ..ConnectionOptions::default()
            };
            asker.node.open_connection(to, &options).unwrap()
        })
        .collect();
    let began = Instant::now();
    let refused = ConnectionState::Failed(NoConnection::NoNode);
    while !asked.iter().all(|conn| conn.state() == refused) {
        let states: Vec<_> = asked.iter().map(Connection::state).collect();
        assert!(began.elapsed() < Duration::from_secs(10), "{states:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(plain.node.connection_count(), 0);
}
