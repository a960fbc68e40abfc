//! Tables of an engine with as many entries as asked for: what an entry costs from its beginning to
//! its end, which must not depend on how many there are.

mod crowd;
pub(crate) mod flows;
pub(crate) mod handshakes;
pub(crate) mod peers;
pub(crate) mod timers;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use trunkline_conn::mem::{Access, Memory, RegionMemory};
use trunkline_conn::secret::Secret;
use trunkline_conn::time::{Instant, MICROSECOND, SECOND};
use trunkline_conn::work::{Completion, SendFlags, SendOp, Status};
use trunkline_dataplane::Region;
use trunkline_pieces::pair::{End, Ends, PairConfig};
use trunkline_qpmap::QpQueues;
use trunkline_qpmap::cq::Writer;
use trunkline_qpmap::regions::RegionTable;
use trunkline_qpmap::wqe::{RecvWr, SendWr};

/// Longer than acknowledgements wait for company.
const ROUND_NS: u64 = 200 * MICROSECOND;

/// Two engines with `qps` connected QPs on one connection.
fn ends(qps: u32) -> (Ends, Instant) {
    let ends = Ends::new(&PairConfig {
        qps: qps as usize,
        ..PairConfig::default()
    });
    let now = ends.start();
    (ends, now)
}

/// Runs both ends until `done`.
fn run(ends: &mut Ends, now: &mut Instant, done: impl Fn(&Ends) -> bool) {
    let mut rounds = 0;
    while !done(ends) {
        *now = *now + ROUND_NS;
        ends.turn_at(*now);
        rounds += 1;
        assert!(rounds < 1_000_000, "nothing moves");
    }
}

/// Regions of one domain: registered, looked up by their keys, taken back.
pub(crate) fn regions(entries: u32) {
    let table = RegionTable::new(&Secret::from_seed(3));
    let (pd, mut regions) = (table.alloc_pd(), table.view());
    let qpn = trunkline_wire::Qpn::default();
    let by = trunkline_conn::mem::Responder { pd, qpn };
    let memory = Region::allocate(1 << 12).expect("a page");
    let addr = memory.addr();
    let keys: Vec<_> = (0..entries)
        .map(|_| {
            let registered = table.register(pd, memory.clone(), Access::ALL);
            registered.expect("there are keys left").rkey
        })
        .collect();
    for key in &keys {
        let found = regions.check_remote(by, *key, addr, 64, Access::REMOTE_WRITE);
        assert!(black_box(found).is_ok());
    }
    for key in keys {
        let mut taken = table.unregister(key).expect("it is there");
        taken.quiesced(&mut regions);
        black_box(taken.reclaim());
    }
}

/// Completions that stand in a CQ before its program looks.
pub(crate) fn completions(entries: u32) {
    let mut cq = Writer::<Arc<[AtomicU64]>>::new(entries).expect("a depth that there may be");
    for wr_id in 0..entries {
        let completion = Completion {
            wr_id: wr_id.into(),
            ..Completion::BLANK
        };
        cq.push(&completion).expect("it has room for all");
    }
    cq.publish();
    let mut out = [Completion::BLANK; 64];
    let mut left = entries as usize;
    while left > 0 {
        left -= black_box(cq.queue().poll(&mut out)).expect("it did not overrun");
    }
}

/// QPs of a CQ that goes to error.
pub(crate) fn users_of_a_failed_cq(entries: u32) {
    let (mut ends, mut now) = ends(entries);
    let node = &mut ends.nodes[0].engine;
    // The one CQ of each end is its first.
    assert!(node.fail_cq(node.cq_id(0)));
    run(&mut ends, &mut now, |ends| {
        let failed = |[ours, _]: &[Arc<_>; 2]| QpQueues::is_flushing(ours);
        ends.qps.last().is_none_or(failed)
    });
    black_box(ends);
}

/// QPs that are destroyed all at once, at one end.
pub(crate) fn destroyed_qps(entries: u32) {
    let (mut ends, mut now) = ends(entries);
    for [ours, _] in &ends.qps {
        let destroyed = ends.nodes[0].engine.destroy_qp(ours.qpn);
        destroyed.expect("it is there");
    }
    run(&mut ends, &mut now, |ends| {
        ends.nodes[0].engine.live_objects().flows == 0
    });
    black_box(ends);
}

/// Flows of a connection that goes, and move to another one.
pub(crate) fn moved_flows(entries: u32) {
    let (mut ends, mut now) = ends(entries);
    ends.open_connection(now, false);
    let [gone, heirs] = [ends.conns[0], ends.conns[1]];
    for (end, gone) in ends.nodes.iter_mut().zip(gone) {
        end.engine.close_connection(gone);
    }
    run(&mut ends, &mut now, |ends| {
        let stats = ends.nodes[0].engine.connection_stats(heirs[0]);
        stats.is_some_and(|stats| stats.flows == entries)
    });
    exchange(&mut ends, &mut now);
}

/// Flows that wait for another connection, until there is one.
pub(crate) fn stranded_flows(entries: u32) {
    let (mut ends, mut now) = ends(entries);
    let gone = ends.conns[0];
    for (end, gone) in ends.nodes.iter_mut().zip(gone) {
        end.engine.close_connection(gone);
    }
    ends.open_connection(now, false);
    exchange(&mut ends, &mut now);
}

/// A request on each QP, whose clocks run and run down.
pub(crate) fn watched_qps(entries: u32) {
    let (mut ends, mut now) = ends(entries);
    exchange(&mut ends, &mut now);
    now = now + 10 * SECOND;
    ends.turn_at(now);
    exchange(&mut ends, &mut now);
}

/// Connections that are there, are asked for a sign of life, and go.
pub(crate) fn connections(entries: u32) {
    let (mut ends, mut now) = ends(1);
    for _ in 0..entries {
        now = now + 20 * MICROSECOND;
        ends.open_connection(now, true);
    }
    // All of them are silent for longer than keep-alive allows, twice.
    let end = now + 25 * SECOND;
    while now < end {
        let due = |end: &End| end.engine.poll_timeout();
        let next = ends.nodes.iter().filter_map(due).min().unwrap_or(end);
        now = next.max(now + 20 * MICROSECOND);
        ends.turn_at(now);
    }
    for conn in ends.conns.clone().into_iter().rev() {
        for (end, conn) in ends.nodes.iter_mut().zip(conn) {
            end.engine.close_connection(conn);
        }
    }
    now = now + ROUND_NS;
    ends.turn_at(now);
    black_box(ends);
}

/// A SEND on each QP.
fn exchange(ends: &mut Ends, now: &mut Instant) {
    const LENGTH: u32 = 64;
    let (from, to) = (
        [ends.nodes[0].sge(0, LENGTH)],
        [ends.nodes[1].sge(0, LENGTH)],
    );
    let request = SendWr {
        wr_id: 2,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        sges: &from,
        inline: None,
        route: 0,
    };
    let receive = RecvWr {
        wr_id: 1,
        sges: &to,
    };
    let mut out = [Completion::BLANK; 64];
    for first in (0..ends.qps.len()).step_by(64) {
        let count = (ends.qps.len() - first).min(64);
        for qp in first..first + count {
            ends.post_recv(1, qp, &[receive]);
            ends.post_send(0, qp, &[black_box(request)]);
        }
        for node in [1, 0] {
            let (mut done, mut rounds) = (0, 0);
            while done < count {
                *now = *now + ROUND_NS;
                ends.turn_at(*now);
                let got = ends.nodes[node].cq.poll(&mut out);
                let got = got.expect("it has room for all");
                let good = |done: &Completion| done.status == Status::Success;
                assert!(out[..got].iter().all(good), "a request failed");
                done += got;
                rounds += 1;
                assert!(rounds < 1_000_000, "nothing moves");
            }
        }
    }
}
