//! Completion queues.

mod wait;

use crate::attached::{Signals, cq_id};
use crate::error::Error;
use crate::node::life::Down;
use crate::node::shared::Shared;
use crate::worker::core::Core;
use rustix::event::{EventfdFlags, eventfd};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use trunkline_conn::work::Completion;
use trunkline_host::Handle;
use trunkline_host::Words;
use trunkline_qpmap::cq::{CompletionQueue, CqOverflow, Entries, MergedQueue, Notify, Writer};
use trunkline_qpmap::{CqId, VerbsError};
use trunkline_wire::Qpn;

/// The completions of one worker.
type Ring = Arc<CompletionQueue<Words>>;

/// A completion queue (`ibv_create_cq(3)`) with its completion channel.
#[derive(Clone)]
pub struct Cq(pub(crate) Arc<CqInner>);

pub(crate) struct CqInner {
    pub(crate) node: Arc<Shared>,
    pub(crate) id: CqId,
    queue: MergedQueue<Words>,
    event: Waited,
    /// What its service calls it, if one carries the node.
    served: Option<Handle>,
}

/// What the program waits on.
enum Waited {
    EventFd(Arc<EventFd>),
    /// A service raises events.
    Signals(Signals),
    /// It is notified in a way of its own, for events that a service raises.
    Notified(u64),
    /// It is notified in a way of its own.
    Otherwise,
}

impl Waited {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::EventFd(event) => Some(event.0.as_fd()),
            Self::Signals(signals) => Some(signals.as_fd()),
            Self::Notified(_) | Self::Otherwise => None,
        }
    }

    /// Raises an event from this side.
    fn raise(&self) {
        match self {
            Self::EventFd(event) => event.notify(),
            Self::Signals(signals) => signals.notify(),
            Self::Notified(_) | Self::Otherwise => {}
        }
    }
}

/// Why nothing can be polled.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CqError {
    /// The CQ is in error.
    #[error(transparent)]
    Overflow(#[from] CqOverflow),
    /// The service that carried the node is gone, and nothing completes any more.
    #[error(transparent)]
    Down(#[from] Down),
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
        if let Some(client) = node.client() {
            let (cq, queue, signals) = client.create_cq(depth)?;
            return Ok(Self(Arc::new(CqInner {
                node: Arc::clone(node),
                id: cq_id(cq),
                queue,
                event: Waited::Signals(signals),
                served: Some(cq),
            })));
        }
        let event = Arc::new(EventFd::new()?);
        let notify = Arc::clone(&event) as _;
        Self::with(node, depth, notify, Waited::EventFd(event))
    }

    /// The same for a program that is notified in a way of its own.
    pub(crate) fn notifying(
        node: &Arc<Shared>,
        depth: u32,
        notify: Arc<dyn Notify>,
    ) -> Result<Self, Error> {
        node.life.check()?;
        if let Some(client) = node.client() {
            let (cq, queue, signals) = client.create_cq(depth)?;
            let watched = client.watch(signals, notify);
            let event = watched.inspect_err(|_| client.destroy_cq(cq))?;
            return Ok(Self(Arc::new(CqInner {
                node: Arc::clone(node),
                id: cq_id(cq),
                queue,
                event: Waited::Notified(event),
                served: Some(cq),
            })));
        }
        Self::with(node, depth, notify, Waited::Otherwise)
    }

    fn with(
        node: &Arc<Shared>,
        depth: u32,
        notify: Arc<dyn Notify>,
        event: Waited,
    ) -> Result<Self, Error> {
        let workers = usize::from(node.workers.count());
        let mut id = None;
        let queue = MergedQueue::new(workers, notify, |notify| {
            Self::make_rings(node, &mut id, |core| {
                core.engine.create_cq(depth, Some(Arc::clone(&notify)))
            })
        })?;
        Ok(Self::made(node, id, queue, event))
    }

    /// One that a program in another process polls, over the header and the entries of each worker
    /// that it has too.
    ///
    /// # Errors
    /// The node is down.
    pub(crate) fn apart(
        node: &Arc<Shared>,
        memory: &[(Words, Words)],
        notify: Arc<dyn Notify>,
    ) -> Result<Self, Error> {
        node.life.check()?;
        let (first, mut of_workers) = (memory[0].0.clone(), memory.iter());
        let mut id = None;
        let queue = MergedQueue::apart(memory.len(), first, notify, |notify| {
            Self::make_rings(node, &mut id, |core| {
                let (header, entries) = of_workers.next().expect("memory for each worker");
                let writer = Writer::over(header.clone(), entries.clone())?;
                let ring = Arc::clone(writer.queue());
                let index = core.engine.adopt_cq(writer, Some(Arc::clone(&notify)));
                Ok((index, ring))
            })
        })?;
        Ok(Self::made(node, id, queue, Waited::Otherwise))
    }

    /// Makes the ring of each worker, and notes what all of them call it.
    fn make_rings(
        node: &Arc<Shared>,
        id: &mut Option<CqId>,
        mut make: impl FnMut(&mut Core) -> Result<(u32, Ring), VerbsError>,
    ) -> Result<Vec<Ring>, Error> {
        let made = node.on_all(|core| {
            let (index, ring) = make(core)?;
            Ok((core.engine.cq_id(index), ring))
        })?;
        let (ids, rings): (Vec<_>, _) = made.into_iter().unzip();
        // All of them together were made in one order, so their numbers are equal.
        assert!(ids.iter().all(|id| *id == ids[0]), "workers differ");
        *id = ids.first().copied();
        Ok(rings)
    }

    fn made(
        node: &Arc<Shared>,
        id: Option<CqId>,
        queue: MergedQueue<Words>,
        event: Waited,
    ) -> Self {
        Self(Arc::new(CqInner {
            node: Arc::clone(node),
            id: id.expect("a node has a worker at least"),
            queue,
            event,
            served: None,
        }))
    }

    /// What its service calls it; `None`: the node is one inside the program.
    pub(crate) fn served(&self) -> Option<Handle> {
        self.0.served
    }

    /// Nobody polls what a QP completed that is gone. Only where a service carries the node: else
    /// the engine sees to it.
    pub(crate) fn forget(&self, gone: Qpn) {
        self.0.queue.forget(gone);
    }

    /// Whether nobody else has a handle of it.
    pub(crate) fn is_last_handle(&self) -> bool {
        Arc::strong_count(&self.0) == 1
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
        if let (Some(client), Some(cq)) = (node.client(), self.0.served) {
            return client.resize_cq(cq, &self.0.queue, depth);
        }
        // Memory is allocated before the workers are held up.
        self.resize_to(self.0.queue.entries(depth)?)
    }

    /// Moves it to the entries of each worker.
    ///
    /// # Errors
    /// As [`resize`](Self::resize).
    pub(crate) fn resize_to(&self, entries: Vec<Entries<Words>>) -> Result<(), Error> {
        let cq = self.0.id.index();
        let mut cores = self.0.node.all_cores()?;
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
    /// one. [`Event::CqError`](crate::Event::CqError) tells of it, too. Or the service that carried
    /// the node is gone, and all that completed before was polled.
    #[inline]
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, CqError> {
        let life = &self.0.node.life;
        if life.is_forked() {
            return Ok(0);
        }
        // Whoever finds nothing after the end of a service waits in vain.
        let is_over = self.0.served.is_some() && !life.is_up();
        let taken = self.0.queue.poll(out)?;
        match life.health().down {
            Some(down) if taken == 0 && is_over && !out.is_empty() => Err(down.into()),
            _ => Ok(taken),
        }
    }

    /// Takes one completion.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn poll_one(&self) -> Result<Option<Completion>, CqError> {
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
        let fd = self.0.event.fd();
        fd.expect("a CQ that notifies its program otherwise has no descriptor")
    }

    /// Takes the events that have come; gives how many (`ibv_get_cq_event(3)`, without blocking).
    /// There are none where the CQ notifies the program in another way.
    pub fn take_events(&self) -> u64 {
        if self.0.node.life.is_forked() {
            return 0;
        }
        let event = match &self.0.event {
            Waited::EventFd(event) => event,
            Waited::Signals(signals) => return signals.take(),
            Waited::Notified(_) | Waited::Otherwise => return 0,
        };
        let mut count = [0; 8];
        match rustix::io::read(&event.0, &mut count) {
            Ok(8) => u64::from_ne_bytes(count),
            _ => 0,
        }
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        if let (Some(client), Some(cq)) = (self.node.client(), self.served) {
            if let Waited::Notified(watched) = self.event {
                client.let_go_of(watched);
            }
            return client.destroy_cq(cq);
        }
        let freed = self
            .node
            .on_all(|core| core.engine.destroy_cq(self.id.index()));
        self.node.gave_up(freed, "QPs keep their CQs alive");
    }
}
