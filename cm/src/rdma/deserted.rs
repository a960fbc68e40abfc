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

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_conn::time::SECOND;

    #[test]
    fn a_connection_is_ended_once_and_when_that_was_said_first_however_often_it_is_said() {
        let at = |seconds: u64| Instant::from_nanos(seconds * SECOND);
        let (once, often) = (Id(1), Id(2));
        let mut deserted = Deserted::default();
        deserted.add(at(8), once);
        for seconds in [7, 9, 6] {
            deserted.add(at(seconds), often);
            assert_eq!(deserted.due(), Some(at(7)));
        }
        assert_eq!(deserted.first(at(6)), None);
        assert_eq!(deserted.first(at(7)), Some(often));
        deserted.remove(often);
        assert_eq!(deserted.due(), Some(at(8)));
        deserted.remove(once);
        assert_eq!(deserted.due(), None);
    }
}
