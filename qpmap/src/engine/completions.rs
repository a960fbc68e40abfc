//! Owns the completion queues of an engine: which there are, who uses them, which have completions
//! that programs do not see yet, and which are in error.

use crate::cq::{CompletionQueue, Entries, Notifications, Notify, Spread, Writer};
use crate::error::VerbsError;
use crate::ring::RingMemory;
use crate::slab::Slab;
use std::sync::Arc;
use trunkline_conn::time::Instant;
use trunkline_conn::work::{Completion, Extra, Request, Status, VendorError, WorkOpcode};
use trunkline_wire::Qpn;

/// A completion queue, told apart from all others that this engine has or had. Of a node with
/// several workers, which make their queues in one order, it is equal in all.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CqId {
    index: u32,
    serial: u32,
}

impl CqId {
    /// The name of a CQ in an engine elsewhere, as whoever speaks for that calls it.
    pub const fn named(index: u32, serial: u32) -> Self {
        Self { index, serial }
    }

    /// Its index, which [`QpInit`](super::QpInit) takes; another CQ may have it later.
    pub const fn index(self) -> u32 {
        self.index
    }
}

/// The engine's index of a queue, and the queue.
pub type Indexed<Q> = (u32, Arc<Q>);

/// The completion queues of an engine.
pub(crate) struct Completions<W> {
    queues: Slab<Slot<W>>,
    /// Indices of the queues with completions that are not published.
    unpublished: Vec<u32>,
    /// Serial of the next queue.
    serial: u32,
    /// Why requests fail at the moment, if that is known.
    why: VendorError,
    /// When the worker's round began, and the same as completions have it once there are any.
    now: Instant,
    spread: (Instant, Spread),
}

struct Slot<W> {
    writer: Writer<W>,
    notify: Option<Arc<dyn Notify>>,
    serial: u32,
    /// The queue is in the list `unpublished`.
    is_listed: bool,
    /// A completion found no room, here or at another worker.
    in_error: bool,
    /// Send and receive queues of QPs that complete into it.
    users: u32,
}

impl<W: RingMemory> Completions<W> {
    /// Owns no queue.
    pub(crate) const fn new() -> Self {
        Self {
            queues: Slab::new(),
            unpublished: Vec::new(),
            serial: 0,
            why: VendorError::None,
            now: Instant::ZERO,
            spread: (Instant::ZERO, Spread::of(0)),
        }
    }

    /// What completes from now on does so at this time.
    #[inline]
    pub(crate) const fn begin(&mut self, now: Instant) {
        self.now = now;
    }

    /// Requests that fail from now on say this.
    pub(crate) const fn say_why(&mut self, why: VendorError) {
        self.why = why;
    }

    /// Creates a queue for `depth` completions.
    ///
    /// # Errors
    /// A depth of 0 or beyond what a CQ can hold.
    pub(crate) fn create(
        &mut self,
        depth: u32,
        notify: Option<Arc<dyn Notify>>,
    ) -> Result<Indexed<CompletionQueue<W>>, VerbsError> {
        let writer = Writer::new(depth)?;
        let queue = Arc::clone(writer.queue());
        Ok((self.adopt(writer, notify), queue))
    }

    /// Takes a queue in whose writer was made elsewhere. Returns its index.
    pub(crate) fn adopt(&mut self, writer: Writer<W>, notify: Option<Arc<dyn Notify>>) -> u32 {
        let slot = Slot {
            writer,
            notify,
            serial: self.serial,
            is_listed: false,
            in_error: false,
            users: 0,
        };
        self.serial = self.serial.wrapping_add(1);
        self.queues.insert(slot)
    }

    /// Checks that a queue may be [resized](Self::resize) to what has room for `capacity`
    /// completions.
    ///
    /// # Errors
    /// There is none of this index, it is in error, or programs have not polled more completions
    /// than that.
    pub(crate) fn check_resize(&self, cq: u32, capacity: u32) -> Result<(), VerbsError> {
        self.check([cq; 2])?;
        self.queues[cq].writer.check_resize(cq, capacity)
    }

    /// Moves a queue to other entries.
    ///
    /// # Panics
    /// There is none of this index.
    pub(crate) fn resize(&mut self, cq: u32, entries: Entries<W>) {
        self.queues[cq].writer.resize(entries);
    }

    /// Destroys a queue.
    ///
    /// # Errors
    /// There is none of this index; [`VerbsError::Busy`] while QPs use it.
    pub(crate) fn destroy(&mut self, cq: u32) -> Result<(), VerbsError> {
        let slot = self.queues.get(cq).ok_or(VerbsError::UnknownCq { cq })?;
        if slot.users > 0 {
            return Err(VerbsError::Busy {
                what: "CQ",
                users: slot.users,
            });
        }
        self.queues.remove(cq);
        self.unpublished.retain(|listed| *listed != cq);
        Ok(())
    }

    /// Returns what tells a queue apart from others that have its index later.
    ///
    /// # Panics
    /// There is none of this index.
    pub(crate) fn id(&self, cq: u32) -> CqId {
        let serial = self.queues[cq].serial;
        CqId { index: cq, serial }
    }

    /// Checks that QPs may be used which complete into these queues.
    ///
    /// # Errors
    /// One is not there, or in error: nobody would get its completions.
    pub(crate) fn check(&self, cqs: [u32; 2]) -> Result<(), VerbsError> {
        for cq in cqs {
            let slot = self.queues.get(cq).ok_or(VerbsError::UnknownCq { cq })?;
            if slot.in_error {
                return Err(VerbsError::CqInError { cq });
            }
        }
        Ok(())
    }

    /// A QP uses these queues from now on, which passed [`check`](Self::check).
    pub(crate) fn attach(&mut self, cqs: [u32; 2]) {
        for cq in cqs {
            self.queues[cq].users += 1;
        }
    }

    /// A QP uses these queues no more.
    pub(crate) fn detach(&mut self, cqs: [u32; 2]) {
        for cq in cqs {
            self.queues[cq].users -= 1;
        }
    }

    /// Whether QPs use a queue; false where it is gone.
    pub(crate) fn is_used(&self, cq: CqId) -> bool {
        self.get(cq).is_some_and(|slot| slot.users > 0)
    }

    fn get(&self, cq: CqId) -> Option<&Slot<W>> {
        let slot = self.queues.get(cq.index);
        slot.filter(|slot| slot.serial == cq.serial)
    }

    /// The completion of a send request of the QP `qpn` that ends so, with so many bytes.
    #[inline(always)]
    pub(crate) fn of_request(
        &self,
        qpn: Qpn,
        request: &Request,
        route: u32,
        (status, byte_len): (Status, u32),
    ) -> Completion {
        Completion {
            wr_id: request.wr_id,
            status,
            opcode: WorkOpcode::from(&request.op),
            qpn,
            byte_len,
            extra: Extra::None,
            src_qp: Qpn::default(),
            route,
            solicited: false,
            vendor_err: match status {
                Status::RetryExceeded => self.why,
                _ => VendorError::None,
            },
            ticks: 0,
        }
    }

    /// Puts a completion into a queue; programs see it at the next [`publish`](Self::publish). It
    /// is lost where the queue is gone, or full: then the queue is in error, and returned the first
    /// time.
    #[inline(always)]
    #[must_use = "QPs of a queue that overran are in error"]
    pub(crate) fn push(&mut self, cq: u32, completion: &Completion) -> Option<CqId> {
        if self.spread.0 != self.now {
            self.spread = (self.now, Spread::of(self.now.ticks()));
        }
        let slot = self.queues.get_mut(cq)?;
        let overran = slot.writer.push_at(completion, self.spread.1).is_err();
        if !slot.is_listed {
            slot.is_listed = true;
            self.unpublished.push(cq);
        }
        if overran { self.overran(cq) } else { None }
    }

    #[cold]
    fn overran(&mut self, cq: u32) -> Option<CqId> {
        let before = std::mem::replace(&mut self.queues[cq].in_error, true);
        (!before).then(|| self.id(cq))
    }

    /// Puts a queue in error, as another worker has: a program's CQ is one, though each worker
    /// completes into a ring of its own. Returns whether it was not in error before.
    pub(crate) fn fail(&mut self, cq: CqId) -> bool {
        let slot = self.queues.get_mut(cq.index);
        let Some(slot) = slot.filter(|slot| slot.serial == cq.serial && !slot.in_error) else {
            return false;
        };
        slot.in_error = true;
        slot.writer.fail();
        if !std::mem::replace(&mut slot.is_listed, true) {
            self.unpublished.push(cq.index);
        }
        true
    }

    /// Completions of a QP that lie in these queues are not polled any more.
    pub(crate) fn forget(&self, cqs: [u32; 2], qpn: Qpn) {
        self.queues[cqs[0]].writer.forget(qpn);
        if cqs[1] != cqs[0] {
            self.queues[cqs[1]].writer.forget(qpn);
        }
    }

    /// Whether there are completions that programs do not see yet.
    pub(crate) fn are_unpublished(&self) -> bool {
        !self.unpublished.is_empty()
    }

    /// Makes completions visible to programs; gives those that asked to be woken then, in the order
    /// in which queues got their first one. Called once per burst, so that a cache line goes to the
    /// program once.
    pub(crate) fn publish(&mut self) -> Notifications {
        let mut armed = Notifications::default();
        for index in self.unpublished.drain(..) {
            let Some(slot) = self.queues.get_mut(index) else {
                continue;
            };
            slot.is_listed = false;
            slot.writer.publish();
            if slot.writer.take_notification()
                && let Some(notify) = &slot.notify
            {
                armed.push(notify);
            }
        }
        armed
    }
}

#[cfg(test)]
mod tests;
