//! What those hear who only watch an engine.

use crate::common::Pair;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use trunkline_conn::time::{Instant, MILLISECOND, SECOND};
use trunkline_conn::work::SendOp;
use trunkline_qpmap::{Cause, QpModify, QpType, Trace};

type Seen = Arc<Mutex<Vec<Trace>>>;

fn watch(pair: &mut Pair, node: usize) -> Seen {
    let seen = Seen::default();
    let notes = Arc::clone(&seen);
    pair.nodes[node].engine.observe(move |trace| {
        let mut notes = notes.lock().expect("no test panics while it holds it");
        notes.push(*trace);
    });
    seen
}

fn take(seen: &Seen) -> Vec<Trace> {
    std::mem::take(&mut *seen.lock().expect("no test panics while it holds it"))
}

#[test]
fn a_watcher_sees_how_two_qps_come_together() {
    let mut pair = Pair::new(0);
    let seen = watch(&mut pair, 0);
    pair.open();
    let conn = pair.conns[0][0];
    let [a, b] = pair.connected();
    pair.run(5 * MILLISECOND);
    let seen = take(&seen);
    let [
        Trace::Opened {
            conn: opened,
            private: false,
            ..
        },
        rest @ ..,
    ] = &seen[..]
    else {
        panic!("a connection comes first: {seen:?}")
    };
    assert_eq!(*opened, conn);
    let mut sent_at = None;
    let (mut received, mut bound) = (0, 0);
    for trace in rest {
        match *trace {
            Trace::BindSent {
                now,
                qpn,
                remote,
                conn: over,
                replay_epoch: 0,
                ..
            } => {
                assert_eq!((qpn, remote, over), (a.qpn, b.qpn, conn));
                sent_at = Some(now);
            }
            Trace::BindReceived { qpn, remote, .. } => {
                assert_eq!((qpn, remote), (a.qpn, b.qpn));
                received += 1;
            }
            Trace::Bound {
                now, qpn, remote, ..
            } => {
                assert_eq!((qpn, remote), (a.qpn, b.qpn));
                assert!(now >= sent_at.expect("the BIND goes before"));
                bound += 1;
            }
            other => panic!("{other:?} is not how QPs meet"),
        }
    }
    assert_eq!((received, bound), (1, 1));
}

#[test]
fn a_watcher_sees_moves_failovers_and_why_connections_end() {
    let mut pair = Pair::new(2);
    let [a, b] = pair.connected();
    let sges = [pair.sge(1, 0, 100), pair.sge(0, 0, 100)];
    pair.receive(&b, 1, &sges[..1]);
    pair.post(0, &a, 1, SendOp::Send, &sges[1..]);
    pair.run(5 * MILLISECOND);
    assert_eq!(pair.completions(1).len(), 1);
    let seen = watch(&mut pair, 0);
    let [first, second] = [pair.conns[0][0], pair.conns[1][0]];
    let engine = &mut pair.nodes[0].engine;
    engine.rebind(a.qpn, first).expect("it is open");
    let (qpn, conn) = (a.qpn, first);
    assert!(take(&seen).contains(&Trace::Moved { qpn, conn }));

    pair.nodes[0].engine.reclaim_connection(first);
    pair.nodes[0].engine.handle_doorbells();
    let told = take(&seen);
    let (cause, flows) = (Cause::Reclaimed, 1);
    let down = |trace: &Trace| match *trace {
        Trace::Down {
            conn, cause, flows, ..
        } => Some((conn, cause, flows)),
        _ => None,
    };
    assert_eq!(down(&told[0]), Some((first, cause, flows)));
    let failover = Trace::Failover {
        flow: 0,
        qpn: a.qpn,
        from: first,
        to: Some(second),
    };
    assert_eq!(told[1..], [failover]);

    // The flow asks for consent over the other one.
    pair.run(5 * MILLISECOND);
    let again = take(&seen);
    assert!(
        again.iter().any(|trace| matches!(trace,
        Trace::BindSent { qpn, conn, .. } if (*qpn, *conn) == (a.qpn, second))),
        "{again:?}"
    );
    assert!(
        again
            .iter()
            .any(|trace| matches!(trace, Trace::Bound { .. }))
    );

    // Nothing gets through any more: the peer is given up.
    pair.fate = Box::new(|_, _| 0);
    pair.post(0, &a, 2, SendOp::Send, &sges[1..]);
    pair.run(5 * SECOND);
    let told = take(&seen);
    let found: Vec<_> = told.iter().filter_map(down).collect();
    assert_eq!(found, [(second, Cause::Dead, 1)]);
    let stranded = Trace::Failover {
        flow: 0,
        qpn: a.qpn,
        from: second,
        to: None,
    };
    assert!(told.contains(&stranded));
}

#[test]
fn what_a_peer_says_is_told_apart_from_what_this_end_does() {
    let mut pair = Pair::new(2);
    let seen = watch(&mut pair, 1);
    let [mine, other] = [pair.conns[0], pair.conns[1]];
    pair.nodes[0].engine.close_connection(mine[0]);
    pair.run(MILLISECOND);
    pair.nodes[1].engine.close_connection(other[1]);
    let told = take(&seen);
    let causes: Vec<_> = told
        .iter()
        .map(|trace| match trace {
            Trace::Down { cause, .. } => *cause,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(causes, [Cause::Peer, Cause::Local]);
}

/// BINDs of many QPs that nobody answers are said again, each when its own pause is over: 50 ms at
/// first, then twice as long each time; and one that was answered never is.
#[test]
fn each_bind_without_an_answer_is_said_again_after_its_own_pause() {
    const MANY: usize = 1000;
    let mut pair = Pair::new(1);
    let seen = watch(&mut pair, 0);
    let qps: Vec<_> = (0..MANY)
        .map(|_| [0, 1].map(|node| pair.qp(node, QpType::Rc)))
        .collect();
    for [_, there] in &qps {
        let engine = &mut pair.nodes[1].engine;
        let access = trunkline_conn::mem::Access::ALL;
        let done = engine.modify_qp(there.qpn, &QpModify::Init { access });
        done.expect("a legal step");
    }
    for [here, there] in &qps {
        pair.connect(0, here, there);
        pair.run(10_000);
    }
    let [answered, answers] = &qps[MANY / 2];
    pair.connect(1, answers, answered);
    pair.run(400 * MILLISECOND);
    let mut said: BTreeMap<_, Vec<Instant>> = BTreeMap::new();
    for trace in take(&seen) {
        if let Trace::BindSent { now, qpn, .. } = trace {
            said.entry(qpn.get()).or_default().push(now);
        }
    }
    assert_eq!(
        said.remove(&answered.qpn.get()).map(|times| times.len()),
        Some(1)
    );
    assert_eq!(said.len(), MANY - 1);
    for (qpn, times) in said {
        let pauses: Vec<_> = times
            .windows(2)
            .map(|two| two[1].as_nanos() - two[0].as_nanos())
            .collect();
        // 50 ms, 100 ms, 200 ms, and what a round of the loop takes.
        assert_eq!(pauses.len(), 3, "QP {qpn}: {times:?}");
        for (pause, wanted) in pauses.into_iter().zip([50, 100, 200]) {
            let late = pause.checked_sub(wanted * MILLISECOND);
            assert!(late.is_some_and(|late| late < MILLISECOND), "{pause} ns");
        }
    }
}
