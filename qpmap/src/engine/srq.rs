//! Owns shared receive queues, on the side of a worker.

mod receives;

use super::events::Events;
use crate::error::VerbsError;
use crate::queue::Size;
use crate::ring::RingMemory;
use crate::slab::Slab;
use std::ops::Index;
use std::sync::Arc;
use trunkline_conn::host::ReceivesInError;
use trunkline_conn::mem::PdId;
use trunkline_conn::work::Receive;
use trunkline_wire::Gid;

pub use receives::SharedReceives;

/// A shared receive queue, told apart from all others that this engine has or had. Of a node with
/// several workers, which take their SRQs up in one order, it is equal in all.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct SrqId {
    index: u32,
    serial: u32,
}

impl SrqId {
    /// The name of an SRQ in an engine elsewhere, as whoever speaks for that calls it.
    pub const fn named(index: u32, serial: u32) -> Self {
        Self { index, serial }
    }

    /// Its index, which [`QpInit`](super::QpInit) takes; another SRQ may have it later.
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
    /// The event [`SrqLimitReached`](super::Event::SrqLimitReached) comes when fewer receives than
    /// this are posted and not taken; 0: it is not armed.
    pub limit: u32,
}

/// The shared receive queues that QPs of an engine may receive from.
pub(crate) struct Srqs<W> {
    queues: Slab<Srq<W>>,
    /// Serial of the next queue.
    serial: u32,
}

impl<W: RingMemory> Srqs<W> {
    /// Has no queue.
    pub(crate) const fn new() -> Self {
        Self {
            queues: Slab::new(),
            serial: 0,
        }
    }

    /// Takes up an SRQ; gives its index.
    pub(crate) fn insert(&mut self, receives: Arc<SharedReceives<W>>) -> u32 {
        let id = SrqId {
            index: self.queues.next_index(),
            serial: self.serial,
        };
        self.serial = self.serial.wrapping_add(1);
        self.queues.insert(Srq { id, receives })
    }

    /// Takes one out. Returns its domain, where no other engine has it any more.
    ///
    /// # Errors
    /// There is none of this index; [`VerbsError::Busy`] while QPs of any engine receive from it.
    pub(crate) fn remove(&mut self, srq: u32) -> Result<Option<PdId>, VerbsError> {
        let users = self.known(srq)?.receives.lock().users();
        if users > 0 {
            return Err(VerbsError::Busy { what: "SRQ", users });
        }
        let last = Arc::into_inner(self.queues.remove(srq).receives);
        Ok(last.map(|receives| receives.pd()))
    }

    #[inline]
    pub(crate) fn get(&self, srq: u32) -> Option<&Srq<W>> {
        self.queues.get(srq)
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
        if self.known(srq)?.receives.queue().is_in_error() {
            return Err(VerbsError::SrqInError { srq });
        }
        Ok(())
    }

    /// A QP receives from it from now on.
    pub(crate) fn attach(&self, srq: u32) {
        self.queues[srq].receives.lock().attach();
    }

    /// A QP receives from it no more.
    pub(crate) fn detach(&self, srq: u32) {
        self.queues[srq].receives.lock().detach();
    }
}

impl<W> Index<u32> for Srqs<W> {
    type Output = Srq<W>;

    fn index(&self, srq: u32) -> &Srq<W> {
        &self.queues[srq]
    }
}

/// A shared receive queue, as an engine knows it.
#[derive(Debug)]
pub(crate) struct Srq<W> {
    id: SrqId,
    receives: Arc<SharedReceives<W>>,
}

impl<W: RingMemory> Srq<W> {
    /// What tells it apart from others that have its index later.
    pub(crate) const fn id(&self) -> SrqId {
        self.id
    }

    /// Its attributes.
    pub(crate) fn attributes(&self) -> SrqAttributes {
        self.receives.lock().attributes()
    }

    /// Takes the receive that was posted last.
    ///
    /// # Errors
    /// The SRQ is in error, and what was read before has been taken.
    #[inline]
    pub(crate) fn take(&self, events: &mut Events) -> Result<Option<Receive>, ReceivesInError> {
        self.receives.lock().take(self.id, events)
    }

    /// The same for a message that keeps it for as long as its sender, the peer at `holder`, likes:
    /// `None`, too, where that one holds as many as it leaves to others.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(crate) fn hold(
        &self,
        holder: Gid,
        events: &mut Events,
    ) -> Result<Option<Receive>, ReceivesInError> {
        self.receives.lock().hold(holder, self.id, events)
    }

    /// A receive that the peer at `holder` [held](Self::hold) is used up, or flushed.
    pub(crate) fn give_back(&self, holder: Gid) {
        self.receives.lock().give_back(holder);
    }

    /// Whether [`take`](Self::take) would find something, be it an error. Another worker may take
    /// it first.
    pub(crate) fn has_receive(&self) -> bool {
        self.receives.lock().has_receive()
    }

    /// Arms the limit, or disarms it with 0.
    ///
    /// # Errors
    /// A limit beyond its size.
    pub(crate) fn set_limit(&self, limit: u32, events: &mut Events) -> Result<(), VerbsError> {
        self.receives.lock().set_limit(limit, self.id, events)
    }

    /// Makes room for `max_wr` receives. What is posted stays posted, in its order. `memory` gives
    /// the ring of that size, where its other half is elsewhere.
    ///
    /// # Errors
    /// It is in error, or `max_wr` is out of range: there is room for what is posted, and the limit
    /// is not beyond it. Nothing has changed then.
    pub(crate) fn resize(
        &self,
        max_wr: u32,
        events: &mut Events,
        memory: impl FnOnce(Size) -> Result<Option<W>, VerbsError>,
    ) -> Result<(), VerbsError> {
        self.receives.resize(max_wr, (self.id, events), memory)
    }
}

#[cfg(test)]
mod tests;
