//! What QPs in trouble do to those beside them on the same connection.
//!
//! Neighbours call: a SEND of 64 B, answered by another. Beside them three QPs send at a fixed
//! rate, whatever comes of it: one to a receiver that is never ready, one with keys that do not
//! fit, one to a program that has stopped reading. The yardstick are the same three with nothing
//! wrong.

use crate::Measurement;
use crate::rounds::percentile;
use crate::virtual_link::{Faults, VirtualLink};
use std::sync::Arc;
use trunkline_conn::time::{Instant, MICROSECOND, MILLISECOND};
use trunkline_conn::work::{Completion, Remote, SendFlags, SendOp, Status, WorkOpcode};
use trunkline_pieces::pair::{Ends, RingMemory};
use trunkline_qpmap::QpInit;
use trunkline_qpmap::cq::CompletionQueue;
use trunkline_qpmap::queue::SharedRecvQueue;
use trunkline_qpmap::wqe::{OWN_BINDING, RecvWr, SendWr};
use trunkline_testkit::Rng;
use trunkline_wire::Rkey;

/// QPs whose latency is measured.
const NEIGHBOURS: usize = 16;
/// Pause of a neighbour between two calls, in ns.
const PAUSE: std::ops::Range<u64> = 0..20 * MICROSECOND;
/// Bytes of a call and of its answer.
const SMALL: u32 = 64;
/// Bytes of what the three others send.
const LARGE: u32 = 16 << 10;
/// Time between two of those on each QP, in ns: 13 Gb/s.
const PERIOD: u64 = 10 * MICROSECOND;
/// Requests that the three may have outstanding.
const DEPTH: u64 = 16;
/// Receives of the reader, and places of its CQ.
const READER: u32 = 64;
const WARM_UP: u64 = 5 * MILLISECOND;
/// Time to measure for a report, in virtual ns.
pub const LENGTH: u64 = 50 * MILLISECOND;

/// The three QPs that get into trouble, behind the neighbours.
const FLOODED: usize = NEIGHBOURS;
const FORGER: usize = NEIGHBOURS + 1;
const UNREAD: usize = NEIGHBOURS + 2;

/// `isolation_p99`, over `length` ns of virtual time.
///
/// # Panics
/// When a call fails.
pub fn p99(length: u64) -> Measurement {
    let (mut troubled, trouble) = latencies(true, length);
    let (mut healthy, _) = latencies(false, length);
    let figures = (percentile(&mut troubled, 99), percentile(&mut healthy, 99));
    let medians = (percentile(&mut troubled, 50), percentile(&mut healthy, 50));
    Measurement::new(
        "isolation_p99",
        "ns of virtual time, 99th percentile, call and answer of 64 B, 16 QPs beside one flooded \
         into receiver-not-ready, one with bad rkeys, one with a stopped reader",
        "the same beside healthy QPs of equal load",
        figures,
    )
    .note(format!(
        "medians: {:.0} against {:.0}; {} calls against {}",
        medians.0,
        medians.1,
        troubled.len(),
        healthy.len()
    ))
    .note(format!(
        "{} pauses of receivers, {} errors of the QP with bad rkeys",
        trouble.pauses, trouble.errors
    ))
}

/// That there really was trouble.
#[derive(Debug)]
struct Trouble {
    pauses: u64,
    errors: u64,
}

/// A run, as its programs see it.
struct Run {
    troubled: bool,
    rng: Rng,
    /// When each neighbour calls next; `FAR` while it waits for an answer.
    calls: [Instant; NEIGHBOURS],
    /// When each neighbour made the call that is under way.
    called: [Instant; NEIGHBOURS],
    /// When the three send next, and what they have outstanding.
    due: Instant,
    outstanding: [u64; 3],
    /// Times the QP with bad rkeys failed, and was connected anew.
    errors: u64,
    unread: Arc<SharedRecvQueue<RingMemory>>,
    unread_cq: Arc<CompletionQueue<RingMemory>>,
    latencies: Vec<f64>,
}

/// Latencies of the neighbours' calls in ns, and what trouble there was.
fn latencies(troubled: bool, length: u64) -> (Vec<f64>, Trouble) {
    let mut link = VirtualLink::new(Faults::default(), UNREAD, 1 << 20, false);
    let (unread, unread_cq) = add_reader(&mut link.ends);
    let mut rng = Rng::new(0x5eed_0003);
    let mut run = Run {
        troubled,
        calls: std::array::from_fn(|_| link.now() + rng.within(PAUSE)),
        called: [Instant::ZERO; NEIGHBOURS],
        rng,
        due: link.now(),
        outstanding: [0; 3],
        errors: 0,
        unread,
        unread_cq,
        latencies: Vec::new(),
    };
    run.prepare(&link.ends);
    link.run(WARM_UP, |now, ends| run.turn(now, ends));
    run.latencies.clear();
    link.run(length, |now, ends| run.turn(now, ends));
    let trouble = Trouble {
        pauses: link.ends.nodes[1].engine.counters().rnr_sent,
        errors: run.errors,
    };
    (run.latencies, trouble)
}

/// The last QP: its receives come from an SRQ and end in a CQ of their own.
fn add_reader(
    ends: &mut Ends,
) -> (
    Arc<SharedRecvQueue<RingMemory>>,
    Arc<CompletionQueue<RingMemory>>,
) {
    let mut inits = [0, 1].map(|i: usize| ends.nodes[i].qp_init());
    let end = &mut ends.nodes[1];
    let (srq, queue) = end.engine.create_srq(end.pd, READER, 1).expect("an SRQ");
    let (index, cq) = end.engine.create_cq(READER, None).expect("a CQ");
    inits[1] = QpInit {
        srq: Some(srq),
        recv_cq: index,
        ..inits[1]
    };
    assert_eq!(ends.add_qp(&inits), UNREAD, "the last one");
    (queue, cq)
}

impl Run {
    /// Posts the first receives.
    fn prepare(&self, ends: &Ends) {
        for qp in 0..NEIGHBOURS {
            self.receive(ends, 0, qp, SMALL);
            self.receive(ends, 1, qp, SMALL);
        }
        if !self.troubled {
            (0..DEPTH).for_each(|_| self.receive(ends, 1, FLOODED, LARGE));
        }
        (0..READER).for_each(|_| self.read(ends));
    }

    fn receive(&self, ends: &Ends, node: usize, qp: usize, length: u32) {
        let to = [ends.nodes[node].sge(qp * LARGE as usize, length)];
        let request = RecvWr {
            wr_id: qp as u64,
            sges: &to,
        };
        ends.post_recv(node, qp, &[request]);
    }

    /// The reader takes another message.
    fn read(&self, ends: &Ends) {
        let to = [ends.nodes[1].sge(UNREAD * LARGE as usize, LARGE)];
        let request = RecvWr {
            wr_id: UNREAD as u64,
            sges: &to,
        };
        self.unread.post(&[request]).expect("room in the SRQ");
    }

    /// Everything that programs do at `now`; gives when they do something next.
    fn turn(&mut self, now: Instant, ends: &mut Ends) -> Instant {
        self.serve(ends);
        self.collect(now, ends);
        for qp in 0..NEIGHBOURS {
            if self.calls[qp] <= now {
                (self.calls[qp], self.called[qp]) = (Instant::FAR, now);
                send(ends, 0, qp, SendOp::Send, SMALL);
            }
        }
        while self.due <= now {
            self.due = self.due + PERIOD;
            self.load(ends);
        }
        self.calls.iter().copied().fold(self.due, Instant::min)
    }

    /// The second node: answers calls, takes what is sent to it.
    fn serve(&self, ends: &Ends) {
        let mut done = [Completion::BLANK; 256];
        let got = ends.nodes[1].cq.poll(&mut done).expect("room in the CQ");
        for completion in done[..got].iter().filter(|c| is_receive(c)) {
            let qp = completion.wr_id as usize;
            if qp == FLOODED {
                self.receive(ends, 1, qp, LARGE);
            } else {
                self.receive(ends, 1, qp, SMALL);
                send(ends, 1, qp, SendOp::Send, SMALL);
            }
        }
        if !self.troubled {
            let got = self.unread_cq.poll(&mut done).expect("room in the CQ");
            (0..got).for_each(|_| self.read(ends));
        }
    }

    /// The first node: takes answers, and the completions of the three others.
    fn collect(&mut self, now: Instant, ends: &mut Ends) {
        let mut done = [Completion::BLANK; 256];
        let got = ends.nodes[0].cq.poll(&mut done).expect("room in the CQ");
        let mut failed = false;
        for completion in &done[..got] {
            let qp = completion.wr_id as usize;
            if completion.status != Status::Success {
                assert_eq!(qp, FORGER, "another QP failed: {completion:?}");
                failed |= completion.status == Status::RemoteAccess;
            } else if is_receive(completion) {
                self.latencies.push(now.since(self.called[qp]) as f64);
                self.calls[qp] = now + self.rng.within(PAUSE);
                self.receive(ends, 0, qp, SMALL);
                continue;
            }
            if let Some(outstanding) = qp.checked_sub(FLOODED) {
                self.outstanding[outstanding] -= 1;
            }
        }
        if failed {
            self.errors += 1;
            self.outstanding[FORGER - FLOODED] = 0;
            ends.reconnect(FORGER);
        }
    }

    /// Each of the three sends a message, unless its queue is full.
    fn load(&mut self, ends: &Ends) {
        let far = &ends.nodes[1];
        let rkey = if self.troubled {
            Rkey(!far.key.0)
        } else {
            far.key
        };
        let write = SendOp::Write(Remote {
            addr: far.sge(FORGER * LARGE as usize, 0).addr,
            rkey,
        });
        for (qp, op) in [
            (FLOODED, SendOp::Send),
            (FORGER, write),
            (UNREAD, SendOp::Send),
        ] {
            let outstanding = &mut self.outstanding[qp - FLOODED];
            if *outstanding < DEPTH {
                *outstanding += 1;
                send(ends, 0, qp, op, LARGE);
            }
        }
    }
}

const fn is_receive(completion: &Completion) -> bool {
    matches!(completion.opcode, WorkOpcode::Receive)
}

/// Posts a request on QP `qp` of node `node`.
fn send(ends: &Ends, node: usize, qp: usize, op: SendOp, length: u32) {
    let request = SendWr {
        wr_id: qp as u64,
        op,
        flags: SendFlags::SIGNALED,
        sges: &[ends.nodes[node].sge(qp * LARGE as usize, length)],
        inline: None,
        route: OWN_BINDING,
    };
    ends.post_send(node, qp, &[request]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_qps_in_trouble_wait_at_most_half_as_long_again() {
        let found = p99(10 * MILLISECOND);
        assert!(found.ratio <= 1.5, "{found:?}");
    }

    #[test]
    fn there_is_trouble_only_where_it_is_asked_for() {
        let (_, trouble) = latencies(true, 2 * MILLISECOND);
        assert!(trouble.pauses > 100 && trouble.errors > 100, "{trouble:?}");
        let (_, trouble) = latencies(false, 2 * MILLISECOND);
        assert!(trouble.pauses == 0 && trouble.errors == 0, "{trouble:?}");
    }
}
