//! The whole of it: posting, scheduler, headers, delivery, placement and completions at both ends
//! of a connection. Time is a count of rounds.

use std::hint::black_box;
use trunkline_conn::time::{Instant, MICROSECOND, SECOND};
use trunkline_conn::work::{Completion, SendFlags, SendOp, Status};
use trunkline_pieces::pair::{Ends, PairConfig};
use trunkline_pieces::turns::Turns;
use trunkline_qpmap::wqe::{RecvWr, SendWr};

/// QPs that take turns on one connection.
const QPS: usize = 16;
/// Requests a QP posts at once.
const BATCH: u32 = 4;
/// Bytes of a message.
const LENGTH: u32 = 64;
/// Longer than acknowledgements wait for company, so that none is waited for.
const ROUND_NS: u64 = 200 * MICROSECOND;

/// SENDs of 64 bytes with a completion at both ends.
pub(crate) fn send64(repetitions: u32) {
    let mut ends = Ends::new(&PairConfig {
        qps: QPS,
        ..PairConfig::default()
    });
    let (from, to) = (
        [ends.nodes[0].sge(0, LENGTH)],
        [ends.nodes[1].sge(0, LENGTH)],
    );
    let flags = SendFlags::SIGNALED;
    let op = SendOp::Send;
    let request = SendWr {
        wr_id: 2,
        op,
        flags,
        sges: &from,
        inline: None,
        route: 0,
    };
    let receive = RecvWr {
        wr_id: 1,
        sges: &to,
    };
    // Setting up took real time, of which nothing may be left.
    let mut now = Instant::from_nanos(3600 * SECOND);
    let (mut posted, mut done) = (0, 0);
    while done < repetitions {
        for qp in 0..QPS {
            let count = BATCH.min(repetitions - posted);
            ends.post_recv(1, qp, &[receive; BATCH as usize][..count as usize]);
            ends.post_send(
                0,
                qp,
                &[black_box(request); BATCH as usize][..count as usize],
            );
            posted += count;
        }
        let mut rounds = 0;
        while done < posted {
            now = now + ROUND_NS;
            ends.turn_at(now);
            done += completed(&ends);
            rounds += 1;
            assert!(rounds < 1_000_000, "nothing moves");
        }
    }
}

/// One packet of one of many runnable flows: the flow's turn, its request, the packet.
pub(crate) fn scheduler_turn(repetitions: u32) {
    let mut turns = Turns::new(2048, 1);
    turns.go_round();
    turns.post();
    turns.packets(black_box(repetitions.into()));
}

/// Requests that have ended since the last call.
fn completed(ends: &Ends) -> u32 {
    let mut out = [Completion::BLANK; 64];
    let [sent, received] = [0, 1].map(|node: usize| {
        let mut count = 0;
        loop {
            let got = ends.nodes[node].cq.poll(&mut out).expect("room in the CQ");
            let good = out[..got]
                .iter()
                .all(|completion| completion.status == Status::Success);
            assert!(good, "a request failed");
            count += got as u32;
            if got < out.len() {
                break count;
            }
        }
    });
    black_box(received);
    sent
}
