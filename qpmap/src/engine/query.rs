//! What programs ask about QPs.

use super::qp::{Attributes, QpInit};
use super::{Engine, Platform};
use crate::error::VerbsError;
use crate::queue::{RecvQueue, Size};
use crate::slab::NONE;
use crate::state::QpState;
use trunkline_wire::Qpn;

impl<P: Platform> Engine<P> {
    /// Returns how many QPs there may be.
    pub const fn max_qps(&self) -> u32 {
        self.qps.limit()
    }

    /// Returns how many QPs there are.
    pub const fn qp_count(&self) -> usize {
        self.qps.len()
    }

    /// Numbers of all QPs.
    pub fn qp_numbers(&self) -> Vec<Qpn> {
        let queues = self.qps.iter().map(|(_, qp)| &qp.queues);
        queues.map(|queues| queues.qpn).collect()
    }

    /// State and attributes of a QP (`ibv_query_qp(3)`).
    ///
    /// # Errors
    /// No such QP.
    pub fn query_qp(&self, qpn: Qpn) -> Result<(QpState, Attributes), VerbsError> {
        let qp = self.known(qpn)?;
        Ok((self.qps[qp].state, self.cold(qp).attributes))
    }

    /// Returns what a QP was made with, as its queues have it (`init_attr` of `ibv_query_qp(3)`).
    ///
    /// # Errors
    /// No such QP.
    pub fn query_qp_init(&self, qpn: Qpn) -> Result<QpInit, VerbsError> {
        let qp = self.known(qpn)?;
        let (record, cold) = (&self.qps[qp], self.cold(qp));
        let send = record.queues.send.size();
        let receive = record.queues.receive.as_ref().map(RecvQueue::size);
        let [send_cq, recv_cq] = record.queues.cqs;
        let srq = record.queues.srq;
        Ok(QpInit {
            pd: record.pd,
            kind: cold.kind,
            send_cq,
            recv_cq,
            srq: (srq != NONE).then_some(srq),
            max_send_wr: send.max_wr(),
            max_recv_wr: receive.map_or(0, Size::max_wr),
            max_send_sge: send.max_sge(),
            max_recv_sge: receive.map_or(0, Size::max_sge),
            max_inline: send.max_inline(),
            signal_all: record.signal_all,
            complete_last_wqe: cold.complete_last_wqe,
            tenant: record.tenant,
        })
    }
}
