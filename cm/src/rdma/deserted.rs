//! Connections that stand, and whose peers' QPs are gone.

use super::Id;
use alloc::collections::{BTreeMap, BTreeSet};
use trunkline_conn::time::Instant;

/// IDs whose connections are to be ended at a given time: each of them once, however often its peer
/// says that its QP is gone, and none whose connection has ended meanwhile.
#[derive(Debug, Default)]
pub(super) struct Deserted {
    queue: BTreeSet<(Instant, Id)>,
    due: BTreeMap<Id, Instant>,
}

impl Deserted {
    /// The connection of `id` is to be ended at `due`, or when that was said first.
    pub(super) fn add(&mut self, due: Instant, id: Id) {
        let due = *self.due.entry(id).or_insert(due);
        self.queue.insert((due, id));
    }

    /// The connection of `id` is over.
    pub(super) fn remove(&mut self, id: Id) {
        if let Some(due) = self.due.remove(&id) {
            self.queue.remove(&(due, id));
        }
    }

    /// When the next one is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// One that is due.
    pub(super) fn first(&self, now: Instant) -> Option<Id> {
        let (due, id) = self.queue.first()?;
        (*due <= now).then_some(*id)
    }

    pub(super) fn state_bytes(&self) -> usize {
        self.due.len() * (size_of::<(Instant, Id)>() + size_of::<(Id, Instant)>())
    }
}
