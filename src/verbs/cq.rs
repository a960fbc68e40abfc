//! Completion queues.

mod wait;

use crate::error::Error;
use crate::node::shared::Shared;
use crate::platform::Heap;
use crate::worker::core::Core;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use trunkline_conn::work::Completion;
use trunkline_qpmap::cq::{CqOverflow, MergedQueue, Notify};
use trunkline_qpmap::{CqId, VerbsError};

/// A completion queue (`ibv_create_cq(3)`) with its completion channel.
#[derive(Clone)]
pub struct Cq(pub(crate) Arc<CqInner>);

pub(crate) struct CqInner {
    pub(crate) node: Arc<Shared>,
    pub(crate) id: CqId,
    queue: MergedQueue<Heap>,
    /// What the program waits on; `None`: it is notified in a way of its own.
    event: Option<Arc<EventFd>>,
}

/// A descriptor that becomes readable when a completion arrives on an armed queue.
#[derive(Debug)]
struct EventFd(OwnedFd);

impl EventFd {
    fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = eventfd(0, flags)
            .map_err(|e| Error::system("eventfd of a completion queue")(e.into()))?;
        Ok(Self(fd))
    }
}

impl Notify for EventFd {
    fn notify(&self) {
        // It fails only when the counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = &self.0.id;
        f.debug_struct("Cq").field("id", id).finish_non_exhaustive()
    }
}

impl Cq {
    pub(crate) fn create(node: &Arc<Shared>, depth: u32) -> Result<Self, Error> {
        node.life.check()?;
        let event = Arc::new(EventFd::new()?);
        Self::with(node, depth, Arc::clone(&event) as _, Some(event))
    }

    /// The same for a program that is notified in a way of its own.
    pub(crate) fn notifying(
        node: &Arc<Shared>,
        depth: u32,
        notify: Arc<dyn Notify>,
    ) -> Result<Self, Error> {
        node.life.check()?;
        Self::with(node, depth, notify, None)
    }

    fn with(
        node: &Arc<Shared>,
        depth: u32,
        notify: Arc<dyn Notify>,
        event: Option<Arc<EventFd>>,
    ) -> Result<Self, Error> {
        let workers = usize::from(node.workers.count());
        let mut made = None;
        let queue = MergedQueue::new(workers, notify, |notify| {
            let make = |core: &mut Core| {
                let engine = &mut core.engine;
                let (index, ring) = engine.create_cq(depth, Some(Arc::clone(&notify)))?;
                Ok::<_, VerbsError>((engine.cq_id(index), ring))
            };
            let (ids, rings): (Vec<_>, _) = node.on_all(make)?.into_iter().unzip();
            // All of them together were made in one order, so their numbers are equal.
            assert!(ids.iter().all(|id| *id == ids[0]), "workers differ");
            made = Some(ids[0]);
            Ok::<_, Error>(rings)
        })?;
        Ok(Self(Arc::new(CqInner {
            node: Arc::clone(node),
            id: made.expect("a node has a worker at least"),
            queue,
            event,
        })))
    }

    /// Checks that QPs may use it.
    ///
    /// # Errors
    /// It is in error: nobody would get their completions.
    pub(crate) fn check(&self) -> Result<(), VerbsError> {
        let cq = self.0.id.index();
        match self.0.queue.is_in_error() {
            true => Err(VerbsError::CqInError { cq }),
            false => Ok(()),
        }
    }

    /// What events call it.
    pub fn id(&self) -> CqId {
        self.0.id
    }

    /// Returns how many completions the CQ holds before it overruns: at least the depth that
    /// [`create_cq`](crate::Node::create_cq) or [`resize`](Self::resize) was asked for, rounded up
    /// to a power of two (`cqe` of `ibv_create_cq(3)`). Where the node has several workers, each of
    /// them finds that much room.
    pub fn depth(&self) -> u32 {
        self.0.queue.capacity()
    }

    /// Changes how many completions the CQ holds (`ibv_resize_cq(3)`) to `depth` or, rounded up, a
    /// few more: see [`depth`](Self::depth). The CQ may be in use: QPs go on completing, and other
    /// threads may poll, arm and wait. Each completion in it is polled once, in its order, and an
    /// arming holds.
    ///
    /// # Errors
    /// [`VerbsError::BadAttribute`]: the depth is 0 or beyond the maximum.
    /// [`VerbsError::TooManyCompletions`]: more completions are in the CQ than the new depth holds,
    /// counted for each worker of the node by itself. [`VerbsError::CqInError`]: the CQ overran,
    /// and stays in error. [`Error::Down`]: the node is down. The CQ is then as it was.
    pub fn resize(&self, depth: u32) -> Result<(), Error> {
        let node = &self.0.node;
        node.life.check()?;
        let cq = self.0.id.index();
        // Memory is allocated before the workers are held up.
        let entries = self.0.queue.entries(depth)?;
        let mut cores = node.all_cores()?;
        let checks = cores.iter().zip(&entries);
        let checks = checks.map(|(core, room)| core.engine.check_resize_cq(cq, room.capacity()));
        let refused = checks
            .filter_map(Result::err)
            .max_by_key(|error| match error {
                VerbsError::TooManyCompletions { count, .. } => *count,
                // One that is in error matters more than how full another one is.
                _ => u32::MAX,
            });
        if let Some(refused) = refused {
            return Err(refused.into());
        }
        for (core, room) in cores.iter_mut().zip(entries) {
            core.engine.resize_cq(cq, room);
        }
        Ok(())
    }

    /// Takes completions, oldest first; gives how many (`ibv_poll_cq(3)`). Does not drive the node:
    /// an inline node makes progress in [`Node::poll`](crate::Node::poll).
    ///
    /// Where the node has several workers, the completions of each come in their order, and so do
    /// those of each QP.
    ///
    /// # Errors
    /// A completion came when the queue was full: the queue is in error, and all that it had taken
    /// before was polled. So it stays, and so do its QPs, until they are made anew with another
    /// one. [`Event::CqError`](crate::Event::CqError) tells of it, too.
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, CqOverflow> {
        if self.0.node.life.is_forked() {
            return Ok(0);
        }
        self.0.queue.poll(out)
    }

    /// Takes one completion.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn poll_one(&self) -> Result<Option<Completion>, CqOverflow> {
        let mut one = [Completion::BLANK];
        Ok((self.poll(&mut one)? == 1).then_some(one[0]))
    }

    /// Asks for one event at the next completion (`ibv_req_notify_cq(3)`), of solicited ones only
    /// if so wished. Poll once more afterwards: what came before raises none.
    pub fn arm(&self, solicited_only: bool) {
        if self.0.node.life.is_forked() {
            return;
        }
        self.0.queue.arm(solicited_only);
    }

    /// The descriptor that becomes readable at that event: for `poll(2)`, an async runtime, ...
    ///
    /// # Panics
    /// It has none: [`create_cq_notifying`](crate::Node::create_cq_notifying) made it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        let event = self.0.event.as_ref();
        let event = event.expect("a CQ that notifies its program otherwise has no descriptor");
        event.0.as_fd()
    }

    /// Takes the events that have come; gives how many (`ibv_get_cq_event(3)`, without blocking).
    /// There are none where the CQ notifies the program in another way.
    pub fn take_events(&self) -> u64 {
        let Some(event) = &self.0.event else { return 0 };
        if self.0.node.life.is_forked() {
            return 0;
        }
        let mut count = [0; 8];
        match rustix::io::read(&event.0, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let freed = self
            .node
            .on_all(|core| core.engine.destroy_cq(self.id.index()));
        self.node.gave_up(freed, "QPs keep their CQs alive");
    }
}
