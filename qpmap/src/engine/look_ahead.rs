//! Reading ahead: where thousands of QPs say little each, what a packet is about is not in the
//! processor's cache. What all its entries are about is read before the first of them is taken up:
//! loads that do not wait for one another take together little longer than one alone.

use super::packet::{Packet, is_request};
use super::qp::Wire;
use super::{Engine, Platform};
use crate::slab::NONE;
use std::hint::black_box;
use trunkline_wire::{Answer, Qpn, Records};

/// QPs whose state stays in the cache by itself.
const NEAR: usize = 256;

impl<P: Platform> Engine<P> {
    /// What the requests among the records of a packet are for.
    pub(super) fn look_at_requests(&self, packet: &Packet<'_>) {
        if self.qps.len() <= NEAR {
            return;
        }
        for record in Records::of(packet.payload).flatten() {
            if is_request(record.header.opcode()) {
                black_box(self.look_at(record.header.message().dest_qp()));
            }
        }
    }

    /// What answers are about.
    pub(super) fn look_at_answered(&self, payload: &[u8]) {
        if self.qps.len() <= NEAR {
            return;
        }
        for answer in Answer::entries(payload).into_iter().flatten().flatten() {
            let first = self.look_at(answer.requester);
            black_box(self.requests.get(first).map(|pending| pending.msn));
        }
    }

    /// Reads of a QP, and of the flow that it has on a shared connection; of its queues, too:
    /// programs mostly answer what came. Gives the first request of that flow.
    #[inline(always)]
    fn look_at(&self, qpn: Qpn) -> u32 {
        let record = self.qp_index(qpn).and_then(|qp| self.qps.get(qp));
        let Some((record, Wire::Shared(flow))) = record.map(|record| (record, record.wire)) else {
            return NONE;
        };
        let flow = &self.flows[flow];
        black_box(record.queues.send.look_ahead() ^ u64::from(flow.expected_msn));
        flow.head
    }
}
