//! App-managed QPs of a [`Pair`], and their requests.

use super::{Pair, RingMemory};
use std::sync::Arc;
use trunkline_conn::work::{Completion, Remote, SendFlags, SendOp, Status};
use trunkline_qpmap::wqe::SendWr;
use trunkline_qpmap::{Attributes, QpQueues, QpType};

pub(crate) type Queues = Arc<QpQueues<RingMemory>>;

/// An app-managed QP that is ready.
pub(crate) fn managed(pair: &mut Pair, node: usize) -> Queues {
    let qp = pair.qp(node, QpType::Src);
    pair.take_to_rts(node, &qp, Attributes::default(), Attributes::default());
    qp
}

/// A route of `qp` at node 0 to `remote`, over the first connection.
pub(crate) fn route(pair: &mut Pair, qp: &Queues, remote: &Queues) -> u32 {
    let conn = pair.conns[0][0];
    let engine = &mut pair.nodes[0].engine;
    engine
        .add_route(qp.qpn, conn, remote.qpn)
        .expect("a route of an app-managed QP")
}

/// Posts a request of 3000 bytes at node 0.
pub(crate) fn post(pair: &Pair, qp: &Queues, wr_id: u64, op: SendOp, route: u32) {
    let request = SendWr {
        wr_id,
        op,
        flags: SendFlags::SIGNALED,
        sges: &[pair.sge(0, 0, 3000)],
        inline: None,
        route,
    };
    qp.send.post(&[request]).expect("room in the queue");
    pair.nodes[0].engine.doorbells().ring(qp.index);
}

/// A WRITE to the buffer of node 1.
pub(crate) fn write(pair: &Pair) -> SendOp {
    SendOp::Write(Remote {
        addr: pair.nodes[1].buffer.addr,
        rkey: pair.nodes[1].key,
    })
}

/// What completions say: of which request, how it ended, on which route.
pub(crate) fn told(done: &[Completion]) -> Vec<(u64, Status, u32)> {
    let told = done.iter();
    told.map(|done| (done.wr_id, done.status, done.route))
        .collect()
}
