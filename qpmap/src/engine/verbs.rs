//! What programs ask of QPs: to be made, changed, asked and destroyed.

use super::backlog::PER_ROUND;
use super::changes::Changes;
use super::qp::{Attributes, Cold, Place, Qp, QpInit, QpQueues, Wire};
use super::requests::PostingOrder;
use super::{CqId, Engine, Event, Platform};
use crate::allowed::Allowed;
use crate::error::VerbsError;
use crate::queue::SendCursor;
use crate::slab::NONE;
use crate::state::{QpState, QpType};
use std::sync::Arc;
use trunkline_conn::host::QpEvent;
use trunkline_conn::mem::Access;
use trunkline_wire::{IpFields, Qpn};

/// A change of state (`ibv_modify_qp(3)`).
#[derive(Clone, Copy, Debug)]
pub enum QpModify {
    /// Back to the beginning: everything is forgotten, as when a QP is destroyed.
    Reset,
    /// Receives may be posted.
    Init {
        /// Rights of the peer, until a later step [changes them](Attributes::access).
        access: Access,
    },
    /// The peer is known; its packets are taken. Rights of the peer may change.
    Rtr(Attributes),
    /// Requests are sent: from RTR. Only the requester's attributes count, and rights of the peer,
    /// which may change.
    Rts(Attributes),
    /// What was begun finishes, nothing more is sent: from RTS.
    Drain,
    /// Requests are sent again: from SQD or SQE.
    Resume(Changes),
    /// The state stays: INIT, RTS or SQD.
    Change(Changes),
    /// Everything outstanding is flushed.
    Error,
}

impl<P: Platform> Engine<P> {
    /// Creates a QP in the RESET state (`ibv_create_qp(3)`).
    ///
    /// # Errors
    /// Unknown CQ, SRQ, PD or tenant, a CQ or SRQ in error, sizes out of range, or too many QPs.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Arc<QpQueues<P::RingMemory>>, VerbsError> {
        self.completions.check([init.send_cq, init.recv_cq])?;
        if let Some(srq) = init.srq {
            self.srqs.check(srq)?;
        }
        self.flows.tenants().check(init.tenant)?;
        self.regions().pd_ref(init.pd)?;
        let made = QpQueues::new(init, || self.qps.reserve());
        let queues = made.inspect_err(|_| self.regions().pd_unref(init.pd))?;
        let queues = Arc::new(queues);
        self.insert_qp(init, Arc::clone(&queues));
        Ok(queues)
    }

    /// Gives out the place of a QP that is [inserted](Self::insert_qp) later: who makes QPs without
    /// the engine takes it from a stock.
    ///
    /// # Errors
    /// [`VerbsError::Limit`]
    pub fn reserve_qp(&mut self) -> Result<Place, VerbsError> {
        self.qps.reserve()
    }

    /// Whether a place can be [reserved](Self::reserve_qp) whose number does not have to end its
    /// rest for that.
    pub fn has_rested_qp(&self) -> bool {
        self.qps.has_rested()
    }

    /// Takes up a QP in the RESET state that was made at a [reserved](Self::reserve_qp) place, and
    /// counts among the users of its protection domain already ([`RegionTable::pd_ref`]).
    ///
    /// # Panics
    /// Its CQs, its SRQ or its tenant are not there, or its place is another one's.
    ///
    /// [`RegionTable::pd_ref`]: crate::regions::RegionTable::pd_ref
    pub fn insert_qp(&mut self, init: &QpInit, queues: Arc<QpQueues<P::RingMemory>>) {
        let cqs = queues.cqs;
        let srq = queues.srq;
        let record = Qp {
            queues,
            cursor: SendCursor::default(),
            order: PostingOrder::EMPTY,
            pd: init.pd,
            state: QpState::Reset,
            signal_all: init.signal_all,
            tenant: init.tenant,
            wire: Wire::None,
        };
        let cold = Cold {
            kind: init.kind,
            attributes: Attributes::default(),
            draining: false,
            pinned: false,
            complete_last_wqe: init.complete_last_wqe,
            routes: None,
        };
        self.qps.insert(record, cold);
        self.flows.tenants().join(init.tenant);
        self.completions.attach(cqs);
        if srq != NONE {
            self.srqs.attach(srq);
        }
    }

    /// [Destroys](Self::destroy_qp) a QP whose program failed. Its peer hears of an error, and not
    /// that the QP left.
    ///
    /// # Errors
    /// No such QP.
    pub fn abandon_qp(&mut self, qpn: Qpn) -> Result<(), VerbsError> {
        let qp = self.known(qpn)?;
        for flow in self.flows_of(qp) {
            self.flows[flow].end(false);
        }
        self.destroy_qp(qpn)
    }

    /// Destroys a QP (`ibv_destroy_qp(3)`): what it had outstanding is not reported, and its CQs
    /// give no completion of it any more. A receive that it had taken from its SRQ goes with it: a
    /// program that wants to hear of it puts the QP in ERROR first, and polls its CQ when
    /// [`QpEvent::LastWqeReached`] has come. Its number rests before another QP gets it. The peer's
    /// QP hears that it left ([`Event::PeerQpGone`]).
    ///
    /// # Errors
    /// No such QP.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), VerbsError> {
        let qp = self.known(qpn)?;
        self.disconnect(qp);
        self.drop_requests(qp);
        self.drop_completions(qp);
        self.regions().unbind_qp(qpn);
        let (record, _) = self.qps.remove(qp);
        self.posted.programs().release(qp);
        // Whoever waits for the QP to get ready hears that it is gone.
        self.admit_waiting(qp);
        record.queues.set_state(QpState::Error);
        self.regions().pd_unref(record.pd);
        self.flows.tenants().leave(record.tenant);
        self.completions.detach(record.queues.cqs);
        if record.queues.srq != NONE {
            self.srqs.detach(record.queues.srq);
        }
        Ok(())
    }

    /// Changes the state of a QP (`ibv_modify_qp(3)`).
    ///
    /// # Errors
    /// [`VerbsError::BadTransition`] where the state diagram has no such step;
    /// [`VerbsError::CqInError`] and [`VerbsError::SrqInError`] on the way from RESET to INIT.
    pub fn modify_qp(&mut self, qpn: Qpn, change: &QpModify) -> Result<(), VerbsError> {
        let qp = self.known(qpn)?;
        let from = self.qps[qp].state;
        let to = match change {
            QpModify::Reset => QpState::Reset,
            QpModify::Init { .. } => QpState::Init,
            QpModify::Rtr(_) => QpState::Rtr,
            QpModify::Rts(_) => QpState::Rts,
            QpModify::Drain => QpState::Sqd,
            QpModify::Resume(_) => QpState::Rts,
            QpModify::Change(_) => from,
            QpModify::Error => QpState::Error,
        };
        let step = match change {
            QpModify::Rts(_) => from == QpState::Rtr,
            QpModify::Resume(_) => matches!(from, QpState::Sqd | QpState::Sqe),
            QpModify::Change(_) => matches!(from, QpState::Init | QpState::Rts | QpState::Sqd),
            _ => true,
        };
        if !step || !from.may_become(to) {
            return Err(VerbsError::BadTransition {
                qpn: qpn.get(),
                from,
                to,
            });
        }
        match change {
            QpModify::Reset => self.reset_qp(qp),
            QpModify::Init { access } => {
                let queues = &self.qps[qp].queues;
                self.completions.check(queues.cqs)?;
                if queues.srq != NONE {
                    self.srqs.check(queues.srq)?;
                }
                self.cold_mut(qp).attributes.access = Some(*access);
            }
            QpModify::Rtr(attributes) => {
                check_attributes(attributes)?;
                if matches!(self.cold(qp).kind, QpType::Rc | QpType::Uc) {
                    self.check_peer(attributes.remote)?;
                }
                let own = &mut self.cold_mut(qp).attributes;
                let access = attributes.access.or(own.access);
                *own = Attributes {
                    access,
                    ..*attributes
                };
                self.set_state(qp, QpState::Rtr);
                self.connect(qp);
            }
            QpModify::Rts(attributes) => {
                check_attributes(attributes)?;
                self.start_sending(qp, attributes);
            }
            QpModify::Drain => self.cold_mut(qp).draining = true,
            QpModify::Resume(changes) => {
                self.change_attributes(qp, (from, to), changes)?;
                self.resume_ibta(qp);
            }
            QpModify::Change(changes) => {
                return self.change_attributes(qp, (from, to), changes);
            }
            QpModify::Error => {
                self.end_work(qp);
                return Ok(());
            }
        }
        self.set_state(qp, to);
        match to {
            QpState::Rts => {
                self.take_posted(qp, PER_ROUND);
            }
            QpState::Sqd => self.check_drained(qp),
            _ => {}
        }
        Ok(())
    }

    /// Puts a QP in ERROR, from whatever state: its node ends, in order or since it `failed`. No
    /// event tells of it here. Its peer hears that it left, or of an error.
    pub fn end_qp(&mut self, qpn: Qpn, failed: bool) {
        let Some(qp) = self.qp_index(qpn) else {
            return;
        };
        if !failed {
            for flow in self.flows_of(qp) {
                self.flows[flow].leave();
            }
        }
        self.end_work(qp);
    }

    /// No QP takes requests any more: for an engine that a panic left in pieces. What is
    /// outstanding stays so.
    pub fn condemn_qps(&self) {
        for (_, qp) in self.qps.iter() {
            qp.queues.set_state(QpState::Error);
        }
    }

    fn start_sending(&mut self, qp: u32, attributes: &Attributes) {
        let own = &mut self.cold_mut(qp).attributes;
        own.access = attributes.access.or(own.access);
        own.sq_psn = attributes.sq_psn;
        own.timeout = attributes.timeout;
        own.retry_count = attributes.retry_count;
        own.rnr_retry = attributes.rnr_retry;
        own.max_rd_atomic = attributes.max_rd_atomic;
        if let Wire::Ibta(ibta) = self.qps[qp].wire {
            self.start_ibta(qp, ibta);
            self.change_ibta(qp, ibta);
        }
    }

    pub(crate) fn known(&self, qpn: Qpn) -> Result<u32, VerbsError> {
        self.qp_index(qpn)
            .ok_or(VerbsError::UnknownQp { qpn: qpn.get() })
    }

    pub(crate) fn set_state(&mut self, qp: u32, state: QpState) {
        let record = &mut self.qps[qp];
        record.state = state;
        record.queues.set_state(state);
    }

    /// Finds what carries a QP's packets, now that its peer is known.
    fn connect(&mut self, qp: u32) {
        match self.cold(qp).kind {
            QpType::Rc => {}
            QpType::Src => {
                self.qps[qp].wire = Wire::Routes;
                self.admit_waiting(qp);
                return;
            }
            QpType::Uc | QpType::Ud => {
                self.open_ibta(qp);
                return;
            }
        }
        let Attributes {
            remote: peer,
            dest_qpn: remote,
            ..
        } = self.cold(qp).attributes;
        let known = self.links.peer_at(peer);
        if let Some(conn) = known.and_then(|known| self.links.pick(known, remote)) {
            self.share(qp, conn);
            return;
        }
        self.wait_undecided(qp);
        self.events.push(Event::NeedsConnection { peer, remote });
    }

    /// The QP failed.
    pub(crate) fn enter_error(&mut self, qp: u32) {
        self.enter_error_with(qp, None);
    }

    /// The QP failed, with its CQ if that overran.
    pub(crate) fn enter_error_with(&mut self, qp: u32, cq: Option<CqId>) {
        if self.qps[qp].state != QpState::Error {
            self.end_work(qp);
            let qpn = self.qp_number(qp);
            self.events.push(Event::QpFailed { qpn, cq });
        }
    }

    /// Everything outstanding is flushed; the peer hears of it when it asks for more. So the flows
    /// still wait for a connection, if they have none.
    fn end_work(&mut self, qp: u32) {
        if self.qps[qp].state == QpState::Error {
            return;
        }
        self.set_state(qp, QpState::Error);
        if let Wire::Ibta(ibta) = self.qps[qp].wire {
            self.abort_ibta(ibta);
        }
        for flow in self.flows_of(qp) {
            let record = &mut self.flows[flow];
            (record.head, record.tail, record.sending) = (NONE, NONE, NONE);
            record.reads_out = 0;
            self.reset_assembly(flow);
            self.end_flow(flow);
        }
        self.leave_undecided(qp);
        // Whoever waits for the QP to get ready waits in vain.
        self.admit_waiting(qp);
        self.flush(qp, u32::MAX);
        if self.qps[qp].queues.srq != NONE {
            self.qp_event(qp, QpEvent::LastWqeReached);
            self.complete_last_wqe(qp);
        }
    }

    fn reset_qp(&mut self, qp: u32) {
        self.regions().unbind_qp(self.qp_number(qp));
        self.disconnect(qp);
        self.drop_requests(qp);
        self.drop_completions(qp);
        self.qps.begin_life(qp);
    }

    fn disconnect(&mut self, qp: u32) {
        let flows = self.flows_of(qp);
        self.forget_routes(qp, &flows);
        for flow in flows {
            self.discard_assembly(flow);
            self.reset_assembly(flow);
            self.close_flow(flow);
        }
        if let Wire::Ibta(ibta) = self.qps[qp].wire {
            self.close_ibta(ibta);
        }
        self.leave_undecided(qp);
        self.qps[qp].wire = Wire::None;
    }

    /// Forgets posted requests without reporting them; their slots are free again.
    fn drop_requests(&mut self, qp: u32) {
        let record = &mut self.qps[qp];
        while let Some(first) = record.order.first() {
            self.requests.end(&mut record.order, first);
        }
        record.queues.send.discard(&mut record.cursor);
        if let Some(receive) = &record.queues.receive {
            receive.discard();
        }
    }
}

impl<P: Platform> Engine<P> {
    /// Completions of a QP that nobody has polled are not polled any more.
    fn drop_completions(&self, qp: u32) {
        self.completions
            .forget(self.qps[qp].queues.cqs, self.qp_number(qp));
    }
}

/// Checks the parts of an address (`struct ibv_ah_attr`) that may be out of range: a flow label has
/// 20 bits, and service levels are 0 to 7.
///
/// # Errors
/// One of them is out of its range.
pub fn check_address(flow_label: u32, service_level: u8) -> Result<(), VerbsError> {
    Allowed::Range(0, IpFields::MAX_FLOW_LABEL).check("flow_label", flow_label)?;
    Allowed::Range(0, Attributes::MAX_SERVICE_LEVEL.into()).check("sl", service_level)
}

pub(super) fn check_attributes(attributes: &Attributes) -> Result<(), VerbsError> {
    let [least, .., most] = Attributes::PATH_MTUS.map(u32::from);
    Allowed::PowerOfTwo(least, most).check("path_mtu", attributes.path_mtu)?;
    check_address(attributes.flow_label, attributes.service_level)?;
    Allowed::Range(0, 31).check("timeout", attributes.timeout)?;
    Allowed::Range(0, 7).check("retry_cnt", attributes.retry_count)?;
    Allowed::Range(0, 7).check("rnr_retry", attributes.rnr_retry)?;
    Allowed::Range(0, 31).check("min_rnr_timer", attributes.min_rnr_timer)
}
