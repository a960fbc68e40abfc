//! CQs that change their depth while they are in use.

use super::common::{End, PATIENCE, Pair, address};
use super::completions::{at, completing, connected, drain, pair_of_workers, write};
use super::verbs_error;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trunkline::{Completion, Cq, CqError, CqOverflow, Node, SendFlags, SendOp, Status, VerbsError};

/// The completions that a CQ has, by QP and in the order in which they come.
fn cookies(done: &[Completion]) -> Vec<u64> {
    done.iter().map(|done| done.wr_id).collect()
}

#[test]
fn a_cq_holds_as_many_completions_as_its_depth_says_and_overruns_with_one_more() {
    let pair = Pair::new();
    for (made, resized) in [(3, None), (1, Some(6)), (100, Some(3))] {
        let cq = pair.a.node.create_cq(made).unwrap();
        assert!(cq.depth() >= made);
        if let Some(depth) = resized {
            cq.resize(depth).unwrap();
        }
        let (depth, asked) = (cq.depth(), resized.unwrap_or(made));
        assert!(depth >= asked && depth < 2 * asked, "{depth} for {asked}");
        let (qa, _qb) = connected(&pair, &cq, 0);
        let count = u64::from(depth) + 1;
        completing(&pair, count, || {
            (0..count).for_each(|wr_id| write(&pair, &qa, wr_id));
        });
        let mut out = vec![Completion::BLANK; depth as usize + 1];
        assert_eq!(cq.poll(&mut out), Ok(depth as usize));
        assert_eq!(
            cq.poll(&mut out),
            Err(CqError::Overflow(CqOverflow { capacity: depth }))
        );
        // It stays in error, and as deep as it was.
        let refused = verbs_error(cq.resize(1024).unwrap_err());
        let index = cq.id().index();
        assert_eq!(refused, VerbsError::CqInError { cq: index });
        assert_eq!(
            cq.poll(&mut out),
            Err(CqError::Overflow(CqOverflow { capacity: depth }))
        );
        assert_eq!(cq.depth(), depth);
    }
}

#[test]
fn a_cq_is_not_made_smaller_than_what_is_in_it_and_keeps_all_of_it() {
    let pair = pair_of_workers(3);
    let cq = pair.a.node.create_cq(64).unwrap();
    let qps = [0, 1, 2].map(|worker| connected(&pair, &cq, worker));
    for (qp, count) in qps.iter().zip([4, 9, 6]) {
        completing(&pair, count, || {
            (0..count).for_each(|wr_id| write(&pair, &qp.0, wr_id));
        });
    }
    // The worker with most of them decides.
    let refused = verbs_error(cq.resize(8).unwrap_err());
    let (count, capacity) = (9, 8);
    assert_eq!(refused, VerbsError::TooManyCompletions { count, capacity });
    assert_eq!(cq.depth(), 64);
    cq.resize(9).unwrap();
    assert_eq!(cq.depth(), 16);
    let done = drain(&cq);
    for ((qp, _), count) in qps.iter().zip([4, 9, 6]) {
        let own: Vec<_> = done
            .iter()
            .filter(|one| one.qpn == qp.qpn())
            .copied()
            .collect();
        assert_eq!(cookies(&own), Vec::from_iter(0..count));
    }
    cq.resize(1).unwrap();
    completing(&pair, 1, || write(&pair, &qps[2].0, 77));
    assert_eq!(cookies(&drain(&cq)), [77]);
}

#[test]
fn a_depth_out_of_range_is_refused_and_the_cq_is_as_it_was() {
    let pair = Pair::new();
    let cq = pair.a.node.create_cq(8).unwrap();
    for depth in [0, u32::MAX] {
        let refused = verbs_error(cq.resize(depth).unwrap_err());
        let named = matches!(refused, VerbsError::BadAttribute { what: "cqe", value, .. }
            if value == u64::from(depth));
        assert!(named, "{refused}");
    }
    assert_eq!(cq.depth(), 8);
}

/// A program that waits in [`Cq::wait`] for what two workers complete, while another thread resizes
/// the CQ all the time.
#[test]
fn completions_come_once_and_in_order_while_the_cq_is_resized_under_a_program_that_waits() {
    const EACH: u64 = 3000;
    let threaded = || End::new(Node::builder().address(address()).workers(2));
    let (a, b) = (threaded(), threaded());
    let cq = a.node.create_cq(256).unwrap();
    let qps = [0, 1, 0, 1].map(|worker| {
        let (qa, qb) = (
            a.pd.create_qp(&cq, &cq, &at(worker)).unwrap(),
            b.qp(&at(worker)),
        );
        qa.connect(qb.address()).unwrap();
        qb.connect(qa.address()).unwrap();
        (qa, qb)
    });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut depth = 256;
            let mut resized = 0;
            while !stop.load(Ordering::Relaxed) {
                depth = depth * 7 % 1009 + 256;
                cq.resize(depth).unwrap();
                resized += 1;
                std::thread::sleep(Duration::from_micros(50));
            }
            assert!(resized > 10, "{resized} times");
        });
        let (mut posted, mut next) = ([0; 4], HashMap::new());
        let mut left = 4 * EACH;
        while left > 0 {
            // Never more under way than the CQ holds whatever its depth is.
            for ((qa, _), posted) in qps.iter().zip(&mut posted) {
                let seen = next.get(&qa.qpn()).copied().unwrap_or(0);
                while *posted < EACH && *posted - seen < 32 {
                    let op = SendOp::Write(b.mr.remote(super::TARGET));
                    a.try_post(qa, *posted, op, SendFlags::SIGNALED, 0, 64)
                        .unwrap();
                    *posted += 1;
                }
            }
            let done = cq.wait(PATIENCE).unwrap().expect("a completion");
            assert_eq!(done.status, Status::Success);
            let expected = next.entry(done.qpn).or_insert(0);
            assert_eq!(done.wr_id, *expected, "{}", done.qpn);
            *expected += 1;
            left -= 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(cq.poll_one(), Ok(None));
}

#[test]
fn a_cq_that_was_armed_before_it_was_resized_raises_its_event() {
    let pair = pair_of_workers(2);
    let cq: Cq = pair.a.node.create_cq(4).unwrap();
    let (qa, _qb) = connected(&pair, &cq, 1);
    completing(&pair, 1, || write(&pair, &qa, 1));
    assert_eq!(cookies(&drain(&cq)), [1]);
    cq.arm(false);
    cq.resize(32).unwrap();
    assert_eq!(cq.take_events(), 0);
    write(&pair, &qa, 2);
    let started = Instant::now();
    while cq.take_events() == 0 {
        pair.turn();
        assert!(started.elapsed() < PATIENCE, "no event");
    }
    assert_eq!(cookies(&drain(&cq)), [2]);
}
