//! Receives that QPs share, and what tells that a QP takes no more of them.

use crate::common::{Node, Pair, RingMemory};
use std::sync::Arc;
use trunkline_conn::time::MILLISECOND;
use trunkline_conn::work::{Remote, SendOp, Status};
use trunkline_qpmap::queue::SharedRecvQueue;
use trunkline_qpmap::wqe::RecvWr;
use trunkline_qpmap::{LAST_WQE, QpInit, QpModify, QpQueues, QpType};

type Qp = Arc<QpQueues<RingMemory>>;

fn shared_and_ibta() -> [Pair; 2] {
    let mut ibta = Pair::new(0);
    ibta.ibta = true;
    [Pair::new(1), ibta]
}

/// A QP of the first node, and one of the second on an SRQ, which may want a last completion.
fn on_an_srq(
    pair: &mut Pair,
    complete_last_wqe: bool,
) -> ([Qp; 2], Arc<SharedRecvQueue<RingMemory>>) {
    let Node {
        engine,
        pd,
        cq_index,
        ..
    } = &mut pair.nodes[1];
    let (srq, queue) = engine.create_srq(*pd, 4, 1).expect("an SRQ");
    let init = QpInit {
        pd: *pd,
        kind: QpType::Rc,
        send_cq: *cq_index,
        recv_cq: *cq_index,
        srq: Some(srq),
        max_send_wr: 8,
        max_recv_wr: 0,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        signal_all: false,
        complete_last_wqe,
    };
    let b = engine.create_qp(&init).expect("a QP");
    let a = pair.qp(0, QpType::Rc);
    pair.connect(0, &a, &b);
    pair.connect(1, &b, &a);
    pair.run(10 * MILLISECOND);
    ([a, b], queue)
}

fn post(pair: &Pair, queue: &SharedRecvQueue<RingMemory>, wr_id: u64) {
    let sges = &[pair.sge(1, 0, 16384)];
    queue.post(&[RecvWr { wr_id, sges }]).expect("room");
}

fn completions(pair: &Pair) -> Vec<(u64, Status)> {
    let done = pair.completions(1);
    done.iter().map(|done| (done.wr_id, done.status)).collect()
}

#[test]
fn each_receive_of_an_srq_serves_any_message_that_needs_one() {
    for mut pair in shared_and_ibta() {
        let ([a, _b], queue) = on_an_srq(&mut pair, false);
        (1..=3).for_each(|wr_id| post(&pair, &queue, wr_id));
        let write = SendOp::WriteImm(
            Remote {
                addr: pair.nodes[1].buffer.addr,
                rkey: pair.nodes[1].key,
            },
            7,
        );
        let sges = [pair.sge(0, 0, 64)];
        for (op, taken) in [(SendOp::Send, 3), (write, 2), (SendOp::Send, 1)] {
            pair.post(0, &a, taken, op, &sges);
            pair.run(20 * MILLISECOND);
            assert_eq!(completions(&pair), [(taken, Status::Success)]);
        }
        // The next one waits.
        pair.post(0, &a, 4, write, &sges);
        pair.run(20 * MILLISECOND);
        assert_eq!(completions(&pair), []);
        post(&pair, &queue, 4);
        pair.run(20 * MILLISECOND);
        assert_eq!(completions(&pair), [(4, Status::Success)]);
    }
}

#[test]
fn the_last_completion_of_a_qp_is_behind_all_others_and_comes_where_it_is_wanted() {
    for wanted in [true, false] {
        for mut pair in shared_and_ibta() {
            let ([a, b], queue) = on_an_srq(&mut pair, wanted);
            post(&pair, &queue, 77);
            // A message whose last packet never comes takes the receive.
            let mut data = 0;
            pair.fate = Box::new(move |node, datagram| {
                data += usize::from(node == 0 && datagram.len() > 800);
                usize::from(data < 8)
            });
            pair.post(0, &a, 1, SendOp::Send, &[pair.sge(0, 0, 16384)]);
            pair.run(2 * MILLISECOND);
            assert_eq!(queue.posted(), 0, "it was taken");
            // The peer has no receives for these.
            for wr_id in 1..=3 {
                pair.post(1, &b, wr_id, SendOp::Send, &[pair.sge(1, 0, 64)]);
            }
            pair.run(MILLISECOND);
            let engine = &mut pair.nodes[1].engine;
            engine.modify_qp(b.qpn, &QpModify::Error).expect("a step");
            engine.publish();
            let mut done = completions(&pair);
            if wanted {
                assert_eq!(done.pop(), Some((LAST_WQE, Status::Flushed)));
            }
            done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
            assert_eq!(done, [1, 2, 3, 77].map(|wr_id| (wr_id, Status::Flushed)));
        }
    }
}
