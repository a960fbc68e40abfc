//! Work requests that change rights to the QP's own memory and send nothing.
//!
//! Such a request takes effect in its turn: when all that was posted before it has completed, and
//! before anything that follows is sent. So none of those before can miss the rights that it takes
//! away, not even where it is sent again: the request waits as if each of them were a READ and it
//! had a fence (IBTA Vol 1, 10.8.3.3).

use super::ibta::Fetched;
use super::{Engine, Platform};
use crate::slab::NONE;
use trunkline_conn::mem::MemoryFault;
use trunkline_conn::work::{OwnOp, Request, SendOp, Status};

/// Most such requests of a QP that are executed in a row: they end at once, so that a program could
/// post them as fast as they are executed.
pub(super) const MOST_OWN: u32 = 16;

impl<P: Platform> Engine<P> {
    /// Does what a request of a QP asks for.
    fn change_own_memory(&mut self, qp: u32, op: OwnOp) -> Result<(), MemoryFault> {
        let by = self.responder(qp);
        match op {
            OwnOp::Invalidate(key) => self.regions.invalidate_own(by, key),
            OwnOp::BindMw(bind) => self.regions.bind(by, &bind),
        }
    }

    /// The request that a flow would send next changes rights to memory instead. `None`: it waits
    /// for what was posted before it, or has failed, and the QP with it.
    #[cold]
    pub(crate) fn execute_own(&mut self, flow: u32, at: u32, op: OwnOp) -> Option<()> {
        let qp = self.flows[flow].qp;
        if self.flows[flow].head != at || self.qps[qp].order.first() != Some(at) {
            return None;
        }
        let done = self.change_own_memory(qp, op);
        let (record, pending) = (&mut self.flows[flow], &mut self.requests[at]);
        let status = status_of(done);
        pending.outcome = Some(status);
        record.head = pending.flow_next;
        if record.head == NONE {
            record.tail = NONE;
        }
        record.sending = record.head;
        record.sent_bytes = 0;
        self.requests.hand_on(at, record.head);
        self.complete_in_order(qp);
        (status == Status::Success).then_some(())
    }

    /// A flow has executed as many as it may in a row: the next round goes on.
    #[cold]
    pub(crate) fn go_on_later(&self, flow: u32) {
        self.posted.doorbells().ring(self.flows[flow].qp);
    }

    /// A QP with a connection of its own has fetched a request that changes rights to memory.
    #[cold]
    pub(super) fn execute_own_fetched(
        &mut self,
        qp: u32,
        (request, slots): (&Request, u16),
        op: OwnOp,
        busy: usize,
    ) -> Fetched {
        let record = &mut self.qps[qp];
        if busy > 0 {
            let send = &record.queues.send;
            send.put_back(&mut record.cursor, 1, slots.into());
            return Fetched::Waits;
        }
        record.queues.send.release(slots);
        let status = status_of(self.change_own_memory(qp, op));
        self.report_sent(qp, request, 0, status, 0);
        match status {
            Status::Success => Fetched::Done,
            _ => Fetched::Failed,
        }
    }
}

const fn status_of(done: Result<(), MemoryFault>) -> Status {
    match done {
        Ok(()) => Status::Success,
        Err(_) => Status::MemoryManagement,
    }
}

/// What a request changes, if it sends nothing.
pub(super) const fn own_op(request: &Request) -> Option<OwnOp> {
    match request.op {
        SendOp::Own(op) => Some(op),
        _ => None,
    }
}
