//! What programs ask for beside QPs: regions, CQs and SRQs.

use super::completions::Indexed;
use super::{CqId, Engine, Event, Platform, SharedReceives, SrqAttributes, SrqId, Tenant};
use crate::cq::{CompletionQueue, Entries, Notify, Writer};
use crate::error::VerbsError;
use crate::queue::{SharedRecvQueue, Size};
use crate::regions::{RegionTable, Unregistered};
use std::sync::Arc;
use trunkline_conn::mem::PdId;
use trunkline_conn::work::Completion;

impl<P: Platform> Engine<P> {
    /// The regions and protection domains of the node: programs register there.
    pub const fn regions(&self) -> &RegionTable<P::RegionMemory> {
        self.regions.table()
    }

    /// The engine is in no call, so it uses nothing of a region that was taken back before. Packets
    /// in flight that would read it become VOID.
    pub fn quiesce(&mut self, region: &mut Unregistered<P::RegionMemory>) {
        region.quiesced(&mut self.regions);
    }

    /// Creates a completion queue for `depth` completions (`ibv_create_cq(3)`).
    ///
    /// # Errors
    /// A depth of 0 or beyond what a CQ can hold.
    pub fn create_cq(
        &mut self,
        depth: u32,
        notify: Option<Arc<dyn Notify>>,
    ) -> Result<Indexed<CompletionQueue<P::RingMemory>>, VerbsError> {
        self.completions.create(depth, notify)
    }

    /// Creates a completion queue whose [other half](Writer::over) a program of another process
    /// has. Returns its index.
    pub fn adopt_cq(
        &mut self,
        writer: Writer<P::RingMemory>,
        notify: Option<Arc<dyn Notify>>,
    ) -> u32 {
        self.completions.adopt(writer, notify)
    }

    /// Checks that a CQ may be [resized](Self::resize_cq) to what has room for `capacity`
    /// completions. The answer holds until the engine works again: programs only make room.
    ///
    /// # Errors
    /// [`VerbsError::TooManyCompletions`] where more are in it, those of QPs that are gone aside;
    /// [`VerbsError::CqInError`]; no such CQ.
    pub fn check_resize_cq(&self, cq: u32, capacity: u32) -> Result<(), VerbsError> {
        self.completions.check_resize(cq, capacity)
    }

    /// Resizes a CQ (`ibv_resize_cq(3)`) after a [check](Self::check_resize_cq): every completion
    /// in it moves to `entries`, and later ones go there.
    ///
    /// # Panics
    /// There is none of this index.
    pub fn resize_cq(&mut self, cq: u32, entries: Entries<P::RingMemory>) {
        self.completions.resize(cq, entries);
    }

    /// What tells a CQ apart from others that have its index later.
    ///
    /// # Panics
    /// There is none of this index.
    pub fn cq_id(&self, cq: u32) -> CqId {
        self.completions.id(cq)
    }

    /// Puts a CQ in error, and its QPs, as another worker has: a program's CQ is one, though each
    /// worker completes into a ring of its own. Gives whether it was not in error before.
    pub fn fail_cq(&mut self, cq: CqId) -> bool {
        let failed = self.completions.fail(cq);
        if failed {
            self.begin_to_fail_users(cq);
        }
        failed
    }

    /// Puts a completion into a CQ; programs see it at the next [`publish`](Self::publish). The QPs
    /// of one that overruns go to error.
    #[inline(always)]
    pub(crate) fn complete(&mut self, cq: u32, completion: &Completion) {
        if let Some(cq) = self.completions.push(cq, completion) {
            self.overran(cq);
        }
    }

    #[cold]
    fn overran(&mut self, cq: CqId) {
        self.events.push(Event::CqError { cq });
        self.begin_to_fail_users(cq);
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while QPs use it.
    pub fn destroy_cq(&mut self, cq: u32) -> Result<(), VerbsError> {
        self.completions.destroy(cq)
    }

    /// A tenant from now on: what it gets of a connection on which others have something to send,
    /// too, is as `weight` is to theirs, 1 to 64.
    ///
    /// # Errors
    /// A weight out of range, or 65,535 tenants already.
    pub fn add_tenant(&mut self, weight: u32) -> Result<Tenant, VerbsError> {
        self.flows.tenants().add(weight)
    }

    /// Changes what a tenant gets, from its next turn on.
    ///
    /// # Errors
    /// No such tenant, or a weight out of range.
    pub fn set_tenant_weight(&mut self, tenant: Tenant, weight: u32) -> Result<(), VerbsError> {
        self.flows.tenants().set_weight(tenant, weight)
    }

    /// A tenant is gone.
    ///
    /// # Errors
    /// No such tenant, or [`Tenant::OWN`]; [`VerbsError::Busy`] while it has QPs.
    pub fn remove_tenant(&mut self, tenant: Tenant) -> Result<(), VerbsError> {
        self.flows.tenants().remove(tenant)
    }

    /// Creates a shared receive queue (`ibv_create_srq(3)`) for `max_wr` receives of QPs of this
    /// engine.
    ///
    /// # Errors
    /// Sizes out of range: there is one receive at least.
    pub fn create_srq(
        &mut self,
        pd: PdId,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Indexed<SharedRecvQueue<P::RingMemory>>, VerbsError> {
        let receives = SharedReceives::new(pd, max_wr, max_sge)?;
        self.regions().pd_ref(pd)?;
        let queue = Arc::clone(receives.queue());
        Ok((self.adopt_srq(Arc::new(receives)), queue))
    }

    /// Takes up an SRQ whose receives other engines of the node take, too, and which counts among
    /// the users of its protection domain already, once for all of them. Returns its index.
    pub fn adopt_srq(&mut self, receives: Arc<SharedReceives<P::RingMemory>>) -> u32 {
        self.srqs.insert(receives)
    }

    /// Returns what tells an SRQ apart from others that have its index later.
    ///
    /// # Panics
    /// There is none of this index.
    pub fn srq_id(&self, srq: u32) -> SrqId {
        self.srqs[srq].id()
    }

    /// Attributes of an SRQ (`ibv_query_srq(3)`).
    ///
    /// # Errors
    /// No such SRQ.
    pub fn query_srq(&self, srq: u32) -> Result<SrqAttributes, VerbsError> {
        Ok(self.srqs.known(srq)?.attributes())
    }

    /// Arms the limit of an SRQ (`ibv_modify_srq(3)` with `IBV_SRQ_LIMIT`), or disarms it with 0:
    /// [`Event::SrqLimitReached`] comes once, when fewer receives than `limit` are posted and not
    /// taken, which may be now: from the engine that takes the last of them.
    ///
    /// # Errors
    /// No such SRQ, or a limit beyond its size.
    pub fn set_srq_limit(&mut self, srq: u32, limit: u32) -> Result<(), VerbsError> {
        let record = self.srqs.known(srq)?;
        record.set_limit(limit, &mut self.events)
    }

    /// Makes room in an SRQ for `max_wr` receives (`ibv_modify_srq(3)` with `IBV_SRQ_MAX_WR`).
    /// What is posted stays posted, in its order.
    ///
    /// # Errors
    /// No such SRQ, one in error, or a size out of range: there is room for what is posted, and the
    /// limit is not beyond it.
    pub fn resize_srq(&mut self, srq: u32, max_wr: u32) -> Result<(), VerbsError> {
        let record = self.srqs.known(srq)?;
        record.resize(max_wr, &mut self.events, |_| Ok(None))
    }

    /// The same for an SRQ whose producer is in another process, which posts nothing meanwhile:
    /// `memory` gives the ring of the size that it is told, which the producer has from then on.
    ///
    /// # Errors
    /// As [`resize_srq`](Self::resize_srq), and what `memory` says.
    ///
    /// # Panics
    /// The memory has another number of words.
    pub fn resize_srq_into(
        &mut self,
        srq: u32,
        max_wr: u32,
        memory: impl FnOnce(Size) -> Result<P::RingMemory, VerbsError>,
    ) -> Result<(), VerbsError> {
        let record = self.srqs.known(srq)?;
        let memory = |size| memory(size).map(Some);
        record.resize(max_wr, &mut self.events, memory)
    }

    /// Destroys a shared receive queue, here: it is gone when all engines that took it up have done
    /// so.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while QPs use it, be they of other engines.
    pub fn destroy_srq(&mut self, srq: u32) -> Result<(), VerbsError> {
        if let Some(pd) = self.srqs.remove(srq)? {
            self.regions().pd_unref(pd);
        }
        Ok(())
    }
}
