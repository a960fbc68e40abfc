//! Connections whose peers' QPs are gone, and whose ends were not heard of yet.

use super::Id;
use crate::ib::ConnId;
use alloc::collections::{BTreeSet, VecDeque};
use trunkline_conn::time::Instant;

/// Connections that are to be ended at a given time, in its order: each of them once, however often
/// its peer says that its QP is gone.
#[derive(Debug, Default)]
pub(super) struct Deserted {
    queue: VecDeque<(Instant, Id, ConnId)>,
    members: BTreeSet<Id>,
}

impl Deserted {
    /// The connection of `id` is to be ended at `due`, which is not before that of earlier ones.
    pub(super) fn add(&mut self, due: Instant, id: Id, conn: ConnId) {
        if self.members.insert(id) {
            self.queue.push_back((due, id, conn));
        }
    }

    /// When the next one is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.queue.front().map(|(due, ..)| *due)
    }

    /// Takes out one that is due.
    pub(super) fn take(&mut self, now: Instant) -> Option<(Id, ConnId)> {
        let (_, id, conn) = self.queue.pop_front_if(|(due, ..)| *due <= now)?;
        self.members.remove(&id);
        Some((id, conn))
    }
}
