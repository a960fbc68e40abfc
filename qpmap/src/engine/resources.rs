//! What programs ask for beside QPs: regions, CQs and SRQs.

use super::completions::Indexed;
use super::srq::Srq;
use super::{CqId, Engine, Event, Platform, SrqSlot};
use crate::allowed::Allowed;
use crate::cq::{CompletionQueue, Notify};
use crate::error::VerbsError;
use crate::queue::{MAX_WR, RecvQueue};
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
    #[inline]
    pub(crate) fn complete(&mut self, cq: u32, completion: &Completion) {
        if let Some(cq) = self.completions.push(cq, completion) {
            self.events.push(Event::CqError { cq });
            self.begin_to_fail_users(cq);
        }
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while QPs use it.
    pub fn destroy_cq(&mut self, cq: u32) -> Result<(), VerbsError> {
        self.completions.destroy(cq)
    }

    /// Creates a shared receive queue (`ibv_create_srq(3)`) for `max_wr` receives.
    ///
    /// # Errors
    /// Sizes out of range: there is one receive at least.
    pub fn create_srq(
        &mut self,
        pd: PdId,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Indexed<RecvQueue<P::RingMemory>>, VerbsError> {
        // A QP without receives is of use, and an SRQ is not: `ibv_create_srq(3)` refuses it.
        Allowed::Range(1, MAX_WR).check("max_wr", max_wr)?;
        let queue = Arc::new(RecvQueue::new(max_wr, max_sge)?);
        self.regions().pd_ref(pd)?;
        let slot = SrqSlot {
            srq: Srq::new(Arc::clone(&queue)),
            pd,
        };
        Ok((self.srqs.insert(slot), queue))
    }

    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while QPs use it.
    pub fn destroy_srq(&mut self, srq: u32) -> Result<(), VerbsError> {
        let slot = self.srqs.get(srq).ok_or(VerbsError::UnknownSrq { srq })?;
        let users = slot.srq.users;
        if users > 0 {
            return Err(VerbsError::Busy { what: "SRQ", users });
        }
        let slot = self.srqs.remove(srq);
        self.regions().pd_unref(slot.pd);
        Ok(())
    }
}
