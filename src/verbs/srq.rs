//! Shared receive queues.

use crate::attached::{Client, srq_id};
use crate::error::Error;
use crate::node::shared::Shared;
use crate::verbs::mr::Pd;
use crate::worker::handle::WorkerHandle;
use std::fmt;
use std::sync::Arc;
use trunkline_host::Handle;
use trunkline_host::Words;
use trunkline_qpmap::queue::{SharedRecvQueue, Size};
use trunkline_qpmap::wqe::RecvWr;
use trunkline_qpmap::{SharedReceives, SrqAttributes, SrqId, VerbsError};

impl Pd {
    /// Creates a shared receive queue (`ibv_create_srq(3)`), for QPs of all workers of the node:
    /// what is posted goes to whichever of them needs it first.
    ///
    /// # Errors
    /// Sizes out of range: `max_wr` is at least 1, and `max_sge` may be 0 for messages of no bytes.
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq, Error> {
        let node = &self.0.node;
        if let Some(client) = node.client() {
            return self.create_served_srq(client, max_wr, max_sge);
        }
        let (pd, regions) = (self.0.id()?, node.regions()?);
        let receives = Arc::new(SharedReceives::new(pd, max_wr, max_sge)?);
        regions.pd_ref(pd)?;
        let made = node.on_all(|core| {
            let index = core.engine.adopt_srq(Arc::clone(&receives));
            Ok(core.engine.srq_id(index))
        });
        let ids = made.inspect_err(|_| regions.pd_unref(pd))?;
        // All of them together took it up in one order, so their numbers are equal.
        assert!(ids.iter().all(|id| *id == ids[0]), "workers differ");
        Ok(Srq(Arc::new(SrqInner {
            pd: self.clone(),
            id: ids[0],
            queue: Arc::clone(receives.queue()),
            served: None,
        })))
    }

    fn create_served_srq(&self, client: &Client, max_wr: u32, max_sge: u32) -> Result<Srq, Error> {
        let pd = self.0.served()?;
        let (srq, queue) = client.create_srq(pd, max_wr, max_sge)?;
        Ok(Srq(Arc::new(SrqInner {
            pd: self.clone(),
            id: srq_id(srq),
            queue: Arc::new(queue),
            served: Some(srq),
        })))
    }
}

/// A shared receive queue. Dropping its last handle destroys it (`ibv_destroy_srq(3)`); QPs that
/// receive from it have one.
#[derive(Clone)]
pub struct Srq(Arc<SrqInner>);

struct SrqInner {
    pd: Pd,
    id: SrqId,
    queue: Arc<SharedRecvQueue<Words>>,
    /// What its service calls it, if one carries the node.
    served: Option<Handle>,
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq")
            .field("index", &self.0.id.index())
            .finish_non_exhaustive()
    }
}

impl Srq {
    pub(crate) fn node(&self) -> &Arc<Shared> {
        &self.0.pd.0.node
    }

    /// The service that carries its node, if one does, and what that calls it.
    fn service(&self) -> Option<(&Client, Handle)> {
        Some((self.node().client()?, self.0.served?))
    }

    /// What its service calls it.
    pub(crate) fn served(&self) -> Option<Handle> {
        self.0.served
    }

    /// Whether nobody else has a handle of it.
    pub(crate) fn is_last_handle(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Its queue, of which a program in another process has the other half.
    pub(crate) fn queue(&self) -> &SharedRecvQueue<Words> {
        &self.0.queue
    }

    /// Gives its queue the memory of its ring, for a program in another process.
    ///
    /// # Errors
    /// The node is another process's.
    pub(crate) fn begin(&self, memory: Words) -> Result<(), Error> {
        self.node().life.check_own()?;
        self.0.queue.begin(memory);
        Ok(())
    }

    /// As [`resize`](Self::resize), into the memory that `memory` gives for the size.
    pub(crate) fn resize_into(
        &self,
        max_wr: u32,
        memory: impl FnOnce(Size) -> Result<Words, VerbsError>,
    ) -> Result<(), Error> {
        let index = self.0.id.index();
        let resized = self
            .handle()
            .act(|core, _| core.engine.resize_srq_into(index, max_wr, memory))?;
        Ok(resized?)
    }

    /// The first worker, which speaks for all of them: they have the same of it.
    fn handle(&self) -> &WorkerHandle {
        self.node().handle(0)
    }

    /// Checks that QPs may receive from it.
    ///
    /// # Errors
    /// It is in error: they would get no receives.
    pub(crate) fn check(&self) -> Result<(), VerbsError> {
        let srq = self.0.id.index();
        match self.0.queue.is_in_error() {
            true => Err(VerbsError::SrqInError { srq }),
            false => Ok(()),
        }
    }

    /// What events call it.
    pub fn id(&self) -> SrqId {
        self.0.id
    }

    /// Makes its ring now, as [`Qp::make_rings`](crate::Qp::make_rings) does.
    ///
    /// # Errors
    /// As there.
    pub fn make_ring(&self) -> Result<(), Error> {
        self.node().life.check()?;
        if let Some((client, srq)) = self.service() {
            client.ready_to_share(srq, &self.0.queue)?;
        }
        Ok(())
    }

    /// Posts receive requests (`ibv_post_srq_recv(3)`) in order, up to the first that is refused.
    ///
    /// # Errors
    /// [`Error::Post`] for a request out of range or without room in the queue: it says how many
    /// were posted before it.
    pub fn post_recv(&self, requests: &[RecvWr<'_>]) -> Result<(), Error> {
        self.node().life.check()?;
        if let Some((client, srq)) = self.service() {
            client.ready_to_share(srq, &self.0.queue)?;
        }
        Ok(self.0.queue.post(requests)?)
    }

    /// Attributes (`ibv_query_srq(3)`).
    ///
    /// # Errors
    /// Only where the node has ended.
    pub fn query(&self) -> Result<SrqAttributes, Error> {
        if let Some((client, srq)) = self.service() {
            return client.query_srq(srq);
        }
        let index = self.0.id.index();
        Ok(self.handle().core()?.engine.query_srq(index)?)
    }

    /// Arms the limit (`ibv_modify_srq(3)` with `IBV_SRQ_LIMIT`): once fewer than `limit` receives
    /// are posted and not taken, [`Event::SrqLimitReached`](crate::Event::SrqLimitReached) comes,
    /// and the limit is disarmed. If that is so already, the event comes at once. 0 disarms it.
    ///
    /// # Errors
    /// A limit beyond what the SRQ has room for: the one before stays.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        if let Some((client, srq)) = self.service() {
            return client.set_srq_limit(srq, limit);
        }
        let index = self.0.id.index();
        let set = self
            .handle()
            .act(|core, _| core.engine.set_srq_limit(index, limit))?;
        Ok(set?)
    }

    /// Makes room for `max_wr` receives (`ibv_modify_srq(3)` with `IBV_SRQ_MAX_WR`). What is posted
    /// stays posted, in its order; other threads may post and messages may take receives
    /// meanwhile.
    ///
    /// # Errors
    /// A size out of range: it is at least 1, the number of receives that are posted and not taken,
    /// and the limit that is armed. An SRQ in error
    /// ([`Event::SrqError`](crate::Event::SrqError)).
    pub fn resize(&self, max_wr: u32) -> Result<(), Error> {
        if let Some((client, srq)) = self.service() {
            return client.resize_srq(srq, &self.0.queue, max_wr);
        }
        let index = self.0.id.index();
        let resized = self
            .handle()
            .act(|core, _| core.engine.resize_srq(index, max_wr))?;
        Ok(resized?)
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        if let (Some(client), Some(srq)) = (self.pd.0.node.client(), self.served) {
            return client.destroy_srq(srq);
        }
        let node = &self.pd.0.node;
        let freed = node.on_all(|core| core.engine.destroy_srq(self.id.index()));
        node.gave_up(freed, "QPs keep their SRQ alive");
    }
}
