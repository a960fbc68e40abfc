//! Peers' QPs that leave in order: the QP here stays as it is, its program hears so once, and what
//! it wants of them fails after a while. Ends that are none in order are told at once.

use crate::common::managed::{managed, post as post_routed, route, told, write};
use crate::common::{Pair, RingMemory};
use std::net::IpAddr;
use std::sync::Arc;
use trunkline_conn::time::{Instant, MILLISECOND, SECOND};
use trunkline_conn::work::{Remote, SendOp, Status, VendorError};
use trunkline_qpmap::{Event, QpModify, QpQueues, QpState, QpType};
use trunkline_wire::{Opcode, Qpn};

type Qp = Arc<QpQueues<RingMemory>>;

/// How long a request waits for another life of a QP that has left, and where it has certainly not
/// waited for that.
pub(crate) const GRACE: u64 = 100 * MILLISECOND;
const AT_ONCE: u64 = 20 * MILLISECOND;

/// Where node 1 is.
const PEER_ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

/// In which way the QP of node 1 leaves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Leaving {
    Destroyed,
    Reset,
    /// Its node is shut down: it goes to ERROR first.
    NodeShutDown,
    /// The last handle of its node is dropped, and nothing but the goodbye says so.
    NodeDropped,
}

const LEAVINGS: [Leaving; 4] = [
    Leaving::Destroyed,
    Leaving::Reset,
    Leaving::NodeShutDown,
    Leaving::NodeDropped,
];

fn leave(pair: &mut Pair, qp: &Qp, how: Leaving) {
    let engine = &mut pair.nodes[1].engine;
    match how {
        Leaving::Destroyed => engine.destroy_qp(qp.qpn).expect("it is there"),
        Leaving::Reset => {
            let reset = engine.modify_qp(qp.qpn, &QpModify::Reset);
            reset.expect("any state");
        }
        Leaving::NodeShutDown => {
            engine.end_qp(qp.qpn, false);
            pair.step(1);
            pair.nodes[1].engine.say_goodbye(false);
        }
        Leaving::NodeDropped => engine.say_goodbye(false),
    }
}

/// How often the program of node `node` hears that the peer of a QP is gone, and nothing else of
/// QPs.
fn gone(pair: &mut Pair, node: usize) -> usize {
    let engine = &mut pair.nodes[node].engine;
    let events: Vec<Event> = std::iter::from_fn(|| engine.poll_event()).collect();
    let failed = |event: &&Event| matches!(event, Event::QpFailed { .. });
    assert_eq!(events.iter().find(failed), None, "{events:?}");
    let gone = |event: &&Event| matches!(event, Event::PeerQpGone { .. });
    events.iter().filter(gone).count()
}

fn state(pair: &Pair, node: usize, qp: &Qp) -> QpState {
    let query = pair.nodes[node].engine.query_qp(qp.qpn);
    query.expect("it is there").0
}

fn send(pair: &Pair, qp: &Qp, wr_id: u64) {
    pair.post(0, qp, wr_id, SendOp::Send, &[pair.sge(0, 0, 64)]);
}

/// When node 0 has completions, how long after `since` that is, and what they are.
fn ends(pair: &mut Pair, since: Instant) -> (u64, Vec<(Status, VendorError)>) {
    while pair.now.since(since) < 10 * SECOND {
        pair.run(MILLISECOND);
        let done = pair.completions(0);
        if !done.is_empty() {
            let done = done.iter().map(|done| (done.status, done.vendor_err));
            return (pair.now.since(since), done.collect());
        }
    }
    panic!("it waits for ever");
}

/// Two QPs that have talked to each other, each with two receives; those of node 0 are left.
fn acquainted() -> (Pair, [Qp; 2]) {
    let mut pair = Pair::new(1);
    let qps = pair.connected();
    for (node, qp) in qps.iter().enumerate() {
        for wr_id in [1, 2] {
            pair.receive(qp, wr_id, &[pair.sge(node, 512, 64)]);
        }
    }
    send(&pair, &qps[0], 7);
    pair.run(10 * MILLISECOND);
    assert_eq!(pair.completions(0).len() + pair.completions(1).len(), 2);
    assert_eq!(gone(&mut pair, 0), 0);
    (pair, qps)
}

const GONE: (Status, VendorError) = (Status::RetryExceeded, VendorError::QpGone);

fn failed_in_time(how: impl std::fmt::Debug, (took, done): (u64, Vec<(Status, VendorError)>)) {
    assert_eq!(done[0], GONE, "{how:?}");
    let rest = done[1..].iter();
    assert!(rest.clone().all(|(status, _)| *status == Status::Flushed));
    assert!((GRACE..3 * GRACE).contains(&took), "{how:?}: {took} ns");
}

#[test]
fn a_qp_that_is_left_stays_as_it_is_and_its_program_hears_so_once() {
    for how in LEAVINGS {
        let (mut pair, [ours, theirs]) = acquainted();
        leave(&mut pair, &theirs, how);
        pair.run(5 * SECOND);
        assert_eq!(gone(&mut pair, 0), 1, "{how:?}");
        assert_eq!(state(&pair, 0, &ours), QpState::Rts, "{how:?}");
        assert_eq!(pair.completions(0), [], "{how:?}: receives stay posted");
        pair.nodes[0]
            .engine
            .destroy_qp(ours.qpn)
            .expect("it is there");
        pair.run(SECOND);
        let left = pair.nodes[0].engine.live_objects();
        assert!(
            left.named().all(|(_, count)| count == 0),
            "{how:?}: {left:?}"
        );
    }
}

#[test]
fn what_is_posted_to_a_qp_that_has_left_fails_after_a_while_and_then_the_receives_are_flushed() {
    for how in LEAVINGS {
        let (mut pair, [ours, theirs]) = acquainted();
        leave(&mut pair, &theirs, how);
        pair.run(SECOND);
        send(&pair, &ours, 8);
        let since = pair.now;
        let (took, done) = ends(&mut pair, since);
        assert_eq!(done.len(), 3, "{how:?}: the request, and two receives");
        failed_in_time(how, (took, done));
        assert_eq!(state(&pair, 0, &ours), QpState::Error, "{how:?}");
    }
}

#[test]
fn what_is_not_done_when_a_qp_leaves_fails_after_a_while_and_what_is_done_is_delivered() {
    for how in LEAVINGS {
        let (mut pair, [ours, theirs]) = acquainted();
        // One receive is left: the second request waits for its receiver.
        for wr_id in [8, 9, 10] {
            send(&pair, &ours, wr_id);
        }
        pair.run(10 * MILLISECOND);
        let done = pair.completions(0);
        assert!(done.len() == 1 && done[0].status == Status::Success);
        leave(&mut pair, &theirs, how);
        let since = pair.now;
        pair.run(5 * MILLISECOND);
        assert_eq!(gone(&mut pair, 0), 1, "{how:?}: while they wait");
        let (took, done) = ends(&mut pair, since);
        assert_eq!(done.len(), 4, "{how:?}: two requests, two receives");
        failed_in_time(how, (took, done));
    }
}

#[test]
fn what_was_executed_just_before_a_qp_left_succeeds_though_no_answer_was_said() {
    let (mut pair, [ours, theirs]) = acquainted();
    send(&pair, &ours, 8);
    let sent = pair.sent_by(0);
    pair.deliver(1, &sent);
    leave(&mut pair, &theirs, Leaving::Destroyed);
    pair.run(AT_ONCE);
    let done = pair.completions(0);
    assert_eq!((done.len(), done[0].status), (1, Status::Success));
    assert_eq!(state(&pair, 0, &ours), QpState::Rts);
}

/// What becomes of the connection between two QPs one of which has left the other.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Closed,
    Silent,
    Restarted,
    Failed,
}

#[test]
fn a_qp_that_was_left_outlives_its_connection_and_its_peers_node() {
    for loss in [Loss::Closed, Loss::Silent, Loss::Restarted, Loss::Failed] {
        for posts in [false, true] {
            let (mut pair, [ours, theirs]) = acquainted();
            leave(&mut pair, &theirs, Leaving::Destroyed);
            pair.run(10 * MILLISECOND);
            let [near, far] = &mut pair.nodes;
            match loss {
                Loss::Closed => near.engine.close_connection(pair.conns[0][0]),
                Loss::Silent => pair.fate = Box::new(|_, _| 0),
                Loss::Restarted => near.engine.drop_peer(PEER_ADDRESS.into()),
                Loss::Failed => far.engine.say_goodbye(true),
            }
            pair.run(30 * SECOND);
            assert_eq!(pair.nodes[0].engine.connections(), [], "{loss:?}");
            assert_eq!(pair.completions(0), [], "{loss:?}");
            assert_eq!(state(&pair, 0, &ours), QpState::Rts, "{loss:?}");
            if posts {
                send(&pair, &ours, 8);
                let since = pair.now;
                let ended = ends(&mut pair, since);
                failed_in_time(loss, ended);
            }
            let destroyed = pair.nodes[0].engine.destroy_qp(ours.qpn);
            destroyed.expect("it is there");
            pair.run(MILLISECOND);
            let left = pair.nodes[0].engine.live_objects();
            assert!(left.named().all(|(_, count)| count == 0), "{left:?}");
        }
    }
}

/// Ends that are none in order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Failure {
    Error,
    ErrorThenDestroyed,
    Abandoned,
    NodeFailed,
    NodeFailedSilently,
    NextIncarnation,
}

fn fail(pair: &mut Pair, qp: &Qp, how: Failure) {
    let [near, far] = &mut pair.nodes;
    match how {
        Failure::Error | Failure::ErrorThenDestroyed => {
            let error = far.engine.modify_qp(qp.qpn, &QpModify::Error);
            error.expect("any state");
            if how == Failure::ErrorThenDestroyed {
                far.engine.destroy_qp(qp.qpn).expect("it is there");
            }
        }
        Failure::Abandoned => far.engine.abandon_qp(qp.qpn).expect("it is there"),
        Failure::NodeFailed => {
            far.engine.end_qp(qp.qpn, true);
            pair.step(1);
            pair.nodes[1].engine.say_goodbye(true);
        }
        Failure::NodeFailedSilently => far.engine.say_goodbye(true),
        Failure::NextIncarnation => near.engine.drop_peer(PEER_ADDRESS.into()),
    }
}

#[test]
fn an_end_that_is_none_in_order_is_told_at_once() {
    for how in [
        Failure::Error,
        Failure::ErrorThenDestroyed,
        Failure::Abandoned,
        Failure::NodeFailed,
        Failure::NodeFailedSilently,
        Failure::NextIncarnation,
    ] {
        let (mut pair, [ours, theirs]) = acquainted();
        for wr_id in [8, 9] {
            send(&pair, &ours, wr_id);
        }
        pair.run(10 * MILLISECOND);
        assert_eq!(pair.completions(0).len(), 1);
        fail(&mut pair, &theirs, how);
        let since = pair.now;
        let (took, done) = ends(&mut pair, since);
        assert_eq!(done[0], GONE, "{how:?}");
        assert!(took < AT_ONCE, "{how:?}: {took} ns");
        assert_eq!(state(&pair, 0, &ours), QpState::Error, "{how:?}");
    }
}

#[test]
fn both_ends_may_leave_at_once_and_nothing_is_left() {
    let (mut pair, qps) = acquainted();
    for (node, qp) in qps.iter().enumerate() {
        let engine = &mut pair.nodes[node].engine;
        engine.destroy_qp(qp.qpn).expect("it is there");
    }
    pair.run(SECOND);
    for node in &pair.nodes {
        let left = node.engine.live_objects();
        assert!(left.named().all(|(_, count)| count == 0), "{left:?}");
    }
}

/// Loses every `nth` packet with control entries, and doubles every other.
fn bad_network(pair: &mut Pair, nth: usize) {
    let mut count = 0;
    pair.fate = Box::new(move |_, datagram| {
        if Opcode(datagram[0]) != Opcode::SRC_CONTROL {
            return 1;
        }
        count += 1;
        if count % nth == 0 { 0 } else { 1 + count % 2 }
    });
}

#[test]
fn a_last_word_that_gets_lost_or_comes_twice_or_after_a_failover_ends_in_the_same() {
    for nth in [2, 3, 5] {
        for fails_over in [false, true] {
            for posted in [false, true] {
                let (mut pair, [ours, theirs]) = acquainted();
                pair.open();
                pair.run(5 * MILLISECOND);
                bad_network(&mut pair, nth);
                leave(&mut pair, &theirs, Leaving::Destroyed);
                if fails_over {
                    pair.step(1);
                    for (node, conn) in pair.conns[0].into_iter().enumerate() {
                        pair.nodes[node].engine.close_connection(conn);
                    }
                }
                if posted {
                    send(&pair, &ours, 8);
                    let since = pair.now;
                    let (_, done) = ends(&mut pair, since);
                    assert_eq!(done[0], GONE, "{nth} {fails_over}");
                } else {
                    pair.run(2 * SECOND);
                    let known = (gone(&mut pair, 0), state(&pair, 0, &ours));
                    assert_eq!(known, (1, QpState::Rts), "{nth} {fails_over}");
                    assert_eq!(pair.completions(0), []);
                }
            }
        }
    }
}

/// What was lost with a connection is told over another one, and as what it was.
#[test]
fn a_leave_that_goes_down_with_its_connection_is_told_as_such_over_another() {
    let (mut pair, [ours, theirs]) = acquainted();
    pair.open();
    pair.run(5 * MILLISECOND);
    send(&pair, &ours, 8);
    send(&pair, &ours, 9);
    pair.run(10 * MILLISECOND);
    assert_eq!(pair.completions(0).len(), 1);
    pair.fate = Box::new(|_, _| 0);
    leave(&mut pair, &theirs, Leaving::Destroyed);
    pair.step(1);
    for (node, conn) in pair.conns[0].into_iter().enumerate() {
        pair.nodes[node].engine.close_connection(conn);
    }
    pair.fate = Box::new(|_, _| 1);
    let since = pair.now;
    let ended = ends(&mut pair, since);
    failed_in_time("told over another", ended);
}

#[test]
fn the_next_life_of_a_pair_works_as_the_first_one_did() {
    for how in [Leaving::Reset, Leaving::Destroyed] {
        let (mut pair, [ours, theirs]) = acquainted();
        leave(&mut pair, &theirs, how);
        pair.run(SECOND);
        assert_eq!(gone(&mut pair, 0), 1);
        let next = match how {
            Leaving::Reset => theirs,
            _ => pair.qp(1, QpType::Rc),
        };
        let reset = pair.nodes[0].engine.modify_qp(ours.qpn, &QpModify::Reset);
        reset.expect("any state");
        pair.connect(1, &next, &ours);
        pair.connect(0, &ours, &next);
        pair.receive(&next, 3, &[pair.sge(1, 0, 64)]);
        send(&pair, &ours, 8);
        pair.run(10 * MILLISECOND);
        let done = pair.completions(0);
        assert_eq!(
            (done.len(), done[0].status),
            (1, Status::Success),
            "{how:?}"
        );
        assert_eq!(gone(&mut pair, 0), 0);
        leave(&mut pair, &next, Leaving::Destroyed);
        pair.run(SECOND);
        assert_eq!(gone(&mut pair, 0), 1, "once for each life of ours");
    }
}

#[test]
fn a_request_that_waits_goes_to_the_next_life_where_nothing_of_it_went_to_the_last() {
    let (mut pair, [ours, theirs]) = acquainted();
    leave(&mut pair, &theirs, Leaving::Reset);
    pair.run(SECOND);
    send(&pair, &ours, 8);
    pair.run(GRACE / 2);
    assert_eq!(pair.completions(0), []);
    pair.connect(1, &theirs, &ours);
    pair.receive(&theirs, 3, &[pair.sge(1, 0, 64)]);
    pair.run(5 * GRACE);
    let done = pair.completions(0);
    assert_eq!((done.len(), done[0].status), (1, Status::Success));
    assert_eq!(state(&pair, 0, &ours), QpState::Rts);
}

#[test]
fn a_request_waits_though_one_before_it_has_waited_for_an_earlier_life() {
    let (mut pair, [ours, theirs]) = acquainted();
    leave(&mut pair, &theirs, Leaving::Reset);
    pair.run(SECOND);
    send(&pair, &ours, 8);
    pair.run(GRACE / 2);
    pair.connect(1, &theirs, &ours);
    pair.receive(&theirs, 3, &[pair.sge(1, 0, 64)]);
    pair.run(5 * GRACE);
    assert_eq!(pair.completions(0).len(), 1, "the next life takes it");
    leave(&mut pair, &theirs, Leaving::Reset);
    pair.run(SECOND);
    pair.connect(1, &theirs, &ours);
    pair.run(SECOND);
    // That life has no receive for it.
    send(&pair, &ours, 9);
    pair.run(10 * MILLISECOND);
    assert_eq!(pair.completions(0), []);
    leave(&mut pair, &theirs, Leaving::Reset);
    let since = pair.now;
    let ended = ends(&mut pair, since);
    failed_in_time("another life", ended);
}

#[test]
fn a_receive_that_holds_part_of_a_message_of_a_qp_that_has_left_stays_posted() {
    let mut pair = Pair::new(1);
    let [ours, theirs] = pair.connected();
    pair.run(10 * MILLISECOND);
    let part = pair.sge(1, 0, 60_000);
    // The tail of a long message does not arrive.
    for wr_id in [1, 2] {
        pair.receive(&ours, wr_id, &[pair.sge(0, 4096, 60_000)]);
    }
    let mut count = 0;
    pair.fate = Box::new(move |from, datagram| {
        let data = from == 1 && Opcode(datagram[0]) == Opcode::SRC_SEND;
        count += usize::from(data);
        usize::from(!data || count < 3)
    });
    let engine = &pair.nodes[0].engine;
    assert_eq!(engine.live_objects().assemblies, 0);
    pair.post(1, &theirs, 9, SendOp::Send, &[part]);
    pair.run(MILLISECOND);
    assert_eq!(pair.nodes[0].engine.live_objects().assemblies, 1);
    pair.fate = Box::new(|_, _| 1);
    leave(&mut pair, &theirs, Leaving::Destroyed);
    pair.run(SECOND);
    assert_eq!(pair.completions(0), [], "no receive is flushed");
    assert_eq!(
        (gone(&mut pair, 0), state(&pair, 0, &ours)),
        (1, QpState::Rts)
    );
    // All of them are when the QP goes to ERROR.
    let error = pair.nodes[0].engine.modify_qp(ours.qpn, &QpModify::Error);
    error.expect("any state");
    pair.run(MILLISECOND);
    assert_eq!(pair.completions(0).len(), 2);
}

#[test]
fn a_read_whose_peer_leaves_fails_as_other_requests_do() {
    let (mut pair, [ours, theirs]) = acquainted();
    let from = Remote {
        addr: pair.nodes[1].buffer.addr,
        rkey: pair.nodes[1].key,
    };
    pair.fate = Box::new(|from, datagram| {
        usize::from(from == 0 || Opcode(datagram[0]) != Opcode::SRC_READ_RESP)
    });
    pair.post(0, &ours, 8, SendOp::Read(from), &[pair.sge(0, 0, 64)]);
    pair.run(100_000);
    leave(&mut pair, &theirs, Leaving::NodeDropped);
    let since = pair.now;
    let ended = ends(&mut pair, since);
    failed_in_time("a READ", ended);
}

/// With a route ends nothing but what was posted to it.
#[test]
fn what_is_posted_to_a_route_whose_qp_has_left_fails_at_once() {
    let mut pair = Pair::new(1);
    let [hub, leaf] = [0, 1].map(|node| managed(&mut pair, node));
    let number = route(&mut pair, &hub, &leaf);
    let op = write(&pair);
    post_routed(&pair, &hub, 1, op, number);
    pair.run(10 * MILLISECOND);
    assert_eq!(told(&pair.completions(0)), [(1, Status::Success, number)]);
    leave(&mut pair, &leaf, Leaving::Destroyed);
    pair.run(10 * MILLISECOND);
    let op = write(&pair);
    post_routed(&pair, &hub, 2, op, number);
    pair.run(AT_ONCE);
    let failed = [(2, Status::RetryExceeded, number)];
    assert_eq!(told(&pair.completions(0)), failed);
    assert_eq!(gone(&mut pair, 0), 0);
}

/// A QP in RTR has nothing to send, and finds out when it has.
#[test]
fn a_qp_in_rtr_that_is_left_may_go_to_rts_and_hears_of_it_by_its_first_request() {
    let mut pair = Pair::new(1);
    let qps = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    pair.connect(1, &qps[1], &qps[0]);
    let attributes = |peer: Qpn| trunkline_qpmap::Attributes {
        remote: PEER_ADDRESS.into(),
        dest_qpn: peer,
        ..trunkline_qpmap::Attributes::default()
    };
    let engine = &mut pair.nodes[0].engine;
    for step in [
        QpModify::Init {
            access: trunkline_conn::mem::Access::ALL,
        },
        QpModify::Rtr(attributes(qps[1].qpn)),
    ] {
        engine.modify_qp(qps[0].qpn, &step).expect("a legal step");
    }
    pair.run(10 * MILLISECOND);
    leave(&mut pair, &qps[1], Leaving::Destroyed);
    pair.run(SECOND);
    assert_eq!(
        (gone(&mut pair, 0), state(&pair, 0, &qps[0])),
        (1, QpState::Rtr)
    );
    let rts = QpModify::Rts(attributes(qps[1].qpn));
    let engine = &mut pair.nodes[0].engine;
    engine.modify_qp(qps[0].qpn, &rts).expect("a legal step");
    send(&pair, &qps[0], 8);
    let since = pair.now;
    let ended = ends(&mut pair, since);
    failed_in_time("RTR", ended);
}
