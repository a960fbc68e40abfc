//! The receives of an SRQ, which all workers of a node take from.
//!
//! Posting has a lock of its own ([`SharedRecvQueue`]), so programs and workers do not hold each
//! other up. A worker takes one receive for each message, under a lock that it has for as long as
//! that takes: so no worker keeps receives that QPs of another one need. The lock is two atomic
//! operations where nobody else has it. Without a lock, taking from a ring that anybody may write
//! to, and from a stack, would be more of them.

use super::super::Event;
use super::super::events::Events;
use super::super::inbound::Held;
use super::{SrqAttributes, SrqId};
use crate::allowed::Allowed;
use crate::error::VerbsError;
use crate::queue::{MAX_WR, RecvQueue, SharedRecvQueue, Size};
use crate::ring::RingMemory;
use crate::sync::{Mutex, MutexGuard};
use crate::wqe::RecvWr;
use std::sync::{Arc, PoisonError};
use trunkline_conn::host::ReceivesInError;
use trunkline_conn::mem::PdId;
use trunkline_conn::work::Receive;
use trunkline_wire::Gid;

/// Receives that are read off the ring for one message at most: a program may have posted tens of
/// thousands at once, and other programs' messages wait for a worker that reads them, be it at
/// another worker that has such a message, too.
pub(super) const MOST_READ: usize = 64;

/// The receives of an SRQ: of one engine, or of all engines of a node
/// ([`Engine::adopt_srq`](crate::engine::Engine::adopt_srq)).
///
/// Messages get the receive that was posted last of those that were read off the ring, which is
/// `MOST_READ` more for each message: its memory, which the program has just read, is in the cache
/// still, however many are posted. Verbs leave the order open.
#[derive(Debug)]
pub struct SharedReceives<W> {
    pd: PdId,
    posted_to: Arc<SharedRecvQueue<W>>,
    /// Who needs both locks takes that of posting first.
    taking: Mutex<Taking<W>>,
}

/// The side of the workers.
#[derive(Debug)]
pub(super) struct Taking<W> {
    /// What [`SharedRecvQueue::lock`] gives.
    pub(super) queue: Arc<RecvQueue<W>>,
    posted_to: Arc<SharedRecvQueue<W>>,
    /// Receives that were read off the ring, in the order in which they were posted, and the slots
    /// that each has there until it is used.
    read: Vec<(Receive, u16)>,
    /// Fewer posted receives than this are told, once; 0: none are.
    limit: u32,
    /// Those that messages of peers hold, whichever worker gave them.
    held: Held<Gid>,
    /// QPs of all workers that receive from it.
    users: u32,
}

impl<W: RingMemory> SharedReceives<W> {
    /// Room for `max_wr` receives of `max_sge` elements, in the domain `pd`.
    ///
    /// # Errors
    /// Sizes out of range: there is one receive at least.
    pub fn new(pd: PdId, max_wr: u32, max_sge: u32) -> Result<Self, VerbsError> {
        let queue = Arc::new(receive_queue(1, max_wr, max_sge)?);
        let posted_to = Arc::new(SharedRecvQueue::new(Arc::clone(&queue)));
        let taking = Taking {
            queue,
            posted_to: Arc::clone(&posted_to),
            read: Vec::new(),
            limit: 0,
            held: Held::default(),
            users: 0,
        };
        Ok(Self {
            pd,
            posted_to,
            taking: Mutex::new(taking),
        })
    }

    /// The queue that programs post to.
    pub const fn queue(&self) -> &Arc<SharedRecvQueue<W>> {
        &self.posted_to
    }

    /// Its protection domain.
    pub(super) const fn pd(&self) -> PdId {
        self.pd
    }

    /// The side of the workers, for the one that has the guard.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Taking<W>> {
        // A worker that panicked in a call ends the node: others still look, and hear of it soon.
        self.taking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for `max_wr` receives. What is posted stays posted, in its order. `memory` gives
    /// the ring of that size, where its other half is elsewhere.
    ///
    /// # Errors
    /// It is in error, or `max_wr` is out of range: there is room for what is posted, and the limit
    /// is not beyond it. Nothing has changed then.
    pub(super) fn resize(
        &self,
        max_wr: u32,
        (id, events): (SrqId, &mut Events),
        memory: impl FnOnce(Size) -> Result<Option<W>, VerbsError>,
    ) -> Result<(), VerbsError> {
        let mut current = self.posted_to.lock();
        let mut taking = self.lock();
        *current = taking.resize(max_wr, (id, events), memory)?;
        Ok(())
    }
}

impl<W: RingMemory> Taking<W> {
    /// Its attributes.
    pub(super) fn attributes(&self) -> SrqAttributes {
        SrqAttributes {
            max_wr: self.queue.size().max_wr(),
            max_sge: self.queue.size().max_sge(),
            limit: self.limit,
        }
    }

    /// QPs of all workers that receive from it.
    pub(super) const fn users(&self) -> u32 {
        self.users
    }

    /// A QP receives from it from now on.
    pub(super) const fn attach(&mut self) {
        self.users += 1;
    }

    /// A QP receives from it no more.
    pub(super) const fn detach(&mut self) {
        self.users -= 1;
    }

    /// Takes the receive that was posted last.
    ///
    /// # Errors
    /// The SRQ is in error, and what was read before has been taken.
    #[inline]
    pub(super) fn take(
        &mut self,
        id: SrqId,
        events: &mut Events,
    ) -> Result<Option<Receive>, ReceivesInError> {
        self.read_some();
        let Some((receive, slots)) = self.read.pop() else {
            self.check_ring(id, events);
            return match self.is_in_error() {
                true => Err(ReceivesInError),
                false => Ok(None),
            };
        };
        self.queue.release(slots);
        if self.limit != 0 {
            self.check_limit(id, events);
        }
        Ok(Some(receive))
    }

    /// The same for a message that keeps it for as long as its sender, the peer at `holder`, likes.
    /// That one may hold no more than it leaves to others.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(super) fn hold(
        &mut self,
        holder: Gid,
        id: SrqId,
        events: &mut Events,
    ) -> Result<Option<Receive>, ReceivesInError> {
        let left = self.queue.posted();
        // A ring that has an entry, and none by its own count, is broken.
        let broken = left == 0 && self.has_receive();
        if !broken && !self.held.may_take(holder, left) {
            return Ok(None);
        }
        let taken = self.take(id, events)?;
        if taken.is_some() {
            self.held.take(holder);
        }
        Ok(taken)
    }

    /// A receive that the peer at `holder` [held](Self::hold) is used up, or flushed.
    pub(super) fn give_back(&mut self, holder: Gid) {
        self.held.give_back(holder);
    }

    /// Whether [`take`](Self::take) would find something, be it an error.
    pub(super) fn has_receive(&self) -> bool {
        !self.read.is_empty() || self.is_in_error() || self.queue.has_entry()
    }

    /// Arms the limit, or disarms it with 0.
    ///
    /// # Errors
    /// A limit beyond its size.
    pub(super) fn set_limit(
        &mut self,
        limit: u32,
        id: SrqId,
        events: &mut Events,
    ) -> Result<(), VerbsError> {
        Allowed::Range(0, self.queue.size().max_wr()).check("srq_limit", limit)?;
        self.limit = limit;
        self.check_limit(id, events);
        Ok(())
    }

    /// Moves to a queue for `max_wr` receives; gives it.
    ///
    /// # Errors
    /// As [`SharedReceives::resize`].
    fn resize(
        &mut self,
        max_wr: u32,
        (id, events): (SrqId, &mut Events),
        memory: impl FnOnce(Size) -> Result<Option<W>, VerbsError>,
    ) -> Result<Arc<RecvQueue<W>>, VerbsError> {
        while self.read_some() {}
        self.check_ring(id, events);
        if self.is_in_error() {
            return Err(VerbsError::SrqInError { srq: id.index() });
        }
        let least = self.limit.max(self.read.len() as u32);
        let queue = receive_queue(least, max_wr, self.queue.size().max_sge())?;
        if let Some(memory) = memory(queue.size())? {
            queue.begin(memory);
        }
        for (receive, _) in &self.read {
            let request = RecvWr {
                wr_id: receive.wr_id,
                sges: &receive.sges,
            };
            // It kept to these limits when it was read, and there is room for it.
            queue.post(&[request]).map_err(|refused| refused.error)?;
        }
        self.read.clear();
        self.queue = Arc::new(queue);
        Ok(Arc::clone(&self.queue))
    }

    /// The ring was found broken, and is not read any more.
    fn is_in_error(&self) -> bool {
        self.posted_to.is_in_error()
    }

    /// Reads what was posted off the ring, [`MOST_READ`] at most. The slots are not free before the
    /// receives are used. Gives whether there may be more.
    #[inline]
    fn read_some(&mut self) -> bool {
        if self.is_in_error() {
            return false;
        }
        for _ in 0..MOST_READ {
            let Ok(Some(posted)) = self.queue.read() else {
                return false;
            };
            self.read.push(posted);
        }
        true
    }

    /// Tells once that the ring is broken, where that is why no more could be read.
    #[cold]
    fn check_ring(&mut self, id: SrqId, events: &mut Events) {
        if self.is_in_error() {
            return;
        }
        match self.queue.read() {
            // Posted since then, if at all: the next message takes it.
            Ok(posted) => self.read.extend(posted),
            Err(_) => {
                self.posted_to.set_in_error();
                events.push(Event::SrqError { srq: id });
            }
        }
    }

    /// Tells once that fewer are posted than the limit.
    #[cold]
    fn check_limit(&mut self, id: SrqId, events: &mut Events) {
        if self.queue.posted() < self.limit {
            self.limit = 0;
            events.push(Event::SrqLimitReached { srq: id });
        }
    }
}

/// A queue for `max_wr` receives, `least` at least, of `max_sge` elements.
///
/// # Errors
/// Sizes out of range.
pub(super) fn receive_queue<W: RingMemory>(
    least: u32,
    max_wr: u32,
    max_sge: u32,
) -> Result<RecvQueue<W>, VerbsError> {
    // A QP without receives is of use, and an SRQ is not: `ibv_create_srq(3)` refuses it.
    Allowed::Range(least.max(1), MAX_WR).check("max_wr", max_wr)?;
    Ok(RecvQueue::new(Size::receive(max_wr, max_sge)?))
}
