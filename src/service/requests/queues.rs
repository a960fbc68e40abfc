//! QPs and SRQs.

use super::{Answered, Desk, busy, done, entry, full};
use crate::attached::steps::{all, change_of};
use crate::service::client::words;
use crate::service::objects::{QpEntry, SrqEntry};
use crate::service::reply::Refusal;
use crate::verbs::qp::QpOptions;
use std::sync::Arc;
use trunkline_host::control::answers::{QpCreated, QpQueried, SrqCreated, SrqQueried};
use trunkline_host::control::requests::{CreateQp, CreateSrq, ModifyQp, ModifySrq};
use trunkline_host::{Handle, Piece};
use trunkline_qpmap::queue::Size;
use trunkline_qpmap::{QpType, VerbsError};

impl Desk<'_> {
    pub(super) fn create_qp(&mut self, request: &CreateQp) -> Answered {
        let all = &self.client.belongings;
        if request.kind == QpType::Src {
            let what = "QPs that manage their connections";
            return Err(VerbsError::Unsupported { what }.into());
        }
        let srq = match request.srq {
            Some(srq) => Some(entry!(all.srqs, srq, "SRQ")?.srq.clone()),
            None => None,
        };
        let options = QpOptions {
            kind: request.kind,
            srq,
            max_send_wr: request.max_send_wr,
            max_recv_wr: request.max_recv_wr,
            max_send_sge: request.max_send_sge,
            max_recv_sge: request.max_recv_sge,
            max_inline: request.max_inline,
            signal_all: request.signal_all,
            complete_last_wqe: request.complete_last_wqe,
            worker: request.worker,
        };
        let pd = entry!(all.pds, request.pd, "PD")?;
        let (send_cq, recv_cq) = (self.cq(request.send_cq)?, self.cq(request.recv_cq)?);
        let qp = pd.create_qp_of(all.tenant, &send_cq.cq, &recv_cq.cq, &options)?;
        let (address, worker) = (qp.address(), qp.worker());
        let entry = QpEntry {
            qp,
            send: None,
            receive: None,
        };
        let inserted = self.client.belongings.qps.insert(entry);
        let qp = inserted.map_err(full("QPs"))?;
        self.owners.qps.insert(address.qpn, (self.token, qp));
        Ok(QpCreated {
            qp,
            qpn: address.qpn,
            psn: address.psn,
            worker,
        }
        .into())
    }

    pub(super) fn qp(&self, qp: Handle) -> Result<&QpEntry, Refusal> {
        entry!(self.client.belongings.qps, qp, "QP")
    }

    pub(super) fn modify_qp(&mut self, request: &ModifyQp) -> Answered {
        let change = change_of(request.step, &request.attributes);
        self.qp(request.qp)?.qp.modify(&change)?;
        done()
    }

    pub(super) fn query_qp(&self, qp: Handle) -> Answered {
        let (state, attributes, _) = self.qp(qp)?.qp.query()?;
        let attributes = all(&attributes);
        Ok(QpQueried { state, attributes }.into())
    }

    pub(super) fn destroy_qp(&mut self, qp: Handle) -> Answered {
        let qpn = self.qp(qp)?.qp.qpn();
        self.owners.qps.remove(&qpn);
        drop(self.client.belongings.qps.remove(qp));
        done()
    }

    /// The ring of a send queue, which begins to have it now if it had none.
    pub(super) fn send_ring(&mut self, qp: Handle) -> Result<Arc<Piece>, Refusal> {
        let size = self.qp(qp)?.qp.queues().send.size();
        if let Some(piece) = &self.qp(qp)?.send {
            return Ok(Arc::clone(piece));
        }
        let piece = self.ring_of(qp, size)?;
        let entry = entry!(mut self.client.belongings.qps, qp, "QP")?;
        entry.qp.begin_send(words(&piece))?;
        entry.send = Some(Arc::clone(&piece));
        Ok(piece)
    }

    /// The same for a receive queue.
    pub(super) fn receive_ring(&mut self, qp: Handle) -> Result<Arc<Piece>, Refusal> {
        let entry = self.qp(qp)?;
        let queue = entry.qp.queues().receive.as_ref();
        let size = queue.ok_or_else(|| Refusal::unknown("QP with receives of its own"))?;
        if let Some(piece) = &entry.receive {
            return Ok(Arc::clone(piece));
        }
        let piece = self.ring_of(qp, size.size())?;
        let entry = entry!(mut self.client.belongings.qps, qp, "QP")?;
        entry.qp.begin_receive(words(&piece))?;
        entry.receive = Some(Arc::clone(&piece));
        Ok(piece)
    }

    /// Memory for a ring of a QP, whose bell is heard from now on.
    fn ring_of(&self, qp: Handle, size: Size) -> Result<Arc<Piece>, Refusal> {
        let (all, entry) = (&self.client.belongings, self.qp(qp)?);
        let piece = all.piece(size.ring_words())?;
        let (worker, qpn) = (entry.qp.worker(), entry.qp.qpn());
        all.bells.assign(self.shared(), worker, qp, qpn)?;
        Ok(piece)
    }

    fn srq(&self, srq: Handle) -> Result<&SrqEntry, Refusal> {
        entry!(self.client.belongings.srqs, srq, "SRQ")
    }

    pub(super) fn create_srq(&mut self, request: &CreateSrq) -> Answered {
        let pd = entry!(self.client.belongings.pds, request.pd, "PD")?;
        let srq = pd.create_srq(request.max_wr, request.max_sge)?;
        let id = srq.id();
        let entry = SrqEntry { srq, ring: None };
        let inserted = self.client.belongings.srqs.insert(entry);
        let srq = inserted.map_err(full("SRQs"))?;
        self.owners.srqs.insert(id, (self.token, srq));
        Ok(SrqCreated { srq }.into())
    }

    pub(super) fn modify_srq(&mut self, request: &ModifySrq) -> Answered {
        if let Some(max_wr) = request.max_wr {
            self.resize_srq(request.srq, max_wr)?;
        }
        if let Some(limit) = request.limit {
            self.srq(request.srq)?.srq.set_limit(limit)?;
        }
        done()
    }

    fn resize_srq(&mut self, srq: Handle, max_wr: u32) -> Result<(), Refusal> {
        let entry = self.srq(srq)?;
        if entry.ring.is_none() {
            return Ok(entry.srq.resize(max_wr)?);
        }
        let size = Size::receive(max_wr, entry.srq.queue().size().max_sge())?;
        let piece = self.client.belongings.piece(size.ring_words())?;
        let memory = words(&piece);
        let entry = entry!(mut self.client.belongings.srqs, srq, "SRQ")?;
        entry.srq.resize_into(max_wr, |_| Ok(memory))?;
        entry.ring = Some(piece);
        Ok(())
    }

    pub(super) fn query_srq(&self, srq: Handle) -> Answered {
        let attributes = self.srq(srq)?.srq.query()?;
        Ok(SrqQueried {
            max_wr: attributes.max_wr,
            max_sge: attributes.max_sge,
            limit: attributes.limit,
        }
        .into())
    }

    pub(super) fn destroy_srq(&mut self, srq: Handle) -> Answered {
        let entry = self.srq(srq)?;
        if !entry.srq.is_last_handle() {
            return Err(busy("SRQ"));
        }
        let id = entry.srq.id();
        self.owners.srqs.remove(&id);
        drop(self.client.belongings.srqs.remove(srq));
        done()
    }

    /// The ring of an SRQ, which begins to have it now if it had none.
    pub(super) fn shared_ring(&mut self, srq: Handle) -> Result<Arc<Piece>, Refusal> {
        let entry = self.srq(srq)?;
        if let Some(piece) = &entry.ring {
            return Ok(Arc::clone(piece));
        }
        let size = entry.srq.queue().size();
        let piece = self.client.belongings.piece(size.ring_words())?;
        let entry = entry!(mut self.client.belongings.srqs, srq, "SRQ")?;
        entry.srq.begin(words(&piece))?;
        entry.ring = Some(Arc::clone(&piece));
        Ok(piece)
    }
}
