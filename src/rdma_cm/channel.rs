//! Event channels.

use super::event::{ChannelEvent, CmEvent, CmEventKind};
use super::id::{CmId, IdInner, Response};
use super::sync::ConnectError;
use crate::error::Error;
use crate::node::Node;
use crate::node::shared::Shared;
use crate::verbs::qp::Qp;
use crate::worker::deadline::Deadline;
use crate::worker::event_queue::EventQueue;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use trunkline_cm::rdma::{Event, Id, Kind, PortSpace};

/// Pause between two looks at whether QPs of connections that have ended may be freed: a program
/// that polls for events takes no worker's lock in between.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Where the events of [`CmId`]s come out (`rdma_create_event_channel(3)`).
#[derive(Clone)]
pub struct EventChannel(pub(crate) Arc<Channel>);

/// The handles of a node's IDs. Not of a channel's: an event that one thread has taken out while
/// another moves its ID to another channel finds it all the same.
#[derive(Debug, Default)]
pub(crate) struct Ids(Mutex<BTreeMap<Id, Weak<IdInner>>>);

impl Ids {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Id, Weak<IdInner>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Events of this ID find it from now on.
    pub(crate) fn enter(&self, id: &CmId) {
        self.lock().insert(id.0.id, Arc::downgrade(&id.0));
    }

    pub(crate) fn leave(&self, id: Id) {
        self.lock().remove(&id);
    }

    fn find(&self, id: Id) -> Option<CmId> {
        let found = self.lock().get(&id)?.upgrade();
        found.map(CmId)
    }
}

pub(crate) struct Channel {
    pub(crate) node: Arc<Shared>,
    pub(crate) queue: Arc<EventQueue<ChannelEvent>>,
    /// IDs whose events calls wait for: nobody else takes them. Held from where an event is taken
    /// out until its ID has heard of it: what comes behind it, of an ID that it brings, say, is
    /// told by another thread only then.
    fetching: Mutex<Vec<Id>>,
    ended: Mutex<Ended>,
}

/// QPs of connections that have ended not long ago: their numbers are kept from use until nothing
/// comes for them any more.
#[derive(Debug, Default)]
struct Ended {
    /// Each with the worker of its connection, oldest first.
    qps: VecDeque<(u8, Qp)>,
    /// When whoever fetches events looks next whether some may be freed.
    look_at: Option<Instant>,
}

impl Channel {
    /// Keeps a QP until its connection is forgotten, and frees those whose are.
    pub(crate) fn release(&self, qp: Option<(u8, Qp)>) {
        let mut ended = self.ended();
        ended.qps.extend(qp);
        let taken = |(worker, qp): &(u8, Qp)| self.is_taken(*worker, qp);
        let free = ended.qps.iter().take_while(|ended| !taken(ended)).count();
        let freed: Vec<_> = ended.qps.drain(..free).collect();
        ended.look_at = (!ended.qps.is_empty()).then(|| Instant::now() + LOOK_PAUSE);
        drop(ended);
        drop(freed);
    }

    fn awaited(&self) -> MutexGuard<'_, Vec<Id>> {
        let awaited = self.fetching.lock();
        awaited.unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> MutexGuard<'_, Ended> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees QPs whose connections are forgotten, if it is time to look.
    fn release_when_due(&self) {
        if self.until_look() == Some(Duration::ZERO) {
            self.release(None);
        }
    }

    /// How long it is until the next look; `None`: no QP waits for one.
    fn until_look(&self) -> Option<Duration> {
        let at = self.ended().look_at?;
        Some(at.saturating_duration_since(Instant::now()))
    }

    /// Whether a worker knows of a connection of a QP, be it over.
    pub(crate) fn is_taken(&self, worker: u8, qp: &Qp) -> bool {
        let core = self.node.handle(worker).core();
        core.is_ok_and(|core| core.cm.manager.ib().is_taken(qp.qpn()))
    }

    /// Gives up an ID that its worker alone knows. No listener: no requests come back.
    fn destroy(&self, id: Id) {
        let home = self.node.owner_of_id(id);
        // A node that is down has nothing left to give up.
        let _ = home.act(|core, now| core.cm.destroy(now, id));
    }

    /// Gives up an ID, with its port, and what waits for it where it listens.
    pub(crate) fn give_up(&self, id: Id) {
        let Ok(core) = self.node.owner_of_id(id).core() else {
            return;
        };
        let claim = core.cm.manager.claim_of(id);
        drop(core);
        let home = id.worker(self.node.workers);
        let elsewhere = |port| self.node.keeper(port) != home;
        let Some(claim) = claim.filter(|claim| claim.listens || elsewhere(claim.port)) else {
            return self.destroy(id);
        };
        let order = self.node.in_order();
        let mut requests = Vec::new();
        for handle in self.node.handles() {
            let given_up = handle.act(|core, now| {
                let requests = core.cm.destroy(now, id);
                core.cm.manager.give_back(id, &claim);
                requests
            });
            requests.extend(given_up.into_iter().flatten());
        }
        drop(order);
        requests.into_iter().for_each(|id| self.destroy(id));
    }

    fn find(&self, id: Id) -> Option<CmId> {
        self.node.here().ids.find(id)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.node.life.is_forked() {
            return;
        }
        // IDs hold their channel: only requests that nobody fetched are left.
        while let Some(event) = self.queue.pop() {
            if let ChannelEvent::Cm(Event::ConnectRequest { id, .. }) = event {
                self.destroy(id);
            }
        }
    }
}

impl Node {
    /// Creates an event channel.
    ///
    /// # Errors
    /// The operating system has no descriptor left; a service carries the node.
    pub fn create_event_channel(&self) -> Result<EventChannel, Error> {
        self.shared.inside("RDMA-CM")?;
        let queue = Arc::new(EventQueue::new("eventfd of an event channel", usize::MAX)?);
        self.shared.life.tell_end_to(&queue);
        Ok(EventChannel(Arc::new(Channel {
            node: Arc::clone(&self.shared),
            queue,
            fetching: Mutex::default(),
            ended: Mutex::default(),
        })))
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel")
            .field("fd", &self.0.queue.fd.as_raw_fd())
            .finish_non_exhaustive()
    }
}

impl EventChannel {
    /// Creates an ID (`rdma_create_id(3)`).
    ///
    /// # Errors
    /// There are too many, or the kind of QP does not go with the port space.
    pub fn create_id(&self, space: PortSpace, kind: Kind) -> Result<CmId, Error> {
        let node = &self.0.node;
        node.life.check()?;
        let mut core = node.handle(node.deal_id()).core()?;
        let id = core.cm.manager.create(space, kind)?;
        core.cm.own(id, &self.0.queue);
        drop(core);
        Ok(CmId::new(&self.0, id, kind))
    }

    /// The next event, if there is one (`rdma_get_cm_event(3)`, without blocking). What calls of
    /// [`sync`](super::sync) wait for is told to them alone.
    pub fn poll_event(&self) -> Option<CmEvent> {
        self.take(None)
    }

    /// The next event, waited for until `timeout` (`rdma_get_cm_event(3)`), or until the node does
    /// nothing any more. The node has to be driven by its own thread or another one.
    pub fn get_event(&self, timeout: Duration) -> Option<CmEvent> {
        self.wait(None, Deadline::after(timeout))
    }

    /// The next event of an ID, or the next that no call waits for.
    fn take(&self, of: Option<Id>) -> Option<CmEvent> {
        if self.0.node.life.is_forked() {
            return None;
        }
        self.0.release_when_due();
        let awaited = self.0.awaited();
        let wanted = |event: &ChannelEvent| match of {
            Some(id) => event.concerns(id),
            None => !awaited.iter().any(|&id| event.concerns(id)),
        };
        loop {
            // What belongs to an ID that was dropped meanwhile is not told.
            if let Some(event) = self.tell(self.0.queue.pop_where(wanted)?) {
                // Other calls may wait for the same.
                self.0.queue.rouse();
                return Some(event);
            }
        }
    }

    /// The same, waited for until `end`, until the node does nothing any more, or until the program
    /// has heard that the ID is over.
    fn wait(&self, of: Option<&CmId>, end: Deadline) -> Option<CmEvent> {
        loop {
            let seen = self.0.queue.reasons();
            if let Some(event) = self.take(of.map(|id| id.0.id)) {
                return Some(event);
            }
            if !self.0.node.life.is_up() || of.is_some_and(CmId::was_over) {
                return None;
            }
            let left = end.wait()?;
            let left = left.min(self.0.until_look().unwrap_or(left));
            self.0.queue.wait(seen, left);
        }
    }

    /// Whether the node works.
    ///
    /// # Errors
    /// Why it does not.
    pub fn check(&self) -> Result<(), Error> {
        self.0.node.life.check()
    }

    /// A descriptor that is readable while there are events, and for good once the node does
    /// nothing any more: [`poll_event`](Self::poll_event) gives what is left, and no more then. It
    /// is readable too while something waits for a call of [`sync`](super::sync).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.queue.fd.as_fd()
    }

    fn tell(&self, event: ChannelEvent) -> Option<CmEvent> {
        let told = |id: Id, kind| self.0.find(id).map(|id| CmEvent { id, kind });
        // What ends an attempt, or a connection, ends what its QP has under way.
        let ended = |id: Id, kind| {
            let id = self.0.find(id)?;
            id.is_over();
            Some(CmEvent { id, kind })
        };
        let event = match event {
            ChannelEvent::Address(id, peer, Ok(())) => {
                let id = self.0.find(id)?;
                id.is_resolved(peer);
                let kind = CmEventKind::AddressResolved;
                return Some(CmEvent { id, kind });
            }
            ChannelEvent::Address(id, _, Err(error)) => {
                return told(id, CmEventKind::AddressError(error));
            }
            ChannelEvent::Route(id, Ok(())) => return told(id, CmEventKind::RouteResolved),
            ChannelEvent::Route(id, Err(error)) => return told(id, CmEventKind::RouteError(error)),
            ChannelEvent::Cm(event) => event,
        };
        match event {
            Event::ConnectRequest {
                listener,
                id,
                peer,
                params,
                data,
            } => {
                let Some(listener) = self.0.find(listener) else {
                    // It was given up since this was taken out: nobody will decide.
                    self.0.destroy(id);
                    return None;
                };
                let asking = (peer.ip(), params.qpn);
                let id = CmId::requested(&self.0, id, listener.0.kind, asking);
                let kind = CmEventKind::ConnectRequest {
                    listener,
                    peer,
                    params,
                    data,
                };
                Some(CmEvent { id, kind })
            }
            Event::ConnectResponse { id, params, data } => {
                let id = self.0.find(id)?;
                let kind = match id.respond() {
                    Response::Confirmed => {
                        id.0.told.store(true, Ordering::Relaxed);
                        CmEventKind::Established { ud: None, data }
                    }
                    Response::Failed => CmEventKind::ConnectError,
                    // What ended it is told behind this.
                    Response::Late => return None,
                    Response::Program => CmEventKind::ConnectResponse { params, data },
                };
                Some(CmEvent { id, kind })
            }
            Event::ConnectError { id } => ended(id, CmEventKind::ConnectError),
            Event::Unreachable { id, status } => ended(id, CmEventKind::Unreachable { status }),
            Event::Nobody { id } => ended(id, CmEventKind::Nobody),
            Event::Rejected { id, reason, data } => {
                ended(id, CmEventKind::Rejected { reason, data })
            }
            Event::Established { id, ud, data } => {
                let id = self.0.find(id)?;
                let kind = CmEventKind::Established { ud, data };
                (!id.0.told.load(Ordering::Relaxed)).then_some(CmEvent { id, kind })
            }
            Event::Disconnected { id, reason, .. } => {
                ended(id, CmEventKind::Disconnected { reason })
            }
            Event::TimewaitExit { id } => told(id, CmEventKind::TimewaitExit),
        }
    }
}

/// An ID of which calls wait for what happens: as long as this lives, no other way leads there.
#[derive(Debug)]
pub(in crate::rdma_cm) struct Awaited {
    id: CmId,
    channel: EventChannel,
}

impl Awaited {
    /// Begins before anything can happen that a call waits for.
    pub(in crate::rdma_cm) fn new(id: &CmId) -> Self {
        let channel = EventChannel(id.channel());
        channel.0.awaited().push(id.0.id);
        let id = id.clone();
        Self { id, channel }
    }

    pub(in crate::rdma_cm) const fn id(&self) -> &CmId {
        &self.id
    }

    /// The next event, waited for until `end`.
    ///
    /// # Errors
    /// The node does nothing any more, the ID is over, or time is up.
    pub(in crate::rdma_cm) fn next(&self, end: Deadline) -> Result<CmEvent, ConnectError> {
        if let Some(event) = self.channel.wait(Some(&self.id), end) {
            return Ok(event);
        }
        self.channel.check()?;
        match self.id.was_over() {
            true => Err(ConnectError::Unreachable),
            false => Err(ConnectError::Timeout),
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let mut awaited = self.channel.0.awaited();
        if let Some(at) = awaited.iter().position(|id| *id == self.id.0.id) {
            awaited.swap_remove(at);
        }
        drop(awaited);
        // What is left is for whoever fetches events.
        self.channel.0.queue.rouse();
    }
}

#[cfg(test)]
pub(in crate::rdma_cm) mod tests;
