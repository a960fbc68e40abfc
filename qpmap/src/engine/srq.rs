//! Owns shared receive queues, on the worker's side.

use super::Event;
use super::completions::Indexed;
use super::events::Events;
use crate::allowed::Allowed;
use crate::error::VerbsError;
use crate::queue::{MAX_WR, RecvQueue, SharedRecvQueue, Size};
use crate::ring::RingMemory;
use crate::slab::Slab;
use crate::wqe::RecvWr;
use std::ops::Index;
use std::sync::Arc;
use trunkline_conn::host::ReceivesInError;
use trunkline_conn::mem::PdId;
use trunkline_conn::work::Receive;
use trunkline_wire::Worker;

/// A shared receive queue, told apart from all others that its node has or had.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SrqId {
    /// The worker that it belongs to.
    worker: u8,
    index: u32,
    serial: u32,
}

impl SrqId {
    /// The name of an SRQ in an engine elsewhere, as whoever speaks for that calls it.
    pub const fn named(index: u32, serial: u32) -> Self {
        Self {
            worker: 0,
            index,
            serial,
        }
    }

    /// Its index at its worker, which [`QpInit`](super::QpInit) takes; another SRQ may have it
    /// later.
    pub const fn index(self) -> u32 {
        self.index
    }
}

/// Attributes of a shared receive queue (`ibv_query_srq(3)`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SrqAttributes {
    /// Most receives posted and not taken.
    pub max_wr: u32,
    /// Most scatter-gather elements of a receive.
    pub max_sge: u32,
    /// The event [`SrqLimitReached`](Event::SrqLimitReached) comes when fewer receives than this
    /// are posted and not taken; 0: it is not armed.
    pub limit: u32,
}

/// The shared receive queues of an engine.
pub(crate) struct Srqs<W> {
    queues: Slab<Srq<W>>,
    worker: u8,
    /// Serial of the next queue.
    serial: u32,
}

impl<W: RingMemory> Srqs<W> {
    /// Owns no queue.
    pub(crate) const fn new(worker: Worker) -> Self {
        Self {
            queues: Slab::new(),
            worker: worker.index(),
            serial: 0,
        }
    }

    /// Adds an SRQ of the domain `pd` whose receives lie in `queue`.
    pub(crate) fn insert(&mut self, pd: PdId, queue: RecvQueue<W>) -> Indexed<SharedRecvQueue<W>> {
        let id = SrqId {
            worker: self.worker,
            index: self.queues.next_index(),
            serial: self.serial,
        };
        self.serial = self.serial.wrapping_add(1);
        let srq = Srq::new(id, pd, queue);
        let posted_to = Arc::clone(&srq.posted_to);
        (self.queues.insert(srq), posted_to)
    }

    /// Takes one out; returns its domain.
    ///
    /// # Errors
    /// There is none of this index; [`VerbsError::Busy`] while QPs receive from it.
    pub(crate) fn remove(&mut self, srq: u32) -> Result<PdId, VerbsError> {
        let users = self.known(srq)?.users;
        if users > 0 {
            return Err(VerbsError::Busy { what: "SRQ", users });
        }
        Ok(self.queues.remove(srq).pd)
    }

    #[inline]
    pub(crate) fn get(&self, srq: u32) -> Option<&Srq<W>> {
        self.queues.get(srq)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, srq: u32) -> Option<&mut Srq<W>> {
        self.queues.get_mut(srq)
    }

    /// The SRQ that a program names.
    ///
    /// # Errors
    /// [`VerbsError::UnknownSrq`]
    pub(crate) fn known(&self, srq: u32) -> Result<&Srq<W>, VerbsError> {
        self.get(srq).ok_or(VerbsError::UnknownSrq { srq })
    }

    /// Checks that QPs may be used which receive from it.
    ///
    /// # Errors
    /// [`VerbsError::UnknownSrq`]; [`VerbsError::SrqInError`]: they would get no receives.
    pub(crate) fn check(&self, srq: u32) -> Result<(), VerbsError> {
        if self.known(srq)?.in_error {
            return Err(VerbsError::SrqInError { srq });
        }
        Ok(())
    }

    /// The same, to change it.
    ///
    /// # Errors
    /// [`VerbsError::UnknownSrq`]
    pub(crate) fn known_mut(&mut self, srq: u32) -> Result<&mut Srq<W>, VerbsError> {
        self.get_mut(srq).ok_or(VerbsError::UnknownSrq { srq })
    }

    /// A QP receives from it from now on.
    pub(crate) fn attach(&mut self, srq: u32) {
        self.queues[srq].users += 1;
    }

    /// A QP receives from it no more.
    pub(crate) fn detach(&mut self, srq: u32) {
        self.queues[srq].users -= 1;
    }
}

impl<W> Index<u32> for Srqs<W> {
    type Output = Srq<W>;

    fn index(&self, srq: u32) -> &Srq<W> {
        &self.queues[srq]
    }
}

/// A queue for `max_wr` receives, `least` at least, of `max_sge` elements.
///
/// # Errors
/// Sizes out of range.
pub(crate) fn receive_queue<W: RingMemory>(
    least: u32,
    max_wr: u32,
    max_sge: u32,
) -> Result<RecvQueue<W>, VerbsError> {
    // A QP without receives is of use, and an SRQ is not: `ibv_create_srq(3)` refuses it.
    Allowed::Range(least.max(1), MAX_WR).check("max_wr", max_wr)?;
    Ok(RecvQueue::new(Size::receive(max_wr, max_sge)?))
}

/// A shared receive queue.
///
/// Messages get the receive that was posted last of those that are there: its memory, which the
/// program has just read, is in the cache still, however many are posted. Verbs leave the order
/// open.
#[derive(Debug)]
pub(crate) struct Srq<W> {
    /// What [`SharedRecvQueue::lock`] gives.
    queue: Arc<RecvQueue<W>>,
    /// Receives that were read off the ring, in the order in which they were posted, and the slots
    /// that each has there until it is used.
    read: Vec<(Receive, u16)>,
    /// Fewer posted receives than this are told, once; 0: none are.
    limit: u32,
    /// The ring was found broken, and is not read any more.
    in_error: bool,
    /// QPs that receive from it.
    users: u32,
    pd: PdId,
    id: SrqId,
    posted_to: Arc<SharedRecvQueue<W>>,
}

impl<W: RingMemory> Srq<W> {
    fn new(id: SrqId, pd: PdId, queue: RecvQueue<W>) -> Self {
        let queue = Arc::new(queue);
        Self {
            posted_to: Arc::new(SharedRecvQueue::new(Arc::clone(&queue))),
            queue,
            read: Vec::new(),
            limit: 0,
            in_error: false,
            users: 0,
            pd,
            id,
        }
    }

    /// What tells it apart from others that have its index later.
    pub(crate) const fn id(&self) -> SrqId {
        self.id
    }

    /// Its attributes.
    pub(crate) fn attributes(&self) -> SrqAttributes {
        SrqAttributes {
            max_wr: self.queue.size().max_wr(),
            max_sge: self.queue.size().max_sge(),
            limit: self.limit,
        }
    }

    /// Takes the receive that was posted last.
    ///
    /// # Errors
    /// The SRQ is in error, and what was read before has been taken.
    #[inline]
    pub(crate) fn take(&mut self, events: &mut Events) -> Result<Option<Receive>, ReceivesInError> {
        self.read_all();
        let Some((receive, slots)) = self.read.pop() else {
            self.check_ring(events);
            return match self.in_error {
                true => Err(ReceivesInError),
                false => Ok(None),
            };
        };
        self.queue.release(slots);
        if self.limit != 0 {
            self.check_limit(events);
        }
        Ok(Some(receive))
    }

    /// Whether [`take`](Self::take) would find something, be it an error.
    pub(crate) fn has_receive(&self) -> bool {
        !self.read.is_empty() || self.in_error || self.queue.has_entry()
    }

    /// Returns how many receives were posted and not taken.
    pub(crate) fn posted(&self) -> u32 {
        self.queue.posted()
    }

    /// Arms the limit, or disarms it with 0.
    ///
    /// # Errors
    /// A limit beyond its size.
    pub(crate) fn set_limit(&mut self, limit: u32, events: &mut Events) -> Result<(), VerbsError> {
        Allowed::Range(0, self.queue.size().max_wr()).check("srq_limit", limit)?;
        self.limit = limit;
        self.check_limit(events);
        Ok(())
    }

    /// Makes room for `max_wr` receives. What is posted stays posted, in its order. `memory` gives
    /// the ring of that size, where its other half is elsewhere.
    ///
    /// # Errors
    /// It is in error, or `max_wr` is out of range: there is room for what is posted, and the limit
    /// is not beyond it. Nothing has changed then.
    pub(crate) fn resize(
        &mut self,
        max_wr: u32,
        events: &mut Events,
        memory: impl FnOnce(Size) -> Result<Option<W>, VerbsError>,
    ) -> Result<(), VerbsError> {
        let posted_to = Arc::clone(&self.posted_to);
        let mut current = posted_to.lock();
        self.read_all();
        self.check_ring(events);
        if self.in_error {
            let srq = self.id.index;
            return Err(VerbsError::SrqInError { srq });
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
        *current = Arc::clone(&self.queue);
        Ok(())
    }

    /// Reads what was posted off the ring. The slots are not free before the receives are used.
    #[inline]
    fn read_all(&mut self) {
        if self.in_error {
            return;
        }
        while let Ok(Some(posted)) = self.queue.read() {
            self.read.push(posted);
        }
    }

    /// Tells once that the ring is broken, where that is why no more could be read.
    #[cold]
    fn check_ring(&mut self, events: &mut Events) {
        if self.in_error {
            return;
        }
        match self.queue.read() {
            // Posted since then, if at all: the next message takes it.
            Ok(posted) => self.read.extend(posted),
            Err(_) => {
                self.in_error = true;
                self.posted_to.set_in_error();
                events.push(Event::SrqError { srq: self.id });
            }
        }
    }

    /// Tells once that fewer are posted than the limit.
    #[cold]
    fn check_limit(&mut self, events: &mut Events) {
        if self.posted() < self.limit {
            self.limit = 0;
            events.push(Event::SrqLimitReached { srq: self.id });
        }
    }
}

#[cfg(test)]
mod tests;
