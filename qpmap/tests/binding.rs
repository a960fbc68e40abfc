//! How QPs find each other, and how they hear that the other is gone: everything that waits for a
//! word of the peer gets one.

use crate::common::{Pair, RingMemory};
use std::sync::{Arc, Mutex};
use trunkline_conn::mem::Access;
use trunkline_conn::time::{MILLISECOND, SECOND};
use trunkline_conn::work::{Remote, SendOp, Status};
use trunkline_qpmap::{Attributes, Event, QpModify, QpQueues, QpType};
use trunkline_wire::{IpFields, Opcode, Path, icrc};

type Qp = Arc<QpQueues<RingMemory>>;
type Datagrams = Vec<(Path, Vec<u8>)>;

fn modify(pair: &mut Pair, node: usize, qp: &Qp, change: &QpModify) {
    let engine = &mut pair.nodes[node].engine;
    engine.modify_qp(qp.qpn, change).expect("a legal step");
}

fn init(pair: &mut Pair, node: usize, qp: &Qp) {
    let access = Access::ALL;
    modify(pair, node, qp, &QpModify::Init { access });
}

fn destroy(pair: &mut Pair, node: usize, qp: &Qp) {
    let done = pair.nodes[node].engine.destroy_qp(qp.qpn);
    done.expect("it is there");
}

/// How the QP of node 1 ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Destroyed,
    Reset,
    Erred,
}

const ENDS: [End; 3] = [End::Destroyed, End::Reset, End::Erred];

fn end(pair: &mut Pair, qp: &Qp, how: End) {
    match how {
        End::Destroyed => destroy(pair, 1, qp),
        End::Reset => modify(pair, 1, qp, &QpModify::Reset),
        End::Erred => modify(pair, 1, qp, &QpModify::Error),
    }
}

fn send(pair: &Pair, qp: &Qp) {
    pair.post(0, qp, 1, SendOp::Send, &[pair.sge(0, 0, 64)]);
}

/// How the one request of node 0 ended; `None`: it has not.
fn outcome(pair: &Pair) -> Option<Status> {
    let done = pair.completions(0);
    assert!(done.len() <= 1, "{done:?}");
    done.first().map(|done| done.status)
}

/// Packets between the nodes are held up, and let go in any order.
struct Held(Arc<Mutex<[Datagrams; 2]>>);

impl Held {
    /// Holds up all counted packets from now on; acknowledgements are lost.
    fn new(pair: &mut Pair) -> Self {
        let held: Arc<Mutex<[Datagrams; 2]>> = Arc::default();
        let kept = Arc::clone(&held);
        pair.fate = Box::new(move |from, datagram| {
            if Opcode(datagram[0]) != Opcode::SRC_ACK {
                let mut kept = kept.lock().expect("nobody panics while it holds it");
                kept[from].push((path(from), datagram.to_vec()));
            }
            0
        });
        Self(held)
    }

    fn take(&self, from: usize) -> Datagrams {
        let mut held = self.0.lock().expect("nobody panics while it holds it");
        std::mem::take(&mut held[from])
    }

    /// A round of both nodes, and what node `from` said in it.
    fn said_by(&self, pair: &mut Pair, from: usize) -> Datagrams {
        pair.now = pair.now + 1_000;
        pair.step(from);
        pair.step(from);
        self.take(from)
    }
}

fn path(from: usize) -> Path {
    let address = |node: usize| std::net::IpAddr::from([10, 0, 0, 1 + node as u8]);
    Path {
        src: address(from),
        dst: address(1 - from),
        src_port: trunkline_wire::ROCE_PORT,
        traffic_class: 0,
        ip: IpFields::DEFAULT,
    }
}

fn let_all_through(pair: &mut Pair) {
    pair.fate = Box::new(|_, _| 1);
}

#[test]
fn a_bind_that_waits_is_answered_when_its_qp_ends_before_it_is_ready() {
    for how in [End::Destroyed, End::Erred] {
        let mut pair = Pair::new(1);
        let [a, b] = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
        init(&mut pair, 1, &b);
        pair.connect(0, &a, &b);
        send(&pair, &a);
        pair.run(MILLISECOND);
        assert_eq!(outcome(&pair), None);
        end(&mut pair, &b, how);
        pair.run(5 * MILLISECOND);
        assert_eq!(outcome(&pair), Some(Status::RetryExceeded), "{how:?}");
    }
}

#[test]
fn a_bind_that_waits_is_taken_up_by_the_next_life_of_its_qp() {
    let mut pair = Pair::new(1);
    let [a, b] = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    init(&mut pair, 1, &b);
    pair.connect(0, &a, &b);
    send(&pair, &a);
    pair.run(MILLISECOND);
    end(&mut pair, &b, End::Reset);
    pair.run(MILLISECOND);
    pair.connect(1, &b, &a);
    pair.receive(&b, 1, &[pair.sge(1, 0, 64)]);
    pair.run(5 * MILLISECOND);
    assert_eq!(outcome(&pair), Some(Status::Success));
    pair.receive(&a, 2, &[pair.sge(0, 0, 64)]);
    pair.post(1, &b, 2, SendOp::Send, &[pair.sge(1, 0, 64)]);
    pair.run(5 * MILLISECOND);
    let there = pair.completions(1);
    assert!(there.iter().all(|done| done.status == Status::Success));
    assert_eq!(there.len(), 2, "one received, one sent");
}

#[test]
fn when_the_asked_qp_ends_what_waits_for_it_fails_in_any_order_of_packets() {
    for how in ENDS {
        for consents in [false, true] {
            let mut pair = Pair::new(1);
            let [a, b] = pair.connected();
            let held = Held::new(&mut pair);
            send(&pair, &a);
            let bind = held.said_by(&mut pair, 0);
            // Node 1 takes the BIND; its consent leaves, or does not, before its QP ends.
            pair.deliver(1, &bind);
            let consent = if consents {
                held.said_by(&mut pair, 1)
            } else {
                Vec::new()
            };
            assert_eq!(consent.is_empty(), !consents);
            end(&mut pair, &b, how);
            let farewell = held.said_by(&mut pair, 1);
            pair.deliver(0, &farewell);
            pair.deliver(0, &consent);
            let_all_through(&mut pair);
            pair.run(200 * MILLISECOND);
            let outcome = outcome(&pair);
            assert_eq!(outcome, Some(Status::RetryExceeded), "{how:?}, {consents}");
        }
    }
}

#[test]
fn any_number_of_qps_may_ask_for_qps_that_are_gone() {
    const MANY: usize = 3000;
    let mut pair = Pair::new(1);
    let gone: Vec<Qp> = (0..MANY).map(|_| pair.qp(1, QpType::Rc)).collect();
    for qp in &gone {
        destroy(&mut pair, 1, qp);
    }
    for qp in &gone {
        let own = pair.qp(0, QpType::Rc);
        pair.connect(0, &own, qp);
        send(&pair, &own);
    }
    let mut ended = 0;
    for _ in 0..100 {
        pair.run(100 * MILLISECOND);
        loop {
            let done = pair.completions(0);
            ended += done.len();
            assert!(done.iter().all(|done| done.status == Status::RetryExceeded));
            if done.is_empty() {
                break;
            }
        }
    }
    assert_eq!(ended, MANY);
}

#[test]
fn any_number_of_qps_may_be_destroyed_under_requests_at_once() {
    const MANY: usize = 3000;
    let mut pair = Pair::new(1);
    let pairs: Vec<[Qp; 2]> = (0..MANY).map(|_| pair.connected()).collect();
    pair.run(5 * MILLISECOND);
    // The READs arrive, and no answer does before their QPs go.
    pair.fate =
        Box::new(|from, datagram| usize::from(from == 0 || Opcode(datagram[0]) == Opcode::SRC_ACK));
    let remote = Remote {
        addr: pair.nodes[1].buffer.addr,
        rkey: pair.nodes[1].key,
    };
    for [a, _] in &pairs {
        pair.post(0, a, 1, SendOp::Read(remote), &[pair.sge(0, 0, 64)]);
    }
    pair.run(20 * MILLISECOND);
    assert_eq!(pair.nodes[1].engine.counters().executed, MANY as u64);
    for [_, b] in &pairs {
        destroy(&mut pair, 1, b);
    }
    let_all_through(&mut pair);
    let mut ended = 0;
    for _ in 0..300 {
        pair.run(10 * MILLISECOND);
        ended += pair.completions(0).len();
    }
    assert_eq!(ended, MANY);
    let left = pair.nodes[1].engine.live_objects();
    assert_eq!((left.flows, left.control_messages), (0, 0), "{left:?}");
}

#[test]
fn strangers_do_not_keep_a_qp_from_its_peer() {
    for lived_before in [false, true] {
        let mut pair = Pair::new(1);
        let [a, b] = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
        if lived_before {
            let other = pair.qp(0, QpType::Rc);
            pair.connect(1, &b, &other);
            end(&mut pair, &b, End::Reset);
        }
        for _ in 0..20 {
            let stranger = pair.qp(0, QpType::Rc);
            pair.connect(0, &stranger, &b);
        }
        pair.run(MILLISECOND);
        pair.connect(0, &a, &b);
        send(&pair, &a);
        pair.run(MILLISECOND);
        pair.connect(1, &b, &a);
        pair.receive(&b, 1, &[pair.sge(1, 0, 64)]);
        pair.run(SECOND);
        assert_eq!(outcome(&pair), Some(Status::Success), "{lived_before}");
        let left = pair.nodes[1].engine.live_objects();
        assert_eq!(left.waiting_binds, 0);
    }
}

#[test]
fn a_peer_that_strangers_kept_waiting_hears_that_its_request_is_refused() {
    for named_another in [false, true] {
        let mut pair = Pair::new(1);
        let [a, b] = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
        if named_another {
            let other = pair.qp(0, QpType::Rc);
            pair.connect(1, &b, &other);
            end(&mut pair, &b, End::Reset);
        }
        for _ in 0..20 {
            let stranger = pair.qp(0, QpType::Rc);
            pair.connect(0, &stranger, &b);
        }
        pair.run(MILLISECOND);
        assert_eq!(pair.nodes[1].engine.live_objects().waiting_binds, 8);
        pair.connect(0, &a, &b);
        let wrong = Remote {
            addr: 0,
            rkey: trunkline_wire::Rkey(1),
        };
        pair.post(0, &a, 1, SendOp::Write(wrong), &[pair.sge(0, 0, 64)]);
        pair.run(MILLISECOND);
        pair.connect(1, &b, &a);
        pair.run(SECOND);
        let refused = Some(Status::RemoteAccess);
        assert_eq!(outcome(&pair), refused, "{named_another}");
    }
}

#[test]
fn a_bind_no_longer_waits_when_its_qp_is_gone() {
    let mut pair = Pair::new(1);
    let b = pair.qp(1, QpType::Rc);
    init(&mut pair, 1, &b);
    let strangers: Vec<Qp> = (0..6).map(|_| pair.qp(0, QpType::Rc)).collect();
    for stranger in &strangers {
        pair.connect(0, stranger, &b);
    }
    pair.run(MILLISECOND);
    assert_eq!(pair.nodes[1].engine.live_objects().waiting_binds, 6);
    for stranger in &strangers[..3] {
        destroy(&mut pair, 0, stranger);
    }
    pair.run(MILLISECOND);
    assert_eq!(pair.nodes[1].engine.live_objects().waiting_binds, 3);
    let address = std::net::IpAddr::from([10, 0, 0, 1]).into();
    pair.nodes[1].engine.drop_peer(address);
    pair.sent_by(1);
    assert_eq!(pair.nodes[1].engine.live_objects().waiting_binds, 0);
}

#[test]
fn the_bind_of_a_qp_is_heard_however_many_lives_its_number_had() {
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    pair.run(5 * MILLISECOND);
    for _ in 0..40_000 {
        modify(&mut pair, 0, &a, &QpModify::Reset);
    }
    pair.connect(0, &a, &b);
    pair.receive(&b, 1, &[pair.sge(1, 0, 64)]);
    send(&pair, &a);
    pair.run(50 * MILLISECOND);
    assert_eq!(outcome(&pair), Some(Status::Success));
}

/// Two QPs over so many connections. A message of the first was executed at the second, and from
/// then on all packets are held.
fn executed(connections: usize) -> (Pair, Qp, Qp, Held) {
    let mut pair = Pair::new(connections);
    let [a, b] = pair.connected();
    pair.run(5 * MILLISECOND);
    pair.receive(&b, 7, &[pair.sge(1, 0, 64)]);
    let held = Held::new(&mut pair);
    send(&pair, &a);
    let asked = held.said_by(&mut pair, 0);
    pair.deliver(1, &asked);
    assert_eq!(pair.completions(1).len(), 1, "it was executed");
    (pair, a, b, held)
}

#[test]
fn what_was_executed_succeeds_though_the_qp_ends_right_after_it() {
    for how in ENDS {
        for answered in [false, true] {
            let (mut pair, _, b, held) = executed(1);
            // The answer is under way, or not yet, and what comes after it overtakes it.
            let answer = if answered {
                pair.now = pair.now + 100_000;
                held.said_by(&mut pair, 1)
            } else {
                Vec::new()
            };
            end(&mut pair, &b, how);
            let farewell = held.said_by(&mut pair, 1);
            pair.deliver(0, &farewell);
            pair.deliver(0, &answer);
            let_all_through(&mut pair);
            pair.run(50 * MILLISECOND);
            assert_eq!(outcome(&pair), Some(Status::Success), "{how:?}, {answered}");
        }
    }
}

#[test]
fn what_was_executed_succeeds_though_the_next_message_finds_nobody() {
    let (mut pair, a, b, held) = executed(1);
    pair.post(0, &a, 2, SendOp::Send, &[pair.sge(0, 0, 64)]);
    let asked = held.said_by(&mut pair, 0);
    destroy(&mut pair, 1, &b);
    pair.deliver(1, &asked);
    let mut farewell = held.said_by(&mut pair, 1);
    // It is told in several packets, or in one; they may come in any order.
    farewell.reverse();
    pair.deliver(0, &farewell);
    let_all_through(&mut pair);
    pair.run(200 * MILLISECOND);
    let done = pair.completions(0);
    let told: Vec<_> = done.iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(told, [(1, Status::Success), (2, Status::RetryExceeded)]);
}

#[test]
fn what_was_executed_succeeds_though_the_next_life_of_its_qp_speaks_first() {
    let (mut pair, a, b, held) = executed(1);
    end(&mut pair, &b, End::Reset);
    let farewell = held.said_by(&mut pair, 1);
    pair.connect(1, &b, &a);
    let greeting = held.said_by(&mut pair, 1);
    pair.deliver(0, &greeting);
    pair.deliver(0, &farewell);
    let_all_through(&mut pair);
    pair.run(50 * MILLISECOND);
    assert_eq!(outcome(&pair), Some(Status::Success));
}

#[test]
fn a_refusal_is_told_though_the_qp_is_destroyed_right_after_it() {
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    pair.run(5 * MILLISECOND);
    let held = Held::new(&mut pair);
    let wrong = Remote {
        addr: 0,
        rkey: trunkline_wire::Rkey(1),
    };
    pair.post(0, &a, 1, SendOp::Write(wrong), &[pair.sge(0, 0, 64)]);
    let asked = held.said_by(&mut pair, 0);
    pair.deliver(1, &asked);
    destroy(&mut pair, 1, &b);
    let_all_through(&mut pair);
    pair.run(50 * MILLISECOND);
    assert_eq!(outcome(&pair), Some(Status::RemoteAccess));
}

#[test]
fn a_refusal_is_told_over_the_next_connection_when_one_dies_with_it() {
    for kind in [QpType::Rc, QpType::Src] {
        let mut pair = Pair::new(1);
        let [a, b] = [pair.qp(0, QpType::Rc), pair.qp(1, kind)];
        pair.connect(0, &a, &b);
        match kind {
            QpType::Src => pair.take_to_rts(1, &b, Attributes::default(), Attributes::default()),
            _ => pair.connect(1, &b, &a),
        }
        pair.run(5 * MILLISECOND);
        let held = Held::new(&mut pair);
        let wrong = Remote {
            addr: 0,
            rkey: trunkline_wire::Rkey(1),
        };
        pair.post(0, &a, 1, SendOp::Write(wrong), &[pair.sge(0, 0, 64)]);
        let asked = held.said_by(&mut pair, 0);
        pair.deliver(1, &asked);
        pair.now = pair.now + 100_000;
        held.said_by(&mut pair, 1);
        // The refusal is lost with the connection.
        pair.open();
        for (node, end) in pair.nodes.iter_mut().zip(pair.conns[0]) {
            node.engine.close_connection(end);
        }
        let_all_through(&mut pair);
        pair.run(50 * MILLISECOND);
        assert_eq!(outcome(&pair), Some(Status::RemoteAccess), "{kind:?}");
    }
}

#[test]
fn what_was_executed_is_told_over_the_next_connection_when_one_dies_with_the_qp() {
    let (mut pair, _, b, held) = executed(2);
    destroy(&mut pair, 1, &b);
    held.said_by(&mut pair, 1);
    // All that was said is lost with both ends of the connections it took; others take over.
    pair.open();
    for ends in [pair.conns[0], pair.conns[1]] {
        for (node, end) in pair.nodes.iter_mut().zip(ends) {
            node.engine.close_connection(end);
        }
    }
    let_all_through(&mut pair);
    pair.run(50 * MILLISECOND);
    assert_eq!(outcome(&pair), Some(Status::Success));
    assert_eq!(pair.nodes[1].engine.live_objects().flows, 0);
}

#[test]
fn a_search_for_numbers_of_qps_takes_hours() {
    let mut pair = Pair::new(1);
    let strangers: Vec<Qp> = (0..500).map(|_| pair.qp(0, QpType::Rc)).collect();
    let gone = pair.qp(1, QpType::Rc);
    destroy(&mut pair, 1, &gone);
    // Each asks for a QP that is not there, is refused, and asks for the next one.
    let refused_in = |pair: &mut Pair| {
        let (before, mut refused) = (pair.now, 0);
        while pair.now < before + SECOND {
            for stranger in &strangers {
                modify(pair, 0, stranger, &QpModify::Reset);
                pair.connect(0, stranger, &gone);
                send(pair, stranger);
            }
            pair.run(20 * MILLISECOND);
            loop {
                let done = pair.completions(0);
                refused += done.len();
                if done.is_empty() {
                    break;
                }
            }
        }
        refused
    };
    // Many QPs that end at once are told at once.
    let first = refused_in(&mut pair);
    assert!((4_000..6_000).contains(&first), "{first} in a second");
    // But 2^24 numbers take hours.
    let second = refused_in(&mut pair);
    assert!((900..1_200).contains(&second), "{second} in a second");
}

#[test]
fn a_qp_has_one_fatal_event_in_its_life() {
    /// BTH and extension header.
    const HEADERS: usize = 52;
    let mut pair = Pair::new(1);
    let [a, b] = pair.connected();
    pair.run(5 * MILLISECOND);
    let held = Held::new(&mut pair);
    send(&pair, &a);
    let asked = held.said_by(&mut pair, 0);
    let (path, template) = asked.last().expect("a SEND");
    let mut voids = Vec::new();
    // As many as before the number wraps.
    for i in 0..12u32 {
        let mut void = template[..HEADERS + icrc::LEN].to_vec();
        void[0] = Opcode::SRC_VOID.0;
        // Version 1, LAST and ABORT, without HCRC; another number each.
        void[12] = 0x15;
        let number = u32::from_be_bytes([0, void[9], void[10], void[11]]) + i;
        void[9..12].copy_from_slice(&number.to_be_bytes()[1..]);
        icrc::seal(path, 0, &mut void);
        voids.push((*path, void));
    }
    pair.deliver(1, &voids);
    let counters = pair.nodes[1].engine.counters();
    assert!(counters.void_received >= 1, "{counters:?}");
    assert_eq!(counters.void_received + counters.stale, 12);
    let mut events = 0;
    while let Some(event) = pair.nodes[1].engine.poll_event() {
        events += usize::from(matches!(event, Event::Qp { qpn, .. } if qpn == b.qpn));
    }
    assert_eq!(events, 1);
}

/// What may happen to the asked QP, or to packets, in a script.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// It gets ready and names its peer.
    Ready,
    End(End),
    /// A round of one node.
    Round(usize),
    /// What the asked node sends is held up until the end, and then overtaken by its own copies.
    Hold,
}

const STEPS: [Step; 7] = [
    Step::Ready,
    Step::End(End::Reset),
    Step::End(End::Erred),
    Step::End(End::Destroyed),
    Step::Round(0),
    Step::Round(1),
    Step::Hold,
];

#[test]
fn every_short_script_ends_as_the_model_of_binding_says() {
    const LENGTH: u32 = 5;
    let mut pair = Pair::new(1);
    let held: Arc<Mutex<(bool, Datagrams)>> = Arc::default();
    let kept = Arc::clone(&held);
    pair.fate = Box::new(move |from, datagram| {
        let mut kept = kept.lock().expect("nobody panics while it holds it");
        let holds = kept.0 && from == 1;
        if holds {
            kept.1.push((path(from), datagram.to_vec()));
        }
        usize::from(!holds)
    });
    for number in 0..STEPS.len().pow(LENGTH) {
        let step = |at: u32| STEPS[number / STEPS.len().pow(at) % STEPS.len()];
        let script: Vec<Step> = (0..LENGTH).map(step).collect();
        play(&mut pair, &held, &script);
    }
}

fn successes(pair: &Pair, node: usize) -> usize {
    let done = pair.completions(node);
    let succeeded = done.iter().filter(|done| done.status == Status::Success);
    succeeded.count()
}

fn play(pair: &mut Pair, held: &Mutex<(bool, Datagrams)>, script: &[Step]) {
    let [a, b] = [pair.qp(0, QpType::Rc), pair.qp(1, QpType::Rc)];
    pair.connect(0, &a, &b);
    send(pair, &a);
    let mut there = true;
    let mut received = 0;
    for step in script {
        // What was received is told as long as the life of the QP that received it.
        received += successes(pair, 1);
        match step {
            Step::Ready if there => {
                let state = pair.nodes[1].engine.query_qp(b.qpn);
                if state.is_ok_and(|(state, _)| state == trunkline_qpmap::QpState::Reset) {
                    pair.connect(1, &b, &a);
                    pair.receive(&b, 7, &[pair.sge(1, 0, 64)]);
                }
            }
            Step::End(End::Destroyed) if there => {
                destroy(pair, 1, &b);
                there = false;
            }
            Step::End(how) if there => {
                let change = match how {
                    End::Reset => QpModify::Reset,
                    _ => QpModify::Error,
                };
                // It may be in a state from which there is no such step.
                let _ = pair.nodes[1].engine.modify_qp(b.qpn, &change);
            }
            Step::Round(node) => {
                pair.now = pair.now + 1_000;
                pair.step(*node);
            }
            Step::Hold => held.lock().expect("nobody panics while it holds it").0 = true,
            Step::Ready | Step::End(_) => {}
        }
    }
    received += successes(pair, 1);
    // Who waits for a QP that may still get ready waits on.
    let state = pair.nodes[1].engine.query_qp(b.qpn);
    if state.is_ok_and(|(state, _)| state == trunkline_qpmap::QpState::Reset) {
        destroy(pair, 1, &b);
        there = false;
    }
    pair.now = pair.now + 1_000;
    pair.step(1);
    pair.step(1);
    let late = std::mem::take(&mut *held.lock().expect("nobody panics while it holds it")).1;
    pair.deliver(0, &late.into_iter().rev().collect::<Vec<_>>());
    pair.run(300 * MILLISECOND);
    let expected = match received + successes(pair, 1) {
        0 => Status::RetryExceeded,
        _ => Status::Success,
    };
    // A QP in error says so where it hears of a request, and its end where it has heard of a BIND.
    let outcome = outcome(pair).map(|status| match status {
        Status::RemoteOperation => Status::RetryExceeded,
        other => other,
    });
    assert_eq!(outcome, Some(expected), "{script:?}");
    destroy(pair, 0, &a);
    if there {
        destroy(pair, 1, &b);
    }
    pair.run(10 * MILLISECOND);
    for node in &pair.nodes {
        let left = node.engine.live_objects();
        let left = (
            left.flows,
            left.control_messages,
            left.waiting_binds,
            left.qps,
        );
        assert_eq!(left, (0, 0, 0, 0), "{script:?}");
    }
}
