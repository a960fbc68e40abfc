//! The pools of connections to peers: a peer is asked once what it is; connections come on demand,
//! grow in number, go when they are idle, and are others once the peer is. All in virtual time.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{End, Pair, address, inline, src_qp, turn};
use std::time::Duration;
use trunkline::{
    Builder, Clock, ConnectionOptions, ConnectionState, Event, Node, Qp, QpOptions, QpState,
    SendOp, Status,
};
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_dataplane::{MemoryConfig, MemoryPort};

/// Where received bytes go.
const TARGET: usize = 2 << 20;
/// QPs on one connection from which on the pool grows.
const CROWD: usize = 1024;
/// QPs that connect at the same time.
const PART: usize = 128;
/// What virtual time moves by in one round of the nodes.
const STEP: u64 = MILLISECOND / 10;
/// A node looks for idle connections this often.
const LOOK: u64 = SECOND;
/// Virtual time that nothing takes.
const PATIENCE: u64 = 30 * SECOND;
/// Connections close after so long.
const IDLE: u64 = 5 * SECOND;

/// Two nodes on a memory pair, and the time that both have.
struct Ends {
    pair: Pair,
    clock: Clock,
}

impl Ends {
    fn new(pool: u32) -> Self {
        Self::with(|builder| builder.pool(pool), |builder| builder.pool(pool))
    }

    fn with(a: impl FnOnce(Builder) -> Builder, b: impl FnOnce(Builder) -> Builder) -> Self {
        let clock = Clock::manual();
        let (near, far) = MemoryPort::pair(MemoryConfig::default());
        let end = |set: Builder, port| {
            let idle = Duration::from_nanos(IDLE);
            let set = set.clock(clock.clone()).idle_timeout(idle);
            End::of(set.build_on(Box::new(port)).unwrap())
        };
        let pair = Pair {
            a: end(a(inline()), near),
            b: end(b(inline()), far),
        };
        Self { pair, clock }
    }

    /// Both run until `done`.
    fn until(&self, what: &str, done: impl FnMut() -> bool) {
        let nodes = [&self.pair.a.node, &self.pair.b.node];
        until(&self.clock, &nodes, what, done);
    }

    fn run_for(&self, time_ns: u64) {
        let end = self.clock.now() + time_ns;
        self.until("time to pass", || self.clock.now() >= end);
    }

    /// `count` pairs of QPs, connected to each other.
    fn connect(&self, count: usize) -> Vec<(Qp, Qp)> {
        let bound = || [&self.pair.a, &self.pair.b].map(|end| end.node.counters().bound);
        let wanted = bound().map(|before| before + count as u64);
        let qps = (0..count).map(|_| self.pair.qps()).collect();
        self.until("all QPs to be bound", || bound() == wanted);
        qps
    }

    /// The same, some at a time, as programs come and go.
    fn connect_by_and_by(&self, count: usize) -> Vec<(Qp, Qp)> {
        let part = |at| self.connect(PART.min(count - at));
        (0..count).step_by(PART).flat_map(part).collect()
    }

    /// Nodes that have asked each other, so that no more has to be asked, with their first QPs.
    fn acquainted(pool: u32) -> (Self, (Qp, Qp)) {
        let ends = Self::new(pool);
        let (a, b) = (&ends.pair.a, &ends.pair.b);
        let (qa, qb) = (a.qp(&QpOptions::default()), b.qp(&QpOptions::default()));
        qa.connect(qb.address()).unwrap();
        ends.until("an answer", || ends.connections() == (1, 1));
        qb.connect(qa.address()).unwrap();
        ends.until("both to be bound", || {
            [a, b].map(|end| end.node.counters().bound) == [1, 1]
        });
        (ends, (qa, qb))
    }

    /// That a QP of node a reaches its peer.
    fn write(&self, qp: &Qp) {
        let Pair { a, b } = &self.pair;
        a.post(qp, 7, SendOp::Write(b.mr.remote(TARGET)), 0, 64);
        self.until("a WRITE", || {
            let done = a.send_cq.poll_one().unwrap();
            done.is_some_and(|done| {
                assert_eq!(done.status, Status::Success);
                true
            })
        });
    }

    fn connections(&self) -> (usize, usize) {
        let Pair { a, b } = &self.pair;
        (a.node.connection_count(), b.node.connection_count())
    }

    /// Management datagrams that each node has sent.
    fn said(&self) -> [u64; 2] {
        [&self.pair.a, &self.pair.b].map(|end| end.node.cm_stats().sent)
    }
}

fn until(clock: &Clock, nodes: &[&Node], what: &str, mut done: impl FnMut() -> bool) {
    let end = clock.now() + PATIENCE;
    while !done() {
        clock.set(clock.now() + STEP);
        turn(nodes);
        assert!(clock.now() < end, "still waiting for: {what}");
    }
}

#[test]
fn a_peer_is_asked_once_what_it_is() {
    let (ends, _first) = Ends::acquainted(1);
    // REQ and RTU; REP.
    assert_eq!(ends.said(), [2, 1]);
    let _more = ends.connect(200);
    ends.run_for(SECOND);
    assert_eq!(ends.said(), [2, 1]);
}

#[test]
fn an_ordinary_host_is_asked_again_only_when_its_answer_is_a_minute_old() {
    let ends = Ends::with(|a| a, |b| b.sharing(false));
    // REQ; REJ.
    ends.write(&ends.pair.qps().0);
    assert_eq!((ends.said(), ends.connections()), ([1, 1], (0, 0)));
    (0..5).for_each(|_| ends.write(&ends.pair.qps().0));
    (0..2).for_each(|_| ends.run_for(29 * SECOND));
    ends.write(&ends.pair.qps().0);
    assert_eq!(ends.said(), [1, 1]);
    ends.run_for(3 * SECOND);
    ends.write(&ends.pair.qps().0);
    assert_eq!(ends.said(), [2, 2]);
}

#[test]
fn a_connection_is_opened_when_the_first_qp_needs_one() {
    let ends = Ends::new(4);
    let Pair { a, b } = &ends.pair;
    let (qa, qb) = (a.qp(&QpOptions::default()), b.qp(&QpOptions::default()));
    ends.run_for(SECOND);
    assert_eq!((ends.connections(), ends.said()), ((0, 0), [0, 0]));
    qa.connect(qb.address()).unwrap();
    qb.connect(qa.address()).unwrap();
    ends.write(&qa);
    assert_eq!(ends.connections(), (1, 1));
    // The next ones do not.
    let _more = ends.connect(20);
    ends.run_for(SECOND);
    assert_eq!(ends.connections(), (1, 1));
}

#[test]
fn a_pool_grows_with_its_qps_up_to_its_limit() {
    for limit in 1..=3 {
        let ends = Ends::new(limit);
        let few = ends.connect_by_and_by(CROWD - 100);
        ends.run_for(SECOND);
        assert_eq!(ends.connections(), (1, 1), "few QPs, at most {limit}");
        let more = ends.connect_by_and_by(3 * CROWD);
        ends.run_for(SECOND);
        let limit = limit as usize;
        assert_eq!(ends.connections(), (limit, limit));
        for (qp, _) in [&few[0], &more[0], &more[3 * CROWD - 1]] {
            ends.write(qp);
        }
        // New ones go where there are fewest.
        let pool = ends
            .pair
            .a
            .node
            .connections(ends.pair.b.node.gid().address());
        let flows: Vec<_> = pool.iter().map(|one| one.stats().unwrap().flows).collect();
        assert_eq!(flows.iter().sum::<u32>() as usize, few.len() + more.len());
        assert!(flows.iter().all(|&flows| flows >= 900), "{flows:?}");
    }
}

#[test]
fn connections_that_come_later_take_over_qps_of_the_crowded_ones() {
    const QPS: usize = 3 * CROWD;
    let ends = Ends::new(3);
    // All at once: there is one connection when they are bound.
    let qps: Vec<_> = (0..QPS).map(|_| ends.pair.qps()).collect();
    let Pair { a, b } = &ends.pair;
    let word = |at: usize| at as u64 + 1;
    for (at, (qa, _)) in qps.iter().enumerate() {
        a.mr.write(at * 8, &word(at).to_ne_bytes()).unwrap();
        let there = SendOp::Write(b.mr.remote(TARGET + at * 8));
        a.post(qa, at as u64, there, at * 8, 8);
    }
    let mut done = 0;
    ends.until("all WRITEs", || {
        while let Some(found) = a.send_cq.poll_one().unwrap() {
            assert_eq!(found.status, Status::Success);
            done += 1;
        }
        done == QPS
    });
    assert!((0..QPS).all(|at| b.word(TARGET + at * 8) == word(at)));
    ends.run_for(2 * SECOND);
    for (near, far) in [(a, b), (b, a)] {
        let pool = near.node.connections(far.node.gid().address());
        let flows: Vec<_> = pool.iter().map(|one| one.stats().unwrap().flows).collect();
        assert_eq!(flows.len(), 3);
        assert_eq!(flows.iter().sum::<u32>() as usize, QPS);
        assert!(flows.iter().all(|&flows| flows >= 900), "{flows:?}");
    }
    for (qa, _) in qps.iter().step_by(7) {
        ends.write(qa);
    }
    assert_eq!(ends.pair.a.node.counters().failovers, 0);
    ends.run_for(IDLE + 2 * LOOK);
    assert_eq!(ends.connections(), (3, 3), "none is idle");
}

#[test]
fn qps_that_their_program_bound_stay_when_a_connection_comes_to_relieve_theirs() {
    let ends = Ends::new(2);
    let Pair { a, b } = &ends.pair;
    let pool = || a.node.connections(b.node.gid().address());
    let bound = ends.connect_by_and_by(300);
    let first = pool().remove(0);
    for (qa, _) in &bound {
        qa.bind(&first).unwrap();
    }
    // A route stays by itself.
    let (route, peer) = (src_qp(a, None), src_qp(b, None));
    assert_eq!(route.route(&first, peer.qpn()).unwrap(), 1);
    let at = bound[0].0.connection();
    let is_at = |qp: &Qp| qp.connection() == at;
    let others: Vec<_> = (0..2 * CROWD).map(|_| ends.pair.qps()).collect();
    ends.until("the second connection", || ends.connections() == (2, 2));
    ends.run_for(SECOND);
    assert!(bound.iter().all(|(qa, _)| is_at(qa)) && is_at(&route));
    let stayed = others.iter().filter(|(qa, _)| is_at(qa)).count();
    assert!((800..1000).contains(&stayed), "{stayed}");
    // When the connection that they were bound to goes, they are like all others.
    first.close();
    ends.until("the other to be left", || ends.connections() == (1, 1));
    let left = bound[0].0.connection();
    let more: Vec<_> = (0..CROWD).map(|_| ends.pair.qps()).collect();
    ends.run_for(2 * SECOND);
    let pool = pool();
    let flows: Vec<_> = pool.iter().map(|one| one.stats().unwrap().flows).collect();
    assert!(
        flows.len() == 2 && flows.iter().all(|&flows| flows >= 1000),
        "{flows:?}"
    );
    let mut bound_now = bound.iter().map(|(qa, _)| qa.connection());
    assert!(bound_now.any(|at| at != left));
    for (qa, _) in bound.iter().chain(&others).chain(&more).step_by(100) {
        ends.write(qa);
    }
}

#[test]
fn an_idle_connection_closes_and_comes_back_on_demand() {
    let (ends, first) = Ends::acquainted(2);
    for _ in 0..2 {
        let qps = ends.connect_by_and_by(CROWD + 200);
        ends.run_for(SECOND);
        assert_eq!(ends.connections(), (2, 2));
        // Connections that have QPs stay, however quiet they are.
        ends.run_for(IDLE + 2 * LOOK);
        assert_eq!(ends.connections(), (2, 2));
        ends.write(&qps[CROWD + 199].0);
        drop(qps);
        ends.run_for(IDLE - LOOK);
        assert_eq!(ends.connections(), (2, 2), "closed too early");
        ends.run_for(4 * LOOK);
        assert_eq!(ends.connections(), (1, 1));
        ends.write(&first.0);
    }
}

#[test]
fn a_peer_that_restarts_under_its_guid_has_other_connections() {
    let clock = Clock::manual();
    let at = [address(), address()];
    let start = |end: usize| {
        let dead_after = Duration::from_millis(300);
        let builder = inline().address(at[end]).guid(end as u64 + 1);
        End::new(builder.clock(clock.clone()).peer_timeout(dead_after))
    };
    let connected = |a: &End, b: &End| {
        let (qa, qb) = (a.qp(&QpOptions::default()), b.qp(&QpOptions::default()));
        qa.connect(qb.address()).unwrap();
        qb.connect(qa.address()).unwrap();
        (qa, qb)
    };
    let next = |a: &End, b: &End| {
        let mut found = None;
        until(&clock, &[&a.node, &b.node], "a completion", || {
            found = a.send_cq.poll_one().unwrap();
            found.is_some()
        });
        let found = found.unwrap();
        (found.wr_id, found.status)
    };
    let (a, first) = (start(0), start(1));
    let ((old, its_peer), (quiet, other)) = (connected(&a, &first), connected(&a, &first));
    let stale = SendOp::Write(first.mr.remote(TARGET));
    a.post(&old, 1, stale, 0, 64);
    assert_eq!(next(&a, &first), (1, Status::Success));
    drop((its_peer, other, first));

    let second = start(1);
    a.post(&old, 2, stale, 0, 64);
    a.post(&old, 3, stale, 0, 64);
    assert_eq!(next(&a, &second), (2, Status::RetryExceeded));
    assert_eq!(next(&a, &second), (3, Status::Flushed));
    // Those that had nothing to say hear so too, and stay: what they talked to has left.
    let told = std::iter::from_fn(|| a.node.poll_event());
    let gone = Event::PeerQpGone { qpn: quiet.qpn() };
    assert_eq!(told.filter(|event| *event == gone).count(), 1);
    assert_eq!(quiet.state(), QpState::Rts);
    let (qa, _qb) = connected(&a, &second);
    a.post(&qa, 4, SendOp::Write(second.mr.remote(TARGET)), 0, 64);
    assert_eq!(next(&a, &second), (4, Status::Success));
    assert_eq!(
        a.node.counters().executed,
        0,
        "nothing was asked of this end"
    );
    assert_eq!(second.node.counters().executed, 1, "nothing of the old QPs");
    assert_eq!(
        (a.node.cm_stats().down, second.node.cm_stats().down),
        (1, 0)
    );
    assert_eq!(
        (a.node.connection_count(), second.node.connection_count()),
        (1, 1)
    );
}

#[test]
fn qps_that_a_restarted_peers_connection_takes_over_ask_for_no_other() {
    let clock = Clock::manual();
    let at = [address(), address()];
    let start = |end: usize| End::new(inline().address(at[end]).clock(clock.clone()));
    let (a, first) = (start(0), start(1));
    let (qa, absent) = (a.qp(&QpOptions::default()), first.qp(&QpOptions::default()));
    // What it is connected to has not connected yet, so that it may be any incarnation's.
    qa.connect(absent.address()).unwrap();
    until(&clock, &[&a.node, &first.node], "a connection", || {
        a.node.connection_count() == 1
    });
    drop((absent, first));
    let second = start(1);
    let other = second.qp(&QpOptions::default());
    other.connect(qa.address()).unwrap();
    let nodes = [&a.node, &second.node];
    until(&clock, &nodes, "the new connection", || {
        second.node.connection_count() == 1
    });
    let end = clock.now() + SECOND;
    until(&clock, &nodes, "time to pass", || clock.now() >= end);
    assert_eq!(nodes.map(Node::connection_count), [1, 1]);
    assert_eq!(a.node.cm_stats().opened, 2);
    assert_eq!(qa.state(), QpState::Rts);
}

#[test]
fn qps_that_connect_at_once_to_a_known_peer_cost_few_packets() {
    const QPS: usize = 512;
    let (ends, _first) = Ends::acquainted(1);
    ends.run_for(SECOND);
    let sent = || [&ends.pair.a, &ends.pair.b].map(|end| end.node.counters().sent);
    let (before, said) = (sent(), ends.said());
    let qps = ends.connect(QPS);
    ends.run_for(10 * MILLISECOND);
    let after = sent();
    let packets = [after[0] - before[0], after[1] - before[1]];
    assert_eq!((ends.said(), ends.connections()), (said, (1, 1)));
    // Packets of control messages are so small that every path carries them: a question and an
    // answer for each QP, 20 bytes each, 1,024 in a packet.
    assert!(
        packets.iter().all(|&packets| packets <= QPS as u64 / 20),
        "{packets:?}"
    );
    // They may send without another round trip.
    for (qa, _) in [&qps[0], &qps[QPS - 1]] {
        ends.write(qa);
    }
}

/// Long after its handshake nothing but the connection itself says where in its pool it stands and
/// whose it is.
#[test]
fn a_connection_that_has_stood_for_long_is_all_that_is_kept_of_its_peer() {
    let ends = Ends::new(2);
    let Pair { a, b } = &ends.pair;
    let _crowd = ends.connect_by_and_by(CROWD - PART);
    let peer = b.qp(&QpOptions::default()).address().gid.address();
    let private = a.node.open_connection(peer, &ConnectionOptions::default());
    let private = private.unwrap();
    ends.until("a private connection", || private.is_open());
    let management = || [a, b].map(|end| end.node.state_bytes().management);
    let fresh = management();
    for _ in 0..1200 {
        ends.clock.set(ends.clock.now() + 10 * MILLISECOND);
        turn(&[&a.node, &b.node]);
    }
    let kept = management();
    assert!(kept[0] + 500 < fresh[0], "{kept:?} after {fresh:?}");
    assert!(kept[1] + 300 < fresh[1], "{kept:?} after {fresh:?}");
    // The peer is no stranger, and the next connection of the pool takes a place beside the first.
    let few = ends.connect(2 * PART);
    ends.run_for(SECOND);
    assert_eq!(ends.connections(), (3, 3));
    ends.write(&few[0].0);
    // The program hears of the end of its own.
    let own = a.qp(&QpOptions::default()).address().gid.address();
    b.node.connections(own).last().unwrap().close();
    ends.until("the end of the private connection", || !private.is_open());
    assert_eq!(private.state(), ConnectionState::Closed);
    assert_eq!(ends.connections(), (2, 2));
}

/// All that the manager keeps of it then is its count, for the limits.
#[test]
fn a_connection_that_has_stood_for_long_counts_until_it_ends_and_no_longer() {
    let ends = Ends::new(1);
    let nodes = [&ends.pair.a.node, &ends.pair.b.node];
    let standing = || {
        let handshakes = nodes.map(|node| node.cm_stats().handshakes);
        handshakes.map(|phases| phases.get("established").copied().unwrap_or(0))
    };
    drop(ends.connect(1));
    let kept = nodes.map(|node| node.state_bytes().management);
    for _ in 0..1200 {
        ends.clock.set(ends.clock.now() + 10 * MILLISECOND);
        turn(&nodes);
    }
    let less = |at: usize| nodes[at].state_bytes().management < kept[at];
    assert!(less(0) && less(1), "it was handed over");
    assert_eq!((ends.connections(), standing()), ((1, 1), [1, 1]));
    nodes[0].connections(nodes[1].gid().address())[0].close();
    ends.run_for(SECOND);
    assert_eq!((ends.connections(), standing()), ((0, 0), [0, 0]));
}

#[test]
fn state_is_counted_with_that_of_connection_management() {
    let ends = Ends::new(2);
    let state = || ends.pair.a.node.state_bytes();
    assert_eq!(state().total(), 0);
    let few = ends.connect(100);
    ends.run_for(SECOND);
    let one = state();
    assert_eq!((one.qps, one.connections), (100, 1));
    // A handshake, the peer, what became of the handshake, and a wheel for timers.
    assert!((32 + 40..4000).contains(&one.management), "{one:?}");
    // More QPs cost management nothing, another connection does.
    let more = ends.connect_by_and_by(CROWD - 200);
    ends.run_for(SECOND);
    assert_eq!(state().management, one.management);
    let last = ends.connect_by_and_by(200);
    ends.run_for(SECOND);
    let two = state();
    assert_eq!((two.qps, two.connections), (CROWD as u64 + 100, 2));
    let more_management = two.management - one.management;
    assert!(
        (32..500).contains(&more_management),
        "{two:?} after {one:?}"
    );
    assert_eq!(two.flows, two.qps, "each has one of its own");
    let qps = two.qps * (two.per_qp + two.per_flow);
    let beside = two.handles + two.spare + two.room + two.management;
    let parts = qps + two.per_connection * 2 + beside;
    assert_eq!(two.total(), parts);
    drop((few, more, last));
}
