//! QPs and SRQs of the program.

use super::Client;
use super::steps::{attributes_of, step_of};
use crate::error::Error;
use crate::verbs::qp::QpOptions;
use std::sync::Arc;
use trunkline_conn::mem::PdId;
use trunkline_host::Handle;
use trunkline_host::Words;
use trunkline_host::control::answers::{Done, QpCreated, QpQueried, SrqCreated, SrqQueried};
use trunkline_host::control::attributes::RingKind;
use trunkline_host::control::requests::{
    CreateQp, CreateSrq, DestroyQp, DestroySrq, ModifyQp, ModifySrq, QueryQp, QuerySrq,
};
use trunkline_qpmap::queue::{MAX_WR, SharedRecvQueue, Size};
use trunkline_qpmap::ring::RingMemory;
use trunkline_qpmap::{
    Allowed, Attributes, Place, QpInit, QpModify, QpQueues, QpState, QpType, SrqAttributes, Tenant,
    VerbsError,
};
use trunkline_wire::Psn;

/// A QP that a service has for the program.
#[derive(Debug)]
pub(crate) struct ServedQp {
    pub(crate) qp: Handle,
    pub(crate) worker: u8,
    pub(crate) signal_all: bool,
    pub(crate) complete_last_wqe: bool,
}

/// The objects that a QP belongs to.
pub(crate) struct QpObjects {
    pub(crate) pd: Handle,
    pub(crate) send_cq: Handle,
    pub(crate) recv_cq: Handle,
    pub(crate) srq: Option<Handle>,
}

/// A QP of the program's side, and the PSN that it sends first.
pub(crate) type NewQp = (ServedQp, Arc<QpQueues<Words>>, Psn);

impl Client {
    pub(crate) fn create_qp(
        &self,
        objects: &QpObjects,
        options: &QpOptions,
    ) -> Result<NewQp, Error> {
        let mut created = None;
        let queues = QpQueues::new(&sizes(objects, options), || {
            let answer: QpCreated = self.ask(CreateQp {
                pd: objects.pd,
                send_cq: objects.send_cq,
                recv_cq: objects.recv_cq,
                srq: objects.srq,
                kind: options.kind,
                max_send_wr: options.max_send_wr,
                max_recv_wr: options.max_recv_wr,
                max_send_sge: options.max_send_sge,
                max_recv_sge: options.max_recv_sge,
                max_inline: options.max_inline,
                signal_all: options.signal_all,
                complete_last_wqe: options.complete_last_wqe,
                worker: options.worker,
            })?;
            created = Some(answer);
            Ok::<_, Error>(Place::elsewhere(answer.qp.index, answer.qpn))
        })?;
        let created = created.expect("its place was asked for");
        if let Err(error) = self.equip(created.worker) {
            self.destroy(DestroyQp { qp: created.qp });
            return Err(error);
        }
        self.numbers().insert(created.qp, created.qpn);
        let served = ServedQp {
            qp: created.qp,
            worker: created.worker,
            signal_all: options.signal_all,
            complete_last_wqe: options.complete_last_wqe,
        };
        Ok((served, Arc::new(queues), created.psn))
    }

    /// Makes sure that a send queue has its ring.
    #[inline]
    pub(crate) fn ready_to_send(
        &self,
        qp: &ServedQp,
        queues: &QpQueues<Words>,
    ) -> Result<(), Error> {
        match queues.send.has_ring() {
            true => Ok(()),
            false => {
                let memory = self.queue_ring(RingKind::Send, qp.qp, queues.send.size())?;
                queues.send.begin(memory);
                Ok(())
            }
        }
    }

    /// Makes sure that a receive queue has its ring.
    #[inline]
    pub(crate) fn ready_to_receive(
        &self,
        qp: &ServedQp,
        queues: &QpQueues<Words>,
    ) -> Result<(), Error> {
        match &queues.receive {
            Some(queue) if !queue.has_ring() => {
                let memory = self.queue_ring(RingKind::Receive, qp.qp, queue.size())?;
                queue.begin(memory);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The ring of a queue of that size.
    #[cold]
    fn queue_ring(&self, kind: RingKind, object: Handle, size: Size) -> Result<Words, Error> {
        let (memory, _) = self.ring(kind, Some(object), 0)?;
        match memory.as_slice().len() == size.ring_words() {
            true => Ok(memory),
            false => Err(self.line.broken("a ring has another length than asked for")),
        }
    }

    pub(crate) fn modify_qp(
        &self,
        qp: &ServedQp,
        queues: &QpQueues<Words>,
        change: &QpModify,
    ) -> Result<(), Error> {
        let (step, attributes) = step_of(change);
        let qp = qp.qp;
        let Done {} = self.ask(ModifyQp {
            qp,
            step,
            attributes,
        })?;
        queues.set_state(match change {
            QpModify::Reset => QpState::Reset,
            QpModify::Init { .. } => QpState::Init,
            QpModify::Rtr(_) => QpState::Rtr,
            QpModify::Rts(_) | QpModify::Resume(_) => QpState::Rts,
            QpModify::Drain => QpState::Sqd,
            QpModify::Change(_) => return Ok(()),
            QpModify::Error => QpState::Error,
        });
        Ok(())
    }

    pub(crate) fn query_qp(&self, qp: &ServedQp) -> Result<(QpState, Attributes), Error> {
        let queried: QpQueried = self.ask(QueryQp { qp: qp.qp })?;
        Ok((queried.state, attributes_of(&queried.attributes)))
    }

    pub(crate) fn destroy_qp(&self, qp: &ServedQp) {
        self.destroy(DestroyQp { qp: qp.qp });
        self.numbers().remove(&qp.qp);
    }

    /// An SRQ, and the program's half of its queue.
    pub(crate) fn create_srq(
        &self,
        pd: Handle,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<(Handle, SharedRecvQueue<Words>), Error> {
        let queue = SharedRecvQueue::apart(srq_size(max_wr, max_sge)?);
        let SrqCreated { srq } = self.ask(CreateSrq {
            pd,
            max_wr,
            max_sge,
        })?;
        Ok((srq, queue))
    }

    /// Makes sure that the queue of an SRQ has its ring.
    pub(crate) fn ready_to_share(
        &self,
        srq: Handle,
        queue: &SharedRecvQueue<Words>,
    ) -> Result<(), Error> {
        queue.ready(|size| self.queue_ring(RingKind::Shared, srq, size))
    }

    pub(crate) fn query_srq(&self, srq: Handle) -> Result<SrqAttributes, Error> {
        let queried: SrqQueried = self.ask(QuerySrq { srq })?;
        Ok(SrqAttributes {
            max_wr: queried.max_wr,
            max_sge: queried.max_sge,
            limit: queried.limit,
        })
    }

    pub(crate) fn set_srq_limit(&self, srq: Handle, limit: u32) -> Result<(), Error> {
        let Done {} = self.ask(ModifySrq {
            srq,
            max_wr: None,
            limit: Some(limit),
        })?;
        Ok(())
    }

    pub(crate) fn resize_srq(
        &self,
        srq: Handle,
        queue: &SharedRecvQueue<Words>,
        max_wr: u32,
    ) -> Result<(), Error> {
        // With a ring the service moves what was posted, without one there is nothing to move.
        self.ready_to_share(srq, queue)?;
        let size = srq_size(max_wr, queue.size().max_sge())?;
        queue.move_to(|| {
            // The service takes receives from the new ring at once.
            let room = self.line.room()?;
            let Done {} = self.ask(ModifySrq {
                srq,
                max_wr: Some(max_wr),
                limit: None,
            })?;
            drop(room);
            let memory = self.queue_ring(RingKind::Shared, srq, size);
            Ok((size, memory.map_err(|error| self.line.lost(&error))?))
        })
    }

    pub(crate) fn destroy_srq(&self, srq: Handle) {
        self.destroy(DestroySrq { srq });
    }
}

/// The size of the queue of an SRQ.
fn srq_size(max_wr: u32, max_sge: u32) -> Result<Size, VerbsError> {
    Allowed::Range(1, MAX_WR).check("max_wr", max_wr)?;
    Size::receive(max_wr, max_sge)
}

/// What says how large the queues of a QP are; what it belongs to only the service knows.
fn sizes(objects: &QpObjects, options: &QpOptions) -> QpInit {
    let cqs = [objects.send_cq, objects.recv_cq].map(|cq| cq.index);
    let srq = objects.srq.map(|srq| srq.index);
    options.init(PdId::default(), cqs, srq, Tenant::OWN)
}

/// Whether QPs of this kind have routes, which a service does not offer.
pub(crate) const fn is_offered(kind: QpType) -> bool {
    !matches!(kind, QpType::Src)
}
